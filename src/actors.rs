//! The actors: thin shells around the pure core (architecture.md).
//!
//! [`supervisor::Supervisor`] admits, finishes and reaps jobs; a [`job::JobActor`] drives one job's machine and performs
//! its effects; a [`step::StepActor`] owns one running process; [`log_sink::LogSink`] and [`trace_sink::TraceSink`] move
//! the two feeds of a job forward. Actors carry control, not bytes: a log never passes through a mailbox.
//!
//! What every caller may rely on:
//! - A message to an actor is answered or its mailbox is closed; a closed mailbox of a job means a defect, and the
//!   supervisor ends that job as *failed: internal* (faults.md row 59).
//! - `do_send` is never used: it ignores the mailbox's bound and drops silently when the actor is gone.
//! - Handlers do not block beyond short file operations of the state folder, and three of the step's: looking its program
//!   up, making its working folder, reading its output file. Everything longer is awaited.

pub mod handle;
pub mod host;
pub mod job;
pub mod log_sink;
pub mod registry;
pub mod step;
pub mod supervisor;
pub mod trace_sink;
pub mod view;

mod admission;
mod followers;
mod keeper_port;
mod limits;
mod redact;
mod remembered;
mod sync_group;

use actix::dev::ToEnvelope;
use actix::prelude::SendError;
use actix::{Actor, Addr, Handler, Message};
use tokio::task::JoinHandle;

/// Runs what may block on a thread where it may.
fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    #[cfg(feature = "failpoints")]
    if crate::clock::is_steered() {
        return tokio::task::spawn_local(async move { work() });
    }
    tokio::task::spawn_blocking(work)
}

/// Hands over a message that must not be lost and wants no answer: at once if there is room in the mailbox, else as
/// soon as there is. A closed mailbox means the actor is done, so the message is of no more use.
fn deliver<A, M>(to: &Addr<A>, message: M)
where
    A: Actor + Handler<M>,
    A::Context: ToEnvelope<A, M>,
    M: Message + Send + 'static,
    M::Result: Send,
{
    if let Err(SendError::Full(message)) = to.try_send(message) {
        let to = to.clone();
        actix::spawn(async move { drop(to.send(message).await) });
    }
}
