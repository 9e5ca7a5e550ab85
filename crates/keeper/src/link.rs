//! The daemon's end of the connection to the keeper: sends frames, receives replies and events.
//!
//! Owns one writer and one reader task. Frames are written in the order of the calls. Frames of many
//! jobs go out in one write. The reader passes every event to one callback and every reply to its
//! asker.

mod queue;

use std::collections::BTreeMap;
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
use tokio::sync::{Notify, mpsc, oneshot};

use super::protocol::{FromKeeper, KeeperError, MAX_FRAME, Reply, Request, ToKeeper};
use queue::{FrameQueue, Queued};
use step_runner_model::error::Chain;
use step_runner_system::threads::{self, Work};

/// Bytes read from the socket at a time; frames of the keeper are small.
const READ_CHUNK: usize = 32 << 10;

/// Most retries of a send, or of a wait for room, that fails for a passing reason such as want of memory.
const TRIES: u32 = 100;

/// Pause between two such retries.
const PAUSE: Duration = Duration::from_millis(10);

/// Failure of a request to the keeper.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The keeper died, or the connection was replaced.
    #[error("the keeper is gone")]
    Gone,
    /// The keeper refused.
    #[error(transparent)]
    Refused(#[from] KeeperError),
    /// The request is larger than [`MAX_FRAME`].
    #[error("a request of {0} bytes is too large for the keeper")]
    TooLarge(usize),
    /// The keeper may live, but has not answered in time.
    #[error("the keeper does not answer")]
    Silent,
    /// The keeper speaks another protocol, or broke ours.
    #[error("the keeper does not speak this daemon's protocol")]
    Protocol,
}

type ReplyToCome = oneshot::Receiver<Result<Reply, KeeperError>>;

/// Receivers of replies by request id. `None` once the connection is over: no request may wait then. The map is ordered,
/// so the end of the connection fails the requests in the order in which they were made.
type Waiting = Arc<Mutex<Option<BTreeMap<u64, oneshot::Sender<Result<Reply, KeeperError>>>>>>;

/// One end of a new connection to a keeper.
pub enum KeeperWire {
    /// To a process.
    Socket(UnixStream),
    /// To a test that plays the keeper.
    #[cfg(feature = "failpoints")]
    Memory(tokio::io::DuplexStream),
}

/// Requests with more bytes than this are encoded on another thread: other calls must not wait that long.
const LARGE: usize = 256 << 10;

/// An encoded request that wants no reply. Any thread can make it.
pub struct KeeperFrame(Vec<u8>);

impl KeeperFrame {
    /// # Errors
    /// [`LinkError::TooLarge`]
    pub fn of(request: Request) -> Result<Self, LinkError> {
        encode(&ToKeeper { id: 0, request }).map(Self)
    }

    /// Returns the request, as the keeper reads it. Tests look into frames with it.
    pub fn request(&self) -> Option<Request> {
        postcard::from_bytes::<ToKeeper>(self.0.get(4..)?).ok().map(|message| message.request)
    }
}

/// A connection to the keeper. Clones share it.
#[derive(Clone)]
pub struct KeeperLink {
    frames: mpsc::UnboundedSender<Queued>,
    waiting: Waiting,
    next_id: Arc<AtomicU64>,
    /// Notified of each request.
    requested: Arc<Notify>,
}

impl KeeperLink {
    /// Takes over a connection. Calls `on_event` for every event, in order; it must not block. Calls `on_end` once,
    /// when the connection is over. Both run on the calling thread, which must be in a `LocalSet`: the actors live
    /// there too, so an event costs no switch of threads.
    pub fn new(
        wire: KeeperWire,
        mut on_event: impl FnMut(FromKeeper) + 'static,
        on_end: impl FnOnce() + 'static,
    ) -> io::Result<Self> {
        let (mut read, write) = wire.split()?;
        let (frames, queue) = mpsc::unbounded_channel();
        let waiting: Waiting = Arc::new(Mutex::new(Some(BTreeMap::new())));
        let link = Self {
            frames,
            waiting: Arc::clone(&waiting),
            next_id: Arc::new(AtomicU64::new(1)),
            requested: Arc::default(),
        };
        tokio::task::spawn_local(write_frames(write, queue));
        let ended = Arc::clone(&link.requested);
        tokio::task::spawn_local(async move {
            if let Err(error) = read_frames(&mut *read, &waiting, &mut on_event).await {
                tracing::warn!(error = %Chain(&error), "connection to the keeper broke");
            }
            *waiting.lock() = None;
            ended.notify_one();
            on_end();
        });
        Ok(link)
    }

    /// Sends a request that wants no reply. If it is lost, the connection ends. A request that cannot be sent at all
    /// ([`LinkError::TooLarge`]) is reported only here.
    ///
    /// The queue has no bound of its own: each job has a handful of requests under way, and the number of jobs is
    /// bounded.
    pub fn tell(&self, request: Request) -> Result<(), LinkError> {
        self.send(KeeperFrame::of(request)?);
        Ok(())
    }

    /// Sends an encoded request as [`Self::tell`] does.
    pub fn send(&self, KeeperFrame(bytes): KeeperFrame) {
        self.enqueue(Queued { bytes, may_wait: false, sent: None });
    }

    /// Sends an encoded request that nobody waits for: with the next other request, or a little later.
    pub fn send_later(&self, KeeperFrame(bytes): KeeperFrame) {
        self.enqueue(Queued { bytes, may_wait: true, sent: None });
    }

    /// Sends a request without data of the job as [`Self::send_later`] does.
    pub fn tell_later(&self, request: Request) {
        match KeeperFrame::of(request) {
            Ok(frame) => self.send_later(frame),
            Err(error) => {
                tracing::error!(error = %Chain(&error), "request to the keeper was not sent");
            }
        }
    }

    /// Sends a request without data of the job: it is never too large.
    pub fn tell_short(&self, request: Request) {
        if let Err(error) = self.tell(request) {
            tracing::error!(error = %Chain(&error), "request to the keeper was not sent");
        }
    }

    /// Sends requests without data of a job. Returns once they are in the socket. From then on the keeper learns of them
    /// even if this process dies: it handles what a daemon has sent before it listens to the next one. Requests of several
    /// callers go out in one write.
    pub async fn hand_over<const N: usize>(&self, requests: [Request; N]) -> Result<(), LinkError> {
        if self.is_over() {
            return Err(LinkError::Gone);
        }
        let frames = requests.into_iter().map(KeeperFrame::of).collect::<Result<Vec<_>, _>>()?;
        for frame in frames {
            self.send(frame);
        }
        let (told, sent) = oneshot::channel();
        self.enqueue(Queued { bytes: Vec::new(), may_wait: false, sent: Some(told) });
        sent.await.map_err(|_| LinkError::Gone)
    }

    /// Resolves once all that was queued so far is in the socket. That may take a little, as for [`Self::send_later`].
    pub fn sent(&self) -> impl Future<Output = Result<(), LinkError>> + use<> {
        let (told, sent) = oneshot::channel();
        self.enqueue(Queued { bytes: Vec::new(), may_wait: true, sent: Some(told) });
        async move { sent.await.map_err(|_| LinkError::Gone) }
    }

    /// Sends a request and waits for its reply.
    pub async fn ask(&self, request: Request) -> Result<Reply, LinkError> {
        let id = self.next_id();
        let frame = ToKeeper { id, request };
        let frame = if is_large(&frame.request) {
            threads::run(Work::Requests, move || encode(&frame)).await.map_err(|_| LinkError::Protocol)?
        } else {
            encode(&frame)
        }?;
        answered(self.queue(id, frame)?).await
    }

    fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    fn queue(&self, id: u64, bytes: Vec<u8>) -> Result<ReplyToCome, LinkError> {
        let (answer, reply) = oneshot::channel();
        self.waiting.lock().as_mut().ok_or(LinkError::Gone)?.insert(id, answer);
        if !self.enqueue(Queued { bytes, may_wait: false, sent: None }) {
            self.forget(id);
            return Err(LinkError::Gone);
        }
        Ok(reply)
    }

    /// Queues a frame, or a mark without bytes. False if the connection is over.
    fn enqueue(&self, frame: Queued) -> bool {
        self.requested.notify_one();
        self.frames.send(frame).is_ok()
    }

    /// True if a request waits for its reply.
    pub fn is_waiting(&self) -> bool {
        self.waiting.lock().as_ref().is_some_and(|waiting| !waiting.is_empty())
    }

    /// Returns a link that does not keep the connection open.
    pub fn downgrade(&self) -> WeakKeeperLink {
        WeakKeeperLink {
            frames: self.frames.downgrade(),
            waiting: Arc::clone(&self.waiting),
            next_id: Arc::clone(&self.next_id),
            requested: Arc::clone(&self.requested),
        }
    }

    /// True if the connection has ended: requests are lost, and none is answered.
    pub fn is_over(&self) -> bool {
        self.waiting.lock().is_none()
    }

    fn forget(&self, id: u64) {
        if let Some(waiting) = self.waiting.lock().as_mut() {
            waiting.remove(&id);
        }
    }
}

/// A link that does not keep the connection open.
pub struct WeakKeeperLink {
    frames: mpsc::WeakUnboundedSender<Queued>,
    waiting: Waiting,
    next_id: Arc<AtomicU64>,
    requested: Arc<Notify>,
}

impl WeakKeeperLink {
    /// Returns the link, unless all others were dropped.
    pub fn upgrade(&self) -> Option<KeeperLink> {
        Some(KeeperLink {
            frames: self.frames.upgrade()?,
            waiting: Arc::clone(&self.waiting),
            next_id: Arc::clone(&self.next_id),
            requested: Arc::clone(&self.requested),
        })
    }

    /// Resolves with the next request, or at once if there was one since the last call, and at the end of the
    /// connection. For one caller.
    pub async fn next_request(&self) {
        self.requested.notified().await;
    }
}

async fn answered(reply: ReplyToCome) -> Result<Reply, LinkError> {
    Ok(reply.await.map_err(|_| LinkError::Gone)??)
}

/// True if a request takes too long to encode on the actors' thread.
fn is_large(request: &Request) -> bool {
    held_bytes(request) > LARGE
}

/// Returns the size of a request's record and phrases, in bytes.
fn held_bytes(request: &Request) -> usize {
    let all = |phrases: &[Vec<u8>]| phrases.iter().map(Vec::len).sum::<usize>();
    match request {
        Request::Register(asked) => asked.record.len() + all(&asked.phrases),
        Request::Phrases { phrases, .. } => all(phrases),
        _ => 0,
    }
}

/// Length in bytes that most frames do not exceed.
const USUAL_FRAME: usize = 256;

fn encode(frame: &ToKeeper) -> Result<Vec<u8>, LinkError> {
    let mut bytes = Vec::with_capacity(USUAL_FRAME);
    bytes.extend_from_slice(&[0; 4]);
    let mut bytes = postcard::to_extend(frame, bytes).map_err(|error| {
        tracing::error!(error = %Chain(&error), "a request to the keeper cannot be encoded");
        LinkError::Protocol
    })?;
    let len = bytes.len() - 4;
    if len > MAX_FRAME {
        return Err(LinkError::TooLarge(len));
    }
    bytes[..4].copy_from_slice(&(len as u32).to_le_bytes());
    Ok(bytes)
}

impl KeeperWire {
    fn split(self) -> io::Result<(Box<dyn AsyncRead + Unpin>, Writer)> {
        match self {
            Self::Socket(stream) => {
                stream.set_nonblocking(true)?;
                let (to, spare) = (stream.try_clone()?, Some(stream.try_clone()?.into()));
                // `Receiver` is meant for pipes and waits for bytes only. The type for sockets would also wake up for
                // the room that each read of the keeper makes.
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

/// Destination of frames.
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

    /// Closes the sending end.
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

async fn write_frames(mut to: Writer, frames: mpsc::UnboundedReceiver<Queued>) {
    let mut queue = FrameQueue::new(frames);
    while let Some(batch) = queue.next_batch().await {
        if to.write_all(&batch.bytes).await.is_err() {
            break; // the reader sees the same end and reports it
        }
        for told in batch.sent {
            told.send(()).ok();
        }
    }
    // Usually the last link was dropped: the keeper sees the end and closes its side, which ends the reader.
    to.end().await;
}

/// The sending end of a socket.
struct Sending {
    to: UnixStream,
    /// Second descriptor of the socket, for waiting: so a wait works without a free descriptor (faults.md row 54).
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
            // Later frames wait, so a pause loses nothing; giving up would lose all jobs.
            if tries == TRIES {
                return Err(failed);
            }
            tries += 1;
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Waits for room. Registers for this wait only: see [`KeeperWire::split`].
    async fn room(&mut self) -> io::Result<()> {
        let spare = self.spare.take().map_or_else(|| self.to.try_clone().map(OwnedFd::from), Ok)?;
        let registered = Sender::from_owned_fd_unchecked(spare)?;
        let waited = registered.writable().await;
        self.spare = registered.into_nonblocking_fd().ok();
        waited
    }
}

/// True if the other end is gone. Any other failure to send may pass.
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
    // No limit here: the keeper is ours, and its frames are small.
    let len = u32::from_le_bytes(*header) as usize;
    let Some(body) = buffer.get_mut(4..4 + len) else { return Ok(None) };
    let frame = postcard::from_bytes(body).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
    // Wipe the frame: a job's record holds its secrets, and the buffer lives on.
    body.fill(0);
    buffer.advance(4 + len);
    Ok(Some(frame))
}

#[cfg(test)]
mod tests;
