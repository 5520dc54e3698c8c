//! `tidegate serve`.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use socket2::SockRef;
use tokio::{net::TcpListener, runtime::Runtime};

use super::{ServeArgs, failure::Failure, signals::StopSignals, source::Source, start::Loaded};
use crate::{
    engine::Health,
    http::{
        self,
        app::{App, Served},
        metrics::Metrics,
    },
    settings::{ModelSettings, ServerSettings, file::FileSettings},
};

pub(super) const EXAMPLES: &str = "\
Examples:
  tidegate serve
  tidegate serve model.gguf --listen 0.0.0.0:8000 --alias gpt-4o-mini
  tidegate serve --config tidegate.toml

A settings file:
  model = \"/models/Qwen3-30B-A3B-Q4_K_M.gguf\"
  listen = \"127.0.0.1:8080\"
  slots = 8
  ctx = 16384
  kv = \"q8_0\"

API keys, in the same file (`tidegate key alice` makes one; then nobody else
gets in, and only /health is open):
  [[key]]
  name = \"alice\"
  sha256 = \"2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90\"
  streams = 4                  # limits, if any
  requests-per-minute = 60
  tokens-per-minute = 100000

Endpoints:
  POST /v1/chat/completions, /v1/completions    GET /v1/models
  POST /tokenize, /detokenize                   GET /health, /slots, /metrics

Log:
  One line a request on standard error, never its text. TIDEGATE_LOG=debug
  shows more, TIDEGATE_LOG=warn less; TIDEGATE_LOG_FORMAT=json writes JSON.";

/// Threads that read requests and write answers. Computing has threads of its own.
const SERVER_THREADS: usize = 2;
/// Threads that parse and tokenise long prompts. More would take cores from the engine.
const BLOCKING_THREADS: usize = 4;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;
/// What is left after the answers have ended gets no more than this.
const SHUTDOWN: Duration = Duration::from_millis(500);

pub(super) fn serve(args: ServeArgs, bundled: &'static [u8]) -> Result<(), Failure> {
    let file = FileSettings::read(args.config.config.as_deref())?;
    let mut settings = ModelSettings::check(args.run.or(file.run))?;
    let server = ServerSettings::check(args.server.or(file.server))?;
    settings.engine.idle_timeout = server.idle_timeout;
    let source = Source::new(args.model.or(file.model), bundled);

    let runtime = runtime()?;
    // First, because a taken port is known at once and a large model takes seconds.
    let (listener, address) = runtime.block_on(listen(&server.listen))?;
    if server.keys.is_empty() && !address.ip().is_loopback() {
        eprintln!(
            "warning: everybody who reaches {address} may use the model, because no API key is set. `tidegate key NAME` makes one."
        );
    }
    let metrics = Metrics::install()?; // before the engine, which records into it
    let loaded = Loaded::start(&source, &settings)?;
    let signals = runtime.block_on(async { StopSignals::listen() })?;
    announce(&loaded, address);
    let served = Served {
        id: loaded.id.clone(),
        alias: server.alias.clone(),
        engine: loaded.engine.clone(),
        tokenizer: loaded.text.tokenizer.clone(),
        template: loaded.text.template.clone(),
        markup: loaded.text.markup,
        sampling: loaded.text.sampling.clone(),
    };
    let app = Arc::new(App::new(served, &server, metrics));
    runtime.block_on(http::serve(listener, app, server.grace, signals.first()));
    runtime.shutdown_timeout(SHUTDOWN);
    let health = loaded.engine.health();
    loaded.stop();
    match health {
        // said by /health all the while; whoever watches the process is told too
        Health::Stopped { why: Some(why) } => Err(Failure::Engine { why }),
        _ => Ok(()),
    }
}

/// The async side of the process.
pub(super) fn runtime() -> Result<Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(SERVER_THREADS)
        .max_blocking_threads(BLOCKING_THREADS)
        .enable_all()
        .build()
        .map_err(|source| Failure::Io {
            what: "cannot start threads",
            source,
        })
}

async fn listen(address: &str) -> Result<(TcpListener, SocketAddr), Failure> {
    let bound = async {
        // the standard library's way, for names and its choice of addresses, but with room for a crowd
        let listener = std::net::TcpListener::bind(address)?;
        SockRef::from(&listener).listen(BACKLOG)?;
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let bound = listener.local_addr()?;
        Ok((listener, bound))
    };
    bound.await.map_err(|source| Failure::Listen {
        listen: address.into(),
        source,
    })
}

fn announce(loaded: &Loaded, address: SocketAddr) {
    let stats = loaded.engine.stats();
    eprintln!(
        "tidegate {} serves {} on http://{address} ({} slots, {} tokens each). Try:",
        env!("CARGO_PKG_VERSION"),
        loaded.id,
        stats.slots,
        loaded.engine.context(),
    );
    eprintln!("  curl http://{address}/v1/chat/completions -H 'Content-Type: application/json' \\");
    eprintln!(
        "    -d '{{\"messages\": [{{\"role\": \"user\", \"content\": \"Write a short story about a fox.\"}}]}}'"
    );
}
