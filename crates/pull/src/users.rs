//! Whether the jobs of an entry run as the agent's own user, who can read the tokens (agent.md §11.5).

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use step_runner_agent::config::Entry;
use step_runner_agent::environment::Address;

/// True if the entry's jobs run on this machine as the user of this process. Of a daemon whose socket is not there
/// nobody knows.
pub fn is_shared(entry: &Entry) -> bool {
    let own = rustix::process::geteuid().as_raw();
    match &entry.address {
        Address::Own => true,
        Address::Daemon(text) => match text.parse() {
            Ok(step_runner_client::Address::Unix(socket)) => {
                fs::metadata(socket.path()).is_ok_and(|found| found.uid() == own)
            }
            Ok(step_runner_client::Address::Process(_)) | Err(_) => false,
        },
        Address::DockerRun | Address::KubeRun { .. } => false,
    }
}

/// Returns the warning about such an entry.
pub fn warning(entry: &Entry) -> String {
    format!(
        "the entry \"{}\": its jobs run as the agent's own user, and can read the tokens of the configuration: name a \
         daemon of another user with `address`, or use docker-run:// or kube-run://",
        entry.name
    )
}
