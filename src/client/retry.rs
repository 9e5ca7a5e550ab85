//! Which failures are repeated, how soon, and for how long (connectors.md §5, §6; service.md §7). Pure but for
//! [`Attempts`], which looks at the clock and draws the jitter.

use std::error::Error as _;
use std::time::Duration;

use tokio::time::Instant;
use tonic::{Code, Status};

use super::diagnosis::{Meaning, Repeats};
use super::{Address, DialError, Error};
use crate::error::Chain;
use crate::model::JobId;

/// What was asked of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Connect,
    Run,
    Status,
    Cancel,
    Finish,
    FollowLogs,
    FollowSteps,
}

/// How an attempt failed.
#[derive(Debug)]
pub(super) enum CallFailure {
    /// No connection.
    Dial(DialError),
    /// The connection broke, or nothing came in time.
    Line(String),
    /// The daemon's own answer.
    Answer { code: Code, message: String },
}

impl From<DialError> for CallFailure {
    fn from(error: DialError) -> Self {
        Self::Dial(error)
    }
}

/// An answer of the daemon begins with a reason word (service.md §3.6); what transport and libraries make up does not, or
/// has a source. The codes alone do not tell: a connection that was closed for flooding also is `RESOURCE_EXHAUSTED`.
impl From<Status> for CallFailure {
    fn from(status: Status) -> Self {
        let made_up = matches!(
            status.code(),
            Code::Unavailable | Code::Unknown | Code::Internal | Code::Cancelled | Code::ResourceExhausted
        );
        if status.source().is_some() || (made_up && reason(status.message()).is_none()) {
            let cause = status.source().map(|cause| Chain(cause).to_string());
            let message = cause.unwrap_or_else(|| status.message().to_owned());
            return Self::Line(if message.is_empty() { "the connection broke".to_owned() } else { message });
        }
        Self::Answer { code: status.code(), message: status.message().to_owned() }
    }
}

/// The word before the first colon, if it looks like one of the daemon's.
fn reason(message: &str) -> Option<&str> {
    let (word, _) = message.split_once(':')?;
    (!word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')).then_some(word)
}

/// What to do after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Again, at this pace, while time is left; if none is left: how it ends.
    Repeat(Pace, End),
    /// It ends now.
    Stop(End),
}

/// How fast attempts follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// 0.2 s × 1.6 up to 10 s (connectors.md §5).
    Connecting,
    /// 0.1 s × 2 up to 5 s (service.md §7.1).
    Calling,
}

/// Kinds of ends, one for each [`Error`] of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Unreachable,
    NoAnswer,
    Refused,
    TryLater,
    Lost,
    Defect,
}

/// The policy.
pub(super) fn judge(call: Call, failure: &CallFailure) -> Verdict {
    match failure {
        CallFailure::Dial(error) => match error.repeats() {
            Repeats::Never => Verdict::Stop(End::Unreachable),
            Repeats::Twice | Repeats::UntilTheLimit => Verdict::Repeat(Pace::Connecting, End::Unreachable),
        },
        CallFailure::Line(_) => Verdict::Repeat(Pace::Calling, End::NoAnswer),
        CallFailure::Answer { code, .. } => judge_answer(call, *code),
    }
}

fn judge_answer(call: Call, code: Code) -> Verdict {
    let about_a_job = !matches!(call, Call::Connect | Call::Run);
    match code {
        // Stopping: a new daemon may come back. Aborted: dropped as a slow follower of a job that somebody finished; the
        // next attempt learns that the job is gone.
        Code::Unavailable | Code::DeadlineExceeded | Code::Aborted => {
            Verdict::Repeat(Pace::Calling, End::NoAnswer)
        }
        Code::ResourceExhausted => Verdict::Repeat(Pace::Calling, End::TryLater),
        // Never a reason to submit the job again (connectors.md §6.2).
        Code::NotFound | Code::OutOfRange | Code::DataLoss if about_a_job => Verdict::Stop(End::Lost),
        Code::Internal | Code::Unknown => Verdict::Stop(End::Defect),
        _ => Verdict::Stop(End::Refused),
    }
}

/// Time before attempt `repeat` (0 = the first repeat); `jitter` in 0..1 moves it by ±20 %.
pub(super) fn delay(pace: Pace, repeat: u32, jitter: f64) -> Duration {
    let (first, factor, longest) = match pace {
        Pace::Connecting => (0.2, 1.6_f64, 10.0),
        Pace::Calling => (0.1, 2.0_f64, 5.0),
    };
    // 2^32 is far beyond both limits and far from overflowing.
    let exact = f64::min(first * factor.powi(repeat.min(32).cast_signed()), longest);
    Duration::from_secs_f64(exact * (0.8 + 0.4 * jitter))
}

/// A try to connect has at least this long, however little is left: a login over `ssh` alone may take some seconds.
const SHORTEST_TRY: Duration = Duration::from_secs(5);

/// The attempts of one call, or of one stream since its last good byte.
#[derive(Debug)]
pub(super) struct Attempts {
    call: Call,
    address: Address,
    id: Option<JobId>,
    limit: Duration,
    begun: Instant,
    failing: Option<Failing>,
}

/// Since when nothing good has come, and when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absence {
    /// The first failure.
    pub since: Instant,
    /// No attempt begins later.
    pub until: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Failing {
    since: Instant,
    repeats: u32,
    /// Failures, one after the other, that are repeated twice only.
    silent: u32,
}

impl Attempts {
    pub(super) fn new(call: Call, address: Address, id: Option<JobId>, limit: Duration) -> Self {
        Self { call, address, id, limit, begun: Instant::now(), failing: None }
    }

    /// How long the next try to connect may take. To a daemon that never was there, the time of the tries themselves
    /// counts.
    pub(super) fn patience(&self) -> Duration {
        let since = match (self.call, self.failing) {
            (Call::Connect, _) => self.begun,
            (_, Some(failing)) => failing.since,
            (_, None) => return self.limit.max(SHORTEST_TRY),
        };
        self.limit.saturating_sub(since.elapsed()).max(SHORTEST_TRY)
    }

    /// Since when and until when it fails; `None` as long as it does not.
    pub(super) fn absence(&self) -> Option<Absence> {
        let since = self.failing?.since;
        Some(Absence { since, until: since.checked_add(self.limit).unwrap_or(since) })
    }

    /// Something good has come: the time limit starts anew with the next failure.
    pub(super) fn succeeded(&mut self) {
        self.failing = None;
    }

    /// How long to wait before the next attempt, or why there is none. The last attempt is made when the time is over.
    pub(super) fn after(&mut self, failure: CallFailure) -> Result<Duration, Error> {
        self.after_at(Instant::now(), random_fraction(), failure)
    }

    fn after_at(&mut self, now: Instant, jitter: f64, failure: CallFailure) -> Result<Duration, Error> {
        let (pace, end) = match judge(self.call, &failure) {
            Verdict::Repeat(pace, end) => (pace, end),
            Verdict::Stop(end) => return Err(self.error(end, failure)),
        };
        let first = Failing { since: now, repeats: 0, silent: 0 };
        let Failing { since, repeats, silent } = self.failing.unwrap_or(first);
        let is_silent = matches!(&failure, CallFailure::Dial(error) if error.repeats() == Repeats::Twice);
        // A try in silence was itself the wait.
        let counted = if is_silent && self.call == Call::Connect { self.begun } else { since };
        let left = self.limit.saturating_sub(now.duration_since(counted));
        let silent = if is_silent { silent + 1 } else { 0 };
        if left.is_zero() || silent > 2 {
            return Err(self.error(end, failure));
        }
        self.failing = Some(Failing { since, repeats: repeats.saturating_add(1), silent });
        Ok(delay(pace, repeats, jitter).min(left))
    }

    fn error(&self, end: End, failure: CallFailure) -> Error {
        let address = self.address.clone();
        let following = matches!(self.call, Call::FollowLogs | Call::FollowSteps);
        let message = match failure {
            CallFailure::Dial(source) => match &self.id {
                // What is gone with its environment does not go on.
                Some(id)
                    if following && self.failing.is_some() && source.meaning() != Some(Meaning::Gone) =>
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
            CallFailure::Line(message) | CallFailure::Answer { message, .. } => message,
        };
        match (end, &self.id) {
            (End::Lost, Some(id)) => Error::Lost { id: id.clone(), message },
            (End::NoAnswer, Some(id)) if following => {
                Error::OutOfReach { id: id.clone(), address, offset: 0, message }
            }
            (End::NoAnswer | End::Unreachable, _) => Error::NoAnswer { address, message },
            (End::TryLater, _) => Error::TryLater(message),
            (End::Defect, _) => Error::Defect(message),
            (End::Refused | End::Lost, _) => Error::Refused(message),
        }
    }
}

/// In 0..1. Without a source of randomness the middle: jitter is a courtesy to the daemon, not a need.
fn random_fraction() -> f64 {
    getrandom::u32().map_or(0.5, |bits| f64::from(bits) / (f64::from(u32::MAX) + 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLS: [Call; 7] = [
        Call::Connect,
        Call::Run,
        Call::Status,
        Call::Cancel,
        Call::Finish,
        Call::FollowLogs,
        Call::FollowSteps,
    ];

    fn answer(code: Code, message: &str) -> CallFailure {
        Status::new(code, message).into()
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
                assert_eq!(judge(call, &answer(code, text)), Verdict::Stop(End::Lost), "{call:?} {code:?}");
            }
        }
    }

    #[test]
    fn full_and_stopping_daemons_are_asked_again() {
        for call in CALLS {
            let full = judge(call, &answer(Code::ResourceExhausted, "queue_full: 100 jobs wait"));
            assert_eq!(full, Verdict::Repeat(Pace::Calling, End::TryLater));
            let stopping = judge(call, &answer(Code::Unavailable, "shutting_down: the daemon stops"));
            assert_eq!(stopping, Verdict::Repeat(Pace::Calling, End::NoAnswer));
        }
    }

    #[test]
    fn refusals_and_defects_are_final() {
        for (code, text, end) in [
            (Code::InvalidArgument, "malformed_steps: 1:1: expected a list", End::Refused),
            (Code::FailedPrecondition, "not_writable: /x", End::Refused),
            (Code::PermissionDenied, "forbidden: user 7", End::Refused),
            (Code::Unimplemented, "", End::Refused),
            (Code::Internal, "internal: panic", End::Defect),
        ] {
            assert_eq!(judge(Call::Run, &answer(code, text)), Verdict::Stop(end), "{code:?}");
        }
    }

    #[test]
    fn codes_without_a_reason_word_come_from_the_transport() {
        for (code, text) in [
            (Code::ResourceExhausted, "h2 protocol error: too_many_resets"),
            (Code::Internal, "h2 protocol error: error reading a body from connection"),
            (Code::Unknown, "transport error"),
            (Code::Unavailable, ""),
        ] {
            assert!(matches!(answer(code, text), CallFailure::Line(_)), "{code:?} {text}");
        }
    }

    #[test]
    fn dialing_follows_the_table() {
        use std::io::ErrorKind;
        let verdict = |error: DialError| judge(Call::Connect, &error.into());
        let again = Verdict::Repeat(Pace::Connecting, End::Unreachable);
        let never = Verdict::Stop(End::Unreachable);
        let connect = |kind: ErrorKind| DialError::Connect { path: "/s".into(), source: kind.into() };
        assert_eq!(verdict(absent(ErrorKind::NotFound)), again);
        assert_eq!(verdict(absent(ErrorKind::ConnectionRefused)), again);
        assert_eq!(verdict(connect(ErrorKind::WouldBlock)), again);
        assert_eq!(verdict(connect(ErrorKind::PermissionDenied)), never);
        assert_eq!(verdict(DialError::NotASocket("/s".into())), never);
    }

    #[test]
    fn delays_grow_to_their_limit_and_stay_within_a_fifth() {
        for (pace, first, longest) in [(Pace::Connecting, 0.2, 10.0), (Pace::Calling, 0.1, 5.0)] {
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
        assert_eq!(call.absence(), Some(Absence { since, until: since + limit }));
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
