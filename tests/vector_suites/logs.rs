//! `logs-vectors.json`: the formatter, the reader and the printer of the job log (logs.md §9).

use base64::Engine as _;
use chrono::{DateTime, FixedOffset};
use libtest_mimic::Failed;
use serde::Deserialize;
use serde_json::Value;
use step_runner::log::frame::{Framer, LogChannel, Stamp};
use step_runner::log::line::{Check, Joiner, Line, Parser};
use step_runner::log::pretty::{Format, Options, Output, Printer};

/// A vector of the list `format`, `parse` or `pretty`. Its fields tell which.
#[derive(Deserialize)]
#[serde(untagged)]
enum Case {
    Format(FormatCase),
    Parse(ParseCase),
    Pretty(PrettyCase),
}

#[derive(Deserialize)]
struct FormatCase {
    sources: Vec<(u8, String)>,
    writes: Vec<(usize, Option<Data>)>,
    #[serde(default)]
    times: Vec<DateTime<FixedOffset>>,
    out: Vec<Data>,
}

#[derive(Deserialize)]
struct ParseCase {
    wire: Data,
    cut: Option<usize>,
    stdout: Data,
    stderr: Data,
}

#[derive(Deserialize)]
struct PrettyCase {
    options: PrettyOptions,
    wire: Data,
    out: Data,
}

#[derive(Deserialize)]
struct PrettyOptions {
    format: Option<String>,
    #[serde(default)]
    all: bool,
    #[serde(default)]
    color: bool,
    #[serde(default)]
    merge: bool,
}

/// Bytes, in one of the forms that the vectors use (logs.md §9).
#[derive(Deserialize)]
#[serde(untagged)]
enum Data {
    Text(String),
    Base64 { b64: String },
    Repeated(String, usize),
    Parts(Vec<Data>),
}

impl Data {
    fn bytes(&self) -> Result<Vec<u8>, Failed> {
        Ok(match self {
            Self::Text(text) => text.clone().into_bytes(),
            Self::Base64 { b64 } => base64::engine::general_purpose::STANDARD.decode(b64)?,
            Self::Repeated(text, count) => text.repeat(*count).into_bytes(),
            Self::Parts(parts) => concat(parts)?,
        })
    }
}

fn concat(parts: &[Data]) -> Result<Vec<u8>, Failed> {
    let parts: Vec<_> = parts.iter().map(Data::bytes).collect::<Result<_, _>>()?;
    Ok(parts.concat())
}

/// Runs one vector of any of the three lists.
pub(crate) fn run(vector: &Value) -> Result<(), Failed> {
    match serde_json::from_value(vector.clone())? {
        Case::Format(case) => format(&case),
        Case::Parse(case) => parse(&case),
        Case::Pretty(case) => pretty(&case),
    }
}

fn format(case: &FormatCase) -> Result<(), Failed> {
    const START: i64 = 1_609_459_200_000_000;
    let mut framers: Vec<_> = case
        .sources
        .iter()
        .map(|(number, kind)| {
            Framer::new(*number, if kind == "E" { LogChannel::Err } else { LogChannel::Out })
        })
        .collect();
    let mut out = Vec::new();
    for (at, (source, data)) in case.writes.iter().enumerate() {
        let micros = match case.times.get(at) {
            Some(time) => time.timestamp_micros(),
            None => START + i64::try_from(at)? * 1_000_000,
        };
        let framer = framers.get_mut(*source).ok_or("no such source")?;
        match data {
            Some(data) => framer.push(&data.bytes()?, &Stamp::from_unix_micros(micros), &mut out),
            None => framer.finish(&mut out),
        }
    }
    for framer in &mut framers {
        framer.finish(&mut out);
    }
    same("log", &out, &concat(&case.out)?)
}

fn parse(case: &ParseCase) -> Result<(), Failed> {
    let wire = case.wire.bytes()?;
    let mut parser = Parser::new(Check::Lenient);
    let mut joiner = Joiner::new();
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let mut give = |kind, bytes: &[u8]| match kind {
        LogChannel::Out => stdout.extend_from_slice(bytes),
        LogChannel::Err => stderr.extend_from_slice(bytes),
    };
    for piece in wire.chunks(case.cut.unwrap_or(usize::MAX)) {
        parser.push(piece, |line| {
            if let Line::Entry(entry) = line {
                joiner.push(&entry, |key, bytes| give(key.kind, bytes));
            }
        })?;
    }
    joiner.finish(|key, bytes| give(key.kind, bytes));
    same("stdout", &stdout, &case.stdout.bytes()?)?;
    same("stderr", &stderr, &case.stderr.bytes()?)
}

fn pretty(case: &PrettyCase) -> Result<(), Failed> {
    let PrettyOptions { ref format, all, color, merge } = case.options;
    let format = match format.as_deref() {
        Some("raw") => Format::Raw,
        Some("plain") => Format::Plain { merge },
        None | Some("pretty") => Format::Pretty(Options { all, color, ..Options::plain_utc() }),
        Some(other) => return Err(format!("unknown format {other}").into()),
    };
    let mut printer = Printer::new(format);
    let mut out = Output::default();
    printer.push(&case.wire.bytes()?, &mut out);
    printer.finish(&mut out);
    same("stdout", &out.stdout, &case.out.bytes()?)
}

fn same(what: &str, got: &[u8], expected: &[u8]) -> Result<(), Failed> {
    if got == expected {
        return Ok(());
    }
    Err(format!("{what} differs\n     got: {}\nexpected: {}", got.escape_ascii(), expected.escape_ascii())
        .into())
}
