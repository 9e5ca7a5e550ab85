//! Signals to the daemon: those that stop it, the first gracefully, the second at once (service.md §6.4), and the one that
//! tells of ended children.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM and SIGINT.
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// Listens from now on.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// The next one.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// SIGCHLD.
pub struct ChildSignals(Signal);

impl ChildSignals {
    /// Listens from now on.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self(signal(SignalKind::child())?))
    }

    /// The next one; several at once may come as one.
    pub async fn next(&mut self) {
        self.0.recv().await;
    }
}
