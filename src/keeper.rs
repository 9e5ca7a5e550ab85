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
//! - [`protocol`] defines the messages; [`link`] is the daemon's end;
//! - `server` is the event loop: one thread, one epoll; `peer` decides who may connect; `connection` is the socket;
//!   `requests` performs requests;
//! - `job`, `step` and `closing` are the life of one job; `record` holds its events, `containment` its processes;
//!   `leftover` describes the processes that its steps leave;
//! - `output` masks and frames, `log_file` writes, `unfinished` reports lines without an end; `compile` prepares large sets of phrases on other threads;
//! - `disk` syncs while no daemon does;
//! - `setup` prepares the process; `farewell` ends it when no daemon came back.

mod closing;
mod compile;
mod connection;
mod containment;
mod disk;
mod farewell;
mod job;
pub mod launch;
mod leftover;
pub mod link;
mod log_file;
mod output;
mod peer;
mod pipe;
pub mod protocol;
mod record;
mod requests;
mod server;
mod setup;
mod shared;
mod step;
mod unfinished;

pub use server::run;
pub use unfinished::UNFINISHED_EVERY;

pub use setup::{KeeperFailure, KeeperIdentity, KeeperOptions};
