//! The chat in the terminal: lines in, answers out, the whole conversation as the next prompt.

use rustyline::{DefaultEditor, error::ReadlineError};
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;

use super::{
    failure::Failure,
    run::{Options, answer, speed},
    start::Loaded,
};
use crate::{
    engine::request::EngineError,
    stage::tokenize::{Prompt, RequestError},
};

const HELP: &str = "Type a message and press Enter. /new forgets the conversation, /exit or Ctrl-D ends, Ctrl-C stops an answer.";

/// What a typed line asks for.
#[derive(Debug, PartialEq, Eq)]
enum Line<'a> {
    Nothing,
    Help,
    New,
    Exit,
    Unknown(&'a str),
    Message(&'a str),
}

/// Chats until the user ends it.
pub(super) fn chat(runtime: &Runtime, loaded: &Loaded, options: &Options) -> Result<(), Failure> {
    let mut editor = DefaultEditor::new().map_err(unreadable)?;
    let mut conversation: Vec<Value> = Vec::new();
    eprintln!("{HELP}");
    loop {
        let typed = match editor.readline("> ") {
            Ok(typed) => typed,
            Err(ReadlineError::Eof) => return Ok(()),
            Err(ReadlineError::Interrupted) => {
                eprintln!("{HELP}");
                continue;
            }
            Err(error) => return Err(unreadable(error)),
        };
        match parse(&typed) {
            Line::Nothing => {}
            Line::Help => eprintln!("{HELP}"),
            Line::New => conversation.clear(),
            Line::Exit => return Ok(()),
            Line::Unknown(command) => eprintln!("There is no command {command}. {HELP}"),
            Line::Message(message) => {
                let _ = editor.add_history_entry(&typed); // a line that is not remembered is no reason to stop
                conversation.push(json!({"role": "user", "content": message}));
                say(runtime, loaded, options, &mut conversation)?;
            }
        }
    }
}

/// Answers the last message. A conversation that no longer fits is kept without it.
fn say(
    runtime: &Runtime,
    loaded: &Loaded,
    options: &Options,
    conversation: &mut Vec<Value>,
) -> Result<(), Failure> {
    let prompt = Prompt::Chat {
        messages: conversation.clone(),
        tools: Vec::new(),
        variables: Map::new(),
    };
    let ended = runtime.block_on(async {
        tokio::select! {
            ended = answer(loaded, options, prompt) => Some(ended),
            _ = tokio::signal::ctrl_c() => None,
        }
    });
    match ended {
        None => {
            eprintln!("\n(stopped)");
            conversation.pop();
        }
        Some(Err(Failure::Request(RequestError::Engine(
            error @ EngineError::PromptTooLong { .. },
        )))) => {
            eprintln!("{error}. /new begins a new conversation.");
            conversation.pop();
        }
        Some(Err(failure)) => return Err(failure),
        Some(Ok(ended)) => {
            if let Some((_, timings)) = ended.finished {
                eprintln!("({})", speed(&timings));
            }
            conversation.push(json!({"role": "assistant", "content": ended.text}));
        }
    }
    Ok(())
}

fn parse(typed: &str) -> Line<'_> {
    match typed.trim() {
        "" => Line::Nothing,
        "/help" | "/?" => Line::Help,
        "/new" | "/reset" => Line::New,
        "/exit" | "/quit" | "/bye" => Line::Exit,
        command if command.starts_with('/') && !command.contains(' ') => Line::Unknown(command),
        message => Line::Message(message),
    }
}

fn unreadable(error: ReadlineError) -> Failure {
    Failure::Io {
        what: "cannot read from the terminal",
        source: std::io::Error::other(error),
    }
}

#[cfg(test)]
mod tests {
    use super::{Line, parse};

    #[test]
    fn lines() {
        let check =
            |typed: &str, expected: Line<'_>| assert_eq!(parse(typed), expected, "{typed:?}");
        check("  ", Line::Nothing);
        check("/new", Line::New);
        check(" /exit ", Line::Exit);
        check("/nwe", Line::Unknown("/nwe"));
        check("/usr is a folder", Line::Message("/usr is a folder"));
        check("hello", Line::Message("hello"));
    }
}
