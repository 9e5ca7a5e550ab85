//! However the two streams of a job are cut, and whichever is ahead: the order, the tree, and the step of each line are the
//! same.

use proptest::prelude::*;
use step_runner_proto::v1::step_result::{Outcome, Status};

use super::*;
use crate::tree::ROOT;

/// A step of a generated job.
#[derive(Clone, Debug)]
enum Node {
    /// Prints so many lines at each of its attempts.
    Process {
        lines: usize,
        attempts: usize,
    },
    /// Calls a function of several steps at each of its attempts.
    List {
        steps: Vec<Node>,
        attempts: usize,
    },
    /// Its steps run side by side, unless it is within such a step.
    Group(Vec<Node>),
    Skipped,
}

fn node() -> impl Strategy<Value = Node> {
    let leaf = prop_oneof![
        4 => (0..4_usize, 1..3_usize).prop_map(|(lines, attempts)| Node::Process { lines, attempts }),
        1 => Just(Node::Skipped),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        let steps = prop::collection::vec(inner, 1..4);
        prop_oneof![
            (steps.clone(), 1..3_usize).prop_map(|(steps, attempts)| Node::List { steps, attempts }),
            steps.prop_map(Node::Group),
        ]
    })
}

/// A thing that happens in a job. A story has them in order.
#[derive(Clone, Debug)]
enum Fact {
    Event(v1::StepEvent),
    /// A step writes a line.
    Line {
        call: u32,
        attempt: usize,
        stream: u32,
    },
    Result(v1::StepResult),
}

/// Makes what happens in a job. `picks` choose which of several steps goes on.
struct World<'a> {
    calls: u32,
    picks: std::iter::Cycle<std::slice::Iter<'a, usize>>,
}

/// Position of a step.
#[derive(Clone, Copy)]
struct At {
    call: u32,
    parent: u32,
    number: i32,
    stream: u32,
    is_member: bool,
}

impl At {
    fn event(self, outcome: Outcome, attempts: usize) -> Fact {
        let status = if outcome == Outcome::Unspecified { Status::Running } else { Status::Success };
        let name = format!("s{}", self.number);
        let step = (self.call != ROOT).then(|| v1::Step { name, ..v1::Step::default() });
        let attempts = vec![v1::StepResult::default(); attempts];
        let (status, outcome) = (status.into(), outcome.into());
        let result =
            v1::StepResult { step, number: self.number, status, outcome, attempts, ..Default::default() };
        let Self { call, parent, stream, .. } = self;
        Fact::Event(v1::StepEvent { call, parent, result: Some(result), log_bytes: 0, stream, member: false })
    }
}

impl World<'_> {
    fn list(&mut self, steps: &[Node], around: At) -> Vec<Fact> {
        let facts = steps.iter().zip(1..).map(|(step, number)| {
            self.calls += 1;
            self.step(step, At { call: self.calls, parent: around.call, number, ..around })
        });
        facts.collect::<Vec<_>>().concat()
    }

    fn step(&mut self, node: &Node, at: At) -> Vec<Fact> {
        let mut facts = Vec::new();
        match node {
            Node::Skipped => facts.push(at.event(Outcome::Skipped, 0)),
            Node::Process { lines, attempts } => {
                for attempt in 0..*attempts {
                    facts.push(at.event(Outcome::Unspecified, attempt));
                    let line = Fact::Line { call: at.call, attempt, stream: at.stream };
                    facts.extend(std::iter::repeat_n(line, *lines));
                }
                facts.push(at.event(Outcome::Success, attempts - 1));
            }
            Node::List { steps, attempts } => {
                for attempt in 0..*attempts {
                    facts.push(at.event(Outcome::Unspecified, attempt));
                    facts.extend(self.list(steps, at));
                }
                facts.push(at.event(Outcome::Success, attempts - 1));
            }
            Node::Group(members) => {
                facts.push(at.event(Outcome::Unspecified, 0));
                facts.extend(self.members(members, at));
                facts.push(at.event(Outcome::Success, 0));
            }
        }
        if at.parent == ROOT {
            facts.push(Fact::Result(v1::StepResult { number: at.number, ..v1::StepResult::default() }));
        }
        facts
    }

    fn members(&mut self, members: &[Node], around: At) -> Vec<Fact> {
        let mut all: Vec<_> = members
            .iter()
            .zip(1_u8..)
            .map(|(member, number)| {
                self.calls += 1;
                let stream = if around.is_member { around.stream } else { u32::from(number) };
                let (call, parent, number) = (self.calls, around.call, number.into());
                let facts = self.step(member, At { call, parent, number, stream, is_member: true });
                std::collections::VecDeque::from(facts)
            })
            .collect();
        let mut facts = Vec::new();
        while !all.is_empty() {
            // Members of a group within a member run one after another.
            let pick = self.picks.next().copied().unwrap_or(0);
            let pick = if around.is_member { 0 } else { pick % all.len() };
            match all[pick].pop_front() {
                Some(fact) => facts.push(fact),
                None => drop(all.remove(pick)),
            }
        }
        facts
    }
}

/// A line: its place, its stream, and the step and attempt that wrote it.
struct Written {
    place: u64,
    stream: u32,
    call: u32,
    attempt: usize,
}

struct Job {
    log: Vec<u8>,
    messages: Vec<v1::FollowStepsResponse>,
    lines: Vec<Written>,
}

fn job(steps: &[Node], picks: &[usize]) -> Job {
    let root = At { call: ROOT, parent: ROOT, number: 0, stream: 1, is_member: false };
    let mut facts = vec![root.event(Outcome::Unspecified, 0)];
    facts.extend(World { calls: 0, picks: picks.iter().cycle() }.list(steps, root));
    facts.push(root.event(Outcome::Success, 0));
    facts.push(Fact::Result(v1::StepResult::default()));
    let mut job = Job { log: Vec::new(), messages: Vec::new(), lines: Vec::new() };
    for (fact, number) in facts.into_iter().zip(0..) {
        match fact {
            Fact::Event(event) => {
                let log_bytes = job.log.len() as i64;
                let event = Some(v1::StepEvent { log_bytes, ..event });
                job.messages.push(v1::FollowStepsResponse { event, log_bytes, result: None });
            }
            Fact::Line { call, attempt, stream } => {
                let place = job.log.len() as u64;
                job.lines.push(Written { place, stream, call, attempt });
                // Each line looks like one of the daemon's, too.
                let text = format!("{stream:02x} {number} Running step name=s1 stream=02\n");
                job.log.extend_from_slice(text.as_bytes());
            }
            Fact::Result(result) => {
                job.messages.push(v1::FollowStepsResponse { result: Some(result), ..Default::default() });
            }
        }
    }
    job
}

/// Returns the parts as texts. A line has the id of the step that has written it, and of the step that a line of the daemon
/// would be about.
fn parts(run: &mut Run) -> Vec<String> {
    let mut shown = Vec::new();
    while let Some(part) = run.next_part() {
        let tree = run.tree();
        match part {
            Part::Log(bytes) => {
                for line in String::from_utf8(bytes).unwrap().lines() {
                    let stream = u32::from_str_radix(line.get(..2).unwrap(), 16).unwrap();
                    let (step, about) = (tree.id(tree.of_stream(stream)), tree.id(tree.innermost()));
                    shown.push(format!("{step} ({about}): {line}"));
                }
            }
            Part::Step { event, change } => {
                let step = tree.get(event.call).unwrap();
                let path = tree.path(event.call).join("/");
                shown.push(format!("{change:?} {} {path} attempt {}", tree.id(event.call), step.attempt));
            }
            Part::Result(result) => shown.push(format!("result {}", result.number)),
        }
    }
    shown
}

proptest! {
    #[test]
    fn every_cut_of_log_and_events_gives_one_order_one_tree_and_each_line_its_step(
        steps in prop::collection::vec(node(), 0..5),
        picks in prop::collection::vec(0..7_usize, 1..20),
        cuts in prop::collection::vec((any::<bool>(), 1..90_usize), 0..60),
    ) {
        let job = job(&steps, &picks);
        let mut whole = Run::new(0);
        whole.log(&job.log);
        for message in &job.messages {
            whole.message(message);
        }
        whole.events_end();
        whole.end();
        let expected = parts(&mut whole);

        let (mut run, mut log, mut messages) = (Run::new(0), job.log.as_slice(), job.messages.iter());
        let mut shown = Vec::new();
        for (is_log, length) in cuts {
            if is_log {
                let (piece, rest) = log.split_at(length.min(log.len()));
                run.log(piece);
                log = rest;
            } else if let Some(message) = messages.next() {
                run.message(message);
            }
            shown.extend(parts(&mut run));
        }
        run.log(log);
        for message in messages {
            run.message(message);
        }
        shown.extend(parts(&mut run));
        run.end();
        shown.extend(parts(&mut run));
        prop_assert_eq!(&shown, &expected);

        let of_lines: Vec<_> = shown.iter().filter_map(|part| part.split_once(" (").map(|(step, _)| step)).collect();
        let tree = run.tree();
        let written: Vec<_> = job.lines.iter().map(|line| tree.id(line.call)).collect();
        prop_assert_eq!(of_lines, written);
        // Who knows the events alone finds the same steps for the lines of their last attempts.
        let mut late = Tree::default();
        for event in job.messages.iter().filter_map(|message| message.event.as_ref()) {
            late.take(event);
        }
        for line in &job.lines {
            let is_last = late.get(line.call).is_some_and(|step| step.attempt == line.attempt + 1);
            let writer = late.last_output(line.call).and_then(|output| output.writer(line.place, line.stream));
            prop_assert_eq!(writer, is_last.then_some(line.call));
        }
        prop_assert_eq!(late.under_way().count(), 0);
    }
}
