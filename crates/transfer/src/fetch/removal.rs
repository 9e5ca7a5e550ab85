//! Deletes folders that nobody can reach any more. A tree of 100 000 files takes seconds, so a thread of its own does
//! it, and the threads on which steps wait stay free. It lives only while there is something to delete.

use std::collections::VecDeque;
use std::ffi::CString;
use std::io::{self, ErrorKind};
use std::mem;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use step_runner_model::error::Chain;
use step_runner_system::files;

/// Longest wait for the folder being deleted when the program ends. The next daemon deletes the rest.
const END_WAIT: Duration = Duration::from_secs(1);

/// The queue of folders. Dropping it discards tasks that have not begun.
#[derive(Debug, Default)]
pub(super) struct Remover(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Signalled when the thread ends.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Task>,
    /// True while the thread runs.
    served: bool,
}

#[derive(Debug)]
enum Task {
    Remove(PathBuf),
    /// Reports the end of all earlier tasks.
    Tell(oneshot::Sender<()>),
}

impl Remover {
    /// Queues folders for deletion, in this order.
    pub(super) fn remove(&self, doomed: impl IntoIterator<Item = PathBuf>) {
        self.add(doomed.into_iter().map(Task::Remove));
    }

    /// Waits until everything queued so far is deleted.
    pub(super) async fn removed(&self) {
        let (tell, told) = oneshot::channel();
        self.add([Task::Tell(tell)]);
        // Without a thread nothing is deleted, and there is nothing to wait for.
        told.await.ok();
    }

    fn add(&self, tasks: impl IntoIterator<Item = Task>) {
        let mut queue = self.0.queue.lock();
        queue.waiting.extend(tasks);
        if queue.served || queue.waiting.is_empty() {
            return;
        }
        let shared = Arc::clone(&self.0);
        match std::thread::Builder::new().name("remover".into()).spawn(move || shared.serve()) {
            Ok(_) => queue.served = true,
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "folders of the cache are removed later");
                queue.waiting.retain(|task| matches!(task, Task::Remove(_)));
            }
        }
    }
}

impl Drop for Remover {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        let forgotten = mem::take(&mut queue.waiting);
        if queue.served {
            self.0.ended.wait_while_for(&mut queue, |queue| queue.served, END_WAIT);
        }
        drop(queue);
        drop(forgotten);
    }
}

impl Shared {
    fn serve(&self) {
        loop {
            let mut queue = self.queue.lock();
            let Some(task) = queue.waiting.pop_front() else {
                queue.served = false;
                self.ended.notify_all();
                return;
            };
            drop(queue);
            match task {
                Task::Remove(path) => delete(&path),
                // The receiver may be gone.
                Task::Tell(tell) => drop(tell.send(())),
            }
        }
    }
}

fn delete(path: &Path) {
    let removed = match remove_all(path) {
        // A worker of a killed daemon wrote one more file into the folder.
        Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => remove_all(path),
        removed => removed,
    };
    if let Err(error) = removed {
        tracing::warn!(path = %path.display(), error = %Chain(&error), "a temporary folder of the cache was not removed");
    }
}

/// Removes a folder with all its contents, however deep.
fn remove_all(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(ErrorKind::InvalidInput.into());
    };
    let name = CString::new(name.as_bytes())?;
    files::remove_tree(files::open_dir(files::CWD, parent)?, &name)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test]
    async fn folders_go_in_order_and_their_end_is_told() {
        let base = tempfile::tempdir().unwrap();
        let remover = Remover::default();
        for round in 0..3 {
            let folders: Vec<_> =
                (0..5).map(|number| base.path().join(format!("{round}-{number}"))).collect();
            for folder in &folders {
                fs::create_dir_all(folder.join("a/b")).unwrap();
            }
            remover.remove(folders);
            remover.removed().await;
            assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
        }
    }

    #[tokio::test]
    async fn what_is_not_there_holds_nothing_up() {
        let base = tempfile::tempdir().unwrap();
        let remover = Remover::default();
        remover.remove([base.path().join("none/at/all"), base.path().join("none")]);
        remover.removed().await;
    }

    #[test]
    fn its_end_forgets_what_was_not_begun() {
        let remover = Remover::default();
        let (tell, told) = oneshot::channel();
        // Pretend that a thread is busy.
        remover.0.queue.lock().served = true;
        remover.add([Task::Tell(tell)]);
        remover.0.queue.lock().served = false;
        drop(remover);
        assert!(told.blocking_recv().is_err());
    }
}
