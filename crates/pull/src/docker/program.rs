//! This program and its folders, put into a container by `docker cp` from standard input.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;

use tar::{Builder, EntryType, Header};

use crate::program::Input;

/// This program, also after it was replaced on disk.
const OWN: &str = "/proc/self/exe";

/// Mode of folders that any user can write.
const OPEN: u32 = 0o1777;

/// Kind of a program header that names a loader.
const INTERPRETER: [u8; 4] = 3u32.to_le_bytes();

/// Returns an archive with the program, and with the folder for socket and state.
pub(super) fn program() -> Input {
    Box::new(|pipe| {
        let mut archive = Builder::new(pipe);
        let file = File::open(OWN)?;
        let mut header = header(EntryType::Regular, 0o755);
        header.set_size(file.metadata()?.len());
        let content = file.take(header.size()?);
        archive.append_data(&mut header, "step-runner", content)?;
        archive.append_data(&mut self::header(EntryType::Directory, OPEN), "run/", io::empty())?;
        archive.finish()
    })
}

/// Returns an archive with folders.
pub(super) fn folders(paths: &[String]) -> Input {
    let paths: Vec<String> = paths.iter().map(|path| format!("{path}/")).collect();
    Box::new(move |pipe| {
        let mut archive = Builder::new(pipe);
        for path in paths {
            archive.append_data(&mut header(EntryType::Directory, OPEN), path, io::empty())?;
        }
        archive.finish()
    })
}

fn header(kind: EntryType, mode: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(0);
    header
}

/// True if this program needs a loader and libraries, which an image may not have.
pub(super) fn needs_loader() -> bool {
    File::open(OWN).and_then(|file| has_interpreter(&file)).unwrap_or_default()
}

/// Reads the program headers of an ELF file of 64 bits.
fn has_interpreter(file: &File) -> io::Result<bool> {
    let mut start = [0; 64];
    file.read_exact_at(&mut start, 0)?;
    let word = |at: usize| u16::from_le_bytes([start[at], start[at + 1]]);
    let (size, count) = (u64::from(word(54)), u64::from(word(56)));
    let table = start[32..40].try_into().map(u64::from_le_bytes).unwrap_or_default();
    for number in 0..count {
        let mut kind = [0; 4];
        file.read_exact_at(&mut kind, table.saturating_add(number * size))?;
        if kind == INTERPRETER {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_have_the_program_and_folders_for_everybody() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("archive");
        let read = |input: Input| {
            input(File::create(&path).unwrap()).unwrap();
            let mut archive = tar::Archive::new(File::open(&path).unwrap());
            let entries = archive.entries().unwrap().map(|entry| {
                let entry = entry.unwrap();
                let header = entry.header();
                (entry.path().unwrap().display().to_string(), header.mode().unwrap(), header.size().unwrap())
            });
            entries.collect::<Vec<_>>()
        };
        let own = std::fs::metadata(OWN).unwrap().len();
        assert_eq!(read(program()), [("step-runner".to_owned(), 0o755, own), ("run/".to_owned(), 0o1777, 0)]);
        let paths = ["a".to_owned(), "a/b".to_owned()];
        assert_eq!(read(folders(&paths)), [("a/".to_owned(), 0o1777, 0), ("a/b/".to_owned(), 0o1777, 0)]);
    }

    #[test]
    fn a_program_with_a_loader_is_known() {
        let shell = File::open("/bin/sh").and_then(|file| has_interpreter(&file)).unwrap();
        let has = std::process::Command::new("readelf").args(["--program-headers", "/bin/sh"]).output();
        if let Ok(output) = has {
            assert_eq!(shell, String::from_utf8_lossy(&output.stdout).contains("INTERP"));
        }
        let text = tempfile::tempfile().unwrap();
        assert!(has_interpreter(&text).is_err());
    }
}
