//! Files of GitLab Runners, with what becomes of them.
//!
//! `tests/imports/NAME.txt` has the report about `NAME.toml`, the agent's file, and templates of Pods.
//! `UPDATE_EXPECTED=1` renews it.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use step_runner_agent::config::Config;
use step_runner_agent::import::{Fate, Import};

fn files() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/imports");
    let paths = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = paths.filter(|path| path.extension().is_some_and(|end| end == "toml")).collect();
    paths.sort();
    paths
}

fn template(index: usize) -> String {
    format!("/etc/step-runner/pod-{index}.json")
}

#[test]
fn a32_each_file_gives_the_expected_report_and_a_file_that_the_agent_reads() {
    let mut wrong = Vec::new();
    for path in files() {
        let import = Import::read(&fs::read_to_string(&path).unwrap()).unwrap();
        let file = import.apply("", &template).unwrap();
        let config = Config::read("agent.toml", &file).unwrap();
        assert_eq!(config.entries.len(), import.entries.len());
        assert!(config.warnings.is_empty(), "{:?}", config.warnings);
        let mut shown: Vec<String> = import.lines.iter().map(ToString::to_string).collect();
        shown.push(format!("\n{file}"));
        for entry in &import.entries {
            shown.extend(entry.pod_template.iter().map(|pod| serde_json::to_string_pretty(pod).unwrap()));
        }
        let shown = shown.join("\n") + "\n";
        let expected = path.with_extension("txt");
        if std::env::var_os("UPDATE_EXPECTED").is_some() {
            fs::write(&expected, &shown).unwrap();
        } else if fs::read_to_string(&expected).unwrap_or_default() != shown {
            wrong.push(format!("{} differs:\n{shown}", expected.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a32_reports_are_in_the_order_of_the_file_and_have_no_secret() {
    for path in files() {
        let text = fs::read_to_string(&path).unwrap();
        let import = Import::read(&text).unwrap();
        let reported: Vec<usize> = import.lines.iter().map(|line| line.line).collect();
        assert!(reported.is_sorted(), "{reported:?}");
        let shown: String = import.lines.iter().map(ToString::to_string).collect();
        assert!(!shown.contains("hunter22") && !shown.contains("glrt") && !shown.contains("Fake"), "{shown}");
        let lost = import.lines.iter().any(|line| matches!(line.fate, Fate::NotSupported(_)));
        assert_eq!(import.is_complete(), !lost);
    }
}

#[test]
fn a32_entries_are_added_to_a_file_that_is_there() {
    let text =
        fs::read_to_string(files().iter().find(|path| path.ends_with("docker.toml")).unwrap()).unwrap();
    let import = Import::read(&text).unwrap();
    let before = "concurrent = 2\n\n[[runners]]\nurl = \"https://a.test\"\ntoken = \"glrt-z\"\n";
    let after = import.apply(before, &template).unwrap();
    assert!(after.starts_with(before));
    let config = Config::read("agent.toml", &after).unwrap();
    assert_eq!((config.limits.concurrent, config.entries.len()), (2, 2));
    assert!(Import::read("[[runners]\n").is_err_and(|error| error.line == 1));
}

#[test]
fn a32_a_token_in_the_place_of_a_key_is_not_shown() {
    let text = "glrt-s3cret_abc = 1\n[[runners]]\nurl = \"https://a.test\"\ntoken = \"x\"\nGR1348941s3cret = 1\nexecutor = \"shell\"\n";
    let shown: Vec<String> = Import::read(text).unwrap().lines.iter().map(ToString::to_string).collect();
    assert!(shown[0].starts_with("1: glrt-[MASKED]: not supported"), "{shown:?}");
    assert!(!shown.concat().contains("s3cret"), "{shown:?}");
}

proptest! {
    #[test]
    fn a32_what_can_be_imported_is_a_configuration_or_says_where_it_is_wrong(
        cut in 0..1_000_usize, with in "[a-z =\"\\[\\]\n]{0,12}", which in 0..4_usize,
    ) {
        let text = fs::read_to_string(&files()[which]).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let at = cut % lines.len();
        let text = [&lines[..at], &[with.as_str()], &lines[at + 1..]].concat().join("\n");
        if let Ok(import) = Import::read(&text)
            && let Ok(file) = import.apply("", &template)
            && let Err(errors) = Config::read("agent.toml", &file)
        {
            prop_assert!(!errors.messages().iter().any(|message| message.contains("not TOML")), "{errors}\n{file}");
        }
    }
}
