//! Files of the repository, given by the caller (ci.md §2, rows `include`, `rules`, `cache`). This crate opens none.

use std::fmt;

/// The repository's files. All paths are relative to its root, with `/`, without `.` and `..`. The implementation
/// resolves links and refuses what is not below the root.
pub trait Files {
    /// Returns the text of a file.
    fn read(&self, path: &str) -> Result<String, ReadError>;

    /// Returns the paths of all files of the work tree.
    fn list(&self) -> Result<Vec<String>, ReadError>;
}

/// A file that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// There is no such file.
    NotFound,
    /// The path leads out of the repository.
    Outside,
    /// It cannot be read, for this reason.
    Failed(String),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => f.write_str("there is no such file"),
            Self::Outside => f.write_str("it leads out of the repository"),
            Self::Failed(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for ReadError {}

/// Returns a path from the root in its plain form; `None` if it leaves the root or names no file.
pub(crate) fn below_root(path: &str) -> Option<String> {
    let mut segments: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()?),
            name => segments.push(name),
        }
    }
    (!segments.is_empty() && !path.contains('\0')).then(|| segments.join("/"))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Files by their paths.
    pub(crate) struct Texts(pub(crate) BTreeMap<&'static str, String>);

    impl Files for Texts {
        fn read(&self, path: &str) -> Result<String, ReadError> {
            self.0.get(path).cloned().ok_or(ReadError::NotFound)
        }

        fn list(&self) -> Result<Vec<String>, ReadError> {
            Ok(self.0.keys().map(|path| (*path).to_owned()).collect())
        }
    }

    #[test]
    fn paths_start_at_the_root_and_stay_below_it() {
        for (path, plain) in [
            ("/ci/a.yml", Some("ci/a.yml")),
            ("ci//./a.yml", Some("ci/a.yml")),
            ("ci/../a.yml", Some("a.yml")),
            ("../a.yml", None),
            ("/", None),
            ("a\0b", None),
        ] {
            assert_eq!(below_root(path).as_deref(), plain, "{path:?}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_has_its_reason() {
        for (error, reason) in [
            (ReadError::NotFound, "there is no such file"),
            (ReadError::Outside, "it leads out of the repository"),
            (ReadError::Failed("permission denied".to_owned()), "permission denied"),
        ] {
            assert_eq!(error.to_string(), reason);
        }
    }
}
