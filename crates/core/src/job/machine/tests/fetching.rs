//! Functions that come over the network: the parameters of their fetch, and the log lines about it (language.md §7.7).

use step_runner_lang::diagnostic::Class;
use step_runner_model::ExitStatus;

use super::world::{World, request};
use crate::job::effect::Effect;
use crate::job::event::{Event, FetchFailure, Fetched, FileContent, ProcessEnd};
use crate::job::machine::Machine;

const LEAF: &str = "{}\n---\nexec: {command: [leaf]}\n";

fn fetched(version: Option<&str>) -> Fetched {
    Fetched {
        dir: "/cache/tree".into(),
        path: "/cache/tree/func.yml".into(),
        text: LEAF.into(),
        tree: Some("/cache/tree".into()),
        version: version.map(str::to_owned),
    }
}

/// Number and environment of the fetch that is the last effect.
fn search(effects: &[Effect]) -> (u32, Vec<(String, String)>) {
    let text = |bytes: &Vec<u8>| String::from_utf8(bytes.clone()).unwrap();
    match effects.last() {
        Some(Effect::Fetch { process, environment, .. }) => {
            (*process, environment.iter().map(|(name, value)| (text(name), text(value))).collect())
        }
        other => panic!("{other:?}"),
    }
}

fn lines(effects: &[Effect]) -> Vec<&str> {
    let logged = effects.iter().filter(|effect| matches!(effect, Effect::Log { .. }));
    logged.map(|effect| if let Effect::Log { text, .. } = effect { text.as_str() } else { "" }).collect()
}

#[test]
fn the_log_pins_what_was_fetched_without_credentials() {
    let digest = format!("sha256:{}", "a".repeat(64));
    for (reference, version, expected) in [
        ("u:pass@Host.example:8443/g/p/-/x@v1", "c0ffee", "host.example:8443/g/p@v1: commit c0ffee"),
        ("https://host/g/p.git?token=pass@main", "c0ffee", "host/g/p.git@main: commit c0ffee"),
        ("Host.example/g/p:1 x", digest.as_str(), &format!("host.example/g/p:1: digest {digest}")),
        (
            &format!("host.example/g/p@{digest}"),
            &digest,
            &format!("host.example/g/p@{digest}: digest {digest}"),
        ),
    ] {
        let mut machine = Machine::new(&request(&format!("[{{name: a, func: '{reference}'}}]"))).unwrap();
        let (process, _) = search(&machine.handle(&Event::Admitted { at: 0 }, 0));
        let effects = machine.handle(&Event::Fetched { process, result: Ok(fetched(Some(version))) }, 0);
        let expected = format!("Fetched step name=a from {expected}");
        assert_eq!(lines(&effects), [expected.as_str(), "Running step name=a"]);
    }
}

#[test]
fn an_error_in_a_fetched_function_names_its_place_in_its_tree_and_no_folder_of_the_daemon() {
    let file = |path: &str, text: &str, tree: Option<&str>| Fetched {
        dir: format!("/cache/tree/{path}"),
        path: format!("/cache/tree/{path}/func.yml"),
        text: text.into(),
        tree: tree.map(str::to_owned),
        version: None,
    };
    let calls = "{}\n---\nrun: [{name: in, func: ../../other}]\n";
    for reference in ["https://u:pass@host.example/g/p/-/x@v1", "host.example/g/p:1 steps/x"] {
        let mut machine = Machine::new(&request(&format!("[{{name: a, func: '{reference}'}}]"))).unwrap();
        let (process, _) = search(&machine.handle(&Event::Admitted { at: 0 }, 0));
        let result = Ok(file("steps/x", calls, Some("/cache/tree")));
        let (process, _) = search(&machine.handle(&Event::Fetched { process, result }, 0));
        let result = Ok(file("steps/x/../../other", "{}\n---\nexec: {comand: [x]}\n", None));
        let effects = machine.handle(&Event::Fetched { process, result }, 0);
        let origin = if reference.contains('@') { "host.example/g/p@v1" } else { "host.example/g/p:1" };
        let expected = format!("{origin} other/func.yml:3:8: exec.comand: unknown key");
        let Some(Effect::Finish { outcome, .. }) = effects.last() else { panic!("{effects:?}") };
        assert!(outcome.message.contains(&expected), "{}", outcome.message);
        assert!(!outcome.message.contains("/cache"), "{}", outcome.message);
    }
}

#[test]
fn what_was_not_fetched_is_not_pinned() {
    let mut machine =
        Machine::new(&request("[{name: a, func: ./a}, {name: b, func: 'h.example/p@v1'}]")).unwrap();
    let (process, environment) = search(&machine.handle(&Event::Admitted { at: 0 }, 0));
    assert!(environment.is_empty(), "a local search needs none");
    let effects = machine.handle(&Event::Fetched { process, result: Ok(fetched(None)) }, 0);
    assert_eq!(lines(&effects), ["Running step name=a"]);
    let end = ProcessEnd::Exited(ExitStatus::Code(0));
    let effects = machine
        .handle(&Event::Exited { process, end, shell: None, outputs: None, exports: None, ran: None }, 0);
    let failure = FetchFailure { class: Class::Fetch, message: "no such revision".into() };
    let (process, _) = search(&effects);
    let effects = machine.handle(&Event::Fetched { process, result: Err(failure) }, 0);
    assert!(lines(&effects).is_empty());
}

#[test]
fn a_search_sees_what_earlier_steps_exported() {
    let steps =
        "[{name: a, script: 'x > ${{ export_file }}'}, {name: b, env: {OWN: x}, func: 'h.example/p@v1'}]";
    let mut machine = Machine::new(&request(steps)).unwrap();
    machine.handle(&Event::Admitted { at: 0 }, 0);
    let exports = Some(FileContent::Bytes(br#"{"name":"DOCKER_AUTH_CONFIG","value":"{}"}"#.to_vec()));
    let end = ProcessEnd::Exited(ExitStatus::Code(0));
    let process = 1;
    let (_, environment) = search(
        &machine.handle(&Event::Exited { process, end, shell: None, outputs: None, exports, ran: None }, 0),
    );
    let value = |name: &str| environment.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    assert_eq!(value("DOCKER_AUTH_CONFIG"), Some("{}"));
    assert_eq!(value("OWN"), None, "a step's own environment is evaluated after its function is there");
}

#[test]
fn credentials_written_in_references_are_hidden_though_their_steps_never_begin() {
    let world = World::new([(
        "/job/a/func.yml",
        "{}\n---\nrun: [{name: a, script: exit 1}, {name: b, func: 'u:in%40ner@h.example/p@v1'}]\n",
    )]);
    let steps = "[{name: a, func: ./a}, {name: b, func: 'https://user@h.example/p@v1'}, \
                 {name: c, func: {git: {url: 'https://u:pass@h.example/p', rev: '${{ env.REV }}'}}}, \
                 {name: d, func: 'u:part@h.example/p@${{ env.REV }}'}, {name: e, func: 'echo@${{ env.REV }}'}]";
    let trace = world.run_steps(steps);
    assert_eq!(trace.root().sub_steps.len(), 1);
    assert_eq!(trace.phrases(), ["pass", "part", "in%40ner", "in@ner"], "a user name alone is no secret");
}

#[test]
fn a_job_that_never_begins_hides_them_too() {
    let mut machine = Machine::new(&request("[{name: a, func: 'u:pass@h.example/p@v1'}]")).unwrap();
    let effects = machine.handle(&Event::Unprepared { message: "no".into() }, 0);
    assert!(matches!(&effects[..], [Effect::Phrases(phrases), ..] if phrases == &[b"pass".to_vec()]));
}
