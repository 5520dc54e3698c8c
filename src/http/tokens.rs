//! `POST /tokenize` and `POST /detokenize`. **Source**: fields as llama.cpp (`content`, `tokens`) and vLLM (`prompt`, `messages`, `count`) have them.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    app::App,
    body,
    error::ApiError,
    request::{message::messages, tree::Tree, written::parse},
};
use crate::{
    engine::request::Token,
    stage::tokenize::{Prompt, Tokenize},
    token::Specials,
};

#[derive(Deserialize)]
struct TokenizeBody {
    #[serde(alias = "prompt")]
    content: Option<String>,
    messages: Option<Tree>,
    /// Put the begin token in front where the file asks for it.
    #[serde(default, alias = "add_special_tokens")]
    add_special: bool,
    /// Control tokens written out in the text count.
    parse_special: Option<bool>,
}

#[derive(Deserialize)]
struct DetokenizeBody {
    tokens: Vec<Token>,
}

/// Tokens of a text, or of a conversation as the model's template renders it.
pub async fn tokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let body = body::read(request, app.bounds).await?;
    let served = app.clone();
    let work = move |bytes: &[u8]| {
        let body: TokenizeBody = parse(bytes)?;
        match (body.content, body.messages) {
            (Some(text), None) => Ok(text_tokens(
                &served,
                &text,
                body.add_special,
                body.parse_special.unwrap_or(true),
            )),
            (None, Some(conversation)) => chat_tokens(&served, conversation),
            (None, None) => Err(ApiError::field(
                "content",
                "is missing, and so is 'messages'",
            )),
            (Some(_), Some(_)) => Err(ApiError::field(
                "content",
                "cannot be combined with 'messages'",
            )),
        }
    };
    let tokens = body::parsed(body, work).await?;
    Ok(Json(
        json!({"tokens": tokens, "count": tokens.len(), "max_model_len": app.served.engine.context()}),
    ))
}

/// Text of tokens.
pub async fn detokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let body = body::read(request, app.bounds).await?;
    let served = app.clone();
    let work = move |bytes: &[u8]| {
        let DetokenizeBody { tokens } = parse(bytes)?;
        let (tokenizer, vocab) = (&served.served.tokenizer, served.served.tokenizer.vocab());
        match tokens.iter().position(|&token| token as usize >= vocab) {
            Some(at) => Err(ApiError::field(
                format!("tokens[{at}]"),
                format!("must be below {vocab}, got {}", tokens[at]),
            )),
            None => Ok(tokenizer.decode(&tokens)),
        }
    };
    Ok(Json(json!({"content": body::parsed(body, work).await?})))
}

fn text_tokens(app: &App, text: &str, add_special: bool, parse_special: bool) -> Vec<Token> {
    let specials = if parse_special {
        Specials::Parse
    } else {
        Specials::Plain
    };
    let tokenizer = &app.served.tokenizer;
    if add_special {
        tokenizer.encode_prompt(text, specials)
    } else {
        tokenizer.encode(text, specials)
    }
}

fn chat_tokens(app: &App, conversation: Tree) -> Result<Vec<Token>, ApiError> {
    let prompt = Prompt::Chat {
        messages: messages(Some(conversation))?,
        tools: Vec::new(),
        variables: Map::new(),
    };
    let stage = Tokenize::new(app.served.tokenizer.clone(), app.served.template.clone());
    let tokens = stage.tokens(&prompt).map_err(|error| ApiError::Refused {
        error: error.into(),
        param: "messages",
    })?;
    Ok(tokens.to_vec())
}
