//! The bytes of a connection on their way in: each connection has its turn, and one that only keeps the daemon busy is
//! found out.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::grpc::heads::Heads;

/// Bytes read of one connection before the others have their turn. All share a thread, and the HTTP/2 library reads on
/// as long as there is something: a stream of PINGs would keep it for tens of milliseconds.
const TURN: usize = 32 << 10;

/// Bytes of the HTTP/2 connection preface.
const PREFACE_LEN: usize = 24;

/// Bytes of a frame's header (RFC 9113 §4.1).
const HEADER_LEN: usize = 9;

/// A stream that counts what comes.
pub(super) struct Wire {
    stream: UnixStream,
    watch: Watch,
    /// Bytes read in this turn.
    turn: usize,
    /// Called once, when the whole preface has come.
    heard: Option<Box<dyn FnOnce() + Send>>,
    flooded: CancellationToken,
}

impl Wire {
    /// `heard` is called when the preface has come; `flooded` is cancelled when frames come without end that carry
    /// nothing: from then on nothing is read.
    pub(super) fn new(
        stream: UnixStream,
        heard: impl FnOnce() + Send + 'static,
        flooded: CancellationToken,
    ) -> Self {
        Self { stream, watch: Watch::new(Instant::now()), turn: 0, heard: Some(Box::new(heard)), flooded }
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.flooded.is_cancelled() {
            // Whoever cancelled it ends the connection.
            return Poll::Pending;
        }
        if self.turn >= TURN {
            self.turn = 0;
            // Unlike a plain wake-up, this one comes after the runtime has looked for what others have sent.
            return std::pin::pin!(tokio::task::yield_now()).poll(cx).map(Ok);
        }
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        let came = buf.filled().get(before..).unwrap_or_default();
        self.turn = if polled.is_ready() { self.turn + came.len() } else { 0 };
        self.watch.read(came);
        if self.watch.has_preface()
            && let Some(heard) = self.heard.take()
        {
            heard();
        }
        if self.watch.is_flooded(Instant::now) {
            self.flooded.cancel();
        }
        polled
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.watch.wrote(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.watch.wrote(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Counts frames that ask for nothing: PING, SETTINGS, PRIORITY, WINDOW_UPDATE, RST_STREAM, unknown ones, and DATA
/// without data. A client has reason to send some by itself, and more for what it is sent: one for each [`WORTH`] bytes.
struct Watch {
    preface_left: usize,
    frames: Heads<HEADER_LEN>,
    /// Frames that may come without leave.
    allowed: u64,
    /// Those that came over it since it was last looked at.
    over: u64,
    /// Bytes written that are not yet counted as leave.
    written: u64,
    since: Instant,
}

/// Most frames at once.
const BURST: u64 = 1_024;
/// Frames in a second.
const RATE: u64 = 64;
/// Bytes written for one more frame. An answered PING is 17 bytes, an answered SETTINGS 9: a flood does not feed itself.
const WORTH: u64 = 64;

impl Watch {
    fn new(now: Instant) -> Self {
        Self {
            preface_left: PREFACE_LEN,
            frames: Heads::new(),
            allowed: BURST,
            over: 0,
            written: 0,
            since: now,
        }
    }

    const fn has_preface(&self) -> bool {
        self.preface_left == 0
    }

    fn read(&mut self, bytes: &[u8]) {
        const END_STREAM: u8 = 1;
        let preface = bytes.len().min(self.preface_left);
        self.preface_left -= preface;
        let bytes = bytes.get(preface..).unwrap_or_default();
        let Ok(()) = self.frames.read(bytes, |[high, middle, low, kind, flags, ..]| {
            let length = u32::from_be_bytes([0, high, middle, low]) as usize;
            let carries = match kind {
                // DATA
                0 => length > 0 || flags & END_STREAM != 0,
                // HEADERS and CONTINUATION: calls, counted by their own limits.
                1 | 9 => true,
                _ => false,
            };
            if !carries {
                match self.allowed.checked_sub(1) {
                    Some(left) => self.allowed = left,
                    None => self.over += 1,
                }
            }
            Ok::<_, Infallible>(length)
        });
    }

    fn wrote(&mut self, written: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(count)) = written {
            self.written += *count as u64;
            self.allowed = (self.allowed + self.written / WORTH).min(BURST);
            self.written %= WORTH;
        }
    }

    /// More came than leave was given for, that of the time since the last look included.
    fn is_flooded(&mut self, now: impl FnOnce() -> Instant) -> bool {
        if self.over == 0 {
            return false;
        }
        let now = now();
        let earned = (now - self.since).as_millis() as u64 * RATE / 1_000;
        if earned > 0 {
            self.since = now;
        }
        let earned = earned.min(BURST);
        self.allowed += earned.saturating_sub(self.over);
        self.over = self.over.saturating_sub(earned);
        self.over > 0
    }
}

/// How long a connection that is told to go may take to read it.
pub(super) const LAST_WORDS: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const PING: &[u8] = b"\0\0\x08\x06\0\0\0\0\0pingpong";
    const DATA: &[u8] = b"\0\0\x05\0\0\0\0\0\x01hello";
    const EMPTY: &[u8] = b"\0\0\0\0\0\0\0\0\x01";
    const LAST: &[u8] = b"\0\0\0\0\x01\0\0\0\x01";

    fn heard(bytes: &[u8]) -> Watch {
        let mut watch = Watch::new(Instant::now());
        watch.read(PREFACE);
        watch.read(bytes);
        watch
    }

    fn is_flooded(watch: &mut Watch, after: Duration) -> bool {
        let now = watch.since + after;
        watch.is_flooded(|| now)
    }

    #[test]
    fn frames_are_found_however_the_bytes_are_cut() {
        let bytes = [PREFACE, DATA, PING, EMPTY, DATA, LAST, PING].concat();
        for size in 1..=bytes.len() {
            let mut watch = Watch::new(Instant::now());
            for piece in bytes.chunks(size) {
                watch.read(piece);
            }
            assert_eq!((watch.allowed, watch.frames.is_within()), (BURST - 3, false), "pieces of {size}");
        }
    }

    #[test]
    fn what_carries_data_may_come_without_end() {
        assert!(!is_flooded(&mut heard(&DATA.repeat(100_000)), Duration::ZERO));
    }

    #[test]
    fn fault_56_a_burst_passes_and_a_flood_does_not() {
        let burst = BURST as usize;
        for frame in [PING, EMPTY] {
            assert!(!is_flooded(&mut heard(&frame.repeat(burst)), Duration::ZERO));
            assert!(is_flooded(&mut heard(&frame.repeat(burst + 1)), Duration::ZERO));
        }
    }

    #[test]
    fn time_and_what_is_sent_give_leave_for_more() {
        let mut slow = heard(&PING.repeat(BURST as usize));
        for _ in 0..1_000 {
            slow.read(&PING.repeat(RATE as usize));
            assert!(!is_flooded(&mut slow, Duration::from_secs(1)));
        }
        // A client that measures the line by a PING for each piece of the log it is sent.
        let mut measuring = heard(&PING.repeat(BURST as usize));
        for _ in 0..100_000 {
            measuring.wrote(&Poll::Ready(Ok(256 + PING.len())));
            measuring.read(PING);
            assert!(!is_flooded(&mut measuring, Duration::ZERO));
        }
        // Its answers alone give none.
        let mut flood = heard(&[]);
        let found = (0..10 * BURST).any(|_| {
            flood.wrote(&Poll::Ready(Ok(PING.len())));
            flood.read(PING);
            is_flooded(&mut flood, Duration::ZERO)
        });
        assert!(found);
    }
}
