//! Facts about the project that git knows: commit, branch or tag, remote (ci.md §3).

use std::path::Path;

use url::Url;

use crate::ci::variables::{CommitFacts, RepositoryFacts};
use crate::process::git;

/// Default branch of a project whose remote does not tell it.
const DEFAULT_BRANCH: &str = "main";

/// Returns the commit that is checked out.
pub(super) fn commit(project: &Path) -> Option<CommitFacts> {
    let format = "--format=%H%x00%an <%ae>%x00%cI%x00%B";
    let shown = String::from_utf8_lossy(&git::ask(project, &["log", "-1", format])?).into_owned();
    let mut parts = shown.splitn(4, '\0');
    let mut part = || parts.next().unwrap_or_default().to_owned();
    let (sha, author, timestamp) = (part(), part(), part());
    let branch = git::line(project, &["symbolic-ref", "--short", "-q", "HEAD"]);
    let tag = branch
        .is_none()
        .then(|| git::line(project, &["describe", "--tags", "--exact-match", "HEAD"]))
        .flatten();
    Some(CommitFacts {
        sha,
        author,
        timestamp,
        message: part().trim_end_matches('\n').to_owned(),
        is_tag: tag.is_some(),
        ref_name: branch.or(tag).unwrap_or_default(),
    })
}

/// Returns the default branch.
pub(super) fn default_branch(project: &Path) -> String {
    let head = git::line(project, &["symbolic-ref", "--short", "-q", "refs/remotes/origin/HEAD"]);
    let branch = head.as_deref().and_then(|head| head.strip_prefix("origin/"));
    branch.unwrap_or(DEFAULT_BRANCH).to_owned()
}

/// Returns the server and path of the remote.
pub(super) fn repository(project: &Path) -> Option<RepositoryFacts> {
    of_remote(&git::line(project, &["config", "--get", "remote.origin.url"])?)
}

/// Reads the URL of a remote. Of one for ssh the server is taken to have HTTPS, too.
fn of_remote(url: &str) -> Option<RepositoryFacts> {
    let (server_url, path) = match Url::parse(url) {
        Ok(url) if url.has_host() => {
            let host = url.host_str()?;
            let server = match (url.scheme(), url.port()) {
                (scheme @ ("http" | "https"), Some(port)) => format!("{scheme}://{host}:{port}"),
                (scheme @ ("http" | "https"), None) => format!("{scheme}://{host}"),
                _ => format!("https://{host}"),
            };
            (server, url.path().to_owned())
        }
        Ok(_) => return None,
        Err(_) => {
            let (host, path) = url.split_once(':').filter(|(host, _)| !host.contains('/'))?;
            (format!("https://{}", host.rsplit('@').next().unwrap_or_default()), path.to_owned())
        }
    };
    let path = path.trim_matches('/');
    let path = path.strip_suffix(".git").unwrap_or(path).to_owned();
    (!path.is_empty()).then_some(RepositoryFacts { server_url, path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remotes_name_a_server_and_a_path() {
        for (url, expected) in [
            ("https://me:secret@git.example.com:8443/g/p.git", Some(("https://git.example.com:8443", "g/p"))),
            ("http://git.example.com/g/s/p", Some(("http://git.example.com", "g/s/p"))),
            ("ssh://git@git.example.com:2222/g/p.git", Some(("https://git.example.com", "g/p"))),
            ("git@git.example.com:g/p.git", Some(("https://git.example.com", "g/p"))),
            ("/srv/git/p.git", None),
            ("file:///srv/git/p.git", None),
            ("../p", None),
        ] {
            let read = of_remote(url);
            let read = read.as_ref().map(|read| (read.server_url.as_str(), read.path.as_str()));
            assert_eq!(read, expected, "{url}");
        }
    }
}
