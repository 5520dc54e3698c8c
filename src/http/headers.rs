//! Headers that every answer has, web pages that may read them, and headers that nobody may read.

use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, Method, Response, header};
use tower_http::{
    cors::{AllowHeaders, AllowMethods, AllowOrigin, CorsLayer},
    sensitive_headers::SetSensitiveRequestHeadersLayer,
    set_header::response::SetMultipleResponseHeadersLayer,
};

use super::access::X_API_KEY;
use crate::settings::cors::Cors;

/// How long a browser remembers what it may ask.
const PREFLIGHT: Duration = Duration::from_secs(600);

/// Headers of an answer that say nothing else: it is data, not a page, and it belongs to whoever asked.
const DEFAULTS: [(HeaderName, &str); 5] = [
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; frame-ancestors 'none'",
    ),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
];

/// What a page may read of an answer's head, beside what every page may.
const EXPOSED: [&str; 6] = [
    "x-request-id",
    "retry-after",
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-tokens",
];

/// Sets them on every answer that does not say otherwise.
pub fn defaults<B: 'static>() -> SetMultipleResponseHeadersLayer<Response<B>> {
    let headers = DEFAULTS.map(|(name, value)| (name, HeaderValue::from_static(value)).into());
    SetMultipleResponseHeadersLayer::if_not_present(headers.into())
}

/// Keeps keys out of whatever prints a request.
pub fn secret() -> SetSensitiveRequestHeadersLayer {
    SetSensitiveRequestHeadersLayer::new([header::AUTHORIZATION, X_API_KEY])
}

/// Lets pages of these origins use the server; none means that browsers keep all pages of others away.
pub fn cors(cors: &Cors) -> Option<CorsLayer> {
    let origins = match cors {
        Cors::Off => return None,
        Cors::Any => AllowOrigin::any(),
        // checked: every one of them is printable ASCII
        Cors::Only(origins) => AllowOrigin::list(origins.iter().flat_map(|o| o.parse())),
    };
    let layer = CorsLayer::new()
        .allow_origin(origins)
        .allow_methods(AllowMethods::list([Method::GET, Method::POST]))
        // Clients send headers of their own (x-stainless-...). A key is asked for all the same.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(EXPOSED.map(HeaderName::from_static))
        .max_age(PREFLIGHT);
    Some(layer)
}
