use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;
use step_runner_model::{JobId, LogChannel};

#[tokio::test]
async fn a_request_that_is_too_large_is_an_error_and_those_after_it_are_sent() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    let mut theirs = tokio::net::UnixStream::from_std(theirs).unwrap();
    let mut bytes = Vec::new();
    let sent = async {
        let link = KeeperLink::new(KeeperWire::Socket(ours), |_| {}, || {}).unwrap();
        let key = JobId::parse("1").unwrap().key();
        let line = |text| Request::Line { key, op: 1, kind: LogChannel::Out, text };
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
    // In a process of its own: the limit on descriptors applies to all threads.
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
        let link = KeeperLink::new(KeeperWire::Socket(ours), |_| {}, || {}).unwrap();
        let next = std::fs::File::open("/dev/null").unwrap();
        let limit = std::os::fd::AsRawFd::as_raw_fd(&next) as u64;
        drop(next);
        let all = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(limit), ..all }).unwrap();
        std::fs::File::open("/dev/null").unwrap_err();
        let key = JobId::parse("1").unwrap().key();
        let text = "x".repeat(4 << 20);
        link.tell(Request::Line { key, op: 1, kind: LogChannel::Out, text: text.clone() }).unwrap();
        drop(link);
        let mut bytes = Vec::new();
        theirs.read_to_end(&mut bytes).await.unwrap();
        assert!(bytes.ends_with(text.as_bytes()), "{} bytes came through", bytes.len());
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
    tokio::task::LocalSet::new().block_on(&runtime.unwrap(), sent);
}

#[tokio::test]
async fn what_is_handed_over_is_in_the_socket_then_and_several_go_in_one_write() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let handed_over = async {
        let link = KeeperLink::new(KeeperWire::Socket(ours), |_| {}, || {}).unwrap();
        let key = JobId::parse("1").unwrap().key();
        // All of them are queued before the writer's turn.
        let all = (0..50).map(|_| link.hand_over([Request::Drop { key }, Request::Drop { key }]));
        for result in futures_util::future::join_all(all).await {
            result.unwrap();
        }
        let mut bytes = vec![0; READ_CHUNK];
        let frame = KeeperFrame::of(Request::Drop { key }).unwrap().0;
        assert_eq!(rustix::io::read(&theirs, &mut bytes).unwrap(), 100 * frame.len());
        drop(theirs);
        while link.hand_over([Request::Drop { key }]).await.is_ok() {
            tokio::task::yield_now().await;
        }
        assert!(matches!(link.hand_over([Request::Drop { key }]).await, Err(LinkError::Gone)));
    };
    tokio::task::LocalSet::new().run_until(handed_over).await;
}
