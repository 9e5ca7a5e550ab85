//! Reads definition files of the job's environment that the kernel has cached. Another thread would take two wake-ups,
//! which cost a step more than all else the daemon does for it.

use std::path::Path;

use super::local::MAX_FILE;
use step_runner_core::job::event::Fetched;
use step_runner_process::at_hand;

/// Reads the first of `files` in the folder `dir`, if the kernel has it cached. `None` says nothing about the file
/// ([`at_hand::read`]).
pub(super) fn find(dir: &str, files: &[String]) -> Option<Fetched> {
    let path = Path::new(dir).join(files.first()?);
    let text = String::from_utf8(at_hand::read(&path, MAX_FILE)?).ok()?;
    let path = path.to_string_lossy().into_owned();
    Some(Fetched { dir: dir.to_owned(), path, text, tree: None, version: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fetch::local;

    #[test]
    fn a_file_without_a_size_is_left_to_others() {
        assert!(find("/proc/self", &["status".to_owned()]).is_none());
        assert!(local::find("/proc/self", &["status".to_owned()], None).is_ok());
    }

    #[test]
    fn what_is_at_hand_is_what_a_look_finds() {
        let dir = tempfile::tempdir().unwrap();
        let (name, files) = (dir.path().to_str().unwrap(), ["func.yml".to_owned(), "step.yml".to_owned()]);
        assert!(find(name, &files).is_none());
        std::fs::write(dir.path().join("step.yml"), "second").unwrap();
        // The kernel has not cached that the first file is missing.
        assert!(find(name, &files).is_none());
        for text in ["", "first", "äö", "\u{1f600}"] {
            std::fs::write(dir.path().join("func.yml"), text).unwrap();
            let looked = local::find(name, &files, None).ok().unwrap();
            assert_eq!(looked.text, text);
            // `find` may give up, but never returns another text.
            assert!(find(name, &files).is_none_or(|found| found == looked));
        }
        std::fs::write(dir.path().join("func.yml"), [0xff]).unwrap();
        assert!(find(name, &files).is_none());
    }
}
