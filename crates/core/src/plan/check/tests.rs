//! Findings that a check makes beyond the text, and false alarms that it must avoid.

use step_runner_lang::document::{check_function, parse_function};

use super::*;

fn findings_with(text: &str, callee: Option<&str>) -> Vec<String> {
    let checked = check_function(text, "f.yml");
    let whole = checked.is_whole();
    let function = checked.function.unwrap();
    let callee = callee.map(|text| Arc::new(Interface::of(&parse_function(text, "callee.yml").unwrap())));
    let callees = vec![callee; 8];
    let subject = Subject { function: &function, whole, callees: &callees };
    super::function(&subject).iter().map(ToString::to_string).collect()
}

/// Returns the findings for an expression in `env` of a step that follows the step `first`.
fn expression(text: &str) -> Vec<String> {
    let text = format!(
        "spec: {{inputs: {{n: {{type: number}}, s: {{type: string}}, a: {{type: array}}}}}}\n---\nrun:\n- {{name: first, func: ./x}}\n- name: second\n  script: x\n  env:\n    V: \"{}\"\n",
        format!("${{{{ {text} }}}}").replace('\\', "\\\\").replace('"', "\\\"")
    );
    let callee = "spec: {outputs: {path: {type: string}, ok: {type: boolean, default: true}}}\n---\nexec: {command: [x]}\n";
    findings_with(&text, Some(callee))
}

fn found(text: &str) -> String {
    let found = expression(text);
    assert_eq!(found.len(), 1, "{text}: {found:?}");
    found[0].split("run[1].env.V: ").nth(1).unwrap().to_owned()
}

#[test]
fn what_can_be_right_at_run_time_is_not_found() {
    for text in [
        "env.ANY + vars.OTHER",
        "job.inputs.name",
        "inputs.n + 1",
        "inputs.s + 'x'",
        "num(inputs.s) * 2",
        "inputs.a[0].b.c + 1",
        "inputs.a[inputs.n]",
        "steps.first.outputs.path + str(inputs.n)",
        "steps['first'].outputs['ok'] && 1",
        "steps.first.outputs",
        "{a: inputs.n, 'b': [1, env.X]}.a",
        "[1, 2][inputs.n]",
        "!steps.first.outputs.ok",
        "\"a ${{ inputs.n }} b\"",
        "inputs.n / (inputs.n - 1)",
        "'a' == 1 || inputs.n < 'x'",
        "func_dir + '/' + work_dir + step_dir",
    ] {
        assert_eq!(expression(text), Vec::<String>::new(), "{text}");
    }
}

#[test]
fn bug_export_file_in_env_of_a_step() {
    let function = |steps: &str| format!("{{}}\n---\nrun:\n{steps}");
    let unread = "\"export_file\" is the file of the function around the step here: nobody reads it";
    for (steps, paths) in [
        ("- {name: a, script: x, env: {F: '${{ export_file }}'}}\n", &["run[0].env.F"][..]),
        ("- {name: a, script: x, env: {F: 'to ${{ [1, export_file] }}'}}\n", &["run[0].env.F"]),
        ("- {name: a, script: x, env: {'${{ export_file }}': x}}\n", &["run[0].env.…"]),
        ("- {name: a, func: ./x, inputs: {s: x}, env: {F: '${{ export_file }}'}}\n", &["run[0].env.F"]),
        ("- {name: a, func: ./x, inputs: {s: '${{ export_file }}'}}\n", &["run[0].inputs.s"]),
        ("- {name: a, func: ./x, inputs: {s: x, '${{ export_file }}': x}}\n", &["run[0].inputs.…"]),
        ("- {name: a, func: h/p@v1, inputs: {s: '${{ export_file }}'}}\n", &["run[0].inputs.s"]),
        ("- {name: a, action: o/a@v1, inputs: {s: '${{ export_file }}'}}\n", &["run[0].inputs.s"]),
        (
            "- {name: a, func: 'builtin://script_legacy', inputs: {script: [x]}, env: {F: '${{ export_file }}'}}\n",
            &["run[0].env.F"],
        ),
        ("- {name: a, script: x}\nenv: {F: '${{ export_file }}'}\n", &["env.F"]),
        // Its own file, which is read.
        ("- {name: a, script: 'x ${{ export_file }}'}\n", &[]),
        ("- {name: a, func: 'builtin://script', inputs: {script: 'x ${{ export_file }}'}}\n", &[]),
        ("- {name: a, func: 'builtin://script_legacy', inputs: {script: ['x ${{ export_file }}']}}\n", &[]),
        ("- {name: a, script: x, env: {F: '${{ env.export_file }}'}}\n", &[]),
    ] {
        for name in ["export_file", "output_file"] {
            let text = function(&steps.replace("export_file", name));
            let callee = "spec: {inputs: {s: {type: string}}}\n---\nexec: {command: [x]}\n";
            let found = findings_with(&text, Some(callee));
            let found: Vec<_> = found.iter().filter(|found| !found.contains("env.env")).collect();
            assert_eq!(found.len(), paths.len(), "{text}: {found:?}");
            for (found, path) in found.iter().zip(paths) {
                let unread = unread.replace("export_file", name);
                assert!(found.contains(&format!("{path}: warning: {unread}")), "{found}");
            }
        }
    }
    let own = "{}\n---\nenv: {F: '${{ export_file }}'}\nexec: {command: ['x${{ output_file }}']}\n";
    assert_eq!(findings_with(own, None), Vec::<String>::new());
}

#[test]
fn what_always_fails_is_an_error() {
    for (text, expected) in [
        ("inputs.m", "inputs.m: \"m\" was not found (known: a, n, s)"),
        ("inputs['zz']", "inputs[\"zz\"]: \"zz\" was not found (known: a, n, s)"),
        ("input.n", "\"input\" was not found (did you mean \"inputs\"?)"),
        ("strr(inputs.n)", "function \"strr\" was not found (did you mean \"str\"?)"),
        ("steps.frist.outputs.x", "steps.frist: \"frist\" was not found (did you mean \"first\"?)"),
        (
            "steps.second.outputs.x",
            "steps.second: \"second\" was not found (the step stands at line 5; only steps before this one can be used)",
        ),
        ("steps.first.status", "steps.first.status: \"status\" was not found (known: outputs)"),
        (
            "steps.first.outputs.pth",
            "steps.first.outputs.pth: \"pth\" was not found (did you mean \"path\"?)",
        ),
        ("1 / 0", "division by zero"),
        ("inputs.n % 0", "division by zero"),
        ("'a' + 1", "\"+\" cannot combine string and number (str() makes text of any value)"),
        ("inputs.s + inputs.n", "\"+\" cannot combine string and number (str() makes text of any value)"),
        ("env.A - 1", "arithmetic needs numbers, got string"),
        ("-inputs.s", "\"-\" needs a number, got string"),
        ("func_dir.x", "func_dir is no object but string: it has no members"),
        ("inputs.n[0]", "inputs.n is number: it cannot be indexed"),
        ("str(1, inputs.n)", "str() takes exactly one argument, got 2"),
        ("num(steps.first.outputs.ok)", "num() needs a string or a number, got boolean"),
        ("inputs.n(1)", "only functions can be called"),
        ("str", "a function is no value: call it with one argument"),
        ("[1][3]", "[1][…]: the index is out of range, the array has 1 elements"),
    ] {
        assert_eq!(found(text), expected, "{text}");
    }
}

#[test]
fn what_is_forgiven_or_may_not_be_reached_is_a_warning() {
    for text in ["inputs.m || 1", "inputs.n && 1 / 0", "steps.first.outputs.zz || 'a'", "inputs.n || nope"] {
        assert!(found(text).starts_with("warning: "), "{text}");
    }
    assert!(!found("1 / 0 || inputs.n").starts_with("warning: "), "only what is missing is forgiven");
}

#[test]
fn a_step_must_give_what_its_function_asks_for() {
    let callee = "spec: {inputs: {message: {type: string}, n: {type: number}, x: {type: array, default: []}}}\n---\nexec: {command: [x]}\n";
    let text = "{}\n---\nrun:\n- name: a\n  func: ./x\n  inputs: {mesage: hi, n: \"12\", x: {a: 1}}\n";
    assert_eq!(
        findings_with(text, Some(callee)),
        [
            "f.yml:4:3: run[0].inputs.message: input \"message\" required, but not defined",
            "f.yml:6:12: run[0].inputs.mesage: step does not accept input with name \"mesage\" (did you mean \"message\"?)",
            "f.yml:6:27: run[0].inputs.n: input \"n\": expected number, got string; num() converts",
            "f.yml:6:36: run[0].inputs.x: input \"x\": expected array, got struct",
        ]
    );
    let right = "{}\n---\nrun:\n- name: a\n  func: ./x\n  inputs:\n    message: 1.5\n    n: \"${{ num('2') }}\"\n    x: |\n      ${{ [1] }}\n";
    assert_eq!(findings_with(right, Some(callee)), Vec::<String>::new());
    let computed = "{}\n---\nrun: [{name: a, func: ./x, inputs: {\"${{ 'n' }}\": 1}}]\n";
    assert_eq!(findings_with(computed, Some(callee)), Vec::<String>::new());
}

#[test]
fn inputs_may_be_null_so_their_type_only_warns() {
    let callee = "spec: {inputs: {n: {type: number}}}\n---\nexec: {command: [x]}\n";
    let text = "spec: {inputs: {s: {type: string}}}\n---\nrun: [{name: a, func: ./x, inputs: {n: \"${{ inputs.s }}\"}}]\n";
    let found = findings_with(text, Some(callee));
    assert!(found.len() == 1 && found[0].contains("warning: input \"n\""), "{found:?}");
}

#[test]
fn declared_outputs_must_be_given_with_their_type() {
    let text = "spec: {outputs: {a: {type: number}, b: {type: string}, c: {type: string, default: x}}}\n---\nrun: [{name: s, script: x}]\noutputs: {a: \"${{ str(1) }}\"}\n";
    assert_eq!(
        findings_with(text, None),
        [
            "f.yml:1:37: spec.outputs.b: output \"b\" was not written and has no default (give it under \"outputs\" of the definition)",
            "f.yml:4:14: outputs.a: output \"a\": expected number, got string",
        ]
    );
}

#[test]
fn steps_are_seen_only_inside_a_list() {
    let text = "{}\n---\nenv: {A: \"${{ steps.a.outputs.x }}\"}\nrun: [{name: a, script: x}]\n";
    assert!(findings_with(text, None)[0].contains("no step of this list comes before"));
}

#[test]
fn members_of_a_group_do_not_see_each_other() {
    let text = "{}\n---\nrun:\n- name: g\n  parallel:\n  - {name: a, script: x}\n  - {name: b, script: \"${{ steps.a.status }}\"}\n  - {name: c, script: \"${{ steps.d.status }}\"}\n- {name: d, script: x}\n";
    let found = findings_with(text, None);
    assert!(found.len() == 2 && found[0].contains("members of a group do not see each other"), "{found:?}");
    assert!(found[1].contains("the step stands at line 9; only steps before this one"), "{found:?}");
}

#[test]
fn a_script_has_no_outputs() {
    let text = "{}\n---\nrun:\n- {name: a, script: x}\n- {name: b, script: \"${{ steps.a.outputs.x }}\"}\n";
    let found = findings_with(text, None);
    assert!(
        found.len() == 1 && found[0].ends_with("\"x\" was not found (the step has no outputs)"),
        "{found:?}"
    );
}

#[test]
fn unknown_builtins_are_named() {
    let found = findings_with("{}\n---\nrun: [{name: a, func: \"builtin://scirpt\"}]\n", None);
    assert!(found.len() == 1 && found[0].contains("builtin \"scirpt\" was not found"), "{found:?}");
    let found = findings_with("{}\n---\nrun: [{name: a, func: \"builtin://script\"}]\n", None);
    assert!(found.len() == 1 && found[0].contains("input \"script\" required"), "{found:?}");
}

#[test]
fn what_is_broken_makes_nothing_else_unknown() {
    let text = "spec: {inputs: {n: {typ: number}}}\n---\nrun:\n- {name: a, script: [x]}\n- {name: b, script: \"${{ steps.a.outputs.x }} ${{ inputs.n }}\"}\n";
    assert_eq!(findings_with(text, None), Vec::<String>::new());
}

#[test]
fn literals_of_sensitive_inputs_and_outputs_are_known() {
    let callee = parse_function(
        "spec: {inputs: {t: {sensitive: true, type: string}, l: {sensitive: true, type: array}, plain: {type: string}}}\n\
         ---\nexec: {command: [x]}\n",
        "callee.yml",
    );
    let text = "spec:\n  inputs: {i: {type: string, sensitive: true, default: s-default}, p: {type: string, default: x}}\n  \
                outputs: {o: {type: string, sensitive: true}, q: {type: string}}\n---\nrun:\n\
                - {name: a, func: ./f, inputs: {t: s-text, l: [s-item, {k: s-member, n: 3.10}, true], plain: x}}\n\
                - {name: b, func: ./f, inputs: {t: 7e1, l: null}}\n\
                - {name: c, func: ./f, inputs: {t: \"x ${{ env.A }}\", plain: x}}\n\
                outputs: {o: s-output, q: x}\n";
    let checked = check_function(text, "f.yml");
    let callees = vec![Some(Arc::new(Interface::of(&callee.unwrap()))); 3];
    let subject = Subject { function: &checked.function.unwrap(), whole: true, callees: &callees };
    let mut found = sensitive_literals(&subject);
    found.dedup();
    assert_eq!(found, ["s-default", "s-text", "s-item", "s-member", "3.1", "7e1", "s-output"]);
}
