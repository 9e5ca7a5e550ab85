//! The reaper's own process.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use super::{Order, OrderedCommand, ReaperEvent, ReaperReport, receive, send};
use crate::group;
use crate::host::hide_memory;
use crate::spawn::{Command, Confinement, SpawnError, Spawner, Stage};
use crate::sweep::{Process, descendants, own_children};
use crate::sys::{Child, Children, Signals, inherited_descriptor, look_at_children, reap_ended};
use crate::terminated::Terminated;

/// First pause between two rounds of killing; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// Longest pause before [`STUBBORN_AFTER`].
const LAST_PAUSE: Duration = Duration::from_millis(20);

/// Processes that survive this long are expected to live on for long.
const STUBBORN_AFTER: Duration = Duration::from_secs(2);

/// Longest pause after [`STUBBORN_AFTER`].
const STUBBORN_PAUSE: Duration = Duration::from_secs(30);

/// Longest time that one round chases processes that fork faster than they are found.
const CHASE: Duration = Duration::from_millis(10);

/// Maximum number of ended children to reap before the end of the step's own process is reported.
const REAPS: u32 = 64;

/// A kill that goes on until nothing is left.
struct Killing {
    since: Instant,
    next: Instant,
    pause: Duration,
}

/// State of the reaper's process.
struct ReaperLoop {
    socket: OwnedFd,
    spawner: Spawner,
    /// The running step's process, not reaped yet.
    leader: Option<Pid>,
    starts: u32,
    is_empty: bool,
    used: Duration,
    terminated: Terminated,
    killing: Option<Killing>,
    /// True once the keeper is gone.
    is_alone: bool,
}

/// Runs a reaper until its keeper is gone and nothing is left below it. Standard input is its end of the socket. Call
/// it on the main thread of a dedicated process that has the limits for steps. `oom_score_adj` is the value that the
/// daemon was started with.
pub fn serve(oom_score_adj: Option<i32>) -> io::Result<()> {
    let socket = inherited_descriptor(0)?;
    // Notes limits and dispositions as they are now: steps get them.
    let spawner = Spawner::new(oom_score_adj)?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    // It leads a group already if it was started from a shell.
    rustix::process::setsid().ok();
    hide_memory()?;
    let children = Signals::children()?;
    let mut reaper = ReaperLoop {
        socket,
        spawner,
        leader: None,
        starts: 0,
        is_empty: true,
        used: Duration::ZERO,
        terminated: Terminated::default(),
        killing: None,
        is_alone: false,
    };
    reaper.run(&children)
}

impl ReaperLoop {
    fn run(&mut self, children: &Signals) -> io::Result<()> {
        while !(self.is_alone && self.is_empty) {
            let timeout = self.killing.as_ref().map(|killing| {
                let left = killing.next.saturating_duration_since(Instant::now());
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
            });
            let mut ready = [PollFd::new(children, PollFlags::IN), PollFd::new(&self.socket, PollFlags::IN)];
            // A socket that has ended is not read any more.
            let watched = ready.get_mut(..if self.is_alone { 1 } else { 2 }).unwrap_or_default();
            match poll(watched, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let [signal, order] = ready.map(|fd| !fd.revents().is_empty());
            if signal {
                children.clear();
            }
            self.reap();
            if order && !self.is_alone {
                self.obey();
            }
            if self.killing.as_ref().is_some_and(|killing| killing.next <= Instant::now()) {
                self.kill_round();
            }
        }
        Ok(())
    }

    /// Reaps ended children, and reports.
    fn reap(&mut self) {
        let was_empty = self.is_empty;
        let mut ended = None;
        for _ in 0..REAPS {
            match look_at_children() {
                Children::Ended(pid) => {
                    let reaped = reap_ended(Child::Pid(pid));
                    self.used += reaped.map(|(_, usage)| usage.time()).unwrap_or_default();
                    if self.leader.is_some_and(|leader| leader.as_raw_nonzero().get() as u32 == pid) {
                        self.leader = None;
                        ended = reaped;
                    }
                }
                Children::Living => {
                    self.is_empty = false;
                    break;
                }
                Children::None => {
                    self.is_empty = true;
                    break;
                }
            }
        }
        if let Some((status, usage)) = ended {
            self.report(ReaperEvent::Exited(status, usage), &[]);
        } else if self.is_empty && !was_empty {
            self.report(ReaperEvent::Deserted, &[]);
        }
        if self.is_empty {
            self.killing = None;
        }
    }

    fn obey(&mut self) {
        match receive::<Order>(self.socket.as_fd()) {
            Ok(Some((Order::Start, descriptors))) => self.start(descriptors),
            Ok(Some((Order::TerminateStep, _))) => {
                if let Some(leader) = self.leader {
                    let group = leader.as_raw_nonzero().get() as u32;
                    self.terminate(|process| process.group == group);
                }
            }
            Ok(Some((Order::TerminateRest, _))) => self.terminate(|_| true),
            Ok(Some((Order::Kill, _))) => self.begin_killing(),
            // The keeper has dropped the job, is dead, or sent nonsense.
            Ok(None) | Err(_) => {
                self.is_alone = true;
                self.begin_killing();
            }
        }
    }

    fn start(&mut self, descriptors: Vec<OwnedFd>) {
        self.killing = None;
        let started = self.spawn(descriptors);
        self.starts += 1;
        match started {
            Ok((pid, pidfd, start_time)) => {
                self.leader = Some(pid);
                self.is_empty = false;
                let pid = pid.as_raw_nonzero().get() as u32;
                self.report(ReaperEvent::Started { pid, start_time }, &[pidfd.as_fd()]);
            }
            Err(error) => self.report(ReaperEvent::not_started(error), &[]),
        }
    }

    fn spawn(&mut self, descriptors: Vec<OwnedFd>) -> Result<(Pid, OwnedFd, u64), SpawnError> {
        let fork = |error: &io::Error| SpawnError::new(Stage::Fork, error);
        let missing = || fork(&Errno::BADMSG.into());
        let mut descriptors = descriptors.into_iter();
        let (Some(body), Some(stdout), Some(stderr)) =
            (descriptors.next(), descriptors.next(), descriptors.next())
        else {
            return Err(missing());
        };
        let join: Vec<OwnedFd> = descriptors.collect();
        let bytes = read_whole(body).map_err(|error| fork(&error))?;
        let ordered: OrderedCommand<'_> = postcard::from_bytes(&bytes).map_err(|_| missing())?;
        let command = Command {
            program: OsStr::from_bytes(&ordered.program).as_ref(),
            argv: &ordered.argv,
            env: &ordered.env,
            work_dir: OsStr::from_bytes(&ordered.work_dir).as_ref(),
        };
        let confinement = Confinement {
            cgroup: None,
            join: join.iter().map(AsFd::as_fd).collect(),
            open_files: ordered.open_files,
            user_processes: ordered.user_processes,
        };
        self.spawner.spawn_with(&command, &confinement, stdout.as_fd(), stderr.as_fd())
    }

    /// Sends SIGTERM and SIGCONT to each process below for which `is_meant` holds and that has not got them yet.
    fn terminate(&mut self, is_meant: impl Fn(&Process) -> bool) {
        self.terminated.terminate(|| {
            let mut found = descendants(std::process::id());
            found.retain(&is_meant);
            found
        });
    }

    fn begin_killing(&mut self) {
        let now = Instant::now();
        let killing = self.killing.get_or_insert(Killing { since: now, next: now, pause: FIRST_PAUSE });
        killing.next = now;
        killing.pause = FIRST_PAUSE;
    }

    /// Kills for a bounded time, and sets the time of the next round.
    fn kill_round(&mut self) {
        if let Some(leader) = self.leader {
            group::kill(leader);
        }
        let until = Instant::now() + CHASE;
        while !self.is_empty && Instant::now() < until {
            if !kill_once() {
                break;
            }
            self.reap();
        }
        self.reap();
        if let Some(killing) = &mut self.killing {
            let now = Instant::now();
            let most = if now - killing.since < STUBBORN_AFTER { LAST_PAUSE } else { STUBBORN_PAUSE };
            killing.pause = (killing.pause * 2).min(most);
            killing.next = now + killing.pause;
        }
    }

    fn report(&mut self, event: ReaperEvent, descriptors: &[BorrowedFd<'_>]) {
        if self.is_alone {
            return;
        }
        let report = ReaperReport { event, starts: self.starts, is_empty: self.is_empty, used: self.used };
        if send(self.socket.as_fd(), &report, descriptors).is_err() {
            self.is_alone = true;
            self.begin_killing();
        }
    }
}

/// Kills our children, then everything below. True if something was killed.
///
/// A chain of processes that each start the next and end is caught link by link, as our children: reading all processes
/// would come too late. Our children are not reaped meanwhile, so their numbers are not reused.
fn kill_once() -> bool {
    let mut hit = false;
    for process in own_children().iter().filter(|process| !process.zombie) {
        hit |= group::signal_process(process, &[Signal::KILL]);
    }
    for process in descendants(std::process::id()) {
        hit |= group::signal_process(&process, &[Signal::KILL]);
    }
    hit
}

fn read_whole(descriptor: OwnedFd) -> io::Result<Vec<u8>> {
    let mut file = File::from(descriptor);
    file.rewind()?;
    let mut bytes = Vec::with_capacity(file.metadata()?.len() as usize);
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}
