//! The accept loop: connections come in, each is served by its own task.
//!
//! Own loop, because a ready-made one keeps silent connections for ever and spins when descriptors run out (faults.md,
//! fact 2). It owns: the cap on connections, the deadline for the HTTP/2 preface, the reserve descriptor for EMFILE,
//! and the drain at shutdown.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::net::UnixListener as StdListener;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::Routes;

use super::peer::AllowedUsers;

/// Limits of the transport (service.md §1.1).
#[derive(Clone, Debug)]
pub struct TransportLimits {
    /// Connections at a time.
    pub max_connections: usize,
    /// Time for the first bytes of a connection.
    pub preface_deadline: Duration,
}

/// Calls at a time on one connection (service.md §1.1).
const MAX_STREAMS: u32 = 100;
/// Largest header list in bytes (service.md §1.1).
const MAX_HEADERS: u32 = 16 << 10;
/// A PING goes out after so long without traffic (service.md §1.1).
const PING_AFTER: Duration = Duration::from_secs(30);
/// A connection is dropped when a PING is not answered for so long (service.md §1.1).
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// What the transport may hold for one stream: beside it a follower costs 64 KiB (service.md §3.2).
const SEND_BUFFER: usize = 64 << 10;
/// First and longest pause after a failed accept (faults.md row 54).
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));

/// The loop and what it keeps track of.
pub struct AcceptLoop {
    listener: UnixListener,
    routes: Routes,
    refusing: Routes,
    users: AllowedUsers,
    limits: TransportLimits,
    silent: Silent,
    open: Arc<AtomicUsize>,
    reserve: Option<File>,
}

/// Connections that have not sent their preface, oldest first.
type Silent = Arc<Mutex<VecDeque<(u64, CancellationToken)>>>;

impl AcceptLoop {
    /// Serves `routes` on `listener`; callers that `users` does not allow get `refusing`.
    pub fn new(
        listener: StdListener,
        routes: Routes,
        refusing: Routes,
        users: AllowedUsers,
        limits: TransportLimits,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener: UnixListener::from_std(listener)?,
            routes,
            refusing,
            users,
            limits,
            silent: Arc::default(),
            open: Arc::default(),
            reserve: File::open("/dev/null").ok(),
        })
    }

    /// Number of open connections, shared.
    pub fn open_connections(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.open)
    }

    /// Accepts until `stop`, then closes the listener and lets every connection finish its calls until `abort`.
    pub async fn run(mut self, stop: CancellationToken, abort: CancellationToken) {
        let tasks = TaskTracker::new();
        let mut pause = BACK_OFF.0;
        let mut number = 0;
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    pause = BACK_OFF.0;
                    number += 1;
                    self.serve(stream, number, &tasks, &stop, &abort);
                }
                Err(error) => {
                    self.relieve(&error).await;
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(BACK_OFF.1);
                }
            }
        }
        drop(self.listener);
        tasks.close();
        tasks.wait().await;
    }

    fn serve(
        &self,
        stream: UnixStream,
        number: u64,
        tasks: &TaskTracker,
        stop: &CancellationToken,
        abort: &CancellationToken,
    ) {
        let drop_me = CancellationToken::new();
        if self.open.load(Ordering::Relaxed) >= self.limits.max_connections {
            // The oldest connection that never said anything makes room; without one the new caller is turned away.
            match self.silent.lock().pop_front() {
                Some((_, oldest)) => oldest.cancel(),
                None => return,
            }
        }
        self.silent.lock().push_back((number, drop_me.clone()));
        let routes = if self.users.allows(&stream) { self.routes.clone() } else { self.refusing.clone() };
        let connection = Connection {
            number,
            silent: Arc::clone(&self.silent),
            open: Open::new(&self.open),
            deadline: self.limits.preface_deadline,
        };
        tasks.spawn(connection.run(stream, routes, drop_me, stop.clone(), abort.clone()));
    }

    /// Out of descriptors: give up the reserve, take one caller and close it, so that it does not wait for ever.
    async fn relieve(&mut self, error: &io::Error) {
        let out = [libc::EMFILE, libc::ENFILE].map(Some).contains(&error.raw_os_error());
        tracing::warn!(%error, "cannot accept a connection");
        if out && self.reserve.take().is_some() {
            let turned_away = tokio::time::timeout(BACK_OFF.0, self.listener.accept()).await;
            drop(turned_away);
        }
        if self.reserve.is_none() {
            self.reserve = File::open("/dev/null").ok();
        }
    }
}

/// Counts a connection as long as it lives.
struct Open(Arc<AtomicUsize>);

impl Open {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Connection {
    number: u64,
    silent: Silent,
    open: Open,
    deadline: Duration,
}

impl Connection {
    async fn run(
        self,
        stream: UnixStream,
        routes: Routes,
        drop_me: CancellationToken,
        stop: CancellationToken,
        abort: CancellationToken,
    ) {
        let spoke = tokio::select! {
            () = drop_me.cancelled() => false,
            () = stop.cancelled() => false,
            spoke = tokio::time::timeout(self.deadline, stream.readable()) => matches!(spoke, Ok(Ok(()))),
        };
        if !spoke {
            self.silent.lock().retain(|(number, _)| *number != self.number);
            return;
        }
        let heard =
            HeardPreface { stream, left: PREFACE_LEN, number: self.number, silent: Arc::clone(&self.silent) };
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(MAX_HEADERS)
            .max_send_buf_size(SEND_BUFFER)
            .keep_alive_interval(PING_AFTER)
            .keep_alive_timeout(PING_TIMEOUT);
        let service = TowerToHyperService::new(routes.prepare());
        let mut served = std::pin::pin!(builder.serve_connection(TokioIo::new(heard), service));
        let late = tokio::time::sleep(self.deadline);
        let mut late = std::pin::pin!(late);
        let (mut stopping, mut checked) = (false, false);
        loop {
            tokio::select! {
                result = served.as_mut() => {
                    if let Err(error) = result {
                        tracing::debug!(%error, "connection ended");
                    }
                    break;
                }
                () = abort.cancelled() => break,
                () = drop_me.cancelled() => break,
                () = stop.cancelled(), if !stopping => {
                    stopping = true;
                    served.as_mut().graceful_shutdown();
                }
                () = late.as_mut(), if !checked => {
                    checked = true;
                    if self.is_silent() {
                        break;
                    }
                }
            }
        }
        self.silent.lock().retain(|(number, _)| *number != self.number);
        drop(self.open);
    }

    fn is_silent(&self) -> bool {
        self.silent.lock().iter().any(|(number, _)| *number == self.number)
    }
}

/// Bytes of the HTTP/2 connection preface.
const PREFACE_LEN: usize = 24;

/// A stream that takes itself off the list of silent ones when the whole preface has come.
struct HeardPreface {
    stream: UnixStream,
    left: usize,
    number: u64,
    silent: Silent,
}

impl AsyncRead for HeardPreface {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if self.left > 0 && polled.is_ready() {
            self.left = self.left.saturating_sub(buf.filled().len() - before);
            if self.left == 0 {
                let number = self.number;
                self.silent.lock().retain(|(other, _)| *other != number);
            }
        }
        polled
    }
}

impl AsyncWrite for HeardPreface {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
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
