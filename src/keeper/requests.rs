//! Performs the daemon's requests (see [`super::protocol`]).

use std::collections::VecDeque;
use std::time::Instant;

use super::compile::{Blocked, PhraseWork, Prepared};
use super::job::Job;
use super::output::{Masking, MaskingSource};
use super::protocol::{HoldJob, KeeperError, KeeperSettings, PROTOCOL_VERSION, Remembered, Reply, Request};
use super::server::Keeper;
use super::shared::{ReplyTo, Serial};
use crate::log::mask::MaskWarning;
use crate::model::{JobKey, LogChannel};
use crate::process::cgroup::Usage;

/// A request that breaks the protocol: the connection is closed.
pub(super) struct ProtocolViolation;

impl Keeper {
    /// Performs a request of the present connection.
    pub(super) fn perform(&mut self, to: ReplyTo, request: Request) -> Result<(), ProtocolViolation> {
        let greeted = self.shared.connection.as_ref().is_some_and(|connection| connection.greeted);
        match request {
            Request::Hello { version, settings, digest_key } => self.hello(to, version, settings, digest_key),
            _ if !greeted => return Err(ProtocolViolation),
            Request::Hold(hold) => self.hold(to, *hold),
            Request::Remember(remembered) => {
                self.remember(remembered);
                self.shared.reply(to, Ok(Reply::Done));
            }
            Request::ReadUsages { keys } => {
                let usages = self.usages(&keys);
                self.shared.reply(to, Ok(Reply::Usages(usages)));
            }
            Request::Bye => {
                self.shared.reply(to, Ok(Reply::Done));
                self.leaving = true;
            }
            request => self.perform_for_job(to, request),
        }
        Ok(())
    }

    fn hello(&mut self, to: ReplyTo, version: u32, settings: KeeperSettings, digest_key: [u8; 16]) {
        // A daemon of another version gets the reply and nothing else: its attempts must not keep jobs alive that it
        // cannot serve.
        let understood = version == PROTOCOL_VERSION;
        if understood {
            self.shared.settings = settings;
            self.alone_since = None;
        }
        let digest_key = *self.digest_key.get_or_insert(digest_key);
        self.forget_remembered();
        let reply = Reply::Hello {
            version: PROTOCOL_VERSION,
            pid: std::process::id(),
            cgroup: self.shared.pool.as_ref().map(|pool| pool.path().to_owned()),
            jobs: self.by_key.keys().copied().collect(),
            remembered: self.remembered.iter().map(|(remembered, _)| *remembered).collect(),
            digest_key,
            unenforceable: self.shared.limiter.unenforceable(self.shared.pool.as_ref()),
        };
        if let Some(connection) = &mut self.shared.connection {
            connection.greeted = understood;
        }
        self.shared.reply(to, Ok(reply));
    }

    fn hold(&mut self, to: ReplyTo, mut hold: HoldJob) {
        if let Some(job) = self.job(hold.key) {
            if let Some(blocked) = &mut job.blocked {
                blocked.requests.push_back((to, Request::Hold(Box::new(hold))));
            } else {
                let held = job.held();
                self.shared.reply(to, Ok(held));
            }
            return;
        }
        let work = PhraseWork::New(MaskingSource {
            phrases: std::mem::take(&mut hold.phrases),
            token_prefixes: std::mem::take(&mut hold.token_prefixes),
            forms: hold.mask_forms,
            default_prefixes: hold.default_prefixes,
        });
        let opened = if work.is_small() {
            work.run().map_err(|error| KeeperError::Masking(error.to_string())).and_then(
                |(masking, warnings)| {
                    let serial = self.add(&mut hold, masking)?;
                    self.warn_of_held(serial, &warnings);
                    Ok(Some(serial))
                },
            )
        } else {
            self.hold_blocked(to, &mut hold, work).map(|()| None)
        };
        let reply = match opened {
            Ok(Some(serial)) => self.jobs.get(&serial).map(|job| job.held()).ok_or(KeeperError::UnknownJob),
            Ok(None) => return,
            Err(error) => Err(error),
        };
        self.shared.reply(to, reply);
    }

    /// Takes the job, but queues its requests until its phrases are prepared.
    fn hold_blocked(
        &mut self,
        asker: ReplyTo,
        hold: &mut HoldJob,
        work: PhraseWork,
    ) -> Result<(), KeeperError> {
        let none = Masking::none().map_err(|error| KeeperError::Masking(error.to_string()))?;
        let serial = self.add(hold, none)?;
        if let Some(job) = self.jobs.get_mut(&serial) {
            job.blocked = Some(Box::new(Blocked { asker, is_new: true, requests: VecDeque::new() }));
        }
        self.compiler.submit(serial, work);
        Ok(())
    }

    fn add(&mut self, hold: &mut HoldJob, masking: Masking) -> Result<Serial, KeeperError> {
        let serial = self.next_serial;
        let job = Job::open(serial, hold, masking, &mut self.shared)?;
        self.next_serial += 1;
        self.by_key.insert(hold.key, serial);
        self.jobs.insert(serial, Box::new(job));
        Ok(serial)
    }

    fn usages(&mut self, keys: &[JobKey]) -> Vec<(JobKey, Usage)> {
        keys.iter().filter_map(|key| Some((*key, self.job(*key)?.containment.usage()))).collect()
    }

    fn job(&mut self, key: JobKey) -> Option<&mut Job> {
        self.jobs.get_mut(self.by_key.get(&key)?).map(Box::as_mut)
    }

    /// Performs a request about a job, or queues it behind the preparation of the job's phrases.
    fn perform_for_job(&mut self, to: ReplyTo, request: Request) {
        let Some(serial) = key_of(&request).and_then(|key| self.by_key.get(&key).copied()) else {
            // Dropping a job that is not held succeeds.
            let done = matches!(request, Request::Drop { .. });
            return self.shared.reply(to, if done { Ok(Reply::Done) } else { Err(KeeperError::UnknownJob) });
        };
        // Neither an end nor the record waits for phrases.
        let waits =
            !matches!(request, Request::Stop { .. } | Request::Drop { .. } | Request::ReadRecord { .. });
        match self.jobs.get_mut(&serial).and_then(|job| job.blocked.as_mut()) {
            Some(blocked) if waits => blocked.requests.push_back((to, request)),
            _ => self.perform_now(to, serial, request),
        }
    }

    fn perform_now(&mut self, to: ReplyTo, serial: Serial, request: Request) {
        let Some(job) = self.jobs.get_mut(&serial) else { return };
        let shared = &mut self.shared;
        let mut reply = Reply::Done;
        match request {
            Request::Record { seq, event, .. } => job.record(seq, event),
            Request::Resume { .. } => {
                reply = Reply::Resumed(Box::new(job.resumed()));
                job.tell_refusal(shared);
            }
            Request::ReadRecord { offset, .. } => reply = job.record_piece(offset),
            Request::WatchUnfinished { .. } => job.watch_unfinished(),
            Request::Stop { grace, .. } => job.stop(grace, shared),
            Request::Drop { key } => {
                self.by_key.remove(&key);
                job.drop_job(shared);
            }
            Request::Line { op, kind, text, .. } => {
                if job.is_new(op) {
                    job.line(kind, &text, shared);
                }
            }
            Request::Spawn(spawn) => {
                if job.is_new(spawn.op) {
                    job.spawn(spawn, shared);
                }
            }
            Request::Close { op, leftover_grace, lines, .. } => {
                if job.is_new(op) {
                    job.close(leftover_grace, lines, None, shared);
                }
            }
            Request::Phrases { op, phrases, .. } => {
                if job.is_new(op) {
                    return self.add_phrases(to, serial, phrases);
                }
            }
            Request::Hold(_) => reply = job.held(),
            Request::Hello { .. } | Request::Remember(_) | Request::ReadUsages { .. } | Request::Bye => {
                return;
            }
        }
        shared.reply(to, Ok(reply));
        self.settle(serial);
    }

    fn add_phrases(&mut self, to: ReplyTo, serial: Serial, phrases: Vec<Vec<u8>>) {
        let Some(job) = self.jobs.get_mut(&serial) else { return };
        let work = PhraseWork::Add(job.masking.clone(), phrases);
        job.blocked = Some(Box::new(Blocked { asker: to, is_new: false, requests: VecDeque::new() }));
        if work.is_small() {
            self.prepared(serial, work.run());
        } else {
            self.compiler.submit(serial, work);
        }
    }

    /// Uses the prepared phrases of a job, and performs its waiting requests.
    pub(super) fn prepared(&mut self, serial: Serial, prepared: Prepared) {
        let Some(job) = self.jobs.get_mut(&serial) else { return };
        let Some(blocked) = job.blocked.take() else { return };
        let held = if blocked.is_new { job.held() } else { Reply::Done };
        let reply = match prepared {
            Ok((masking, warnings)) => {
                job.use_masking(masking, &mut self.shared);
                if blocked.is_new {
                    self.warn_of_held(serial, &warnings);
                } else {
                    self.warn(serial, &warnings);
                }
                Ok(held)
            }
            Err(error) => {
                if blocked.is_new {
                    self.by_key.remove(&job.key);
                    job.drop_job(&mut self.shared);
                } else {
                    job.take_back_op();
                }
                Err(KeeperError::Masking(error.to_string()))
            }
        };
        self.shared.reply(blocked.asker, reply);
        self.settle(serial);
        let mut requests = blocked.requests;
        while let Some((to, request)) = requests.pop_front() {
            self.perform_again(to, request);
            // It may have added phrases and blocked the job again: the rest waits behind it.
            if let Some(blocked) = self.jobs.get_mut(&serial).and_then(|job| job.blocked.as_mut()) {
                blocked.requests.append(&mut requests);
            }
        }
    }

    fn perform_again(&mut self, to: ReplyTo, request: Request) {
        match request {
            Request::Hold(hold) => self.hold(to, *hold),
            request => self.perform_for_job(to, request),
        }
    }

    /// Writes the warnings about a job that was just taken, unless its log has them from a dead keeper.
    fn warn_of_held(&mut self, serial: Serial, warnings: &[MaskWarning]) {
        if self.jobs.get(&serial).is_some_and(|job| job.is_log_empty()) {
            self.warn(serial, warnings);
        }
    }

    /// Writes warnings about phrases to the operator's log, and to the job's log if they concern the job
    /// (masking.md §8).
    fn warn(&mut self, serial: Serial, warnings: &[MaskWarning]) {
        let Some(job) = self.jobs.get_mut(&serial) else { return };
        for warning in warnings {
            self.shared.notice(format!("job {}: {warning}", job.key));
            if warning.is_for_job() {
                job.line(LogChannel::Err, &format!("warning: {warning}"), &mut self.shared);
            }
        }
    }

    fn remember(&mut self, remembered: Remembered) {
        self.remembered.retain(|(known, _)| known.key != remembered.key);
        self.remembered.push_back((remembered, Instant::now()));
        self.forget_remembered();
    }

    /// Drops remembered ids above the limits on number and age.
    fn forget_remembered(&mut self) {
        let settings = &self.shared.settings;
        let (max, limit) = (settings.max_remembered as usize, settings.remember_for);
        // Age since we were told, as the wall clock may jump (faults.md row 63).
        let is_old = |(_, told): &(Remembered, Instant)| told.elapsed() > limit;
        while self.remembered.front().is_some_and(is_old) || self.remembered.len() > max {
            self.remembered.pop_front();
        }
    }
}

/// Returns the job that a request is about.
const fn key_of(request: &Request) -> Option<JobKey> {
    match request {
        Request::Record { key, .. }
        | Request::Phrases { key, .. }
        | Request::Line { key, .. }
        | Request::Stop { key, .. }
        | Request::Close { key, .. }
        | Request::Drop { key }
        | Request::Resume { key }
        | Request::WatchUnfinished { key }
        | Request::ReadRecord { key, .. } => Some(*key),
        Request::Hold(hold) => Some(hold.key),
        Request::Spawn(spawn) => Some(spawn.key),
        Request::Hello { .. } | Request::Remember(_) | Request::ReadUsages { .. } | Request::Bye => None,
    }
}
