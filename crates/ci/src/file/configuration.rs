//! The top of a configuration: keywords, stages, and all jobs (ci.md §2).

use indexmap::IndexMap;
use std::collections::{HashMap, HashSet, VecDeque};

use step_runner_lang::diagnostic::Class;
use step_runner_model::text::quote;

use super::definition::{self, Definition};
use super::keyword::{DEFAULT, DEPRECATED, TOP};
use super::needs::Need;
use super::rule::{self, Rule};
use super::{CiFile, extends, variables};
use crate::finding::{Findings, chain, join};
use crate::node::{Entry, Map, Node};
use crate::variables::Level;

/// Maximum number of jobs, copies of parallel ones included. Each copy has its own name and variables.
const JOBS_LIMIT: usize = 10_000;

/// Stages of a file without `stages`.
const DEFAULT_STAGES: [&str; 3] = ["build", "test", "deploy"];

/// Reads a merged configuration without references.
pub(super) fn read(root: &Node, findings: &mut Findings) -> CiFile {
    let file = read_one(root, findings);
    check_stages(&file, findings);
    check_needs(&file, findings);
    file
}

/// Reads a configuration of which one job is wanted, whatever stages and jobs it names.
pub(super) fn read_one(root: &Node, findings: &mut Findings) -> CiFile {
    let empty = Map::new();
    let top = root.as_map().unwrap_or(&empty);
    let (keywords, jobs): (Map, Map) =
        top.iter().map(|(name, entry)| (name.clone(), entry.clone())).partition(|(name, _)| is_keyword(name));
    let keywords = Node::map(root.place.clone(), keywords);
    let defaults = defaults(&keywords, findings);
    let workflow = workflow(&keywords, findings);
    let noted = findings.take_noted();
    let variables = keywords
        .get("variables")
        .map(|node| variables::read(node, "variables", variables::Of::Top, findings))
        .unwrap_or_default();
    let stages = stages(&keywords, findings);
    let mut file = CiFile { stages, variables, workflow, jobs: IndexMap::new(), noted, warnings: Vec::new() };
    let merged = extends::apply(&jobs, findings);
    let mut count = 0_usize;
    for (name, entry) in merged.iter().filter(|(name, _)| !name.starts_with('.')) {
        if let Some(job) = job(name, entry, &defaults, findings) {
            count += job.copies.len().max(1);
            if count > JOBS_LIMIT {
                let message = format!("the file has more than {JOBS_LIMIT} jobs");
                findings.add(entry.key.error_of(Class::Limit, message));
                break;
            }
            file.jobs.insert(name.clone(), job);
        }
    }
    if file.jobs.is_empty() && !findings.has_errors() {
        let help = "write a job: a name, and below it \"script\"";
        findings.error_with_help(&root.place, "", "the file has no job", help);
    }
    file
}

fn is_keyword(name: &str) -> bool {
    TOP.contains(&name)
}

fn job(name: &str, entry: &Entry, defaults: &Map, findings: &mut Findings) -> Option<Definition> {
    if entry.value.as_map().is_none() {
        let message =
            format!("\"{}\" is neither a keyword nor a job: it is {}", quote(name), entry.value.describe());
        let finding = entry.key.error(message);
        let help = "a job is a mapping with \"script\"".to_owned();
        findings.add_with_suggestion(finding, name, TOP, Some(help));
        return None;
    }
    definition::read(name, &entry.key, &entry.value, defaults, findings)
}

/// Returns the values of `default`, and of the keywords at the top that are older than it.
fn defaults(keywords: &Node, findings: &mut Findings) -> Map {
    let mut defaults = Map::new();
    if let Some(node) = keywords.get("default")
        && let Some(map) = findings.mapping(node, "default", &DEFAULT)
    {
        defaults.extend(map.iter().map(|(name, entry)| (name.clone(), entry.clone())));
    }
    for (name, entry) in keywords.as_map().into_iter().flatten() {
        if DEPRECATED.contains(&name.as_str()) {
            if defaults.contains_key(name) {
                let message = format!("\"{name}\" is in \"default\", too");
                findings.error_with_help(&entry.key, "", message, "keep the one in \"default\"");
            }
            defaults.insert(name.clone(), entry.clone());
        }
    }
    defaults
}

fn workflow(keywords: &Node, findings: &mut Findings) -> Vec<Rule> {
    let Some(node) = keywords.get("workflow") else { return Vec::new() };
    let Some(map) = findings.mapping(node, "workflow", &["rules", "name", "auto_cancel"]) else {
        return Vec::new();
    };
    for (name, entry) in map.iter().filter(|(name, _)| *name != "rules") {
        findings.note(format!("workflow:{name}"), &entry.key);
    }
    node.get("rules")
        .map(|rules| rule::read(rules, "workflow", rule::Of::Workflow, findings))
        .unwrap_or_default()
}

fn stages(keywords: &Node, findings: &mut Findings) -> Vec<String> {
    let written = keywords.get("stages").and_then(|node| findings.list_of_texts(node, "stages"));
    let written = written.unwrap_or_else(|| DEFAULT_STAGES.iter().map(|stage| (*stage).to_owned()).collect());
    let inner = written.into_iter().filter(|stage| stage != ".pre" && stage != ".post");
    let mut stages = vec![".pre".to_owned()];
    stages.extend(inner);
    stages.push(".post".to_owned());
    stages
}

fn check_stages(file: &CiFile, findings: &mut Findings) {
    for job in file.jobs.values().filter(|job| !file.stages.contains(&job.stage)) {
        let message = format!("there is no stage \"{}\"", quote(&job.stage));
        let finding = job.stage_place.error(message).with_path(join(&quote(&job.name), "stage"));
        let help = format!("stages: {}", quote(&file.stages.join(", ")));
        let known = file.stages.iter().map(String::as_str);
        findings.add_with_suggestion(finding, &job.stage, known, Some(help));
    }
}

/// Checks that needed jobs exist and are in no later stage, and that no job needs itself in the end.
fn check_needs(file: &CiFile, findings: &mut Findings) {
    let numbers = numbers(file);
    for job in file.jobs.values() {
        let rules = job.rules.iter().flatten().filter_map(|rule| rule.needs.as_ref());
        let lists = [("needs", &job.needs), ("dependencies", &job.dependencies)];
        let lists = lists.into_iter().filter_map(|(keyword, list)| Some((keyword, list.as_ref()?)));
        for (keyword, list) in lists.chain(rules.map(|needs| ("rules", needs))) {
            let path = join(&quote(&job.name), keyword);
            for need in list {
                match numbers.get(need.job.as_str()).and_then(|number| file.jobs.get_index(*number)) {
                    None => check_need(need, &path, file, findings),
                    Some((_, other)) => check_order(job, need, other, &path, file, findings),
                }
            }
        }
    }
    for job in file.jobs.values() {
        check_dependencies(job, &numbers, findings);
    }
    for circle in circles(file, &numbers) {
        let Some(job) = circle.first() else { continue };
        let names = circle.iter().map(|job| job.name.as_str());
        let message = format!("\"{}\" needs itself: {}", quote(&job.name), chain(names));
        let path = join(&quote(&job.name), "needs");
        findings.error_with_help(&job.place, &path, message, "take one of these out of \"needs\"");
    }
}

fn check_order(
    job: &Definition,
    need: &Need,
    other: &Definition,
    path: &str,
    file: &CiFile,
    findings: &mut Findings,
) {
    let place = |stage: &String| file.stages.iter().position(|known| known == stage);
    if place(&other.stage) > place(&job.stage) {
        let message = format!(
            "\"{}\" is in the stage \"{}\", which comes later than \"{}\"",
            quote(&need.job),
            quote(&other.stage),
            quote(&job.stage)
        );
        let help = "name a job of the same or an earlier stage";
        findings.error_with_help(&need.place, path, message, help);
    }
}

fn check_need(need: &Need, path: &str, file: &CiFile, findings: &mut Findings) {
    if need.optional {
        return;
    }
    let message = format!("there is no job \"{}\"", quote(&need.job));
    let finding = need.place.error(message).with_path(path);
    findings.add_with_suggestion(finding, &need.job, file.names(), Some(file.shown_names()));
}

/// Checks that `dependencies` names jobs of `needs` alone, if there are any.
fn check_dependencies(job: &Definition, numbers: &HashMap<&str, usize>, findings: &mut Findings) {
    let Some(needs) = job.needs.as_ref().filter(|needs| !needs.is_empty()) else { return };
    let number = |need: &Need| numbers.get(need.job.as_str());
    for other in job.dependencies.iter().flatten().filter(|other| number(other).is_some()) {
        if !needs.iter().any(|need| number(need) == number(other)) {
            let message = format!("\"{}\" is not in \"needs\"", quote(&other.job));
            let path = join(&quote(&job.name), "dependencies");
            findings.error_with_help(&other.place, &path, message, "add it to \"needs\", too");
        }
    }
}

/// Returns the number of each job by its name, and by the full names of its copies.
fn numbers(file: &CiFile) -> HashMap<&str, usize> {
    let mut numbers = HashMap::new();
    for (number, job) in file.jobs.values().enumerate() {
        numbers.insert(job.name.as_str(), number);
        numbers.extend(job.copies.iter().map(|copy| (copy.name.as_str(), number)));
    }
    numbers
}

/// Returns one circle of `needs` for all jobs that need each other: from its first job in the file back to it.
fn circles<'f>(file: &'f CiFile, numbers: &HashMap<&str, usize>) -> Vec<Vec<&'f Definition>> {
    let number = |name: &str| numbers.get(name).copied();
    let edges: Vec<Vec<usize>> = (file.jobs.values())
        .map(|job| job.needs.iter().flatten().filter_map(|need| number(&need.job)).collect())
        .collect();
    let order = crate::variables::order::of(&edges);
    let mut told = HashSet::new();
    let mut circles = Vec::new();
    for (node, component) in order.component.iter().enumerate() {
        if !told.contains(component)
            && let Some(circle) = circle(node, &edges, &order.component)
        {
            told.insert(component);
            circles.push(circle.into_iter().filter_map(|node| Some(file.jobs.get_index(node)?.1)).collect());
        }
    }
    circles
}

/// Returns the shortest way from a node back to it.
fn circle(start: usize, edges: &[Vec<usize>], component: &[usize]) -> Option<Vec<usize>> {
    let mut from: HashMap<usize, usize> = HashMap::new();
    let mut open = VecDeque::from([start]);
    while let Some(node) = open.pop_front() {
        for target in edges.get(node).into_iter().flatten() {
            if *target == start {
                let mut way = vec![start, node];
                while let Some(before) = way.last().and_then(|last| from.get(last)) {
                    way.push(*before);
                }
                way.reverse();
                return Some(way);
            }
            if component.get(*target) == component.get(start) && !from.contains_key(target) {
                from.insert(*target, node);
                open.push_back(*target);
            }
        }
    }
    None
}

/// Returns the variables at the top that a job gets.
pub(crate) fn inherited_variables(file: &CiFile, job: &Definition) -> Level {
    let is_taken = |name: &String| match &job.inherit {
        definition::Inherit::All => true,
        definition::Inherit::None => false,
        definition::Inherit::Names(names) => names.contains(name),
    };
    let taken = file.variables.iter().filter(|(name, _)| is_taken(name));
    taken.map(|(name, defined)| (name.clone(), defined.clone())).collect()
}
