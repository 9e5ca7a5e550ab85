use proptest::prelude::*;

use super::*;
use crate::frame::HEADER_LEN;
use crate::line::{Entry, SourceKey};

/// Texts that look like the words around a name.
const CONFUSING: [&str; 12] = [
    ": ",
    " stream=02",
    " (attempt 2 of 3) in 1s: x",
    " from r.example/x:1: digest y",
    ": commit 0",
    " left 2 processes running: 1, 2",
    "\" and \"",
    "\" export A with different values: that of \"",
    "\" has failed, which is allowed: ",
    "\": the matrix has no combinations",
    "warning: ",
    "job failed: ",
];

/// Returns one line of each kind with its source and its exact text.
fn lines() -> Vec<(&'static str, &'static str, DaemonLine<'static>)> {
    use DaemonLine as Line;
    let warning = |warning| Line::Warning(warning);
    vec![
        ("00O", "Running step name=build", Line::Started { name: "build", stream: None }),
        ("00O", "Running step name=t[1,x] stream=0e", Line::Started { name: "t[1,x]", stream: Some(14) }),
        ("00O", "Skipped step name=build: false", Line::Skipped { name: "build", reason: "false" }),
        (
            "00O",
            "Retrying step name=build (attempt 2 of 5) in 1m30s: exec: exit-status 9",
            Line::Retrying { name: "build", attempt: 2, of: 5, delay: "1m30s", error: "exec: exit-status 9" },
        ),
        (
            "00O",
            "Fetched step name=lint from h.example/g/p@main: commit 0a1b",
            Line::Fetched {
                name: "lint",
                origin: "h.example/g/p@main",
                version: FetchedVersion::Commit("0a1b"),
            },
        ),
        (
            "00O",
            "Fetched step name=lint from r.example/g/x:latest: digest sha256:00",
            Line::Fetched {
                name: "lint",
                origin: "r.example/g/x:latest",
                version: FetchedVersion::Digest("sha256:00"),
            },
        ),
        (
            "00O",
            "step build left 2 processes running: 7 (sleep 9), 8",
            Line::LeftRunning { name: "build", count: 2, processes: "7 (sleep 9), 8" },
        ),
        (
            "00O",
            "step build left 1 process running: 7",
            Line::LeftRunning { name: "build", count: 1, processes: "7" },
        ),
        (
            "00O",
            "section_start:1764000000:go_on\r\u{1b}[0KGo on",
            Line::SectionStart { time: 1_764_000_000, name: "go_on", heading: "Go on" },
        ),
        (
            "00O",
            "section_end:1764000001:go_on\r\u{1b}[0K",
            Line::SectionEnd { time: 1_764_000_001, name: "go_on" },
        ),
        (
            "00E",
            "warning: /job/f/func.yml:3:5: spec: input \"n\" is unused",
            warning(Warning::Text("/job/f/func.yml:3:5: spec: input \"n\" is unused")),
        ),
        (
            "00E",
            "warning: step \"may\" has failed, which is allowed: exec: exit-status 7",
            warning(Warning::AllowedFailure { name: "may", error: "exec: exit-status 7" }),
        ),
        (
            "00E",
            "warning: step \"test\": the matrix has no combinations",
            warning(Warning::NoCombinations { name: "test" }),
        ),
        (
            "00E",
            "warning: \"a\" and \"b\" export PATH with different values: that of \"b\" counts",
            warning(Warning::ExportsDiffer { earlier: "a", later: "b", variable: "PATH" }),
        ),
        (
            "00E",
            "warning: step build: processes were killed, as memory ran short",
            warning(Warning::MemoryShort { name: "build" }),
        ),
        (
            "00E",
            "warning: step build: processes were refused, as the job has reached its limit",
            warning(Warning::ProcessesShort { name: "build" }),
        ),
        ("00E", "warning: 12 bytes of output lost", warning(Warning::OutputLost { bytes: 12 })),
        ("00E", "warning: 12 bytes of output dropped", warning(Warning::OutputDropped { bytes: 12 })),
        (
            "00E",
            "    12 (parent 7, state S) sleep 9",
            Line::Process { depth: 2, pid: 12, parent: 7, state: 'S', command: "sleep 9" },
        ),
        ("00E", "and 11 more processes", Line::MoreProcesses { count: 11 }),
        (
            "00E",
            "the reaper process of this job was killed, so all processes of the job are killed too",
            Line::ReaperKilled,
        ),
        ("00E", "debug: the output file holds: x", Line::Debug("the output file holds: x")),
        (
            "00E",
            "log limit reached: 65536 bytes; later output is dropped",
            Line::LimitReached { limit: 65536 },
        ),
        (
            "00O",
            "lines of the log are left out: too long",
            Line::LinesLeftOut { channel: LogChannel::Out, cause: "too long" },
        ),
        (
            "00E",
            "job failed: step \"a\": exec: exit status 3",
            Line::JobFailed { message: "step \"a\": exec: exit status 3" },
        ),
        (
            "00E",
            "job cancelled: a client asked for it",
            Line::JobCancelled { cause: "a client asked for it" },
        ),
        (
            "00E",
            "job ended by time limit: the time limit of the request is over",
            Line::JobTimedOut { cause: "the time limit of the request is over" },
        ),
        ("00E", "job interrupted: the host died", Line::JobInterrupted { cause: "the host died" }),
        ("00E", "1 processes could not be killed", Line::NotKilled { count: 1 }),
        (
            "00E",
            "/job/f/func.yml:9:1: exec: a second finding",
            Line::Other { channel: LogChannel::Err, text: "/job/f/func.yml:9:1: exec: a second finding" },
        ),
    ]
}

/// Returns the entry with this source and body, without its line feed.
fn entry(source: &str, body: &str) -> Vec<u8> {
    format!("2026-01-02T03:04:05.000006Z {source} {body}").into_bytes()
}

fn parsed(bytes: &[u8]) -> Option<DaemonLine<'_>> {
    DaemonLine::of(&Entry::parse(bytes).unwrap())
}

#[test]
fn each_line_has_its_exact_bytes_and_is_read_back() {
    for (source, text, line) in lines() {
        assert_eq!(line.to_string(), text);
        let mut written = Vec::new();
        line.append_to(&Stamp::from_unix_micros(1_767_323_045_000_006), &mut written);
        assert_eq!(written, [entry(source, text), b"\n".to_vec()].concat(), "{text}");
        let written = written.strip_suffix(b"\n").unwrap();
        assert_eq!(parsed(written), Some(line), "{text}");
        assert_eq!(line.to_parts(), (Entry::parse(written).unwrap().key().kind, text.to_owned()));
    }
}

/// True if `text` is one that a template of the specification stands for: words in capitals and `…` are any text.
fn matches_template(template: &str, text: &str) -> bool {
    let is_placeholder = |word: &str| word.chars().all(|c| c.is_ascii_uppercase() || c == '…');
    let words = template.split_inclusive([' ', '=', ':', ',', ')']);
    let mut literals = vec![String::new()];
    for word in words {
        let name = word.trim_end_matches([' ', '=', ':', ',', ')']).trim_start_matches('(');
        if name.is_empty() || !is_placeholder(name) {
            literals.last_mut().unwrap().push_str(word);
        } else {
            let (before, after) = word.split_once(name).unwrap();
            literals.last_mut().unwrap().push_str(before);
            literals.push(after.to_owned());
        }
    }
    let (first, others) = literals.split_first().unwrap();
    let Some(rest) = text.strip_prefix(first.as_str()) else { return false };
    let rest = others.iter().try_fold(rest, |rest, literal| Some(rest.split_once(literal.as_str())?.1));
    rest.is_some_and(|rest| rest.is_empty() || template.ends_with(|c: char| c.is_uppercase() || c == '…'))
}

#[test]
fn each_text_of_the_specification_is_a_line() {
    let page = include_str!("../../../../docs/spec/logs.md");
    let (_, table) = page.split_once("| entry | text | when |\n|---|---|---|\n").unwrap();
    let rows: Vec<&str> = table.lines().take_while(|row| row.starts_with('|')).collect();
    assert!(rows.len() > 10, "{rows:?}");
    for row in rows {
        let columns: Vec<&str> = row.split(" | ").collect();
        let source = columns[0].trim_matches(['|', ' ', '`']);
        for template in columns[1].split('`').skip(1).step_by(2) {
            let is_line = |&(of, text, line): &(&str, &str, DaemonLine<'_>)| {
                of == source && !matches!(line, DaemonLine::Other { .. }) && matches_template(template, text)
            };
            assert!(lines().iter().any(is_line), "{source} {template}");
        }
    }
}

#[test]
fn a_step_that_prints_a_line_of_the_daemon_is_not_the_daemon() {
    for (_, text, _) in lines() {
        for source in ["01O", "01E", "02O", "0eE", "ffO"] {
            assert_eq!(parsed(&entry(source, text)), None, "{source} {text}");
            let key = Entry::parse(&entry(source, text)).unwrap().key();
            assert_eq!(DaemonLine::parse(key, text), None);
        }
    }
}

#[test]
fn only_four_lines_tell_why_a_job_did_not_succeed() {
    let classes: Vec<_> = lines().iter().filter_map(|(_, _, line)| line.job_end()).collect();
    assert_eq!(classes, [EndClass::Failure, EndClass::Cancelled, EndClass::Timeout, EndClass::Interrupted]);
}

#[test]
fn a_damaged_line_is_another_line() {
    let key = SourceKey::of_daemon(LogChannel::Out);
    for text in [
        "",
        "Skipped step name=a",
        "Retrying step name=a (attempt [MASKED] of 2) in 1s: x",
        "Fetched step name=a from b",
        "step a left many processes running: 1",
        "step a left 1 processes running: 1",
        "section_start:soon:a",
        " 1 (parent 2, state S) x",
        "section_start:+1:a\r\u{1b}[0K",
        "+1 processes could not be killed",
        "01 processes could not be killed",
        "job failed",
        "a later version says this",
    ] {
        let expected = DaemonLine::Other { channel: LogChannel::Out, text };
        assert_eq!(DaemonLine::parse(key, text), Some(expected));
    }
    assert_eq!(
        DaemonLine::parse(key, "Skipped step name=t[a[MASKED]: false"),
        Some(DaemonLine::Skipped { name: "t[a[MASKED]", reason: "false" })
    );
    assert_eq!(parsed(&[&entry("00E", "job failed: "), &b"\xff"[..]].concat()), None);
    assert_eq!(entry("00E", "").len(), HEADER_LEN);
}

/// Any text of one line, often with words of our lines in it.
fn any_text() -> impl Strategy<Value = String> {
    let confusing = prop::sample::select(CONFUSING.to_vec()).prop_map(str::to_owned);
    prop::collection::vec(prop_oneof!["\\PC{0,12}".prop_map(String::from), confusing], 0..4)
        .prop_map(|pieces| pieces.concat())
}

/// Names that steps can have: plain ones, and those of members of a matrix with any values (flow.md §6). A closing bracket
/// within a value makes a name ambiguous.
fn any_name() -> impl Strategy<Value = String> {
    let member = ("[a-z_][a-z0-9_]{0,8}", any_text(), prop::option::of(2..99_u32), any::<bool>()).prop_map(
        |(step, values, number, is_cut)| {
            let end = if is_cut { "...]" } else { "]" };
            let number = number.map_or(String::new(), |number| format!("#{number}"));
            format!("{step}[{}{end}{number}", values.replace(']', "}"))
        },
    );
    prop_oneof!["[A-Za-z_][A-Za-z0-9_]{0,12}".prop_map(String::from), member]
}

/// A finding with its place, as lines of failures and of warnings have it.
fn any_finding() -> impl Strategy<Value = String> {
    ("/[a-z/]{0,12}", 1..999_u32, any_text())
        .prop_map(|(file, line, text)| format!("{file}:{line}:1: {text}"))
}

/// Any line that our writers can write, made of these parts.
fn line(variant: usize, parts: &Parts) -> DaemonLine<'_> {
    use DaemonLine as Line;
    let Parts { name, later, text, finding, origin, word, number } = parts;
    let (small, bytes) = (*number as u32, *number);
    match variant {
        0 => Line::Started { name, stream: None },
        1 => Line::Started { name, stream: Some(*number as u8) },
        2 => Line::Skipped { name, reason: text },
        3 => Line::Retrying { name, attempt: small, of: small, delay: word, error: text },
        4 => Line::Fetched { name, origin, version: FetchedVersion::Commit(word) },
        5 => Line::Fetched { name, origin, version: FetchedVersion::Digest(word) },
        6 => Line::LeftRunning { name, count: small as usize, processes: text },
        7 => Line::SectionStart { time: (bytes >> 1) as i64, name: word, heading: text },
        8 => Line::SectionEnd { time: (bytes >> 1) as i64, name: word },
        9 => Line::Warning(Warning::Text(finding)),
        10 => Line::Warning(Warning::AllowedFailure { name, error: text }),
        11 => Line::Warning(Warning::NoCombinations { name: word }),
        12 => Line::Warning(Warning::ExportsDiffer { earlier: name, later, variable: word }),
        13 => Line::Warning(Warning::MemoryShort { name }),
        14 => Line::Warning(Warning::ProcessesShort { name }),
        15 => Line::Warning(Warning::OutputLost { bytes }),
        16 => Line::Warning(Warning::OutputDropped { bytes }),
        17 => Line::Process {
            depth: small as usize % 40,
            pid: small,
            parent: small,
            state: ['S', '?'][small as usize % 2],
            command: text,
        },
        18 => Line::MoreProcesses { count: small as usize },
        19 => Line::ReaperKilled,
        20 => Line::Debug(text),
        21 => Line::LimitReached { limit: bytes },
        22 => Line::LinesLeftOut { channel: LogChannel::Out, cause: text },
        23 => Line::JobFailed { message: text },
        24 => Line::JobCancelled { cause: text },
        25 => Line::JobTimedOut { cause: text },
        26 => Line::JobInterrupted { cause: text },
        27 => Line::NotKilled { count: small as usize },
        _ => Line::Other { channel: LogChannel::Err, text: finding },
    }
}

/// Number of variants that [`line`] makes.
const VARIANTS: usize = 29;

#[derive(Debug)]
struct Parts {
    name: String,
    later: String,
    text: String,
    finding: String,
    origin: String,
    word: String,
    number: u64,
}

fn any_parts() -> impl Strategy<Value = Parts> {
    (
        (any_name(), any_name(), any_text(), any_finding()),
        "[a-z.:/@]{1,20}( from |: commit |)[a-z]{0,4}",
        "[a-z_][a-z0-9_:]{0,20}",
        any::<u64>(),
    )
        .prop_map(|((name, later, text, finding), origin, word, number)| Parts {
            name,
            later,
            text,
            finding,
            origin,
            word,
            number,
        })
}

proptest! {
    #[test]
    fn what_a_writer_writes_is_what_a_reader_reads(variant in 0..VARIANTS, parts in any_parts()) {
        let line = line(variant, &parts);
        let text = line.to_string();
        prop_assert_eq!(DaemonLine::parse(SourceKey::of_daemon(line.channel()), &text), Some(line));
        let bytes = entry(if line.channel() == LogChannel::Out { "00O" } else { "00E" }, &text);
        prop_assert_eq!(parsed(&bytes), Some(line));
    }

    #[test]
    fn any_text_of_the_daemon_is_read_as_itself(text in any_text()) {
        let line = DaemonLine::parse(SourceKey::of_daemon(LogChannel::Err), &text);
        prop_assert_eq!(line.map(|line| line.to_string()), Some(text));
    }

    #[test]
    fn no_text_of_a_step_is_a_line_of_the_daemon(text in any_text(), number in 1..=255_u8) {
        let bytes = entry(&format!("{number:02x}O"), &text);
        prop_assert_eq!(parsed(&bytes), None);
    }
}
