//! Signals to the daemon: those that stop it, the first gracefully, the second at once (service.md §6.4), and the one that
//! tells of ended children, and those by which an operator speaks to it.

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

    /// Waits for the next one, and returns its name.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// A request of the operator by a signal (queue.md §2, §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// SIGHUP: read the settings again.
    Reload,
    /// SIGUSR1: start no waiting job.
    Pause,
    /// SIGUSR2: start them again.
    Resume,
}

/// SIGHUP, SIGUSR1 and SIGUSR2.
pub struct OperatorSignals {
    reload: Signal,
    pause: Signal,
    resume: Signal,
}

impl OperatorSignals {
    /// Listens from now on.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self {
            reload: signal(SignalKind::hangup())?,
            pause: signal(SignalKind::user_defined1())?,
            resume: signal(SignalKind::user_defined2())?,
        })
    }

    /// The next one.
    pub async fn next(&mut self) -> Ask {
        tokio::select! {
            _ = self.reload.recv() => Ask::Reload,
            _ = self.pause.recv() => Ask::Pause,
            _ = self.resume.recv() => Ask::Resume,
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
