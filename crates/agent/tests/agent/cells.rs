//! Requests of the agent behind a router of several cells. The router reads tokens by itself, as another program would.

use crate::double::router::Rules;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use proptest::prelude::*;
use step_runner_agent::routing::{Base, Call};
use step_runner_agent::tokens::Token;
use step_runner_agent::tokens::routable::Routable;

const CELL_1: &str = "glrt-AAECAwQFBgcICQoLDA0OD2M6MQpnOjgKbzpyehA.01.130rjclzj";
const CELL_2: &str = "glrt-AAECAwQFBgcICQoLDA0OD2M6MgpnOjgKbzpyehA.01.1308364l0";
const CELL_36: &str = "glrt-AAECAwQFBgcICQoLDA0OD2M6MTAKZzo4Cm86cnoQ.01.141as6e5e";

fn router() -> Rules {
    let paths = vec![("/cell-2/".to_owned(), 2)];
    Rules { cells: [1, 2, 36].into(), paths, default: 1, refuses_unknown: false }
}

/// Routes a request by path and headers.
fn route(path: &str, headers: &[(&str, &str)]) -> u64 {
    router().choose(path, headers).unwrap().cell
}

fn job_token(cell: &str) -> String {
    format!("glcbt-e30.{}.sig", URL_SAFE_NO_PAD.encode(format!("{{\"c\":\"{cell}\"}}")))
}

/// Routes a call as the agent makes it.
fn cell_of(base: &str, call: &Call, token: &str) -> u64 {
    let (base, token) = (Base::new(base).unwrap(), Token::new(token).unwrap());
    let url = base.url(call);
    let path = url.strip_prefix("https://gitlab.test").unwrap();
    route(path, &call.headers(&token, None))
}

#[test]
fn c01_every_call_reaches_the_cell_of_its_token() {
    let of_runner =
        [Call::Verify, Call::ResetToken, Call::DeleteManager, Call::DeleteRunner, Call::RequestJob];
    for (token, cell) in [(CELL_1, 1), (CELL_2, 2), (CELL_36, 36)] {
        for call in &of_runner {
            assert_eq!(cell_of("https://gitlab.test", call, token), cell, "{call:?}");
        }
    }
    let of_job = [
        Call::UpdateJob(5),
        Call::AppendTrace { job: 5, debug: false },
        Call::UploadArtifacts(5),
        Call::DownloadArtifacts { job: 4, direct: true },
    ];
    for (cell, number) in [("1", 1), ("2", 2), ("10", 36)] {
        for call in &of_job {
            assert_eq!(cell_of("https://gitlab.test", call, &job_token(cell)), number, "{call:?}");
        }
    }
}

#[test]
fn c04_calls_without_a_routable_token_go_to_the_default_or_by_the_path() {
    for call in [Call::CreateRunner, Call::Register] {
        assert_eq!(cell_of("https://gitlab.test", &call, CELL_2), 1, "{call:?}");
        assert_eq!(cell_of("https://gitlab.test/cell-2", &call, "registration"), 2, "{call:?}");
    }
}

#[test]
fn c05_an_old_job_token_goes_to_the_default_cell() {
    assert_eq!(cell_of("https://gitlab.test", &Call::UpdateJob(5), "glcbt-64_fakejobtoken1001abcdef"), 1);
}

#[test]
fn c07_git_goes_to_the_cell_of_the_jobs_token() {
    let basic = |text: String| format!("Basic {}", STANDARD.encode(text));
    for (header, cell) in [
        (basic(format!("gitlab-ci-token:{}", job_token("2"))), 2),
        (basic(format!("someone:{}", job_token("2"))), 1),
        (basic("gitlab-ci-token:old".to_owned()), 1),
        ("Bearer x".to_owned(), 1),
        ("Basic %%%".to_owned(), 1),
    ] {
        assert_eq!(route("/group/project.git/info/refs", &[("Authorization", &header)]), cell);
    }
}

#[test]
fn c12_an_instance_runners_token_goes_to_the_default_cell() {
    assert_eq!(cell_of("https://gitlab.test", &Call::RequestJob, "glrt-t1_A1FakeRunner0001"), 1);
}

#[test]
fn c13_the_first_of_two_headers_counts_and_an_unknown_cell_is_the_default() {
    let headers = [("runner-token", CELL_2), ("RUNNER-TOKEN", CELL_36)];
    assert_eq!(route("/", &headers), 2);
    let unknown = format!("acme-{}", job_token("zz"));
    assert_eq!(route("/", &[("Job-Token", &unknown)]), 1);
}

proptest! {
    #[test]
    fn c13_no_header_breaks_the_router(path: String, name in "(?i)(runner|job)-token|authorization", value: String) {
        let cell = route(&path, &[(&name, &value)]);
        prop_assert!([1, 2].contains(&cell));
    }

    #[test]
    fn c13_the_router_and_the_agent_read_the_same_in_a_token(
        payload in "[A-Za-z0-9_-]{20,60}",
        text in "c:[0-9a-zA]{1,2}(\n[a-z]:[0-9a-z]{0,3}){0,3}",
    ) {
        let whole = URL_SAFE_NO_PAD.encode([&[3; 16], text.as_bytes(), &[16]].concat());
        for payload in [payload, whole] {
            let token = format!("glrt-{payload}.01.000000000");
            let read = Routable::of_runner_token(&token).and_then(|found| found.cell);
            let wanted = read.filter(|cell| [1, 2, 36].contains(cell)).unwrap_or(1);
            prop_assert_eq!(route("/", &[("RUNNER-TOKEN", &token)]), wanted, "{}", token);
        }
    }
}
