//! SIGINT and SIGTERM: the first asks for a clean end, the second ends at once.

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::failure::Failure;

/// The signals that end the server.
pub(super) struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    /// From now on the signals come here.
    ///
    /// **Errors**: the system refuses.
    pub(super) fn listen() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|source| Failure::Io {
                what: "cannot listen for signals",
                source,
            })
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    /// Completes at the first signal; the one after it ends the process.
    pub(super) async fn first(mut self) {
        self.next().await;
        tracing::info!("ending; running answers are finished, another signal ends at once");
        tokio::spawn(async move {
            self.next().await;
            std::process::exit(1);
        });
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
