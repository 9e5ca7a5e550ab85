//! Functions: their scope, calls, processes and results.

use super::{SHOW, Scene};

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
        message.contains(
            "inner/func.yml:3:41: run[0].script: expand input \"script\": steps.first: \"first\" was not found"
        ),
        "{message}"
    );
    let message = scene
        .run("- {name: a, script: 'echo ${{ steps.b.outputs }}'}\n- {name: b, script: x}")
        .await
        .failure();
    assert!(message.contains("steps.b: \"b\" was not found"), "{message}");
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
    let tool = "#!/bin/sh\necho \"tool in $(pwd) with $# arguments\"; cat; cut -d' ' -f5 /proc/$$/stat | grep -qx $$ && echo own group\n";
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
