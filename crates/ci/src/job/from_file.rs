//! One job of a CI file: what its variables decide is decided here (ci.md §2, §3).

use indexmap::IndexMap;
use serde_json::json;
use step_runner_lang::diagnostic::{Class, Diagnostic};
use step_runner_model::text::quote;

use super::standing::Standing;
use super::{ArtifactEntry, CacheEntry, Content, Dependency, Job, Message, Work, step_name};
use crate::file::{AllowFailure, CacheKey, CiFile, Copy, Definition, Image, Look, Need, Rule, first_match};
use crate::files::Files;
use crate::settings::Settings;
use crate::variables::{
    Defined, Facts, JobFacts, Level, Resolved, TooLarge, environment_slug, environment_tier, predefined,
};

/// What the caller knows and gives.
pub struct Circumstances<'c> {
    /// Facts about the repository. Without them nothing is predefined.
    pub facts: Option<&'c Facts>,
    /// The repository's files.
    pub files: &'c dyn Files,
    /// Variables that the caller gives; they win over all others.
    pub given: &'c Level,
    /// Variables from the `dotenv` reports of needed jobs.
    pub dotenv: &'c Level,
}

/// A job with all that its variables decide.
pub(super) struct Evaluation<'e> {
    file: &'e CiFile,
    pub(super) definition: &'e Definition,
    copy: Option<&'e Copy>,
    circumstances: &'e Circumstances<'e>,
    known: Level,
    /// Variables between the predefined ones and those of the rule.
    levels: Vec<Level>,
    workflow: Option<&'e Rule>,
    rule: Option<&'e Rule>,
}

impl<'e> Evaluation<'e> {
    fn new(
        file: &'e CiFile,
        definition: &'e Definition,
        copy: Option<&'e Copy>,
        circumstances: &'e Circumstances<'e>,
        known: Level,
    ) -> Result<Self, Vec<Diagnostic>> {
        let mut evaluation = Self {
            file,
            definition,
            copy,
            circumstances,
            known,
            levels: vec![file.variables.clone()],
            workflow: None,
            rule: None,
        };
        evaluation.decide().map_err(|finding| vec![*finding])?;
        Ok(evaluation)
    }

    /// Evaluates a job by its full name.
    pub(super) fn of(
        file: &'e CiFile,
        name: &str,
        circumstances: &'e Circumstances<'e>,
    ) -> Result<Self, Vec<Diagnostic>> {
        let (definition, copy) = file.find(name).map_err(|finding| vec![*finding])?;
        let job = JobFacts {
            name: name.to_owned(),
            stage: definition.stage.clone(),
            image: None,
            node: copy.map(|copy| copy.node),
        };
        let known = circumstances.facts.map(|facts| predefined(facts, Some(&job))).unwrap_or_default();
        Self::new(file, definition, copy, circumstances, known)
    }

    /// Finds the rules that match. Each rule sees the variables of the levels below it.
    fn decide(&mut self) -> Result<(), Box<Diagnostic>> {
        let files = if self.looks_at_files() { self.list()? } else { Vec::new() };
        self.workflow = self.first(&self.file.workflow, &files)?;
        self.levels = vec![crate::file::inherited_variables(self.file, self.definition)];
        self.levels.extend(self.workflow.map(|rule| rule.variables.clone()));
        self.levels.push(self.definition.variables.clone());
        if let Some(copy) = self.copy {
            let defined =
                |(name, value): (&String, &String)| (name.clone(), Defined::expanded(value.clone()));
            self.levels.push(copy.variables.iter().map(defined).collect());
        }
        if let Some(rules) = &self.definition.rules {
            self.rule = self.first(rules, &files)?;
        }
        self.levels.extend(self.rule.map(|rule| rule.variables.clone()));
        Ok(())
    }

    fn looks_at_files(&self) -> bool {
        let rules = self.definition.rules.iter().flatten();
        self.file.workflow.iter().chain(rules).any(Rule::looks_at_files)
    }

    fn list(&self) -> Result<Vec<String>, Box<Diagnostic>> {
        self.circumstances.files.list().map_err(|error| {
            let message =
                format!("the files of the repository cannot be listed: {}", quote(&error.to_string()));
            Box::new(self.definition.place.error_of(Class::Io, message))
        })
    }

    fn first(&self, rules: &'e [Rule], files: &[String]) -> Result<Option<&'e Rule>, Box<Diagnostic>> {
        let variables = self
            .resolved()
            .map_err(|TooLarge(message)| Box::new(self.definition.place.error_of(Class::Limit, message)))?;
        let changed = self.circumstances.facts.and_then(|facts| facts.changed.as_deref());
        first_match(rules, &Look { variables: &variables, files, changed }).map_err(Box::new)
    }

    fn resolved(&self) -> Result<Resolved, TooLarge> {
        let given = [self.circumstances.dotenv, self.circumstances.given];
        Resolved::new(std::iter::once(&self.known).chain(&self.levels).chain(given))
    }

    /// Returns what its own rules say.
    pub(super) fn standing(&self) -> Standing {
        let never = |rule: &Rule| rule.when.as_deref() == Some("never");
        let absent = |why: &str| Standing::Absent(why.to_owned());
        if !self.file.workflow.is_empty() && self.workflow.is_none_or(never) {
            return absent("\"workflow:rules\" make no pipeline");
        }
        match (&self.definition.rules, self.rule) {
            (Some(_), None) => absent("none of its rules matches"),
            (_, Some(rule)) if never(rule) => absent("the rule that matches says \"never\""),
            (_, rule) => {
                let of_rule = rule.and_then(|rule| rule.when.as_deref());
                match of_rule.or(self.definition.when.as_deref()) {
                    None | Some("on_success") => Standing::Runs,
                    Some("always") => Standing::Always,
                    Some(when) => Standing::Waits(when.to_owned()),
                }
            }
        }
    }

    /// Returns which failures of the job do not count.
    pub(super) fn allowed(&self) -> AllowFailure {
        let of_rule = self.rule.and_then(|rule| rule.allow_failure.clone());
        of_rule.unwrap_or_else(|| self.definition.allow_failure.clone())
    }

    /// Returns the job. `standing` is its place in a pipeline.
    pub(super) fn job(mut self, name: &str, standing: Standing) -> Result<Job, Vec<Diagnostic>> {
        let definition = self.definition;
        let limit = |TooLarge(message)| vec![definition.place.error_of(Class::Limit, message)];
        let first = self.resolved().map_err(limit)?;
        let refused = definition.refused.iter().cloned();
        let cannot: Vec<Diagnostic> = refused.chain(self.missing(&first)).collect();
        if !cannot.is_empty() {
            return Err(cannot);
        }
        let image = definition.image.as_ref().map(|image| filled_in(image, &first));
        if let Some(image) = &image {
            self.known.insert("CI_JOB_IMAGE".to_owned(), Defined::raw(image.name.clone()));
        }
        self.environment().map_err(limit)?;
        let variables = self.resolved().map_err(limit)?;
        let settings = Settings::read(&|name| variables.value(name));
        Ok(Job {
            name: name.to_owned(),
            stage: definition.stage.clone(),
            work: work(definition),
            after_script: definition.after_script.clone(),
            sources: None,
            caches: caches(definition, &variables)?,
            artifacts: artifacts(definition, &variables),
            dependencies: self.dependencies(),
            image,
            services: definition.services.iter().map(|service| filled_in(service, &variables)).collect(),
            timeout: definition.timeout,
            token: None,
            phrases: Vec::new(),
            token_prefixes: Vec::new(),
            trace_sections: false,
            messages: self.messages(standing, &settings),
            variables: variables.to_request(),
            settings,
        })
    }

    /// Returns an error for each variable from outside that the caller does not give.
    fn missing(&self, variables: &Resolved) -> Vec<Diagnostic> {
        let outside = self.definition.outside.iter();
        let absent = outside.filter(|outside| {
            outside
                .variable
                .as_deref()
                .is_none_or(|name| !self.circumstances.given.contains_key(name) && !variables.has(name))
        });
        absent
            .map(|outside| match &outside.variable {
                Some(name) => (outside.place)
                    .error_of(
                        Class::Missing,
                        format!("\"{}\" of \"{}\" comes from a server", quote(name), outside.keyword),
                    )
                    .with_help(format!(
                        "give it: --masked-var {0}, from the variable of that name in your environment, or --file-var {0}=PATH",
                        quote(name)
                    )),
                None => (outside.place)
                    .error_of(Class::Missing, format!("\"{}\" needs a server", outside.keyword))
                    .with_help("take it out, and give its variables by --masked-var or --file-var"),
            })
            .collect()
    }

    /// Defines the variables of the environment. Its address can use the others.
    fn environment(&mut self) -> Result<(), TooLarge> {
        let Some(environment) = &self.definition.environment else { return Ok(()) };
        let variables = self.resolved()?;
        let name = variables.fill_in(&environment.name);
        let mut set =
            |name: &str, value: String| drop(self.known.insert(name.to_owned(), Defined::raw(value)));
        let tier = environment.tier.as_deref().map(|tier| variables.fill_in(tier));
        set("CI_ENVIRONMENT_TIER", tier.unwrap_or_else(|| environment_tier(&name).to_owned()));
        set("CI_ENVIRONMENT_SLUG", environment_slug(&name));
        set("CI_ENVIRONMENT_NAME", name);
        set("CI_ENVIRONMENT_ACTION", environment.action.clone().unwrap_or_else(|| "start".to_owned()));
        if let Some(url) = &environment.url {
            let url = self.resolved()?.fill_in(url);
            self.known.insert("CI_ENVIRONMENT_URL".to_owned(), Defined::raw(url));
        }
        Ok(())
    }

    /// Returns the jobs whose artifacts come: those that `needs` or `dependencies` name, else all of earlier stages.
    fn dependencies(&self) -> Vec<Dependency> {
        let needs = self.needs();
        let wanted = |needs: &[Need]| -> Vec<Dependency> {
            let wanted = needs.iter().filter(|need| need.artifacts);
            wanted.flat_map(|need| self.parts(need)).collect()
        };
        match (needs, self.definition.dependencies.as_deref()) {
            (Some(needs), Some(named)) => {
                let is_named = |need: &&Need| named.iter().any(|other| other.job == need.job);
                wanted(&needs.iter().filter(is_named).cloned().collect::<Vec<_>>())
            }
            (Some(needs), None) | (None, Some(needs)) => wanted(needs),
            (None, None) => {
                let names = earlier(self.file, self.definition).flat_map(Definition::full_names);
                names.map(|name| dependency(name, false)).collect()
            }
        }
    }

    /// Returns the artifacts that come of a needed job, if it has any.
    fn parts(&self, need: &Need) -> Vec<Dependency> {
        let has_artifacts = self.file.definition(&need.job).is_some_and(|job| job.artifacts.is_some());
        let names = names(self.file, need).into_iter().filter(|_| has_artifacts);
        names.map(|name| dependency(name, !need.optional)).collect()
    }

    /// Returns `needs` of the rule that matches, else of the job.
    pub(super) fn needs(&self) -> Option<&'e [Need]> {
        self.rule.and_then(|rule| rule.needs.as_deref()).or(self.definition.needs.as_deref())
    }

    fn messages(&self, standing: Standing, settings: &Settings) -> Vec<Message> {
        let mut messages = Vec::new();
        match standing {
            Standing::Runs | Standing::Always => {}
            Standing::Waits(when) => {
                messages.push(Message::info(format!(
                    "in a pipeline this job is \"{when}\": here it starts at once"
                )));
            }
            Standing::Absent(why) => {
                messages.push(Message::warning(format!("this job would not be in the pipeline: {why}")));
            }
        }
        let noted: IndexMap<&str, ()> = self
            .file
            .noted
            .iter()
            .chain(&self.definition.noted)
            .map(|noted| (noted.keyword.as_str(), ()))
            .collect();
        if !noted.is_empty() {
            let words: Vec<&str> = noted.into_keys().collect();
            messages.push(Message::info(format!("keywords without effect here: {}", words.join(", "))));
        }
        messages.extend(self.file.warnings.iter().map(|warning| Message::warning(warning.unmasked())));
        messages.extend(settings.warnings.iter().cloned().map(Message::warning));
        messages
    }
}

fn dependency(name: &str, required: bool) -> Dependency {
    Dependency { name: name.to_owned(), required, details: serde_json::Map::new(), token: None }
}

/// Returns the full names of a needed job.
pub(super) fn names<'f>(file: &'f CiFile, need: &'f Need) -> Vec<&'f str> {
    match file.jobs.get(&need.job) {
        Some(job) if job.copies.is_empty() => vec![&job.name],
        Some(job) => {
            let is_wanted = |copy: &&Copy| need.matrix.as_ref().is_none_or(|matrix| copy.is_in(matrix));
            job.copies.iter().filter(is_wanted).map(|copy| copy.name.as_str()).collect()
        }
        None => file.definition(&need.job).map(|_| need.job.as_str()).into_iter().collect(),
    }
}

/// Returns the jobs of earlier stages that have artifacts.
pub(super) fn earlier<'f>(file: &'f CiFile, job: &Definition) -> impl Iterator<Item = &'f Definition> {
    let place = |stage: &String| file.stages.iter().position(|other| other == stage);
    let own = place(&job.stage);
    file.jobs.values().filter(move |other| other.artifacts.is_some() && place(&other.stage) < own)
}

fn work(definition: &Definition) -> Vec<Work> {
    let script =
        |name: &str, lines: Vec<String>| Work { name: step_name(name), content: Content::Script(lines) };
    if let Some(steps) = &definition.run {
        let before = (!definition.before_script.is_empty())
            .then(|| script("before_script", definition.before_script.clone()));
        let run = Work { name: step_name("run"), content: Content::Steps(steps.clone()) };
        before.into_iter().chain([run]).collect()
    } else {
        let lines = [definition.before_script.as_slice(), definition.script.as_slice()].concat();
        vec![script("script", lines)]
    }
}

fn filled_in(image: &Image, variables: &Resolved) -> Image {
    Image {
        name: variables.fill_in(&image.name),
        alias: image.alias.as_deref().map(|alias| variables.fill_in(alias)),
        ..image.clone()
    }
}

fn artifacts(definition: &Definition, variables: &Resolved) -> Vec<ArtifactEntry> {
    let Some(artifacts) = &definition.artifacts else { return Vec::new() };
    let fill = |texts: &[String]| texts.iter().map(|text| variables.fill_in(text)).collect::<Vec<_>>();
    let mut entries = Vec::new();
    if !artifacts.paths.is_empty() || artifacts.untracked {
        entries.push(ArtifactEntry {
            name: artifacts
                .name
                .as_deref()
                .map_or_else(|| "artifacts".to_owned(), |name| variables.fill_in(name)),
            paths: fill(&artifacts.paths),
            exclude: fill(&artifacts.exclude),
            untracked: artifacts.untracked,
            when: artifacts.when.clone().unwrap_or_else(|| "on_success".to_owned()),
            kind: "archive".to_owned(),
            format: "zip".to_owned(),
            expire_in: None,
        });
    }
    if !artifacts.dotenv.is_empty() {
        entries.push(ArtifactEntry {
            name: ".env".to_owned(),
            paths: fill(&artifacts.dotenv),
            exclude: Vec::new(),
            untracked: false,
            when: "always".to_owned(),
            kind: "dotenv".to_owned(),
            format: "gzip".to_owned(),
            expire_in: None,
        });
    }
    entries
}

fn caches(definition: &Definition, variables: &Resolved) -> Result<Vec<CacheEntry>, Vec<Diagnostic>> {
    let fill = |texts: &[String]| texts.iter().map(|text| variables.fill_in(text)).collect::<Vec<_>>();
    let is_list = definition.caches.len() > 1;
    let mut entries = Vec::new();
    for (index, cache) in definition.caches.iter().enumerate() {
        let key = match &cache.key {
            CacheKey::Text(text) => json!(variables.fill_in(text)),
            CacheKey::Files { files, commits, prefix } => {
                let index = is_list.then(|| index.to_string());
                let prefix = prefix.as_deref().map(|prefix| variables.fill_in(prefix)).or(index);
                json!({ if *commits { "files_commits" } else { "files" }: fill(files), "prefix": prefix })
            }
        };
        let policy = variables.fill_in(cache.policy.as_deref().unwrap_or("pull-push"));
        if !["pull-push", "pull", "push"].contains(&policy.as_str()) {
            let message = format!("\"{}\" is no policy of a cache", quote(&policy));
            let help = "use one of pull-push, pull, push";
            return Err(vec![cache.place.error(message).with_help(help)]);
        }
        entries.push(CacheEntry {
            key,
            fallback_keys: fill(&cache.fallback_keys),
            paths: fill(&cache.paths),
            untracked: cache.untracked,
            policy,
            when: cache.when.clone().unwrap_or_else(|| "on_success".to_owned()),
        });
    }
    Ok(entries)
}
