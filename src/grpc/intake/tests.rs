//! Tests bodies with a clock that the test moves.

use std::collections::VecDeque;

use futures_util::FutureExt as _;

use super::*;

/// A body whose parts come after pauses.
struct SlowBody {
    parts: VecDeque<(Duration, Bytes)>,
    pause: Option<Pin<Box<Sleep>>>,
}

impl SlowBody {
    fn new(parts: impl IntoIterator<Item = (Duration, Bytes)>) -> Self {
        Self { parts: parts.into_iter().collect(), pause: None }
    }
}

impl HttpBody for SlowBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some((pause, _)) = self.parts.front() else { return Poll::Ready(None) };
        let pause = *pause;
        if !pause.is_zero() {
            let timer = self.pause.get_or_insert_with(|| Box::pin(tokio::time::sleep(pause)));
            ready!(timer.as_mut().poll(cx));
            self.pause = None;
        }
        Poll::Ready(self.parts.pop_front().map(|(_, bytes)| Ok(Frame::data(bytes))))
    }
}

/// A message of this declared length with this much content.
fn message(length: usize, content: usize) -> Bytes {
    let prefix = [&[0][..], &u32::try_from(length).unwrap().to_be_bytes()].concat();
    [prefix, vec![7; content]].concat().into()
}

fn at_once(bytes: Bytes) -> SlowBody {
    SlowBody::new([(Duration::ZERO, bytes)])
}

/// A body in parts as the HTTP/2 library makes them, and an empty one at the end.
fn in_parts(bytes: &Bytes) -> SlowBody {
    let parts = bytes.chunks(16 << 10).map(Bytes::copy_from_slice).chain([Bytes::new()]);
    SlowBody::new(parts.map(|part| (Duration::ZERO, part)).collect::<Vec<_>>())
}

/// Reads a whole body. Returns its bytes, or the text of its refusal.
async fn read(body: SlowBody, expected: Expected, room: &Room) -> Result<Bytes, String> {
    let mut bounded = BoundedBody::new(body, room.clone(), expected);
    let mut read = Vec::new();
    while let Some(frame) = next(&mut bounded).await {
        read.extend(frame.map_err(|status| status.message().to_owned())?.into_data().unwrap());
    }
    Ok(read.into())
}

async fn next(body: &mut BoundedBody<SlowBody>) -> Option<Result<Frame<Bytes>, Status>> {
    std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await
}

/// A second of the clock, which the test moves where [`SlowBody`] pauses.
const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn fault_104_a_request_has_its_messages() {
    use Expected::{One, Several};
    let two = Bytes::from([message(1, 1), message(2, 2)].concat());
    for (bytes, expected, refused) in [
        (Bytes::new(), One, Some("no message")),
        (Bytes::new(), Several, Some("no message")),
        (Bytes::from_static(&[0, 0]), One, Some("within its message")),
        (message(0, 0), One, None),
        (two.clone(), One, Some("more than one")),
        (two, Several, None),
    ] {
        let result = read(at_once(bytes.clone()), expected, &Room::default()).await;
        match refused {
            Some(text) => assert!(result.unwrap_err().contains(text), "{bytes:?}"),
            None => assert_eq!(result, Ok(bytes)),
        }
    }
    assert!(!BoundedBody::new(Body::empty(), Room::default(), One).is_end_stream());
}

#[cfg(feature = "failpoints")]
#[tokio::test(start_paused = true)]
async fn fault_105_a_request_is_as_fast_as_the_least_rate() {
    let rate = LEAST_RATE as usize;
    let trickle = |seconds: usize, count: usize| {
        let content = seconds * count;
        let parts = (0..seconds).map(move |_| (SECOND, Bytes::from(vec![7; count])));
        SlowBody::new([(Duration::ZERO, message(content, 0))].into_iter().chain(parts))
    };
    for (body, is_read) in [
        // At the least rate it may take minutes; below it only PATIENCE.
        (trickle(300, rate), true),
        (trickle(300, rate / 2), false),
        (trickle(29, 1), true),
        (trickle(300, 1), false),
        (trickle(300, 1_000), false),
        // What came fast before earns no more than one pause.
        (
            SlowBody::new([
                (SECOND, message(20_000_001, 20_000_000)),
                (29 * SECOND, Bytes::from_static(b"x")),
            ]),
            true,
        ),
        (
            SlowBody::new([
                (SECOND, message(20_000_001, 20_000_000)),
                (31 * SECOND, Bytes::from_static(b"x")),
            ]),
            false,
        ),
        (
            SlowBody::new(
                [(SECOND, message(20_000_100, 20_000_000))]
                    .into_iter()
                    .chain((0..100).map(|_| (SECOND, Bytes::from_static(b"x")))),
            ),
            false,
        ),
        // Nothing at all comes.
        (SlowBody::new([(40 * SECOND, message(0, 0))]), false),
    ] {
        match read(body, Expected::One, &Room::default()).await {
            Ok(_) => assert!(is_read),
            Err(text) => {
                assert!(!is_read && text.starts_with("deadline_exceeded: this request came"), "{text}");
            }
        }
    }
}

#[cfg(feature = "failpoints")]
#[tokio::test(start_paused = true)]
async fn messages_of_a_stream_may_be_far_apart() {
    let parts = (0..5).map(|_| (1_000 * SECOND, message(3, 3)));
    assert!(read(SlowBody::new(parts), Expected::Several, &Room::default()).await.is_ok());
    let within = SlowBody::new([(1_000 * SECOND, message(3, 0)), (40 * SECOND, Bytes::from_static(b"xyz"))]);
    assert!(read(within, Expected::Several, &Room::default()).await.is_err());
}

#[tokio::test]
async fn fault_105_room_is_taken_as_bytes_come_and_given_back() {
    let room = Room::default();
    // Any number of requests may announce the largest message.
    let mut announced: Vec<_> = (0..1_000)
        .map(|_| {
            let parts = [(Duration::ZERO, message(MAX_REQUEST, 1)), (10 * SECOND, Bytes::from_static(b"x"))];
            BoundedBody::new(SlowBody::new(parts), room.clone(), Expected::One)
        })
        .collect();
    for body in &mut announced {
        assert!(next(body).now_or_never().is_none());
    }
    assert_eq!(room.0.available_permits(), ROOM - 1_000);
    let large = || at_once(message(1 << 20, 1 << 20));
    assert_eq!(read(large(), Expected::One, &room).await, Ok(message(1 << 20, 1 << 20)));
    // An empty part may follow the last byte.
    let whole = message(1 << 20, 1 << 20);
    assert!(read(in_parts(&whole), Expected::One, &room).await == Ok(whole));
    assert_eq!(room.0.available_permits(), ROOM - 1_000);
    // When the room is out, the request that asks for more is refused, and its own part is free again.
    let mut others: Vec<_> = (0..2)
        .map(|_| {
            let parts = [
                (Duration::ZERO, message(MAX_REQUEST, MAX_REQUEST - (600 << 10))),
                (10 * SECOND, Bytes::from_static(b"x")),
            ];
            BoundedBody::new(SlowBody::new(parts), room.clone(), Expected::One)
        })
        .collect();
    for body in &mut others {
        assert!(next(body).now_or_never().is_none());
    }
    let refused = read(in_parts(&message(1 << 20, 1 << 20)), Expected::One, &room).await;
    let refused = refused.map(|bytes| bytes.len()).unwrap_err();
    assert!(refused.starts_with("queue_full: "), "{refused}");
    drop((announced, others));
    assert_eq!(room.0.available_permits(), ROOM);
}

#[tokio::test]
async fn small_requests_need_no_room() {
    let room = Room(Arc::new(Semaphore::new(0)));
    let small = message(LARGE_REQUEST, LARGE_REQUEST);
    assert_eq!(read(at_once(small.clone()), Expected::One, &room).await, Ok(small));
}
