//! What a job may choose of its environment, and what the entry decides.

use serde::{Deserialize, Serialize};
use step_runner_ci::plan::Images;

use super::Address;

/// What becomes of `image` and `services` in an entry that cannot provide them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ImagePolicy {
    /// The job fails: no job goes green in an environment that it did not ask for.
    #[default]
    Fail,
    /// The job runs all the same, with a warning.
    Ignore,
}

/// Decides what becomes of `image` and `services` of jobs.
pub const fn images(address: &Address, policy: ImagePolicy) -> Images {
    match policy {
        _ if address.is_provider() => Images::Provided,
        ImagePolicy::Ignore => Images::Ignored,
        ImagePolicy::Fail => Images::Refused,
    }
}

/// When an image is pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PullPolicy {
    /// Each time.
    Always,
    /// If it is not there.
    IfNotPresent,
    /// Never.
    Never,
}

impl PullPolicy {
    /// Reads the word of a policy.
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "always" => Some(Self::Always),
            "if-not-present" => Some(Self::IfNotPresent),
            "never" => Some(Self::Never),
            _ => None,
        }
    }

    /// Returns the word of the policy.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::IfNotPresent => "if-not-present",
            Self::Never => "never",
        }
    }
}

/// Rules of an entry for images.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// Image of jobs without one.
    pub image: Option<String>,
    /// Patterns of images; empty: all.
    pub allowed_images: Vec<String>,
    /// Patterns of services; empty: all.
    pub allowed_services: Vec<String>,
    /// Policies, the first one first.
    pub pull_policies: Vec<PullPolicy>,
    /// Policies that a job may choose; empty: those of the entry.
    pub allowed_pull_policies: Vec<PullPolicy>,
    /// User of the container.
    pub user: Option<String>,
    /// Users that a job may choose; empty: all.
    pub allowed_users: Vec<String>,
}

/// A choice that a job may not make, or did not make well. The texts hold quotations of the job.
pub type Asked<T> = Result<T, String>;

/// Longest reference to an image: more than registries accept.
const LONGEST_REFERENCE: usize = 512;

/// True for a reference to an image: it can be no option of a program.
pub fn is_reference(text: &str) -> bool {
    let mut bytes = text.bytes();
    text.len() <= LONGEST_REFERENCE
        && bytes.next().is_some_and(|first| first.is_ascii_alphanumeric())
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"._-/:@+".contains(&byte))
}

/// Decides the image of a job: its own, else the entry's.
pub fn image(asked: Option<&str>, rules: &Rules) -> Asked<String> {
    let asked = asked.map(str::trim).filter(|name| !name.is_empty());
    let name = asked.or(rules.image.as_deref()).ok_or_else(|| {
        "the job asks for no image, and the entry has none: set `image` in the job or in the entry".to_owned()
    })?;
    if !is_reference(name) {
        return Err("the image is no reference to an image: write NAME, NAME:TAG or NAME@DIGEST".to_owned());
    }
    // The entry's own image is always allowed.
    let is_own = rules.image.as_deref() == Some(name);
    if is_own || is_allowed(name, &rules.allowed_images) {
        Ok(name.to_owned())
    } else {
        Err(format!(
            "the image {name} is not allowed: `allowed_images` of the entry has {}",
            rules.allowed_images.join(", ")
        ))
    }
}

/// True if a name matches one of the patterns, or there is none. `*` stands for characters but `/`, `**` for any.
pub fn is_allowed(name: &str, patterns: &[String]) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| matches(pattern.as_bytes(), name.as_bytes()))
}

/// Matches a pattern without recursion over the name: what each prefix of the pattern can match, byte by byte.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let mut tokens = Vec::new();
    let mut rest = pattern;
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        tokens.push(match (first, behind.first()) {
            (b'*', Some(b'*')) => {
                rest = behind.get(1..).unwrap_or_default();
                Token::Any
            }
            (b'*', _) => Token::Part,
            (byte, _) => Token::Byte(*byte),
        });
    }
    let mut reached = vec![false; tokens.len() + 1];
    skip_stars(&tokens, &mut reached, 0);
    for byte in name {
        let mut next = vec![false; tokens.len() + 1];
        for (at, token) in tokens.iter().enumerate().filter(|(at, _)| reached.get(*at) == Some(&true)) {
            match token {
                Token::Any => skip_stars(&tokens, &mut next, at),
                Token::Part if *byte != b'/' => skip_stars(&tokens, &mut next, at),
                Token::Byte(wanted) if wanted == byte => skip_stars(&tokens, &mut next, at + 1),
                Token::Part | Token::Byte(_) => {}
            }
        }
        reached = next;
    }
    reached.last() == Some(&true)
}

#[derive(PartialEq)]
enum Token {
    Byte(u8),
    Part,
    Any,
}

/// Marks a place as reached, and those behind stars that match nothing.
fn skip_stars(tokens: &[Token], reached: &mut [bool], from: usize) {
    for at in from..reached.len() {
        if let Some(place) = reached.get_mut(at) {
            *place = true;
        }
        if !matches!(tokens.get(at), Some(Token::Part | Token::Any)) {
            break;
        }
    }
}

/// Decides the pull policies: the job's if all of them are allowed, else an error; the entry's without any.
pub fn pull_policies(asked: &[String], rules: &Rules) -> Asked<Vec<PullPolicy>> {
    let own =
        if rules.pull_policies.is_empty() { vec![PullPolicy::Always] } else { rules.pull_policies.clone() };
    if asked.is_empty() {
        return Ok(own);
    }
    let allowed = if rules.allowed_pull_policies.is_empty() { &own } else { &rules.allowed_pull_policies };
    let chosen = asked.iter().map(|word| {
        let policy = PullPolicy::parse(word).ok_or_else(|| {
            "the job's `pull_policy` is not one of always, if-not-present, never".to_owned()
        })?;
        if allowed.contains(&policy) {
            Ok(policy)
        } else {
            let words: Vec<_> = allowed.iter().map(|policy| policy.word()).collect();
            Err(format!(
                "the pull policy {} is not allowed: the entry allows {}",
                policy.word(),
                words.join(", ")
            ))
        }
    });
    chosen.collect()
}

/// Decides the user of a container: the job's if it is allowed, else the entry's, else the image's.
pub fn user(asked: Option<&str>, rules: &Rules) -> Asked<Option<String>> {
    let Some(asked) = asked.filter(|user| !user.is_empty()) else { return Ok(rules.user.clone()) };
    let is_user = !asked.starts_with('-')
        && asked.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-:".contains(&byte));
    if !is_user {
        return Err("the job's `user` is no user: write a name or a number, or USER:GROUP".to_owned());
    }
    if rules.allowed_users.is_empty() || rules.allowed_users.iter().any(|allowed| allowed == asked) {
        Ok(Some(asked.to_owned()))
    } else {
        Err(format!(
            "the user {asked} is not allowed: `allowed_users` of the entry has {}",
            rules.allowed_users.join(", ")
        ))
    }
}

/// What becomes of an amount that a job asks for, such as `KUBERNETES_CPU_REQUEST`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Overwrite {
    /// The job has it.
    Taken(String),
    /// The template's stays, with this warning.
    Kept(&'static str),
}

/// Decides an amount. `most` is the entry's `…_overwrite_max_allowed`.
pub fn overwritten(asked: &str, most: Option<&str>) -> Overwrite {
    let Some(most) = most.and_then(quantity) else {
        return Overwrite::Kept("the entry does not let jobs choose it");
    };
    match quantity(asked) {
        None => Overwrite::Kept("it is no amount such as `500m` or `2Gi`"),
        Some(amount) if amount > most => Overwrite::Kept("it is more than the entry allows"),
        Some(_) => Overwrite::Taken(asked.to_owned()),
    }
}

/// Suffixes of amounts, with their factors in thousandths.
const SUFFIXES: [(&str, f64); 10] = [
    ("Ki", 1_024e3),
    ("Mi", 1_048_576e3),
    ("Gi", 1_073_741_824e3),
    ("Ti", 1_099_511_627_776e3),
    ("m", 1.0),
    ("k", 1e6),
    ("M", 1e9),
    ("G", 1e12),
    ("T", 1e15),
    ("", 1e3),
];

/// Returns an amount in thousandths.
fn quantity(text: &str) -> Option<f64> {
    let (digits, factor) =
        SUFFIXES.iter().find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor)))?;
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    is_number.then(|| digits.parse::<f64>().ok()).flatten().map(|number| number * factor)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn a17_an_image_is_a_reference_and_no_option() {
        for (text, is) in [
            ("alpine", true),
            ("registry.test:5000/group/image:1.2-a@sha256:abc", true),
            ("--x", false),
            ("-v/:/host", false),
            ("a b", false),
            ("a\0", false),
            ("", false),
            ("/a", false),
            ("a;b", false),
        ] {
            assert_eq!(is_reference(text), is, "{text}");
        }
    }

    #[test]
    fn only_a_provider_provides_an_image_and_a_job_fails_unless_the_entry_says_otherwise() {
        for (address, policy, wanted) in [
            (Address::DockerRun, ImagePolicy::Ignore, Images::Provided),
            (Address::Own, ImagePolicy::Fail, Images::Refused),
            (Address::Own, ImagePolicy::Ignore, Images::Ignored),
            (Address::Daemon("unix:///x".to_owned()), ImagePolicy::default(), Images::Refused),
        ] {
            assert_eq!(images(&address, policy), wanted);
        }
    }

    #[test]
    fn a29_the_jobs_image_comes_before_the_entrys_and_must_be_allowed() {
        let rules = Rules {
            image: Some("alpine:3".to_owned()),
            allowed_images: texts(&["ruby:*", "registry.test/**"]),
            ..Rules::default()
        };
        for (asked, wanted) in [
            (None, Some("alpine:3")),
            (Some(""), Some("alpine:3")),
            (Some("ruby:3"), Some("ruby:3")),
            (Some("registry.test/a/b:1"), Some("registry.test/a/b:1")),
            (Some("ruby/x"), None),
            (Some("evil"), None),
            (Some("--x"), None),
        ] {
            assert_eq!(image(asked, &rules).ok().as_deref(), wanted, "{asked:?}");
        }
        assert!(image(None, &Rules::default()).is_err());
    }

    #[test]
    fn stars_match_parts_and_double_stars_match_all() {
        for (pattern, name, is) in [
            ("a*c", "abbc", true),
            ("a*c", "a/c", false),
            ("a**c", "a/x/c", true),
            ("**", "", true),
            ("*", "a:b", true),
            ("*/*", "a/b", true),
            ("*/*", "a/b/c", false),
            ("a", "aa", false),
            ("", "a", false),
            ("**a**", "xay", true),
        ] {
            assert_eq!(is_allowed(name, &texts(&[pattern])), is, "{pattern} {name}");
        }
    }

    #[test]
    fn a29_a_job_chooses_only_among_the_allowed_policies() {
        let rules = Rules { pull_policies: vec![PullPolicy::IfNotPresent], ..Rules::default() };
        assert_eq!(pull_policies(&[], &Rules::default()), Ok(vec![PullPolicy::Always]));
        assert_eq!(pull_policies(&[], &rules), Ok(vec![PullPolicy::IfNotPresent]));
        assert_eq!(pull_policies(&texts(&["if-not-present"]), &rules), Ok(vec![PullPolicy::IfNotPresent]));
        assert!(pull_policies(&texts(&["if-not-present", "always"]), &rules).is_err());
        let wide = Rules { allowed_pull_policies: vec![PullPolicy::Always, PullPolicy::Never], ..rules };
        let both = vec![PullPolicy::Always, PullPolicy::Never];
        assert_eq!(pull_policies(&texts(&["always", "never"]), &wide), Ok(both));
        assert!(pull_policies(&texts(&["sometimes"]), &wide).is_err());
    }

    #[test]
    fn a_user_must_be_allowed_and_be_one() {
        let rules = Rules {
            user: Some("1000".to_owned()),
            allowed_users: texts(&["0", "ci:ci"]),
            ..Rules::default()
        };
        assert_eq!(user(None, &rules), Ok(Some("1000".to_owned())));
        assert_eq!(user(Some("ci:ci"), &rules), Ok(Some("ci:ci".to_owned())));
        assert!(user(Some("1"), &rules).is_err() && user(Some("--privileged"), &Rules::default()).is_err());
    }

    #[test]
    fn an_amount_is_taken_up_to_the_most_that_is_allowed() {
        let taken = |text: &str| Overwrite::Taken(text.to_owned());
        assert_eq!(overwritten("500m", Some("1")), taken("500m"));
        assert_eq!(overwritten("1.5Gi", Some("2Gi")), taken("1.5Gi"));
        for (asked, most) in
            [("2", Some("1")), ("2Gi", Some("2G")), ("x", Some("1")), ("-1", Some("1")), ("1", None)]
        {
            assert!(matches!(overwritten(asked, most), Overwrite::Kept(_)), "{asked} {most:?}");
        }
    }

    proptest! {
        #[test]
        fn no_pattern_is_slow_or_wrong(name in "[ab/]{0,60}", pattern in "[ab/*]{0,40}") {
            let found = is_allowed(&name, std::slice::from_ref(&pattern));
            let is_plain = !pattern.contains('*');
            prop_assert!(!is_plain || found == (pattern == name));
            prop_assert!(is_allowed(&name, &["**".to_owned()]) && is_allowed(&name, &[]));
        }
    }
}
