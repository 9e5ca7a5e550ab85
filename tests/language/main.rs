//! The language as the program runs it (language.md): the effect of each rule on users.
#![expect(clippy::unwrap_used, reason = "a broken scene fails the test")]

#[path = "../support/mod.rs"]
mod support;

mod ends;
mod environment;
mod functions;
mod texts;

use std::sync::atomic::{AtomicU32, Ordering};

use step_runner::pb::v1::{self, RunRequest, State};
use support::{Client, Daemon, Setup, logs, request};

/// A daemon and the functions that its jobs call.
struct Scene {
    daemon: Daemon,
    client: Client,
}

/// How a job ended.
struct Ended {
    state: State,
    exit_code: i32,
    message: String,
    /// What its processes wrote to stdout.
    output: String,
    /// The daemon's own lines.
    said: Vec<String>,
    root: v1::StepResult,
}

impl Scene {
    async fn new(files: &[(&str, &str)]) -> Self {
        Self::with(Setup::new(), files).await
    }

    async fn with(setup: Setup, files: &[(&str, &str)]) -> Self {
        let daemon = setup.start();
        let client = daemon.client().await;
        for (path, text) in files {
            let path = daemon.file(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        Self { daemon, client }
    }

    /// A request in the folder of the scene.
    fn request(&self, steps: &str) -> RunRequest {
        RunRequest { work_dir: self.daemon.path.to_str().unwrap().to_owned(), ..request("1", steps) }
    }

    async fn start(&self, id: &str, steps: &str) {
        self.client.try_run(RunRequest { id: id.to_owned(), ..self.request(steps) }).await.unwrap();
    }

    async fn run(&self, steps: &str) -> Ended {
        self.run_request(self.request(steps)).await
    }

    async fn run_request(&self, request: RunRequest) -> Ended {
        // The same request again would be a late duplicate.
        static JOBS: AtomicU32 = AtomicU32::new(10);
        let id = JOBS.fetch_add(1, Ordering::Relaxed).to_string();
        self.client.try_run(RunRequest { id: id.clone(), ..request }).await.unwrap();
        self.ended(&id).await
    }

    /// The end of the job, which is forgotten then.
    async fn ended(&self, id: &str) -> Ended {
        let status = self.client.ended(id).await;
        let log = self.client.log(id).await;
        let root = self.client.steps(id).await.pop().unwrap();
        self.client.finish(id).await;
        Ended {
            state: status.state(),
            exit_code: status.exit_code,
            message: status.message,
            output: String::from_utf8(logs::source(&log, "01O")).unwrap(),
            said: logs::daemon_lines(&log),
            root,
        }
    }
}

impl Ended {
    /// What a job that went well printed.
    #[track_caller]
    fn output(self) -> String {
        assert_eq!(self.state, State::Success, "{}\n{:?}", self.message, self.said);
        self.output
    }

    /// Why a job failed.
    #[track_caller]
    fn failure(self) -> String {
        assert_eq!(self.state, State::Failure, "{}", self.output);
        self.message
    }
}

/// Prints its input `text`.
const SHOW: &str =
    "spec: {inputs: {text: {type: string}}}\n---\nexec: {command: [printf, '%s\\n', '${{ inputs.text }}']}\n";
