//! `rules` of jobs, of `workflow` and of `include` (ci.md §2, row `rules`).

use step_runner_lang::diagnostic::Diagnostic;
use step_runner_model::text::quote;

use super::allow_failure::{AllowFailure, allow_failure};
use super::needs::{self, Need};
use super::{noted, variables};
use crate::condition::Condition;
use crate::finding::{Findings, at_index, join};
use crate::node::{Kind, Node, Place};
use crate::pattern::Glob;
use crate::variables::{Level, Resolved};

/// Maximum number of paths in `exists` or `changes`, as in GitLab.
const PATHS_LIMIT: usize = 50;

/// Maximum depth of lists in lists, which references bring.
const NESTING_LIMIT: usize = 10;

/// The keyword that has the rules.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    Job,
    Workflow,
    Include,
}

/// One rule.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(crate) place: Place,
    condition: Option<Condition>,
    changes: Option<Vec<String>>,
    exists: Option<Vec<String>>,
    /// `never`, `manual` and the like.
    pub(crate) when: Option<String>,
    pub(crate) allow_failure: Option<AllowFailure>,
    pub(crate) variables: Level,
    pub(crate) needs: Option<Vec<Need>>,
}

/// Facts that rules look at.
pub(crate) struct Look<'l> {
    pub(crate) variables: &'l Resolved,
    /// Files of the work tree.
    pub(crate) files: &'l [String],
    /// Changed files. `None` makes `changes` true.
    pub(crate) changed: Option<&'l [String]>,
}

impl Rule {
    /// True if the rule looks at files of the work tree.
    pub(crate) const fn looks_at_files(&self) -> bool {
        self.exists.is_some()
    }
}

/// Returns the first rule that matches.
pub(crate) fn first_match<'r>(rules: &'r [Rule], look: &Look<'_>) -> Result<Option<&'r Rule>, Diagnostic> {
    for rule in rules {
        if matches(rule, look)? {
            return Ok(Some(rule));
        }
    }
    Ok(None)
}

fn matches(rule: &Rule, look: &Look<'_>) -> Result<bool, Diagnostic> {
    if let Some(condition) = &rule.condition {
        let holds = condition.holds(&|name| look.variables.value(name)).map_err(|message| {
            (rule.place.error(message)).with_help("correct the variable that holds the regular expression")
        })?;
        if !holds {
            return Ok(false);
        }
    }
    if let (Some(globs), Some(changed)) = (&rule.changes, look.changed)
        && !any_fits(globs, changed, look, &rule.place)?
    {
        return Ok(false);
    }
    match &rule.exists {
        Some(globs) => any_fits(globs, look.files, look, &rule.place),
        None => Ok(true),
    }
}

fn any_fits(globs: &[String], files: &[String], look: &Look<'_>, place: &Place) -> Result<bool, Diagnostic> {
    for glob in globs {
        let glob = look.variables.fill_in(glob);
        let glob = Glob::of_path(&glob).map_err(|message| place.error(message))?;
        if files.iter().any(|file| glob.fits(file)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reads a list of rules. Lists in it, which references bring, are flattened.
pub(super) fn read(node: &Node, path: &str, of: Of, findings: &mut Findings) -> Vec<Rule> {
    let path = join(path, "rules");
    let mut rules = Vec::new();
    if matches!(node.kind, Kind::List(_)) {
        list(node, &path, of, 0, &mut rules, findings);
    } else {
        findings.expected(node, &path, "a list of rules");
    }
    rules
}

fn list(node: &Node, path: &str, of: Of, depth: usize, rules: &mut Vec<Rule>, findings: &mut Findings) {
    match &node.kind {
        Kind::List(items) if depth <= NESTING_LIMIT => {
            for (index, item) in items.iter().enumerate() {
                list(item, &at_index(path, index), of, depth + 1, rules, findings);
            }
        }
        Kind::List(_) => {
            findings.error(&node.place, path, format!("more than {NESTING_LIMIT} lists inside each other"));
        }
        Kind::Null => {
            findings.error_with_help(&node.place, path, "expected a rule, this is nothing", "remove it");
        }
        _ => rules.extend(rule(node, path, of, findings)),
    }
}

fn rule(node: &Node, path: &str, of: Of, findings: &mut Findings) -> Option<Rule> {
    let (keys, whens): (&[&str], &[&str]) = match of {
        Of::Job => (
            &[
                "if",
                "changes",
                "exists",
                "when",
                "allow_failure",
                "variables",
                "needs",
                "start_in",
                "interruptible",
            ],
            &["on_success", "on_failure", "always", "manual", "delayed", "never"],
        ),
        Of::Workflow => {
            (&["if", "changes", "exists", "when", "variables", "auto_cancel"], &["always", "never"])
        }
        Of::Include => (&["if", "changes", "exists", "when"], &["always", "never"]),
    };
    findings.mapping(node, path, keys)?;
    let when = node.get("when").and_then(|when| findings.choice(when, &join(path, "when"), whens));
    if of == Of::Job {
        noted::check_delay(node, when.as_deref(), path, findings);
    }
    let condition = node.get("if").and_then(|node| condition(node, &join(path, "if"), findings));
    let variables = node
        .get("variables")
        .map(|node| variables::read(node, &join(path, "variables"), variables::Of::Job, findings));
    let allow_failure = node
        .get("allow_failure")
        .and_then(|node| allow_failure(node, &join(path, "allow_failure"), findings));
    Some(Rule {
        place: node.place.clone(),
        condition,
        changes: node.get("changes").and_then(|node| paths(node, &join(path, "changes"), of, findings)),
        exists: node.get("exists").and_then(|node| paths(node, &join(path, "exists"), of, findings)),
        when,
        allow_failure,
        variables: variables.unwrap_or_default(),
        needs: node.get("needs").and_then(|needs| needs::read(needs, &join(path, "needs"), findings)),
    })
}

fn condition(node: &Node, path: &str, findings: &mut Findings) -> Option<Condition> {
    let text = findings.text(node, path)?;
    match Condition::parse(&text) {
        Ok(condition) => Some(condition),
        Err(mistake) => {
            let from = text.get(mistake.offset..).unwrap_or_default();
            let at = if from.is_empty() {
                " at the end".to_owned()
            } else {
                format!(" at \"{}\"", quote(&from.chars().take(32).collect::<String>()))
            };
            let finding = node.place.error(format!("{}{at}", mistake.message)).with_path(path);
            findings.add(match mistake.help {
                Some(help) => finding.with_help(help),
                None => finding,
            });
            None
        }
    }
}

/// Reads globs: a list, or a mapping with `paths`. With files of another project the job cannot run here.
fn paths(node: &Node, path: &str, of: Of, findings: &mut Findings) -> Option<Vec<String>> {
    let list = if node.as_map().is_some() {
        let map = findings.mapping(node, path, &["paths", "compare_to", "project", "ref"])?;
        if let Some(project) = map.get("project") {
            let finding = (project.key.error("files of another project need a server").with_path(path))
                .with_help("remove the rule, or copy the files that it looks for");
            if of == Of::Job {
                findings.refuse(finding);
            } else {
                findings.add(finding);
            }
        }
        let Some(paths) = node.get("paths") else {
            findings.error(&node.place, path, "it has no \"paths\"");
            return None;
        };
        paths
    } else {
        node
    };
    let globs = findings.list_of_texts(list, path)?;
    if globs.len() > PATHS_LIMIT {
        findings.error(&list.place, path, format!("more than {PATHS_LIMIT} paths"));
        return None;
    }
    for glob in &globs {
        if let Err(message) = Glob::of_path(glob) {
            findings.error(&list.place, path, message);
        }
    }
    Some(globs)
}
