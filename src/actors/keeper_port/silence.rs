//! A silent keeper: how we notice it, how long we wait for it, and how we end it.
//!
//! A job of the same user can stop the keeper (threat-model.md), and a defect can make it hang. Neither may block the
//! daemon, or keep its jobs for longer than [`ANSWER_TIME`]. The keeper is asked for a sign of life while jobs have not
//! ended; without them the daemon sleeps.

use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::connection::{Connection, Decision, Turn, Wish};
use super::{FIND_PAUSE, KeeperPort, KeeperProblem, Told};
use crate::error::Chain;
use crate::keeper::link::{KeeperLink, LinkError, WeakKeeperLink};
use crate::keeper::protocol::{Reply, Request};
use crate::model::{Reason, Refusal};
use crate::store;

/// Time after which a keeper counts as silent. A working keeper answers a Hello before all work for jobs. On an
/// overloaded host, with its pages swapped out, that can take some seconds. This is many times as long, because ending
/// the keeper costs all its jobs.
pub(super) const ANSWER_TIME: Duration = Duration::from_secs(30);

/// Time after which the daemon continues a stopped keeper (SIGCONT) and logs that it waits.
pub(super) const WAKE_AFTER: Duration = Duration::from_secs(1);

/// Pause between two questions for a sign of life.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// Time for which a call waits for a keeper that is known not to answer. A keeper that was only stopped goes on within
/// that.
const CALL_TIME: Duration = Duration::from_secs(4);

/// Some answers wait for the preparation of a job's phrases. At this interval we ask the keeper whether it lives.
const PROBE_EVERY: Duration = Duration::from_secs(5);

/// Time for the answer to a Bye. All jobs have ended or had their time before it, so a kill loses nothing. It is short,
/// because a second signal must end the daemon without a noticeable delay.
pub(super) const BYE_TIME: Duration = Duration::from_secs(3);

/// Time in which a killed keeper releases its lock.
const DEATH_TIME: Duration = Duration::from_secs(2);

/// Pause between two attempts to end a keeper that survives its kill or cannot be examined.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The keeper did not answer while a call waited for it.
#[derive(Debug)]
pub(in crate::actors) struct Silent;

impl From<Silent> for Refusal {
    fn from(Silent: Silent) -> Self {
        let text =
            "the process that runs steps does not answer; the daemon ends it if that lasts: try again later";
        Self::for_now(Reason::KeeperUnavailable, text, WATCH_EVERY)
    }
}

/// Time between two lines about a keeper that does not answer: one can be slow again and again.
const TELL_EVERY: Duration = Duration::from_mins(10);

impl KeeperPort {
    /// Like [`KeeperLink::ask`], for requests that are answered at once.
    ///
    /// Waits in steps: if this process was stopped meanwhile, that time counts as one step.
    async fn ask_promptly(&self, link: &KeeperLink, request: Request) -> Result<Reply, LinkError> {
        let mut reply = pin!(link.ask(request));
        let mut waited = Duration::ZERO;
        while waited < ANSWER_TIME {
            if let Ok(reply) = timeout(WAKE_AFTER, &mut reply).await {
                if self.connection.note_silence(false) {
                    tracing::debug!("the keeper answers again");
                }
                return reply;
            }
            waited += WAKE_AFTER;
            // A process of a job can stop it again and again.
            let pid =
                self.host.wake_keeper(&self.state, self.connection.with(|connection| connection.named()));
            self.connection.note_silence(true);
            let told = self.told.get();
            if told.silence.is_none_or(|at| at.elapsed() >= TELL_EVERY) {
                self.told.set(Told { silence: Some(Instant::now()), ..told });
                let limit = ANSWER_TIME;
                tracing::warn!(
                    pid,
                    ?limit,
                    "the keeper does not answer; the daemon waits for it, and sends SIGCONT to its pid in case it was stopped"
                );
            }
        }
        Err(LinkError::Silent)
    }

    /// Watches a keeper until its connection is over: asks it for a sign of life while jobs have not ended, and ends it
    /// if it gives none. A job that ends within [`WATCH_EVERY`] costs no question.
    pub(super) async fn watch(self, link: WeakKeeperLink) {
        loop {
            sleep(WATCH_EVERY).await;
            let Some(link_now) = link.upgrade().filter(|link| !link.is_over()) else { return };
            if self.registry.has_living() || link_now.is_waiting() {
                let asked = self.ask_promptly(&link_now, Request::sign_of_life()).await;
                if matches!(asked, Err(LinkError::Silent))
                    && let Err(problem) = self.end_silent().await
                {
                    tracing::error!(problem = %Chain(&problem), "the keeper does not answer, and was not ended");
                }
            } else {
                drop(link_now);
                link.next_request().await;
            }
        }
    }

    /// True while the keeper is known not to answer.
    pub(in crate::actors) fn is_silent(&self) -> bool {
        self.connection.with(|connection| connection.is_silent())
    }

    /// Waits until the keeper answers, if it is known not to.
    pub(in crate::actors) async fn answers(&self) -> Result<(), Silent> {
        let answers = async {
            while self.is_silent() {
                self.connection.changed().await;
            }
        };
        self.unless_silent(answers).await
    }

    /// Waits for `work` of a call. Refuses the call if the keeper does not answer for [`CALL_TIME`].
    pub(in crate::actors) async fn unless_silent<T>(
        &self,
        work: impl Future<Output = T>,
    ) -> Result<T, Silent> {
        let mut work = pin!(work);
        loop {
            let changed = self.connection.changed();
            let is_silent = self.is_silent();
            let passed = async move { if is_silent { sleep(CALL_TIME).await } else { changed.await } };
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                () = passed => {}
            }
            // A keeper that answers now and then makes progress.
            if is_silent && self.is_silent() {
                return Err(Silent);
            }
        }
    }

    pub(super) async fn hello(&self, link: &KeeperLink) -> Result<Reply, LinkError> {
        self.ask_promptly(link, self.hello_request()).await
    }

    /// Like [`KeeperLink::ask`], for requests whose answer may take long: waits as long as the keeper answers a Hello.
    pub(in crate::actors) async fn ask_living(
        &self,
        link: &KeeperLink,
        request: Request,
    ) -> Result<Reply, LinkError> {
        let mut reply = pin!(link.ask(request));
        loop {
            if let Ok(reply) = timeout(PROBE_EVERY, &mut reply).await {
                return reply;
            }
            self.hello(link).await?;
        }
    }

    pub(in crate::actors) async fn end_silent(&self) -> Result<(), KeeperProblem> {
        if let Decision::End = self.connection.decided(Wish::EndSilent).await {
            tell_end(self.end_known().await?);
        }
        Ok(())
    }

    /// Ends a silent keeper that was just started.
    pub(super) async fn end_starting(&self) -> Result<(), KeeperProblem> {
        let limit = ANSWER_TIME;
        if let Some(pid) = self.end_living().await? {
            tracing::error!(
                pid,
                ?limit,
                "a new keeper did not answer in time and was killed: nothing of a job had run in it"
            );
        } else {
            tracing::error!(
                ?limit,
                "a new keeper did not answer in time, and no process of it was found: nothing of a job had run in it"
            );
        }
        Ok(())
    }

    /// Ends a keeper that took the lock after this daemon had looked for one. The daemon that started it was killed
    /// before it could greet it, so it holds no job.
    pub(super) async fn end_ungreeted(&self) -> Result<(), KeeperProblem> {
        let pid = self.end_living().await?;
        tracing::warn!(?pid, "ended a keeper that had no job: its daemon had died while starting it");
        Ok(())
    }

    /// Ends a keeper whose connection is over, and forgets it once it is dead. Retries until then, because jobs of a
    /// living keeper must not be interrupted. Does nothing if a new keeper has replaced it.
    pub(in crate::actors) async fn forget(&self) {
        let mut was_told = false;
        while let Err(problem) = self.try_forget().await {
            if !was_told {
                tracing::error!(problem = %Chain(&problem), "the keeper that broke its connection is not ended yet; its jobs are interrupted when it is");
                was_told = true;
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    /// Makes one attempt of [`Self::forget`].
    pub(in crate::actors) async fn try_forget(&self) -> Result<(), KeeperProblem> {
        if let Decision::End = self.connection.decided(Wish::Forget).await {
            self.end_known().await?;
        }
        Ok(())
    }

    /// Ends the keeper for [`Decision::End`]. One whose connection is over is usually dead already. A living one reports
    /// to no daemon any more, and it blocks the state folder for the next keeper. Its jobs are interrupted.
    pub(super) async fn end_known(&self) -> Result<Option<u32>, KeeperProblem> {
        let _turn = Turn(&self.connection);
        let killed = self.end_living().await?;
        self.connection.change(Connection::ended);
        Ok(killed)
    }

    /// Kills the keeper if it lives, and waits for its end. Returns the pid that was killed. Fails if the keeper still
    /// lives after [`DEATH_TIME`].
    ///
    /// If this daemon cannot examine the keeper for now, for example because it has no file descriptor left, the keeper
    /// counts as living: its steps may go on.
    pub(super) async fn end_living(&self) -> Result<Option<u32>, KeeperProblem> {
        let (started, named, since) = self.connection.with(|connection| {
            (connection.started(), connection.named(), connection.ending_since().unwrap_or_else(Instant::now))
        });
        // A keeper that hangs in its start may not have its lock yet, and would take it later.
        let started = started.and_then(|process| self.host.kill_started(&process));
        let mut killed = None;
        loop {
            let seen = self.host.has_keeper(&self.state);
            let is_late = since.elapsed() >= DEATH_TIME;
            match &seen {
                Ok(false) => break,
                // Waiting does not help against this error.
                Err(error) if is_late && !store::reason_of(error).may_pass() => {
                    tracing::error!(error = %Chain(error), "keeper.lock cannot be read: the keeper is taken for dead");
                    break;
                }
                Ok(true) | Err(_) => {}
            }
            if killed.is_none() {
                killed = self.host.kill_keeper(&self.state, named);
            }
            if is_late {
                let lasting = KeeperProblem::Lasting { pid: killed.or(started) };
                return Err(seen.err().map_or(lasting, KeeperProblem::Io));
            }
            sleep(FIND_PAUSE).await;
        }
        Ok(killed.or(started))
    }

    /// Tells the keeper to kill the remaining jobs and to end. If it does not answer, kills it and returns `false`.
    pub(in crate::actors) async fn say_bye(&self) -> bool {
        let told = async {
            match self.living().await {
                Some(keeper) => keeper.link.ask(Request::Bye).await.is_ok(),
                None => true,
            }
        };
        if timeout(BYE_TIME, told).await.unwrap_or(false) {
            return true;
        }
        match self.end_living().await {
            Ok(Some(pid)) => tracing::error!(pid, "the keeper did not answer at the stop and was killed"),
            Ok(None) => {}
            Err(problem) => {
                tracing::error!(problem = %Chain(&problem), "the keeper did not answer at the stop, and was not ended");
            }
        }
        false
    }
}

/// Tells the operator that a silent keeper was ended, and the pid if it was killed for that.
pub(super) fn tell_end(killed: Option<u32>) {
    let limit = ANSWER_TIME;
    if let Some(pid) = killed {
        tracing::error!(
            pid,
            ?limit,
            "the keeper did not answer in time and was killed: the jobs it ran are interrupted; run them again"
        );
    } else {
        tracing::error!(
            ?limit,
            "the keeper did not answer in time and has ended: the jobs it ran are interrupted; run them again"
        );
    }
}
