//! The actors: a thin layer that performs what the pure core decides (architecture.md).
//!
//! [`supervisor::Supervisor`] admits, finishes and reaps jobs. A [`job::JobActor`] drives one job's machine and
//! performs its effects. A [`step::StepActor`] owns one running process. [`log_sink::LogSink`] and
//! [`trace_sink::TraceSink`] advance the two feeds of a job. Actors carry control, not bytes: a log never passes
//! through a mailbox. What they say to each other is in [`messages`].
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
pub mod stored;
pub mod supervisor;
pub mod trace_sink;
pub mod view;

mod admission;
mod context;
mod followers;
mod keeper_port;
mod labels;
mod limits;
mod messages;
mod redact;
mod remembered;
mod spec;
mod sync_group;
mod watched;

use actix::dev::ToEnvelope;
use actix::prelude::SendError;
use actix::{Actor, Addr, Handler, Message, Recipient};

/// Address of an actor that takes messages of type `M`.
trait Address<M: Message>: Clone + 'static {
    /// Puts the message into the mailbox if that has room.
    fn offer(&self, message: M) -> Result<(), SendError<M>>;

    /// Puts the message into the mailbox as soon as that has room.
    fn wait_and_send(self, message: M) -> impl Future<Output = ()>;
}

impl<A, M> Address<M> for Addr<A>
where
    A: Actor + Handler<M>,
    A::Context: ToEnvelope<A, M>,
    M: Message + Send + 'static,
    M::Result: Send,
{
    fn offer(&self, message: M) -> Result<(), SendError<M>> {
        self.try_send(message)
    }

    async fn wait_and_send(self, message: M) {
        drop(self.send(message).await);
    }
}

impl<M> Address<M> for Recipient<M>
where
    M: Message + Send + 'static,
    M::Result: Send,
{
    fn offer(&self, message: M) -> Result<(), SendError<M>> {
        self.try_send(message)
    }

    async fn wait_and_send(self, message: M) {
        drop(self.send(message).await);
    }
}

/// Delivers a message that must not be lost and needs no answer: at once if the mailbox has room, else as soon as it
/// has. With a closed mailbox the actor is done, and the message is dropped.
fn deliver<M: Message + 'static>(to: &impl Address<M>, message: M) {
    if let Err(SendError::Full(message)) = to.offer(message) {
        actix::spawn(to.clone().wait_and_send(message));
    }
}
