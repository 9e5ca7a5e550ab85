//! Each row of the table of answers, tickets, slots and fairness, in virtual time.
#![expect(clippy::unnecessary_wraps, reason = "an answer is a reply, and so is none")]

use proptest::prelude::*;

use super::*;
use crate::answer::{Answer, Unreachable};

pub(super) const CHECK: Duration = Duration::from_secs(3);

pub(super) fn limits(concurrent: usize) -> Limits {
    Limits {
        concurrent,
        check_interval: CHECK,
        on_stop: OnStop::Detach,
        shutdown_timeout: Duration::from_secs(30),
    }
}

pub(super) const ENTRY: EntryLimits = EntryLimits {
    limit: None,
    request_concurrency: 1,
    strict_check_interval: false,
    unhealthy_requests_limit: 3,
    unhealthy_interval: Duration::from_hours(1),
};

pub(super) fn at(seconds: u64) -> Moment {
    Moment::after_start(Duration::from_secs(seconds))
}

/// A request that was made.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) entry: u64,
    pub(super) request: RequestId,
    pub(super) ticket: Option<String>,
}

/// A scheduler whose environments answer at once.
pub(super) struct World {
    pub(super) scheduler: Scheduler,
    pub(super) now: Moment,
    pub(super) environments: bool,
    pub(super) others: Vec<Action>,
}

impl World {
    pub(super) fn new(concurrent: usize, entries: &[EntryLimits]) -> (Self, Vec<Asked>) {
        let mut world = Self {
            scheduler: Scheduler::new(limits(concurrent), None, at(0)),
            now: at(0),
            environments: true,
            others: Vec::new(),
        };
        let entries = entries.iter().enumerate().map(|(id, limits)| (EntryId(id as u64), *limits)).collect();
        let asked = world.event(Event::Configured(limits(concurrent), entries));
        (world, asked)
    }

    /// Sends an event, and the answers of environments. Returns the requests.
    pub(super) fn event(&mut self, event: Event) -> Vec<Asked> {
        let mut events = std::collections::VecDeque::from([event]);
        let mut asked = Vec::new();
        while let Some(event) = events.pop_front() {
            for action in self.scheduler.handle(event, self.now) {
                match action {
                    Action::Ask { entry, request, ticket } => {
                        let ticket = ticket.map(|ticket| ticket.as_str().to_owned());
                        asked.push(Asked { entry: entry.0, request, ticket });
                    }
                    Action::CheckEnvironment(entry) => {
                        events.push_back(Event::Environment { entry, is_there: self.environments });
                    }
                    other => self.others.push(other),
                }
            }
        }
        asked
    }

    pub(super) fn answer(&mut self, request: RequestId, reply: Reply) -> Vec<Asked> {
        let has_job = reply.as_ref().is_ok_and(|answer| answer.status == 201);
        self.event(Event::Answered { request, reply, has_job, jitter: Jitter(0) })
    }

    /// Lets time pass until something is asked. Returns the requests and the seconds.
    pub(super) fn until_asked(&mut self) -> Option<(Vec<Asked>, u64)> {
        let start = self.now;
        for _ in 0..10_000 {
            self.now = self.scheduler.wake(self.now)?;
            let asked = self.event(Event::Tick);
            if !asked.is_empty() {
                return Some((asked, self.now.since(start).as_secs()));
            }
        }
        panic!("the scheduler wakes for nothing");
    }
}

fn status(status: u16) -> Reply {
    Ok(Answer::status(status))
}

fn ticket(status: u16, value: &str) -> Reply {
    Ok(Answer { last_update: Some(value.to_owned()), ..Answer::status(status) })
}

#[test]
fn a03_the_time_of_the_next_request_follows_from_the_answer() {
    for (reply, seconds) in [
        (status(204), 3),
        (status(409), 3),
        (status(403), 3),
        (status(422), 3),
        (status(400), 3),
        (status(404), 3),
        (status(405), 3),
        (status(200), 3),
        (status(302), 3),
        (status(429), 3),
        (status(500), 3),
        (status(503), 3),
        (Err(Unreachable), 3),
    ] {
        let (mut world, asked) = World::new(2, &[ENTRY]);
        assert!(world.answer(asked[0].request, reply.clone()).is_empty(), "{reply:?}");
        let (_, waited) = world.until_asked().unwrap();
        assert_eq!(waited, seconds, "{reply:?}");
    }
}

#[test]
fn a03_after_a_job_the_next_request_follows_at_once_unless_the_interval_is_strict() {
    let (mut world, asked) = World::new(2, &[ENTRY]);
    let next = world.answer(asked[0].request, status(201));
    assert_eq!(next.len(), 1, "a slot is free");
    assert!(world.answer(next[0].request, status(201)).is_empty(), "no slot is free");
    assert_eq!(world.scheduler.wake(world.now), None);
    assert_eq!(world.event(Event::JobEnded(EntryId(0))).len(), 1);

    let (mut world, asked) = World::new(2, &[EntryLimits { strict_check_interval: true, ..ENTRY }]);
    assert!(world.answer(asked[0].request, status(201)).is_empty());
    assert_eq!(world.until_asked().unwrap().1, 3);
}

#[test]
fn a05_an_answer_without_a_readable_job_frees_its_slot() {
    let (mut world, asked) = World::new(1, &[ENTRY]);
    let event =
        Event::Answered { request: asked[0].request, reply: status(201), has_job: false, jitter: Jitter(0) };
    assert!(world.event(event).is_empty());
    assert_eq!(world.until_asked().unwrap().1, 3);
}

#[test]
fn a04_refusals_in_a_row_stop_one_entry_and_then_one_try_follows() {
    let (mut world, asked) = World::new(9, &[ENTRY, ENTRY]);
    let (mut refused, mut asks) = (Vec::new(), asked);
    let mut other = 0;
    while refused.len() < 5 {
        for asked in std::mem::take(&mut asks) {
            if asked.entry == 0 {
                refused.push(world.now.since(at(0)).as_secs());
                world.answer(asked.request, status(403));
            } else {
                other += 1;
                world.answer(asked.request, status(204));
            }
        }
        asks = world.until_asked().unwrap().0;
    }
    assert_eq!(refused, [0, 3, 6, 3_606, 7_206]);
    assert!(other > 2_000, "the other entry goes on: {other}");
    let hour = Duration::from_hours(1);
    assert_eq!(world.others, vec![Action::Tell(EntryId(0), Told::Unhealthy(hour)); 3]);
}

#[test]
fn a04_an_answer_in_between_starts_the_count_again() {
    let (mut world, mut asked) = World::new(1, &[ENTRY]);
    for code in [403, 403, 204, 403, 500, 403, 409, 403, 403] {
        world.answer(asked[0].request, status(code));
        asked = world.until_asked().unwrap().0;
    }
    assert!(world.others.is_empty());
    world.answer(asked[0].request, status(403));
    assert_eq!(world.until_asked().unwrap().1, 3_600);
}

#[test]
fn a04_an_outage_is_no_refusal_and_its_end_is_seen_within_a_minute() {
    let (mut world, mut asked) = World::new(1, &[ENTRY]);
    let mut waits = Vec::new();
    for reply in
        [Err(Unreachable), status(503), status(429), status(500), status(502), Err(Unreachable), status(504)]
    {
        world.answer(asked[0].request, reply);
        let (next, waited) = world.until_asked().unwrap();
        waits.push(waited);
        asked = next;
    }
    assert_eq!(waits, [3, 6, 12, 24, 48, 60, 60]);
    world.answer(asked[0].request, status(204));
    asked = world.until_asked().unwrap().0;
    world.answer(asked[0].request, Err(Unreachable));
    assert_eq!(world.until_asked().unwrap().1, 3, "one answer resets the wait");
    assert!(world.others.is_empty());
}

#[test]
fn a02_a_ticket_comes_back_byte_for_byte_and_is_never_mixed() {
    let (mut world, asked) = World::new(2, &[ENTRY, ENTRY]);
    assert!(asked.iter().all(|asked| asked.ticket.is_none()));
    world.answer(asked[0].request, ticket(204, "a"));
    world.answer(asked[1].request, ticket(409, "Odd value/+=;%20\"x\""));
    for wanted in [["a", "Odd value/+=;%20\"x\""], ["a", "b"], ["a", "b"]] {
        let (asked, _) = world.until_asked().unwrap();
        let tickets: Vec<_> = asked.iter().map(|asked| asked.ticket.as_deref().unwrap()).collect();
        assert_eq!(tickets, wanted);
        // Without the header, or with an empty one, the old value stays. A refusal can have one, too.
        world.answer(asked[0].request, status(204));
        world.answer(asked[1].request, if wanted[1] == "b" { ticket(204, "") } else { ticket(403, "b") });
    }
}

#[test]
fn a02_with_fewer_slots_than_entries_no_request_is_held() {
    let (mut world, asked) = World::new(1, &[ENTRY, ENTRY]);
    assert_eq!(asked.len(), 1);
    let mut order = vec![asked[0].entry];
    let mut asks = world.answer(asked[0].request, ticket(204, "a"));
    for _ in 0..5 {
        assert_eq!(asks.len(), 1);
        assert_eq!(asks[0].ticket, None, "a held request would keep the only slot");
        order.push(asks[0].entry);
        let next = world.answer(asks[0].request, ticket(204, "b"));
        asks = if next.is_empty() { world.until_asked().unwrap().0 } else { next };
    }
    assert_eq!(order, [0, 1, 0, 1, 0, 1]);
}

#[test]
fn a20_the_old_tokens_ticket_and_refusals_do_not_count_for_the_new_one() {
    let (mut world, asked) = World::new(1, &[EntryLimits { unhealthy_requests_limit: 1, ..ENTRY }]);
    world.answer(asked[0].request, ticket(204, "old"));
    let (asked, _) = world.until_asked().unwrap();
    assert_eq!(asked[0].ticket.as_deref(), Some("old"));
    world.event(Event::TokenReplaced(EntryId(0)));
    world.answer(asked[0].request, ticket(403, "older"));
    let (asked, waited) = world.until_asked().unwrap();
    assert_eq!((asked[0].ticket.as_deref(), waited), (None, 3));
}

#[test]
fn a34_without_an_environment_no_request_and_within_30_seconds_of_its_return_one() {
    let (mut world, asked) = World::new(1, &[ENTRY]);
    world.answer(asked[0].request, status(204));
    world.environments = false;
    let mut asked = 0;
    for _ in 0..200 {
        world.now = world.scheduler.wake(world.now).unwrap();
        let requests = world.event(Event::Tick);
        asked += requests.len();
        for request in requests {
            world.answer(request.request, status(204));
        }
        if world.now >= at(600) {
            break;
        }
    }
    assert!(asked <= 10, "{asked}: an answer counts for 30 s");
    assert_eq!(world.others, [Action::Tell(EntryId(0), Told::NoEnvironment)]);
    world.environments = true;
    assert!(world.until_asked().unwrap().1 <= 30);
}

#[test]
fn a34_three_failed_preparations_stop_the_entry_for_five_minutes() {
    let (mut world, mut asked) = World::new(1, &[ENTRY]);
    for round in 0..3 {
        world.answer(asked[0].request, status(201));
        world.event(Event::Prepared { entry: EntryId(0), is_system_failure: true });
        asked = world.event(Event::JobEnded(EntryId(0)));
        world.event(Event::JobClosed(EntryId(0)));
        assert_eq!(asked.is_empty(), round == 2);
    }
    assert_eq!(world.until_asked().unwrap().1, 300);
}

#[test]
fn a34_without_space_for_state_no_entry_asks() {
    let (mut world, asked) = World::new(1, &[ENTRY]);
    world.event(Event::Disk { is_enough: false });
    world.answer(asked[0].request, status(204));
    assert_eq!(world.scheduler.wake(world.now), None);
    world.now = at(60);
    assert_eq!(world.event(Event::Disk { is_enough: true }).len(), 1);
}

#[test]
fn a13_limits_hold_for_jobs_and_requests_together() {
    let entry = EntryLimits { limit: Some(2), request_concurrency: 3, ..ENTRY };
    let (mut world, asked) = World::new(10, &[entry]);
    assert_eq!(asked.len(), 2);
    assert!(world.answer(asked[0].request, status(201)).is_empty());
    assert!(world.answer(asked[1].request, status(201)).is_empty());
    assert_eq!(world.event(Event::JobEnded(EntryId(0))).len(), 1);
}

#[test]
fn a33_adopted_jobs_hold_their_slots_also_those_of_an_entry_that_is_gone() {
    let mut world = World {
        scheduler: Scheduler::new(limits(2), None, at(0)),
        now: at(0),
        environments: true,
        others: Vec::new(),
    };
    world.event(Event::Adopted { entry: EntryId(7), is_running: true });
    world.event(Event::Adopted { entry: EntryId(0), is_running: true });
    assert!(world.event(Event::Configured(limits(2), vec![(EntryId(0), ENTRY)])).is_empty());
    assert_eq!(world.event(Event::JobEnded(EntryId(7))).len(), 1);
    world.event(Event::JobClosed(EntryId(7)));
}

#[test]
fn a_removed_entry_asks_no_more_and_its_jobs_count_on() {
    let (mut world, asked) = World::new(1, &[ENTRY]);
    world.answer(asked[0].request, status(201));
    world.event(Event::Configured(limits(1), vec![(EntryId(5), ENTRY)]));
    assert!(world.event(Event::Tick).is_empty());
    assert_eq!(world.event(Event::JobEnded(EntryId(0)))[0].entry, 5);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A server that answers as it likes, with jobs of any length.
    #[test]
    fn a13_slots_and_rates_hold_and_each_entry_is_asked(
        seed in prop::collection::vec((0..12_u8, 0..40_u64), 80..200), concurrent in 1..4_usize, count in 1..50_usize,
    ) {
        let entry = EntryLimits { limit: Some(1), unhealthy_interval: Duration::from_secs(20), ..ENTRY };
        let (mut world, mut asked) = World::new(concurrent, &vec![entry; count]);
        let mut running: Vec<(Moment, u64)> = Vec::new();
        let mut flying: Vec<(Moment, Asked)> = Vec::new();
        let mut last: BTreeMap<u64, (Moment, bool)> = BTreeMap::new();
        let mut seed = seed.into_iter().cycle();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..1_000 {
            for request in std::mem::take(&mut asked) {
                seen.insert(request.entry);
                if let Some((before, had_job)) = last.insert(request.entry, (world.now, false)) {
                    prop_assert!(had_job || world.now.since(before) >= CHECK, "asked too soon");
                }
                let hold = seed.next().unwrap().1 / 10;
                flying.push((world.now + Duration::from_secs(hold), request));
            }
            prop_assert!(running.len() + flying.len() <= concurrent);
            let next_job = running.iter().map(|(end, _)| *end).min();
            let next_answer = flying.iter().map(|(end, _)| *end).min();
            let wake = world.scheduler.wake(world.now);
            let Some(now) = [next_job, next_answer, wake].into_iter().flatten().min() else { break };
            prop_assert!(now >= world.now);
            world.now = now;
            if let Some(at) = running.iter().position(|(end, _)| *end <= now) {
                let (_, entry) = running.remove(at);
                asked = world.event(Event::JobEnded(EntryId(entry)));
                asked.extend(world.event(Event::JobClosed(EntryId(entry))));
            } else if let Some(at) = flying.iter().position(|(end, _)| *end <= now) {
                let (_, request) = flying.remove(at);
                let (kind, length) = seed.next().unwrap();
                let reply = match kind {
                    0..=3 => status(201),
                    4..=8 => status(204),
                    9 => status(403),
                    10 => status(503),
                    _ => Err(Unreachable),
                };
                if kind <= 3 {
                    running.push((now + Duration::from_secs(length), request.entry));
                    last.insert(request.entry, (now, true));
                }
                asked = world.answer(request.request, reply);
            } else {
                asked = world.event(Event::Tick);
            }
        }
        prop_assert_eq!(seen.len(), count, "each entry is asked");
    }
}
