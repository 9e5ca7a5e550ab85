//! Each signal in each state, and an agent for one job.

use super::tests::{Asked, ENTRY, World, at, limits};
use super::*;
use crate::answer::Answer;

fn exits(world: &World) -> Vec<Exit> {
    let exit = |action: &Action| if let Action::Exit(exit) = action { Some(*exit) } else { None };
    world.others.iter().filter_map(exit).collect()
}

/// An agent with one job and one request in flight.
fn busy(on_stop: OnStop) -> (World, RequestId) {
    let (mut world, asked) = World::new(2, &[ENTRY]);
    let asked = world.answer(asked[0].request, Ok(Answer::status(201)));
    world.event(Event::Configured(Limits { on_stop, ..limits(2) }, vec![(EntryId(0), ENTRY)]));
    (world, asked[0].request)
}

fn end_job(world: &mut World) {
    world.event(Event::JobEnded(EntryId(0)));
    world.event(Event::JobClosed(EntryId(0)));
}

#[test]
fn a14_sigquit_finishes_what_runs_and_what_requests_in_flight_bring() {
    let (mut world, request) = busy(OnStop::Detach);
    world.event(Event::Signal(Signal::Quit));
    assert!(world.answer(request, Ok(Answer::status(201))).is_empty());
    end_job(&mut world);
    assert!(exits(&world).is_empty(), "another job runs");
    end_job(&mut world);
    assert_eq!(exits(&world), [Exit::Done]);
    assert_eq!(world.scheduler.wake(world.now), None);
}

#[test]
fn a14_sigterm_detaches_once_requests_in_flight_are_back() {
    let (mut world, request) = busy(OnStop::Detach);
    world.event(Event::Signal(Signal::Terminate));
    assert!(exits(&world).is_empty());
    assert!(world.answer(request, Ok(Answer::status(201))).is_empty());
    assert_eq!(exits(&world), [Exit::Detached]);
    assert!(!world.others.iter().any(|action| matches!(action, Action::EndJobs { .. })));
}

#[test]
fn a14_sigterm_waits_for_a_held_request_no_longer_than_the_timeout() {
    let (mut world, _) = busy(OnStop::Detach);
    world.event(Event::Signal(Signal::Terminate));
    assert_eq!(world.scheduler.wake(world.now), Some(at(30)));
    world.now = at(30);
    world.event(Event::Tick);
    assert_eq!(exits(&world), [Exit::Detached]);
}

#[test]
fn a14_a_second_sigterm_or_sigint_ends_a_detaching_agent_at_once() {
    for signal in [Signal::Terminate, Signal::Interrupt] {
        let (mut world, _) = busy(OnStop::Detach);
        world.event(Event::Signal(Signal::Terminate));
        world.event(Event::Signal(Signal::Quit));
        assert!(exits(&world).is_empty());
        world.event(Event::Signal(signal));
        assert_eq!(exits(&world), [Exit::Detached]);
    }
}

#[test]
fn a14_sigint_and_sigterm_with_fail_end_all_jobs() {
    for (on_stop, signal) in [(OnStop::Detach, Signal::Interrupt), (OnStop::Fail, Signal::Terminate)] {
        let (mut world, request) = busy(on_stop);
        world.event(Event::Signal(signal));
        assert_eq!(world.others, [Action::EndJobs { force: false }]);
        world.answer(request, Ok(Answer::status(201)));
        assert_eq!(world.others.len(), 2, "a job that comes now ends, too");
        end_job(&mut world);
        end_job(&mut world);
        assert_eq!(exits(&world), [Exit::Failed]);
    }
}

#[test]
fn a14_further_signals_kill_jobs_and_then_the_agent() {
    let (mut world, _) = busy(OnStop::Fail);
    world.event(Event::Signal(Signal::Terminate));
    world.event(Event::Signal(Signal::Terminate));
    assert_eq!(world.others, [Action::EndJobs { force: false }, Action::EndJobs { force: true }]);
    world.event(Event::Signal(Signal::Interrupt));
    assert_eq!(exits(&world), [Exit::Failed]);
    world.event(Event::Signal(Signal::Interrupt));
    assert_eq!(exits(&world).len(), 1);
}

#[test]
fn a14_a_failing_stop_ends_after_its_timeout() {
    let (mut world, _) = busy(OnStop::Fail);
    world.now = at(10);
    world.event(Event::Signal(Signal::Terminate));
    world.now = world.scheduler.wake(world.now).unwrap();
    world.event(Event::Tick);
    assert_eq!((world.now, exits(&world)), (at(40), vec![Exit::Failed]));
}

#[test]
fn a14_an_idle_agent_ends_at_once_with_each_signal() {
    for signal in [Signal::Quit, Signal::Terminate, Signal::Interrupt] {
        let (mut world, asked) = World::new(1, &[ENTRY]);
        world.answer(asked[0].request, Ok(Answer::status(204)));
        world.event(Event::Signal(signal));
        assert_eq!(exits(&world), [Exit::Done], "{signal:?}");
    }
}

/// An agent for one job.
fn once(wait: Option<Duration>, entries: usize, environments: bool) -> (World, Vec<Asked>) {
    let once = Some(Once { wait });
    let scheduler = Scheduler::new(limits(5), once, at(0));
    let mut world = World { scheduler, now: at(0), environments, others: Vec::new() };
    let entries = (0..entries as u64).map(|id| (EntryId(id), ENTRY)).collect();
    let asked = world.event(Event::Configured(limits(5), entries));
    (world, asked)
}

#[test]
fn a01_an_agent_for_one_job_takes_no_second_one() {
    let (mut world, asked) = once(None, 2, true);
    assert_eq!(asked.len(), 1, "a second request could bring a second job");
    assert!(world.answer(asked[0].request, Ok(Answer::status(201))).is_empty());
    end_job(&mut world);
    assert_eq!(exits(&world), [Exit::Done]);
}

#[test]
fn a01_without_wait_each_entry_is_asked_once() {
    let (mut world, asked) = once(Some(Duration::ZERO), 2, true);
    let next = world.answer(asked[0].request, Ok(Answer::status(204)));
    assert_eq!((asked[0].entry, next[0].entry), (0, 1));
    assert!(world.answer(next[0].request, Ok(Answer::status(204))).is_empty());
    assert_eq!(exits(&world), [Exit::Done]);

    let (world, asked) = once(Some(Duration::ZERO), 2, false);
    assert!(asked.is_empty());
    assert_eq!(exits(&world), [Exit::Done], "environments that are not there are not waited for");
}

#[test]
fn a01_with_a_wait_it_asks_on_until_then() {
    let (mut world, asked) = once(Some(Duration::from_secs(10)), 1, true);
    let (mut times, mut asked) = (Vec::new(), std::collections::VecDeque::from(asked));
    loop {
        while let Some(request) = asked.pop_front() {
            times.push(world.now.since(at(0)).as_secs());
            asked.extend(world.answer(request.request, Ok(Answer::status(204))));
        }
        let Some(wake) = world.scheduler.wake(world.now) else { break };
        world.now = wake;
        asked.extend(world.event(Event::Tick));
    }
    assert_eq!(times, [0, 3, 6, 9]);
    assert_eq!((world.now, exits(&world)), (at(10), vec![Exit::Done]));
}
