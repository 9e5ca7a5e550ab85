//! What must hold once every job is over.

use super::*;

impl World {
    /// Checks what must hold at the end.
    pub(super) fn check(&mut self) {
        assert!(self.machine.environments.is_empty(), "environments are left");
        for (id, job) in &self.server.jobs {
            let starts = self.machine.starts.get(id).copied().unwrap_or(0);
            assert!(starts <= 1, "job {id} was started {starts} times");
            assert!(job.reports <= 1, "job {id} has {} results", job.reports);
            let Some(kept) = self.kept.get(id) else {
                assert!(job.reports == 0 && starts == 0, "job {id} has no record");
                continue;
            };
            let (record, Folder { head, trace, tail, .. }) = (kept.read().0, kept);
            if record.phase == Phase::Taken {
                assert_eq!((job.reports, starts), (0, 0), "job {id} is not ours");
                self.totals.not_ours += 1;
                continue;
            }
            let whole = [&trace[..], tail].concat();
            let shown = String::from_utf8_lossy(tail);
            assert!(
                shown.contains("Job succeeded\n") || shown.contains("ERROR: Job failed: "),
                "job {id}: no tail"
            );
            let Status::Reported(state) = job.status else {
                assert_eq!(job.status, Status::Dropped, "job {id} has no result");
                assert!(whole.starts_with(&job.trace), "job {id}: the server has no prefix of the trace");
                continue;
            };
            // A wrong 403 that came three times aborts a job, and any answer ends its report.
            if !record.wanted.abort {
                assert_eq!(Some(state), record.outcome().map(|outcome| outcome.state), "job {id}");
                assert_eq!(job.trace, whole, "job {id}: another trace");
                self.totals.whole += 1;
            }
            let has_all = !self.died.contains(id)
                && matches!(record.end, Some(JobEnd::Ended { code, .. }) if code != -3 || starts > 0);
            if has_all && starts > 0 {
                let form = if record.has_timestamps { Form::Entries } else { Form::Lines };
                let (mut text, mut wanted) = (Text::new(form, record.output_limit), Vec::new());
                text.head(std::str::from_utf8(head).unwrap(), &mut wanted);
                text.log(&self.machine.logs[id], &mut wanted);
                text.end_of_log(&mut wanted);
                assert_eq!(*trace, wanted, "job {id}: the trace is not made of head and log");
            }
        }
    }
}
