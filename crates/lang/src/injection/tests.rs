//! Expressions in scripts, and those among them whose values could be commands.

use crate::diagnostic::{Class, Diagnostic};
use crate::document::{check_function, check_request, parse_request};

fn of_class(found: Vec<Diagnostic>) -> Vec<Diagnostic> {
    found.into_iter().filter(|finding| finding.class == Class::Injection).collect()
}

/// Returns the warnings for a function with inputs of each type and this script in a step.
fn warned(script: &str) -> Vec<Diagnostic> {
    let script = serde_json::to_string(script).unwrap();
    let text = format!(
        "spec: {{inputs: {{text: {{type: string}}, n: {{type: number}}, on: {{type: boolean}}, list: {{type: array}}}}}}\n---\n\
         run: [{{name: a, script: {script}}}]"
    );
    let checked = check_function(&text, "func.yml");
    assert!(checked.is_whole(), "{script}: {:?}", checked.diagnostics);
    of_class(checked.diagnostics)
}

#[test]
fn texts_from_elsewhere_are_named() {
    for (script, path) in [
        ("make ${{ inputs.text }}", "inputs.text"),
        ("make '${{ inputs.text }}'", "inputs.text"),
        ("make ${{ inputs['text'] }}", "inputs.text"),
        ("make ${{ inputs.list }}", "inputs.list"),
        ("make ${{ inputs }}", "inputs"),
        ("make ${{ env.REF }}", "env.REF"),
        ("make ${{ env[inputs.text] }}", "env"),
        ("make ${{ vars.CI_COMMIT_TITLE }}", "vars.CI_COMMIT_TITLE"),
        ("make ${{ job.CI_COMMIT_TITLE }}", "job.CI_COMMIT_TITLE"),
        ("make ${{ steps.b.outputs.name }}", "steps.b.outputs.name"),
        ("make ${{ steps.b.error }}", "steps.b.error"),
        ("make ${{ str(inputs.list) }}", "inputs.list"),
        ("make ${{ \"v${{ inputs.text }}\" }}", "inputs.text"),
        ("make ${{ 'v' + inputs.text }}", "inputs.text"),
        ("make ${{ inputs.text || 'all' }}", "inputs.text"),
        ("make ${{ inputs.on && inputs.text }}", "inputs.text"),
        ("make ${{ [1, inputs.text] }}", "inputs.text"),
        ("make ${{ {a: inputs.text} }}", "inputs.text"),
        ("make ${{ {a: inputs.text}.a }}", "inputs.text"),
        ("echo ok; make ${{ work_dir }} ${{ inputs.text }}", "inputs.text"),
    ] {
        let found = warned(script);
        let [warning] = found.as_slice() else { panic!("{script}: {found:?}") };
        assert!(warning.message.contains(&format!("the value of {path} becomes")), "{script}: {warning}");
        assert_eq!(warning.path, "run[0].script");
    }
}

#[test]
fn numbers_truths_constants_and_names_of_this_program_are_left_alone() {
    for script in [
        "make",
        "make \\${{ inputs.text }}",
        "make ${{ inputs.n }}",
        "make ${{ inputs.on }}",
        "make ${{ inputs.n + 1 }}",
        "make ${{ num(inputs.text) }}",
        "make ${{ -inputs.n }}",
        "make ${{ !inputs.text }}",
        "make ${{ inputs.text == 'all' }}",
        "make ${{ inputs.text && '-v' }}",
        "make ${{ inputs.text == 'all' && '-a' || '-v' }}",
        "make ${{ 'all' }}",
        "cat ${{ output_file }} ${{ work_dir }} ${{ func_dir }}",
        "make ${{ steps.b.exit_code }} ${{ steps.b.status }}",
        "make ${{ run.status }}",
    ] {
        assert_eq!(warned(script), [], "{script}");
    }
}

#[test]
fn the_remedy_names_a_variable() {
    let remedy = |script: &str| warned(script).remove(0).help.unwrap();
    assert!(
        remedy("make ${{ inputs.text }}").starts_with(
            "give it as env, TEXT: ${{ inputs.text }}, and write \"$TEXT\", which stays one word;"
        )
    );
    assert!(remedy("make ${{ env.REF }}").starts_with("write \"$REF\""));
    assert!(remedy("make ${{ env['a-b'] }}").starts_with("give it as env, A_B: "));
    assert!(remedy("make ${{ inputs }}").starts_with("give it as env, VALUE: "));
}

#[test]
fn texts_for_a_shell_count_and_other_arguments_do_not() {
    let of = |command: &str| {
        let text = format!("spec: {{inputs: {{text: {{type: string}}}}}}\n---\nexec: {{command: {command}}}");
        of_class(check_function(&text, "func.yml").diagnostics).len()
    };
    assert_eq!(of("[sh, -c, \"make ${{ inputs.text }}\"]"), 1);
    assert_eq!(of("[/bin/bash, -ec, \"make ${{ inputs.text }}\"]"), 1);
    assert_eq!(of("[sh, -c, 'make \"$1\"', sh, \"${{ inputs.text }}\"]"), 0);
    assert_eq!(of("[make, -c, \"${{ inputs.text }}\"]"), 0);
}

#[test]
fn members_of_groups_are_looked_at() {
    let text = "[{name: g, parallel: [{name: a, script: 'echo ${{ env.A }}'}, {name: b, script: 'echo ${{ env.B }}'}]}]";
    assert_eq!(of_class(check_request(text, "").diagnostics).len(), 2);
}

#[test]
fn a_comment_on_the_line_silences_the_warning_there_alone() {
    let of = |text: &str| {
        of_class(check_request(text, "").diagnostics).iter().map(|f| f.at.line).collect::<Vec<_>>()
    };
    let script = |end: &str| {
        format!(
            "- name: a\n  errexit: true\n  script: |\n    echo ${{{{ env.A }}}}{end}\n    echo ${{{{ env.B }}}}\n"
        )
    };
    assert_eq!(of(&script("")), [4, 5]);
    assert_eq!(of(&script(" # step-runner: allow injection")), [5]);
    assert_eq!(of(&script(" #step-runner:allow shell, injection")), [5]);
    assert_eq!(of(&script(" # step-runner: allow shell")), [4, 5]);
    assert_eq!(of(&script(" # step-runner: allow injections")), [4, 5]);
    assert_eq!(
        of("- {name: a, script: 'echo ${{ env.A }}'} # step-runner: allow injection\n"),
        [] as [u32; 0]
    );
}

#[test]
fn a_comment_silences_no_error() {
    let checked = check_request("- {name: a, scirpt: x} # step-runner: allow schema\n", "");
    assert!(!checked.is_whole());
}

#[test]
fn a_run_does_not_warn() {
    let function = parse_request("[{name: a, script: 'echo ${{ env.A }}'}]", "").unwrap();
    assert_eq!(function.warnings, []);
}
