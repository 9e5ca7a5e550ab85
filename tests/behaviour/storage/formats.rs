//! State folders in every released format (faults.md row 46).

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::{Setup, names, script};
use step_runner::journal;
use step_runner::journal::Reader;
use step_runner::journal::event::{End, Event};
use step_runner::pb::v1::State;

/// Copies a state folder that a released version wrote, as the daemon finds it after an upgrade. The copied logs have
/// other inodes than the originals, so the journals are changed to name these.
fn golden(format: u32, into: &Path) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/state-{format}"));
    copy(&from, into);
    for key in names(&into.join("jobs")) {
        let folder = into.join("jobs").join(key);
        let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(folder.join("log")).unwrap());
        let journal = std::fs::read(folder.join("journal")).unwrap();
        let lines = Reader::<Event>::new(&journal).map(|record| match record.unwrap().event {
            Event::Ended(end) => Event::Ended(End { log_inode: inode, ..end }),
            event => event,
        });
        let lines: Vec<u8> = lines.flat_map(|event| journal::encode(&event).unwrap()).collect();
        std::fs::write(folder.join("journal"), lines).unwrap();
    }
}

fn copy(from: &Path, into: &Path) {
    std::fs::create_dir(into).unwrap();
    std::fs::set_permissions(into, std::fs::Permissions::from_mode(0o700)).unwrap();
    for name in names(from) {
        let (from, into) = (from.join(&name), into.join(&name));
        if from.is_dir() {
            copy(&from, &into);
        } else {
            std::fs::copy(from, into).unwrap();
        }
    }
}

#[tokio::test]
async fn fault_46_state_folders_of_every_format_are_read() {
    for format in 1..=step_runner::store::FORMAT as u32 {
        let dir = tempfile::tempdir().unwrap();
        golden(format, &dir.path().join("s.sock.state"));
        let daemon = Setup::new().start_in(dir.path());
        let client = daemon.client().await;
        let succeeded = client.status("succeeded").await;
        assert_eq!((succeeded.state(), succeeded.exit_code), (State::Success, 0));
        assert_eq!(client.output("succeeded").await, "one\ntwo\n");
        assert_eq!(client.steps("succeeded").await.len(), 3);
        let failed = client.ended("failed").await;
        assert_eq!((failed.state(), failed.exit_code), (State::Failure, 3));
        let interrupted = client.ended("running").await;
        assert_eq!((interrupted.state(), interrupted.exit_code), (State::Interrupted, -4));
        assert!(client.output("running").await.starts_with("begun\n"));
        assert_eq!(client.jobs().await.len(), 3);
        assert_eq!(client.run_to_end("new", &script("echo new")).await.state(), State::Success);
        assert!(daemon.folder("failed").join("job.json").exists());
    }
}
