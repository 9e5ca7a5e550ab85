//! Locates the function of a step (language.md §7, §14.5, §14.6).

use std::sync::Arc;

use step_runner_lang::ast::{Function, Invocation, Reference, Step, Template};
use step_runner_lang::diagnostic::{Class, Diagnostic, Position};
use step_runner_lang::eval::Scope;
use step_runner_lang::reference::{self, DEFINITION_FILES};
use step_runner_model::ReferenceInfo;

use super::builtin;

/// Location of a function.
pub(crate) enum Target {
    /// Ships with the program, so nothing is fetched.
    Builtin(String),
    /// Must be fetched. Everything in it is evaluated; a local path is absolute.
    Fetch(Reference),
}

/// Locates the function that `step` of `caller` invokes. Relative paths start at `func_dir`, the caller's folder.
pub(crate) fn target(
    step: &Step,
    caller: &Function,
    func_dir: &str,
    scope: &dyn Scope,
) -> Result<Target, Diagnostic> {
    let resolved = match &step.invokes {
        Invocation::Script(_) => return Ok(Target::Builtin("script".to_owned())),
        Invocation::Action(_) => return Ok(Target::Fetch(action_runner(&caller.file, step.at))),
        Invocation::Reference(reference, _) => reference::resolve(reference, scope),
        Invocation::Group(_) => {
            let finding =
                Diagnostic::error(Class::Schema, &caller.file, step.at, "a group calls no function");
            Err(finding)
        }
    };
    match resolved {
        Ok(Reference::Builtin { name, .. }) => Ok(Target::Builtin(name)),
        Ok(Reference::Local { path, files }) => {
            Ok(Target::Fetch(Reference::Local { path: absolute(func_dir, &path), files }))
        }
        Ok(other) => Ok(Target::Fetch(other)),
        Err(finding) if finding.path.is_empty() => Err(finding.with_path(place(step).1)),
        Err(finding) => Err(finding),
    }
}

/// Returns place and path of what names the function of a step.
pub(crate) fn place(step: &Step) -> (Position, String) {
    match &step.invokes {
        Invocation::Reference(_, at) => (*at, format!("{}.func", step.path)),
        Invocation::Script(template) => (template.at, format!("{}.script", step.path)),
        Invocation::Action(template) => (template.at, format!("{}.action", step.path)),
        Invocation::Group(_) => (step.at, step.path.clone()),
    }
}

/// Removes `.`, `..` and empty segments from a path, to compare it with others. Ignores symbolic links.
pub(crate) fn tidy(path: &str) -> String {
    let mut kept = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(kept.pop()),
            segment => kept.push(segment),
        }
    }
    format!("/{}", kept.join("/"))
}

/// Returns the reference to a function found as `filename`, as results show it.
pub(crate) fn info(reference: &Reference, filename: Option<&str>) -> ReferenceInfo {
    let text = |template: &Template| template.as_literal().unwrap_or_default().to_owned();
    let named = |first: Option<&str>| filename.or(first).unwrap_or(DEFINITION_FILES[0]).to_owned();
    let parts = |path: &str| path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
    let info = ReferenceInfo::default();
    match reference {
        Reference::Local { path, files } => ReferenceInfo {
            protocol: "local".to_owned(),
            path: parts(path),
            filename: named(files.first().map(String::as_str)),
            ..info
        },
        Reference::Builtin { name, .. } => builtin::info(name),
        Reference::Git { url, rev, dir, files } => ReferenceInfo {
            protocol: "git".to_owned(),
            url: text(url),
            path: parts(&text(dir)),
            filename: named(files.first().and_then(Template::as_literal)),
            version: text(rev),
        },
        Reference::Oci { registry, repository, tag, dir, files } => ReferenceInfo {
            protocol: "oci".to_owned(),
            url: format!("{}/{}", text(registry), text(repository)),
            path: parts(&text(dir)),
            filename: named(files.first().and_then(Template::as_literal)),
            version: text(tag),
        },
        Reference::Dynamic(_) => ReferenceInfo { protocol: "dynamic".to_owned(), ..info },
    }
}

/// Joins `path` to `base`. Keeps `..`, because its meaning depends on symbolic links.
pub fn absolute(base: &str, path: &str) -> String {
    if path.starts_with('/') {
        return path.to_owned();
    }
    let base = base.trim_end_matches('/');
    match path {
        "" | "." => {
            if base.is_empty() {
                "/".to_owned()
            } else {
                base.to_owned()
            }
        }
        _ => format!("{base}/{}", path.strip_prefix("./").unwrap_or(path)),
    }
}

fn action_runner(file: &Arc<str>, at: Position) -> Reference {
    let text = |text: &str| Template::literal(text, file, at);
    Reference::Git {
        url: text("https://gitlab.com/components/action-runner"),
        rev: text("main"),
        dir: text(""),
        files: DEFINITION_FILES.map(text).to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_start_from_the_base_and_keep_their_parents() {
        for (path, expected) in
            [("./a", "/base/a"), ("a/b", "/base/a/b"), ("../a", "/base/../a"), ("/a", "/a"), (".", "/base")]
        {
            assert_eq!(absolute("/base", path), expected);
        }
        assert_eq!(absolute("/", "./a"), "/a");
        assert_eq!(absolute("/", "."), "/");
    }

    #[test]
    fn an_action_is_the_action_runner() {
        let info = info(&action_runner(&Arc::from("f"), Position::START), None);
        assert_eq!(
            (info.protocol.as_str(), info.version.as_str(), info.filename.as_str()),
            ("git", "main", "func.yml")
        );
        assert_eq!(info.url, "https://gitlab.com/components/action-runner");
    }
}
