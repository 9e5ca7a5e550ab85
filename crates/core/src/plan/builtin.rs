//! Functions that ship with the program: one table of names, interfaces and implementations (language.md §17).
//!
//! `builtin://NAME` and `dist://NAME` name the same function. A builtin obeys the rules of every function: the inputs
//! from a step are checked against its interface here before it runs.

use std::sync::{Arc, OnceLock};

use step_runner_lang::diagnostic::Class;
use step_runner_lang::name;
use step_runner_model::ReferenceInfo;
use step_runner_model::text;

use super::library::Loaded;

/// Longest script passed as an argument. Linux allows 128 KiB, including the NUL at its end.
pub(crate) const LONGEST_ARGUMENT: usize = 128 * 1024 - 1;

/// Implementation of a builtin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BuiltinKind {
    /// A shell that runs the text of the input `script`.
    Script,
    /// A shell that runs the text that [`super::script_legacy`] makes of the inputs.
    ScriptLegacy,
    /// The loader of functions. No process runs.
    Fetch,
    /// This program as a process of the job: `step-runner builtin NAME`.
    Program,
    /// The steps in the text of the input `steps`. No process of its own runs.
    Steps,
}

impl BuiltinKind {
    /// True if its inputs may name the invocation's own files (language.md §10): a script has no other way to export.
    pub(crate) const fn is_script(self) -> bool {
        matches!(self, Self::Script | Self::ScriptLegacy)
    }
}

/// A builtin. Its interface is parsed at the first use.
struct Builtin {
    name: &'static str,
    kind: BuiltinKind,
    /// `inputs` and `outputs` of its spec.
    interface: &'static str,
    loaded: OnceLock<Option<Arc<Loaded>>>,
}

impl Builtin {
    const fn new(name: &'static str, kind: BuiltinKind, interface: &'static str) -> Self {
        Self { name, kind, interface, loaded: OnceLock::new() }
    }

    /// Returns the parsed interface. Its body is a placeholder that never runs: the job's machine performs the builtin.
    fn loaded(&self) -> Option<Arc<Loaded>> {
        let load = || {
            let Self { name, interface, .. } = self;
            let text = format!("spec:\n{interface}---\nexec: {{command: [\"{name}\"]}}\n");
            Loaded::file(&format!("builtin://{name}"), &text).ok().map(Arc::new)
        };
        self.loaded.get_or_init(load).clone()
    }
}

/// All builtins, in the order in which messages list them.
static TABLE: [Builtin; 15] = [
    Builtin::new("script", BuiltinKind::Script, "  inputs: {script: {type: string}}\n"),
    Builtin::new(
        "script_legacy",
        BuiltinKind::ScriptLegacy,
        "  inputs:
    script: {type: array}
    debug_trace: {type: boolean, default: false}
    check_for_errors: {type: boolean, default: false}
    posix_escape: {type: boolean, default: false}
    trace_sections: {type: boolean, default: false}
",
    ),
    Builtin::new(
        "step/oci/fetch",
        BuiltinKind::Fetch,
        "  inputs:
    registry: {type: string}
    repository: {type: string}
    tag: {type: string}
    step_path: {type: string, default: \"\"}
  outputs:
    fetched_step_path: {type: string}
    ref: {type: string}
",
    ),
    Builtin::new(
        "function/oci/build",
        BuiltinKind::Program,
        "  inputs:
    version: {type: string}
    common: {type: struct, default: {}}
    platforms: {type: struct, default: {}}
  outputs:
    archive: {type: string}
    version: {type: string}
    digest: {type: string}
",
    ),
    Builtin::new(
        "function/oci/publish",
        BuiltinKind::Program,
        "  inputs:
    archive: {type: string, default: function-image.tar}
    to_repository: {type: string}
  outputs:
    ref: {type: string}
    digest: {type: string}
    version: {type: string}
    tags: {type: array}
",
    ),
    Builtin::new(
        "step/oci/build",
        BuiltinKind::Program,
        "  inputs:
    registry: {type: string}
    repository: {type: string}
    tag: {type: string}
    common: {type: struct, default: {}}
    platforms: {type: struct, default: {}}
  outputs:
    registry: {type: string}
    repository: {type: string}
    tag: {type: string}
    ref: {type: string}
    digest: {type: struct}
",
    ),
    Builtin::new(
        "step/oci/promote",
        BuiltinKind::Program,
        "  inputs:
    from_image: {type: string}
    to_registry: {type: string}
    to_repository: {type: string}
    to_version: {type: string}
",
    ),
    Builtin::new("ci/run", BuiltinKind::Steps, "  inputs: {steps: {type: string}}\n"),
    Builtin::new(
        "ci/cache/restore",
        BuiltinKind::Program,
        "  inputs:
    caches: {type: array}
    fallback_key: {type: string, default: \"\"}
    store: {type: string, default: \"\"}
",
    ),
    Builtin::new(
        "ci/cache/save",
        BuiltinKind::Program,
        "  inputs:
    caches: {type: array}
    status: {type: string}
    store: {type: string, default: \"\"}
",
    ),
    Builtin::new(
        "ci/artifacts/download",
        BuiltinKind::Program,
        "  inputs:
    dependencies: {type: array}
    tokens: {type: array, default: [], sensitive: true}
    store: {type: string, default: \"\"}
    server: {type: string, default: \"\"}
",
    ),
    Builtin::new(
        "ci/artifacts/upload",
        BuiltinKind::Program,
        "  inputs:
    artifacts: {type: array}
    status: {type: string}
    token: {type: string, default: \"\", sensitive: true}
    store: {type: string, default: \"\"}
    server: {type: string, default: \"\"}
    job: {type: string, default: \"\"}
",
    ),
    Builtin::new("ci/prepare", BuiltinKind::Program, "  inputs: {}\n"),
    Builtin::new(
        "ci/get_sources",
        BuiltinKind::Program,
        "  inputs:
    sources: {type: struct}
    token: {type: string, default: \"\", sensitive: true}
    pre_get_sources_script: {type: array, default: []}
    post_get_sources_script: {type: array, default: []}
",
    ),
    Builtin::new("ci/cleanup", BuiltinKind::Program, "  inputs: {}\n"),
];

/// Returns the interface of the builtin `name`, or the mistake in the name.
pub fn find(name: &str) -> Result<Arc<Loaded>, (Class, String)> {
    if let Some(loaded) = entry(name).and_then(Builtin::loaded) {
        return Ok(loaded);
    }
    if name == "concrete" {
        let message = "builtin \"concrete\" is not supported: its input is a CI runner's whole job in a private form \
                       that no contract describes; turn the runner's feature flag FF_CONCRETE off";
        return Err((Class::NotFound, message.to_owned()));
    }
    let names = || TABLE.iter().map(|builtin| builtin.name);
    let instead = match name::suggest(name, names()) {
        Some(similar) => format!("did you mean \"{similar}\"?"),
        None => format!("known: {}", names().collect::<Vec<_>>().join(", ")),
    };
    Err((Class::NotFound, format!("builtin \"{}\" was not found; {instead}", text::quote(name))))
}

/// Returns the implementation of the builtin `name`, if it exists.
pub(crate) fn kind(name: &str) -> Option<BuiltinKind> {
    entry(name).map(|builtin| builtin.kind)
}

fn entry(name: &str) -> Option<&'static Builtin> {
    TABLE.iter().find(|builtin| builtin.name == name)
}

/// Returns the reference to a builtin as results show it.
pub(crate) fn info(name: &str) -> ReferenceInfo {
    ReferenceInfo {
        protocol: "dist".to_owned(),
        path: name.split('/').map(str::to_owned).collect(),
        ..ReferenceInfo::default()
    }
}

#[cfg(test)]
mod tests {
    use step_runner_lang::ast::Outputs;

    use super::*;

    fn outputs(loaded: &Loaded) -> Vec<&str> {
        match &loaded.function.spec.outputs {
            Outputs::Declared(declared) => declared.keys().map(String::as_str).collect(),
            Outputs::Delegate => panic!("delegates"),
        }
    }

    #[test]
    fn every_builtin_has_a_right_interface_of_its_own() {
        for builtin in &TABLE {
            let loaded = find(builtin.name).unwrap();
            assert!(loaded.function.warnings.is_empty(), "{}", builtin.name);
            let is_bare = ["ci/prepare", "ci/cleanup"].contains(&builtin.name);
            assert_eq!(loaded.function.spec.inputs.is_empty(), is_bare, "{}", builtin.name);
            assert_eq!(kind(builtin.name), Some(builtin.kind));
        }
        assert_eq!(outputs(&find("step/oci/fetch").unwrap()), ["fetched_step_path", "ref"]);
        assert_eq!(
            outputs(&find("step/oci/build").unwrap()),
            ["registry", "repository", "tag", "ref", "digest"]
        );
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_one_that_was_meant_or_all() {
        let Err((class, message)) = find("echo") else { panic!("found") };
        assert_eq!(class, Class::NotFound);
        assert!(message.starts_with("builtin \"echo\" was not found; known: script, script_legacy, "));
        let Err((_, message)) = find("scirpt") else { panic!("found") };
        assert_eq!(message, "builtin \"scirpt\" was not found; did you mean \"script\"?");
        assert_eq!(kind("scirpt"), None);
    }

    #[test]
    fn the_runners_private_builtin_is_named_with_the_remedy() {
        let Err((_, message)) = find("concrete") else { panic!("found") };
        assert!(message.contains("not supported") && message.contains("FF_CONCRETE off"), "{message}");
    }
}
