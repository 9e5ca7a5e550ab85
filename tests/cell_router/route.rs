//! Which cell gets a request: by path and headers alone, without memory.
//!
//! This is a router's own reading of tokens. The agent has another one, for people
//! (`crates/agent/src/tokens/routable.rs`); a test compares the two.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

/// Random bytes before the text in a runner's token; its last byte says so, too.
const RANDOM: usize = 16;

/// Lengths of the payload of a runner's token, in characters.
const PAYLOAD: std::ops::RangeInclusive<usize> = 27..=300;

/// User of Git over HTTP whose password is a job's token.
const GIT_USER: &str = "gitlab-ci-token:";

/// The rules for one set of cells.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    /// Numbers of the cells.
    pub(crate) cells: BTreeSet<u64>,
    /// Prefixes of paths, each with its cell. They serve requests with old tokens.
    pub(crate) paths: Vec<(String, u64)>,
    /// The cell of everything else.
    pub(crate) default: u64,
    /// True to refuse a token that names a cell which is not here. Otherwise the default cell gets it.
    pub(crate) refuses_unknown: bool,
}

/// A chosen cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) cell: u64,
    /// Name of a header that came more than once. The first counted.
    pub(crate) repeated: Option<&'static str>,
}

/// A token names a cell that is not here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnknownCell(pub(crate) u64);

impl Rules {
    /// Chooses the cell of a request.
    pub(crate) fn choose(&self, path: &str, headers: &[(&str, &str)]) -> Result<Choice, UnknownCell> {
        let all = |wanted: &'static str| {
            headers.iter().filter(move |(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| *value)
        };
        let first = |wanted| all(wanted).next();
        let by_token = first("RUNNER-TOKEN")
            .and_then(cell_of_runner_token)
            .or_else(|| first("JOB-TOKEN").and_then(cell_of_job_token))
            .or_else(|| cell_of_job_token(&git_password(first("Authorization")?)?));
        let cell = match by_token {
            Some(cell) if self.cells.contains(&cell) => cell,
            Some(cell) if self.refuses_unknown => return Err(UnknownCell(cell)),
            Some(_) => self.default,
            None => self.cell_of_path(path).unwrap_or(self.default),
        };
        let repeated =
            ["RUNNER-TOKEN", "JOB-TOKEN", "Authorization"].into_iter().find(|name| all(name).count() > 1);
        Ok(Choice { cell, repeated })
    }

    fn cell_of_path(&self, path: &str) -> Option<u64> {
        self.paths.iter().find(|(prefix, _)| path.starts_with(prefix)).map(|(_, cell)| *cell)
    }
}

/// Reads the cell in a runner's token: `glrt-` or `glrtr-`, payload, `.01.`, two characters of its length, seven of a
/// checksum. Neither is verified.
fn cell_of_runner_token(token: &str) -> Option<u64> {
    let rest = token.strip_prefix("glrt-").or_else(|| token.strip_prefix("glrtr-"))?;
    let (payload, check) = rest.split_once(".01.")?;
    let is_check = check.len() == 9 && check.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !is_check || !PAYLOAD.contains(&payload.len()) {
        return None;
    }
    let bytes = URL_SAFE_NO_PAD.decode(payload).ok()?;
    let (_, text) = bytes.split_last().filter(|(last, _)| usize::from(**last) == RANDOM)?;
    let text = std::str::from_utf8(text.get(RANDOM..)?).ok()?;
    let mut lines = text.split('\n').map(|line| line.split_once(':'));
    let pairs: Vec<(&str, u64)> = lines.try_fold(Vec::new(), |mut pairs, line| {
        let (key, value) = line?;
        pairs.push((key, base_36(value)?));
        Some(pairs)
    })?;
    pairs.into_iter().rfind(|(key, _)| *key == "c").map(|(_, cell)| cell)
}

/// Reads the cell in a job's token: `glcbt-`, perhaps behind a prefix of the instance, and a JWT. Its signature is the
/// cell's business.
fn cell_of_job_token(token: &str) -> Option<u64> {
    let (prefix, jwt) = token.split_once("glcbt-")?;
    let is_prefix = |text: &str| {
        text.len() > 1
            && text.ends_with('-')
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
    };
    let parts: Vec<&str> = jwt.split('.').collect();
    let [_, claims, _] = parts[..] else { return None };
    if !prefix.is_empty() && !is_prefix(prefix) {
        return None;
    }
    let claims: serde_json::Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
    base_36(claims.get("c")?.as_str()?)
}

/// Reads the password of Git's basic authentication.
fn git_password(header: &str) -> Option<String> {
    let text = String::from_utf8(STANDARD.decode(header.strip_prefix("Basic ")?).ok()?).ok()?;
    text.strip_prefix(GIT_USER).map(str::to_owned)
}

/// Parses a number of base 36 in lower case.
fn base_36(text: &str) -> Option<u64> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase());
    is_number.then(|| u64::from_str_radix(text, 36).ok()).flatten()
}
