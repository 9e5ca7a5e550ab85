//! Chooses the manifest of an index that suits this machine (language.md §7.7).

use std::env::consts;
use std::fmt;

use oci_client::manifest::ImageIndexEntry;

use super::error::Problem;

/// Most platforms that an error lists.
const LISTED: usize = 20;

/// Operating system of an index entry that suits every machine.
const GENERIC: &str = "generic";

/// The platform that an image must be made for, in terms of the OCI specification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Platform {
    os: String,
    architecture: String,
    /// Processor variants that run here, best first. An empty text stands for no variant.
    variants: Vec<&'static str>,
}

/// Example: `linux/amd64`.
impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)
    }
}

impl Platform {
    /// Returns the platform that this program was built for.
    pub fn here() -> Self {
        let little = cfg!(target_endian = "little");
        let (architecture, variants): (_, &[&str]) = match consts::ARCH {
            "x86_64" => ("amd64", &["", "v1"]),
            "x86" => ("386", &[""]),
            "aarch64" => ("arm64", &["v8", ""]),
            "arm" if cfg!(target_feature = "v7") => ("arm", &["v7", "v6", "v5", ""]),
            "arm" => ("arm", &["v6", "v5", ""]),
            "powerpc64" => (if little { "ppc64le" } else { "ppc64" }, &[""]),
            "mips64" => (if little { "mips64le" } else { "mips64" }, &[""]),
            "loongarch64" => ("loong64", &[""]),
            other => (other, &[""]),
        };
        Self { os: consts::OS.into(), architecture: architecture.into(), variants: variants.to_vec() }
    }

    /// Returns the entries of an index that may suit this platform, best first: those for it, then those for every
    /// operating system, then those that name no platform.
    pub(super) fn candidates<'a>(&self, entries: &'a [ImageIndexEntry]) -> Vec<&'a ImageIndexEntry> {
        let mut exact: Vec<_> = entries.iter().filter_map(|entry| Some((self.rank(entry)?, entry))).collect();
        // The sort is stable: among equals the first counts, as for other clients.
        exact.sort_by_key(|(rank, _)| *rank);
        let mut generic: Vec<_> = entries.iter().filter(|entry| is_generic(entry)).collect();
        generic.sort_by_key(|entry| !self.is_architecture_of(entry));
        // An artifact is attached to an image and is none itself.
        let open = entries.iter().filter(|entry| entry.platform.is_none() && entry.artifact_type.is_none());
        exact.into_iter().map(|(_, entry)| entry).chain(generic).chain(open).collect()
    }

    /// Returns the problem that none of these entries is for this platform.
    pub(super) fn missing_in(&self, entries: &[ImageIndexEntry]) -> Problem {
        Problem::Platform { wanted: self.to_string(), present: list(entries) }
    }

    /// Ranks an entry, 0 being the best; `None` if it does not run here.
    fn rank(&self, entry: &ImageIndexEntry) -> Option<usize> {
        let platform = entry.platform.as_ref()?;
        let same =
            platform.os.to_string() == self.os && platform.architecture.to_string() == self.architecture;
        let variant = platform.variant.as_deref().unwrap_or("");
        self.variants.iter().position(|known| *known == variant).filter(|_| same)
    }

    fn is_architecture_of(&self, entry: &ImageIndexEntry) -> bool {
        entry.platform.as_ref().is_some_and(|platform| platform.architecture.to_string() == self.architecture)
    }
}

/// True if an entry is for every operating system.
fn is_generic(entry: &ImageIndexEntry) -> bool {
    entry.platform.as_ref().is_some_and(|platform| platform.os.to_string() == GENERIC)
}

/// Lists the platforms of an index, escaped because a registry sent them.
fn list(entries: &[ImageIndexEntry]) -> String {
    let mut names: Vec<_> = entries
        .iter()
        .filter_map(|entry| entry.platform.as_ref())
        .take(LISTED)
        .map(|platform| {
            let variant = platform.variant.as_ref().map(|variant| format!("/{variant}")).unwrap_or_default();
            let name = format!("{}/{}{variant}", platform.os, platform.architecture);
            name.chars().take(60).collect::<String>().escape_debug().to_string()
        })
        .collect();
    names.dedup();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(platforms: &[&str]) -> Vec<ImageIndexEntry> {
        let entry = |(at, platform): (usize, &&str)| {
            let mut parts = platform.split('/');
            let (os, architecture, variant) = (parts.next(), parts.next(), parts.next());
            let platform = serde_json::json!({"os": os, "architecture": architecture, "variant": variant});
            let platform = (os != Some("")).then_some(platform);
            let text = serde_json::json!({"mediaType": "m", "digest": at.to_string(), "size": 1, "platform": platform});
            serde_json::from_value(text).unwrap()
        };
        platforms.iter().enumerate().map(entry).collect()
    }

    fn chosen(architecture: &str, variants: &[&'static str], platforms: &[&str]) -> Option<String> {
        let platform =
            Platform { os: "linux".into(), architecture: architecture.into(), variants: variants.to_vec() };
        let entries = entries(platforms);
        let candidates = platform.candidates(&entries);
        candidates.first().map(|entry| platforms[entry.digest.parse::<usize>().unwrap()].into())
    }

    #[test]
    fn the_best_match_is_chosen_then_the_generic_one() {
        let amd = |platforms: &[&str]| chosen("amd64", &["", "v1"], platforms);
        assert_eq!(amd(&["linux/arm64", "windows/amd64", "linux/amd64"]).unwrap(), "linux/amd64");
        assert_eq!(amd(&["linux/amd64/v3", "linux/amd64/v1"]).unwrap(), "linux/amd64/v1");
        assert_eq!(amd(&["generic/amd64", "linux/amd64/v1"]).unwrap(), "linux/amd64/v1");
        assert_eq!(amd(&["generic/arm64", "generic/amd64"]).unwrap(), "generic/amd64");
        assert_eq!(amd(&["linux/arm64", "generic/generic"]).unwrap(), "generic/generic");
        assert_eq!(amd(&["linux/amd64/v3", "linux/arm64", "unknown/unknown"]), None);
        assert_eq!(amd(&["", "generic/arm64"]).unwrap(), "generic/arm64");
        assert_eq!(amd(&["linux/arm64", "unknown/unknown", ""]).unwrap(), "");
        let arm = |platforms: &[&str]| chosen("arm", &["v7", "v6", "v5", ""], platforms);
        assert_eq!(arm(&["linux/arm/v5", "linux/arm/v7", "linux/arm/v6"]).unwrap(), "linux/arm/v7");
        assert_eq!(
            chosen("arm64", &["v8", ""], &["linux/arm64", "linux/arm64/v8"]).unwrap(),
            "linux/arm64/v8"
        );
    }

    #[test]
    fn the_error_lists_what_there_is() {
        let here = Platform { os: "linux".into(), architecture: "amd64".into(), variants: vec![""] };
        let text = here.missing_in(&entries(&["linux/arm64/v8", "x\u{1b}[2J/arm"])).to_string();
        assert!(text.contains("linux/amd64") && text.contains("linux/arm64/v8"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }

    #[test]
    fn this_machine_has_a_name() {
        let here = Platform::here();
        assert_eq!(here.os, "linux");
        assert!(!here.variants.is_empty());
    }
}
