use std::os::unix::fs::symlink;

use actix::AsyncContext;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::*;
use crate::actors::job::JobActor;
use crate::model::JobId;
use crate::process::command;
use crate::process::host::this_process;
use crate::store::StateDir;

struct Place {
    _dir: tempfile::TempDir,
    folder: JobFolder,
    files: StepFiles,
}

fn place() -> Place {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(&dir.path().join("state"), &this_process()).unwrap();
    let folder = state.folder(JobId::parse("1").unwrap().key());
    folder.make().unwrap();
    folder.make_dir("tmp").unwrap();
    let path = |name: &str| folder.path("tmp/7").join(name).to_str().unwrap().to_owned();
    let files = StepFiles { output: path("output"), export: path("export") };
    Place { _dir: dir, files, folder }
}

#[test]
fn what_an_earlier_process_planted_is_neither_waited_for_nor_followed() {
    let Place { folder, files, _dir } = place();
    fs::create_dir(folder.path("tmp/7")).unwrap();
    let victim = folder.path("victim");
    fs::write(&victim, "kept").unwrap();
    mknodat(CWD, &files.output, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    symlink(&victim, &files.export).unwrap();
    assert!(make_files(&folder, &files).is_err());
    make_new_files(&folder, &files).unwrap();
    let script = folder.path("tmp/7/script");
    symlink(&victim, &script).unwrap();
    write_private(&folder, &script, "text").unwrap();
    assert_eq!(fs::read(&victim).unwrap(), b"kept");
    assert_eq!(fs::read(&script).unwrap(), b"text");
    for path in [&files.output, &files.export] {
        let found = fs::symlink_metadata(path).unwrap();
        assert!(found.is_file() && found.len() == 0, "{path}");
    }
}

/// Returns what `look` makes of a task that starts `argv` in `work_dir` with this `PATH`.
async fn with_task<T: 'static>(
    argv: Vec<String>,
    work_dir: &Path,
    path: &str,
    look: impl FnOnce(StepTask) -> T + 'static,
) -> T {
    let Place { folder, files, _dir } = place();
    let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let spawn = Spawn {
        ends_job: false,
        process: 1,
        slot: 1,
        name: "big".into(),
        program: Program::Command(argv),
        env: vec![(b"PATH".to_vec(), path.into())],
        work_dir: work_dir.to_str().unwrap().into(),
        files: Some(files),
        success: crate::job::effect::Success::ExitCode,
    };
    let local = tokio::task::LocalSet::new();
    let looked = local.run_until(async move {
        let link = KeeperLink::new(crate::keeper::link::KeeperWire::Socket(ours), |_| {}, || {}).unwrap();
        look(StepTask {
            closes: None,
            job: ToJob::new(&Context::<JobActor>::new().address()),
            link,
            key: folder.key(),
            tag: 1,
            socket: Path::new("/run/s").into(),
            folder,
            daemon_path: None,
            spawn: Box::new(spawn),
            limits: Arc::default(),
            is_asked: false,
            watch_unfinished: false,
            given_up: None,
        })
    });
    looked.await
}

#[tokio::test]
async fn fault_114_what_no_process_can_be_given_is_named_with_its_size_and_the_limit() {
    let room = Room::here();
    let refused = async |arguments: Vec<String>| {
        let argv = [vec!["/bin/true".to_owned()], arguments].concat();
        let begun = with_task(argv, Path::new("/"), "", |task| StepActor::prepare(task).begin.take());
        begun.await.unwrap().err().unwrap()
    };
    let message = refused(vec!["x".repeat(1000); room.total / 1000]).await;
    assert!(message.starts_with("the arguments take "), "{message}");
    assert!(message.contains(&format!(" {} bytes of both", room.total)), "{message}");
    assert!(message.ends_with("hand large values over in files"), "{message}");
    let message = refused(vec!["x".into(), "x".repeat(room.entry + 1)]).await;
    let expected = format!("command[2] has {} bytes, and an argument", room.entry + 1);
    assert!(message.starts_with(&expected) && message.contains(&room.entry.to_string()), "{message}");
    let message = refused(vec!["canary\0".into()]).await;
    assert!(message.starts_with("command[1] holds a NUL byte") && !message.contains("canary"), "{message}");
}

#[tokio::test]
async fn fault_76_many_or_slow_look_ups_for_a_program_are_left_to_another_thread() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("bin")).unwrap();
    fs::write(dir.path().join("bin/tool"), "x").unwrap();
    fs::set_permissions(dir.path().join("bin/tool"), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    // Twice: the kernel caches what the first look has found.
    let is_at_hand = async |path: &str| {
        let look = |task: StepTask| {
            command::lookup("tool", Path::new(&task.spawn.work_dir), task.step_path(), None).unwrap();
            task.is_at_hand()
        };
        with_task(vec!["tool".into()], dir.path(), path, look).await
    };
    assert!(!is_at_hand(&format!("{}bin", "none:".repeat(5_000))).await, "5,000 folders");
    // A chain of links that takes longer than it may: each look follows 40 links of 2,000 folders each.
    let long = "./".repeat(2_000);
    symlink("bin", dir.path().join("l0")).unwrap();
    for number in 1..39 {
        symlink(format!("{long}l{}", number - 1), dir.path().join(format!("l{number}"))).unwrap();
    }
    let slow: String = (0..30).map(|_| "l38/none:").collect();
    assert!(!is_at_hand(&format!("{slow}bin")).await, "30 chains of links");
}

#[test]
fn a_link_in_place_of_the_folder_is_refused() {
    let Place { folder, files, _dir } = place();
    let elsewhere = folder.make_dir("work").unwrap();
    symlink(&elsewhere, folder.path("tmp/7")).unwrap();
    assert!(make_files(&folder, &files).is_err());
    assert!(make_new_files(&folder, &files).is_err());
    assert_eq!(fs::read_dir(elsewhere).unwrap().count(), 0);
}

#[test]
fn files_of_a_replayed_function_keep_what_is_in_them() {
    let Place { folder, files, _dir } = place();
    make_files(&folder, &files).unwrap();
    fs::write(&files.output, "written").unwrap();
    make_files(&folder, &files).unwrap();
    assert_eq!(fs::read(&files.output).unwrap(), b"written");
}
