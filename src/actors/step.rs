//! One running process: its files, its start through the keeper, its end.
//!
//! A [`StepActor`] lives from the start of one process to the event that reports its end. The process itself is a child
//! of the keeper.

mod at_hand;
mod given;
mod program;

pub(super) use at_hand::{Known, what_is_known};

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use actix::{Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Handler, WrapFuture};

use super::deliver;
use super::limits::JobLimits;
use super::messages::{Defect, Ended, EndedStep, StepDone, ToJob};
use crate::error::Chain;
use crate::failpoint;
use crate::job::effect::{Program, Spawn, StepFiles};
use crate::job::event::{FileContent, ProcessEnd};
use crate::keeper::link::{KeeperFrame, KeeperLink};
use crate::keeper::protocol::{Request, SpawnStep, StartPart, StepEnd};
use crate::model::{FinishedProcess, JobKey, text};
use crate::process::given::Room;
use crate::process::spawn::Stage;
use crate::store::JobFolder;
use crate::threads::{self, Work};

/// Largest output or export file in bytes (language.md §6).
const MAX_FILE: u64 = 16 << 20;

/// Largest such file that the actors' thread itself reads.
const SMALL_FILE: u64 = 64 << 10;

/// Flags to open a path that a process can guess: they follow no link and do not wait for the other end of a FIFO.
const CAREFUL: libc::c_int = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;

/// Message of a step that was not started because a look at its program or working directory did not end in time.
const GIVEN_UP: &str = "not started: a file system does not answer, and the job is to end";

/// Length in bytes of a script's first line that Linux reads.
const LONGEST_FIRST_LINE: u64 = 256;

pub(super) struct StepTask {
    pub(super) job: ToJob,
    pub(super) link: KeeperLink,
    pub(super) key: JobKey,
    pub(super) tag: u128,
    pub(super) socket: Arc<Path>,
    pub(super) folder: JobFolder,
    pub(super) daemon_path: Option<Arc<OsStr>>,
    pub(super) spawn: Box<Spawn>,
    pub(super) limits: Arc<JobLimits>,
    /// True if an earlier daemon asked for the process.
    pub(super) is_asked: bool,
    /// True if a follower wants to see unfinished lines.
    pub(super) watch_unfinished: bool,
    /// Grace for the end of the job, if success of this process ends it.
    pub(super) closes: Option<Duration>,
    /// Set to true when the job no longer waits for the start.
    pub(super) given_up: Option<Arc<AtomicBool>>,
}

/// The actor of one process; see the module.
pub(crate) struct StepActor {
    task: StepTask,
    /// Name of the shell of a script.
    shell: Option<String>,
    program: Option<PathBuf>,
    /// The request for the keeper, or the reason why the process cannot be started. `None` if it runs already.
    begin: Option<Result<KeeperFrame, String>>,
    /// The reason why the keeper is not asked for a process.
    refused: Option<String>,
    /// Its run, as the keeper saw it.
    ran: Option<FinishedProcess>,
    /// True if the keeper closes the job with the end of this process.
    closes: bool,
    /// True while nobody waits for the end of the process: before [`Self::send`], and after the end was reported.
    done: bool,
}

impl StepActor {
    const fn new(task: StepTask) -> Self {
        Self {
            task,
            shell: None,
            program: None,
            begin: None,
            refused: None,
            ran: None,
            closes: false,
            done: true,
        }
    }

    /// Prepares the start of the process, unless it runs already. Callable on any thread.
    pub(super) fn prepare(task: StepTask) -> Self {
        let mut step = Self::new(task);
        if !step.task.is_asked {
            step.begin = Some(step.request());
        } else if step.task.is_at_hand() {
            step.shell = step.name_of_shell();
            // For the message if it could not be started.
            if let Program::Command(argv) = &step.task.spawn.program {
                step.program = argv.first().and_then(|name| step.look_up(name).ok());
            }
        }
        // The request holds the environment now. A step may run for hours, so free this copy.
        step.task.spawn.env = Vec::new();
        step
    }

    /// Prepares the start of a process whose program or working directory may be on a file system that does not answer.
    /// `None` if the job has given it up.
    pub(super) fn prepare_after_lookups(task: StepTask) -> Option<Self> {
        task.await_work_dir().then(|| Self::prepare(task))
    }

    /// Ends a step whose program or working directory could not be looked up before the job's cancel or its keeper's
    /// death.
    pub(super) fn give_up(task: StepTask) -> Self {
        let mut step = Self::new(task);
        step.refused = Some(GIVEN_UP.to_owned());
        step
    }

    /// Asks the keeper to start the process, together with all else that the job tells it now.
    pub(super) fn send(&mut self) {
        self.done = false;
        match self.begin.take() {
            Some(Ok(request)) => self.task.link.send(request),
            Some(Err(message)) => self.refused = Some(message),
            None => {}
        }
    }

    fn request(&mut self) -> Result<KeeperFrame, String> {
        let step = self.spawn_step()?;
        KeeperFrame::of(Request::Spawn(Box::new(step))).map_err(|error| Chain(&error).to_string())
    }

    /// Describes the start for the keeper.
    fn spawn_step(&mut self) -> Result<SpawnStep, String> {
        let env = environment(&self.task.spawn.env, self.task.tag, &self.task.socket);
        let StepTask { key, spawn, folder, watch_unfinished, closes, .. } = &self.task;
        let (program, shell) = self.find()?;
        if self.task.is_given_up() {
            return Err(GIVEN_UP.to_owned());
        }
        // From here on there is no look that can take long.
        if let Some(files) = &spawn.files {
            make_new_files(folder, files).map_err(|e| format!("cannot make the files of the step: {e}"))?;
        }
        let argv = self.arguments(&program, shell)?;
        self.program = Some(program.clone());
        if matches!(spawn.program, Program::Script(_) | Program::ScriptFile(_) | Program::LegacyScript(_)) {
            self.shell = argv.first().cloned();
        }
        let step = SpawnStep {
            key: *key,
            process: spawn.process,
            slot: spawn.slot,
            name: spawn.name.clone(),
            program,
            argv,
            env,
            work_dir: PathBuf::from(&spawn.work_dir),
            watch_unfinished: *watch_unfinished,
            closes: *closes,
        };
        given::check(&step, &spawn.program)?;
        Ok(step)
    }

    fn done(&mut self, end: ProcessEnd, ctx: &mut Context<Self>) {
        let succeeded = matches!(end, ProcessEnd::Exited(status) if self.task.spawn.success.includes(status));
        let Some(files) = self.task.spawn.files.clone().filter(|_| succeeded) else {
            return self.tell(end, None, ctx);
        };
        let len = |path: &String| fs::symlink_metadata(path).map_or(0, |found| found.len());
        let is_small = len(&files.output) <= SMALL_FILE && len(&files.export) <= SMALL_FILE;
        let read = move || [&files.output, &files.export].map(|path| read_output(Path::new(path)));
        if is_small {
            return self.tell(end, Some(read()), ctx);
        }
        let contents = threads::run(Work::Files, read);
        ctx.spawn(contents.into_actor(self).map(move |contents, step, ctx| {
            let broken = |error: &dyn std::fmt::Display| FileContent::Unreadable(error.to_string());
            let contents = contents.unwrap_or_else(|error| [broken(&error), broken(&error)]);
            step.tell(end, Some(contents), ctx);
        }));
    }

    /// Sends the job the end of the process and the contents of its files.
    fn tell(&mut self, end: ProcessEnd, contents: Option<[FileContent; 2]>, ctx: &mut Context<Self>) {
        let (outputs, exports) = contents.map(|[outputs, exports]| (outputs, exports)).unzip();
        let (process, shell) = (self.task.spawn.process, self.shell.take());
        self.done = true;
        let (ran, closes) = (self.ran, self.closes);
        let ended = EndedStep { process, end, shell, outputs, exports, ran, closes };
        deliver(&self.task.job.done, StepDone(ended));
        ctx.stop();
    }
}

/// Returns the whole environment of a process: the machine's variables, overridden by our own two (variables.md §7).
fn environment(computed: &[(Vec<u8>, Vec<u8>)], tag: u128, socket: &Path) -> Vec<Vec<u8>> {
    let entry = |name: &[u8], value: &[u8]| [name, b"=", value].concat();
    let mut env: Vec<_> = computed
        .iter()
        .filter(|(name, _)| name != b"STEP_RUNNER_JOB" && name != b"STEP_RUNNER_SOCKET")
        .map(|(name, value)| entry(name, value))
        .collect();
    env.push(entry(b"STEP_RUNNER_JOB", format!("{tag:032x}").as_bytes()));
    env.push(entry(b"STEP_RUNNER_SOCKET", socket.as_os_str().as_bytes()));
    env
}

/// A step whose actor dies must not look as if it were running (faults.md row 59).
impl Drop for StepActor {
    fn drop(&mut self) {
        if !self.done {
            deliver(
                &self.task.job.defect,
                Defect("a defect ended the part of the daemon that drove a step of it".into()),
            );
        }
    }
}

impl Actor for StepActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        failpoint::hit("actors::step::started");
        if let Some(message) = self.refused.take() {
            self.done(ProcessEnd::NotStarted(message), ctx);
        }
    }
}

impl Handler<Ended> for StepActor {
    type Result = ();

    fn handle(&mut self, Ended(ended): Ended, ctx: &mut Self::Context) {
        failpoint::hit("actors::step::ended");
        (self.ran, self.closes) = (Some(ended.ran), ended.closes);
        let end = match ended.end {
            StepEnd::Exited(status) => match ended.shortage {
                Some(shortage) if !self.task.spawn.success.includes(status) => {
                    ProcessEnd::Short { status, of: self.task.limits.explain(shortage) }
                }
                _ => ProcessEnd::Exited(status),
            },
            StepEnd::NotStarted { part, errno } => {
                ProcessEnd::NotStarted(self.could_not_start(part, &io::Error::from_raw_os_error(errno)))
            }
        };
        self.done(end, ctx);
    }
}

impl StepActor {
    fn could_not_start(&self, part: StartPart, error: &io::Error) -> String {
        let spawn = &self.task.spawn;
        if error.raw_os_error() == Some(libc::E2BIG) {
            // The kernel counts more than [`given::check`] knows of, such as the words of an interpreter.
            return given::too_large(None, Room::here().total);
        }
        let text = match part {
            StartPart::Stage(Stage::WorkDir) => {
                format!("cannot enter the working directory {}: {error}", spawn.work_dir)
            }
            StartPart::Stage(Stage::Exec) => match &spawn.program {
                Program::Command(argv) => {
                    let name = argv.first().map_or("", String::as_str);
                    // The program exists, so the missing file is the interpreter that it names.
                    let missing = error.kind() == io::ErrorKind::NotFound;
                    match self.program.as_deref().filter(|_| missing).and_then(interpreter) {
                        Some(named) => format!("cannot execute {name}: its interpreter {named} is not there"),
                        None => format!("cannot execute {name}: {error}"),
                    }
                }
                Program::Script(_) | Program::ScriptFile(_) | Program::LegacyScript(_) => {
                    format!("cannot execute the shell: {error}")
                }
                Program::Builtin(program) => {
                    format!("cannot execute step-runner for {}: {error}", program.name)
                }
            },
            StartPart::Stage(Stage::Limits) => {
                return format!("resource: the job cannot be held to its limits: {error}");
            }
            part => format!("cannot start a process ({}): {error}", String::from(part)),
        };
        if is_shortage(error) { format!("resource: {text}") } else { text }
    }
}

/// Returns the interpreter named in the first line of a script.
fn interpreter(program: &Path) -> Option<String> {
    let mut start = Vec::new();
    let file = File::options().read(true).custom_flags(CAREFUL).open(program).ok()?;
    file.take(LONGEST_FIRST_LINE).read_to_end(&mut start).ok()?;
    let line = match memchr::memchr(b'\n', &start) {
        Some(end) => start.get(..end)?,
        // A line that is cut off may end within a secret.
        None if start.len() as u64 == LONGEST_FIRST_LINE => return None,
        None => &start,
    };
    let line = line.strip_prefix(b"#!")?;
    // Split as the kernel does: a carriage return is part of the name.
    let named = line.split(|byte| matches!(byte, b' ' | b'\t')).find(|word| !word.is_empty())?;
    Some(text::quote(&String::from_utf8_lossy(named)).into_owned())
}

/// True if there are too many processes or too little memory (faults.md row 6).
fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOMEM))
}

fn no_shell() -> String {
    "no shell: neither bash nor sh is in /usr/local/bin, /usr/bin, /bin or PATH; use a function with exec"
        .into()
}

/// Makes the output and export files of a function that runs steps (language.md §12). Existing files keep their
/// contents: a replayed job calls this again, and a process may have written to them.
pub(super) fn make_files(folder: &JobFolder, files: &StepFiles) -> io::Result<()> {
    for path in [&files.output, &files.export] {
        let path = Path::new(path);
        make_parent(folder, path)?;
        let mut options = File::options();
        let file =
            options.write(true).create(true).truncate(false).mode(0o600).custom_flags(CAREFUL).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("what is there is not a regular file"));
        }
    }
    Ok(())
}

/// Makes the empty output and export files of a process that is about to start.
fn make_new_files(folder: &JobFolder, files: &StepFiles) -> io::Result<()> {
    for path in [&files.output, &files.export] {
        make_new(folder, Path::new(path))?;
    }
    Ok(())
}

/// Writes a file that only our own user can read.
fn write_private(folder: &JobFolder, path: &Path, text: &str) -> io::Result<()> {
    make_new(folder, path)?.write_all(text.as_bytes())
}

/// Replaces a file by an empty one. Its path can be guessed: a link or a FIFO that an earlier process of the job put
/// there is neither followed nor waited for (faults.md row 73).
fn make_new(folder: &JobFolder, path: &Path) -> io::Result<File> {
    make_parent(folder, path)?;
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    File::options().write(true).create_new(true).mode(0o600).open(path)
}

/// Makes `tmp/N` of the job's folder.
fn make_parent(folder: &JobFolder, path: &Path) -> io::Result<()> {
    let tmp = folder.make_dir("tmp").map_err(|e| e.source)?;
    let Some(parent) = path.parent() else { return Ok(()) };
    match fs::DirBuilder::new().mode(0o700).create(parent) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let is_real = |path: &Path| fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    if is_real(&tmp) && is_real(parent) {
        Ok(())
    } else {
        Err(io::Error::other("what is there in place of its folder is no directory"))
    }
}

/// Reads an output or export file. Accepts only a regular file, follows no link and never waits (faults.md row 73).
fn read_output(path: &Path) -> FileContent {
    let open = || File::options().read(true).custom_flags(CAREFUL).open(path);
    let read = || -> io::Result<Result<Vec<u8>, &str>> {
        let file = open()?;
        if !file.metadata()?.is_file() {
            return Ok(Err("it is not a regular file any more"));
        }
        let mut bytes = Vec::new();
        file.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
        Ok(Ok(bytes))
    };
    match read() {
        Ok(Ok(bytes)) => FileContent::Bytes(bytes),
        Ok(Err(what)) => FileContent::Unreadable(what.into()),
        Err(error) => FileContent::Unreadable(error.to_string()),
    }
}

#[cfg(test)]
mod tests;
