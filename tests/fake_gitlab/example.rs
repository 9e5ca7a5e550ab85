//! A GitLab instance for trying the agent out: `cargo run --example fake-gitlab`. It gives one job with each line that is
//! typed, and prints the job's trace and result.
#![allow(clippy::print_stdout, reason = "a program for people")]
#![allow(unreachable_pub, reason = "one file of a test's module")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a program for trying out")]
#![allow(clippy::allow_attributes, reason = "as above")]

#[path = "mod.rs"]
mod fake_gitlab;

use fake_gitlab::{FakeGitlab, RUNNER};

fn main() {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8929".to_owned());
    let gitlab = FakeGitlab::start_at(&address, "");
    println!("A GitLab instance for trying out is at {}. The token of its runner is {RUNNER}:", gitlab.url());
    println!("  echo {RUNNER} >token; step-runner register --url {} --token-file token", gitlab.url());
    println!("  step-runner agent");
    println!("Type a command and Enter to give a job with it.");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let id = gitlab.add_script(&[&line]);
        println!("job {id} waits for a runner");
        let job = gitlab.wait_for_ever(id);
        println!("{}job {id}: {}", job.text(), job.finals.last().unwrap());
    }
}
