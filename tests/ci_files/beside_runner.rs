//! Jobs of the CI files beside a real GitLab Runner: it gets each job as a server would send it, from `payloads`, which
//! nothing of ours has made. Ends and environments are the same, but for the tables of the page.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::fake_gitlab::{FakeGitlab, RUNNER};
use super::gitlab_runner::{self, Runner};
use super::golden::{run, scene};
use super::{Scene, copy, has_git};

/// The page with the tables. Their last column, why, is written by hand.
const PAGE: &str = include_str!("../../docs/use/ci-files.md");

/// Cases that have a payload.
const CASES: [&str; 10] = [
    "after-script",
    "branch-rules",
    "go-shards",
    "hostile-texts",
    "old-globals",
    "python-matrix",
    "references",
    "rust-library",
    "variables",
    "yaml-of-1-1",
];

/// Variables that are the machine's and the shell's affair, the one that has a shell read our definitions, and one that tells
/// where the Runner's file would be for its user.
const OF_THE_MACHINE: [&str; 14] = [
    "_",
    "BASH_ENV",
    "CONFIG_FILE",
    "LANG",
    "LC_ALL",
    "LOGNAME",
    "PATH",
    "SHELL",
    "SHLVL",
    "TERM",
    "TMPDIR",
    "TZ",
    "USER",
    "XDG_RUNTIME_DIR",
];

/// Number of variables that each environment has at least.
const LEAST: usize = 20;

type Variables = BTreeMap<String, String>;

/// A job that was run: how it ended, and the environment of its last shell.
struct Ended {
    code: i32,
    variables: Variables,
}

fn path_of(case: &str, folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(case)
}

/// Returns the first characters of a commit's hash, or of a token as the Runner names folders by it.
fn short(text: &str) -> &str {
    text.get(..8).unwrap()
}

/// Returns the payload of a case, with what the project and the server have given it.
fn payload(case: &str, scene: &Scene, job: &Value) -> Value {
    let read =
        |name: &str| fs::read_to_string(path_of(&format!("{name}.json"), "tests/ci_files/payloads")).unwrap();
    let git = |words: &[&str]| scene.git_says(words);
    let branch = git(&["branch", "--show-current"]);
    let sha = git(&["rev-parse", "HEAD"]);
    let mut text = read("server");
    for (mark, value) in [
        ("@REF_SLUG@", branch.replace('/', "-").as_str()),
        ("@REF@", &branch),
        ("@SHORT_SHA@", short(&sha)),
        ("@SHA@", &sha),
        ("@TIMESTAMP@", &git(&["log", "-1", "--format=%cI"])),
        ("@JOB@", &job["id"].to_string()),
        ("@TOKEN@", job["token"].as_str().unwrap()),
    ] {
        text = text.replace(mark, value);
    }
    let mut payload: Value = serde_json::from_str(&text).unwrap();
    let own: Value = serde_json::from_str(&read(case)).unwrap();
    for (key, value) in own.as_object().unwrap() {
        match payload.get_mut(key).and_then(Value::as_array_mut) {
            Some(list) => list.extend(value.as_array().unwrap().iter().cloned()),
            None => payload[key] = value.clone(),
        }
    }
    payload["id"] = job["id"].clone();
    payload["token"] = job["token"].clone();
    // Here a shell reads this by itself.
    let start = format!(". '{}'", scene.path("home/start.sh").display());
    for step in payload["steps"].as_array_mut().unwrap() {
        step["script"].as_array_mut().unwrap().insert(0, json!(start));
    }
    payload
}

/// Runs the job of a case there.
fn run_there(gitlab: &FakeGitlab, builds: &Path, case: &str) -> Ended {
    let scene = scene(&path_of(case, "crates/ci/tests/ci_files"));
    // Of the token that names the folder the Runner takes the beginning.
    let project = builds.join(short(RUNNER)).join("0/group/project");
    fs::remove_dir_all(&project).ok();
    copy(&scene.path("project"), &project);
    let id = gitlab.add(|job| *job = payload(case, &scene, job));
    let job = gitlab.ended(id);
    let text = job.text();
    let code = text.split_once("Job failed: exit status ").map(|(_, rest)| rest.lines().next().unwrap());
    let code = code.map_or(i32::from(job.state != "success"), |code| code.parse().unwrap());
    let names = [
        (id.to_string(), "JOB"),
        (project.display().to_string(), "PROJECT"),
        (builds.parent().unwrap().join("home").display().to_string(), "HOME"),
    ];
    Ended { code, variables: recorded(&scene, &names) }
}

/// Runs the job of a case here.
fn run_here(case: &str) -> Ended {
    let folder = path_of(case, "crates/ci/tests/ci_files");
    let own: Value = serde_json::from_slice(
        &fs::read(path_of(&format!("{case}.json"), "tests/ci_files/payloads")).unwrap(),
    )
    .unwrap();
    let scene = scene(&folder);
    let (ran, _) = run(&scene, &folder, own["job_info"]["name"].as_str().unwrap());
    let names = [
        (scene.path("project").display().to_string(), "PROJECT"),
        (scene.path("home").display().to_string(), "HOME"),
    ];
    Ended { code: ran.code.unwrap(), variables: recorded(&scene, &names) }
}

/// Returns the environment of the last shell, without what is another in each run.
fn recorded(scene: &Scene, names: &[(String, &str)]) -> Variables {
    let record = fs::read(scene.path("home/record")).unwrap_or_default();
    let record = String::from_utf8_lossy(&record).into_owned();
    let sha = scene.git_says(&["rev-parse", "HEAD"]);
    let time = scene.git_says(&["log", "-1", "--format=%cI"]);
    let plain = |value: &str| {
        let value = value.replace(&sha, "SHA").replace(short(&sha), "SHORT_SHA").replace(&time, "TIMESTAMP");
        names.iter().fold(value, |value, (text, name)| value.replace(text.as_str(), name))
    };
    let pairs = record.split('\0').filter_map(|pair| pair.split_once('='));
    let pairs = pairs.filter(|(name, _)| !OF_THE_MACHINE.contains(name));
    pairs.map(|(name, value)| (name.to_owned(), plain(value))).collect()
}

/// Returns the cells of rows of a table that begin with such a heading, without the last one.
fn rows(heading: &str) -> BTreeSet<Vec<String>> {
    let section = PAGE.split("\n## ").find(|section| section.starts_with("Beside GitLab Runner")).unwrap();
    let table = section.lines().skip_while(|line| !line.starts_with(heading)).skip(2);
    let table = table.take_while(|line| line.starts_with('|'));
    let cells = |row: &str| row.trim_matches(['|', ' ']).split(" | ").map(str::to_owned).collect::<Vec<_>>();
    table
        .map(cells)
        .map(|mut cells| {
            cells.pop();
            cells
        })
        .collect()
}

/// Returns a value as a cell of a table has it.
fn cell(value: Option<&String>, other: Option<&String>) -> String {
    match (value, other) {
        (None, _) => "not set".to_owned(),
        (Some(_), None) => "set".to_owned(),
        (Some(value), Some(_)) if value.is_empty() => "empty".to_owned(),
        (Some(value), Some(_)) => format!("`{}`", value.replace('\n', "\\n")),
    }
}

/// Returns the rows for variables that differ: name, here, there.
fn differing(here: &Variables, there: &Variables) -> BTreeSet<Vec<String>> {
    let names: BTreeSet<&String> = here.keys().chain(there.keys()).collect();
    let differ = names.into_iter().filter(|name| here.get(*name) != there.get(*name));
    let row = |name: &String| {
        let (here, there) = (here.get(name), there.get(name));
        vec![format!("`{name}`"), cell(here, there), cell(there, here)]
    };
    differ.map(row).collect()
}

#[test]
fn jobs_end_and_have_the_variables_as_with_gitlab_runner_but_for_a_list() {
    let Some(program) = gitlab_runner::program().filter(|_| has_git()) else {
        println!("skipped: no GitLab Runner (scripts/ci-runner builds one)");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let gitlab = FakeGitlab::start();
    let _runner = Runner::start(&program, folder.path(), &gitlab, 1, 1);
    let (mut ends, mut variables, mut equal) = (BTreeSet::new(), BTreeSet::new(), 0);
    for case in CASES {
        let (here, there) = (run_here(case), run_there(&gitlab, &folder.path().join("builds"), case));
        if here.code != there.code {
            ends.insert(vec![format!("`{case}`"), here.code.to_string(), there.code.to_string()]);
        }
        // A job can fail there before any shell runs.
        let is_recorded = here.code == there.code || !there.variables.is_empty();
        if is_recorded {
            equal += here
                .variables
                .iter()
                .filter(|(name, value)| there.variables.get(*name) == Some(value))
                .count();
            variables.extend(differing(&here.variables, &there.variables));
            let count = here.variables.len().min(there.variables.len());
            assert!(count > LEAST, "{case}: {count} variables were recorded");
        }
    }
    println!("{} jobs, {} end alike, {equal} variables are equal", CASES.len(), CASES.len() - ends.len());
    gitlab.assert_clean();
    let text = |rows: &BTreeSet<Vec<String>>| {
        rows.iter().map(|row| format!("| {} |", row.join(" | "))).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(text(&ends), text(&rows("| file |")));
    // A row of the page can be about several variables.
    let listed = rows("| variable |");
    let each = |row: &Vec<String>| {
        row[0]
            .split(", ")
            .map(|name| vec![name.to_owned(), row[1].clone(), row[2].clone()])
            .collect::<Vec<_>>()
    };
    let listed: BTreeSet<Vec<String>> = listed.iter().flat_map(each).collect();
    assert_eq!(text(&variables), text(&listed));
}
