//! The two generating endpoints: body, request expression, answer. Everything before the first byte of an answer can still be a status.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use futures::TryStreamExt;
use serde_json::Value;

use super::{
    access,
    answer::Answers,
    app::{App, now},
    body,
    error::ApiError,
    format::{Endpoint, Format, logprobs},
    held,
    keys::{Key, Streams},
    metrics::Meter,
    random::random_u64,
    request::{Body, Generation},
    sse,
};
use crate::{
    engine::request::{FinishReason, Sampling},
    expression,
    stage::{
        admit::Admitted,
        reason::Markup,
        text::{Sampled, TextEvent},
    },
};

/// `POST /v1/chat/completions`.
pub async fn chat(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    respond(app, Endpoint::Chat, request, Generation::chat).await
}

/// `POST /v1/completions`.
pub async fn completion(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    respond(app, Endpoint::Completion, request, Generation::completion).await
}

async fn respond(
    app: Arc<App>,
    endpoint: Endpoint,
    request: Request,
    check: fn(Body, &Sampling) -> Result<Generation, ApiError>,
) -> Result<Response, ApiError> {
    let key = access::key(request.extensions());
    let meter = Meter::start(endpoint.name(), key.clone());
    let bytes = body::read(request, app.bounds).await?;
    let defaults = app.served.sampling.clone();
    let mut generation =
        body::parsed(bytes, move |bytes| check(Body::parse(bytes)?, &defaults)).await?;
    let deadlines = [generation.job.deadline, app.deadline];
    generation.job.deadline = deadlines.into_iter().flatten().min();
    app.accept_model(generation.model.as_deref())?;
    let wanted = generation.job.prompts.len() * generation.job.choices;
    let streams = key.map(|key| streams(&key, wanted)).transpose()?;
    let format = Format {
        endpoint,
        id: answer_id(endpoint),
        created: now(),
        model: app.served.id.clone(),
        include_usage: generation.stream && generation.include_usage,
    };
    let choices = generation.job.choices;
    let admitted = admit(&app, endpoint, generation.job).await?;
    let echoes = admitted
        .iter()
        .map(|admitted| {
            if generation.echo {
                echo(&app, admitted)
            } else {
                String::new()
            }
        })
        .collect();
    let markup = match endpoint {
        Endpoint::Chat => app.served.markup,
        // what is continued is text as it is
        Endpoint::Completion => Markup::None,
    };
    let answers = Answers::new(&app, admitted, choices, (&generation.stops, markup), meter);
    let response = if generation.stream {
        sse::response(app, format, answers, echoes)
    } else {
        Json(whole(&app, &format, answers, echoes).await?).into_response()
    };
    Ok(held::hold(response, streams))
}

/// The places of so many answers among those of a key.
fn streams(key: &Arc<Key>, wanted: usize) -> Result<Streams, ApiError> {
    // More than it may ever have is no matter of time.
    match key.streams_max() {
        Some(max) if wanted > max.get() as usize => Err(ApiError::field(
            "n",
            format!("this key may have {max} answers at once, got {wanted}"),
        )),
        _ => Ok(key.run(wanted)?),
    }
}

/// Runs the first half of the request expression.
async fn admit(
    app: &App,
    endpoint: Endpoint,
    job: crate::stage::tokenize::Job,
) -> Result<Vec<Admitted>, ApiError> {
    let served = &app.served;
    let read = expression::read(
        served.tokenizer.clone(),
        served.template.clone(),
        served.engine.clone(),
    );
    let param = match endpoint {
        Endpoint::Chat => "messages",
        Endpoint::Completion => "prompt",
    };
    read.run(job)
        .try_collect()
        .await
        .map_err(|error| ApiError::Refused { error, param })
}

/// A prompt as text, for `echo`; the begin token that the server put in front is not part of it.
fn echo(app: &App, admitted: &Admitted) -> String {
    let (tokenizer, mut prompt) = (&app.served.tokenizer, &admitted.prompt()[..]);
    if let [first, rest @ ..] = prompt
        && tokenizer.add_bos()
        && Some(*first) == tokenizer.bos()
    {
        prompt = rest;
    }
    tokenizer.decode(prompt)
}

/// Waits for all choices and makes one object of them.
async fn whole(
    app: &App,
    format: &Format,
    mut answers: Answers,
    echoes: Vec<String>,
) -> Result<Value, ApiError> {
    struct Choice {
        text: String,
        reasoning: String,
        sampled: Vec<Sampled>,
        reason: FinishReason,
    }
    let begun = |text| Choice {
        text,
        reasoning: String::new(),
        sampled: Vec::new(),
        reason: FinishReason::Length,
    };
    let mut choices: Vec<Choice> = echoes.into_iter().map(begun).collect();
    while let Some(event) = answers.next().await {
        let (index, event) = event?;
        match event {
            TextEvent::Thought { text, .. } => choices[index].reasoning.push_str(&text),
            TextEvent::Piece { text, sampled } => {
                choices[index].text.push_str(&text);
                // Without scores the tokens are of no use to the answer.
                choices[index]
                    .sampled
                    .extend(sampled.filter(|sampled| sampled.logprobs.is_some()));
            }
            TextEvent::Finished { reason, .. } => choices[index].reason = reason,
        }
    }
    let choices = choices.into_iter().enumerate().map(|(index, choice)| {
        let scores = logprobs(
            format.endpoint,
            &app.served.tokenizer,
            &choice.sampled,
            &mut 0,
        );
        format.choice(index, choice.text, choice.reasoning, scores, choice.reason)
    });
    Ok(format.whole(choices.collect(), answers.usage(), answers.timings()))
}

fn answer_id(endpoint: Endpoint) -> String {
    let prefix = match endpoint {
        Endpoint::Chat => "chatcmpl",
        Endpoint::Completion => "cmpl",
    };
    format!("{prefix}-{:016x}{:016x}", random_u64(), random_u64())
}
