//! Starts in advance: what the keeper does by itself is what the machine would have asked for.

use std::time::Duration;

use step_runner_model::{CancelCause, ExitStatus, FinishedProcess, StepStatus};

use super::world::{Trace, World, request};
use crate::job::effect::Effect;
use crate::job::event::{CallId, Event, FORESEEN, JobSpec, ProcessEnd};
use crate::job::machine::{Machine, NextStart};

fn went_on(call: CallId) -> Event {
    Event::WentOn { call, shell: None, ran: FinishedProcess { ended: 0, log_len: 0, usage: None } }
}

impl World {
    /// Works out the next start, as the daemon does. The machine is told of the function that was read for it.
    fn arm(&self, machine: &mut Machine) -> Option<NextStart> {
        let foresight = machine.foresee()?;
        let Some(reference) = foresight.wanted() else { return foresight.start() };
        let fetched = self.find(reference).ok()?;
        let start = foresight.with(fetched.clone())?.start()?;
        assert_eq!(machine.handle(&Event::Fetched { call: FORESEEN, result: Ok(fetched) }, 0), []);
        Some(start)
    }

    /// Runs a job whose keeper starts what it can by itself. Returns the number of such starts, too.
    pub(super) fn run_ahead(&self, spec: &JobSpec) -> (Trace, usize) {
        let mut machine = Machine::new(spec).unwrap_or_else(|findings| panic!("{findings:?}"));
        let (mut trace, mut count) = (Trace::default(), 0);
        let mut event = Some(Event::Admitted { at: 0 });
        let mut armed: Option<NextStart> = None;
        while let Some(mut next) = event.take() {
            let is_success = |end: &ProcessEnd| *end == ProcessEnd::Exited(ExitStatus::Code(0));
            let start =
                armed.take().filter(|_| matches!(&next, Event::Exited { end, .. } if is_success(end)));
            if let (Some(start), Event::Exited { call, .. }) = (start, &next) {
                count += 1;
                next = went_on(*call);
                for (kind, text) in start.lines {
                    trace.add(Effect::Log { kind, text });
                }
                event = self.answer(&Effect::Spawn(start.spawn.clone()));
                trace.add(Effect::Spawn(start.spawn));
            }
            for effect in machine.handle(&next, 0) {
                assert!(trace.finish.is_none(), "an effect after the last");
                if let Effect::Watch(watched) = effect {
                    assert!(
                        trace.spawns().last().is_some_and(|spawn| **spawn == *watched),
                        "another process"
                    );
                    continue;
                }
                if let Some(answer) = self.answer(&effect) {
                    assert!(event.replace(answer).is_none(), "two things at a time");
                }
                trace.add(effect);
            }
            armed = self.arm(&mut machine);
        }
        (trace, count)
    }
}

/// Compares all that people and processes see of two runs. Only the order of lines and messages may differ.
pub(super) fn assert_same(plain: &Trace, ahead: &Trace) {
    let news = |trace: &Trace| -> Vec<Effect> {
        let is_news =
            |effect: &&Effect| matches!(effect, Effect::News(_) | Effect::Emit(_) | Effect::MakeFiles(_));
        trace.effects.iter().filter(is_news).cloned().collect()
    };
    assert_eq!(plain.log(), ahead.log());
    assert!(plain.spawns() == ahead.spawns(), "{:?} and {:?}", plain.started(), ahead.started());
    assert_eq!(plain.phrases(), ahead.phrases());
    assert!(news(plain) == news(ahead), "other messages");
    assert!(plain.finish == ahead.finish, "another end");
}

/// Starts in advance of a job with these steps. `./a` is a function with a process, `./two` one with two steps.
fn starts(steps: &str) -> usize {
    let world = World::new([
        ("/job/a/func.yml", "{}\n---\nexec: {command: [a]}\n"),
        ("/job/two/func.yml", "{}\n---\nrun: [{name: x, func: ../a}, {name: y, script: y}]\n"),
        (
            "/job/out/func.yml",
            "spec: {outputs: {o: {}}}\n---\nexec: {command: [write, '${{ output_file }}', 'o=\"1\"']}\n",
        ),
        ("/job/odd/func.yml", "{}\n---\nexec: {command: []}\n"),
    ]);
    let (trace, count) = world.run_ahead(&request(steps));
    assert!(trace.finish.is_some());
    count
}

#[test]
fn the_next_step_is_started_in_advance_if_it_is_certain() {
    for (steps, expected) in [
        ("[{name: a, script: x}]", 0),
        ("[{name: a, script: x}, {name: b, script: y}, {name: c, script: z}]", 2),
        ("[{name: a, func: ./a}, {name: b, func: ./a}]", 1),
        // Into a function, inside it, and out of it.
        ("[{name: a, script: x}, {name: b, func: ./two}, {name: c, script: z}]", 2),
        ("[{name: a, script: exit 1}, {name: b, script: y}]", 0),
        // Values are returned, files are needed, or there is nothing to start.
        ("[{name: a, func: ./out}, {name: b, script: y}]", 0),
        ("[{name: a, script: x}, {name: b, func: ./out}]", 0),
        ("[{name: a, script: x}, {name: b, func: ./odd}]", 0),
        ("[{name: a, script: x}, {name: b, func: ./missing}]", 0),
        ("[{name: a, script: x}, {name: b, func: 'h.example/p@v1'}]", 0),
    ] {
        assert_eq!(starts(steps), expected, "{steps}");
    }
}

#[test]
fn a_cancel_that_comes_after_the_start_ends_the_step_that_was_started() {
    let world = World::default();
    let spec = request("[{name: a, script: x}, {name: b, script: y}, {name: c, script: z}]");
    let mut machine = Machine::new(&spec).unwrap_or_else(|findings| panic!("{findings:?}"));
    machine.handle(&Event::Admitted { at: 0 }, 0);
    assert!(world.arm(&mut machine).is_some());
    let stop = machine.handle(&Event::CancelAsked { cause: CancelCause::Cancel, grace_limit: None }, 0);
    assert!(matches!(stop[..], [Effect::Stop { .. }]), "{stop:?}");
    assert!(machine.foresee().is_none(), "nothing begins behind a cancel");
    let effects = machine.handle(&went_on(2), 0);
    let again = effects.last();
    assert!(
        effects.iter().any(|effect| matches!(effect, Effect::Watch(spawn) if spawn.call == 3)),
        "{effects:?}"
    );
    assert!(matches!(again, Some(Effect::Stop { call: 3, .. })), "{effects:?}");
    assert!(machine.foresee().is_none());
    let end = ProcessEnd::Exited(ExitStatus::Signal(15));
    let exited = Event::Exited { call: 3, end, shell: None, outputs: None, exports: None, ran: None };
    let effects = machine.handle(&exited, 0);
    let Some(Effect::Finish { root, .. }) = effects.last() else { panic!("{effects:?}") };
    let statuses: Vec<_> = root.sub_steps.iter().map(|step| step.status).collect();
    assert_eq!(statuses, [StepStatus::Success, StepStatus::Cancelled]);
}

#[test]
fn a_cancel_at_the_boundary_gives_each_step_the_grace_of_its_own_function() {
    let world = World::new([
        ("/job/short/func.yml", "{}\n---\nexec: {command: [a], cancel_timeout: 100ms}\n"),
        ("/job/long/func.yml", "{}\n---\nexec: {command: [b], cancel_timeout: 3s}\n"),
    ]);
    for (limit, expected) in [(None, [100, 3_000]), (Some(2_000), [100, 2_000]), (Some(50), [50, 50])] {
        let spec = request("[{name: a, func: ./short}, {name: b, func: ./long}]");
        let mut machine = Machine::new(&spec).unwrap_or_else(|findings| panic!("{findings:?}"));
        let effects = machine.handle(&Event::Admitted { at: 0 }, 0);
        let fetched = effects.last().and_then(|effect| world.answer(effect)).unwrap();
        machine.handle(&fetched, 0);
        assert!(world.arm(&mut machine).is_some());
        let grace_limit = limit.map(Duration::from_millis);
        let mut graces = Vec::new();
        for event in [Event::CancelAsked { cause: CancelCause::Cancel, grace_limit }, went_on(2)] {
            let effects = machine.handle(&event, 0);
            graces.extend(effects.iter().filter_map(|effect| match effect {
                Effect::Stop { call, grace } => Some((*call, grace.as_millis())),
                _ => None,
            }));
        }
        assert_eq!(graces, [(2, expected[0]), (3, expected[1])], "{limit:?}");
    }
}

#[test]
fn a_function_that_was_read_in_advance_is_read_again_if_the_keeper_did_not_go_on() {
    let spec: JobSpec = request("[{name: a, script: x}, {name: b, func: ./a}]");
    let world = World::new([("/job/a/func.yml", "{}\n---\nexec: {command: [a]}\n")]);
    let mut machine = Machine::new(&spec).unwrap_or_else(|findings| panic!("{findings:?}"));
    machine.handle(&Event::Admitted { at: 0 }, 0);
    assert!(world.arm(&mut machine).is_some());
    let end = ProcessEnd::Exited(ExitStatus::Code(0));
    let exited = Event::Exited { call: 2, end, shell: None, outputs: None, exports: None, ran: None };
    let effects = machine.handle(&exited, 0);
    assert!(matches!(effects.last(), Some(Effect::Fetch { call: 3, .. })), "{effects:?}");
}
