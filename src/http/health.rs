//! `GET /health` and `GET /metrics`: answered from atomics that the engine writes, so a busy or stuck engine does not delay them.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;

use super::app::App;
use crate::engine::Health;

/// 200 while the engine gets on, 503 with the reason when it does not.
pub async fn health(State(app): State<Arc<App>>) -> Response {
    let (engine, stats) = (&app.served.engine, app.served.engine.stats());
    let (status, word, detail) = match engine.health() {
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
