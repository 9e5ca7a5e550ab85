//! The daemon's requests (see [`crate::protocol`]): each is done once, and in order.

use std::time::Instant;

use super::action::{Action, JobAction, ReplyTo, Serial};
use super::event::Moment;
use super::gate::Blocked;
use super::job::Job;
use super::state::{Body, Core, Registered};
use crate::protocol::{
    KeeperError, KeeperSettings, PROTOCOL_VERSION, RegisterJob, Remembered, Reply, Request,
};
use step_runner_log::mask::MaskWarning;
use step_runner_log::words::{DaemonLine, Warning};
use step_runner_model::JobKey;

impl<B: Body> Core<B> {
    /// Performs a request of the present connection.
    pub fn perform(&mut self, to: ReplyTo, request: Request, now: Instant) {
        match request {
            Request::Hello { version, settings, digest_key } => {
                self.hello(to, version, settings, digest_key, now);
            }
            Request::Register(asked) => self.register(to, asked),
            Request::Remember(remembered) => {
                self.remember(remembered, now);
                self.reply(to, Ok(Reply::Done));
            }
            Request::ReadUsages { keys } => {
                let registered = |key: JobKey| Some((key, *self.by_key.get(&key)?));
                let jobs = keys.into_iter().filter_map(registered).collect();
                self.actions.push(Action::ReadUsages { to, jobs });
            }
            Request::Bye => {
                self.reply(to, Ok(Reply::Done));
                self.actions.push(Action::Leave);
            }
            request => self.perform_for_job(to, request, now),
        }
    }

    fn reply(&mut self, to: ReplyTo, reply: Result<Reply, KeeperError>) {
        self.actions.push(Action::Reply { to, reply });
    }

    fn hello(
        &mut self,
        to: ReplyTo,
        version: u32,
        settings: KeeperSettings,
        digest_key: [u8; 16],
        now: Instant,
    ) {
        // A daemon of another version gets the reply and nothing else: its attempts must not keep jobs alive that it
        // cannot serve.
        let is_understood = version == PROTOCOL_VERSION;
        if is_understood {
            self.settings = settings;
            self.alone_since = None;
        }
        let digest_key = *self.digest_key.get_or_insert(digest_key);
        self.forget_remembered(now);
        let mut jobs: Vec<(JobKey, Serial)> =
            self.by_key.iter().map(|(key, serial)| (*key, *serial)).collect();
        jobs.sort_unstable_by_key(|(_, serial)| *serial);
        self.actions.push(Action::Greet {
            to,
            is_understood,
            jobs: jobs.into_iter().map(|(key, _)| key).collect(),
            remembered: self.remembered.iter().map(|(remembered, _)| *remembered).collect(),
            digest_key,
        });
    }

    fn register(&mut self, to: ReplyTo, asked: Box<RegisterJob>) {
        let known = self.by_key.get(&asked.key).and_then(|serial| self.jobs.get_mut(serial));
        match known.map(|registered| (registered.body.log(), &mut registered.job.gate)) {
            Some((_, Some(blocked))) => blocked.requests.push_back((to, Request::Register(asked))),
            Some((log, None)) => self.reply(to, Ok(Job::registered(log))),
            None => {
                self.last_serial += 1;
                self.actions.push(Action::Register { serial: self.last_serial, to, asked });
            }
        }
    }

    /// Takes the job `serial`, whose log is open. `prepared` has the warnings about its phrases. `None` means that
    /// the phrases are still being prepared, and requests about the job wait for [`Core::prepared`].
    pub fn registered(
        &mut self,
        serial: Serial,
        to: ReplyTo,
        mut asked: Box<RegisterJob>,
        body: B,
        prepared: Option<&[MaskWarning]>,
    ) {
        let log = body.log();
        let mut job = Job::new(serial, &mut asked, log);
        if prepared.is_none() {
            job.gate = Some(Box::new(Blocked::new(to, true)));
        }
        self.by_key.insert(asked.key, serial);
        self.jobs.insert(serial, Box::new(Registered { job, body }));
        if let Some(warnings) = prepared {
            self.warn_of_registered(serial, warnings);
            self.reply(to, Ok(Job::registered(log)));
            if !warnings.is_empty() {
                self.actions.push(Action::Settle(serial));
            }
        }
    }

    /// Performs a request about a job, or queues it behind the preparation of the job's phrases.
    fn perform_for_job(&mut self, to: ReplyTo, request: Request, now: Instant) {
        let Some(serial) = key_of(&request).and_then(|key| self.by_key.get(&key).copied()) else {
            // Dropping a job that is not registered succeeds.
            let done = matches!(request, Request::Drop { .. });
            return self.reply(to, if done { Ok(Reply::Done) } else { Err(KeeperError::UnknownJob) });
        };
        match self.jobs.get_mut(&serial).and_then(|registered| registered.job.gate.as_mut()) {
            Some(blocked) if !blocked.lets_pass(&request) => blocked.requests.push_back((to, request)),
            _ => self.perform_now(to, serial, request, now),
        }
    }

    fn perform_now(&mut self, to: ReplyTo, serial: Serial, request: Request, now: Instant) {
        let Some(registered) = self.jobs.get_mut(&serial) else { return };
        let (job, log, out) = (&mut registered.job, registered.body.log(), &mut self.actions);
        let mut reply = Reply::Done;
        match request {
            Request::Record { seq, event, .. } => job.record(seq, event),
            Request::Resume { .. } => reply = job.resumed(log, out),
            Request::ReadRecord { offset, .. } => reply = job.record_piece(offset),
            Request::WatchUnfinished { .. } => out.job(serial, JobAction::WatchUnfinished),
            Request::Stop { process, grace, .. } => job.stop_step(process, grace, now, out),
            Request::Clear { call, processes, grace, .. } => job.clear(call, processes, grace, now, out),
            Request::ShowProcesses { attempt, processes, .. } => job.show_processes(attempt, processes, out),
            Request::Drop { key } => {
                self.by_key.remove(&key);
                // Nobody opens the gate of a job that is gone, so answer the requests that wait behind it here.
                if let Some(blocked) = job.gate.take() {
                    for to in std::iter::once(blocked.asker).chain(blocked.requests.iter().map(|(to, _)| *to))
                    {
                        out.push(Action::Reply { to, reply: Err(KeeperError::UnknownJob) });
                    }
                }
                job.drop_job(&Moment { now, log, settings: &self.settings }, out);
            }
            Request::Line { op, kind, text, .. } => {
                if job.is_new(op) {
                    out.job(serial, JobAction::Line(kind, text));
                }
            }
            Request::Place { op, .. } => reply = job.place(op, log),
            Request::Spawn(spawn) => {
                let number = spawn.process;
                if !job.is_registered(number) && job.spawn(spawn, out) {
                    self.starts.push_back((serial, number));
                }
            }
            Request::Close { op, leftover_grace, lines, .. } => {
                if job.is_new(op) {
                    job.close(leftover_grace, lines, None, now, out);
                }
            }
            Request::Phrases { op, phrases, .. } => {
                if job.is_new(op) {
                    job.gate = Some(Box::new(Blocked::new(to, false)));
                    return out.push(Action::Prepare(serial, phrases));
                }
            }
            Request::Register(_) => reply = Job::registered(log),
            Request::Hello { .. } | Request::Remember(_) | Request::ReadUsages { .. } | Request::Bye => {
                return;
            }
        }
        self.reply(to, Ok(reply));
        self.actions.push(Action::Settle(serial));
    }

    /// Opens the gate of a job: its phrases are in use or cannot be used. Performs its waiting requests.
    pub fn prepared(&mut self, serial: Serial, prepared: Result<&[MaskWarning], String>, now: Instant) {
        let Some(registered) = self.jobs.get_mut(&serial) else { return };
        let (job, log) = (&mut registered.job, registered.body.log());
        let Some(blocked) = job.gate.take() else { return };
        let reply = match prepared {
            Ok(warnings) if blocked.is_new => {
                self.warn_of_registered(serial, warnings);
                Ok(Job::registered(log))
            }
            Ok(warnings) => {
                self.warn(serial, warnings);
                Ok(Reply::Done)
            }
            Err(text) => {
                if blocked.is_new {
                    self.by_key.remove(&job.key());
                    job.drop_job(&Moment { now, log, settings: &self.settings }, &mut self.actions);
                } else {
                    job.take_back_op();
                }
                Err(KeeperError::Masking(text))
            }
        };
        self.reply(blocked.asker, reply);
        self.actions.push(Action::Settle(serial));
        for (to, request) in blocked.requests {
            self.actions.push(Action::Perform { to, request });
        }
    }

    /// Writes the warnings about a job that was just taken, unless its log has them from a dead keeper.
    fn warn_of_registered(&mut self, serial: Serial, warnings: &[MaskWarning]) {
        if self.jobs.get(&serial).is_some_and(|registered| registered.job.is_log_new) {
            self.warn(serial, warnings);
        }
    }

    /// Writes warnings about phrases to the operator's log, and to the job's log if they concern the job
    /// (masking.md §8).
    fn warn(&mut self, serial: Serial, warnings: &[MaskWarning]) {
        let Some(registered) = self.jobs.get(&serial) else { return };
        for warning in warnings {
            self.actions.push(Action::Notice(format!("job {}: {warning}", registered.job.key())));
            if warning.is_for_job() {
                let text = warning.to_string();
                registered.job.line(&DaemonLine::Warning(Warning::Text(&text)), &mut self.actions);
            }
        }
    }

    fn remember(&mut self, remembered: Remembered, now: Instant) {
        self.remembered.add(remembered.key, remembered.digest, (remembered, now));
        self.forget_remembered(now);
    }

    /// Drops remembered ids above the limits on number and age.
    fn forget_remembered(&mut self, now: Instant) {
        let (max, limit) = (self.settings.max_remembered as usize, self.settings.remember_for);
        // Age since we were told, as the wall clock may jump (faults.md row 63).
        let is_old = |(_, told): &(Remembered, Instant)| now.saturating_duration_since(*told) > limit;
        while self.remembered.oldest().is_some_and(is_old) || self.remembered.len() > max {
            self.remembered.forget_oldest();
        }
    }
}

/// Returns the job that a request is about.
const fn key_of(request: &Request) -> Option<JobKey> {
    match request {
        Request::Record { key, .. }
        | Request::Phrases { key, .. }
        | Request::Line { key, .. }
        | Request::Place { key, .. }
        | Request::Stop { key, .. }
        | Request::Clear { key, .. }
        | Request::ShowProcesses { key, .. }
        | Request::Close { key, .. }
        | Request::Drop { key }
        | Request::Resume { key }
        | Request::WatchUnfinished { key }
        | Request::ReadRecord { key, .. } => Some(*key),
        Request::Register(asked) => Some(asked.key),
        Request::Spawn(spawn) => Some(spawn.key),
        Request::Hello { .. } | Request::Remember(_) | Request::ReadUsages { .. } | Request::Bye => None,
    }
}
