//! Both ends of the quiet pipe, with the real connection between them.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use proptest::prelude::*;
use rustix::net::RecvFlags;
use tokio::io::AsyncReadExt;
use tokio::task::LocalSet;

use crate::keeper::link::{KeeperLink, KeeperWire, LinkError};
use crate::keeper::protocol::Request;
use crate::keeper::shell::connection::{Arrived, Connection};
use crate::model::{JobId, LogChannel};

/// One act of a daemon or a keeper.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// The daemon queues a request.
    Tell,
    /// It queues one that may wait for company.
    TellLater,
    /// It hands one over.
    HandOver,
    /// It sends what is queued.
    Send,
    /// The keeper reads.
    Read,
}

/// The daemon's request number `number`.
fn request(number: u32) -> Request {
    let key = JobId::parse("1").unwrap().key();
    Request::Line { key, op: number, kind: LogChannel::Out, text: String::new() }
}

fn number(arrived: &Arrived) -> u32 {
    match arrived.frame.request {
        Request::Line { op, .. } => op,
        _ => panic!("a request of somebody else"),
    }
}

/// The keeper's end, with the numbers of the requests that it has heard.
struct Listener {
    connection: Connection,
    heard: Vec<u32>,
}

impl Listener {
    fn new(socket: impl Into<OwnedFd>) -> Self {
        Self { connection: Connection::new(socket.into(), 1).unwrap(), heard: Vec::new() }
    }

    /// Reads once. False if the connection is over.
    fn read(&mut self) -> bool {
        let received = self.connection.receive();
        let frames = self.connection.frames().map_err(|_| "a broken frame").unwrap();
        self.heard.extend(frames.iter().map(number));
        received.is_ok()
    }

    /// Reads to the end.
    fn read_all(mut self) -> Vec<u32> {
        while self.read() {}
        self.heard.extend(self.connection.end().iter().map(number));
        self.heard
    }
}

/// Lets the link write what is queued and may not wait.
async fn send() {
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
}

/// A link whose first request, number 0, the keeper has heard.
async fn greeted() -> (KeeperLink, Listener) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let link = KeeperLink::new(KeeperWire::Socket(ours), |_| {}, || {}).unwrap();
    let mut keeper = Listener::new(theirs);
    link.tell(request(0)).unwrap();
    send().await;
    assert!(keeper.read());
    keeper.connection.greeted = true;
    (link, keeper)
}

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test)
}

/// Performs `acts`, then kills the daemon. Returns what the keeper has heard, and what was handed over.
fn play(acts: &[Act]) -> (Vec<u32>, Vec<u32>) {
    let (keeper, handed_over) = run(async {
        let (link, mut keeper) = greeted().await;
        let mut handed_over = Vec::new();
        for (act, number) in acts.iter().zip(1..) {
            match act {
                Act::Tell => link.tell(request(number)).unwrap(),
                Act::TellLater => link.tell_later(request(number)),
                Act::HandOver => {
                    link.hand_over([request(number)]).await.unwrap();
                    handed_over.push(number);
                }
                Act::Send => send().await,
                Act::Read => assert!(keeper.read()),
            }
        }
        (keeper, handed_over)
    });
    (keeper.read_all(), handed_over)
}

proptest! {
    #[test]
    fn requests_keep_their_order_and_none_that_was_handed_over_is_lost(
        acts in prop::collection::vec(
            prop::sample::select(vec![Act::Tell, Act::TellLater, Act::HandOver, Act::Send, Act::Read]),
            0..40,
        )
    ) {
        let (heard, handed_over) = play(&acts);
        prop_assert!(heard.is_sorted_by(|a, b| a < b), "{heard:?}");
        prop_assert!(handed_over.iter().all(|number| heard.contains(number)), "{handed_over:?} of {heard:?}");
    }
}

#[test]
fn a_request_handed_over_does_not_wake_the_keeper() {
    run(async {
        let (link, mut keeper) = greeted().await;
        link.hand_over([request(1), request(2)]).await.unwrap();
        send().await;
        assert!(!keeper.connection.has_input());
        link.tell(request(3)).unwrap();
        send().await;
        assert!(keeper.connection.has_input() && keeper.read());
        assert_eq!(keeper.heard, [0, 1, 2, 3]);
    });
}

#[test]
fn a_request_that_lay_in_the_pipe_has_its_age() {
    run(async {
        let (link, mut keeper) = greeted().await;
        link.hand_over([request(1)]).await.unwrap();
        let pause = Duration::from_millis(20);
        tokio::time::sleep(pause).await;
        link.tell(request(2)).unwrap();
        send().await;
        assert!(keeper.connection.receive().is_ok());
        let arrived = keeper.connection.frames().map_err(|_| "a broken frame").unwrap();
        assert!(arrived[0].age >= pause && arrived[1].age.is_zero(), "{:?}", arrived[0].age);
    });
}

#[test]
fn what_finds_no_room_in_the_pipe_goes_through_the_socket() {
    run(async {
        let (link, mut keeper) = greeted().await;
        let mut count = 0;
        while !keeper.connection.has_input() {
            count += 1;
            link.hand_over([request(count)]).await.unwrap();
        }
        // A pipe of two pages, which a user with many pipes gets, holds some 200.
        assert!(count > 100, "{count}");
        assert!(keeper.read());
        assert_eq!(keeper.heard, (0..=count).collect::<Vec<_>>());
    });
}

#[test]
fn a_keeper_that_takes_no_pipe_hears_everything_through_the_socket() {
    run(async {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let link = KeeperLink::new(KeeperWire::Socket(ours), |_| {}, || {}).unwrap();
        link.tell(request(0)).unwrap();
        send().await;
        // A plain read drops the descriptor that comes along.
        let mut bytes = [0; 64];
        let (len, _) = rustix::net::recv(&theirs, &mut bytes, RecvFlags::empty()).unwrap();
        link.hand_over([request(1)]).await.unwrap();
        let (next, _) = rustix::net::recv(&theirs, &mut bytes[len..], RecvFlags::empty()).unwrap();
        assert_eq!(len, next, "two requests of equal length");
    });
}

#[test]
fn what_finds_room_neither_in_a_pipe_nor_in_the_socket_is_handed_over_once_the_keeper_has_read() {
    run(async {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let link = KeeperLink::new(KeeperWire::Socket(ours), |_| {}, || {}).unwrap();
        link.tell(request(0)).unwrap();
        send().await;
        theirs.set_nonblocking(true).unwrap();
        let mut theirs = tokio::net::UnixStream::from_std(theirs).unwrap();
        let mut bytes = vec![0; 8 << 20];
        assert!(theirs.read(&mut bytes).await.unwrap() > 0);
        let key = JobId::parse("1").unwrap().key();
        let text = "x".repeat(4 << 20);
        link.tell(Request::Line { key, op: 1, kind: LogChannel::Out, text }).unwrap();
        let mut handed_over = std::pin::pin!(link.hand_over([request(2)]));
        tokio::select! {
            biased;
            _ = &mut handed_over => panic!("nothing of it can be in the socket"),
            () = tokio::task::yield_now() => {}
        }
        let read = async { while theirs.read(&mut bytes).await.unwrap() > 0 {} };
        tokio::select! {
            result = handed_over => result.unwrap(),
            () = read => panic!("the connection ended"),
        }
    });
}

#[test]
fn nothing_is_handed_over_to_a_keeper_that_died() {
    run(async {
        let (link, keeper) = greeted().await;
        drop(keeper);
        assert!(matches!(link.hand_over([request(1)]).await, Err(LinkError::Gone)));
        assert!(matches!(link.hand_over([request(2)]).await, Err(LinkError::Gone)));
    });
}
