//! Jobs with control flow and a known log: fourteen members side by side, a step with several attempts, an allowed
//! failure, a step that is skipped, and a cleanup.

use std::collections::BTreeMap;
use std::fs;

use serde_json::json;
use step_runner::pb::v1;

use crate::daemon::Scene;
use crate::log::Sources;
use crate::random::Random;
use crate::verdict::Check;
use crate::work::{End, Expected, Treatment, job};

const MEMBERS: usize = 14;

/// Attempts of the step `flaky`.
const ATTEMPTS: usize = 3;

/// Results of the root list, in order. The step `long` is there if the job would not end by itself.
const RESULTS: [&str; 7] = ["all", "flaky", "may", "skipped", "pick", "long", "cleanup"];

/// A job and its expected output.
pub(crate) struct FlowWork {
    request: v1::RunRequest,
    treatment: Treatment,
    secret: String,
    /// Number of lines of each member.
    lines: Vec<u64>,
    code: i32,
}

impl FlowWork {
    pub(crate) fn new(scene: &Scene, id: &str, random: &mut Random) -> Self {
        let treatment = match random.below(4) {
            0 => Treatment::Cancel,
            1 => Treatment::Finish,
            _ => Treatment::Wait,
        };
        let code = if random.one_in(4) && treatment != Treatment::Cancel { 9 } else { 0 };
        let secret = format!("secret-of-{id}-{:x}", random.next());
        let lines: Vec<u64> = (0..MEMBERS).map(|_| 20 + random.below(100)).collect();
        let mut request = v1::RunRequest { id: id.to_owned(), ..v1::RunRequest::default() };
        request.steps = steps(&lines, random, code, treatment).to_string();
        request.job = Some(job(scene, id, &secret, random.one_in(2)));
        Self { request, treatment, secret, lines, code }
    }

    /// Returns what runs after the members if nothing stops the job.
    fn serial(&self) -> Vec<&'static str> {
        let mut ran = vec!["flaky"; ATTEMPTS];
        if self.code == 0 {
            ran.extend(["may", "pick"]);
        }
        ran
    }

    fn read(&self, log: &[u8], allowed: usize) -> Check<Sources> {
        if memchr::memmem::find(log, self.secret.as_bytes()).is_some() {
            return Err("the log holds the secret".into());
        }
        let sources = Sources::read(log)?;
        if sources.malformed > allowed {
            return Err(format!("{} malformed lines", sources.malformed));
        }
        self.check_members(&sources, End::Cut)?;
        Ok(sources)
    }

    /// Checks the lines of members: each once, in order, and in one stream. A cut job may lack the last ones.
    fn check_members(&self, sources: &Sources, end: End) -> Check {
        let mut seen: BTreeMap<usize, (String, u64)> = BTreeMap::new();
        for name in sources.names() {
            let bytes: [u8; 3] = name.as_bytes().try_into().map_err(|_| format!("a source {name}"))?;
            for line in sources.lines(bytes) {
                let Some((member, number)) = member_line(&line) else { continue };
                let (stream, next) = seen.entry(member).or_insert_with(|| (name.clone(), 0));
                if *stream != name || *next != number {
                    return Err(format!("member {member}: {line:?} in {name}, expected {next} in {stream}"));
                }
                *next += 1;
            }
        }
        for (member, lines) in self.lines.iter().enumerate() {
            let count = seen.get(&member).map_or(0, |(_, count)| *count);
            if count > *lines || end == End::Natural && count != *lines {
                return Err(format!("{count} lines of member {member}, expected {lines}"));
            }
        }
        Ok(())
    }
}

impl Expected for FlowWork {
    fn request(&self) -> &v1::RunRequest {
        &self.request
    }

    fn treatment(&self) -> Treatment {
        self.treatment
    }

    fn code(&self) -> i32 {
        self.code
    }

    fn check_log(&self, log: &[u8], end: End, exit_code: i32) -> Check {
        // Each writer that was killed can leave one incomplete line.
        let sources = self.read(log, if exit_code == -4 { MEMBERS } else { 0 })?;
        self.check_members(&sources, end)?;
        let word = match exit_code {
            0 => return Ok(()),
            -4 => "job interrupted:",
            -2 => "job cancelled:",
            _ => "job failed:",
        };
        let errors = sources.lines(*b"00E");
        let ends = errors.iter().filter(|line| line.starts_with(word)).count();
        if ends == 1 { Ok(()) } else { Err(format!("{ends} lines {word:?} among {errors:?}")) }
    }

    fn check_seen(&self, log: &[u8], killed: bool) -> Check {
        let whole = log.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        self.read(&log[..whole], if killed { MEMBERS } else { 0 }).map(drop)
    }

    fn check_steps(&self, results: &[v1::StepResult], end: End) -> Check {
        let (root, steps) = results.split_last().ok_or("no step results")?;
        let name =
            |result: &v1::StepResult| result.step.as_ref().map(|step| step.name.clone()).unwrap_or_default();
        let names: Vec<_> = steps.iter().map(name).collect();
        let mut expected = RESULTS.iter().filter(|name| end == End::Cut || **name != "long");
        let fits = match end {
            End::Natural => names.iter().eq(expected),
            // What a stop left out has no result, or one that says so.
            End::Cut => names.iter().all(|found| expected.any(|known| known == found)),
        };
        if !fits || !name(root).is_empty() {
            return Err(format!("results of {names:?}, then of {:?}", name(root)));
        }
        if end == End::Natural && root.sub_step_results.len() != steps.len() {
            return Err(format!("the root has {} results", root.sub_step_results.len()));
        }
        Ok(())
    }

    fn check_ran(&self, scene: &Scene, end: End, exit_code: i32) -> Check {
        let ran = fs::read_to_string(scene.path(&format!("ran/{}", self.request.id))).unwrap_or_default();
        let ran: Vec<_> = ran.lines().collect();
        let is_member = |name: &&&str| name.starts_with('m') && **name != "may";
        let mut members: Vec<_> = ran.iter().take_while(is_member).collect();
        let mut serial = &ran[members.len()..];
        members.sort_unstable();
        let count = members.len();
        members.dedup();
        let has_cleanup = serial.last() == Some(&"cleanup");
        if has_cleanup {
            serial = &serial[..serial.len() - 1];
        }
        let fits = match end {
            End::Natural => count == MEMBERS && serial == self.serial() && has_cleanup,
            End::Cut => {
                let expected = self.serial();
                let most = expected.len().min(serial.len());
                // A job that was cancelled after its first step has its cleanup. One that was interrupted may not.
                let cleaned = has_cleanup || ran.is_empty() || exit_code != -2;
                serial == &expected[..most] && (count == MEMBERS || serial.is_empty()) && cleaned
            }
        };
        if fits && count == members.len() { Ok(()) } else { Err(format!("steps that ran: {ran:?}")) }
    }
}

/// Returns the steps of a job. With exit code 9 the step `flaky` fails in each attempt.
fn steps(lines: &[u64], random: &mut Random, code: i32, treatment: Treatment) -> serde_json::Value {
    let pause = ["0.003", "0.01", "0.03"][random.below(3) as usize];
    let members: Vec<_> = lines
        .iter()
        .enumerate()
        .map(|(member, count)| {
            let script = format!(
                "echo m{member} >> \"$RAN\"; i=0; while [ $i -lt {count} ]; do echo \"member {member} line $i\"; \
                 i=$((i+1)); [ $((i % 20)) -ne 0 ] || sleep {pause}; done; echo \"$SECRET\""
            );
            json!({"name": format!("m{member}"), "script": script})
        })
        .collect();
    let until = if code == 0 { ATTEMPTS } else { ATTEMPTS + 1 };
    let flaky = format!("echo flaky >> \"$RAN\"; [ $(grep -c flaky \"$RAN\") -ge {until} ] || exit 9");
    let mut steps = vec![
        json!({"name": "all", "parallel": members, "max": MEMBERS}),
        json!({"name": "flaky", "script": flaky,
               "retry": {"max": ATTEMPTS - 1, "delay": format!("{}ms", random.below(400))}}),
        json!({"name": "may", "script": "echo may >> \"$RAN\"; exit 7", "continue_on_error": true}),
        json!({"name": "skipped", "script": "echo skipped >> \"$RAN\"", "if": false}),
        json!({"name": "pick", "if": "${{ steps.may.status == \"allowed_failure\" }}",
               "script": "echo pick >> \"$RAN\""}),
    ];
    if treatment == Treatment::Cancel {
        steps.push(json!({"name": "long", "script": "sleep 1000"}));
    }
    steps.push(json!({"name": "cleanup", "when": "always", "script": "echo cleanup >> \"$RAN\""}));
    json!({ "run": steps })
}

/// Returns member and number of a line that a member has printed.
fn member_line(line: &str) -> Option<(usize, u64)> {
    let (member, number) = line.strip_prefix("member ")?.split_once(" line ")?;
    Some((member.parse().ok()?, number.parse().ok()?))
}
