//! Jobs without a cgroup: the reaper of each job inherits all its orphans (docs/operate/recovery.md).

use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};
use step_runner::keeper::protocol::{FromKeeper, KeeperSettings, StepEnd};

use crate::keeper::support::{Keeper, exited, settings, signalled, wait_for_file, wait_until};

/// Returns a script that leaves a process whose job cannot be seen from its environment, parents, group or session. The
/// script writes the pid to `file`.
fn hides(file: &Path) -> String {
    format!(
        "(env -i setsid sh -c 'env -i setsid sh -c \"echo \\$\\$ > {0}.new; mv {0}.new {0}; exec sleep 600\" \
         >/dev/null 2>&1 & exit 0' &)",
        file.display()
    )
}

fn number_in(file: &Path) -> u32 {
    wait_for_file(file);
    std::fs::read_to_string(file).unwrap().trim().parse().unwrap()
}

/// True if the process exists and is no zombie.
fn lives(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.contains(") Z ") && !stat.contains(") X "))
}

fn parent_of(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(") ").next().unwrap().split(' ').nth(1).unwrap().parse().unwrap()
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

fn file(keeper: &Keeper, name: &str) -> PathBuf {
    keeper.dir.path().join(name)
}

#[test]
fn fault_78_a_process_that_nothing_attributes_ends_with_its_own_job_and_no_other() {
    for cgroup in ["auto", "off"] {
        let mut keeper = Keeper::start(cgroup);
        let mut jobs = ["one", "two"].map(|name| keeper.register(name));
        let files = ["one", "two"].map(|name| file(&keeper, name));
        let hidden: Vec<u32> = jobs
            .iter_mut()
            .zip(&files)
            .map(|(job, file)| {
                assert_eq!(job.run(&mut keeper.client, &hides(file)).end, exited(0));
                number_in(file)
            })
            .collect();
        let [first, second] = &mut jobs;
        assert!(first.close(&mut keeper.client).unkilled.is_empty());
        assert!(!lives(hidden[0]), "{cgroup}: it outlives its job");
        assert!(lives(hidden[1]), "{cgroup}: it ends with another job");
        // The hidden process lives until the end of its job, past further steps.
        assert_eq!(second.run(&mut keeper.client, "exit 3").end, exited(3));
        assert!(lives(hidden[1]), "{cgroup}");
        assert!(second.close(&mut keeper.client).unkilled.is_empty());
        assert!(!lives(hidden[1]), "{cgroup}");
        keeper.end();
    }
}

#[test]
fn fault_78_left_over_processes_that_nothing_attributes_end_with_their_step_if_the_setting_says_so() {
    let mut keeper = Keeper::start_with("off", KeeperSettings { leftover_keep: false, ..settings() });
    let mut job = keeper.register("kill");
    let path = file(&keeper, "hidden");
    let script = format!("{}; while ! test -e {}; do :; done", hides(&path), path.display());
    assert_eq!(job.run(&mut keeper.client, &script).end, exited(0));
    assert!(!lives(number_in(&path)));
    keeper.end();
}

#[test]
fn fault_78_a_killed_keeper_leaves_no_process_of_its_jobs() {
    let mut keeper = Keeper::start("off");
    let mut job = keeper.register("lost");
    let path = file(&keeper, "hidden");
    job.run(&mut keeper.client, &hides(&path));
    let hidden = number_in(&path);
    let running = file(&keeper, "running");
    job.spawn(&mut keeper.client, &format!("trap '' TERM; echo $$ > {}; exec sleep 600", running.display()));
    wait_until(|| std::fs::read_to_string(&running).is_ok_and(|text| text.ends_with('\n')));
    let running = number_in(&running);
    keeper.process.kill().unwrap();
    keeper.process.wait().unwrap();
    wait_until(|| !lives(hidden) && !lives(running));
}

#[test]
fn fault_78_a_killed_reaper_ends_its_own_job_and_no_other() {
    let mut keeper = Keeper::start("off");
    let mut other = keeper.register("other");
    let spared = file(&keeper, "spared");
    other.run(&mut keeper.client, &hides(&spared));
    let spared = number_in(&spared);
    let mut job = keeper.register("killer");
    let path = file(&keeper, "hidden");
    let script = format!(
        "{}; while ! test -e {}; do :; done; kill -9 $PPID; exec sleep 600",
        hides(&path),
        path.display()
    );
    assert_eq!(job.run(&mut keeper.client, &script).end, signalled(9));
    keeper.client.event(|event| match event {
        FromKeeper::Notice(text) => text.contains("was killed").then_some(()),
        _ => None,
    });
    assert!(job.close(&mut keeper.client).unkilled.is_empty());
    assert!(!lives(number_in(&path)), "what was below the reaper came to the keeper and was killed");
    assert!(
        job.lines().iter().any(|line| line.starts_with("00E the reaper process of this job was killed")),
        "{:?}",
        job.lines()
    );
    assert!(lives(spared));
    assert_eq!(other.run(&mut keeper.client, "exit 4").end, exited(4));
    other.close(&mut keeper.client);
    assert!(!lives(spared));
    keeper.end();
}

#[test]
fn fault_78_a_reaper_killed_between_two_steps_is_replaced() {
    let mut keeper = Keeper::start("off");
    let mut job = keeper.register("between");
    let ready = file(&keeper, "ready");
    let script = format!(
        "echo $PPID > {0}.new; mv {0}.new {0}; setsid sleep 600 >/dev/null 2>&1 & exit 0",
        ready.display()
    );
    assert_eq!(job.run(&mut keeper.client, &script).left, 1);
    signal(number_in(&ready), Signal::KILL);
    keeper.client.event(|event| match event {
        FromKeeper::Notice(text) => text.contains("was killed").then_some(()),
        _ => None,
    });
    assert_eq!(job.run(&mut keeper.client, "exit 5").end, exited(5));
    assert!(job.close(&mut keeper.client).unkilled.is_empty());
    assert!(job.living().is_empty());
    keeper.end();
}

#[test]
fn fault_78_a_stopped_reaper_holds_up_neither_a_step_nor_the_end() {
    let mut keeper = Keeper::start("off");
    let mut job = keeper.register("stopper");
    for _ in 0..30 {
        let end = job
            .run(
                &mut keeper.client,
                "(setsid sh -c 'kill -STOP $0; exec sleep 600' $PPID >/dev/null 2>&1 &); exit 6",
            )
            .end;
        assert!(matches!(end, StepEnd::Exited(_)), "{end:?}");
    }
    assert!(job.close(&mut keeper.client).unkilled.is_empty());
    assert!(job.living().is_empty());
    keeper.end();
}

#[test]
fn fault_78_a_reaper_is_gone_with_its_job() {
    let mut keeper = Keeper::start("off");
    let mut job = keeper.register("gone");
    let path = file(&keeper, "reaper");
    job.run(&mut keeper.client, &format!("echo $PPID > {}", path.display()));
    let reaper = number_in(&path);
    assert_eq!(parent_of(reaper), keeper.process.id());
    job.close(&mut keeper.client);
    wait_until(|| !Path::new(&format!("/proc/{reaper}")).exists());
    keeper.end();
}
