//! A bound on requests in flight, for all clients together: one more is refused at once instead of waiting where nobody counts.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use tokio::sync::Semaphore;

use super::{app::App, body, denied::Denied, error::ApiError, held};

/// The places for requests in flight.
#[derive(Debug)]
pub struct Flights {
    places: Arc<Semaphore>,
    limit: usize,
}

impl Flights {
    /// `limit` places.
    pub fn new(limit: usize) -> Self {
        Self {
            places: Arc::new(Semaphore::new(limit)),
            limit,
        }
    }

    /// Completes when none is in flight.
    pub async fn none(&self) {
        let all = u32::try_from(self.limit).unwrap_or(u32::MAX);
        drop(self.places.acquire_many(all).await); // an error means that nobody counts any more
    }

    /// Requests in flight now.
    pub fn count(&self) -> usize {
        self.limit - self.places.available_permits()
    }
}

/// Answers the request if there is a place for it and the server is not about to end, and keeps the place until the answer is out or the client has gone.
pub async fn bounded(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    if app.is_draining() {
        body::discard(request).await;
        return ApiError::ShuttingDown.into_response();
    }
    match Arc::clone(&app.flights.places).try_acquire_owned() {
        Ok(place) => held::hold(next.run(request).await, place),
        Err(_) => {
            body::discard(request).await;
            let limit = app.flights.limit;
            ApiError::Denied(Denied::Overloaded { limit }).into_response()
        }
    }
}
