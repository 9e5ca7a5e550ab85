//! The content of the log (logs.md §3–§6; faults.md rows 16, 17, 25, 31).

use std::time::Duration;

use sha2::{Digest, Sha256};
use step_runner::keeper::protocol::{FromKeeper, Reply, Request};
use step_runner::model::LogChannel;

use crate::keeper::support::{Keeper, exited, wait_until};
use crate::support::parts;

#[test]
fn fault_30_output_is_framed_by_stream_and_the_last_line_is_complete() {
    let mut keeper = Keeper::start("auto");
    let mut job = keeper.register("frames");
    job.run(&mut keeper.client, "echo out; echo err >&2; printf 'no end'");
    job.run(&mut keeper.client, "printf 'a\\0b\\r\\n\\nz'");
    let closed = job.close_with(
        &mut keeper.client,
        Duration::ZERO,
        vec![(LogChannel::Err, "job failed: x\nsecond".to_owned()), (LogChannel::Out, "bye".to_owned())],
    );
    let mut lines = job.lines();
    lines[..3].sort();
    assert_eq!(
        lines,
        [
            "01E err",
            "01O no end",
            "01O out",
            "01O a\0b\r",
            "01O ",
            "01O z",
            "00E job failed: x second",
            "00O bye"
        ]
    );
    assert_eq!(closed.log_len, job.log().len() as u64);
    assert!(!closed.log_damaged);
    keeper.end();
}

#[test]
fn a_complaint_at_the_end_of_a_short_step_stands_behind_its_output() {
    for cgroup in ["auto", "off"] {
        let mut keeper = Keeper::start(cgroup);
        let mut job = keeper.register("order");
        for _ in 0..30 {
            job.run(&mut keeper.client, "echo out; echo more; echo err >&2");
        }
        let lines = job.lines();
        let turns: Vec<_> = lines.chunks(3).collect();
        assert!(turns.iter().all(|turn| turn == &["01O out", "01O more", "01E err"]), "{cgroup}: {turns:?}");
        keeper.end();
    }
}

#[test]
fn what_a_left_process_writes_later_is_logged_under_its_stream() {
    let mut keeper = Keeper::start("auto");
    let mut job = keeper.register("later");
    let go = keeper.dir.path().join("go");
    let script =
        format!("printf part; (while ! test -e {0}; do sleep 0.01; done; echo late) & exit 3", go.display());
    let ended = job.run(&mut keeper.client, &script);
    assert_eq!(ended.end, exited(3));
    assert_eq!(job.lines()[0], "01O part");
    std::fs::write(&go, "").unwrap();
    wait_until(|| job.lines().contains(&"01O late".to_owned()));
    keeper.end();
}

#[test]
fn fault_39_phrases_are_masked_in_output_and_lines_and_from_the_moment_they_are_known() {
    let mut keeper = Keeper::start("auto");
    let mut job = keeper.register_with("masked", |asked| asked.phrases = vec![b"hunter2!".to_vec()]);
    job.run(&mut keeper.client, "printf 'a hunt'; printf 'er2! b\\n'; echo later-secret");
    let op = job.next_op();
    // So many phrases that the keeper prepares their masker outside of its event loop.
    let mut phrases: Vec<Vec<u8>> = (0..500).map(|n| format!("filler-phrase-{n:06}").into_bytes()).collect();
    phrases.push(b"later-secret".to_vec());
    let reply = keeper.client.ask(Request::Phrases { key: job.key, op, phrases });
    assert!(matches!(reply, Ok(Reply::Done)));
    job.run(&mut keeper.client, "echo later-secret filler-phrase-000499; echo hunter2!");
    let op = job.next_op();
    let text = "the hunter2! line".to_owned();
    keeper.client.tell(Request::Line { key: job.key, op, kind: LogChannel::Out, text });
    job.close(&mut keeper.client);
    assert_eq!(
        job.lines(),
        [
            "01O a [MASKED] b",
            "01O later-secret",
            "01O [MASKED] [MASKED]",
            "01O [MASKED]",
            "00O the [MASKED] line"
        ]
    );
    keeper.end();
}

#[test]
fn fault_16_a_quarter_gibibyte_without_a_line_end_arrives_byte_for_byte() {
    let mut keeper = Keeper::start("auto");
    let mut job = keeper.register("big");
    // One line of a quarter gibibyte, without line feeds.
    let ended = job.run(&mut keeper.client, "head -c 268435456 /dev/zero | tr '\\0' '\\377'");
    assert_eq!(ended.end, exited(0));
    job.close(&mut keeper.client);
    let mut out = job.stdout();
    // The keeper adds one line feed when the process ends.
    assert_eq!(out.pop(), Some(b'\n'));
    assert_eq!(out.len(), 268_435_456);
    assert_eq!(Sha256::digest(&out), Sha256::digest(vec![0xff; 268_435_456]));
    keeper.end();
}

#[test]
fn fault_17_random_bytes_arrive_byte_for_byte() {
    let mut keeper = Keeper::start("auto");
    let mut job = keeper.register("random");
    let file = keeper.dir.path().join("bytes");
    let script = format!("head -c 8000000 /dev/urandom > {0}; echo >> {0}; cat {0}", file.display());
    assert_eq!(job.run(&mut keeper.client, &script).end, exited(0));
    assert_eq!(Sha256::digest(job.stdout()), Sha256::digest(std::fs::read(&file).unwrap()));
    keeper.end();
}

#[test]
fn fault_31_both_streams_keep_their_own_order() {
    let mut keeper = Keeper::start("auto");
    let mut job = keeper.register("order");
    let script = "i=0; while [ $i -lt 20000 ]; do echo o$i; echo e$i >&2; i=$((i+1)); done";
    assert_eq!(job.run(&mut keeper.client, script).end, exited(0));
    let lines = job.lines();
    for (stream, letter) in [("01O ", 'o'), ("01E ", 'e')] {
        let own = lines.iter().filter_map(|line| line.strip_prefix(stream));
        assert!(own.eq((0..20_000).map(|n| format!("{letter}{n}"))));
    }
    keeper.end();
}

#[test]
fn fault_23_output_over_the_limit_is_dropped_and_said_so() {
    let mut keeper = Keeper::start("auto");
    let mut job = keeper.register_with("limit", |asked| asked.log_limit = 100_000);
    assert_eq!(job.run(&mut keeper.client, "yes | head -n 1000000").end, exited(0));
    let closed = job.close(&mut keeper.client);
    assert!(closed.log_len <= 100_000);
    let lines = job.lines();
    assert!(lines.iter().any(|line| line.starts_with("00E log limit reached: 100000 bytes")));
    assert!(lines.last().unwrap().starts_with("00E warning: "));
    keeper.end();
}

#[test]
fn lengths_are_told_as_the_log_grows() {
    let mut keeper = Keeper::start("auto");
    let mut job = keeper.register("lengths");
    job.spawn(&mut keeper.client, "echo one; sleep 60");
    let len = keeper.client.event(|event| match event {
        FromKeeper::Lengths(lengths) => lengths.first().copied(),
        _ => None,
    });
    assert_eq!(len, (job.key, 32 + 4));
    keeper.client.tell(Request::Drop { key: job.key });
    wait_until(|| job.living().is_empty());
    keeper.end();
}

#[test]
fn fault_25_a_full_disk_holds_the_process_up_and_loses_nothing() {
    let mut keeper = Keeper::start("auto");
    let mut job = keeper.register("full");
    let small = keeper.dir.path().join("small");
    std::fs::create_dir(&small).unwrap();
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=4m", "none"])
        .arg(&small)
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        return parts::skipped(
            "fault_25_a_full_disk_holds_the_process_up_and_loses_nothing",
            "permission to mount",
        );
    }
    let unmount = Unmount(small.clone());
    let mut full = keeper.register_with("full-too", |asked| {
        let folder = keeper_folder(&small);
        std::os::unix::fs::symlink(&folder, small.parent().unwrap().join(format!("jobs/{}.new", asked.key)))
            .unwrap();
        let target = small.parent().unwrap().join(format!("jobs/{}", asked.key));
        std::fs::remove_dir(&target).unwrap();
        std::fs::rename(target.with_extension("new"), &target).unwrap();
    });
    std::fs::write(small.join("ballast"), vec![1; 3 << 20]).unwrap();
    let process = full.spawn(&mut keeper.client, "head -c 2000000 /dev/zero | tr '\\0' '\\377'; exit 6");
    // The log file has filled the disk. Another job is still served.
    wait_until(|| rustix::fs::statvfs(&small).unwrap().f_bfree == 0);
    assert_eq!(job.run(&mut keeper.client, "echo fine").end, exited(0));
    assert_eq!(full.resume(&mut keeper.client).ended, [], "its step runs");
    std::fs::remove_file(small.join("ballast")).unwrap();
    assert_eq!(keeper.client.step_ended(full.key, process).end, exited(6));
    let closed = full.close(&mut keeper.client);
    assert!(!closed.log_damaged);
    let mut out = full.stdout();
    assert_eq!(out.pop(), Some(b'\n'));
    assert!(out == vec![0xff; 2_000_000]);
    assert_eq!(closed.log_len, full.log().len() as u64);
    keeper.end();
    drop(unmount);
}

/// Makes a folder for a job on a small file system.
fn keeper_folder(small: &std::path::Path) -> std::path::PathBuf {
    let folder = small.join("job");
    std::fs::create_dir(&folder).unwrap();
    folder
}

struct Unmount(std::path::PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        std::process::Command::new("umount").arg("-l").arg(&self.0).status().ok();
    }
}
