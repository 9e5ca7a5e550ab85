//! References: sources of functions (language.md §7). Parses the text forms and evaluates computed ones. Messages never
//! quote a reference, because it may hold credentials.

use std::ops::Range;
use std::sync::Arc;

use indexmap::IndexSet;

use super::ast::{Part, Reference, Template};
use super::diagnostic::{Class, Diagnostic, Position};
use super::eval::{Scope, evaluate_text};
use super::template::OPEN;

const REVISION_MISSING: &str = "revision missing, expected URL@REV";

/// Message about a URL whose host ends too early.
const OPEN_LOGIN: &str =
    "user and password of a URL cannot hold \"/\", \"?\" and \"#\": write them as %2F, %3F and %23";

/// Folder of a repository in which a text reference looks for functions (language.md §7.3).
const GIT_FOLDER: &str = "steps";

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
    if let Some((scheme, _)) = text.split_once("://")
        && matches!(scheme, "docker" | "oci")
    {
        let message = "this scheme is not known in a reference";
        return Err(parser.error(message).with_help("drop it: an image is REGISTRY/REPOSITORY:TAG"));
    }
    if let Some(unsupported) = UnsupportedLocation::of(text) {
        return Err(unsupported.diagnostic(file, at));
    }
    if text.split_whitespace().next().is_some_and(has_digest) {
        return parser.oci(text);
    }
    if let Some((location, revision)) = text.rsplit_once('@') {
        return parser.git(location, revision);
    }
    if text.contains("://") {
        return Err(parser.error(REVISION_MISSING));
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
            url: with_scheme(evaluate(url)?)?,
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

/// Returns the [`origin`] of a Git or OCI reference with the folder or file that it names there, unless that is the usual one.
pub fn place(reference: &Reference) -> Option<String> {
    let (dir, files, usual) = match reference {
        Reference::Git { dir, files, .. } => (dir, files, GIT_FOLDER),
        Reference::Oci { dir, files, .. } => (dir, files, ""),
        Reference::Local { .. } | Reference::Builtin { .. } | Reference::Dynamic(_) => return None,
    };
    let file = if let [file] = files.as_slice() { file.as_literal() } else { None };
    let dir = dir.as_literal().filter(|dir| file.is_some() || *dir != usual);
    let inside: Vec<_> = [dir, file].into_iter().flatten().filter(|part| !part.is_empty()).collect();
    let origin = origin(reference)?;
    Some(if inside.is_empty() { origin } else { format!("{origin} {}", inside.join("/")) })
}

/// Returns the secrets written in a Git or OCI reference, perhaps percent-encoded: the password. A registry takes none,
/// but people write them. A user without a password is no secret: it is usually `git`. Computed secrets are not found.
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
        // `u:/pw@h` looks like a scheme `u` with a single slash, but can be a user and a password that starts with `/`.
        let before = written.strip_suffix(location).unwrap_or_default();
        let is_odd = before.ends_with(":/");
        let is_open = matches!(reference, Reference::Dynamic(_));
        let mut last = None;
        for login in logins(location) {
            // The last `@` of a text that was not split yet stands before a revision, not before a host and a path.
            if is_open && !location.get(login.len()..).unwrap_or_default().contains('/') {
                break;
            }
            let password = match login.split_once(':') {
                Some((_, password)) => password,
                None if is_odd => login,
                None => continue,
            };
            // A message about the URL can quote its part behind the first `@`, as a host and a path.
            let tail = last.filter(|_| !is_open).and_then(|last: &str| login.get(last.len() + 1..));
            let is_known = |part: &&str| !part.is_empty() && !part.contains(COMPUTED);
            found.extend([Some(password), tail].into_iter().flatten().filter(is_known).map(str::to_owned));
            last = Some(login);
        }
    }
    found.into_iter().collect()
}

/// Returns where passwords of URLs stand in a line of any text, such as one of a document that cannot be read, in order.
/// Each word counts as a reference, or else as a URL if it has a scheme.
pub fn passwords_in(line: &str) -> Vec<Range<usize>> {
    let mut offset = 0;
    let mut found = Vec::new();
    for word in line.split_inclusive(|c: char| c == '"' || c.is_whitespace()) {
        let url = word.trim_start_matches(['\'', '(', '{', ',']);
        // A text before a scheme can be the user of a password with `://`. If it is not, it is of another thing.
        let scheme = url.find("://").and_then(|end| url.get(..end)).unwrap_or_default();
        let before = scheme.rfind(|c: char| !is_of_scheme(c)).map_or(0, |at| url.ceil_char_boundary(at + 1));
        let starts = [0, before].into_iter();
        let mut passwords = starts.filter_map(|from| Some((from, password_in(url.get(from..)?)?)));
        if let Some((from, Range { start, end })) = passwords.next() {
            let from = offset + word.len() - url.len() + from;
            found.push(from + start..from + end);
        }
        offset += word.len();
    }
    found
}

/// Returns where the password of a URL stands, which may have a revision and other text behind it. If there can be
/// several, as in [`credentials`], the longest contains the others.
fn password_in(url: &str) -> Option<Range<usize>> {
    let location = without_scheme(url);
    let base = url.len() - location.len();
    let path = location.rfind('/').unwrap_or_default();
    // The last `@` may stand before a revision, which can hold a `/`.
    let (before_last, last) = logins(location).fold((None, None), |(_, last), login| (last, Some(login)));
    let before_path = logins(location).take_while(|login| login.len() < path).last();
    let split = before_path.into_iter().chain(before_last).max_by_key(|login| login.len());
    let is_odd = url.get(..base).is_some_and(|before| before.ends_with(":/"));
    [split, last.filter(|_| url.contains("://"))].into_iter().flatten().find_map(|login| {
        let start = login.find(':').map(|colon| colon + 1).or(is_odd.then_some(0))?;
        (start < login.len()).then(|| base + start..base + login.len())
    })
}

/// Stands for an expression in a text; no document holds it.
const COMPUTED: &str = "\0";

/// Returns what follows the scheme of a URL, however it is written.
fn without_scheme(url: &str) -> &str {
    let mut location = url.trim_start();
    loop {
        location = location.trim_start_matches('/');
        match location.split_once(":/") {
            Some((scheme, rest)) if is_scheme(scheme) => location = rest,
            _ => return location,
        }
    }
}

/// True if a text can be the scheme of a URL.
fn is_scheme(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic()) && text.chars().all(is_of_scheme)
}

fn is_of_scheme(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '+' | '.' | '-')
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

/// Adds `https://` to a URL without the scheme `https` or `http`, whose letters may have any case. A template with
/// expressions stays as it is (language.md §7.5).
///
/// # Errors
/// The URL has another scheme or the form `USER@HOST:PATH`.
pub(crate) fn with_scheme(url: Template) -> Result<Template, Diagnostic> {
    let Some(text) = url.as_literal() else { return Ok(url) };
    if let Some(unsupported) = UnsupportedLocation::of(text) {
        return Err(unsupported.diagnostic(&url.file, url.at));
    }
    Ok(Template::literal(with_lower_case_scheme(text), &url.file, url.at))
}

/// Returns the URL with its scheme in lower case, or with `https://` if it has none.
fn with_lower_case_scheme(url: &str) -> String {
    match url.split_once("://").filter(|(scheme, _)| is_scheme(scheme)) {
        Some((scheme, rest)) => format!("{}://{rest}", scheme.to_ascii_lowercase()),
        None => format!("https://{url}"),
    }
}

/// Forms of a location that other programs know and this one does not.
#[derive(Clone, Copy)]
enum UnsupportedLocation {
    /// `file://PATH`.
    File,
    /// Another scheme than `http` and `https`.
    Scheme,
    /// `USER@HOST:PATH`, the form of `scp`.
    Scp,
}

impl UnsupportedLocation {
    /// Recognises a location, also one with a revision behind it. `None` if it may be a supported one.
    fn of(text: &str) -> Option<Self> {
        if let Some((scheme, _)) = text.split_once("://").filter(|(scheme, _)| is_scheme(scheme)) {
            return match scheme.to_ascii_lowercase().as_str() {
                "http" | "https" => None,
                "file" => Some(Self::File),
                _ => Some(Self::Scheme),
            };
        }
        let (_, host) = text.split_once('@')?;
        let (host, path) = host.split_once(':')?;
        // A password can hold `@`, a port is followed by a path, and a digest follows its algorithm.
        let is_user = !text.starts_with(['.', '/']) && !text.split('@').next()?.contains([':', '/']);
        let is_port = path.starts_with(|first: char| first.is_ascii_digit());
        (is_user && !is_port && !host.contains(['/', '@', '[']) && !host.is_empty()).then_some(Self::Scp)
    }

    fn diagnostic(self, file: &Arc<str>, at: Position) -> Diagnostic {
        let (message, help) = match self {
            Self::File => (
                "file:// is not supported in a reference",
                "write the path alone: a local function starts with \"./\", \"../\" or \"/\"",
            ),
            Self::Scheme => (
                "only http:// and https:// are supported for Git",
                "write https://HOST/PATH@REV; for a private repository put user and token before the host, or into \
                 ~/.netrc",
            ),
            Self::Scp => (
                "the form USER@HOST:PATH is not supported for Git, only http:// and https://",
                "write https://HOST/PATH@REV",
            ),
        };
        Diagnostic::error(Class::Schema, file, at, message).with_help(help)
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
        let url = with_lower_case_scheme(url);
        let rest = url.split_once("://").map_or("", |(_, rest)| rest);
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let port = host.rsplit_once(':').map_or("", |(_, port)| port);
        if !host.ends_with(']') && !port.bytes().all(|byte| byte.is_ascii_digit()) {
            if path.is_empty() && revision.contains('/') {
                // The only `@` is that of user and password.
                return Err(self.error(REVISION_MISSING));
            }
            let login = logins(without_scheme(location)).next();
            if login.is_some_and(|login| login.contains(['/', '?', '#'])) {
                return Err(self.error(OPEN_LOGIN));
            }
            return Err(UnsupportedLocation::Scp.diagnostic(self.file, self.at));
        }
        if host.is_empty() || path.trim_matches('/').is_empty() {
            return Err(self.error(EXPECTED));
        }
        let (dir, files) = split_file(inside.trim_start_matches('/'));
        let dir = if dir.is_empty() { GIT_FOLDER.to_owned() } else { format!("{GIT_FOLDER}/{dir}") };
        Ok(Reference::Git {
            url: self.literal(url),
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
mod tests;
