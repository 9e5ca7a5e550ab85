//! The runtime's part of each job, and the actions of the core on it.

use std::path::PathBuf;
use std::time::Instant;

use rustix::process::Pid;

use super::leftover;
use super::log_file::LogFile;
use super::masking::Masking;
use super::output::Output;
use super::processes::{self, Processes, StartedProcess};
use super::shared::KeeperShared;
use super::tree;
use crate::core::{Body, EmptyCheck, Event, FinishStep, Job, JobAction, LogView, NotStarted, Serial};
use crate::protocol::{Closed, KeeperError, RegisterJob, StepEnd, StepEnded};
use step_runner_log::frame::STEP;
use step_runner_log::journal::{Reader, event::End, event::Event as JournalEvent};
use step_runner_log::words::{DaemonLine, Warning};
use step_runner_model::{FinishedProcess, LogChannel, Outcome, ProcessNumber, Shortage, StepUsage};
use step_runner_process::sweep::Process;
use step_runner_system::{failpoint, files};

/// Descriptors, processes and log of a job.
pub(super) struct JobBody {
    pub(super) serial: Serial,
    pub(super) output: Output,
    pub(super) processes: Processes,
    /// Files to remove when no daemon comes back.
    secret_files: Vec<PathBuf>,
    /// True if the job tracks how much of its log is on the disk (`durability = power`).
    pub(super) is_synced: bool,
}

impl Body for JobBody {
    fn log(&self) -> LogView {
        let log = &self.output.log;
        LogView { inode: log.inode(), len: log.len(), storage: log.storage() }
    }

    fn due(&self) -> Option<Instant> {
        self.output.due()
    }
}

impl JobBody {
    /// Opens the log of a job.
    pub(super) fn open(
        serial: Serial,
        asked: &mut RegisterJob,
        masking: Masking,
        shared: &mut KeeperShared,
    ) -> Result<Self, KeeperError> {
        let open = || LogFile::new(shared.state.open_log(asked.key)?, asked.log_len, asked.log_limit);
        let log = open().map_err(|error: std::io::Error| KeeperError::Log {
            errno: error.raw_os_error().unwrap_or_default(),
            message: error.to_string(),
        })?;
        Ok(Self {
            serial,
            output: Output::new(masking, log),
            processes: Processes::new(serial, asked),
            secret_files: std::mem::take(&mut asked.secret_files),
            is_synced: shared.state.is_synced(asked.key),
        })
    }

    /// Performs an action, and returns its answer if it has one.
    pub(super) fn perform(
        &mut self,
        action: JobAction,
        job: &Job,
        shared: &mut KeeperShared,
    ) -> Option<Event> {
        match action {
            JobAction::Line(kind, text) => self.output.line(kind, &text, shared),
            JobAction::Journal(event) => shared.journal(job.key(), &event),
            JobAction::WatchUnfinished => self.output.watch_unfinished(),
            JobAction::Start(process) => return self.start(process, job, shared),
            JobAction::WakeReaper(process) => self.processes.containment.wake_reaper(process),
            JobAction::NotStarted(process, why) => return Some(Event::Ended(self.not_started(process, why))),
            JobAction::FinishStep(finish) => {
                return Some(Event::Ended(self.finish_step(&finish, shared)));
            }
            JobAction::CheckEmpty(EmptyCheck::Clear(process)) => {
                let is_empty = self.processes.containment.are_empty(&[process]);
                return Some(Event::CheckedEmpty(EmptyCheck::Clear(process), is_empty));
            }
            JobAction::CheckEmpty(check) => {
                return Some(Event::CheckedEmpty(check, self.processes.is_empty(shared)));
            }
            JobAction::CheckLeftEmpty { reason, processes } => {
                return Some(Event::CheckedLeftEmpty(
                    reason,
                    self.processes.containment.are_empty(&processes),
                ));
            }
            JobAction::TerminateLeft(processes) => self.processes.containment.terminate_left(&processes),
            JobAction::KillStep(process) => self.processes.kill_step(process, shared),
            JobAction::ShowProcesses(processes) => self.show_processes(&processes, shared),
            JobAction::Thaw => self.processes.containment.thaw(shared),
            JobAction::ThawSurvivors => self.processes.thaw_survivors(shared),
            JobAction::Terminate(process) => self.processes.terminate(process, shared),
            JobAction::TerminateRest => self.processes.terminate_rest(shared),
            JobAction::Kill => self.processes.kill(shared),
            JobAction::WriteEnd { lines, has_survivors } => {
                return Some(Event::EndWritten(self.write_end(lines, has_survivors, job, shared)));
            }
            JobAction::CloseLog { closed, outcome } => {
                return Some(Event::LogClosed(self.close_log(closed, outcome, job, shared)));
            }
            JobAction::RecordEnd(outcome) => self.record_end(outcome, job, shared),
        }
        None
    }

    fn start(&mut self, process: ProcessNumber, job: &Job, shared: &mut KeeperShared) -> Option<Event> {
        Some(match self.processes.start(job.request(process)?, shared) {
            Ok(Some(started)) => self.started(process, started, job, shared),
            Ok(None) => Event::Ordered(process),
            Err(failure) => Event::StartFailed(process, failure),
        })
    }

    /// Takes a process that has started: records it in the journal, and watches its pipes and its end.
    pub(super) fn started(
        &mut self,
        process: ProcessNumber,
        started: StartedProcess,
        job: &Job,
        shared: &mut KeeperShared,
    ) -> Event {
        failpoint::hit("keeper::step::spawned");
        let StartedProcess { pid, pidfd, is_ours, start_time, stdout, stderr } = started;
        let leader = Pid::as_raw_nonzero(pid).get() as u32;
        if !job.is_dropped() {
            let event = JournalEvent::StepStarted { process, pgid: leader, pid: leader, start_time };
            shared.journal(job.key(), &event);
        }
        let pipes = [(stdout, LogChannel::Out), (stderr, LogChannel::Err)];
        let slot = job.request(process).map_or(STEP, |request| request.slot);
        self.output.add_pipes(process, slot, pipes, self.serial, shared);
        self.processes.watch(process, pid, pidfd, is_ours, start_time, shared);
        Event::Started(process)
    }

    fn not_started(&mut self, process: ProcessNumber, why: NotStarted) -> StepEnded {
        self.processes.forget(process);
        let end = processes::not_started(why);
        let usage = self.processes.containment.usage();
        StepEnded { process, end, left: 0, shortage: None, usage, ran: self.ran(None), closes: false }
    }

    /// Ends the output of a step, and counts and names the processes it left.
    fn finish_step(&mut self, finish: &FinishStep, shared: &mut KeeperShared) -> StepEnded {
        let FinishStep { process, name, status, usage: used, names_left } = finish;
        self.processes.forget(*process);
        self.output.finish_step(*process, shared);
        let survivors = self.processes.left(shared);
        let new = self.processes.leftovers.of_step(*process, &survivors);
        if !new.is_empty() && *names_left {
            let signs = self.processes.signs();
            let is_proven = |process: &Process| signs.prove(process, shared);
            let processes = leftover::listed(&new, is_proven, &self.output.masking);
            let line = DaemonLine::LeftRunning { name, count: new.len(), processes: &processes };
            self.output.own_line(&line, shared);
        }
        let shortage = self.processes.containment.shortage(*process);
        if let Some(shortage) = shortage.filter(|_| status.is_success()) {
            // Part of the step failed, but its status says success.
            let warning = match shortage {
                Shortage::Memory => Warning::MemoryShort { name },
                Shortage::Processes => Warning::ProcessesShort { name },
            };
            self.output.own_line(&DaemonLine::Warning(warning), shared);
        }
        let (end, usage) = (StepEnd::Exited(*status), self.processes.containment.usage());
        let (left, ran) = (survivors.len() as u32, self.ran(*used));
        StepEnded { process: *process, end, left, shortage, usage, ran, closes: false }
    }

    /// Writes the processes of running steps to the log.
    fn show_processes(&mut self, processes: &[ProcessNumber], shared: &mut KeeperShared) {
        let found = self.processes.containment.members(processes);
        let signs = self.processes.signs();
        let is_proven = |process: &Process| signs.prove(process, shared);
        for (kind, line) in tree::lines(&found, is_proven, &self.output.masking) {
            self.output.line(kind, &line, shared);
        }
    }

    /// Describes the run of the step that has just ended. `usage` came with the wait for its process; control groups
    /// are not read for a single step.
    fn ran(&self, usage: Option<StepUsage>) -> FinishedProcess {
        FinishedProcess {
            ended: step_runner_system::clock::boot_micros(),
            log_len: self.output.log.len(),
            usage,
        }
    }

    fn write_end(
        &mut self,
        lines: Vec<(LogChannel, String)>,
        has_survivors: bool,
        job: &Job,
        shared: &mut KeeperShared,
    ) -> Closed {
        let unkilled = if has_survivors { self.processes.survivors(shared) } else { Vec::new() };
        let unkilled: Vec<u32> = unkilled.iter().map(|process| process.pid).collect();
        let usage = self.processes.containment.usage();
        let output = &mut self.output;
        output.close_pipes(job, shared);
        for (kind, text) in lines {
            output.line(kind, &text, shared);
        }
        if !unkilled.is_empty() {
            output.own_line(&DaemonLine::NotKilled { count: unkilled.len() }, shared);
        }
        if let Some(text) = output.log.foreign().text() {
            output.own_line(&DaemonLine::Warning(Warning::Text(&text)), shared);
        }
        output.log.append_final_notes(&shared.stamp());
        Closed { unkilled, cpu_time: usage.cpu_time, peak_memory: usage.peak_memory, ..Closed::default() }
    }

    fn close_log(
        &mut self,
        mut closed: Closed,
        outcome: Option<Outcome>,
        job: &Job,
        shared: &mut KeeperShared,
    ) -> Closed {
        closed.log_damaged = self.output.log.close();
        closed.log_len = self.output.log.len();
        self.processes.containment.release(shared);
        if let Some(outcome) = outcome {
            self.remove_secrets(job, shared);
            self.record(outcome, job, shared);
        }
        closed
    }

    /// Records the end of a job that was closed for a daemon, unless the daemon has recorded it.
    fn record_end(&mut self, outcome: Outcome, job: &Job, shared: &mut KeeperShared) {
        self.remove_secrets(job, shared);
        if !has_end(job, shared) {
            self.record(outcome, job, shared);
        }
    }

    /// Removes the files that can hold secrets. If a step has put many or large files beside its own, some of them stay
    /// until the next start of a daemon.
    fn remove_secrets(&mut self, job: &Job, shared: &KeeperShared) {
        for path in self.secret_files.drain(..) {
            files::unlink(files::CWD, path.as_path()).ok();
        }
        shared.state.remove_step_files(job.key());
    }

    /// Records the end of a job that no daemon came back for. A later start counts its ended steps.
    fn record(&self, outcome: Outcome, job: &Job, shared: &mut KeeperShared) {
        // Sync before recording the end. If that fails, nothing is recorded, and the next start closes the job.
        if job.is_dropped() || self.is_synced && !shared.sync() {
            return;
        }
        let log = &self.output.log;
        let end = End::new(outcome, step_runner_system::clock::now_micros(), log.len(), log.inode());
        let end = End { end_boot: Some(step_runner_system::clock::boot_micros()), ..end };
        shared.journal(job.key(), &JournalEvent::Ended(end));
    }
}

/// True if the journal of the job holds its end.
fn has_end(job: &Job, shared: &KeeperShared) -> bool {
    let bytes = shared.state.read_journal(job.key()).unwrap_or_default();
    let mut events = Reader::<JournalEvent>::new(&bytes);
    events.any(|record| record.is_ok_and(|record| matches!(record.event, JournalEvent::Ended(_))))
}
