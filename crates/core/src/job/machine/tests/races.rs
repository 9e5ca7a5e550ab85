//! Random programs with random answers. There is exactly one end, and it is last; nothing starts after a cancel; a
//! replay gives the same effects.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use step_runner_lang::diagnostic::Class;
use step_runner_model::{CancelCause, ExitStatus, StepOutcome, StepStatus};

use super::world::{Driven, World, request, text};
use crate::job::effect::Effect;
use crate::job::event::{Event, FetchFailure, FileContent, JobSpec, ProcessEnd};
use crate::job::machine::{Machine, ROOT};
use crate::job::record::{Recorder, decode, encode};
use crate::job::replay::Replayed;

/// Functions that random programs call: a leaf that may export and return, sequences, broken ones.
const FILES: [(&str, &str); 6] = [
    ("/job/f0/func.yml", "{}\n---\nexec: {command: [leaf, '${{ env.X || \"none\" }}']}\n"),
    (
        "/job/f1/func.yml",
        "spec: {outputs: {o: {type: string, default: d}}}\n---\nexec: {command: [leaf, '${{ output_file }}', '${{ export_file }}']}\n",
    ),
    (
        "/job/f2/func.yml",
        "{}\n---\nenv: {X: two}\nrun: [{name: a, func: ../f0}, {name: b, func: ../f1}, {name: c, script: '${{ steps.b.outputs.o }}'}]\n",
    ),
    (
        "/job/f3/func.yml",
        "spec: {outputs: delegate}\n---\nrun: [{name: a, func: ../f2}, {name: b, func: ../f1, env: {Y: '${{ output_file }}'}}]\ndelegate: b\n",
    ),
    (
        "/job/f4/func.yml",
        "spec: {inputs: {s: {type: string, sensitive: true}}}\n---\nexec: {command: [leaf, '${{ inputs.s }}']}\n",
    ),
    ("/job/f5/func.yml", "{}\n---\nexec: {command: []}\n"),
];

fn programs() -> impl Strategy<Value = JobSpec> {
    let step = (0usize..9).prop_map(|kind| match kind {
        4 => "func: ./f4, inputs: {s: '${{ vars.S }}'}".to_owned(),
        6 => "script: 'echo ${{ env.X || 1 }}'".to_owned(),
        7 => "func: './f${{ vars.N }}'".to_owned(),
        8 => "script: '${{ export_file }}', env: {Z: z}".to_owned(),
        known => format!("func: ./f{known}"),
    });
    (prop::collection::vec(step, 1..6), prop::option::of(0u64..9), 0u8..4).prop_map(
        |(steps, grace, number)| {
            let steps = steps.into_iter().enumerate().map(|(at, step)| format!("{{name: s{at}, {step}}}"));
            let mut spec = request(&format!("[{}]", steps.collect::<Vec<_>>().join(", ")));
            spec.vars.insert("S".into(), text("secret"));
            spec.vars.insert("N".into(), text(&number.to_string()));
            spec.cancel_grace = grace.map(Duration::from_secs);
            spec
        },
    )
}

/// The next event; mostly the one that the machine waits for.
#[derive(Clone, Debug)]
enum Move {
    Answer,
    AnswerTwice,
    Fail(u8),
    Kill(u8),
    Write(&'static str, &'static str),
    Cancel(CancelCause, Option<u64>),
    Stray(u32),
    Broken,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let causes =
        prop::sample::select(vec![CancelCause::Cancel, CancelCause::TimeLimit, CancelCause::Shutdown]);
    let written = prop::sample::select(vec![
        ("", ""),
        ("{\"name\":\"o\",\"value\":\"v\"}", "{\"name\":\"X\",\"value\":1}"),
        ("{\"name\":\"u\",\"value\":1}", ""),
        ("", "bad line"),
    ]);
    let step = prop_oneof![
        20 => Just(Move::Answer),
        2 => Just(Move::AnswerTwice),
        1 => (1u8..).prop_map(Move::Fail),
        1 => (1u8..30).prop_map(Move::Kill),
        6 => written.prop_map(|(outputs, exports)| Move::Write(outputs, exports)),
        2 => (causes, prop::option::of(0u64..9)).prop_map(|(cause, limit)| Move::Cancel(cause, limit)),
        1 => any::<u32>().prop_map(Move::Stray),
        1 => prop::sample::select(vec![Move::Broken, Move::Answer, Move::Answer, Move::Answer]),
    ];
    prop::collection::vec(step, 0..40)
}

fn events_of(made: &Move, pending: Option<&Event>) -> Vec<Event> {
    let of_call = |end: ProcessEnd, failure: &str, files: Option<(&str, &str)>| match pending {
        Some(Event::Exited { process, .. }) => {
            let content = |text: &str| Some(FileContent::Bytes(text.as_bytes().to_vec()));
            let (outputs, exports) = files.map_or((None, None), |(o, e)| (content(o), content(e)));
            vec![Event::Exited { process: *process, end, shell: None, outputs, exports, ran: None }]
        }
        Some(Event::Fetched { process, .. }) if !failure.is_empty() => {
            let failure = FetchFailure { class: Class::NotFound, message: failure.to_owned() };
            vec![Event::Fetched { process: *process, result: Err(failure) }]
        }
        other => other.cloned().into_iter().collect(),
    };
    match made {
        Move::Answer => pending.cloned().into_iter().collect(),
        Move::AnswerTwice => pending.into_iter().chain(pending).cloned().collect(),
        Move::Fail(code) => of_call(ProcessEnd::Exited(ExitStatus::Code(*code)), "no func.yml", None),
        Move::Kill(signal) => of_call(ProcessEnd::Exited(ExitStatus::Signal(*signal)), "", None),
        Move::Write(outputs, exports) => {
            of_call(ProcessEnd::Exited(ExitStatus::Code(0)), "", Some((outputs, exports)))
        }
        Move::Cancel(cause, limit) => {
            vec![Event::CancelAsked {
                cause: *cause,
                grace_limit: limit.map(Duration::from_secs),
                force: false,
            }]
        }
        Move::Stray(process) => vec![Event::Exited {
            process: *process | 1 << 31,
            end: ProcessEnd::Exited(ExitStatus::Code(0)),
            shell: None,
            outputs: None,
            exports: None,
            ran: None,
        }],
        Move::Broken => vec![Event::Broken { message: "defect".into() }],
    }
}

/// Plays all moves, then answers until the job is over. Returns all events with their effects.
fn play(spec: &JobSpec, moves: &[Move]) -> Vec<(Event, Vec<Effect>)> {
    let world = World::new(FILES);
    let mut machine = Machine::new(spec).unwrap_or_else(|findings| panic!("{findings:?}"));
    let mut pending = Some(Event::Admitted { at: 7 });
    let mut played = Vec::new();
    let rest = std::iter::repeat_n(&Move::Answer, 500);
    for made in moves.iter().chain(rest) {
        for event in events_of(made, pending.as_ref()) {
            let effects = machine.handle(&event, played.len() as u64);
            if pending.as_ref().is_some_and(|waited| is_answer(waited, &event)) {
                pending = None;
            }
            if let Some(answer) = effects.iter().find_map(|effect| world.answer(effect)) {
                pending = Some(answer);
            }
            played.push((event, effects));
        }
    }
    assert!(machine.has_ended(), "the job hangs");
    played
}

/// True if `event` is an answer to `waited`, with any content.
fn is_answer(waited: &Event, event: &Event) -> bool {
    match (waited, event) {
        (Event::Fetched { process, .. }, Event::Fetched { process: other, .. })
        | (Event::Exited { process, .. }, Event::Exited { process: other, .. }) => process == other,
        (Event::Admitted { .. }, Event::Admitted { .. }) => true,
        _ => false,
    }
}

fn is_start(effect: &Effect) -> bool {
    matches!(effect, Effect::Spawn(_) | Effect::Fetch { .. })
}

/// Every order of an end and two cancels, at every point of jobs of three shapes: the first counts, and there is one
/// end. A process that was told to stop counts as stopped, whatever it returns.
#[test]
fn fault_13_whichever_of_end_and_cancel_comes_first_counts() {
    let world = World::new(FILES);
    let asks = [CancelCause::Cancel, CancelCause::Finish, CancelCause::TimeLimit, CancelCause::Shutdown];
    let mut played = 0;
    for steps in [
        "[{name: a, func: ./f0}]",
        "[{name: a, func: ./f2}, {name: b, func: ./f0}]",
        "[{name: a, func: ./f3}]",
    ] {
        for (exit, first, second) in choices(&asks) {
            // Each cancel comes before the awaited event of its number.
            for at in 0..12 {
                for later in at..12 {
                    end_of(&world, steps, exit, (at, first), (later, second));
                    played += 1;
                }
            }
        }
    }
    assert!(played > 10_000, "{played}");
}

/// `event` with the number of another attempt.
fn of_another(event: &Event) -> Event {
    match event.clone() {
        Event::Fetched { process, result } => Event::Fetched { process: process + 1, result },
        Event::Exited { process, end, shell, outputs, exports, ran: None } => {
            Event::Exited { process: process + 1, end, shell, outputs, exports, ran: None }
        }
        event => event,
    }
}

#[test]
fn answers_for_another_attempt_change_nothing() {
    let world = World::new(FILES);
    let mut job = Driven::new(&world, &request("[{name: a, func: ./f0}]"));
    assert!(job.go_on(), "admitted");
    while let Some(awaited) = job.pending.clone() {
        assert_eq!(job.machine.handle(&of_another(&awaited), 0), [], "{awaited:?}");
        assert!(job.trace.finish.is_none());
        job.go_on();
    }
    assert_eq!(job.trace.started(), ["a"]);
    assert!(job.machine.has_ended());
}

fn choices(asks: &[CancelCause]) -> Vec<(u8, CancelCause, CancelCause)> {
    let pairs = asks.iter().flat_map(|first| asks.iter().map(move |second| (*first, *second)));
    pairs.flat_map(|(first, second)| [0, 1, 7].map(|exit| (exit, first, second))).collect()
}

fn end_of(world: &World, steps: &str, exit: u8, first: (usize, CancelCause), second: (usize, CancelCause)) {
    let mut machine = Machine::new(&request(steps)).unwrap_or_else(|findings| panic!("{findings:?}"));
    let mut pending = Some(Event::Admitted { at: 7 });
    let mut ends = Vec::new();
    let mut asked = None;
    let mut number = 0;
    loop {
        let mut events = Vec::new();
        for (at, cause) in [first, second] {
            if at == number {
                events.push(Event::CancelAsked { cause, grace_limit: None, force: false });
            }
        }
        let answer = pending.take();
        let fails = |event: &Event| matches!(event, Event::Exited { .. });
        if let Some(Event::Exited { process, .. }) = answer.as_ref().filter(|answer| fails(answer)) {
            let end = ProcessEnd::Exited(ExitStatus::Code(exit));
            events.push(Event::Exited {
                process: *process,
                end,
                shell: None,
                outputs: None,
                exports: None,
                ran: None,
            });
        } else {
            events.extend(answer);
        }
        for event in events {
            if let (Event::CancelAsked { cause, .. }, None, true) = (&event, asked, ends.is_empty()) {
                asked = Some(*cause);
            }
            for effect in machine.handle(&event, 0) {
                if let Effect::Finish { outcome, .. } = &effect {
                    ends.push(outcome.clone());
                }
                if let Some(next) = world.answer(&effect) {
                    pending = Some(next);
                }
            }
        }
        number += 1;
        if number > 40 || pending.is_none() && number > second.0 {
            break;
        }
    }
    let [outcome] = ends.as_slice() else { panic!("{} ends of {steps}", ends.len()) };
    match asked {
        Some(cause) => {
            assert_eq!(*outcome, step_runner_model::Outcome::stopped(cause), "{steps} {first:?} {second:?}");
        }
        None => assert!(matches!(outcome.exit_code, -1..=255), "{outcome:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// [`World::run`] checks what each start promises.
    #[test]
    fn a_process_that_is_said_to_end_its_job_ends_it_without_a_word(spec in programs()) {
        World::new(FILES).run(&spec);
    }

    #[test]
    fn a_job_ends_once_and_nothing_starts_after_a_cancel(spec in programs(), moves in moves()) {
        let played = play(&spec, &moves);
        let effects: Vec<&Effect> = played.iter().flat_map(|(_, effects)| effects).collect();
        let ends = effects.iter().filter(|effect| matches!(effect, Effect::Finish { .. })).count();
        prop_assert_eq!(ends, 1);
        let last_ends = matches!(effects.last(), Some(Effect::Finish { .. }));
        prop_assert!(last_ends);
        if let Some(asked) = played.iter().position(|(event, _)| matches!(event, Event::CancelAsked { .. })) {
            prop_assert!(!played[asked..].iter().flat_map(|(_, effects)| effects).any(is_start));
        }
        // A job does one thing at a time: between two starts there is an answer.
        for (_, effects) in &played {
            prop_assert!(effects.iter().filter(|effect| is_start(effect)).count() <= 1);
        }
    }

    #[test]
    fn a_stop_counts_whatever_the_process_then_returns(spec in programs(), moves in moves()) {
        let played = play(&spec, &moves);
        let stopped = played.iter().position(|(_, effects)| effects.iter().any(|e| matches!(e, Effect::Stop { .. })));
        let end = played.iter().flat_map(|(_, effects)| effects).find_map(|effect| match effect {
            Effect::Finish { outcome, root, .. } => Some((outcome, root)),
            _ => None,
        });
        let (outcome, root) = end.unwrap();
        if let Some(at) = stopped {
            let Event::CancelAsked { cause, .. } = played[at].0 else { panic!("a stop without a cancel") };
            prop_assert_eq!(outcome, &step_runner_model::Outcome::stopped(cause));
            prop_assert_eq!(root.status, StepStatus::Cancelled);
        }
        let open = played.iter().flat_map(|(_, effects)| effects).filter_map(|effect| match effect {
            Effect::Note(note) if note.call != ROOT => Some((note.call, note.result.outcome)),
            _ => None,
        });
        let open: BTreeMap<_, _> = open.collect();
        prop_assert!(open.values().all(|outcome| *outcome != StepOutcome::Unspecified), "every step that began has ended");
    }

    #[test]
    fn a_replay_of_the_records_gives_the_same_effects(spec in programs(), moves in moves(), cut in any::<prop::sample::Index>()) {
        let played = play(&spec, &moves);
        let first = encode(&Event::Accepted(Box::new(spec)), 0).unwrap();
        let (Event::Accepted(spec), _) = decode(&first).unwrap() else { panic!("another event") };
        let mut again = Machine::new(&spec).unwrap_or_else(|findings| panic!("{findings:?}"));
        // The daemon dies at `cut`; the next daemon replays and goes on.
        let cut = cut.index(played.len());
        for (at, (event, effects)) in played.iter().enumerate() {
            let event = if at < cut { decode(&encode(event, 0).unwrap()).unwrap().0 } else { event.clone() };
            prop_assert!(again.handle(&event, at as u64) == *effects, "effects of event {} differ: {:?}", at, event);
        }
    }

    #[test]
    fn fault_77_values_in_the_record_have_the_effects_of_the_files_they_were_read_from(spec in programs(), moves in moves()) {
        let played = play(&spec, &moves);
        let new = || Machine::new(&spec).unwrap_or_else(|findings| panic!("{findings:?}"));
        let (mut machine, mut recorder, mut record) = (new(), Recorder::default(), Vec::new());
        for (at, (event, effects)) in played.iter().enumerate() {
            let event = machine.read_files(event.clone());
            let (event, bytes) = recorder.encode(event, at as u64).unwrap();
            recorder.recorded(&event, bytes.len());
            let has_files = matches!(&event, Event::Exited { outputs, exports, .. } if outputs.is_some() || exports.is_some());
            prop_assert!(!has_files, "files are recorded");
            prop_assert!(machine.handle(&event, at as u64) == *effects, "effects of event {} differ: {:?}", at, event);
            record.push(bytes);
        }
        let replayed = Replayed::new(new()).play(record.iter().map(Vec::as_slice)).unwrap();
        prop_assert!(replayed.effects.iter().eq(played.iter().flat_map(|(_, effects)| effects)));
        prop_assert_eq!(replayed.recorder.count(), recorder.count());
    }
}
