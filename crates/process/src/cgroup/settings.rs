//! Settings of a leaf as it was made. They show before its reuse whether a step has changed it.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::read_file;

/// Files that take commands or show the state, and are no settings.
const NO_SETTINGS: [&str; 4] = ["cgroup.procs", "cgroup.threads", "cgroup.kill", "cgroup.stat"];

/// Write permission of the owner.
const OWNER_WRITES: u32 = 0o200;

/// Names and contents of a group's writable files.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Settings(Vec<(String, String)>);

impl Settings {
    /// Reads the settings of the group behind `directory`, which is at `path`.
    pub(super) fn read(directory: impl AsFd, path: &Path) -> Self {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        let is_writable = |entry: &fs::DirEntry| {
            entry.metadata().is_ok_and(|facts| facts.is_file() && facts.mode() & OWNER_WRITES != 0)
        };
        let names = entries.filter(is_writable).filter_map(|entry| entry.file_name().into_string().ok());
        let settings = names.filter(|name| is_setting(name));
        Self(settings.filter_map(|name| Some((name.clone(), read_file(&directory, &name)?))).collect())
    }

    /// True if the group behind `directory` has the same settings, and no group below it.
    pub(super) fn are_those_of(&self, directory: impl AsFd) -> bool {
        let is_same = |(name, made): &(String, String)| read_file(&directory, name).as_ref() == Some(made);
        let stat = read_file(&directory, "cgroup.stat");
        let is_alone = stat.is_none_or(|stat| stat.lines().any(|line| line == "nr_descendants 0"));
        is_alone && self.0.iter().all(is_same)
    }
}

/// False for files whose content changes by itself.
fn is_setting(name: &str) -> bool {
    !NO_SETTINGS.contains(&name) && !name.ends_with(".pressure")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_84_a_changed_file_or_a_group_below_makes_another_group_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let write = |name: &str, content: &str| fs::write(path.join(name), content).unwrap();
        write("cgroup.freeze", "0\n");
        write("pids.max", "max\n");
        write("cgroup.procs", "");
        write("cpu.pressure", "some avg10=0.00\n");
        write("cgroup.stat", "nr_descendants 0\nnr_dying_descendants 3\n");
        let directory = fs::File::open(path).unwrap();
        let made = Settings::read(&directory, path);
        write("cgroup.procs", "7\n");
        write("cpu.pressure", "some avg10=1.00\n");
        assert!(made.are_those_of(&directory));
        for (name, changed, before) in [
            ("cgroup.freeze", "1\n", "0\n"),
            ("pids.max", "0\n", "max\n"),
            ("cgroup.stat", "nr_descendants 1\n", "nr_descendants 0\n"),
        ] {
            write(name, changed);
            assert!(!made.are_those_of(&directory), "{name}");
            write(name, before);
        }
        assert!(made.are_those_of(&directory));
        fs::remove_file(path.join("pids.max")).unwrap();
        assert!(!made.are_those_of(&directory));
    }
}
