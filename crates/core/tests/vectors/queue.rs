//! Vectors of queue.md §9 Q1, run against the queue event by event.

use std::collections::BTreeSet;

use libtest_mimic::Failed;
use serde_json::{Value, json};
use step_runner_core::queue::{Policy, Queue, QueueLimits, ShareKey, Submitted, number};

/// A queue, and the jobs that have ended but are not forgotten. In the daemon the registry knows these.
struct Daemon {
    queue: Queue<String>,
    policy: Policy,
    limits: QueueLimits,
    ended: BTreeSet<String>,
    waiting: BTreeSet<String>,
    running: BTreeSet<String>,
}

/// Checks one vector.
pub(crate) fn run(vector: &Value) -> Result<(), Failed> {
    let policy = match vector["policy"].as_str() {
        Some("fifo") => Policy::Fifo,
        Some("fair") => Policy::Fair,
        other => return Err(format!("policy: {other:?}").into()),
    };
    let limits = QueueLimits {
        running: slots(&vector["max_running"]),
        running_per_key: size(&vector["max_per_key"]),
        queued: size(&vector["max_queued"]),
        running_bytes: None,
        queued_bytes: None,
    };
    let mut daemon = Daemon {
        queue: Queue::new(policy, limits),
        policy,
        limits,
        ended: BTreeSet::new(),
        waiting: BTreeSet::new(),
        running: BTreeSet::new(),
    };
    let mut order = Vec::new();
    for (at, event) in vector["events"].as_array().ok_or("events: no list")?.iter().enumerate() {
        let mut starts = Vec::new();
        let result = daemon.handle(event, &mut starts)?;
        for job in &starts {
            daemon.waiting.remove(job);
            daemon.running.insert(job.clone());
        }
        check(&format!("event {at} {event}: result"), &json!(result), &event["result"])?;
        check(&format!("event {at} {event}: started"), &json!(starts), &event["started"])?;
        order.extend(starts);
    }
    check("order", &json!(order), &vector["order"])?;
    check("running at the end", &sorted(&daemon.running), &as_set(&vector["end"]["running"]))?;
    check("queued at the end", &sorted(&daemon.waiting), &as_set(&vector["end"]["queued"]))?;
    check("count of running", &json!(daemon.queue.running()), &json!(daemon.running.len()))?;
    check("count of queued", &json!(daemon.queue.waiting()), &json!(daemon.waiting.len()))
}

impl Daemon {
    fn handle(&mut self, event: &Value, starts: &mut Vec<String>) -> Result<&'static str, Failed> {
        let id = event["id"].as_str().unwrap_or_default().to_owned();
        Ok(match event["op"].as_str().unwrap_or_default() {
            "submit" => self.submit(id, event, starts),
            // A running job keeps its slot until it has ended.
            "cancel" if self.queue.is_running(&id) => "signalled",
            "cancel" if self.queue.key(&id).is_some() => {
                self.queue.remove_job(&id, starts);
                self.waiting.remove(&id);
                self.ended.insert(id);
                "dequeued"
            }
            "finish" if self.queue.is_running(&id) => {
                self.queue.remove_job(&id, starts);
                self.running.remove(&id);
                self.ended.insert(id);
                "released"
            }
            "forget" if self.ended.remove(&id) => "forgotten",
            "cancel" | "finish" | "forget" => "ignored",
            "pause" => {
                self.queue.pause();
                "ok"
            }
            "resume" => {
                self.queue.resume(starts);
                "ok"
            }
            "set_max" => {
                self.limits.running = slots(&event["n"]);
                self.queue.configure(self.policy, self.limits, starts);
                "ok"
            }
            other => return Err(format!("op: {other:?}").into()),
        })
    }

    fn submit(&mut self, id: String, event: &Value, starts: &mut Vec<String>) -> &'static str {
        if self.ended.contains(&id) {
            return "existing";
        }
        let text = |name: &str| event[name].as_str().unwrap_or_default();
        let key = ShareKey::new(text("server"), text("key"));
        match self.queue.submit(&id, key, number(text("number")), 0, starts) {
            Submitted::Started(_) => "started",
            Submitted::Queued(_) => {
                self.waiting.insert(id);
                "queued"
            }
            Submitted::Existing => "existing",
            Submitted::Full(_) => "rejected",
        }
    }
}

fn size(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|n| usize::try_from(n).ok())
}

/// Returns the number of slots. 0 means no limit.
fn slots(value: &Value) -> Option<usize> {
    size(value).filter(|n| *n > 0)
}

fn sorted(jobs: &BTreeSet<String>) -> Value {
    json!(jobs)
}

fn as_set(list: &Value) -> Value {
    let jobs: BTreeSet<_> = list.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    json!(jobs)
}

fn check(what: &str, got: &Value, expected: &Value) -> Result<(), Failed> {
    if got == expected {
        return Ok(());
    }
    Err(format!("{what}: expected {expected}, got {got}").into())
}
