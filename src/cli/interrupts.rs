//! Ctrl-C and the other signals that tell a command to end, and what they do to its job (cli.md, "Exit codes").

use std::time::Duration;

use rustix::process::Signal as Kind;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;

use super::end;
use crate::error::{Exit, Failure};
use crate::pb::v1;
use crate::process::is_signal_ignored;

/// Longest wait for a last answer of the daemon, for example after Ctrl-C.
pub(super) const LAST_ANSWER_WAIT: Duration = Duration::from_secs(1);

/// Effect of Ctrl-C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnInterrupt {
    /// Cancels the job and waits for its end. A second one ends the command at once. SIGTERM and SIGHUP do the same.
    Cancel,
    /// Ends the command; the job goes on. SIGTERM and SIGHUP keep their default action, except SIGTERM under a live
    /// view.
    Leave,
}

/// Ctrl-C and the other signals that tell a command to end, caught from the creation of this value on.
pub(super) struct Interrupts {
    /// The signals that end the command.
    pub(super) signals: Signals,
    /// Ctrl-Z, caught if a live view has to be removed first.
    pub(super) stop: Option<Signal>,
    /// Effect of the first signal.
    pub(super) action: OnInterrupt,
    /// The first signal that has come.
    pub(super) seen: Option<Exit>,
    /// Remedy of a command that leaves its job alone.
    remedy: Option<String>,
}

/// `None` for a signal that is not caught.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Option<Signal>,
    hang_up: Option<Signal>,
}

impl Signals {
    /// Waits for the next signal that tells the command to end. Cancel-safe.
    pub(super) async fn next(&mut self) -> Exit {
        tokio::select! {
            _ = self.interrupt.recv() => Exit::Interrupted,
            () = next_signal(&mut self.terminate) => Exit::Terminated,
            () = next_signal(&mut self.hang_up) => {
                // A terminal that closes sends it more than once, and so does who passes it on. Nobody is impatient.
                self.hang_up = None;
                Exit::HungUp
            }
        }
    }
}

/// Waits for a signal that is caught; else forever.
pub(super) async fn next_signal(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

impl Interrupts {
    pub(super) fn new(action: OnInterrupt) -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::new(Exit::Failure, error));
        let cancels = action == OnInterrupt::Cancel;
        // A SIGHUP that is ignored at the start stays ignored, as nohup wants it.
        let hang_up = cancels && !is_signal_ignored(rustix::process::Signal::HUP);
        let signals = Signals {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: cancels.then(|| listen(SignalKind::terminate())).transpose()?,
            hang_up: hang_up.then(|| listen(SignalKind::hangup())).transpose()?,
        };
        Ok(Self { signals, stop: None, action, seen: None, remedy: None })
    }

    /// Sets the remedy shown after Ctrl-C, for a command that leaves its job alone.
    pub(super) fn set_remedy(&mut self, remedy: String) {
        self.remedy = Some(remedy);
    }

    /// Also listens for the signals that would leave a live view on the screen.
    pub(super) fn for_view(&mut self) -> Result<(), Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::new(Exit::Failure, error));
        if self.signals.terminate.is_none() {
            self.signals.terminate = Some(listen(SignalKind::terminate())?);
        }
        self.stop = Some(listen(SignalKind::from_raw(Kind::TSTP.as_raw()))?);
        Ok(())
    }

    /// Does `work`, unless a signal comes first.
    pub(super) async fn unless_interrupted<T>(
        &mut self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            done = work => done,
            exit = self.signals.next() => Err(self.interrupted(exit)),
        }
    }

    /// Submits a job by `work`. After a signal the daemon has [`LAST_ANSWER_WAIT`] to answer. A job that it has started
    /// by then is cancelled, as if the signal had come a moment later.
    pub(super) async fn while_submitting<T>(
        &mut self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::pin!(work);
        let first = tokio::select! {
            done = &mut work => return done,
            exit = self.signals.next() => exit,
        };
        self.seen = Some(first);
        tokio::select! {
            done = work => done,
            () = sleep(LAST_ANSWER_WAIT) => Err(self.interrupted(first)),
            exit = self.signals.next() => Err(self.interrupted(exit)),
        }
    }

    /// Returns the first signal that has come.
    pub(super) fn seen(&self) -> Option<Exit> {
        self.seen
    }

    /// Returns the exit code of a command whose job ended with `status`: a signal that came decides.
    pub(super) fn code(&self, status: &v1::Status) -> u8 {
        self.seen.map_or_else(|| end::code(status), Exit::code)
    }

    /// Returns the failure that ends a command at once. It tells the first signal, whichever the second is.
    pub(super) fn interrupted(&self, exit: Exit) -> Failure {
        let exit = self.seen.unwrap_or(exit);
        let what = if exit == Exit::Interrupted { "interrupted" } else { "told to end" };
        match &self.remedy {
            Some(remedy) => Failure::new(exit, format!("{what}; the job goes on")).with_remedy(remedy),
            None => Failure::new(exit, what),
        }
    }
}
