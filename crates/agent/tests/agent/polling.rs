//! Job requests beside those of GitLab Runner 17.9.3 and 12.5.0.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use step_runner_agent::routing::Call;
use step_runner_agent::scheduler::{
    Action, EntryId, EntryLimits, Event, Limits, OnStop, RequestId, Scheduler,
};
use step_runner_agent::time::{Jitter, Moment};

use crate::double::transcript::{Exchange, Scenario, Transcript};

/// Interval of the recordings that do not say otherwise.
const CHECK: Duration = Duration::from_secs(1);

/// One entry with three slots, driven by recorded answers.
struct Poller {
    scheduler: Scheduler,
    now: Moment,
    out: Vec<(RequestId, Option<String>)>,
}

impl Poller {
    fn new() -> Self {
        let limits = Limits {
            concurrent: 30,
            check_interval: CHECK,
            on_stop: OnStop::Detach,
            shutdown_timeout: Duration::from_secs(30),
        };
        let entry = EntryLimits {
            limit: None,
            request_concurrency: 1,
            strict_check_interval: false,
            unhealthy_requests_limit: 3,
            unhealthy_interval: Duration::from_secs(6),
        };
        let scheduler = Scheduler::new(limits, None, Moment::START);
        let mut poller = Self { scheduler, now: Moment::START, out: Vec::new() };
        poller.event(Event::Configured(limits, vec![(EntryId(0), entry)]));
        poller
    }

    fn event(&mut self, event: Event) {
        for action in self.scheduler.handle(event, self.now) {
            match action {
                Action::CheckEnvironment(entry) => self.event(Event::Environment { entry, is_there: true }),
                Action::Ask { request, ticket, .. } => {
                    self.out.push((request, ticket.map(|ticket| ticket.as_str().to_owned())));
                }
                _ => {}
            }
        }
    }

    /// Waits for the next request. Returns its ticket, and the time since the last answer.
    fn next(&mut self) -> (RequestId, Option<String>, Duration) {
        let start = self.now;
        while self.out.is_empty() {
            self.now = self.scheduler.wake(self.now).unwrap();
            self.event(Event::Tick);
        }
        let (request, ticket) = self.out.remove(0);
        (request, ticket, self.now.since(start))
    }
}

fn requests(scenario: &Scenario) -> Vec<&Exchange> {
    scenario.exchanges.iter().filter(|exchange| exchange.call == "POST /jobs/request").collect()
}

#[test]
fn a02_tickets_are_those_that_the_runner_sends() {
    let mut compared = 0;
    for version in ["12.5.0", "17.9.3"] {
        for scenario in &Transcript::read(version, "poll").scenarios {
            // Three entries take turns there.
            if scenario.name == "spacing-three" {
                continue;
            }
            let mut poller = Poller::new();
            for (index, exchange) in requests(scenario).iter().enumerate() {
                let (request, ticket, _) = poller.next();
                let theirs = exchange.body.get("last_update").and_then(|value| value.as_str());
                // With a job on the way two requests of the Runner overlap.
                let overlaps = scenario.name.starts_with("jobs-in-a-row-concurrency");
                assert!(overlaps || ticket.as_deref() == theirs, "{version} {} {index}", scenario.name);
                compared += 1;
                let has_job = exchange.answer.as_ref().is_some_and(|answer| answer.job.is_some());
                poller.event(Event::Answered {
                    request,
                    reply: exchange.reply(),
                    has_job,
                    jitter: Jitter(0),
                });
            }
        }
    }
    assert!(compared > 150, "{compared}");
}

#[test]
fn a03_requests_come_as_soon_as_the_runners_or_later_where_a_server_is_in_trouble() {
    let mut waits: BTreeMap<&str, Vec<(u64, u64)>> = BTreeMap::new();
    let transcript = Transcript::read("17.9.3", "poll");
    for name in ["ticket", "conflict-409", "long-poll", "undecodable-job", "connection-cut", "not-an-api"] {
        let mut poller = Poller::new();
        let all = requests(transcript.scenario(name));
        for (before, after) in all.iter().zip(all.iter().skip(1)) {
            let (request, ..) = poller.next();
            let has_job = before.answer.as_ref().is_some_and(|answer| answer.job.is_some());
            poller.event(Event::Answered { request, reply: before.reply(), has_job, jitter: Jitter(0) });
            let (request, ticket, waited) = poller.next();
            poller.out.insert(0, (request, ticket));
            let theirs = after.times().0.since(before.times().1);
            waits
                .entry(name)
                .or_default()
                .push((waited.as_secs(), (theirs.as_millis() as u64 + 500) / 1_000));
        }
    }
    for (name, waits) in waits {
        for (ours, theirs) in waits {
            match name {
                // No answer is an outage: the agent waits longer each time.
                "connection-cut" => assert!([1, 3, 6].contains(&ours), "{ours}"),
                _ => assert!(ours <= theirs.max(1), "{name}: {ours} {theirs}"),
            }
        }
    }
}

#[test]
fn a01_every_call_of_the_runner_is_one_of_the_agents() {
    let job = 7;
    let ours = [
        Call::CreateRunner,
        Call::Register,
        Call::Verify,
        Call::ResetToken,
        Call::DeleteManager,
        Call::DeleteRunner,
        Call::RequestJob,
        Call::UpdateJob(job),
        Call::AppendTrace { job, debug: false },
        Call::AppendTrace { job, debug: true },
        Call::UploadArtifacts(job),
        Call::DownloadArtifacts { job, direct: true },
        Call::DownloadArtifacts { job, direct: false },
    ];
    let ours: BTreeSet<String> =
        ours.iter().map(|call| format!("{} {}", call.method(), call.path())).collect();
    let mut others = BTreeSet::new();
    for version in ["12.5.0", "17.9.3"] {
        for group in ["register", "poll", "jobs", "signals", "content"] {
            for scenario in &Transcript::read(version, group).scenarios {
                for exchange in &scenario.exchanges {
                    let call = match exchange.job() {
                        Some(id) => exchange.call.replace(&id.to_string(), "7"),
                        None => exchange.call.clone(),
                    };
                    // The format of artifacts follows in a longer query.
                    let call = if call.contains("/artifacts?artifact") || call.contains("/artifacts?expire") {
                        call.split('?').next().unwrap().to_owned()
                    } else {
                        call
                    };
                    if !ours.contains(&call) {
                        others.insert(call);
                    }
                }
            }
        }
    }
    let wanted = [
        // 12.5.0 does not say if a job prints each of its commands.
        "PATCH /jobs/7/trace",
        // `reset-token --pat`: for the token's owner. The agent rotates with the runner's own token.
        "POST /runners/12/reset_authentication_token",
    ];
    assert_eq!(others.iter().map(String::as_str).collect::<Vec<_>>(), wanted);
}
