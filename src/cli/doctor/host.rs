//! Checks of the kernel, the limits and the installed programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use rustix::process::{Resource, getrlimit};

use super::Finding;
use crate::clock;
use crate::model::LimitName;
use crate::process::cgroup::{CgroupError, DELEGATE, available_controllers, writable_group};
use crate::process::command;
use crate::process::controllers::{Controller, Hierarchy};

/// Open files below which a daemon with many jobs and clients runs short.
const FEW_FILES: u64 = 4096;

/// Processes below which jobs of many processes run short.
const FEW_PROCESSES: u64 = 1024;

/// Start of 2026 in seconds since the epoch. A clock before it is wrong, because the program is younger.
const PROGRAM_IS_YOUNGER: u64 = 1_767_225_600;

pub(super) fn kernel() -> Finding {
    const NAME: &str = "kernel";
    let system = rustix::system::uname();
    let found = format!("{} {}", system.sysname().to_string_lossy(), system.release().to_string_lossy());
    if fs::read_to_string("/proc/self/stat").is_err() {
        let remedy = "mount it, as container engines do: left-over processes of steps are found there";
        return Finding::broken(NAME, format!("{found}; /proc cannot be read"), remedy);
    }
    Finding::good(NAME, found)
}

fn names(controllers: &[Controller]) -> String {
    controllers.iter().map(|controller| controller.name()).collect::<Vec<_>>().join(", ")
}

pub(super) fn control_groups() -> Finding {
    const NAME: &str = "control_groups";
    let without = "a reaper process holds the processes of each job together instead";
    match writable_group() {
        Ok(group) => {
            let controllers = names(&available_controllers());
            let controllers =
                if controllers.is_empty() { "without controllers".to_owned() } else { controllers };
            Finding::good(NAME, format!("version 2, writable: {} ({controllers})", group.display()))
        }
        Err(CgroupError::NotMounted) => {
            Finding::warning(NAME, format!("version 2 is not mounted; {without}"), DELEGATE)
        }
        Err(CgroupError::NotWritable { path, .. }) => {
            let found = format!("version 2 is not writable at {}; {without}", path.display());
            Finding::warning(NAME, found, DELEGATE)
        }
    }
}

/// Checks which limits of jobs can be enforced.
pub(super) fn job_limits() -> Finding {
    const NAME: &str = "job_limits";
    let mut available = available_controllers();
    available.extend(Hierarchy::writable().into_iter().flat_map(|hierarchy| hierarchy.controllers));
    let is_held =
        |limit: &LimitName| Controller::of(*limit).is_none_or(|controller| available.contains(&controller));
    let show =
        |limits: Vec<LimitName>| limits.iter().map(|limit| limit.name()).collect::<Vec<_>>().join(", ");
    let (held, missing): (Vec<_>, Vec<_>) = LimitName::ALL.into_iter().partition(is_held);
    if missing.is_empty() {
        return Finding::good(NAME, format!("can be enforced: {}", show(held)));
    }
    let found = format!("cannot be enforced by control groups: {}", show(missing));
    Finding::warning(NAME, found, DELEGATE)
}

/// Checks which namespaces this process may make. step-runner itself needs none.
pub(super) fn namespaces() -> Finding {
    const NAME: &str = "namespaces";
    let kinds: Vec<&str> = ["user", "pid", "mnt", "net"]
        .into_iter()
        .filter(|kind| Path::new("/proc/self/ns").join(kind).exists())
        .collect();
    let found =
        format!("the kernel has {}", if kinds.is_empty() { "none".to_owned() } else { kinds.join(", ") });
    if may_administrate() {
        return Finding::good(NAME, format!("{found}; this process may make them"));
    }
    let sysctl = |name: &str| fs::read_to_string(format!("/proc/sys/{name}")).ok();
    let is = |name: &str, value: &str| sysctl(name).is_some_and(|text| text.trim() == value);
    let barrier = [
        ("user/max_user_namespaces", "0"),
        ("kernel/unprivileged_userns_clone", "0"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1"),
    ]
    .into_iter()
    .find(|(name, value)| is(name, value));
    match barrier {
        None if kinds.contains(&"user") => {
            Finding::good(NAME, format!("{found}; user namespaces are allowed"))
        }
        None => {
            Finding::warning(NAME, found, "steps that make containers need a kernel with user namespaces")
        }
        Some((name, value)) => {
            let name = name.replace('/', ".");
            let found = format!("{found}; user namespaces are off for this user ({name} = {value})");
            Finding::warning(NAME, found, format!("only steps that make containers need them: change {name}"))
        }
    }
}

/// True if this process has `CAP_SYS_ADMIN`.
fn may_administrate() -> bool {
    const SYS_ADMIN: u64 = 1 << 21;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).is_some_and(|set| set & SYS_ADMIN != 0)
}

pub(super) fn open_files() -> Finding {
    const NAME: &str = "open_files";
    let limit = getrlimit(Resource::Nofile);
    let found = format!("soft limit {}, hard limit {}", shown(limit.current), shown(limit.maximum));
    if limit.maximum.is_some_and(|hard| hard < FEW_FILES) {
        let remedy =
            format!("raise it to {FEW_FILES} or more, with systemd LimitNOFILE=, in a shell ulimit -Hn");
        return Finding::warning(NAME, found, remedy);
    }
    Finding::good(NAME, found)
}

pub(super) fn processes() -> Finding {
    const NAME: &str = "processes";
    let limit = getrlimit(Resource::Nproc);
    let group = writable_group().ok().and_then(|group| fs::read_to_string(group.join("pids.max")).ok());
    let group = group.and_then(|text| text.trim().parse::<u64>().ok());
    // The limit of a user does not bind root.
    let own = limit.current.filter(|_| !rustix::process::geteuid().is_root());
    let found = format!("limit of the user {}, of the control group {}", shown(limit.current), shown(group));
    if [own, group].into_iter().flatten().any(|most| most < FEW_PROCESSES) {
        let remedy = format!("raise it to {FEW_PROCESSES} or more, with systemd LimitNPROC= and TasksMax=");
        return Finding::warning(NAME, found, remedy);
    }
    Finding::good(NAME, found)
}

fn shown(limit: Option<u64>) -> String {
    limit.map_or_else(|| "none".to_owned(), |limit| limit.to_string())
}

/// Finds a program in `PATH`.
fn program(name: &str) -> Option<PathBuf> {
    command::lookup(name, Path::new("/"), std::env::var_os("PATH").as_deref(), None).ok()
}

pub(super) fn shell() -> Finding {
    const NAME: &str = "shell";
    match (program("bash"), program("sh")) {
        (Some(bash), _) => Finding::good(NAME, bash.display().to_string()),
        (None, Some(sh)) => {
            Finding::good(NAME, format!("{}; there is no bash, scripts run with sh", sh.display()))
        }
        (None, None) => Finding::broken(
            NAME,
            "neither bash nor sh is in a folder of PATH: no script can run",
            "install a shell, or extend PATH",
        ),
    }
}

pub(super) fn git() -> Finding {
    let own = "functions from Git are fetched by step-runner itself";
    Finding::good(
        "git",
        match program("git") {
            Some(path) => format!("{}; {own}", path.display()),
            None => format!("not installed, which only scripts notice: {own}"),
        },
    )
}

pub(super) fn clock() -> Finding {
    const NAME: &str = "clock";
    let now = clock::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let shown = humantime::format_rfc3339_seconds(UNIX_EPOCH + std::time::Duration::from_secs(now));
    if now < PROGRAM_IS_YOUNGER {
        let found = format!("{shown}, which is too early: certificates of servers are refused");
        return Finding::broken(NAME, found, "set the clock, for example with an NTP client");
    }
    Finding::good(NAME, shown.to_string())
}
