use proptest::prelude::*;

use super::*;
use crate::grpc::accept::authority::tests::{Decoder, Encoder};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADERS: FrameHeader =
    FrameHeader { length: 0, kind: kind::HEADERS, flags: flag::END_HEADERS, stream: 1 };

fn frame(header: FrameHeader, payload: &[u8]) -> Vec<u8> {
    [&FrameHeader { length: payload.len(), ..header }.bytes()[..], payload].concat()
}

/// Output and frames for `bytes` that come in pieces, without the preface.
fn passed(bytes: &[u8], pieces: &[usize]) -> (Vec<u8>, Vec<FrameHeader>, Result<(), OversizedBlock>) {
    let (mut frames, mut out, mut seen) = (IncomingFrames::default(), Vec::new(), Vec::new());
    let mut left = &[PREFACE, bytes].concat()[..];
    let mut sizes = pieces.iter().copied().cycle();
    while !left.is_empty() {
        let size = sizes.next().unwrap().clamp(1, left.len());
        let mut piece = left[..size].to_vec();
        left = &left[size..];
        match frames.take(&mut piece, |frame| seen.push(frame)) {
            Ok(count) => out.extend_from_slice(&piece[..count]),
            Err(error) => return (out, seen, Err(error)),
        }
        out.append(frames.spill());
    }
    assert!(frames.has_preface());
    (out.split_off(PREFACE.len()), seen, Ok(()))
}

/// Parses the frames in `bytes`.
fn parsed(mut bytes: &[u8]) -> Vec<(FrameHeader, Vec<u8>)> {
    let mut frames = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk() {
        let header = FrameHeader::read(*header);
        let (payload, rest) = rest.split_at(header.length);
        frames.push((header, payload.to_vec()));
        bytes = rest;
    }
    assert!(bytes.is_empty(), "{bytes:?}");
    frames
}

#[derive(Clone, Debug)]
enum Item {
    Data(Vec<u8>),
    Ping,
    Call { path: String, authority: Vec<u8>, cuts: Vec<usize>, padding: Option<u8>, has_priority: bool },
}

fn item() -> impl Strategy<Value = Item> {
    let authority = prop_oneof![Just(b"run%2Fs.sock".to_vec()), Just(vec![]), any::<Vec<u8>>()];
    let cuts = proptest::collection::vec(0_usize..30, 0..4);
    let call = ("/[a-c]{1,3}", authority, cuts, any::<Option<u8>>(), any::<bool>()).prop_map(
        |(path, authority, cuts, padding, has_priority)| Item::Call {
            path,
            authority,
            cuts,
            padding,
            has_priority,
        },
    );
    prop_oneof![any::<Vec<u8>>().prop_map(Item::Data), Just(Item::Ping), call]
}

const PRIORITY_FIELDS: &[u8] = &[0, 0, 0, 3, 7];

/// Frames of one call's header block, cut at `cuts`.
fn call(block: &[u8], cuts: &[usize], padding: Option<u8>, has_priority: bool) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), block);
    for (at, cut) in cuts.iter().copied().chain([usize::MAX]).enumerate() {
        let (piece, after) = rest.split_at(cut.min(rest.len()));
        rest = after;
        let mut header = HEADERS;
        header.flags = if cut == usize::MAX { flag::END_HEADERS } else { 0 };
        if at > 0 {
            bytes.extend(frame(FrameHeader { kind: kind::CONTINUATION, ..header }, piece));
            continue;
        }
        let mut payload = Vec::new();
        header.flags |= flag::END_STREAM;
        if let Some(length) = padding {
            header.flags |= flag::PADDED;
            payload.push(length);
        }
        if has_priority {
            header.flags |= flag::PRIORITY;
            payload.extend_from_slice(PRIORITY_FIELDS);
        }
        payload.extend_from_slice(piece);
        payload.extend(vec![0; usize::from(padding.unwrap_or_default())]);
        bytes.extend(frame(header, &payload));
    }
    bytes
}

proptest! {
    #[test]
    fn fault_88_frames_pass_without_authority_however_they_are_cut(
        items in proptest::collection::vec(item(), 1..12),
        pieces in proptest::collection::vec(1_usize..200, 1..6),
    ) {
        let (mut client, mut library) = (Encoder::default(), Decoder::default());
        let mut bytes = Vec::new();
        for item in &items {
            bytes.extend(match item {
                Item::Data(data) => frame(FrameHeader { kind: kind::DATA, flags: 0, ..HEADERS }, data),
                Item::Ping => frame(FrameHeader { kind: 6, flags: 0, stream: 0, length: 0 }, b"pingpong"),
                Item::Call { path, authority, cuts, padding, has_priority } => {
                    let fields = [(&b":path"[..], path.as_bytes()), (b":authority", authority), (b"te", b"trailers")];
                    call(&client.block(&fields), cuts, *padding, *has_priority)
                }
            });
        }
        let (out, _, result) = passed(&bytes, &pieces);
        prop_assert_eq!(result, Ok(()));
        let frames = parsed(&out);
        prop_assert_eq!(frames.len(), items.len());
        for (item, (header, payload)) in items.into_iter().zip(frames) {
            match item {
                Item::Data(data) => prop_assert_eq!((header.kind, payload), (kind::DATA, data)),
                Item::Ping => prop_assert_eq!((header.kind, &payload[..]), (6, &b"pingpong"[..])),
                Item::Call { path, has_priority, .. } => {
                    let flags = flag::END_HEADERS | flag::END_STREAM;
                    let (flags, fixed) = if has_priority { (flags | flag::PRIORITY, PRIORITY_FIELDS) } else { (flags, &[][..]) };
                    prop_assert_eq!((header.kind, header.flags), (kind::HEADERS, flags));
                    let block = payload.strip_prefix(fixed).unwrap();
                    let fields = vec![(b":path".to_vec(), path.into_bytes()), (b"te".to_vec(), b"trailers".to_vec())];
                    prop_assert_eq!(library.decode(block), fields);
                }
            }
        }
    }

    #[test]
    fn any_bytes_pass_alike_however_they_are_cut(
        bytes in proptest::collection::vec(prop_oneof![Just(0_u8), Just(1), Just(4), Just(9), any::<u8>()], 0..300),
        pieces in proptest::collection::vec(1_usize..40, 1..6),
    ) {
        prop_assert_eq!(passed(&bytes, &pieces), passed(&bytes, &[1_000]));
    }
}

#[test]
fn a_large_block_leaves_in_frames_of_the_allowed_size() {
    let value = vec![b'x'; 20_000];
    let block = Encoder::default().block(&[(b":authority", b"%"), (b"x-large", &value)]);
    let (out, seen, _) = passed(&call(&block, &[16_000], None, false), &[4_096]);
    let frames = parsed(&out);
    let kinds: Vec<_> =
        frames.iter().map(|(header, _)| (header.kind, header.has(flag::END_HEADERS))).collect();
    assert_eq!(kinds, [(kind::HEADERS, false), (kind::CONTINUATION, true)]);
    assert!(frames.iter().all(|(header, _)| header.length <= MAX_PAYLOAD) && seen.len() == 2);
    let joined: Vec<u8> = frames.into_iter().flat_map(|(_, payload)| payload).collect();
    assert_eq!(Decoder::default().decode(&joined), [(b"x-large".to_vec(), value)]);
}

#[test]
fn fault_57_a_block_without_end_is_not_kept() {
    let first = frame(FrameHeader { flags: 0, ..HEADERS }, &[0; 1_000]);
    let more = frame(FrameHeader { kind: kind::CONTINUATION, flags: 0, ..HEADERS }, &[0; 1_000]);
    let (out, seen, result) = passed(&[first, more.repeat(100)].concat(), &[500]);
    assert_eq!((out.len(), result), (PREFACE.len(), Err(OversizedBlock)));
    assert!(seen.len() <= 1 + MAX_BLOCK / 1_000, "{}", seen.len());
}

#[test]
fn broken_blocks_end_what_is_passed_on() {
    let ping = frame(FrameHeader { kind: 6, flags: 0, stream: 0, length: 0 }, b"pingpong");
    let open = frame(FrameHeader { flags: 0, ..HEADERS }, &[0x83]);
    let padded = FrameHeader { flags: flag::END_HEADERS | flag::PADDED, ..HEADERS };
    let other = FrameHeader { kind: kind::CONTINUATION, stream: 3, ..HEADERS };
    for (bytes, expected) in [
        (frame(HEADERS, &[0x80]), unreadable(1)),
        (frame(padded, &[9, 0x83]), misplaced(1).to_vec()),
        ([&open[..], &ping].concat(), misplaced(1).to_vec()),
        ([open, frame(other, &[0x83])].concat(), misplaced(1).to_vec()),
    ] {
        for size in 1..30 {
            assert_eq!(passed(&[&bytes[..], &ping].concat(), &[size]).0, expected, "{bytes:?} in {size}");
        }
    }
}

#[test]
fn fault_103_a_list_that_removed_fields_make_too_large_is_too_large_for_the_library() {
    let mut client = Encoder::default();
    let first = client.block(&[(b":authority", b"run%2Fs.sock"), (b"te", b"trailers")]);
    let authority = (&b":authority"[..], &b"run%2Fs.sock"[..]);
    let second = [client.block(&[authority; 400]), client.block(&[(b"te", b"trailers")])];
    for cuts in [&[][..], &[100]] {
        let bytes = [call(&first, &[], None, false), call(&second.concat(), cuts, None, true)].concat();
        for pieces in [4_096, 7] {
            let (out, _, result) = passed(&bytes, &[pieces]);
            assert_eq!(result, Ok(()));
            let mut frames = parsed(&out).into_iter();
            let mut library = Decoder::default();
            assert_eq!(library.decode(&frames.next().unwrap().1), [(b"te".to_vec(), b"trailers".to_vec())]);
            let rest: Vec<u8> = frames.flat_map(|(_, payload)| payload).collect();
            let list = library.decode(rest.strip_prefix(PRIORITY_FIELDS).unwrap());
            assert_eq!(list[0].0, b"te");
            assert_eq!(list[1], (b"x".to_vec(), vec![b'x'; MAX_HEADERS as usize]));
        }
    }
}

#[test]
fn fault_103_a_block_that_counts_a_multiple_of_the_limit_ends_what_is_passed_on() {
    // Fields that the library does not count: `:authority`, and a pseudo-header again and again.
    for field in [0x81, 0x83] {
        for (length, cuts) in [(16_000, &[][..]), (60_000, &[16_000, 16_000, 16_000])] {
            let (_, _, result) = passed(&call(&vec![field; length], cuts, None, false), &[4_096]);
            assert_eq!(result, Err(OversizedBlock));
        }
    }
}
