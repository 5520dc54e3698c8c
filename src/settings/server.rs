//! How the HTTP side behaves, as checked.

use std::time::Duration;

use super::{
    SettingsError,
    cors::Cors,
    keys::{self, KeySettings},
    within,
    written::ServerWritten,
};
use crate::engine::EngineSettings;

/// How the HTTP side behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSettings {
    /// Address and port.
    pub listen: String,
    /// Another name for the model.
    pub alias: Option<String>,
    /// Longest body that is read.
    pub max_body_bytes: usize,
    /// How long running answers may take after a signal.
    pub grace: Duration,
    /// How long a client may take over a request's head, and over its body.
    pub receive_timeout: Duration,
    /// What an answer may take.
    pub deadline: Option<Duration>,
    /// How long a client may leave an answer unread.
    pub idle_timeout: Duration,
    /// Requests in flight at once.
    pub max_requests: usize,
    /// Web pages that may use the server.
    pub cors: Cors,
    /// Who may use the server; nobody named is everybody.
    pub keys: Vec<KeySettings>,
}

/// **Units**: seconds. No server waits longer for anything.
const DAY: usize = 24 * 3600;

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8080".into(),
            alias: None,
            max_body_bytes: 16 << 20,
            grace: seconds(10),
            receive_timeout: seconds(30),
            deadline: None,
            idle_timeout: EngineSettings::default().idle_timeout,
            max_requests: 256,
            cors: Cors::Off,
            keys: Vec::new(),
        }
    }
}

impl ServerSettings {
    /// Checks what was written.
    ///
    /// **Errors**: [`SettingsError::OutOfRange`], [`SettingsError::Key`], [`SettingsError::Cors`].
    pub fn check(written: ServerWritten) -> Result<Self, SettingsError> {
        let unset = Self::default();
        let number = |name, written: Option<usize>, low, high| {
            written.map(|got| within(name, got, low, high)).transpose()
        };
        let time = |name, written, low, high| {
            let found = number(name, written, low, high)?;
            Ok::<_, SettingsError>(found.map(seconds))
        };
        let body = number("max-body-mib", written.max_body_mib, 1, 1024)?;
        let requests = number("max-requests", written.max_requests, 1, 65_536)?;
        let receive = time("receive-timeout-s", written.receive_timeout_s, 1, 3600)?;
        let idle = time("idle-timeout-s", written.idle_timeout_s, 1, DAY)?;
        Ok(Self {
            grace: time("grace-s", written.grace_s, 0, 3600)?.unwrap_or(unset.grace),
            deadline: time("deadline-s", written.deadline_s, 1, DAY)?,
            keys: keys::check(&written)?,
            listen: written.listen.unwrap_or(unset.listen),
            alias: written.alias,
            max_body_bytes: body.map_or(unset.max_body_bytes, |mib| mib << 20),
            receive_timeout: receive.unwrap_or(unset.receive_timeout),
            idle_timeout: idle.unwrap_or(unset.idle_timeout),
            max_requests: requests.unwrap_or(unset.max_requests),
            cors: Cors::check(&written.cors_origin.unwrap_or_default())?,
        })
    }
}

fn seconds(seconds: usize) -> Duration {
    Duration::from_secs(seconds as u64)
}
