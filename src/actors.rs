//! The actors: a thin layer that performs what the pure core decides (architecture.md).
//!
//! [`supervisor::Supervisor`] admits, finishes and reaps jobs. A [`job::JobActor`] drives one job's machine and
//! performs its effects. A [`step::StepActor`] owns one running process. [`log_sink::LogSink`] and
//! [`trace_sink::TraceSink`] advance the two feeds of a job. Actors carry control, not bytes: a log never passes
//! through a mailbox.
//!
//! Every caller may rely on this:
//! - Every message is answered, unless the mailbox is closed. A closed mailbox of a job means a defect: the supervisor
//!   ends that job as *failed: internal* (faults.md row 59).
//! - `do_send` is never used: it ignores the mailbox's bound and drops silently when the actor is gone.
//! - Handlers block only for short file operations of the state folder and of a step. Work that can take more than a
//!   millisecond (evaluation, masking, large files) runs on other threads ([`crate::threads`]) and is awaited.

pub mod handle;
pub mod host;
pub(crate) mod job;
pub(crate) mod left_over;
pub mod log_sink;
pub(crate) mod registry;
pub(crate) mod step;
pub mod supervisor;
pub mod trace_sink;
pub mod view;

mod admission;
mod followers;
mod keeper_port;
mod labels;
mod limits;
mod redact;
mod remembered;
mod sync_group;
mod watched;

use actix::dev::ToEnvelope;
use actix::prelude::SendError;
use actix::{Actor, Addr, Handler, Message};

/// Delivers a message that must not be lost and needs no answer: at once if the mailbox has room, else as soon as it
/// has. With a closed mailbox the actor is done, and the message is dropped.
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
