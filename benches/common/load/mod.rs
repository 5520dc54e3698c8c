//! What the benches of a whole server share: the server, a client, prompts, probes. Everything goes over HTTP, so that any server with OpenAI's API is
//! measured by the same program; nothing here knows an engine.

#![allow(dead_code, reason = "each bench uses its part")]

use std::{error::Error, ffi::OsString, path::PathBuf, process::ExitCode, time::Duration};

use clap::Args;

pub(crate) mod client;
pub(crate) mod probe;
pub(crate) mod prompts;
pub(crate) mod quantiles;
pub(crate) mod server;
pub(crate) mod sse;
pub(crate) mod stolen;
pub(crate) mod windows;

use client::Client;
use prompts::Prompts;
use server::Server;

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// Tokens that a stream begins with, and writes before anything is measured.
pub(crate) const SETTLE: usize = 16;
/// Tokens of a long prompt, where nobody says.
pub(crate) const LONG: usize = 4096;
/// Tokens of the first prompt.
const WARM_UP: usize = 512;
/// What a server gets to notice that its clients have gone.
pub(crate) const QUIET: Duration = Duration::from_millis(300);

/// Which server.
#[derive(Args)]
pub(crate) struct Target {
    /// A running server, `http://127.0.0.1:8080`; without it, one is started.
    #[arg(long)]
    url: Option<String>,
    /// The model to ask for; the first that the server lists if absent.
    #[arg(long, requires = "url")]
    model_name: Option<String>,
    /// Sent as a bearer token.
    #[arg(long, requires = "url")]
    api_key: Option<String>,
    /// The program to start; the one built with this bench if absent.
    #[arg(long, conflicts_with = "url")]
    program: Option<PathBuf>,
    /// Makes the prompts; the clock if absent, so that no server knows them from an earlier run.
    #[arg(long)]
    seed: Option<u64>,
    /// Seconds that a measurement may take.
    #[arg(long, default_value_t = 600)]
    timeout: u64,
    /// JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    /// Arguments of `tidegate serve`, a model file first.
    #[arg(last = true, conflicts_with = "url")]
    serve: Vec<String>,
}

/// A server that answers, and who asks it.
pub(crate) struct Running {
    pub(crate) client: Client,
    pub(crate) seed: u64,
    pub(crate) timeout: Duration,
    /// Ended when this is dropped.
    _server: Option<Server>,
}

impl Target {
    /// Starts the server if one is to be started, with at least so many slots unless its arguments say how many.
    pub(crate) async fn run(&self, slots: usize) -> Result<Running, Failure> {
        let server = match &self.url {
            Some(_) => None,
            None => Some(Server::start(self.program.as_deref(), &self.serve, slots)?),
        };
        let url = self.url.clone().or(server.as_ref().map(|s| s.url.clone()));
        let url = url.ok_or("no server")?;
        let client = Client::new(&url, self.model_name.clone(), self.api_key.clone()).await?;
        Ok(Running {
            client,
            seed: self.seed.unwrap_or_else(clock),
            timeout: Duration::from_secs(self.timeout),
            _server: server,
        })
    }
}

impl Running {
    /// Has a prompt read before anything is measured: pages come in, threads start.
    pub(crate) async fn warm_up(&self, prompts: &Prompts) -> Result<(), Failure> {
        let prompt = prompts.make(self.seed, self.client.about.prompt_tokens(WARM_UP));
        self.within(self.client.complete(&prompt, 1)).await?;
        Ok(())
    }

    /// Waits for a measurement, but not for ever.
    pub(crate) async fn within<T>(
        &self,
        measurement: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        match tokio::time::timeout(self.timeout, measurement).await {
            Ok(result) => result,
            Err(_) => Err(format!("not done after {} s", self.timeout.as_secs()).into()),
        }
    }
}

/// Microseconds since 1970.
fn clock() -> u64 {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    since.as_micros() as u64
}

/// The arguments of this process without the one that `cargo bench` puts at the end.
pub(crate) fn arguments() -> Vec<OsString> {
    let all = std::env::args_os();
    all.filter(|argument| argument != "--bench").collect()
}

/// Runs a bench to its end; 1 if it was invalid or found something wrong. What it holds is dropped before.
pub(crate) fn conclude(bench: impl Future<Output = Result<(), Failure>>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let done = match runtime {
        Ok(runtime) => runtime.block_on(bench),
        Err(error) => Err(error.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprint!("invalid: {error}");
            let mut cause = error.source();
            while let Some(error) = cause {
                eprint!(": {error}");
                cause = error.source();
            }
            eprintln!();
            ExitCode::FAILURE
        }
    }
}
