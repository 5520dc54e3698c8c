//! The request expression: how stages make an answer out of a request, in two halves.
//!
//! `read` ends where the engine has accepted the request: until then an error is a status. `answer` starts there: from then on an error is
//! part of the answer. [`Admitted`] is what the first half hands over, and only it can make one.
//!
//! The order is checked by the compiler. Text cannot be cut at stop strings before it is text:
//!
//! ```compile_fail
//! use tidegate::stage::{Pipeline, generate::Generate, stop::Stop};
//! let wrong = Pipeline::new(Generate).then(Stop::new(vec![], 0));
//! ```
//!
//! With the step between them it can:
//!
//! ```
//! use std::sync::Arc;
//! use tidegate::{stage::{Pipeline, detokenize::Detokenize, generate::Generate, stop::Stop}, token::Tokenizer};
//! fn right(tokenizer: Arc<Tokenizer>) {
//!     let _ = Pipeline::new(Generate).then(Detokenize::new(tokenizer)).then(Stop::new(vec![], 0));
//! }
//! ```

use std::sync::Arc;

use crate::{
    engine::{
        Handle,
        request::{EngineError, Token},
    },
    stage::{
        Pipeline, Stage,
        admit::{Admit, Admitted},
        detokenize::Detokenize,
        generate::Generate,
        reason::{Markup, Reason},
        stop::Stop,
        text::TextEvent,
        tokenize::{Job, RequestError, Tokenize},
    },
    template::ChatTemplate,
    token::Tokenizer,
};

/// From what a client sent to its place in the engine: one [`Admitted`] for every answer wanted, prompt by prompt.
pub fn read(
    tokenizer: Arc<Tokenizer>,
    template: Arc<ChatTemplate>,
    engine: Handle,
) -> Pipeline<impl Stage<In = Job, Out = Admitted, Error = RequestError>> {
    Pipeline::new(Tokenize::new(tokenizer, template)).then(Admit::new(engine))
}

/// From a place in the engine to text, reasoning apart. A stream of it for every answer to `prompt`.
pub fn answer(
    tokenizer: Arc<Tokenizer>,
    stops: Vec<String>,
    markup: Markup,
    prompt: &[Token],
) -> Pipeline<impl Stage<In = Admitted, Out = TextEvent, Error = EngineError> + use<>> {
    let reason = Reason::new(markup, &tokenizer, prompt);
    Pipeline::new(Generate)
        .then(Detokenize::new(tokenizer))
        .then(Stop::new(stops, prompt.len()))
        .then(reason)
}
