//! Requests of the Runner to end a stage: signals (custom-executor.md §7.5), or its own death.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use step_runner_model::error::{Exit, Failure};
use step_runner_process::parent;

/// SIGTERM, SIGINT and SIGHUP, caught from the creation of this value on.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn listen() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind)
                .map_err(|error| Failure::new(Exit::Failure, format!("cannot listen for signals: {error}")))
        };
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = self.hang_up.recv() => {}
        }
    }
}

/// The Runner: the signals that it sends, and its death.
pub(super) struct Runner {
    signals: Signals,
    /// Receives its death. `None` after that, or if the system cannot tell.
    death: Option<oneshot::Receiver<()>>,
}

/// Reasons to end a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndRequest {
    BySignal,
    ByDeath,
}

impl Runner {
    /// Watches the Runner. A signal that comes after the return is not missed.
    pub(super) fn watch() -> Result<Self, Failure> {
        let signals = Signals::listen()?;
        let (tell, death) = oneshot::channel();
        // Without it the end of the Runner is noticed at the next byte of output.
        let is_watched = parent::watch(move || {
            tell.send(()).ok();
        })
        .is_ok();
        Ok(Self { signals, death: is_watched.then_some(death) })
    }

    /// Waits for the next reason to end the stage. The death is reported once.
    pub(super) async fn tells_to_end(&mut self) -> EndRequest {
        let Self { signals, death } = self;
        let died = async {
            match death {
                Some(death) => death.await.is_ok(),
                None => std::future::pending().await,
            }
        };
        let has_died = tokio::select! {
            () = signals.next() => return EndRequest::BySignal,
            has_died = died => has_died,
        };
        self.death = None;
        if !has_died {
            self.signals.next().await;
            return EndRequest::BySignal;
        }
        EndRequest::ByDeath
    }
}
