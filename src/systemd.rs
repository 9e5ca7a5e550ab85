//! The service manager that may have started the daemon (docs/operate/systemd.md). The daemon reports its state to it,
//! and may get its socket from it.
//!
//! Only this module reads the manager's variables and sends messages to it. `store::socket` decides what the daemon
//! does with a passed socket.

use std::borrow::Cow;
use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, sockopt};
use sd_notify::NotifyState;
use tokio::sync::oneshot;

use crate::error::Chain;
use crate::process;

/// Name of the descriptor to listen on, if several are passed (`FileDescriptorName=`).
const NAME: &str = "step-runner";

/// Longest time between two checks of the state.
const TELL_STATE: Duration = Duration::from_secs(10);

/// Maximum number of messages that wait for the manager. Further ones are dropped.
const WAITING: usize = 16;

/// A socket that the service manager made and holds.
#[derive(Debug)]
pub(crate) struct PassedSocket {
    /// Listens already; children do not inherit it.
    pub(crate) listener: UnixListener,
    /// Path where clients find it.
    pub(crate) path: PathBuf,
}

/// Reason not to listen on what the service manager passed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PassedError {
    /// The variables or descriptors break the protocol.
    #[error("the service manager passed no usable descriptors (LISTEN_FDS): {0}")]
    Protocol(io::Error),
    /// Several descriptors, and not exactly one has our name.
    #[error(
        "the service manager passed {0} descriptors, and not exactly one has the name `{NAME}`: set FileDescriptorName={NAME} \
         for the one to listen on"
    )]
    Several(usize),
    /// The descriptor is a file, a pipe, an internet or datagram socket, or a socket that does not listen.
    #[error(
        "the service manager passed descriptor {number}, which is {what}, not a unix stream socket that listens: set ListenStream= to an absolute path"
    )]
    Unsuitable {
        /// Its number in this process.
        number: i32,
        /// Its kind.
        what: Cow<'static, str>,
    },
}

/// Returns the socket that this process was started with, if any. Call it once, before anything else is opened.
pub(crate) fn passed_socket() -> Result<Option<PassedSocket>, PassedError> {
    let passed: Vec<_> = sd_notify::listen_fds_with_names().map_err(PassedError::Protocol)?.collect();
    let named: Vec<_> = passed.iter().filter(|(_, name)| name == NAME).collect();
    let number = match (&*passed, &*named) {
        ([], _) => return Ok(None),
        (_, [(number, _)]) | ([(number, _)], _) => *number,
        _ => return Err(PassedError::Several(passed.len())),
    };
    let descriptor = process::inherited_descriptor(number).map_err(PassedError::Protocol)?;
    let unsuitable = |what| PassedError::Unsuitable { number, what };
    let without_path = || unsuitable("a socket without a path".into());
    check_kind(&descriptor).map_err(unsuitable)?;
    let listener = UnixListener::from(descriptor);
    let address = listener.local_addr().map_err(PassedError::Protocol)?;
    let path = address.as_pathname().ok_or_else(without_path)?.to_owned();
    Ok(Some(PassedSocket { listener, path }))
}

/// Returns what the descriptor is, unless it is a unix stream socket that listens.
fn check_kind(descriptor: &OwnedFd) -> Result<(), Cow<'static, str>> {
    let socket = descriptor.as_fd();
    let unknown = |error| match error {
        Errno::NOTSOCK => "no socket".into(),
        error => Cow::from(format!("of unknown kind ({error})")),
    };
    let kind = sockopt::socket_type(socket).map_err(unknown)?;
    if sockopt::socket_domain(socket).map_err(unknown)? != AddressFamily::UNIX {
        return Err("a socket of another family".into());
    }
    if kind != SocketType::STREAM {
        return Err("a unix socket of another type".into());
    }
    if !sockopt::socket_acceptconn(socket).map_err(unknown)? {
        return Err("a socket that does not listen".into());
    }
    Ok(())
}

/// Longest wait, at the end of the daemon, until the manager has been told that it ends.
const LAST_WORD: Duration = Duration::from_secs(1);

/// A message to the manager.
enum Message {
    Ready(String),
    /// In a few words, for people.
    State(String),
    /// The daemon answers.
    Alive,
    /// The daemon ends; the sender is used once the manager was told.
    Stopping(oneshot::Sender<()>),
}

/// The message that the daemon has begun to end, on its way to the manager.
pub(crate) struct StoppingNotice(oneshot::Receiver<()>);

impl StoppingNotice {
    /// Waits until the message was sent, for at most a second: a process that ends sends nothing more.
    pub(crate) async fn sent(self) {
        drop(tokio::time::timeout(LAST_WORD, self.0).await);
    }
}

/// The service manager, if there is one. Sending to it never blocks and never fails, because the daemon does not depend
/// on it.
pub(crate) struct Manager {
    messages: Option<SyncSender<Message>>,
    watchdog: Option<Duration>,
    stopping: Cell<bool>,
}

impl Manager {
    /// Returns the manager named by `NOTIFY_SOCKET`, with the interval of its watchdog if it has one (`WATCHDOG_USEC`).
    pub(crate) fn of_this_process() -> io::Result<Self> {
        let is_there = std::env::var_os("NOTIFY_SOCKET").is_some_and(|path| !path.is_empty());
        let messages = if is_there {
            let (messages, waiting) = sync_channel(WAITING);
            // A thread of its own: a manager that does not read must not hold up the daemon. It ends with the process.
            std::thread::Builder::new().name("manager".into()).spawn(move || tell_all(&waiting))?;
            Some(messages)
        } else {
            None
        };
        let watchdog = sd_notify::watchdog_enabled().filter(|time| !time.is_zero());
        Ok(Self { messages, watchdog, stopping: Cell::new(false) })
    }

    /// Reports that the daemon serves. `state` is a short text for people.
    pub(crate) fn ready(&self, state: String) {
        self.tell(Message::Ready(state));
    }

    /// Reports that the daemon has begun to end.
    #[must_use]
    pub(crate) fn stopping(&self) -> StoppingNotice {
        self.stopping.set(true);
        let (sent, notice) = oneshot::channel();
        self.tell(Message::Stopping(sent));
        StoppingNotice(notice)
    }

    /// Calls `answers` in a loop until it returns false. After each call, pings the manager's watchdog and reports
    /// `state` if it has changed. The loop runs at least twice per interval of the watchdog. A daemon that hangs in
    /// `answers` sends no ping. Returns at once if there is no manager.
    pub(crate) async fn watch(&self, answers: impl AsyncFn() -> bool, state: impl Fn() -> String) {
        if self.messages.is_none() {
            return;
        }
        let pace = self.watchdog.map_or(TELL_STATE, |time| TELL_STATE.min(time / 2));
        let mut told = state();
        while answers().await {
            if self.watchdog.is_some() {
                self.tell(Message::Alive);
            }
            let now = state();
            if now != told && !self.stopping.get() {
                self.tell(Message::State(now.clone()));
                told = now;
            }
            tokio::time::sleep(pace).await;
        }
    }

    fn tell(&self, message: Message) {
        if let Some(messages) = &self.messages {
            // A message that is not taken in time is no longer true.
            messages.try_send(message).ok();
        }
    }
}

fn tell_all(messages: &Receiver<Message>) {
    let mut was_told = true;
    for message in messages {
        let told = match &message {
            Message::Ready(state) => sd_notify::notify(&[NotifyState::Ready, NotifyState::Status(state)]),
            Message::State(state) => sd_notify::notify(&[NotifyState::Status(state)]),
            Message::Alive => sd_notify::notify(&[NotifyState::Watchdog]),
            Message::Stopping(_) => {
                sd_notify::notify(&[NotifyState::Stopping, NotifyState::Status("ending its jobs")])
            }
        };
        if let (Err(error), true) = (&told, was_told) {
            tracing::warn!(error = %Chain(error), "the service manager cannot be told how the daemon is");
        }
        was_told = told.is_ok();
        if let Message::Stopping(sent) = message {
            sent.send(()).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manager() -> (Manager, Receiver<Message>) {
        let (messages, waiting) = sync_channel(WAITING);
        let watchdog = Some(Duration::from_micros(2));
        (Manager { messages: Some(messages), watchdog, stopping: Cell::new(false) }, waiting)
    }

    fn run<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(work)
    }

    #[test]
    fn a_descriptor_that_the_system_does_not_examine_is_refused_with_its_reason() {
        use rustix::fs::{Mode, OFlags};
        let path_only = rustix::fs::open("/", OFlags::PATH, Mode::empty()).unwrap();
        let told = check_kind(&path_only).unwrap_err();
        assert!(told.starts_with("of unknown kind (Bad file descriptor"), "{told}");
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(check_kind(&file.into()).unwrap_err(), "no socket");
    }

    #[test]
    fn a_daemon_that_does_not_answer_gives_no_sign_of_life() {
        let (manager, told) = manager();
        let turns = Cell::new(0);
        let answers = async || {
            turns.set(turns.get() + 1);
            if turns.get() > 3 {
                std::future::pending::<()>().await;
            }
            true
        };
        let watched = async {
            tokio::select! {
                () = manager.watch(answers, String::new) => panic!("it goes on"),
                () = tokio::time::sleep(Duration::from_millis(100)) => {}
            }
        };
        run(watched);
        drop(manager);
        assert_eq!(told.iter().filter(|message| matches!(message, Message::Alive)).count(), 3);
    }

    #[test]
    fn a_state_is_told_when_it_changes_and_not_while_stopping() {
        let (manager, told) = manager();
        let turns = Cell::new(0);
        let answers = async || {
            turns.set(turns.get() + 1);
            if turns.get() == 5 {
                drop(manager.stopping());
            }
            turns.get() < 9
        };
        run(manager.watch(answers, || (turns.get() / 2).to_string()));
        drop(manager);
        let states: Vec<_> = told
            .iter()
            .filter_map(|message| if let Message::State(state) = message { Some(state) } else { None })
            .collect();
        assert_eq!(states, ["1", "2"]);
    }

    #[test]
    fn the_last_message_is_waited_for_unless_nobody_takes_it() {
        let (manager, told) = manager();
        let notice = manager.stopping();
        let taken = std::thread::spawn(move || drop(told.recv().unwrap()));
        run(notice.sent());
        taken.join().unwrap();
        drop(manager);
        // Without a manager there is nothing to wait for.
        let none = Manager { messages: None, watchdog: None, stopping: Cell::new(false) };
        run(none.stopping().sent());
    }

    #[test]
    fn a_manager_that_takes_nothing_holds_up_nobody() {
        let (manager, _full) = manager();
        for _ in 0..3 * WAITING {
            manager.ready(String::new());
        }
    }
}
