//! What people see: lists of jobs, mistakes, and what to do.

use super::Scene;

const FILE: &str = "stages: [build, test, deploy]
build:
  stage: build
  tags: [linux]
  script: echo built
test:
  stage: test
  parallel: 2
  before_script: [X=1]
  script: ['echo \"$X $CI_NODE_INDEX/$CI_NODE_TOTAL\"', 'export Y=2']
  after_script: ['echo \"after ${X-unset} ${Y-unset} $CI_JOB_STATUS\"']
fails:
  stage: test
  allow_failure: true
  script: [\"echo before\", \"(exit 3)\", echo never]
  after_script: ['echo \"status $CI_JOB_STATUS\"', 'false']
in a container:
  stage: test
  image: alpine:3
  script: echo contained
deploy:
  stage: deploy
  script: echo deployed
  rules: [{if: $CI_COMMIT_BRANCH == \"main\", when: manual}]
.hidden: {script: x}
";

#[test]
fn a_list_tells_what_the_rules_say_and_what_cannot_run_here() {
    let Some(scene) = Scene::new(&[(".gitlab-ci.yml", FILE)]) else { return };
    let ran = scene.step_runner(&["run", "--list-jobs"]).ends_with(0);
    for part in ["build           build   starts by itself\n", "test 2/2", "deploy          deploy  manual\n"]
    {
        assert!(ran.stdout.contains(part), "{part:?} is not in\n{}", ran.stdout);
    }
    assert!(
        ran.stdout.contains("cannot run here: the job asks for the image \"alpine:3\""),
        "{}",
        ran.stdout
    );
    let ran = scene.step_runner(&["run", "--list-jobs", "--output", "json", "--ignore-image"]).ends_with(0);
    let jobs: Vec<serde_json::Value> =
        ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<_> = jobs.iter().map(|job| job["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["build", "test 1/2", "test 2/2", "fails", "in a container", "deploy"]);
    assert!(jobs.iter().all(|job| job["cannot_run"].as_array().unwrap().is_empty()), "{jobs:?}");
    let ran = scene.step_runner(&["run", "--list-jobs", "--quiet"]).ends_with(0);
    assert_eq!(ran.stdout.lines().collect::<Vec<_>>(), names);
    assert_eq!((&jobs[3]["allow_failure"], &jobs[5]["when"]), (&true.into(), &"manual".into()));
}

#[test]
fn a_list_for_programs_tells_what_runs_before_each_job() {
    let file = "a: {script: x}\nb: {script: x, when: always, needs: [a]}\nc: {script: x, needs: [b]}\n";
    let Some(scene) = Scene::new(&[(".gitlab-ci.yml", file)]) else { return };
    let ran = scene.step_runner(&["run", "--list-jobs", "--output", "json"]).ends_with(0);
    let jobs: Vec<serde_json::Value> =
        ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told = |job: &serde_json::Value| format!("{} {} {}", job["pipeline"], job["when"], job["needs"]);
    let told: Vec<String> = jobs.iter().map(told).collect();
    assert_eq!(
        told,
        ["\"runs\" \"on_success\" []", "\"runs\" \"always\" [\"a\"]", "\"runs\" \"on_success\" [\"b\"]"]
    );
}

#[test]
fn a_check_takes_the_inputs_that_a_run_takes() {
    let file = "spec: {inputs: {name: }}\n---\na: {script: 'echo $[[ inputs.name ]]'}\n";
    let Some(scene) = Scene::new(&[(".gitlab-ci.yml", file)]) else { return };
    let without = scene.step_runner(&["check", ".gitlab-ci.yml"]).ends_with(1);
    assert!(without.stdout.contains("the input \"name\" needs a value"), "{}", without.stdout);
    scene.step_runner(&["check", "--input", "name=x", ".gitlab-ci.yml"]).ends_with(0);
    scene.step_runner(&["check", "--input", "name", ".gitlab-ci.yml"]).ends_with(2).says("NAME=VALUE");
}

#[test]
fn each_part_of_a_matrix_stands_by_its_own_values() {
    let rules =
        "[{if: $OS == \"mac\", when: manual}, {if: $OS == \"linux\", when: never}, {when: on_success}]";
    let file =
        format!("test: {{parallel: {{matrix: [{{OS: [linux, mac, other]}}]}}, script: x, rules: {rules}}}");
    let Some(scene) = Scene::new(&[(".gitlab-ci.yml", &file)]) else { return };
    let ran = scene.step_runner(&["run", "--list-jobs"]).ends_with(0);
    let told = |name: &str| ran.stdout.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    for (name, words) in
        [("test: [linux]", "not in it"), ("test: [mac]", "manual"), ("test: [other]", "starts by itself")]
    {
        assert!(told(name).contains(words), "{}", told(name));
    }
}

#[test]
fn a_needed_job_may_fail_with_the_codes_that_its_file_or_rule_allows_and_no_others() {
    let lint = |code: &str, more: &str| {
        format!(
            "stages: [a, b]\nlint: {{stage: a, script: exit {code}, allow_failure: {{exit_codes: [4]}}{more}}}\n\
             after: {{stage: b, needs: [lint], script: echo after}}\n"
        )
    };
    for (code, more, ends) in [
        ("4", "", 0),
        ("5", "", 5),
        ("5", ", rules: [{if: $CI, allow_failure: true}]", 0),
        ("4", ", rules: [{if: $CI, allow_failure: false}]", 4),
    ] {
        let Some(scene) = Scene::new(&[(".gitlab-ci.yml", &lint(code, more))]) else { return };
        let ran = scene.job("after", &["--needs"]).ends_with(ends);
        assert_eq!(ran.lines().contains(&"after"), ends == 0, "{code}{more}");
    }
}

#[test]
fn a_job_runs_as_documented_and_its_exit_code_is_that_of_the_command() {
    let Some(scene) = Scene::new(&[(".gitlab-ci.yml", FILE)]) else { return };
    let ran = scene.job("test 2/2", &[]).ends_with(0);
    assert_eq!(ran.lines(), ["1 2/2", "after unset unset success"]);
    let ran = scene.job("fails", &[]).ends_with(3).says("exit code  3").says_not(".gitlab-ci.yml:");
    assert_eq!(ran.lines(), ["before", "status failed"]);
    scene.job("build", &[]).ends_with(0).says("keywords without effect here: tags");
    scene.job("deploy", &[]).ends_with(0).says("in a pipeline this job is \"manual\"");
    let ran = scene.job("build", &["--dry-run"]).ends_with(0);
    scene.job("build", &["--dry-run", "--output", "json"]).ends_with(2).says("--dry-run prints a table");
    assert_eq!(ran.stdout, "step_script  builtin script_legacy\n");
}

#[test]
fn a_script_ends_at_a_failure_that_errexit_does_not_let_pass() {
    let file = "idioms:\n  script: ['[ -n \"$NOTHING\" ] && echo set', 'false | true || true', 'set +e', 'false', 'set -e', echo last, 'true | false', echo never]\n\
        checked:\n  variables: {FF_ENABLE_BASH_EXIT_CODE_CHECK: \"true\"}\n  script: ['[ -n \"$NOTHING\" ] && echo set', echo never]\n";
    let Some(scene) = Scene::new(&[(".gitlab-ci.yml", file)]) else { return };
    assert_eq!(scene.job("idioms", &[]).ends_with(1).lines(), ["last"]);
    assert!(scene.job("checked", &[]).ends_with(1).lines().is_empty());
}

#[test]
fn a_job_that_asks_for_an_image_runs_only_if_the_user_says_so() {
    let Some(scene) = Scene::new(&[(".gitlab-ci.yml", FILE)]) else { return };
    let ran = scene.job("in a container", &[]).ends_with(65).says("use --ignore-image");
    assert_eq!(ran.stdout, "");
    let ran = scene.job("in a container", &["--ignore-image"]).ends_with(0).says("warning: ");
    assert_eq!(ran.lines(), ["contained"]);
}

#[test]
fn names_that_no_job_has_are_answered_with_the_one_that_was_meant() {
    let Some(scene) = Scene::new(&[(".gitlab-ci.yml", FILE)]) else { return };
    scene.job("biuld", &[]).ends_with(65).says("there is no job \"biuld\"; did you mean \"build\"?");
    scene
        .job("test", &[])
        .ends_with(65)
        .says("parallel job of 2 parts; name one: \"test 1/2\", \"test 2/2\"");
    scene.job(".hidden", &[]).ends_with(65).says("a hidden job is a template");
    scene.step_runner(&["run", "--job", "a", "--job", "b"]).ends_with(2).says("--needs");
    scene.step_runner(&["run", "--needs", "x.yml"]).ends_with(2).says("--job");
    scene.job("build", &["--detach"]).ends_with(2).says("leave the option out");
    scene.job("build", &["--socket", "/s"]).ends_with(2).says("runs here");
    scene.step_runner(&["submit", "--job", "build", "--socket", "/s"]).ends_with(2).says("run --job");
}

#[test]
fn a_ci_file_without_a_job_is_answered_with_what_to_do() {
    let Some(scene) =
        Scene::new(&[(".gitlab-ci.yml", FILE), ("other.yml", "a job:\n  script: echo other\n")])
    else {
        return;
    };
    for words in [&["run"][..], &["run", ".gitlab-ci.yml"], &["run", "."]] {
        let ran = scene.step_runner(words).ends_with(2).says("build, test 1/2");
        ran.says("run --job build ");
    }
    scene.step_runner(&["run", "other.yml"]).ends_with(2).says("run --job 'a job' other.yml");
    let ran = scene.job("a job", &["other.yml"]).ends_with(0);
    assert_eq!(ran.lines(), ["other"]);
}

#[test]
fn all_mistakes_come_at_once_with_places_and_remedies() {
    let file = "include: ci/more.yml\na: {scrip: x}\nb: {script: x, stage: tset, needs: [gone]}\n\
        d:\n  run:\n    - {name: x, script: y}\n    - {name: y, fnuc: z}\n";
    let Some(scene) = Scene::new(&[(".gitlab-ci.yml", file), ("ci/more.yml", "c: {script: {a: b}}\n")])
    else {
        return;
    };
    for words in [&["run", "--job", "b"][..], &["run", "--list-jobs"], &["check", ".gitlab-ci.yml"]] {
        let ran = scene.step_runner(words);
        assert_ne!(ran.code, Some(0));
        let said = ran.stdout + &ran.stderr;
        for part in [
            ".gitlab-ci.yml:2:5",
            "did you mean \"script\"?",
            ".gitlab-ci.yml:3:23",
            "did you mean \"test\"?",
            ".gitlab-ci.yml:3:37",
            "ci/more.yml:1:13",
            ".gitlab-ci.yml:7:7",
            "did you mean \"func\"?",
        ] {
            assert!(said.contains(part), "{part:?} is not in\n{said}");
        }
    }
}

#[test]
fn check_knows_ci_files_by_name_and_content() {
    let Some(scene) = Scene::new(&[(".gitlab-ci.yml", FILE), ("other.yml", "a:\n  script: [{b: c}]\n")])
    else {
        return;
    };
    let ran = scene.step_runner(&["check", ".gitlab-ci.yml"]).ends_with(0);
    assert_eq!(ran.stdout + &ran.stderr, "step-runner: 1 file, no errors\n");
    let ran = scene.step_runner(&["check", "--output", "json", "other.yml"]).ends_with(1);
    assert!(ran.stdout.contains("other.yml"), "{}", ran.stdout);
}

#[test]
fn hostile_files_are_refused_and_nothing_hangs() {
    let Some(scene) = Scene::new(&[("a.yml", "x: {script: y}\n")]) else { return };
    let outside = scene.path("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("x.yml"), "secret: {script: x}\n").unwrap();
    std::os::unix::fs::symlink(outside, scene.path("project/out")).unwrap();
    let aliases = format!("a: &a [x, x]\n{}j: {{script: *z}}\n", "b: &z [*a, *a]\n".repeat(50_000));
    for (file, part) in [
        ("include: out/x.yml\nj: {script: x}\n", "leads out of the repository"),
        ("include: ../a.yml\nj: {script: x}\n", "a.yml"),
        ("j: {extends: j, script: x}\n", "extends itself"),
        ("j: {script: !reference [j, script]}\n", "leads back to itself"),
        ("\"j\\u001b[31m\": {script: {}}\n", "\\u{1b}[31m"),
        (aliases.as_str(), "error"),
    ] {
        scene.write("ci.yml", file);
        let ran = scene.job("j", &["ci.yml"]).ends_with(65).says(part);
        assert!(!ran.stderr.contains('\u{1b}'), "{}", ran.stderr);
    }
}

#[test]
fn time_limits_end_a_job() {
    let file = "variables: {RUNNER_SCRIPT_TIMEOUT: 1s}\nslow: {script: sleep 600, after_script: ['echo \"$CI_JOB_STATUS\"']}\n";
    let Some(scene) = Scene::new(&[(".gitlab-ci.yml", file)]) else { return };
    let ran = scene.job("slow", &[]).ends_with(124).says("timed out after 1s");
    assert!(ran.lines().contains(&"timedout"), "{}", ran.stdout);
    scene.write("all.yml", "slow: {script: sleep 600, timeout: 1 second, after_script: [echo never]}\n");
    let ran = scene.job("slow", &["all.yml"]).ends_with(124);
    assert!(!ran.lines().contains(&"never"), "{}", ran.stdout);
}

#[test]
fn bash_completes_names_of_jobs() {
    let Some(scene) = Scene::new(&[(".gitlab-ci.yml", FILE)]) else { return };
    scene.write("completions.sh", &scene.step_runner(&["completions", "bash"]).ends_with(0).stdout);
    let program = env!("CARGO_BIN_EXE_step-runner");
    let completed = |word: &str| {
        let typist = "source ./completions.sh; COMP_WORDS=(\"$1\" run --job \"$2\"); COMP_CWORD=3\n\
            _step__runner \"$1\" \"$2\" --job; printf '%s\\n' \"${COMPREPLY[@]}\"";
        let mut bash = std::process::Command::new("bash");
        bash.args(["-c", typist, "bash", program, word]).current_dir(scene.path("project"));
        super::Ran::of(&bash.output().unwrap()).ends_with(0).stdout
    };
    if std::process::Command::new("bash").arg("--version").output().is_err() {
        return super::parts::skipped("bash_completes_names_of_jobs", "bash");
    }
    assert_eq!(completed("b"), "build\n");
    assert_eq!(completed("te"), "test\\ 1\\/2\ntest\\ 2\\/2\n");
}
