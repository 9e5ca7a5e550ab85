//! Reads logs in tests.

use step_runner::log::line::{Entry, Joiner};

/// Returns the entries of a log, each as header and body without the line feed. Asserts that every line is an entry.
pub(crate) fn entries(log: &[u8]) -> Vec<(&[u8], &[u8])> {
    assert!(log.is_empty() || log.ends_with(b"\n"), "the log ends within a line");
    let mut lines: Vec<&[u8]> = log.split(|&byte| byte == b'\n').collect();
    lines.pop();
    lines
        .iter()
        .map(|line| {
            let entry =
                Entry::parse(line).unwrap_or_else(|| panic!("no entry: {:?}", String::from_utf8_lossy(line)));
            assert!(entry.has_format(), "no header: {:?}", String::from_utf8_lossy(line));
            (entry.header(), entry.body)
        })
        .collect()
}

/// Returns what the source `01O`, `01E`, `00O` or `00E` wrote. The last line feed can be added by the formatter.
pub(crate) fn source(log: &[u8], source: &str) -> Vec<u8> {
    let mut joiner = Joiner::new();
    let mut written = Vec::new();
    for line in entries(log) {
        let whole: Vec<u8> = [line.0, line.1].concat();
        let entry = Entry::parse(&whole).unwrap();
        if entry.source() == source.as_bytes() {
            joiner.push(&entry, |_, bytes| written.extend_from_slice(bytes));
        }
    }
    joiner.finish(|_, bytes| written.extend_from_slice(bytes));
    written
}

/// Returns the daemon's own lines, `00O` and `00E`, as text.
pub(crate) fn daemon_lines(log: &[u8]) -> Vec<String> {
    let own = entries(log).into_iter().filter(|(header, _)| header[28..30] == *b"00");
    own.map(|(_, body)| String::from_utf8_lossy(body).into_owned()).collect()
}
