//! Finds the program of a command line (language.md §14.3).

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use super::access;

/// Failure to find the program of a command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// The first word of the command is empty.
    #[error("the command is empty")]
    Empty,
    /// Nothing is at this path.
    #[error("no file at {}", .0.display())]
    NoFile(PathBuf),
    /// No folder of either `PATH` holds this bare name.
    #[error(
        "`{0}` is in no folder of the step's PATH nor of the daemon's: install it, name it by its path, or extend PATH"
    )]
    NotInPath(String),
    /// The file may not be executed.
    #[error("{} is not executable: set its execute permission", .0.display())]
    NotExecutable(PathBuf),
    /// The path is a folder.
    #[error("{} is a directory", .0.display())]
    Directory(PathBuf),
    /// The system refused access to the path.
    #[error("cannot reach {}", .path.display())]
    Unreachable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        errno: rustix::io::Errno,
    },
}

/// Finds the program that `name` stands for. With a `/` it is a path from `work_dir`, else a file in a folder of
/// `step_path`, else in one of `daemon_path`. Empty folders of a `PATH` are skipped (they never mean the current
/// directory), relative ones start at `work_dir`.
pub fn lookup(
    name: &str,
    work_dir: &Path,
    step_path: Option<&OsStr>,
    daemon_path: Option<&OsStr>,
) -> Result<PathBuf, LookupError> {
    if name.is_empty() {
        return Err(LookupError::Empty);
    }
    if name.contains('/') {
        let path = work_dir.join(name);
        return check(&path).map(|()| path);
    }
    let mut refused = None;
    for path in candidates(name, work_dir, step_path, daemon_path) {
        match check(&path) {
            Ok(()) => return Ok(path),
            // This says more than `not found`, if no later folder has the program.
            Err(error @ LookupError::NotExecutable(_)) => drop(refused.get_or_insert(error)),
            Err(_) => {}
        }
    }
    Err(refused.unwrap_or_else(|| LookupError::NotInPath(name.to_owned())))
}

/// Returns the files that a `name` without `/` can stand for, the preferred one first.
pub fn candidates<'a>(
    name: &'a str,
    work_dir: &'a Path,
    step_path: Option<&'a OsStr>,
    daemon_path: Option<&'a OsStr>,
) -> impl Iterator<Item = PathBuf> + use<'a> {
    let folders = [step_path, daemon_path].into_iter().flatten().flat_map(std::env::split_paths);
    let folders = folders.filter(|folder| !folder.as_os_str().is_empty());
    folders.map(move |folder| work_dir.join(folder).join(name))
}

/// Checks that the file at `path` can be executed.
///
/// # Errors
/// Says why not.
pub fn check(path: &Path) -> Result<(), LookupError> {
    let metadata = fs::metadata(path).map_err(|error| match rustix::io::Errno::from_io_error(&error) {
        Some(rustix::io::Errno::NOENT) | None => LookupError::NoFile(path.to_owned()),
        Some(errno) => LookupError::Unreachable { path: path.to_owned(), errno },
    })?;
    if metadata.is_dir() {
        return Err(LookupError::Directory(path.to_owned()));
    }
    access::check(path, Access::EXEC_OK).map_err(|errno| match errno {
        rustix::io::Errno::ACCESS => LookupError::NotExecutable(path.to_owned()),
        errno => LookupError::Unreachable { path: path.to_owned(), errno },
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn folder_with(programs: &[(&str, u32)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, mode) in programs {
            let path = folder.path().join(name);
            fs::write(&path, "#!/bin/sh\n").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(*mode)).unwrap();
        }
        folder
    }

    #[test]
    fn the_steps_path_comes_before_the_daemons() {
        let (step, daemon) =
            (folder_with(&[("tool", 0o755)]), folder_with(&[("tool", 0o755), ("other", 0o755)]));
        let find = |name| {
            lookup(name, Path::new("/"), Some(step.path().as_os_str()), Some(daemon.path().as_os_str()))
                .unwrap()
        };
        assert_eq!(find("tool"), step.path().join("tool"));
        assert_eq!(find("other"), daemon.path().join("other"));
    }

    #[test]
    fn a_name_with_a_slash_is_a_path_from_the_working_directory() {
        let dir = folder_with(&[("tool", 0o755), ("plain", 0o644)]);
        assert_eq!(lookup("./tool", dir.path(), None, None), Ok(dir.path().join("./tool")));
        let plain = dir.path().join("./plain");
        assert_eq!(lookup("./plain", dir.path(), None, None), Err(LookupError::NotExecutable(plain)));
        assert_eq!(lookup("./no", dir.path(), None, None), Err(LookupError::NoFile(dir.path().join("./no"))));
        assert_eq!(lookup("/tmp", dir.path(), None, None), Err(LookupError::Directory("/tmp".into())));
        assert_eq!(lookup("", dir.path(), None, None), Err(LookupError::Empty));
    }

    #[test]
    fn fault_72_an_empty_path_never_means_the_current_directory() {
        let dir = folder_with(&[("tool", 0o755)]);
        for path in ["", ":", "::/nonexistent"] {
            let found = lookup("tool", dir.path(), Some(OsStr::new(path)), None);
            assert_eq!(found, Err(LookupError::NotInPath("tool".into())), "{path:?}");
        }
    }

    #[test]
    fn a_file_without_permission_is_passed_over_and_named_if_nothing_else_is_found() {
        let (first, second) = (folder_with(&[("tool", 0o644)]), folder_with(&[("tool", 0o755)]));
        let both = std::env::join_paths([first.path(), second.path()]).unwrap();
        assert_eq!(lookup("tool", Path::new("/"), Some(&both), None), Ok(second.path().join("tool")));
        let only = lookup("tool", Path::new("/"), Some(first.path().as_os_str()), None);
        assert_eq!(only, Err(LookupError::NotExecutable(first.path().join("tool"))));
    }
}
