use std::io::Write;
use std::os::unix::net::UnixStream as Client;

use axum::body::{Body, Bytes};
use axum::routing::post;

use super::*;
use crate::config::Reflection;
use crate::grpc::intake::Room;

/// Preface, and SETTINGS with the largest stream window.
const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x06\x04\0\0\0\0\0\0\x04\x7f\xff\xff\xff";
/// WINDOW_UPDATE to the largest window of the connection.
const WINDOW: &[u8] = b"\0\0\x04\x08\0\0\0\0\0\x7f\0\0\0";
/// A call with an endless answer: POST, http, `/endless`.
const CALL: &[u8] = b"\0\0\x0c\x01\x05\0\0\0\x01\x83\x86\x04\x08/endless";

#[tokio::test]
async fn fault_91_the_connection_of_a_client_that_is_stopped_ends() {
    let endless = || async {
        let pieces =
            futures_util::stream::repeat_with(|| Ok::<_, io::Error>(Bytes::from_static(&[b'x'; 4_096])));
        Body::from_stream(pieces)
    };
    let routes = Routes::from(axum::Router::new().route("/endless", post(endless)));
    // One client waits for nothing but a PING; for the other, bytes wait until the socket is full.
    for sent in [HELLO.to_vec(), [HELLO, WINDOW, CALL].concat()] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let patience = Patience { stalled: Duration::from_millis(100), ping: Duration::from_millis(40) };
        let limits = TransportLimits {
            ping_after: Duration::from_millis(60),
            patience,
            ..TransportLimits::new(16, None)
        };
        let listener = StdListener::bind(&path).unwrap();
        let users = AllowedUsers::new(&[]);
        let answers = ServicesByRights::new(routes.clone(), Reflection::Off, &Room::default());
        let accepting = AcceptLoop::new(listener, answers, users, limits, CallCounters::default()).unwrap();
        let open = Arc::clone(&accepting.open);
        tokio::spawn(accepting.run(CancellationToken::new(), CancellationToken::new()));
        let mut client = Client::connect(&path).unwrap();
        client.write_all(&sent).unwrap();
        for count in [1, 0] {
            while open.load(Ordering::Relaxed) != count {
                tokio::task::yield_now().await;
            }
        }
    }
}

#[test]
fn fault_89_connections_leave_descriptors_for_jobs() {
    for (descriptors, most) in [
        (None, 4_096),
        (Some(1 << 20), 4_096),
        (Some(1_024), 768),
        (Some(512), 256),
        (Some(64), 32),
        (Some(0), 1),
    ] {
        assert_eq!(TransportLimits::new(4_096, descriptors).max_connections, most, "{descriptors:?}");
    }
    assert_eq!(TransportLimits::new(7, Some(1 << 20)).max_connections, 7);
}
