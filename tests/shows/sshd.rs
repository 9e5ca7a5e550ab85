//! A real sshd on the loopback with its own keys and configuration, and a real ssh that uses only these.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;

use crate::daemon::PATIENCE;
use crate::proc;
use crate::verdict::Check;

/// Returns the path of a program, also from folders that are on the PATH of root only.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// True if this user can log in with a shell. Users of services cannot.
pub(crate) fn lets_in() -> bool {
    let uid = rustix::process::geteuid().as_raw().to_string();
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let fields = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let shell =
        fields.filter(|user| user.get(2) == Some(&uid.as_str())).find_map(|user| user.get(6).copied());
    shell.is_none_or(|shell| !shell.ends_with("/nologin") && !shell.ends_with("/false"))
}

/// A running sshd. Dropped, it is killed with all connections.
pub(crate) struct Sshd {
    child: Child,
    folder: PathBuf,
    ssh: PathBuf,
}

impl Sshd {
    /// Starts an sshd in a new folder of `parent`. Returns `None` if OpenSSH is not installed.
    pub(crate) fn start(parent: &Path) -> Check<Option<Self>> {
        let (Some(sshd), Some(ssh), Some(keygen)) = (find("sshd"), find("ssh"), find("ssh-keygen")) else {
            return Ok(None);
        };
        let folder = parent.join("sshd");
        fs::create_dir(&folder).map_err(|error| error.to_string())?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).map_err(|error| error.to_string())?;
        if rustix::process::geteuid().is_root() {
            // sshd needs this folder, which the system's own service would make.
            fs::create_dir_all("/run/sshd").map_err(|error| error.to_string())?;
        }
        for name in ["host", "user", "banner", "stranger"] {
            let made = Command::new(&keygen)
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(folder.join(name))
                .status()
                .map_err(|error| error.to_string())?;
            if !made.success() {
                return Err(format!("ssh-keygen ended with {made}"));
            }
        }
        // Another process can take the port before sshd uses it.
        for _ in 0..10 {
            let port = free_port()?;
            configure(&folder, port)?;
            let log = fs::File::create(folder.join("log")).map_err(|error| error.to_string())?;
            let child = Command::new(&sshd)
                .args(["-D", "-e", "-f"])
                .arg(folder.join("sshd_config"))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log)
                .spawn()
                .map_err(|error| error.to_string())?;
            let mut server = Self { child, folder: folder.clone(), ssh: ssh.clone() };
            if server.is_up(port) {
                return Ok(Some(server));
            }
        }
        Err(format!("sshd does not start: {}", fs::read_to_string(folder.join("log")).unwrap_or_default()))
    }

    fn is_up(&mut self, port: u16) -> bool {
        let mut ended = false;
        let up = || {
            ended = self.child.try_wait().unwrap().is_some();
            ended || TcpStream::connect(("127.0.0.1", port)).is_ok()
        };
        proc::wait_until(PATIENCE, up).is_some() && !ended
    }

    /// Makes a folder whose `ssh` uses this configuration.
    pub(crate) fn bin(&self) -> Check<PathBuf> {
        let bin = self.folder.join("bin");
        fs::create_dir_all(&bin).map_err(|error| error.to_string())?;
        let config = self.folder.join("ssh_config");
        let text = format!("#!/bin/sh\nexec '{}' -F '{}' \"$@\"\n", self.ssh.display(), config.display());
        fs::write(bin.join("ssh"), text).map_err(|error| error.to_string())?;
        fs::set_permissions(bin.join("ssh"), fs::Permissions::from_mode(0o755))
            .map_err(|error| error.to_string())?;
        Ok(bin)
    }

    /// Returns the pids of ssh processes that use this configuration.
    pub(crate) fn clients(&self) -> Vec<u32> {
        proc::with_argument(&self.folder.join("ssh_config").to_string_lossy())
    }

    /// Returns the pids of the server's processes that serve connections.
    pub(crate) fn children(&self) -> Vec<u32> {
        let is_sshd = |pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("sshd"))
        };
        proc::children_of(self.child.id()).into_iter().filter(is_sshd).collect()
    }

    /// Starts an SSH master, whose connection the clients of the host `shared` use.
    pub(crate) fn master(&self) -> Check<Master> {
        let control = self.folder.join("control");
        let child = Command::new(&self.ssh)
            .arg("-F")
            .arg(self.folder.join("ssh_config"))
            .args(["-o", "ProxyCommand=none", "-M", "-N", "shared"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| error.to_string())?;
        let master = Master(child);
        match proc::wait_until(PATIENCE, || control.exists()) {
            Some(_) => Ok(master),
            None => Err("the master does not connect".into()),
        }
    }

    /// Sends a signal to all processes of the server.
    pub(crate) fn signal(&self, signal: Signal) {
        for pid in std::iter::once(self.child.id()).chain(self.children()) {
            proc::kill(pid, signal);
        }
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        self.child.wait().ok();
    }
}

/// A running SSH master.
pub(crate) struct Master(Child);

impl Drop for Master {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn free_port() -> Check<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(|error| error.to_string())?;
    listener.local_addr().map(|address| address.port()).map_err(|error| error.to_string())
}

/// Writes the configuration of server and client.
fn configure(folder: &Path, port: u16) -> Check {
    let read = |name: &str| fs::read_to_string(folder.join(name)).map_err(|error| error.to_string());
    let write =
        |name: &str, text: String| fs::write(folder.join(name), text).map_err(|error| error.to_string());
    let path = folder.display();
    // Stands for a login profile that prints a greeting for every program, too.
    let banner = r#"command="echo Welcome to build7; echo be nice; exec sh -c \"$SSH_ORIGINAL_COMMAND\"""#;
    write("authorized_keys", format!("{}{banner} {}", read("user.pub")?, read("banner.pub")?))?;
    write(
        "sshd_config",
        format!(
            "ListenAddress 127.0.0.1:{port}\nHostKey {path}/host\nAuthorizedKeysFile {path}/authorized_keys\n\
             PidFile none\nUsePAM no\nStrictModes no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
             PermitRootLogin prohibit-password\nMaxSessions 3\nMaxStartups 100\n"
        ),
    )?;
    write("known_hosts", format!("[127.0.0.1]:{port} {}", read("host.pub")?))?;
    write("no_hosts", String::new())?;
    let host = |name: &str, key: &str, more: &str| {
        format!("Host {name}\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {path}/{key}\n{more}")
    };
    let known = format!("  UserKnownHostsFile {path}/known_hosts\n");
    let all = [
        host("job", "user", &known),
        host("greets", "banner", &known),
        host("wrong-key", "stranger", &known),
        host("unknown", "user", &format!("  UserKnownHostsFile {path}/no_hosts\n")),
        // Uses only the master's connection.
        host("shared", "user", &format!("{known}  ControlPath {path}/control\n  ProxyCommand false\n")),
        "Host closed\n  HostName 127.0.0.1\n  Port 1\n".to_owned(),
        "Host *\n  IdentitiesOnly yes\n  IdentityAgent none\n  StrictHostKeyChecking yes\n  GlobalKnownHostsFile /dev/null\n"
            .to_owned(),
    ];
    write("ssh_config", all.concat())
}
