//! The daemon's end of the connection to the keeper: frames out, replies and events in.
//!
//! Owns one writer and one reader task. Frames are written in the order they were handed over; all that is handed over
//! before the thread would sleep is one write. The reader hands every event to one callback and every reply to the one
//! who asked.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::{mpsc, oneshot};

use super::protocol::{FromKeeper, KeeperError, MAX_FRAME, Reply, Request, ToKeeper};

/// Bytes read from the socket at a time; frames of the keeper are small.
const READ_CHUNK: usize = 32 << 10;

/// A send, or the wait for room, that fails for want of memory is tried again so often …
const TRIES: u32 = 100;

/// … with this pause between.
const PAUSE: Duration = Duration::from_millis(10);

/// Why a question to the keeper has no good answer.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The keeper died, or the connection was replaced.
    #[error("the keeper is gone")]
    Gone,
    /// The keeper refused.
    #[error(transparent)]
    Refused(#[from] KeeperError),
    /// A request over [`MAX_FRAME`].
    #[error("a request of {0} bytes is too large for the keeper")]
    TooLarge(usize),
    /// It lives, perhaps, but has not answered within the time it was given.
    #[error("the keeper does not answer")]
    Silent,
    /// It speaks another protocol, or broke it.
    #[error("the keeper does not speak this daemon's protocol")]
    Protocol,
}

/// Who waits for which reply; `None` once the connection is over, so that nobody begins to wait then.
type Waiting = Arc<Mutex<Option<HashMap<u64, oneshot::Sender<Result<Reply, KeeperError>>>>>>;

/// One end of a new connection to a keeper.
pub enum Wire {
    /// To a process.
    Socket(UnixStream),
    /// To a test that plays the keeper.
    #[cfg(feature = "failpoints")]
    Memory(tokio::io::DuplexStream),
}

/// A connection to the keeper. Clones share it.
#[derive(Clone)]
pub struct KeeperLink {
    frames: mpsc::UnboundedSender<Vec<u8>>,
    waiting: Waiting,
    next_id: Arc<AtomicU64>,
}

impl KeeperLink {
    /// Takes over a connection. `on_event` is called for every event, in order, and must not block;
    /// `on_end` once, when the connection is over. Runs on the thread that calls it, which must be in a `LocalSet`: the
    /// actors live there too, so an event costs no switch of threads.
    pub fn new(
        wire: Wire,
        mut on_event: impl FnMut(FromKeeper) + 'static,
        on_end: impl FnOnce() + 'static,
    ) -> io::Result<Self> {
        let (mut read, write) = wire.split()?;
        let (frames, queue) = mpsc::unbounded_channel();
        let waiting: Waiting = Arc::new(Mutex::new(Some(HashMap::new())));
        let link = Self { frames, waiting: Arc::clone(&waiting), next_id: Arc::new(AtomicU64::new(1)) };
        tokio::task::spawn_local(write_frames(write, queue));
        tokio::task::spawn_local(async move {
            if let Err(error) = read_frames(&mut *read, &waiting, &mut on_event).await {
                tracing::warn!(%error, "connection to the keeper broke");
            }
            *waiting.lock() = None;
            on_end();
        });
        Ok(link)
    }

    /// Sends a request that wants no reply. Its loss shows in the end of the connection; a request that cannot be sent at
    /// all ([`LinkError::TooLarge`]) shows nowhere but here.
    ///
    /// The queue has no bound of its own: what waits in it is bounded by the requests a job has under way (a handful)
    /// times the number of jobs.
    pub fn tell(&self, request: Request) -> Result<(), LinkError> {
        let frame = encode(&ToKeeper { id: 0, request })?;
        drop(self.frames.send(frame));
        Ok(())
    }

    /// The same for a request that holds nothing of the job's: it is never too large.
    pub fn tell_short(&self, request: Request) {
        if let Err(error) = self.tell(request) {
            tracing::error!(%error, "request to the keeper was not sent");
        }
    }

    /// Sends a request and waits for its reply.
    pub async fn ask(&self, request: Request) -> Result<Reply, LinkError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let frame = encode(&ToKeeper { id, request })?;
        let (answer, reply) = oneshot::channel();
        self.waiting.lock().as_mut().ok_or(LinkError::Gone)?.insert(id, answer);
        if self.frames.send(frame).is_err() {
            self.forget(id);
            return Err(LinkError::Gone);
        }
        Ok(reply.await.map_err(|_| LinkError::Gone)??)
    }

    /// The connection has ended: what is told is lost, what is asked is not answered.
    pub fn is_over(&self) -> bool {
        self.waiting.lock().is_none()
    }

    fn forget(&self, id: u64) {
        if let Some(waiting) = self.waiting.lock().as_mut() {
            waiting.remove(&id);
        }
    }
}

fn encode(frame: &ToKeeper) -> Result<Vec<u8>, LinkError> {
    let mut bytes = postcard::to_extend(frame, vec![0; 4]).map_err(|_| LinkError::Protocol)?;
    let len = bytes.len() - 4;
    if len > MAX_FRAME {
        return Err(LinkError::TooLarge(len));
    }
    bytes[..4].copy_from_slice(&(len as u32).to_le_bytes());
    Ok(bytes)
}

impl Wire {
    fn split(self) -> io::Result<(Box<dyn AsyncRead + Unpin>, Writer)> {
        match self {
            Self::Socket(stream) => {
                stream.set_nonblocking(true)?;
                let (to, spare) = (stream.try_clone()?, Some(stream.try_clone()?.into()));
                // A type for pipes, as it waits for nothing but bytes. That for sockets is woken by the room that each
                // read of the keeper makes, too.
                let read = Receiver::from_owned_fd_unchecked(stream.into())?;
                Ok((Box::new(read), Writer::Socket(Sending { to, spare })))
            }
            #[cfg(feature = "failpoints")]
            Self::Memory(stream) => {
                let (read, write) = tokio::io::split(stream);
                Ok((Box::new(read), Writer::Memory(write)))
            }
        }
    }
}

/// Where frames go.
enum Writer {
    Socket(Sending),
    #[cfg(feature = "failpoints")]
    Memory(tokio::io::WriteHalf<tokio::io::DuplexStream>),
}

impl Writer {
    async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Socket(sending) => sending.send_all(bytes).await,
            #[cfg(feature = "failpoints")]
            Self::Memory(to) => tokio::io::AsyncWriteExt::write_all(to, bytes).await,
        }
    }

    /// Nothing more will be sent.
    #[cfg_attr(
        not(feature = "failpoints"),
        expect(clippy::unused_async, reason = "a played keeper's end waits")
    )]
    async fn end(self) {
        match self {
            Self::Socket(sending) => drop(rustix::net::shutdown(&sending.to, Shutdown::Write)),
            #[cfg(feature = "failpoints")]
            Self::Memory(mut to) => drop(tokio::io::AsyncWriteExt::shutdown(&mut to).await),
        }
    }
}

async fn write_frames(mut to: Writer, mut queue: mpsc::UnboundedReceiver<Vec<u8>>) {
    while let Some(mut batch) = queue.recv().await {
        // Every write may wake the keeper: what the other tasks have to say now goes with it.
        tokio::task::yield_now().await;
        while batch.len() < READ_CHUNK {
            match queue.try_recv() {
                Ok(frame) => batch.extend_from_slice(&frame),
                Err(_) => break,
            }
        }
        if to.write_all(&batch).await.is_err() {
            break; // the reader sees the same end and reports it
        }
    }
    // Mostly nobody has a link any more: the keeper sees the end, and closes its side, which ends the reader.
    to.end().await;
}

/// The sending end of a socket.
struct Sending {
    to: UnixStream,
    /// The same socket, for a wait for room: a wait works when there is no descriptor left (faults.md row 54).
    spare: Option<OwnedFd>,
}

impl Sending {
    async fn send_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let mut tries = 0;
        while !bytes.is_empty() {
            let failed = match rustix::net::send(&self.to, bytes, SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    bytes = bytes.get(sent..).unwrap_or_default();
                    continue;
                }
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => match self.room().await {
                    Ok(()) => continue,
                    Err(error) => error,
                },
                Err(error) if is_final(error) => return Err(error.into()),
                Err(error) => error.into(),
            };
            // The bytes behind these wait: nothing is lost by the pause, and all jobs by giving up.
            if tries == TRIES {
                return Err(failed);
            }
            tries += 1;
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Waits for room. Registered for this wait only: see [`Wire::split`].
    async fn room(&mut self) -> io::Result<()> {
        let spare = self.spare.take().map_or_else(|| self.to.try_clone().map(OwnedFd::from), Ok)?;
        let registered = Sender::from_owned_fd_unchecked(spare)?;
        let waited = registered.writable().await;
        self.spare = registered.into_nonblocking_fd().ok();
        waited
    }
}

/// The other end is gone; any other failure to send may pass.
pub(super) const fn is_final(error: Errno) -> bool {
    matches!(error, Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN | Errno::BADF)
}

async fn read_frames(
    from: &mut (dyn AsyncRead + Unpin),
    waiting: &Waiting,
    on_event: &mut impl FnMut(FromKeeper),
) -> io::Result<()> {
    let mut buffer = BytesMut::with_capacity(READ_CHUNK);
    loop {
        while let Some(frame) = next_frame(&mut buffer)? {
            match frame {
                FromKeeper::Reply { id, reply } => {
                    let asker = waiting.lock().as_mut().and_then(|waiting| waiting.remove(&id));
                    if let Some(asker) = asker {
                        drop(asker.send(reply));
                    }
                }
                event => on_event(event),
            }
        }
        buffer.reserve(READ_CHUNK);
        if from.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
    }
}

fn next_frame(buffer: &mut BytesMut) -> io::Result<Option<FromKeeper>> {
    let Some(header) = buffer.first_chunk::<4>() else { return Ok(None) };
    // No limit here: the keeper is our own, and the record of a job may be longer than any one request was.
    let len = u32::from_le_bytes(*header) as usize;
    let Some(body) = buffer.get_mut(4..4 + len) else { return Ok(None) };
    let frame = postcard::from_bytes(body).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
    // A job's record holds its secrets, and the buffer lives on.
    body.fill(0);
    buffer.advance(4 + len);
    Ok(Some(frame))
}

#[cfg(test)]
mod tests {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;
    use crate::model::{JobId, Kind};

    #[tokio::test]
    async fn a_request_that_is_too_large_is_an_error_and_those_after_it_are_sent() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let mut theirs = tokio::net::UnixStream::from_std(theirs).unwrap();
        let mut bytes = Vec::new();
        let sent = async {
            let link = KeeperLink::new(Wire::Socket(ours), |_| {}, || {}).unwrap();
            let key = JobId::parse("1").unwrap().key();
            let line = |text| Request::Line { key, op: 1, kind: Kind::Out, text };
            let error = link.tell(line("x".repeat(MAX_FRAME))).unwrap_err();
            assert!(matches!(error, LinkError::TooLarge(len) if len > MAX_FRAME), "{error}");
            link.tell(line("short".into())).unwrap();
            drop(link);
            theirs.read_to_end(&mut bytes).await.unwrap();
        };
        tokio::task::LocalSet::new().run_until(sent).await;
        assert!(bytes.len() < 100 && bytes.ends_with(b"short"), "{} bytes", bytes.len());
    }

    #[test]
    fn fault_54_a_frame_that_has_to_wait_for_room_needs_no_further_descriptor() {
        // In a process of its own: the limit on descriptors is for all threads.
        if std::env::var_os("NO_DESCRIPTORS").is_none() {
            let test = std::env::current_exe().unwrap();
            let name =
                "keeper::link::tests::fault_54_a_frame_that_has_to_wait_for_room_needs_no_further_descriptor";
            let mut command = std::process::Command::new(test);
            command.args(["--exact", name]).env("NO_DESCRIPTORS", "1").stdout(std::process::Stdio::null());
            assert!(command.status().unwrap().success());
            return;
        }
        let sent = async {
            let (ours, theirs) = UnixStream::pair().unwrap();
            theirs.set_nonblocking(true).unwrap();
            let mut theirs = tokio::net::UnixStream::from_std(theirs).unwrap();
            let link = KeeperLink::new(Wire::Socket(ours), |_| {}, || {}).unwrap();
            let next = std::fs::File::open("/dev/null").unwrap();
            let limit = std::os::fd::AsRawFd::as_raw_fd(&next) as u64;
            drop(next);
            let all = getrlimit(Resource::Nofile);
            setrlimit(Resource::Nofile, Rlimit { current: Some(limit), ..all }).unwrap();
            std::fs::File::open("/dev/null").unwrap_err();
            let key = JobId::parse("1").unwrap().key();
            let text = "x".repeat(4 << 20);
            link.tell(Request::Line { key, op: 1, kind: Kind::Out, text: text.clone() }).unwrap();
            drop(link);
            let mut bytes = Vec::new();
            theirs.read_to_end(&mut bytes).await.unwrap();
            assert!(bytes.ends_with(text.as_bytes()), "{} bytes came through", bytes.len());
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
        tokio::task::LocalSet::new().block_on(&runtime.unwrap(), sent);
    }
}
