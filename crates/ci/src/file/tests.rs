//! Hostile and broken configurations. Each is refused with a place, or gives the documented result; nothing hangs.

mod includes;
mod inputs;
mod keywords;
mod limits;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use proptest::prelude::*;
use step_runner_lang::diagnostic::Severity;

use super::*;
use crate::files::ReadError;
use crate::files::tests::Texts;
use crate::job::{Circumstances, Pipeline, of_file};
use crate::plan::{Images, plan};

fn read_all(files: &[(&'static str, String)]) -> Result<CiFile, Vec<String>> {
    let files = Texts(files.iter().cloned().collect());
    let facts = Facts { config_path: "ci.yml".to_owned(), ..Facts::default() };
    let (inputs, given) = (IndexMap::new(), Level::new());
    let source = Source { path: "ci.yml", files: &files, inputs: &inputs, facts: &facts, given: &given };
    read(&source).map_err(|findings| findings.iter().map(ToString::to_string).collect())
}

/// Joins texts, one for each number.
fn each(count: usize, text: impl Fn(usize) -> String) -> String {
    (0..count).map(text).collect()
}

fn read_one(text: &str) -> Result<CiFile, Vec<String>> {
    read_all(&[("ci.yml", text.to_owned())])
}

/// Returns the errors of a text that is refused.
fn errors(text: &str) -> Vec<String> {
    read_one(text).unwrap_err()
}

/// True if one of the errors at a place holds a text.
fn has(errors: &[String], place: &str, part: &str) -> bool {
    errors.iter().any(|error| error.starts_with(&format!("ci.yml:{place}: ")) && error.contains(part))
}

#[test]
fn cycles_are_found_wherever_they_are() {
    for (text, place, part) in [
        ("a: {extends: a, script: x}", "1:14", "extends itself"),
        (".a: {extends: .b}\n.b: {extends: .a}\nc: {extends: .a, script: x}", "2:15", "extends itself"),
        ("a: {script: !reference [a, script]}", "1:24", "leads back to itself"),
        ("a: !reference [a]\nb: {script: x}", "1:15", "leads back to itself"),
        (".a: !reference [.b, x]\n.b: !reference [.a, x]\nc: {script: x}", "1:16", "leads"),
        ("a: {script: x, needs: [a]}", "1:1", "needs itself"),
        ("include: ci.yml\na: {script: x}", "1:10", "includes itself"),
    ] {
        let errors = errors(text);
        assert!(has(&errors, place, part), "{text}: {errors:?}");
    }
}

#[test]
fn a_cycle_is_told_once_with_its_jobs() {
    let told = errors(
        "a: {script: x, needs: [d, b]}\nb: {script: x, needs: [c]}\nc: {script: x, needs: [a]}\nd: {script: x}\n\
         e: {script: x, needs: [e]}",
    );
    assert_eq!(
        told,
        [
            "ci.yml:1:1: a.needs: \"a\" needs itself: a → b → c → a (take one of these out of \"needs\")",
            "ci.yml:5:1: e.needs: \"e\" needs itself: e → e (take one of these out of \"needs\")",
        ]
    );
}

#[test]
fn what_is_wrong_in_extends_is_told_where_it_is_and_hides_nothing() {
    let told = errors(".a: {extends: .b}\n.b: {extends: c}\nc: {extends: .a}\nd: {extends: c, script: [5]}");
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(has(&told, "3:14", "extends itself: .a → .b → c → .a"), "{told:?}");
    assert!(has(&told, "4:26", "quote it"), "{told:?}");
    let told = errors(".a: {script: x}\nb: {extends: [.a, gone, .a]}");
    assert!(told.len() == 1 && has(&told, "2:19", "there is no job \"gone\""), "{told:?}");
    let told = errors("a: {script: x}\nb: {script: x, dependencies: [a, gone]}");
    assert!(has(&told, "2:34", "b.dependencies: there is no job"), "{told:?}");
}

#[test]
fn files_that_include_each_other_end() {
    let files = [("ci.yml", "include: a.yml".to_owned()), ("a.yml", "include: [ci.yml, a.yml]".to_owned())];
    let errors = read_all(&files).unwrap_err();
    assert_eq!(errors.len(), 2, "{errors:?}");

    // Each file includes the next one twice: without a limit these are 2^20 files.
    let names = [
        "a.yml", "b.yml", "c.yml", "d.yml", "e.yml", "f.yml", "g.yml", "h.yml", "i.yml", "j.yml", "k.yml",
        "l.yml", "m.yml", "n.yml", "o.yml", "p.yml", "q.yml", "r.yml", "s.yml", "t.yml",
    ];
    let mut files = vec![("ci.yml", "include: a.yml".to_owned())];
    files.extend(names.windows(2).map(|pair| (pair[0], format!("include: [{0}, {0}]", pair[1]))));
    files.push((names[19], "a: {script: x}".to_owned()));
    assert!(read_all(&files).unwrap_err().iter().any(|error| error.contains("more than 150 files")));
}

#[test]
fn aliases_references_and_extends_cannot_unfold_into_a_large_tree() {
    let mut aliases = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
    for level in 1..9 {
        let below = vec![format!("*a{}", level - 1); 10].join(",");
        writeln!(aliases, "a{level}: &a{level} [{below}]").unwrap();
    }
    assert!(errors(&aliases)[0].contains("64 MiB"));

    let mut references = format!(".a0: {{script: [{}]}}\n", "x,".repeat(50));
    for level in 1..9 {
        let below = vec![format!("!reference [.a{}, script]", level - 1); 20].join(",");
        writeln!(references, ".a{level}: {{script: [{below}]}}").unwrap();
    }
    references.push_str("job: {script: !reference [.a8, script]}\n");
    assert!(errors(&references).iter().any(|error| error.contains("64 MiB")));

    let mut extends = format!(".a: {{script: [{}]}}\n", "x,".repeat(10_000));
    for job in 0..100 {
        writeln!(extends, "job{job}: {{extends: .a}}").unwrap();
    }
    let told = errors(&extends);
    assert!(told.len() == 1 && told[0].contains("64 MiB after"), "{} errors", told.len());

    let large = format!("a: {{script: x}}\n#{}", "x".repeat(10 * 1024 * 1024));
    assert!(errors(&large)[0].contains("more than 2 MiB"));
}

#[test]
fn inputs_cannot_unfold_into_a_large_tree() {
    let text = format!(
        "spec: {{inputs: {{long: {{default: {}}}}}}}\n---\na:\n  script:\n{}",
        "x".repeat(100_000),
        "    - $[[ inputs.long ]] $[[ inputs.long ]]\n".repeat(2_000)
    );
    assert!(errors(&text).iter().any(|error| error.contains("64 MiB after its inputs")));
}

#[test]
fn levels_are_bounded() {
    let chain = |count: usize| {
        let mut text = String::from(".a0: {script: x}\n");
        for level in 1..count {
            writeln!(text, ".a{level}: {{extends: .a{}}}", level - 1).unwrap();
        }
        writeln!(text, "job: {{extends: .a{}}}", count - 1).unwrap();
        text
    };
    assert!(read_one(&chain(10)).is_ok());
    // The order of the jobs does not matter.
    let reversed = chain(11).lines().rev().collect::<Vec<_>>().join("\n");
    assert!(read_one(&chain(11)).is_err() && read_one(&reversed).is_err());

    let nested = |depth: usize| format!("a: {{script: {}x{}}}", "[".repeat(depth), "]".repeat(depth));
    assert!(read_one(&nested(10)).is_ok());
    assert!(errors(&nested(11))[0].contains("inside each other"));
    assert!(read_one(&nested(100_000)).is_err());
}

#[test]
fn matrices_are_counted_before_they_are_made() {
    let matrix = |keys: usize, values: &str| {
        let keys = each(keys, |key| format!("K{key}: {values}, "));
        format!("a: {{script: x, parallel: {{matrix: [{{{keys}}}]}}}}")
    };
    assert!(errors(&matrix(20, "[a, b]"))[0].contains("1048576 combinations"));
    assert!(errors(&matrix(500, "[a, b, c, d, e, f, g, h]"))[0].contains("combinations"));
    assert!(errors(&matrix(300, "a"))[0].contains("a name of the matrix"));
    assert_eq!(read_one(&matrix(3, "[a, b]")).unwrap().jobs["a"].copies.len(), 8);
    let many = each(100, |job| format!("j{job}: {{script: x, parallel: 200}}\n"));
    assert!(errors(&many)[0].contains("more than 10000 jobs"));
    for parallel in ["0", "201", "1.5", "-1", "x", "{matrix: []}", "{matrix: {A: b}}", "{}"] {
        assert!(read_one(&format!("a: {{script: x, parallel: {parallel}}}")).is_err(), "{parallel}");
    }
}

#[test]
fn names_and_texts_that_could_deceive_are_refused() {
    for text in [
        "\"a\\nb\": {script: x}",
        "\"a\\u001b[31m\": {script: x}",
        "\"a\\0b\": {script: x}",
        "\"\": {script: x}",
        "a: {script: \"x\\0y\"}",
        "a: {script: x, variables: {A: \"x\\0y\"}}",
        "a: {script: x, variables: {\"A\\0\": b}}",
        "a: {script: x, variables: {\"\": b}}",
    ] {
        let errors = errors(text);
        assert!(errors.iter().all(|error| !error.contains(['\n', '\u{1b}', '\0'])), "{errors:?}");
    }
    assert!(read_one(&format!("{}: {{script: x}}", "a".repeat(256))).is_err());
    assert!(read_one(&format!("{}: {{script: x}}", "ü".repeat(255))).is_ok());
}

#[test]
fn regular_expressions_that_explode_elsewhere_do_not_here() {
    let rule = |pattern: &str| format!("a:\n  script: x\n  rules: [{{if: '$CI =~ /{pattern}/'}}]\n");
    assert!(errors(&rule("(a{1000}){1000}"))[0].contains("too large"));
    assert!(errors(&rule("(?=a)"))[0].contains("look-around"));
    assert!(read_one(&rule("^(([a-z])+.)+[A-Z]([a-z])+$")).is_ok());
}

#[test]
fn a_thousand_mistakes_are_reported_and_no_more() {
    let text = each(5_000, |job| format!("j{job}: {{scirpt: x}}\n"));
    assert_eq!(errors(&text).len(), 1_000);
}

#[test]
fn what_is_no_configuration_is_refused() {
    for text in [
        "",
        "a",
        "[]",
        "5",
        "a: b",
        "a: {}",
        ".a: {script: x}",
        "stages: [a]",
        "a: {script: x}\n---\nb: {script: y}",
        "a: [",
    ] {
        assert!(!errors(text).is_empty(), "{text}");
    }
}

#[test]
fn a_key_that_is_null_is_not_there() {
    let file = read_one("a: {script: x, cache: ~, image: null, rules: ~, variables: , foo: ~}");
    assert!(has(&file.unwrap_err(), "1:62", "foo"));
    let file = read_one("default: {image: i}\na: {script: x, image: null, cache: ~}").unwrap();
    assert!(file.jobs["a"].image.is_some());
}

#[test]
fn an_own_keyword_replaces_a_default_whole() {
    let file = read_one(
        "default: {artifacts: {paths: [a], when: always}, timeout: 1h, before_script: [b]}\na: {script: x, artifacts: {paths: [c]}, before_script: []}",
    );
    let job = &file.unwrap().jobs["a"];
    let artifacts = job.artifacts.as_ref().unwrap();
    assert_eq!((artifacts.paths.as_slice(), artifacts.when.as_deref()), (["c".to_owned()].as_slice(), None));
    assert_eq!((job.timeout, job.before_script.len()), (None, 0));
}

#[test]
fn jobs_that_must_run_before_are_in_an_order_and_each_is_there_once() {
    let file = read_one(
        "stages: [a, b, c]\n\
         one: {stage: a, script: x, artifacts: {paths: [x]}}\n\
         two: {stage: a, script: x, parallel: 2, artifacts: {paths: [x]}}\n\
         by-hand: {stage: a, script: x, artifacts: {paths: [x]}, rules: [{when: manual}]}\n\
         plain: {stage: a, script: x}\n\
         middle: {stage: b, script: x, needs: [one, {job: two, artifacts: false}]}\n\
         last: {stage: c, script: x, needs: [plain, middle, one, {job: gone, optional: true}]}\n\
         all: {stage: c, script: x}\n\
         none: {stage: c, script: x, needs: []}\n\
         named: {stage: c, script: x, dependencies: [by-hand]}\n",
    )
    .unwrap();
    let (files, level) = (Texts(BTreeMap::new()), Level::new());
    let circumstances = Circumstances { facts: None, files: &files, given: &level, dotenv: &level };
    let mut pipeline = Pipeline::new(&file, &circumstances);
    for (job, before) in [
        ("last", &["plain", "one", "two 1/2", "two 2/2", "middle"][..]),
        ("all", &["one", "two 1/2", "two 2/2"]),
        ("none", &[]),
        ("named", &["by-hand"]),
        ("one", &[]),
    ] {
        assert_eq!(pipeline.needed(job).unwrap(), before, "{job}");
    }
    assert!(pipeline.needed("gone").is_err());
}

/// Reads and plans every job of a text. Nothing panics, and errors have places.
fn walk(text: &str) {
    let files = Texts(BTreeMap::from([("ci.yml", text.to_owned())]));
    let facts = Facts::default();
    let (inputs, level) = (IndexMap::new(), Level::new());
    let source = Source { path: "ci.yml", files: &files, inputs: &inputs, facts: &facts, given: &level };
    match read(&source) {
        Err(findings) => {
            assert!(findings.iter().any(|finding| finding.severity == Severity::Error));
            assert!(findings.iter().all(|finding| finding.at.line >= 1 && finding.at.column >= 1));
        }
        Ok(file) => {
            let circumstances =
                Circumstances { facts: Some(&facts), files: &files, given: &level, dotenv: &level };
            for name in file.jobs.keys() {
                if let Ok(job) = of_file(&file, name, &circumstances) {
                    let plan = plan(&job, Images::Provided, None).unwrap();
                    assert!(plan.steps.starts_with("spec:\n"));
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in any::<String>()) {
        walk(&text);
    }

    #[test]
    fn any_text_like_a_configuration_is_read_or_refused(
        lines in proptest::collection::vec(
            "( {0,4}(a|b|\\.c|default|variables|script|rules|- if|extends|needs|parallel|cache|image|include|stages):( (a|\\.c|\\[a, b\\]|!reference \\[a, script\\]|\\$A == \"b\"|[0-9]{1,3}|\\{matrix: \\[\\{A: \\[b, c\\]\\}\\]\\}|yes|~))?| {2,6}- (a|!reference \\[\\.c, script\\]|\\[b\\]))",
            0..14,
        ),
    ) {
        walk(&lines.join("\n"));
    }

    #[test]
    fn what_a_user_writes_never_becomes_part_of_the_document(script in "[ -~\n]{1,40}") {
        let json = serde_json::to_string(&script).unwrap();
        let file = read_one(&format!("job: {{script: [{json}], artifacts: {{paths: [{json}]}}, after_script: [{json}]}}")).unwrap();
        let (files, level) = (Texts(BTreeMap::new()), Level::new());
        let circumstances = Circumstances { facts: None, files: &files, given: &level, dotenv: &level };
        let planned = plan(&of_file(&file, "job", &circumstances).unwrap(), Images::Provided, None).unwrap();
        let plain = read_one("job: {script: [a], artifacts: {paths: [a]}, after_script: [a]}").unwrap();
        let expected = plan(&of_file(&plain, "job", &circumstances).unwrap(), Images::Provided, None).unwrap();
        prop_assert_eq!(planned.steps, expected.steps);
        prop_assert_eq!(planned.inputs["step_script"][0].as_str(), Some(script.as_str()));
    }
}
