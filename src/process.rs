//! Processes of the operating system: starting a step, telling its processes from all others, ending them.
//!
//! - [`command`] looks a program up, as the daemon does before it asks for a spawn;
//! - [`spawn`] starts a process in a group of its own, with two pipes and nothing else;
//! - [`group`] sends signals to what is certainly ours;
//! - [`cgroup`] makes a control group for each job where that is possible;
//! - [`limiter`] holds a job to its limits, by the [`controllers`] of control groups and process by process;
//! - [`sweep`] finds the processes of a job in `/proc` where it is not, [`remains`] ends those of a dead keeper;
//! - [`worker`] starts the process that fetches, and confines it;
//! - [`connector`] starts the program that connects a client with a daemon elsewhere;
//! - [`detached`] starts a daemon that outlives its starter;
//! - [`children`] tells the daemon's own children from orphans, and reaps those;
//! - `sys` is the only module of the project with `unsafe` code: the few system calls no safe library offers.
//!
//! Nothing here knows jobs, logs or messages, and nothing waits for processes: every function returns at once, the keeper's
//! loop calls again. Only file systems can hold a call up: a start takes as long as the kernel needs to enter the working
//! folder and to load the program (docs/operation.md, a file system that hangs).

pub mod cgroup;
pub mod children;
pub mod command;
pub mod companion;
pub mod connector;
pub mod controllers;
pub mod detached;
pub mod group;
pub mod host;
pub mod limiter;
pub mod remains;
pub mod spawn;
pub mod sweep;
mod sys;
pub mod worker;

pub use sys::{
    Signals, close_on_exec_from, give_back_memory, ignore_file_size_signal, ignore_signals,
    inherited_descriptor, is_signal_ignored, peek_exited_child, quieten_standard_streams,
};
