//! A keeper that says nothing: how long it is waited for, and its end.
//!
//! A job of the same user can stop the keeper (threat-model.md), and a defect can make it hang. Neither may hold up a start
//! or a stop of the daemon.

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

/// A keeper that lives answers a Hello at once, before all it does for jobs. With its pages swapped out, on a host that has
/// nothing left, that may take some seconds. One that is ended for its silence costs all its jobs, so this is many times as long.
pub(super) const ANSWER_TIME: Duration = Duration::from_secs(30);

/// After this time a stopped keeper is continued, and the operator hears what is waited for.
pub(super) const WAKE_AFTER: Duration = Duration::from_secs(1);

/// Some answers wait for the preparation of a job's phrases. After each such time the keeper is asked whether it lives.
const PROBE_EVERY: Duration = Duration::from_secs(5);

/// At the Bye all jobs have ended or have had their time, so nothing is lost by a kill; a second signal is to end the
/// daemon at once.
pub(super) const BYE_TIME: Duration = Duration::from_secs(3);

/// A killed keeper has given its lock back within this time.
const DEATH_TIME: Duration = Duration::from_secs(2);

/// Between two attempts to end a keeper that outlives its kill, or of which nothing can be seen.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Since when the keeper is being ended; it stays when an attempt fails, so that the next one does not take as long again.
pub(super) type Ending = Rc<Cell<Option<Instant>>>;

impl KeeperPort {
    /// As [`KeeperLink::ask`], for requests that are answered at once.
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
                "the keeper does not answer; it is waited for, and continued if it was stopped"
            );
        }
        timeout(ANSWER_TIME.saturating_sub(WAKE_AFTER), reply).await.unwrap_or(Err(LinkError::Silent))
    }

    /// Greets the keeper.
    pub(super) async fn hello(&self, link: &KeeperLink) -> Result<Reply, LinkError> {
        self.ask_promptly(link, self.hello_request()).await
    }

    /// As [`KeeperLink::ask`], for requests whose answer may take its time: it is waited for as long as the keeper answers
    /// at all.
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

    /// Ends the keeper, which does not answer.
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

    /// Ends a keeper that was just started and does not answer.
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

    /// The connection to a keeper is over; forgets it when it is dead, unless another one has its place already. What a
    /// living one runs is not interrupted.
    pub(in crate::actors) async fn forget(&self) {
        let mut was_told = false;
        while let Err(problem) = self.try_forget().await {
            if !was_told {
                let problem = Chain(&problem);
                tracing::error!(%problem, "the keeper that broke its connection is not ended yet; its jobs are interrupted when it is");
                was_told = true;
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    /// The same, if that can be done now.
    pub(in crate::actors) async fn try_forget(&self) -> Result<(), KeeperProblem> {
        self.end_cut_off(&mut *self.keeper.lock().await).await
    }

    /// A keeper whose connection broke though it lives does nothing any more that a daemon hears of, and keeps the folder
    /// from the next one: it is killed, which is what its jobs are told. Mostly it has died already.
    pub(super) async fn end_cut_off(&self, keeper: &mut Option<Keeper>) -> Result<(), KeeperProblem> {
        if keeper.as_ref().is_some_and(|keeper| keeper.link.is_over()) {
            self.end_living().await?;
            *keeper = None;
        }
        Ok(())
    }

    /// Kills the keeper if it lives, and waits for its end: the pid that was killed. One that cannot be looked at for now
    /// counts as living: without descriptors nothing is known of it, and if it lives, its steps go on.
    async fn end_living(&self) -> Result<Option<u32>, KeeperProblem> {
        let since = self.ending.get().unwrap_or_else(Instant::now);
        self.ending.set(Some(since));
        // One that hangs in its start may not have come to its lock, which it would take when it goes on.
        let started = self.starting.take().and_then(|process| self.host.kill_started(&process));
        let mut killed = None;
        loop {
            let seen = self.host.has_keeper(&self.state);
            let is_late = since.elapsed() >= DEATH_TIME;
            match &seen {
                Ok(false) => break,
                // Nobody will ever see more.
                Err(error) if is_late && !store::reason_of(error).may_pass() => {
                    tracing::error!(%error, "keeper.lock cannot be read: the keeper is taken for dead");
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

    /// Tells the keeper to kill what is left, and to end. `false`: it did not hear of it, and is killed.
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
                let problem = Chain(&problem);
                tracing::error!(%problem, "the keeper did not answer at the stop, and was not ended");
            }
        }
        false
    }
}
