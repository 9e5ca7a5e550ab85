//! Files that operators name in settings. Anything may be there: a FIFO without another end, an endless device, a link
//! to either. Opening and reading them waits for no other process and takes bounded memory.

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{OFlags, fcntl_setfl};

/// Flags of every open: it waits for nobody, and a terminal does not become ours.
const FLAGS: i32 = libc::O_NONBLOCK | libc::O_NOCTTY;

/// Reads a whole text. A file that is not regular, or longer than `max` bytes, is an error.
pub fn read_text(path: &Path, max: u64) -> io::Result<String> {
    let file = OpenOptions::new().read(true).custom_flags(FLAGS).open(path)?;
    let kind = file.metadata()?.file_type();
    if !kind.is_file() {
        return Err(invalid(format!("it is {}, not a regular file", name(kind))));
    }
    let mut bytes = Vec::new();
    file.take(max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(invalid(format!("it is longer than {} KiB", max >> 10)));
    }
    String::from_utf8(bytes).map_err(|_| invalid("it is not UTF-8".to_owned()))
}

/// Opens or makes a file, 0600, to append to. A pipe or a device is no error if it can be opened at once.
pub fn open_to_append(path: &Path) -> io::Result<File> {
    let options = OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(FLAGS).clone();
    let file = options.open(path).map_err(|error| match path.metadata() {
        Ok(found) if error.raw_os_error() == Some(libc::ENXIO) && found.file_type().is_fifo() => {
            io::Error::new(error.kind(), "it is a FIFO that nobody reads: start its reader first")
        }
        _ => error,
    })?;
    // Later writes may wait: a thread of their own makes them.
    fcntl_setfl(&file, OFlags::APPEND)?;
    Ok(file)
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

fn name(kind: FileType) -> &'static str {
    if kind.is_dir() {
        "a folder"
    } else if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use rustix::fs::{CWD, FileType as NodeType, Mode, mknodat};

    use super::*;

    fn fifo(folder: &Path) -> std::path::PathBuf {
        let path = folder.join("fifo");
        mknodat(CWD, &path, NodeType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        path
    }

    #[test]
    fn fault_108_a_text_is_a_regular_file_of_bounded_length() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("long"), vec![b'x'; 2_049]).unwrap();
        std::fs::write(path("binary"), [0xff]).unwrap();
        std::fs::write(path("file"), "text").unwrap();
        std::os::unix::fs::symlink(path("file"), path("link")).unwrap();
        fifo(folder.path());
        for (name, told) in [
            ("fifo", "it is a FIFO, not a regular file"),
            ("/dev/zero", "it is a device, not a regular file"),
            (".", "it is a folder, not a regular file"),
            ("long", "it is longer than 2 KiB"),
            ("binary", "it is not UTF-8"),
        ] {
            assert_eq!(read_text(&path(name), 2 << 10).unwrap_err().to_string(), told, "{name}");
        }
        assert_eq!(read_text(&path("none"), 4).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(read_text(&path("link"), 4).unwrap(), "text");
    }

    #[test]
    fn fault_108_a_fifo_is_appended_to_only_if_it_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = fifo(folder.path());
        let error = open_to_append(&path).unwrap_err();
        assert_eq!(error.to_string(), "it is a FIFO that nobody reads: start its reader first");
        let _reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
        let mut file = open_to_append(&path).unwrap();
        file.write_all(b"line").unwrap();
        assert!(!rustix::fs::fcntl_getfl(&file).unwrap().contains(OFlags::NONBLOCK));
        open_to_append(&folder.path().join("new")).unwrap().write_all(b"line").unwrap();
        assert_eq!(std::fs::read(folder.path().join("new")).unwrap(), b"line");
    }
}
