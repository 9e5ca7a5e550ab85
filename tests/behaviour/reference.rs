//! Tests the examples of the language reference (docs/use/step-language.md). Expressions have the stated value, files
//! pass `check`, and marked examples run and print the stated output.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use indexmap::IndexMap;
use serde_json::Value as Json;
use step_runner::lang::convert::to_json;
use step_runner::lang::diagnostic::{Diagnostic, Position};
use step_runner::lang::eval::evaluate_native;
use step_runner::lang::template::parse_inline;
use step_runner::lang::value::Value;
use step_runner::plan::builtin::find;

/// A fenced code block: the words after the fence, its line, its text.
struct Block {
    info: Vec<String>,
    line: usize,
    text: String,
}

fn page() -> String {
    document("docs/use/step-language.md")
}

fn document(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

fn blocks() -> Vec<Block> {
    blocks_of(&page())
}

fn blocks_of(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (index, line) in page.lines().enumerate() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(info), None) => {
                let info = info.split_whitespace().map(str::to_owned).collect();
                open = Some(Block { info, line: index + 1, text: String::new() });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some(block)) => block.text.extend([line, "\n"]),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block is not closed");
    blocks
}

fn evaluated(template: &str) -> Result<Json, Diagnostic> {
    let template = parse_inline(template, &Arc::from("step-language.md"), Position::START)?;
    evaluate_native(&template, &IndexMap::<String, Value>::new()).map(|value| to_json(&value))
}

/// True if both are equal. Numbers are compared as doubles.
fn same(left: &Json, right: &Json) -> bool {
    match (left, right) {
        (Json::Number(a), Json::Number(b)) => a.as_f64() == b.as_f64(),
        (Json::Array(a), Json::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(x, y)| same(x, y)),
        _ => left == right,
    }
}

fn program(folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_step-runner"));
    command.args(words).arg("--color=never").current_dir(folder);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("STEP_RUNNER_") {
            command.env_remove(name);
        }
    }
    command.output().unwrap()
}

#[test]
fn expressions_and_templates_have_the_values_of_the_page() {
    let mut count = 0;
    for block in blocks() {
        let kind = block.info.first().map(String::as_str);
        for line in block.text.lines().filter(|_| matches!(kind, Some("expression" | "template"))) {
            let (input, expected) = line.rsplit_once("=>").unwrap();
            let (input, expected) = (input.trim_end(), expected.trim());
            let template =
                if kind == Some("template") { input.to_owned() } else { format!("${{{{ {input} }}}}") };
            match (evaluated(&template), expected.strip_prefix("error ")) {
                (Ok(value), None) => {
                    let expected: Json = serde_json::from_str(expected).unwrap();
                    assert!(same(&value, &expected), "{input}: {value}, not {expected}");
                }
                (Err(error), Some(class)) => {
                    assert_eq!(serde_json::to_value(error.class).unwrap(), class, "{input}: {error}");
                }
                (result, _) => panic!("{input}: {result:?}, not {expected}"),
            }
            count += 1;
        }
    }
    assert!(count > 30, "{count}");
}

#[test]
fn files_of_the_page_pass_the_check_and_run_as_it_says() {
    let (mut checked, mut run) = (0, 0);
    let blocks = blocks();
    for (index, block) in
        blocks.iter().enumerate().filter(|(_, block)| block.info.first().is_some_and(|kind| kind == "yaml"))
    {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("example.yml"), &block.text).unwrap();
        let line = block.line;
        let output = program(folder.path(), &["check", "example.yml"]);
        assert!(output.status.success() && output.stdout.is_empty(), "line {line}: {output:?}");
        checked += 1;
        if block.info.get(1).is_none_or(|word| word != "run") {
            continue;
        }
        let inputs = block.info.iter().skip(2).flat_map(|input| ["--input", input.as_str()]);
        let words: Vec<&str> =
            ["run", "example.yml", "--output", "plain"].into_iter().chain(inputs).collect();
        let output = program(folder.path(), &words);
        assert!(output.status.success(), "line {line}: {output:?}");
        let printed = String::from_utf8(output.stdout).unwrap();
        let printed: String =
            printed.split_inclusive('\n').filter(|line| !line.starts_with("Running step")).collect();
        let expected = blocks.get(index + 1).filter(|next| next.info == ["output"]).unwrap();
        assert_eq!(printed, expected.text, "line {line}");
        run += 1;
    }
    assert!(checked > 5 && run > 3, "{checked} {run}");
}

/// Tests docs/use/functions.md. The path of each file stands behind the kind of its block. The commands must succeed.
#[test]
fn the_functions_of_the_guide_pass_the_check_and_its_commands_succeed() {
    let blocks = blocks_of(&document("docs/use/functions.md"));
    let folder = tempfile::tempdir().unwrap();
    let mut written = 0;
    for block in &blocks {
        let [_, path] = block.info.as_slice() else { continue };
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, &block.text).unwrap();
        written += 1;
    }
    fs::write(folder.path().join("site.tar"), "what a site holds\n".repeat(100)).unwrap();
    let output = program(folder.path(), &["check"]);
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    let commands: Vec<_> = blocks
        .iter()
        .filter(|block| block.info == ["console"])
        .flat_map(|block| block.text.lines().filter_map(|line| line.strip_prefix("$ step-runner ")))
        .collect();
    for command in &commands {
        let output = program(folder.path(), &command.split(' ').collect::<Vec<_>>());
        assert!(output.status.success(), "{command}: {output:?}");
    }
    let size = fs::metadata(folder.path().join("site.tar.gz")).unwrap().len();
    let output = program(folder.path(), &["run", "site"]);
    assert!(String::from_utf8(output.stdout).unwrap().contains(&format!("now {size} bytes")));
    assert!(written == 4 && commands.len() >= 3, "{written} {commands:?}");
}

#[test]
fn the_page_names_every_builtin() {
    let (_, message) = find("no-such").err().unwrap();
    let (_, names) = message.split_once("known: ").unwrap();
    for name in names.split(", ") {
        assert!(page().contains(&format!("`builtin://{name}`")), "{name}");
    }
}

#[test]
fn help_prints_the_page_and_its_section_on_expressions() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let language = String::from_utf8(program(here, &["help", "language"]).stdout).unwrap();
    for heading in page().lines().filter(|line| line.starts_with('#')) {
        assert!(language.contains(heading), "{heading}");
    }
    let expressions = String::from_utf8(program(here, &["help", "expressions"]).stdout).unwrap();
    assert!(expressions.starts_with("## Expressions\n") && expressions.contains("### Contexts"));
    assert!(!expressions.contains("## Environment") && language.contains(expressions.trim_end()));
}
