//! Origins as checked: which web pages may use the server from a browser. Knows no headers.

/// Which web pages may read answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Cors {
    /// None but those that the server itself would serve.
    #[default]
    Off,
    /// Every page.
    Any,
    /// Those from these origins.
    Only(Vec<String>),
}

/// An origin that no browser sends.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("cors-origin must be * or look like http://localhost:3000, got '{got}'{}", nearest.as_deref().map(|near| format!(", did you mean '{near}'?")).unwrap_or_default())]
pub struct CorsError {
    /// As written.
    pub got: String,
    /// What was probably meant.
    pub nearest: Option<String>,
}

impl Cors {
    /// Checks what was written.
    ///
    /// **Errors**: [`CorsError`] for the first one that is no origin.
    pub fn check(origins: &[String]) -> Result<Self, CorsError> {
        if let Some(wrong) = origins.iter().find(|got| *got != "*" && !is_origin(got)) {
            let (scheme, rest) = wrong.split_once("://").unwrap_or(("http", wrong));
            let near = format!("{}://{}", scheme.to_lowercase(), authority(rest));
            return Err(CorsError {
                got: wrong.clone(),
                nearest: is_origin(&near).then_some(near),
            });
        }
        Ok(match origins {
            [] => Self::Off,
            origins if origins.iter().any(|origin| origin == "*") => Self::Any,
            origins => Self::Only(origins.to_vec()),
        })
    }
}

/// Scheme, host and port as browsers write them: lower case, and no path. Schemes of browser extensions and desktop shells count.
fn is_origin(text: &str) -> bool {
    let scheme = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c);
    let host = |c: char| c.is_ascii_graphic() && !c.is_ascii_uppercase() && !"/?#@,*\\".contains(c);
    text.split_once("://").is_some_and(|(before, after)| {
        !before.is_empty()
            && before.chars().all(scheme)
            && !after.is_empty()
            && after.chars().all(host)
    })
}

fn authority(text: &str) -> String {
    let end = text.find(['/', '?', '#']).unwrap_or(text.len());
    text[..end].trim().to_lowercase()
}
