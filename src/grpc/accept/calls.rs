//! Calls under way: a daemon that is to end when nobody uses it counts them, not connections, which clients keep open.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tonic::body::Body;

/// How many there were, and how many are over. Clones share it.
#[derive(Clone, Default)]
pub struct Calls(Arc<Counts>);

#[derive(Default)]
struct Counts {
    begun: AtomicU64,
    over: AtomicU64,
}

impl Calls {
    /// Calls begun so far.
    pub fn begun(&self) -> u64 {
        self.0.begun.load(Ordering::Relaxed)
    }

    /// Whether one is under way.
    pub fn is_one_open(&self) -> bool {
        self.0.over.load(Ordering::Relaxed) < self.begun()
    }

    /// `service` whose calls are counted.
    pub(super) fn count<S>(&self, service: S) -> Counted<S> {
        Counted { service, calls: self.clone() }
    }

    fn begin(&self) -> Call {
        self.0.begun.fetch_add(1, Ordering::Relaxed);
        Call(Arc::clone(&self.0))
    }
}

/// One call, until its answer has been sent or given up.
struct Call(Arc<Counts>);

impl Drop for Call {
    fn drop(&mut self) {
        self.0.over.fetch_add(1, Ordering::Relaxed);
    }
}

/// See [`Calls::count`].
#[derive(Clone)]
pub(super) struct Counted<S> {
    service: S,
    calls: Calls,
}

impl<S, B> tower::Service<Request<B>> for Counted<S>
where
    S: tower::Service<Request<B>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let call = self.calls.begin();
        let answer = self.service.call(request);
        Box::pin(async move { Ok(answer.await?.map(|body| Body::new(Answer { body, _call: call }))) })
    }
}

/// The body of an answer.
struct Answer {
    body: Body,
    _call: Call,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn a_call_is_open_until_its_answer_is_sent_or_given_up() {
        let calls = Calls::default();
        let answer = || async { Ok::<_, Infallible>(Response::new(Body::new("x".to_owned()))) };
        let service = || calls.count(tower::service_fn(move |_: Request<()>| answer()));
        assert!(!calls.is_one_open());
        let answered = service().oneshot(Request::new(())).await.unwrap();
        assert!(calls.is_one_open());
        drop(answered);
        assert!(!calls.is_one_open());
        drop(service().oneshot(Request::new(())));
        assert_eq!((calls.is_one_open(), calls.begun()), (false, 1));
    }
}
