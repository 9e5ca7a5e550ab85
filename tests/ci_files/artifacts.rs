//! Artifacts, variables and caches that pass from job to job, and clones.

use super::Scene;

const FILE: &str = "stages: [build, test]
build:
  stage: build
  script:
    - mkdir -p out && echo \"$RUN\" > out/file && echo changed > tracked
    - echo VERSION=7 > v.env
  artifacts: {paths: [out/, tracked], reports: {dotenv: v.env}}
side:
  stage: build
  script: exit 1
  allow_failure: true
  artifacts: {paths: [out/]}
test:
  stage: test
  needs: [build]
  variables: {TEXT: version $VERSION}
  script: ['cat out/file', 'echo \"$TEXT\"']
both:
  stage: test
  needs: [build, test, side]
  script: cat out/file
stage:
  stage: test
  script: cat out/file
broken:
  stage: test
  needs: [side]
  script: echo on
";

fn scene() -> Option<Scene> {
    Scene::new(&[(".gitlab-ci.yml", FILE), ("tracked", "original\n"), (".gitignore", "out/\nv.env\n")])
}

#[test]
fn artifacts_and_variables_come_from_the_jobs_that_ran_before() {
    let Some(scene) = scene() else { return };
    scene.job("test", &[]).ends_with(65).says("needs the artifacts of build").says("--needs");
    scene.job("stage", &[]).ends_with(1).says("warning: there are no artifacts of build");
    scene.job("build", &["--var", "RUN=one"]).ends_with(0);
    std::fs::remove_dir_all(scene.path("project/out")).unwrap();
    scene.git(&["checkout", "-q", "tracked"]);
    let ran = scene.job("test", &[]).ends_with(0);
    assert!(ran.stdout.contains("one\n") && ran.stdout.contains("version 7\n"), "{}", ran.stdout);
    assert!(ran.stdout.contains("not replaced, because git tracks them: \"tracked\""), "{}", ran.stdout);
    assert_eq!(scene.read("tracked").unwrap(), "original\n");
    assert_eq!(scene.read(".step-runner/.gitignore").unwrap(), "*\n");
    assert_eq!(scene.read(".step-runner/artifacts/build/out/file").unwrap(), "one\n");
}

#[test]
fn needed_jobs_run_first_in_order_and_each_once() {
    let Some(scene) = scene() else { return };
    let ran = scene.job("both", &["--needs", "--var", "RUN=two"]).ends_with(0);
    let jobs: Vec<&str> = ran.stderr.lines().filter(|line| line.starts_with("step-runner: job ")).collect();
    let expected = ["build (1 of 4)", "test (2 of 4)", "side (3 of 4)", "both (4 of 4)"];
    assert_eq!(jobs, expected.map(|job| format!("step-runner: job {job}")));
    assert!(ran.stdout.ends_with("two\n"), "{}", ran.stdout);
    // What became of a job comes before the next one.
    let allowed = ran.stderr.find("side has failed, which its allow_failure permits\n").unwrap();
    let summary = ran.stderr.find("exit code  1").unwrap();
    let next = ran.stderr.find("job both (4 of 4)").unwrap();
    assert!(summary < allowed && allowed < next, "{}", ran.stderr);
}

#[test]
fn a_later_stage_waits_for_all_that_start_by_themselves() {
    let part = "script: ['echo made > $CI_JOB_NAME.txt'], artifacts: {paths: ['*.txt']}";
    let Some(scene) = Scene::new(&[(
        ".gitlab-ci.yml",
        &format!(
            "stages: [a, b]\nx: {{stage: a, when: always, {part}}}\nby-hand: {{stage: a, when: manual, {part}}}\n\
             absent: {{stage: a, rules: [], {part}}}\nt: {{stage: b, script: cat x.txt}}\n"
        ),
    )]) else {
        return;
    };
    let alone = scene.job("t", &[]).ends_with(1);
    assert!(alone.stderr.contains("no artifacts of x, by-hand, so t runs without them: run them first\n"));
    let ran = scene.job("t", &["--needs"]).ends_with(0);
    let says = "no artifacts of by-hand, so t runs without them: run it first\n";
    assert!(ran.stdout.ends_with("made\n") && ran.stderr.contains(says), "{}{}", ran.stdout, ran.stderr);
}

#[test]
fn a_needed_job_that_fails_ends_the_command_with_its_exit_code() {
    let Some(scene) = scene() else { return };
    let file = FILE.replace("echo VERSION=7 > v.env", "exit 5");
    scene.write(".gitlab-ci.yml", &file);
    let ran = scene.job("test", &["--needs"]).ends_with(5).says("build has failed, so test does not start");
    assert!(!ran.stdout.contains("version"), "{}", ran.stdout);
    scene.job("broken", &["--needs"]).ends_with(0);
    scene.write("other.yml", "a: {script: touch ran}\nb: {image: x, needs: [a], script: y}\n");
    scene.job("b", &["--needs", "other.yml"]).ends_with(65).says("--ignore-image");
    assert_eq!(scene.read("ran"), None, "nothing runs for a job that cannot run");
    scene.job("side", &[]).ends_with(1);
    scene.job("broken", &[]).ends_with(65).says("side");
}

#[test]
fn the_artifacts_of_an_earlier_run_are_gone_when_a_job_starts() {
    let Some(scene) = scene() else { return };
    scene.job("build", &["--var", "RUN=one"]).ends_with(0);
    scene.write(".gitlab-ci.yml", &FILE.replace("echo VERSION=7 > v.env", "exit 5"));
    scene.job("build", &[]).ends_with(5);
    assert_eq!(scene.read(".step-runner/artifacts/build/out/file"), None);
    scene.job("test", &[]).ends_with(65);
}

#[test]
fn a_report_that_is_no_list_of_variables_fails_the_job() {
    let file = "a: {script: 'echo \"# x\" > v', artifacts: {reports: {dotenv: v}}}\n";
    let Some(scene) = Scene::new(&[(".gitlab-ci.yml", file)]) else { return };
    let ran = scene.job("a", &[]).ends_with(1);
    assert!((ran.stdout.clone() + &ran.stderr).contains("line 1 is not KEY=value"), "{}", ran.stderr);
}

#[test]
fn a_cache_is_there_in_the_next_run_of_any_job_with_its_key() {
    let file = "default: {cache: {key: {files: [lock]}, paths: [vendor/]}}\n\
        fill: {script: [mkdir vendor, echo cached > vendor/file]}\n\
        use: {script: cat vendor/file}\n";
    let Some(scene) = Scene::new(&[(".gitlab-ci.yml", file), ("lock", "1\n")]) else { return };
    scene.job("use", &[]).ends_with(1);
    scene.job("fill", &[]).ends_with(0);
    std::fs::remove_dir_all(scene.path("project/vendor")).unwrap();
    let ran = scene.job("use", &[]).ends_with(0);
    assert!(ran.stdout.contains("cached\n") && ran.stdout.contains("1 file restored"), "{}", ran.stdout);
    std::fs::remove_dir_all(scene.path("project/vendor")).unwrap();
    scene.write("lock", "2\n");
    scene.job("use", &[]).ends_with(1);
    assert!(scene.path("home/.cache/step-runner/ci").is_dir());
}

#[test]
fn a_clone_has_the_changes_and_the_new_files_and_leaves_the_project_alone() {
    let file = "a:\n  script:\n    - cat tracked new ignored || true\n    - touch made\n    - test ! -e removed\n    \
        - git log -1 --format=%s\n    - test \"$CI_PROJECT_DIR\" = \"$PWD\"\n  artifacts: {paths: [made]}\n";
    let Some(scene) = Scene::new(&[
        (".gitlab-ci.yml", file),
        ("tracked", "old\n"),
        ("removed", "x\n"),
        (".gitignore", "ignored\n"),
    ]) else {
        return;
    };
    scene.write("tracked", "changed\n");
    scene.write("new", "new\n");
    scene.write("ignored", "ignored\n");
    std::fs::remove_file(scene.path("project/removed")).unwrap();
    let temporary = scene.path("home/tmp");
    std::fs::create_dir(&temporary).unwrap();
    let mut command = scene.command(&["run", "--job", "a", "--clone"]);
    let ran = super::Ran::of(&command.env("TMPDIR", &temporary).output().unwrap()).ends_with(0);
    let lines = ran.lines();
    assert!(lines.starts_with(&["changed", "new"]) && lines.contains(&"First"), "{lines:?}");
    assert!(!lines.contains(&"ignored") && scene.read("made").is_none());
    assert_eq!(scene.read(".step-runner/artifacts/a/made").unwrap(), "");
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0);
    let plain = Scene::plain(&[(".gitlab-ci.yml", file)]);
    plain.job("a", &["--clone"]).ends_with(1).says("no git work tree");
}
