//! Mistakes of an entry that show only when it is used: the agent does not start with such an entry (agent.md §11.2).

use std::path::PathBuf;

use super::settings::Settings;
use step_runner_agent::answer::text;
use step_runner_agent::config::{Entry, Mistake};
use step_runner_model::error::Chain;
use step_runner_web::{Network, TlsFiles, WebError};

/// Returns all mistakes of an entry for which this version cannot serve it.
pub fn mistakes(entry: &Entry) -> Vec<Mistake> {
    let unserved = Settings::of(entry, |name| format!("/{name}")).err().unwrap_or_default();
    let unserved = unserved.iter().map(|wrong| (wrong.key(), wrong.to_string()));
    // The scheme of an address can be a token in the wrong place.
    let shown = |(key, message): (_, String)| Mistake { key, message: text::clean(&message, &[]) };
    unserved.chain(of_tls(entry)).map(shown).collect()
}

/// Returns the files for TLS of an entry.
pub fn tls_files(entry: &Entry) -> TlsFiles {
    let identity = entry.tls_cert_file.as_ref().zip(entry.tls_key_file.as_ref());
    TlsFiles {
        authorities: entry.tls_ca_file.as_ref().map(PathBuf::from),
        identity: identity.map(|(cert, key)| (cert.into(), key.into())),
    }
}

/// Returns the key of a file for TLS that cannot be used, and why.
fn of_tls(entry: &Entry) -> Option<(&'static str, String)> {
    let files = tls_files(entry);
    if files == TlsFiles::default() {
        return None;
    }
    let network = Network::new(|_| None, |name| std::env::var(name).ok());
    let error = network.tls_with(&files).err()?;
    let is_certificate = |path: &PathBuf| files.identity.as_ref().is_some_and(|(file, _)| file == path);
    let key = match &error {
        WebError::File(path, _) if files.authorities.as_ref() == Some(path) => "tls-ca-file",
        WebError::File(path, _) if is_certificate(path) => "tls-cert-file",
        WebError::File(..) | WebError::Identity(_) => "tls-key-file",
        // Variables of the agent's own environment are no mistake of an entry.
        WebError::Proxy(..)
        | WebError::Certificates(..)
        | WebError::NoCertificates(_)
        | WebError::Client(_) => {
            return None;
        }
    };
    Some((key, format!("{key}: {}", Chain(&error))))
}

#[cfg(test)]
mod tests {
    use step_runner_agent::config::Config;

    use super::*;

    /// Returns what is wrong with a file, whose entries begin in lines 1 and 5.
    fn wrong(first: &str, second: &str) -> Vec<String> {
        let entry = |token: &str, more: &str| {
            format!("[[runners]]\nurl = \"https://a.test\"\ntoken = \"{token}\"\n{more}\n")
        };
        let text = entry("one", first) + &entry("two", second);
        let read = Config::read_checked("agent.toml", &text, mistakes);
        read.map_or_else(|errors| errors.messages().to_vec(), |_| Vec::new())
    }

    #[test]
    fn mistakes_that_show_only_in_use_come_all_at_once_with_their_lines() {
        let missing = "tls-ca-file = \"/nowhere/ca.pem\"";
        assert_eq!(
            wrong("address = \"ssh://\"", "builds_dir = \"b\"\ncache_dir = \"c\""),
            [
                "agent.toml:4: address: the address names no host: write ssh://[USER@]HOST[:PORT][/SOCKET]",
                "agent.toml:4: the entry has an `address` and no `builds_dir`: name a folder that the daemon there can write",
                "agent.toml:8: builds_dir is a relative path: write it from the root",
                "agent.toml:9: cache_dir is a relative path: write it from the root",
            ]
        );
        let told = wrong(
            missing,
            "address = \"kube-run://ci\"\nbuilds_dir = \"/a:b\"\n[runners.kubernetes]\nimage = \"a\"",
        );
        assert!(told[0].starts_with("agent.toml:4: tls-ca-file: cannot read a certificate"), "{told:?}");
        assert!(told[0].contains("No such file"), "{told:?}");
        assert_eq!(
            told[1],
            "agent.toml:9: builds_dir: no volume can be at \"/a:b\": write a path such as /builds"
        );
        assert!(told[2].starts_with("agent.toml:10: the entry has no `program_image`"), "{told:?}");
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(wrong("", "address = \"docker-run://\"").is_empty());
    }

    #[test]
    fn each_file_for_tls_is_told_by_its_key() {
        let here = env!("CARGO_MANIFEST_DIR");
        for (more, key) in [
            (
                "tls-cert-file = \"/nowhere/c\"\ntls-key-file = \"/nowhere/k\"".to_owned(),
                "5: tls-key-file: cannot",
            ),
            (
                format!("tls-cert-file = \"/nowhere/c\"\ntls-key-file = \"{here}/Cargo.toml\""),
                "5: tls-key-file: cannot",
            ),
            (format!("tls-ca-file = \"{here}/Cargo.toml\""), "4: tls-ca-file: cannot"),
        ] {
            let told = wrong(&more, "");
            assert!(told.len() == 1 && told[0].starts_with(&format!("agent.toml:{key}")), "{told:?}");
        }
    }

    #[test]
    fn a_token_in_the_place_of_an_address_is_not_shown() {
        let told = wrong("address = \"glrt-s3cret:x\"\nbuilds_dir = \"/b\"", "");
        assert!(told.len() == 1 && !told[0].contains("s3cret"), "{told:?}");
    }
}
