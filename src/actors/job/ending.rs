//! The end of a job, in the order that makes its promises hold: *Status finished* implies a complete log, *stream
//! ended* implies Status finished (service.md §6.1).

use actix::{ActorContext, ActorFutureExt, AsyncContext, Context, WrapFuture};

use super::JobActor;
use crate::actors::supervisor::JobOver;
use crate::actors::{deliver, view::State};
use crate::clock;
use crate::config::Durability;
use crate::error::Chain;
use crate::job::effect::Effect;
use crate::job::event::Event;
use crate::job::reaper::Moment;
use crate::journal::event::{End, Event as JournalEvent};
use crate::keeper::protocol::{Closed, Request};
use crate::model::{JobState, Outcome};
use crate::store::{ScannedJob, close_interrupted, file_vars};

/// Longest message of a Status in bytes: the answer for all jobs must stay one that clients take (service.md §1.1).
const MAX_MESSAGE: usize = 1 << 10;

impl JobActor {
    /// The keeper closed the log and nothing of the job lives: the rest of the end.
    pub(super) fn end(&mut self, closed: Closed, ctx: &mut Context<Self>) {
        if self.over {
            return;
        }
        let Closed { log_len, unkilled, cpu_time, peak_memory, log_damaged } = closed;
        if !unkilled.is_empty() {
            tracing::warn!(job = %self.view.id, ?unkilled, "processes could not be killed");
        }
        if log_damaged {
            tracing::warn!(job = %self.view.id, "the log could not be written to its end");
        }
        let mut outcome = self
            .ending
            .take()
            .unwrap_or_else(|| Outcome::failed("internal: the log was closed before the job's end"));
        outcome.message = shortened(&self.redactor.line(&outcome.message));
        self.remove_files();
        let end = End {
            outcome,
            end_time: clock::now_micros(),
            log_len,
            log_inode: self.view.log_inode,
            steps_done: self.view.state().steps_done,
            cpu_time: cpu_time.and_then(|t| u64::try_from(t.as_micros()).ok()),
            peak_memory,
        };
        self.view.update(|state| state.unkilled = !unkilled.is_empty());
        self.over = true;
        let written = self.folder.append(&JournalEvent::Ended(end.clone()));
        match &written {
            Ok(()) => {}
            Err(error) => {
                tracing::error!(%error, job = %self.view.id, "the end was not written; the keeper knows it");
            }
        }
        // A keeper that goes on holding the job tells the next daemon of its end.
        let forget = written.is_ok();
        if self.around.config().durability == Durability::Power {
            let folder = self.folder.clone();
            let synced = tokio::task::spawn_blocking(move || folder.sync());
            ctx.spawn(synced.into_actor(self).map(move |synced, job, ctx| {
                let end = durable(
                    end,
                    synced.map_err(|e| e.to_string()).and_then(|s| s.map_err(|e| Chain(&e).to_string())),
                );
                job.leave(end, forget, ctx);
            }));
        } else {
            self.leave(end, forget, ctx);
        }
    }

    fn leave(&mut self, end: End, forget: bool, ctx: &mut Context<Self>) {
        self.publish(end, ctx);
        if forget {
            self.link.tell(Request::Drop { key: self.key() });
        }
    }

    /// The keeper died (service.md §6.4). What is left of the job's processes was killed before this.
    pub(super) fn interrupt(&mut self, ctx: &mut Context<Self>) {
        if self.over {
            return;
        }
        self.remove_tmp();
        let cause = "the process that ran it died";
        let closed = self.scanned().and_then(|job| {
            let root = self.root_of_interrupted();
            if let Some(root) = root {
                let bytes = (self.encode)(&self.redactor.result(root));
                if let Ok(len) = self.folder.append_step(&bytes) {
                    self.view.trace.grow(len);
                }
            }
            close_interrupted(&job, cause, clock::now_micros())
                .map_err(|e| crate::error::Chain(&e).to_string())
        });
        let end = closed.unwrap_or_else(|error| {
            tracing::error!(error, job = %self.view.id, "the end of an interrupted job was not written");
            End {
                outcome: Outcome::interrupted(cause),
                end_time: clock::now_micros(),
                log_len: self.view.log.len(),
                log_inode: self.view.log_inode,
                steps_done: self.view.state().steps_done,
                cpu_time: None,
                peak_memory: None,
            }
        });
        let steps_done = self.view.state().steps_done;
        self.publish(End { steps_done, ..end }, ctx);
    }

    fn root_of_interrupted(&mut self) -> Option<crate::model::StepResult> {
        let effects = self.machine.handle(&Event::Broken { message: "interrupted".into() });
        effects.into_iter().find_map(|effect| match effect {
            Effect::Finish { root, .. } => Some(*root),
            _ => None,
        })
    }

    /// The job's records as a recovery would read them.
    fn scanned(&self) -> Result<ScannedJob, String> {
        self.folder.read_job()
    }

    fn remove_files(&self) {
        self.remove_tmp();
        if self.shell.files.is_empty() {
            return;
        }
        match self.scanned() {
            Ok(job) => {
                let failed = file_vars::remove(self.key(), &job.record, &job.journal.files);
                if failed > 0 {
                    tracing::warn!(failed, job = %self.view.id, "file variables were not removed");
                }
            }
            Err(error) => tracing::error!(error, job = %self.view.id, "file variables were not removed"),
        }
    }

    /// Status shows the end, then followers get theirs, then the supervisor hears of it.
    fn publish(&mut self, end: End, ctx: &mut Context<Self>) {
        self.over = true;
        let End { outcome, end_time, log_len, steps_done, cpu_time, peak_memory, .. } = end;
        tracing::info!(job = %self.view.id, class = ?outcome.class, exit_code = outcome.exit_code, "job ended");
        self.view.update(|state| {
            *state = State {
                state: JobState::Ended(outcome.class),
                outcome: Some(outcome),
                start_time: state.start_time,
                end_time: Some(end_time),
                steps_done,
                cpu_time: cpu_time.map(std::time::Duration::from_micros),
                peak_memory,
                since: Moment::AfterStart(clock::uptime()),
                unkilled: state.unkilled,
            };
        });
        self.view.trace.end();
        self.view.log.end(log_len);
        deliver(&self.supervisor, JobOver(self.view.id.clone()));
        ctx.stop();
    }
}

/// A message cut in its middle: its end says with which exit status a process failed the job (language.md §14.4).
fn shortened(message: &str) -> String {
    const CUT: &str = " … ";
    if message.len() <= MAX_MESSAGE {
        return message.to_owned();
    }
    let half = (MAX_MESSAGE - CUT.len()) / 2;
    let (head, tail) = (message.floor_char_boundary(half), message.ceil_char_boundary(message.len() - half));
    let part = |range| message.get(range).unwrap_or_default();
    [part(0..head), CUT, part(tail..message.len())].concat()
}

/// An end whose record may not have reached the disk is not the end it says (faults.md row 27).
fn durable(end: End, synced: Result<(), String>) -> End {
    match synced {
        Ok(()) => end,
        Err(error) => {
            tracing::error!(error, "the end of a job could not be made durable");
            End { outcome: Outcome::failed(format!("storage error: {error}")), ..end }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_keep_their_beginning_and_their_end() {
        let message = format!("step {:?}: exec: exit status 3", "ä".repeat(MAX_MESSAGE));
        let short = shortened(&message);
        assert!(short.len() <= MAX_MESSAGE);
        assert!(short.starts_with("step \"ä") && short.ends_with("exec: exit status 3"), "{short}");
        assert_eq!(shortened("short"), "short");
    }
}
