//! Command lines of engines: at most four at once, each with a time limit (agent.md §8.5). A program has ended when its
//! call returns, so nothing that it was told to make comes later.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use step_runner_model::ExitStatus;
use step_runner_process::connector::{Connector, StartError, Streams};

/// Programs at work at the same time: an engine has other clients.
const AT_ONCE: usize = 4;

/// Longest answer that is read. The longest is a list of what the engine has.
const LONGEST_ANSWER: u64 = 4 << 20;

/// Time for the end of a program that was told to end: its connector kills it before.
const END: Duration = Duration::from_secs(10);

/// Writes the standard input of a program, on a thread of its own.
pub(super) type Input = Box<dyn FnOnce(File) -> io::Result<()> + Send>;

/// The end of a program.
#[derive(Debug)]
pub(super) struct Ended {
    /// True if it succeeded.
    pub(super) is_success: bool,
    /// What it wrote to standard output.
    pub(super) stdout: String,
    /// The end of what it wrote to standard error.
    pub(super) stderr: String,
}

/// A program that did not come to its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProgramError {
    /// It could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Its time was over.
    #[error("no answer within {}", humantime::format_duration(*.0))]
    Late(Duration),
    /// Nobody wants it any more.
    #[error("it was stopped")]
    Stopped,
}

/// The programs of all jobs.
pub(super) struct Programs {
    permits: Semaphore,
}

impl Programs {
    /// Allows the first programs.
    pub(super) const fn new() -> Self {
        Self { permits: Semaphore::const_new(AT_ONCE) }
    }

    /// Runs `words` to the end, at most for `limit` and until `stop`.
    pub(super) async fn run(
        &self,
        words: Vec<String>,
        input: Option<Input>,
        limit: Duration,
        stop: &CancellationToken,
    ) -> Result<Ended, ProgramError> {
        let permit = tokio::select! {
            permit = self.permits.acquire() => permit,
            () = stop.cancelled() => return Err(ProgramError::Stopped),
        };
        let (tell, mut ended) = oneshot::channel();
        let started = spawn_blocking(move || {
            // Nobody asks any more once the time is over.
            Connector::start(&words, |status| tell.send(status).unwrap_or_default())
        })
        .await;
        let (connector, Streams { stdin, stdout }) =
            started.map_err(io::Error::other).map_err(StartError::Prepare)??;
        match input {
            // What cannot be written, the program complains about.
            Some(input) => drop(spawn_blocking(move || input(File::from(stdin)))),
            None => drop(stdin),
        }
        let read = spawn_blocking(move || read(stdout));
        let error = tokio::select! {
            status = &mut ended => {
                let is_success = status.ok().flatten().is_some_and(ExitStatus::is_success);
                let stdout = read.await.unwrap_or_default();
                let stderr = String::from_utf8_lossy(&connector.stderr_tail().bytes()).into_owned();
                return Ok(Ended { is_success, stdout, stderr });
            }
            () = tokio::time::sleep(limit) => ProgramError::Late(limit),
            () = stop.cancelled() => ProgramError::Stopped,
        };
        drop(connector);
        tokio::time::timeout(END, ended).await.ok();
        drop(permit);
        Err(error)
    }
}

/// Reads an answer to its end. What is too long is dropped, so that the program can end.
fn read(stdout: OwnedFd) -> String {
    let mut file = File::from(stdout);
    let mut bytes = Vec::new();
    file.by_ref().take(LONGEST_ANSWER).read_to_end(&mut bytes).ok();
    io::copy(&mut file, &mut io::sink()).ok();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn shell(script: &str) -> Vec<String> {
        ["sh", "-c", script].map(str::to_owned).to_vec()
    }

    #[tokio::test]
    async fn a_program_is_read_to_its_end() {
        let programs = Programs::new();
        let input: Input = Box::new(|mut file| file.write_all(b"hello"));
        let minute = Duration::from_mins(1);
        let words = shell("cat; echo oh >&2; exit 3");
        let ended = programs.run(words, Some(input), minute, &CancellationToken::new()).await.unwrap();
        assert_eq!((ended.is_success, &*ended.stdout, &*ended.stderr), (false, "hello", "oh\n"));
        let missing = vec!["no-such-program-at-all".to_owned()];
        let error = programs.run(missing, None, minute, &CancellationToken::new()).await.unwrap_err();
        assert!(matches!(error, ProgramError::Start(StartError::NotFound(_))), "{error}");
    }

    #[tokio::test]
    async fn a_program_that_is_late_or_unwanted_has_ended_when_its_call_returns() {
        let programs = Programs::new();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pid");
        let script = format!("echo $$ >{0}.new; mv {0}.new {0}; exec sleep 600", path.display());
        let stop = CancellationToken::new();
        let wait = async {
            while !path.exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            stop.cancel();
        };
        let run = programs.run(shell(&script), None, Duration::from_mins(1), &stop);
        let (result, ()) = tokio::join!(run, wait);
        assert!(matches!(result, Err(ProgramError::Stopped)), "{result:?}");
        let pid = std::fs::read_to_string(&path).unwrap();
        assert!(!std::path::Path::new("/proc").join(pid.trim()).exists());
        let (never, moment) = (CancellationToken::new(), Duration::from_millis(1));
        let late = programs.run(shell("sleep 600"), None, moment, &never).await;
        assert!(matches!(late, Err(ProgramError::Late(_))), "{late:?}");
    }
}
