//! The log has every byte that steps wrote, in the right line.

use std::path::PathBuf;

use crate::support::{Daemon, Setup, logs, numbered, script, scripts};
use futures_util::future::join_all;
use step_runner::pb::v1::State;

/// Starts a daemon and writes a file with these bytes.
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
            // At the end of a source, the last line feed can be added by the formatter.
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
    // Lengths around the limit of a held line (with and without header), around one read of a pipe, and far beyond.
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
        // A line that came in one read is one entry, whatever its length.
        let entries = logs::entries(&log);
        assert!(entries.iter().any(|(_, body)| body.len() >= 8_193 && body[0] == b'f'), "{id}");
    }
    let go = daemon.file("go");
    let text = format!(
        "head -c 9000 /dev/zero | tr '\\0' x; until [ -e {} ]; do sleep 0.01; done; echo end",
        go.display()
    );
    client.run("shown", &text).await;
    // A long line is passed on before it ends.
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
            // `ended` compares the received bytes with the length that Status reports.
            assert_eq!(client.ended(&id).await.exit_code, 0);
            assert_eq!(client.output(&id).await, format!("{number}\n"));
            client.finish(&id).await;
        }
    });
    join_all(jobs).await;
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
    let [a, limit, b, failed, dropped] = said.as_slice() else { panic!("{said:?}") };
    assert_eq!(
        [a, b],
        ["Running step name=a", "Running step name=b"],
        "what comes later is said all the same"
    );
    assert_eq!(limit, "log limit reached: 65536 bytes; later output is dropped");
    assert!(failed.starts_with("job failed: "), "{said:?}");
    let dropped =
        dropped.strip_prefix("warning: ").and_then(|rest| rest.strip_suffix(" bytes of output dropped"));
    let dropped: usize = dropped.unwrap().parse().unwrap();
    let kept = logs::source(&log, "01O");
    let written = numbered(100_000, "") + "late\n";
    assert!(written.as_bytes().starts_with(&kept));
    assert_eq!(kept.len() + dropped, written.len());
}
