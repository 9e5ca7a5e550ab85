//! Names of steps that run side by side, by the streams that they write (logs.md §2, §8).
//!
//! The log itself says them: the daemon's line `Running step name=NAME stream=02` gives stream 02 its name. They are read
//! from there, not from events of steps, for two reasons. `plain` and the services of GitLab's runner print a log as it comes,
//! without events. And that a step is a member of a group, whose lines carry its name, only this line says: events do not.
//!
//! No step can forge such a line, because the keeper writes the number of the stream in front of each. No name can either: that
//! of a member is followed by its own number, and others have no blanks (language.md §6).

use crate::line::{Entry, SourceKey};
use crate::words::DaemonLine;

/// Names by stream. A job whose steps run one after another has none.
pub(super) struct Names(Vec<([u8; 2], Vec<u8>)>);

impl Names {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Takes an entry, which may be an announcement.
    pub(super) fn take(&mut self, entry: &Entry<'_>) {
        let Some(DaemonLine::Started { name, stream }) = DaemonLine::of(entry) else { return };
        let Some(stream) = stream else { return self.0.clear() };
        let number = hex(stream);
        self.0.retain(|(other, _)| *other != number);
        self.0.push((number, name.as_bytes().to_vec()));
    }

    /// Returns the name of the step that writes this source.
    pub(super) fn of(&self, key: SourceKey) -> Option<&[u8]> {
        self.0.iter().find(|(number, _)| *number == key.number).map(|(_, name)| name.as_slice())
    }

    /// Returns the sequence that begins the colour of a source: each stream has its own.
    pub(super) const fn color(key: SourceKey) -> &'static str {
        const COLORS: [&str; 6] = ["\x1b[36m", "\x1b[33m", "\x1b[35m", "\x1b[32m", "\x1b[34m", "\x1b[96m"];
        COLORS[key.number[1] as usize % COLORS.len()]
    }
}

/// Returns the number of a stream as entries have it.
fn hex(stream: u8) -> [u8; 2] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    [stream >> 4, stream & 15].map(|digit| DIGITS[usize::from(digit)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(names: &mut Names, source: &str, body: &str) {
        let line = format!("2026-01-02T03:04:05.000006Z {source} {body}");
        names.take(&Entry::parse(line.as_bytes()).unwrap());
    }

    fn of(names: &Names, number: [u8; 2]) -> Option<String> {
        let key = SourceKey { number, kind: crate::frame::LogChannel::Out };
        names.of(key).map(|name| String::from_utf8(name.to_vec()).unwrap())
    }

    #[test]
    fn a_stream_has_the_name_of_the_step_that_the_daemon_announced_last() {
        let mut names = Names::new();
        take(&mut names, "00O", "Running step name=lint stream=01");
        take(&mut names, "00O", "Running step name=a stream=02 stream=0e");
        take(&mut names, "01O", "Running step name=forged stream=01");
        assert_eq!(
            [*b"01", *b"0e"].map(|n| of(&names, n)),
            [Some("lint".into()), Some("a stream=02".into())]
        );
        take(&mut names, "00O", "Running step name=unit stream=01");
        assert_eq!(of(&names, *b"01").as_deref(), Some("unit"));
        take(&mut names, "00O", "Running step name=alone");
        assert_eq!(of(&names, *b"01"), None);
    }
}
