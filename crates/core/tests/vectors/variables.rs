//! Vectors of variables.md §8 (`variables-vectors.json`), run against [`step_runner_core::variables`].

use std::collections::BTreeMap;

use libtest_mimic::Failed;
use serde::Deserialize;
use serde_json::Value;
use step_runner_core::request::{JobPart, Masking, RunEnvironment};
use step_runner_core::variables::{Base, EnvBase, Prepared, Service, prepare};
use step_runner_model::Variable;

/// Placeholder for the job's own directory of file variables.
const VARS_DIR: &str = "{vars}";

/// Checks one vector. The daemon's environment is given in the vector, or else in the file.
pub(crate) fn run(vector: &Value, file: &Value) -> Result<(), Failed> {
    let vector = Vector::deserialize(vector)?;
    let daemon_env = match &vector.daemon_env {
        Some(own) => own.clone(),
        None => BTreeMap::deserialize(&file["daemon_env"])?,
    };
    check(&vector, daemon_env)
}

#[derive(Deserialize)]
struct Vector {
    about: String,
    service: String,
    env_base: Option<String>,
    daemon_env: Option<BTreeMap<String, String>>,
    request: VectorRequest,
    error: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, Text>,
    vars: Option<BTreeMap<String, Text>>,
    #[serde(default)]
    files: BTreeMap<String, Text>,
    #[serde(default)]
    phrases: Vec<Text>,
    #[serde(default)]
    token_prefixes: Vec<String>,
    #[serde(default)]
    work_dir: String,
}

#[derive(Deserialize)]
struct VectorRequest {
    #[serde(default)]
    work_dir: String,
    #[serde(default)]
    env: BTreeMap<String, Text>,
    job: Option<VectorJob>,
    #[serde(default)]
    masking: VectorMasking,
}

#[derive(Deserialize)]
struct VectorJob {
    #[serde(default)]
    variables: Vec<VectorVariable>,
    #[serde(default)]
    build_dir: String,
    #[serde(default)]
    token_prefixes: Vec<String>,
}

#[derive(Deserialize, Default)]
struct VectorMasking {
    #[serde(default)]
    phrases: Vec<Text>,
    #[serde(default)]
    token_prefixes: Vec<String>,
}

#[derive(Deserialize)]
struct VectorVariable {
    key: String,
    value: Text,
    #[serde(default)]
    file: bool,
    #[serde(default)]
    masked: bool,
}

/// A text, possibly repeated.
#[derive(Deserialize, Clone)]
#[serde(untagged)]
enum Text {
    Plain(String),
    Repeated(String, usize),
}

impl Text {
    fn get(&self) -> String {
        match self {
            Self::Plain(text) => text.clone(),
            Self::Repeated(text, count) => text.repeat(*count),
        }
    }
}

fn texts(map: &BTreeMap<String, Text>) -> BTreeMap<String, String> {
    map.iter().map(|(key, text)| (key.clone(), text.get())).collect()
}

impl VectorRequest {
    fn get(&self) -> RunEnvironment {
        RunEnvironment {
            work_dir: self.work_dir.clone(),
            env: texts(&self.env).into_iter().collect(),
            job: self.job.as_ref().map(|job| JobPart {
                variables: job.variables.iter().map(VectorVariable::get).collect(),
                build_dir: job.build_dir.clone(),
                token_prefixes: job.token_prefixes.clone(),
                private_file_variables: false,
            }),
            masking: Masking {
                phrases: self.masking.phrases.iter().map(Text::get).collect(),
                token_prefixes: self.masking.token_prefixes.clone(),
            },
        }
    }
}

impl VectorVariable {
    fn get(&self) -> Variable {
        Variable { key: self.key.clone(), value: self.value.get(), file: self.file, masked: self.masked }
    }
}

fn check(vector: &Vector, daemon_env: BTreeMap<String, String>) -> Result<(), Failed> {
    let env_base = if vector.env_base.as_deref() == Some("all") { EnvBase::All } else { EnvBase::List };
    let entries = daemon_env.into_iter().map(|(name, value)| (name.into(), value.into()));
    let (base, _warning) = Base::new(entries, env_base, &[]);
    let service = if vector.service == "proto" { Service::Proto } else { Service::V1 };
    match (prepare(&vector.request.get(), service, &base, VARS_DIR), &vector.error) {
        // All errors of variables.md §6 that a request alone can cause have this code.
        (Err(_), Some(code)) => same("code", code, &"INVALID_ARGUMENT".to_owned()),
        (Ok(prepared), None) => check_prepared(vector, &prepared),
        (Err(error), None) => Err(format!("{}: refused: {error}", vector.about).into()),
        (Ok(_), Some(code)) => Err(format!("{}: accepted, expected {code}", vector.about).into()),
    }
}

fn check_prepared(vector: &Vector, prepared: &Prepared) -> Result<(), Failed> {
    let map = |map: &indexmap::IndexMap<String, String>| map.clone().into_iter().collect::<BTreeMap<_, _>>();
    same("env", &texts(&vector.env), &map(&prepared.env))?;
    same("vars", &texts(vector.vars.as_ref().unwrap_or(&vector.env)), &map(&prepared.vars))?;
    let files = prepared.files.iter().map(|file| (file.path.clone(), file.content.clone()));
    same("files", &texts(&vector.files), &files.collect())?;
    let mut phrases: Vec<_> = prepared.phrases.clone();
    phrases.sort();
    same("phrases", &vector.phrases.iter().map(|text| text.get().into_bytes()).collect(), &phrases)?;
    same("token_prefixes", &vector.token_prefixes, &prepared.token_prefixes)?;
    same("work_dir", &vector.work_dir, &prepared.work_dir.clone().unwrap_or_default())
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, expected: &T, got: &T) -> Result<(), Failed> {
    if expected == got { Ok(()) } else { Err(format!("{what}: expected {expected:?}, got {got:?}").into()) }
}
