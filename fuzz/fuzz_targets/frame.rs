//! Frames arbitrary writes of two sources. Reading the frames gives back the bytes written.

#![no_main]

use libfuzzer_sys::fuzz_target;
use step_runner::log::frame::{Framer, LogChannel, STEP, Stamp};
use step_runner::log::line::{Check, Joiner, Line, Parser};

fuzz_target!(|writes: Vec<(bool, u8, Vec<u8>)>| {
    let mut framers = [Framer::new(STEP, LogChannel::Out), Framer::new(STEP, LogChannel::Err)];
    let mut written = [Vec::new(), Vec::new()];
    let mut log = Vec::new();
    for (at, (second, repeat, bytes)) in writes.iter().enumerate() {
        // Repeats the bytes, so that some writes are long enough to be cut.
        let bytes = bytes.repeat(usize::from(*repeat) + 1);
        let source = usize::from(*second);
        framers[source].push(&bytes, &Stamp::from_unix_micros(at as i64), &mut log);
        written[source].extend_from_slice(&bytes);
        assert!(log.is_empty() || log.ends_with(b"\n"), "an entry is torn");
    }
    for framer in &mut framers {
        framer.finish(&mut log);
    }

    let mut read = [Vec::new(), Vec::new()];
    let mut give =
        |kind: LogChannel, bytes: &[u8]| read[usize::from(kind == LogChannel::Err)].extend_from_slice(bytes);
    let mut joiner = Joiner::new();
    let parsed = Parser::new(Check::Strict).push(&log, |line| match line {
        Line::Entry(entry) => joiner.push(&entry, |key, bytes| give(key.kind, bytes)),
        Line::Malformed(line) => panic!("malformed: {}", line.escape_ascii()),
    });
    assert_eq!(parsed, Ok(()));
    joiner.finish(|key, bytes| give(key.kind, bytes));
    for (read, mut written) in read.into_iter().zip(written) {
        if read != written {
            written.push(b'\n');
            assert_eq!(read, written);
        }
    }
});
