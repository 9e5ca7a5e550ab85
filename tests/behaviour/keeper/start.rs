//! Starts of processes, and the exit codes and signals with which they end (faults.md rows 7, 9, 10).

use std::process::Command;

use step_runner::keeper::protocol::{Request, StartPart, StepEnd};
use step_runner::process::spawn::Stage;

use crate::keeper::support::{Keeper, exited, signalled, wait_for_file, wait_until};

#[test]
fn fault_09_every_exit_code_is_reported_as_it_is() {
    let mut keeper = Keeper::start("auto");
    let mut job = keeper.register("codes");
    for code in 0..=255 {
        assert_eq!(job.run(&mut keeper.client, &format!("exit {code}")).end, exited(code));
    }
    assert_eq!(job.close(&mut keeper.client).log_len, 0);
    keeper.end();
}

#[test]
fn fault_09_death_by_a_signal_is_told_from_an_exit_code() {
    let mut keeper = Keeper::start("off");
    let mut job = keeper.register("signals");
    // By default these signals do not end a process: they continue it, stop it, or are ignored.
    let harmless = [17, 18, 19, 20, 21, 22, 23, 28];
    for signal in (1..=31).filter(|signal| !harmless.contains(signal)).chain([34, 64]) {
        let end = job.run(&mut keeper.client, &format!("ulimit -c 0; kill -{signal} $$")).end;
        assert_eq!(end, signalled(signal), "{signal}");
    }
    for signal in [17, 18, 23, 28] {
        let end = job.run(&mut keeper.client, &format!("kill -{signal} $$; exit 5")).end;
        assert_eq!(end, exited(5), "{signal}");
    }
    keeper.end();
}

#[test]
fn fault_09_what_cannot_start_says_what_failed_and_why() {
    let mut keeper = Keeper::start("auto");
    let mut job = keeper.register("failures");
    let dir = keeper.dir.path().to_owned();
    let script = |name: &str, text: &str, mode: u32| {
        use std::os::unix::fs::PermissionsExt;
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let not_started = |stage: Stage, errno: i32| StepEnd::NotStarted { part: StartPart::Stage(stage), errno };
    let client = &mut keeper.client;
    assert_eq!(job.run_command(client, &["/no/such"]), not_started(Stage::Exec, 2));
    assert_eq!(job.run_command(client, &[&script("plain", "x", 0o644)]), not_started(Stage::Exec, 13));
    assert_eq!(job.run_command(client, &[&script("noexec", "no magic", 0o755)]), not_started(Stage::Exec, 8));
    assert_eq!(
        job.run_command(client, &[&script("interp", "#!/no/such\n", 0o755)]),
        not_started(Stage::Exec, 2)
    );
    let circle = dir.join("circle");
    std::os::unix::fs::symlink(&circle, &circle).unwrap();
    assert_eq!(job.run_command(client, &[circle.to_str().unwrap()]), not_started(Stage::Exec, 40));
    let long = "x".repeat(200 << 10);
    assert_eq!(job.run_command(client, &["/bin/echo", &long]), not_started(Stage::Exec, 7));
    let mut lost = job.command(&["/bin/true"]);
    lost.work_dir = dir.join("nowhere");
    let process = lost.process;
    client.tell(Request::Spawn(Box::new(lost)));
    assert_eq!(client.step_ended(job.key, process).end, not_started(Stage::WorkDir, 2));
    assert_eq!(job.run_command(client, &["/bin/true", "a\0b"]), not_started(Stage::Arguments, 22));
    assert_eq!(job.run_command(client, &["/bin/true"]), exited(0));
    keeper.end();
}

#[test]
fn fault_10_a_step_has_three_descriptors_its_own_group_and_default_signals() {
    let mut keeper = Keeper::start("auto");
    let mut job = keeper.register("clean");
    let script = "ls /proc/self/fd | tr '\\n' ' '; echo; cut -d' ' -f1,5 /proc/self/stat; \
                  sed -n '/^Sig[BIC]/p' /proc/self/status; readlink /proc/self/fd/0";
    // Nothing is between the keeper and `sh`, which is the group leader; `cut` is a member of its group.
    assert_eq!(job.run(&mut keeper.client, script).end, exited(0));
    let lines = job.lines();
    // Descriptor 3 is the folder that `ls` reads.
    assert_eq!(lines[0], "01O 0 1 2 3 ");
    assert_eq!(
        &lines[2..],
        [
            "01O SigBlk:\t0000000000000000",
            "01O SigIgn:\t0000000000000000",
            "01O SigCgt:\t0000000000000000",
            "01O /dev/null"
        ]
    );
    let own = job.run(&mut keeper.client, "set -- $(cat /proc/$$/stat); test $1 = $5");
    assert_eq!(own.end, exited(0));
    let limit = job.run(&mut keeper.client, &format!("test $(ulimit -n) = {}", soft_files()));
    assert_eq!(limit.end, exited(0), "the keeper's own limits are not handed on");
    keeper.end();
}

fn soft_files() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap()
}

#[test]
fn fault_07_orphans_are_reaped_and_no_status_is_stolen() {
    let mut keeper = Keeper::start("off");
    let mut job = keeper.register("orphans");
    // One job makes orphans as fast as it can while steps of another job exit with every possible code.
    let (mut codes, stop) = (keeper.register("codes"), keeper.dir.path().join("stop"));
    let storm = format!("until test -e {}; do (exit 9 &); echo; done; exit 9", stop.display());
    let storm = job.spawn(&mut keeper.client, &storm);
    // Counts line feeds, because the last line can still be incomplete.
    let orphans = || memchr::memchr_iter(b'\n', &job.log()).count();
    wait_until(|| orphans() > 0);
    for code in 0..=255 {
        assert_eq!(codes.run(&mut keeper.client, &format!("exit {code}")).end, exited(code));
    }
    wait_until(|| orphans() > 256);
    std::fs::write(&stop, "").unwrap();
    assert_eq!(keeper.client.step_ended(job.key, storm).end, exited(9));
    let keeper_pid = keeper.process.id();
    // The reapers end with their jobs.
    for job in [&mut job, &mut codes] {
        job.close(&mut keeper.client);
    }
    wait_until(|| {
        let children =
            std::fs::read_to_string(format!("/proc/{keeper_pid}/task/{keeper_pid}/children")).unwrap();
        children.is_empty()
    });
    keeper.end();
}

#[test]
fn steps_die_with_a_killed_keeper() {
    let mut keeper = Keeper::start("auto");
    let mut job = keeper.register("orphaned");
    let ready = keeper.dir.path().join("ready");
    job.spawn(&mut keeper.client, &format!("touch {}; exec sleep 60", ready.display()));
    wait_for_file(&ready);
    // `touch` can live a moment longer than it takes to make the file.
    wait_until(|| job.living().len() == 1);
    keeper.process.kill().unwrap();
    keeper.process.wait().unwrap();
    wait_until(|| job.living().is_empty());
}

#[test]
fn a_program_still_open_for_writing_is_tried_again() {
    let mut keeper = Keeper::start("auto");
    let mut job = keeper.register("busy");
    let program = keeper.dir.path().join("true");
    // Copied by another process: a child that another test forks meanwhile would inherit our descriptor and keep the
    // file open for writing.
    assert!(Command::new("cp").arg("/bin/true").arg(&program).status().unwrap().success());
    let writer = std::fs::OpenOptions::new().append(true).open(&program).unwrap();
    let spawn = job.command(&[program.to_str().unwrap()]);
    let process = spawn.process;
    keeper.client.tell(Request::Spawn(Box::new(spawn)));
    assert_eq!(job.resume(&mut keeper.client).ended, [], "it is tried again");
    drop(writer);
    assert_eq!(keeper.client.step_ended(job.key, process).end, exited(0));
    keeper.end();
}
