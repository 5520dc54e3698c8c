//! A response that holds something until its last byte is out or its client has gone.
//!
//! A permit that a tower layer holds is free again as soon as the head is ready; a streamed answer then has nearly everything before it.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use axum::{
    body::{Body, Bytes},
    response::Response,
};
use http_body::{Body as HttpBody, Frame, SizeHint};

/// `response`, whose body holds `held`. Dropping the body drops it.
pub fn hold<T: Unpin + Send + 'static>(response: Response, held: T) -> Response {
    let held = Some(held);
    response.map(|body| Body::new(Held { body, held }))
}

/// The body goes first: what it held of the engine is free before anybody else is let in.
struct Held<T> {
    body: Body,
    held: Option<T>,
}

impl<T: Unpin> HttpBody for Held<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if frame.is_none() {
            self.held = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
