//! The process that fetches. It reads an [`Order`] from its input and reports the outcome on its output. It trusts
//! nothing that a server sends.
//!
//! The process ends when its input is closed, even in the middle of a transfer: nobody needs its result then.

pub mod archive;
pub mod git;
pub mod oci;
#[cfg(test)]
mod site;
pub mod tree;

use std::io::{self, BufRead, Write};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::path::Path;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::order::{Answer, Order, Progress, Source, Stats, WorkerMessage};
use step_runner_core::job::event::FetchFailure;
use step_runner_lang::diagnostic::Class;

/// Minimum time between two reports of progress.
const REPORT_INTERVAL: Duration = Duration::from_millis(250);

/// A remote that functions come from. One object serves one order.
pub(crate) trait Remote {
    /// Finds on the remote the version that the order names: a full commit hash, or the digest of the manifest for this
    /// platform. Always asks the remote, so a network failure is a failure of the fetch (language.md §7.7).
    fn resolve(&mut self, report: &mut dyn FnMut(Progress)) -> Result<String, FetchFailure>;

    /// Writes the tree of the version that [`Self::resolve`] found into the empty folder `into`.
    fn transfer(&mut self, into: &Path, report: &mut dyn FnMut(Progress)) -> Result<Stats, FetchFailure>;
}

/// Serves the one order on standard input.
///
/// # Errors
/// The process cannot be confined, the input is not understood, or nobody reads the output.
pub fn run() -> io::Result<()> {
    step_runner_process::worker::confine()?;
    std::panic::set_hook(Box::new(note_panic));
    serve(&listen()?, &mut io::stdout(), open)
}

/// Writes the files of a commit into the empty folder `into`, in this process. Tries again what may pass. The error is a
/// text for people, without secrets.
pub(crate) fn files_of_commit(order: &Order, into: &Path) -> Result<Stats, String> {
    let files = || {
        let mut git = git::Git::new(order)?;
        git.resolve(&mut |_| {})?;
        git.transfer(into, &mut |_| {})
    };
    files().map_err(|failure| failure.message)
}

fn open(order: &Order) -> Result<Box<dyn Remote>, FetchFailure> {
    match &order.source {
        Source::Git { .. } => Ok(Box::new(git::Git::new(order)?.telling(&tell_retry))),
        Source::Oci { .. } => {
            step_runner_process::worker::limit_memory(step_runner_process::worker::MAX_IMAGE_MEMORY)
                .map_err(|error| FetchFailure {
                    class: Class::Fetch,
                    message: format!("cannot limit the memory of the transfer: {error}"),
                })?;
            Ok(Box::new(oci::Image::new(order, &tell_retry)?))
        }
    }
}

/// Tells the daemon that a read failed and is tried again.
fn tell_retry(why: &str) {
    let mut output = WorkerOutput { output: &mut io::stdout(), reported: None };
    // If nobody reads any more, the input has ended too, and that ends this process.
    output.say(&WorkerMessage::Retry(why.to_owned())).ok();
}

/// Reads lines from standard input in a thread of its own. The end of the input ends the process, whatever it is doing.
fn listen() -> io::Result<Receiver<String>> {
    let (sender, lines) = mpsc::channel();
    let read = move || {
        #[expect(
            clippy::disallowed_methods,
            reason = "nothing of this process is of use to anybody any more"
        )]
        let end = || std::process::exit(0);
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
        end();
    };
    std::thread::Builder::new().name("input".into()).spawn(read)?;
    Ok(lines)
}

/// Takes an order from `input` and reports the outcome on `output`. If `input` ends before the order is served, that is
/// no error.
fn serve(
    input: &Receiver<String>,
    output: &mut impl Write,
    open: impl FnOnce(&Order) -> Result<Box<dyn Remote>, FetchFailure>,
) -> io::Result<()> {
    let Some(order) = next::<Order>(input)? else { return Ok(()) };
    let mut worker_output = WorkerOutput { output, reported: None };
    let last = match catch_unwind(AssertUnwindSafe(|| fetch(&order, input, &mut worker_output, open))) {
        Ok(Ok(Some(stats))) => WorkerMessage::Done(stats),
        Ok(Ok(None)) => return Ok(()),
        Ok(Err(Stopped::Failed(failure))) => WorkerMessage::Failed(failure),
        Ok(Err(Stopped::Unheard(error))) => return Err(error),
        Err(_) => WorkerMessage::Failed(defect()),
    };
    worker_output.say(&last)
}

/// Reasons why a fetch stops.
enum Stopped {
    /// The order cannot be fulfilled.
    Failed(FetchFailure),
    /// The daemon does not read or is not understood.
    Unheard(io::Error),
}

impl From<FetchFailure> for Stopped {
    fn from(failure: FetchFailure) -> Self {
        Self::Failed(failure)
    }
}

impl From<io::Error> for Stopped {
    fn from(error: io::Error) -> Self {
        Self::Unheard(error)
    }
}

/// Returns `None` if the tree is not needed.
fn fetch<W: Write>(
    order: &Order,
    input: &Receiver<String>,
    worker_output: &mut WorkerOutput<'_, W>,
    open: impl FnOnce(&Order) -> Result<Box<dyn Remote>, FetchFailure>,
) -> Result<Option<Stats>, Stopped> {
    let mut remote = open(order)?;
    let version = remote.resolve(&mut |progress| worker_output.report(progress))?;
    worker_output.say(&WorkerMessage::Resolved(version))?;
    let Some(Answer { into }) = next(input)? else { return Ok(None) };
    Ok(Some(remote.transfer(&into, &mut |progress| worker_output.report(progress))?))
}

/// Parses the next line of the input; `None` at its end.
fn next<T: serde::de::DeserializeOwned>(input: &Receiver<String>) -> io::Result<Option<T>> {
    let Ok(line) = input.recv() else { return Ok(None) };
    // Drop the parser's error: it could quote the line, which holds credentials.
    let understood = serde_json::from_str(&line).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(Some(understood))
}

/// The worker's output.
struct WorkerOutput<'a, W> {
    output: &'a mut W,
    /// Time of the last progress report.
    reported: Option<Instant>,
}

impl<W: Write> WorkerOutput<'_, W> {
    fn say(&mut self, message: &WorkerMessage) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.output.write_all(&line)?;
        self.output.flush()
    }

    fn report(&mut self, progress: Progress) {
        if self.reported.is_some_and(|last| last.elapsed() < REPORT_INTERVAL) {
            return;
        }
        self.reported = Some(Instant::now());
        // If nobody reads any more, the input has ended too, and that ends this process.
        self.say(&WorkerMessage::Progress(progress)).ok();
    }
}

/// Location of the first panic. Its message is not kept: it may quote a server's data or a credential.
static PANIC: Mutex<Option<String>> = Mutex::new(None);

fn note_panic(panic: &PanicHookInfo<'_>) {
    let at = panic.location().map(|at| format!("{}:{}", at.file(), at.line()));
    let mut first = PANIC.lock();
    *first = first.take().or(at);
}

fn defect() -> FetchFailure {
    let at = PANIC.lock().take().unwrap_or_else(|| "an unknown place".to_owned());
    let message = format!("a defect of step-runner ended the transfer at {at}: please report it");
    FetchFailure { class: Class::Fetch, message }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::mpsc::Sender;

    use super::*;
    use step_runner_web::Network;

    const HASH: &str = "0123456789abcdef0123456789abcdef01234567";

    /// A remote with configured behaviour.
    #[derive(Default)]
    struct Scripted {
        refuses: Option<FetchFailure>,
        panics: bool,
        into: Option<Sender<PathBuf>>,
    }

    impl Remote for Scripted {
        fn resolve(&mut self, report: &mut dyn FnMut(Progress)) -> Result<String, FetchFailure> {
            for bytes in 0..1000 {
                report(Progress { bytes, total: None });
            }
            self.refuses.take().map_or_else(|| Ok(HASH.to_owned()), Err)
        }

        fn transfer(&mut self, into: &Path, _: &mut dyn FnMut(Progress)) -> Result<Stats, FetchFailure> {
            assert!(!self.panics, "as told");
            if let Some(sender) = &self.into {
                sender.send(into.to_owned()).unwrap();
            }
            Ok(Stats { files: 1, entries: 1, bytes: 2 })
        }
    }

    fn order() -> String {
        let source = Source::Git { url: "https://h/p".into(), revision: "v1".into() };
        let (network, credentials) = (Network::default(), [].into());
        let order = Order { source, network, credentials, scratch: "/scratch".into() };
        serde_json::to_string(&order).unwrap()
    }

    fn answer() -> String {
        serde_json::to_string(&Answer { into: "/into".into() }).unwrap()
    }

    /// Returns a worker's messages for these lines, without progress, and its result.
    fn messages(lines: &[String], remote: Scripted) -> (Vec<WorkerMessage>, io::Result<()>) {
        let (sender, input) = mpsc::channel();
        for line in lines {
            sender.send(line.clone()).unwrap();
        }
        drop(sender);
        let mut output = Vec::new();
        let end = serve(&input, &mut output, |_| Ok(Box::new(remote)));
        let message = output.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let message = message.map(|line| serde_json::from_slice(line).unwrap());
        (message.filter(|message| !matches!(message, WorkerMessage::Progress(_))).collect(), end)
    }

    #[test]
    fn an_order_is_resolved_then_transferred_to_where_the_answer_says() {
        let (sender, into) = mpsc::channel();
        let (message, end) =
            messages(&[order(), answer()], Scripted { into: Some(sender), ..Scripted::default() });
        end.unwrap();
        let [WorkerMessage::Resolved(version), WorkerMessage::Done(stats)] = message.as_slice() else {
            panic!("{message:?}")
        };
        assert_eq!((version.as_str(), stats.bytes), (HASH, 2));
        assert_eq!(into.recv().unwrap(), Path::new("/into"));
    }

    #[test]
    fn nothing_is_transferred_that_nobody_asked_for() {
        let (message, end) = messages(&[order()], Scripted::default());
        end.unwrap();
        assert!(matches!(message.as_slice(), [WorkerMessage::Resolved(_)]), "{message:?}");
    }

    #[test]
    fn a_failure_is_the_last_word() {
        let failure = FetchFailure { class: Class::Fetch, message: "no".into() };
        let remote = Scripted { refuses: Some(failure.clone()), ..Scripted::default() };
        let (message, end) = messages(&[order(), answer()], remote);
        end.unwrap();
        assert!(
            matches!(message.as_slice(), [WorkerMessage::Failed(message)] if *message == failure),
            "{message:?}"
        );
    }

    #[test]
    fn a_panic_is_a_failure_without_its_text() {
        let remote = Scripted { panics: true, ..Scripted::default() };
        let (message, end) = messages(&[order(), answer()], remote);
        end.unwrap();
        let [_, WorkerMessage::Failed(failure)] = message.as_slice() else { panic!("{message:?}") };
        assert!(failure.message.starts_with("a defect of step-runner"), "{}", failure.message);
        assert!(!failure.message.contains("as told"));
    }

    #[test]
    fn progress_is_reported_a_few_times_a_second_at_most() {
        let (sender, input) = mpsc::channel();
        sender.send(order()).unwrap();
        drop(sender);
        let mut output = Vec::new();
        let begin = Instant::now();
        serve(&input, &mut output, |_| Ok(Box::new(Scripted::default()))).unwrap();
        let most = 2 + begin.elapsed().as_millis() / REPORT_INTERVAL.as_millis();
        let reports = String::from_utf8(output).unwrap().matches("progress").count();
        assert!(reports >= 1 && reports as u128 <= most, "{reports}");
    }

    #[test]
    fn what_is_no_order_is_refused_without_quoting_it() {
        let (message, end) = messages(&["{\"token\": \"secret\"}".to_owned()], Scripted::default());
        assert!(message.is_empty());
        assert!(!end.unwrap_err().to_string().contains("secret"));
    }
}
