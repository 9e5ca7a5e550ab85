//! The accept loop: accepts connections and serves each in a task of its own.
//!
//! A ready-made loop would keep silent connections for ever and spin when descriptors run out (faults.md §3, fact 2).
//! This module owns the limit on connections, the deadline for the HTTP/2 preface, the reserve descriptor for EMFILE,
//! the end of connections that flood the daemon or make no progress, and the drain at shutdown.

mod authority;
mod budget;
mod calls;
mod incoming;
mod message;
mod metered;
mod outgoing;
mod progress;
mod report;
mod socket;
mod unused;

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
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::Routes;

pub(in crate::grpc) use self::calls::MemoryShare;
pub(crate) use self::calls::{CallCounters, READ_TIME};
pub(in crate::grpc) use self::incoming::filtered;
use self::metered::{Events, MeteredStream};
pub(crate) use self::progress::Patience;
use self::report::{DropReason, DropReport};
use self::socket::ClientSocket;
use self::unused::Unused;
use super::by_rights::ServicesByRights;
use super::peer::{AllowedUsers, Caller, CallerRights};
use crate::error::Chain;
use crate::process;
use crate::threads;

/// Limits of the transport (service.md §1.1).
#[derive(Clone, Debug)]
pub(crate) struct TransportLimits {
    /// Maximum number of open connections.
    pub(crate) max_connections: usize,
    /// Time within which a connection's first bytes must come.
    pub(crate) preface_deadline: Duration,
    /// Time without a request after which a PING is sent.
    pub(crate) ping_after: Duration,
    /// Times after which a client without progress is dropped.
    pub(crate) patience: Patience,
}

impl TransportLimits {
    /// Returns the default limits for `max_connections`, fewer if only `descriptors` may be open (`None`: any number).
    pub(crate) fn new(max_connections: u64, descriptors: Option<u64>) -> Self {
        let max_connections = max_connections.min(for_connections(descriptors)).max(1);
        Self {
            max_connections: usize::try_from(max_connections).unwrap_or(usize::MAX),
            preface_deadline: Duration::from_secs(5),
            ping_after: Duration::from_secs(30),
            patience: Patience { stalled: Duration::from_secs(50), ping: Duration::from_secs(20) },
        }
    }
}

/// Returns how many descriptors connections may take. Jobs, their logs and the keeper need the others.
fn for_connections(descriptors: Option<u64>) -> u64 {
    const FOR_JOBS: u64 = 256;
    descriptors.map_or(u64::MAX, |all| all.saturating_sub(FOR_JOBS.max(all / 4)).max(all / 2))
}

/// Maximum number of open calls on one connection (service.md §1.1): a client may follow many jobs and still call.
const MAX_STREAMS: u32 = 1_024;
/// Maximum size of a header list in bytes (service.md §1.1).
const MAX_HEADERS: u32 = 16 << 10;
/// Disables the library's PING timeout, which would end slow readers too. [`Patience`] replaces it.
const LIBRARY_PING_TIMEOUT: Duration = Duration::from_hours(10 * 365 * 24);
/// Bytes that the transport may buffer for one stream. A follower costs 64 KiB besides (service.md §3.2).
const SEND_BUFFER: usize = 64 << 10;
/// Time for a client to read why its connection ends.
const CLOSE_TIME: Duration = Duration::from_millis(100);
/// Time for open calls while their connection ends: on a flood, or if a call came after the end had begun.
const OPEN_CALLS_TIME: Duration = Duration::from_secs(30);
/// Delay after the end of a connection or of the last call until free memory is given back; also the minimum interval.
const MEMORY_AFTER: Duration = Duration::from_secs(1);
/// Shortest and longest pause after a failed accept (faults.md row 54).
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));

/// The accept loop and its state.
pub(crate) struct AcceptLoop {
    listener: UnixListener,
    answers: ServicesByRights,
    users: AllowedUsers,
    limits: TransportLimits,
    unused: Unused,
    report: DropReport,
    calls: CallCounters,
    open: Arc<AtomicUsize>,
    reserve: Option<File>,
}

impl AcceptLoop {
    /// Creates a loop that accepts from `listener`, serves each of `users` its services from `answers`, and counts
    /// their `calls`.
    pub(crate) fn new(
        listener: StdListener,
        answers: ServicesByRights,
        users: AllowedUsers,
        limits: TransportLimits,
        calls: CallCounters,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener: UnixListener::from_std(listener)?,
            answers,
            users,
            limits,
            unused: Unused::default(),
            report: DropReport::default(),
            calls,
            open: Arc::default(),
            reserve: File::open("/dev/null").ok(),
        })
    }

    /// Accepts until `stop`. Then closes the listener and lets each connection finish its calls until `abort`.
    pub(crate) async fn run(mut self, stop: CancellationToken, abort: CancellationToken) {
        let tasks = TaskTracker::new();
        let mut pause = BACK_OFF.0;
        let mut number = 0;
        let memory = tokio::spawn(give_back_memory(self.calls.clone()));
        let reporting = tokio::spawn(self.report.clone().write(self.limits.max_connections));
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
        reporting.abort();
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
        // The oldest connection without a call is dropped to make room. If there is none, the new client is refused.
        if self.open.load(Ordering::Relaxed) >= self.limits.max_connections {
            if !self.unused.drop_oldest() {
                return self.report.add(DropReason::Refused);
            }
            self.report.add(DropReason::Dropped);
        }
        self.unused.push(number, drop_me.clone());
        let rights = self.users.rights(&stream);
        let (routes, is_allowed) = (self.answers.of(rights), rights != CallerRights::Refused);
        let connection = Connection {
            number,
            is_allowed,
            unused: self.unused.clone(),
            report: self.report.clone(),
            calls: self.calls.clone(),
            open: Open::new(&self.open, &self.calls),
            limits: self.limits.clone(),
        };
        tasks.spawn(connection.run(stream, routes, drop_me, stop.clone(), abort.clone()));
    }

    /// If descriptors ran out, closes the reserve, accepts one client and closes it, so that it does not wait for ever.
    async fn relieve(&mut self, error: &io::Error) {
        let out = [libc::EMFILE, libc::ENFILE].map(Some).contains(&error.raw_os_error());
        tracing::warn!(error = %Chain(error), "cannot accept a connection");
        if out && self.reserve.take().is_some() {
            let turned_away = tokio::time::timeout(BACK_OFF.0, self.listener.accept()).await;
            drop(turned_away);
        }
        if self.reserve.is_none() {
            self.reserve = File::open("/dev/null").ok();
        }
    }
}

/// Counts a connection while it lives.
struct Open {
    count: Arc<AtomicUsize>,
    calls: CallCounters,
}

impl Open {
    fn new(count: &Arc<AtomicUsize>, calls: &CallCounters) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self { count: Arc::clone(count), calls: calls.clone() }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.calls.connection_ended();
    }
}

/// Gives memory of followers and large requests back to the system after their connections have ended, since the C
/// library keeps it. If no call was made meanwhile, also gives back the mapped pages of the program.
async fn give_back_memory(calls: CallCounters) {
    loop {
        calls.quiet().await;
        let begun = calls.begun();
        // Separate threads free the memory of jobs, perhaps only after the first round.
        for pause in [MEMORY_AFTER, 4 * MEMORY_AFTER] {
            tokio::time::sleep(pause).await;
            if calls.is_one_open() || calls.begun() != begun {
                process::give_back_memory();
            } else {
                process::give_back_idle_memory();
            }
            if process::EACH_THREAD_GIVES_BACK {
                threads::on_each_idle(process::give_back_memory);
            }
        }
    }
}

struct Connection {
    number: u64,
    is_allowed: bool,
    unused: Unused,
    report: DropReport,
    calls: CallCounters,
    open: Open,
    limits: TransportLimits,
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
            spoke = tokio::time::timeout(self.limits.preface_deadline, stream.readable()) => match spoke {
                Ok(result) => result.is_ok(),
                Err(_late) => {
                    self.report.add(DropReason::Silent);
                    false
                }
            },
        };
        if spoke {
            self.serve(stream, routes, drop_me, stop, abort).await;
        }
        self.unused.remove(self.number);
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
        let (events, caller) = (Events::default(), Caller::of(&stream));
        let stream = match ClientSocket::new(stream) {
            Ok(stream) => stream,
            Err(error) => return tracing::warn!(error = %Chain(&error), "a connection cannot be served"),
        };
        let stream = MeteredStream::new(stream, self.limits.patience, events.clone());
        let service = TowerToHyperService::new(self.calls.count(routes.prepare()).of(caller));
        let mut served = std::pin::pin!(self.http2_server().serve_connection(TokioIo::new(stream), service));
        // First the deadline for the preface, then the one for the end of the connection.
        let mut late = std::pin::pin!(tokio::time::sleep(self.limits.preface_deadline));
        let mut look = tokio::time::interval(self.limits.patience.between_looks());
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut is_ending, mut is_checked, mut is_used) = (false, false, false);
        let (mut is_stopping, mut is_flooding) = (false, false);
        loop {
            let time = tokio::select! {
                result = served.as_mut() => {
                    if let Err(error) = result {
                        tracing::debug!(error = %Chain(&error), "connection ended");
                    }
                    break;
                }
                () = abort.cancelled() => break,
                _ = look.tick() => {
                    // The stream checks the flag when it is polled next, which is now.
                    events.is_look_due.store(true, Ordering::Relaxed);
                    continue;
                }
                () = stop.cancelled(), if !is_stopping => {
                    is_stopping = true;
                    served.as_mut().graceful_shutdown();
                    continue;
                }
                () = events.called.cancelled(), if !is_used => {
                    is_used = true;
                    // A client that may not call stays droppable, whatever it sends.
                    if self.is_allowed {
                        self.unused.remove(self.number);
                    }
                    if !is_ending || !self.is_allowed {
                        continue;
                    }
                    OPEN_CALLS_TIME
                }
                () = events.flooded.cancelled(), if !is_flooding => {
                    is_flooding = true;
                    self.report.add(DropReason::Flooding);
                    look = tokio::time::interval(metered::FLOOD_PATIENCE.between_looks());
                    OPEN_CALLS_TIME
                }
                () = drop_me.cancelled(), if !is_ending => {
                    if !events.spoke.is_cancelled() {
                        break;
                    }
                    CLOSE_TIME
                }
                () = late.as_mut(), if !is_checked => {
                    if is_ending {
                        break;
                    }
                    is_checked = events.spoke.is_cancelled();
                    if is_checked {
                        continue;
                    }
                    self.report.add(DropReason::Silent);
                    CLOSE_TIME
                }
            };
            (is_ending, is_checked) = (true, false);
            served.as_mut().graceful_shutdown();
            late.as_mut().reset(Instant::now() + time);
        }
        if events.died.is_cancelled() && !is_flooding {
            self.report.add(DropReason::Dead);
        }
    }

    fn http2_server(&self) -> http2::Builder<TokioExecutor> {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            // The frame budget counts calls that are reset at once; it slows the client down first.
            .max_pending_accept_reset_streams(MAX_STREAMS as usize)
            // Clients make the daemon reset streams by mistake: netty sends DATA after it has cancelled a call. The frame
            // budget ends floods of such calls.
            .max_local_error_reset_streams(None)
            .max_header_list_size(MAX_HEADERS)
            .max_send_buf_size(SEND_BUFFER)
            .keep_alive_interval(self.limits.ping_after)
            .keep_alive_timeout(LIBRARY_PING_TIMEOUT);
        builder
    }
}

#[cfg(test)]
mod tests;
