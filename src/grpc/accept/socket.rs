//! The socket of one client.
//!
//! Usually only incoming bytes wake its task. The runtime's own stream also wakes the task whenever the client reads
//! and so makes room. That happens several times a call, and nobody waits for it. This module watches for room only
//! while a write has to wait.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::time::Sleep;

/// Number of consecutive writes that found room, after which room is watched no more.
const CALM: u32 = 64;

/// Pause between two writes while no descriptor is left to watch room with.
const PAUSE: Duration = Duration::from_millis(10);

/// A client's socket; see the module.
pub(super) struct ClientSocket {
    /// `Receiver` is meant for pipes, and waits for bytes only.
    read: Receiver,
    congestion: Option<Congestion>,
}

/// The client is slow to read.
enum Congestion {
    /// A second descriptor of the socket, which waits for room, and the number of writes in a row that found some.
    Watched(Sender, u32),
    /// No descriptor is left: the next write is tried when this is over.
    Unwatched(Pin<Box<Sleep>>),
}

impl ClientSocket {
    /// Takes over a socket of the present runtime.
    pub(super) fn new(stream: UnixStream) -> io::Result<Self> {
        let read = Receiver::from_owned_fd_unchecked(stream.into_std()?.into())?;
        Ok(Self { read, congestion: None })
    }

    fn watch_room(&self) -> Congestion {
        let second = self.read.as_fd().try_clone_to_owned();
        match second.and_then(Sender::from_owned_fd_unchecked) {
            Ok(sender) => Congestion::Watched(sender, 0),
            Err(_) => Congestion::Unwatched(Box::pin(tokio::time::sleep(PAUSE))),
        }
    }

    /// Writes with `write`, or with `wait` once there is room.
    fn poll_write_with(
        &mut self,
        cx: &mut Context<'_>,
        write: impl Fn(BorrowedFd<'_>) -> Result<usize, Errno>,
        wait: impl Fn(Pin<&mut Sender>, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        loop {
            match &mut self.congestion {
                Some(Congestion::Watched(sender, found)) => {
                    let written = wait(Pin::new(sender), cx);
                    *found = if written.is_ready() { *found + 1 } else { 0 };
                    if *found >= CALM {
                        self.congestion = None;
                    }
                    return written;
                }
                Some(Congestion::Unwatched(pause)) => {
                    ready!(pause.as_mut().poll(cx));
                    self.congestion = None;
                }
                None => {}
            }
            match write(self.read.as_fd()) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.congestion = Some(self.watch_room()),
                written => return Poll::Ready(Ok(written?)),
            }
        }
    }
}

impl AsFd for ClientSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.read.as_fd()
    }
}

impl AsyncRead for ClientSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.read).poll_read(cx, buf)
    }
}

impl AsyncWrite for ClientSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_with(
            cx,
            |socket| rustix::net::send(socket, buf, SendFlags::NOSIGNAL),
            |sender, cx| sender.poll_write(cx, buf),
        )
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_with(
            cx,
            |socket| rustix::io::writev(socket, bufs),
            |sender, cx| sender.poll_write_vectored(cx, bufs),
        )
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(rustix::net::shutdown(&self.read, Shutdown::Write).map_err(Into::into))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_client_that_reads_slowly_gets_every_byte_while_it_may_also_send() {
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut socket = ClientSocket::new(UnixStream::from_std(ours).unwrap()).unwrap();
        let sent: Vec<u8> = (0..8 << 20).map(|at: u32| (at % 251) as u8).collect();
        let length = sent.len();
        let reader = std::thread::spawn(move || {
            let mut all = vec![0; length];
            // Parts of any size: the end of one lies in the middle of a write.
            for part in all.chunks_mut(100_003) {
                theirs.read_exact(part).unwrap();
            }
            std::io::Write::write_all(&mut theirs, b"answer").unwrap();
            all
        });
        socket.write_all(&sent).await.unwrap();
        let mut answer = [0; 6];
        socket.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"answer");
        assert!(reader.join().unwrap() == sent);
    }

    #[tokio::test]
    async fn room_is_watched_no_more_once_the_client_keeps_up() {
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut socket = ClientSocket::new(UnixStream::from_std(ours).unwrap()).unwrap();
        let full = vec![0; 16 << 20];
        let part = socket.write(&full).await.unwrap();
        let blocked = tokio::time::timeout(Duration::from_millis(1), socket.write(&full)).await;
        assert!(blocked.is_err() && socket.congestion.is_some());
        theirs.read_exact(&mut vec![0; part]).unwrap();
        for _ in 0..=CALM {
            socket.write_all(b"x").await.unwrap();
            theirs.read_exact(&mut [0]).unwrap();
        }
        assert!(socket.congestion.is_none());
    }
}
