//! Where the agent has its files: configuration, identity of the machine, state (agent.md §11.2).

use std::ffi::OsString;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::folder::replace;
use step_runner_model::error::{Exit, Failure};
use step_runner_store::Lock;
use step_runner_store::socket::MAX_PATH;

/// Folder of the agent's own daemon, below the state.
const DAEMON: &str = "daemon";

/// Socket of that daemon, in its folder.
pub(super) const DAEMON_SOCKET: &str = "s.sock";

/// Characters of a system id behind its prefix.
const ID_LENGTH: usize = 12;

/// Characters of the id of a state folder.
const STATE_ID_LENGTH: usize = 16;

/// File of the system id, beside the configuration.
const ID_FILE: &str = ".runner_system_id";

/// Returns the path of the configuration if none was named.
pub fn default_config() -> PathBuf {
    of_user("XDG_CONFIG_HOME", ".config", "/etc").join("step-runner/agent.toml")
}

/// Returns the folder of the state if none was named.
pub fn default_state() -> PathBuf {
    of_user("XDG_STATE_HOME", ".local/state", "/var/lib").join("step-runner/agent")
}

/// Returns the folder of a user's files: that of the variable, else one below the home; of root a folder of the system.
fn of_user(variable: &str, below_home: &str, of_root: &str) -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return of_root.into();
    }
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set(variable).or_else(|| Some(set("HOME")?.join(below_home))).unwrap_or_else(|| of_root.into())
}

/// Returns the id of this machine at the server: that of the file beside the configuration, which is made if need be.
pub fn system_id(config: &Path) -> io::Result<String> {
    let path = config.with_file_name(ID_FILE);
    if let Ok(text) = fs::read_to_string(&path)
        && is_system_id(text.trim())
    {
        return Ok(text.trim().to_owned());
    }
    let id = new_system_id()?;
    if let Some(folder) = path.parent() {
        make_folder(folder)?;
    }
    replace(&path, id.as_bytes(), true)?;
    Ok(id)
}

fn is_system_id(text: &str) -> bool {
    let (prefix, rest) = text.split_at_checked(2).unwrap_or((text, ""));
    ["s_", "r_"].contains(&prefix)
        && rest.len() == ID_LENGTH
        && rest.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Makes an id from the machine's own, which is never shown itself, or a random one.
fn new_system_id() -> io::Result<String> {
    let machine = fs::read_to_string("/etc/machine-id").ok().filter(|id| !id.trim().is_empty());
    let (prefix, bits) = if let Some(id) = machine {
        let digest = Sha256::digest(format!("step-runner agent\n{}", id.trim()).as_bytes());
        ("s_", u64::from_be_bytes(digest.first_chunk().copied().unwrap_or_default()))
    } else {
        ("r_", getrandom::u64().map_err(|error| io::Error::other(error.to_string()))?)
    };
    let hex = format!("{bits:016x}");
    Ok(format!("{prefix}{}", hex.get(..ID_LENGTH).unwrap_or_default()))
}

/// Makes a folder with its parents, 0700.
pub(super) fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// The folder of the state. While this value lives, no other agent uses it.
pub struct State {
    /// Its path.
    pub(super) path: PathBuf,
    /// Its id, by which things at an engine are known as ours.
    pub(super) id: String,
    _lock: Lock,
}

impl State {
    /// Returns the folder of the agent's own daemon.
    pub(super) fn own_daemon(&self) -> PathBuf {
        self.path.join(DAEMON)
    }

    /// Makes the folder if need be, and takes its lock.
    pub fn take(path: PathBuf) -> Result<Self, Failure> {
        let cannot = |error: io::Error| {
            Failure::new(Exit::Configuration, format!("cannot use the folder {}: {error}", path.display()))
                .with_remedy("name a folder that this user can write with --state-dir")
        };
        // A path that is too long never becomes usable, so the agent does not start with it.
        let length = path.join(DAEMON).join(DAEMON_SOCKET).as_os_str().len();
        if length > MAX_PATH {
            let text = format!(
                "the folder {} has too long a path: its socket would have {length} bytes, at most {MAX_PATH} are possible",
                path.display()
            );
            return Err(
                Failure::new(Exit::Configuration, text).with_remedy("name a shorter one with --state-dir")
            );
        }
        make_folder(&path).map_err(cannot)?;
        let found = fs::metadata(&path).map_err(cannot)?;
        if let Some(why) = unsafe_because(found.uid(), found.mode(), rustix::process::geteuid().as_raw()) {
            let text = format!("the folder {} {why}", path.display());
            return Err(Failure::new(Exit::Configuration, text)
                .with_remedy("run `chmod 700` on it as its owner, or name another with --state-dir"));
        }
        make_folder(&path.join("jobs")).map_err(cannot)?;
        let file = OpenOptions::new().write(true).read(true).create(true).truncate(false).mode(0o600).clone();
        let file = file.open(path.join("lock")).map_err(cannot)?;
        let held = |error| {
            let text = format!("another agent uses the folder {}: {error}", path.display());
            Failure::new(Exit::Configuration, text)
                .with_remedy("end that one, or give this one a folder of its own with --state-dir")
        };
        let lock = Lock::take(file.into()).map_err(held)?;
        let id = state_id(&path).map_err(cannot)?;
        Ok(Self { _lock: lock, id, path })
    }

    /// Returns the folder with the records of jobs.
    pub(super) fn jobs(&self) -> PathBuf {
        self.path.join("jobs")
    }

    /// Returns a folder for jobs on the agent's own daemon.
    pub(super) fn of_jobs(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }
}

/// Returns why others could take the agent's records away, in a folder of this owner and mode.
fn unsafe_because(owner: u32, mode: u32, own: u32) -> Option<String> {
    const WRITABLE_BY_OTHERS: u32 = 0o022;
    if owner != own {
        return Some(format!("belongs to user {owner}, not to {own}"));
    }
    (mode & WRITABLE_BY_OTHERS != 0).then(|| format!("can be written by others (mode {:04o})", mode & 0o7777))
}

/// Returns the random id of a state folder, which is made once.
fn state_id(state: &Path) -> io::Result<String> {
    let path = state.join("id");
    if let Ok(text) = fs::read_to_string(&path)
        && text.trim().len() == STATE_ID_LENGTH
        && text.trim().bytes().all(|byte| byte.is_ascii_hexdigit())
    {
        return Ok(text.trim().to_owned());
    }
    let bits = getrandom::u64().map_err(|error| io::Error::other(error.to_string()))?;
    let id = format!("{bits:016x}");
    replace(&path, id.as_bytes(), true)?;
    Ok(id)
}

/// Returns variables for programs that the agent starts: all but those that can hold a token.
pub(super) fn environment() -> Vec<(OsString, OsString)> {
    let is_ours = |name: &OsString| {
        let name = name.to_string_lossy();
        name.contains("TOKEN") || name.starts_with("STEP_RUNNER_")
    };
    std::env::vars_os().filter(|(name, _)| !is_ours(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_id_stays_and_a_wrong_one_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("sub/agent.toml");
        let id = system_id(&config).unwrap();
        assert!(is_system_id(&id), "{id}");
        assert_eq!(system_id(&config).unwrap(), id);
        for wrong in ["", "s_", "x_0123456789ab", "s_0123456789a/", "s_0123456789abc"] {
            fs::write(config.with_file_name(ID_FILE), wrong).unwrap();
            let new = system_id(&config).unwrap();
            assert!(is_system_id(&new) && new != wrong, "{wrong}: {new}");
        }
    }

    #[test]
    fn a_folder_that_others_can_change_is_refused() {
        let refused = |owner, mode| unsafe_because(owner, mode, 7).unwrap_or_default();
        for mode in [0o40700, 0o40755, 0o42750] {
            assert_eq!(refused(7, mode), "", "{mode:o}");
        }
        assert!(refused(8, 0o40700).contains("belongs to user 8, not to 7"));
        assert!(refused(7, 0o40777).contains("(mode 0777)") && refused(7, 0o42770).contains("(mode 2770)"));
    }
}
