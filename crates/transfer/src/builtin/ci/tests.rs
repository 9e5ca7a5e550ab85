//! Artifacts and caches in folders, without a job around them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{FileType, Mode};
use serde_json::{Value as Json, json};

use super::store::{ArtifactStore, caches_of, file_name};
use super::*;

fn environment(project: &Path) -> BuiltinEnvironment<'_> {
    BuiltinEnvironment {
        work_dir: project.to_owned(),
        scratch: project.to_owned(),
        variable: &|_| None,
        say: &|_| {},
    }
}

fn write(project: &Path, files: &[&str]) {
    for path in files {
        let path = project.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, path.file_name().unwrap().as_encoded_bytes()).unwrap();
    }
}

fn values(value: Json) -> BuiltinValues {
    let Json::Object(values) = value else { panic!("no inputs: {value}") };
    values
}

fn selected(project: &Path, paths: &[&str], exclude: &[&str]) -> Vec<String> {
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    let wanted = selection::Wanted { paths: texts(paths), exclude: texts(exclude), untracked: false };
    selection::select(project, &wanted).unwrap().paths.into_iter().collect()
}

#[test]
fn globs_name_files_and_folders_below_the_project() {
    let project = tempfile::tempdir().unwrap();
    let project = project.path();
    write(project, &["a/x.o", "a/b/y.o", "a/b/z", "c", ".git/HEAD", ".step-runner/artifacts/j/f"]);
    let absolute = project.join("a/b").to_str().unwrap().to_owned();
    for (paths, exclude, expected) in [
        (&["a"][..], &[][..], &["a/b/y.o", "a/b/z", "a/x.o"][..]),
        (&["a/"], &["**/*.o"], &["a/b/z"]),
        (&["a/"], &["a/*.o"], &["a/b/y.o", "a/b/z"]),
        (&["**/*.o"], &[], &["a/b/y.o", "a/x.o"]),
        (&["a/**"], &["a/b/**"], &["a/x.o"]),
        (&["."], &[], &["a/b/y.o", "a/b/z", "a/x.o", "c"]),
        (&["*"], &[], &["a/b/y.o", "a/b/z", "a/x.o", "c"]),
        (&[absolute.as_str()], &[], &["a/b/y.o", "a/b/z"]),
        (&["missing", "c/x", "no/*"], &[], &[]),
    ] {
        assert_eq!(selected(project, paths, exclude), expected, "{paths:?} {exclude:?}");
    }
    for outside in ["../x", "/etc/passwd", "a/../../x"] {
        let wanted = selection::Wanted { paths: vec![outside.to_owned()], ..selection::Wanted::default() };
        let error = selection::select(project, &wanted).unwrap_err().to_string();
        assert!(error.contains("leads out of the project"), "{error}");
    }
}

#[test]
fn artifacts_of_one_job_reach_another() {
    let project = tempfile::tempdir().unwrap();
    let project = project.path();
    write(project, &["out/a", "out/deep/b"]);
    symlink("a", project.join("out/link")).unwrap();
    fs::create_dir(project.join("out/empty")).unwrap();
    fs::write(project.join("v.env"), "A=1\nB=2").unwrap();
    let store = ArtifactStore::of_project(project);
    let upload_with = |status: &str| {
        let artifacts = json!([
            {"paths": ["out"], "when": "on_success", "type": "archive"},
            {"paths": ["v.env"], "when": "always", "type": "dotenv"},
        ]);
        let inputs =
            json!({"store": store.root(), "job": "a: [b]", "status": status, "artifacts": artifacts});
        upload(&values(inputs), &environment(project)).unwrap();
    };
    upload_with("failure");
    assert!(!store.files("a: [b]").exists() && store.dotenv("a: [b]").exists());
    upload_with("success");
    assert_eq!(fs::read_to_string(store.dotenv("a: [b]")).unwrap(), "A=1\nB=2\n");
    assert_eq!(fs::read_to_string(store.root().join(".gitignore")).unwrap(), "*\n");
    fs::remove_dir_all(project.join("out")).unwrap();
    let inputs = json!({"store": store.root(), "dependencies": [
        {"name": "a: [b]", "required": true}, {"name": "gone", "required": false},
    ]});
    download(&values(inputs), &environment(project)).unwrap();
    assert_eq!(fs::read_to_string(project.join("out/deep/b")).unwrap(), "b");
    assert_eq!(fs::read_link(project.join("out/link")).unwrap(), Path::new("a"));
    assert!(project.join("out/empty").is_dir());
    store.clear("a: [b]").unwrap();
    store.clear("a: [b]").unwrap();
    assert!(!store.files("a: [b]").exists() && !store.dotenv("a: [b]").exists());
}

#[test]
fn nothing_is_written_through_a_link() {
    let (project, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (project, outside) = (project.path(), outside.path());
    write(outside, &["f"]);
    let store = ArtifactStore::of_project(project);
    write(&store.files("j"), &["out/f", "g"]);
    let inputs = values(json!({"store": store.root(), "dependencies": [{"name": "j", "required": true}]}));
    symlink(outside.join("f"), project.join("g")).unwrap();
    download(&inputs, &environment(project)).unwrap();
    assert!(project.join("g").symlink_metadata().unwrap().is_file());
    fs::remove_dir_all(project.join("out")).unwrap();
    symlink(outside, project.join("out")).unwrap();
    let error = download(&inputs, &environment(project)).unwrap_err();
    assert!(step_runner_model::error::Chain(&error).to_string().contains("is a link or a file"), "{error}");
    assert_eq!(fs::read_to_string(outside.join("f")).unwrap(), "f");
}

#[test]
fn reports_that_are_no_variables_fail_the_stage() {
    let project = tempfile::tempdir().unwrap();
    let project = project.path();
    for text in ["# comment\n", &"A=1\n".repeat(2_000)] {
        fs::write(project.join("v.env"), text).unwrap();
        let artifacts = json!([{"paths": ["v.env"], "when": "always", "type": "dotenv"}]);
        let store = project.join("s");
        let inputs = json!({"store": store, "job": "j", "status": "success", "artifacts": artifacts});
        assert!(upload(&values(inputs), &environment(project)).is_err(), "{text}");
    }
    for endless in ["/dev/zero", "fifo"] {
        fs::remove_file(project.join("v.env")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, project.join("fifo"), FileType::Fifo, Mode::RUSR, 0).ok();
        symlink(endless, project.join("v.env")).unwrap();
        let artifacts = json!([{"paths": ["v.env"], "type": "dotenv"}]);
        let store = project.join("s");
        let inputs = json!({"store": store, "job": "j", "status": "success", "artifacts": artifacts});
        let error = upload(&values(inputs), &environment(project)).unwrap_err();
        assert!(step_runner_model::error::Chain(&error).to_string().contains("it is no file"), "{error}");
    }
}

#[test]
fn a_cache_is_restored_by_the_first_key_that_is_there() {
    let project = tempfile::tempdir().unwrap();
    let project = project.path();
    let store = project.join("store");
    let run = |stage: fn(&BuiltinValues, &BuiltinEnvironment<'_>) -> Result<BuiltinValues, BuiltinError>,
               cache: &Json,
               status: &str| {
        let inputs = json!({"store": store, "status": status, "fallback_key": "last", "caches": [cache]});
        stage(&values(inputs), &environment(project)).unwrap();
    };
    let has = |name: &str| project.join("vendor").join(name).exists();
    write(project, &["vendor/one", "lock"]);
    let by_file =
        json!({"key": {"files": ["lock"], "prefix": "p"}, "paths": ["vendor"], "when": "on_success"});
    run(save, &by_file, "failure");
    assert!(!store.exists());
    run(save, &by_file, "success");
    fs::remove_dir_all(project.join("vendor")).unwrap();
    run(restore, &by_file, "");
    assert!(has("one"));

    fs::write(project.join("lock"), "other").unwrap();
    fs::remove_dir_all(project.join("vendor")).unwrap();
    run(restore, &by_file, "");
    assert!(!has("one"));

    write(project, &["vendor/two"]);
    run(save, &json!({"key": "last", "paths": ["vendor/"], "when": "always"}), "cancelled");
    fs::remove_dir_all(project.join("vendor")).unwrap();
    run(restore, &json!({"key": "none", "policy": "push", "paths": ["vendor"]}), "");
    assert!(!has("two"));
    run(restore, &json!({"key": "none", "fallback_keys": ["no"], "paths": ["vendor"]}), "");
    assert!(has("two"));
    let left: Vec<_> = fs::read_dir(&store).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with('.')), "{left:?}");
}

#[test]
fn names_of_jobs_are_names_of_files() {
    for (name, encoded) in
        [("build", "build"), ("a: [b]", "a%3A%20%5Bb%5D"), ("..", "%2E."), ("a/b.c", "a%2Fb.c")]
    {
        assert_eq!(file_name(name), encoded);
    }
    let caches = |home: &str| {
        let home = home.to_owned();
        caches_of(Path::new("/a/b"), move |name| (name == "HOME").then(|| home.clone().into()))
    };
    assert!(caches("/home/me").unwrap().starts_with("/home/me/.cache/step-runner/ci"));
    assert_eq!(caches("relative"), None);
}
