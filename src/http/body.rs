//! Reading request bodies: bounded, and without holding up the threads that answer everybody.

use std::time::Duration;

use axum::{
    body::BodyDataStream,
    extract::Request,
    http::{HeaderMap, header},
};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;

use super::{denied::Denied, error::ApiError};

/// Bodies up to this size are parsed where they are read, in well under a millisecond.
const PARSED_INLINE_BYTES: usize = 64 << 10;

/// What is read and forgotten of a body that nobody wants.
const DISCARDED_BYTES: usize = 256 << 20;
/// How long a client may take over it.
const DISCARDED_WITHIN: Duration = Duration::from_secs(10);

/// What a body may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Longest body that is read.
    pub bytes: usize,
    /// How long a client may take to send it.
    pub within: Duration,
}

/// The whole body, if it keeps within its bounds.
///
/// **Errors**: [`ApiError::BodyTooLarge`], without keeping anything where the length is announced; [`Denied::Late`]; [`ApiError::BodyUnreadable`].
pub async fn read(request: Request, bounds: Bounds) -> Result<Bytes, ApiError> {
    let Bounds { bytes, within } = bounds;
    match tokio::time::timeout(within, read_all(request, bytes)).await {
        Ok(read) => read,
        Err(_) => Err(ApiError::Denied(Denied::Late { within })),
    }
}

/// Reads a request's body and forgets it. Most clients read no answer before they have sent everything: closing at once would leave them with a broken
/// connection in place of the reason.
pub async fn discard(request: Request) {
    discard_rest(request.into_body().into_data_stream()).await;
}

async fn read_all(request: Request, limit_bytes: usize) -> Result<Bytes, ApiError> {
    let announced = announced(request.headers());
    let mut chunks = request.into_body().into_data_stream();
    if announced.is_some_and(|bytes| bytes > limit_bytes as u64) {
        discard_rest(chunks).await;
        return Err(ApiError::BodyTooLarge { limit_bytes });
    }
    let mut body = BytesMut::new();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_| ApiError::BodyUnreadable)?;
        if body.len() + chunk.len() > limit_bytes {
            discard_rest(chunks).await;
            return Err(ApiError::BodyTooLarge { limit_bytes });
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

async fn discard_rest(mut chunks: BodyDataStream) {
    let reading = async {
        let mut left = DISCARDED_BYTES;
        while let Some(Ok(chunk)) = chunks.next().await
            && chunk.len() <= left
        {
            left -= chunk.len();
        }
    };
    // whether the client finished in time or not, it is told the same
    let _ = tokio::time::timeout(DISCARDED_WITHIN, reading).await;
}

/// Runs `parse` on the body, on a thread of its own if the body is long.
///
/// **Errors**: those of `parse`.
pub async fn parsed<T: Send + 'static>(
    body: Bytes,
    parse: impl FnOnce(&[u8]) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    if body.len() <= PARSED_INLINE_BYTES {
        return parse(&body);
    }
    tokio::task::spawn_blocking(move || parse(&body))
        .await
        .map_err(|_| ApiError::Internal)?
}

fn announced(headers: &HeaderMap) -> Option<u64> {
    headers
        .get(header::CONTENT_LENGTH)?
        .to_str()
        .ok()?
        .parse()
        .ok()
}
