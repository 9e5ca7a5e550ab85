//! The answer to `config` (custom-executor.md §5).

use serde_json::{Map, Value, json};

use super::templates::expand;
use super::{Driver, private};
use step_runner_model::error::{Exit, Failure};

pub(super) fn answer(driver: &Driver) -> Result<String, Failure> {
    let options = &driver.options;
    driver.named_address()?;
    let mut answer = Map::new();
    let mut put = |key: &str, value: Value| drop(answer.insert(key.to_owned(), value));
    put("driver", json!({"name": "step-runner", "version": env!("CARGO_PKG_VERSION")}));
    for (key, option, template) in [
        ("builds_dir", "--builds-dir", &options.builds_dir),
        ("cache_dir", "--cache-dir", &options.cache_dir),
    ] {
        if let Some(template) = template {
            let directory = expand(template, &driver.environment.job)
                .map_err(|error| Failure::new(Exit::Failure, format!("{option}: {error}")))?;
            put(key, directory.into());
        }
    }
    put("builds_dir_is_shared", (!options.isolated).into());
    if let Some(hostname) = options.hostname.clone().or_else(|| own_hostname(driver)) {
        put("hostname", hostname.into());
    }
    if let Some(shell) = &options.shell {
        put("shell", shell.as_str().into());
    }
    // For scripts and people: the other calls can find this out by themselves.
    if let Ok(identity) = driver.identity() {
        let state = driver.state(&identity)?.path().display().to_string();
        put("job_env", json!({private::STATE_VARIABLE: state, private::PREFIX_VARIABLE: identity.prefix()}));
    }
    Ok(Value::Object(answer).to_string())
}

/// Returns the name of this host, if the daemon is to run here.
fn own_hostname(driver: &Driver) -> Option<String> {
    let name = rustix::system::uname().nodename().to_str().ok()?.to_owned();
    (driver.options.address.is_none() && !name.is_empty()).then_some(name)
}
