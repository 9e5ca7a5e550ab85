//! Plans of jobs, beyond those of the golden files: where artifacts and caches are, and what is left out.

use serde_json::json;
use step_runner_model::text::for_people;

use super::*;
use crate::job::of_payload;

/// A job with a cache, artifacts, and artifacts of another one.
fn job() -> Job {
    let payload = json!({
        "token": "job-token",
        "job_info": {"name": "build", "stage": "test"},
        "git_info": {"repo_url": "https://gitlab.example.com/g/p.git"},
        "variables": [{"key": "GIT_STRATEGY", "value": "clone"}],
        "steps": [{"name": "script", "script": ["make"]}],
        "cache": [{"key": "k", "paths": ["c"]}],
        "artifacts": [{"paths": ["a"]}],
        "dependencies": [{"id": 1, "name": "other", "token": "other-token", "artifacts_file": {"filename": "a.zip"}}],
    });
    of_payload(payload.to_string().as_bytes()).unwrap()
}

fn planned(job: &Job, stores: Option<&Stores>) -> Plan {
    plan(job, Images::Provided, stores).unwrap()
}

/// Returns the lines of one step.
fn step<'p>(plan: &'p Plan, name: &str) -> Option<&'p str> {
    let (_, run) = plan.steps.split_once("\nrun:\n").unwrap();
    run.split("  - name: ").find(|step| step.lines().next() == Some(name))
}

#[test]
fn without_a_store_the_server_of_the_job_is_meant() {
    let plan = planned(&job(), None);
    for name in ["restore_cache", "archive_cache", "download_artifacts", "upload_artifacts"] {
        let step = step(&plan, name).unwrap();
        assert!(!step.contains("      store: ") && !step.contains("      server: "), "{step}");
    }
    assert!(!plan.inputs.contains_key("job"));
}

#[test]
fn a_folder_is_the_store_of_artifacts_and_caches() {
    let stores =
        Stores { artifacts: Artifacts::Folder("/p/artifacts".to_owned()), caches: "/p/caches".to_owned() };
    let plan = planned(&job(), Some(&stores));
    for name in ["restore_cache", "archive_cache"] {
        assert!(
            step(&plan, name).unwrap().contains("      store: \"${{ inputs.cache_store }}\"\n"),
            "{name}"
        );
    }
    for name in ["download_artifacts", "upload_artifacts"] {
        assert!(
            step(&plan, name).unwrap().contains("      store: \"${{ inputs.artifact_store }}\"\n"),
            "{name}"
        );
    }
    assert!(step(&plan, "upload_artifacts").unwrap().contains("      job: \"${{ inputs.job }}\"\n"));
    assert!(!step(&plan, "download_artifacts").unwrap().contains("      job: "));
    assert_eq!(plan.inputs["cache_store"], "/p/caches");
    assert_eq!(plan.inputs["artifact_store"], "/p/artifacts");
    assert_eq!(plan.inputs["job"], "build");
}

#[test]
fn artifacts_go_to_a_server_under_the_number_of_the_job() {
    let artifacts = Artifacts::Server { api: "https://gitlab.example.com/api/v4".to_owned(), job: 7 };
    let plan = planned(&job(), Some(&Stores { artifacts, caches: "/caches".to_owned() }));
    for name in ["download_artifacts", "upload_artifacts"] {
        let step = step(&plan, name).unwrap();
        assert!(step.contains("      server: \"${{ inputs.artifact_server }}\"\n"), "{step}");
        assert!(!step.contains("      store: "), "{step}");
    }
    assert_eq!(plan.inputs["artifact_server"], "https://gitlab.example.com/api/v4");
    assert_eq!(plan.inputs["job"], "7");
    assert_eq!(plan.inputs["cache_store"], "/caches");
}

#[test]
fn debug_output_has_the_document_and_no_values() {
    let plan = planned(&job(), None);
    let shown = format!("{plan:?}");
    assert!(shown.contains("step_script") && !shown.contains("job-token"), "{shown}");
    let shown = format!("{:?} {:?}", job(), job().dependencies);
    assert!(shown.contains("build") && shown.contains("other\"") && !shown.contains("-token"), "{shown}");
}

#[test]
fn stages_without_work_are_left_out() {
    let mut job = job();
    job.caches[0].policy = "push".to_owned();
    let plan = planned(&job, None);
    assert!(step(&plan, "restore_cache").is_none() && step(&plan, "archive_cache").is_some());
    job.caches[0].policy = "pull".to_owned();
    let plan = planned(&job, None);
    assert!(step(&plan, "restore_cache").is_some() && step(&plan, "archive_cache").is_none());
    job.caches[0].paths.clear();
    assert!(step(&planned(&job, None), "restore_cache").is_none());
    job.caches[0].untracked = true;
    assert!(step(&planned(&job, None), "restore_cache").is_some());
    job.artifacts.clear();
    job.dependencies.clear();
    job.sources = None;
    job.token = None;
    let plan = planned(&job, None);
    for name in
        ["upload_artifacts", "download_artifacts", "prepare", "get_sources", "cleanup", "after_script"]
    {
        assert!(step(&plan, name).is_none(), "{name}");
    }
    job.after_script = vec!["echo done".to_owned()];
    assert!(step(&planned(&job, None), "after_script").is_some());
}

#[test]
fn a_stage_is_tried_again_as_often_as_its_setting_says() {
    let mut job = job();
    assert!(!planned(&job, None).steps.contains("retry"));
    for (attempts, line) in
        [(2, "    retry: {max: 1, delay: 0s}\n"), (10, "    retry: {max: 9, delay: 0s}\n")]
    {
        job.settings.get_sources_attempts = attempts;
        assert!(step(&planned(&job, None), "get_sources").unwrap().contains(line));
    }
}

#[test]
fn sources_that_stay_as_they_are_need_no_token() {
    let mut job = job();
    let has_token = |job: &Job| step(&planned(job, None), "get_sources").unwrap().contains("      token: ");
    assert!(has_token(&job));
    job.settings.strategy = Some(crate::Strategy::None);
    assert!(!has_token(&job));
    job.settings.strategy = None;
    assert!(has_token(&job));
}

#[test]
fn equal_names_of_steps_are_counted() {
    let mut job = job();
    job.work = vec![job.work[0].clone(), job.work[0].clone(), job.work[0].clone()];
    let plan = planned(&job, None);
    for (name, count) in
        [("step_script", 1), ("step_script_2", 1), ("step_script_3", 1), ("step_script_4", 0)]
    {
        assert_eq!(usize::from(step(&plan, name).is_some()), count, "{name}");
    }
}

#[test]
fn what_a_job_asks_for_is_refused_or_ignored_by_name() {
    let refused =
        |job: &Job| for_people(&plan(job, Images::Refused, None).unwrap_err().to_string()).into_owned();
    let mut asked = job();
    assert!(plan(&asked, Images::Refused, None).is_ok());
    let image = |name: &str| Image {
        name: name.to_owned(),
        alias: None,
        entrypoint: None,
        command: None,
        options: JsonMap::new(),
        variables: crate::variables::Level::new(),
        place: crate::Place { file: "<test>".into(), at: step_runner_lang::diagnostic::Position::START },
    };
    asked.image = Some(image("rust:1"));
    let told = refused(&asked);
    assert!(
        told.starts_with("the job asks for the image \"rust:1\", and nothing here provides it"),
        "{told}"
    );
    asked.services = vec![image("redis"), image("postgres")];
    let warned = plan(&asked, Images::Ignored, None).unwrap().messages;
    assert!(warned[0].is_warning);
    assert!(
        for_people(&warned[0].text)
            .contains("the image \"rust:1\" and the services \"redis\", \"postgres\": ignored"),
        "{warned:?}"
    );
    asked.image = None;
    let told = refused(&asked);
    assert!(told.starts_with("the job asks for the services \"redis\", \"postgres\", and"), "{told}");
    assert!(plan(&asked, Images::Provided, None).unwrap().messages.is_empty());
}
