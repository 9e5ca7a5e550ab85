//! Job logs without headers, for clients of the compatible service that add their own (service.md §4.2).
//!
//! The log on disk has headers; this module removes them while it is sent. The text depends only on the bytes on disk,
//! so it is the same for every follower and after every restart. Offsets count bytes of this text: a follower with an
//! offset reads the file from its start and skips.

use bytes::Bytes;

use crate::actors::log_sink::{LogCursor, LogProgress, past_end};
use crate::config::JobLogFormat;
use crate::log::pretty::{Format, Output, Printer};
use crate::model::{Refusal, Variable};
use crate::request::RequestOrigin;

/// First major version of GitLab Runner that understands headers.
const FIRST_WITH_HEADERS: u32 = 19;

/// Job variable with the version of the Runner that runs the job.
const RUNNER_VERSION: &str = "CI_RUNNER_VERSION";

/// Decides in which form clients follow the log of a job from the compatible service.
pub(super) fn origin(format: JobLogFormat, variables: &[Variable]) -> RequestOrigin {
    let plain = match format {
        JobLogFormat::Framed => false,
        JobLogFormat::Plain => true,
        JobLogFormat::Auto => {
            // The last definition of a key counts.
            let version = variables.iter().rev().find(|variable| variable.key == RUNNER_VERSION);
            version.and_then(|version| major(&version.value)).is_some_and(|major| major < FIRST_WITH_HEADERS)
        }
    };
    if plain { RequestOrigin::ProtoPlain } else { RequestOrigin::Proto }
}

/// True if the log of a job from `origin` is sent without headers.
pub(super) fn is_plain(origin: RequestOrigin, format: JobLogFormat) -> bool {
    match origin {
        RequestOrigin::ProtoPlain => true,
        RequestOrigin::Proto => false,
        RequestOrigin::V1 | RequestOrigin::V0 => format == JobLogFormat::Plain,
    }
}

/// Parses the major version of `17.9.3`, `v18.0.0` or `19.1.0~pre.5.gabc`.
fn major(version: &str) -> Option<u32> {
    let (major, _) = version.trim().trim_start_matches('v').split_once('.')?;
    major.parse().ok()
}

/// A follower's position in the text of a log.
pub(super) struct PlainLog {
    cursor: LogCursor,
    text: Text,
    /// Offset that the follower asked for.
    offset: u64,
    /// Progress of the log when the follower came. The offset is checked against this much of the log.
    known: LogProgress,
    over: bool,
}

impl PlainLog {
    /// Makes a follower that starts at byte `offset` of the text. `cursor` must be at the start of the log.
    pub(super) fn new(cursor: LogCursor, offset: u64) -> Self {
        let known = cursor.progress();
        Self { cursor, text: Text::new(offset), offset, known, over: false }
    }

    /// Returns the next bytes, at least one, from at most `most` bytes of the log. Returns `None` at the end of an
    /// ended job's log.
    pub(super) async fn next(&mut self, most: impl Fn() -> usize) -> Result<Option<Bytes>, Refusal> {
        while !self.over {
            // The end of a log may add a line feed. So a log that has ended is known to be too short only at its end.
            if self.text.skip > 0 && !self.known.ended && self.cursor.offset() >= self.known.len {
                break;
            }
            let piece = self.cursor.next(&most).await?;
            self.over = piece.is_none();
            let text = self.text.next(piece.as_deref());
            if !text.is_empty() {
                return Ok(Some(text));
            }
            // Skipping a long log never has to wait, so it must yield.
            tokio::task::yield_now().await;
        }
        match self.text.skip {
            0 => Ok(None),
            missing => Err(past_end(self.offset, self.offset - missing)),
        }
    }
}

/// The text of one log while it grows.
struct Text {
    printer: Printer,
    output: Output,
    /// Bytes still to be skipped because the follower has them.
    skip: u64,
}

impl Text {
    fn new(skip: u64) -> Self {
        Self { printer: Printer::new(Format::Together), output: Output::default(), skip }
    }

    /// Returns the text of the next piece of the log, or of its end.
    fn next(&mut self, piece: Option<&[u8]>) -> Bytes {
        match piece {
            Some(piece) => self.printer.push(piece, &mut self.output),
            None => self.printer.finish(&mut self.output),
        }
        let mut text = Bytes::from(std::mem::take(&mut self.output.stdout));
        let skipped = text.len().min(usize::try_from(self.skip).unwrap_or(usize::MAX));
        self.skip -= skipped as u64;
        text.split_off(skipped)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn version(versions: &[&str]) -> Vec<Variable> {
        let variable = |value: &&str| Variable {
            key: RUNNER_VERSION.to_owned(),
            value: (*value).to_owned(),
            file: false,
            masked: false,
        };
        versions.iter().map(variable).collect()
    }

    #[test]
    fn a_runner_before_19_gets_a_log_without_headers() {
        for (versions, expected) in [
            (&["17.9.3"][..], RequestOrigin::ProtoPlain),
            (&["v18.11.0~pre.7.gabc"], RequestOrigin::ProtoPlain),
            (&["18.0.0", "19.4.0"], RequestOrigin::Proto),
            (&["19.4.0", "18.0.0"], RequestOrigin::ProtoPlain),
            (&["19.0.0~beta.1"], RequestOrigin::Proto),
            (&["development"], RequestOrigin::Proto),
            (&[""], RequestOrigin::Proto),
            (&[], RequestOrigin::Proto),
        ] {
            assert_eq!(origin(JobLogFormat::Auto, &version(versions)), expected, "{versions:?}");
            assert_eq!(origin(JobLogFormat::Framed, &version(versions)), RequestOrigin::Proto);
            assert_eq!(origin(JobLogFormat::Plain, &version(versions)), RequestOrigin::ProtoPlain);
        }
    }

    fn entry(source: &str, body: &str) -> String {
        format!("2026-01-02T03:04:05.000006Z {source}{body}\n")
    }

    /// Text from `offset` on of a log that arrives in pieces of `size` bytes.
    fn text(log: &[u8], size: usize, offset: u64) -> Vec<u8> {
        let mut text = Text::new(offset);
        let pieces = log.chunks(size).map(Some).chain([None]);
        pieces.flat_map(|piece| text.next(piece)).collect()
    }

    #[test]
    fn lines_stay_in_order_and_continued_ones_are_joined() {
        let log = [
            entry("00O ", "Running step name=a"),
            entry("01O ", "one"),
            entry("01E ", "two"),
            entry("01O ", " 10%\r"),
            entry("01O+", " 20%\r"),
            entry("01O+", "done"),
            entry("01O ", ""),
            entry("01O ", "cut off\r"),
        ]
        .concat();
        let expected = "Running step name=a\none\ntwo\n 10%\r 20%\rdone\n\ncut off\r\n";
        for size in [1, 7, 4096] {
            assert_eq!(String::from_utf8(text(log.as_bytes(), size, 0)).unwrap(), expected);
        }
    }

    proptest! {
        /// A follower that returns gets exactly the bytes that it lacks, even if the log has grown.
        #[test]
        fn every_offset_continues_where_it_ended(
            entries in prop::collection::vec(("0[01][OE][ +]", "[ab\r]{0,9}"), 0..9),
            (size, cut, offset) in (1usize..99, 0usize..500, 0usize..200),
        ) {
            let log: String = entries.iter().map(|(source, body)| entry(source, body)).collect();
            let whole = text(log.as_bytes(), size, 0);
            // The text of a shorter log is a prefix of the text of the whole one.
            let mut early = Text::new(0);
            let early = early.next(Some(&log.as_bytes()[..cut.min(log.len())]));
            prop_assert!(whole.starts_with(&early));
            let offset = offset.min(whole.len());
            prop_assert_eq!(&text(log.as_bytes(), 4096, offset as u64)[..], &whole[offset..]);
        }
    }
}
