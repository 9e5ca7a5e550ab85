//! Limits at their edges and rules without a vector of their own.

use proptest::prelude::*;
use step_runner_model::Reason;

use super::super::EnvBase;
use super::*;

fn plain(key: &str, value: &str) -> Variable {
    Variable { key: key.to_owned(), value: value.to_owned(), file: false, masked: false }
}

fn file(key: &str, value: &str) -> Variable {
    Variable { file: true, ..plain(key, value) }
}

fn masked(key: &str, value: &str) -> Variable {
    Variable { masked: true, ..plain(key, value) }
}

fn with_job(variables: Vec<Variable>) -> RunEnvironment {
    let job = JobPart { variables, build_dir: "/b".to_owned(), ..JobPart::default() };
    RunEnvironment { job: Some(job), ..RunEnvironment::default() }
}

fn with_env(env: Vec<(String, String)>) -> RunEnvironment {
    RunEnvironment { env, ..RunEnvironment::default() }
}

fn v1(request: &RunEnvironment) -> Result<Prepared, VariableError> {
    prepare(request, Service::V1, &Base::default(), "/jobs/1/vars")
}

fn base(list: &[(&str, &str)]) -> Base {
    Base::new(list.iter().map(|(name, value)| (name.into(), value.into())), EnvBase::All, &[]).0
}

#[test]
fn number_of_entries_is_limited() {
    let env = |count: usize| with_env((0..count).map(|i| (format!("A{i}"), String::new())).collect());
    assert!(v1(&env(MAX_ENTRIES - 1)).is_ok());
    assert!(v1(&env(MAX_ENTRIES)).is_ok());
    assert_eq!(v1(&env(MAX_ENTRIES + 1)).unwrap_err(), VariableError::TooMany(MAX_ENTRIES + 1));
}

#[test]
fn total_size_is_limited() {
    let job = |total: usize| with_job(vec![file("F", &"x".repeat(total - 1))]);
    assert!(v1(&job(MAX_TOTAL - 1)).is_ok());
    assert!(v1(&job(MAX_TOTAL)).is_ok());
    assert_eq!(v1(&job(MAX_TOTAL + 1)).unwrap_err(), VariableError::TooMuch(MAX_TOTAL + 1));
}

#[test]
fn one_environment_entry_is_limited_but_not_a_files_content() {
    let value = |bytes: usize| "x".repeat(bytes - 2);
    for make in [
        |value: &str| with_job(vec![plain("A", value)]),
        |value: &str| with_env(vec![("A".to_owned(), value.to_owned())]),
    ] {
        assert!(v1(&make(&value(MAX_ENTRY - 1))).is_ok());
        assert!(v1(&make(&value(MAX_ENTRY))).is_ok());
        assert_eq!(v1(&make(&value(MAX_ENTRY + 1))).unwrap_err().reason(), Reason::TooLarge);
    }
    assert!(v1(&with_job(vec![file("A", &value(MAX_ENTRY + 1))])).is_ok());
    let not_environment = with_job(vec![plain("A", &value(MAX_ENTRY + 1))]);
    assert!(prepare(&not_environment, Service::Proto, &Base::default(), "/v").is_ok());
}

#[test]
fn expansion_is_limited_in_all() {
    let megabyte = "x".repeat(1 << 20);
    let base = base(&[("BIG", megabyte.as_str())]);
    let run = |rest: usize| {
        let content = format!("{}{}", "${BIG}".repeat(15), "y".repeat(rest));
        prepare(&with_job(vec![file("F", &content)]), Service::V1, &base, "/v").map(|_| ())
    };
    assert_eq!(run((1 << 20) - 1), Ok(()));
    assert_eq!(run(1 << 20), Ok(()));
    assert_eq!(run((1 << 20) + 1), Err(VariableError::ExpansionTooLarge { index: 0 }));
}

#[test]
fn file_key_is_a_file_name() {
    for length in [MAX_FILE_KEY - 1, MAX_FILE_KEY] {
        assert!(v1(&with_job(vec![file(&"k".repeat(length), "")])).is_ok());
    }
    let long = v1(&with_job(vec![file(&"k".repeat(MAX_FILE_KEY + 1), "")])).unwrap_err();
    assert_eq!(long, VariableError::FileKey { index: 0, problem: "too long" });
}

#[test]
fn fault_38_bad_entries_are_named_by_index_and_never_quoted() {
    let error = v1(&with_job(vec![plain("A", "1"), plain("B", "s3cret\0")])).unwrap_err();
    assert_eq!(error.to_string(), "value of variable 1 holds a NUL byte: only a file variable may");
    let error = v1(&with_env(vec![("s3cret=x".to_owned(), String::new())])).unwrap_err();
    assert_eq!(error.to_string(), "key of env entry 0 is a text with `=`");
    let nul = RunEnvironment { work_dir: "/a\0".to_owned(), ..RunEnvironment::default() };
    assert_eq!(v1(&nul).unwrap_err().reason(), Reason::InvalidPath);
}

#[test]
fn root_directory_keeps_its_files_below_it() {
    for (build_dir, path) in [("/", "/.tmp/F"), ("/b//", "/b.tmp/F")] {
        let mut request = with_job(vec![file("F", "x")]);
        request.job.as_mut().unwrap().build_dir = build_dir.to_owned();
        assert_eq!(v1(&request).unwrap().vars["F"], path);
    }
}

#[test]
fn private_file_variables_are_not_beside_the_working_directory() {
    let mut request = with_job(vec![file("F", "x")]);
    request.job.as_mut().unwrap().private_file_variables = true;
    let prepared = v1(&request).unwrap();
    assert_eq!((prepared.work_dir.as_deref(), prepared.vars["F"].as_str()), (Some("/b"), "/jobs/1/vars/F"));
}

#[test]
fn log_level_comes_from_variable_then_base_then_default() {
    let level = |job: &[Variable], base: &Base| {
        prepare(&with_job(job.to_vec()), Service::V1, base, "/v").map(|prepared| prepared.log_level)
    };
    let daemon = base(&[(LogLevel::VARIABLE, "error")]);
    assert_eq!(level(&[plain(LogLevel::VARIABLE, " DEBUG\n")], &daemon), Ok(LogLevel::Debug));
    assert_eq!(level(&[], &daemon), Ok(LogLevel::Error));
    assert_eq!(level(&[], &Base::default()), Ok(LogLevel::Info));
    let bad = level(&[plain("A", ""), plain(LogLevel::VARIABLE, "loud")], &daemon).unwrap_err();
    assert_eq!((bad.reason(), bad), (Reason::InvalidVariable, VariableError::LogLevel { index: Some(1) }));
}

#[test]
fn texts_inside_of_json_phrases_become_phrases_behind_all_others() {
    let mut request =
        with_job(vec![masked("KEY", r#"{"a":"correct-horse","b":["correct-horse","battery-1"]}"#)]);
    request.masking.phrases = vec!["battery-1".to_owned(), "[1]".to_owned()];
    let mut prepared = v1(&request).unwrap();
    let before = prepared.phrases.clone();
    prepared.add_json_members();
    let (same, added) = prepared.phrases.split_at(before.len());
    assert_eq!((same, added), (&before[..], &[b"correct-horse".to_vec()][..]));
}

#[test]
fn masked_values_are_phrases_as_sent_and_expanded() {
    let mut request =
        with_job(vec![plain("A", "1"), masked("B", "x$A"), masked("B", "$B-2"), plain("B", "open")]);
    request.masking.phrases = vec!["more".to_owned(), "x1".to_owned()];
    let prepared = v1(&request).unwrap();
    let expected = ["x$A", "x1", "$B-2", "x$A-2", "more"];
    assert_eq!(prepared.phrases, expected.map(|phrase| phrase.as_bytes().to_vec()));
    assert!(prepared.sensitive.is_empty(), "the definition in force is not masked");
}

#[test]
fn only_masked_plain_values_are_sensitive() {
    let secret_file = Variable { masked: true, ..file("F", "s") };
    assert_eq!(v1(&with_job(vec![masked("A", "s"), secret_file, plain("B", "")])).unwrap().sensitive, ["A"]);
}

#[test]
fn prefixes_of_job_and_masking_are_joined_without_duplicates() {
    let mut request = with_job(vec![]);
    request.job.as_mut().unwrap().token_prefixes = vec!["a-".to_owned(), "b-".to_owned()];
    request.masking.token_prefixes = vec!["b-".to_owned(), "c-".to_owned()];
    assert_eq!(v1(&request).unwrap().token_prefixes, ["a-", "b-", "c-"]);
}

#[test]
fn fault_38_debug_output_shows_no_value() {
    let prepared = v1(&with_job(vec![masked("A", "s3cret"), file("F", "s3cret")])).unwrap();
    assert!(!format!("{prepared:?}").contains("s3cret"));
}

proptest! {
    #[test]
    fn escaped_values_arrive_as_they_were(values in prop::collection::vec("[$A{}a-c0-9 ]{0,20}", 1..8)) {
        let variables = values.iter().enumerate();
        let job = variables.map(|(i, value)| plain(&format!("A{i}"), &super::super::escape(value))).collect();
        let prepared = v1(&with_job(job)).unwrap();
        prop_assert_eq!(prepared.env.values().collect::<Vec<_>>(), values.iter().collect::<Vec<_>>());
    }

    #[test]
    fn compatible_service_changes_no_value(value in "[$A{}a-c0-9 ]{0,20}") {
        let prepared = prepare(&with_job(vec![plain("A", &value)]), Service::Proto, &Base::default(), "/v").unwrap();
        prop_assert_eq!(&prepared.vars["A"], &value);
        prop_assert!(prepared.env.is_empty());
    }

    #[test]
    fn no_request_panics(keys in prop::collection::vec(any::<String>(), 0..4), value in any::<String>(), is_file: bool) {
        let variables = keys.iter().map(|key| Variable { file: is_file, ..masked(key, &value) }).collect();
        drop(v1(&with_job(variables)));
    }
}
