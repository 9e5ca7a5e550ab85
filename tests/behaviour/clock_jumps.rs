//! Moves the wall clock by a year under a running daemon (faults.md row 63). tests/shows/simulate does the same with virtual
//! clocks in random schedules.

use std::path::{Path, PathBuf};
use std::process::Command;

use step_runner::pb::v1::State;

use crate::support::{Client, Daemon, Setup, parts, script};

/// Adds the seconds in a file to the wall clock; the other clocks stay as they are.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long jump(void) {
    char text[32] = {0};
    int fd = open(getenv("JUMP_FILE"), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    long count = read(fd, text, sizeof text - 1);
    close(fd);
    return count > 0 ? atol(text) : 0;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, id, now);
    if (result == 0 && id == CLOCK_REALTIME) now->tv_sec += jump();
    return result;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *to) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (to) *to = precise.tv_sec;
    return precise.tv_sec;
}
"#;

fn build(folder: &Path) -> Option<PathBuf> {
    let (source, library) = (folder.join("jump.c"), folder.join("jump.so"));
    std::fs::write(&source, SHIM).unwrap();
    let built = Command::new("gcc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    built.is_ok_and(|status| status.success()).then_some(library)
}

fn setup(library: &Path, file: &Path) -> Setup {
    let limits = [
        ("runaway-after", "1h"),
        ("silent-after", "30m"),
        ("stale-after", "1h"),
        ("stale-floor", "1s"),
        ("queued-after", "1h"),
        ("reap-interval", "1s"),
        ("max-running", "1"),
    ];
    let setup = limits.iter().fold(Setup::new(), |setup, (name, value)| setup.option(name, value));
    setup.env("LD_PRELOAD", library.to_str().unwrap()).env("JUMP_FILE", file.to_str().unwrap())
}

/// Asserts that the three jobs keep their states while the reaper runs more than once.
async fn nothing_happens(daemon: &Daemon, client: &Client, when: &str) {
    let lines = counted(daemon);
    // The job prints a line each tenth of a second, so 30 lines take three runs of the reaper.
    crate::support::until("the reaper has passed", || counted(daemon) >= lines + 30).await;
    assert_eq!(client.status("runs").await.state(), State::Running, "{when}");
    assert_eq!(client.status("waits").await.state(), State::Queued, "{when}");
    assert_eq!(client.status("ended").await.state(), State::Success, "{when}");
}

fn counted(daemon: &Daemon) -> usize {
    let log = std::fs::read(daemon.folder("runs").join("log")).unwrap_or_default();
    memchr::memchr_iter(b'\n', &log).count()
}

#[tokio::test]
async fn fault_63_a_wall_clock_that_jumps_by_a_year_ends_and_removes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = build(folder.path()) else {
        return parts::skipped("fault_63_a_wall_clock_that_jumps_by_a_year_ends_and_removes_nothing", "gcc");
    };
    let file = folder.path().join("jump");
    let jump = |years: i64| std::fs::write(&file, (years * 31_536_000).to_string()).unwrap();
    let mut daemon = setup(&library, &file).start();
    let client = daemon.client().await;
    client.run_to_end("ended", &script("echo over")).await;
    let mark = daemon.file("go");
    client.run("runs", &format!("while ! test -e {}; do echo on; sleep 0.1; done", mark.display())).await;
    client.prints("runs", "on").await;
    client.run("waits", "echo waited").await;
    for years in [1, -1] {
        jump(years);
        nothing_happens(&daemon, &client, "after a jump").await;
    }
    // A follower gets the lines printed after the jumps.
    client.follow("runs", 0).await.until("on").await;
    jump(1);
    daemon.kill();
    daemon.restart();
    let client = daemon.client().await;
    nothing_happens(&daemon, &client, "after a jump and a restart").await;
    std::fs::write(&mark, "").unwrap();
    assert_eq!(client.ended("runs").await.state(), State::Success);
    assert_eq!(client.ended("waits").await.state(), State::Success);
    assert_eq!(client.output("waits").await, "waited\n");
}
