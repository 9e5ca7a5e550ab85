//! Compares what a run has shown with what its case expects.

use serde_json::{Value as Json, json};
use step_runner_model::EndClass;

use super::world::World;

impl World<'_> {
    /// Compares everything that `expect` names.
    pub(super) fn compare(&self, expect: &Json) -> Result<(), String> {
        let manner = self.manner;
        let unlike = |what: &str, wanted: &Json, found: &Json| {
            Err(format!("{manner:?}: {what}\n  wanted {wanted}\n  found  {found}\n  log {:?}", self.seen.log))
        };
        if let Some(order) = expect["order"].as_array() {
            let found = Json::Array(self.seen.order.clone());
            let alike = order.len() == self.seen.order.len()
                && order.iter().zip(&self.seen.order).all(|(wanted, found)| is_event(wanted, found));
            if !alike {
                return unlike("order", &expect["order"], &found);
            }
        }
        let status = json!(self.seen.status);
        if !expect["status"].is_null() && expect["status"] != status {
            return unlike("status", &expect["status"], &status);
        }
        let sets = [
            ("inputs", &self.seen.inputs),
            ("env", &self.seen.env),
            ("outputs", &self.seen.outputs),
            ("streams", &self.seen.streams),
        ];
        for (what, found) in sets {
            for (path, wanted) in expect[what].as_object().into_iter().flatten() {
                let found = found.get(path).cloned().unwrap_or(Json::Null);
                let alike = match (wanted.as_object(), what) {
                    (Some(members), "inputs" | "env") => {
                        members.iter().all(|(name, value)| is_value(value, &found[name]))
                    }
                    _ => is_value(wanted, &found),
                };
                if !alike {
                    return unlike(&format!("{what} of {path}"), wanted, &found);
                }
            }
        }
        if !expect["follow"].is_null() && expect["follow"] != json!(self.seen.follow) {
            return unlike("follow", &expect["follow"], &json!(self.seen.follow));
        }
        self.compare_job(&expect["job"])
    }

    fn compare_job(&self, job: &Json) -> Result<(), String> {
        let Some((outcome, allowed)) = &self.seen.finish else {
            return Err(format!(
                "{:?}: the job hangs: {}",
                self.manner,
                Json::Array(self.seen.order.clone())
            ));
        };
        let state = match outcome.class {
            EndClass::Success => "success",
            EndClass::Failure => "failure",
            EndClass::Cancelled => "cancelled",
            EndClass::Timeout => "timeout",
            EndClass::Interrupted => "interrupted",
        };
        let found = json!({
            "state": state, "exit_code": outcome.exit_code, "error": self.seen.error,
            "allowed_failures": allowed, "message": outcome.message,
        });
        let text = |name: &str| job[name].as_str();
        let holds = |part: Option<&str>| part.is_none_or(|part| outcome.message.contains(part));
        let at = text("at").map(|at| format!(":{at}: "));
        let alike = job["state"] == found["state"]
            && job["exit_code"] == found["exit_code"]
            && (job["error"].is_null() || job["error"] == found["error"])
            && job["allowed_failures"].as_u64().unwrap_or(0) == u64::from(*allowed)
            && holds(text("message"))
            && holds(text("hint"))
            && holds(at.as_deref());
        if alike { Ok(()) } else { Err(format!("{:?}: job\n  wanted {job}\n  found  {found}", self.manner)) }
    }
}

/// True if an event is as expected. The text of a warning holds the expected one.
fn is_event(wanted: &Json, found: &Json) -> bool {
    if wanted[1] != "warn" {
        return wanted == found;
    }
    let holds = |found: &Json, part: &Json| {
        found.as_str().zip(part.as_str()).is_some_and(|(found, part)| found.contains(part))
    };
    (0..3).all(|index| wanted[index] == found[index]) && holds(&found[3], &wanted[3])
}

/// True if two values are equal; numbers by their value.
fn is_value(wanted: &Json, found: &Json) -> bool {
    match (wanted, found) {
        (Json::Number(wanted), Json::Number(found)) => wanted.as_f64() == found.as_f64(),
        (Json::Array(wanted), Json::Array(found)) => {
            wanted.len() == found.len()
                && wanted.iter().zip(found).all(|(wanted, found)| is_value(wanted, found))
        }
        (Json::Object(wanted), Json::Object(found)) => {
            wanted.len() == found.len()
                && wanted
                    .iter()
                    .all(|(name, value)| found.get(name).is_some_and(|found| is_value(value, found)))
        }
        _ => wanted == found,
    }
}
