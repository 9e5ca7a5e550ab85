//! The keeper: the small process that outlives the daemon (recovery.md).
//!
//! It is the parent of every step's process and the only writer of every job's log. It knows no gRPC, no YAML, no
//! network and no actor.
//!
//! ```text
//!                requests, events           ┌ job ── step ── process, pipes ─► mask ─► frame ─► log file
//!  daemon ◄──────────────► runtime ◄► core ─┤
//!   (link)  replies, events  acts   decides └ job …
//! ```
//!
//! - [`protocol`] defines the messages; [`link`] is the daemon's end, and [`launch`] gets a daemon its keeper;
//! - [`core`] decides, as a value without descriptors and clock;
//! - `runtime` acts: one thread, one epoll, and all that the system gives.

pub mod core;
pub mod launch;
pub mod link;
pub mod protocol;
mod runtime;

pub use runtime::setup::{KeeperFailure, KeeperIdentity, KeeperOptions};
pub use runtime::{UNFINISHED_EVERY, run};
