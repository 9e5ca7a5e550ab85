//! Speed of the path from a pipe to the log and back.

use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use step_runner::log::frame::{Framer, LogChannel, STEP, Stamp, Stamper};
use step_runner::log::line::{Check, Joiner, Line, Parser};
use step_runner::log::pretty::{Format, Options, Output, Printer};

/// Size of one read of a pipe (logs.md §3).
const READ: usize = 64 << 10;

/// Lengths of lines in bytes, with the line feed: short, usual, long.
const LINES: [usize; 3] = [16, 64, 1024];

fn main() {
    divan::main();
}

fn stamp() -> Stamp {
    Stamp::from_unix_micros(1_609_459_200_000_000)
}

/// Returns the bytes of one read: lines of `len` bytes, of which the last one is incomplete.
fn read_of(len: usize) -> Vec<u8> {
    let line: Vec<u8> =
        (0..len).map(|at| if at + 1 == len { b'\n' } else { b'a' + (at % 26) as u8 }).collect();
    let mut read = line.repeat(READ / len + 1);
    read.truncate(READ - 1);
    read
}

fn log_of(len: usize) -> Vec<u8> {
    let mut log = Vec::new();
    Framer::new(STEP, LogChannel::Out).push(&read_of(len), &stamp(), &mut log);
    log
}

#[divan::bench(args = LINES)]
fn frame(bencher: Bencher<'_, '_>, len: usize) {
    let read = read_of(len);
    let mut framer = Framer::new(STEP, LogChannel::Out);
    let mut out = Vec::new();
    bencher.counter(BytesCount::new(read.len())).bench_local(|| {
        out.clear();
        framer.push(black_box(&read), &stamp(), &mut out);
        out.len()
    });
}

#[divan::bench(args = LINES)]
fn parse_and_join(bencher: Bencher<'_, '_>, len: usize) {
    let log = log_of(len);
    bencher.counter(BytesCount::new(log.len())).bench_local(|| {
        let mut joiner = Joiner::new();
        let mut bytes = 0;
        let parsed = Parser::new(Check::Strict).push(black_box(&log), |line| {
            if let Line::Entry(entry) = line {
                joiner.push(&entry, |_, body| bytes += body.len());
            }
        });
        (parsed, bytes)
    });
}

#[divan::bench(args = LINES)]
fn print_pretty(bencher: Bencher<'_, '_>, len: usize) {
    let log = log_of(len);
    let mut printer = Printer::new(Format::Pretty(Options::plain_utc()));
    let mut out = Output::default();
    bencher.counter(BytesCount::new(log.len())).bench_local(|| {
        out.stdout.clear();
        printer.push(black_box(&log), &mut out);
        out.stdout.len()
    });
}

#[divan::bench]
fn stamp_of_a_read(bencher: Bencher<'_, '_>) {
    let mut stamper = Stamper::new();
    let mut micros = 1_609_459_200_000_000;
    bencher.bench_local(|| {
        micros += 7;
        stamper.stamp(black_box(micros))
    });
}
