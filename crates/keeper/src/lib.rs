//! The keeper: the small process that outlives the daemon (recovery.md).
//!
//! It is the parent of every step's process and the only writer of every job's log. It knows no gRPC, no YAML, no
//! network and no actor.
//!
//! ```text
//!                requests, events           ┌ job ── step ── process, pipes ─► mask ─► frame ─► log file
//!  daemon ◄────────────────► shell ◄► core ─┤
//!   (link)  replies, events  acts   decides └ job …
//! ```
//!
//! - [`protocol`] defines the messages; [`link`] is the daemon's end, and [`launch`] gets a daemon its keeper;
//! - [`core`] decides, as a value without descriptors and clock;
//! - `shell` acts: one thread, one epoll, and all that the system gives.

pub mod core;
pub mod launch;
pub mod link;
pub mod protocol;
mod shell;

pub use shell::setup::{KeeperFailure, KeeperIdentity, KeeperOptions};
pub use shell::{UNFINISHED_EVERY, run};
