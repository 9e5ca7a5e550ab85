//! Faults of the file system below the state folder, on real file systems: small, full, without free inodes, and
//! changed by others (faults.md rows 23–29, 44, 46).

mod formats;
mod hands;
mod output;
mod removal;
mod space;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Daemon, Setup, is_root, parts};

/// A small file system in memory. Dropped, it is unmounted, and processes that use it are ended.
struct Small {
    dir: tempfile::TempDir,
}

impl Small {
    /// Mounts it with these options. Returns `None` and skips `test` where that is not possible.
    fn mount(test: &str, options: &str) -> Option<Self> {
        if !is_root(test) {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", options, "none"]).arg(dir.path()).status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(Self { dir });
        }
        parts::skipped(test, "right to mount");
        None
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn remount(&self, options: &str) {
        let options = format!("remount,{options}");
        assert!(Command::new("mount").args(["-o", &options]).arg(self.path()).status().unwrap().success());
    }

    /// Starts a daemon on it.
    fn daemon(&self, setup: Setup) -> Daemon {
        setup.option("state-limit", "0").start_in(self.path())
    }

    /// Fills all its space.
    fn fill(&self) -> PathBuf {
        let ballast = self.path().join("ballast");
        // The copy ends with an error when there is no space left.
        std::io::copy(&mut std::io::repeat(1), &mut std::fs::File::create(&ballast).unwrap()).unwrap_err();
        ballast
    }

    /// Makes files until it has no free inode.
    fn fill_with_files(&self) {
        for number in 0.. {
            if std::fs::File::create(self.path().join(format!("file-{number}"))).is_err() {
                break;
            }
        }
    }

    fn free(&self) -> u64 {
        rustix::fs::statvfs(self.path()).unwrap().f_bfree
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(self.path()).status().ok();
    }
}

/// Returns a shell loop that ends when `file` exists.
fn wait_until_exists(file: &Path) -> String {
    format!("until [ -e {} ]; do sleep 0.02; done", file.display())
}

/// Returns the keeper's process id, as the state folder says.
fn keeper_of(state: &Path) -> i32 {
    let json = std::fs::read(state.join("keeper.json")).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    json["pid"].as_i64().unwrap() as i32
}

/// Returns the peak memory of a process in bytes.
fn peak(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}
