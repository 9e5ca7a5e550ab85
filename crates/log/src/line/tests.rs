use proptest::collection::vec;
use proptest::prelude::*;

use super::{Check, Entry, Joiner, Line, Live, NotALog, Parser, SourceKey};
use crate::frame::{Framer, HEADER_LEN, HOLD_MAX, LogChannel, Stamp};

const TIME: &str = "2021-01-01T00:00:00.000000Z";

fn wire(entries: &[(&str, &str)]) -> Vec<u8> {
    entries.iter().flat_map(|(source, body)| format!("{TIME} {source}{body}\n").into_bytes()).collect()
}

/// Output of a reader that gets `wire` in pieces of `cut` bytes.
fn joined(wire: &[u8], cut: usize) -> Vec<(SourceKey, Vec<u8>)> {
    let mut parser = Parser::new(Check::Lenient);
    let mut joiner = Joiner::new();
    let mut out = Vec::new();
    for piece in wire.chunks(cut) {
        parser
            .push(piece, |line| {
                if let Line::Entry(entry) = line {
                    joiner.push(&entry, |key, bytes| out.push((key, bytes.to_vec())));
                }
            })
            .unwrap();
    }
    joiner.finish(|key, bytes| out.push((key, bytes.to_vec())));
    out
}

fn live(wire: &[u8]) -> String {
    let mut parser = Parser::new(Check::Lenient);
    let mut live = Live::new();
    let mut out = Vec::new();
    parser
        .push(wire, |line| {
            if let Line::Entry(entry) = line {
                live.push(&entry, &mut out);
            }
        })
        .unwrap();
    live.finish(&mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn the_end_gives_out_lines_in_the_order_they_began() {
    let wire = wire(&[("00O ", "a"), ("01O ", "b"), ("01E ", "c"), ("00O+", "d")]);
    let bodies: Vec<_> =
        joined(&wire, 7).into_iter().map(|(_, bytes)| String::from_utf8(bytes).unwrap()).collect();
    assert_eq!(bodies, ["a", "d\n", "b\n", "c\n"]);
}

#[test]
fn a_live_reader_ends_a_line_only_when_it_is_not_continued() {
    assert_eq!(
        live(&wire(&[("01O ", "10%\r"), ("01O+", "20%\r"), ("01O+", "done"), ("01O ", "x")])),
        "10%\r20%\rdone\nx\n"
    );
    assert_eq!(live(&wire(&[("01O ", "a"), ("01E ", "b"), ("01O+", "c")])), "a\nb\nc\n");
    assert_eq!(live(b""), "");
}

#[test]
fn a_live_reader_waits_with_a_line_feed_only_where_more_of_the_line_may_come() {
    let at_once = |source, body: &str| {
        let (mut live, mut out) = (Live::new(), Vec::new());
        let wire = wire(&[(source, body)]);
        live.push(&Entry::parse(&wire[..wire.len() - 1]).unwrap(), &mut out);
        String::from_utf8(out).unwrap()
    };
    assert_eq!(at_once("01O ", "listening"), "listening\n");
    assert_eq!(at_once("01O ", "10%\r"), "10%\r");
    assert_eq!(at_once("00O ", "a name\r"), "a name\r\n", "the daemon's own lines are whole");
    let longest = "x".repeat(HOLD_MAX - HEADER_LEN);
    assert_eq!(at_once("01O ", &longest), format!("{longest}\n"));
    assert_eq!(at_once("01O ", &format!("{longest}x")), format!("{longest}x"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn only_entries_that_do_not_end_a_line_are_continued(writes in vec(write_bytes(), 0..12)) {
        let mut framer = Framer::new(1, LogChannel::Out);
        let mut wire = Vec::new();
        for write in &writes {
            framer.push(write, &Stamp::from_unix_micros(0), &mut wire);
        }
        framer.finish(&mut wire);
        let mut ended = true;
        Parser::new(Check::Strict)
            .push(&wire, |line| if let Line::Entry(entry) = line {
                assert!(!(ended && entry.continues()));
                ended = entry.ends_line();
            })
            .unwrap();
    }
}

#[test]
fn the_parts_of_an_entry_are_those_of_its_header() {
    let entry = Entry::parse(b"2021-03-04T05:06:07.000008Z 0fE+body").unwrap();
    assert_eq!(entry.time(), b"2021-03-04T05:06:07.000008Z");
    assert_eq!((entry.source(), entry.continues(), entry.body), (*b"0fE", true, &b"body"[..]));
}

#[test]
fn a_strict_parser_refuses_what_does_not_begin_with_a_header() {
    let strict = |bytes: &[u8]| Parser::new(Check::Strict).push(bytes, |_| ());
    assert_eq!(strict(&wire(&[("01O ", "a")])), Ok(()));
    assert_eq!(strict(b"plain text\n"), Err(NotALog));
    assert_eq!(strict(&[b'x'; 27]), Ok(()), "not yet a line");
    for at in [4, 7, 10, 13, 16, 19, 26, 27] {
        let mut broken = wire(&[("01O ", "a")]);
        broken[at] = b'x';
        assert_eq!(strict(&broken), Err(NotALog), "byte {at}");
    }
}

#[test]
fn a_strict_parser_checks_the_first_line_only() {
    let mut input = wire(&[("01O ", "a")]);
    input.extend_from_slice(b"junk\n");
    let mut lines = 0;
    assert_eq!(Parser::new(Check::Strict).push(&input, |_| lines += 1), Ok(()));
    assert_eq!(lines, 2);
}

#[test]
fn an_incomplete_line_is_kept_and_not_shown() {
    let mut parser = Parser::new(Check::Lenient);
    parser.push(b"2021", |line| panic!("{line:?}")).unwrap();
    assert_eq!(parser.partial, b"2021");
}

/// Bytes with many line ends, in short and long runs.
fn write_bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => vec(prop_oneof![Just(b'\n'), Just(b'\r'), Just(b'x'), any::<u8>()], 0..40),
        1 => vec(prop_oneof![200 => Just(b'y'), 1 => Just(b'\n'), 1 => Just(b'\r')], 8_000..8_400),
        1 => (1..20_000_usize).prop_map(|count| vec![b'z'; count]),
    ]
}

const SOURCES: [(u8, LogChannel); 4] =
    [(1, LogChannel::Out), (1, LogChannel::Err), (0, LogChannel::Err), (0x0f, LogChannel::Out)];

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn fault_17_reading_gives_back_what_each_source_wrote(
        writes in vec((0..SOURCES.len(), write_bytes()), 0..24),
        cut in 1..10_000_usize,
    ) {
        let mut framers = SOURCES.map(|(number, kind)| Framer::new(number, kind));
        let mut wire = Vec::new();
        let mut written: [Vec<u8>; SOURCES.len()] = Default::default();
        for (micros, (source, bytes)) in (0..).zip(&writes) {
            framers[*source].push(bytes, &Stamp::from_unix_micros(micros), &mut wire);
            written[*source].extend_from_slice(bytes);
            prop_assert!(wire.is_empty() || wire.ends_with(b"\n"), "only whole entries go out");
        }
        for framer in &mut framers {
            framer.finish(&mut wire);
        }
        for line in wire.split_inclusive(|&byte| byte == b'\n') {
            let entry = Entry::parse(line.strip_suffix(b"\n").unwrap());
            prop_assert!(entry.is_some_and(|entry| entry.has_format()), "every line is an entry");
        }

        let read = joined(&wire, cut);
        for ((number, kind), written) in SOURCES.into_iter().zip(&written) {
            let number = <[u8; 2]>::try_from(format!("{number:02x}").as_bytes()).unwrap();
            let mine = read.iter().filter(|(key, _)| *key == SourceKey { number, kind });
            let bytes: Vec<u8> = mine.flat_map(|(_, bytes)| bytes.iter().copied()).collect();
            let mut with_line_feed = written.clone();
            with_line_feed.push(b'\n');
            prop_assert!(bytes == *written || bytes == with_line_feed);
        }
    }

    #[test]
    fn reading_does_not_depend_on_the_pieces(
        lines in vec((0..6_usize, vec(any::<u8>(), 0..50)), 0..20),
        cut in 1..200_usize,
    ) {
        let prefixes = ["01O ", "01O+", "01E ", "01E+", "00O ", ""];
        let mut input = Vec::new();
        for (prefix, bytes) in &lines {
            if !prefixes[*prefix].is_empty() {
                input.extend_from_slice(format!("{TIME} {}", prefixes[*prefix]).as_bytes());
            }
            input.extend_from_slice(bytes);
            input.push(b'\n');
        }
        prop_assert_eq!(joined(&input, cut), joined(&input, usize::MAX));
    }

    #[test]
    fn one_source_live_is_one_source_joined(writes in vec(write_bytes(), 0..12)) {
        let mut framer = Framer::new(1, LogChannel::Out);
        let mut wire = Vec::new();
        for write in &writes {
            framer.push(write, &Stamp::from_unix_micros(0), &mut wire);
        }
        framer.finish(&mut wire);
        let exact: Vec<u8> = joined(&wire, usize::MAX).into_iter().flat_map(|(_, bytes)| bytes).collect();
        let mut live = Live::new();
        let mut out = Vec::new();
        Parser::new(Check::Strict)
            .push(&wire, |line| if let Line::Entry(entry) = line { live.push(&entry, &mut out) })
            .unwrap();
        live.finish(&mut out);
        prop_assert_eq!(out, exact);
    }
}
