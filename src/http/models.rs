//! `GET /v1/models` and `GET /v1/models/{id}`.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
};
use serde_json::{Value, json};

use super::{app::App, error::ApiError};

/// The list of models, which holds one.
pub async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({"object": "list", "data": [card(&app, &app.served.id)]}))
}

/// One model, by its id or its alias.
pub async fn one(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    app.accept_model(Some(&id))?;
    Ok(Json(card(&app, &id)))
}

fn card(app: &App, id: &str) -> Value {
    let engine = &app.served.engine;
    json!({
        "id": id,
        "object": "model",
        "created": app.created,
        "owned_by": "tidegate",
        "max_model_len": engine.context(),
        "meta": {"n_ctx": engine.context(), "n_vocab": app.served.tokenizer.vocab(), "alias": app.served.alias},
    })
}
