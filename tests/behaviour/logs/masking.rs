//! Secrets never reach followers.

use super::masking;
use crate::support::{Client, Daemon, Setup, contains, request, script};
use step_runner::pb::v1::{self, RunRequest};
use tonic::Code;

async fn masked(client: &Client, id: &str, phrases: &[&str], text: &str) -> String {
    let run = RunRequest { masking: Some(masking(phrases)), ..request(id, &script(text)) };
    client.try_run(run).await.unwrap();
    assert_eq!(client.ended(id).await.exit_code, 0);
    client.output(id).await
}

#[tokio::test]
async fn fault_32_secrets_are_masked_however_their_output_is_cut() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let cut = "for c in s e s e s a m e - o p e n; do printf $c; sleep 0.02; done; echo";
    assert_eq!(masked(&client, "cut", &["sesame-open"], cut).await, "se[MASKED]\n");
    let half = "printf 'x sesame-'; sleep 0.3; printf 'shut '; echo sesame-open";
    assert_eq!(masked(&client, "half", &["sesame-open"], half).await, "x sesame-shut [MASKED]\n");
    let forms = "printf 'sesame open' | base64; echo '\"sesame open\"'; echo sesame%20open";
    assert_eq!(masked(&client, "forms", &["sesame open"], forms).await, "[MASKED]\n\"[MASKED]\"\n[MASKED]\n");
    let tokens = "echo glpat-abc123 x; echo my_token=42; echo '?private_token=abc&x=y'";
    assert_eq!(
        masked(&client, "tokens", &[], tokens).await,
        "glpat-[MASKED] x\nmy_token=42\n?private_token=[MASKED]&x=y\n"
    );
    let lines = "printf 'first-line\\r\\nsecond-line\\n'; echo second-line";
    assert_eq!(masked(&client, "lines", &["first-line\nsecond-line"], lines).await, "[MASKED]\n[MASKED]\n");
    let streams = "echo sesame-open; echo sesame-open >&2";
    assert_eq!(masked(&client, "streams", &["sesame-open"], streams).await, "[MASKED]\n");
    assert!(!contains(&client.log("streams").await, "sesame"));
}

#[tokio::test]
async fn fault_34_no_line_of_a_key_shows_however_it_is_printed() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let lines: Vec<String> =
        (0..6_u64).map(|n| format!("{:016x}Ab+/", (n + 3).wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
    let key = format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", lines.join("\n"));
    let file = daemon.file("key");
    std::fs::write(&file, &key).unwrap();
    let returns = key.replace('\n', "\r\n");
    for (phrase, name) in [(&key, "feeds"), (&returns, "returns")] {
        for (way, text, masks) in [
            ("cat", "cat $F", 1),
            ("sed", "sed 's/$/\\r/' $F", 1),
            ("bytes", "dd if=$F bs=1 status=none", 1),
            ("quoted", "sed 's/^/> /' $F", 8),
            ("one", "sed -n 4p $F", 1),
            ("joined", "tr -d '\\n' < $F", 8),
        ] {
            let id = format!("{name}-{way}");
            let output = masked(&client, &id, &[phrase], &text.replace("$F", &file.to_string_lossy())).await;
            assert_eq!(output.matches("[MASKED]").count(), masks, "{id}: {output}");
            assert!(!output.contains("PRIVATE KEY"), "{id}: {output}");
            assert!(lines.iter().all(|line| !output.contains(line)), "{id}: {output}");
        }
    }
}

#[tokio::test]
async fn fault_35_texts_inside_of_a_json_secret_are_hidden_if_the_setting_says_so() {
    let secret = r#"{"user":"admin","key":"p/ssw\u00f6rd-123","hosts":["db.example.com"]}"#;
    let text = "echo admin p/ssw\u{f6}rd-123 p%2Fssw%C3%B6rd-123 db.example.com";
    for (setting, output) in [
        ("false", "admin p/ssw\u{f6}rd-123 p%2Fssw%C3%B6rd-123 db.example.com\n"),
        ("true", "admin [MASKED] [MASKED] [MASKED]\n"),
    ] {
        let daemon = Setup::new().option("mask-json-members", setting).start();
        let client = daemon.client().await;
        assert_eq!(masked(&client, "1", &[secret], text).await, output, "{setting}");
    }
}

#[tokio::test]
async fn fault_82_base64_of_a_long_secret_shows_nothing_over_its_line_ends() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let secret = (1..=40).map(|n| n.to_string()).collect::<Vec<_>>().join("-");
    for (way, text, expected) in [
        ("echo", "echo SECRET | base64", "[MASKED]\n"),
        ("printf", "printf SECRET | base64", "[MASKED]\n"),
        ("pem", "echo SECRET | base64 -w 64", "[MASKED]\n"),
        ("returns", "echo SECRET | base64 | sed 's/$/\\r/'", "[MASKED]\r\n"),
        ("bytes", "echo SECRET | base64 | dd bs=1 status=none", "[MASKED]\n"),
        // Text before and behind the secret stays visible.
        ("within", "echo user:SECRET | base64", "dXNlcjo[MASKED]Ao=\n"),
    ] {
        let output = masked(&client, way, &[&secret], &text.replace("SECRET", &secret)).await;
        assert_eq!(output, expected, "{way}");
    }
}

#[tokio::test]
async fn fault_36_one_byte_secrets_are_masked_and_the_operator_is_warned_without_their_value() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let phrases = ["", " ", "\n", "q", "0", "[MASKED]"];
    let output = masked(&client, "1", &phrases, "echo 'quick 10 [MASKED]'").await;
    assert_eq!(output, "[MASKED]uick 1[MASKED] [MASKED]\n");
    crate::support::until("the operator is warned", || daemon.said().contains("single byte")).await;
    let said = daemon.said();
    let warning = said.lines().find(|line| line.contains("single byte")).unwrap();
    assert!(warning.contains("to mask: 2;") && !warning.contains("\"q\""), "{warning}");
}

#[tokio::test]
async fn fault_37_half_a_secret_waits_for_the_rest_or_the_end_and_for_no_time() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let go = daemon.file("go");
    let text = format!(
        "printf 'password: sesame-'; until [ -e {} ]; do sleep 0.01; done; echo open; printf 'bye sesame-'",
        go.display()
    );
    let run = RunRequest { masking: Some(masking(&["sesame-open"])), ..request("1", &script(&text)) };
    client.try_run(run).await.unwrap();
    // Held bytes are not released by time alone.
    client.run_to_end("other", &script("sleep 1")).await;
    assert!(!contains(&client.log_so_far("1").await, "sesame"));
    std::fs::write(&go, "").unwrap();
    client.ended("1").await;
    // Held bytes that are no secret come at the end of their source.
    assert_eq!(client.output("1").await, "password: [MASKED]\nbye sesame-\n");
}

#[tokio::test]
async fn fault_40_a_thousand_secrets_are_all_masked_and_delay_no_other_job() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run("beside", "while :; do echo tick; sleep 0.02; done").await;
    let mut beside = client.follow("beside", 0).await;
    beside.until("tick").await;
    let phrase = |n: u64| format!("{n:x}-{:016x}", (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let phrases: Vec<String> = (0..1_000).map(phrase).collect();
    let file = daemon.file("secrets");
    std::fs::write(&file, phrases.join("\n") + "\n").unwrap();
    let phrases: Vec<&str> = phrases.iter().map(String::as_str).collect();
    let text = format!("cat {}", file.display());
    let mut masks = std::pin::pin!(masked(&client, "1", &phrases, &text));
    // Another job continues while the masker for these secrets is prepared.
    let output = loop {
        tokio::select! {
            output = &mut masks => break output,
            more = beside.next() => assert!(more.unwrap().is_some()),
        }
    };
    assert_eq!(output, "[MASKED]\n".repeat(1_000));
    let many: Vec<String> = (0..4_097).map(phrase).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let over = RunRequest { masking: Some(masking(&many)), ..request("2", &script("true")) };
    crate::support::refused(client.try_run(over).await, Code::InvalidArgument, "too_large");
    client.cancel("beside").await;
}

#[tokio::test]
async fn prefixes_of_the_request_count_too() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let masking = Some(v1::Masking { phrases: vec![], token_prefixes: vec!["my-".into()] });
    let run = RunRequest { masking, ..request("1", &script("echo my-secret our-secret")) };
    client.try_run(run).await.unwrap();
    client.ended("1").await;
    assert_eq!(client.output("1").await, "my-[MASKED] our-secret\n");
}

#[tokio::test]
async fn fault_39_a_sensitive_output_is_masked_from_the_moment_it_is_known() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let folder = daemon.file("f");
    std::fs::create_dir(&folder).unwrap();
    let function = r#"spec:
  outputs:
    token: {type: string, sensitive: true}
---
exec:
  command: [sh, -c, 'echo "{\"name\":\"token\",\"value\":\"late-secret\"}" > ${{output_file}}']
"#;
    std::fs::write(folder.join("func.yml"), function).unwrap();
    let steps = serde_json::json!([
        {"name": "a", "func": folder},
        {"name": "b", "script": "echo ${{steps.a.outputs.token}} $T", "env": {"T": "${{steps.a.outputs.token}}"}},
    ]);
    assert_eq!(client.run_to_end("1", &steps.to_string()).await.exit_code, 0);
    assert_eq!(client.output("1").await, "[MASKED] [MASKED]\n");
    let results = format!("{:?}", client.steps("1").await);
    assert!(results.contains("[MASKED]") && !results.contains("late-secret"), "{results}");
}

#[tokio::test]
async fn fault_38_nothing_that_leaves_the_daemon_holds_a_secret() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let folder = daemon.file("f");
    std::fs::create_dir(&folder).unwrap();
    let function = "spec:\n  inputs:\n    word: {type: string}\n---\nexec: {command: ['/canary-canary/${{inputs.word}}']}\n";
    std::fs::write(folder.join("func.yml"), function).unwrap();
    let variable =
        v1::Variable { key: "WORD".into(), value: "canary-canary".into(), file: false, masked: true };
    let job = Some(v1::Job { variables: vec![variable], ..v1::Job::default() });
    let steps = serde_json::json!([
        {"name": "a", "script": "echo $WORD; echo '{\"name\":\"E\",\"value\":\"canary-canary\"}' > ${{export_file}}"},
        {"name": "b", "func": folder, "inputs": {"word": "${{vars.WORD}}"}, "env": {"X": "canary-canary"}},
    ]);
    client.try_run(RunRequest { job, ..request("1", &steps.to_string()) }).await.unwrap();
    let status = client.ended("1").await;
    assert_eq!(status.exit_code, -1);
    assert!(status.message.contains("[MASKED]"), "{}", status.message);
    let everything = format!(
        "{status:?} {:?} {}",
        client.steps("1").await,
        String::from_utf8_lossy(&client.log("1").await)
    );
    assert!(!everything.contains("canary-canary"), "{everything}");
    assert!(!daemon.said().contains("canary-canary"));
    for file in crate::support::tree(&daemon.state_dir()).values() {
        assert!(!contains(file, "canary-canary"), "on disk: {}", String::from_utf8_lossy(file));
    }
}

#[tokio::test]
async fn fault_38_a_sensitive_value_too_long_to_mask_ends_its_job_and_leaves_in_nothing() {
    let mut daemon = Daemon::start();
    let function = daemon.file("secret");
    std::fs::create_dir(&function).unwrap();
    let text = r#"spec: {outputs: {key: {type: string, sensitive: true}}}
---
exec:
  command:
    - sh
    - -c
    - printf '{"name":"key","value":"canary%s"}\n' "$(head -c 300000 /dev/zero | tr '\0' x)" > "$1"
    - sh
    - ${{ output_file }}
"#;
    std::fs::write(function.join("func.yml"), text).unwrap();
    let client = daemon.client().await;
    let steps = format!("[{{name: a, func: {}}}]", function.display());
    let status = client.run_to_end("1", &steps).await;
    assert_eq!((crate::support::state(&status), status.exit_code), (v1::State::Failure, -1), "{status:?}");
    assert!(status.message.contains("cannot be masked"), "{status:?}");
    let results = format!("{:?}", client.steps("1").await);
    assert!(!results.contains("canary") && !contains(&client.log("1").await, "canary"));
    daemon.kill();
    daemon.restart();
    assert_eq!(daemon.client().await.status("1").await.message, status.message);
}

#[tokio::test]
async fn fault_80_texts_are_masked_before_they_are_cut_or_put_on_one_line() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let folder = daemon.file("f");
    std::fs::create_dir(&folder).unwrap();
    let lines = "canary one\n/canary two\t'three'";
    let [medium, long] = [100, 400].map(|count| "canary-".repeat(count));
    let function = |name: &str, text: &str| {
        let folder = folder.join(name);
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("func.yml"), text).unwrap();
        folder
    };
    let word = "spec: {inputs: {word: {type: string}}}\n---\n";
    let command = function("command", &format!("{word}exec: {{command: ['/x/${{{{inputs.word}}}}']}}\n"));
    let work_dir = function(
        "work_dir",
        &format!("{word}exec: {{command: ['true'], work_dir: '/x/${{{{inputs.word}}}}'}}\n"),
    );
    let output = function(
        "output",
        &format!(
            "{word}exec: {{command: [sh, -c, 'printf \"%s\" \"$1\" > \"$0\"', '${{{{output_file}}}}', '${{{{inputs.word}}}}']}}\n"
        ),
    );
    let number =
        function("number", "spec: {inputs: {word: {type: number}}}\n---\nexec: {command: ['true']}\n");
    for secret in [lines, &medium, &long] {
        for (way, steps) in [
            (
                "command",
                serde_json::json!([{"name": "a", "func": command, "inputs": {"word": "${{vars.WORD}}"}}]),
            ),
            (
                "work_dir",
                serde_json::json!([{"name": "a", "func": work_dir, "inputs": {"word": "${{vars.WORD}}"}}]),
            ),
            (
                "output",
                serde_json::json!([{"name": "a", "func": output, "inputs": {"word": "${{vars.WORD}}"}}]),
            ),
            ("name", serde_json::json!([{"name": "a", "func": number, "inputs": {secret: 1}}])),
            ("member", serde_json::json!([{"name": "a", "script": "${{ env[vars.WORD] }}"}])),
            ("local", serde_json::json!([{"name": "a", "func": "./${{vars.WORD}}"}])),
        ] {
            // YAML has no longer keys than that.
            if way == "name" && secret.len() > 1024 {
                continue;
            }
            let id = format!("{way}-{}", secret.len());
            let variable = |key: &str, value: &str, masked| v1::Variable {
                key: key.into(),
                value: value.into(),
                file: false,
                masked,
            };
            let variables =
                vec![variable("WORD", secret, true), variable("CI_STEPS_LOG_LEVEL", "debug", false)];
            let job = Some(v1::Job { variables, ..v1::Job::default() });
            let run = RunRequest { job, ..request(&id, &steps.to_string()) };
            let refused = client.try_run(run).await.err().map(|status| status.message().to_owned());
            let told = match refused {
                Some(message) => message,
                None => format!(
                    "{:?} {:?} {}",
                    client.ended(&id).await,
                    client.steps(&id).await,
                    String::from_utf8_lossy(&client.log(&id).await)
                ),
            };
            assert!(told.contains("[MASKED]") && !told.contains("canary"), "{id}: {told}");
        }
    }
    assert!(!daemon.said().contains("canary"), "{}", daemon.said());
}

#[tokio::test]
async fn fault_81_sensitive_values_of_every_type_are_hidden_in_results_and_logs() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let folder = daemon.file("f");
    std::fs::create_dir(&folder).unwrap();
    let function = r#"spec:
  inputs:
    pin: {type: number, sensitive: true}
    flag: {type: boolean, sensitive: true}
    list: {type: array, sensitive: true}
  outputs:
    big: {type: number, sensitive: true}
    tree: {type: struct, sensitive: true}
---
exec:
  command:
    - sh
    - -c
    - |
      echo '{"name":"big","value":12345678901234567890}' > "$0"
      echo '{"name":"tree","value":{"a":[73519,{"b":73520.25}],"c":true}}' >> "$0"
    - ${{output_file}}
"#;
    std::fs::write(folder.join("func.yml"), function).unwrap();
    let steps = serde_json::json!([
        {"name": "a", "func": folder, "inputs": {"pin": 86420, "flag": true, "list": [97531, "nine"]}},
        {"name": "b", "script": "echo 12345678901234567890 ${{steps.a.outputs.big}} ${{str(steps.a.outputs.tree)}}"},
    ]);
    assert_eq!(client.run_to_end("1", &steps.to_string()).await.exit_code, 0);
    let told = format!("{:?} {}", client.steps("1").await, String::from_utf8_lossy(&client.log("1").await));
    for secret in ["123456789012345", "73519", "73520", "86420", "97531", "nine"] {
        assert!(!told.contains(secret), "{secret}: {told}");
    }
    // A boolean has no text to search for, so it shows where a step's own document contains it.
    assert!(told.contains(r#""flag": Value { kind: Some(StringValue("[MASKED]"))"#), "{told}");
}
