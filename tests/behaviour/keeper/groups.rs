//! Cgroups that steps have changed, frozen or left (faults.md rows 84, 94, 95).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use step_runner::keeper::protocol::FromKeeper;

use crate::keeper::support::{Job, Keeper, exited, wait_for_file, wait_until};
use crate::support::parts;

/// Starts a keeper that uses cgroups. Returns it and the parent of its jobs' groups. Skips the test without a writable
/// cgroup v2.
fn with_groups(test: &str) -> Option<(Keeper, PathBuf)> {
    let keeper = Keeper::start("auto");
    match keeper.client.cgroup.clone() {
        Some(group) if group.join("cgroup.freeze").exists() => Some((keeper, group)),
        _ => {
            parts::skipped(test, "writable cgroup v2");
            None
        }
    }
}

/// Returns the cgroup that steps of `job` run in.
fn leaf_of(job: &mut Job, keeper: &mut Keeper) -> PathBuf {
    let file = keeper.dir.path().join("cgroup");
    let ended = job.run(&mut keeper.client, &format!("grep ^0:: /proc/self/cgroup > {}", file.display()));
    assert_eq!(ended.end, exited(0));
    let text = fs::read_to_string(file).unwrap();
    let name = text.trim_end().rsplit('/').next().unwrap();
    keeper.client.cgroup.as_ref().unwrap().join(name)
}

fn freeze(group: &Path) {
    fs::write(group.join("cgroup.freeze"), "1").unwrap();
}

fn is_frozen(group: &Path) -> bool {
    fs::read_to_string(group.join("cgroup.events")).unwrap().contains("frozen 1")
}

#[test]
fn fault_84_a_step_starts_in_a_leaf_that_was_frozen() {
    for is_leaf_of_an_earlier_job in [false, true] {
        let Some((mut keeper, group)) = with_groups("fault_84_a_step_starts_in_a_leaf_that_was_frozen")
        else {
            return;
        };
        if is_leaf_of_an_earlier_job {
            let mut earlier = keeper.register("earlier");
            assert_eq!(earlier.run(&mut keeper.client, "exit 3").end, exited(3));
            earlier.close(&mut keeper.client);
        }
        let mut job = keeper.register("frozen");
        let leaf = leaf_of(&mut job, &mut keeper);
        for frozen in [&leaf, &group] {
            freeze(frozen);
            assert_eq!(job.run(&mut keeper.client, "exit 3").end, exited(3), "{}", frozen.display());
        }
        job.close(&mut keeper.client);
        keeper.end();
    }
}

#[test]
fn fault_84_a_leaf_that_is_frozen_again_and_again_stops_no_start() {
    let test = "fault_84_a_leaf_that_is_frozen_again_and_again_stops_no_start";
    let Some((mut keeper, _)) = with_groups(test) else { return };
    let mut job = keeper.register("freezing");
    let leaf = leaf_of(&mut job, &mut keeper);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                freeze(&leaf);
                std::thread::sleep(Duration::from_millis(1));
            }
            fs::write(leaf.join("cgroup.freeze"), "0").unwrap();
        });
        // The keeper answers again only after it has started the step. The step can be frozen again by then.
        let process = job.spawn(&mut keeper.client, "exit 3");
        let mut other = keeper.register("other");
        assert_eq!(other.run(&mut keeper.client, "exit 4").end, exited(4));
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(keeper.client.step_ended(job.key, process).end, exited(3));
    });
    job.close(&mut keeper.client);
    keeper.end();
}

#[test]
fn fault_84_a_leaf_whose_settings_a_step_changed_is_not_used_again() {
    let test = "fault_84_a_leaf_whose_settings_a_step_changed_is_not_used_again";
    let Some((mut keeper, _)) = with_groups(test) else { return };
    let mut job = keeper.register("clean");
    let first = leaf_of(&mut job, &mut keeper);
    job.close(&mut keeper.client);
    let mut job = keeper.register("clean-again");
    let mut leaf = leaf_of(&mut job, &mut keeper);
    assert_eq!(leaf, first, "an untouched leaf is used again");
    for (name, value) in [
        ("cgroup.freeze", "1"),
        ("cgroup.kill", "1"),
        ("cgroup.max.descendants", "0"),
        ("cgroup.type", "threaded"),
        ("below", ""),
        ("again", ""),
    ] {
        job.close(&mut keeper.client);
        if name == "below" {
            fs::create_dir(leaf.join(name)).unwrap();
        } else if name == "again" {
            fs::remove_dir(&leaf).unwrap();
            fs::create_dir(&leaf).unwrap();
            fs::write(leaf.join("cgroup.kill"), "1").unwrap();
        } else {
            fs::write(leaf.join(name), value).unwrap();
        }
        job = keeper.register(&name.replace("cgroup.", "after-"));
        let next = leaf_of(&mut job, &mut keeper);
        assert_ne!(next, leaf, "{name}");
        assert!(!leaf.exists(), "{name}");
        leaf = next;
    }
    job.close(&mut keeper.client);
    keeper.end();
}

#[test]
fn fault_84_a_step_that_froze_itself_hears_that_it_is_to_end() {
    let test = "fault_84_a_step_that_froze_itself_hears_that_it_is_to_end";
    let Some((mut keeper, group)) = with_groups(test) else { return };
    let mut job = keeper.register("self");
    // A group of its own below the leaf is the step's business until the step is to end.
    let frozen = leaf_of(&mut job, &mut keeper).join("inner");
    let process = job.spawn(
        &mut keeper.client,
        &format!(
            "trap 'exit 4' TERM; mkdir -p {0}; echo $$ > {0}/cgroup.procs; \
             echo 1 > {0}/cgroup.freeze; while :; do sleep 0.01; done",
            frozen.display()
        ),
    );
    wait_until(|| frozen.exists() && is_frozen(&frozen));
    job.stop(&mut keeper.client, Duration::from_mins(10));
    assert_eq!(keeper.client.step_ended(job.key, process).end, exited(4));
    assert!(job.close(&mut keeper.client).unkilled.is_empty());
    assert!(job.living().is_empty());
    assert!(group.exists());
    keeper.end();
}

#[test]
fn fault_84_a_job_whose_leaf_was_removed_gets_another_and_ends() {
    let test = "fault_84_a_job_whose_leaf_was_removed_gets_another_and_ends";
    let Some((mut keeper, group)) = with_groups(test) else { return };
    // Takes a name that the keeper would use next.
    fs::create_dir(group.join("2")).unwrap();
    let mut job = keeper.register("removed");
    let leaf = leaf_of(&mut job, &mut keeper);
    fs::remove_dir(&leaf).unwrap();
    let next = leaf_of(&mut job, &mut keeper);
    assert!(next != leaf && next != group.join("2"), "{}", next.display());
    fs::remove_dir(&next).unwrap();
    let closed = job.close(&mut keeper.client);
    assert!(closed.unkilled.is_empty() && !closed.log_damaged);
    keeper.end();
}

#[test]
fn fault_84_processes_frozen_by_version_1_are_killed() {
    let test = "fault_84_processes_frozen_by_version_1_are_killed";
    let freezer =
        Path::new("/sys/fs/cgroup/freezer").join(format!("step-runner-test-{}", std::process::id()));
    if fs::create_dir(&freezer).is_err() {
        return parts::skipped(test, "writable cgroup v1 freezer");
    }
    for cgroup in ["auto", "off"] {
        let mut keeper = Keeper::start(cgroup);
        let mut job = keeper.register("frozen");
        let ready = keeper.dir.path().join("ready");
        let process = job.spawn(
            &mut keeper.client,
            &format!(
                "echo $$ > {0}/cgroup.procs; touch {1}; while :; do sleep 0.01; done",
                freezer.display(),
                ready.display()
            ),
        );
        wait_for_file(&ready);
        fs::write(freezer.join("freezer.state"), "FROZEN").unwrap();
        job.stop(&mut keeper.client, Duration::ZERO);
        keeper.client.step_ended(job.key, process);
        let unkilled = job.close(&mut keeper.client).unkilled;
        let state = fs::read_to_string(freezer.join("freezer.state")).unwrap();
        assert!(unkilled.is_empty(), "{cgroup}: {unkilled:?}, the group is {state}");
        assert!(job.living().is_empty(), "{cgroup}");
        keeper.end();
    }
    fs::remove_dir(freezer).unwrap();
}

/// One write freezes the jobs of a keeper in which nothing starts or ends.
#[test]
fn fault_95_a_group_that_is_frozen_is_thawed_at_once_and_the_operator_is_told() {
    let test = "fault_95_a_group_that_is_frozen_is_thawed_at_once_and_the_operator_is_told";
    let Some((mut keeper, group)) = with_groups(test) else { return };
    let mut jobs = ["one", "two"].map(|name| keeper.register(name));
    let leaves = jobs.each_mut().map(|job| leaf_of(job, &mut keeper));
    let beats = ["one", "two"].map(|name| keeper.dir.path().join(name));
    for (job, beat) in jobs.iter_mut().zip(&beats) {
        job.spawn(&mut keeper.client, &format!("while :; do echo x >> {}; sleep 0.01; done", beat.display()));
    }
    let beaten = |beat: &PathBuf| fs::metadata(beat).map_or(0, |file| file.len());
    for (round, frozen) in [&group, &leaves[0], &leaves[1], &group].into_iter().enumerate() {
        freeze(frozen);
        wait_until(|| fs::read_to_string(frozen.join("cgroup.freeze")).unwrap() == "0\n");
        for beat in &beats {
            let before = beaten(beat);
            wait_until(|| beaten(beat) > before);
        }
        if round == 0 {
            keeper.client.event(|event| match event {
                FromKeeper::Notice(text) => text.contains("froze control groups").then_some(()),
                _ => None,
            });
        }
    }
    for job in &mut jobs {
        assert!(job.close(&mut keeper.client).unkilled.is_empty());
    }
    keeper.end();
}

/// Returns a script that starts `sleep SECONDS`, which leaves its group for the one at `to`. Its pid is then in `file`.
/// The sleep is in a session of its own, has no environment if `hides`, and its parents have ended when the script has: it
/// waits for the end of the shell that started it (the `$$` without a backslash is that shell's) before it writes its pid,
/// with one write and without another process.
fn escapes(file: &Path, to: &Path, seconds: &str, hides: bool) -> String {
    let env = if hides { "env -i" } else { "env" };
    format!(
        "({env} setsid sh -c '{env} setsid sh -c \"while kill -0 $$ 2>/dev/null; do sleep 0.01; done; \
         echo \\$\\$ > {to}/cgroup.procs && echo \\$\\$ > {file}; exec sleep {seconds}\" >/dev/null 2>&1 & exit 0' &); \
         until test -s {file}; do sleep 0.01; done",
        to = to.display(),
        file = file.display()
    )
}

fn lives(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.contains(") Z ") && !stat.contains(") X "))
}

/// Waits until the kernel's clock of process starts, which counts hundredths of a second, has gone on. A process without any
/// mark is known by its start alone, so steps of two jobs must not run in the same hundredth.
fn next_tick() {
    let uptime = || fs::read_to_string("/proc/uptime").unwrap().split(' ').next().unwrap().to_owned();
    let (mut last, mut changes) = (uptime(), 0);
    while changes < 2 {
        let now = uptime();
        changes += usize::from(now != last);
        last = now;
        std::thread::yield_now();
    }
}

/// A process ends with its own job and with no other, wherever it moves to.
#[test]
fn fault_94_a_process_that_leaves_its_group_ends_with_its_job_and_no_other() {
    let test = "fault_94_a_process_that_leaves_its_group_ends_with_its_job_and_no_other";
    let Some((mut keeper, group)) = with_groups(test) else { return };
    let outside = group.parent().unwrap().to_owned();
    let mut other = keeper.register("other");
    let leaf = leaf_of(&mut other, &mut keeper);
    let mut own = 0;
    for (round, (to, hides, ends_first)) in [
        (&outside, false, 0),
        (&outside, false, 1),
        (&outside, true, 0),
        (&outside, true, 1),
        (&leaf, false, 0),
    ]
    .into_iter()
    .enumerate()
    {
        let mut jobs = [0, 1].map(|number| keeper.register(&format!("escape-{round}-{number}")));
        let mut escaped = Vec::new();
        for job in &mut jobs {
            own += 1;
            let file = keeper.dir.path().join(format!("escaped-{own}"));
            next_tick();
            let ended = job.run(&mut keeper.client, &escapes(&file, to, "600", hides));
            assert_eq!((ended.end, ended.left), (exited(0), 1), "round {round}");
            escaped.push(fs::read_to_string(&file).unwrap().trim().parse::<u32>().unwrap());
        }
        let last = 1 - ends_first;
        assert!(jobs[ends_first].close(&mut keeper.client).unkilled.is_empty());
        assert!(!lives(escaped[ends_first]), "round {round}: it outlives its job");
        assert!(lives(escaped[last]), "round {round}: it ends with another job");
        assert!(jobs[last].close(&mut keeper.client).unkilled.is_empty());
        assert!(!lives(escaped[last]), "round {round}: it outlives its job");
    }
    other.close(&mut keeper.client);
    keeper.end();
}

/// The process of a step itself leaves the group while it runs, and ends when it is asked.
#[test]
fn fault_94_a_step_that_leaves_its_group_is_stopped_with_everything_below() {
    let test = "fault_94_a_step_that_leaves_its_group_is_stopped_with_everything_below";
    let Some((mut keeper, group)) = with_groups(test) else { return };
    let outside = group.parent().unwrap().join("cgroup.procs");
    let ready = keeper.dir.path().join("ready");
    let mut job = keeper.register("leaves");
    let process = job.spawn(
        &mut keeper.client,
        &format!(
            "trap 'exit 4' TERM; setsid sleep 600 >/dev/null 2>&1 & echo $$ > {}; setsid sleep 600 >/dev/null 2>&1 & \
             touch {}; while :; do sleep 0.01; done",
            outside.display(),
            ready.display()
        ),
    );
    wait_for_file(&ready);
    job.stop(&mut keeper.client, Duration::from_mins(10));
    assert_eq!(keeper.client.step_ended(job.key, process).end, exited(4));
    assert!(job.close(&mut keeper.client).unkilled.is_empty());
    assert!(job.living().is_empty());
    keeper.end();
}

/// The log of a job shows no command of a process that has moved into its group.
#[test]
fn fault_94_the_command_of_another_jobs_process_is_not_shown() {
    let test = "fault_94_the_command_of_another_jobs_process_is_not_shown";
    let Some((mut keeper, _)) = with_groups(test) else { return };
    for hides in [false, true] {
        let mut other = keeper.register(&format!("other-{hides}"));
        let leaf = leaf_of(&mut other, &mut keeper);
        let mut job = keeper.register(&format!("mover-{hides}"));
        let file = keeper.dir.path().join(format!("moved-{hides}"));
        assert_eq!(job.run(&mut keeper.client, &escapes(&file, &leaf, "607.5", hides)).end, exited(0));
        // A process that is about to become another program shows nothing of either.
        let own = "setsid sleep 608.5 >/dev/null 2>&1 & \
                   until tr '\\0' ' ' < /proc/$!/cmdline | grep -q '^sleep 608'; do :; done";
        assert_eq!(other.run(&mut keeper.client, own).end, exited(0));
        for job in [&mut job, &mut other] {
            job.close(&mut keeper.client);
        }
        let lines = other.lines();
        assert!(lines.iter().any(|line| line.contains("sleep 608.5)")), "{lines:?}");
        assert!(!lines.iter().any(|line| line.contains("607.5")), "{lines:?}");
        assert!(!lives(fs::read_to_string(&file).unwrap().trim().parse().unwrap()));
    }
    keeper.end();
}
