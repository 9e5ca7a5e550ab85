//! The stage's keeper: performs requests, and ends processes.

use super::{CloseRequest, Closed, Keeper, Stage, step_ended};

impl Stage {
    /// Ends the running process. False if none runs.
    pub(super) fn exit(&mut self) -> bool {
        let Some(keeper) = &mut self.keeper else { return false };
        let Some((process, closes)) = keeper.running.pop_first() else { return false };
        let code = self.codes.get(process as usize - 1).copied().unwrap_or_default();
        let ended = step_ended(process, code, closes && code == 0);
        keeper.ended.push(ended.clone());
        if ended.closes {
            keeper.closed = Some(Closed::default());
        }
        if let Some(ended) = self.driver.step_ended(ended) {
            self.ended = Some(ended);
        }
        true
    }

    pub(super) fn ask(&mut self, op: u32, what: String) -> Option<&mut Keeper> {
        if !self.lives() {
            return None;
        }
        let keeper = self.keeper.as_mut()?;
        let is_next = op == keeper.last_op + 1;
        keeper.last_op = op;
        self.story.requests.push(what);
        self.check(is_next, "a request was repeated or left out");
        self.keeper.as_mut()
    }

    pub(super) fn close(&mut self, close: &CloseRequest) {
        // A keeper whose last step has closed the job ignores the request of a daemon that did not see that.
        let was_closed = self.keeper.as_ref().is_some_and(|keeper| keeper.closed.is_some());
        if let Some(keeper) = self.ask(close.op, format!("close {:?}", close.lines)) {
            keeper.closed = Some(Closed::default());
            keeper.running.clear();
            if was_closed {
                self.story.requests.pop();
            }
        }
    }
}
