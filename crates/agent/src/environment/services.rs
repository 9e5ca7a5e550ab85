//! Names under which a job finds its services.

/// Longest name of a host.
const LONGEST: usize = 63;

/// Returns the aliases of a service: its name without tag and port, `/` as `__` and as `-`, and the words of `alias`.
/// Those that are in `taken`, or can be no host's name, come second, for a warning.
pub fn aliases(image: &str, alias: Option<&str>, taken: &[String]) -> (Vec<String>, Vec<String>) {
    let name = plain_name(image);
    let mut all = vec![name.replace('/', "__"), name.replace('/', "-")];
    all.extend(
        alias.unwrap_or_default().split([' ', ',']).filter(|word| !word.is_empty()).map(str::to_owned),
    );
    let (mut free, mut refused) = (Vec::new(), Vec::new());
    for alias in all {
        let list = if is_host(&alias) && !taken.contains(&alias) { &mut free } else { &mut refused };
        if !list.contains(&alias) {
            list.push(alias);
        }
    }
    (free, refused)
}

/// Returns a name without digest, tag and the port of its registry.
fn plain_name(image: &str) -> String {
    let name = image.split('@').next().unwrap_or_default();
    let name = match name.rsplit_once(':') {
        Some((before, tag)) if !tag.contains('/') => before,
        _ => name,
    };
    match name.split_once('/') {
        Some((host, path)) => format!("{}/{path}", host.split(':').next().unwrap_or_default()),
        None => name.to_owned(),
    }
}

fn is_host(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= LONGEST
        && !name.starts_with(['-', '.'])
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a30_a_service_is_found_by_its_name_and_its_aliases() {
        for (image, alias, wanted) in [
            ("postgres:16", None, &["postgres"][..]),
            ("registry.test:5000/group/db:1", None, &["registry.test__group__db", "registry.test-group-db"]),
            ("tutum/wordpress", Some("wp, blog wp"), &["tutum__wordpress", "tutum-wordpress", "wp", "blog"]),
            ("redis@sha256:abc", Some(""), &["redis"]),
        ] {
            assert_eq!(aliases(image, alias, &[]).0, wanted, "{image}");
        }
    }

    #[test]
    fn a30_taken_and_impossible_aliases_are_refused() {
        let taken = ["db".to_owned()];
        let (free, refused) = aliases("db:1", Some("--x ok a;b"), &taken);
        assert_eq!(
            (free, refused),
            (vec!["ok".to_owned()], vec!["db".to_owned(), "--x".to_owned(), "a;b".to_owned()])
        );
    }
}
