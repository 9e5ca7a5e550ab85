//! A request of a client: its steps, with the keys of control flow that they use.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::program::Program;
use crate::random::Random;

/// Time limit of the cleanup after a stop. It is short because the oracle bounds how long a Finish takes.
pub(crate) const CLEANUP: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub(crate) struct Planned {
    /// Programs of the steps, each with the keys of its step.
    pub(crate) steps: Vec<(Program, Keys)>,
    /// The steps but the last run side by side.
    pub(crate) group: Option<Group>,
    /// Time limit of the job.
    pub(crate) limit: Option<Duration>,
}

/// Keys of one step.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keys {
    /// Further attempts, and the milliseconds before each.
    retry: Option<(u64, u64)>,
    /// Time limit in milliseconds. Such a step may fail, so that the limit decides nothing about the job.
    limit: Option<u64>,
    may_fail: bool,
    is_always: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// Members that run at the same time.
    most: u64,
    is_fail_fast: bool,
}

impl Planned {
    pub(crate) fn random(content: u64, random: &mut Random) -> Self {
        let count = 1 + random.below(3);
        let has_keys = random.one_in(2);
        let steps = (0..count).map(|_| {
            let program = Program::random(content, random);
            let keys = if has_keys { Keys::random(random) } else { Keys::default() };
            (program, keys)
        });
        let steps = steps.collect();
        let group = (count > 1 && random.one_in(2))
            .then(|| Group { most: 1 + random.below(3), is_fail_fast: random.one_in(2) });
        let limit = random.one_in(4).then(|| Duration::from_millis(10 + random.below(20_000)));
        Self { steps, group, limit }
    }

    /// One step without keys.
    pub(crate) fn plain(program: Program, limit: Option<Duration>) -> Self {
        Self { steps: vec![(program, Keys::default())], group: None, limit }
    }

    /// Returns the text of the steps.
    pub(crate) fn text(&self) -> String {
        let numbered = self.steps.iter().enumerate();
        let mut steps: Vec<Value> =
            numbered.map(|(at, (program, keys))| keys.step(at, &program.text())).collect();
        if let Some(Group { most, is_fail_fast }) = self.group {
            let last = steps.split_off(steps.len() - 1);
            for member in steps.iter_mut().filter_map(Value::as_object_mut) {
                // All members begin together.
                member.remove("when");
            }
            steps = vec![json!({"name": "g", "parallel": steps, "max": most, "fail_fast": is_fail_fast})];
            steps.extend(last);
        }
        Value::Array(steps).to_string()
    }
}

impl Keys {
    fn random(random: &mut Random) -> Self {
        let limit = random.one_in(4).then(|| 1 + random.below(3_000));
        Self {
            retry: random.one_in(3).then(|| (1 + random.below(2), random.below(2_000))),
            limit,
            may_fail: limit.is_some() || random.one_in(3),
            is_always: random.one_in(3),
        }
    }

    fn step(&self, at: usize, script: &str) -> Value {
        let mut step = Map::new();
        step.insert("name".into(), json!(format!("s{at}")));
        step.insert("script".into(), json!(script));
        if let Some((more, delay)) = self.retry {
            step.insert("retry".into(), json!({"max": more, "delay": format!("{delay}ms")}));
        }
        if let Some(limit) = self.limit {
            step.insert("timeout".into(), json!(format!("{limit}ms")));
        }
        if self.may_fail {
            step.insert("continue_on_error".into(), json!(true));
        }
        if self.is_always {
            step.insert("when".into(), json!("always"));
        }
        Value::Object(step)
    }
}
