//! CI files after the patterns of public projects, with the plans that become of their jobs (ci.md §1 to §3).
//!
//! Each folder below `tests/ci_files` is a repository. Comments at the start of its `.gitlab-ci.yml` say what the case is
//! about: `rows` of ci.md §2, and the `job`s to plan; further `var`, `input`, `branch`, `tag`, `changed` and `images`.
//! `expected.txt` has the plans, or the errors. `UPDATE_EXPECTED=1` renews it: read the difference before you commit it.
#![allow(clippy::unwrap_used, clippy::allow_attributes, reason = "a test")]

mod shown;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use step_runner_ci::file::{self, CiFile, Source};
use step_runner_ci::job::{self, Circumstances, Pipeline, of_file};
use step_runner_ci::plan::{Images, plan};
use step_runner_ci::variables::{CommitFacts, Defined, Facts, Level, RepositoryFacts};
use step_runner_ci::{Files, ReadError};
use step_runner_lang::diagnostic::Diagnostic;
use step_runner_model::text;

/// Path of the CI file of each case.
const CI_FILE: &str = ".gitlab-ci.yml";

/// A folder as a repository.
struct Folder(PathBuf);

impl Files for Folder {
    fn read(&self, path: &str) -> Result<String, ReadError> {
        fs::read_to_string(self.0.join(path)).map_err(|_| ReadError::NotFound)
    }

    fn list(&self) -> Result<Vec<String>, ReadError> {
        let mut found = Vec::new();
        let mut folders = vec![self.0.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if !path.ends_with("expected.txt") {
                    found.push(path.strip_prefix(&self.0).unwrap().to_str().unwrap().to_owned());
                }
            }
        }
        Ok(found)
    }
}

/// What the comments of a case say.
#[derive(Default)]
struct Case {
    rows: Vec<String>,
    jobs: Vec<String>,
    given: Level,
    inputs: IndexMap<String, String>,
    facts: Facts,
    images: Option<Images>,
}

fn read_case(folder: &Path) -> Case {
    let text = fs::read_to_string(folder.join(CI_FILE)).unwrap();
    let mut case = Case { facts: facts(), ..Case::default() };
    for line in text.lines().map_while(|line| line.strip_prefix("# ")) {
        let Some((key, value)) = line.split_once(": ") else { continue };
        let pair = || value.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())).unwrap();
        let commit = case.facts.commit.as_mut().unwrap();
        match key {
            "rows" => case.rows.extend(value.split(", ").map(str::to_owned)),
            "job" => case.jobs.push(value.to_owned()),
            "var" => drop(case.given.insert(pair().0, Defined::expanded(pair().1))),
            "masked" => {
                case.given.insert(pair().0, Defined { masked: true, ..Defined::raw(pair().1) });
            }
            "input" => drop(case.inputs.insert(pair().0, pair().1)),
            "branch" => value.clone_into(&mut commit.ref_name),
            "tag" => {
                value.clone_into(&mut commit.ref_name);
                commit.is_tag = true;
            }
            "changed" => case.facts.changed = Some(value.split(", ").map(str::to_owned).collect()),
            "images" => {
                case.images = Some(match value {
                    "ignored" => Images::Ignored,
                    "refused" => Images::Refused,
                    other => panic!("{other}"),
                });
            }
            other => panic!("{}: what is {other:?}?", folder.display()),
        }
    }
    case
}

/// The repository in which all cases run.
fn facts() -> Facts {
    Facts {
        commit: Some(CommitFacts {
            sha: "0123456789abcdef0123456789abcdef01234567".to_owned(),
            ref_name: "main".to_owned(),
            is_tag: false,
            message: "Pay $5\n\nmore".to_owned(),
            author: "Ada <ada@example.com>".to_owned(),
            timestamp: "2026-01-02T03:04:05+00:00".to_owned(),
        }),
        default_branch: Some("main".to_owned()),
        repository: Some(RepositoryFacts {
            server_url: "https://gitlab.example.com".to_owned(),
            path: "group/project".to_owned(),
        }),
        project_dir: "/work/project".to_owned(),
        config_path: CI_FILE.to_owned(),
        changed: None,
    }
}

fn output(folder: &Path) -> String {
    let case = read_case(folder);
    let files = Folder(folder.to_owned());
    let source =
        Source { path: CI_FILE, files: &files, inputs: &case.inputs, facts: &case.facts, given: &case.given };
    let read = match file::read(&source) {
        Ok(read) => read,
        Err(findings) => return lines(&findings),
    };
    let dotenv = Level::new();
    let circumstances =
        Circumstances { facts: Some(&case.facts), files: &files, given: &case.given, dotenv: &dotenv };
    let mut output = list(&read, &circumstances);
    for name in &case.jobs {
        writeln!(output, "\n===== {name}").unwrap();
        output.push_str(&planned(&read, name, &circumstances, case.images.unwrap_or(Images::Provided)));
    }
    output
}

fn list(read: &CiFile, circumstances: &Circumstances<'_>) -> String {
    let mut list = format!("stages: {}\n", read.stages.join(", "));
    let mut pipeline = Pipeline::new(read, circumstances);
    for job in read.jobs.values() {
        let first = job.full_names().next().unwrap();
        let standing = match pipeline.standing(first) {
            Ok((standing, _)) => format!("{standing:?}"),
            Err(findings) => lines(&findings),
        };
        writeln!(list, "job {} in {}: {standing}", job.name, job.stage).unwrap();
        for copy in &job.copies {
            writeln!(list, "  {}", copy.name).unwrap();
        }
    }
    list
}

fn planned(read: &CiFile, name: &str, circumstances: &Circumstances<'_>, images: Images) -> String {
    let job: job::Job = match of_file(read, name, circumstances) {
        Ok(job) => job,
        Err(findings) => return lines(&findings),
    };
    match plan(&job, images, None) {
        Ok(plan) => shown::plan(&job, &plan),
        Err(refused) => format!("refused: {}\n", text::for_people(&refused.to_string())),
    }
}

/// Returns all findings, one a line.
fn lines(findings: &[Diagnostic]) -> String {
    findings.iter().flat_map(|finding| [finding.to_string(), "\n".to_owned()]).collect()
}

fn folders() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ci_files");
    let mut folders: Vec<PathBuf> = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    folders
}

#[test]
fn each_file_gives_the_expected_plans() {
    let folders = folders();
    assert!(folders.len() >= 30, "{} files", folders.len());
    let wrong: Vec<String> = folders
        .iter()
        .filter_map(|folder| shown::compare(&folder.join("expected.txt"), &output(folder)))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_row_of_the_specification_is_in_a_file() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/spec/ci.md");
    let page = fs::read_to_string(page).unwrap();
    let section = page.split("\n| keyword |").nth(1).unwrap().split("\n\n").next().unwrap();
    let cells = section.lines().filter_map(|line| line.strip_prefix("| "));
    let rows: BTreeSet<String> = cells
        .filter_map(|line| line.split(" | ").next())
        .filter(|cell| *cell != "keyword")
        .flat_map(|cell| {
            cell.trim_end_matches(" P")
                .replace(['`', '…'], "")
                .split(", ")
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .filter(|word| !word.is_empty())
        .collect();
    assert!(rows.len() > 30, "{rows:?}");
    let shown: BTreeSet<String> = folders().iter().flat_map(|folder| read_case(folder).rows).collect();
    let missing: Vec<&String> = rows.difference(&shown).collect();
    assert!(missing.is_empty(), "no file has {missing:?}");
    let unknown: Vec<&String> = shown.difference(&rows).collect();
    assert!(unknown.is_empty(), "the specification has no row {unknown:?}");
}
