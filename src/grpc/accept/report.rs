//! Reports refused and ended connections to the operator, many in one line.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

/// Interval between two lines.
const EVERY: Duration = Duration::from_secs(5);

/// Reason to refuse or end a connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum DropReason {
    /// All connections are in use.
    Refused,
    /// No call was made on it, and another client needed the place.
    Dropped,
    /// The client sent no preface in time.
    Silent,
    /// The client flooded the daemon with frames.
    Flooding,
    /// The client no longer read.
    Dead,
}

const REASONS: [(DropReason, &str); 5] = [
    (DropReason::Refused, "refused: all places are taken by connections with calls"),
    (DropReason::Dropped, "dropped for others: no call was made on them"),
    (DropReason::Silent, "dropped: the client did not speak in time"),
    (DropReason::Flooding, "ended: the client sent more frames than its calls justify"),
    (DropReason::Dead, "ended: the client took nothing any more"),
];

/// Counters of connections by reason. Clones share them.
#[derive(Clone, Default)]
pub(super) struct DropReport(Arc<Counts>);

#[derive(Default)]
struct Counts {
    of: [AtomicU64; REASONS.len()],
    changed: Notify,
}

impl DropReport {
    /// Counts a connection.
    pub(super) fn add(&self, reason: DropReason) {
        if let Some(count) = self.0.of.get(reason as usize) {
            count.fetch_add(1, Ordering::Relaxed);
            self.0.changed.notify_one();
        }
    }

    /// Writes a line for the first connection at once, then one for all those of each [`EVERY`]. Never returns.
    pub(super) async fn write(self, max_connections: usize) {
        loop {
            self.0.changed.notified().await;
            if let Some(text) = self.take() {
                tracing::warn!(max_connections, "connections {text}");
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    /// Returns the counts since the last call as text, and resets them.
    fn take(&self) -> Option<String> {
        let counts = self.0.of.iter().map(|count| count.swap(0, Ordering::Relaxed));
        let texts: Vec<String> = REASONS
            .iter()
            .zip(counts)
            .filter(|(_, count)| *count > 0)
            .map(|((_, text), count)| format!("{count} {text}"))
            .collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_89_many_refusals_are_one_line() {
        let report = DropReport::default();
        assert_eq!(report.take(), None);
        (0..300).for_each(|_| report.add(DropReason::Refused));
        report.add(DropReason::Dead);
        let text = report.take().unwrap();
        assert!(text.starts_with("300 refused: ") && text.contains("; 1 ended: the client took"), "{text}");
        assert_eq!(report.take(), None);
    }

    #[test]
    fn every_reason_has_its_own_text() {
        for (at, (reason, _)) in REASONS.iter().enumerate() {
            assert_eq!(*reason as usize, at);
        }
    }
}
