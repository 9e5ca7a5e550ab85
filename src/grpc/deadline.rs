//! Ends each call with DEADLINE_EXCEEDED after the deadline that its client set with `grpc-timeout` (service.md §1.1).

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::{Request, Status};

use super::status;
use crate::failpoint;
use crate::model::{JobId, Reason, Refusal};

/// End of a call's time; `None` means never.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline(Option<Instant>);

impl Deadline {
    /// Reads the deadline of a request.
    pub(super) fn of<T>(request: &Request<T>) -> Self {
        let header = request.metadata().get("grpc-timeout").and_then(|value| value.to_str().ok());
        Self(header.and_then(parse).and_then(|left| Instant::now().checked_add(left)))
    }

    /// Runs `work`; returns `None` if the deadline comes first. Every poll checks the deadline before `work`, so that
    /// work whose turn comes too late starts nothing (service.md §3.1).
    pub(super) async fn limit<T>(self, work: impl Future<Output = T>) -> Option<T> {
        let Some(at) = self.0 else { return Some(work.await) };
        let (mut work, mut over) = (std::pin::pin!(work), std::pin::pin!(sleep_until(at)));
        std::future::poll_fn(move |cx| {
            if Instant::now() >= at {
                return Poll::Ready(None);
            }
            match work.as_mut().poll(cx) {
                Poll::Ready(done) => Poll::Ready(Some(done)),
                Poll::Pending => over.as_mut().poll(cx).map(|()| None),
            }
        })
        .await
    }

    /// Returns the answer for an expired deadline.
    pub(super) fn over() -> Refusal {
        // Clients in Go look for the words `context deadline exceeded`.
        Refusal::new(Reason::DeadlineExceeded, "context deadline exceeded: the call may be repeated")
    }
}

/// Parses `grpc-timeout`: at most eight digits and a unit.
fn parse(header: &str) -> Option<Duration> {
    let (digits, unit) = header.split_at_checked(header.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let n: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(n * 3600)),
        "M" => Some(Duration::from_secs(n * 60)),
        "S" => Some(Duration::from_secs(n)),
        "m" => Some(Duration::from_millis(n)),
        "u" => Some(Duration::from_micros(n)),
        "n" => Some(Duration::from_nanos(n)),
        _ => None,
    }
}

/// A stream that ends with DEADLINE_EXCEEDED at its deadline, or with UNAVAILABLE if the daemon stops earlier
/// (service.md §3.6).
pub(super) struct Deadlined<S> {
    messages: Pin<Box<S>>,
    id: JobId,
    over: Option<Pin<Box<Sleep>>>,
    stopping: Pin<Box<WaitForCancellationFutureOwned>>,
    done: bool,
}

impl<S> Deadlined<S> {
    /// Limits `messages` about the job `id`. `stopping` is cancelled when the daemon stops waiting for streams.
    pub(super) fn new(messages: S, id: JobId, deadline: Deadline, stopping: CancellationToken) -> Self {
        Self {
            messages: Box::pin(messages),
            id,
            over: deadline.0.map(|at| Box::pin(sleep_until(at))),
            stopping: Box::pin(stopping.cancelled_owned()),
            done: false,
        }
    }

    /// Returns `Ready` with the reason if the stream must end now.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Refusal> {
        if self.stopping.as_mut().poll(cx).is_ready() {
            let text = "the daemon is stopping; follow again when it is back";
            return Poll::Ready(Refusal::new(Reason::ShuttingDown, text));
        }
        match &mut self.over {
            Some(over) => over.as_mut().poll(cx).map(|()| Deadline::over()),
            None => Poll::Pending,
        }
    }
}

impl<T, S: Stream<Item = Result<T, Refusal>>> Stream for Deadlined<S> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.done {
            return Poll::Ready(None);
        }
        if let Poll::Ready(end) = self.poll_end(cx) {
            self.done = true;
            return Poll::Ready(Some(Err(status::of_job(self.id.as_str(), &end))));
        }
        // A panic is a defect that ends only this call.
        let next = || {
            failpoint::hit("grpc::stream");
            self.messages.as_mut().poll_next(cx)
        };
        let next = std::panic::catch_unwind(AssertUnwindSafe(next)).unwrap_or_else(|_| {
            self.done = true;
            Poll::Ready(Some(Err(status::defect())))
        });
        next.map_err(|refusal| status::of_job(self.id.as_str(), &refusal))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;

    use super::*;

    #[tokio::test]
    async fn a_stream_that_is_open_when_the_daemon_ends_says_so_once() {
        let stopping = CancellationToken::new();
        let messages = futures_util::stream::iter([Ok(1)]).chain(futures_util::stream::pending());
        let id = JobId::parse("42").unwrap();
        let mut stream = Deadlined::new(messages, id, Deadline(None), stopping.clone());
        assert_eq!(stream.next().await.unwrap().unwrap(), 1);
        stopping.cancel();
        let end = stream.next().await.unwrap().unwrap_err();
        assert_eq!(end.code(), tonic::Code::Unavailable);
        assert!(end.message().starts_with("shutting_down: "), "{}", end.message());
        assert!(stream.next().await.is_none());
    }

    #[test]
    fn timeouts_are_read_in_every_unit() {
        for (header, millis) in [("1H", 3_600_000), ("2M", 120_000), ("3S", 3_000), ("4m", 4), ("5000u", 5)] {
            assert_eq!(parse(header), Some(Duration::from_millis(millis)), "{header}");
        }
        assert_eq!(parse("7n"), Some(Duration::from_nanos(7)));
    }

    #[test]
    fn what_is_no_timeout_is_none() {
        for header in ["", "S", "1", "1x", "-1S", "123456789S", "ä"] {
            assert!(matches!(parse(header), None | Some(Duration::ZERO)), "{header}");
        }
    }
}
