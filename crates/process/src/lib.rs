//! Processes of the operating system: starts a step, tells its processes from all others, ends them.
//!
//! - [`command`] looks a program up, as the daemon does before it asks for a spawn; [`at_hand`] looks at files without
//!   waiting;
//! - [`access`] tells what this process may do with a file;
//! - [`given`] tells what the kernel takes as arguments and environment of a process;
//! - [`spawn`] starts a process in a group of its own, with two pipes and nothing else;
//! - [`group`] sends signals to processes that are certainly ours, [`terminated`] asks each of them once to end;
//! - [`cgroup`] makes a control group for each job if possible, [`freezer`] thaws what a step has frozen;
//! - [`limiter`] holds a job to its limits, by the [`controllers`] of control groups and process by process;
//! - [`reaper`] holds the processes of a job together where no control group can be made;
//! - [`sweep`] finds processes in `/proc`, [`remains`] ends those of a dead keeper;
//! - [`ancestry`] tells whether a process is a descendant of another, [`peer_handle`] which process connected a socket;
//! - [`worker`] starts the process that fetches, and confines it;
//! - [`tool`] runs `git` and hooks for a stage of a CI job;
//! - [`connector`] starts the program that connects a client with a daemon elsewhere;
//! - [`companion`] runs the command beside the daemon, [`host`] protects the daemon's own process;
//! - [`detached`] starts a daemon that outlives its starter, below a watcher;
//! - [`parent`] tells when the process that started this one has ended;
//! - [`children`] tells the daemon's own children from orphans, and reaps those;
//! - `sys` is the only module of the project with `unsafe` code: the few system calls no safe library offers.
//!
//! The crate may use `model` only: nothing here knows logs, the state folder, or the protocol of daemon and keeper, and
//! there is no asynchronous runtime. Functions that the keeper's loop calls wait for no
//! process: they return at once, and the loop calls again. Only file systems can hold them up: a start lasts until the
//! kernel has entered the working folder and loaded the program. The daemon has looked at both before
//! (docs/operate/operation.md, a file system that hangs).

pub mod access;
pub mod again;
pub mod ancestry;
pub mod at_hand;
pub mod cgroup;
pub mod children;
pub mod command;
pub mod companion;
pub mod connector;
pub mod controllers;
pub mod detached;
pub mod freezer;

pub mod git;
pub mod given;
pub mod group;
pub mod host;
pub mod limiter;
pub mod parent;
pub mod reaper;
pub mod remains;
pub mod spawn;
pub mod sweep;
mod sys;
pub mod terminated;
pub mod tool;
pub mod worker;

pub use sys::{
    EACH_THREAD_GIVES_BACK, PeerHandle, Signals, WipingAllocator, bound_free_memory, close_on_exec_from,
    give_back_idle_memory, give_back_memory, ignore_file_size_signal, ignore_signals, inherited_descriptor,
    is_signal_ignored, peek_exited_child, peer_handle, quieten_standard_streams, unread_bytes,
};
