//! Daemons that connect to the keeper and disconnect (service.md §6.4).

use std::time::Duration;

use step_runner::keeper::KeeperIdentity;
use step_runner::keeper::protocol::{KeeperSettings, PROTOCOL_VERSION, Reply, Request};
use step_runner::model::LogChannel;

use crate::keeper::support::{Client, Keeper, exited, settings, wait_for_file, wait_until};

#[test]
fn a_step_goes_on_without_a_daemon_and_the_next_one_learns_all() {
    let mut keeper = Keeper::start("auto");
    let mut job = keeper.register("survivor");
    let go = keeper.dir.path().join("go");
    keeper.client.tell(Request::Record { key: job.key, seq: 1, event: b"second".to_vec() });
    keeper.client.tell(Request::Record { key: job.key, seq: 1, event: b"twice".to_vec() });
    assert_eq!(job.run(&mut keeper.client, "echo one").end, exited(0));
    job.spawn(
        &mut keeper.client,
        &format!("while ! test -e {}; do sleep 0.01; done; echo two; exit 5", go.display()),
    );
    let registered = job.resume(&mut keeper.client);
    assert_eq!(
        (registered.last_op, registered.ended.len(), &registered.running[..]),
        (0, 1, &[2][..]),
        "the second step runs"
    );

    keeper.client.hang_up();
    std::fs::write(&go, "").unwrap();
    wait_until(|| job.lines().len() == 2);
    keeper.reconnect(settings());
    assert_eq!(keeper.client.jobs, [job.key]);
    wait_until(|| job.resume(&mut keeper.client).ended.len() == 2);
    let registered = job.resume(&mut keeper.client);
    assert_eq!(registered.ended[1].end, exited(5));
    assert_eq!((registered.last_op, registered.tag), (0, job.tag));
    assert_eq!(job.record(&mut keeper.client), [b"first".to_vec(), b"second".to_vec()]);
    assert_eq!(registered.log_len, job.log().len() as u64);

    // The new daemon replays the job. Operations that were done are not done again.
    let mut again = job.command(&["/bin/echo", "again"]);
    again.process = 2;
    keeper.client.ask(Request::Spawn(Box::new(again))).unwrap();
    for _ in 0..2 {
        let line = Request::Line { key: job.key, op: 1, kind: LogChannel::Out, text: "once".to_owned() };
        keeper.client.ask(line).unwrap();
    }
    job.op = 1;
    let closed = job.close(&mut keeper.client);
    assert_eq!(job.lines(), ["01O one", "01O two", "00O once"]);
    assert_eq!(job.resume(&mut keeper.client).closed, Some(closed));
    keeper.client.ask(Request::Drop { key: job.key }).unwrap();
    assert!(keeper.client.ask(Request::Resume { key: job.key }).is_err());
    keeper.end();
}

#[test]
fn without_a_daemon_jobs_are_ended_recorded_and_their_secrets_removed() {
    for wait in [Duration::ZERO, Duration::from_millis(200)] {
        let mut keeper = Keeper::start_with("auto", KeeperSettings { keeper_wait: wait, ..settings() });
        let secret = keeper.dir.path().join("secret");
        std::fs::write(&secret, "x").unwrap();
        let mut job = keeper.register_with("alone", |asked| asked.secret_files = vec![secret.clone()]);
        let ready = keeper.dir.path().join("ready");
        job.spawn(
            &mut keeper.client,
            &format!("trap '' TERM; touch {}; while :; do sleep 1; done", ready.display()),
        );
        wait_for_file(&ready);
        keeper.client.hang_up();
        assert!(keeper.process.wait().unwrap().success());
        assert_eq!(job.lines(), ["00E job interrupted: no daemon came back"]);
        assert!(!secret.exists());
        assert!(!keeper.dir.path().join("keeper.sock").exists());
        assert!(job.living().is_empty());
        let journal = std::fs::read_to_string(job.folder.join("journal")).unwrap();
        let last = journal.lines().last().unwrap();
        assert!(
            last.contains("\"interrupted\"") && last.contains("no daemon came back") && last.contains("-4"),
            "{last}"
        );
        assert!(journal.lines().next().unwrap().contains("step_started"), "{journal}");
    }
}

#[test]
fn a_state_folder_of_one_daemon_alone_is_removed_with_the_keeper() {
    let settings = KeeperSettings { keeper_wait: Duration::ZERO, remove_state: true, ..settings() };
    let mut keeper = Keeper::start_with("auto", settings);
    keeper.register("gone");
    keeper.client.hang_up();
    assert!(keeper.process.wait().unwrap().success());
    assert!(!keeper.dir.path().exists());
}

#[test]
fn a_second_keeper_is_refused_and_the_first_untouched() {
    let mut keeper = Keeper::start("auto");
    let second = std::process::Command::new(env!("CARGO_BIN_EXE_step-runner"))
        .args(["keeper", "--state-dir"])
        .arg(keeper.dir.path())
        .status()
        .unwrap();
    assert!(!second.success());
    let mut job = keeper.register("still");
    assert_eq!(job.run(&mut keeper.client, "exit 0").end, exited(0));
    let identity: KeeperIdentity =
        serde_json::from_slice(&std::fs::read(keeper.dir.path().join("keeper.json")).unwrap()).unwrap();
    assert_eq!(identity.process.pid, keeper.process.id());
    keeper.end();
}

#[test]
fn a_daemon_of_another_version_gets_an_answer_and_nothing_else() {
    let mut keeper = Keeper::start("auto");
    let job = keeper.register("versions");
    for version in [PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1, 99] {
        let (client, hello) = Client::speaking(version, keeper.connect(), settings());
        keeper.client = client;
        let Reply::Hello { version: theirs, digest_key, jobs, .. } = hello else { panic!("no answer") };
        assert_eq!((theirs, digest_key, jobs), (PROTOCOL_VERSION, [7; 16], vec![job.key]));
        keeper.client.tell(Request::Resume { key: job.key });
        assert!(keeper.client.read().is_none());
    }
    keeper.reconnect(settings());
    assert_eq!(job.resume(&mut keeper.client).last_op, 0);
    keeper.end();
}

#[test]
fn a_daemon_of_another_version_changes_no_setting_and_keeps_no_keeper_waiting() {
    let own = KeeperSettings { keeper_wait: Duration::from_millis(300), ..settings() };
    let mut keeper = Keeper::start_with("auto", own);
    let mut job = keeper.register("outlived");
    job.spawn(&mut keeper.client, "sleep 600");
    keeper.client.hang_up();
    let theirs = KeeperSettings { keeper_wait: Duration::from_hours(1), ..settings() };
    let (_newer, _) = Client::speaking(PROTOCOL_VERSION + 1, keeper.connect(), theirs);
    wait_until(|| keeper.process.try_wait().unwrap().is_some_and(|status| status.success()));
    assert!(job.living().is_empty());
    assert_eq!(job.lines(), ["00E job interrupted: no daemon came back"]);
}
