//! The stage's keeper: performs requests, ends processes, and starts offered steps.

use super::{AT, CloseRequest, Closed, Foresight, Keeper, NextStart, Stage, function, over};

impl Stage {
    /// Ends the running process, and starts the next one if that was offered. False if none runs.
    pub(super) fn exit(&mut self) -> bool {
        let Some(keeper) = &mut self.keeper else { return false };
        let Some((call, closes)) = keeper.running.pop_first() else { return false };
        let code = self.codes.get(call as usize - 1).copied().unwrap_or_default();
        let mut over = over(call, code, closes && code == 0);
        if let Some((_, NextStart { lines, spawn })) = keeper.offer.take_if(|(after, _)| *after == call)
            && code == 0
        {
            over.went_on = true;
            self.story.requests.extend(lines.into_iter().map(|(_, text)| text));
            self.story.requests.push(format!("spawn {} {}", spawn.call, spawn.name));
            keeper.running.insert(spawn.call, spawn.ends_job);
        }
        keeper.over.push(over.clone());
        if over.closes {
            keeper.closed = Some(Closed::default());
        }
        if let Some(over) = self.driver.step_over(over) {
            self.ended = Some(over);
        }
        true
    }

    /// Offers the next step, as the actor does.
    pub(super) fn offer(&mut self) {
        let Some(foresight) = self.driver.foresee().filter(|_| self.offers) else { return };
        let after = foresight.after();
        let (start, read) = match foresight.wanted() {
            None => (foresight.start(), None),
            Some(_) => (foresight.with(function()).and_then(Foresight::start), Some(function())),
        };
        let Some(start) = start else { return };
        if let Some(fetched) = read {
            let (record, is_noted) = self.driver.note_foreseen(fetched, AT).unwrap();
            self.check(is_noted, "a small function is not noted");
            self.send(record);
        }
        if self.lives()
            && let Some(keeper) = self.keeper.as_mut().filter(|keeper| keeper.running.contains_key(&after))
        {
            keeper.offer = Some((after, start));
        }
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
            keeper.offer = None;
            if was_closed {
                self.story.requests.pop();
            }
        }
    }
}
