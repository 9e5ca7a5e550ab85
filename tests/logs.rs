//! What followers get of a log: every byte, once, masked, to the end (logs.md, masking.md §7).
#![expect(clippy::unwrap_used, reason = "a broken scene fails the test")]

mod support;

use std::path::PathBuf;

use futures_util::future::join_all;
use step_runner::pb::v1::{self, RunRequest, State};
use support::{Client, Daemon, Setup, contains, logs, numbered, request, script, scripts};
use tonic::Code;

/// A daemon with a file that holds these bytes.
fn with_file(bytes: &[u8]) -> (Daemon, PathBuf) {
    let daemon = Daemon::start();
    let file = daemon.file("bytes");
    std::fs::write(&file, bytes).unwrap();
    (daemon, file)
}

#[tokio::test]
async fn fault_17_joined_bodies_are_what_the_process_wrote() {
    let (daemon, file) = with_file(b"");
    let client = daemon.client().await;
    let line = |byte: u8, len: usize| vec![byte; len];
    let random: Vec<u8> = (0_u64..200_000)
        .map(|n| {
            (n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17).wrapping_mul(0xbf58_476d) >> 24) as u8
        })
        .collect();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("nothing", vec![]),
        ("empty-lines", b"\n\n\na\n\n\nb\n\n".to_vec()),
        ("carriage-returns", b"10%\r20%\r\nx\r\r\ny\r\n\r\n".to_vec()),
        ("nul", b"a\0b\n\0\n\0\0\n".to_vec()),
        ("bad-utf-8", b"\xff\xfe\n\xc3\n\xe2\x82\n\xed\xa0\x80\n".to_vec()),
        ("no-line-end", b"one\ntwo".to_vec()),
        ("header-like", b"2021-01-01T00:00:00.000000Z 01O+evil\n".to_vec()),
        ("limit", [line(b'a', 8_160), line(b'\n', 1), line(b'b', 8_161), line(b'\n', 1)].concat()),
        ("long-line", [line(b'x', 70_000), b"\n".to_vec()].concat()),
        ("endless-line", line(b'y', 1 << 20)),
        ("random", random),
    ];
    for (id, bytes) in cases {
        std::fs::write(&file, &bytes).unwrap();
        let status =
            client.run_to_end(id, &script(&format!("cat {f}; cat {f} >&2", f = file.display()))).await;
        assert_eq!(status.exit_code, 0);
        let log = client.log(id).await;
        for source in ["01O", "01E"] {
            let mut written = logs::source(&log, source);
            // At the end of a source the line feed may be the formatter's.
            if written.len() == bytes.len() + 1 {
                assert_eq!(written.pop(), Some(b'\n'));
            }
            assert!(
                written == bytes,
                "{id} {source}: {} bytes written, {} found",
                bytes.len(),
                written.len()
            );
        }
    }
}

#[tokio::test]
async fn fault_16_no_line_is_cut_by_a_limit_and_no_byte_is_lost() {
    let (daemon, file) = with_file(b"");
    let client = daemon.client().await;
    // Around what is held, with and without a header, around one read of a pipe, and far beyond.
    let lengths = [8_159, 8_160, 8_161, 8_191, 8_192, 8_193, 65_535, 65_536, 65_537, 3 << 20];
    for (id, end) in [("lines", "\n"), ("returns", "\r\n")] {
        let lines: Vec<String> = lengths
            .iter()
            .zip(b'a'..)
            .map(|(&length, byte)| char::from(byte).to_string().repeat(length))
            .collect();
        let written = lines.join(end) + end;
        std::fs::write(&file, &written).unwrap();
        client.run_to_end(id, &script(&format!("cat {}", file.display()))).await;
        let log = client.log(id).await;
        assert!(logs::source(&log, "01O") == written.as_bytes(), "{id}");
        // A line that came in one read is one entry, however long.
        let entries = logs::entries(&log);
        assert!(entries.iter().any(|(_, body)| body.len() >= 8_193 && body[0] == b'f'), "{id}");
    }
    let go = daemon.file("go");
    let text = format!(
        "head -c 9000 /dev/zero | tr '\\0' x; until [ -e {} ]; do sleep 0.01; done; echo end",
        go.display()
    );
    client.run("shown", &text).await;
    // More than is held goes out though the line has not ended.
    let mut follow = client.follow("shown", 0).await;
    follow.until(&"x".repeat(9_000)).await;
    std::fs::write(&go, "").unwrap();
    let log = follow.rest().await.unwrap();
    assert_eq!(logs::source(&log, "01O"), ("x".repeat(9_000) + "end\n").as_bytes());
    assert_eq!(logs::entries(&log).last().unwrap().0[31], b'+');
}

#[tokio::test]
async fn fault_17_bytes_written_one_by_one_arrive_as_written() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let text = "for c in a b '\\r' c '\\n' '\\n' d '\\r\\n' '\\000' e; do printf \"$c\"; sleep 0.01; done";
    client.run_to_end("1", &script(text)).await;
    assert_eq!(logs::source(&client.log("1").await, "01O"), b"ab\rc\n\nd\r\n\0e\n");
}

#[tokio::test]
async fn fault_31_two_streams_keep_their_order_and_their_lines_whole() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let text = "(seq 1 100000 | sed 's/$/ out/') & (seq 1 100000 | sed 's/$/ err/' >&2) & wait";
    assert_eq!(client.run_to_end("1", &script(text)).await.exit_code, 0);
    let log = client.log("1").await;
    for (source, name) in [("01O", "out"), ("01E", "err")] {
        let text = String::from_utf8(logs::source(&log, source)).unwrap();
        let expected = numbered(100_000, &format!(" {name}"));
        assert!(text == expected, "{source} differs");
    }
}

#[tokio::test]
async fn fault_30_each_step_closes_its_last_line() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run_to_end("1", &scripts(&[("a", "printf one"), ("b", "printf two")])).await;
    let log = client.log("1").await;
    let bodies: Vec<_> =
        logs::entries(&log).into_iter().map(|(_, body)| String::from_utf8_lossy(body).into_owned()).collect();
    assert_eq!(bodies, ["Running step name=a", "one", "Running step name=b", "two"]);
}

#[tokio::test]
async fn fault_30_the_last_byte_of_a_short_job_is_there_when_the_job_has_ended() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let jobs = (0..200_u32).map(|number| {
        let client = client.clone();
        async move {
            let id = format!("short-{number}");
            client.run(&id, &format!("printf {number}")).await;
            for _ in 0..number % 7 {
                client.status(&id).await;
            }
            // `ended` compares what came with the length that Status tells.
            assert_eq!(client.ended(&id).await.exit_code, 0);
            assert_eq!(client.output(&id).await, format!("{number}\n"));
            client.finish(&id).await;
        }
    });
    join_all(jobs).await;
}

#[tokio::test]
async fn the_first_message_holds_a_whole_header() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run_to_end("1", &script("printf x")).await;
    let mut follow = client.follow("1", 0).await;
    let first = follow.next().await.unwrap().unwrap();
    assert!(first >= 32);
}

#[tokio::test]
async fn fault_20_a_follower_resumes_anywhere_without_gap_or_repeat() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run("1", "seq 1 2000; i=0; while [ $i -lt 100 ]; do echo line $i; sleep 0.01; i=$((i+1)); done; seq 1 2000").await;
    let mut received = Vec::new();
    let mut dice = 0x2545_f491_4f6c_dd1d_u64;
    let mut cuts = 0;
    loop {
        let offset = i32::try_from(received.len()).unwrap();
        let another = daemon.client().await;
        let mut follow = another.follow("1", offset).await;
        dice = dice.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let messages = 1 + (dice >> 33) % 4;
        let mut ended = false;
        for _ in 0..messages {
            ended = follow.next().await.unwrap().is_none();
            if ended {
                break;
            }
        }
        // A cut may fall anywhere in what was received.
        let keep = if ended || follow.bytes.len() < 2 {
            follow.bytes.len()
        } else {
            1 + (dice >> 17) as usize % follow.bytes.len()
        };
        received.extend_from_slice(&follow.bytes[..keep]);
        if ended {
            break;
        }
        cuts += 1;
        assert!(cuts < 100_000);
    }
    assert!(received == client.log("1").await);
    assert!(cuts > 3);
}

#[tokio::test]
async fn many_followers_see_the_same_and_end_with_the_job() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let go = daemon.file("go");
    client
        .run("1", &format!("echo on; until [ -e {} ]; do sleep 0.01; done; seq 1 20000", go.display()))
        .await;
    client.prints("1", "on").await;
    let mut follows = Vec::new();
    for _ in 0..30 {
        follows.push(client.follow("1", 0).await);
    }
    std::fs::write(&go, "").unwrap();
    let all = join_all(follows.into_iter().map(|follow| async { follow.rest().await.unwrap() })).await;
    let status = client.status("1").await;
    assert!(status.finished);
    for bytes in &all {
        assert!(*bytes == all[0]);
        assert_eq!(bytes.len() as i64, status.log_bytes);
    }
    assert!(client.log("1").await == all[0], "a follower of the ended job too");
}

#[tokio::test]
async fn fault_19_a_follower_that_never_reads_delays_nobody() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run("1", "echo on; sleep 0.1; seq 1 300000; echo end").await;
    let lazy = daemon.client().await;
    let mut stalled = lazy.follow("1", 0).await;
    stalled.until("on").await;
    assert_eq!(client.ended("1").await.exit_code, 0);
    // When it reads on at last, it gets everything.
    assert!(stalled.rest().await.unwrap() == client.log("1").await);
}

#[tokio::test]
async fn finish_while_following_gives_every_byte_and_a_good_end() {
    let daemon = Setup::new().option("cancel-grace", "5s").start();
    let client = daemon.client().await;
    client
        .run("1", "trap 'seq 1 5000; echo last words; exit 0' TERM; echo on; while :; do sleep 0.01; done")
        .await;
    let mut follow = client.follow("1", 0).await;
    follow.until("on").await;
    let (rest, finished) = tokio::join!(follow.rest(), client.try_finish("1"));
    finished.unwrap();
    let log = rest.unwrap();
    let output = String::from_utf8(logs::source(&log, "01O")).unwrap();
    assert!(output.starts_with("on\n1\n") && output.ends_with("5000\nlast words\n"), "{output}");
    assert_eq!(logs::daemon_lines(&log).len(), 2, "{:?}", logs::daemon_lines(&log));
}

#[tokio::test]
async fn followers_of_a_finished_job_that_are_behind_get_the_rest() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run_to_end("1", &script("seq 1 200000")).await;
    let whole = client.log("1").await;
    let behind = daemon.client().await;
    let mut follow = behind.follow("1", 0).await;
    follow.next().await.unwrap();
    client.finish("1").await;
    assert!(follow.rest().await.unwrap() == whole);
}

#[tokio::test]
async fn fault_23_the_limit_of_a_log_is_marked_and_does_not_touch_the_result() {
    let daemon = Setup::new().option("log-limit", "64KiB").start();
    let client = daemon.client().await;
    let status = client.run_to_end("1", &scripts(&[("a", "seq 1 100000"), ("b", "echo late; exit 3")])).await;
    assert_eq!((status.state(), status.exit_code), (State::Failure, 3));
    assert!(status.log_bytes <= 64 << 10, "{}", status.log_bytes);
    let log = client.log("1").await;
    let said = logs::daemon_lines(&log);
    assert!(said.contains(&"log limit reached: 65536 bytes; later output is dropped".to_owned()), "{said:?}");
    let dropped =
        said.iter().find(|line| line.starts_with("warning: ") && line.ends_with(" bytes of output dropped"));
    let dropped: usize = dropped.unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let kept = logs::source(&log, "01O");
    let written = numbered(100_000, "") + "late\n";
    assert!(written.as_bytes().starts_with(&kept));
    assert_eq!(kept.len() + dropped, written.len());
    assert!(
        said.last().unwrap().starts_with("job failed: ")
            || said.iter().any(|l| l.starts_with("job failed: "))
    );
}

fn masking(phrases: &[&str]) -> v1::Masking {
    v1::Masking { phrases: phrases.iter().map(|&phrase| phrase.to_owned()).collect(), token_prefixes: vec![] }
}

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
async fn fault_36_one_byte_secrets_are_masked_and_the_operator_is_warned_without_their_value() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let phrases = ["", " ", "\n", "q", "0", "[MASKED]"];
    let output = masked(&client, "1", &phrases, "echo 'quick 10 [MASKED]'").await;
    assert_eq!(output, "[MASKED]uick 1[MASKED] [MASKED]\n");
    support::until("the operator is warned", || daemon.said().contains("single byte")).await;
    let said = daemon.said();
    let warning = said.lines().find(|line| line.contains("single byte")).unwrap();
    assert!(warning.contains("2 phrases") && !warning.contains("\"q\""), "{warning}");
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
    // Time alone releases nothing.
    client.run_to_end("other", &script("sleep 1")).await;
    assert!(!contains(&client.log_so_far("1").await, "sesame"));
    std::fs::write(&go, "").unwrap();
    client.ended("1").await;
    // What turned out to be no secret comes at the end of its source.
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
    // The other job goes on while the secrets are prepared.
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
    support::refused(client.try_run(over).await, Code::InvalidArgument, "too_large");
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
    for file in support::tree(&daemon.state_dir()).values() {
        assert!(!contains(file, "canary-canary"), "on disk: {}", String::from_utf8_lossy(file));
    }
}

#[tokio::test]
async fn fault_20_offsets_count_what_was_sent() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let run = RunRequest {
        masking: Some(masking(&["sesame-open"])),
        ..request("1", &script("echo sesame-open; echo x"))
    };
    client.try_run(run).await.unwrap();
    client.ended("1").await;
    let log = client.log("1").await;
    for offset in 0..=log.len() {
        let rest = client.follow("1", i32::try_from(offset).unwrap()).await.rest().await.unwrap();
        assert!(rest == log[offset..], "from {offset}");
    }
    let past = client.try_follow("1", i32::try_from(log.len()).unwrap() + 1).await.err().unwrap();
    assert_eq!(past.code(), Code::OutOfRange);
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
    assert_eq!((support::state(&status), status.exit_code), (v1::State::Failure, -1), "{status:?}");
    assert!(status.message.contains("cannot be masked"), "{status:?}");
    let results = format!("{:?}", client.steps("1").await);
    assert!(!results.contains("canary") && !contains(&client.log("1").await, "canary"));
    daemon.kill();
    daemon.restart();
    assert_eq!(daemon.client().await.status("1").await.message, status.message);
}
