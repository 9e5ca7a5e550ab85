//! Files that the operator names and that are no regular files (faults.md row 108).

use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;

use super::Scene;
use crate::support::{Daemon, Setup, script, until};

fn make_fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

#[test]
fn fault_108_a_start_waits_for_no_file_and_says_what_is_wrong() {
    let scene = Scene::new();
    make_fifo(&scene.path("fifo"));
    let fifo = scene.path("fifo");
    let fifo = fifo.to_str().unwrap();
    for (words, code, told) in [
        (["--config", fifo], 2, "it is a FIFO, not a regular file"),
        (["--config", "/dev/zero"], 2, "it is a device, not a regular file"),
        (["--log-file", fifo], 1, "it is a FIFO that nobody reads: start its reader first"),
    ] {
        let socket = scene.socket();
        let words = [&["serve", "--socket", socket.to_str().unwrap()][..], &words].concat();
        let (status, _, stderr) = scene.start(&words).ended();
        assert_eq!(status.code(), Some(code), "{words:?}: {stderr}");
        assert!(stderr.contains(told), "{words:?}: {stderr}");
    }
}

#[test]
fn files_that_cannot_be_opened_are_named_with_a_remedy() {
    let scene = Scene::new();
    let socket = scene.socket();
    for (words, code, told) in [
        (
            ["--config", "/none/x"],
            2,
            "the settings file /none/x: No such file or directory (os error 2); name another file with --config",
        ),
        (
            ["--log-file", "/none/x"],
            1,
            "cannot open log_file /none/x: No such file or directory (os error 2); name a file that this user can write",
        ),
    ] {
        let words = [&["serve", "--socket", socket.to_str().unwrap()][..], &words].concat();
        let (status, _, stderr) = scene.start(&words).ended();
        assert_eq!(status.code(), Some(code), "{words:?}: {stderr}");
        assert!(stderr.contains(told), "{words:?}: {stderr}");
    }
}

#[tokio::test]
async fn fault_108_settings_that_become_something_else_hold_up_no_call() {
    let folder = tempfile::tempdir().unwrap();
    let settings = folder.path().join("settings.toml");
    std::fs::write(&settings, "").unwrap();
    let daemon: Daemon = Setup::new().option("config", settings.to_str().unwrap()).start();
    let client = daemon.client().await;
    let changes: [(&str, &dyn Fn()); 3] = [
        ("it is a FIFO", &|| make_fifo(&settings)),
        ("it is a device", &|| std::os::unix::fs::symlink("/dev/zero", &settings).unwrap()),
        ("it is longer than 1024 KiB", &|| std::fs::write(&settings, vec![b'#'; 2 << 20]).unwrap()),
    ];
    for (told, change) in changes {
        std::fs::remove_file(&settings).unwrap();
        change();
        daemon.signal(Signal::HUP);
        assert_eq!(
            client.run_to_end(told.split(' ').next_back().unwrap(), &script("true")).await.exit_code,
            0
        );
        until("the operator is told", || {
            daemon
                .said()
                .lines()
                .any(|line| line.contains("the settings stay as they are") && line.contains(told))
        })
        .await;
    }
}
