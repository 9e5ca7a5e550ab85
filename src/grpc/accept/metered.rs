//! The stream of one connection: filters its bytes, counts its frames, and limits its pace.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;

use super::budget::{FrameBudget, Pressure};
use super::incoming::{IncomingFrames, flag, kind};
use super::outgoing::OutgoingFrames;
use super::progress::{Patience, Progress};
use super::socket::ClientSocket;

/// Bytes read from one connection before others get their turn. All share a thread, and the HTTP/2 library reads as
/// long as there is input: a stream of PINGs would occupy it for tens of milliseconds.
const TURN: usize = 32 << 10;

/// Interval between checks of the budget of a client in debt.
const IN_DEBT: Duration = Duration::from_millis(10);

/// Interval between reads from a flooding client: its open calls may still need them.
const FLOODING: Duration = Duration::from_millis(100);

/// Time for the open calls of a flooding client. Complete requests without an answer extend it.
const FLOOD_CALLS_TIME: Duration = Duration::from_secs(3);

/// Patience with a flooding client.
pub(super) const FLOOD_PATIENCE: Patience =
    Patience { stalled: Duration::from_secs(1), ping: Duration::from_secs(1) };

/// Events of a connection, each reported once, and the request of its owner to check it.
#[derive(Clone, Debug, Default)]
pub(super) struct Events {
    /// The HTTP/2 preface was received.
    pub(super) spoke: CancellationToken,
    /// The client has made a call.
    pub(super) called: CancellationToken,
    /// The client floods the daemon. The library must end the connection gracefully; this module tells the client why.
    pub(super) flooded: CancellationToken,
    /// The client counts as dead: the next use of the stream fails.
    pub(super) died: CancellationToken,
    /// Set by the connection's owner at intervals: the next use of the stream checks its progress.
    pub(super) is_look_due: Arc<AtomicBool>,
}

/// The stream of one connection between the socket and the HTTP/2 library.
pub(super) struct MeteredStream {
    stream: ClientSocket,
    incoming: IncomingFrames,
    outgoing: OutgoingFrames,
    budget: FrameBudget,
    progress: Progress,
    events: Events,
    /// Bytes read in this turn.
    turn: usize,
    /// No read before this timer has fired.
    pause: Option<Pin<Box<Sleep>>>,
    /// State of a connection that is ended because of a flood.
    ending: Option<Ending>,
}

struct Ending {
    /// Deadline of calls that cannot be answered, such as followers and incomplete requests.
    due: Pin<Box<Sleep>>,
    /// Rewritten bytes for the client.
    out: Vec<u8>,
    /// Answers to PINGs that are not sent to the client. The library gets them.
    answers: Vec<u8>,
}

impl MeteredStream {
    pub(super) fn new(stream: ClientSocket, patience: Patience, events: Events) -> Self {
        Self {
            stream,
            incoming: IncomingFrames::default(),
            outgoing: OutgoingFrames::default(),
            budget: FrameBudget::new(Instant::now()),
            progress: Progress::new(patience, Instant::now()),
            events,
            turn: 0,
            pause: None,
            ending: None,
        }
    }

    /// Gives the reader pending output and answers to PINGs. Returns false if there are none.
    fn deliver(&mut self, buf: &mut ReadBuf) -> bool {
        let is_between = self.incoming.is_between_frames();
        let spill = self.incoming.spill();
        if let Some(ending) = &mut self.ending
            && is_between
        {
            spill.append(&mut ending.answers);
        }
        if spill.is_empty() {
            return false;
        }
        let count = spill.len().min(buf.remaining());
        buf.put_slice(spill.get(..count).unwrap_or_default());
        spill.drain(..count);
        true
    }

    /// Returns how many bytes of the current frame must be read before answers to PINGs can be inserted. Without such
    /// exact reads, reading a flood would hardly ever stop at the end of a frame.
    fn rest_before_answers(&self) -> Option<usize> {
        let has_answers = self.ending.as_ref().is_some_and(|ending| !ending.answers.is_empty());
        self.incoming.rest_of_frame().filter(|_| has_answers)
    }

    /// Reads at most `rest` bytes.
    fn poll_rest(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf, rest: usize) -> Poll<io::Result<()>> {
        let mut bytes = [0; 512];
        let most = rest.min(buf.remaining()).min(bytes.len());
        let mut part = ReadBuf::new(bytes.get_mut(..most).unwrap_or_default());
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut part))?;
        buf.put_slice(part.filled());
        Poll::Ready(Ok(()))
    }

    /// Ready when more may be read.
    fn poll_pace(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(cx));
                self.pause = None;
            }
            if self.ending.is_some() {
                return Poll::Ready(());
            }
            match self.budget.pressure(Instant::now) {
                Pressure::Within => return Poll::Ready(()),
                Pressure::InDebt => self.pause = Some(Box::pin(tokio::time::sleep(IN_DEBT))),
                Pressure::Flood => self.end(),
            }
        }
    }

    /// Ends the connection because of a flood.
    fn end(&mut self) {
        if self.ending.is_none() {
            let due = Box::pin(tokio::time::sleep(FLOOD_CALLS_TIME));
            self.ending = Some(Ending { due, out: Vec::new(), answers: Vec::new() });
            self.budget.close();
            self.progress.hurry(FLOOD_PATIENCE, Instant::now());
            // The end must begin before more is read.
            self.pause = Some(Box::pin(tokio::time::sleep(FLOODING)));
            self.events.flooded.cancel();
        }
    }

    /// Filters the bytes read after `before`. Returns true if the reader gets any: a read of no bytes would mean the
    /// end of the stream.
    fn take(&mut self, buf: &mut ReadBuf, before: usize) -> bool {
        self.progress.received();
        let came = buf.filled_mut().get_mut(before..).unwrap_or_default();
        let (budget, progress) = (&mut self.budget, &mut self.progress);
        let taken = self.incoming.take(came, |frame| {
            budget.received(frame);
            if frame.kind == kind::PING && frame.has(flag::ACK) {
                progress.answered();
            }
        });
        for (event, has_come) in
            [(&self.events.spoke, self.incoming.has_preface()), (&self.events.called, self.budget.has_call())]
        {
            if has_come && !event.is_cancelled() {
                event.cancel();
            }
        }
        buf.set_filled(before + *taken.as_ref().unwrap_or(&0));
        if taken.is_err() {
            self.end();
        }
        if self.ending.is_some() {
            self.pause = Some(Box::pin(tokio::time::sleep(FLOODING)));
        }
        buf.filled().len() > before || self.deliver(buf)
    }

    /// Fails if the client is dead, or if it floods the daemon and none of its calls can be answered any more.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if let Some(ending) = &mut self.ending {
            while ending.due.as_mut().poll(cx).is_ready() {
                if !self.budget.has_complete_call() {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "the time for last calls is over"));
                }
                ending.due.as_mut().reset(Instant::now() + FLOODING);
            }
        }
        let is_due = self.events.is_look_due.load(Ordering::Relaxed);
        if !is_due {
            return Ok(());
        }
        self.events.is_look_due.store(false, Ordering::Relaxed);
        if !self.progress.look(&self.stream, Instant::now()) {
            return Ok(());
        }
        self.events.died.cancel();
        Err(io::Error::new(io::ErrorKind::TimedOut, "the client has taken nothing for too long"))
    }

    /// Accounts for written bytes.
    fn wrote<'a>(&mut self, bytes: impl IntoIterator<Item = &'a [u8]>, written: &Poll<io::Result<usize>>) {
        let Poll::Ready(Ok(count)) = written else { return };
        let (mut left, mut has_asked) = (*count, false);
        for bytes in bytes {
            let bytes = bytes.get(..left.min(bytes.len())).unwrap_or_default();
            left -= bytes.len();
            self.outgoing.sent(bytes, |frame| {
                self.budget.sent(frame);
                has_asked |= frame.kind == kind::PING && !frame.has(flag::ACK);
            });
        }
        self.progress.after_write(&self.stream);
        if has_asked {
            self.progress.asked(&self.stream, Instant::now());
        }
    }

    /// Writes the rewritten bytes. Ready when all of them are in the socket.
    fn poll_rewritten(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(ending) = &mut self.ending else { return Poll::Ready(Ok(())) };
        while !ending.out.is_empty() {
            self.progress.before_write(&self.stream, Instant::now);
            let count = ready!(Pin::new(&mut self.stream).poll_write(cx, &ending.out))?;
            self.progress.after_write(&self.stream);
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            ending.out.drain(..count);
        }
        Poll::Ready(Ok(()))
    }

    /// Rewrites `bytes` once all earlier rewritten bytes are written.
    fn poll_rewrite(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_rewritten(cx))?;
        if let Some(ending) = &mut self.ending {
            self.outgoing.rewrite(bytes, &mut ending.out, &mut ending.answers);
            if !ending.answers.is_empty() {
                // The library may be waiting for input.
                cx.waker().wake_by_ref();
            }
        }
        Poll::Ready(Ok(bytes.len()))
    }
}

impl AsyncRead for MeteredStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        this.check(cx)?;
        loop {
            if this.deliver(buf) {
                return Poll::Ready(Ok(()));
            }
            let rest = this.rest_before_answers();
            if rest.is_none() {
                ready!(this.poll_pace(cx));
            }
            if this.turn >= TURN {
                this.turn = 0;
                // Unlike a plain wake-up, this one comes after the runtime has polled the other connections.
                return std::pin::pin!(tokio::task::yield_now()).poll(cx).map(Ok);
            }
            let before = buf.filled().len();
            let polled = match rest {
                Some(rest) => this.poll_rest(cx, buf, rest),
                None => Pin::new(&mut this.stream).poll_read(cx, buf),
            };
            let count = buf.filled().len() - before;
            this.turn = if polled.is_ready() { this.turn + count } else { 0 };
            if count == 0 {
                return polled;
            }
            if this.take(buf, before) {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl AsyncWrite for MeteredStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        this.check(cx)?;
        if this.ending.is_some() {
            return this.poll_rewrite(cx, buf);
        }
        this.progress.before_write(&this.stream, Instant::now);
        let written = Pin::new(&mut this.stream).poll_write(cx, buf);
        this.wrote([buf], &written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        this.check(cx)?;
        if this.ending.is_some() {
            let first = bufs.iter().find(|buf| !buf.is_empty());
            return this.poll_rewrite(cx, first.map_or(&[][..], |buf| &**buf));
        }
        this.progress.before_write(&this.stream, Instant::now);
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, bufs);
        this.wrote(bufs.iter().map(|buf| &**buf), &written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        ready!(self.poll_rewritten(cx))?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_rewritten(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
