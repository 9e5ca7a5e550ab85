//! The calls of `git` that bring the sources, and what their failures mean.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use url::Url;

use super::super::{BuiltinEnvironment, BuiltinError};
use super::{
    AUTHENTICATION, CONFIGURATION, DISK, FAULT_OF_JOB, NETWORK, Sources, Strategy, TOKEN_USER, empty,
};
use step_runner_process::tool::Tool;

/// Variable of a job that does not want the files kept in Git LFS.
const SKIP_LARGE_FILES: &str = "GIT_LFS_SKIP_SMUDGE";

/// Lists the files of a repository that are kept in Git LFS.
const LIST_LARGE_FILES: [&str; 3] = ["ls-files", "--", ":(attr:filter=lfs)"];

/// Fetches these files. Git LFS puts them into the work tree only where its filter is set, which a machine may not have.
const FETCH_LARGE_FILES: [&str; 6] = [
    "-c",
    "filter.lfs.clean=git-lfs clean -- %f",
    "-c",
    "filter.lfs.smudge=git-lfs smudge -- %f",
    "lfs",
    "pull",
];

/// Words of `git`, in lower case, and the exit code that they mean. The first row that fits counts.
const WORDS: [(u8, &[&str]); 4] = [
    (DISK, &["no space left on device", "disk quota exceeded"]),
    (
        AUTHENTICATION,
        &[
            "authentication failed",
            "access denied",
            "authorization error",
            "could not read username",
            "could not read password",
            "returned error: 401",
            "returned error: 403",
        ],
    ),
    (
        FAULT_OF_JOB,
        &[
            "couldn't find remote ref",
            "reference is not a tree",
            "not our ref",
            "unable to read tree",
            "unknown option",
            "unknown switch",
            "usage: git",
            "repository not found",
            "returned error: 404",
        ],
    ),
    (
        NETWORK,
        &[
            "could not resolve host",
            "failed to connect",
            "couldn't connect",
            "connection refused",
            "connection reset",
            "timed out",
            "unable to access",
            "early eof",
            "rpc failed",
            "hung up unexpectedly",
            "returned error: 5",
            "dial tcp",
            "server error: ",
        ],
    ),
];

/// The program with the settings of one job.
pub(super) struct Git<'e> {
    environment: &'e BuiltinEnvironment<'e>,
    variables: Vec<(String, OsString)>,
    /// File with the job's token, removed with this value.
    credentials: Option<PathBuf>,
}

impl Drop for Git<'_> {
    fn drop(&mut self) {
        if let Some(path) = &self.credentials {
            fs::remove_file(path).ok();
        }
    }
}

impl<'e> Git<'e> {
    /// Prepares the program. The token is for the address of the sources.
    pub(super) fn new(
        sources: &Sources,
        token: Option<&str>,
        environment: &'e BuiltinEnvironment<'e>,
    ) -> Result<Self, BuiltinError> {
        let mut settings = vec![
            ("safe.directory".to_owned(), "*".to_owned()),
            ("gc.autoDetach".to_owned(), "false".to_owned()),
            ("fetch.recurseSubmodules".to_owned(), "false".to_owned()),
            ("credential.interactive".to_owned(), "never".to_owned()),
        ];
        let mut credentials = None;
        if let Some(token) = token
            && let Ok(url) = Url::parse(&sources.url)
        {
            let origin = url.origin().ascii_serialization();
            let path = environment.scratch.join("git-credentials");
            write_credentials(&path, &url, token).map_err(BuiltinError::file("write", &path))?;
            let key = format!("credential.{origin}.helper");
            // The helpers of the machine do not learn of the token.
            settings.push((key.clone(), String::new()));
            settings.push((key, format!("store --file={}", quoted(&path))));
            credentials = Some(path);
        }
        let mut variables: Vec<(String, OsString)> = vec![
            ("LC_ALL".to_owned(), "C".into()),
            ("GIT_TERMINAL_PROMPT".to_owned(), "0".into()),
            // A checkout would fetch them one by one. They come together, afterwards.
            (SKIP_LARGE_FILES.to_owned(), "1".into()),
            ("GIT_CONFIG_COUNT".to_owned(), settings.len().to_string().into()),
        ];
        for (index, (key, value)) in settings.into_iter().enumerate() {
            variables.push((format!("GIT_CONFIG_KEY_{index}"), key.into()));
            variables.push((format!("GIT_CONFIG_VALUE_{index}"), value.into()));
        }
        if let Some(file) = (environment.variable)("CI_SERVER_TLS_CA_FILE") {
            variables.push(("GIT_SSL_CAINFO".to_owned(), file.into()));
        }
        Ok(Self { environment, variables, credentials })
    }

    /// Brings the sources.
    pub(super) fn bring(&self, sources: &Sources) -> Result<(), BuiltinError> {
        let folder = &self.environment.work_dir;
        let say = self.environment.say;
        if sources.strategy == Strategy::Clone || !is_repository(&folder.join(".git")) {
            empty(folder, self.environment)?;
        } else {
            remove_stale(&folder.join(".git"));
        }
        let is_new = !folder.join(".git").exists();
        say(if is_new { "Initialized empty Git repository" } else { "Fetching changes" });
        let format = if sources.is_sha256 { &["--object-format=sha256"][..] } else { &[] };
        self.git(&[&["init", "--quiet", "--template="], format].concat())?;
        // The origin is that of this job, whatever an earlier one has left.
        self.quietly(&["remote", "remove", "origin"]);
        self.git(&["remote", "add", "origin", &sources.url])?;
        self.fetch(sources)?;
        if !sources.checkout {
            say("Skipping Git checkout");
            return Ok(());
        }
        let short = sources.sha.get(..8).unwrap_or(&sources.sha);
        say(&format!("Checking out {short} as detached HEAD"));
        self.git(&["-c", "submodule.recurse=false", "checkout", "-f", "-q", &sources.sha])?;
        let clean = self.words("GIT_CLEAN_FLAGS", "-ffdx");
        if clean != ["none"] {
            self.git_with(&["clean"], &clean)?;
        }
        self.large_files(&LIST_LARGE_FILES, &FETCH_LARGE_FILES)?;
        self.submodules()
    }

    fn fetch(&self, sources: &Sources) -> Result<(), BuiltinError> {
        let depth = match sources.depth {
            0 if self.environment.work_dir.join(".git/shallow").exists() => vec!["--unshallow".to_owned()],
            0 => Vec::new(),
            depth => vec!["--depth".to_owned(), depth.to_string()],
        };
        let extra = match self.words("GIT_FETCH_EXTRA_FLAGS", "--prune --quiet") {
            words if words == ["none"] => Vec::new(),
            words => words,
        };
        let words = [depth, extra, vec!["origin".to_owned()], sources.refspecs.clone()].concat();
        self.git_with(&["fetch", "--no-recurse-submodules"], &words)
    }

    /// Brings submodules, if the job wants them.
    fn submodules(&self) -> Result<(), BuiltinError> {
        let recursive = match (self.environment.variable)("GIT_SUBMODULE_STRATEGY").as_deref() {
            Some("normal") => &[][..],
            Some("recursive") => &["--recursive"][..],
            _ => return Ok(()),
        };
        (self.environment.say)("Updating submodules");
        let depth = (self.environment.variable)("GIT_SUBMODULE_DEPTH")
            .filter(|depth| depth.parse::<u32>().is_ok_and(|depth| depth > 0))
            .map(|depth| vec!["--depth".to_owned(), depth]);
        let paths = self.words("GIT_SUBMODULE_PATHS", "");
        let paths = if paths.is_empty() { paths } else { [vec!["--".to_owned()], paths].concat() };
        self.git(&[&["submodule", "sync", "--quiet"], recursive].concat())?;
        let words = [depth.unwrap_or_default(), paths].concat();
        self.git_with(&[&["submodule", "update", "--init", "--force"], recursive].concat(), &words)?;
        let each = [&["submodule", "--quiet", "foreach"], recursive].concat();
        let list = format!("git {}", shell_words::join(LIST_LARGE_FILES));
        let fetch = format!("git {}", shell_words::join(FETCH_LARGE_FILES));
        self.large_files(&[&each[..], &[&list]].concat(), &[&each[..], &[&fetch]].concat())
    }

    /// Fetches files that are kept in Git LFS, if `list` names any and the job wants them.
    fn large_files(&self, list: &[&str], fetch: &[&str]) -> Result<(), BuiltinError> {
        let is_unwanted = (self.environment.variable)(SKIP_LARGE_FILES).is_some_and(|value| is_true(&value));
        if is_unwanted || self.answer(list).is_none_or(|names| names.is_empty()) {
            return Ok(());
        }
        if self.answer(&["lfs", "version"]).is_none() {
            (self.environment.say)(
                "WARNING: files kept in Git LFS stay pointers: there is no `git-lfs` program where the job runs. \
                 Install it, or set GIT_LFS_SKIP_SMUDGE to 1 if the job does not need these files",
            );
            return Ok(());
        }
        (self.environment.say)("Fetching files of Git LFS");
        self.git(fetch)
    }

    /// Returns the words of a variable of the job; `default` if it is not set or cannot be split.
    fn words(&self, name: &str, default: &str) -> Vec<String> {
        let text = (self.environment.variable)(name).filter(|text| !text.trim().is_empty());
        let split = |text: &str| shell_words::split(text).ok();
        text.as_deref().and_then(split).or_else(|| split(default)).unwrap_or_default()
    }

    fn git(&self, words: &[&str]) -> Result<(), BuiltinError> {
        self.git_with(words, &[])
    }

    fn git_with(&self, words: &[&str], more: &[String]) -> Result<(), BuiltinError> {
        let what =
            words.iter().find(|word| !word.starts_with('-') && !word.contains('=')).copied().unwrap_or("git");
        let end = self.tool(words, more).run_with_errors();
        let end = end.map_err(|error| BuiltinError::Stage {
            code: CONFIGURATION,
            message: format!("cannot start git: {error}"),
        })?;
        let said = String::from_utf8_lossy(&end.stderr).into_owned();
        for line in said.lines() {
            (self.environment.say)(line);
        }
        if end.status.success() {
            return Ok(());
        }
        let code = code(&said);
        let message = format!("git {what} failed: {}", reason(code));
        Err(BuiltinError::Stage { code, message })
    }

    fn quietly(&self, words: &[&str]) {
        drop(self.answer(words));
    }

    /// Returns what a command prints; `None` if it fails.
    fn answer(&self, words: &[&str]) -> Option<Vec<u8>> {
        self.tool(words, &[]).answer().ok().flatten()
    }

    fn tool(&self, words: &[&str], more: &[String]) -> Tool {
        let arguments = words.iter().map(OsString::from).chain(more.iter().map(OsString::from));
        Tool::new("git", &self.environment.work_dir, arguments).variables(self.variables.clone())
    }
}

fn write_credentials(path: &Path, url: &Url, token: &str) -> std::io::Result<()> {
    let mut url = url.clone();
    url.set_path("");
    url.set_username(TOKEN_USER).and_then(|()| url.set_password(Some(token))).ok();
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).clone();
    writeln!(file.open(path)?, "{}", url.as_str().trim_end_matches('/'))
}

/// Returns a path for the line of a helper, which a shell reads.
fn quoted(path: &Path) -> String {
    shell_words::quote(&path.display().to_string()).into_owned()
}

/// True if GitLab Runner takes the value of a variable as true.
fn is_true(value: &str) -> bool {
    matches!(value, "1" | "t" | "T" | "true" | "True" | "TRUE")
}

/// Removes what an earlier job or a killed `git` has left in a repository and in those of its submodules: hooks and settings
/// would run programs beside the next job's token.
fn remove_stale(repository: &Path) {
    for name in ["index.lock", "shallow.lock", "HEAD.lock", "config.lock", "packed-refs.lock", "config"] {
        fs::remove_file(repository.join(name)).ok();
    }
    fs::remove_dir_all(repository.join("hooks")).ok();
    remove_stale_below(&repository.join("modules"));
}

fn remove_stale_below(modules: &Path) {
    let entries = is_folder(modules).then(|| fs::read_dir(modules).ok()).flatten();
    for folder in entries.into_iter().flatten().flatten().map(|entry| entry.path()) {
        if folder.join("HEAD").exists() {
            remove_stale(&folder);
        } else {
            // The name of a submodule can have slashes.
            remove_stale_below(&folder);
        }
    }
}

/// True for a repository that lies here with those of its submodules. A file or a link names one elsewhere.
fn is_repository(git: &Path) -> bool {
    let modules = git.join("modules");
    is_folder(git) && (is_folder(&modules) || fs::symlink_metadata(&modules).is_err())
}

/// True for a folder that is no link to one.
fn is_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

/// Returns what the words of a failed `git` mean.
fn code(words: &str) -> u8 {
    let words = words.to_ascii_lowercase();
    WORDS
        .iter()
        .find(|(_, all)| all.iter().any(|word| words.contains(word)))
        .map_or(FAULT_OF_JOB, |(code, _)| *code)
}

const fn reason(code: u8) -> &'static str {
    match code {
        DISK => "the disk is full",
        NETWORK => "the server cannot be reached",
        AUTHENTICATION => "the server refuses the job's token",
        _ => "see the lines above",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_git_are_told_apart() {
        for (words, wanted) in [
            ("fatal: unable to access 'http://x/': Could not resolve host: x", NETWORK),
            ("fatal: unable to access 'http://x/': The requested URL returned error: 503", NETWORK),
            (
                "remote: HTTP Basic: Access denied\nfatal: Authentication failed for 'http://x/'",
                AUTHENTICATION,
            ),
            ("fatal: could not read Username for 'http://x': terminal prompts disabled", AUTHENTICATION),
            ("batch response: Authorization error: http://x/info/lfs/objects/batch", AUTHENTICATION),
            ("batch request: dial tcp 127.0.0.1:1: connect: no route to host", NETWORK),
            ("batch response: Server error: http://x/info/lfs/objects/batch", NETWORK),
            ("fatal: couldn't find remote ref refs/heads/gone", FAULT_OF_JOB),
            ("fatal: reference is not a tree: 1111", FAULT_OF_JOB),
            ("fatal: unable to access 'http://x/': The requested URL returned error: 404", FAULT_OF_JOB),
            ("error: unable to write file: No space left on device", DISK),
            ("something else", FAULT_OF_JOB),
        ] {
            assert_eq!(code(words), wanted, "{words}");
        }
    }
}
