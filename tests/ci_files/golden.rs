//! The CI files of `crates/ci/tests/ci_files` and their golden plans: each job that is planned there runs here, with the
//! variables, in the order and with the exit code that its plan says.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::{Ran, Scene, copy, has_git};

/// Programs that the CI files call. Here they print what they were asked to do.
const PROGRAMS: &str = "awk bundle cargo go make mkdocs npm rake rustc tar tox yes";

/// Files of the projects that are programs, and that the cases do not have.
const SCRIPTS: [&str; 11] = [
    "build-image",
    "deploy",
    "last",
    "lint",
    "login",
    "nightly",
    "none",
    "package",
    "report",
    "stop",
    "test",
];

/// Jobs that end otherwise than with 0: by a command, a substitution that shells refuse, an input that steps do not have,
/// a function or a command that is not there.
const EXITS: [(&str, &str, i32); 6] = [
    ("after-script", "test", 3),
    ("hostile-texts", "steps", 1),
    ("hostile-texts", "test ${{ inputs.token }}", 1),
    ("inputs", "unit-verify", 127),
    ("steps", "build", 1),
    ("yaml-of-1-1", "test 1/2", 127),
];

/// A job of a case, as its plan has it.
pub(super) struct Planned {
    /// Variables whose values are known before the run.
    variables: Vec<(String, String)>,
    /// Steps in their order.
    steps: Vec<String>,
}

pub(super) fn folders() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/ci/tests/ci_files");
    let mut folders: Vec<PathBuf> = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    folders
}

/// Returns the jobs of a case, those that are refused without a plan.
pub(super) fn jobs(folder: &Path) -> Vec<(String, Option<Planned>)> {
    let expected = fs::read_to_string(folder.join("expected.txt")).unwrap();
    let mut jobs = Vec::new();
    for block in expected.split("\n===== ").skip(1) {
        let (name, rest) = block.split_once('\n').unwrap();
        let planned = rest.split_once("----- steps\n").map(|(before, rest)| {
            let (document, _) = rest.split_once("----- inputs\n").unwrap();
            let variables = before.lines().filter_map(|line| line.strip_prefix("variable "));
            let variables = variables.filter_map(|line| line.trim_start_matches("(masked) ").split_once('='));
            let steps = document.lines().filter_map(|line| line.strip_prefix("  - name: "));
            Planned {
                variables: variables.filter_map(literal).collect(),
                steps: steps.map(str::to_owned).collect(),
            }
        });
        jobs.push((name.to_owned(), planned));
    }
    jobs
}

/// Returns a variable as a process gets it, unless the daemon still has a reference to fill in.
fn literal((name, value): (&str, &str)) -> Option<(String, String)> {
    let marked = value.replace("$$", "\0");
    (!marked.contains('$')).then(|| (name.to_owned(), marked.replace('\0', "$")))
}

/// Returns the words that stand for the comments at the start of a case, and its masked variables.
pub(super) fn options(folder: &Path) -> (Vec<String>, Vec<(String, String)>) {
    let text = fs::read_to_string(folder.join(".gitlab-ci.yml")).unwrap();
    let (mut words, mut masked) = (vec!["--needs".to_owned(), "--ignore-image".to_owned()], Vec::new());
    for line in text.lines().map_while(|line| line.strip_prefix("# ")) {
        match line.split_once(": ") {
            Some(("var", pair)) if pair.contains('=') => words.extend(["--var".to_owned(), pair.to_owned()]),
            Some(("input", pair)) => words.extend(["--input".to_owned(), pair.to_owned()]),
            Some(("images", "refused")) => words.retain(|word| word != "--ignore-image"),
            Some(("masked", pair)) => {
                let (name, value) = pair.split_once('=').unwrap();
                words.extend(["--masked-var".to_owned(), name.to_owned()]);
                masked.push((name.to_owned(), value.to_owned()));
            }
            _ => {}
        }
    }
    (words, masked)
}

pub(super) fn scene(folder: &Path) -> Scene {
    let scene = Scene::plain(&[]);
    let project = scene.path("project");
    copy(folder, &project);
    fs::remove_file(project.join("expected.txt")).unwrap();
    for name in SCRIPTS {
        let path = project.join(name);
        if !path.exists() {
            fs::write(&path, "#!/bin/sh\n").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }
    let text = fs::read_to_string(folder.join(".gitlab-ci.yml")).unwrap();
    let comment = |key: &str| text.lines().find_map(|line| line.strip_prefix(&format!("# {key}: ")));
    scene.commit(comment("branch").unwrap_or("main"), "Pay $5\n\nmore");
    scene.git(&["remote", "add", "origin", "https://gitlab.example.com/group/project.git"]);
    if let Some(tag) = comment("tag") {
        scene.git(&["tag", tag]);
        scene.git(&["checkout", "-q", tag]);
    }
    let record = scene.path("home/record");
    let shell = format!(
        "[ -n \"$CI_JOB_NAME\" ] && command -p env -0 > '{}'\nfor tool in {PROGRAMS}; do eval \"$tool() {{ echo $tool \\\"\\$@\\\"; }}\"; done\n",
        record.display()
    );
    fs::write(scene.path("home/start.sh"), shell).unwrap();
    scene
}

/// Runs a job. Returns what it printed, and the variables of the last shell.
pub(super) fn run(scene: &Scene, folder: &Path, name: &str) -> (Ran, BTreeMap<String, String>) {
    let (words, masked) = options(folder);
    let start = format!("BASH_ENV={}", scene.path("home/start.sh").display());
    let mut all = vec!["run", "--job", name, "--env", &start];
    all.extend(words.iter().map(String::as_str));
    fs::remove_file(scene.path("home/record")).ok();
    let mut command = scene.command(&all);
    command.envs(masked);
    let ran = Ran::of(&command.output().unwrap());
    let recorded = fs::read(scene.path("home/record")).unwrap_or_default();
    let recorded = String::from_utf8_lossy(&recorded).into_owned();
    let variables = recorded.split('\0').filter_map(|pair| pair.split_once('='));
    (ran, variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

#[test]
fn jobs_run_with_the_variables_the_order_and_the_exit_code_of_their_plans() {
    if !has_git() {
        return;
    }
    let (mut count, mut wrong) = (0, Vec::new());
    for folder in folders() {
        let case = folder.file_name().unwrap().to_str().unwrap();
        let scene = scene(&folder);
        let jobs = jobs(&folder);
        if jobs.is_empty() {
            scene.step_runner(&["run", "--list-jobs"]).ends_with(65).says(".gitlab-ci.yml:");
        }
        for (name, planned) in jobs {
            count += 1;
            let (ran, variables) = run(&scene, &folder, &name);
            let differs = |what: &str| format!("{case}: {name}: {what}\n{}{}", ran.stdout, ran.stderr);
            let Some(planned) = planned else {
                wrong.extend((ran.code != Some(65)).then(|| differs("is not refused")));
                continue;
            };
            let code = EXITS.iter().find(|exit| (exit.0, exit.1) == (case, &name)).map_or(0, |exit| exit.2);
            wrong.extend((ran.code != Some(code)).then(|| differs(&format!("{:?}", ran.code))));
            // A job can fail before any shell runs.
            let known = planned.variables.iter().filter(|_| code == 0 || !variables.is_empty());
            for (variable, value) in known {
                let value = &value.replace("/work/project", scene.path("project").to_str().unwrap());
                let is = variables.get(variable);
                wrong.extend(
                    (is != Some(value)).then(|| differs(&format!("{variable} is {is:?}, not {value}"))),
                );
            }
            let last = ran.stderr.rsplit("step-runner: job ").next().unwrap();
            let begun = last.lines().filter_map(|line| line.strip_prefix("Running step name="));
            let is_stage = |step: &&str| planned.steps.iter().any(|known| known == step);
            let begun: Vec<&str> = begun.filter(is_stage).collect();
            // Steps of a list have lines of their own.
            let steps = planned.steps.iter().map(String::as_str).filter(|step| *step != "step_run");
            wrong.extend((!steps.eq(begun)).then(|| differs("other steps")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 40, "{count} jobs");
}
