//! Options of `run` and `submit` that describe the job, and the request made from them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use indexmap::IndexMap;

use super::Verbosity;
use super::check::{Allowed, Precheck};
use super::connection::parse_id;
use super::document::{self, Document};
use super::limits::{self, Limit};
use super::pairs::{self, split_pair};
use super::text_file::read_text;
use super::{env_file, made, secrets, selection, time};
use crate::ci::plan::Plan;
use crate::ci::variables::{Defined, Level};
use crate::client::Request;
use crate::error::{Exit, Failure};
use crate::model::{JobId, Variable};
use crate::variables::escape;

/// Options that describe a job. Values can be secrets, so there is no `Debug`.
#[derive(clap::Args)]
#[command(next_help_heading = "Job")]
pub(super) struct JobOptions {
    /// A function file, a folder with func.yml or step.yml, a reference such as builtin://NAME, or - for stdin
    #[arg(value_name = "FILE|REF|-", default_value = ".")]
    target: String,
    /// An input of the function; VALUE is YAML, or text if the input is declared a string
    #[arg(long, value_name = "NAME=VALUE", env = "STEP_RUNNER_INPUT")]
    input: Vec<String>,
    // Options hidden from help are other spellings of one that is shown (docs/integrate/reference-differences.md).
    /// Inputs as --input takes them, also several, separated by commas
    #[arg(long, hide = true, value_name = "NAME=VALUE,…", env = "STEP_RUNNER_INPUTS")]
    inputs: Vec<String>,
    /// A variable of the steps' environment; without a value: a copy of the caller's
    #[arg(long, value_name = "NAME[=VALUE]", env = "STEP_RUNNER_ENV")]
    env: Vec<String>,
    /// Variables of the steps' environment, one a line as in .env files; --env wins
    #[arg(long, value_name = "FILE", env = "STEP_RUNNER_ENV_FILE")]
    env_file: Vec<PathBuf>,
    /// A job variable
    #[arg(long, value_name = "NAME=VALUE", env = "STEP_RUNNER_VAR")]
    var: Vec<String>,
    /// Run this job of a CI file: FILE, by default .gitlab-ci.yml in the root of the work tree
    // NAME=VALUE is another spelling of --job-vars. Steps have a variable STEP_RUNNER_JOB of another meaning.
    #[arg(long, value_name = "NAME", help_heading = "Job of a CI file")]
    job: Vec<String>,
    /// Job variables with literal values, also several, separated by commas
    #[arg(long, hide = true, value_name = "NAME=VALUE,…", env = "STEP_RUNNER_JOB_VARS")]
    job_vars: Vec<String>,
    /// A job variable that holds the path of a file with the content of PATH
    #[arg(long, value_name = "NAME=PATH", env = "STEP_RUNNER_FILE_VAR")]
    file_var: Vec<String>,
    /// A secret job variable; its value is taken from the caller's environment
    #[arg(long, value_name = "NAME", env = "STEP_RUNNER_MASKED_VAR")]
    masked_var: Vec<String>,
    /// Mask the value of a variable of the caller's environment
    #[arg(long, value_name = "NAME", env = "STEP_RUNNER_MASK_ENV")]
    mask_env: Vec<String>,
    /// Mask the content of a file, and each of its lines
    #[arg(long, value_name = "PATH", env = "STEP_RUNNER_MASK_FILE")]
    mask_file: Vec<PathBuf>,
    /// Mask tokens that begin with P
    #[arg(long, value_name = "P", env = "STEP_RUNNER_TOKEN_PREFIX")]
    token_prefix: Vec<String>,
    /// Working directory of the job; default: the current one
    #[arg(long, value_name = "DIR", env = "STEP_RUNNER_WORK_DIR")]
    work_dir: Option<PathBuf>,
    /// Make the working directory if it is not there
    #[arg(long, env = "STEP_RUNNER_MAKE_WORK_DIR")]
    make_work_dir: bool,
    /// Id of the job; default: a random one of 13 characters
    #[arg(long, value_name = "ID", value_parser = parse_id, env = "STEP_RUNNER_ID")]
    id: Option<JobId>,
    /// Limit of the job's running time
    #[arg(long, value_name = "TIME", value_parser = time::positive, env = "STEP_RUNNER_TIMEOUT")]
    timeout: Option<Duration>,
    /// Longest time between SIGTERM and SIGKILL when the job is cancelled
    #[arg(long, value_name = "TIME", value_parser = time::positive, env = "STEP_RUNNER_CANCEL_GRACE")]
    cancel_grace: Option<Duration>,
    /// Longest time for the steps with `when: always` after the job is stopped; at most 24h
    #[arg(long, value_name = "TIME", value_parser = time::positive, env = "STEP_RUNNER_CLEANUP_TIMEOUT")]
    cleanup_timeout: Option<Duration>,
    /// A limit of the job's processes: processes=N, memory=SIZE, cpus=N, open_files=N
    #[arg(long, value_name = "NAME=VALUE", value_parser = limits::parse, env = "STEP_RUNNER_LIMIT")]
    limit: Vec<Limit>,
    /// A failing line ends a script, as with `set -e` and `set -o pipefail`, unless its step has `errexit: false`
    #[arg(long, env = "STEP_RUNNER_ERREXIT")]
    errexit: bool,
    /// Start the job although `step-runner check` would find errors
    #[arg(long, env = "STEP_RUNNER_NO_CHECK")]
    no_check: bool,
    #[command(flatten)]
    allowed: Allowed,
}

/// Jobs that a command runs, one after another.
pub(super) trait Jobs {
    /// Makes the request of the next job. `code` is the exit code of the one before.
    fn next(&mut self, code: Option<u8>) -> Result<Option<Request>, Failure>;

    /// True if there is a next one, unless the one before it fails.
    fn has_next(&self) -> bool;
}

impl JobOptions {
    /// True if the caller chose the id. Only then can a job with this id exist already.
    pub(super) const fn names_its_id(&self) -> bool {
        self.id.is_some()
    }

    /// Hides the job's secrets in everything that this process writes from now on. Call it before anything else can fail.
    pub(super) fn hide_secrets(&self) -> Result<Phrases, Failure> {
        self.hide_secrets_of(|name| std::env::var_os(name))
    }

    /// The file, folder or reference that is to run.
    pub(super) fn target(&self) -> &str {
        &self.target
    }

    /// Returns the name of the job of a CI file, if one is named.
    pub(super) fn ci_job(&self) -> Result<Option<&str>, Failure> {
        let mut names = self.job.iter().filter(|value| !is_pairs(value));
        match (names.next(), names.next()) {
            (Some(_), Some(_)) => Err(Failure::new(Exit::Usage, "--job names one job")
                .with_remedy("the jobs that it needs run with --needs")),
            (name, _) => Ok(name.map(String::as_str)),
        }
    }

    /// Returns the inputs of a CI file, as they are written.
    pub(super) fn texts_of_inputs(&self) -> Result<IndexMap<String, String>, Failure> {
        pairs::by_name(&self.input, "input")
    }

    /// Makes the request for a planned job of a CI file. `is_named` is true for the job that the caller named.
    pub(super) fn planned(
        &self,
        plan: Plan,
        phrases: &Phrases,
        project: &Path,
        is_named: bool,
    ) -> Result<Request, Failure> {
        let id = match &self.id {
            Some(id) if is_named => id.clone(),
            _ => selection::new_id()?,
        };
        let mut request = Request::new(id, plan.steps)
            .file(made::PLANNED)
            .work_dir(project.display().to_string())
            .private_file_variables()
            .cleanup_timeout(plan.cleanup_timeout);
        for (name, value) in plan.inputs {
            request = request.input(name, value);
        }
        request = self.environment(request, &|name| std::env::var_os(name))?;
        request = plan.variables.into_iter().fold(request, Request::variable);
        if let Some(limit) = plan.timeout {
            request = request.timeout(limit);
        }
        Ok(self.bounds(request, phrases))
    }

    /// Adds what the options say about secrets and limits.
    fn bounds(&self, mut request: Request, phrases: &Phrases) -> Request {
        request = phrases.0.iter().cloned().fold(request, Request::phrase);
        request = self.token_prefix.iter().fold(request, Request::token_prefix);
        if let Some(limit) = self.timeout {
            request = request.timeout(limit);
        }
        if let Some(grace) = self.cancel_grace {
            request = request.cancel_grace(grace);
        }
        if let Some(limit) = self.cleanup_timeout {
            request = request.cleanup_timeout(limit);
        }
        if self.errexit {
            request = request.errexit();
        }
        match limits::collect(&self.limit) {
            Some(limits) => request.limits(limits),
            None => request,
        }
    }

    fn hide_secrets_of(&self, lookup: impl Fn(&str) -> Option<OsString>) -> Result<Phrases, Failure> {
        let register = |phrases: &[String]| {
            secrets::register(phrases, &self.token_prefix)
                .map_err(|error| Failure::new(Exit::Refused, format!("cannot start the job: {error}")))
        };
        let mut phrases = self.phrases_of_variables(&lookup)?;
        // A message about the files below must not hold these.
        register(&phrases)?;
        phrases.extend(self.phrases_of_files()?);
        register(&phrases)?;
        Ok(Phrases(phrases))
    }

    /// Makes the request. `shares_files` is true if the daemon sees the same files as this process.
    pub(super) fn request(
        &self,
        phrases: &Phrases,
        shares_files: bool,
        verbosity: Verbosity,
    ) -> Result<Request, Failure> {
        self.request_with(phrases, shares_files, false, verbosity, |name| std::env::var_os(name))
    }

    /// Makes the request for a daemon inside this process.
    pub(super) fn own_request(&self, phrases: &Phrases, verbosity: Verbosity) -> Result<Request, Failure> {
        self.request_with(phrases, true, true, verbosity, |name| std::env::var_os(name))
    }

    fn request_with(
        &self,
        phrases: &Phrases,
        shares_files: bool,
        is_own_daemon: bool,
        verbosity: Verbosity,
        lookup: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Request, Failure> {
        let id = match &self.id {
            Some(id) => id.clone(),
            None => selection::new_id()?,
        };
        let given = [self.input.clone(), pairs::read(&self.inputs, "inputs")?].concat();
        let (work_dir, allowed) = (self.work_dir.as_deref(), &self.allowed);
        let errexit = self.errexit;
        let check = Precheck { work_dir, shares_files, is_own_daemon, errexit, allowed, verbosity };
        let check = Some(&check).filter(|_| !self.no_check);
        let Document { text, name, inputs } = document::read(&self.target, shares_files, &given, check)?;
        let mut request = Request::new(id, text).file(name);
        if let Some(folder) = self.work_dir(shares_files)? {
            request = request.work_dir(folder);
        }
        for (name, value) in inputs {
            request = request.input(name, value);
        }
        request = self.environment(request, &lookup)?;
        if !self.file_var.is_empty() {
            // Another job in this folder may have a variable of that name, or its user a file.
            request = request.private_file_variables();
        }
        for (key, Defined { value, raw, file, masked }) in self.variables_with(&lookup)? {
            let value = if raw { escape(&value) } else { value };
            request = request.variable(Variable { key, value, file, masked });
        }
        Ok(self.bounds(request, phrases))
    }

    /// Returns the job variables that the options give.
    pub(super) fn variables(&self) -> Result<Level, Failure> {
        self.variables_with(&|name| std::env::var_os(name))
    }

    /// Asks the steps for colours, because the user sees them. What the user or the job says of colours counts more.
    pub(super) fn with_colors(request: Request) -> Request {
        let is_said = |name: &str| request.has_env(name) || std::env::var_os(name).is_some();
        if ["NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"].into_iter().any(is_said) {
            return request;
        }
        request.env("FORCE_COLOR", "1").env("CLICOLOR_FORCE", "1")
    }

    /// Returns the folders whose files are the job's: the working directory, and that of its document, if it lies elsewhere.
    pub(super) fn folders(&self) -> Result<Vec<PathBuf>, Failure> {
        if self.target == "-" {
            return Err(Failure::new(Exit::Usage, "--watch needs a file, and stdin can be read once"));
        }
        // A target that is no path is a reference, which does not change.
        let document = std::fs::canonicalize(&self.target).ok();
        let folder =
            document.and_then(|path| if path.is_dir() { Some(path) } else { Some(path.parent()?.into()) });
        let work_dir = self.work_dir(true)?.map(PathBuf::from);
        let is_elsewhere =
            |folder: &PathBuf| !work_dir.as_ref().is_some_and(|work_dir| folder.starts_with(work_dir));
        let document = folder.filter(is_elsewhere);
        Ok(work_dir.into_iter().chain(document).collect())
    }

    fn work_dir(&self, shares_files: bool) -> Result<Option<String>, Failure> {
        let path = match &self.work_dir {
            Some(path) if shares_files => std::path::absolute(path),
            Some(path) => Ok(path.clone()),
            None if shares_files => std::env::current_dir(),
            None => return Ok(None),
        };
        let path = path.map_err(|error| {
            Failure::new(Exit::Failure, format!("cannot find the working directory: {error}"))
        })?;
        let found = std::fs::metadata(&path);
        let is_absent = found.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
        if shares_files && is_absent && !self.make_work_dir {
            let text = format!("the working directory {} does not exist", path.display());
            return Err(Failure::new(Exit::Usage, text).with_remedy("make it, or add --make-work-dir"));
        }
        if shares_files && found.is_ok_and(|found| !found.is_dir()) {
            return Err(Failure::new(
                Exit::Usage,
                format!("the working directory {} is a file, not a folder", path.display()),
            ));
        }
        path.into_os_string().into_string().map(Some).map_err(|path| {
            Failure::new(Exit::Usage, format!("the working directory {} is not UTF-8", path.display()))
        })
    }

    fn environment(
        &self,
        mut request: Request,
        lookup: &impl Fn(&str) -> Option<OsString>,
    ) -> Result<Request, Failure> {
        for file in &self.env_file {
            for (name, value) in env_file::read(file, lookup)? {
                request = request.env(name, value);
            }
        }
        for item in &self.env {
            request = match item.split_once('=') {
                Some(("", _)) => return Err(Failure::new(Exit::Usage, "--env wants a name before the `=`")),
                Some((name, value)) => request.env(name, value),
                None => {
                    let value = own_value(item, lookup);
                    request.env(item, value.map_err(|what| unusable(&format!("--env {item}"), &what))?)
                }
            };
        }
        Ok(request)
    }

    fn variables_with(&self, lookup: &impl Fn(&str) -> Option<OsString>) -> Result<Level, Failure> {
        let mut level = Level::new();
        for pair in &self.var {
            let (name, value) = split_pair(pair, "var")?;
            level.insert(name.to_owned(), Defined::expanded(value));
        }
        let pairs: Vec<String> = self.job.iter().filter(|value| is_pairs(value)).cloned().collect();
        for pair in [pairs::read(&self.job_vars, "job-vars")?, pairs::read(&pairs, "job")?].concat() {
            let (name, value) = split_pair(&pair, "job")?;
            level.insert(name.to_owned(), Defined::raw(value));
        }
        for pair in &self.file_var {
            let (name, path) = split_pair(pair, "file-var")?;
            // Job variables are expanded once, but the content of a file is meant literally.
            let content = read_text(path.as_ref(), &format!("--file-var {name}"))?;
            level.insert(name.to_owned(), Defined { file: true, ..Defined::raw(content) });
        }
        for name in &self.masked_var {
            let value = own_value(name, lookup).map_err(|what| unusable("--masked-var", &what))?;
            level.insert(name.to_owned(), Defined { masked: true, ..Defined::raw(value) });
        }
        Ok(level)
    }

    /// Returns the values of variables to mask. Errors quote no name: it may be the secret itself.
    fn phrases_of_variables(
        &self,
        lookup: &impl Fn(&str) -> Option<OsString>,
    ) -> Result<Vec<String>, Failure> {
        let mut phrases = Vec::new();
        for (option, names) in [("--masked-var", &self.masked_var), ("--mask-env", &self.mask_env)] {
            for (at, name) in names.iter().enumerate() {
                let value = own_value(name, lookup);
                phrases.push(value.map_err(|what| unusable(&numbered(option, at, names.len()), &what))?);
            }
        }
        Ok(phrases)
    }

    /// Returns the contents of files to mask. Errors quote no path, as above.
    fn phrases_of_files(&self) -> Result<Vec<String>, Failure> {
        let mut phrases = Vec::new();
        for (at, path) in self.mask_file.iter().enumerate() {
            let text = read_text(path, &numbered("--mask-file", at, self.mask_file.len()))?;
            phrases.extend(text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned));
            if text.trim_end().contains('\n') {
                phrases.push(text.trim_end().to_owned());
            }
        }
        Ok(phrases)
    }
}

/// The phrases of a job, which this process hides in what it writes.
pub(super) struct Phrases(Vec<String>);

/// True if a value of `--job` is job variables: the name of a variable is before its first `=`.
fn is_pairs(value: &str) -> bool {
    let name = value.trim_start_matches('"').split_once('=').map_or("", |(name, _)| name);
    name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Names one of several options: `--mask-file (2 of 3)`.
fn numbered(option: &str, at: usize, of: usize) -> String {
    if of == 1 { option.to_owned() } else { format!("{option} ({} of {of})", at + 1) }
}

fn unusable(option: &str, what: &str) -> Failure {
    Failure::new(Exit::Usage, format!("{option}: {what}"))
}

/// Returns the value of a variable of the caller's environment. Errors quote neither the value nor the name.
fn own_value(name: &str, lookup: &impl Fn(&str) -> Option<OsString>) -> Result<String, String> {
    if name.contains('=') {
        return Err(
            "it wants the name of a variable, not a value: put the value into the environment".to_owned()
        );
    }
    let value = lookup(name).ok_or("there is no variable of this name in the environment")?;
    value.into_string().map_err(|_| "the value of this variable is not UTF-8".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Parsed {
        #[command(flatten)]
        job: JobOptions,
    }

    fn request(arguments: &[&str]) -> Result<Request, Failure> {
        let words = ["test", "builtin://x"].iter().chain(arguments);
        let job = Parsed::try_parse_from(words).ok().unwrap().job;
        let verbosity = Verbosity { quiet: true, verbose: 0 };
        let lookup = |name: &str| (name == "SECRET").then(|| "hid$den".into());
        job.request_with(&job.hide_secrets_of(lookup)?, true, false, verbosity, lookup)
    }

    #[test]
    fn masked_variables_come_from_the_environment() {
        let request = request(&["--masked-var", "SECRET"]).unwrap();
        assert!(!format!("{request:?}").contains("hid"));
    }

    #[test]
    fn a_secret_given_as_an_argument_is_refused_and_not_repeated() {
        for option in ["--masked-var", "--mask-env", "--mask-file"] {
            for given in ["NAME=topsecret", "topsecret"] {
                let error = request(&[option, given]).unwrap_err();
                assert_eq!(error.exit(), Exit::Usage);
                assert!(!error.to_string().contains("topsecret"), "{error}");
            }
        }
        let error = request(&["--masked-var", "SECRET", "--masked-var", "topsecret"]).unwrap_err();
        assert!(error.to_string().starts_with("--masked-var (2 of 2): "), "{error}");
    }

    #[test]
    fn a_variable_that_is_not_set_is_named() {
        let error = request(&["--env", "NO_SUCH"]).unwrap_err();
        assert!(error.to_string().contains("NO_SUCH"), "{error}");
    }
}
