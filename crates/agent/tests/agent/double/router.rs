//! A router in front of several cells, without memory: it chooses by headers and path alone (agent.md §2.1).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use step_runner_agent::tokens::routable::Routable;

/// User of git over HTTP with a job's token.
const GIT_USER: &str = "gitlab-ci-token:";

/// Which cell gets which request.
pub(crate) struct Router {
    /// Numbers of the cells.
    pub(crate) cells: Vec<u64>,
    /// Prefixes of paths, with the cell of each.
    pub(crate) paths: Vec<(&'static str, u64)>,
    /// The cell of everything else.
    pub(crate) default: u64,
}

impl Router {
    /// Returns the cell of a request. Of equal headers the first counts.
    pub(crate) fn cell(&self, path: &str, headers: &[(&str, &str)]) -> u64 {
        let header = |wanted: &str| {
            headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| *value)
        };
        let by_token = header("RUNNER-TOKEN")
            .and_then(Routable::of_runner_token)
            .or_else(|| header("JOB-TOKEN").and_then(Routable::of_job_token))
            .or_else(|| Routable::of_job_token(&password(header("Authorization")?)?));
        let by_path =
            || self.paths.iter().find(|(prefix, _)| path.starts_with(prefix)).map(|(_, cell)| *cell);
        let found = by_token.and_then(|found| found.cell).or_else(by_path);
        found.filter(|cell| self.cells.contains(cell)).unwrap_or(self.default)
    }
}

/// Returns the password of git's basic authentication.
fn password(header: &str) -> Option<String> {
    let text = String::from_utf8(STANDARD.decode(header.strip_prefix("Basic ")?).ok()?).ok()?;
    text.strip_prefix(GIT_USER).map(str::to_owned)
}
