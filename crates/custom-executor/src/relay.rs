//! Extracts the bytes that a stage wrote from the daemon's log (custom-executor.md §7.1, logs.md §7). Pure.

use step_runner_log::frame::LogChannel;
use step_runner_log::line::{Check, Entry, Line, Live, Parser};
use step_runner_log::words::DaemonLine;

/// Bytes to pass on. The caller writes and clears them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RelayedBytes {
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
}

/// Removes the framing. Of the daemon's own lines only complaints are kept, which go to standard error unless streams
/// are merged.
pub(super) struct Relay {
    parser: Parser,
    merge: bool,
    stdout: Live,
    stderr: Live,
}

impl Relay {
    /// Starts at the beginning of a log. `merge` sends everything to standard output.
    pub(super) const fn new(merge: bool) -> Self {
        Self { parser: Parser::new(Check::Lenient), merge, stdout: Live::new(), stderr: Live::new() }
    }

    pub(super) fn push(&mut self, bytes: &[u8], out: &mut RelayedBytes) {
        let Self { parser, merge, stdout, stderr } = self;
        let parsed = parser.push(bytes, |line| match line {
            Line::Entry(entry) if entry.key().is_daemon() => {
                let (live, out) =
                    if *merge { (&mut *stdout, &mut out.stdout) } else { (&mut *stderr, &mut out.stderr) };
                complaint(&entry, live, out);
            }
            Line::Entry(entry) if *merge || entry.key().kind == LogChannel::Out => {
                stdout.push(&entry, &mut out.stdout);
            }
            Line::Entry(entry) => stderr.push(&entry, &mut out.stderr),
            Line::Malformed(_) => {}
        });
        debug_assert!(parsed.is_ok(), "a lenient parser refuses nothing");
    }

    /// Completes the last lines at the end of the log.
    pub(super) fn finish(&mut self, out: &mut RelayedBytes) {
        self.stdout.finish(&mut out.stdout);
        self.stderr.finish(&mut out.stderr);
    }
}

/// Appends one of the daemon's own lines if it is a complaint, on a line of its own.
fn complaint(entry: &Entry<'_>, live: &mut Live, out: &mut Vec<u8>) {
    let tells_end = DaemonLine::of(entry).is_some_and(|line| line.job_end().is_some());
    if entry.key().kind == LogChannel::Err && !tells_end {
        live.finish(out);
        out.extend_from_slice(b"step-runner: ");
        out.extend_from_slice(entry.body);
        out.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LOG: &str = "\
2026-11-20T10:00:00.000001Z 00O Running step name=x
2026-11-20T10:00:00.000002Z 01O one\r
2026-11-20T10:00:00.000003Z 01E bad
2026-11-20T10:00:00.000004Z 01O+, still one
2026-11-20T10:00:00.000005Z 00E the daemon complains
short
2026-11-20T10:00:00.000006Z 02O two
2026-11-20T10:00:00.000007Z 00E job failed: exec: exit status 3
";

    fn relayed(merge: bool, pieces: &[&[u8]]) -> (String, String) {
        let (mut relay, mut out) = (Relay::new(merge), RelayedBytes::default());
        for piece in pieces {
            relay.push(piece, &mut out);
        }
        relay.finish(&mut out);
        (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap())
    }

    #[test]
    fn streams_come_apart_and_lines_together() {
        let (stdout, stderr) = relayed(false, &[LOG.as_bytes()]);
        assert_eq!(stdout, "one\r, still one\ntwo\n");
        assert_eq!(stderr, "bad\nstep-runner: the daemon complains\n");
    }

    #[test]
    fn a_step_may_print_the_end_of_a_job() {
        let log = "2026-11-20T10:00:00.000001Z 01E job failed: forged\n";
        assert_eq!(relayed(false, &[log.as_bytes()]), (String::new(), "job failed: forged\n".to_owned()));
    }

    #[test]
    fn merged_streams_keep_the_order_of_lines() {
        let (stdout, stderr) = relayed(true, &[LOG.as_bytes()]);
        assert_eq!(stdout, "one\r\nbad\n, still one\nstep-runner: the daemon complains\ntwo\n");
        assert_eq!(stderr, "");
    }

    #[test]
    fn what_a_step_prints_is_passed_on_though_it_looks_like_the_daemons() {
        let texts = [
            "Running step name=x stream=02",
            "job failed: x",
            "2026-11-20T10:00:00.000001Z 00E job failed: x",
        ];
        let log: String = texts
            .iter()
            .flat_map(|text| {
                ["01O", "01E"].map(|source| format!("2026-11-20T10:00:00.000001Z {source} {text}\n"))
            })
            .collect();
        let whole = texts.join("\n") + "\n";
        assert_eq!(relayed(false, &[log.as_bytes()]), (whole.clone(), whole));
    }

    proptest! {
        #[test]
        fn any_cutting_gives_the_same(cuts in proptest::collection::vec(0..LOG.len(), 0..8), merge: bool) {
            let mut cuts = cuts;
            cuts.extend([0, LOG.len()]);
            cuts.sort_unstable();
            let pieces: Vec<_> = cuts.windows(2).map(|pair| &LOG.as_bytes()[pair[0]..pair[1]]).collect();
            prop_assert_eq!(relayed(merge, &pieces), relayed(merge, &[LOG.as_bytes()]));
        }
    }
}
