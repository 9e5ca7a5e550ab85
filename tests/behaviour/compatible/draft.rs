//! The first draft of the service (service.md §5).

use step_runner::pb::v0::run_request::JobOneof;
use step_runner::pb::v0::step_runner_client::StepRunnerClient;
use step_runner::pb::v0::{CancelRequest, FollowRequest, RunRequest, Steps};
use step_runner::pb::v1::step::Reference;
use step_runner::pb::v1::step_result::Status as StepStatus;
use step_runner::pb::v1::{State, Step, StepReferenceProtocol, StepResult};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::support::{Client, Daemon, exec, patiently, refused};

/// A client of the draft.
pub(super) struct Draft(StepRunnerClient<Channel>);

impl Draft {
    pub(super) async fn of(daemon: &Daemon) -> Self {
        Self(StepRunnerClient::new(daemon.client().await.channel))
    }

    async fn run(&self, id: &str, job: Option<JobOneof>) -> Result<(), Status> {
        let request = RunRequest { id: id.into(), job_oneof: job };
        patiently("Run", self.0.clone().run(request)).await.map(drop)
    }

    pub(super) async fn ci_job(&self, id: &str, text: &str) -> Result<(), Status> {
        self.run(id, Some(JobOneof::CiJob(text.into()))).await
    }

    pub(super) async fn follow(&self, id: &str) -> Result<Vec<StepResult>, Status> {
        let request = FollowRequest { id: id.into() };
        let mut stream = patiently("Follow", self.0.clone().follow(request)).await?.into_inner();
        let mut results = Vec::new();
        while let Some(message) = patiently("a step", stream.message()).await? {
            results.push(message.result.unwrap());
        }
        Ok(results)
    }

    pub(super) async fn cancel(&self, id: &str) -> Result<(), Status> {
        patiently("Cancel", self.0.clone().cancel(CancelRequest { id: id.into() })).await.map(drop)
    }
}

#[tokio::test]
async fn a_ci_job_runs_with_its_variables_expanded_as_its_environment() {
    let daemon = Daemon::start();
    let (draft, client) = (Draft::of(&daemon).await, daemon.client().await);
    let text = "build:\n  variables: {A: 1, B: \"$A and 2\"}\n  before_script: [echo before]\n  script:\n  \
                - echo \"$B\"\n  - echo '${{ vars.B }} is text'\n";
    draft.ci_job("1", text).await.unwrap();
    let results = draft.follow("1").await.unwrap();
    assert_eq!(results.last().unwrap().status(), StepStatus::Success);
    assert_eq!(printed(&client, "1").await, ["before", "1 and 2", "${{ vars.B }} is text"]);
    draft.cancel("1").await.unwrap();
    assert!(client.jobs().await.is_empty());
    draft.cancel("1").await.unwrap();
}

/// Returns the output of a job without the commands that `script_legacy` prints before them.
async fn printed(client: &Client, id: &str) -> Vec<String> {
    let output = client.output(id).await;
    output.lines().filter(|line| !line.starts_with("\u{1b}[32;1m$ ")).map(str::to_owned).collect()
}

#[tokio::test]
async fn the_first_command_that_fails_ends_a_ci_job() {
    let daemon = Daemon::start();
    let (draft, client) = (Draft::of(&daemon).await, daemon.client().await);
    for (id, text) in [
        ("1", "script: [\"false\", echo never]"),
        (
            "2",
            ".base: {tags: [x]}\nbuild:\n  extends: .base\n  image: rust\n  stage: compile\n  rules: [{if: $A}]\n  \
              before_script: \"false\"\n  script: echo never\n  after_script: echo after $CI_JOB_STATUS\n",
        ),
    ] {
        draft.ci_job(id, text).await.unwrap();
        let ended = client.ended(id).await;
        assert_eq!((ended.state(), ended.exit_code), (State::Failure, 1), "{text}");
        let printed = printed(&client, id).await;
        assert!(!printed.contains(&"never".to_owned()), "{printed:?}");
        assert_eq!(printed.contains(&"after failed".to_owned()), id == "2", "{printed:?}");
    }
}

#[tokio::test]
async fn a_ci_job_may_be_a_list_of_steps() {
    let daemon = Daemon::start();
    let (draft, client) = (Draft::of(&daemon).await, daemon.client().await);
    draft.ci_job("1", "run:\n- {name: a, script: echo a}\n- {name: b, script: echo b}\n").await.unwrap();
    let results = draft.follow("1").await.unwrap();
    assert_eq!((results.len(), results[0].sub_step_results.len()), (2, 2));
    assert_eq!(client.output("1").await, "a\nb\n");
}

#[tokio::test]
async fn steps_may_be_given_as_messages() {
    let daemon = Daemon::start();
    let (draft, client) = (Draft::of(&daemon).await, daemon.client().await);
    // Only the function's folder is used.
    exec(&daemon, "function", &["sh", "-c", "echo $FROM"]);
    let local = Reference {
        protocol: StepReferenceProtocol::Local.into(),
        url: daemon.file("function").to_str().unwrap().into(),
        ..Reference::default()
    };
    let step = Step {
        name: "a".into(),
        step: Some(local),
        env: [("FROM".to_owned(), "env".to_owned())].into(),
        ..Step::default()
    };
    draft.run("1", Some(JobOneof::Steps(Steps { steps: vec![step] }))).await.unwrap();
    assert_eq!(client.ended("1").await.state(), State::Success);
    assert_eq!(client.output("1").await, "env\n");
}

#[tokio::test]
async fn cancel_ends_the_job_and_removes_it() {
    let daemon = Daemon::start();
    let (draft, client) = (Draft::of(&daemon).await, daemon.client().await);
    draft.ci_job("1", "script: echo on; exec sleep 600").await.unwrap();
    client.prints("1", "on").await;
    draft.cancel("1").await.unwrap();
    refused(draft.follow("1").await, Code::NotFound, "unknown_job");
    assert!(daemon.folders().is_empty());
}

#[tokio::test]
async fn what_is_no_job_is_refused_with_its_place() {
    let daemon = Daemon::start();
    let draft = Draft::of(&daemon).await;
    refused(draft.run("1", None).await, Code::InvalidArgument, "malformed_steps");
    let empty = JobOneof::Steps(Steps { steps: vec![Step::default()] });
    refused(draft.run("1", Some(empty)).await, Code::InvalidArgument, "malformed_steps");
    for (text, says) in [
        ("", "<ci_job>:1:1: "),
        ("script: x\nimag: y\n", "<ci_job>:2:1: "),
        ("script: [", "<ci_job>:1:"),
        ("run: [{name: a}]", "<ci_job>:1:7: "),
        ("{}", "no job"),
    ] {
        let text = refused(draft.ci_job("1", text).await, Code::InvalidArgument, "malformed_steps");
        assert!(text.contains(says), "{text}");
    }
    refused(draft.ci_job("../1", "script: x").await, Code::InvalidArgument, "invalid_id");
    let key = draft.ci_job("1", "{variables: {\"A=B\": c}, script: x}").await;
    refused(key, Code::InvalidArgument, "malformed_steps");
    assert!(daemon.folders().is_empty());
}
