//! The language as the program runs it (language.md): the effect of each rule on users.

mod ends;
mod environment;
mod functions;
mod texts;

use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::{Client, Daemon, Setup, logs, request};
use step_runner::pb::v1::{self, RunRequest, State};

/// A daemon and the functions that its jobs call.
struct Scene {
    daemon: Daemon,
    client: Client,
}

/// End of a job.
struct Ended {
    state: State,
    exit_code: i32,
    message: String,
    /// Output of its processes on stdout.
    output: String,
    /// The daemon's own lines of the log.
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

    /// Returns a request with the scene's folder as working directory.
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
        // Each request gets a new id: a repeated request would be taken for a late duplicate.
        static JOBS: AtomicU32 = AtomicU32::new(10);
        let id = JOBS.fetch_add(1, Ordering::Relaxed).to_string();
        self.client.try_run(RunRequest { id: id.clone(), ..request }).await.unwrap();
        self.ended(&id).await
    }

    /// Waits for the job's end, then removes the job.
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
    /// Returns the output of a job that must have succeeded.
    #[track_caller]
    fn output(self) -> String {
        assert_eq!(self.state, State::Success, "{}\n{:?}", self.message, self.said);
        self.output
    }

    /// Returns the message of a job that must have failed.
    #[track_caller]
    fn failure(self) -> String {
        assert_eq!(self.state, State::Failure, "{}", self.output);
        self.message
    }
}

/// A function that prints its input `text`.
const SHOW: &str =
    "spec: {inputs: {text: {type: string}}}\n---\nexec: {command: [printf, '%s\\n', '${{ inputs.text }}']}\n";
