//! Requests for the daemon (custom-executor.md §7.2, §7.3). Pure.

use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::environment::JobVariables;
use super::identity::digest;
use super::job_response::JobResponse;
use super::shell;
use step_runner_client::Request;
use step_runner_model::{JobId, Variable};

/// Maximum number of bytes of all variables of a request (service.md §3.7).
const MAX_VARIABLES: usize = 8 << 20;

/// Added to the Runner's own limit, so that the daemon's ends only jobs whose driver was lost.
const TIMEOUT_MARGIN: Duration = Duration::from_mins(10);

/// Longest `cancel_timeout` of a function (language.md §4).
const MAX_CANCEL_TIMEOUT: Duration = Duration::from_mins(10);

/// Decodes the script beside its file variable, runs it, and removes it. `KEY` stands for the variable's name. The
/// signal of a cancel is for the script alone: the shell waits, to remove the file.
const INLINE: &str = r#"trap : HUP INT TERM
file=$KEY
unset KEY
umask_before=$(umask)
umask 077
base64 -d <"$file" >"$file.run" || exit 126
umask "$umask_before"
"$@" "$file.run"
code=$?
trap '' HUP INT TERM
rm -f "$file.run"
exit "$code""#;

/// Looks at the environment: `$1` is the shell of the scripts. Every line of its output is a finding.
const PREPARATION: &str = r#"if [ -n "$STEP_RUNNER_CE_BUILDS_DIR" ]; then
    mkdir -p -- "$STEP_RUNNER_CE_BUILDS_DIR" 2>/dev/null || echo no-builds-dir
fi
for program in "$1" git step-runner gitlab-runner base64; do
    command -v "$program" >/dev/null 2>&1 || echo "no-$program"
done"#;

/// Succeeds if the daemon can read the script at the path `$1`.
const LOOK: &str = r#"[ -r "$1" ]"#;

/// Way in which a script gets to the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The daemon sees the file under the same path.
    Path,
    /// The script is a part of the request.
    Inline,
}

/// A stage to run.
#[derive(Clone, Copy)]
pub(super) struct Stage<'a> {
    pub(super) name: &'a str,
    pub(super) script: &'a Path,
    pub(super) content: &'a [u8],
}

/// Reason why no request could be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RequestError {
    #[error(
        "the script ({size} bytes, a third more as base64) and the job's variables exceed the {MAX_VARIABLES} bytes that all \
         variables of a job may have"
    )]
    TooLarge {
        /// Bytes of the script.
        size: usize,
    },
}

/// Makes the request for `stage`. A cancel has `grace` between the first signal and force.
pub(super) fn stage(
    id: JobId,
    stage: Stage<'_>,
    job: &JobVariables,
    response: &JobResponse,
    delivery: Delivery,
    grace: Duration,
) -> Result<Request, RequestError> {
    let shell = shell::command(stage.script, stage.content);
    let (command, script) = match delivery {
        Delivery::Path => (with(shell, &stage.script.to_string_lossy()), None),
        Delivery::Inline => {
            let key = format!("STEP_RUNNER_CE_{}", digest(id.as_str().as_bytes(), 16));
            let code = INLINE.replace("KEY", &key);
            let command = ["sh", "-c", &code, "sh"].map(str::to_owned).into_iter().chain(shell).collect();
            (command, Some((key, STANDARD.encode(stage.content))))
        }
    };
    let mut variables = job_variables(job, stage.name);
    if let Some((key, value)) = script {
        variables.push(Variable { key, value, file: true, masked: false });
    }
    if variables.iter().map(|variable| variable.key.len() + variable.value.len()).sum::<usize>()
        > MAX_VARIABLES
    {
        return Err(RequestError::TooLarge { size: stage.content.len() });
    }
    let request = Request::new(id, steps(&command, grace)).file(stage.name).cancel_grace(grace);
    let request = request.job_id(&job.id).pipeline_id(&job.pipeline_id);
    let request = variables.into_iter().fold(request, Request::variable);
    let request = response.phrases.iter().fold(request, Request::phrase);
    let request = response.token_prefixes.iter().fold(request, Request::token_prefix);
    // The job file's limit counts if it is known, because an author can set the variable.
    Ok(match response.timeout.or(job.timeout) {
        Some(limit) => request.timeout(limit + TIMEOUT_MARGIN),
        None => request,
    })
}

/// Makes the request that looks at the environment in which `shell` is to run scripts.
pub(super) fn preparation(id: JobId, job: &JobVariables, shell: &str, limit: Duration) -> Request {
    let command = ["sh", "-c", PREPARATION, "sh", shell].map(str::to_owned);
    let request = Request::new(id, steps(&command, Duration::from_secs(1))).timeout(limit);
    let request = job_variables(job, "prepare").into_iter().fold(request, Request::variable);
    request.env("STEP_RUNNER_CE_BUILDS_DIR", &job.builds_dir)
}

/// Makes the request that asks if the daemon sees `script`.
pub(super) fn look(id: JobId, job: &JobVariables, script: &Path, limit: Duration) -> Request {
    let command = with(["sh", "-c", LOOK, "sh"].map(str::to_owned).to_vec(), &script.to_string_lossy());
    let request = Request::new(id, steps(&command, Duration::from_secs(1))).timeout(limit);
    job_variables(job, "look").into_iter().fold(request, Request::variable)
}

fn with(mut command: Vec<String>, argument: &str) -> Vec<String> {
    command.push(argument.to_owned());
    command
}

/// Returns the variables that the queue looks at, and the stage's name. The script has the others in it.
fn job_variables(job: &JobVariables, stage: &str) -> Vec<Variable> {
    let pairs = [
        ("CI_JOB_ID", &*job.id),
        ("CI_PROJECT_ID", &job.project_id),
        ("CI_SERVER_URL", &job.server_url),
        ("STEP_RUNNER_STAGE", stage),
    ];
    pairs
        .into_iter()
        // Values are expanded once.
        .map(|(key, value)| Variable {
            key: key.into(),
            value: value.replace('$', "$$"),
            file: false,
            masked: false,
        })
        .collect()
}

/// Makes a steps document: an empty interface, and one function that runs `command` as it is.
fn steps(command: &[String], grace: Duration) -> String {
    let literal: Vec<_> = command.iter().map(|word| word.replace("${{", r"\${{")).collect();
    let grace = grace.min(MAX_CANCEL_TIMEOUT).as_millis();
    let exec = json!({"exec": {"command": literal, "cancel_timeout": format!("{grace}ms")}});
    format!("spec: {{}}\n---\n{exec}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    const GRACE: Duration = Duration::from_mins(1);

    fn id() -> JobId {
        JobId::parse("ce-1-n-s-build_script").unwrap()
    }

    fn job() -> JobVariables {
        JobVariables { id: "7".into(), project_id: "$(8)".into(), ..JobVariables::default() }
    }

    fn request(content: &[u8], delivery: Delivery) -> Result<Request, RequestError> {
        let of = Stage { name: "build_script", script: Path::new("/t/${{x}}/script"), content };
        stage(id(), of, &job(), &JobResponse::default(), delivery, GRACE)
    }

    fn command(request: &Request) -> Vec<String> {
        let (_, definition) = request.steps().split_once("---\n").unwrap();
        let definition: serde_json::Value = serde_json::from_str(definition).unwrap();
        serde_json::from_value(definition["exec"]["command"].clone()).unwrap()
    }

    #[test]
    fn a_script_is_an_argument_of_its_shell_and_no_template() {
        let made = request(b"#!/bin/sh\n", Delivery::Path).unwrap();
        assert_eq!(command(&made), ["sh", r"/t/\${{x}}/script"]);
        assert_eq!(made.file_name(), "build_script");
    }

    #[test]
    fn documents_are_accepted_as_they_are() {
        for delivery in [Delivery::Path, Delivery::Inline] {
            let text = request(b"x", delivery).unwrap().steps().to_owned();
            step_runner_lang::document::parse_request(&text, "x").unwrap();
        }
    }

    #[test]
    fn a_script_of_six_mebibytes_goes_along_and_a_larger_one_is_measured() {
        assert!(request(&vec![b'x'; 6_000_000], Delivery::Inline).is_ok());
        let error = request(&vec![b'x'; 6_300_000], Delivery::Inline).map(drop).unwrap_err();
        assert_eq!(error, RequestError::TooLarge { size: 6_300_000 });
        assert!(error.to_string().contains("6300000") && error.to_string().contains("8388608"), "{error}");
        assert!(request(&vec![b'x'; 6_300_000], Delivery::Path).is_ok());
    }

    #[test]
    fn the_decoder_runs_any_bytes_and_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let script = b"printf '%s|' \"$0\" >/dev/null; printf '%s' '$HOME \xff\"'\nexit 7".as_slice();
        let made = request(script, Delivery::Inline).unwrap();
        let words = command(&made);
        let key = words[2].split("file=$").nth(1).unwrap().lines().next().unwrap();
        let file = folder.path().join("variable");
        std::fs::write(&file, STANDARD.encode(script)).unwrap();
        let output =
            Command::new(&words[0]).args(&words[1..]).env(key, &file).stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.stdout, b"$HOME \xff\"", "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(7));
        let left: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["variable"]);
    }
}
