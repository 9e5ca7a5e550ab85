//! Performs the actions that the core asks for.

use std::time::Instant;

use super::compile::{PhraseWork, Prepared};
use super::job::JobBody;
use super::masking::{Masking, MaskingSource};
use super::server::Keeper;
use crate::core::{Action, Registered, ReplyTo, Serial};
use crate::protocol::{KeeperError, PROTOCOL_VERSION, RegisterJob, Reply, ToKeeper};
use step_runner_model::JobKey;
use step_runner_process::cgroup::Usage;

impl Keeper {
    /// Performs a request of connection `number`.
    pub(super) fn request(&mut self, number: u32, frame: ToKeeper) {
        let now = Instant::now();
        // Otherwise the program's pages would stay mapped as long as a daemon watches us.
        if !frame.request.is_sign_of_life() {
            self.rest.busy(now);
        }
        let to = ReplyTo { connection: number, id: frame.id };
        self.core.perform(to, frame.request, now);
        self.drive();
    }

    /// Performs actions until none is left.
    pub(super) fn drive(&mut self) {
        while let Some(action) = self.core.next_action() {
            self.perform(action);
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Job(serial, action) => {
                let Some(Registered { job, body }) = self.core.get_mut(serial) else { return };
                if let Some(answer) = body.perform(action, job, &mut self.shared) {
                    self.core.on(serial, answer, Instant::now());
                }
            }
            Action::Reply { to, reply } => self.shared.reply(to, reply),
            Action::Perform { to, request } => self.core.perform(to, request, Instant::now()),
            Action::Tell(message) => self.shared.tell(&message),
            Action::Notice(text) => self.shared.notice(text),
            Action::Flush => self.shared.flush(),
            Action::Settle(serial) => self.settle_job(serial),
            Action::Greet { to, is_understood, jobs, remembered, digest_key } => {
                let reply = Reply::Hello {
                    version: PROTOCOL_VERSION,
                    pid: std::process::id(),
                    cgroup: self.shared.pool.as_ref().map(|pool| pool.path().to_owned()),
                    jobs,
                    remembered,
                    digest_key,
                    unenforceable: self.shared.limiter.unenforceable(self.shared.pool.as_ref()),
                };
                if let Some(connection) = &mut self.shared.connection {
                    connection.greeted = is_understood;
                }
                self.shared.reply(to, Ok(reply));
            }
            Action::ReadUsages { to, jobs } => {
                let usages = self.usages(&jobs);
                self.shared.reply(to, Ok(Reply::Usages(usages)));
            }
            Action::Register { serial, to, asked } => self.register(serial, to, asked),
            Action::Prepare(serial, phrases) => self.prepare(serial, phrases),
            Action::Leave => self.leaving = true,
        }
    }

    fn usages(&self, jobs: &[(JobKey, Serial)]) -> Vec<(JobKey, Usage)> {
        let usage = |serial| Some(self.core.get(serial)?.body.processes.containment.usage());
        jobs.iter().filter_map(|(key, serial)| Some((*key, usage(*serial)?))).collect()
    }

    /// Takes a new job. Its phrases are prepared at once if they are few.
    fn register(&mut self, serial: Serial, to: ReplyTo, mut asked: Box<RegisterJob>) {
        let work = PhraseWork::New(MaskingSource {
            phrases: std::mem::take(&mut asked.phrases),
            token_prefixes: std::mem::take(&mut asked.token_prefixes),
            forms: asked.mask_forms,
            default_prefixes: asked.default_prefixes,
        });
        let is_small = work.is_small();
        let masking = if is_small { work.run() } else { Masking::none().map(|none| (none, Vec::new())) };
        let opened = masking.map_err(|error| KeeperError::Masking(error.to_string())).and_then(
            |(masking, warnings)| {
                Ok((JobBody::open(serial, &mut asked, masking, &mut self.shared)?, warnings))
            },
        );
        match opened {
            Ok((body, warnings)) => {
                self.core.registered(serial, to, asked, body, is_small.then_some(warnings.as_slice()));
                if !is_small {
                    self.compiler.submit(serial, work);
                }
            }
            Err(error) => self.shared.reply(to, Err(error)),
        }
    }

    fn prepare(&mut self, serial: Serial, phrases: Vec<Vec<u8>>) {
        let Some(registered) = self.core.get(serial) else { return };
        let work = PhraseWork::Add(registered.body.output.masking.clone(), phrases);
        if work.is_small() {
            self.prepared(serial, work.run());
        } else {
            self.compiler.submit(serial, work);
        }
    }

    /// Uses the prepared phrases of a job.
    pub(super) fn prepared(&mut self, serial: Serial, prepared: Prepared) {
        let Some(Registered { job, body }) = self.core.get_mut(serial) else { return };
        if !job.is_blocked() {
            return;
        }
        let now = Instant::now();
        match prepared {
            Ok((masking, warnings)) => {
                body.output.use_masking(masking, &mut self.shared);
                self.core.prepared(serial, Ok(&warnings), now);
            }
            Err(error) => self.core.prepared(serial, Err(error.to_string()), now),
        }
    }

    /// Completes a change of job `serial`, and removes the job if it is gone. Call it after any change.
    pub(super) fn settle(&mut self, serial: Serial) {
        self.settle_job(serial);
        self.drive();
    }

    fn settle_job(&mut self, serial: Serial) {
        let Some(Registered { job, body }) = self.core.get_mut(serial) else { return };
        let shared = &mut self.shared;
        body.output.park(serial, shared);
        if let Some(text) = body.output.log.take_news() {
            shared.notice(format!("job {}: {text}", job.key()));
        }
        body.output.settle_unfinished(job, shared);
        if let Some(mut body) = self.core.settle(serial) {
            body.processes.containment.release(shared);
            shared.scratch.wipe();
            self.rest.busy(Instant::now());
        }
    }
}
