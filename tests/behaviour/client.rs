//! The client library against a scripted daemon on an unreliable connection (connectors.md §6, faults.md).

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::fake::{Daemon, Job, Relay, numbers, refusal, results};
use step_runner::client::{Address, Client, Error, Event, Options, Request};
use step_runner::error::Exit;
use step_runner::model::JobId;
use step_runner::pb::v1;
use tonic::Code;

struct Scene {
    folder: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn relay(&self, daemon: &Daemon, limits: impl FnMut() -> usize + Send + 'static) -> Relay {
        Relay::start(self.path("relay"), self.path("daemon"), daemon.cut.clone(), limits)
    }

    async fn client(&self, name: &str) -> Client {
        connect(self.path(name), Duration::from_mins(1)).await.unwrap()
    }
}

async fn connect(path: PathBuf, patience: Duration) -> Result<Client, Error> {
    let address: Address = path.to_str().unwrap().parse().unwrap();
    Client::connect_with(address, Options { connect_timeout: patience, reconnect_timeout: patience }).await
}

fn id() -> JobId {
    JobId::parse("42").unwrap()
}

fn binary(length: usize) -> Vec<u8> {
    let mut next = numbers(7);
    (0..length).map(|_| next() as u8).collect()
}

async fn read(client: &Client, offset: u64) -> Result<(Vec<u8>, v1::Status), Error> {
    let mut follow = client.follow(&id(), offset);
    let mut bytes = Vec::new();
    loop {
        match follow.next().await? {
            Event::Log(data) => bytes.extend_from_slice(&data),
            Event::Unfinished(_) => panic!("not asked for"),
            Event::End(status) => return Ok((bytes, *status)),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_20_every_byte_comes_exactly_once_though_the_line_is_cut_at_random_places() {
    let log = binary(1 << 20);
    let daemon = Daemon::with_job("42", Job { log: log.clone(), exit_code: 3, ..Job::default() });
    let scene = Scene::new();
    let _server = daemon.serve(&scene.path("daemon"));
    let mut next = numbers(1);
    let relay = scene.relay(&daemon, move || 1 + (next() % (64 << 10)) as usize);
    let (bytes, status) = read(&scene.client("relay").await, 0).await.unwrap();
    assert!(bytes == log, "{} of {} bytes", bytes.len(), log.len());
    assert_eq!((status.finished, status.exit_code), (true, 3));
    assert!(relay.connections.load(Ordering::Relaxed) > 10, "the line was not cut");
}

#[tokio::test(flavor = "multi_thread")]
async fn step_results_come_once_and_in_order_though_they_are_replayed() {
    let names: Vec<_> = (0..200).map(|number| format!("step-{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let daemon = Daemon::with_job("42", Job { results: results(&names, 0), ..Job::default() });
    let scene = Scene::new();
    let _server = daemon.serve(&scene.path("daemon"));
    // Each connection passes a little more of the replay than the one before.
    let mut limit = 300;
    let relay = scene.relay(&daemon, move || {
        limit = limit * 3 / 2;
        limit
    });
    let mut stream = scene.client("relay").await.follow_steps(&id());
    let mut seen = Vec::new();
    while let Some(result) = stream.next().await.unwrap() {
        seen.push(result.step.map_or_else(String::new, |step| step.name));
    }
    assert_eq!(seen[..200], names);
    assert_eq!(seen[200..], [""]);
    assert!(relay.connections.load(Ordering::Relaxed) > 2, "the line was not cut");
    assert_eq!(stream.next().await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_21_a_stream_that_ends_well_but_early_is_not_believed() {
    let log = binary(20_000);
    let daemon = Daemon::with_job("42", Job { log: log.clone(), ..Job::default() });
    daemon.script.lock().unwrap().early_ends = [20_000, 5_000, 1].into();
    let scene = Scene::new();
    let _server = daemon.serve(&scene.path("daemon"));
    let (bytes, _) = read(&scene.client("daemon").await, 0).await.unwrap();
    assert!(bytes == log);
    assert_eq!(daemon.script.lock().unwrap().offsets, [0, 0, 15_000, 19_999]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_goes_on_at_its_own_offset() {
    let log = binary(10_000);
    let daemon = Daemon::with_job("42", Job { log: log.clone(), ..Job::default() });
    let scene = Scene::new();
    let _server = daemon.serve(&scene.path("daemon"));
    let client = scene.client("daemon").await;
    assert!(read(&client, 1_234).await.unwrap().0 == log[1_234..]);
    assert!(read(&client, 10_000).await.unwrap().0.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_comes_back_is_followed_on() {
    let log = binary(300_000);
    let daemon = Daemon::with_job("42", Job { log: log.clone(), ..Job::default() });
    let scene = Scene::new();
    let _server = daemon.serve(&scene.path("daemon"));
    let relay = scene.relay(&daemon, || 100_000);
    let client = scene.client("relay").await;
    let mut follow = client.follow(&id(), 0);
    let Event::Log(first) = follow.next().await.unwrap() else { panic!("no byte came") };
    relay.stop().await;
    let mut bytes = first.to_vec();
    let _relay = scene.relay(&daemon, || usize::MAX);
    while let Event::Log(data) = follow.next().await.unwrap() {
        bytes.extend_from_slice(&data);
    }
    assert!(bytes == log);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_answer_was_lost_is_sent_again_with_the_same_content_and_starts_once() {
    let daemon = Daemon::default();
    {
        let mut script = daemon.script.lock().unwrap();
        script.next = Some(Job::default());
        script.cut_run = true;
    }
    let scene = Scene::new();
    let _server = daemon.serve(&scene.path("daemon"));
    let _relay = scene.relay(&daemon, || usize::MAX);
    let request = Request::new(id(), "[]").env("A", "b").phrase("c");
    scene.client("relay").await.run(&request).await.unwrap();
    let script = daemon.script.lock().unwrap();
    assert_eq!((script.runs.len(), script.starts), (2, 1));
    assert_eq!(script.runs[0], script.runs[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_daemon_is_asked_again_and_a_refusal_is_not() {
    let daemon = Daemon::default();
    daemon.script.lock().unwrap().run_failures = [
        refusal(Code::ResourceExhausted, "queue_full", "1000 jobs wait", &[]),
        refusal(Code::Unavailable, "shutting_down", "the daemon stops", &[]),
    ]
    .into();
    let scene = Scene::new();
    let _server = daemon.serve(&scene.path("daemon"));
    let client = scene.client("daemon").await;
    client.run(&Request::new(id(), "[]")).await.unwrap();
    assert_eq!(daemon.script.lock().unwrap().runs.len(), 3);

    let refused = refusal(Code::InvalidArgument, "malformed_steps", "1:1", &[]);
    daemon.script.lock().unwrap().run_failures = [refused].into();
    let error = client.run(&Request::new(id(), "x")).await.unwrap_err();
    assert_eq!(error.exit(), Exit::Refused);
    assert_eq!(daemon.script.lock().unwrap().runs.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_stays_full_is_refusal_for_now() {
    let daemon = Daemon::default();
    let full = || refusal(Code::ResourceExhausted, "disk_full", "3 MiB are free", &[]);
    daemon.script.lock().unwrap().run_failures = std::iter::repeat_with(full).take(1000).collect();
    let scene = Scene::new();
    let _server = daemon.serve(&scene.path("daemon"));
    let client = connect(scene.path("daemon"), Duration::from_secs(2)).await.unwrap();
    let error = client.run(&Request::new(id(), "[]")).await.unwrap_err();
    assert_eq!(error.exit(), Exit::TryLater);
    assert!(error.to_string().contains("disk_full"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_gone_is_lost_and_never_submitted_again() {
    let daemon = Daemon::default();
    let scene = Scene::new();
    let _server = daemon.serve(&scene.path("daemon"));
    let client = scene.client("daemon").await;
    client.run(&Request::new(id(), "[]")).await.unwrap();
    let error = read(&client, 0).await.unwrap_err();
    assert_eq!((error.exit(), error.exit().code()), (Exit::Lost, 70));
    assert!(matches!(client.status(&id()).await, Err(Error::Lost { .. })));
    assert!(matches!(client.cancel(&id()).await, Err(Error::Lost { .. })));
    client.finish(&id()).await.unwrap();
    assert_eq!(daemon.script.lock().unwrap().runs.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_log_under_the_same_id_is_lost() {
    let daemon = Daemon::with_job("42", Job { log: b"short".to_vec(), ..Job::default() });
    let scene = Scene::new();
    let _server = daemon.serve(&scene.path("daemon"));
    let error = read(&scene.client("daemon").await, 6).await.unwrap_err();
    assert_eq!(error.exit(), Exit::Lost);
    let said = "offset 6 is past the end of the log of job 42 (5 bytes)";
    assert!(error.to_string().contains(said), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_stays_broken_names_job_and_address() {
    let daemon = Daemon::with_job("42", Job { log: binary(100_000), ..Job::default() });
    let scene = Scene::new();
    let _server = daemon.serve(&scene.path("daemon"));
    let relay = scene.relay(&daemon, || 50_000);
    let address: Address = scene.path("relay").to_str().unwrap().parse().unwrap();
    let options =
        Options { connect_timeout: Duration::from_mins(1), reconnect_timeout: Duration::from_millis(300) };
    let client = Client::connect_with(address, options).await.unwrap();
    let mut follow = client.follow(&id(), 0);
    assert!(matches!(follow.next().await, Ok(Event::Log(_))));
    relay.stop().await;
    let error = loop {
        match follow.next().await {
            Ok(Event::Log(_) | Event::Unfinished(_)) => {}
            Ok(Event::End(status)) => panic!("{status:?}"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.exit(), Exit::Unreachable);
    let remedy = error.remedy().unwrap();
    assert!(remedy.contains("42") && remedy.contains(scene.path("relay").to_str().unwrap()), "{remedy}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_daemon_is_waited_for_only_as_long_as_allowed() {
    let scene = Scene::new();
    let error = connect(scene.path("nobody"), Duration::from_millis(250)).await.unwrap_err();
    assert_eq!(error.exit(), Exit::Unreachable);
    assert!(error.remedy().unwrap().contains("step-runner serve"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_no_socket_is_refused_at_once() {
    let scene = Scene::new();
    std::fs::write(scene.path("file"), "").unwrap();
    let error = connect(scene.path("file"), Duration::from_hours(1)).await.unwrap_err();
    assert_eq!(error.exit(), Exit::Unreachable);
}

/// A sink that takes `room` bytes, then fails as a full disk does.
struct Sink {
    taken: Vec<u8>,
    room: usize,
}

impl tokio::io::AsyncWrite for &mut Sink {
    fn poll_write(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        bytes: &[u8],
    ) -> std::task::Poll<std::io::Result<usize>> {
        let sink = self.get_mut();
        let length = bytes.len().min(sink.room - sink.taken.len());
        if length == 0 {
            return std::task::Poll::Ready(Err(std::io::ErrorKind::StorageFull.into()));
        }
        sink.taken.extend_from_slice(&bytes[..length]);
        std::task::Poll::Ready(Ok(length))
    }

    fn poll_flush(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn poll_shutdown(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_run_followed_and_finished_though_the_line_is_cut() {
    let log = binary(200_000);
    let daemon = Daemon::default();
    let job = Job { log: log.clone(), results: results(&["one", "two"], 5), exit_code: 5, ..Job::default() };
    daemon.script.lock().unwrap().next = Some(job);
    let scene = Scene::new();
    let _server = daemon.serve(&scene.path("daemon"));
    let mut next = numbers(3);
    // More than one HTTP/2 frame passes each time: with less there is no progress.
    let _relay = scene.relay(&daemon, move || 20_000 + (next() % 40_000) as usize);
    let mut sink = Sink { taken: Vec::new(), room: usize::MAX };
    let mut names = Vec::new();
    let take = |result: v1::StepResult| {
        names.push(result.step.map(|step| step.name));
        Ok(())
    };
    let request = Request::new(id(), "[]");
    let status = scene.client("relay").await.run_and_follow(&request, &mut sink, take).await.unwrap();
    assert_eq!(status.exit_code, 5);
    assert!(sink.taken == log);
    assert_eq!(names, [Some("one".to_owned()), Some("two".to_owned()), None]);
    let script = daemon.script.lock().unwrap();
    assert_eq!((script.starts, script.finished.is_empty()), (1, false));
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_92_a_finish_that_fails_leaves_the_end_of_the_job_as_it_is() {
    let daemon = Daemon::default();
    {
        let mut script = daemon.script.lock().unwrap();
        script.next =
            Some(Job { log: binary(100), results: results(&[], 3), exit_code: 3, ..Job::default() });
        script.finish_failure = Some(refusal(Code::Internal, "internal", "a defect", &[]));
    }
    let scene = Scene::new();
    let _server = daemon.serve(&scene.path("daemon"));
    let client = scene.client("daemon").await;
    let mut log = Vec::new();
    let status = client.run_and_follow(&Request::new(id(), "[]"), &mut log, |_| Ok(())).await.unwrap();
    assert_eq!((status.exit_code, log), (3, binary(100)));
    assert_eq!(daemon.script.lock().unwrap().finished, ["42"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_output_is_not_taken_is_finished() {
    let daemon = Daemon::default();
    let job = Job { log: binary(100_000), running: true, ..Job::default() };
    daemon.script.lock().unwrap().next = Some(job);
    let scene = Scene::new();
    let _server = daemon.serve(&scene.path("daemon"));
    let client = scene.client("daemon").await;
    let request = Request::new(id(), "[]");
    let mut sink = Sink { taken: Vec::new(), room: 10_000 };
    let error = client.run_and_follow(&request, &mut sink, |_| Ok(())).await.unwrap_err();
    assert!(matches!(&error, Error::Output { .. }), "{error}");
    assert_eq!(error.exit(), Exit::Failure);
    assert_eq!(daemon.script.lock().unwrap().finished, ["42"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_not_waited_for_any_more_is_finished() {
    let daemon = Daemon::default();
    daemon.script.lock().unwrap().next = Some(Job { log: binary(10), running: true, ..Job::default() });
    let scene = Scene::new();
    let _server = daemon.serve(&scene.path("daemon"));
    let client = scene.client("daemon").await;
    let (request, (mut near, mut far)) = (Request::new(id(), "[]"), tokio::io::duplex(100));
    let running = client.run_and_follow(&request, &mut near, |_| Ok(()));
    let mut log = [0; 10];
    tokio::select! {
        ended = running => panic!("{ended:?}"),
        read = tokio::io::AsyncReadExt::read_exact(&mut far, &mut log) => drop(read.unwrap()),
    }
    let finished = async {
        while daemon.script.lock().unwrap().finished.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), finished).await.unwrap();
    assert_eq!(daemon.script.lock().unwrap().finished, ["42"]);
}

/// Relays one connection until `bytes` bytes of the daemon have passed. Then nothing passes either way, but the
/// connection stays open. Later connections are relayed without limit.
#[cfg(feature = "failpoints")]
async fn freezing_line(listener: tokio::net::UnixListener, daemon: PathBuf, bytes: u64) {
    use tokio::io::{AsyncReadExt, copy, copy_bidirectional};
    let (mut frozen, _) = listener.accept().await.unwrap();
    let mut far = tokio::net::UnixStream::connect(&daemon).await.unwrap();
    let ((mut near_read, mut near_write), (far_read, mut far_write)) = (frozen.split(), far.split());
    let mut passing = far_read.take(bytes);
    tokio::select! {
        _ = copy(&mut passing, &mut near_write) => {}
        _ = copy(&mut near_read, &mut far_write) => {}
    }
    loop {
        let (mut near, _) = listener.accept().await.unwrap();
        let mut far = tokio::net::UnixStream::connect(&daemon).await.unwrap();
        tokio::spawn(async move { copy_bidirectional(&mut near, &mut far).await.ok() });
    }
}

// Needs tokio's paused clock, because a minute passes in the test.
#[cfg(feature = "failpoints")]
#[tokio::test(start_paused = true)]
async fn fault_20_a_line_that_falls_silent_is_lost_within_a_minute_and_followed_on() {
    let log = binary(100_000);
    let daemon = Daemon::with_job("42", Job { log: log.clone(), exit_code: 3, ..Job::default() });
    let scene = Scene::new();
    let _server = daemon.serve(&scene.path("daemon"));
    let listener = tokio::net::UnixListener::bind(scene.path("relay")).unwrap();
    let _line = tokio::spawn(freezing_line(listener, scene.path("daemon"), 50_000));
    let client = scene.client("relay").await;
    let (bytes, status) =
        tokio::time::timeout(Duration::from_mins(1), read(&client, 0)).await.unwrap().unwrap();
    assert!(bytes == log, "{} of {} bytes", bytes.len(), log.len());
    assert_eq!((status.finished, status.exit_code), (true, 3));
    let offsets = daemon.script.lock().unwrap().offsets.clone();
    assert!(matches!(offsets[..], [0, again] if again > 0), "{offsets:?}");
}
