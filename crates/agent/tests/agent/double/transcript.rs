//! Reads the transcripts below `tests/transcripts`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map as JsonMap, Value as Json};
use step_runner_agent::answer::{Answer, Reply, Unreachable};
use step_runner_agent::time::Moment;

#[derive(Deserialize)]
pub(crate) struct Transcript {
    pub(crate) scenarios: Vec<Scenario>,
}

#[derive(Deserialize)]
pub(crate) struct Scenario {
    #[serde(rename = "scenario")]
    pub(crate) name: String,
    pub(crate) exchanges: Vec<Exchange>,
    #[serde(default)]
    pub(crate) traces: BTreeMap<String, String>,
}

#[derive(Deserialize, Clone)]
pub(crate) struct Exchange {
    pub(crate) ms: u64,
    pub(crate) call: String,
    #[serde(default)]
    pub(crate) range: Option<String>,
    #[serde(default)]
    pub(crate) body: JsonMap<String, Json>,
    #[serde(default)]
    pub(crate) answer: Option<Answered>,
}

#[derive(Deserialize, Clone)]
pub(crate) struct Answered {
    pub(crate) ms: u64,
    pub(crate) status: u16,
    #[serde(default)]
    pub(crate) headers: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) job: Option<u64>,
}

impl Transcript {
    /// Reads the transcript of a version and a group.
    pub(crate) fn read(version: &str, group: &str) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts");
        let text = fs::read_to_string(root.join(format!("{version}-{group}.json"))).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// Returns a scenario.
    pub(crate) fn scenario(&self, name: &str) -> &Scenario {
        self.scenarios.iter().find(|found| found.name == name).unwrap()
    }
}

impl Exchange {
    /// Returns the answer as the agent reads it.
    pub(crate) fn reply(&self) -> Reply {
        let answer = self.answer.as_ref().ok_or(Unreachable)?;
        Ok(Answer::read(answer.status, answer.headers.iter().map(|(name, value)| (&**name, &**value))))
    }

    /// Returns the times of the request and of its end.
    pub(crate) fn times(&self) -> (Moment, Moment) {
        let end = self.answer.as_ref().map_or(self.ms, |answer| answer.ms);
        (moment(self.ms), moment(end))
    }

    /// Returns first byte and end of a piece of a trace.
    pub(crate) fn piece(&self) -> Option<(u64, u64)> {
        let (from, last) = self.range.as_deref()?.split_once('-')?;
        Some((from.parse().unwrap(), last.parse::<u64>().unwrap() + 1))
    }

    /// Returns the state in the body.
    pub(crate) fn state(&self) -> Option<&str> {
        self.body.get("state").and_then(Json::as_str)
    }

    /// Returns the job that the call is about.
    pub(crate) fn job(&self) -> Option<u64> {
        let (_, path) = self.call.split_once("/jobs/")?;
        path.split(['/', '?']).next()?.parse().ok()
    }
}

/// Returns a time of a transcript.
pub(crate) fn moment(ms: u64) -> Moment {
    Moment::after_start(std::time::Duration::from_millis(ms))
}
