//! Cgroups that steps have changed (faults.md row 84).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::parts;
use crate::support::{Job, Keeper, exited, wait_for_file, wait_until};

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
    let over = job.run(&mut keeper.client, &format!("grep ^0:: /proc/self/cgroup > {}", file.display()));
    assert_eq!(over.end, exited(0));
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
            let mut earlier = keeper.hold("earlier");
            assert_eq!(earlier.run(&mut keeper.client, "exit 3").end, exited(3));
            earlier.close(&mut keeper.client);
        }
        let mut job = keeper.hold("frozen");
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
    let mut job = keeper.hold("freezing");
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
        let step = job.spawn(&mut keeper.client, "exit 3");
        let mut other = keeper.hold("other");
        assert_eq!(other.run(&mut keeper.client, "exit 4").end, exited(4));
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(keeper.client.step_over(job.key, step).end, exited(3));
    });
    job.close(&mut keeper.client);
    keeper.end();
}

#[test]
fn fault_84_a_leaf_whose_settings_a_step_changed_is_not_used_again() {
    let test = "fault_84_a_leaf_whose_settings_a_step_changed_is_not_used_again";
    let Some((mut keeper, _)) = with_groups(test) else { return };
    let mut job = keeper.hold("clean");
    let first = leaf_of(&mut job, &mut keeper);
    job.close(&mut keeper.client);
    let mut job = keeper.hold("clean-again");
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
        job = keeper.hold(&name.replace("cgroup.", "after-"));
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
    for inner in ["", "/inner"] {
        let mut job = keeper.hold(&format!("self{}", inner.len()));
        let leaf = leaf_of(&mut job, &mut keeper);
        let frozen = leaf.display().to_string() + inner;
        let step = job.spawn(
            &mut keeper.client,
            &format!(
                "trap 'exit 4' TERM; mkdir -p {frozen}; echo $$ > {frozen}/cgroup.procs; \
                 echo 1 > {frozen}/cgroup.freeze; while :; do sleep 0.01; done"
            ),
        );
        wait_until(|| Path::new(&frozen).exists() && is_frozen(Path::new(&frozen)));
        job.stop(&mut keeper.client, Duration::from_mins(10));
        assert_eq!(keeper.client.step_over(job.key, step).end, exited(4), "{frozen}");
        assert!(job.close(&mut keeper.client).unkilled.is_empty());
        assert!(job.living().is_empty());
    }
    assert!(group.exists());
    keeper.end();
}

#[test]
fn fault_84_a_job_whose_leaf_was_removed_gets_another_and_ends() {
    let test = "fault_84_a_job_whose_leaf_was_removed_gets_another_and_ends";
    let Some((mut keeper, group)) = with_groups(test) else { return };
    // Takes a name that the keeper would use next.
    fs::create_dir(group.join("2")).unwrap();
    let mut job = keeper.hold("removed");
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
        let mut job = keeper.hold("frozen");
        let ready = keeper.dir.path().join("ready");
        let step = job.spawn(
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
        keeper.client.step_over(job.key, step);
        let unkilled = job.close(&mut keeper.client).unkilled;
        let state = fs::read_to_string(freezer.join("freezer.state")).unwrap();
        assert!(unkilled.is_empty(), "{cgroup}: {unkilled:?}, the group is {state}");
        assert!(job.living().is_empty(), "{cgroup}");
        keeper.end();
    }
    fs::remove_dir(freezer).unwrap();
}
