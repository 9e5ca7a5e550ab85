//! Facts that a replay collects beside the machine: calls that are over, trees, cancels (recovery.md).

use step_runner_model::{CancelCause, ExitStatus};

use super::world::request;
use crate::job::effect::Effect;
use crate::job::event::{Event, FetchFailure, Fetched};
use crate::job::machine::Machine;
use crate::job::record::{Recorder, encode};
use crate::job::replay::Replayed;

fn fetched(process: u32, text: &str, tree: Option<&str>) -> Event {
    let (dir, path, tree) = ("/f".to_owned(), "/f/func.yml".to_owned(), tree.map(str::to_owned));
    Event::Fetched { process, result: Ok(Fetched { dir, path, text: text.to_owned(), tree, version: None }) }
}

fn record(events: &[Event]) -> Vec<Vec<u8>> {
    let mut recorder = Recorder::default();
    let encode = |event: &Event| {
        let (event, bytes) = recorder.encode(event.clone(), 7).unwrap();
        recorder.recorded(&event, bytes.len());
        bytes
    };
    events.iter().map(encode).collect()
}

fn new() -> Machine {
    Machine::new(&request("[{name: a, func: ./a}, {name: b, func: ./b}, {name: c, func: ./c}]"))
        .unwrap_or_else(|findings| panic!("{findings:?}"))
}

#[test]
fn a_replay_knows_what_is_over_and_the_texts_that_were_recorded_once() {
    let long = |word: &str| format!("{{}}\n---\nexec: {{command: [{word}]}}\n# {}\n", "x".repeat(2_000));
    let code = ExitStatus::Code(0);
    let events = [
        Event::Admitted { at: 5 },
        fetched(1, &long("one"), Some("/tree")),
        Event::returned_nothing(1, code, None, None),
        fetched(2, &long("two"), None),
        Event::returned_nothing(2, code, None, None),
        fetched(3, &long("one"), None),
    ];
    let played: Vec<Effect> = {
        let mut machine = new();
        events.iter().flat_map(|event| machine.handle(event, 7)).collect()
    };
    let recorded = record(&events);
    assert!(recorded[5].len() < 100, "the text is there already");
    let replayed = Replayed::new(new()).play(recorded.iter().map(Vec::as_slice)).unwrap();
    assert!(replayed.effects.iter().eq(&played));
    let sorted = |numbers: &std::collections::HashSet<u32>| {
        let mut numbers: Vec<u32> = numbers.iter().copied().collect();
        numbers.sort_unstable();
        numbers
    };
    assert_eq!((sorted(&replayed.fetched), sorted(&replayed.exited)), (vec![1, 2, 3], vec![1, 2]));
    assert_eq!((replayed.trees, replayed.admitted), (vec!["/tree".to_owned()], Some(5)));
    assert!(!replayed.is_cancelled && replayed.unmasked.is_none());
    let commands = replayed.effects.iter().filter_map(|effect| match effect {
        Effect::Spawn(spawn) => Some(&spawn.program),
        _ => None,
    });
    let command = |word: &str| crate::job::effect::Program::Command(vec![word.to_owned()]);
    assert!(commands.eq(&[command("one"), command("two"), command("one")]));
}

#[test]
fn a_replay_knows_failed_fetches_cancels_and_what_could_not_be_masked() {
    let failure = FetchFailure { class: step_runner_lang::diagnostic::Class::Fetch, message: "no".into() };
    let recorded = record(&[
        Event::Admitted { at: 5 },
        Event::Fetched { process: 1, result: Err(failure) },
        Event::CancelAsked { cause: CancelCause::Cancel, grace_limit: None, force: false },
        Event::Unmasked { op: 4, message: "full".into() },
    ]);
    let replayed = Replayed::new(new()).play(recorded.iter().map(Vec::as_slice)).unwrap();
    assert!(replayed.fetched.contains(&1) && replayed.trees.is_empty() && replayed.is_cancelled);
    assert_eq!(replayed.unmasked, Some((4, "full".to_owned())));
    assert_eq!(replayed.recorder.count(), 5);
}

#[test]
fn a_record_without_the_text_that_it_names_is_told() {
    let Event::Fetched { result: Ok(fetched), .. } = fetched(1, "", None) else { panic!("not found") };
    let again = encode(&Event::FetchedAgain { process: 1, text_of: 9, fetched }, 7).unwrap();
    let error = Replayed::new(new()).play([again.as_slice()].into_iter()).err().unwrap();
    assert_eq!(error.to_string(), "event 9 of the record, which has the text of a function, is not there");
}
