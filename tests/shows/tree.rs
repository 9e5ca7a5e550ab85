//! Process trees that are hard to end, and a way to find out if their last process is gone.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::random::Random;
use crate::verdict::Check;

/// Reaction of a tree to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Ends on SIGTERM.
    Obeys,
    /// Ignores SIGTERM.
    Deaf,
    /// Runs in other sessions.
    Leaves,
    /// Forks and exits for ever, each time in a new session.
    Forks,
}

pub(crate) const KINDS: [Kind; 4] = [Kind::Obeys, Kind::Deaf, Kind::Leaves, Kind::Forks];

impl Kind {
    /// Returns a random kind. Half of them obey.
    pub(crate) fn any(random: &mut Random) -> Self {
        if random.one_in(2) { Self::Obeys } else { KINDS[1 + random.below(3) as usize] }
    }

    /// Returns the script. It runs `ready` once all processes were started.
    fn script(self, link: &Path, ready: &str) -> String {
        match self {
            Self::Obeys => {
                format!("for i in 1 2 3 4; do (sleep 1000 & wait) & done; {ready}; wait; exit 0")
            }
            Self::Deaf => format!(
                "trap '' TERM; for i in 1 2 3 4; do (sleep 1000; sleep 1000) & done; {ready}; while :; do sleep 1; done"
            ),
            Self::Leaves => format!(
                "for i in 1 2 3; do setsid sh -c 'trap \"\" TERM; sleep 1000 & sleep 1000' & setsid sleep 1000 & done; {ready}; \
                 wait"
            ),
            Self::Forks => format!("setsid sh {} & {ready}; sleep 1000", link.display()),
        }
    }
}

/// Writes the script that [`Kind::Forks`] runs.
pub(crate) fn prepare(folder: &Path) {
    fs::write(link(folder), "setsid sh $0 & exit 0\n").unwrap();
}

fn link(folder: &Path) -> PathBuf {
    folder.join("link")
}

/// A tree's script, and the FIFO that its processes hold open.
pub(crate) struct Tree {
    pub(crate) script: String,
    path: PathBuf,
    stands: PathBuf,
    reader: File,
}

impl Tree {
    /// Makes the FIFO. `name` must be unique within `folder`.
    pub(crate) fn new(folder: &Path, name: &str, kind: Kind) -> Self {
        let path = folder.join(name);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let reader = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
        let stands = folder.join(format!("{name}.stands"));
        let ready = format!("echo ready; echo > {}", stands.display());
        let script = format!("exec 9> {}; {}", path.display(), kind.script(&link(folder), &ready));
        Self { script, path, stands, reader }
    }

    /// True if all processes were started. Until then it is normal that nobody holds the FIFO.
    pub(crate) fn stands(&self) -> bool {
        self.stands.exists()
    }

    /// True if no process holds the FIFO.
    pub(crate) fn is_gone(&mut self) -> Check<bool> {
        match self.reader.read(&mut [0]) {
            Ok(0) => Ok(true),
            Ok(_) => Err("somebody wrote to the FIFO".into()),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        fs::remove_file(&self.path).ok();
        fs::remove_file(&self.stands).ok();
    }
}
