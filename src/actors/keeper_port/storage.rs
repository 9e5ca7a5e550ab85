//! Reports of a disk that refuses the logs of jobs, to Status and to the operator (faults.md row 86).

use rustix::io::Errno;

use crate::actors::registry::Registry;
use crate::actors::view::JobView;
use crate::keeper::protocol::LogStorage;

/// Notes whether the disk accepts the log of a job. Tells the operator of the first refused log, and when no log is
/// refused any more.
pub(super) fn note(registry: &Registry, view: &JobView, storage: LogStorage) {
    let text = in_words(storage);
    let others =
        registry.all().iter().filter(|(other, _)| other.key != view.key && other.is_paused()).count();
    let was_paused = view.is_paused();
    view.update(|state| {
        state.paused.clone_from(&text);
        state.output_waits = matches!(storage, LogStorage::Waiting { .. });
    });
    match (text, was_paused) {
        (Some(text), false) if others == 0 => {
            tracing::error!(job = %view.id, "{text}: make room in the state folder");
        }
        (None, true) if others == 0 => tracing::info!("the disk of the state folder takes logs again"),
        _ => {}
    }
}

/// Returns the message of Status for a running job; `None` if all is well.
fn in_words(storage: LogStorage) -> Option<String> {
    match storage {
        LogStorage::Fine => None,
        LogStorage::Waiting { errno } => Some(format!("paused: {}", cause(errno))),
        LogStorage::Dropping { errno } => Some(format!("output is being dropped: {}", cause(errno))),
    }
}

fn cause(errno: i32) -> String {
    match Errno::from_raw_os_error(errno) {
        Errno::NOSPC | Errno::DQUOT => "the disk of the state folder is full".to_owned(),
        errno => format!("the disk of the state folder refuses the log: {errno}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_is_named() {
        let full = Errno::NOSPC.raw_os_error();
        let paused = in_words(LogStorage::Waiting { errno: full }).unwrap();
        assert_eq!(paused, "paused: the disk of the state folder is full");
        let broken = in_words(LogStorage::Dropping { errno: Errno::IO.raw_os_error() }).unwrap();
        assert!(broken.starts_with("output is being dropped: ") && broken.contains("error"), "{broken}");
        assert_eq!(in_words(LogStorage::Fine), None);
    }
}
