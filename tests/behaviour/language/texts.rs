//! The meaning of texts: names, scalars and templates.

use step_runner::pb::v1::{self, RunRequest};

use super::{SHOW, Scene};

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
    assert_eq!(ended.output(), "v}}\n1.5 ${{ no }} }} $HOME\n${{ env.NO }}\n\n1\n1.50\n${{ env.NO }}\n\n");
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
async fn bug_hash_that_looks_like_a_number() {
    let show = "spec: {inputs: {v: {type: string}, n: {type: number, default: 0}}}\n---\nexec: {command: [echo, '${{ inputs.v }}', '${{ inputs.n }}']}\n";
    let scene = Scene::new(&[("show/func.yml", show)]).await;
    for (inputs, shown) in [
        ("{v: 3.10, n: 3.10}", "3.10 3.1\n"),
        ("{v: 007}", "007 0\n"),
        ("{v: 1e3}", "1e3 0\n"),
        ("{v: True}", "True 0\n"),
        ("{\"v\": 1.0}", "1.0 0\n"),
        ("{v: '${{ 3.10 }}'}", "3.1 0\n"),
        ("{v: 12345678901234567890}", "12345678901234567890 0\n"),
        ("{v: 1234567890123456789012345678901234567890}", "1234567890123456789012345678901234567890 0\n"),
        ("{v: 1.10}", "1.10 0\n"),
        ("{v: 0x1F}", "0x1F 0\n"),
        ("{v: 012}", "012 0\n"),
        ("{v: +1}", "+1 0\n"),
        ("{v: 1_000}", "1_000 0\n"),
        ("{v: .5}", ".5 0\n"),
        ("{v: 7e12345}", "7e12345 0\n"),
        ("{v: -7E+12345}", "-7E+12345 0\n"),
        ("{v: .inf}", ".inf 0\n"),
        ("{\"v\": 7e12345}", "7e12345 0\n"),
    ] {
        let ended = scene.run(&format!("- {{name: a, func: ./show, inputs: {inputs}}}")).await;
        assert_eq!(ended.output(), shown, "{inputs}");
    }
    for (inputs, at, error) in [
        ("{v: x, n: 7e12345}", "1:45", "number beyond the range of doubles"),
        ("{v: [7e12345]}", "1:40", "number beyond the range of doubles"),
    ] {
        let steps = format!("- {{name: a, func: ./show, inputs: {inputs}}}");
        let refused = scene.client.try_run(scene.request(&steps)).await;
        let message = match refused {
            Err(refused) => refused.message().to_owned(),
            Ok(()) => scene.ended("1").await.failure(),
        };
        assert!(message.contains(&format!("<steps>:{at}")) && message.contains(error), "{inputs}: {message}");
    }
}
