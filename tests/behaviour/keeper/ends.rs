//! The end of processes: left-over processes of steps, stop, close (service.md §6.1, §6.2; faults.md rows 1–5).

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use step_runner::keeper::protocol::{KeeperSettings, Request, StartPart, StepEnd};

use crate::keeper::support::{Keeper, SOON, exited, settings, signalled, wait_for_file, wait_until};

#[test]
fn fault_01_what_a_step_left_lives_until_the_job_ends() {
    for cgroup in ["auto", "off"] {
        let mut keeper = Keeper::start(cgroup);
        let mut job = keeper.register("left");
        let begun = Instant::now();
        let ended = job.run(&mut keeper.client, "sleep 600 & echo x");
        assert!(begun.elapsed() < SOON);
        assert_eq!((ended.end, ended.left), (exited(0), 1));
        let lines = job.lines();
        assert_eq!((lines.len(), lines[0].as_str()), (2, "01O x"));
        assert!(lines[1].starts_with("00O step s1 left 1 process running: "), "{lines:?}");
        // A left-over process that does not hold the pipes causes no wait.
        let ended = job.run(&mut keeper.client, "sleep 600 >/dev/null 2>&1 & :");
        assert_eq!(ended.left, 2);
        // The environment of a process reads empty during its `execve`.
        wait_until(|| job.living().len() == 2);
        assert!(job.close(&mut keeper.client).unkilled.is_empty());
        assert!(job.living().is_empty());
        keeper.end();
    }
}

#[test]
fn fault_87_the_line_about_leftovers_names_the_right_step_and_masked_commands() {
    for cgroup in ["auto", "off"] {
        let mut keeper = Keeper::start(cgroup);
        let mut job =
            keeper.register_with("names", |asked| asked.phrases = vec![b"hunter2-the-secret".to_vec()]);
        let started = keeper.dir.path().join("started");
        let never = keeper.dir.path().join("never");
        rustix::fs::mknodat(rustix::fs::CWD, &never, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        // The left-over process has executed its final program and has no child before its step ends.
        let leaves = format!(
            "setsid sh -c ': hunter2-the-secret; : > {0}; read word < {1}' >/dev/null 2>&1 & \
             while ! test -e {0}; do :; done; echo $! >&2; rm {0}",
            started.display(),
            never.display()
        );
        assert_eq!(job.run(&mut keeper.client, &leaves).left, 1);
        assert_eq!(job.run(&mut keeper.client, "exit 0").left, 1);
        assert_eq!(job.run(&mut keeper.client, &leaves).left, 2);
        let lines = job.lines();
        let pids: Vec<&str> = lines.iter().filter_map(|line| line.strip_prefix("01E ")).collect();
        let told: Vec<&String> = lines.iter().filter(|line| line.contains(" left ")).collect();
        assert_eq!((pids.len(), told.len()), (2, 2), "{lines:?}");
        for ((line, pid), step) in told.iter().zip(pids).zip(["s1", "s3"]) {
            let expected = format!("00O step {step} left 1 process running: {pid} (sh -c : [MASKED]; : > ");
            assert!(line.starts_with(&expected), "{line} {expected}");
        }
        assert!(!lines.join("\n").contains("hunter2"), "{lines:?}");
        job.close(&mut keeper.client);
        keeper.end();
    }
}

#[test]
fn fault_01_leftovers_are_killed_at_the_steps_end_if_the_setting_says_so() {
    for cgroup in ["auto", "off"] {
        let mut keeper = Keeper::start_with(cgroup, KeeperSettings { leftover_keep: false, ..settings() });
        let mut job = keeper.register("kill");
        let ended = job.run(
            &mut keeper.client,
            "setsid sleep 30 >/dev/null 2>&1 & trap '' TERM; setsid sleep 31 & exit 0",
        );
        assert_eq!((ended.end, ended.left), (exited(0), 2));
        assert!(job.living().is_empty());
        keeper.end();
    }
}

#[test]
fn fault_02_four_hundred_processes_of_their_own_sessions_are_all_ended() {
    for cgroup in ["auto", "off"] {
        let mut keeper = Keeper::start(cgroup);
        let mut job = keeper.register("many");
        let ended = job.run(
            &mut keeper.client,
            "i=0; while [ $i -lt 400 ]; do setsid sleep 60 >/dev/null 2>&1 & i=$((i+1)); done; exit 0",
        );
        assert_eq!(ended.left, 400);
        assert!(job.close(&mut keeper.client).unkilled.is_empty());
        assert!(job.living().is_empty());
        keeper.end();
    }
}

#[test]
fn fault_04_a_process_that_ignores_sigterm_is_killed_after_the_grace() {
    for cgroup in ["auto", "off"] {
        let mut keeper = Keeper::start(cgroup);
        let mut job = keeper.register("deaf");
        let ready = keeper.dir.path().join("ready");
        let process = job.spawn(
            &mut keeper.client,
            &format!("trap '' TERM; sleep 60 & touch {}; while :; do wait; done", ready.display()),
        );
        wait_for_file(&ready);
        let begun = Instant::now();
        job.stop(&mut keeper.client, Duration::from_millis(300));
        assert_eq!(keeper.client.step_ended(job.key, process).end, signalled(9));
        assert!(begun.elapsed() >= Duration::from_millis(300));
        job.close(&mut keeper.client);
        assert!(job.living().is_empty());
        keeper.end();
    }
}

#[test]
fn fault_04_a_process_that_obeys_ends_at_once_and_not_after_the_grace() {
    let mut keeper = Keeper::start("auto");
    let mut job = keeper.register("obedient");
    let ready = keeper.dir.path().join("ready");
    let process = job.spawn(
        &mut keeper.client,
        &format!("trap 'echo bye; exit 4' TERM; touch {}; while :; do sleep 0.01; done", ready.display()),
    );
    wait_for_file(&ready);
    let begun = Instant::now();
    job.stop(&mut keeper.client, Duration::from_mins(10));
    assert_eq!(keeper.client.step_ended(job.key, process).end, exited(4));
    job.close(&mut keeper.client);
    assert!(begun.elapsed() < SOON);
    assert!(job.lines().contains(&"01O bye".to_owned()));
    let refused = job.run(&mut keeper.client, "echo no");
    assert!(matches!(refused.end, StepEnd::NotStarted { part: StartPart::Cancelled, .. }));
    keeper.end();
}

#[test]
fn a_shorter_grace_asked_later_counts() {
    let mut keeper = Keeper::start("auto");
    let mut job = keeper.register("impatient");
    let ready = keeper.dir.path().join("ready");
    let process = job.spawn(
        &mut keeper.client,
        &format!("trap '' TERM; touch {}; while :; do sleep 1; done", ready.display()),
    );
    wait_for_file(&ready);
    job.stop(&mut keeper.client, Duration::from_mins(10));
    job.stop(&mut keeper.client, Duration::ZERO);
    assert_eq!(keeper.client.step_ended(job.key, process).end, signalled(9));
    keeper.end();
}

#[test]
fn fault_05_a_stopped_process_can_be_cancelled() {
    let mut keeper = Keeper::start("auto");
    let mut job = keeper.register("stopped");
    let process = job.spawn(&mut keeper.client, "kill -STOP $$; exit 1");
    let is_stopped = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") T "))
    };
    wait_until(|| job.living().iter().any(is_stopped));
    job.stop(&mut keeper.client, Duration::from_mins(10));
    assert_eq!(keeper.client.step_ended(job.key, process).end, signalled(15));
    keeper.end();
}

/// A FIFO that the processes of a job hold open. Its reader sees the end of the file when the last of them is gone.
struct Witness {
    path: PathBuf,
    reader: File,
}

impl Witness {
    fn new(folder: &Path, name: &str) -> Self {
        let path = folder.join(name);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let reader = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
        Self { path, reader }
    }

    /// Returns the start of a script: it opens the FIFO and prints a line.
    fn attach(&self) -> String {
        format!("exec 9> {}; echo held >&9; ", self.path.display())
    }

    /// True if no process holds the FIFO. Valid only once the processes have opened it.
    fn is_alone(&mut self) -> bool {
        let mut rest = [0; 64];
        loop {
            match self.reader.read(&mut rest) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                    return false;
                }
            }
        }
    }
}

/// Returns a script that forks for ever: each process starts the next one in a new session and exits. No list of its
/// processes is ever complete.
fn chain(folder: &Path) -> String {
    let link = folder.join("link");
    std::fs::write(&link, "setsid sh $0 >/dev/null 2>&1 & exit 0\n").unwrap();
    format!("setsid sh {} >/dev/null 2>&1 & exit 0", link.display())
}

#[test]
fn fault_03_a_chain_of_forks_does_not_outlive_its_job() {
    for cgroup in ["auto", "off"] {
        let mut keeper = Keeper::start(cgroup);
        let chain = chain(keeper.dir.path());
        for round in 0..15 {
            let mut job = keeper.register(&format!("chain-{round}"));
            let mut witness = Witness::new(keeper.dir.path(), &format!("witness-{round}"));
            let ended = job.run(&mut keeper.client, &[&witness.attach(), chain.as_str()].concat());
            assert_eq!(ended.end, exited(0));
            let closed = job.close_with(&mut keeper.client, Duration::ZERO, vec![]);
            assert!(closed.unkilled.is_empty(), "{cgroup} {round}: {closed:?}");
            assert!(witness.is_alone(), "{cgroup} {round}");
            keeper.client.ask(Request::Drop { key: job.key }).unwrap();
        }
        keeper.end();
    }
}

#[test]
fn fault_03_a_chain_of_forks_is_told_from_that_of_another_job() {
    let mut keeper = Keeper::start("off");
    let chain = chain(keeper.dir.path());
    let mut other = keeper.register("other");
    let mut bystander = Witness::new(keeper.dir.path(), "bystander");
    other.run(&mut keeper.client, &[&bystander.attach(), chain.as_str()].concat());
    for round in 0..10 {
        let mut job = keeper.register(&format!("chain-{round}"));
        let mut witness = Witness::new(keeper.dir.path(), &format!("witness-{round}"));
        job.run(&mut keeper.client, &[&witness.attach(), chain.as_str()].concat());
        let closed = job.close_with(&mut keeper.client, Duration::ZERO, vec![]);
        assert!(closed.unkilled.is_empty(), "{round}: {closed:?}");
        assert!(witness.is_alone(), "{round}");
        assert!(!bystander.is_alone(), "{round}");
    }
    assert!(other.close_with(&mut keeper.client, Duration::ZERO, vec![]).unkilled.is_empty());
    assert!(bystander.is_alone());
    keeper.end();
}

#[test]
fn fault_02_a_process_that_cleans_its_environment_still_belongs_to_its_job() {
    for cgroup in ["auto", "off"] {
        let mut keeper = Keeper::start(cgroup);
        let mut job = keeper.register("cleaner");
        let pid_file = keeper.dir.path().join("pid");
        let script = format!(
            "env -i setsid sh -c 'echo $$ > {}; exec sleep 60' >/dev/null 2>&1 &",
            pid_file.display()
        );
        assert_eq!(job.run(&mut keeper.client, &script).end, exited(0));
        wait_until(|| std::fs::read_to_string(&pid_file).is_ok_and(|text| text.ends_with('\n')));
        let pid = std::fs::read_to_string(&pid_file).unwrap();
        assert!(job.close(&mut keeper.client).unkilled.is_empty());
        wait_until(|| !std::path::Path::new(&format!("/proc/{}", pid.trim())).exists());
        keeper.end();
    }
}

#[test]
fn a_dropped_job_says_and_records_nothing_of_a_later_one_with_its_id() {
    for cgroup in ["auto", "off"] {
        let mut keeper = Keeper::start(cgroup);
        let mut old = keeper.register("again");
        // An unusual step number tells the journal entries of this job from those of the later one.
        old.process = 76;
        let started = keeper.dir.path().join("started");
        old.spawn(
            &mut keeper.client,
            &format!(
                "trap '' TERM; echo {:0100}; touch {}; while :; do sleep 600; done",
                0,
                started.display()
            ),
        );
        wait_for_file(&started);
        let close = Request::Close {
            key: old.key,
            op: old.next_op(),
            leftover_grace: Duration::from_mins(10),
            lines: vec![],
        };
        keeper.client.tell(close);
        // A daemon removes a job's folder once the keeper has dropped the job.
        keeper.client.ask(Request::Drop { key: old.key }).unwrap();
        std::fs::rename(&old.folder, keeper.dir.path().join("removed")).unwrap();
        let mut new = keeper.register_with("again", |asked| asked.tag ^= 1);
        assert_eq!(new.run(&mut keeper.client, "echo new").end, exited(0));
        wait_until(|| old.living().is_empty());
        // An answer comes after all events of the old job, so this reads them first.
        assert_eq!(new.resume(&mut keeper.client).ended.len(), 1);
        let closed = new.close(&mut keeper.client);
        assert_eq!((closed.log_len, new.lines()), (new.log().len() as u64, vec!["01O new".to_owned()]));
        let journal = std::fs::read_to_string(new.folder.join("journal")).unwrap();
        assert!(!journal.contains("\"step\":77"), "{journal}");
        keeper.end();
    }
}
