//! Variables of a job: where they come from, and what the job sees of the caller.

use super::{Scene, has_git};

#[test]
fn options_win_over_the_file_in_their_order() {
    let file = "spec: {inputs: {word: {default: none}}}\n---\n\
        variables: {A: top, B: '$A and $[[ inputs.word ]]'}\n\
        show: {script: ['echo \"$A|$B|$C|$D\"', 'cat \"$F\"', 'echo \"$SECRET\"']}\n";
    let Some(scene) =
        Scene::new(&[(".gitlab-ci.yml", file), ("vars", "A=file\nC=file\n"), ("content", "a $A\n")])
    else {
        return;
    };
    let words = [
        "run",
        "--job",
        "show",
        "--input",
        "word=w",
        "--var-file",
        "vars",
        "--var",
        "C=given",
        "--var",
        "D=$A",
        "--masked-var",
        "SECRET",
        "--file-var",
        "F=content",
    ];
    let ran = super::Ran::of(&scene.command(&words).env("SECRET", "hunter2-hunter2").output().unwrap());
    let ran = ran.ends_with(0);
    assert_eq!(ran.lines(), ["file|file and w|given|file", "a $A", "[MASKED]"]);
    scene.write("vars", "# comment\n");
    let ran = scene.job("show", &["--var-file", "vars"]).ends_with(2);
    ran.says("--var-file vars: line 1 is not KEY=value");
    let ran = scene.job("show", &["--var-file", "none"]).ends_with(2);
    ran.says("--var-file none: the file cannot be read");
}

#[test]
fn git_tells_the_commit_and_the_remote() {
    let file = "show:\n  script:\n    - 'echo \"$CI_COMMIT_BRANCH $CI_COMMIT_TITLE $CI_COMMIT_AUTHOR\"'\n    \
        - 'echo \"$CI_PROJECT_PATH $CI_SERVER_URL $CI_DEFAULT_BRANCH $CI_CONFIG_PATH\"'\n    \
        - 'echo \"${#CI_COMMIT_SHA} ${CI_JOB_TOKEN-unset} ${CI_COMMIT_TAG-unset}\"'\n    \
        - test \"$CI_PROJECT_DIR\" = \"$PWD\"\n";
    if !has_git() {
        return;
    }
    let scene = Scene::plain(&[("ci/jobs.yml", file)]);
    scene.commit("topic/x", "A $title\n\nand more");
    scene.git(&["remote", "add", "origin", "git@git.example.com:group/project.git"]);
    let ran = scene.job("show", &["ci/jobs.yml"]).ends_with(0).says_not("warning");
    assert_eq!(
        ran.lines(),
        [
            "topic/x A $title Ada <ada@example.com>",
            "group/project https://git.example.com main ci/jobs.yml",
            "40 unset unset",
        ]
    );
    scene.git(&["tag", "v1"]);
    scene.git(&["checkout", "-q", "v1"]);
    scene.write("tag.yml", "show: {script: ['echo \"$CI_COMMIT_TAG ${CI_COMMIT_BRANCH-unset}\"']}\n");
    assert_eq!(scene.job("show", &["tag.yml"]).ends_with(0).lines(), ["v1 unset"]);
}

#[test]
fn without_git_one_warning_says_what_is_empty() {
    let file = "show: {script: ['echo \"[$CI_COMMIT_SHA] $CI\"']}\n";
    let scene = Scene::plain(&[(".gitlab-ci.yml", file)]);
    let ran = scene.job("show", &[]).ends_with(0).says("CI_COMMIT_SHA are empty");
    assert_eq!(ran.lines(), ["[] true"]);
    scene.job("show", &["--quiet"]).ends_with(0).says_not("warning");
}

#[test]
fn a_job_does_not_see_the_callers_variables() {
    let Some(scene) = Scene::new(&[(".gitlab-ci.yml", "show: {script: ['echo \"${MINE-unset}\"']}\n")])
    else {
        return;
    };
    let shown = |words: &[&str]| {
        let output = scene.command(&[&["run", "--job", "show"], words].concat()).env("MINE", "seen").output();
        super::Ran::of(&output.unwrap()).ends_with(0).lines().join(" ")
    };
    assert_eq!(shown(&[]), "unset");
    assert_eq!(shown(&["--env-base", "all"]), "seen");
    assert_eq!(shown(&["--env", "MINE"]), "seen");
}

#[test]
fn variables_from_a_server_must_be_given() {
    let file = "sign: {id_tokens: {TOKEN: {aud: x}}, script: ['echo \"have $TOKEN\"']}\n";
    let Some(scene) = Scene::new(&[(".gitlab-ci.yml", file)]) else { return };
    scene.job("sign", &[]).ends_with(65).says("--masked-var TOKEN");
    let mut command = scene.command(&["run", "--job", "sign", "--masked-var", "TOKEN"]);
    let ran = super::Ran::of(&command.env("TOKEN", "tok-en-tok-en").output().unwrap()).ends_with(0);
    assert_eq!(ran.lines(), ["have [MASKED]"]);
}

#[test]
fn steps_of_a_job_run_as_functions() {
    let file = "steps:\n  variables: {WHO: me}\n  before_script: echo first\n  run:\n    \
        - {name: a, func: ./greet, inputs: {who: '${{ vars.WHO }}'}}\n    \
        - {name: b, script: 'echo \"${{ steps.a.outputs.text }}\"'}\n";
    let function = "spec: {inputs: {who: {type: string}}, outputs: {text: {type: string}}}\n---\n\
        exec: {command: [sh, -c, 'echo \"{\\\"name\\\":\\\"text\\\",\\\"value\\\":\\\"hi $1\\\"}\" >\"$2\"', x, '${{ inputs.who }}', '${{ output_file }}']}\n";
    let Some(scene) = Scene::new(&[(".gitlab-ci.yml", file), ("greet/func.yml", function)]) else { return };
    assert_eq!(scene.job("steps", &[]).ends_with(0).lines(), ["first", "hi me"]);
    scene.write(".gitlab-ci.yml", "steps: {run: [{name: a, script: 'exit 4'}]}\n");
    scene.job("steps", &[]).ends_with(4);
}
