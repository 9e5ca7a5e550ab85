//! The sources where the job has no program `git`: the files of the commit, without history. Git's protocol is spoken by
//! a library, so an image needs nothing of its own.

use std::collections::BTreeMap;
use std::fs;

use url::Url;

use super::super::{BuiltinEnvironment, BuiltinError, on_a_thread};
use super::{AUTHENTICATION, CONFIGURATION, DISK, FAULT_OF_JOB, NETWORK, Sources, TOKEN_USER, empty};
use crate::fetch::order::{Order, Source, Stats};
use crate::fetch::worker;
use step_runner_web::Network;

/// Words of our messages, and the exit code that they mean. Without any it is the network.
const WORDS: [(u8, &[&str]); 3] = [
    (AUTHENTICATION, &["credentials are missing or were refused"]),
    (DISK, &["cannot be stored", "cannot write", "No space left"]),
    (
        FAULT_OF_JOB,
        &[
            "cannot find revision",
            "knows no such repository",
            "is no commit",
            "by SHA-256",
            "it sends more than",
        ],
    ),
];

/// Brings the files of the commit. What an earlier job has left goes: nobody could tell it from the sources.
pub(super) fn bring(
    sources: &Sources,
    token: Option<&str>,
    environment: &BuiltinEnvironment<'_>,
) -> Result<(), BuiltinError> {
    let say = environment.say;
    say(
        "WARNING: there is no `git` program where the job runs: the files of the commit come without history, \
         submodules and Git LFS. Install `git`, or use an image that has it, if the job needs them",
    );
    empty(&environment.work_dir, environment)?;
    if !sources.checkout {
        say("Skipping Git checkout");
        return Ok(());
    }
    let scratch = environment.scratch.join("sources");
    fs::create_dir(&scratch).map_err(BuiltinError::file("make", &scratch))?;
    let variable = |name: &str| match name {
        // As for the program: it stands for the certificates of the system.
        "SSL_CERT_FILE" => {
            (environment.variable)("CI_SERVER_TLS_CA_FILE").or_else(|| (environment.variable)(name))
        }
        other => (environment.variable)(other),
    };
    let order = Order {
        source: Source::Git { url: address(&sources.url, token), revision: sources.sha.clone() },
        network: Network::new(variable, |_| None),
        credentials: BTreeMap::new(),
        scratch: scratch.clone(),
    };
    say(&format!("Fetching the files of {}", sources.sha.get(..8).unwrap_or(&sources.sha)));
    let into = environment.work_dir.as_path();
    let fetched = on_a_thread(|| worker::files_of_commit(&order, into));
    fs::remove_dir_all(&scratch).ok();
    let Stats { files, .. } =
        fetched.map_err(|message| BuiltinError::Stage { code: code(&message), message })?;
    say(&format!("{files} files"));
    Ok(())
}

/// Returns the address with the job's token as its password.
fn address(url: &str, token: Option<&str>) -> String {
    let (Some(token), Ok(mut parsed)) = (token, Url::parse(url)) else { return url.to_owned() };
    parsed.set_username(TOKEN_USER).and_then(|()| parsed.set_password(Some(token))).ok();
    parsed.into()
}

/// Returns what a message means.
fn code(message: &str) -> u8 {
    let known = WORDS.iter().find(|(_, all)| all.iter().any(|word| message.contains(word)));
    let wrong_settings = || message.contains("certificate") || message.contains("proxy");
    known.map_or_else(|| if wrong_settings() { CONFIGURATION } else { NETWORK }, |(code, _)| *code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_the_password_of_the_address() {
        let url = "https://other:x@gitlab.test/a/b.git";
        assert_eq!(address(url, Some("t-1")), "https://gitlab-ci-token:t-1@gitlab.test/a/b.git");
        assert_eq!(address(url, None), url);
    }
}
