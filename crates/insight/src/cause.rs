//! The step that decided how a job ended.

use step_runner_proto::v1;
use step_runner_proto::v1::step_result::{Outcome, Status};

/// Returns the results from the job's own list down to the step that made the job fail, or that a stop ended first. Empty if
/// no step did.
///
/// In each list it is the one that ended first among those that failed or were stopped: what ended after it is a cleanup, or
/// a member that it stopped. Failures that are allowed do not count.
pub fn deciding(root: &v1::StepResult) -> Vec<&v1::StepResult> {
    let mut path = Vec::new();
    let mut at = root;
    while let Some(next) =
        at.sub_step_results.iter().filter(|result| is_decisive(result)).min_by_key(|result| end(result))
    {
        path.push(next);
        at = next;
    }
    path
}

fn is_decisive(result: &v1::StepResult) -> bool {
    match result.outcome() {
        Outcome::Failure | Outcome::Cancelled => true,
        Outcome::Success | Outcome::AllowedFailure | Outcome::Skipped => false,
        // Of a daemon that tells no outcome, or cut off by its death.
        Outcome::Unspecified => result.status() != Status::Success,
    }
}

/// Returns the end of a step for a comparison. One without an end comes last; of equal ones the first in the list counts.
fn end(result: &v1::StepResult) -> (i64, i32) {
    result.end_time.as_ref().map_or((i64::MAX, 0), |end| (end.seconds, end.nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(name: &str, outcome: Outcome, end: i64, below: Vec<v1::StepResult>) -> v1::StepResult {
        let step = Some(v1::Step { name: name.into(), ..v1::Step::default() });
        let end_time = Some(prost_types::Timestamp { seconds: end, nanos: 0 });
        let outcome = outcome.into();
        v1::StepResult { step, outcome, end_time, sub_step_results: below, ..v1::StepResult::default() }
    }

    fn names(below: Vec<v1::StepResult>) -> String {
        let root = v1::StepResult { sub_step_results: below, ..v1::StepResult::default() };
        let names = deciding(&root).into_iter().filter_map(|result| result.step.as_ref());
        names.map(|step| step.name.as_str()).collect::<Vec<_>>().join("/")
    }

    #[test]
    fn the_first_failure_decides_whatever_ends_after_it() {
        use Outcome::{AllowedFailure, Cancelled, Failure, Skipped, Success};
        let inner = || vec![result("ok", Success, 1, vec![]), result("x", Failure, 2, vec![])];
        let cleanup = || result("t", Failure, 9, vec![]);
        for (below, expected) in [
            (vec![result("a", Failure, 3, inner()), cleanup()], "a/x"),
            (vec![result("a", Failure, 3, inner()), result("s", Skipped, 3, vec![]), cleanup()], "a/x"),
            (vec![result("a", AllowedFailure, 3, inner()), result("b", Failure, 4, vec![])], "b"),
            (vec![result("a", Cancelled, 3, vec![]), cleanup()], "a"),
            // Members: the second one failed and stopped the others.
            (vec![result("m", Cancelled, 5, vec![]), result("n", Failure, 4, vec![])], "n"),
            (vec![result("a", Success, 3, inner())], ""),
        ] {
            assert_eq!(names(below), expected);
        }
    }

    #[test]
    fn results_without_outcomes_count_by_their_status() {
        let with = |name: &str, status: Status| {
            let step = Some(v1::Step { name: name.into(), ..v1::Step::default() });
            v1::StepResult { step, status: status.into(), ..v1::StepResult::default() }
        };
        assert_eq!(names(vec![with("a", Status::Success), with("b", Status::Failure)]), "b");
        assert_eq!(names(vec![with("a", Status::Success), with("b", Status::Running)]), "b");
    }
}
