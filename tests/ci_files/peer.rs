//! The same CI files beside gitlab-ci-local, a program that others have written: which job gives which result in either.

use std::path::Path;
use std::process::Command;

use super::golden::{folders, jobs, options, run, scene};
use super::{Ran, Scene, has_git};

/// The page with the table of the jobs that end otherwise there. Its last column, why, is written by hand.
const PAGE: &str = include_str!("../../docs/use/ci-files.md");

/// Names the program. `scripts/ci-peer` sets it.
const VARIABLE: &str = "STEP_RUNNER_CI_PEER";

/// The rows of the table without the reasons.
fn listed() -> (usize, Vec<String>) {
    let section = PAGE.split("\n## ").find(|section| section.starts_with("Beside gitlab-ci-local")).unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let rows = rows.map(|row| row.split(" | ").take(4).collect::<Vec<_>>().join(" | "));
    let alike = section.split_whitespace().find_map(|word| word.parse().ok()).unwrap();
    (alike, rows.collect())
}

/// Runs a job there, in a copy of the project of its own.
fn run_there(scene: &Scene, folder: &Path, name: &str) -> Ran {
    let (words, masked) = options(folder);
    // It asks the remote branch what has changed.
    scene.git(&["update-ref", "refs/remotes/origin/main", "HEAD"]);
    scene.git(&["remote", "set-head", "origin", "main"]);
    let mut command = Command::new(std::env::var_os(VARIABLE).unwrap());
    command.current_dir(scene.path("project")).args(["--needs", "--no-color"]);
    if words.iter().any(|word| word == "--ignore-image") {
        command.arg("--force-shell-executor");
    }
    let given = words.windows(2).filter(|pair| ["--var", "--input"].contains(&&*pair[0]));
    for pair in given {
        command.args([pair[0].replace("--var", "--variable"), pair[1].clone()]);
    }
    for (name, value) in masked {
        command.args(["--variable", &format!("{name}={value}")]);
    }
    command.arg(name).env("HOME", scene.path("home")).env("BASH_ENV", scene.path("home/start.sh"));
    Ran::of(&command.output().unwrap())
}

fn ended(ran: &Ran) -> &'static str {
    match ran.code {
        Some(0) => "succeeds",
        Some(65) => "is refused",
        _ => "fails",
    }
}

#[test]
fn jobs_end_as_with_gitlab_ci_local_but_for_a_list() {
    if std::env::var_os(VARIABLE).is_none() || !has_git() {
        println!("skipped: no gitlab-ci-local (scripts/ci-peer brings it)");
        return;
    }
    let (mut differing, mut equal) = (Vec::new(), 0);
    for folder in folders() {
        let case = folder.file_name().unwrap().to_str().unwrap();
        for (name, _) in jobs(&folder) {
            let here = run(&scene(&folder), &folder, &name).0;
            let there = run_there(&scene(&folder), &folder, &name);
            // There a refused job is one that fails.
            let is_equal = (here.code == Some(0)) == (there.code == Some(0));
            equal += usize::from(is_equal);
            if !is_equal {
                differing.push(format!("| `{case}` | `{name}` | {} | {}", ended(&here), ended(&there)));
                println!("{case}: {name}\n{}{}", there.stdout, there.stderr);
            }
        }
    }
    println!("{equal} jobs end alike, {} differ", differing.len());
    let (alike, rows) = listed();
    assert_eq!(differing, rows, "\n{}", differing.join("\n"));
    assert_eq!(equal, alike);
}
