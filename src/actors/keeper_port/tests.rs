use super::*;

#[test]
fn a_keeper_that_ends_its_jobs_is_waited_for_as_long_as_that_may_take() {
    let config = Config {
        cancel_grace: Duration::from_mins(5),
        kill_wait: Duration::from_mins(2),
        ..Config::default()
    };
    assert!(find_time(&config) > Duration::from_mins(5 + 2) + GIVE_UP_AFTER);
}

/// Keepers that keep silent, on virtual time.
#[cfg(feature = "failpoints")]
mod silent {
    use std::cell::RefCell;
    use std::io::{Result, Seek};
    use std::os::unix::net::UnixStream;
    use std::path::PathBuf;

    use actix::{AsyncContext, Context};
    use parking_lot::Mutex;
    use rustix::io::Errno;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::task::LocalSet;

    use super::super::silence::{ANSWER_TIME, BYE_TIME, WAKE_AFTER};
    use super::*;
    use crate::actors::supervisor::Supervisor;
    use crate::keeper::protocol::ToKeeper;
    use crate::model::ProcessInfo;
    use crate::process::remains::Remains;

    const STARTED: u32 = 8;

    /// A host with a keeper that accepts connections and never answers.
    struct Silent(Mutex<Life>);

    struct Life {
        alive: bool,
        /// Until then the keeper's process cannot be identified.
        unknown_until: Instant,
        /// Until then looking for the keeper fails with this error.
        unseen: Option<(Errno, Instant)>,
        woken: Option<Instant>,
        killed: Option<Instant>,
        /// True if it answers a Hello.
        answers: bool,
        /// True if new keepers hang before they take the lock; `hanging` is the pid of one that does.
        hangs: bool,
        hanging: Option<u32>,
        /// The keeper's ends of its connections.
        ends: Vec<UnixStream>,
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

    struct Scene {
        port: KeeperPort,
        host: Arc<Silent>,
        supervisor: Recipient<KeeperGone>,
        begun: Instant,
        _dir: tempfile::TempDir,
    }

    impl Scene {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let process = ProcessInfo { boot_id: "boot".into(), pid: 1, start_time: 1 };
            let state = StateDir::open(&dir.path().join("state"), &process).unwrap();
            let host = Arc::new(Silent::new());
            let port = KeeperPort::new(state, Arc::default(), Arc::default(), false, Arc::clone(&host) as _)
                .unwrap();
            // Nobody reads this mailbox.
            let supervisor = Context::<Supervisor>::new().address().recipient();
            Self { port, host, supervisor, begun: Instant::now(), _dir: dir }
        }

        /// A keeper that was greeted before it fell silent.
        async fn greeted(self) -> Self {
            let wire = self.host.connect(&self.port.state).unwrap();
            let link = KeeperLink::new(wire, |_| {}, || {}).unwrap();
            let keeper = Keeper { link, digest_key: [0; 16], unenforceable: Arc::new([]) };
            *self.port.keeper.lock().await = Some(keeper);
            self
        }

        /// A keeper that was greeted and whose connection is over.
        async fn cut_off(self) -> Self {
            let scene = self.greeted().await;
            scene.host.0.lock().ends.clear();
            while !scene.port.now().unwrap().link.is_over() {
                tokio::task::yield_now().await;
            }
            scene
        }

        fn passed(&self, since: Option<Instant>) -> Duration {
            since.unwrap() - self.begun
        }
    }

    async fn play(play: impl AsyncFnOnce(Scene)) {
        LocalSet::new().run_until(async { play(Scene::new()).await }).await;
    }

    const MOMENT: Duration = Duration::from_millis(100);

    #[tokio::test(start_paused = true)]
    async fn fault_42_a_keeper_found_silent_is_continued_and_then_killed() {
        play(async |scene| {
            let found = scene.port.find(&scene.supervisor).await;
            assert!(found.unwrap().is_none(), "its jobs are those of a dead one");
            let life = scene.host.0.lock();
            assert!(scene.passed(life.woken) < WAKE_AFTER + MOMENT);
            assert!(!life.alive && scene.passed(life.killed) >= ANSWER_TIME);
            assert!(scene.begun.elapsed() < ANSWER_TIME + MOMENT);
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn fault_42_a_silent_keeper_that_cannot_be_ended_is_an_error_and_no_wait() {
        play(async |scene| {
            scene.host.0.lock().unknown_until += Duration::from_hours(1);
            let problem = scene.port.find(&scene.supervisor).await.err().unwrap().to_string();
            assert!(problem.contains("keeper.lock"), "{problem}");
            assert!(scene.begun.elapsed() < 2 * ANSWER_TIME);
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_keeper_that_keeps_silent_refuses_its_job_and_leaves_room_for_another() {
        play(async |scene| {
            scene.host.0.lock().alive = false;
            for _ in 0..2 {
                let Err(problem) = scene.port.get(&scene.supervisor).await else { panic!("no keeper") };
                assert!(matches!(problem, KeeperProblem::Link(LinkError::Silent)), "{problem}");
                assert!(!scene.host.0.lock().alive);
            }
            assert!(scene.port.living().await.is_none());
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_keeper_that_a_killed_daemon_had_just_started_makes_way_for_another() {
        play(async |scene| {
            scene.host.0.lock().answers = true;
            let keeper = scene.port.get(&scene.supervisor).await.unwrap();
            assert!(!keeper.link.is_over() && scene.host.0.lock().killed.is_some());
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_keeper_that_hangs_before_it_has_its_lock_is_killed() {
        play(async |scene| {
            {
                let mut life = scene.host.0.lock();
                (life.alive, life.hangs) = (false, true);
            }
            let Err(problem) = scene.port.get(&scene.supervisor).await else { panic!("no keeper") };
            assert!(matches!(problem, KeeperProblem::Link(LinkError::Silent)), "{problem}");
            assert_eq!(scene.host.0.lock().hanging, None);
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn fault_58_a_stop_leaves_no_keeper_that_hangs_in_its_start() {
        play(async |scene| {
            {
                let mut life = scene.host.0.lock();
                (life.alive, life.hangs) = (false, true);
            }
            let stop = async {
                tokio::time::sleep(MOMENT).await;
                assert!(!scene.port.say_bye().await);
                assert_eq!(scene.host.0.lock().hanging, None);
            };
            let (got, ()) = tokio::join!(scene.port.get(&scene.supervisor), stop);
            assert!(got.is_err());
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_keeper_gets_its_time_to_die_though_an_earlier_one_did_not_die_in_it() {
        play(async |scene| {
            {
                let mut life = scene.host.0.lock();
                (life.alive, life.unknown_until) = (false, scene.begun + Duration::from_hours(1));
            }
            let Err(problem) = scene.port.get(&scene.supervisor).await else { panic!("no keeper") };
            assert!(matches!(problem, KeeperProblem::Lasting { .. }), "{problem}");
            {
                let mut life = scene.host.0.lock();
                (life.alive, life.answers) = (false, true);
            }
            let link = scene.port.get(&scene.supervisor).await.unwrap().link;
            {
                let mut life = scene.host.0.lock();
                for end in life.ends.drain(..) {
                    end.shutdown(std::net::Shutdown::Both).unwrap();
                }
                life.unknown_until = Instant::now() + MOMENT;
            }
            while !link.is_over() {
                tokio::task::yield_now().await;
            }
            scene.port.try_forget().await.unwrap();
            assert!(!scene.host.0.lock().alive);
        })
        .await;
    }

    /// Answers a Hello after `at_hello`, and anything else after `delay`.
    async fn answer(stream: UnixStream, at_hello: Duration, delay: Duration) {
        stream.set_nonblocking(true).unwrap();
        let (mut read, mut write) = tokio::net::UnixStream::from_std(stream).unwrap().into_split();
        let (answers, mut ready) = tokio::sync::mpsc::unbounded_channel();
        tokio::task::spawn_local(async move {
            while let Some((id, reply)) = ready.recv().await {
                let body = postcard::to_stdvec(&FromKeeper::Reply { id, reply: Ok(reply) }).unwrap();
                write.write_u32_le(body.len() as u32).await.unwrap();
                write.write_all(&body).await.unwrap();
            }
        });
        while let Ok(len) = read.read_u32_le().await {
            let mut body = vec![0; len as usize];
            read.read_exact(&mut body).await.unwrap();
            let ToKeeper { id, request } = postcard::from_bytes(&body).unwrap();
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

    fn hello(version: u32, digest_key: [u8; 16]) -> Reply {
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

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_takes_its_time_is_waited_for_while_the_keeper_answers_others() {
        play(async |scene| {
            let scene = scene.greeted().await;
            let theirs = scene.host.0.lock().ends.remove(0);
            tokio::task::spawn_local(answer(theirs, Duration::ZERO, 3 * ANSWER_TIME));
            let link = scene.port.now().unwrap().link;
            let key = crate::model::JobId::parse("1").unwrap().key();
            let asked = scene.port.ask_living(&link, Request::Resume { key }).await;
            assert!(matches!(asked, Ok(Reply::Done)), "{asked:?}");
            assert!(scene.begun.elapsed() >= 3 * ANSWER_TIME && scene.host.0.lock().woken.is_none());
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_operator_hears_once_of_a_keeper_that_is_slow_again_and_again() {
        // Runs in a process of its own: the first thread that writes a log line settles who gets all lines.
        if std::env::var_os("LOG_OF_PORT").is_none() {
            let test = std::env::current_exe().unwrap();
            let name = "actors::keeper_port::tests::silent::\
                        the_operator_hears_once_of_a_keeper_that_is_slow_again_and_again";
            let mut command = std::process::Command::new(test);
            command.args(["--exact", name]).env("LOG_OF_PORT", "1").stdout(std::process::Stdio::null());
            assert!(command.status().unwrap().success());
            return;
        }
        let log = Arc::new(tempfile::tempfile().unwrap());
        let writer = tracing_subscriber::fmt().with_writer(Arc::clone(&log)).finish();
        let _writes = tracing::subscriber::set_default(writer);
        play(async |scene| {
            let scene = scene.greeted().await;
            let theirs = scene.host.0.lock().ends.remove(0);
            tokio::task::spawn_local(answer(theirs, 2 * WAKE_AFTER, ANSWER_TIME));
            let link = scene.port.now().unwrap().link;
            let key = crate::model::JobId::parse("1").unwrap().key();
            scene.port.ask_living(&link, Request::Resume { key }).await.unwrap();
        })
        .await;
        (&*log).rewind().unwrap();
        let said = std::io::read_to_string(&*log).unwrap();
        assert_eq!(said.matches("does not answer").count(), 1, "{said}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_not_waited_for_when_the_keeper_answers_nothing() {
        play(async |scene| {
            let scene = scene.greeted().await;
            let link = scene.port.now().unwrap().link;
            let key = crate::model::JobId::parse("1").unwrap().key();
            let asked = scene.port.ask_living(&link, Request::Resume { key }).await;
            assert!(matches!(asked, Err(LinkError::Silent)), "{asked:?}");
            assert!(scene.begun.elapsed() < 2 * ANSWER_TIME && scene.host.0.lock().woken.is_some());
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn fault_54_a_keeper_that_cannot_be_looked_at_counts_as_living_until_it_can() {
        play(async |scene| {
            let scene = scene.cut_off().await;
            let back = scene.begun + Duration::from_secs(20);
            {
                let mut life = scene.host.0.lock();
                (life.unseen, life.unknown_until) = (Some((Errno::MFILE, back)), back);
            }
            let forgotten = RefCell::new(false);
            let forget = async {
                scene.port.forget().await;
                *forgotten.borrow_mut() = true;
            };
            let run = async {
                tokio::time::sleep(Duration::from_secs(10)).await;
                let Err(problem) = scene.port.get(&scene.supervisor).await else { panic!("no keeper") };
                assert!(matches!(problem, KeeperProblem::Io(_)), "{problem}");
                assert!(!*forgotten.borrow(), "its jobs were to be interrupted beside it");
            };
            tokio::join!(forget, run);
            assert!(scene.host.0.lock().killed.unwrap() >= back);
            assert!(scene.port.now().is_none());
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_that_can_never_be_read_holds_nothing_up() {
        play(async |scene| {
            let scene = scene.cut_off().await;
            scene.host.0.lock().unseen = Some((Errno::ACCESS, scene.begun + Duration::from_hours(1)));
            scene.port.forget().await;
            assert!(!scene.host.0.lock().alive);
            assert!(scene.begun.elapsed() < Duration::from_secs(10));
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn fault_58_a_keeper_that_does_not_hear_the_bye_is_killed() {
        play(async |scene| {
            let scene = scene.greeted().await;
            assert!(!scene.port.say_bye().await);
            assert!(!scene.host.0.lock().alive);
            assert!(scene.begun.elapsed() < BYE_TIME + MOMENT);
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn fault_58_a_stop_does_not_wait_behind_a_start_of_a_keeper() {
        play(async |scene| {
            scene.host.0.lock().alive = false;
            let stop = async {
                tokio::time::sleep(MOMENT).await;
                assert!(!scene.port.say_bye().await);
                assert!(scene.begun.elapsed() < BYE_TIME + 2 * MOMENT);
            };
            let (got, ()) = tokio::join!(scene.port.get(&scene.supervisor), stop);
            assert!(got.is_err());
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_bye_without_a_keeper_is_heard() {
        play(async |scene| assert!(scene.port.say_bye().await)).await;
    }
}

#[test]
fn a_refusal_for_want_of_a_keeper_says_why() {
    let problem = KeeperProblem::from(std::io::Error::other("no memory"));
    let refusal = Refusal::from(problem).to_string();
    assert!(refusal.contains("cannot start or reach the keeper: no memory"), "{refusal}");
}
