//! A server in this process: real sockets, real engine thread, and a model whose every token can be foretold.

use std::{path::PathBuf, sync::Arc, time::Duration};

use crate::{
    parrot::{Lost, Parrot},
    reply::json_of,
};
use serde_json::{Value, json};
use tidegate::{
    engine::{Engine, EngineSettings, Handle, Stopper, request::Sampling},
    gguf::Gguf,
    http::{
        self,
        app::{App, Served},
        metrics::Metrics,
    },
    model::text::ModelText,
    settings::ServerSettings,
    stage::reason::Markup,
};
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};

/// What tests ask to continue.
pub(crate) const PROMPT: &str = "Once upon a time there was a fox.";
/// Longest wait for anything in these tests; only a failure gets there.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How a test's server is set up.
pub(crate) struct Setup {
    pub(crate) parrot: Parrot,
    pub(crate) engine: EngineSettings,
    pub(crate) server: ServerSettings,
    /// How the model marks its reasoning, if not as its vocabulary shows.
    pub(crate) markup: Option<Markup>,
    /// Vocabulary and template, if not those of the bundled model.
    pub(crate) text: Option<ModelText>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            parrot: Parrot::default(),
            engine: EngineSettings::default(),
            server: ServerSettings {
                grace: PATIENCE,
                ..ServerSettings::default()
            },
            markup: None,
            text: None,
        }
    }
}

/// A running server. Dropping it leaves it to the runtime's end.
pub(crate) struct Server {
    pub(crate) url: String,
    pub(crate) engine: Handle,
    pub(crate) app: Arc<App>,
    pub(crate) text: ModelText,
    pub(crate) client: reqwest::Client,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<()>,
    stopper: Stopper,
}

/// The text side of the bundled model.
pub(crate) fn tales() -> ModelText {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/tales/tales.gguf");
    ModelText::read(&Gguf::open(path).expect("fixture")).expect("text side")
}

impl Server {
    /// A parrot that knows a vocabulary.
    pub(crate) async fn start(setup: Setup) -> Self {
        let metrics = Metrics::install().expect("recorder");
        let text = setup.text.unwrap_or_else(tales);
        let parrot = setup.parrot.with_vocab(text.tokenizer.vocab());
        let start = move || Engine::start(move || Ok::<_, Lost>(parrot), setup.engine);
        let (engine, stopper) = tokio::task::spawn_blocking(start)
            .await
            .expect("no panic")
            .expect("engine");
        let served = Served {
            id: "parrot".into(),
            alias: setup.server.alias.clone(),
            engine: engine.clone(),
            tokenizer: text.tokenizer.clone(),
            template: text.template.clone(),
            markup: setup.markup.unwrap_or(text.markup),
            sampling: Sampling {
                temperature: 0.0,
                ..Sampling::default()
            },
        };
        let app = Arc::new(App::new(served, &setup.server, metrics));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async move {
            let _ = stopped.await;
        };
        let serving = tokio::spawn(http::serve(
            listener,
            app.clone(),
            setup.server.grace,
            stopped,
        ));
        let client = reqwest::Client::builder()
            .timeout(PATIENCE)
            .no_proxy()
            .build()
            .expect("client");
        Self {
            url,
            engine,
            app,
            text,
            client,
            stop: Some(stop),
            serving,
            stopper,
        }
    }

    /// The address without the scheme.
    pub(crate) fn address(&self) -> &str {
        self.url.trim_start_matches("http://")
    }

    /// Sends a body as it is.
    pub(crate) async fn post(
        &self,
        path: &str,
        body: impl Into<reqwest::Body>,
    ) -> reqwest::Response {
        self.client
            .post(format!("{}{path}", self.url))
            .body(body)
            .send()
            .await
            .expect("a response")
    }

    pub(crate) async fn get(&self, path: &str) -> reqwest::Response {
        self.client
            .get(format!("{}{path}", self.url))
            .send()
            .await
            .expect("a response")
    }

    /// Waits until the engine's numbers are as they should be.
    pub(crate) async fn until(
        &self,
        what: &str,
        mut holds: impl FnMut(&tidegate::engine::Stats) -> bool,
    ) {
        let looking = async {
            while !holds(&self.engine.stats()) {
                tokio::task::yield_now().await;
            }
        };
        if tokio::time::timeout(PATIENCE, looking).await.is_err() {
            panic!("{what}: {:?}", self.engine.stats());
        }
    }

    /// Asks the server to end, as a signal would.
    pub(crate) fn ask_to_stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    /// Ends the server and its engine, and checks that both end.
    pub(crate) async fn stop(mut self) {
        self.ask_to_stop();
        let served = tokio::time::timeout(PATIENCE, self.serving)
            .await
            .expect("the server ends");
        served.expect("no panic");
        let stopper = self.stopper;
        let stopped = tokio::task::spawn_blocking(move || stopper.stop(PATIENCE));
        stopped.await.expect("no panic").expect("the engine ends");
    }
}

/// A whole completion of [`PROMPT`] with these fields.
pub(crate) async fn complete(server: &Server, fields: Value) -> Value {
    let mut body = json!({"prompt": PROMPT, "max_tokens": 64});
    body.as_object_mut()
        .expect("an object")
        .extend(fields.as_object().expect("an object").clone());
    let response = server.post("/v1/completions", body.to_string()).await;
    assert_eq!(response.status(), 200, "{body}");
    json_of(response).await
}
