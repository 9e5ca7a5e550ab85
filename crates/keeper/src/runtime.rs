//! The part of the keeper that acts: one thread and one epoll, its connection, the processes, pipes and logs of its jobs.
//!
//! The runtime decides nothing about jobs: it tells the [core](super::core) what it observed, and performs what that
//! asks for.
//!
//! - `server` is the event loop, and ends the keeper (`farewell`); `observe` and `perform` are the border to the
//!   core; `connection` is the socket; `peer` decides who may connect;
//! - `job` is what is kept beside each job: `processes` with their `containment`, `leftover` for those that steps leave,
//!   `escaped` and `spans` for those that left their group; `output` with its `pipe`s, `masking`, `log_file` and the
//!   `unfinished` lines;
//! - `shared` is what all jobs use; `strays` are processes that no job holds; `compile` prepares large sets of phrases
//!   on other threads;
//! - `disk` syncs while no daemon does; `rest` says when memory is given back;
//! - `setup` prepares the process.

mod compile;
mod connection;
mod containment;
mod disk;
mod escaped;
mod job;
mod leftover;
mod log_file;
mod masking;
mod observe;
mod output;
mod peer;
mod perform;
mod pipe;
mod places;
mod processes;
mod rest;
mod server;
pub(crate) mod setup;
mod shared;
mod spans;
mod strays;
mod thaws;
mod tree;

pub use output::UNFINISHED_EVERY;
pub use server::run;
