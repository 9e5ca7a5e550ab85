//! Bounds the memory of incoming requests. A message is checked as soon as its length is known, before memory is
//! allocated for it (faults.md row 57).

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

use super::length_headers::LengthHeaders;
use super::server::MAX_REQUEST;
use super::status;
use crate::actors::handle::LARGE_REQUEST;
use crate::model::{Reason, Refusal};

/// Room for all incoming large requests together, in KiB: two of the largest.
const ROOM: usize = 2 * MAX_REQUEST / KIB;
const KIB: usize = 1 << 10;

/// Time without a byte after which an incoming request is abandoned: others may need its room.
const STALL: Duration = Duration::from_secs(30);

/// Delay after which a client may repeat a request that found no room.
const AGAIN: Duration = Duration::from_secs(1);

/// Length of flag and length field before each message of gRPC, in bytes.
const PREFIX_LEN: usize = 5;

/// A service with bounded requests. Clones share the room.
#[derive(Clone)]
pub(super) struct Intake<S> {
    service: S,
    room: Arc<Semaphore>,
}

impl<S> Intake<S> {
    pub(super) fn new(service: S) -> Self {
        Self { service, room: Arc::new(Semaphore::new(ROOM)) }
    }

    /// Wraps another service that shares the room of this one.
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
        self.service.call(request.map(|body| Body::new(BoundedBody::new(body, room))))
    }
}

/// The body of an incoming request.
struct BoundedBody {
    body: Body,
    room: Arc<Semaphore>,
    messages: LengthHeaders<PREFIX_LEN>,
    /// The room reserved for a large message.
    held: Option<OwnedSemaphorePermit>,
    /// Timer that runs while no bytes come.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl BoundedBody {
    fn new(body: Body, room: Arc<Semaphore>) -> Self {
        Self { body, room, messages: LengthHeaders::new(), held: None, stalled: None }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        self.messages.read(bytes, |[flag, length @ ..]| {
            if flag != 0 {
                return Err(malformed("its message is marked as compressed, but no encoding is named"));
            }
            let length = u32::from_be_bytes(length) as usize;
            if length > MAX_REQUEST {
                let text = format!("the request has {length} bytes, at most {MAX_REQUEST} are allowed");
                return Err(Refusal::new(Reason::TooLarge, text));
            }
            if length > LARGE_REQUEST {
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

    /// Called while no bytes come. Ready with the refusal after [`STALL`].
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

impl HttpBody for BoundedBody {
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
        // A body cut short must be polled again to be detected.
        !self.messages.is_within() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
