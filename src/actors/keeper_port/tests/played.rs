//! A keeper that a test plays, on virtual time, and the port that reaches it.

use std::io::Result;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use actix::{AsyncContext, Context};
use parking_lot::Mutex;
use rustix::io::Errno;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::LocalSet;

use super::*;
use crate::actors::supervisor::Supervisor;
use crate::keeper::protocol::ToKeeper;
use crate::model::ProcessInfo;
use crate::process::remains::Remains;
use crate::process::sweep::Process;

pub(super) const STARTED: u32 = 8;

/// A host with a keeper that accepts connections and never answers.
pub(super) struct Silent(pub(super) Mutex<Life>);

pub(super) struct Life {
    pub(super) alive: bool,
    /// Until then the keeper's process cannot be identified.
    pub(super) unknown_until: Instant,
    /// Until then looking for the keeper fails with this error.
    pub(super) unseen: Option<(Errno, Instant)>,
    pub(super) woken: Option<Instant>,
    pub(super) killed: Option<Instant>,
    /// True if it answers a Hello.
    pub(super) answers: bool,
    /// True if new keepers hang before they take the lock; `hanging` is the pid of one that does.
    pub(super) hangs: bool,
    pub(super) hanging: Option<u32>,
    /// The keeper's ends of its connections.
    pub(super) ends: Vec<UnixStream>,
}

impl Silent {
    fn new() -> Self {
        Self(Mutex::new(Life {
            alive: true,
            unknown_until: Instant::now(),
            unseen: None,
            woken: None,
            killed: None,
            answers: false,
            hangs: false,
            hanging: None,
            ends: Vec::new(),
        }))
    }
}

impl Host for Silent {
    fn has_keeper(&self, _: &StateDir) -> Result<bool> {
        let life = self.0.lock();
        match life.unseen.filter(|(_, until)| Instant::now() < *until) {
            Some((error, _)) => Err(error.into()),
            None => Ok(life.alive),
        }
    }

    fn connect(&self, _: &StateDir) -> Result<KeeperWire> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut life = self.0.lock();
        if life.answers {
            tokio::task::spawn_local(answer(theirs.try_clone()?, Duration::ZERO, Duration::ZERO));
        }
        life.ends.push(theirs);
        Ok(KeeperWire::Socket(ours))
    }

    fn start_keeper(&self, state: &StateDir, _: CgroupMode) -> Result<Started> {
        let pid = {
            let mut life = self.0.lock();
            if life.alive {
                // The lock is held: a second keeper ends at once.
                return Ok(Started { wire: KeeperWire::Socket(UnixStream::pair()?.0), process: None });
            }
            life.alive = !life.hangs;
            life.hanging = life.hangs.then_some(STARTED);
            STARTED
        };
        let process = Process { pid, parent: 1, group: pid, session: pid, start_time: 1, zombie: false };
        Ok(Started { wire: self.connect(state)?, process: Some(process) })
    }

    fn kill_started(&self, started: &Process) -> Option<u32> {
        let mut life = self.0.lock();
        life.hanging.take_if(|hanging| *hanging == started.pid)
    }

    fn kill_keeper(&self, _: &StateDir, _: Option<Process>) -> Option<u32> {
        let mut life = self.0.lock();
        if !life.alive || Instant::now() < life.unknown_until {
            return None;
        }
        life.alive = false;
        life.killed = Some(Instant::now());
        life.ends.clear();
        Some(7)
    }

    fn wake_keeper(&self, _: &StateDir, _: Option<Process>) -> Option<u32> {
        self.0.lock().woken.get_or_insert_with(Instant::now);
        Some(7)
    }

    fn control_group(&self) -> std::result::Result<PathBuf, CgroupError> {
        Err(CgroupError::NotMounted)
    }

    fn kill(&self, _: &Remains, _: Duration) -> Vec<u32> {
        Vec::new()
    }
}

pub(super) struct Scene {
    pub(super) port: KeeperPort,
    pub(super) host: Arc<Silent>,
    pub(super) supervisor: Recipient<KeeperGone>,
    pub(super) begun: Instant,
    _dir: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let process = ProcessInfo { boot_id: "boot".into(), pid: 1, start_time: 1 };
        let state = StateDir::open(&dir.path().join("state"), &process).unwrap();
        let host = Arc::new(Silent::new());
        let port =
            KeeperPort::new(state, Arc::default(), Arc::default(), false, Arc::clone(&host) as _).unwrap();
        // Nobody reads this mailbox.
        let supervisor = Context::<Supervisor>::new().address().recipient();
        Self { port, host, supervisor, begun: Instant::now(), _dir: dir }
    }

    /// A keeper that was greeted before it fell silent.
    pub(super) async fn greeted(self) -> Self {
        let wire = self.host.connect(&self.port.state).unwrap();
        let link = KeeperLink::new(wire, |_| {}, || {}).unwrap();
        let keeper = Keeper { link, digest_key: [0; 16], unenforceable: Arc::new([]) };
        assert!(matches!(self.port.connection.decided(Wish::Get).await, Decision::Start));
        self.port.connection.change(|connection| connection.connected(keeper, None));
        self
    }

    /// A keeper that was greeted and whose connection is over.
    pub(super) async fn cut_off(self) -> Self {
        let scene = self.greeted().await;
        scene.host.0.lock().ends.clear();
        while !scene.port.now().unwrap().link.is_over() {
            tokio::task::yield_now().await;
        }
        scene
    }

    pub(super) fn passed(&self, since: Option<Instant>) -> Duration {
        since.unwrap() - self.begun
    }
}

pub(super) async fn play(play: impl AsyncFnOnce(Scene)) {
    LocalSet::new().run_until(async { play(Scene::new()).await }).await;
}

/// Answers a Hello after `at_hello`, and anything else after `delay`.
pub(super) async fn answer(stream: UnixStream, at_hello: Duration, delay: Duration) {
    let (mut read, mut write) = halves(stream);
    let (answers, mut ready) = tokio::sync::mpsc::unbounded_channel();
    tokio::task::spawn_local(async move {
        while let Some((id, reply)) = ready.recv().await {
            send(&mut write, id, reply).await;
        }
    });
    while let Some(ToKeeper { id, request }) = next(&mut read).await {
        let (delay, reply) = match request {
            Request::Hello { version, digest_key, .. } => (at_hello, hello(version, digest_key)),
            _ => (delay, Reply::Done),
        };
        let answers = answers.clone();
        tokio::task::spawn_local(async move {
            tokio::time::sleep(delay).await;
            answers.send((id, reply)).ok();
        });
    }
}

pub(super) fn halves(stream: UnixStream) -> (OwnedReadHalf, OwnedWriteHalf) {
    stream.set_nonblocking(true).unwrap();
    tokio::net::UnixStream::from_std(stream).unwrap().into_split()
}

pub(super) async fn next(read: &mut OwnedReadHalf) -> Option<ToKeeper> {
    let mut body = vec![0; read.read_u32_le().await.ok()? as usize];
    read.read_exact(&mut body).await.unwrap();
    Some(postcard::from_bytes(&body).unwrap())
}

pub(super) async fn send(write: &mut OwnedWriteHalf, id: u64, reply: Reply) {
    let body = postcard::to_stdvec(&FromKeeper::Reply { id, reply: Ok(reply) }).unwrap();
    write.write_u32_le(body.len() as u32).await.unwrap();
    write.write_all(&body).await.unwrap();
}

pub(super) fn hello(version: u32, digest_key: [u8; 16]) -> Reply {
    Reply::Hello {
        version,
        pid: STARTED,
        cgroup: None,
        jobs: Vec::new(),
        remembered: Vec::new(),
        digest_key,
        unenforceable: Vec::new(),
    }
}
