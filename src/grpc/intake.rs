//! Bounds the memory and the time of incoming requests. A message is checked as soon as its length is known. Memory is
//! allocated for bytes that have come, never for those that a length announces (faults.md rows 57, 105).

mod pieces;

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;

use self::pieces::Pieces;
use super::length_headers::LengthHeaders;
use super::sizes::{LARGE_REQUEST, MAX_REQUEST};
use super::status;
use crate::model::{Reason, Refusal};

/// Room for all incoming large requests together, in KiB: two of the largest.
const ROOM: usize = 2 * MAX_REQUEST / KIB;
const KIB: usize = 1 << 10;

/// Maximum time that a request may fall behind [`LEAST_RATE`], and so the longest pause: others may need its room.
const PATIENCE: Duration = Duration::from_secs(30);

/// Least number of bytes of a request in a second. A link of half a megabit is faster, also for a client that reaches the
/// daemon through ssh; the largest request takes nine minutes at this rate.
const LEAST_RATE: u32 = 64 << 10;

/// Delay after which a client may repeat a request that found no room.
const AGAIN: Duration = Duration::from_secs(1);

/// Length of flag and length field before each message of gRPC, in bytes.
const PREFIX_LEN: usize = 5;

/// The room for incoming large requests. Clones share it.
#[derive(Clone)]
pub(super) struct Room(Arc<Semaphore>);

impl Default for Room {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(ROOM)))
    }
}

/// Number of messages in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    One,
    /// One or more, with pauses of any length between them.
    Several,
}

/// A service with bounded requests.
#[derive(Clone)]
pub(super) struct Intake<S> {
    service: S,
    room: Room,
    expected: Expected,
}

impl<S> Intake<S> {
    /// Wraps a service whose requests have one message each.
    pub(super) fn new(service: S, room: &Room) -> Self {
        Self { service, room: room.clone(), expected: Expected::One }
    }

    /// Wraps a service whose requests are streams.
    pub(super) fn of_streams(service: S, room: &Room) -> Self {
        Self { expected: Expected::Several, ..Self::new(service, room) }
    }
}

impl<S: NamedService> NamedService for Intake<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> tower::Service<Request<Body>> for Intake<S>
where
    S: tower::Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Future,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (room, expected) = (self.room.clone(), self.expected);
        self.service.call(request.map(|body| Body::new(BoundedBody::new(body, room, expected))))
    }
}

/// The body of an incoming request.
struct BoundedBody<B> {
    body: B,
    messages: LengthHeaders<PREFIX_LEN>,
    expected: Expected,
    /// Number of messages that have begun.
    begun: usize,
    /// True if the last message that has begun is a large one.
    is_large: bool,
    /// The bytes of a large message, until it is complete: the library allocates memory for the whole message when it
    /// sees the length.
    pieces: Pieces,
    room: Room,
    /// The part of the room that `pieces` takes.
    held: Option<OwnedSemaphorePermit>,
    /// Time at which the request is abandoned, unless bytes come.
    due: Instant,
    /// Timer that runs while no bytes come.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<B> BoundedBody<B> {
    fn new(body: B, room: Room, expected: Expected) -> Self {
        Self {
            body,
            messages: LengthHeaders::new(),
            expected,
            begun: 0,
            is_large: false,
            pieces: Pieces::default(),
            room,
            held: None,
            due: Instant::now() + PATIENCE,
            timer: None,
        }
    }

    /// Checks the bytes that have come. Returns them if they can be passed on at once.
    fn take(&mut self, bytes: Bytes) -> Result<Option<Bytes>, Refusal> {
        self.read_lengths(&bytes)?;
        self.credit(bytes.len());
        if self.pieces.is_empty() && !self.is_incomplete() {
            return Ok(Some(bytes));
        }
        self.hold(&bytes)?;
        Ok(None)
    }

    /// True if a large message has begun and is not complete.
    const fn is_incomplete(&self) -> bool {
        self.is_large && self.messages.is_within()
    }

    fn read_lengths(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        let (expected, begun, is_large) = (self.expected, &mut self.begun, &mut self.is_large);
        self.messages.read(bytes, |[flag, length @ ..]| {
            *begun += 1;
            if expected == Expected::One && *begun > 1 {
                return Err(malformed("it has more than one message"));
            }
            if flag != 0 {
                return Err(malformed("its message is marked as compressed, but no encoding is named"));
            }
            let length = u32::from_be_bytes(length) as usize;
            if length > MAX_REQUEST {
                let text = format!("the request has {length} bytes, at most {MAX_REQUEST} are allowed");
                return Err(Refusal::new(Reason::TooLarge, text));
            }
            *is_large = length > LARGE_REQUEST;
            Ok(length)
        })
    }

    /// Gives the client time for the bytes that have come. Bytes that come faster than [`LEAST_RATE`] earn no more than
    /// [`PATIENCE`].
    fn credit(&mut self, count: usize) {
        let earned = Duration::from_secs(count as u64) / LEAST_RATE;
        self.due = (self.due + earned).min(Instant::now() + PATIENCE);
    }

    /// Keeps bytes of a large message, within the room of all.
    fn hold(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        let held = self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let missing = (self.pieces.len() + bytes.len()).div_ceil(KIB).saturating_sub(held);
        let more = Arc::clone(&self.room.0).try_acquire_many_owned(missing as u32).map_err(|_| {
            let text = "too many large requests are coming in: send this one again when they are through";
            Refusal::for_now(Reason::QueueFull, text, AGAIN)
        })?;
        match &mut self.held {
            Some(held) => held.merge(more),
            None => self.held = Some(more),
        }
        self.pieces.push(bytes);
        Ok(())
    }

    /// Called while no bytes come. Ready with the refusal when the client is too slow.
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<Refusal> {
        if self.expected == Expected::Several && !self.messages.is_within() {
            self.due = Instant::now() + PATIENCE;
            return Poll::Pending;
        }
        let due = self.due;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
        if timer.deadline() != due {
            timer.as_mut().reset(due);
        }
        timer.as_mut().poll(cx).map(|()| {
            let text = format!(
                "this request came too slowly: after {PATIENCE:?} at least {} KiB must come in a second; send it again",
                LEAST_RATE as usize / KIB
            );
            Refusal::new(Reason::DeadlineExceeded, text)
        })
    }

    /// Checks the end of the body.
    fn end(&self) -> Result<(), Refusal> {
        if self.messages.is_within() {
            return Err(malformed("it ends within its message"));
        }
        if self.begun == 0 {
            return Err(malformed("it has no message: an empty message is five bytes of zero"));
        }
        Ok(())
    }
}

impl<B: HttpBody<Data = Bytes, Error = Status> + Unpin> BoundedBody<B> {
    /// Returns the next bytes or trailers to pass on, or `None` at the end.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Frame<Bytes>>, Status>> {
        loop {
            if !self.is_incomplete()
                && let Some(piece) = self.pieces.pop()
            {
                return Poll::Ready(Ok(Some(Frame::data(piece))));
            }
            let polled = Pin::new(&mut self.body).poll_frame(cx);
            let Poll::Ready(frame) = polled else {
                return Poll::Ready(Err(status::status(&ready!(self.poll_late(cx)))));
            };
            let Some(frame) = frame.transpose()? else {
                self.end().map_err(|refusal| status::status(&refusal))?;
                return Poll::Ready(Ok(None));
            };
            match frame.into_data() {
                Ok(bytes) => {
                    let bytes = self.take(bytes).map_err(|refusal| status::status(&refusal))?;
                    if let Some(bytes) = bytes {
                        return Poll::Ready(Ok(Some(Frame::data(bytes))));
                    }
                }
                Err(trailers) => return Poll::Ready(Ok(Some(trailers))),
            }
        }
    }
}

fn malformed(text: &str) -> Refusal {
    Refusal::new(Reason::MalformedRequest, text)
}

impl<B: HttpBody<Data = Bytes, Error = Status> + Unpin> HttpBody for BoundedBody<B> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.poll_next(cx).map(Result::transpose)
    }

    fn is_end_stream(&self) -> bool {
        // A body that is cut short, or empty, must be polled again to be detected.
        self.end().is_ok() && self.pieces.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
