//! Reads logs of arbitrary bytes without a panic. The result does not depend on how the bytes are cut into pieces, and
//! printed output is safe for a terminal.

#![no_main]

use libfuzzer_sys::fuzz_target;
use step_runner::log::line::{Check, Joiner, Line, Parser, SourceKey};
use step_runner::log::pretty::{Format, Options, Output, Printer};

fn read(log: &[u8], piece: usize) -> Vec<(SourceKey, Vec<u8>)> {
    let mut out = Vec::new();
    let mut joiner = Joiner::new();
    let mut parser = Parser::new(Check::Lenient);
    for piece in log.chunks(piece) {
        let parsed = parser.push(piece, |line| {
            if let Line::Entry(entry) = line {
                joiner.push(&entry, |key, bytes| out.push((key, bytes.to_vec())));
            }
        });
        assert_eq!(parsed, Ok(()), "a lenient parser refuses nothing");
    }
    joiner.finish(|key, bytes| out.push((key, bytes.to_vec())));
    out
}

fn print(log: &[u8], piece: usize, options: Options) -> Vec<u8> {
    let mut printer = Printer::new(Format::Pretty(options));
    let mut out = Output::default();
    for piece in log.chunks(piece) {
        printer.push(piece, &mut out);
    }
    printer.finish(&mut out);
    out.stdout
}

/// Starts of lines. None of them makes a line malformed, unless the text behind it happens to be an entry.
const PREFIXES: [&str; 7] = [
    "",
    "2021-01-01T00:00:00.000000Z 01O ",
    "2021-01-01T13:14:15.678912Z 01O+",
    "2021-01-01T00:00:01.000000Z 01E ",
    "2021-01-01T00:00:02.000000Z 01E+",
    "2021-01-01T00:00:03.000000Z 00O ",
    "2021-01-01T0x:00:03.000000Z 0f?*",
];

fuzz_target!(|input: (u8, bool, Vec<(u8, Vec<u8>)>)| {
    let (piece, all, lines) = input;
    let piece = usize::from(piece) + 1;
    let mut log = Vec::new();
    for (prefix, text) in &lines {
        log.extend_from_slice(PREFIXES[usize::from(*prefix) % PREFIXES.len()].as_bytes());
        // Repeats the text so that some lines are long enough to be cut.
        log.extend_from_slice(&text.repeat(1 + usize::from(*prefix >> 3) * 16));
        log.push(b'\n');
    }
    assert_eq!(read(&log, piece), read(&log, usize::MAX));

    let options = Options { all, ..Options::plain_utc() };
    let printed = print(&log, piece, options);
    assert_eq!(printed, print(&log, usize::MAX, options));
    let text = std::str::from_utf8(&printed).expect("what is printed is text");
    assert!(!text.chars().any(|character| character.is_control() && !"\t\n".contains(character)));
});
