//! What requests may take while they come in: looked at as soon as a message says how long it is, before anything is
//! set aside for it (faults.md row 57).

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;

use super::heads::Heads;
use super::server::MAX_REQUEST;
use super::status;
use crate::actors::handle::LARGE_REQUEST;
use crate::model::{Reason, Refusal};

/// Room for all large requests that are coming in, in KiB: two of the largest.
const ROOM: usize = 2 * MAX_REQUEST / KIB;
const KIB: usize = 1 << 10;

/// A request of which nothing has come for so long is given up: others may need its room.
const STALL: Duration = Duration::from_secs(30);

/// When to send a request again that found no room.
const AGAIN: Duration = Duration::from_secs(1);

/// Flag and length before each message of gRPC.
const PREFIX_LEN: usize = 5;

/// A service whose requests come in within bounds. Clones share the room.
#[derive(Clone)]
pub(super) struct Intake<S> {
    service: S,
    room: Arc<Semaphore>,
}

impl<S> Intake<S> {
    pub(super) fn new(service: S) -> Self {
        Self { service, room: Arc::new(Semaphore::new(ROOM)) }
    }

    /// Another service that shares the room of this one.
    pub(super) fn beside<T>(&self, service: T) -> Intake<T> {
        Intake { service, room: Arc::clone(&self.room) }
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
        let room = Arc::clone(&self.room);
        self.service.call(request.map(|body| Body::new(Incoming::new(body, room))))
    }
}

/// A request on its way in.
struct Incoming {
    body: Body,
    room: Arc<Semaphore>,
    messages: Heads<PREFIX_LEN>,
    /// The room of a large message.
    held: Option<OwnedSemaphorePermit>,
    /// Runs while nothing comes.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Incoming {
    fn new(body: Body, room: Arc<Semaphore>) -> Self {
        Self { body, room, messages: Heads::new(), held: None, stalled: None }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        self.messages.read(bytes, |[flag, length @ ..]| {
            if flag != 0 {
                return Err(malformed("its message is marked as compressed, but no encoding is named"));
            }
            let length = u32::from_be_bytes(length) as usize;
            // What is too long is refused by the library at this same moment.
            if length > LARGE_REQUEST && length <= MAX_REQUEST {
                let held = Arc::clone(&self.room).try_acquire_many_owned(length.div_ceil(KIB) as u32);
                self.held = Some(held.map_err(|_| {
                    let text =
                        "too many large requests are coming in: send this one again when they are through";
                    Refusal::for_now(Reason::QueueFull, text, AGAIN)
                })?);
            }
            Ok(length)
        })
    }

    /// Nothing comes at the moment.
    fn poll_stall(&mut self, cx: &mut Context<'_>) -> Poll<Refusal> {
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(STALL)));
        stalled.as_mut().poll(cx).map(|()| {
            let text = format!("nothing of this request came for {STALL:?}: send it again");
            Refusal::new(Reason::DeadlineExceeded, text)
        })
    }
}

fn malformed(text: &str) -> Refusal {
    Refusal::new(Reason::MalformedRequest, text)
}

impl HttpBody for Incoming {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let checked = match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Pending => return self.poll_stall(cx).map(|over| Some(Err(status::status(&over)))),
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(stalled) = &mut self.stalled {
                    stalled.as_mut().reset(Instant::now() + STALL);
                }
                self.take(frame.data_ref().map_or(&[], |data| data)).map(|()| Some(Ok(frame)))
            }
            Poll::Ready(None) if self.messages.is_within() => Err(malformed("it ends within its message")),
            Poll::Ready(end) => Ok(end),
        };
        Poll::Ready(checked.unwrap_or_else(|refusal| Some(Err(status::status(&refusal)))))
    }

    fn is_end_stream(&self) -> bool {
        // A body that ends too early must be asked, to be found out.
        !self.messages.is_within() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
