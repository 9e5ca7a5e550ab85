use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::ast::{Delegate, Invocation, Reference};

fn function(text: &str) -> Function {
    parse_function(text, "func.yml").unwrap_or_else(|errors| panic!("{errors:#?}"))
}

fn shown(diagnostics: &[Diagnostic]) -> Vec<String> {
    diagnostics.iter().map(ToString::to_string).collect()
}

fn errors(text: &str) -> Vec<String> {
    shown(&parse_function(text, "func.yml").expect_err("errors"))
}

fn run_of(function: Function) -> Run {
    match function.definition.body {
        Body::Run(run) => run,
        Body::Exec(_) => panic!("a run function"),
    }
}

/// A document that uses every part of the language.
const WHOLE: &str = r#"# comment
spec:
  inputs:
    count: {type: number, default: 1, description: "how many"}
    list:
      type: array
      default: [a, {b: null}]
  outputs:
    path: {type: string, sensitive: true}
---
env: {A: 1.50, "B": 'é ${{ inputs.count }}', C: }
run:
  - name: one
    func: ./x
    inputs: &in {a: "${{ env.A + 'x' }}", b: [1, "${{ {k: [1, 2]} }}"]}
    env: {"${{ vars.KEY }}": v}
  - {name: two, script: "echo \"${{ steps.one.outputs.o || 'none' }}\"\n"}
  - name: three
    step:
      git: {url: h/p, rev: "${{ vars.REV }}", dir: d}
    inputs:
      <<: *in
      c: |
        ${{ inputs.list }}
outputs:
  path: ${{ steps.one.outputs.path }}
"#;

#[test]
fn all_errors_of_a_file_are_reported_at_once_with_their_places() {
    let text = "\
spec:
  inputs:
    a-b: {type: string}
    n: {type: number, default: x}
  foo: 1
bar: 1
---
env: {A: [1]}
run:
- {name: a b, func: ./x, inputz: {}}
- name: two
  script: x ${{ 1 + }}
  exec: {command: [a]}
- name: three
  inputs: {k: {d: 'a ${{ 1 $ }}'}}
outputs: {o: '${{'}
";
    assert_eq!(
        errors(text),
        [
            "func.yml:3:5: spec.inputs.a-b: \"a-b\" is not a valid input name: letters, digits and _, not starting with a digit",
            "func.yml:4:32: spec.inputs.n.default: default of input \"n\": expected number, got string",
            "func.yml:6:1: bar: unknown key \"bar\" (known here: spec)",
            "func.yml:8:10: env.A: expected a string, got a list",
            "func.yml:10:10: run[0].name: \"a b\" is not a valid step name: letters, digits and _, not starting with a digit",
            "func.yml:10:26: run[0].inputz: unknown key \"inputz\" (did you mean \"inputs\"?)",
            "func.yml:12:21: run[1].script: unexpected \"}}\", expected a value",
            "func.yml:13:3: run[1].exec: \"exec\" cannot be used in a step (put it into a function of its own and name that with func)",
            "func.yml:14:3: run[2]: one of func, script, action, parallel is needed",
            "func.yml:15:28: run[2].inputs.k.d: unexpected character \"$\"",
            "func.yml:16:15: outputs.o: expression not closed, opened here",
            "func.yml:5:3: spec.foo: warning: unknown key \"foo\" (known here: inputs, outputs, description)",
        ]
    );
}

#[test]
fn an_output_whose_type_is_written_down_must_have_the_declared_one() {
    let text = |output: &str| {
        format!(
            "spec: {{outputs: {{n: {{type: number}}}}}}\n---\nrun: [{{name: a, script: b}}]\noutputs:\n  n: {output}\n"
        )
    };
    for (output, got) in
        [("text", "string"), ("[1]", "array"), ("{}", "struct"), ("true", "boolean"), ("~", "null")]
    {
        let expected = format!("func.yml:5:6: outputs.n: output \"n\": expected number, got {got}");
        assert_eq!(errors(&text(output)), [expected]);
    }
    for output in ["1", "${{ env.A }}", "' ${{ num(env.A) }}'"] {
        function(&text(output));
    }
}

#[test]
fn a_steps_document_is_no_definition_file() {
    for text in ["exec: {command: [a]}\n", "run: [{name: a, script: b}]\n", "- {name: a, script: b}\n"] {
        let found = errors(text);
        assert!(found.len() == 1 && found[0].contains("the interface is missing"), "{found:?}");
    }
    assert!(errors("spec: {}\n")[0].contains("definition missing"));
}

#[test]
fn every_part_of_the_language_is_read() {
    let function = function(WHOLE);
    assert_eq!(shown(&function.warnings), [""; 0]);
    assert_eq!(function.spec.inputs.keys().collect::<Vec<_>>(), ["count", "list"]);
    let env = &function.definition.env;
    assert_eq!(env["A"].as_literal(), Some("1.50"));
    assert_eq!(env["C"].as_literal(), Some(""));
    let run = run_of(function);
    assert_eq!(
        run.steps.iter().map(|step| step.path.as_str()).collect::<Vec<_>>(),
        ["run[0]", "run[1]", "run[2]"]
    );
    assert_eq!(run.steps[2].inputs.len(), 3);
    assert!(matches!(&run.steps[2].invokes, Invocation::Reference(Reference::Git { url, .. }, _)
        if url.as_literal() == Some("https://h/p")));
}

#[test]
fn exec_is_read_with_its_fields() {
    let function = function(
        "{}\n---\nexec:\n  command: [a, 1, '']\n  work_dir: ${{ func_dir }}\n  cancel_timeout: 1m30s\n  shell: sh\n",
    );
    assert_eq!(
        shown(&function.warnings),
        [
            "func.yml:7:3: exec.shell: warning: unknown key \"shell\" (known here: command, work_dir, cancel_timeout)"
        ]
    );
    let Body::Exec(exec) = function.definition.body else { panic!("an exec function") };
    assert_eq!(
        exec.command.iter().map(|part| part.as_literal().unwrap()).collect::<Vec<_>>(),
        ["a", "1", ""]
    );
    assert_eq!(exec.cancel_timeout, Some(Duration::from_secs(90)));
}

#[test]
fn fields_of_exec_are_checked() {
    for (exec, message) in [
        ("{}", "exec: \"command\" is missing"),
        ("{command: []}", "exec.command: the command is empty"),
        ("{command: [~]}", "exec.command[0]: expected a string, got nothing"),
        (
            "{command: [a], cancel_timeout: 10}",
            "exec.cancel_timeout: not a duration (write 10s, 1m30s or 500ms)",
        ),
        ("{command: [a], cancel_timeout: 11m}", "exec.cancel_timeout: longer than 10m"),
        ("[a]", "exec: expected a mapping, got a list"),
    ] {
        let found = errors(&format!("{{}}\n---\nexec: {exec}\n"));
        assert!(found[0].ends_with(message), "{found:?}");
    }
}

#[test]
fn the_path_of_an_unknown_key_ends_in_the_key_once() {
    for (keys, path) in [
        ("continue_on_error: {exit_code: 1}", "run[0].continue_on_error.exit_code: "),
        ("retry: {delays: 1s}", "run[0].retry.delays: "),
        ("unless: x", "run[0].unless: "),
        ("func: {git: {url: u, rev: r, paths: d}}", "run[0].func.git.paths: "),
    ] {
        let call = if keys.starts_with("func") { "" } else { "script: x, " };
        let found = errors(&format!("{{}}\n---\nrun: [{{name: a, {call}{keys}}}]\n"));
        assert!(found[0].contains(&format!(": {path}unknown key")), "{found:?}");
    }
}

#[test]
fn aliases_in_a_list_of_steps_are_shown_as_such() {
    let found = |text: &str| shown(&check_request(text, "f.yml").diagnostics);
    assert_eq!(
        found("- &x {name: a, script: b}\n- *x\n"),
        [
            "f.yml:1:6: run[1].name: warning: step \"a\" stands in the list again, as an alias; its result replaces the earlier one"
        ]
    );
    assert_eq!(
        found("- {name: a, script: b, env: &e {A: *e}}\n"),
        ["f.yml:1:36: run[0].env.A: an alias inside the node it stands for"]
    );
}

#[test]
fn a_matrix_of_exclude_alone_has_no_list() {
    assert_eq!(
        shown(&check_request("- {name: a, script: b, matrix: {exclude: [{a: 1}]}}\n", "f.yml").diagnostics),
        [
            "f.yml:1:32: run[0].matrix: the matrix has no list (write a key with a list of values beside \"exclude\")"
        ]
    );
}

#[test]
fn spec_and_definition_must_agree_on_delegation() {
    let steps = "run:\n- {name: build, script: x}\n";
    let delegate = "spec: {outputs: delegate}\n---\n";
    assert_eq!(
        run_of(function(&format!("{delegate}{steps}delegate: build\n"))).delegate,
        Some(Delegate { name: "build".to_owned(), at: Position { line: 5, column: 11 } })
    );
    assert_eq!(
        errors(&format!("{delegate}{steps}delegate: biuld\n")),
        ["func.yml:5:11: delegate: step \"biuld\" was not found (did you mean \"build\"?)"]
    );
    assert_eq!(
        errors(&format!("{delegate}{steps}")),
        [
            "func.yml:3:1: delegate: \"delegate\" is missing: the spec says \"outputs: delegate\" (name a step of run)"
        ]
    );
    let function = function(&format!("{{}}\n---\n{steps}delegate: build\n"));
    assert_eq!(
        shown(&function.warnings),
        [
            "func.yml:5:1: delegate: warning: \"delegate\" has no effect without \"outputs: delegate\" in the spec"
        ]
    );
    assert_eq!(run_of(function).delegate, None);
}

#[test]
fn odd_but_usable_files_give_warnings() {
    let function = function(
        "spec: {inputs: {a: {type: string, default: '${{ x }}', typ: 1}}}\n---\nrun:\n- {name: a, script: x}\n- {name: a, script: y}\noutputs: {o: 1}\n",
    );
    assert_eq!(
        shown(&function.warnings),
        [
            "func.yml:1:44: spec.inputs.a.default: warning: defaults are not evaluated: \"${{\" in it is plain text",
            "func.yml:1:56: spec.inputs.a.typ: warning: unknown key \"typ\" (did you mean \"type\"?)",
            "func.yml:5:3: run[1].name: warning: step \"a\" stands already at line 4; its result replaces the earlier one",
            "func.yml:6:11: outputs.o: warning: output \"o\" is not declared in the spec",
        ]
    );
}

#[test]
fn old_and_new_names_work_and_exclude_each_other() {
    assert_eq!(
        errors("{}\n---\nrun:\n- {name: a, step: ./x, func: ./y}\n"),
        ["func.yml:4:24: run[0].func: only one of step, func is allowed: remove the other"]
    );
    assert_eq!(errors("{}\n---\nsteps: []\n"), ["func.yml:3:1: steps: \"steps\" was renamed: use run"]);
}

#[test]
fn a_request_has_one_of_three_shapes() {
    for text in [
        "{}\n---\nrun:\n- {name: a, script: x}\n",
        "---\n{}\n---\nrun: [{name: a, script: x}]\n",
        "run:\n- {name: a, script: x}\n",
        "- {name: a, script: x}\n",
        "{\"run\": [{\"name\": \"a\", \"script\": \"x\"}]}",
        "[{\"name\":\"a\",\n\t\"script\":\"x\"}]",
    ] {
        let function = parse_request(text, "").unwrap_or_else(|errors| panic!("{text}: {errors:?}"));
        assert_eq!(run_of(function).steps[0].name, "a");
    }
    for (text, message) in [
        ("", "<steps>:1:1: no steps: the text is empty"),
        (
            "5",
            "<steps>:1:1: expected a list of steps or a mapping, got a number (write a list of steps, such as \
             `- {name: hello, script: echo hello}`)",
        ),
        ("[]", "<steps>:1:1: run: the list of steps is empty"),
        ("spec: {}\n", "<steps>:2:1: definition missing: expected a second document after ---"),
    ] {
        assert_eq!(shown(&parse_request(text, "").unwrap_err()), [message]);
    }
}

#[test]
fn fault_66_limits_have_errors_of_their_own() {
    let class = |text: &str| parse_function(text, "f").unwrap_err()[0].class;
    assert_eq!(class(&" ".repeat(FILE_LIMIT + 1)), Class::Limit);
    assert_eq!(parse_request(&" ".repeat(REQUEST_LIMIT + 1), "").unwrap_err()[0].class, Class::Limit);
    let steps = |count| format!("[{}]", "{name: a, script: x},".repeat(count));
    assert_eq!(parse_request(&steps(STEP_LIMIT + 1), "").unwrap_err()[0].class, Class::Limit);
    assert_eq!(run_of(parse_request(&steps(STEP_LIMIT), "").unwrap()).steps.len(), STEP_LIMIT);
}

fn each(count: u32, line: impl Fn(u32) -> String) -> String {
    (0..count).map(line).collect()
}

#[test]
fn fault_66_hostile_numbers_of_errors_keep_their_messages_small() {
    let long = "k".repeat(1_000);
    let text = format!(
        "- {{name: a, func: ./x, inputs: {{{long}: [{}]}}}}\n- {{name: b, func: ./x, inputs: {{{}}}}}\n",
        ".inf,".repeat(50_000),
        each(10_000, |n| format!("'{n} {long:.900}': 1,"))
    );
    let errors = parse_request(&text, "f").unwrap_err();
    assert_eq!(errors.len(), 1_000);
    assert!(errors.iter().all(|error| error.to_string().len() < 400), "{}", errors[0]);
}

#[test]
fn control_characters_of_keys_do_not_reach_messages() {
    let text = "{}\n---\nexec: {command: [a], \"x\\ny\\e[31m\": 1}\n";
    let function = function(text);
    assert_eq!(
        shown(&function.warnings),
        [
            "func.yml:3:22: exec.x\\ny\\u{1b}[31m: warning: unknown key \"x\\ny\\u{1b}[31m\" (known here: command, work_dir, cancel_timeout)"
        ]
    );
}

#[test]
fn fault_67_the_expressions_of_a_document_have_a_limit_together() {
    let class = |text: &str| parse_request(text, "f").map_err(|errors| errors[0].class).err();
    let script = |body: &str| format!("- name: a\n  script: \"{body}\"\n");
    assert_eq!(class(&script(&"${{env.A}}".repeat(100_000))), None);
    assert_eq!(class(&script(&"${{env.A}}".repeat(110_000))), Some(Class::Limit));
    assert_eq!(class(&script(&"text ".repeat(1_000_000))), None);
}

#[test]
fn an_escape_in_a_reference_is_resolved() {
    let function = function("{}\n---\nrun:\n- {name: a, func: './x\\${{ y'}\n");
    let Invocation::Reference(Reference::Local { path, .. }, _) = &run_of(function).steps[0].invokes else {
        panic!("local")
    };
    assert_eq!(path, "./x${{ y");
}

#[test]
fn long_texts_of_a_request_are_no_keys() {
    let long = "x y: z\\n".repeat(20_000);
    let text = format!(
        "[{{\"name\": \"a\", \"func\": \"./x\", \"inputs\": {{\"config\": \"{long}\", \"l\": [\"{long}\"]}}}}]"
    );
    assert!(parse_request(&text, "").is_ok());
}

#[test]
fn what_an_alias_repeats_is_reported_once() {
    let text = "- {name: a, func: ./x, inputs: &i {k: '${{ }}'}}\n- {name: b, func: ./x, inputs: *i}\n";
    assert_eq!(parse_request(text, "").unwrap_err().len(), 1);
}

#[test]
fn a_value_of_a_command_line_follows_the_dialect() {
    let shown = |text: &str| parse_value(text).map(|value| crate::convert::to_json(&value).to_string());
    assert_eq!(shown("{a: [0x10, yes, 1e3]}").unwrap(), r#"{"a":[16,"yes",1000]}"#);
    assert_eq!(shown("").unwrap(), "null");
    assert!(
        parse_value("[").is_err() && parse_value("{a: 1, a: 2}").is_err() && parse_value("1e999").is_err()
    );
}

/// Asserts that any text gives a function, or errors with places.
fn check(text: &str) -> Result<(), TestCaseError> {
    for result in [parse_function(text, "f"), parse_request(text, "f")] {
        if let Err(errors) = result {
            prop_assert!(errors.iter().any(|error| error.severity == Severity::Error), "no error: {text:?}");
            let lines = u32::try_from(text.lines().count()).unwrap() + 1;
            for error in errors {
                prop_assert!(
                    error.at.column >= 1 && (1..=lines).contains(&error.at.line),
                    "{error}: {text:?}"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn a_document_cut_at_any_byte_is_read_or_refused() {
    for end in (0..WHOLE.len()).filter(|end| WHOLE.is_char_boundary(*end)) {
        let (before, after) = WHOLE.split_at(end);
        check(before).unwrap();
        check(after).unwrap();
    }
}

#[test]
fn a_document_with_any_character_replaced_or_added_is_read_or_refused() {
    const NEW: [&str; 15] =
        ["", ":", "\"", "{", "]", "\n", "\t", "&", "*", "}", "- ", "\u{0}", "🦀", "${{", "---\n"];
    let kind = |character: Option<char>| character.map(|c| if c.is_alphanumeric() { 'a' } else { c });
    // Inserts every text once between each combination of kinds of characters, and one of them at every place.
    let mut neighbours = std::collections::HashSet::new();
    for (place, (at, old)) in WHOLE.char_indices().enumerate() {
        let (before, rest) = WHOLE.split_at(at);
        let after = rest.strip_prefix(old).unwrap();
        let around = [before.chars().next_back(), Some(old), after.chars().next()].map(kind);
        let is_new = neighbours.insert(around);
        for new in if is_new { &NEW[..] } else { &NEW[place % NEW.len()..][..1] } {
            check(&format!("{before}{new}{after}")).unwrap();
            check(&format!("{before}{new}{old}{after}")).unwrap();
        }
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in any::<String>()) {
        check(&text)?;
    }

    #[test]
    fn any_mixture_of_the_words_of_the_language_is_read_or_refused(
        text in "(\\{\\}\n|---\n|spec: |run:\n|- |name: |func: |script: |inputs: |exec: |env: |[a-c1]|\n|\n  |[{}\\[\\],:&*'\"|]|<<: |\\$\\{\\{ | \\}\\}){0,30}"
    ) {
        check(&text)?;
    }
}

#[test]
fn fault_76_a_document_that_aliases_may_unfold_is_told_before_it_is_read() {
    for text in
        ["[&a [1], *a]", "- &a 1\n- *a", "{a: &x 1, b: *x}", "{\"a\":*x}", "[&a 1,*a]", "- ? *a", "*a"]
    {
        assert!(may_unfold(text), "{text}");
    }
    for text in ["a: 2*3", "script: 'echo \"*\"'", "a && b", "a**b"] {
        assert!(!may_unfold(text), "{text}");
    }
}
