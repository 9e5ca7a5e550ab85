//! A silent keeper: how long we wait for it, and how we end it.
//!
//! A job of the same user can stop the keeper (threat-model.md), and a defect can make it hang. Neither may block a
//! start or a stop of the daemon.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::{FIND_PAUSE, Keeper, KeeperPort, KeeperProblem};
use crate::error::Chain;
use crate::keeper::link::{KeeperLink, LinkError};
use crate::keeper::protocol::{Reply, Request};
use crate::store;

/// Time after which a keeper counts as silent. A working keeper answers a Hello before all work for jobs. On an
/// overloaded host, with its pages swapped out, that can take some seconds. This is many times as long, because ending
/// the keeper costs all its jobs.
pub(super) const ANSWER_TIME: Duration = Duration::from_secs(30);

/// Time after which the daemon continues a stopped keeper (SIGCONT) and logs that it waits.
pub(super) const WAKE_AFTER: Duration = Duration::from_secs(1);

/// Some answers wait for the preparation of a job's phrases. At this interval we ask the keeper whether it lives.
const PROBE_EVERY: Duration = Duration::from_secs(5);

/// Time for the answer to a Bye. All jobs have ended or had their time before it, so a kill loses nothing. It is short,
/// because a second signal must end the daemon without a noticeable delay.
pub(super) const BYE_TIME: Duration = Duration::from_secs(3);

/// Time in which a killed keeper releases its lock.
const DEATH_TIME: Duration = Duration::from_secs(2);

/// Pause between two attempts to end a keeper that survives its kill or cannot be examined.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Time of the first attempt to end the keeper. It is kept after a failure, so that the next attempt does not wait
/// again.
pub(super) type Ending = Rc<Cell<Option<Instant>>>;

impl KeeperPort {
    /// Like [`KeeperLink::ask`], for requests that are answered at once.
    async fn ask_promptly(&self, link: &KeeperLink, request: Request) -> Result<Reply, LinkError> {
        let mut reply = pin!(link.ask(request));
        if let Ok(reply) = timeout(WAKE_AFTER, &mut reply).await {
            return reply;
        }
        let pid = self.host.wake_keeper(&self.state);
        if !self.told_slow.replace(true) {
            let limit = ANSWER_TIME;
            tracing::warn!(
                pid,
                ?limit,
                "the keeper does not answer; the daemon waits for it, and sends SIGCONT to its pid in case it was stopped"
            );
        }
        timeout(ANSWER_TIME.saturating_sub(WAKE_AFTER), reply).await.unwrap_or(Err(LinkError::Silent))
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
        let mut keeper = self.keeper.lock().await;
        let killed = self.end_living().await?;
        *keeper = None;
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
        self.end_cut_off(&mut *self.keeper.lock().await).await
    }

    /// Kills a keeper whose connection is over, and forgets it. Usually it is dead already. A living one reports to no
    /// daemon any more, and it blocks the state folder for the next keeper. Its jobs are interrupted.
    pub(super) async fn end_cut_off(&self, keeper: &mut Option<Keeper>) -> Result<(), KeeperProblem> {
        if keeper.as_ref().is_some_and(|keeper| keeper.link.is_over()) {
            self.end_living().await?;
            *keeper = None;
        }
        Ok(())
    }

    /// Kills the keeper if it lives, and waits for its end. Returns the pid that was killed. Fails if the keeper still
    /// lives after [`DEATH_TIME`].
    ///
    /// If this daemon cannot examine the keeper for now, for example because it has no file descriptor left, the keeper
    /// counts as living: its steps may go on.
    async fn end_living(&self) -> Result<Option<u32>, KeeperProblem> {
        let since = self.ending.get().unwrap_or_else(Instant::now);
        self.ending.set(Some(since));
        // A keeper that hangs in its start may not have its lock yet, and would take it later.
        let started = self.starting.take().and_then(|process| self.host.kill_started(&process));
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
                killed = self.host.kill_keeper(&self.state);
            }
            if is_late {
                let lasting = KeeperProblem::Lasting { pid: killed.or(started) };
                return Err(seen.err().map_or(lasting, KeeperProblem::Io));
            }
            sleep(FIND_PAUSE).await;
        }
        self.ending.set(None);
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
