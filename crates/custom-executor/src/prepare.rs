//! `prepare`: the folder, the daemon, and a look at its environment (custom-executor.md §6).

use std::path::Path;

use super::identity::Identity;
use super::processes::Processes;
use super::relay::{Relay, RelayedBytes};
use super::state::{AttemptFolder, Lock, Meta};
use super::{
    AttemptDaemon, Delivery, Driver, LOOK_TIME, abandoned, finish, no_id, private, removal, request, submit,
};
use step_runner_client::{Address, Client, Event};
use step_runner_model::error::{Exit, Failure};
use step_runner_model::exit_code;

pub(super) async fn prepare(driver: &Driver) -> Result<String, Failure> {
    let identity = driver.identity()?;
    let named = driver.named_address()?;
    let state = driver.state(&identity)?;
    abandoned::remove_all(driver, &state).await;
    // Held to the end, so that a `cleanup` waits.
    let lock = state.lock()?;
    state.make()?;
    let (daemon, client) = match named {
        Some(address) => shared(driver, &identity, &state, address).await?,
        None => own(driver, &identity, &state, &lock).await?,
    };
    look(driver, &identity, &client, &daemon).await?;
    if driver.environment.job.wants_containers {
        (driver.say)(
            "warning: image and services are not provided by this executor; the job runs without them",
        );
    }
    let version = if daemon.private { concat!(" ", env!("CARGO_PKG_VERSION")) } else { "" };
    Ok(format!("Using step-runner daemon{version} at {}", daemon.address))
}

/// Reaches the daemon that was named.
async fn shared(
    driver: &Driver,
    identity: &Identity,
    state: &AttemptFolder,
    address: Address,
) -> Result<(AttemptDaemon, Client), Failure> {
    drop_leftover(state)?;
    state.write_meta(&meta(driver, identity, &address, false)?)?;
    let client = driver.connect(address.clone()).await?;
    client.jobs().await?;
    Ok((AttemptDaemon { address, private: false }, client))
}

/// Reaches the private daemon that runs already, or starts one.
async fn own(
    driver: &Driver,
    identity: &Identity,
    state: &AttemptFolder,
    lock: &Lock,
) -> Result<(AttemptDaemon, Client), Failure> {
    let address = private::address(state)?;
    if Processes::of(state).daemon().is_none() {
        drop_leftover(state)?;
        // Noted before anything is started.
        state.write_meta(&meta(driver, identity, &address, true)?)?;
        private::start(driver, state, lock)?;
    }
    let client = driver.connect(address.clone()).await?;
    client.jobs().await?;
    Ok((AttemptDaemon { address, private: true }, client))
}

fn meta(driver: &Driver, identity: &Identity, address: &Address, private: bool) -> Result<Meta, Failure> {
    Ok(Meta {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        address: address.to_string(),
        prefix: identity.prefix().to_owned(),
        private,
        owner: driver.owner()?,
    })
}

/// Ends and removes what an earlier `prepare` of the same attempt has left. The caller holds the lock.
fn drop_leftover(state: &AttemptFolder) -> Result<(), Failure> {
    if !state.daemon_state().exists() && Processes::of(state).is_empty() {
        return Ok(());
    }
    if let Some(left) = removal::end_by_force(state).first() {
        let what = format!("{left}; an earlier prepare of this job started it");
        return Err(Failure::new(Exit::Failure, what).with_remedy("end that process, then retry the job"));
    }
    let removed = state.remove();
    removed.map_err(|error| {
        Failure::new(Exit::Failure, format!("cannot remove {}: {error}", state.path().display()))
    })?;
    state.make()
}

/// Makes the builds directory and looks for the programs that scripts need.
async fn look(
    driver: &Driver,
    identity: &Identity,
    client: &Client,
    daemon: &AttemptDaemon,
) -> Result<(), Failure> {
    let unique = getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id()));
    let id = identity.preparation(unique).map_err(no_id)?;
    let shell = shell_program(driver.options.shell.as_deref().unwrap_or("bash"));
    let request = request::preparation(id.clone(), &driver.environment.job, shell, LOOK_TIME);
    // A `cleanup` waits for the lock, which the caller holds.
    submit(client, &request, driver.options.admission_timeout, || true).await?;
    let (mut log, mut relay, mut out) = (client.follow(&id, 0), Relay::new(false), RelayedBytes::default());
    let status = loop {
        match log.next().await? {
            Event::Log(bytes) => relay.push(&bytes, &mut out),
            Event::Unfinished(_) => {}
            Event::End(status) => break status,
        }
    };
    relay.finish(&mut out);
    if let Err(error) = finish(client, &id).await {
        (driver.say)(&format!(
            "warning: the daemon did not remove the job that checked the environment; cleanup will try again: {error}"
        ));
    }
    if status.exit_code == exit_code::FAILED {
        return Err(Failure::new(
            Exit::Failure,
            format!("cannot start a shell in the daemon's environment: {}", status.message),
        ));
    }
    let findings = String::from_utf8_lossy(&out.stdout).into_owned();
    let is_missing = |name: &str| findings.lines().any(|line| line.strip_prefix("no-") == Some(name));
    if is_missing(shell) {
        return Err(Failure::new(
            Exit::Failure,
            format!("`{shell}` is not to be found in the daemon's environment"),
        )
        .with_remedy("install it there, or choose another one with --shell"));
    }
    if is_missing("builds-dir") {
        let text = "cannot create the builds directory in the daemon's environment";
        return Err(Failure::new(Exit::Failure, text)
            .with_remedy("name one that the daemon's user can create with --builds-dir"));
    }
    let inline = driver.delivery(daemon) == Delivery::Inline;
    for (name, consequence) in [
        ("git", "sources cannot be fetched"),
        ("step-runner", "jobs with `run:` cannot run"),
        ("gitlab-runner", "caches and artifacts are left out"),
        ("base64", "scripts cannot be delivered inline"),
    ] {
        if is_missing(name) && (inline || name != "base64") {
            (driver.say)(&format!(
                "warning: `{name}` is not to be found in the daemon's environment: {consequence}"
            ));
        }
    }
    Ok(())
}

/// Returns the program of a shell as the Runner names it.
fn shell_program(shell: &str) -> &str {
    match shell {
        "powershell" => "pwsh",
        other => Path::new(other).file_name().and_then(|name| name.to_str()).unwrap_or(other),
    }
}
