use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[test]
fn a_key_is_server_and_project_without_blanks_and_leading_zeros() {
    assert_eq!(ShareKey::new(" https://a ", " 007 "), ShareKey::new("https://a", "7"));
    assert_eq!(ShareKey::new("", "000"), ShareKey::new("", "0"));
    assert_ne!(ShareKey::new("", "x07"), ShareKey::new("", "x7"));
    assert_ne!(ShareKey::new("", ""), ShareKey::new("", "0"));
    assert_eq!(ShareKey::new("", ""), ShareKey::default());
}

#[test]
fn a_number_is_digits_below_two_to_the_64th() {
    for (text, expected) in [
        ("7", Some(7)),
        ("007", Some(7)),
        ("18446744073709551615", Some(u64::MAX)),
        ("00000000000000000001", Some(1)),
        ("18446744073709551616", None),
        ("000000000000000000001", None),
        ("", None),
        ("-1", None),
        ("+1", None),
        (" 1", None),
        ("1e3", None),
        ("٣", None),
    ] {
        assert_eq!(number(text), expected, "{text:?}");
    }
}

#[test]
fn a_request_too_large_for_the_queue_is_refused_and_leaves_no_trace() {
    let limits = QueueLimits { running: Some(1), queued_bytes: Some(100), ..QueueLimits::default() };
    let mut queue = Queue::new(Policy::Fair, limits);
    let mut starts = Vec::new();
    let key = ShareKey::default;
    assert!(matches!(queue.submit(&"a", key(), None, 1_000, &mut starts), Submitted::Started(_)));
    assert!(matches!(queue.submit(&"b", key(), Some(9), 60, &mut starts), Submitted::Queued(_)));
    let full = Full::Bytes { waiting: 60, limit: 100 };
    assert_eq!(queue.submit(&"c", key(), Some(10), 41, &mut starts), Submitted::Full(full));
    match queue.submit(&"c", key(), None, 40, &mut starts) {
        Submitted::Queued(place) => assert_eq!((place.order, place.arrival), (9, 2)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn fault_106_requests_of_running_jobs_have_room_together() {
    let limits = QueueLimits { running_bytes: Some(100), ..QueueLimits::default() };
    let mut queue = Queue::new(Policy::Fair, limits);
    let mut starts = Vec::new();
    let key = ShareKey::default;
    // A job that is larger by itself runs alone.
    assert!(matches!(queue.submit(&"huge", key(), None, 1_000, &mut starts), Submitted::Started(_)));
    assert!(matches!(queue.submit(&"a", key(), None, 60, &mut starts), Submitted::Queued(_)));
    assert!(matches!(queue.submit(&"b", key(), None, 60, &mut starts), Submitted::Queued(_)));
    // A small one does not pass those that came before it.
    assert!(matches!(queue.submit(&"small", key(), None, 1, &mut starts), Submitted::Queued(_)));
    starts.clear();
    queue.remove_job(&"huge", &mut starts);
    assert_eq!(starts, ["a"]);
    starts.clear();
    queue.remove_job(&"a", &mut starts);
    assert_eq!(starts, ["b", "small"]);
    // Jobs of an earlier process take room too; a raised limit is offered at once.
    let mut later = Queue::new(Policy::Fair, limits);
    later.restore_running("a", key(), 80);
    assert!(matches!(later.submit(&"b", key(), None, 40, &mut starts), Submitted::Queued(_)));
    starts.clear();
    later.configure(Policy::Fair, QueueLimits { running_bytes: Some(120), ..limits }, &mut starts);
    assert_eq!(starts, ["b"]);
}

#[test]
fn waiting_jobs_keep_their_order_over_a_restart() {
    let limits = QueueLimits { running: Some(1), ..QueueLimits::default() };
    let mut queue = Queue::new(Policy::Fair, limits);
    let mut starts = Vec::new();
    let mut places = Vec::new();
    let jobs = [
        ("a", "s", "1", Some(5)),
        ("b", "s", "1", Some(9)),
        ("c", "t", "2", Some(1)),
        ("d", "s", "3", Some(7)),
    ];
    for (job, server, project, number) in jobs {
        let key = ShareKey::new(server, project);
        if let Submitted::Queued(place) = queue.submit(&job, key.clone(), number, 1, &mut starts) {
            places.push((job, key, place));
        }
    }
    let mut later = Queue::new(Policy::Fair, limits);
    later.pause();
    later.restore_running("a", ShareKey::new("s", "1"), 0);
    for (job, key, place) in places.iter().rev() {
        later.restore_waiting(*job, key.clone(), place, 1);
    }
    // Another job of each server: the comparable numbers are still those of the first server.
    for queue in [&mut queue, &mut later] {
        queue.submit(&"e", ShareKey::new("t", "2"), Some(2), 1, &mut starts);
        queue.submit(&"f", ShareKey::new("s", "3"), Some(8), 1, &mut starts);
    }
    let drain = |queue: &mut Queue<&'static str>, first| {
        let mut order = vec![first];
        queue.resume(&mut order);
        let mut at = 0;
        while let Some(job) = order.get(at).copied() {
            queue.remove_job(&job, &mut order);
            at += 1;
        }
        order
    };
    assert_eq!(drain(&mut queue, "a"), drain(&mut later, "a"));
}

#[test]
fn a_job_without_number_stands_behind_those_that_have_started_before_a_restart() {
    let limits = QueueLimits { running: Some(1), ..QueueLimits::default() };
    let mut queue = Queue::new(Policy::Fair, limits);
    let mut starts = Vec::new();
    let key = || ShareKey::new("s", "1");
    let mut places = Vec::new();
    for (job, number) in [("running", 1), ("first", 2), ("second", 9), ("third", 5)] {
        if let Submitted::Queued(place) = queue.submit(&job, key(), Some(number), 1, &mut starts) {
            places.push((job, place));
        }
    }
    // The second job has started meanwhile, so it is not restored as waiting.
    let mut later = Queue::new(Policy::Fair, limits);
    later.restore_running("second", key(), 0);
    for (job, place) in places.iter().filter(|(job, _)| *job != "second") {
        later.restore_waiting(*job, key(), place, 1);
    }
    match later.submit(&"unnumbered", key(), None, 1, &mut starts) {
        Submitted::Queued(place) => assert_eq!(place.order, 9),
        other => panic!("{other:?}"),
    }
}

/// An event of the property test; jobs and keys are small numbers.
#[derive(Clone, Debug)]
enum Happens {
    Submit { job: u8, key: u8, number: Option<u64>, bytes: u64 },
    Cancel(u8),
    Finish(u8),
    Pause,
    Resume,
    Configure(bool, QueueLimits),
}

fn limits() -> impl Strategy<Value = QueueLimits> {
    let bound = || prop::option::of(0..4_usize);
    let bytes = || prop::option::of(0..40_u64);
    (prop::option::of(1..5_usize), prop::option::of(1..3_usize), bytes(), bound(), bytes()).prop_map(
        |(running, running_per_key, running_bytes, queued, queued_bytes)| QueueLimits {
            running,
            running_per_key,
            running_bytes,
            queued,
            queued_bytes,
        },
    )
}

fn events() -> impl Strategy<Value = Vec<Happens>> {
    let submit = (0..20_u8, 0..4_u8, prop::option::of(0..8_u64), 0..20_u64)
        .prop_map(|(job, key, number, bytes)| Happens::Submit { job, key, number, bytes });
    let event = prop_oneof![
        6 => submit,
        2 => (0..20_u8).prop_map(Happens::Cancel),
        4 => (0..20_u8).prop_map(Happens::Finish),
        1 => Just(Happens::Pause),
        2 => Just(Happens::Resume),
        1 => (any::<bool>(), limits()).prop_map(|(fair, limits)| Happens::Configure(fair, limits)),
    ];
    prop::collection::vec(event, 1..80)
}

fn key(number: u8) -> ShareKey {
    ShareKey::new(if number == 3 { "other" } else { "server" }, &number.to_string())
}

/// The rule of queue.md §4, literally: a list that is searched at every choice.
struct Slow {
    policy: Policy,
    limits: QueueLimits,
    paused: bool,
    waiting: Vec<(u8, ShareKey, u64, u64, u64)>,
    running: BTreeMap<u8, (ShareKey, u64)>,
    arrivals: u64,
    reference: Option<Arc<str>>,
    highest: u64,
}

impl Slow {
    fn count(&self, key: &ShareKey) -> usize {
        self.running.values().filter(|other| other.0 == *key).count()
    }

    fn offer(&mut self) -> Vec<u8> {
        let mut starts = Vec::new();
        while !self.paused && self.limits.running.is_none_or(|limit| self.running.len() < limit) {
            let below = |key: &ShareKey| self.limits.running_per_key.is_none_or(|cap| self.count(key) < cap);
            let best = self.waiting.iter().filter(|job| below(&job.1)).min_by_key(|job| match self.policy {
                Policy::Fifo => (0, 0, job.3),
                Policy::Fair => (self.count(&job.1), job.2, job.3),
            });
            let Some(best) = best.cloned() else { break };
            let taken: u64 = self.running.values().map(|(_, bytes)| bytes).sum();
            let has_room = self.limits.running_bytes.is_none_or(|limit| taken + best.4 <= limit);
            if !has_room && !self.running.is_empty() {
                break;
            }
            self.waiting.retain(|job| job.0 != best.0);
            self.running.insert(best.0, (best.1, best.4));
            starts.push(best.0);
        }
        if self.waiting.is_empty() {
            (self.reference, self.highest) = (None, 0);
        }
        starts
    }

    fn submit(&mut self, job: u8, key: ShareKey, number: Option<u64>, bytes: u64) -> (&'static str, Vec<u8>) {
        if self.running.contains_key(&job) || self.waiting.iter().any(|other| other.0 == job) {
            return ("existing", Vec::new());
        }
        let before = (self.reference.clone(), self.highest, self.arrivals);
        if number.is_some() && self.reference.is_none() {
            self.reference = Some(Arc::clone(&key.server));
        }
        let order = match number {
            Some(number) if self.reference.as_ref() == Some(&key.server) => number,
            _ => self.highest,
        };
        self.highest = self.highest.max(order);
        self.waiting.push((job, key, order, self.arrivals, bytes));
        self.arrivals += 1;
        let starts = self.offer();
        if self.running.contains_key(&job) {
            return ("started", starts);
        }
        let size: u64 = self.waiting.iter().map(|job| job.4).sum();
        let is_full = self.limits.queued.is_some_and(|limit| self.waiting.len() > limit)
            || self.limits.queued_bytes.is_some_and(|limit| size > limit);
        if is_full {
            self.waiting.retain(|other| other.0 != job);
            (self.reference, self.highest, self.arrivals) = before;
            return ("full", starts);
        }
        ("queued", starts)
    }
}

fn word(submitted: &Submitted) -> &'static str {
    match submitted {
        Submitted::Started(_) => "started",
        Submitted::Queued(_) => "queued",
        Submitted::Existing => "existing",
        Submitted::Full(_) => "full",
    }
}

proptest! {
    /// queue.md §9 Q3: the same starts and answers as a list that is sorted for every choice, and the invariants of §7.
    #[test]
    fn random_events_give_what_a_sorted_list_gives(
        fair in any::<bool>(),
        bounds in limits(),
        events in events(),
    ) {
        let policy = if fair { Policy::Fair } else { Policy::Fifo };
        let mut queue = Queue::new(policy, bounds);
        let mut slow = Slow {
            policy, limits: bounds, paused: false, waiting: Vec::new(), running: BTreeMap::new(), arrivals: 0,
            reference: None, highest: 0,
        };
        for event in events {
            let mut starts = Vec::new();
            let expected = match event {
                Happens::Submit { job, key: number_of_key, number, bytes } => {
                    let got = queue.submit(&job, key(number_of_key), number, bytes, &mut starts);
                    let (expected, started) = slow.submit(job, key(number_of_key), number, bytes);
                    prop_assert_eq!(word(&got), expected);
                    started
                }
                Happens::Cancel(job) => {
                    let is_running = queue.is_running(&job);
                    prop_assert_eq!(is_running, slow.running.contains_key(&job));
                    let waited = slow.waiting.iter().any(|other| other.0 == job);
                    prop_assert_eq!(queue.key(&job).is_some(), is_running || waited);
                    // A running job keeps its slot until it has ended.
                    if !is_running {
                        queue.remove_job(&job, &mut starts);
                    }
                    slow.waiting.retain(|other| other.0 != job);
                    slow.offer()
                }
                Happens::Finish(job) => {
                    let is_running = queue.is_running(&job);
                    prop_assert_eq!(is_running, slow.running.remove(&job).is_some());
                    if is_running {
                        queue.remove_job(&job, &mut starts);
                    }
                    slow.offer()
                }
                Happens::Pause => {
                    queue.pause();
                    slow.paused = true;
                    Vec::new()
                }
                Happens::Resume => {
                    queue.resume(&mut starts);
                    slow.paused = false;
                    slow.offer()
                }
                Happens::Configure(fair, bounds) => {
                    let policy = if fair { Policy::Fair } else { Policy::Fifo };
                    queue.configure(policy, bounds, &mut starts);
                    (slow.policy, slow.limits) = (policy, bounds);
                    slow.offer()
                }
            };
            prop_assert_eq!(starts, expected);
            prop_assert_eq!((queue.running(), queue.waiting()), (slow.running.len(), slow.waiting.len()));
            prop_assert_eq!(queue.running_bytes, slow.running.values().map(|(_, bytes)| bytes).sum::<u64>());
            prop_assert_eq!(queue.shares.values().map(|share| share.running).sum::<usize>(), queue.running());
            prop_assert!(queue.shares.values().all(|share| share.running > 0 || !share.waiting.is_empty()));
        }
    }
}

#[test]
fn a_restored_running_job_holds_its_slot_until_it_leaves() {
    let limits = QueueLimits { running: Some(1), ..QueueLimits::default() };
    let mut queue = Queue::new(Policy::Fifo, limits);
    let mut starts = Vec::new();
    let key = ShareKey::new("s", "1");
    queue.restore_running("a", key.clone(), 0);
    assert_eq!(queue.key(&"a"), Some(&key));
    assert!(matches!(queue.submit(&"b", key.clone(), None, 1, &mut starts), Submitted::Queued(_)));
    assert!(matches!(queue.submit(&"c", key, None, 1, &mut starts), Submitted::Queued(_)));
    // A waiting job gives up its place, a running one its slot.
    queue.remove_job(&"b", &mut starts);
    assert_eq!((starts.len(), queue.waiting()), (0, 1));
    queue.remove_job(&"a", &mut starts);
    assert_eq!(starts, ["c"]);
    assert_eq!(queue.key(&"a"), None);
}

#[test]
fn what_comes_after_a_restart_stands_behind_what_waited() {
    let mut queue = Queue::new(Policy::Fifo, QueueLimits { running: Some(0), ..QueueLimits::default() });
    let mut starts = Vec::new();
    let mut places = Vec::new();
    for job in ["a", "b", "c"] {
        match queue.submit(&job, ShareKey::default(), None, 1, &mut starts) {
            Submitted::Queued(place) => places.push((job, place)),
            other => panic!("{other:?}"),
        }
    }
    let mut later = Queue::new(Policy::Fifo, QueueLimits::default());
    later.pause();
    for (job, place) in &places {
        later.restore_waiting(*job, ShareKey::default(), place, 1);
    }
    match later.submit(&"d", ShareKey::default(), None, 1, &mut starts) {
        Submitted::Queued(place) => assert_eq!(place.arrival, 3),
        other => panic!("{other:?}"),
    }
    later.resume(&mut starts);
    assert_eq!(starts, ["a", "b", "c", "d"]);
}

#[test]
fn what_is_too_much_is_told_without_the_job_that_asks() {
    let limits = QueueLimits { running: Some(0), queued: Some(2), ..QueueLimits::default() };
    let mut queue = Queue::new(Policy::Fifo, limits);
    let mut starts = Vec::new();
    for job in ["a", "b"] {
        assert!(matches!(
            queue.submit(&job, ShareKey::default(), None, 1, &mut starts),
            Submitted::Queued(_)
        ));
    }
    let full = Full::Jobs { waiting: 2, limit: 2 };
    assert_eq!(queue.submit(&"c", ShareKey::default(), None, 1, &mut starts), Submitted::Full(full));
    let mut bytes =
        Queue::new(Policy::Fifo, QueueLimits { running: Some(0), queued_bytes: Some(9), ..limits });
    assert!(matches!(bytes.submit(&"a", ShareKey::default(), None, 7, &mut starts), Submitted::Queued(_)));
    let full = Full::Bytes { waiting: 7, limit: 9 };
    assert_eq!(bytes.submit(&"b", ShareKey::default(), None, 3, &mut starts), Submitted::Full(full));
}

proptest! {
    #[test]
    fn places_are_the_order_in_which_free_slots_are_given_away(
        jobs in prop::collection::vec((0u8..4, prop::option::of(0u64..20)), 0..30),
        cap in prop::option::of(1usize..6),
        fair in any::<bool>(),
    ) {
        let policy = if fair { Policy::Fair } else { Policy::Fifo };
        let limits = |running| QueueLimits { running: Some(running), running_per_key: cap, ..QueueLimits::default() };
        let mut queue = Queue::new(policy, limits(2));
        for (id, (project, number)) in jobs.iter().enumerate() {
            queue.submit(&id, ShareKey::new("s", &project.to_string()), *number, 1, &mut Vec::new());
        }
        let order = queue.order();
        prop_assert_eq!(order.len(), queue.waiting());
        let mut starts = Vec::new();
        for running in 3..=jobs.len() {
            queue.configure(policy, limits(running), &mut starts);
        }
        prop_assert_eq!(&order[..starts.len()], &starts[..]);
        let left: std::collections::BTreeSet<_> = order[starts.len()..].iter().collect();
        prop_assert_eq!(left.len(), queue.waiting(), "those of keys at their cap come last, each once");
    }
}
