//! Following one job to its end: log, step results, Ctrl-C.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep, sleep_until};

use super::output::Display;
use super::summary::Tail;
use super::{Talk, end, results, summary, terminal};
use crate::client::{Client, Event, Request};
use crate::error::{Exit, Failure};
use crate::model::JobId;
use crate::pb::v1;

/// After the end of the log the results have this long to end as well; they are complete by then (service.md §6.1).
const RESULTS_AFTER_LOG: Duration = Duration::from_secs(10);

/// The end of a step is shown when the log has rested for this long: longer than the daemon holds bytes back (20 ms,
/// service.md §3.2), too short to notice.
const LOG_RESTS: Duration = Duration::from_millis(60);

/// How long Ctrl-C still waits for the daemon to answer or to hear of it.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(1);

/// What Ctrl-C does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnInterrupt {
    /// Cancels the job and waits for its end; the second one leaves at once.
    Cancel,
    /// Leaves; the job goes on.
    Leave,
}

/// Ctrl-C, from the moment this is made.
pub(super) struct Interrupts {
    signal: Signal,
    action: OnInterrupt,
    seen: bool,
}

impl Interrupts {
    pub(super) fn new(action: OnInterrupt) -> Result<Self, Failure> {
        let signal = signal(SignalKind::interrupt()).map_err(|error| Failure::new(Exit::Failure, error))?;
        Ok(Self { signal, action, seen: false })
    }

    /// Does `work`, unless Ctrl-C comes first.
    pub(super) async fn unless_interrupted<T>(
        &mut self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            done = work => done,
            _ = self.signal.recv() => Err(interrupted()),
        }
    }

    /// Submits a job by `work`. After Ctrl-C the daemon has [`LAST_WORDS`] to answer: a job that it has started by then
    /// is one to cancel, as if Ctrl-C had come a moment later.
    pub(super) async fn while_submitting<T>(
        &mut self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::pin!(work);
        tokio::select! {
            done = &mut work => return done,
            _ = self.signal.recv() => self.seen = true,
        }
        tokio::select! {
            done = work => done,
            () = sleep(LAST_WORDS) => Err(interrupted()),
            _ = self.signal.recv() => Err(interrupted()),
        }
    }

    /// Whether Ctrl-C has come.
    pub(super) fn seen(&self) -> bool {
        self.seen
    }
}

fn interrupted() -> Failure {
    Failure::new(Exit::Interrupted, "interrupted")
}

/// A job that has been followed to its end.
pub(super) struct Ended {
    pub(super) status: v1::Status,
    /// The tree of all results, if the daemon sent it.
    pub(super) root: Option<v1::StepResult>,
    tail: Tail,
    /// Whether what the function returned is shown: the format does not hold it.
    shows_outputs: bool,
}

impl Ended {
    /// Exit code of the command.
    pub(super) fn code(&self, interrupts: &Interrupts) -> u8 {
        if interrupts.seen() { Exit::Interrupted.code() } else { end::code(&self.status) }
    }

    /// Says on stderr why the job failed, or what it returned; `request` if it was submitted here.
    pub(super) fn explain(&self, talk: Talk, request: Option<&Request>) {
        if talk.quiet {
            return;
        }
        let lines = match (&self.root, end::code(&self.status)) {
            (Some(root), 0) if self.shows_outputs => results::outputs(root),
            (_, 0) => Vec::new(),
            (root, _) => summary::lines(&self.status, root.as_ref(), &self.tail, request),
        };
        for line in lines {
            terminal::say(&line);
        }
    }
}

/// Follows the job `id` from byte `offset` of its log.
pub(super) async fn follow(
    client: &Client,
    id: &JobId,
    offset: u64,
    mut display: Display,
    interrupts: &mut Interrupts,
    talk: Talk,
) -> Result<Ended, Failure> {
    let mut log = client.follow(id, offset);
    let mut results = client.follow_steps(id);
    let mut results_open = true;
    let (mut root, mut status, mut tail) = (None, None, Tail::default());
    let mut patience = Instant::now();
    let cancel = client.cancel(id);
    tokio::pin!(cancel);
    let mut cancelling = interrupts.seen;
    if cancelling {
        say_cancelling(&mut display, talk)?;
    }
    while status.is_none() || results_open {
        tokio::select! {
            event = log.next(), if status.is_none() => match event? {
                Event::Log(bytes) => {
                    tail.push(&bytes);
                    display.log(&bytes)?;
                }
                Event::End(end) => {
                    status = Some(*end);
                    patience = Instant::now() + RESULTS_AFTER_LOG;
                }
            },
            result = results.next(), if results_open => match result {
                Ok(Some(result)) => {
                    display.step(&result)?;
                    root = Some(result);
                }
                Ok(None) => results_open = false,
                Err(error) => {
                    results_open = false;
                    if talk.verbose > 0 {
                        terminal::say(&format!("step-runner: no step results: {error}"));
                    }
                }
            },
            () = sleep(LOG_RESTS), if display.has_ended_steps() => display.show_ended_steps()?,
            () = sleep_until(patience), if status.is_some() => results_open = false,
            // A job that has ended meanwhile is none the worse for it.
            cancelled = &mut cancel, if cancelling => {
                cancelling = false;
                cancelled?;
            }
            _ = interrupts.signal.recv() => {
                if interrupts.seen || interrupts.action == OnInterrupt::Leave {
                    return Err(interrupted());
                }
                interrupts.seen = true;
                cancelling = true;
                say_cancelling(&mut display, talk)?;
            }
        }
    }
    let status = status.unwrap_or_default();
    display.end(&status)?;
    // Every message is a complete subtree, but only the last one is the whole.
    let root =
        root.filter(|result: &v1::StepResult| result.step.as_ref().is_none_or(|step| step.name.is_empty()));
    Ok(Ended { status, root, tail, shows_outputs: display.leaves_outputs_out() })
}

fn say_cancelling(display: &mut Display, talk: Talk) -> Result<(), Failure> {
    if talk.quiet {
        return Ok(());
    }
    display.say("step-runner: cancelling the job; Ctrl-C again kills it at once")
}
