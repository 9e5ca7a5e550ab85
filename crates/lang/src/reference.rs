//! References: sources of functions (language.md §7). Parses the text forms and evaluates computed ones. Messages never
//! quote a reference, because it may hold credentials.

use std::sync::Arc;

use indexmap::IndexSet;

use super::ast::{Part, Reference, Template};
use super::diagnostic::{Class, Diagnostic, Position};
use super::eval::{Scope, evaluate_text};
use super::template::OPEN;

/// Names of definition files, tried in this order.
pub const DEFINITION_FILES: [&str; 2] = ["func.yml", "step.yml"];

/// Parses a reference without expressions, such as the result of a dynamic one. `file` and `at` go into errors.
pub fn parse(text: &str, file: &Arc<str>, at: Position) -> Result<Reference, Diagnostic> {
    let text = text.trim();
    let parser = Parser { file, at };
    if text.is_empty() {
        return Err(parser.error("the reference is empty"));
    }
    if text.starts_with(['.', '/']) {
        let (path, files) = split_file(text);
        return Ok(Reference::Local { path: if path.is_empty() { ".".to_owned() } else { path }, files });
    }
    if let Some((scheme, name)) = text.split_once("://")
        && matches!(scheme, "builtin" | "dist")
    {
        return parser.builtin(name, scheme == "dist");
    }
    if let Some((scheme, _)) = text.split_once("://") {
        match scheme {
            "file" => return Err(parser.superfluous("a path starts with \"./\", \"../\" or \"/\"")),
            "docker" | "oci" => return Err(parser.superfluous("an image is REGISTRY/REPOSITORY:TAG")),
            _ => {}
        }
    }
    if text.split_whitespace().next().is_some_and(has_digest) {
        return parser.oci(text);
    }
    if let Some((location, revision)) = text.rsplit_once('@') {
        return parser.git(location, revision);
    }
    if text.starts_with("http://") || text.starts_with("https://") {
        return Err(parser.error("revision missing, expected URL@REV"));
    }
    parser.oci(text)
}

/// Evaluates a reference. The result is never dynamic, and all its templates are plain text. A computed reference is
/// parsed once; a result that looks like a template is an error (language.md §7.6).
pub fn resolve(reference: &Reference, scope: &dyn Scope) -> Result<Reference, Diagnostic> {
    let evaluate = |template: &Template| -> Result<Template, Diagnostic> {
        Ok(Template::literal(evaluate_text(template, scope)?.text, &template.file, template.at))
    };
    let evaluate_all = |templates: &[Template]| templates.iter().map(evaluate).collect::<Result<Vec<_>, _>>();
    match reference {
        Reference::Local { .. } | Reference::Builtin { .. } => Ok(reference.clone()),
        Reference::Git { url, rev, dir, files } => Ok(Reference::Git {
            url: with_scheme(evaluate(url)?),
            rev: not_empty(evaluate(rev)?, "rev")?,
            dir: evaluate(dir)?,
            files: evaluate_all(files)?,
        }),
        Reference::Oci { registry, repository, tag, dir, files } => Ok(Reference::Oci {
            registry: not_empty(evaluate(registry)?, "registry")?,
            repository: not_empty(evaluate(repository)?, "repository")?,
            tag: tag_or_latest(evaluate(tag)?),
            dir: evaluate(dir)?,
            files: evaluate_all(files)?,
        }),
        Reference::Dynamic(template) => {
            let text = evaluate_text(template, scope)?.text;
            if text.contains(OPEN) {
                let message =
                    "the reference evaluates to a text that holds \"${{\", which is not evaluated again";
                return Err(Diagnostic::error(Class::Schema, &template.file, template.at, message));
            }
            parse(&text, &template.file, template.at)
        }
    }
}

/// Returns the location of an evaluated Git or OCI reference for people: `HOST/PATH@REV`, `REGISTRY/REPOSITORY:TAG` or
/// `REGISTRY/REPOSITORY@DIGEST`, without user, password, query and fragment. `None` for all others.
pub fn origin(reference: &Reference) -> Option<String> {
    match reference {
        Reference::Git { url, rev, .. } => {
            let location = without_scheme(url.as_literal()?);
            let login = logins(location).last();
            let location = login.and_then(|login| location.get(login.len() + 1..)).unwrap_or(location);
            let location = location.split(['?', '#']).next().unwrap_or_default();
            let (host, path) = location.split_once('/').unwrap_or((location, ""));
            Some(format!("{}/{path}@{}", host.to_lowercase(), rev.as_literal()?))
        }
        Reference::Oci { registry, repository, tag, .. } => {
            let (registry, repository) = (registry.as_literal()?, repository.as_literal()?);
            let tag = tag.as_literal()?;
            let mark = if is_digest(tag) { '@' } else { ':' };
            let registry = registry.rsplit_once('@').map_or(registry, |(_, host)| host).to_lowercase();
            Some(format!("{registry}/{repository}{mark}{tag}"))
        }
        Reference::Local { .. } | Reference::Builtin { .. } | Reference::Dynamic(_) => None,
    }
}

/// Returns the secrets written in a Git or OCI reference, perhaps percent-encoded: the password, or the user if there is
/// no password (a token). A registry takes none, but people write them. Computed secrets are not found.
pub fn credentials(reference: &Reference) -> Vec<String> {
    let texts = match reference {
        Reference::Git { url, .. } | Reference::Dynamic(url) => [Some(url), None, None],
        Reference::Oci { registry, repository, tag, .. } => [Some(registry), Some(repository), Some(tag)],
        Reference::Local { .. } | Reference::Builtin { .. } => [None; 3],
    };
    let mut found = IndexSet::new();
    for template in texts.into_iter().flatten() {
        let parts = template.parts.iter().map(|part| match part {
            Part::Text(text) => text,
            Part::Expression(_) => COMPUTED,
        });
        let written: String = parts.collect();
        let location = without_scheme(&written);
        let is_open = matches!(reference, Reference::Dynamic(_));
        let mut last = None;
        for login in logins(location) {
            // The last `@` of a text that was not split yet stands before a revision, not before a host and a path.
            if is_open && !location.get(login.len()..).unwrap_or_default().contains('/') {
                break;
            }
            let password = login.split_once(':').map_or(login, |(_, password)| password);
            // A message about the URL can quote its part behind the first `@`, as a host and a path.
            let tail = last.filter(|_| !is_open).and_then(|last: &str| login.get(last.len() + 1..));
            let is_known = |part: &&str| !part.is_empty() && !part.contains(COMPUTED);
            found.extend([Some(password), tail].into_iter().flatten().filter(is_known).map(str::to_owned));
            last = Some(login);
        }
    }
    found.into_iter().collect()
}

/// Stands for an expression in a text; no document holds it.
const COMPUTED: &str = "\0";

/// Returns what follows the scheme of a URL, however it is written.
fn without_scheme(url: &str) -> &str {
    let mut location = url.trim_start();
    loop {
        location = location.trim_start_matches('/');
        let is_scheme = |scheme: &str| {
            scheme.starts_with(|first: char| first.is_ascii_alphabetic())
                && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+.-".contains(&byte))
        };
        match location.split_once(":/") {
            Some((scheme, rest)) if is_scheme(scheme) => location = rest,
            _ => return location,
        }
    }
}

/// Returns the texts in a location that can be user and password, each up to another `@`. A password with `/`, `?` or
/// `#`, which should have been encoded, seems to end the host, as a port does.
fn logins(location: &str) -> impl Iterator<Item = &str> {
    let (host, rest) = location.split_at(location.find(['/', '?', '#']).unwrap_or(location.len()));
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let from = match (host.rfind('@'), host.split_once(':')) {
        (Some(at), _) => at,
        (None, _) if host.starts_with('[') => location.len(),
        (None, Some((_, port))) if !(is_port(port) && rest.starts_with('/')) => 0,
        (None, None) if rest.starts_with(['?', '#']) => 0,
        (None, _) => location.len(),
    };
    location.match_indices('@').filter(move |(at, _)| *at >= from).filter_map(|(at, _)| location.get(..at))
}

/// Adds `https://` to a URL without the scheme `https` or `http`, in any case of letters. A template with expressions
/// stays as it is (language.md §7.5).
pub(crate) fn with_scheme(url: Template) -> Template {
    let Some(text) = url.as_literal() else { return url };
    let scheme = text.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
    match scheme.as_deref() {
        Some("http" | "https") => url,
        _ => Template::literal(format!("https://{text}"), &url.file, url.at),
    }
}

pub(crate) fn tag_or_latest(tag: Template) -> Template {
    if tag.as_literal() == Some("") { Template::literal("latest", &tag.file, tag.at) } else { tag }
}

fn not_empty(template: Template, key: &str) -> Result<Template, Diagnostic> {
    if template.as_literal() == Some("") {
        let message = format!("\"{key}\" of the reference evaluates to an empty text");
        return Err(Diagnostic::error(Class::Schema, &template.file, template.at, message));
    }
    Ok(template)
}

pub(crate) fn default_files() -> Vec<String> {
    DEFINITION_FILES.into_iter().map(str::to_owned).collect()
}

/// True if a word ends in `@sha256:` and 64 hexadecimal digits.
fn has_digest(word: &str) -> bool {
    word.rsplit_once('@').is_some_and(|(_, digest)| is_digest(digest))
}

fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:")
        .is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Splits a path into folder and file names. Drops empty segments. A last segment in `.yml` is the file.
fn split_file(path: &str) -> (String, Vec<String>) {
    let root = if path.starts_with('/') { "/" } else { "" };
    let mut segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    let files = match segments.last() {
        // Only this extension, in lower case, names a file.
        Some(last) if last.strip_suffix(".yml").is_some() => vec![(*last).to_owned()],
        _ => default_files(),
    };
    if files.len() == 1 {
        segments.pop();
    }
    (format!("{root}{}", segments.join("/")), files)
}

struct Parser<'a> {
    file: &'a Arc<str>,
    at: Position,
}

impl Parser<'_> {
    fn error(&self, message: impl Into<String>) -> Diagnostic {
        Diagnostic::error(Class::Schema, self.file, self.at, message)
    }

    /// Makes the error for a scheme that does not belong into a reference.
    fn superfluous(&self, instead: &str) -> Diagnostic {
        self.error("this scheme is not known in a reference").with_help(format!("drop it: {instead}"))
    }

    fn literal(&self, text: impl Into<String>) -> Template {
        Template::literal(text, self.file, self.at)
    }

    fn literals(&self, texts: Vec<String>) -> Vec<Template> {
        texts.into_iter().map(|text| self.literal(text)).collect()
    }

    fn builtin(&self, name: &str, dist: bool) -> Result<Reference, Diagnostic> {
        let segment = |segment: &str| {
            !segment.is_empty()
                && segment.bytes().all(|byte| {
                    byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-')
                })
        };
        if name.split('/').all(segment) {
            Ok(Reference::Builtin { name: name.to_owned(), dist })
        } else {
            Err(self.error("invalid name of a builtin: expected words of a-z, 0-9, _ and -, joined by \"/\""))
        }
    }

    /// Parses `[SCHEME]HOST/PATH[/-/SUBPATH]` with its revision.
    fn git(&self, location: &str, revision: &str) -> Result<Reference, Diagnostic> {
        const EXPECTED: &str = "expected HOST/PATH@REV";
        if revision.is_empty() {
            return Err(self.error(format!("the revision is empty, {EXPECTED}")));
        }
        if location.contains(char::is_whitespace) || revision.contains(char::is_whitespace) {
            return Err(self.error(format!("white space in a Git reference, {EXPECTED}")));
        }
        let (url, inside) = location.split_once("/-/").unwrap_or((location, ""));
        let (scheme, rest) = match url.split_once("://") {
            Some(("http" | "https", rest)) => ("", rest),
            Some(_) => return Err(self.error("only http:// and https:// are supported for Git")),
            None => ("https://", url),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let port = host.rsplit_once(':').map_or("", |(_, port)| port);
        if !host.ends_with(']') && !port.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(self.error("the form git@HOST:PATH is not supported, use https://HOST/PATH@REV"));
        }
        if host.is_empty() || path.trim_matches('/').is_empty() {
            return Err(self.error(EXPECTED));
        }
        let (dir, files) = split_file(inside.trim_start_matches('/'));
        let dir = if dir.is_empty() { "steps".to_owned() } else { format!("steps/{dir}") };
        Ok(Reference::Git {
            url: self.literal(format!("{scheme}{url}")),
            rev: self.literal(revision),
            dir: self.literal(dir),
            files: self.literals(files),
        })
    }

    /// Parses `REGISTRY/REPOSITORY[:TAG|@DIGEST][ SUBPATH]`.
    fn oci(&self, text: &str) -> Result<Reference, Diagnostic> {
        let (image, inside) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        if !image.contains(['/', '.', ':']) {
            return Err(self.error("not a reference").with_help(
                "a local function starts with \"./\", one that ships with the program with \"builtin://\"",
            ));
        }
        let (name, digest) = match image.rsplit_once('@') {
            Some((name, digest)) => (name, Some(digest)),
            None => (image, None),
        };
        let last_segment = name.rfind('/').map_or(0, |slash| slash + 1);
        let colon = name.rfind(':').filter(|colon| *colon >= last_segment && last_segment > 0);
        let (name, tag) = match colon.and_then(|colon| name.split_at_checked(colon)) {
            Some((name, tag)) => (name, tag.strip_prefix(':')),
            None => (name, None),
        };
        let registry_missing = || {
            self.error(
                "registry missing, expected REGISTRY/REPOSITORY:TAG, as registry.example.com/group/name:1",
            )
        };
        let (registry, repository) = name.split_once('/').ok_or_else(registry_missing)?;
        if !(registry.contains(['.', ':']) || registry == "localhost") {
            return Err(registry_missing());
        }
        let tag = digest.or(tag).unwrap_or("latest");
        if tag.is_empty() || repository.split('/').any(str::is_empty) {
            return Err(self.error("expected REGISTRY/REPOSITORY:TAG"));
        }
        let (dir, files) = split_file(inside.trim());
        Ok(Reference::Oci {
            registry: self.literal(registry),
            repository: self.literal(repository),
            tag: self.literal(tag),
            dir: self.literal(dir),
            files: self.literals(files),
        })
    }
}

#[cfg(test)]
mod tests {
    use indexmap::IndexMap;
    use proptest::prelude::*;

    use super::*;
    use crate::template::parse_inline;
    use crate::value::Value;

    fn file() -> Arc<str> {
        Arc::from("f.yml")
    }

    fn parsed(text: &str) -> Result<Reference, String> {
        parse(text, &file(), Position::START).map_err(|error| error.message)
    }

    fn dynamic(text: &str, value: &str) -> Result<Reference, Diagnostic> {
        let scope = IndexMap::from([("x".to_owned(), Value::text(value))]);
        resolve(&Reference::Dynamic(parse_inline(text, &file(), Position::START).unwrap()), &scope)
    }

    #[test]
    fn hidden_files_and_odd_paths_are_local() {
        let local = |text| match parsed(text).unwrap() {
            Reference::Local { path, files } => (path, files.join(" ")),
            other => panic!("{other:?}"),
        };
        let default = "func.yml step.yml".to_owned();
        assert_eq!(local(".hidden"), (".hidden".to_owned(), default.clone()));
        assert_eq!(local("../a/"), ("../a".to_owned(), default.clone()));
        assert_eq!(local("./x.yml"), (".".to_owned(), "x.yml".to_owned()));
        assert_eq!(local(".x.yml"), (".".to_owned(), ".x.yml".to_owned()));
        assert_eq!(local("//"), ("/".to_owned(), default));
    }

    #[test]
    fn fault_68_other_schemes_and_forms_of_git_are_refused_without_credentials_in_the_message() {
        for text in
            ["ssh://git:pw@h/p@v1", "git@host:group/p@v1", "git@host:group/p", "https://u:pw@h/p@", "h@v1"]
        {
            let message = parsed(text).unwrap_err();
            assert!(!message.contains("pw"), "{message}");
        }
        assert_eq!(parsed("https://h/p").unwrap_err(), "revision missing, expected URL@REV");
        assert!(parsed("https://h:8443/p@v1").is_ok());
        assert!(parsed("https://[::1]:80/p@v1").is_ok());
    }

    #[test]
    fn fault_68_credentials_are_found_in_references_of_all_kinds() {
        let of = |text: &str| credentials(&parsed(text).unwrap());
        for (text, expected) in [
            ("https://u:pw@h/p@v1", &["pw"][..]),
            ("token@h/p@v1", &["token"]),
            ("u:p%40w@h:8443/p@v1", &["p%40w"]),
            ("u:pw#x@h/p@v1", &["pw#x"]),
            ("u:pw?x@h/p@v1", &["pw?x"]),
            ("token?x@h/p@v1", &["token?x"]),
            ("u:123#4@h/p@v1", &["123#4"]),
            ("u:a@b/pw@h/p@v1", &["a", "a@b/pw", "b/pw"]),
            ("h:8443/p/a@b@v1", &[]),
            ("[::1]:80/p/@x/y@v1", &[]),
            ("h/p@v1", &[]),
            ("r.example.com:5000/p:v1", &[]),
        ] {
            assert_eq!(of(text), expected, "{text}");
        }
        let git = |url: &str| {
            let url = parse_inline(url, &file(), Position::START).unwrap();
            let part = |text: &str| Template::literal(text, &file(), Position::START);
            credentials(&Reference::Git { url, rev: part("v1"), dir: part(""), files: Vec::new() })
        };
        for url in [
            "HTTPS://u:pw@h/p",
            "ssh://u:pw@h/p",
            "git+https://u:pw@h/p",
            "https:/u:pw@h/p",
            " https:///u:pw@h/p",
            "//u:pw@h/p",
            "https://https://u:pw@h/p",
            "https://u:pw@${{ x }}/p",
            "https://${{ x }}:pw@h/p",
        ] {
            assert_eq!(git(url), ["pw"], "{url}");
        }
        assert_eq!(git("https://u:/pw@h/p"), ["pw"]);
        let dynamic = |text: &str| {
            credentials(&Reference::Dynamic(parse_inline(text, &file(), Position::START).unwrap()))
        };
        assert_eq!(dynamic("u:pw@${{ x }}/p@v1"), ["pw"]);
        assert_eq!(dynamic("u:pw@h/p@${{ x }}"), ["pw"]);
        for text in
            ["echo@${{ x }}", "h/p@${{ x }}", "[::1]:9/p@${{ x }}", "h:${{ x }}/p@v1", "./d@${{ x }}/y"]
        {
            assert_eq!(dynamic(text), [""; 0], "{text}");
        }
        assert_eq!(git("https://u:pw/x@h/p"), ["pw/x"]);
        assert_eq!(git("https://u:${{ x }}@h/p"), [""; 0]);
        let part = |text: &str| Template::literal(text, &file(), Position::START);
        let image = |registry, repository, tag| Reference::Oci {
            registry: part(registry),
            repository: part(repository),
            tag: part(tag),
            dir: part(""),
            files: Vec::new(),
        };
        assert_eq!(credentials(&image("https://u:pw@h:9", "p", "v")), ["pw"]);
        assert_eq!(credentials(&image("u:pw@h", "t@p", "x@v")), ["pw", "t", "x"]);
        let digest = format!("sha256:{}", "0f".repeat(32));
        assert_eq!(credentials(&image("h:5000", "p", &digest)), [""; 0]);
    }

    #[test]
    fn images_need_a_registry_and_may_have_a_digest() {
        for text in ["word", "a/b:1", "alpine:3", "r.example.com", "r.example.com/:1", "func.yml"] {
            assert!(parsed(text).is_err(), "{text}");
        }
        let digest = format!("sha256:{}", "0f".repeat(32));
        let Reference::Oci { registry, repository, tag, dir, .. } =
            parsed(&format!("localhost/a:1@{digest}  sub//dir")).unwrap()
        else {
            panic!("an image")
        };
        assert_eq!(registry.as_literal(), Some("localhost"));
        assert_eq!(repository.as_literal(), Some("a"));
        assert_eq!(tag.as_literal(), Some(digest.as_str()));
        assert_eq!(dir.as_literal(), Some("sub/dir"));
    }

    #[test]
    fn a_computed_reference_is_parsed_once_and_never_evaluated_again() {
        assert!(matches!(dynamic("./${{ x }}", "a"), Ok(Reference::Local { path, .. }) if path == "./a"));
        let error = dynamic("./${{ x }}", "${{ x }}").unwrap_err();
        assert_eq!(error.class, Class::Schema);
        assert_eq!(dynamic("${{ x }}", " ").unwrap_err().message, "the reference is empty");
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "([a-z./:@ -]|sha256:|https://|/-/|builtin://){0,20}") {
            drop(parsed(&text));
        }
    }
}
