//! The good client beside the hostile ones. It asks for Status all the time and follows a job on one connection.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use step_runner::pb::v1;
use tokio::task::JoinHandle;

use crate::client::{self, Client, Stub};
use crate::daemon::Scene;
use crate::follower::LONGEST_JOB;
use crate::log::{Sources, check_equal};
use crate::verdict::{Check, Misses, percentile};

/// Time between two calls of Status.
const BETWEEN: Duration = Duration::from_millis(5);
const DEADLINE: Duration = Duration::from_secs(30);

/// Returns a request with one script.
pub(crate) fn script(id: &str, text: &str) -> v1::RunRequest {
    let steps = serde_json::json!([{"name": "s", "script": text}]).to_string();
    v1::RunRequest { id: id.into(), steps, ..v1::RunRequest::default() }
}

/// Times of calls.
pub(crate) struct Times {
    count: usize,
    pub(crate) p99: Duration,
    worst: Duration,
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} times, p99 {:.1?}, {:.1?} at worst", self.count, self.p99, self.worst)
    }
}

/// Calls Status repeatedly.
pub(crate) struct Asker {
    stop: Arc<AtomicBool>,
    rests: Arc<AtomicBool>,
    task: JoinHandle<Check<Vec<Duration>>>,
}

/// Pauses the asker until dropped.
pub(crate) struct Rest(Arc<AtomicBool>);

impl Drop for Rest {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Calls Status once. Returns how long that took.
async fn ask(stub: &mut Stub) -> Check<Duration> {
    let begun = Instant::now();
    let asked = stub.status(v1::StatusRequest { id: "good".into() });
    let answer = tokio::time::timeout(DEADLINE, asked).await.map_err(|_| "no answer to Status".to_owned())?;
    answer.map_err(|status| format!("Status: {status}"))?;
    Ok(begun.elapsed())
}

impl Asker {
    /// Starts calling. Returns once the first call was answered.
    pub(crate) async fn start(scene: &Scene) -> Check<Self> {
        let mut stub = client::dial_patiently(&scene.socket()).await?;
        ask(&mut stub).await?;
        let (stop, rests) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let (stopped, resting) = (Arc::clone(&stop), Arc::clone(&rests));
        let task = tokio::spawn(async move {
            let mut took = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                tokio::time::sleep(BETWEEN).await;
                if resting.load(Ordering::Relaxed) {
                    continue;
                }
                took.push(ask(&mut stub).await?);
            }
            Ok(took)
        });
        Ok(Self { stop, rests, task })
    }

    /// Pauses the calls until the result is dropped.
    pub(crate) fn pause(&self) -> Rest {
        self.rests.store(true, Ordering::Relaxed);
        Rest(Arc::clone(&self.rests))
    }

    /// Ends the calls and returns their times. A failed call is a miss.
    pub(crate) async fn stop(self, misses: &Misses, name: &str) -> Times {
        self.stop.store(true, Ordering::Relaxed);
        let mut took =
            self.task.await.map_err(|error| error.to_string()).and_then(|took| took).unwrap_or_else(|miss| {
                misses.add(format!("{name}: {miss}"));
                Vec::new()
            });
        took.sort_unstable();
        let at = |percent| percentile(&took, percent).unwrap_or_default();
        Times { count: took.len(), p99: at(99), worst: at(100) }
    }
}

/// Follows a job that prints numbers, on one connection from beginning to end.
pub(crate) struct Reader {
    id: &'static str,
    task: JoinHandle<Check<Vec<u8>>>,
}

impl Reader {
    /// Starts the job and follows it. The job counts until the file `stop` exists in the scene.
    pub(crate) async fn start(scene: &Scene, client: &Client, id: &'static str) -> Check<Self> {
        let text = format!(
            "i=0; until [ -e {} ]; do echo line $i; i=$((i+1)); sleep 0.01; done; echo $i lines",
            scene.path("stop").display()
        );
        client.run(&script(id, &text)).await?;
        let mut stub = client::dial(&scene.socket()).await?;
        let request = v1::FollowLogsRequest { id: id.into(), offset: 0, ..v1::FollowLogsRequest::default() };
        let opened = stub.follow_logs(request).await;
        let mut stream = opened.map_err(|status| format!("FollowLogs: {status}"))?.into_inner();
        let task = tokio::spawn(async move {
            let mut bytes = Vec::new();
            while let Some(message) =
                stream.message().await.map_err(|status| format!("{} bytes, then {status}", bytes.len()))?
            {
                bytes.extend_from_slice(&message.data);
            }
            Ok(bytes)
        });
        Ok(Self { id, task })
    }

    /// Checks that the job ended well, that all its lines are there, and that the follower received exactly the log.
    pub(crate) async fn finish(self, client: &Client) -> Check {
        let followed = tokio::time::timeout(LONGEST_JOB, self.task).await;
        let followed =
            followed.map_err(|_| "the stream does not end")?.map_err(|error| error.to_string())??;
        let status = client.ended(self.id, LONGEST_JOB).await?;
        if status.exit_code != 0 {
            return Err(format!("the job was disturbed: {status:?}"));
        }
        let again = crate::follower::follow_log(client.clone(), self.id.into()).await?;
        check_equal("what was followed", &followed, &again.bytes)?;
        let lines = Sources::read(&followed)?.lines(*b"01O");
        let (last, counted) = lines.split_last().ok_or("an empty log")?;
        let counts = counted.iter().enumerate().all(|(at, line)| *line == format!("line {at}"));
        if !counts || *last != format!("{} lines", counted.len()) {
            return Err(format!("of {} lines some are missing", counted.len()));
        }
        client.finish(self.id).await
    }
}
