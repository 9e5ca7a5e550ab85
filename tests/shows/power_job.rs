//! A job whose clients record the answers they get, to compare them after the power cut.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use step_runner::pb::v1;
use tokio::task::JoinHandle;
use tonic::Code;

use crate::client::{Client, Stub, dial};
use crate::follower::{follow_log, follow_steps};
use crate::log::{Sources, check_equal, check_prefix};
use crate::random::Random;
use crate::verdict::Check;

/// Time between two Status calls.
const POLL: Duration = Duration::from_millis(15);

/// Answers that clients got about a job.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is an answer that one client had or had not")]
struct Told {
    /// Run was answered.
    registered: bool,
    /// Time until Run was answered.
    run_took: Option<Duration>,
    /// Finish was answered.
    removed: bool,
    /// Finish was sent.
    removing: bool,
    /// The last Status.
    status: Option<v1::Status>,
    log: Vec<u8>,
    /// The stream of the log ended without an error.
    log_ended: bool,
    steps: Vec<v1::StepResult>,
    steps_ended: bool,
}

/// A job and its clients.
pub(crate) struct PowerJob {
    pub(crate) id: String,
    lines: u64,
    /// Number of lines between pauses of a hundredth of a second.
    burst: u64,
    code: i32,
    finish: bool,
    told: Arc<Mutex<Told>>,
    clients: Vec<JoinHandle<()>>,
}

/// State of a job after the cut.
pub(crate) enum Found {
    /// It is gone, which is allowed.
    Gone,
    /// It had ended before the cut.
    Ended,
    /// The cut interrupted it. `last` is the time of its last line in microseconds since the epoch, if it printed all
    /// the time.
    Interrupted { last: Option<i64>, seen: usize, bytes: usize },
}

impl PowerJob {
    pub(crate) fn new(id: String, random: &mut Random) -> Self {
        // Some jobs end soon, some never. Some print a line at a time, some much.
        let (lines, burst) = match random.below(5) {
            0 => (1 + random.below(20), 1),
            1 => (random.below(3000), 100),
            2 => (1 << 40, 2000),
            3 => (100 + random.below(100), 1 + random.below(3)),
            _ => (1 << 40, 1),
        };
        let code = if random.one_in(4) { 3 } else { 0 };
        let finish = random.one_in(3);
        Self { id, lines, burst, code, finish, told: Arc::default(), clients: Vec::new() }
    }

    fn request(&self) -> v1::RunRequest {
        let Self { id, lines, burst, code, .. } = self;
        let script = format!(
            "i=0\nwhile [ $i -lt {lines} ]; do\n  echo \"{id} $i\"\n  i=$((i+1))\n  \
             [ $((i % {burst})) -ne 0 ] || sleep 0.01\ndone\nexit {code}\n"
        );
        let run = serde_json::json!([
            { "name": "first", "script": "echo begin >&2" },
            { "name": "second", "script": script },
        ]);
        let steps = serde_json::json!({ "run": run }).to_string();
        v1::RunRequest { id: id.clone(), steps, ..v1::RunRequest::default() }
    }

    /// Starts the job's clients.
    pub(crate) fn begin(&mut self, client: &Client) {
        let (socket, request, finish) = (client.socket().to_owned(), self.request(), self.finish);
        let told = Arc::clone(&self.told);
        self.clients.push(tokio::spawn(async move {
            let Ok(stub) = dial(&socket).await else { return };
            let asked = Instant::now();
            if stub.clone().run(request.clone()).await.is_err() {
                return;
            }
            note(&told, |told| (told.registered, told.run_took) = (true, Some(asked.elapsed())));
            let id = request.id;
            tokio::join!(
                poll(stub.clone(), &id, &told, finish),
                log(stub.clone(), &id, &told),
                steps(stub.clone(), &id, &told),
            );
        }));
    }

    /// Ends the clients, so that they record no answer from after the cut.
    pub(crate) async fn leave(&mut self) {
        for client in self.clients.drain(..) {
            client.abort();
            client.await.ok();
        }
    }

    /// Returns how long Run took to be answered, if it was. Returns it only once.
    pub(crate) fn run_took(&self) -> Option<Duration> {
        self.told.lock().unwrap().run_took.take()
    }

    /// Asks the daemon for everything again after the cut, and compares.
    pub(crate) async fn check(&mut self, client: &Client) -> Check<Found> {
        let told = self.told.lock().unwrap().clone();
        let id = &self.id;
        let Some(status) = client.status(id).await? else {
            if told.registered && !told.removing {
                return Err(format!("it is gone, but clients were told {}", told.summary()));
            }
            return Ok(Found::Gone);
        };
        if told.removed {
            return Err(format!("Finish was answered, but there is {status:?}"));
        }
        if !status.finished {
            return Err(format!("it has not ended: {status:?}"));
        }
        let had_ended = told.status.as_ref().is_some_and(|before| before.finished);
        if had_ended && told.status.as_ref() != Some(&status) {
            return Err(format!("Status has changed to {status:?} from {}", told.summary()));
        }
        let followed = follow_log(client.clone(), id.clone()).await?;
        let log = followed.bytes;
        if log.len() as u64 != status.log_bytes as u64 {
            return Err(format!("Status says {} bytes of log, there are {}", status.log_bytes, log.len()));
        }
        if told.log_ended && !told.removing {
            check_equal("the log whose end was seen", &log, &told.log)?;
        }
        if !log.starts_with(&told.log) {
            check_equal("the log that was seen", &log[..log.len().min(told.log.len())], &told.log)?;
        }
        let results = follow_steps(client.clone(), id.clone()).await?;
        if !results.starts_with(&told.steps) || (told.steps_ended && !told.removing && results != told.steps)
        {
            return Err(format!("results have changed from {:?} to {results:?}", told.steps));
        }
        past_the_end(client, id, log.len()).await?;
        let interrupted = status.exit_code == -4;
        self.check_log(&log, interrupted, status.exit_code, told.removing)?;
        // The next cut must not change any of this.
        let seen = told.log.len();
        note(&self.told, |told| {
            told.registered = true;
            (told.log_ended, told.steps_ended) = (true, true);
            told.status = Some(status.clone());
            (told.log, told.steps) = (log.clone(), results);
        });
        if interrupted && !had_ended {
            let steady = self.lines == 1 << 40 && told.status.is_some();
            let last = steady.then(|| last_printed(&log)).flatten();
            return Ok(Found::Interrupted { last, seen, bytes: log.len() });
        }
        Ok(Found::Ended)
    }

    fn check_log(&self, log: &[u8], interrupted: bool, exit_code: i32, removing: bool) -> Check {
        let sources = Sources::read(log)?;
        if sources.malformed > 0 {
            return Err(format!("{} malformed lines", sources.malformed));
        }
        let printed = sources.of(*b"01O");
        let count = memchr::memchr_iter(b'\n', printed).count() as u64;
        let expected: Vec<u8> =
            (0..count.min(self.lines)).flat_map(|i| format!("{} {i}\n", self.id).into_bytes()).collect();
        let errors = sources.lines(*b"00E");
        let ends = errors.iter().filter(|line| line.starts_with("job interrupted:")).count();
        if interrupted {
            if ends != 1 || !errors.last().is_some_and(|line| line.starts_with("job interrupted:")) {
                return Err(format!("lines of the daemon: {errors:?}"));
            }
            return check_prefix("the output", printed, &expected);
        }
        if removing && exit_code == -2 {
            return check_prefix("the output", printed, &expected);
        }
        if exit_code != self.code || ends != 0 || count != self.lines {
            return Err(format!(
                "exit code {exit_code} after {count} of {} lines, and {errors:?}",
                self.lines
            ));
        }
        check_equal("the output", printed, &expected)
    }
}

impl Told {
    fn summary(&self) -> String {
        let Self { registered, removing, removed, status, log, log_ended, steps, steps_ended, .. } = self;
        format!(
            "registered {registered}, removing {removing}, removed {removed}, {} bytes of log (end {log_ended}), {} results \
             (end {steps_ended}), {status:?}",
            log.len(),
            steps.len()
        )
    }
}

fn note(told: &Mutex<Told>, change: impl FnOnce(&mut Told)) {
    change(&mut told.lock().unwrap());
}

/// Calls Status repeatedly. Finishes the job when it has ended, if `finish` is set.
async fn poll(mut stub: Stub, id: &str, told: &Mutex<Told>, finish: bool) {
    loop {
        let Ok(answer) = stub.status(v1::StatusRequest { id: id.into() }).await else { return };
        let Some(status) = answer.into_inner().jobs.into_iter().next() else { return };
        let finished = status.finished;
        note(told, |told| told.status = Some(status));
        if finished && finish {
            note(told, |told| told.removing = true);
            if stub.finish(v1::FinishRequest { id: id.into() }).await.is_ok() {
                note(told, |told| told.removed = true);
            }
            return;
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn log(mut stub: Stub, id: &str, told: &Mutex<Told>) {
    let opened = stub
        .follow_logs(v1::FollowLogsRequest { id: id.into(), offset: 0, ..v1::FollowLogsRequest::default() })
        .await;
    let Ok(mut stream) = opened.map(tonic::Response::into_inner) else { return };
    loop {
        match stream.message().await {
            Ok(Some(message)) => note(told, |told| told.log.extend_from_slice(&message.data)),
            Ok(None) => return note(told, |told| told.log_ended = true),
            Err(_) => return,
        }
    }
}

async fn steps(mut stub: Stub, id: &str, told: &Mutex<Told>) {
    let opened = stub.follow_steps(v1::FollowStepsRequest { id: id.into(), events: false }).await;
    let Ok(mut stream) = opened.map(tonic::Response::into_inner) else { return };
    loop {
        match stream.message().await {
            Ok(Some(message)) => note(told, |told| told.steps.push(message.result.unwrap_or_default())),
            Ok(None) => return note(told, |told| told.steps_ended = true),
            Err(_) => return,
        }
    }
}

/// Checks that an offset beyond the end of the log is refused.
async fn past_the_end(client: &Client, id: &str, len: usize) -> Check {
    let mut stub = dial(client.socket()).await?;
    let offset = i32::try_from(len + 1).map_err(|error| error.to_string())?;
    let answer = match stub
        .follow_logs(v1::FollowLogsRequest { id: id.into(), offset, ..v1::FollowLogsRequest::default() })
        .await
    {
        Ok(stream) => stream.into_inner().message().await.map(drop),
        Err(status) => Err(status),
    };
    match answer {
        Err(status) if matches!(status.code(), Code::OutOfRange | Code::DataLoss) => Ok(()),
        other => Err(format!("an offset past the end is answered with {other:?}")),
    }
}

/// Returns the time at which the last line of the job itself was printed.
fn last_printed(log: &[u8]) -> Option<i64> {
    let mut lines = log.split(|&byte| byte == b'\n').rev();
    let line = lines.find(|line| line.get(28..31) == Some(b"01O"))?;
    let time = std::str::from_utf8(line.get(..27)?).ok()?;
    Some(chrono::DateTime::parse_from_rfc3339(time).ok()?.timestamp_micros())
}
