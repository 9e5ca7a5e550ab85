//! Each row of the table of results, with servers that know all reasons and with old ones.

use proptest::prelude::*;

use super::*;

/// Reasons that a new server lists.
fn all() -> BTreeSet<String> {
    let words = [
        "unknown_failure",
        "script_failure",
        "runner_system_failure",
        "job_execution_timeout",
        "image_pull_failure",
        "runner_external_dependency_failure",
        "runner_configuration_error",
        "job_canceled",
        "runner_interrupted",
    ];
    words.map(str::to_owned).into_iter().collect()
}

fn step(name: &str, code: i32) -> JobEnd {
    JobEnd::Ended { code, failed: Some(FailedStep::new(name.to_owned(), "")) }
}

fn failed(name: &str, code: i32, class: &str) -> JobEnd {
    JobEnd::Ended { code, failed: Some(FailedStep::new(name.to_owned(), class)) }
}

#[test]
fn a08_each_end_has_its_reason_and_code_with_and_without_a_list_of_reasons() {
    let old = BTreeSet::new();
    let external = "runner_external_dependency_failure";
    let configuration = "runner_configuration_error";
    let system = "runner_system_failure";
    let script = "script_failure";
    let timeout = "job_execution_timeout";
    for (end, reason, without, code) in [
        (step("step_script", 7), script, script, Some(7)),
        (step("step_script", 137), script, script, Some(137)),
        (step("step_release", 1), script, script, Some(1)),
        (step("after_script", 2), script, script, Some(2)),
        (failed("step_script", 143, "timeout"), timeout, timeout, None),
        (failed("step_script", -1, "timeout"), timeout, timeout, None),
        (failed("after_script", 143, "timeout"), timeout, timeout, None),
        (step("get_sources", 1), script, script, Some(1)),
        (step("get_sources", 75), external, system, None),
        (step("get_sources", 77), system, system, None),
        (step("get_sources", 74), system, system, None),
        (step("download_artifacts", 78), configuration, script, None),
        (step("upload_artifacts", 1), script, script, Some(1)),
        (failed("upload_artifacts", 1, "timeout"), system, system, None),
        (failed("step_run", -1, "fetch"), external, system, None),
        (failed("step_run", -1, "exec"), system, system, None),
        (failed("step_run", -1, "io"), system, system, None),
        (failed("step_run", -1, "schema"), script, script, Some(1)),
        (step("step_run", -1), script, script, Some(1)),
        (step("step_run", 4), script, script, Some(4)),
        (step("prepare", -1), system, system, None),
        (step("prepare", 1), system, system, None),
        (step("step_script", -1), system, system, None),
        (step("step_script", -3), timeout, timeout, None),
        (step("step_script", -4), system, system, None),
        (JobEnd::Ended { code: -4, failed: None }, system, system, None),
        (JobEnd::Cancelled(CancelledBy::Server), "job_canceled", "unknown_failure", None),
        (JobEnd::Cancelled(CancelledBy::Stop), "runner_interrupted", "unknown_failure", None),
        (JobEnd::Cancelled(CancelledBy::Daemon), system, system, None),
        (JobEnd::RunRefused(Refusal::Content), script, script, Some(1)),
        (JobEnd::RunRefused(Refusal::Other), system, system, None),
        (JobEnd::RunUnanswered, system, system, None),
        (JobEnd::Lost, system, system, None),
        (JobEnd::PayloadRefused, system, system, Some(3)),
        (JobEnd::Environment(EnvironmentFailure::External), external, system, None),
        (JobEnd::Environment(EnvironmentFailure::Image), configuration, system, None),
        (JobEnd::Environment(EnvironmentFailure::Pull), "image_pull_failure", system, None),
        (JobEnd::Environment(EnvironmentFailure::Configuration), configuration, script, None),
        (JobEnd::Environment(EnvironmentFailure::System), system, system, None),
    ] {
        for (known, wanted) in [(&all(), reason), (&old, without)] {
            let found = Outcome::of(&end, known);
            assert_eq!(found.state, State::Failed, "{end:?}");
            assert_eq!((found.reason.as_deref(), found.exit_code), (Some(wanted), code), "{end:?}");
        }
    }
}

#[test]
fn a08_an_image_that_is_not_there_is_a_failed_pull_for_servers_that_know_nothing_better() {
    let known = BTreeSet::from(["image_pull_failure".to_owned()]);
    let found = Outcome::of(&JobEnd::Environment(EnvironmentFailure::Image), &known);
    assert_eq!(found.reason.as_deref(), Some("image_pull_failure"));
}

#[test]
fn a_class_of_another_version_counts_as_none_in_results_and_records() {
    assert_eq!(FailedStep::new("a".to_owned(), "later").error_class, None);
    for (class, expected) in [
        ("\"timeout\"", Some(Class::Timeout)),
        ("\"not_found\"", Some(Class::NotFound)),
        ("\"later\"", None),
        ("null", None),
    ] {
        let text = format!(r#"{{"name":"a","error_class":{class}}}"#);
        let step: FailedStep = serde_json::from_str(&text).unwrap();
        assert_eq!(step.error_class, expected, "{class}");
        if expected.is_some() {
            assert_eq!(serde_json::to_string(&step).unwrap(), text);
        }
    }
}

#[test]
fn a08_a_job_without_failure_succeeds() {
    let found = Outcome::of(&JobEnd::Ended { code: 0, failed: None }, &all());
    assert_eq!(found, Outcome { state: State::Success, reason: None, exit_code: None });
}

proptest! {
    #[test]
    fn a08_only_a_failure_of_the_job_itself_has_a_code(name in "[a-z_]{0,12}|step_[a-z]{1,6}|get_sources", code: i16, class in prop::option::of(prop::sample::select(Class::ALL.to_vec()))) {
        let end = JobEnd::Ended { code: i32::from(code), failed: Some(FailedStep { name, error_class: class }) };
        let found = Outcome::of(&end, &all());
        prop_assert_eq!(found.state == State::Success, code == 0);
        if let Some(sent) = found.exit_code {
            prop_assert!(sent > 0 && found.reason.as_deref() == Some("script_failure"));
        }
        let old = Outcome::of(&end, &BTreeSet::new());
        prop_assert_eq!(old.state, found.state);
        let words = ["script_failure", "runner_system_failure", "job_execution_timeout", "unknown_failure"];
        let is_known = old.reason.is_none_or(|word| words.contains(&word.as_str()));
        prop_assert!(is_known);
    }
}
