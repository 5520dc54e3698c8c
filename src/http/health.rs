//! `GET /health`, `GET /slots` and `GET /metrics`: answered from atomics that the engine writes, so a busy or stuck engine does not delay them.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use super::{
    app::App,
    usage::{millis, rate},
};
use crate::engine::{Health, SlotStats};

/// 200 while the engine gets on, 503 with the reason when it does not.
pub async fn health(State(app): State<Arc<App>>) -> Response {
    let (engine, stats) = (&app.served.engine, app.served.engine.stats());
    let (status, word, detail) = match engine.health() {
        Health::Idle | Health::Busy if app.is_draining() => (
            StatusCode::SERVICE_UNAVAILABLE,
            "draining",
            "the server is shutting down".into(),
        ),
        Health::Idle => (StatusCode::OK, "ok", "idle".into()),
        Health::Busy => (StatusCode::OK, "ok", "busy".into()),
        Health::Stuck { silent } => (
            StatusCode::SERVICE_UNAVAILABLE,
            "stuck",
            format!("no progress for {} s", silent.as_secs()),
        ),
        Health::Stopped { why } => (
            StatusCode::SERVICE_UNAVAILABLE,
            "stopped",
            why.unwrap_or_else(|| "the engine has ended".into()),
        ),
    };
    let body = json!({
        "status": word,
        "engine": detail,
        "slots": stats.slots,
        "slots_busy": stats.slots_busy,
        "queued": stats.queued,
    });
    (status, Json(body)).into_response()
}

/// What every slot is doing.
pub async fn slots(State(app): State<Arc<App>>) -> Json<Value> {
    let stats = app.served.engine.stats();
    let mut slots: Vec<Value> = (0..stats.slots)
        .map(|id| json!({"id": id, "state": "idle"}))
        .collect();
    for held in &stats.sequences {
        slots[held.slot] = slot(held);
    }
    Json(Value::Array(slots))
}

fn slot(held: &SlotStats) -> Value {
    let reading = held.computed < held.prompt_tokens;
    let state = match (held.parked, reading) {
        (true, _) => "parked",
        (false, true) => "reading",
        (false, false) => "writing",
    };
    json!({
        "id": held.slot,
        "state": state,
        "request": held.request,
        "prompt_tokens": held.prompt_tokens,
        "prompt_tokens_read": held.computed.min(held.prompt_tokens),
        "generated_tokens": held.generated,
        "draft_tokens": held.drafted,
        "draft_tokens_accepted": held.accepted,
        "tokens_per_second": rate(held.generated.saturating_sub(1), held.decode),
        "worst_gap_ms": millis(held.worst_gap),
    })
}

/// Prometheus text.
pub async fn metrics(State(app): State<Arc<App>>) -> Response {
    let engine = &app.served.engine;
    let text = app.metrics.render(&engine.stats(), &engine.health());
    (
        [(
            header::CONTENT_TYPE,
            "text/plain; version=0.0.4; charset=utf-8",
        )],
        text,
    )
        .into_response()
}
