//! Bad input is refused with the right code and reason. A refusal leaves nothing behind and does not disturb other
//! jobs.

mod ids;
mod places;
mod state;
mod steps;
mod surroundings;

use std::path::Path;
use std::time::Instant;

use crate::support::{Client, Daemon, SOON, Setup};
use step_runner::pb::v1::State;

/// Another job, which runs while the bad requests are made.
struct Beside {
    client: Client,
    start_time: Option<prost_types::Timestamp>,
}

impl Beside {
    async fn start(daemon: &Daemon) -> Self {
        let client = daemon.client().await;
        let go = daemon.file("go");
        client
            .run("beside", &format!("echo on; until [ -e {} ]; do sleep 0.02; done; echo bye", go.display()))
            .await;
        client.prints("beside", "on").await;
        let start_time = client.status("beside").await.start_time;
        Self { client, start_time }
    }

    /// Asserts that the job still runs and ends well, and that no other job left a folder.
    async fn unaffected(self, daemon: &Daemon) {
        assert_eq!(daemon.folders().len(), 1, "something is left: {:?}", daemon.folders());
        let status = self.client.status("beside").await;
        assert_eq!((status.state(), &status.start_time), (State::Running, &self.start_time));
        std::fs::write(daemon.file("go"), "").unwrap();
        assert_eq!(self.client.ended("beside").await.exit_code, 0);
        assert_eq!(self.client.output("beside").await, "on\nbye\n");
    }
}

/// Asserts that a start is refused with this exit code. Returns its stderr.
fn refuses_to_start(setup: Setup, socket: &Path, code: i32) -> String {
    let start = Instant::now();
    let output = setup.refused(socket);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(!said.contains("is listening on socket"), "{said}");
    assert!(start.elapsed() < SOON);
    said
}
