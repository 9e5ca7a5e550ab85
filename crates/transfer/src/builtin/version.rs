//! Versions of function images, and the tags that a release moves (language.md §17).

use std::fmt;

/// Longest tag (OCI distribution specification).
const LONGEST_TAG: usize = 128;

/// A semantic version without build metadata, which a tag cannot hold. Only releases are compared, by their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReleaseVersion {
    numbers: [u64; 3],
    /// `rc1` in `1.2.0-rc1`.
    pre_release: Option<String>,
}

impl ReleaseVersion {
    /// Reads `MAJOR.MINOR.PATCH[-PRE-RELEASE]`.
    ///
    /// # Errors
    /// The reason why the text is refused.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let refused = |why: &str| Err(format!("{text:?} is no version such as 1.2.3 or 1.2.3-rc1: {why}"));
        if text.contains('+') {
            return refused("a tag cannot hold build metadata after +");
        }
        if text.len() > LONGEST_TAG {
            return refused("it is longer than a tag may be");
        }
        let (numbers, pre_release) = match text.split_once('-') {
            Some((numbers, pre_release)) => (numbers, Some(pre_release)),
            None => (text, None),
        };
        let parts: Vec<_> = numbers.split('.').map(number).collect();
        let [Some(major), Some(minor), Some(patch)] = parts[..] else {
            return refused("expected three numbers without leading zeros");
        };
        if !pre_release.is_none_or(is_pre_release) {
            return refused("a pre-release is letters, digits and - in parts joined by dots");
        }
        Ok(Self { numbers: [major, minor, patch], pre_release: pre_release.map(str::to_owned) })
    }

    /// Returns the tags besides its own that the release moves: `1.2`, `1` and `latest`, each if no newer release of
    /// that line is among the `existing` tags. A pre-release moves none.
    pub(super) fn moves(&self, existing: &[String]) -> Vec<String> {
        if self.pre_release.is_some() {
            return Vec::new();
        }
        let releases: Vec<[u64; 3]> = existing
            .iter()
            .filter_map(|tag| Self::parse(tag).ok())
            .filter(|version| version.pre_release.is_none())
            .map(|version| version.numbers)
            .collect();
        let [major, minor, _] = self.numbers;
        let is_newest = |line: &[u64]| {
            !releases.iter().any(|release| release.starts_with(line) && *release > self.numbers)
        };
        let lines = [
            (format!("{major}.{minor}"), is_newest(&[major, minor])),
            (major.to_string(), is_newest(&[major])),
            ("latest".to_owned(), is_newest(&[])),
        ];
        lines.into_iter().filter_map(|(tag, moved)| moved.then_some(tag)).collect()
    }
}

impl fmt::Display for ReleaseVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.numbers;
        write!(f, "{major}.{minor}.{patch}")?;
        match &self.pre_release {
            Some(pre_release) => write!(f, "-{pre_release}"),
            None => Ok(()),
        }
    }
}

fn number(text: &str) -> Option<u64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| plain)
}

fn is_pre_release(text: &str) -> bool {
    text.split('.').all(|part| {
        let numeric = part.bytes().all(|byte| byte.is_ascii_digit());
        !part.is_empty()
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && (!numeric || number(part).is_some())
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_semantic_versions_without_metadata_are_versions() {
        for good in ["0.0.0", "1.2.3", "10.20.30", "1.2.0-rc1", "1.2.0-rc.1.x-y", "1.0.0-0a"] {
            assert_eq!(ReleaseVersion::parse(good).unwrap().to_string(), good);
        }
        for bad in [
            "",
            "1",
            "1.2",
            "v1.2.3",
            "1.2.3.4",
            "01.2.3",
            "1.2.3-",
            "1.2.3-a..b",
            "1.2.3-01",
            "1.2.3+x",
            "+1.2.3",
        ] {
            assert!(ReleaseVersion::parse(bad).is_err(), "{bad}");
        }
        assert!(ReleaseVersion::parse(&format!("1.2.3-{}", "a".repeat(200))).is_err());
    }

    fn moves(version: &str, existing: &[&str]) -> Vec<String> {
        let existing: Vec<_> = existing.iter().map(|&tag| tag.to_owned()).collect();
        ReleaseVersion::parse(version).unwrap().moves(&existing)
    }

    #[test]
    fn a_release_moves_the_lines_whose_newest_it_is() {
        let all = ["1.2", "1", "latest"];
        assert_eq!(moves("1.2.3", &[]), all);
        assert_eq!(moves("1.2.3", &["1.2.2", "1.2", "1", "latest", "0.9.0", "1.2.3", "nightly"]), all);
        assert_eq!(moves("1.2.3", &["1.2.10"]), [""; 0]);
        assert_eq!(moves("1.2.3", &["1.3.0"]), ["1.2"]);
        assert_eq!(moves("1.2.3", &["2.0.0"]), ["1.2", "1"]);
        assert_eq!(moves("1.2.3", &["2.0.0-rc1", "1.3.0-alpha"]), all);
    }

    #[test]
    fn a_pre_release_moves_nothing() {
        assert_eq!(moves("1.2.0-rc1", &[]), [""; 0]);
    }

    proptest! {
        /// For any order of publication, each line's tag ends at its newest release.
        #[test]
        fn lines_end_at_their_newest_release(
            releases in prop::collection::vec((0_u64..3, 0_u64..3, 0_u64..3), 1..20)
        ) {
            let mut tags = std::collections::BTreeMap::<String, (u64, u64, u64)>::new();
            for release in &releases {
                let text = format!("{}.{}.{}", release.0, release.1, release.2);
                let existing: Vec<_> = tags.keys().cloned().collect();
                for tag in ReleaseVersion::parse(&text).unwrap().moves(&existing) {
                    tags.insert(tag, *release);
                }
                tags.insert(text, *release);
            }
            prop_assert_eq!(tags.get("latest"), releases.iter().max());
            for (major, minor, _) in &releases {
                let newest = releases.iter().filter(|r| r.0 == *major).max();
                prop_assert_eq!(tags.get(&major.to_string()), newest);
                let newest = releases.iter().filter(|r| (r.0, r.1) == (*major, *minor)).max();
                prop_assert_eq!(tags.get(&format!("{major}.{minor}")), newest);
            }
        }
    }
}
