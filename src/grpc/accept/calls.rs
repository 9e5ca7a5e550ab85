//! Counts open calls, tracks clients that follow jobs, and divides a connection's memory among its calls.
//!
//! A daemon that ends when nobody uses it counts calls, because clients keep connections open. A daemon that stops
//! waits for its followers: after its stream has ended, a client asks how the job ended and finishes it.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until, timeout_at};
use tonic::body::Body;
use tower::ServiceExt;

use super::message::unescape_message;
use crate::grpc::peer::Caller;

/// Maximum memory of a connection for answers to followers. A client with many of them gets smaller pieces.
const FOLLOWERS_MEMORY: usize = 4 << 20;
/// Largest and smallest piece for a follower, in bytes.
const PIECE: (usize, usize) = (64 << 10, 4 << 10);
/// Maximum number of open calls on one connection, apart from streams. Further calls wait, because each answer is held
/// in memory until the client reads it.
const MAX_UNARY: usize = 100;
/// Number of a connection's calls that are started in a row, if it has more of them open. Then calls of other
/// connections get their turn: each connection may have a thousand.
const BEGUN_IN_A_ROW: usize = 16;
/// Methods that answer with a stream.
const STREAMS: [&str; 5] = ["FollowLogs", "FollowSteps", "Follow", "Watch", "ServerReflectionInfo"];

/// A call's share of its connection's memory for answers. Each request carries it as an extension.
#[derive(Clone, Debug, Default)]
pub(in crate::grpc) struct MemoryShare(Arc<AtomicUsize>);

impl MemoryShare {
    /// Returns the maximum size of a piece of an answer.
    pub(in crate::grpc) fn piece(&self) -> usize {
        let calls = self.0.load(Ordering::Relaxed).max(1);
        (FOLLOWERS_MEMORY / calls).clamp(PIECE.1, PIECE.0)
    }

    /// True if pieces must be smaller than the largest size.
    pub(in crate::grpc) fn is_limited(&self) -> bool {
        self.piece() < PIECE.0
    }
}

/// Largest part of a call's duration that [`CallCounters::spent`] includes: the end of a long follower must not look like
/// many short calls.
const SPENT_AT_MOST: Duration = Duration::from_secs(1);

/// Time for a client to ask how a job ended and to finish it, counted from the end of its stream.
pub(crate) const READ_TIME: Duration = Duration::from_secs(2);

/// Counters of calls begun and ended, and the followers of each connection. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct CallCounters(Arc<Counts>);

#[derive(Default)]
struct Counts {
    begun: AtomicU64,
    over: AtomicU64,
    /// Total duration of the calls that have ended, in microseconds.
    spent: AtomicU64,
    lines: Mutex<HashMap<u64, Arc<Mutex<Reading>>>>,
    next_line: AtomicU64,
    /// Notified when a follower's stream, the Finish after it, or a connection has ended.
    read: Notify,
    /// Notified when a connection, or the last open call, has ended.
    quiet: Notify,
}

/// State of the streams by which the client of one connection follows jobs.
#[derive(Default)]
struct Reading {
    /// Number of open streams.
    streams: u32,
    /// End of the last stream. Cleared when a Finish that began after it has ended.
    ended: Option<Instant>,
}

impl Reading {
    /// Returns the time until which to wait for the client.
    fn until(&self) -> Option<Instant> {
        if self.streams > 0 { Some(Instant::now() + READ_TIME) } else { self.ended.map(|at| at + READ_TIME) }
    }
}

impl CallCounters {
    /// Returns the number of calls begun so far.
    pub(crate) fn begun(&self) -> u64 {
        self.0.begun.load(Ordering::Relaxed)
    }

    /// Returns the total duration of all calls that have ended. Each counts for at most a second.
    pub(crate) fn spent(&self) -> Duration {
        Duration::from_micros(self.0.spent.load(Ordering::Relaxed))
    }

    /// True if a call is open.
    pub(crate) fn is_one_open(&self) -> bool {
        self.0.over.load(Ordering::Relaxed) < self.begun()
    }

    /// Wakes [`Self::quiet`]: a connection has ended.
    pub(super) fn connection_ended(&self) {
        self.0.quiet.notify_one();
    }

    /// Waits until a connection, or the last open call, has ended. Returns at once if one ended since the last wait.
    pub(super) async fn quiet(&self) {
        self.0.quiet.notified().await;
    }

    /// Waits until each client that follows a job has read its stream to the end and finished the job, has
    /// disconnected, or has let [`READ_TIME`] pass after the end of its stream. Returns false if `limit` came first.
    pub(crate) async fn read_to_the_end(&self, limit: Instant) -> bool {
        let read = async {
            loop {
                let mut changed = std::pin::pin!(self.0.read.notified());
                changed.as_mut().enable();
                let Some(until) = self.0.awaited_until() else { return };
                tokio::select! {
                    () = changed => {}
                    () = sleep_until(until) => {}
                }
            }
        };
        timeout_at(limit, read).await.is_ok()
    }

    /// Wraps the service of one connection so that its calls are counted.
    pub(super) fn count<S>(&self, service: S) -> Counted<S> {
        let number = self.0.next_line.fetch_add(1, Ordering::Relaxed);
        let reading = Arc::<Mutex<Reading>>::default();
        self.0.lines.lock().insert(number, Arc::clone(&reading));
        let line = Arc::new(CountedConnection {
            number,
            reading,
            counts: Arc::clone(&self.0),
            share: MemoryShare::default(),
        });
        Counted {
            service,
            line,
            turns: Arc::new(Semaphore::new(MAX_UNARY)),
            beginnings: Arc::new(Semaphore::new(BEGUN_IN_A_ROW)),
            caller: None,
        }
    }
}

impl Counts {
    /// Returns the time until which to wait for clients that may not know the end; `None` if there are none.
    fn awaited_until(&self) -> Option<Instant> {
        let now = Instant::now();
        let lines = self.lines.lock();
        lines.values().filter_map(|reading| reading.lock().until()).filter(|until| *until > now).max()
    }
}

/// One connection; dropped when it ends.
struct CountedConnection {
    number: u64,
    reading: Arc<Mutex<Reading>>,
    counts: Arc<Counts>,
    share: MemoryShare,
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.counts.lines.lock().remove(&self.number);
        self.counts.read.notify_waiters();
    }
}

impl CountedConnection {
    fn begin(self: &Arc<Self>, path: &str) -> CountedCall {
        self.counts.begun.fetch_add(1, Ordering::Relaxed);
        self.share.0.fetch_add(1, Ordering::Relaxed);
        let method = path.rsplit('/').next().unwrap_or_default();
        let mut reading = self.reading.lock();
        let kind = match method {
            "Finish" | "Close" => CallKind::Finish(reading.ended),
            _ if method.starts_with("Follow") => CallKind::Stream,
            _ => CallKind::Other,
        };
        reading.streams += u32::from(matches!(kind, CallKind::Stream));
        drop(reading);
        CountedCall { kind, begun: Instant::now(), line: Arc::clone(self) }
    }
}

/// Kind of a call.
enum CallKind {
    /// A stream that follows a job.
    Stream,
    /// The last call for a job, with the end of the last stream of its connection when the call began.
    Finish(Option<Instant>),
    /// Any other call.
    Other,
}

/// One call, until its answer is sent or abandoned.
struct CountedCall {
    kind: CallKind,
    begun: Instant,
    line: Arc<CountedConnection>,
}

impl Drop for CountedCall {
    fn drop(&mut self) {
        let spent = self.begun.elapsed().min(SPENT_AT_MOST).as_micros();
        self.line.counts.spent.fetch_add(u64::try_from(spent).unwrap_or(u64::MAX), Ordering::Relaxed);
        let over = self.line.counts.over.fetch_add(1, Ordering::Relaxed) + 1;
        if over == self.line.counts.begun.load(Ordering::Relaxed) {
            self.line.counts.quiet.notify_one();
        }
        self.line.share.0.fetch_sub(1, Ordering::Relaxed);
        let mut reading = self.line.reading.lock();
        match self.kind {
            CallKind::Stream => {
                reading.streams -= 1;
                reading.ended = Some(Instant::now());
            }
            CallKind::Finish(Some(ended)) if reading.ended == Some(ended) => reading.ended = None,
            CallKind::Finish(_) | CallKind::Other => return,
        }
        drop(reading);
        self.line.counts.read.notify_waiters();
    }
}

/// The service that [`CallCounters::count`] returns.
#[derive(Clone)]
pub(super) struct Counted<S> {
    service: S,
    line: Arc<CountedConnection>,
    turns: Arc<Semaphore>,
    beginnings: Arc<Semaphore>,
    caller: Option<Caller>,
}

impl<S> Counted<S> {
    /// Attaches the caller, which every request then carries as an extension.
    pub(super) fn of(self, caller: Option<Caller>) -> Self {
        Self { caller, ..self }
    }

    /// Takes the permit of a call. `Ok(None)`: a stream needs none. `Err`: wait for the semaphore.
    fn turn<B>(&self, request: &Request<B>) -> Result<Option<OwnedSemaphorePermit>, Arc<Semaphore>> {
        let method = request.uri().path().rsplit('/').next().unwrap_or_default();
        if STREAMS.contains(&method) {
            return Ok(None);
        }
        let turn = Arc::clone(&self.turns).try_acquire_owned();
        turn.map(Some).map_err(|_| Arc::clone(&self.turns))
    }

    /// Returns the semaphore for starting calls, if the connection has many open calls.
    fn beginnings(&self) -> Option<Arc<Semaphore>> {
        let calls = self.line.share.0.load(Ordering::Relaxed);
        (calls > BEGUN_IN_A_ROW).then(|| Arc::clone(&self.beginnings))
    }
}

impl<S, B> tower::Service<Request<B>> for Counted<S>
where
    S: tower::Service<Request<B>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send,
    B: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let call = self.line.begin(request.uri().path());
        request.extensions_mut().insert(self.line.share.clone());
        if let Some(caller) = self.caller {
            request.extensions_mut().insert(caller);
        }
        let beginnings = self.beginnings();
        match self.turn(&request) {
            Ok(turn) => {
                let answer = self.service.call(request);
                Box::pin(async move {
                    let answer = begin(beginnings, answer).await?;
                    Ok(Answer::counted(answer, call, turn))
                })
            }
            Err(turns) => {
                let service = self.service.clone();
                Box::pin(async move {
                    // The semaphore is never closed.
                    let turn = turns.acquire_owned().await.ok();
                    let answer = begin(beginnings, service.oneshot(request)).await?;
                    Ok(Answer::counted(answer, call, turn))
                })
            }
        }
    }
}

/// Runs `work`. With `beginnings`, its first poll takes a permit; other ready tasks run before it is returned.
async fn begin<T>(beginnings: Option<Arc<Semaphore>>, work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    let Some(beginnings) = beginnings else { return work.await };
    // The semaphore is never closed.
    let beginning = beginnings.acquire_owned().await.ok();
    let first = std::future::poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx))).await;
    tokio::task::yield_now().await;
    drop(beginning);
    match first {
        Poll::Ready(done) => done,
        Poll::Pending => work.await,
    }
}

/// The body of an answer. It keeps the call open and its permit taken until it is dropped.
struct Answer {
    body: Body,
    _call: CountedCall,
    _turn: Option<OwnedSemaphorePermit>,
}

impl Answer {
    fn counted(
        mut answer: Response<Body>,
        call: CountedCall,
        turn: Option<OwnedSemaphorePermit>,
    ) -> Response<Body> {
        unescape_message(answer.headers_mut());
        answer.map(|body| Body::new(Self { body, _call: call, _turn: turn }))
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        let mut polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &mut polled
            && let Some(trailers) = frame.trailers_mut()
        {
            unescape_message(trailers);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
