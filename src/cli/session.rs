//! Follows one job to its end: log, step results, Ctrl-C.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::display::Display;
use super::interrupts::{Interrupts, LAST_ANSWER_WAIT, OnInterrupt, next_signal};
use super::stream::Seen;
use super::summary::{Detail, SummaryReason};
use super::tail::Tail;
use super::{Verbosity, end, results, summary, terminal};
use crate::client::{Absence, Client, Error, Event, Request};
use crate::error::{Exit, Failure};
use crate::insight::tree::Tree;
use crate::model::exit_code::STEP_TIMED_OUT;
use crate::model::{JobId, text};
use crate::pb::v1;

/// Longest wait for the end of the results after the end of the log. They are complete by then (service.md §6.1).
const RESULTS_AFTER_LOG: Duration = Duration::from_secs(10);

/// A daemon that has told nothing of a job's steps for this long is an older one, which sends only results: the log waits
/// for nothing then.
const SILENCE: Duration = Duration::from_secs(1);

/// The user is told if the daemon is away for longer than this.
const AWAY: Duration = Duration::from_secs(2);

/// Up to this distance a moment is shown as a time of day alone.
const DAY: chrono::TimeDelta = chrono::TimeDelta::days(1);

/// A job that has been followed to its end.
pub(super) struct FinishedJob {
    pub(super) status: v1::Status,
    /// The tree of all results, if the daemon sent it.
    pub(super) root: Option<v1::StepResult>,
    tail: Tail,
    /// True if the function's outputs are to be shown, because the format does not hold them.
    shows_outputs: bool,
    /// True if the summary need not give the reason: it stands right above, or the exit code tells it.
    is_told: bool,
    /// How much of the failed step's output can be seen above.
    seen: Seen,
}

impl FinishedJob {
    pub(super) fn code(&self, interrupts: &Interrupts) -> u8 {
        interrupts.code(&self.status)
    }

    /// Prints on stderr why the job failed, or what it returned. `request` is given if it was submitted here.
    pub(super) fn explain(&self, verbosity: Verbosity, request: Option<&Request>, interrupts: &Interrupts) {
        let detail = match (verbosity.quiet, self.seen) {
            (true, _) => Detail::Brief,
            (false, Seen::All) => Detail::WithoutOutput,
            (false, Seen::Stderr) => Detail::WithoutStderr,
            (false, Seen::None) => Detail::Full,
        };
        let lines = match (&self.root, end::code(&self.status)) {
            // Its end by the caller's own signal is no error.
            _ if verbosity.quiet && interrupts.seen().is_some() => Vec::new(),
            (_, 0) if verbosity.quiet => Vec::new(),
            (Some(root), 0) if self.shows_outputs => results::outputs(root),
            (_, 0) => Vec::new(),
            (root, _) => {
                let reason = if self.is_told { SummaryReason::AlreadyShown } else { SummaryReason::Message };
                let reason = if interrupts.seen().is_some() { SummaryReason::ByUser } else { reason };
                summary::lines(&self.status, root.as_ref(), &self.tail, request, reason, detail)
            }
        };
        for line in lines {
            terminal::say_wrapped(&line);
        }
    }
}

/// Follows the job `id` from byte `offset` of its log. However it ends, the terminal is restored.
pub(super) async fn follow(
    client: &Client,
    id: &JobId,
    offset: u64,
    mut display: Display,
    interrupts: &mut Interrupts,
    verbosity: Verbosity,
) -> Result<FinishedJob, Failure> {
    if display.is_view() {
        interrupts.for_view()?;
    }
    let ended = Box::pin(follow_with(client, id, offset, &mut display, interrupts, verbosity)).await;
    if let Err(failure) = &ended {
        let leave = async {
            if failure.exit().is_by_signal() {
                // The sender does not wait for a reader that hangs.
                drop(timeout(LAST_ANSWER_WAIT, display.leave()).await);
            } else {
                display.leave().await;
            }
        };
        tokio::select! {
            () = leave => {}
            _ = interrupts.signals.next() => {}
        }
    }
    ended
}

async fn follow_with(
    client: &Client,
    id: &JobId,
    offset: u64,
    display: &mut Display,
    interrupts: &mut Interrupts,
    verbosity: Verbosity,
) -> Result<FinishedJob, Failure> {
    let mut log = client.follow(id, offset);
    if display.is_view() {
        log = log.with_unfinished();
    }
    let mut absences = log.absence();
    let mut told = false;
    let mut results = client.follow_steps(id);
    if display.steps().is_some() {
        results = results.with_events();
    }
    let mut results_open = true;
    let (mut root, mut status, mut tail) = (None, None, Tail::from(offset));
    let mut patience = Instant::now();
    let silence = Instant::now() + SILENCE;
    let cancel = client.cancel(id);
    tokio::pin!(cancel);
    let mut cancelling = false;
    if let Some(exit) = interrupts.seen() {
        cancelling = true;
        say_cancelling(display, exit, verbosity)?;
    }
    while status.is_none() || results_open {
        tokio::select! {
            event = log.next(), if status.is_none() && display.has_room() => match event {
                Ok(Event::Log(bytes)) => {
                    if std::mem::take(&mut told) {
                        say_back(display, verbosity)?;
                    }
                    tail.push(&bytes);
                    display.log(&bytes)?;
                }
                Ok(Event::Unfinished(line)) => display.unfinished(&line),
                Ok(Event::End(end)) => {
                    status = Some(*end);
                    patience = Instant::now() + RESULTS_AFTER_LOG;
                }
                Err(error) => return Err(Box::pin(why_lost(client, id, error)).await),
            },
            message = results.next_message(), if results_open => match message {
                Ok(Some(message)) => {
                    display.message(&message)?;
                    root = message.result.or(root);
                }
                Ok(None) => {
                    results_open = false;
                    display.events_end()?;
                }
                Err(error) => {
                    results_open = false;
                    display.events_end()?;
                    if verbosity.verbose > 0 {
                        display.say(&format!("step-runner: no step results: {error}"))?;
                    }
                }
            },
            absence = change(&mut absences, told), if status.is_none() => {
                told = absence.is_some();
                match absence {
                    Some(absence) => say_away(display, absence, verbosity)?,
                    None => say_back(display, verbosity)?,
                }
            }
            () = sleep_until(silence), if display.is_silent() => display.events_end()?,
            drawn = display.frame() => drawn?,
            () = next_signal(&mut interrupts.stop) => display.suspend().await,
            () = sleep_until(patience), if status.is_some() => {
                results_open = false;
                display.events_end()?;
            }
            // A job that has ended meanwhile may be cancelled without harm.
            cancelled = &mut cancel, if cancelling => {
                cancelling = false;
                // If the end is known, a failed cancel does not matter.
                if status.is_none() {
                    cancelled?;
                }
            }
            exit = interrupts.signals.next() => {
                if interrupts.seen().is_some() || interrupts.action == OnInterrupt::Leave {
                    return Err(interrupts.interrupted(exit));
                }
                interrupts.seen = Some(exit);
                cancelling = true;
                say_cancelling(display, exit, verbosity)?;
            }
        }
    }
    let status = status.unwrap_or_default();
    tokio::select! {
        shown = display.end(&status) => shown?,
        // A signal ends the wait for a terminal that hangs.
        exit = interrupts.signals.next() => return Err(interrupts.interrupted(exit)),
    }
    if end::code(&status) != 0 {
        tail.set_steps(match display.steps() {
            Some(steps) => steps.clone(),
            None => steps_of(client, id).await,
        });
    }
    // Every message is a complete subtree, but only the root's is the whole tree.
    let root = root.filter(|result: &v1::StepResult| {
        let is_start = result.status() == v1::step_result::Status::Running;
        !is_start && result.step.as_ref().is_none_or(|step| step.name.is_empty())
    });
    let seen = display.seen_output();
    // The message about a process only repeats the exit code in the summary. That about a time limit says more.
    let is_of_process = text::told_exit_status(&status.message).is_some_and(|code| code != STEP_TIMED_OUT);
    let is_repeated = display.is_view() && seen == Seen::All && is_of_process;
    let is_told = display.is_above_stderr() && tail.tells_why() || is_repeated;
    Ok(FinishedJob { status, root, tail, shows_outputs: display.leaves_outputs_out(), is_told, seen })
}

/// Returns the steps of a job that has ended; none if the daemon does not tell all of them in time. A display that needs none has not
/// asked for their events, which cost the daemon a write each.
async fn steps_of(client: &Client, id: &JobId) -> Tree {
    let mut steps = Tree::default();
    let mut messages = client.follow_steps(id).with_events();
    let read = async {
        loop {
            match messages.next_message().await {
                Ok(Some(message)) => drop(message.event.map(|event| steps.take(&event))),
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    };
    // A summary without them shows the end of the log. With a part of them it could show the output of another step.
    let is_whole = timeout(LAST_ANSWER_WAIT, read).await.unwrap_or(false);
    if is_whole { steps } else { Tree::default() }
}

/// Returns the failure of a follower. If the log is lost, the job's final status may say why: for example, a disk that
/// failed.
async fn why_lost(client: &Client, id: &JobId, error: Error) -> Failure {
    let is_lost = matches!(error, Error::Lost { .. }) && !error.is_unknown_job();
    let failure = Failure::from(error);
    if !is_lost {
        return failure;
    }
    let status = timeout(LAST_ANSWER_WAIT, client.status(id)).await.ok().and_then(Result::ok);
    match status.filter(|status| status.finished && !status.message.is_empty()) {
        Some(status) => {
            Failure::new(failure.exit(), format!("job {id} has ended: {}; {failure}", status.message))
        }
        None => failure,
    }
}

fn say_cancelling(display: &mut Display, exit: Exit, verbosity: Verbosity) -> Result<(), Failure> {
    if verbosity.quiet {
        return Ok(());
    }
    display.say(match exit {
        Exit::Terminated => "step-runner: SIGTERM: cancelling the job; a second signal kills it at once",
        Exit::HungUp => "step-runner: SIGHUP: cancelling the job; a second signal kills it at once",
        _ => "step-runner: cancelling the job; Ctrl-C again kills it at once",
    })
}

/// Waits until the daemon has been away for [`AWAY`], or is back if the user has been `told` that it is away.
async fn change(absences: &mut watch::Receiver<Option<Absence>>, told: bool) -> Option<Absence> {
    if told {
        back(absences).await;
        return None;
    }
    Some(away(absences).await)
}

/// Waits until the daemon has been away for [`AWAY`].
async fn away(absences: &mut watch::Receiver<Option<Absence>>) -> Absence {
    loop {
        let absence = *absences.borrow_and_update();
        let long = async {
            match absence {
                Some(absence) => sleep_until(absence.since + AWAY).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = long => if let Some(absence) = absence {
                return absence;
            },
            changed = absences.changed() => if changed.is_err() {
                std::future::pending::<()>().await;
            },
        }
    }
}

/// Waits until the daemon is there again.
async fn back(absences: &mut watch::Receiver<Option<Absence>>) {
    while absences.borrow_and_update().is_some() {
        if absences.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

fn say_back(display: &mut Display, verbosity: Verbosity) -> Result<(), Failure> {
    if verbosity.quiet { Ok(()) } else { display.say("step-runner: the daemon is back") }
}

/// Tells the user that the daemon is away, and how long the client tries to reach it.
fn say_away(display: &mut Display, absence: Absence, verbosity: Verbosity) -> Result<(), Failure> {
    if verbosity.quiet {
        return Ok(());
    }
    let left = absence.until.saturating_duration_since(Instant::now());
    let left = chrono::TimeDelta::from_std(left).unwrap_or(chrono::TimeDelta::MAX);
    let format = if left < DAY { " until %H:%M:%S" } else { " until %Y-%m-%d %H:%M:%S" };
    let until = chrono::Local::now().checked_add_signed(left);
    let until = until.map_or_else(String::new, |until| until.format(format).to_string());
    let what = if absence.is_stopped { "its container does not run" } else { "the job goes on" };
    display.say(&format!("step-runner: the daemon is away; {what}; trying{until}"))
}
