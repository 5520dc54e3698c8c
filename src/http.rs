//! HTTP: an OpenAI-compatible API over the request expression.
//!
//! Knows requests, answers and their JSON; knows no slot, window or weight. Nothing a client sends may panic or hold up another client: bodies are
//! bounded, long ones are parsed and tokenised on threads of their own, and a client that goes away or stops reading affects its own answers only.
//! Who is let in, and how far, is decided by layers around the handlers ([`access`], [`flight`]); what a permit allows it is held for ([`held`]).

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    http::{Method, Uri},
    middleware,
    response::IntoResponse,
    routing::{get, post},
};
use tokio::net::TcpListener;
use tower::ServiceBuilder;
use tower_http::{
    catch_panic::CatchPanicLayer,
    request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer},
    trace::TraceLayer,
};
use tracing::{Span, debug, error, field::Empty, info, info_span, warn};

pub mod access;
pub mod allowance;
pub mod answer;
pub mod app;
pub mod body;
pub mod connection;
pub mod denied;
pub mod error;
pub mod flight;
pub mod format;
pub mod generate;
pub mod headers;
pub mod health;
pub mod held;
pub mod keys;
pub mod metrics;
pub mod models;
pub mod random;
pub mod request;
pub mod sse;
pub mod tokens;
pub mod usage;

use app::App;
use error::ApiError;

use crate::engine::Health;

/// How often samples are moved out of the histograms' buffers.
const UPKEEP: Duration = Duration::from_secs(5);
/// What the answers that are cut off at the end get for their last words.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// The routes with their layers. A layer is around the routes that stand above it: all of them need a key but `/health`, and the bound on requests in
/// flight leaves out what watches the server.
pub fn router(app: Arc<App>) -> Router {
    let metered = Router::new()
        .route("/v1/chat/completions", post(generate::chat))
        .route("/v1/completions", post(generate::completion))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route_layer(middleware::from_fn(access::metered));
    let bounded = metered
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::one))
        .fallback(unknown_path)
        .layer(middleware::from_fn_with_state(app.clone(), flight::bounded));
    let guarded = bounded
        .route("/slots", get(health::slots))
        .route("/metrics", get(health::metrics))
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(app.clone(), access::guard));
    let open = guarded
        .route("/health", get(health::health))
        .method_not_allowed_fallback(wrong_method);
    let layers = ServiceBuilder::new()
        .layer(headers::secret())
        .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
        .layer(
            TraceLayer::new_for_http()
                .make_span_with(span)
                .on_response(responded)
                .on_failure(()), // a failed status is reported as a response
        )
        .layer(PropagateRequestIdLayer::x_request_id())
        .layer(headers::defaults())
        .option_layer(headers::cors(&app.cors)) // outside the guard: browsers ask first, without a key
        .layer(CatchPanicLayer::custom(|_| {
            ApiError::Internal.into_response()
        }));
    open.layer(layers).with_state(app)
}

/// Serves until `stop` completes and the answers that run then have ended, or `grace` has passed. Meanwhile new requests are refused.
/// A listener that fails to accept a connection goes on with the next.
pub async fn serve(
    listener: TcpListener,
    app: Arc<App>,
    grace: Duration,
    stop: impl Future<Output = ()> + Send + 'static,
) {
    let (stopping, stopped) = tokio::sync::watch::channel(false);
    let router = router(app.clone());
    let patience = connection::Patience {
        head: app.bounds.within,
        write: app.idle_timeout,
    };
    let server = connection::serve(listener, router, patience, stopped);
    let end = async {
        stop.await;
        info!(in_flight = app.flights.count(), "shutting down");
        app.drain(); // connections are still accepted, so that whoever asks is told
        let _ = tokio::time::timeout(grace, app.flights.none()).await;
        app.close();
        stopping.send_replace(true);
        tokio::time::sleep(LAST_WORDS).await;
    };
    tokio::select! {
        () = server => {}
        () = end => {}
        () = upkeep(&app) => {}
    }
}

/// Keeps the numbers in order, and the log informed of an engine that gets stuck.
async fn upkeep(app: &App) {
    let mut ticks = tokio::time::interval(UPKEEP);
    let mut stuck = false;
    loop {
        ticks.tick().await;
        app.metrics.upkeep();
        let health = app.served.engine.health();
        match (health, stuck) {
            (Health::Stuck { silent }, false) => {
                let seconds = silent.as_secs();
                error!(seconds, "the engine is stuck: no layer was completed");
                stuck = true;
            }
            (Health::Idle | Health::Busy, true) => {
                warn!("the engine gets on again");
                stuck = false;
            }
            _ => {}
        }
    }
}

/// Prompts and answers are never part of it.
fn span<B>(request: &axum::http::Request<B>) -> Span {
    const ID_CHARS: usize = 64; // a client may choose its id, but not the size of our log
    let id = request
        .headers()
        .get("x-request-id")
        .and_then(|id| id.to_str().ok())
        .unwrap_or_default();
    let id = id.get(..ID_CHARS).unwrap_or(id);
    info_span!(
        "request",
        id,
        method = %request.method(),
        path = request::shortened(request.uri().path()),
        key = Empty, // its name
        status = Empty,
        prompt_tokens = Empty,
        generated_tokens = Empty,
    )
}

/// The head of a response is ready. Answers report their own end, so only refusals are worth a line.
fn responded<B>(response: &axum::http::Response<B>, latency: Duration, span: &Span) {
    let status = response.status();
    span.record("status", status.as_u16());
    if status.is_client_error() || status.is_server_error() {
        info!(latency_ms = latency.as_millis() as u64, "refused");
    } else {
        debug!(latency_ms = latency.as_millis() as u64, "responding");
    }
}

async fn unknown_path(method: Method, uri: Uri) -> ApiError {
    ApiError::UnknownPath {
        method: method.to_string(),
        path: request::shortened(uri.path()),
    }
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    ApiError::WrongMethod {
        method: method.to_string(),
        path: request::shortened(uri.path()),
    }
}
