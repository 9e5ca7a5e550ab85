//! The byte stream of one connection, a socket or the pipes of a connector. Checks the first bytes.
//!
//! The first nine bytes from the far side must be the header of an HTTP/2 SETTINGS frame (connectors.md §4). A login
//! banner or a runtime's error message is thus reported as such, not as a protocol error.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use step_runner_process::connector;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;
use tokio::time::Sleep;

use super::diagnosis::SHOWN;

/// Length of a frame's header.
const HEADER: usize = 9;

/// Largest SETTINGS frame before another size is agreed on, and the length of one setting (RFC 9113 §4.2, §6.5).
const MAX_FRAME: u32 = 16 << 10;
const SETTING: u32 = 6;

/// Longest wait for more of an answer that is not HTTP/2, in order to show it.
const REST: Duration = Duration::from_millis(500);

/// Finding about the first bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum First {
    /// The far side speaks HTTP/2.
    Settings,
    /// It speaks something else. Empty if the stream ended before its first byte or within a SETTINGS header.
    Other(Vec<u8>),
}

/// Both directions of a connection.
#[derive(Debug)]
pub(super) enum Transport {
    Socket(UnixStream),
    Process {
        /// `None` once closed.
        stdin: Option<pipe::Sender>,
        stdout: pipe::Receiver,
        /// Ends with the connection.
        _connector: connector::Connector,
    },
}

/// A transport whose first bytes are checked and reported.
#[derive(Debug)]
pub(super) struct Stream {
    transport: Transport,
    watch: Watch,
}

#[derive(Debug)]
enum Watch {
    /// Fewer than nine bytes have come. None is passed on before they are checked.
    Looking { seen: Vec<u8>, tell: oneshot::Sender<First> },
    /// It is not HTTP/2. More is collected for a moment.
    Gathering { seen: Vec<u8>, tell: oneshot::Sender<First>, until: Pin<Box<Sleep>> },
    /// Reported; bytes pass.
    Passing,
    /// Reported; reads fail.
    Refusing,
}

impl Stream {
    /// Returns the stream and a receiver of the finding, which fails if the stream is dropped before.
    pub(super) fn new(transport: Transport) -> (Self, oneshot::Receiver<First>) {
        let (tell, first) = oneshot::channel();
        (Self { transport, watch: Watch::Looking { seen: Vec::new(), tell } }, first)
    }
}

/// True for the header of a SETTINGS frame that is no acknowledgement: every HTTP/2 connection begins so.
fn is_settings(header: [u8; HEADER]) -> bool {
    let [high, middle, low, kind, flags, stream @ ..] = header;
    let length = u32::from_be_bytes([0, high, middle, low]);
    kind == 4 && flags == 0 && stream == [0; 4] && length <= MAX_FRAME && length.is_multiple_of(SETTING)
}

/// True if these bytes, fewer than nine, can begin such a header.
fn begins_settings(seen: &[u8]) -> bool {
    (0..=u8::MAX).any(|length| {
        let mut header = [0, 0, length, 4, 0, 0, 0, 0, 0];
        let Some(known) = header.get_mut(..seen.len()) else { return false };
        known.copy_from_slice(seen);
        is_settings(header)
    })
}

fn refused() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "what came is no HTTP/2")
}

impl Watch {
    /// Takes more of the first nine bytes; `bytes` is empty at the end of the stream.
    fn look(self, bytes: &[u8]) -> Self {
        let Self::Looking { mut seen, tell } = self else { return self };
        seen.extend_from_slice(bytes);
        match seen.first_chunk() {
            Some(&header) if is_settings(header) => {
                tell.send(First::Settings).ok();
                Self::Passing
            }
            Some(_) => Self::Gathering { seen, tell, until: Box::pin(tokio::time::sleep(REST)) },
            None if bytes.is_empty() => {
                // Only a daemon begins like this. The connection broke before it said more.
                let said = if begins_settings(&seen) { Vec::new() } else { seen };
                tell.send(First::Other(said)).ok();
                Self::Refusing
            }
            None => Self::Looking { seen, tell },
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            match &mut this.watch {
                Watch::Passing => return Pin::new(&mut this.transport).poll_read(context, buffer),
                Watch::Refusing => return Poll::Ready(Err(refused())),
                Watch::Looking { seen, .. } => {
                    let mut header = [0; HEADER];
                    let (known, rest) = header.split_at_mut(seen.len().min(HEADER));
                    known.copy_from_slice(seen);
                    let mut more = ReadBuf::new(rest);
                    // Treat a read error like the end of the stream.
                    ready!(Pin::new(&mut this.transport).poll_read(context, &mut more)).ok();
                    let new = more.filled().to_vec();
                    this.watch = std::mem::replace(&mut this.watch, Watch::Refusing).look(&new);
                    if matches!(this.watch, Watch::Passing) {
                        // A reader of frames never asks for less than a frame's header.
                        if buffer.remaining() < HEADER {
                            return Poll::Ready(Err(refused()));
                        }
                        buffer.put_slice(&header);
                        return Poll::Ready(Ok(()));
                    }
                }
                Watch::Gathering { seen, until, .. } => {
                    let mut bytes = [0; SHOWN];
                    let mut more = ReadBuf::new(&mut bytes);
                    let over = match Pin::new(&mut this.transport).poll_read(context, &mut more) {
                        Poll::Ready(Ok(())) if !more.filled().is_empty() => {
                            seen.extend(more.filled().iter().take(SHOWN.saturating_sub(seen.len())));
                            seen.len() >= SHOWN
                        }
                        Poll::Ready(_) => true,
                        Poll::Pending => {
                            ready!(until.as_mut().poll(context));
                            true
                        }
                    };
                    if over
                        && let Watch::Gathering { seen, tell, .. } =
                            std::mem::replace(&mut this.watch, Watch::Refusing)
                    {
                        tell.send(First::Other(seen)).ok();
                    }
                }
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.transport).poll_write(context, bytes));
        // A far side that takes no bytes may have said why, so hide the error until that is read.
        let looking = matches!(this.watch, Watch::Looking { .. } | Watch::Gathering { .. });
        Poll::Ready(if looking { written.or(Ok(bytes.len())) } else { written })
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().transport).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().transport).poll_shutdown(context)
    }
}

impl AsyncRead for Transport {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Socket(socket) => Pin::new(socket).poll_read(context, buffer),
            Self::Process { stdout, .. } => Pin::new(stdout).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Socket(socket) => Pin::new(socket).poll_write(context, bytes),
            Self::Process { stdin: Some(stdin), .. } => Pin::new(stdin).poll_write(context, bytes),
            Self::Process { stdin: None, .. } => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Socket(socket) => Pin::new(socket).poll_flush(context),
            // A pipe has no buffer to flush.
            Self::Process { .. } => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Socket(socket) => Pin::new(socket).poll_shutdown(context),
            Self::Process { stdin, .. } => {
                *stdin = None;
                Poll::Ready(Ok(()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const SETTINGS: [u8; HEADER] = [0, 0, 12, 4, 0, 0, 0, 0, 0];

    async fn read(pieces: &[&[u8]]) -> (First, io::Result<Vec<u8>>) {
        let (near, mut far) = UnixStream::pair().unwrap();
        let (mut stream, first) = Stream::new(Transport::Socket(near));
        let mut bytes = Vec::new();
        let writing = async {
            for piece in pieces {
                far.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
            drop(far);
        };
        let (read, ()) = tokio::join!(stream.read_to_end(&mut bytes), writing);
        (first.await.unwrap(), read.map(|_| bytes))
    }

    #[tokio::test]
    async fn what_begins_with_settings_is_passed_on_wherever_it_is_cut() {
        let all = [&SETTINGS[..], b"and the rest"].concat();
        for at in 0..all.len() {
            let (first, bytes) = read(&[&all[..at], &all[at..]]).await;
            assert_eq!(first, First::Settings, "{at}");
            assert_eq!(bytes.unwrap(), all, "{at}");
        }
    }

    #[tokio::test]
    async fn anything_else_is_told_and_not_passed_on() {
        let banner = [b"Welcome to build7!\n".as_slice(), &SETTINGS].concat();
        for pieces in [
            &[&banner[..]][..],
            &[b"Welcome ", b"to build7!\n", &SETTINGS],
            &[b"Welcome to build7!\n", &SETTINGS],
        ] {
            let (first, bytes) = read(pieces).await;
            assert_eq!(first, First::Other(banner.clone()));
            assert_eq!(bytes.unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
        let long = [b'x'; 1000];
        assert_eq!(read(&[&long]).await.0, First::Other(vec![b'x'; SHOWN]));
    }

    #[tokio::test]
    async fn an_end_before_the_ninth_byte_is_told_with_what_came() {
        assert_eq!(read(&[]).await.0, First::Other(Vec::new()));
        assert_eq!(read(&[b"bye"]).await.0, First::Other(b"bye".to_vec()));
        let wrong = [0, 0, 11, 4];
        assert_eq!(read(&[&wrong]).await.0, First::Other(wrong.to_vec()));
    }

    #[tokio::test]
    async fn a_line_that_breaks_within_the_header_has_said_nothing() {
        for count in 0..HEADER {
            let (first, bytes) = read(&[&SETTINGS[..count]]).await;
            assert_eq!(first, First::Other(Vec::new()), "{count}");
            assert_eq!(bytes.unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }

    #[test]
    fn only_a_header_of_settings_is_one() {
        assert!(is_settings(SETTINGS));
        for wrong in [
            *b"HTTP/1.1 ",
            [0, 0, 11, 4, 0, 0, 0, 0, 0],
            [1, 0, 2, 4, 0, 0, 0, 0, 0],
            [0, 0, 12, 6, 0, 0, 0, 0, 0],
            [0, 0, 0, 4, 1, 0, 0, 0, 0],
            [0, 0, 12, 4, 0, 0, 0, 0, 1],
        ] {
            assert!(!is_settings(wrong), "{wrong:?}");
        }
    }
}
