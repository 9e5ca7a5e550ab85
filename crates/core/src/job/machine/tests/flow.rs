//! Attempts, groups, matrices and stops (flow.md), where no vector looks: numbers of processes, files, slots, timers.

use step_runner_model::{CancelCause, EndClass, StepOutcome, StepResult, StepStatus};

use super::job::{Job, lines, spawns, started, stopped, timers};
use super::world::{Driven, World, request, text};
use crate::job::effect::{Effect, Program, Spawn};
use crate::job::event::{CallId, Event};
use crate::job::machine::ROOT;

fn job(steps: &str) -> Job {
    Job::begin(&World::default(), &request(steps))
}

/// A function with a step, and a cleanup of two steps.
const CLEANS: &str = "{}\n---\nrun: [{name: in, script: x}, {name: tidy, when: always, script: y}, \
                      {name: more, when: always, script: z}]\n";

fn cleaning(steps: &str) -> Job {
    Job::begin(&World::new([("/job/f/func.yml", CLEANS)]), &request(steps))
}

fn due(job: &mut Job, effects: &[Effect]) -> Vec<Effect> {
    let [timer] = timers(effects)[..] else { panic!("not one timer: {effects:?}") };
    job.tell(Event::Due { timer })
}

/// Lets the next attempt of a step begin.
fn go_on(job: &mut Job, effects: &[Effect], call: CallId) -> Vec<Effect> {
    job.tell(Event::Cleared { call });
    due(job, effects)
}

/// Results that were told of steps that have ended.
fn results(effects: &[Effect]) -> Vec<&StepResult> {
    let results = effects.iter().filter_map(|effect| match effect {
        Effect::Note(note) if note.result.outcome != StepOutcome::Unspecified => Some(&note.result),
        _ => None,
    });
    results.collect()
}

fn text_of(spawn: &Spawn) -> &str {
    match &spawn.program {
        Program::Script(text) => text,
        _ => panic!("no script"),
    }
}

fn finish(effects: &[Effect]) -> (EndClass, i32, u32) {
    match effects.last() {
        Some(Effect::Finish { outcome, allowed_failures, .. }) => {
            (outcome.class, outcome.exit_code, *allowed_failures)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_attempt_has_a_process_of_its_own_and_the_first_has_the_number_of_the_step() {
    let mut job = job("[{name: a, retry: 2, script: x}, {name: b, script: y}]");
    let mut processes = vec![job.process("a").process];
    for _ in 0..2 {
        let failed = job.exit("a", 1);
        let process = job.process("a").process;
        assert!(failed.contains(&Effect::Clear { call: 1, processes: vec![process] }), "{failed:?}");
        let further = go_on(&mut job, &failed, 1);
        assert_eq!(started(&further), ["a"]);
        processes.push(job.process("a").process);
    }
    assert_eq!(processes[0], 1);
    processes.dedup();
    assert_eq!(processes.len(), 3);
    let ended = job.exit("a", 0);
    assert!(!processes.contains(&job.process("b").process), "numbers are given once");
    let [a] = results(&ended)[..] else { panic!("not one result") };
    assert_eq!(a.attempts.len(), 2);
    assert!(a.attempts.iter().all(|attempt| attempt.attempts.is_empty() && attempt.exit_code == Some(1)));
}

#[test]
fn a_step_that_fails_before_its_first_attempt_has_no_start() {
    for step in ["if: '${{ vars.none }}', script: x", "matrix: {v: '${{ vars.none }}'}, script: x"] {
        let trace = World::default().run_steps(&format!("[{{name: a, {step}}}]"));
        let [failed] = trace.emitted()[..] else { panic!("not one result") };
        assert_eq!(failed.outcome, StepOutcome::Failure, "{step}");
        assert!(failed.facts.start.is_none() && failed.facts.end.is_some(), "{step}");
        assert!(trace.notes().iter().all(|note| note.parent == ROOT), "{step}");
    }
}

#[test]
fn files_of_an_attempt_go_with_it_if_it_has_some() {
    for (step, has_files) in [
        ("script: x", false),
        ("script: 'x ${{ output_file }}'", true),
        ("func: 'builtin://script_legacy', inputs: {script: [x]}", true),
        ("func: ./reads", false),
        ("func: ./names", true),
    ] {
        let files = [
            ("/job/reads/func.yml", "{}\n---\nexec: {command: [x]}\n"),
            ("/job/names/func.yml", "{}\n---\nenv: {OUT: '${{ output_file }}'}\nexec: {command: [x]}\n"),
        ];
        let spec = request(&format!("[{{name: a, retry: 1, {step}}}]"));
        let mut job = Job::begin(&World::new(files), &spec);
        let failed = job.exit("a", 1);
        assert_eq!(failed.contains(&Effect::RemoveFiles(1)), has_files, "{step}");
        go_on(&mut job, &failed, 1);
        let process = job.process("a").process;
        assert_eq!(
            job.process("a").files.is_some(),
            step.contains("file") || step.contains("names"),
            "{step}"
        );
        let removed = |effect: &Effect| *effect == Effect::RemoveFiles(process);
        assert!(!job.exit("a", 0).iter().any(removed), "those of the last step go with the job");
    }
}

#[test]
fn files_of_a_function_with_steps_are_made_once_and_go_at_its_end() {
    let text = "{}\n---\nrun: [{name: in, script: x, env: {OUT: '${{ output_file }}'}}, \
                {name: on, script: x, env: {OUT: '${{ output_file }}'}}]\n";
    let world = World::new([("/job/f/func.yml", text)]);
    let mut job = Job::begin(&world, &request("[{name: a, func: ./f}, {name: b, script: x}]"));
    job.exit("in", 0);
    let made = job.effects.iter().filter(|effect| matches!(effect, Effect::MakeFiles(_)));
    assert_eq!(made.count(), 1);
    assert!(job.exit("on", 0).contains(&Effect::RemoveFiles(1)));
}

#[test]
fn a_skipped_step_has_a_place_but_no_times() {
    let ended = job("[{name: a, script: x}, {name: b, when: on_failure, script: y}]").exit("a", 0);
    let [_, b] = results(&ended)[..] else { panic!("not two results") };
    assert_eq!((b.outcome, b.reason.as_str()), (StepOutcome::Skipped, "when: on_failure"));
    assert_eq!((b.facts.number, b.facts.total, b.facts.place.as_str()), (2, 2, "<steps>:1"));
    assert_eq!((b.facts.start, b.facts.end), (None, None));
    assert_eq!((b.facts.log_start, b.facts.log_end), (None, None));
}

#[test]
fn a_step_of_the_cleanup_is_tried_again() {
    let mut job = job("[{name: a, script: x}, {name: c, when: always, retry: 1, script: y}]");
    job.cancel(CancelCause::Cancel);
    job.exit("a", 0);
    let process = job.process("c").process;
    let failed = job.exit("c", 1);
    assert!(lines(&failed)[0].starts_with("Retrying step name=c (attempt 2 of 2) in 1s: "), "{failed:?}");
    go_on(&mut job, &failed, process);
    let ended = job.exit("c", 0);
    assert_eq!(results(&ended)[0].outcome, StepOutcome::Success);
    assert_eq!(finish(&ended).0, EndClass::Cancelled);
}

#[test]
fn the_time_of_the_cleanup_begins_with_the_first_step_that_runs() {
    let mut job = job(
        "[{name: a, script: x}, {name: b, when: always, if: false, script: y}, {name: c, when: always, if: '${{ vars.X }}', script: y}, {name: d, when: always, script: z}]",
    );
    job.cancel(CancelCause::Cancel);
    let ended = job.exit("a", 0);
    let place = |wanted: &dyn Fn(&Effect) -> bool| ended.iter().position(wanted);
    let is_over =
        |effect: &Effect| matches!(effect, Effect::Note(note) if note.result.outcome == StepOutcome::Failure);
    assert!(place(&is_over) < place(&|effect| matches!(effect, Effect::Wake { .. })), "{ended:?}");
    assert_eq!((timers(&ended).len(), started(&ended)), (1, vec!["d"]));
}

#[test]
fn what_a_process_returned_before_it_could_be_stopped_counts() {
    let mut job = job("[{name: a, script: x}, {name: b, script: y}]");
    let process = job.process("a").process;
    job.cancel(CancelCause::Cancel);
    let ended =
        job.tell(Event::returned_nothing(process, step_runner_model::ExitStatus::Code(0), None, None));
    assert_eq!(results(&ended)[0].outcome, StepOutcome::Success);
    assert_eq!((finish(&ended).0, started(&ended).len()), (EndClass::Cancelled, 0));
}

#[test]
fn a_limit_shows_the_processes_stops_them_and_bounds_the_cleanup_inside() {
    let mut job = cleaning("[{name: a, timeout: 9s, func: ./f}, {name: b, when: always, script: x}]");
    let limit = job.effects.clone();
    let passed = due(&mut job, &limit);
    let process = job.process("in").process;
    let shown = Effect::ShowProcesses { call: 1, attempt: 1, processes: vec![process] };
    assert!(passed.contains(&shown), "{passed:?}");
    assert_eq!(stopped(&passed), [(process, 5)]);
    let cleanup = job.exit("in", 0);
    assert_eq!(started(&cleanup), ["tidy"]);
    let [timer] = timers(&cleanup)[..] else { panic!("no limit of the cleanup") };
    let over = job.tell(Event::Due { timer });
    assert_eq!(stopped(&over), [(job.process("tidy").process, 5)]);
    let ended = job.exit("tidy", 0);
    let told: Vec<_> = results(&ended).iter().map(|result| (result.outcome, result.reason.clone())).collect();
    assert_eq!(told[0], (StepOutcome::Cancelled, "cancelled".to_owned()));
    assert_eq!(told[1], (StepOutcome::Skipped, "cleanup_timeout".to_owned()));
    assert_eq!(told[2].0, StepOutcome::Failure);
    assert_eq!(started(&ended), ["b"], "the job itself is not cancelled");
    assert_eq!(finish(&job.exit("b", 0)), (EndClass::Failure, 124, 0));
}

#[test]
fn a_limit_of_the_cleanup_is_forgotten_with_the_attempt() {
    let mut job = cleaning("[{name: a, timeout: 9s, retry: 1, func: ./f}]");
    let limit = job.effects.clone();
    let [of_step] = timers(&limit)[..] else { panic!("not one limit") };
    due(&mut job, &limit);
    let cleanup = job.exit("in", 0);
    let [of_cleanup] = timers(&cleanup)[..] else { panic!("no limit of the cleanup") };
    assert!(job.machine.awaits(of_cleanup) && !job.machine.awaits(of_step));
    job.exit("tidy", 0);
    job.exit("more", 0);
    assert!(!job.machine.awaits(of_cleanup));
}

/// A stop that allows no cleanup ends one that is under way.
#[test]
fn a_finish_or_a_forced_cancel_ends_the_cleanup_of_a_part() {
    for (cause, force) in [(CancelCause::Finish, false), (CancelCause::Cancel, true)] {
        let cancel = || Event::CancelAsked { cause, grace_limit: None, force };
        for is_under_way in [true, false] {
            let mut job = cleaning("[{name: a, timeout: 9s, func: ./f}]");
            let limit = job.effects.clone();
            due(&mut job, &limit);
            if is_under_way {
                job.exit("in", 0);
            }
            let runs = if is_under_way { "tidy" } else { "in" };
            assert_eq!(stopped(&job.tell(cancel())), [(job.process(runs).process, 0)], "{cause:?}");
            let ended = job.exit(runs, 0);
            assert!(started(&ended).is_empty(), "{cause:?}");
            let skipped = results(&ended).into_iter().find(|result| result.outcome == StepOutcome::Skipped);
            assert_eq!(skipped.unwrap().reason, "cancelled", "{cause:?}");
            assert_eq!(finish(&ended).0, EndClass::Cancelled);
        }
    }
}

#[test]
fn a_stop_of_the_daemon_after_a_cancel_only_shortens_the_grace() {
    let mut job = job("[{name: a, script: x}]");
    let mut ask = |cause, seconds: Option<u64>| {
        let grace_limit = seconds.map(std::time::Duration::from_secs);
        stopped(&job.tell(Event::CancelAsked { cause, grace_limit, force: false }))
    };
    assert_eq!(ask(CancelCause::Cancel, None), [(1, 5)]);
    assert_eq!(ask(CancelCause::Shutdown, Some(9)), []);
    assert_eq!(ask(CancelCause::Shutdown, Some(5)), []);
    assert_eq!(ask(CancelCause::Shutdown, Some(3)), [(1, 3)]);
    assert_eq!(ask(CancelCause::Cancel, Some(1)), []);
}

#[test]
fn a_cleanup_that_a_failure_in_a_group_began_has_its_limit_and_the_failure_decides() {
    let mut job =
        cleaning("[{name: g, parallel: [{name: m, func: ./f}, {name: n, script: x}]}, {name: z, script: x}]");
    let failed = job.exit("n", 3);
    assert_eq!(stopped(&failed), [(job.process("in").process, 5)]);
    let cleanup = job.exit("in", 0);
    assert_eq!(started(&cleanup), ["tidy"]);
    let over = due(&mut job, &cleanup);
    assert_eq!(stopped(&over), [(job.process("tidy").process, 5)]);
    let ended = job.exit("tidy", 0);
    assert!(started(&ended).is_empty());
    let [.., group] = results(&ended)[..] else { panic!("no result") };
    assert_eq!((group.outcome, group.exit_code), (StepOutcome::Skipped, None), "the last step of the job");
    assert!(
        results(&ended).iter().any(|step| (step.outcome, step.exit_code) == (StepOutcome::Failure, Some(3)))
    );
    assert_eq!(finish(&ended), (EndClass::Failure, 3, 0));
}

#[test]
fn a_member_exports_what_its_own_steps_have_exported() {
    let mut job = job(
        "[{name: s, script: x}, {name: g, parallel: [{name: m, script: x}, {name: n, script: x}]}, {name: z, script: x}]",
    );
    job.export("s", r#"{"name":"A","value":"early"}"#);
    job.export("m", r#"{"name":"A","value":"late"}"#);
    let ended = job.exit("n", 0);
    assert!(lines(&ended).iter().all(|line| !line.starts_with("warning")), "{:?}", lines(&ended));
    assert!(job.process("z").env.contains(&(b"A".to_vec(), b"late".to_vec())));
}

#[test]
fn a_group_inside_of_a_member_leaves_that_member_its_slot() {
    let text = "{}\n---\nrun: [{name: h, parallel: [{name: p, script: x}]}, {name: q, script: x}]\n";
    let world = World::new([("/job/f/func.yml", text)]);
    let spec = request(
        "[{name: g, max: 2, parallel: [{name: m, func: ./f}, {name: n, script: x}, {name: o, script: x}]}]",
    );
    let mut job = Job::begin(&world, &spec);
    assert_eq!((job.process("p").slot, job.process("n").slot), (1, 2));
    job.exit("p", 0);
    job.exit("n", 0);
    assert_eq!((job.process("q").slot, job.process("o").slot), (1, 2));
}

#[test]
fn a_matrix_that_may_fail_and_could_not_begin_has_no_results() {
    let mut spec = request(
        "[{name: m, continue_on_error: true, matrix: {k: '${{ vars.X }}'}, script: x}, {name: z, script: '${{ steps.m.status }} ${{ steps.m.attempts }} ${{ str(steps.m.results) }}'}]",
    );
    spec.vars.insert("X".into(), text("no list"));
    let mut job = Job::begin(&World::default(), &spec);
    assert_eq!(text_of(job.process("z")), "allowed_failure 0 []");
    assert_eq!(finish(&job.exit("z", 0)), (EndClass::Success, 0, 1));
}

#[test]
fn a_group_that_may_fail_is_counted_once_and_the_list_goes_on() {
    let mut job = job(
        "[{name: g, continue_on_error: true, parallel: [{name: m, script: x}]}, {name: z, script: '${{ steps.g.status }} ${{ steps.m.attempts }}'}]",
    );
    job.exit("m", 1);
    assert_eq!(text_of(job.process("z")), "allowed_failure 1");
    assert_eq!(finish(&job.exit("z", 0)), (EndClass::Success, 0, 1));
}

#[test]
fn items_of_a_sensitive_list_stay_hidden_in_the_members() {
    let world = World::new([
        ("/job/n/func.yml", "spec: {inputs: {n: {type: number}}}\n---\nexec: {command: [x]}\n"),
        (
            "/job/f/func.yml",
            "spec: {inputs: {list: {type: array, sensitive: true}}}\n---\n\
             run: [{name: m, matrix: {k: '${{ inputs.list }}'}, func: ../n, inputs: {n: '${{ matrix.k }}'}}]\n",
        ),
    ]);
    let mut job = Job::begin(&world, &request("[{name: a, func: ./f, inputs: {list: [7]}}]"));
    let process = spawns(&job.effects)[0].process;
    let end = crate::job::event::ProcessEnd::Exited(step_runner_model::ExitStatus::Code(0));
    let ended =
        job.tell(Event::Exited { process, end, shell: None, outputs: None, exports: None, ran: None });
    assert_eq!(results(&ended)[0].step.as_ref().unwrap().inputs["n"], "[MASKED]");
}

#[test]
fn a_defect_ends_what_has_begun_and_tells_of_nothing_else() {
    let world = World::new([("/job/f/func.yml", "{}\n---\nexec: {command: [x]}\n")]);
    for (steps_before, told) in [(1, 0), (2, 1)] {
        let mut driven = Driven::new(&world, &request("[{name: a, func: ./f}]"));
        for _ in 0..steps_before {
            assert!(driven.go_on());
        }
        driven.tell(&Event::Broken { message: "x".into() });
        let steps = &driven.trace.root().sub_steps;
        assert_eq!(steps.len(), told, "a step whose function is not there has not begun");
        assert!(steps.iter().all(|step| step.status == StepStatus::Failure));
        assert!(driven.trace.notes().iter().all(|note| note.call != ROOT || note.result.step.is_none()));
    }
}

#[test]
fn a_working_directory_that_is_empty_is_that_of_the_job() {
    for (written, found) in [("''", "/job"), ("sub", "/job/sub"), ("/abs", "/abs")] {
        let text = format!("{{}}\n---\nexec: {{command: [x], work_dir: {written}}}\n");
        let world = World::new([("/job/f/func.yml", text.as_str())]);
        let job = Job::begin(&world, &request("[{name: a, func: ./f}]"));
        assert_eq!(job.process("a").work_dir, found);
    }
}
