//! The language as the program runs it (language.md): what a user sees of each rule.
#![expect(clippy::unwrap_used, reason = "a broken scene fails the test")]

mod support;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::json;
use step_runner::pb::v1::step_result::Status as StepStatus;
use step_runner::pb::v1::{self, RunRequest, State};
use support::{Client, Daemon, Setup, logs, request};

/// A daemon and the functions that its jobs call.
struct Scene {
    daemon: Daemon,
    client: Client,
}

/// How a job ended.
struct Ended {
    state: State,
    exit_code: i32,
    message: String,
    /// What its processes wrote to stdout.
    output: String,
    /// The daemon's own lines.
    said: Vec<String>,
    root: v1::StepResult,
}

impl Scene {
    async fn new(files: &[(&str, &str)]) -> Self {
        Self::with(Setup::new(), files).await
    }

    async fn with(setup: Setup, files: &[(&str, &str)]) -> Self {
        let daemon = setup.start();
        let client = daemon.client().await;
        for (path, text) in files {
            let path = daemon.file(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        Self { daemon, client }
    }

    /// A request in the folder of the scene.
    fn request(&self, steps: &str) -> RunRequest {
        RunRequest { work_dir: self.daemon.path.to_str().unwrap().to_owned(), ..request("1", steps) }
    }

    async fn start(&self, id: &str, steps: &str) {
        self.client.try_run(RunRequest { id: id.to_owned(), ..self.request(steps) }).await.unwrap();
    }

    async fn run(&self, steps: &str) -> Ended {
        self.run_request(self.request(steps)).await
    }

    async fn run_request(&self, request: RunRequest) -> Ended {
        // The same request again would be a late duplicate.
        static JOBS: AtomicU32 = AtomicU32::new(10);
        let id = JOBS.fetch_add(1, Ordering::Relaxed).to_string();
        self.client.try_run(RunRequest { id: id.clone(), ..request }).await.unwrap();
        self.ended(&id).await
    }

    /// The end of the job, which is forgotten then.
    async fn ended(&self, id: &str) -> Ended {
        let status = self.client.ended(id).await;
        let log = self.client.log(id).await;
        let root = self.client.steps(id).await.pop().unwrap();
        self.client.finish(id).await;
        Ended {
            state: status.state(),
            exit_code: status.exit_code,
            message: status.message,
            output: String::from_utf8(logs::source(&log, "01O")).unwrap(),
            said: logs::daemon_lines(&log),
            root,
        }
    }
}

impl Ended {
    /// What a job that went well printed.
    #[track_caller]
    fn output(self) -> String {
        assert_eq!(self.state, State::Success, "{}\n{:?}", self.message, self.said);
        self.output
    }

    /// Why a job failed.
    #[track_caller]
    fn failure(self) -> String {
        assert_eq!(self.state, State::Failure, "{}", self.output);
        self.message
    }
}

/// Prints its input `text`.
const SHOW: &str =
    "spec: {inputs: {text: {type: string}}}\n---\nexec: {command: [printf, '%s\\n', '${{ inputs.text }}']}\n";

/// The worked example of language.md §13.
#[tokio::test]
async fn the_environment_is_built_from_its_layers() {
    let leaf = "{}\n---\nenv: {E: f}\nexec: {command: [sh, -c, 'env | grep -E \"^[ABCDER]=\" | sort | tr \"\\n\" \" \"; echo']}\n";
    let exporter = r#"{}
---
exec: {command: [sh, -c, 'printf "{\"name\":\"%s\",\"value\":\"x\"}\n" C D > "$0"', '${{ export_file }}']}
"#;
    let setup = Setup::new().env("A", "d").env("B", "d").env("C", "d");
    let scene = Scene::with(setup, &[("leaf/func.yml", leaf), ("exporter/func.yml", exporter)]).await;
    let steps = r#"{}
---
env: {R: "${{ env.B }}"}
run:
  - {name: one, func: ./exporter}
  - name: two
    func: ./leaf
    env: {C: "s-${{ env.C }}", E: s}
  - {name: three, func: ./leaf}
"#;
    let env = BTreeMap::from([("B".to_owned(), "r".to_owned()), ("C".to_owned(), "r".to_owned())]);
    let ended = scene.run_request(RunRequest { env: env.clone(), ..scene.request(steps) }).await;
    assert_eq!(ended.output(), "A=d B=r C=s-x D=x E=f R=r \nA=d B=r C=x D=x E=f R=r \n");

    // A step's own `env` is not visible to its inputs.
    let steps = steps.replace("env: {C: \"s", "inputs: {v: '${{ env.E }}'}\n    env: {C: \"s");
    let message = scene.run_request(RunRequest { env, ..scene.request(&steps) }).await.failure();
    assert!(message.starts_with("step \"two\": failed to load: <steps>:8:"), "{message}");
    assert!(message.contains("env.E: \"E\" was not found"), "{message}");
}

#[tokio::test]
async fn exports_of_a_nested_function_change_what_runs_after_it() {
    let nested = "{}\n---\nrun:\n- {name: in, script: 'echo ''{\"name\": \"X\", \"value\": 1e21}'' > ${{ export_file }}'}\n- {name: see, script: echo in $X}\n";
    let scene = Scene::new(&[("nested/func.yml", nested)]).await;
    let steps = "- {name: a, func: ./nested, env: {Y: y}}\n- {name: b, script: 'echo out $X ${Y-none}'}\n";
    let request = RunRequest { env: BTreeMap::from([("X".into(), "r".into())]), ..scene.request(steps) };
    let output = scene.run_request(request).await.output();
    assert_eq!(output, "in 1000000000000000000000\nout 1000000000000000000000 none\n");
}

#[tokio::test]
async fn old_and_new_names_live_side_by_side() {
    let both = |text: &str| SHOW.replace("${{ inputs.text }}", text);
    let scene = Scene::new(&[
        ("new/func.yml", &both("new ${{ func_dir == step_dir }} ${{ job.V == vars.V }} ${{ inputs.text }}")),
        ("new/step.yml", "broken: ["),
        ("old/step.yml", &both("old ${{ inputs.text }}")),
        ("broken/func.yml", "broken: ["),
        ("broken/step.yml", SHOW),
        ("named/other.yml", &both("other ${{ inputs.text }}")),
    ])
    .await;
    let steps = "\
- {name: a, step: ./new, inputs: {text: 1}}
- {name: b, func: old, inputs: {text: 2}}
- {name: c, func: ./named/other.yml, inputs: {text: 3}}
- {name: d, step: 'dist://script', inputs: {script: echo 4}}
- {name: e, func: 'builtin://script', inputs: {script: echo 5}}
"
    .replace("func: old", "func: ./old/");
    let variable = v1::Variable { key: "V".into(), value: "v".into(), ..v1::Variable::default() };
    let job = Some(v1::Job { variables: vec![variable], ..v1::Job::default() });
    let ended = scene.run_request(RunRequest { job, ..scene.request(&steps) }).await;
    assert_eq!(ended.output(), "new true true 1\nold 2\nother 3\n4\n5\n");

    let message = scene.run("- {name: a, func: ./broken, inputs: {text: x}}").await.failure();
    assert!(
        message.contains("broken/func.yml:1:"),
        "a broken func.yml is no reason to look for step.yml: {message}"
    );
    let message = scene.run("- {name: a, func: ./none}").await.failure();
    assert!(message.contains("no func.yml or step.yml in "), "{message}");
}

#[tokio::test]
async fn keys_that_nobody_knows_are_warned_of_with_their_place() {
    let odd = "spec:\n  inputs:\n    text: {type: string, typ: 1}\n---\nfoo: 1\nexec:\n  command: [echo, '${{ inputs.text }}']\n  shell: sh\n";
    let scene = Scene::new(&[("odd/func.yml", odd)]).await;
    let steps = "- {name: a, func: ./odd, inputs: {text: x}}\n- {name: b, func: ./odd, inputs: {text: y}}\n";
    let ended = scene.run(steps).await;
    let warnings: Vec<&str> =
        ended.said.iter().filter_map(|line| line.split_once("odd/").map(|(_, at)| at)).collect();
    assert_eq!(warnings.len(), 3, "each once: {warnings:?}");
    for (warning, start) in warnings.iter().zip([
        "func.yml:3:26: spec.inputs.text.typ: unknown key \"typ\"",
        "func.yml:5:1: foo: unknown key \"foo\"",
        "func.yml:8:3: exec.shell: unknown key \"shell\"",
    ]) {
        assert!(warning.starts_with(start), "{warning}");
    }
    assert_eq!(ended.output(), "x\ny\n");
}

#[tokio::test]
async fn scalars_are_what_the_dialect_says() {
    let types = "spec: {inputs: {v: {type: struct}}}\n---\nexec: {command: [echo, '${{ inputs.v }}', 1.50, 010, True, 1_000, 2001-12-14]}\n";
    let scene = Scene::new(&[("types/func.yml", types)]).await;
    let steps = r#"{}
---
env: {A: 1.50, B: 010, C: true, D: , E: ~, F: yes}
run:
- name: a
  func: ./types
  inputs:
    v: {octal: 010, under: 1_000, hex: 0x10, date: 2001-12-14, yes: yes, nothing: , list: [~, 1e3]}
- {name: b, script: 'echo "$A|$B|$C|${D-unset}|${E-unset}|$F"'}
"#;
    assert_eq!(
        scene.run(steps).await.output(),
        "{\"date\": \"2001-12-14\", \"hex\": 16, \"list\": [null, 1000], \"nothing\": null, \"octal\": 8, \"under\": 1000, \"yes\": \"yes\"} 1.50 010 True 1_000 2001-12-14\n1.50|010|true|||yes\n"
    );
}

#[tokio::test]
async fn templates_stand_in_keys_and_pass_values_as_they_are() {
    let types = "spec: {inputs: {list: {type: array}, text: {type: string}, any: {type: string, default: '${{ env.NO }}'}}}\n---\nexec: {command: [printf, '%s\\n', '${{ inputs.list[1].k }}', '${{ inputs.text }}', '${{ inputs.any }}', '']}\n";
    let scene = Scene::new(&[("types/func.yml", types)]).await;
    let steps = r#"
- name: a
  func: ./types
  env: {"K_${{ 1 + 1 }}": "${{ [null, 'x'] }}"}
  inputs:
    "li${{ 'st' }}": |
      ${{ [1, {k: "v}}"}] }}
    text: ${{ 1.50 }} \${{ no }} }} $HOME
- {name: b, func: ./types, inputs: {list: [0, {k: '${{ "${{ 1 }}" }}'}], text: 1.50}}
"#;
    let ended = scene.run(steps).await;
    assert!(ended.said.iter().any(|line| line.contains("defaults are not evaluated")), "{:?}", ended.said);
    let env = &ended.root.sub_step_results[0].step.as_ref().unwrap().env;
    assert_eq!(env.get("K_2").map(String::as_str), Some("[null, \"x\"]"));
    assert_eq!(ended.output(), "v}}\n1.5 ${{ no }} }} $HOME\n${{ env.NO }}\n\n1\n1.5\n${{ env.NO }}\n\n");
    for (inputs, error) in [
        ("{list: [], text: x, nope: 1}", "step does not accept input with name \"nope\""),
        ("{list: []}", "input \"text\" required, but not defined"),
        ("{list: '[]', text: x}", "input \"list\": expected array, got string"),
        ("{list: [], 'te${{ \"x\" }}t': x, text: y}", "a name that another key has already"),
        ("{list: [], '${{ \"a b\" }}': x}", "does not evaluate to a valid input name"),
        ("{list: '${{ [1][1] }}', text: x}", "[1][…]: the index is out of range"),
        ("{list: '${{ 1 / 0 }}', text: x}", "division by zero"),
    ] {
        let message = scene.run(&format!("- {{name: a, func: ./types, inputs: {inputs}}}")).await.failure();
        assert!(message.starts_with("step \"a\": failed to load: <steps>:1:"), "{message}");
        assert!(message.contains(error), "{message}");
    }
}

#[tokio::test]
async fn a_function_sees_its_own_steps_and_inputs_only() {
    let inner = "{}\n---\nrun: [{name: x, script: 'echo ${{ steps.first.outputs.o }}'}]\n";
    let give = "spec: {outputs: {o: {type: number}}}\n---\nexec: {command: [sh, -c, 'echo ''{\"name\": \"o\", \"value\": 42}'' > ${{ output_file }}']}\n";
    let scene = Scene::new(&[("inner/func.yml", inner), ("give/func.yml", give)]).await;
    let steps =
        "- {name: first, func: ./give}\n- {name: second, script: 'echo ${{ steps.first.outputs.o + 1 }}'}\n";
    assert_eq!(scene.run(steps).await.output(), "43\n");
    let message =
        scene.run("- {name: first, func: ./give}\n- {name: second, func: ./inner}\n").await.failure();
    assert!(message.starts_with("step \"second\": step \"x\": failed to load: "), "{message}");
    assert!(
        message.contains("inner/func.yml:3:41: run[0]: steps.first: \"first\" was not found"),
        "{message}"
    );
    let message = scene
        .run("- {name: a, script: 'echo ${{ steps.b.outputs }}'}\n- {name: b, script: x}")
        .await
        .failure();
    assert!(message.contains("steps.b: \"b\" was not found"), "{message}");
}

#[tokio::test]
async fn errors_name_every_step_and_end_in_the_exit_status() {
    let fails = "{}\n---\nrun: [{name: b, script: 'echo on; exit 3'}, {name: c, script: echo never}]\n";
    let scene = Scene::new(&[("fails/func.yml", fails)]).await;
    let ended = scene.run("- {name: a, func: ./fails}\n- {name: d, script: echo never}\n").await;
    assert_eq!((ended.message.as_str(), ended.exit_code), ("step \"a\": step \"b\": exec: exit status 3", 3));
    assert_eq!(ended.output, "on\n");
    assert_eq!(ended.said.last().unwrap(), "job failed: step \"a\": step \"b\": exec: exit status 3");

    let tree = &ended.root;
    assert_eq!(
        (tree.status(), tree.step.clone().unwrap_or_default().name.as_str()),
        (StepStatus::Failure, "")
    );
    let [a] = &tree.sub_step_results[..] else { panic!("not loaded ones are absent") };
    let [b] = &a.sub_step_results[..] else { panic!("not started ones are absent") };
    assert_eq!((a.status(), b.status()), (StepStatus::Failure, StepStatus::Failure));
    assert_eq!(b.exec_result.as_ref().unwrap().exit_code, 3);

    let ended = scene.run("- {name: a, script: kill -KILL $$}").await;
    assert_eq!(ended.root.sub_step_results[0].exec_result.as_ref().unwrap().exit_code, -1);
    assert_eq!(ended.failure(), "step \"a\": exec: signal: killed", "not a cancel: nobody asked");
    let message = scene.run("- {name: a, script: 'x ${{ env[\"exit status 7\"] }}'}").await.failure();
    assert!(message.contains("was not found") && !message.contains("exit status"), "{message}");
}

#[tokio::test]
async fn fault_73_what_a_process_returns_is_checked() {
    let function = |script: &str| {
        format!(
            "spec: {{outputs: {{s: {{type: string, default: d}}, n: {{type: number}}}}}}\n---\nexec: {{command: [sh, -c, {}, '${{{{ output_file }}}}', '${{{{ export_file }}}}']}}\n",
            json!(script)
        )
    };
    let scene = Scene::new(&[]).await;
    let run = async |script: &str| {
        let path = scene.daemon.file("f/func.yml");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, function(script)).unwrap();
        scene
            .run("- {name: f, func: ./f}\n- {name: see, script: 'echo ''${{ steps.f.outputs }}'' ${X-}'}\n")
            .await
    };
    let good = r#"printf '{"Name":"n","VALUE":1}\r\n\n  {"name":"n","value":2, "more":0}' > "$0"; echo '{"name":"X","value":1e-7}' > "$1""#;
    assert_eq!(run(good).await.output(), "{\"n\": 2, \"s\": \"d\"} 0.0000001\n");
    for (script, error) in [
        ("true", "output \"n\" was not written and has no default"),
        (r#"echo '{"name":"n","value":"2"}' > "$0""#, "output \"n\": expected number, got string"),
        (r#"echo '{"name":"k","value":2}' > "$0""#, "output \"k\" is not declared in the spec"),
        (r#"printf '\nn=2\n' > "$0""#, "output file line 2: the form key=value is no longer accepted"),
        (r#"printf '{"name":"n","value":1}{}' > "$0""#, "output file line 1: expected one JSON object"),
        (r#"printf '{"name":"n",\n' > "$0""#, "output file line 1: expected one JSON object"),
        (
            r#"echo '{"name":"n","value":1}' > "$0"; echo '{"name":"A","value":[]}' > "$1""#,
            "export file line 1: export \"A\": expected string, number or boolean, got array",
        ),
        (
            r#"echo '{"name":"n","value":1}' > "$0"; echo '{"name":"A=B","value":1}' > "$1""#,
            "export file line 1: a name must hold neither \"=\" nor NUL",
        ),
    ] {
        let ended = run(script).await;
        assert!(!ended.output.contains('{'), "{script}: the next step ran");
        assert_eq!(ended.root.sub_step_results.len(), 1);
        let message = ended.failure();
        assert!(message.starts_with("step \"f\": ") && message.contains(error), "{script}: {message}");
    }
}

#[tokio::test]
async fn fault_38_a_bad_line_is_shown_in_debug_mode_only_and_masked() {
    let scene = Scene::new(&[]).await;
    let variable = |key: &str, value: &str, masked: bool| v1::Variable {
        key: key.into(),
        value: value.into(),
        masked,
        ..v1::Variable::default()
    };
    let steps = "- {name: a, script: 'echo \"KEY=visible hidden-secret\" > ${{ export_file }}'}\n";
    for debug in [false, true] {
        let mut variables = vec![variable("S", "hidden-secret", true)];
        if debug {
            variables.push(variable("CI_STEPS_LOG_LEVEL", " Debug ", false));
        }
        let job = Some(v1::Job { variables, ..v1::Job::default() });
        let ended = scene.run_request(RunRequest { job, ..scene.request(steps) }).await;
        let said = ended.said.join("\n");
        assert_eq!(said.contains("visible"), debug, "{said}");
        assert!(!said.contains("hidden-secret"), "{said}");
        assert!(ended.failure().contains("export file line 1: "));
    }
}

#[tokio::test]
async fn functions_delegate_in_the_new_and_the_old_way() {
    let give = "spec: {outputs: {o: {type: number}}}\n---\nexec: {command: [sh, -c, 'echo ''{\"name\": \"o\", \"value\": 42}'' > ${{ output_file }}']}\n";
    let new = "spec: {outputs: delegate}\n---\nrun: [{name: x, func: ../give}, {name: y, script: 'true'}]\ndelegate: x\n";
    let old = "spec: {outputs: delegate}\n---\ntype: exec\nexec: {command: [sh, -c, 'echo ''{\"status\": 2, \"outputs\": {\"p\": [1, \"${{ 1 }}\"]}}'' > ${{ output_file }}']}\n";
    let sequence = "spec: {outputs: {d: {type: string, default: dd}, s: {type: struct}}}\n---\nrun: [{name: x, func: ../give}]\noutputs: {s: '${{ steps.x.outputs }}', extra: 1}\n";
    let scene = Scene::new(&[
        ("give/func.yml", give),
        ("new/func.yml", new),
        ("old/func.yml", old),
        ("seq/func.yml", sequence),
        ("bad/func.yml", &sequence.replace("s: '${{ steps.x.outputs }}'", "s: text")),
        ("miss/func.yml", &sequence.replace("s: '${{ steps.x.outputs }}', ", "")),
    ])
    .await;
    let steps = "- {name: n, func: ./new}\n- {name: o, func: ./old}\n- {name: s, func: ./seq}\n- {name: see, script: 'echo ''${{ steps }}'''}\n";
    let ended = scene.run(steps).await;
    assert!(
        ended.said.iter().any(|line| line.contains("output \"extra\" is not declared in the spec")),
        "{:?}",
        ended.said
    );
    assert_eq!(
        ended.output(),
        "{\"n\": {\"outputs\": {\"o\": 42}}, \"o\": {\"outputs\": {\"p\": [1, \"1\"]}}, \"s\": {\"outputs\": {\"d\": \"dd\", \"extra\": 1, \"s\": {\"o\": 42}}}}\n"
    );
    let message = scene.run("- {name: s, func: ./bad}").await.failure();
    assert!(message.contains("output \"s\": expected struct, got string"), "{message}");
    let message = scene.run("- {name: s, func: ./miss}").await.failure();
    assert!(message.contains("output \"s\" was not written and has no default"), "{message}");
}

#[tokio::test]
async fn fault_39_sensitive_values_are_masked_wherever_they_go() {
    let keep = "spec:\n  inputs: {key: {type: string, sensitive: true}}\n  outputs: {made: {type: string, sensitive: true}}\n---\nexec: {command: [sh, -c, 'echo \"key $1\"; echo ''{\"name\": \"made\", \"value\": \"made-in-secret\"}'' > \"$0\"', '${{ output_file }}', '${{ inputs.key }}']}\n";
    let scene = Scene::new(&[("keep/func.yml", keep), ("show/func.yml", SHOW)]).await;
    let steps = "- {name: k, func: ./keep, inputs: {key: given-in-secret}}\n- {name: s, func: ./show, inputs: {text: 'is ${{ steps.k.outputs.made }}'}}\n- {name: f, func: ./show, inputs: {text: '${{ {}[steps.k.outputs.made] }}'}}\n";
    let ended = scene.run(steps).await;
    let everything = format!("{}{:?}{}", ended.output, ended.said, ended.message);
    assert!(!everything.contains("in-secret"), "{everything}");
    assert_eq!(ended.output, "key [MASKED]\nis [MASKED]\n");
}

#[tokio::test]
async fn a_computed_reference_is_evaluated_once() {
    let scene = Scene::new(&[("show/func.yml", SHOW)]).await;
    let steps = "- {name: a, func: './${{ \"sh\" + \"ow\" }}', inputs: {text: x}}\n";
    assert_eq!(scene.run(steps).await.output(), "x\n");
    let message = scene.run("- {name: a, func: '${{ \"./\\${{ 1 }}\" }}'}").await.failure();
    assert!(message.contains("which is not evaluated again"), "{message}");
    let message = scene.run("- {name: a, func: 'builtin://nope'}").await.failure();
    assert!(message.contains("builtin \"nope\" was not found"), "{message}");
}

#[tokio::test]
async fn a_process_is_started_as_its_definition_says() {
    let tool = "#!/bin/sh\necho \"tool in $(pwd) with $# arguments\"; cat; ps -o pgid= -p $$ | tr -d ' ' | grep -qx $$ && echo own group\n";
    let exec = |command: &str| format!("{{}}\n---\nexec: {{command: {command}, work_dir: sub/dir}}\n");
    let scene = Scene::new(&[
        ("bin/tool-of-mine", tool),
        ("sub/dir/local", tool),
        ("path/func.yml", &exec("[tool-of-mine, '', 'a b', '${{ \"\" }}']")),
        ("local/func.yml", &exec("[./local]")),
    ])
    .await;
    for tool in ["bin/tool-of-mine", "sub/dir/local"] {
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(scene.daemon.file(tool), executable).unwrap();
    }
    let steps = "\
- {name: a, script: 'echo ''{\"name\": \"PATH\", \"value\": \"${{ work_dir }}/bin:${{ env.PATH }}\"}'' > ${{ export_file }}'}
- {name: b, func: ./path}
- {name: c, func: ./local}
";
    let output = scene.run(steps).await.output().replace(scene.daemon.path.to_str().unwrap(), "DIR");
    assert_eq!(
        output,
        "tool in DIR/sub/dir with 3 arguments\nown group\ntool in DIR/sub/dir with 0 arguments\nown group\n"
    );
    let message = scene.run("- {name: b, func: ./path}").await.failure();
    assert!(message.starts_with("step \"b\": exec: ") && message.contains("tool-of-mine"), "{message}");
}

#[tokio::test]
async fn a_cancel_reaches_every_enclosing_result_and_nothing_is_returned() {
    let stubborn = "{}\n---\nexec:\n  cancel_timeout: 10m\n  command: [sh, -c, 'trap \"\" TERM; echo ''{\"name\": \"A\", \"value\": 1}'' > \"$0\"; echo on; while :; do sleep 0.1; done', '${{ export_file }}']\n";
    let outer = "{}\n---\nrun: [{name: inner, func: ../stubborn}, {name: never, script: echo never}]\n";
    let gentle =
        stubborn.replace("trap \\\"\\\" TERM", "x").replace("trap \"\" TERM", "trap \"exit 0\" TERM");
    let scene = Scene::new(&[
        ("stubborn/func.yml", stubborn),
        ("outer/func.yml", outer),
        ("gentle/func.yml", &gentle),
        ("soft/func.yml", &outer.replace("stubborn", "gentle")),
    ])
    .await;
    let steps =
        |function| format!("- {{name: o, func: ./{function}}}\n- {{name: after, script: echo never}}\n");
    scene.start("1", &steps("outer")).await;
    scene.client.prints("1", "on").await;
    scene.client.cancel("1").await;
    scene.client.reaches("1", "it is cancelling", |status| status.state() == State::Cancelling).await;
    // Its function allows ten minutes; a closing call leaves none.
    scene.client.finish("1").await;

    scene.start("2", &steps("soft")).await;
    scene.client.prints("2", "on").await;
    scene.client.cancel("2").await;
    let ended = scene.ended("2").await;
    assert_eq!((ended.state, ended.output.as_str()), (State::Cancelled, "on\n"));
    let mut result = &ended.root;
    for _ in 0..3 {
        assert_eq!(result.status(), StepStatus::Cancelled);
        assert!(result.exports.is_empty() && result.outputs.is_empty());
        result = result.sub_step_results.first().unwrap_or(result);
    }
    assert_eq!(result.exec_result.as_ref().unwrap().exit_code, 0, "a good end in the grace");
    assert_eq!(scene.daemon.folders(), Vec::<String>::new());
}

#[tokio::test]
async fn results_show_steps_as_evaluated_and_functions_as_read() {
    let scene = Scene::new(&[("show/func.yml", SHOW)]).await;
    let ended =
        scene.run("- {name: a, func: ./show, inputs: {text: '${{ 1 + 1 }}'}, env: {E: '${{ 2 }}'}}").await;
    let a = &ended.root.sub_step_results[0];
    let step = a.step.as_ref().unwrap();
    assert_eq!((step.name.as_str(), step.env["E"].as_str(), a.env["E"].as_str()), ("a", "2", "2"));
    let text = step.inputs["text"].kind.clone();
    assert_eq!(text, Some(prost_types::value::Kind::StringValue("2".into())));
    let exec = a.exec_result.as_ref().unwrap();
    assert_eq!((exec.command.last().unwrap().as_str(), exec.exit_code), ("2", 0));
    assert_eq!(exec.work_dir, scene.daemon.path.to_str().unwrap());
    let definition = format!("{:?}", a.spec_definition);
    assert!(definition.contains("${{ inputs.text }}"), "{definition}");
    assert_eq!(ended.output(), "2\n");
}
