//! Runs the test vectors of the specifications: one test for each vector, named `vectors::SUITE::ID`.
//!
//! The vectors are the `*-vectors.json` files in `tests/vectors`, or in the folder named by `STEP_RUNNER_VECTORS`. Each
//! suite belongs to the tests of one crate. `cargo test --test vectors` runs those of all crates.

use std::path::Path;
use std::{fs, process::ExitCode, sync::Arc};

use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::Value;

/// A suite: its name, and a function that runs one of its vectors, which also gets the whole file. The file is named
/// `NAME-vectors.json`.
pub(crate) type Suite = (&'static str, fn(&Value, &Value) -> Result<(), Failed>);

/// Runs suites. `root` is the folder of the repository, where a relative `STEP_RUNNER_VECTORS` begins.
pub(crate) fn run(root: &Path, suites: &[Suite]) -> ExitCode {
    let arguments = Arguments::from_args();
    let folder = std::env::var_os("STEP_RUNNER_VECTORS").unwrap_or_else(|| "tests/vectors".into());
    let folder = root.join(folder);
    let trials = suites.iter().flat_map(|&suite| trials(&folder, suite)).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Returns the trials of a suite. A file that cannot be used becomes one failing trial.
fn trials(folder: &Path, (suite, run): Suite) -> Vec<Trial> {
    match load(folder, suite) {
        Ok((file, vectors)) => {
            let file = Arc::new(file);
            let trial = |(index, vector): (usize, Value)| {
                let id = name(&vector).map_or_else(|| format!("number-{index}"), str::to_owned);
                let file = Arc::clone(&file);
                Trial::test(format!("vectors::{suite}::{id}"), move || run(&vector, &file))
            };
            vectors.into_iter().enumerate().map(trial).collect()
        }
        Err(failed) => vec![Trial::test(format!("vectors::{suite}"), move || Err(failed))],
    }
}

/// Returns the name of a vector: its `id`, or else its `name`.
fn name(vector: &Value) -> Option<&str> {
    vector["id"].as_str().or_else(|| vector["name"].as_str())
}

fn load(folder: &Path, suite: &str) -> Result<(Value, Vec<Value>), Failed> {
    let path = folder.join(format!("{suite}-vectors.json"));
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let file: Value = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    // A file is a list of vectors, has one in `vectors`, or has a list for each part tested (`logs`).
    let lists = match &file {
        Value::Array(_) => vec![&file],
        file => file.as_object().into_iter().flat_map(|file| file.values()).collect(),
    };
    let vectors = lists.into_iter().filter_map(Value::as_array).flatten();
    let vectors: Vec<_> = vectors.filter(|vector| name(vector).is_some()).cloned().collect();
    if vectors.is_empty() {
        return Err(format!("{}: no vectors", path.display()).into());
    }
    Ok((file, vectors))
}
