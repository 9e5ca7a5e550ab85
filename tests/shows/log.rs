//! Reads a log as a client does. It is independent and does not use the program's parser.

use std::collections::BTreeMap;

use crate::verdict::Check;

const HEADER: usize = 32;

/// The output of each source, with cut lines joined.
#[derive(Default)]
pub(crate) struct Sources {
    bytes: BTreeMap<[u8; 3], Vec<u8>>,
    /// Number of lines that are no entries.
    pub(crate) malformed: usize,
}

impl Sources {
    pub(crate) fn read(log: &[u8]) -> Check<Self> {
        if log.last().is_some_and(|&byte| byte != b'\n') {
            return Err("the log does not end with a line feed".into());
        }
        let mut sources = Self::default();
        for line in log.split_inclusive(|&byte| byte == b'\n') {
            let well_formed = line.len() > HEADER
                && line[26..28] == *b"Z "
                && matches!(line[30], b'O' | b'E')
                && matches!(line[31], b' ' | b'+');
            if !well_formed {
                sources.malformed += 1;
                continue;
            }
            let source = sources.bytes.entry([line[28], line[29], line[30]]).or_default();
            if line[31] == b'+' {
                source.pop();
            }
            source.extend_from_slice(&line[HEADER..]);
        }
        Ok(sources)
    }

    pub(crate) fn of(&self, source: [u8; 3]) -> &[u8] {
        self.bytes.get(&source).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn lines(&self, source: [u8; 3]) -> Vec<String> {
        String::from_utf8_lossy(self.of(source)).lines().map(str::to_owned).collect()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.bytes.keys().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
    }
}

/// Checks that both are equal. The error names the place of the first difference.
pub(crate) fn check_equal(what: &str, found: &[u8], expected: &[u8]) -> Check {
    if found == expected {
        return Ok(());
    }
    let at = found.iter().zip(expected).take_while(|(a, b)| a == b).count();
    Err(format!(
        "{what} differs at byte {at} ({} bytes found, {} expected): found {:?}, expected {:?}",
        found.len(),
        expected.len(),
        excerpt(found, at),
        excerpt(expected, at)
    ))
}

/// Checks that `found` is a prefix of `expected`. Its last line can be cut, with a line feed added.
pub(crate) fn check_prefix(what: &str, found: &[u8], expected: &[u8]) -> Check {
    let cut = found.strip_suffix(b"\n").unwrap_or(found);
    if expected.starts_with(cut) {
        return Ok(());
    }
    check_equal(what, cut, expected)
}

fn excerpt(bytes: &[u8], at: usize) -> String {
    let from = at.saturating_sub(60);
    String::from_utf8_lossy(&bytes[from..bytes.len().min(at + 60)]).into_owned()
}
