//! The ends of jobs: errors, exit codes, cancels, results.

use serde_json::json;
use step_runner::pb::v1::step_result::Status as StepStatus;
use step_runner::pb::v1::{self, RunRequest, State};

use super::{SHOW, Scene};

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
            "export file line 1: export \"A…\": a name must hold neither \"=\" nor NUL",
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
    // The function's grace is ten minutes, but Finish leaves no grace.
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
