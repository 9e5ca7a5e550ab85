//! The accept loop: connections come in, each is served by its own task.
//!
//! Own loop, because a ready-made one keeps silent connections for ever and spins when descriptors run out (faults.md,
//! fact 2). It owns: the cap on connections, the deadline for the HTTP/2 preface, the reserve descriptor for EMFILE, the
//! end of connections that only keep it busy, and the drain at shutdown.

mod calls;
mod silent;
mod wire;

use std::fs::File;
use std::io;
use std::os::unix::net::UnixListener as StdListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::Routes;

pub use self::calls::Calls;
use self::silent::Silent;
use self::wire::{LAST_WORDS, Wire};
use super::peer::AllowedUsers;
use crate::process;

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
/// From the end of a connection until free memory is given back; no more often than that.
const MEMORY_AFTER: Duration = Duration::from_secs(1);
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
    calls: Calls,
    open: Arc<AtomicUsize>,
    ended: Arc<Notify>,
    reserve: Option<File>,
}

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
            silent: Silent::default(),
            calls: Calls::default(),
            open: Arc::default(),
            ended: Arc::default(),
            reserve: File::open("/dev/null").ok(),
        })
    }

    /// The calls of all connections, shared.
    pub fn calls(&self) -> Calls {
        self.calls.clone()
    }

    /// Accepts until `stop`, then closes the listener and lets every connection finish its calls until `abort`.
    pub async fn run(mut self, stop: CancellationToken, abort: CancellationToken) {
        let tasks = TaskTracker::new();
        let mut pause = BACK_OFF.0;
        let mut number = 0;
        let memory = tokio::spawn(give_back_memory(Arc::clone(&self.ended)));
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
        memory.abort();
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
        // The oldest connection that never said anything makes room; without one the new caller is turned away.
        if self.open.load(Ordering::Relaxed) >= self.limits.max_connections && !self.silent.drop_oldest() {
            return;
        }
        self.silent.push(number, drop_me.clone());
        let is_allowed = self.users.allows(&stream);
        let routes = if is_allowed { self.routes.clone() } else { self.refusing.clone() };
        let connection = Connection {
            number,
            is_allowed,
            silent: self.silent.clone(),
            calls: self.calls.clone(),
            open: Open::new(&self.open, &self.ended),
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
struct Open {
    count: Arc<AtomicUsize>,
    ended: Arc<Notify>,
}

impl Open {
    fn new(count: &Arc<AtomicUsize>, ended: &Arc<Notify>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self { count: Arc::clone(count), ended: Arc::clone(ended) }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.ended.notify_one();
    }
}

/// What followers and large requests took is given back when their connections are gone: the C library keeps it.
async fn give_back_memory(ended: Arc<Notify>) {
    loop {
        ended.notified().await;
        tokio::time::sleep(MEMORY_AFTER).await;
        process::give_back_memory();
    }
}

struct Connection {
    number: u64,
    is_allowed: bool,
    silent: Silent,
    calls: Calls,
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
        if spoke {
            self.serve(stream, routes, drop_me, stop, abort).await;
        }
        self.silent.remove(self.number);
        drop(self.open);
    }

    async fn serve(
        &self,
        stream: UnixStream,
        routes: Routes,
        drop_me: CancellationToken,
        stop: CancellationToken,
        abort: CancellationToken,
    ) {
        let flooded = CancellationToken::new();
        let wire = Wire::new(stream, self.when_heard(), flooded.clone());
        let service = TowerToHyperService::new(self.calls.count(routes.prepare()));
        let mut served = std::pin::pin!(http2_server().serve_connection(TokioIo::new(wire), service));
        let mut late = std::pin::pin!(tokio::time::sleep(self.deadline));
        let (mut stopping, mut told_to_go, mut checked) = (false, false, false);
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
                () = flooded.cancelled(), if !told_to_go => {
                    tracing::debug!("a connection with nothing but control frames is ended");
                    (told_to_go, checked) = (true, false);
                    served.as_mut().graceful_shutdown();
                    late.as_mut().reset(Instant::now() + LAST_WORDS);
                }
                () = late.as_mut(), if !checked => {
                    if told_to_go {
                        break;
                    }
                    checked = !self.silent.holds(self.number);
                    if !checked {
                        told_to_go = true;
                        served.as_mut().graceful_shutdown();
                        late.as_mut().reset(Instant::now() + LAST_WORDS);
                    }
                }
            }
        }
    }

    /// A caller that may not call stays among those that can be dropped for others, whatever it says.
    fn when_heard(&self) -> impl FnOnce() + Send + 'static {
        let (number, is_allowed, silent) = (self.number, self.is_allowed, self.silent.clone());
        move || {
            if is_allowed {
                silent.remove(number);
            }
        }
    }
}

fn http2_server() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADERS)
        .max_send_buf_size(SEND_BUFFER)
        .keep_alive_interval(PING_AFTER)
        .keep_alive_timeout(PING_TIMEOUT);
    builder
}
