//! Who may do what: layers that ask for an API key, and that count a key's requests. Knows keys and limits, no handler.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{Extensions, HeaderMap, HeaderName, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use tracing::Span;

use super::{app::App, body, denied::Denied, error::ApiError, keys::Key};

/// Where Anthropic's clients put their key.
pub const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const SCHEME: &str = "bearer ";

/// Lets a request in if it brings a key, or if none are needed. From here on the request knows its [`Key`], and the log its name.
pub async fn guard(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    if app.keys.is_open() {
        return next.run(request).await;
    }
    let found = match presented(request.headers()) {
        None => Err(Denied::NoKey),
        Some(key) => app.keys.find(key).cloned().ok_or(Denied::WrongKey),
    };
    match found {
        Ok(key) => {
            Span::current().record("key", key.name());
            request.extensions_mut().insert(key);
            next.run(request).await
        }
        Err(denied) => refuse(request, denied).await,
    }
}

/// Counts the request against its key's limits, and tells in the answer what is left of them.
pub async fn metered(request: Request, next: Next) -> Response {
    let Some(key) = key(request.extensions()) else {
        return next.run(request).await;
    };
    let mut response = match key.request() {
        Ok(()) => next.run(request).await,
        Err(denied) => refuse(request, denied).await,
    };
    key.tell(response.headers_mut());
    response
}

/// The key that a request came with, on a server that asks for one.
pub fn key(extensions: &Extensions) -> Option<Arc<Key>> {
    extensions.get().cloned()
}

async fn refuse(request: Request, denied: Denied) -> Response {
    body::discard(request).await;
    ApiError::Denied(denied).into_response()
}

/// What the request says its key is. `Authorization` counts first, unless it is of another scheme.
fn presented(headers: &HeaderMap) -> Option<&[u8]> {
    let authorization = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked(SCHEME.len())?;
        scheme
            .eq_ignore_ascii_case(SCHEME.as_bytes())
            .then(|| key.trim_ascii())
    });
    let own = || headers.get(X_API_KEY).map(|value| value.as_bytes());
    authorization.or_else(own).filter(|key| !key.is_empty())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn where_a_key_is_looked_for() {
        let check = |headers: &[(HeaderName, &'static str)], expected: Option<&str>| {
            let headers: HeaderMap = headers
                .iter()
                .map(|(name, value)| (name.clone(), HeaderValue::from_static(value)))
                .collect();
            assert_eq!(
                presented(&headers),
                expected.map(str::as_bytes),
                "{headers:?}"
            );
        };
        check(&[], None);
        check(&[(header::AUTHORIZATION, "Bearer k")], Some("k"));
        check(&[(header::AUTHORIZATION, "bEARER   k ")], Some("k"));
        check(&[(header::AUTHORIZATION, "Bearer ")], None);
        check(&[(header::AUTHORIZATION, "Bearer")], None);
        check(&[(header::AUTHORIZATION, "Basic k")], None);
        check(&[(header::AUTHORIZATION, "k")], None);
        check(&[(X_API_KEY, "k")], Some("k"));
        check(&[(X_API_KEY, "")], None);
        check(
            &[(X_API_KEY, "k"), (header::AUTHORIZATION, "Basic x")],
            Some("k"),
        );
        check(
            &[(X_API_KEY, "x"), (header::AUTHORIZATION, "Bearer k")],
            Some("k"),
        );
    }
}
