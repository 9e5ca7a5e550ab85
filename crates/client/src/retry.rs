//! The retry policy: which failures are repeated, how soon and for how long (connectors.md §5, §6; service.md §7). Pure
//! but for [`Attempts`], which reads the clock and draws the jitter.

use std::error::Error as _;
use std::time::Duration;

use step_runner_model::error::Chain;
use step_runner_model::{JobId, Reason};
use step_runner_proto::details;
use tokio::time::Instant;
use tonic::{Code, Status};
use tonic_types::ErrorInfo;

use super::diagnosis::{Meaning, Repeats};
use super::{Address, DialError, Error, Loss};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Connect,
    Run,
    /// A Run that is not repeated if the daemon refuses for now.
    TryRun,
    Status,
    Cancel,
    Finish,
    FollowLogs,
    FollowSteps,
}

/// Failure of one attempt.
#[derive(Debug)]
pub(super) enum CallFailure {
    /// No connection.
    Dial(DialError),
    /// The connection broke, or nothing came in time.
    Line(String),
    /// The daemon's own answer. Its HTTP/2 and gRPC libraries refuse without `info`.
    Answer { code: Code, message: String, info: Option<ErrorInfo> },
}

impl From<DialError> for CallFailure {
    fn from(error: DialError) -> Self {
        Self::Dial(error)
    }
}

/// A refusal of the daemon has details with its reason (service.md §3.6). A status made up by transport or libraries
/// has none. The code alone does not tell: a connection closed for flooding is `RESOURCE_EXHAUSTED` too.
impl From<Status> for CallFailure {
    fn from(status: Status) -> Self {
        let made_up = matches!(
            status.code(),
            Code::Unavailable | Code::Unknown | Code::Internal | Code::Cancelled | Code::ResourceExhausted
        );
        let info = details::info(&status);
        if status.source().is_some() || (made_up && info.is_none()) {
            let cause = status.source().map(|cause| Chain(cause).to_string());
            let message = cause.unwrap_or_else(|| status.message().to_owned());
            return Self::Line(if message.is_empty() { "the connection broke".to_owned() } else { message });
        }
        Self::Answer { code: status.code(), message: status.message().to_owned(), info }
    }
}

/// Decision after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Try again at this pace. If no time is left, end like this.
    Repeat(RetryPace, CallEnd),
    /// End now.
    Stop(CallEnd),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetryPace {
    /// 0.2 s × 1.6 up to 10 s (connectors.md §5).
    Connecting,
    /// 0.1 s × 2 up to 5 s (service.md §7.1).
    Calling,
}

/// Kinds of final failures, one for each [`Error`] of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallEnd {
    Unreachable,
    NoAnswer,
    Refused,
    TryLater,
    Lost,
    Defect,
}

/// Decides what follows a failure.
pub(super) fn judge(call: Call, failure: &CallFailure) -> Verdict {
    match failure {
        CallFailure::Dial(error) => match error.repeats() {
            Repeats::Never => Verdict::Stop(CallEnd::Unreachable),
            // Before any other call the client has connected once.
            Repeats::Briefly if call == Call::Connect => Verdict::Stop(CallEnd::Unreachable),
            Repeats::Briefly | Repeats::Twice | Repeats::UntilTheLimit => {
                Verdict::Repeat(RetryPace::Connecting, CallEnd::Unreachable)
            }
        },
        CallFailure::Line(_) => Verdict::Repeat(RetryPace::Calling, CallEnd::NoAnswer),
        // The daemon is there, and its answer says what to remove.
        CallFailure::Answer { info: Some(info), .. } if info.reason == Reason::NotRemoved.word() => {
            refused_for_now(call)
        }
        CallFailure::Answer { code, .. } => judge_answer(call, *code),
    }
}

fn refused_for_now(call: Call) -> Verdict {
    match call {
        Call::TryRun => Verdict::Stop(CallEnd::TryLater),
        _ => Verdict::Repeat(RetryPace::Calling, CallEnd::TryLater),
    }
}

fn judge_answer(call: Call, code: Code) -> Verdict {
    let about_a_job = !matches!(call, Call::Connect | Call::Run | Call::TryRun);
    match code {
        // Unavailable: a new daemon may come. Aborted: we were dropped as a slow follower of a job that somebody
        // finished; the next attempt learns that it is gone.
        Code::Unavailable | Code::DeadlineExceeded | Code::Aborted => {
            Verdict::Repeat(RetryPace::Calling, CallEnd::NoAnswer)
        }
        Code::ResourceExhausted => refused_for_now(call),
        // A lost job is never a reason to submit it again (connectors.md §6.2).
        Code::NotFound | Code::OutOfRange | Code::DataLoss if about_a_job => Verdict::Stop(CallEnd::Lost),
        Code::Internal | Code::Unknown => Verdict::Stop(CallEnd::Defect),
        _ => Verdict::Stop(CallEnd::Refused),
    }
}

/// Returns the pause before repeat number `repeat`, from 0. `jitter` in 0..1 changes it by ±20 %.
pub(super) fn delay(pace: RetryPace, repeat: u32, jitter: f64) -> Duration {
    let (first, factor, longest) = match pace {
        RetryPace::Connecting => (0.2, 1.6_f64, 10.0),
        RetryPace::Calling => (0.1, 2.0_f64, 5.0),
    };
    // The exponent 32 exceeds both limits and does not overflow.
    let exact = f64::min(first * factor.powi(repeat.min(32).cast_signed()), longest);
    Duration::from_secs_f64(exact * (0.8 + 0.4 * jitter))
}

/// Shortest time limit of a dial, however little time is left: a login over `ssh` alone can take some seconds.
const SHORTEST_TRY: Duration = Duration::from_secs(5);

/// Limit on repeating [`Repeats::Briefly`] failures, which are refusals of a far side that may be restarting.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(30);

/// Attempts of one call, or of one stream since its last good byte.
#[derive(Debug)]
pub(super) struct Attempts {
    call: Call,
    address: Address,
    id: Option<JobId>,
    limit: Duration,
    begun: Instant,
    failing: Option<Failing>,
}

/// A period in which all attempts fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absence {
    /// Time of the first failure.
    pub since: Instant,
    /// No attempt begins later.
    pub until: Instant,
    /// True if the container does not run. Its jobs may have ended with it.
    pub is_stopped: bool,
}

#[derive(Clone, Copy, Debug)]
struct Failing {
    since: Instant,
    repeats: u32,
    /// Number of consecutive failures that may be repeated only twice.
    silent: u32,
    /// Time of the first of consecutive refusals, which are repeated only for [`REFUSAL_PATIENCE`].
    refused: Option<Instant>,
    /// True if the last failure was [`Meaning::Stopped`].
    is_stopped: bool,
}

impl Attempts {
    pub(super) fn new(call: Call, address: Address, id: Option<JobId>, limit: Duration) -> Self {
        Self { call, address, id, limit, begun: Instant::now(), failing: None }
    }

    /// Returns the time limit of the next dial. It counts from the first failure, or for [`Call::Connect`] from the
    /// first attempt.
    pub(super) fn patience(&self) -> Duration {
        let since = match (self.call, self.failing) {
            (Call::Connect, _) => self.begun,
            (_, Some(failing)) => failing.since,
            (_, None) => return self.limit.max(SHORTEST_TRY),
        };
        self.limit.saturating_sub(since.elapsed()).max(SHORTEST_TRY)
    }

    /// Returns the present absence; `None` while attempts do not fail.
    pub(super) fn absence(&self) -> Option<Absence> {
        let Failing { since, refused, is_stopped, .. } = self.failing?;
        let limit = since.checked_add(self.limit).unwrap_or(since);
        let until = refused.and_then(|at| at.checked_add(REFUSAL_PATIENCE)).map_or(limit, |at| at.min(limit));
        Some(Absence { since, until, is_stopped })
    }

    /// Notes a success: the limit starts anew with the next failure.
    pub(super) fn succeeded(&mut self) {
        self.failing = None;
    }

    /// Returns the pause before the next attempt, or the final error. The last pause is cut so that it ends at the
    /// limit.
    pub(super) fn after(&mut self, failure: CallFailure) -> Result<Duration, Error> {
        self.after_at(Instant::now(), random_fraction(), failure)
    }

    fn after_at(&mut self, now: Instant, jitter: f64, failure: CallFailure) -> Result<Duration, Error> {
        let (pace, end) = match judge(self.call, &failure) {
            Verdict::Repeat(pace, end) => (pace, end),
            Verdict::Stop(end) => return Err(self.error(end, failure)),
        };
        let first = Failing { since: now, repeats: 0, silent: 0, refused: None, is_stopped: false };
        let Failing { since, repeats, silent, refused, .. } = self.failing.unwrap_or(first);
        let (kind, meaning) = match &failure {
            CallFailure::Dial(error) => (Some(error.repeats()), error.meaning()),
            CallFailure::Line(_) | CallFailure::Answer { .. } => (None, None),
        };
        let is_silent = kind == Some(Repeats::Twice);
        // If a first dial was silent, its own time counts too.
        let counted = if is_silent && self.call == Call::Connect { self.begun } else { since };
        let mut left = self.limit.saturating_sub(now.duration_since(counted));
        let refused = (kind == Some(Repeats::Briefly)).then(|| refused.unwrap_or(now));
        if let Some(refused) = refused {
            left = left.min(REFUSAL_PATIENCE.saturating_sub(now.duration_since(refused)));
        }
        let silent = if is_silent { silent + 1 } else { 0 };
        if left.is_zero() || silent > 2 {
            return Err(self.error(end, failure));
        }
        let is_stopped = meaning == Some(Meaning::Stopped);
        self.failing =
            Some(Failing { since, repeats: repeats.saturating_add(1), silent, refused, is_stopped });
        Ok(delay(pace, repeats, jitter).min(left))
    }

    fn error(&self, end: CallEnd, failure: CallFailure) -> Error {
        let address = self.address.clone();
        let following = matches!(self.call, Call::FollowLogs | Call::FollowSteps);
        let (message, info) = match failure {
            CallFailure::Dial(source) => match &self.id {
                // A job does not outlive its environment.
                Some(id)
                    if following
                        && self.failing.is_some()
                        && !matches!(source.meaning(), Some(Meaning::Gone | Meaning::Stopped)) =>
                {
                    return Error::OutOfReach {
                        id: id.clone(),
                        address,
                        offset: 0,
                        message: Chain(&source).to_string(),
                    };
                }
                _ => return Error::Unreachable { address, source },
            },
            CallFailure::Line(message) => (message, None),
            CallFailure::Answer { message, info, .. } => (message, info),
        };
        match (end, &self.id) {
            (CallEnd::Lost, Some(id)) => {
                Error::Lost { id: id.clone(), loss: Loss::new(info.as_ref(), message) }
            }
            (CallEnd::NoAnswer, Some(id)) if following => {
                Error::OutOfReach { id: id.clone(), address, offset: 0, message }
            }
            (CallEnd::NoAnswer | CallEnd::Unreachable, _) => Error::NoAnswer { address, message },
            (CallEnd::TryLater, _) => Error::TryLater(message),
            (CallEnd::Defect, _) => Error::Defect(message),
            (CallEnd::Refused | CallEnd::Lost, _) => Error::Refused(message),
        }
    }
}

/// Returns a number in 0..1. Without a source of randomness returns the middle, as jitter is not essential.
fn random_fraction() -> f64 {
    getrandom::u32().map_or(0.5, |bits| f64::from(bits) / (f64::from(u32::MAX) + 1.0))
}

#[cfg(test)]
mod tests {
    use step_runner_model::ExitStatus;
    use step_runner_proto::details::Details;

    use super::*;
    use crate::ConnectorKind;
    use crate::diagnosis::{Diagnosis, Seen};

    const CALLS: [Call; 8] = [
        Call::Connect,
        Call::Run,
        Call::TryRun,
        Call::Status,
        Call::Cancel,
        Call::Finish,
        Call::FollowLogs,
        Call::FollowSteps,
    ];

    fn answer(code: Code, message: &str) -> CallFailure {
        match message.split_once(": ") {
            Some((reason, text)) => details::status(code, reason, text, Details::default()).into(),
            None => Status::new(code, message).into(),
        }
    }

    fn address() -> Address {
        "/s.sock".parse().unwrap()
    }

    fn absent(kind: std::io::ErrorKind) -> DialError {
        DialError::NoDaemon { path: "/s.sock".into(), source: kind.into() }
    }

    #[test]
    fn a_lost_job_is_final_for_every_call_about_it_and_never_leads_to_a_repeat() {
        for call in [Call::Status, Call::Cancel, Call::FollowLogs, Call::FollowSteps] {
            for (code, text) in [
                (Code::NotFound, "unknown_job: no such job"),
                (Code::OutOfRange, "offset_past_end: the log has 3 bytes"),
                (Code::DataLoss, "data_loss: the log was cut"),
            ] {
                assert_eq!(
                    judge(call, &answer(code, text)),
                    Verdict::Stop(CallEnd::Lost),
                    "{call:?} {code:?}"
                );
            }
        }
    }

    #[test]
    fn full_and_stopping_daemons_are_asked_again() {
        for call in CALLS {
            let full = judge(call, &answer(Code::ResourceExhausted, "queue_full: 100 jobs wait"));
            let later = CallEnd::TryLater;
            let repeated = Verdict::Repeat(RetryPace::Calling, later);
            assert_eq!(full, if call == Call::TryRun { Verdict::Stop(later) } else { repeated });
            let stopping = judge(call, &answer(Code::Unavailable, "shutting_down: the daemon stops"));
            assert_eq!(stopping, Verdict::Repeat(RetryPace::Calling, CallEnd::NoAnswer));
        }
    }

    #[test]
    fn refusals_and_defects_are_final() {
        for (code, text, end) in [
            (Code::InvalidArgument, "malformed_steps: 1:1: expected a list", CallEnd::Refused),
            (Code::FailedPrecondition, "not_writable: /x", CallEnd::Refused),
            (Code::PermissionDenied, "forbidden: user 7", CallEnd::Refused),
            (Code::Unimplemented, "", CallEnd::Refused),
            (Code::Internal, "internal: panic", CallEnd::Defect),
        ] {
            assert_eq!(judge(Call::Run, &answer(code, text)), Verdict::Stop(end), "{code:?}");
        }
    }

    #[test]
    fn codes_without_details_come_from_the_transport() {
        for (code, text) in [
            (Code::ResourceExhausted, "h2 protocol error: too_many_resets"),
            (Code::Internal, "h2 protocol error: error reading a body from connection"),
            (Code::Unknown, "transport error"),
            (Code::Unavailable, ""),
        ] {
            let failure = CallFailure::from(Status::new(code, text));
            assert!(matches!(failure, CallFailure::Line(_)), "{code:?} {text}");
        }
    }

    #[test]
    fn dialing_follows_the_table() {
        use std::io::ErrorKind;
        let verdict = |error: DialError| judge(Call::Connect, &error.into());
        let again = Verdict::Repeat(RetryPace::Connecting, CallEnd::Unreachable);
        let never = Verdict::Stop(CallEnd::Unreachable);
        let connect = |kind: ErrorKind| DialError::Connect { path: "/s".into(), source: kind.into() };
        assert_eq!(verdict(absent(ErrorKind::NotFound)), again);
        assert_eq!(verdict(absent(ErrorKind::ConnectionRefused)), again);
        assert_eq!(verdict(connect(ErrorKind::WouldBlock)), again);
        assert_eq!(verdict(connect(ErrorKind::PermissionDenied)), never);
        assert_eq!(verdict(DialError::NotASocket), never);
    }

    #[test]
    fn delays_grow_to_their_limit_and_stay_within_a_fifth() {
        for (pace, first, longest) in [(RetryPace::Connecting, 0.2, 10.0), (RetryPace::Calling, 0.1, 5.0)] {
            for (jitter, factor) in [(0.0, 0.8), (0.5, 1.0), (1.0, 1.2)] {
                assert!((delay(pace, 0, jitter).as_secs_f64() - first * factor).abs() < 1e-9);
                assert!((delay(pace, u32::MAX, jitter).as_secs_f64() - longest * factor).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn attempts_end_exactly_at_the_limit() {
        let limit = Duration::from_secs(30);
        let mut attempts = Attempts::new(Call::Connect, address(), None, limit);
        let start = Instant::now();
        let mut now = start;
        let error = loop {
            match attempts.after_at(now, 0.9, absent(std::io::ErrorKind::NotFound).into()) {
                Ok(delay) => now += delay,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::Unreachable { .. }));
        assert_eq!(now - start, limit);
    }

    #[test]
    fn a_try_may_take_what_is_left_and_never_less_than_is_worth_trying() {
        let limit = Duration::from_secs(30);
        let mut connect = Attempts::new(Call::Connect, address(), None, limit);
        assert!(connect.patience() <= limit);
        connect.begun -= Duration::from_secs(20);
        assert!(connect.patience() <= Duration::from_secs(10));
        connect.begun -= Duration::from_secs(20);
        assert_eq!(connect.patience(), SHORTEST_TRY);
        let mut call = Attempts::new(Call::Status, address(), None, limit);
        call.begun -= Duration::from_secs(20);
        assert_eq!((call.patience(), call.absence()), (limit, None));
        let since = Instant::now() - Duration::from_secs(20);
        call.after_at(since, 0.5, CallFailure::Line("cut".into())).unwrap();
        assert!(call.patience() <= Duration::from_secs(10));
        assert_eq!(call.absence(), Some(Absence { since, until: since + limit, is_stopped: false }));
    }

    fn refused(kind: ConnectorKind, code: u8, stderr: &str) -> DialError {
        let (end, stderr) = (Some(ExitStatus::Code(code)), stderr.as_bytes());
        let seen = Seen { kind: Some(kind), end, stderr, ..Seen::default() };
        Diagnosis::of("connector", &seen).into()
    }

    #[test]
    fn a_refusal_is_final_at_first_and_tried_again_for_half_a_minute_once_a_line_has_worked() {
        let limit = Duration::from_mins(5);
        for (kind, code, said) in [
            (ConnectorKind::Kube, 1, "Error from server (Forbidden): pods \"p\" is forbidden"),
            (ConnectorKind::Kube, 1, "error: unable to upgrade connection: container not found (\"build\")"),
            (ConnectorKind::Docker, 1, "Error response from daemon: container 1f is not running"),
            (ConnectorKind::Ssh, 255, "ci@build7: Permission denied (publickey)."),
        ] {
            let failure = || refused(kind, code, said).into();
            let mut first = Attempts::new(Call::Connect, address(), None, limit);
            assert!(first.after(failure()).is_err(), "{said}");
            let id = JobId::parse("7").unwrap();
            let mut following = Attempts::new(Call::FollowLogs, address(), Some(id), limit);
            let start = Instant::now();
            // The API server was away, then came back and forbade everything.
            following.after_at(start, 0.5, CallFailure::Line("cut".into())).unwrap();
            let back = start + Duration::from_mins(1);
            let mut now = back;
            while let Ok(delay) = following.after_at(now, 0.9, failure()) {
                assert_eq!(following.absence().unwrap().until, back + REFUSAL_PATIENCE, "{said}");
                now += delay;
            }
            assert_eq!(now - back, REFUSAL_PATIENCE, "{said}");
        }
    }

    #[test]
    fn what_is_gone_for_good_is_final_though_a_line_has_worked() {
        for (kind, said) in [
            (ConnectorKind::Docker, "Error response from daemon: No such container: job"),
            (ConnectorKind::Kube, "Error from server (NotFound): pods \"p\" not found"),
        ] {
            let id = JobId::parse("7").unwrap();
            let mut following = Attempts::new(Call::FollowLogs, address(), Some(id), Duration::from_mins(5));
            following.after(CallFailure::Line("cut".into())).unwrap();
            let error = following.after(refused(kind, 1, said).into()).unwrap_err();
            assert!(matches!(error, Error::Unreachable { .. }), "{error}");
        }
    }

    #[test]
    fn a_good_byte_starts_the_limit_anew() {
        let id = JobId::parse("7").unwrap();
        let mut attempts = Attempts::new(Call::FollowLogs, address(), Some(id), Duration::from_secs(10));
        let start = Instant::now();
        let later = |seconds| start + Duration::from_secs(seconds);
        let cut = || CallFailure::Line("cut".into());
        attempts.after_at(start, 0.5, cut()).unwrap();
        attempts.succeeded();
        attempts.after_at(later(11), 0.5, cut()).unwrap();
        let error = attempts.after_at(later(22), 0.5, cut()).unwrap_err();
        assert!(error.to_string().contains("job 7"), "{error}");
        assert!(error.remedy().unwrap().contains("follow --address unix:/s.sock 7"));
    }
}
