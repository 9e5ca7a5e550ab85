//! A job of a CI file, checked (ci.md §2). What depends on variables is decided later, for one job.

use std::time::Duration;

use serde_json::Value as Json;
use step_runner_lang::diagnostic::Diagnostic;
use step_runner_model::text::quote;

use super::allow_failure::{AllowFailure, allow_failure};
use super::artifacts::{self, Artifacts, Cache};
use super::image::{self, Image};
use super::keyword::{Effect, TOP, effect, names};
use super::needs::{self, Need};
use super::parallel::{self, Copy};
use super::rule::{self, Rule};
use super::{noted, script, variables};
use crate::duration;
use crate::finding::{Findings, Noted, join};
use crate::node::{Kind, Map, Node, Place};
use crate::variables::Level;

/// Longest name of a job, as in GitLab.
const NAME_LIMIT: usize = 255;

/// A variable that comes from outside: of `id_tokens`, `secrets` or `identity`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outside {
    /// The keyword.
    pub keyword: String,
    /// Name of the variable; `None` for `identity`, which sets several.
    pub variable: Option<String>,
    /// Place in the file.
    pub place: Place,
}

/// `environment` of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// Name.
    pub name: String,
    /// Address.
    pub url: Option<String>,
    /// `start`, `stop` and the like.
    pub action: Option<String>,
    /// `production` and the like.
    pub tier: Option<String>,
}

/// Which of the top-level variables a job gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inherit {
    /// All.
    All,
    /// None.
    None,
    /// Only these names.
    Names(Vec<String>),
}

/// A job as it is written, with all that it extends and inherits.
#[derive(Clone, Debug)]
pub struct Definition {
    /// Name, without the part of a parallel job.
    pub name: String,
    /// Place of the name.
    pub place: Place,
    /// Stage.
    pub stage: String,
    /// Place of `stage`.
    pub stage_place: Place,
    /// Copies of a parallel job; empty for one job.
    pub copies: Vec<Copy>,
    /// Keywords without effect.
    pub noted: Vec<Noted>,
    /// Variables that the caller must give.
    pub outside: Vec<Outside>,
    /// Reasons why the job cannot run here, whatever the caller gives. Other jobs of the file can.
    pub refused: Vec<Diagnostic>,
    /// Image.
    pub image: Option<Image>,
    /// Services.
    pub services: Vec<Image>,
    /// Needed jobs; `None` if the job waits for its stage.
    pub needs: Option<Vec<Need>>,
    /// `dependencies`.
    pub dependencies: Option<Vec<Need>>,
    /// Rules; `None` if there are none.
    pub rules: Option<Vec<Rule>>,
    /// Time limit.
    pub timeout: Option<Duration>,
    /// Failures that do not count in a pipeline, unless the rule that matches says it.
    pub(crate) allow_failure: AllowFailure,
    /// When it starts in a pipeline, unless the rule that matches says it; `on_success` if absent.
    pub(crate) when: Option<String>,
    pub(crate) before_script: Vec<String>,
    pub(crate) script: Vec<String>,
    pub(crate) run: Option<Json>,
    pub(crate) after_script: Vec<String>,
    pub(crate) variables: Level,
    pub(crate) inherit: Inherit,
    pub(crate) artifacts: Option<Artifacts>,
    pub(crate) caches: Vec<Cache>,
    pub(crate) environment: Option<Environment>,
}

impl Definition {
    /// Returns the name of the job, or the names of the parts of a parallel job.
    pub fn full_names(&self) -> impl Iterator<Item = &str> {
        let own = self.copies.is_empty().then_some(self.name.as_str());
        own.into_iter().chain(self.copies.iter().map(|copy| copy.name.as_str()))
    }
}

/// Reads a job. `node` has all that the job extends; `defaults` are the values of `default`.
pub(super) fn read(
    name: &str,
    key: &Place,
    node: &Node,
    defaults: &Map,
    findings: &mut Findings,
) -> Option<Definition> {
    check_name(name, key, findings);
    let own = findings.any_mapping(node, &quote(name))?;
    let (takes, inherit) = inherited(node.get("inherit"), name, findings);
    let mut map = own.clone();
    for (keyword, entry) in defaults {
        let is_absent = map.get(keyword).is_none_or(|own| own.value.is_null());
        let is_taken = match &takes {
            Inherit::All => true,
            Inherit::None => false,
            Inherit::Names(names) => names.contains(keyword),
        };
        // GitLab takes the project's time limit, whatever `default` says.
        if is_absent && is_taken && keyword != "timeout" {
            map.insert(keyword.clone(), entry.clone());
        }
    }
    let job = Node::map(node.place.clone(), map);
    let mut reader = Reader { job: &job, name, findings, outside: Vec::new() };
    reader.keywords();
    let definition = reader.definition(key, inherit);
    Some(definition)
}

fn check_name(name: &str, key: &Place, findings: &mut Findings) {
    let mistake = if name.is_empty() {
        "a job needs a name"
    } else if name.chars().any(char::is_control) {
        "the name of a job cannot hold control characters"
    } else if name.chars().count() > NAME_LIMIT {
        "the name of a job has more than 255 characters"
    } else {
        return;
    };
    findings.error_with_help(key, &quote(name), mistake, "give it another name");
}

/// Reads `inherit`: what a job takes of `default`, and of the variables at the top.
fn inherited(node: Option<&Node>, job: &str, findings: &mut Findings) -> (Inherit, Inherit) {
    let path = join(&quote(job), "inherit");
    let Some(node) = node else { return (Inherit::All, Inherit::All) };
    if findings.mapping(node, &path, &["default", "variables"]).is_none() {
        return (Inherit::All, Inherit::All);
    }
    let mut of = |name: &str| match node.get(name) {
        None => Inherit::All,
        Some(Node { kind: Kind::Bool(plain), .. }) => {
            if plain.value {
                Inherit::All
            } else {
                Inherit::None
            }
        }
        Some(node) => findings.texts(node, &join(&path, name)).map_or(Inherit::All, Inherit::Names),
    };
    (of("default"), of("variables"))
}

struct Reader<'r> {
    job: &'r Node,
    name: &'r str,
    findings: &'r mut Findings,
    outside: Vec<Outside>,
}

impl Reader<'_> {
    fn path(&self, keyword: &str) -> String {
        join(&quote(self.name), keyword)
    }

    /// Sorts the keywords by their effect, and reports those that are none.
    fn keywords(&mut self) {
        let has_rules = self.job.get("rules").is_some_and(|rules| !rules.is_null());
        for (keyword, entry) in self.job.as_map().into_iter().flatten() {
            let place = entry.key.clone();
            match effect(keyword) {
                None => self.findings.unknown_key(&place, keyword, &quote(self.name), &names()),
                Some(_) if entry.value.is_null() => {}
                Some(Effect::Read) => {}
                Some(Effect::Noted) if has_rules && ["only", "except"].contains(&keyword.as_str()) => {
                    let message = format!("\"{keyword}\" cannot stand beside \"rules\"");
                    let path = quote(self.name);
                    self.findings.error_with_help(&place, &path, message, "write it as a rule");
                }
                Some(Effect::Noted) => {
                    self.findings.note(keyword.clone(), &place);
                    noted::check(keyword, &entry.value, &self.path(keyword), self.findings);
                }
                Some(Effect::Refused(help)) => {
                    let message = format!("\"{keyword}\" cannot be used here");
                    self.findings.refuse(place.error(message).with_path(quote(self.name)).with_help(help));
                }
                Some(Effect::Outside) => self.outside(keyword, &entry.value, place),
            }
        }
    }

    fn outside(&mut self, keyword: &str, value: &Node, place: Place) {
        let keyword = keyword.to_owned();
        if keyword == "identity" {
            self.outside.push(Outside { keyword, variable: None, place });
            return;
        }
        let path = self.path(&keyword);
        for (variable, entry) in self.findings.any_mapping(value, &path).into_iter().flatten() {
            self.outside.push(Outside {
                keyword: keyword.clone(),
                variable: Some(variable.clone()),
                place: entry.key.clone(),
            });
        }
    }

    fn with<T>(
        &mut self,
        keyword: &str,
        read: impl FnOnce(&Node, &str, &mut Findings) -> Option<T>,
    ) -> Option<T> {
        let path = self.path(keyword);
        let node = self.job.get(keyword)?;
        read(node, &path, self.findings)
    }

    fn definition(mut self, key: &Place, inherit: Inherit) -> Definition {
        let before_script = self.with("before_script", script::lines).unwrap_or_default();
        let after_script = self.with("after_script", script::lines).unwrap_or_default();
        let script = self.with("script", script::lines);
        let run = self.with("run", script::steps);
        self.check_work(key, script.as_deref());
        let job = quote(self.name).into_owned();
        let stage = self.with("stage", |node, path, findings| {
            findings.text(node, path).map(|stage| (stage, node.place.clone()))
        });
        let (stage, stage_place) = stage.unwrap_or_else(|| ("test".to_owned(), key.clone()));
        let name = self.name;
        let copies =
            self.with("parallel", |node, path, findings| parallel::copies(name, node, path, findings));
        let rules =
            self.with("rules", |node, _, findings| Some(rule::read(node, &job, rule::Of::Job, findings)));
        let variables = self.with("variables", |node, path, findings| {
            Some(variables::read(node, path, variables::Of::Job, findings))
        });
        let artifacts = self.with("artifacts", artifacts::read);
        let caches = self.with("cache", |node, path, findings| Some(artifacts::caches(node, path, findings)));
        let services =
            self.with("services", |node, path, findings| Some(image::services(node, path, findings)));
        let when = self.with("when", when);
        if rules.is_none() {
            noted::check_delay(self.job, when.as_deref(), &job, self.findings);
        }
        // As in GitLab, nobody has to start a job that is manual by its own keyword. One that a rule makes manual blocks.
        let is_manual = when.as_deref() == Some("manual");
        let unless_said = if is_manual { AllowFailure::All } else { AllowFailure::None };
        let allow_failure = self.with("allow_failure", allow_failure).unwrap_or(unless_said);
        Definition {
            name: self.name.to_owned(),
            place: key.clone(),
            stage,
            stage_place,
            copies: copies.unwrap_or_default(),
            image: self.with("image", image::image),
            services: services.unwrap_or_default(),
            needs: self.with("needs", needs::read),
            dependencies: self.with("dependencies", needs::dependencies),
            rules,
            timeout: self.with("timeout", timeout),
            environment: self.with("environment", environment),
            allow_failure,
            when,
            before_script,
            script: script.unwrap_or_default(),
            run,
            after_script,
            variables: variables.unwrap_or_default(),
            inherit,
            artifacts,
            caches: caches.unwrap_or_default(),
            noted: self.findings.take_noted(),
            outside: self.outside,
            refused: self.findings.take_refused(),
        }
    }

    /// Checks that the job has exactly one of `script`, `run` and `trigger`.
    fn check_work(&mut self, key: &Place, script: Option<&[String]>) {
        let job = quote(self.name).into_owned();
        let has = |keyword| self.job.get(keyword).is_some();
        let both = [("run", "script"), ("trigger", "script"), ("trigger", "run")];
        if let Some((one, other)) = both.into_iter().find(|(one, other)| has(one) && has(other)) {
            let message = format!("\"{one}\" and \"{other}\" exclude each other");
            self.findings.error_with_help(key, &job, message, "keep one of them");
        } else if !["run", "script", "trigger", "release", "extends"].into_iter().any(has) {
            // A job keeps "extends" only if a part of it is missing, which was reported.
            let finding = key.error("the job has neither \"script\" nor \"run\"").with_path(job);
            let help = "write \"script\"; a name with a dot before it hides a template".to_owned();
            self.findings.add_with_suggestion(finding, self.name, TOP, Some(help));
        } else if script.is_some_and(<[String]>::is_empty) {
            self.findings.error_with_help(
                key,
                &job,
                "the script is empty",
                "write a command, such as \"true\"",
            );
        }
    }
}

/// Reads `when`.
fn when(node: &Node, path: &str, findings: &mut Findings) -> Option<String> {
    findings.choice(node, path, &["on_success", "on_failure", "always", "manual", "delayed"])
}

fn timeout(node: &Node, path: &str, findings: &mut Findings) -> Option<Duration> {
    let text = findings.scalar(node, path)?;
    let parsed = duration::parse(&text);
    if parsed.is_none() {
        let message = format!("\"{}\" is no duration", quote(&text));
        findings.error_with_help(&node.place, path, message, "write one such as \"1h 30m\"");
    }
    parsed
}

fn environment(node: &Node, path: &str, findings: &mut Findings) -> Option<Environment> {
    if node.as_map().is_none() {
        let name = findings.text(node, path)?;
        return Some(Environment { name, ..Environment::default() });
    }
    let keys = ["name", "url", "action", "deployment_tier", "on_stop", "auto_stop_in", "kubernetes"];
    findings.mapping(node, path, &keys)?;
    if node.get("name").is_none() {
        findings.error_with_help(&node.place, path, "it has no name", "write \"name: ENVIRONMENT\"");
        return None;
    }
    let text = |name: &str, findings: &mut Findings| {
        node.get(name).and_then(|value| findings.text(value, &join(path, name)))
    };
    let actions = ["start", "prepare", "stop", "verify", "access"];
    let tiers = ["production", "staging", "testing", "development", "other"];
    let action = node.get("action").and_then(|value| findings.choice(value, &join(path, "action"), &actions));
    let tier = node.get("deployment_tier").and_then(|value| {
        let path = join(path, "deployment_tier");
        let text = findings.text(value, &path)?;
        if text.contains('$') { Some(text) } else { findings.choice(value, &path, &tiers) }
    });
    Some(Environment {
        name: text("name", findings).unwrap_or_default(),
        url: text("url", findings),
        action,
        tier,
    })
}
