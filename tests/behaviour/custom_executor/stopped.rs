//! A stopped daemon or keeper of a job, as `cleanup` meets it (custom-executor.md §9).

use rustix::process::Signal;

use crate::custom_executor::runner::{Runner, Running, Seen};
use crate::support::{is_alive, is_root, kill, wait_for};

/// Starts a stage that ends by force only, and waits for its begin.
fn stubborn(runner: &mut Runner, also: &str) -> Running {
    let begun = runner.file("begun");
    let script = format!(
        "trap '' TERM; (trap '' TERM; exec -a {begun}/child setsid sleep 600) & {also} touch {begun}; \
         while :; do sleep 600; done",
        begun = begun.display(),
    );
    let running = runner.start_stage("build_script", script);
    wait_for("the script", || begun.exists().then_some(()));
    running
}

/// Whoever is stopped, `cleanup` ends everything, and says so only then.
#[test]
fn fault_101_cleanup_ends_what_is_stopped() {
    for (stops_daemon, stops_keeper) in [(true, false), (false, true), (true, true)] {
        let mut runner = Runner::new().prepared();
        let running = stubborn(&mut runner, "");
        running.signal(Signal::KILL);
        drop(running.end());
        let (daemon, keeper) = (runner.daemon_pid(), runner.keeper_pid());
        for (pid, stops) in [(keeper, stops_keeper), (daemon, stops_daemon)] {
            if stops {
                kill(pid, Signal::STOP);
            }
        }
        runner.call(&["cleanup"]).is(&Seen::Success);
        assert!(!is_alive(daemon) && !is_alive(keeper), "{stops_daemon} {stops_keeper}");
        runner.left_nothing();
    }
}

/// A process of the job stops the daemon, its successors and the keeper again and again.
#[test]
fn fault_101_cleanup_ends_what_is_stopped_again_and_again() {
    let mut runner = Runner::new().prepared();
    let daemon = runner.daemon_pid();
    let state = runner.state();
    let also = format!(
        "(while :; do for d in /proc/[0-9]*; do p=${{d#/proc/}}; case $(tr '\\0' ' ' <$d/cmdline 2>/dev/null) in \
         *' serve '*{state}/d*|*' keeper '*{state}/d*) kill -STOP $p;; esac; done; done) &",
        state = state.display(),
    );
    let running = stubborn(&mut runner, &also);
    let status = format!("/proc/{daemon}/stat");
    wait_for("the stop", || std::fs::read_to_string(&status).unwrap().contains(") T ").then_some(()));
    running.signal(Signal::KILL);
    drop(running.end());
    runner.call(&["cleanup"]).is(&Seen::Success);
    runner.left_nothing();
}

/// Returns the reapers that a keeper has started.
fn reapers_of(keeper: i32) -> Vec<i32> {
    let children = std::fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).unwrap();
    let is_reaper = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|&byte| byte == 0).any(|word| word == b"reaper")
    };
    children.split_whitespace().map(|pid| pid.parse().unwrap()).filter(is_reaper).collect()
}

/// What cannot be ended is named, and the call fails.
#[test]
fn fault_101_cleanup_names_what_does_not_end() {
    const TEST: &str = "fault_101_cleanup_names_what_does_not_end";
    if !is_root(TEST) {
        return;
    }
    let mut runner = Runner::new().prepared();
    let file = runner.file("pid");
    let running = stubborn(
        &mut runner,
        &format!(
            "(exec setsid setpriv --reuid 65534 --clear-groups sleep 600) & echo $! >{};",
            file.display()
        ),
    );
    let pid: i32 = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
    wait_for("the change of the user", || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        status.contains("Uid:\t65534").then_some(())
    });
    running.signal(Signal::KILL);
    drop(running.end());
    // Nothing is left that knows the job's processes, and this cleanup may not signal another user's.
    for word in ["watch", "serve", "keeper"] {
        let other = wait_for(word, || runner.process(word));
        if word == "keeper" {
            // Without control groups a reaper holds the job's processes, and kills them if its keeper is gone.
            kill(other, Signal::STOP);
            for reaper in reapers_of(other) {
                kill(reaper, Signal::KILL);
            }
        }
        kill(other, Signal::KILL);
        wait_for("its end", || (!is_alive(other)).then_some(()));
    }
    std::fs::remove_dir_all(runner.state().join("d")).unwrap();
    let driver = runner.command(&["cleanup"]);
    let mut command = std::process::Command::new("setpriv");
    command.arg("--bounding-set=-kill").arg(driver.get_program()).args(driver.get_args()).env_clear();
    command.envs(driver.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let call = runner.started(&mut command).end();
    kill(pid, Signal::KILL);
    call.fails_with(&[&format!("a process of the job (process {pid}) does not end")]);
}
