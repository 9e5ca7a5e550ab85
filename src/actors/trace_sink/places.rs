//! Places of events in the log: which events may still come before which byte (docs/spec/service.md §3.3).
//!
//! A follower prints the log up to a mark and no further, then waits for the events up to there. So no event may get a place
//! before a mark that was told. An event gets its place when it happens, and is visible only when it is written: until then,
//! from the keeper's report of a process's end until the event of that end, and while the keeper is asked for the place of an
//! event, the mark stays behind. It stays at the beginning while a new daemon replays a job, whose events it places again.

use std::collections::VecDeque;

use crate::job::event::ProcessNumber;

/// An event whose place is certain and that followers may not see yet.
struct Placed {
    at: u64,
    /// Length of the file of events with it; `None` until it is written.
    end: Option<u64>,
}

/// Places that hold back the mark.
#[derive(Default)]
pub(super) struct Places {
    /// Processes of steps that have ended, with the length of the log then. Their events have no place yet.
    pub(super) expected: Vec<(ProcessNumber, u64)>,
    /// Earliest place of the next event, while that is being asked for.
    pub(super) next: Option<u64>,
    /// True until a new daemon has given their places to all events that are not stored.
    pub(super) is_replaying: bool,
    /// Events in the order in which they happened.
    placed: VecDeque<Placed>,
    /// Place of the latest event.
    latest: u64,
}

impl Places {
    /// Gives an event its place.
    pub(super) fn place(&mut self, at: u64) -> u64 {
        self.latest = self.latest.max(at);
        self.next = None;
        self.placed.push_back(Placed { at: self.latest, end: None });
        self.latest
    }

    /// Notes that all events that have a place are in the first `len` bytes of the file.
    pub(super) fn written(&mut self, len: u64) {
        for placed in self.placed.iter_mut().rev() {
            if placed.end.is_some() {
                return;
            }
            placed.end = Some(len);
        }
    }

    /// Notes that followers see the first `len` bytes of the file.
    pub(super) fn visible(&mut self, len: u64) {
        while self.placed.front().is_some_and(|placed| placed.end.is_some_and(|end| end <= len)) {
            self.placed.pop_front();
        }
    }

    /// Returns the length of the log before which no further event becomes visible, of `len` bytes.
    pub(super) fn mark(&self, len: u64) -> u64 {
        if self.is_replaying {
            return 0;
        }
        let expected = self.expected.iter().map(|(_, at)| *at).chain(self.next);
        expected.chain(self.placed.front().map(|placed| placed.at)).fold(len, u64::min)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_mark_stays_behind_an_event_until_followers_see_it() {
        let mut places = Places::default();
        assert_eq!(places.mark(10), 10);
        places.expected.push((1, 7));
        assert_eq!(places.mark(20), 7);
        assert_eq!(places.place(7), 7);
        places.expected.clear();
        assert_eq!(places.mark(30), 7);
        assert_eq!(places.place(5), 7, "never before an earlier event");
        places.written(100);
        places.visible(99);
        assert_eq!(places.mark(30), 7);
        places.visible(100);
        assert_eq!(places.mark(30), 30);
    }

    #[test]
    fn the_mark_stays_behind_an_event_whose_place_is_asked_for() {
        let mut places = Places { next: Some(7), ..Places::default() };
        assert_eq!(places.mark(20), 7);
        assert_eq!(places.place(9), 9);
        assert_eq!(places.mark(20), 9, "nobody sees it yet");
        places.written(100);
        places.visible(100);
        assert_eq!(places.mark(20), 20);
    }

    #[test]
    fn no_mark_is_told_before_all_events_of_a_replay_have_their_places() {
        let mut places = Places { is_replaying: true, ..Places::default() };
        assert_eq!(places.place(3), 3);
        places.written(100);
        places.visible(100);
        assert_eq!(places.mark(20), 0);
        places.is_replaying = false;
        assert_eq!(places.mark(20), 20);
    }

    proptest! {
        /// Whatever happens in which order: a place is never before a mark that was told.
        #[test]
        fn no_event_gets_a_place_before_a_mark(steps in prop::collection::vec((0_u8..5, 0_u64..50), 1..60)) {
            let (mut places, mut len, mut file, mut told) = (Places::default(), 0, 0, 0);
            for (what, by) in steps {
                match what {
                    0 => len += by,
                    1 => prop_assert!(places.place(len) >= told),
                    2 => {
                        file += by;
                        places.written(file);
                    }
                    3 => places.visible(file),
                    _ => told = told.max(places.mark(len)),
                }
            }
        }
    }
}
