//! Reads what running jobs have used so far, for Status.

use std::time::Duration;

use actix::{Context, Handler, ResponseFuture};
use tokio::time::timeout;

use super::Supervisor;
use crate::actors::messages::ReadUsages;
use crate::keeper::protocol::{Reply, Request};
use crate::model::JobKey;
use crate::process::cgroup::Usage;

/// Longest wait for the keeper: Status does not wait for one that is busy.
const USAGE_WAIT: Duration = Duration::from_millis(50);

impl Handler<ReadUsages> for Supervisor {
    type Result = ResponseFuture<Vec<(JobKey, Usage)>>;

    fn handle(&mut self, ReadUsages(keys): ReadUsages, _: &mut Context<Self>) -> Self::Result {
        let keeper = self.port.now();
        Box::pin(async move {
            let Some(keeper) = keeper else { return Vec::new() };
            match timeout(USAGE_WAIT, keeper.link.ask(Request::ReadUsages { keys })).await {
                Ok(Ok(Reply::Usages(usages))) => usages,
                _ => Vec::new(),
            }
        })
    }
}
