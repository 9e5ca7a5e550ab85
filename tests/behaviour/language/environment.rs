//! The environment that processes get and export.

use std::collections::BTreeMap;

use step_runner::pb::v1::RunRequest;

use crate::language::Scene;
use crate::support::Setup;

/// The example of language.md §13.
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

    // The `env` of a step is not visible to its own inputs.
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
