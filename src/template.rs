//! A conversation as the text that a model was trained to continue: the file's own Jinja template, rendered.
//!
//! Renders what Python's `apply_chat_template` renders, byte for byte. Knows nothing of tokens: where somebody's words spell a control
//! token, [`Rendered::breaks`] says so and the tokenizer obeys. Knows no clock: the time comes with the conversation.

mod environment;
mod error;
mod forms;
mod json;
mod marks;

pub use error::TemplateError;

use forms::Forms;
use marks::Marks;
use minijinja::{Environment, Value};
use serde_json::{Map, Value as Json};
use std::time::SystemTime;

/// What a template is made from.
#[derive(Clone, Copy, Debug)]
pub struct TemplateSpec<'a> {
    /// `tokenizer.chat_template`; absent: ChatML, if the vocabulary has its tokens.
    pub source: Option<&'a str>,
    /// `tokenizer.chat_template.tool_use`, which takes over where a conversation has tools.
    pub tool_use: Option<&'a str>,
    /// The begin token's text; empty if there is none.
    pub bos: &'a str,
    /// The end token's text; empty if there is none.
    pub eos: &'a str,
    /// Names of all control tokens.
    pub controls: &'a [&'a str],
}

/// A conversation to render.
#[derive(Clone, Copy, Debug)]
pub struct Conversation<'a> {
    /// Messages as the client sent them: `role`, `content` (text or parts), `tool_calls`, ...
    pub messages: &'a [Json],
    /// Tool definitions, as sent; empty if there are none.
    pub tools: &'a [Json],
    /// Ends with the head of an answer.
    pub add_generation_prompt: bool,
    /// Further variables: `enable_thinking`, `reasoning_effort` and whatever the client passes as `chat_template_kwargs`.
    pub variables: &'a Map<String, Json>,
    /// What the template takes for the present (in local time).
    pub now: SystemTime,
}

/// A rendered conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rendered {
    /// The prompt.
    pub text: String,
    /// Byte offsets, ascending, that no control token spans: inside of what only looks like one.
    pub breaks: Vec<usize>,
}

/// The template of a model.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    default: Option<Variant>,
    tool_use: Option<Variant>,
    bos: String,
    eos: String,
    marks: Marks,
}

/// One of a file's templates.
#[derive(Clone, Copy, Debug)]
struct Variant {
    name: &'static str,
    forms: Forms,
}

/// For files without a template whose vocabulary has `<|im_start|>`.
const CHATML: &str = "{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}";

impl ChatTemplate {
    /// Compiles the template and finds out which forms of a message it takes.
    ///
    /// **Errors**: one that does not compile. A model without a template, and without the tokens of ChatML, is good for other things.
    pub fn new(spec: &TemplateSpec<'_>) -> Result<Self, TemplateError> {
        let mut this = Self {
            environment: environment::new(),
            default: None,
            tool_use: None,
            bos: spec.bos.to_owned(),
            eos: spec.eos.to_owned(),
            marks: Marks::new(spec.controls)?,
        };
        let chatml = ["<|im_start|>", "<|im_end|>"]
            .iter()
            .all(|name| spec.controls.contains(name));
        let source = spec.source.or_else(|| chatml.then_some(CHATML));
        this.default = source
            .map(|source| this.variant("default", source))
            .transpose()?;
        this.tool_use = spec
            .tool_use
            .map(|source| this.variant("tool_use", source))
            .transpose()?;
        Ok(this)
    }

    fn variant(&mut self, name: &'static str, source: &str) -> Result<Variant, TemplateError> {
        environment::add(&mut self.environment, name, source)?;
        Ok(Variant {
            name,
            forms: Forms::probe(|conversation| self.render_plain(name, conversation)),
        })
    }

    /// The prompt for a conversation.
    ///
    /// **Errors**: of this conversation, see [`TemplateError::is_clients_fault`].
    pub fn render(&self, conversation: &Conversation<'_>) -> Result<Rendered, TemplateError> {
        let tool_use = self.tool_use.filter(|_| !conversation.tools.is_empty());
        let Variant { name, forms } = tool_use.or(self.default).ok_or(TemplateError::Missing)?;
        let messages = forms.messages(conversation.messages)?;
        let conversation = Conversation {
            messages: &messages,
            ..*conversation
        };
        let text = self.render_plain(name, &conversation)?;
        self.marks.render(&conversation, text, |marked| {
            self.render_plain(name, marked)
        })
    }

    fn render_plain(
        &self,
        name: &str,
        conversation: &Conversation<'_>,
    ) -> Result<String, TemplateError> {
        let mut context: Vec<(&str, Value)> = Vec::new();
        for (name, value) in conversation.variables {
            context.push((name, json::to_value(value)));
        }
        let tools = Some(conversation.tools).filter(|tools| !tools.is_empty());
        context.extend([
            ("messages", json::list(conversation.messages)),
            ("tools", tools.map_or(Value::from(()), json::list)),
            ("documents", Value::from(())),
            (
                "add_generation_prompt",
                conversation.add_generation_prompt.into(),
            ),
            ("bos_token", self.bos.as_str().into()),
            ("eos_token", self.eos.as_str().into()),
            ("strftime_now", environment::strftime_at(conversation.now)),
        ]);
        let template = self.environment.get_template(name)?;
        Ok(template.render(Value::from_pairs(context))?)
    }
}

#[cfg(test)]
mod tests;
