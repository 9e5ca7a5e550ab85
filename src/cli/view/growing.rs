//! The lines of a step that have no end yet, as the daemon tells them beside the log.

use crate::log::line::{Entry, SourceKey};

/// The unfinished entry of each source, the newest last.
#[derive(Default)]
pub(super) struct Growing(Vec<Vec<u8>>);

impl Growing {
    /// Takes an entry so far, in place of the one before of its source.
    pub(super) fn set(&mut self, entry: &[u8]) {
        if let Some(parsed) = Entry::parse(entry).filter(Entry::has_format) {
            self.end(parsed.key());
            self.0.push(entry.to_vec());
        }
    }

    /// Takes whole lines of the log: they end the lines of their sources.
    pub(super) fn follow(&mut self, log: &[u8]) {
        for line in log.split(|byte| *byte == b'\n') {
            if self.0.is_empty() {
                return;
            }
            if let Some(entry) = Entry::parse(line).filter(Entry::has_format) {
                self.end(entry.key());
            }
        }
    }

    /// Returns the newest entry.
    pub(super) fn last(&self) -> Option<Entry<'_>> {
        Entry::parse(self.0.last()?)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    fn end(&mut self, source: SourceKey) {
        self.0.retain(|entry| Entry::parse(entry).is_some_and(|entry| entry.key() != source));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(source: &str, body: &str) -> Vec<u8> {
        format!("2026-01-02T03:04:05.000006Z {source} {body}").into_bytes()
    }

    fn shown(growing: &Growing) -> Option<&[u8]> {
        growing.last().map(|entry| entry.body)
    }

    #[test]
    fn the_newest_line_is_shown_until_the_log_has_its_end() {
        let mut growing = Growing::default();
        growing.set(&entry("01O", "load"));
        growing.set(&entry("01O", "loading"));
        growing.set(&entry("01E", "hm"));
        assert_eq!(shown(&growing), Some(&b"hm"[..]));
        growing.follow(&[entry("01E", "hm!"), entry("00O", "note")].join(&b'\n'));
        assert_eq!(shown(&growing), Some(&b"loading"[..]));
        growing.follow(&entry("01O", "loading done"));
        assert_eq!(shown(&growing), None);
    }

    #[test]
    fn bytes_that_are_no_entry_change_nothing() {
        let mut growing = Growing::default();
        growing.set(b"short");
        growing.set(&[b'x'; 40]);
        assert_eq!(shown(&growing), None);
        growing.set(&entry("01O", "a"));
        growing.follow(b"2026 is no time\nneither is this, although it is long enough\n");
        assert_eq!(shown(&growing), Some(&b"a"[..]));
    }
}
