//! Following one job to its end: log, step results, Ctrl-C.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::output::Display;
use super::summary::{Reason, Tail};
use super::{Talk, end, results, summary, terminal};
use crate::client::{Absence, Client, Event, Request};
use crate::error::{Exit, Failure};
use crate::model::JobId;
use crate::pb::v1;
use crate::process::is_signal_ignored;

/// After the end of the log the results have this long to end as well; they are complete by then (service.md §6.1).
const RESULTS_AFTER_LOG: Duration = Duration::from_secs(10);

/// The end of a step is shown when the log has rested for this long: longer than the daemon holds bytes back (20 ms,
/// service.md §3.2), too short to notice.
const LOG_RESTS: Duration = Duration::from_millis(60);

/// A daemon that is away for longer is told of.
const AWAY: Duration = Duration::from_secs(2);

/// The time of day alone says when, up to here.
const DAY: chrono::TimeDelta = chrono::TimeDelta::days(1);

/// How long Ctrl-C still waits for the daemon to answer or to hear of it.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(1);

/// What Ctrl-C does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnInterrupt {
    /// Cancels the job and waits for its end; the second one leaves at once. SIGTERM and SIGHUP do the same.
    Cancel,
    /// Leaves; the job goes on. SIGTERM and SIGHUP end the process by themselves.
    Leave,
}

/// Ctrl-C, from the moment this is made, and the other signals that tell a command to end.
pub(super) struct Interrupts {
    signals: Signals,
    action: OnInterrupt,
    seen: Option<Exit>,
}

/// `None`: not listened for.
struct Signals {
    interrupt: Signal,
    terminate: Option<Signal>,
    hang_up: Option<Signal>,
}

impl Signals {
    async fn next(&mut self) -> Exit {
        tokio::select! {
            _ = self.interrupt.recv() => Exit::Interrupted,
            () = next(&mut self.terminate) => Exit::Terminated,
            () = next(&mut self.hang_up) => Exit::HungUp,
        }
    }
}

async fn next(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

impl Interrupts {
    pub(super) fn new(action: OnInterrupt) -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::new(Exit::Failure, error));
        let cancels = action == OnInterrupt::Cancel;
        // Who started us may have wished that the end of its terminal does not matter, as nohup does.
        let hang_up = cancels && !is_signal_ignored(rustix::process::Signal::HUP);
        let signals = Signals {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: cancels.then(|| listen(SignalKind::terminate())).transpose()?,
            hang_up: hang_up.then(|| listen(SignalKind::hangup())).transpose()?,
        };
        Ok(Self { signals, action, seen: None })
    }

    /// Does `work`, unless Ctrl-C comes first.
    pub(super) async fn unless_interrupted<T>(
        &mut self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            done = work => done,
            exit = self.signals.next() => Err(self.interrupted(exit)),
        }
    }

    /// Submits a job by `work`. After Ctrl-C the daemon has [`LAST_WORDS`] to answer: a job that it has started by then
    /// is one to cancel, as if Ctrl-C had come a moment later.
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
            () = sleep(LAST_WORDS) => Err(self.interrupted(first)),
            exit = self.signals.next() => Err(self.interrupted(exit)),
        }
    }

    /// The first of them that has come.
    pub(super) fn seen(&self) -> Option<Exit> {
        self.seen
    }

    /// The failure that ends a command at once: by the first signal, whichever the second is.
    fn interrupted(&self, exit: Exit) -> Failure {
        let exit = self.seen.unwrap_or(exit);
        Failure::new(exit, if exit == Exit::Interrupted { "interrupted" } else { "told to end" })
    }
}

/// A job that has been followed to its end.
pub(super) struct Ended {
    pub(super) status: v1::Status,
    /// The tree of all results, if the daemon sent it.
    pub(super) root: Option<v1::StepResult>,
    tail: Tail,
    /// Whether what the function returned is shown: the format does not hold it.
    shows_outputs: bool,
    /// Whether the log said why the job failed, right above what is said of its end.
    is_told: bool,
}

impl Ended {
    /// Exit code of the command.
    pub(super) fn code(&self, interrupts: &Interrupts) -> u8 {
        interrupts.seen().map_or_else(|| end::code(&self.status), Exit::code)
    }

    /// Says on stderr why the job failed, or what it returned; `request` if it was submitted here.
    pub(super) fn explain(&self, talk: Talk, request: Option<&Request>, interrupts: &Interrupts) {
        if talk.quiet {
            return;
        }
        let lines = match (&self.root, end::code(&self.status)) {
            (Some(root), 0) if self.shows_outputs => results::outputs(root),
            (_, 0) => Vec::new(),
            (root, _) => {
                let reason = if self.is_told { Reason::Told } else { Reason::Message };
                let reason = if interrupts.seen.is_some() { Reason::ByUser } else { reason };
                summary::lines(&self.status, root.as_ref(), &self.tail, request, reason)
            }
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
    let mut absences = log.absence();
    let mut told = false;
    let mut results = client.follow_steps(id);
    let mut results_open = true;
    let (mut root, mut status, mut tail) = (None, None, Tail::default());
    let mut patience = Instant::now();
    let cancel = client.cancel(id);
    tokio::pin!(cancel);
    let mut cancelling = false;
    if let Some(exit) = interrupts.seen {
        cancelling = true;
        say_cancelling(&mut display, exit, talk)?;
    }
    while status.is_none() || results_open {
        tokio::select! {
            event = log.next(), if status.is_none() => match event? {
                Event::Log(bytes) => {
                    told = false;
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
            until = away(&mut absences), if status.is_none() && !told => {
                told = true;
                say_away(&mut display, until, talk)?;
            }
            () = sleep(LOG_RESTS), if display.has_ended_steps() => display.show_ended_steps()?,
            () = sleep_until(patience), if status.is_some() => results_open = false,
            // A job that has ended meanwhile is none the worse for it.
            cancelled = &mut cancel, if cancelling => {
                cancelling = false;
                cancelled?;
            }
            exit = interrupts.signals.next() => {
                if interrupts.seen.is_some() || interrupts.action == OnInterrupt::Leave {
                    return Err(interrupts.interrupted(exit));
                }
                interrupts.seen = Some(exit);
                cancelling = true;
                say_cancelling(&mut display, exit, talk)?;
            }
        }
    }
    let status = status.unwrap_or_default();
    display.end(&status)?;
    // Every message is a complete subtree, but only the last one is the whole.
    let root =
        root.filter(|result: &v1::StepResult| result.step.as_ref().is_none_or(|step| step.name.is_empty()));
    let is_told = display.is_above_stderr() && tail.tells_why();
    Ok(Ended { status, root, tail, shows_outputs: display.leaves_outputs_out(), is_told })
}

fn say_cancelling(display: &mut Display, exit: Exit, talk: Talk) -> Result<(), Failure> {
    if talk.quiet {
        return Ok(());
    }
    display.say(match exit {
        Exit::Terminated => "step-runner: SIGTERM: cancelling the job; a second signal kills it at once",
        Exit::HungUp => "step-runner: SIGHUP: cancelling the job; a second signal kills it at once",
        _ => "step-runner: cancelling the job; Ctrl-C again kills it at once",
    })
}

/// Waits until the daemon has been away for [`AWAY`]; until when it is tried.
async fn away(absences: &mut watch::Receiver<Option<Absence>>) -> Instant {
    loop {
        let absence = *absences.borrow_and_update();
        let long = async {
            match absence {
                Some(absence) => sleep_until(absence.since + AWAY).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = long => if let Some(Absence { until, .. }) = absence {
                return until;
            },
            changed = absences.changed() => if changed.is_err() {
                std::future::pending::<()>().await;
            },
        }
    }
}

/// Says it once, until something has come again.
fn say_away(display: &mut Display, until: Instant, talk: Talk) -> Result<(), Failure> {
    if talk.quiet {
        return Ok(());
    }
    let left = until.saturating_duration_since(Instant::now());
    let left = chrono::TimeDelta::from_std(left).unwrap_or(chrono::TimeDelta::MAX);
    let format = if left < DAY { " until %H:%M:%S" } else { " until %Y-%m-%d %H:%M:%S" };
    let until = chrono::Local::now().checked_add_signed(left);
    let until = until.map_or_else(String::new, |until| until.format(format).to_string());
    display.say(&format!("step-runner: the daemon is away; the job goes on; trying{until}"))
}
