//! Predefined variables, made from facts about repository and job (ci.md §3). The caller finds the facts.

use sha2::{Digest, Sha256};

use super::{Defined, Level};

/// Longest slug, as in GitLab: the longest label of a DNS name.
const SLUG_LIMIT: usize = 63;

/// First characters of a commit's hash in `CI_COMMIT_SHORT_SHA`.
const SHORT_SHA: usize = 8;

/// What is known about the repository. Without a repository all is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The commit that is checked out.
    pub commit: Option<CommitFacts>,
    /// Default branch: `origin/HEAD`, else `main`.
    pub default_branch: Option<String>,
    /// The remote.
    pub repository: Option<RepositoryFacts>,
    /// Absolute path of the project.
    pub project_dir: String,
    /// Path of the CI file below the project.
    pub config_path: String,
    /// Files that differ from the default branch. `None` makes `rules:changes` true (ci.md §2).
    pub changed: Option<Vec<String>>,
}

/// A commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommitFacts {
    /// Hash.
    pub sha: String,
    /// Branch or tag.
    pub ref_name: String,
    /// True if `ref_name` is a tag.
    pub is_tag: bool,
    /// Whole message.
    pub message: String,
    /// `NAME <EMAIL>`.
    pub author: String,
    /// Time in the form of ISO 8601.
    pub timestamp: String,
}

/// A repository on a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepositoryFacts {
    /// URL of the server, such as `https://gitlab.example.com:8443`.
    pub server_url: String,
    /// Path of the project with its groups.
    pub path: String,
}

/// What is known about the job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFacts {
    /// Full name.
    pub name: String,
    /// Stage.
    pub stage: String,
    /// Image, filled in.
    pub image: Option<String>,
    /// Number from 1 and count of a parallel job.
    pub node: Option<(u32, u32)>,
}

/// Returns the predefined variables. With `job` those of the job, too.
pub fn predefined(facts: &Facts, job: Option<&JobFacts>) -> Level {
    let mut level = Level::new();
    let mut set = |name: &str, value: &str| {
        level.insert(name.to_owned(), Defined::raw(value));
    };
    for (name, value) in [("CI", "true"), ("GITLAB_CI", "true"), ("CI_PIPELINE_SOURCE", "push")] {
        set(name, value);
    }
    for name in ["CI_JOB_ID", "CI_PIPELINE_ID", "CI_PIPELINE_IID", "CI_PROJECT_ID", "CI_RUNNER_ID"] {
        set(name, "0");
    }
    set("CI_PROJECT_DIR", &facts.project_dir);
    set("CI_CONFIG_PATH", &facts.config_path);
    set("CI_DEFAULT_BRANCH", facts.default_branch.as_deref().unwrap_or_default());
    commit(&facts.commit.clone().unwrap_or_default(), &mut set);
    repository(facts, &mut set);
    if let Some(job) = job {
        set("CI_JOB_NAME", &job.name);
        set("CI_JOB_NAME_SLUG", &slug(&job.name));
        set("CI_JOB_STAGE", &job.stage);
        if let Some(image) = &job.image {
            set("CI_JOB_IMAGE", image);
        }
        if let Some((index, _)) = job.node {
            set("CI_NODE_INDEX", &index.to_string());
        }
        set("CI_NODE_TOTAL", &job.node.map_or(1, |(_, total)| total).to_string());
    }
    level
}

fn commit(commit: &CommitFacts, set: &mut impl FnMut(&str, &str)) {
    let short: String = commit.sha.chars().take(SHORT_SHA).collect();
    let title = commit.message.lines().next().unwrap_or_default();
    for (name, value) in [
        ("CI_COMMIT_SHA", commit.sha.as_str()),
        ("CI_COMMIT_SHORT_SHA", &short),
        ("CI_COMMIT_REF_NAME", &commit.ref_name),
        ("CI_COMMIT_REF_SLUG", &slug(&commit.ref_name)),
        (if commit.is_tag { "CI_COMMIT_TAG" } else { "CI_COMMIT_BRANCH" }, &commit.ref_name),
        ("CI_COMMIT_MESSAGE", &commit.message),
        ("CI_COMMIT_TITLE", title),
        ("CI_COMMIT_AUTHOR", &commit.author),
        ("CI_COMMIT_TIMESTAMP", &commit.timestamp),
    ] {
        set(name, value);
    }
}

fn repository(facts: &Facts, set: &mut impl FnMut(&str, &str)) {
    let repository = facts.repository.clone().unwrap_or_default();
    let url = repository.server_url.trim_end_matches('/');
    let (protocol, rest) = url.split_once("://").unwrap_or(("", url));
    let authority = rest.split('/').next().unwrap_or_default();
    let (host, port) = authority.rsplit_once(':').unwrap_or((
        authority,
        match protocol {
            "https" => "443",
            "http" => "80",
            _ => "",
        },
    ));
    let (namespace, name) = repository.path.rsplit_once('/').unwrap_or(("", &repository.path));
    let root = namespace.split('/').next().unwrap_or_default();
    let project_url = if url.is_empty() { String::new() } else { format!("{url}/{}", repository.path) };
    for (variable, value) in [
        ("CI_SERVER", "yes"),
        ("CI_SERVER_URL", url),
        ("CI_SERVER_PROTOCOL", protocol),
        ("CI_SERVER_HOST", host),
        ("CI_SERVER_PORT", port),
        ("CI_SERVER_FQDN", authority),
        ("CI_PROJECT_NAME", name),
        ("CI_PROJECT_TITLE", name),
        ("CI_PROJECT_NAMESPACE", namespace),
        ("CI_PROJECT_ROOT_NAMESPACE", root),
        ("CI_PROJECT_PATH", &repository.path),
        ("CI_PROJECT_PATH_SLUG", &slug(&repository.path)),
        ("CI_PROJECT_URL", &project_url),
    ] {
        set(variable, value);
    }
}

/// Returns a text in lower case with `-` for all but `0-9` and `a-z`, at most 63 bytes, without `-` at the ends.
pub fn slug(text: &str) -> String {
    let slug: String = (text.chars())
        .map(|character| match character.to_ascii_lowercase() {
            kept @ ('a'..='z' | '0'..='9') => kept,
            _ => '-',
        })
        .take(SLUG_LIMIT)
        .collect();
    slug.trim_matches('-').to_owned()
}

/// Longest slug of an environment, as in GitLab: that of names in some clusters.
const ENVIRONMENT_SLUG_LIMIT: usize = 24;

/// Length of what is kept of a name before the suffix that makes it unique.
const KEPT: usize = 17;

/// Length of the suffix.
const SUFFIX: u32 = 6;

/// Returns the slug of an environment. A name that is not its own slug gets a suffix, made of its hash.
pub fn environment_slug(name: &str) -> String {
    let mut slug = String::new();
    for character in name.to_lowercase().chars() {
        let kept = if matches!(character, 'a'..='z' | '0'..='9') { character } else { '-' };
        if !(kept == '-' && slug.ends_with('-')) {
            slug.push(kept);
        }
    }
    if !slug.starts_with(|first: char| first.is_ascii_lowercase()) {
        slug.insert_str(0, if slug.starts_with('-') { "env" } else { "env-" });
    }
    if slug == name && slug.len() <= ENVIRONMENT_SLUG_LIMIT {
        return slug.trim_end_matches('-').to_owned();
    }
    slug.truncate(KEPT);
    if !slug.ends_with('-') {
        slug.push('-');
    }
    slug + &suffix(name)
}

/// Parts of names that tell the tier of an environment, as GitLab guesses it. The first tier with a part counts.
const TIERS: [(&str, &[&str]); 4] = [
    ("development", &["dev", "review", "trunk"]),
    ("testing", &["test", "tst", "int", "accept", "acpt", "qa", "qc", "control", "quality"]),
    ("staging", &["stag", "stg", "model", "modl", "pre", "demo", "non"]),
    ("production", &["prod", "prd", "live"]),
];

/// Returns the tier of an environment that does not name one.
pub fn environment_tier(name: &str) -> &'static str {
    let name = name.to_ascii_lowercase();
    let has = |(_, parts): &&(&str, &[&str])| parts.iter().any(|part| name.contains(part));
    TIERS.iter().find(has).map_or("other", |(tier, _)| tier)
}

/// Returns the last digits to base 36 of the name's SHA-256, read as a number.
fn suffix(name: &str) -> String {
    let modulus = 36_u64.pow(SUFFIX);
    let number = (Sha256::digest(name.as_bytes()).iter())
        .fold(0_u64, |number, byte| (number * 256 + u64::from(*byte)) % modulus);
    let digits = (0..SUFFIX).rev().map(|place| number / 36_u64.pow(place) % 36);
    digits.filter_map(|digit| char::from_digit(u32::try_from(digit).ok()?, 36)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slugs_of_environments_are_short_and_unique() {
        assert_eq!(environment_slug("production"), "production");
        assert_eq!(environment_slug("trailing-"), "trailing");
        let long = "a".repeat(30);
        for (name, start) in [
            ("review/a", "review-a-"),
            ("1", "env-1-"),
            ("/x", "env-x-"),
            (long.as_str(), "aaaaaaaaaaaaaaaaa-"),
        ] {
            let slug = environment_slug(name);
            assert!(slug.starts_with(start) && slug.len() == start.len() + 6, "{slug}");
        }
        assert_ne!(environment_slug("review/a"), environment_slug("review-A"));
        let (fits, is_longer) = ("a".repeat(24), "a".repeat(25));
        for (name, slug) in [
            (fits.as_str(), fits.as_str()),
            (is_longer.as_str(), "aaaaaaaaaaaaaaaaa-1n7uof"),
            ("review/a", "review-a-ppbxnw"),
            ("Production", "production-iis43c"),
            ("a--b", "a-b-m3ql0o"),
            ("12345678901234567/x", "env-1234567890123-tcfnjo"),
        ] {
            assert_eq!(environment_slug(name), slug);
        }
    }

    #[test]
    fn tiers_are_guessed_from_names() {
        for (name, tier) in [
            ("production", "production"),
            ("Prod/eu", "production"),
            ("live", "production"),
            ("staging", "staging"),
            ("stg-1", "staging"),
            ("nonprod", "staging"),
            ("pre-production", "staging"),
            ("qa", "testing"),
            ("user-acceptance", "testing"),
            ("integration", "testing"),
            ("review/test", "development"),
            ("DEV", "development"),
            ("customer-portal", "other"),
        ] {
            assert_eq!(environment_tier(name), tier, "{name}");
        }
    }

    #[test]
    fn slugs_are_labels() {
        assert_eq!(slug("Feature/ÄB_1-"), "feature--b-1");
        assert_eq!(slug(&"a".repeat(100)).len(), SLUG_LIMIT);
    }

    #[test]
    fn parts_of_the_remote_are_told_apart() {
        let repository = RepositoryFacts {
            server_url: "https://gitlab.example.com:8443".to_owned(),
            path: "Group/Sub/Project".to_owned(),
        };
        let facts = Facts { repository: Some(repository), ..Facts::default() };
        let level = predefined(&facts, None);
        for (name, value) in [
            ("CI_SERVER_HOST", "gitlab.example.com"),
            ("CI_SERVER_PORT", "8443"),
            ("CI_SERVER_FQDN", "gitlab.example.com:8443"),
            ("CI_PROJECT_NAME", "Project"),
            ("CI_PROJECT_NAMESPACE", "Group/Sub"),
            ("CI_PROJECT_ROOT_NAMESPACE", "Group"),
            ("CI_PROJECT_PATH_SLUG", "group-sub-project"),
            ("CI_PROJECT_URL", "https://gitlab.example.com:8443/Group/Sub/Project"),
            ("CI_COMMIT_SHA", ""),
        ] {
            assert_eq!(level[name].value, value, "{name}");
        }
        assert!(!level.contains_key("CI_JOB_TOKEN"));
        for (url, protocol, port) in [
            ("https://a.example.com/", "https", "443"),
            ("http://a.example.com", "http", "80"),
            ("ssh://a.example.com", "ssh", ""),
            ("", "", ""),
        ] {
            let repository = RepositoryFacts { server_url: url.to_owned(), path: "g/p".to_owned() };
            let level = predefined(&Facts { repository: Some(repository), ..Facts::default() }, None);
            assert_eq!(level["CI_SERVER_PROTOCOL"].value, protocol, "{url}");
            assert_eq!(level["CI_SERVER_PORT"].value, port, "{url}");
        }
    }

    #[test]
    fn a_job_has_its_place_among_its_copies() {
        let job = JobFacts {
            name: "Unit: [a]".to_owned(),
            stage: "test".to_owned(),
            image: Some("rust:1".to_owned()),
            node: Some((2, 3)),
        };
        let level = predefined(&Facts::default(), Some(&job));
        for (name, value) in [
            ("CI_JOB_NAME", "Unit: [a]"),
            ("CI_JOB_NAME_SLUG", "unit---a"),
            ("CI_JOB_STAGE", "test"),
            ("CI_JOB_IMAGE", "rust:1"),
            ("CI_NODE_INDEX", "2"),
            ("CI_NODE_TOTAL", "3"),
        ] {
            assert_eq!(level[name].value, value, "{name}");
        }
        let alone = predefined(&Facts::default(), Some(&JobFacts::default()));
        assert!(!alone.contains_key("CI_NODE_INDEX") && !alone.contains_key("CI_JOB_IMAGE"));
        assert!(!predefined(&Facts::default(), None).contains_key("CI_NODE_TOTAL"));
    }

    #[test]
    fn dollars_of_a_commit_message_mean_themselves() {
        let commit = CommitFacts {
            message: "costs $HOME\n\nmore".to_owned(),
            is_tag: true,
            ref_name: "v1".to_owned(),
            ..CommitFacts::default()
        };
        let level =
            predefined(&Facts { commit: Some(commit), ..Facts::default() }, Some(&JobFacts::default()));
        assert!(level["CI_COMMIT_TITLE"].raw && level["CI_COMMIT_TITLE"].value == "costs $HOME");
        assert!(level.contains_key("CI_COMMIT_TAG") && !level.contains_key("CI_COMMIT_BRANCH"));
        assert_eq!(level["CI_NODE_TOTAL"].value, "1");
    }
}
