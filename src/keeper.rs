//! The keeper: the small process that outlives the daemon (recovery.md).
//!
//! It is the parent of every step's process and the only writer of every job's log. It knows no gRPC, no YAML, no
//! network and no actor.
//!
//! ```text
//!                requests                 ┌ job ── step ── process, pipes ─► mask ─► frame ─► log file
//!  daemon ◄────────────────► server loop ─┤
//!   (link)  replies, events   (one thread) └ job …
//! ```
//!
//! - [`protocol`] is what both ends say, [`link`] the daemon's end;
//! - `server` is the event loop: one thread, one epoll; `connection` its socket, `requests` what it is asked;
//! - `job`, `step`, `closing` are the life of one job, `containment` its processes;
//! - `output` masks and frames, `log_file` writes; `compile` prepares large sets of phrases on a thread of its own;
//! - `disk` brings what was written to the disk while no daemon does;
//! - `setup` makes the process what it must be, `farewell` ends it when no daemon came back.

mod closing;
mod compile;
mod connection;
mod containment;
mod disk;
mod farewell;
mod job;
pub mod launch;
pub mod link;
mod log_file;
mod output;
pub mod protocol;
mod requests;
mod server;
mod setup;
mod shared;
mod step;

pub use server::run;
pub use setup::{KeeperFailure, KeeperIdentity, KeeperOptions};
