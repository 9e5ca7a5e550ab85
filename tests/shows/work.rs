//! Jobs with a known log: three steps that print numbered lines, bytes that are no valid text, and a secret.

use std::fs;
use std::path::Path;

use step_runner::pb::v1;

use crate::daemon::Scene;
use crate::log::{Sources, check_equal, check_prefix};
use crate::random::Random;
use crate::verdict::Check;

/// Action of a client on the job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Treatment {
    /// Waits for the end of the job.
    Wait,
    /// Cancels it while it runs. It would not end by itself.
    Cancel,
    /// Finishes it while it runs.
    Finish,
    /// Gives it a time limit; it would not end by itself.
    TimeOut,
}

/// Expected end of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// By itself.
    Natural,
    /// Cut off: cancelled, timed out or interrupted.
    Cut,
}

/// A job and its expected output.
pub(crate) struct Work {
    pub(crate) request: v1::RunRequest,
    pub(crate) treatment: Treatment,
    secret: String,
    out: Vec<u8>,
    err: Vec<u8>,
    /// Lines of the daemon on `00O`.
    said: Vec<String>,
    pub(crate) code: i32,
    /// Names of the steps that end.
    steps: Vec<&'static str>,
}

const NAMES: [&str; 3] = ["one", "two", "three"];

/// A function that prints lines and returns an output. Jobs refer to its folder.
const EMIT: &str = r#"spec:
  inputs:
    id: {type: string}
    lines: {type: number}
    script: {type: string}
  outputs:
    sum: {type: string}
---
exec:
  command:
    - sh
    - -c
    - |
      eval "$3"
      printf '{"name":"sum","value":"%s has %s"}\n' "$1" "$2" >> "$4"
    - emit
    - ${{ inputs.id }}
    - ${{ inputs.lines }}
    - ${{ inputs.script }}
    - ${{ output_file }}
"#;

/// Writes the functions that jobs refer to.
pub(crate) fn prepare(scene: &Scene) {
    fs::create_dir(scene.path("emit")).unwrap();
    fs::write(scene.path("emit/func.yml"), EMIT).unwrap();
}

/// Returns a script that prints lines of step `name`, with a pause after every hundred, and the expected stdout and
/// stderr.
fn lines(id: &str, name: &str, count: u64, pause: &str) -> (String, Vec<u8>, Vec<u8>) {
    let script = format!(
        "echo {name} >> \"$RAN\"\ni=0\nwhile [ $i -lt {count} ]; do\n  echo \"{id} {name} out $i\"\n  echo \"{id} {name} err $i\" >&2\n  i=$((i+1))\n  [ $((i % 100)) -ne 0 ] || sleep {pause}\ndone\n"
    );
    let of = |kind: &str| (0..count).flat_map(|i| format!("{id} {name} {kind} {i}\n").into_bytes()).collect();
    (script, of("out"), of("err"))
}

/// What clients can check of a job and its output.
pub(crate) trait Expected: Send + Sync {
    fn request(&self) -> &v1::RunRequest;

    fn treatment(&self) -> Treatment;

    /// Exit code of its natural end.
    fn code(&self) -> i32;

    /// Checks the log of a job with this end and exit code.
    fn check_log(&self, log: &[u8], end: End, exit_code: i32) -> Check;

    /// Checks the part of a log that a follower received before the job was removed. A writer that was killed can leave
    /// one incomplete line.
    fn check_seen(&self, log: &[u8], killed: bool) -> Check;

    /// Checks the step results of a job with this end: each step once, in order, then the root with all of them.
    fn check_steps(&self, results: &[v1::StepResult], end: End) -> Check;

    /// Checks which steps ran, from their own records: each as often as it should, in order.
    fn check_ran(&self, scene: &Scene, end: End, exit_code: i32) -> Check;
}

impl Work {
    /// Returns job `id`. With `treatments` some jobs are cancelled or finished while they run.
    pub(crate) fn new(scene: &Scene, id: &str, random: &mut Random, treatments: bool) -> Self {
        let treatment = match random.below(8) {
            0 if treatments => Treatment::Cancel,
            1 if treatments => Treatment::Finish,
            _ => Treatment::Wait,
        };
        Self::treated(scene, id, random, treatment)
    }

    /// Returns job `id` for this treatment.
    pub(crate) fn treated(scene: &Scene, id: &str, random: &mut Random, treatment: Treatment) -> Self {
        let endless = matches!(treatment, Treatment::Cancel | Treatment::TimeOut);
        let failing = (random.one_in(4) && !endless).then(|| 1 + random.below(2) as usize);
        let code = failing.map_or(0, |_| 1 + random.below(255) as i32);
        let pause = ["0.003", "0.01", "0.03"][random.below(3) as usize];
        let secret = format!("secret-of-{id}-{:x}", random.next());
        let mut work = Self {
            request: v1::RunRequest { id: id.to_owned(), ..v1::RunRequest::default() },
            treatment,
            secret: secret.clone(),
            out: Vec::new(),
            err: Vec::new(),
            said: Vec::new(),
            code,
            steps: Vec::new(),
        };
        let mut run = Vec::new();
        for (index, name) in NAMES.into_iter().enumerate() {
            let count = 100 + random.below(1900);
            let (mut script, out, err) = lines(id, name, count, pause);
            let runs = failing.is_none_or(|failing| index <= failing);
            let mut expected = out;
            if index == 1 {
                expected.splice(0..0, format!("one has {}\n", count_of_first(&run)).into_bytes());
                script = format!(
                    "echo \"one has ${{{{ steps.one.outputs.sum }}}}\" | sed 's/^one has one has/one has/'\n{script}"
                );
                script.push_str("cat \"$CONF\"\necho \"the secret is $SECRET\" >&2\n");
                expected.extend_from_slice(format!("content for {id}\n").as_bytes());
            }
            let mut err = err;
            if index == 1 {
                err.extend_from_slice(b"the secret is [MASKED]\n");
                script.push_str("j=0; while [ $j -lt 40 ]; do printf '\\000\\377\\001 %s\\r\\n\\303' $j; j=$((j+1)); done; echo\n");
                for j in 0..40 {
                    expected.extend_from_slice(&[0, 0xFF, 1, b' ']);
                    expected.extend_from_slice(format!("{j}\r\n").as_bytes());
                    expected.push(0xC3);
                }
                expected.push(b'\n');
            }
            let leaves = index == 1 && random.one_in(4);
            if leaves {
                script.push_str("sleep 1000 > /dev/null 2>&1 &\n");
            }
            if index == 2 {
                script.push_str("printf 'the end without a line feed'\n");
                expected.extend_from_slice(b"the end without a line feed\n");
            }
            if endless && index == 2 {
                script.push_str("sleep 1000\n");
            }
            if failing == Some(index) {
                script.extend(["exit ", &code.to_string(), "\n"]);
            }
            if runs {
                work.out.extend_from_slice(&expected);
                work.err.extend_from_slice(&err);
                work.said.push(format!("Running step name={name}"));
                if leaves {
                    work.said.push(format!("step {name} left 1 process running"));
                }
                work.steps.push(name);
            }
            run.push(step(scene, name, index, count, &script));
        }
        work.request.steps = serde_json::json!({ "run": run }).to_string();
        work.request.job = Some(job(scene, id, &secret, random.one_in(2)));
        if treatment == Treatment::TimeOut {
            work.request.timeout = Some(prost_types::Duration { seconds: 1, nanos: 0 });
        }
        work
    }
}

/// Returns variables and build directory of job `id`.
pub(crate) fn job(scene: &Scene, id: &str, secret: &str, in_build_dir: bool) -> v1::Job {
    let variable =
        |key: &str, value: String, file, masked| v1::Variable { key: key.into(), value, file, masked };
    let path = |name: &str| scene.path(name).to_str().unwrap().to_owned();
    v1::Job {
        variables: vec![
            variable("RAN", path(&format!("ran/{id}")), false, false),
            variable("SHOWS_JOB", id.to_owned(), false, false),
            variable("SECRET", secret.to_owned(), false, true),
            variable("CONF", format!("content for {id}\n"), true, false),
        ],
        build_dir: if in_build_dir { path(&format!("work/{id}/build")) } else { String::new() },
        ..v1::Job::default()
    }
}

impl Expected for Work {
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
        let has_secret = memchr::memmem::find(log, self.secret.as_bytes()).is_some();
        if has_secret {
            return Err("the log holds the secret".into());
        }
        let sources = Sources::read(log)?;
        // A writer that was killed can leave one incomplete line.
        let allowed = usize::from(end == End::Cut && exit_code == -4);
        if sources.malformed > allowed {
            return Err(format!("{} malformed lines", sources.malformed));
        }
        let known = ["00O", "00E", "01O", "01E"];
        if let Some(name) = sources.names().iter().find(|name| !known.contains(&name.as_str())) {
            return Err(format!("a source {name}"));
        }
        // Lines about processes have their ids removed, which differ.
        let said = sources.lines(*b"00O").into_iter();
        let said: Vec<String> = said.map(|line| before(&line, ": ").to_owned()).collect();
        let errors = sources.lines(*b"00E");
        match end {
            End::Natural => {
                check_equal("stdout", sources.of(*b"01O"), &self.out)?;
                check_equal("stderr", sources.of(*b"01E"), &self.err)?;
                if said != self.said {
                    return Err(format!("lines of the daemon: {said:?}, expected {:?}", self.said));
                }
                let failed = errors.iter().filter(|line| line.starts_with("job failed:")).count();
                if errors.len() != failed || failed != usize::from(self.code != 0) {
                    return Err(format!("error lines of the daemon: {errors:?}"));
                }
            }
            End::Cut => {
                check_prefix("stdout", sources.of(*b"01O"), &self.out)?;
                check_prefix("stderr", sources.of(*b"01E"), &self.err)?;
                let word = match exit_code {
                    -4 => "job interrupted:",
                    -3 => "job ended by time limit:",
                    _ => "job cancelled:",
                };
                let ends = errors.iter().filter(|line| line.starts_with(word)).count();
                if ends != 1 {
                    return Err(format!("{ends} lines {word:?} among {errors:?}"));
                }
                if exit_code == -4 && !last_line(log).contains(word) {
                    return Err(format!("the log ends with {:?}", last_line(log)));
                }
            }
        }
        Ok(())
    }

    fn check_seen(&self, log: &[u8], killed: bool) -> Check {
        if memchr::memmem::find(log, self.secret.as_bytes()).is_some() {
            return Err("the log holds the secret".into());
        }
        let whole = log.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let sources = Sources::read(&log[..whole])?;
        if sources.malformed > usize::from(killed) {
            return Err(format!("{} malformed lines", sources.malformed));
        }
        check_prefix("stdout", sources.of(*b"01O"), &self.out)?;
        check_prefix("stderr", without_complaints(sources.of(*b"01E")), &self.err)
    }

    fn check_steps(&self, results: &[v1::StepResult], end: End) -> Check {
        let (root, steps) = results.split_last().ok_or("no step results")?;
        let name =
            |result: &v1::StepResult| result.step.as_ref().map(|step| step.name.clone()).unwrap_or_default();
        let names: Vec<_> = steps.iter().map(name).collect();
        let fits = match end {
            End::Natural => names == self.steps,
            End::Cut => names.iter().zip(NAMES).all(|(found, expected)| found == expected),
        };
        if !fits {
            return Err(format!("results of {names:?}, expected {:?}", self.steps));
        }
        if !name(root).is_empty() {
            return Err(format!("the last result is of {:?}, not the root", name(root)));
        }
        let whole = root.sub_step_results.len() == steps.len();
        if end == End::Natural {
            let status = if self.code == 0 {
                v1::step_result::Status::Success
            } else {
                v1::step_result::Status::Failure
            };
            if !whole || root.status != status as i32 {
                return Err(format!(
                    "root with {} results and status {}",
                    root.sub_step_results.len(),
                    root.status
                ));
            }
        }
        Ok(())
    }

    fn check_ran(&self, scene: &Scene, end: End, _exit_code: i32) -> Check {
        let ran = fs::read_to_string(scene.path(&format!("ran/{}", self.request.id))).unwrap_or_default();
        let ran: Vec<_> = ran.lines().collect();
        let fits = match end {
            End::Natural => ran == self.steps,
            End::Cut => {
                ran.len() <= NAMES.len() && ran.iter().zip(NAMES).all(|(found, expected)| *found == expected)
            }
        };
        if fits { Ok(()) } else { Err(format!("steps that ran: {ran:?}, expected {:?}", self.steps)) }
    }
}

/// Checks that file variables and temporary files of job `id` are gone.
pub(crate) fn check_files(scene: &Scene, id: &str) -> Check {
    let build = scene.path(&format!("work/{id}/build"));
    let files: Vec<_> = crate::proc::tree(build.parent().unwrap_or(Path::new("/")))
        .into_iter()
        .filter(|path| *path != build)
        .collect();
    if files.is_empty() { Ok(()) } else { Err(format!("files left: {files:?}")) }
}

/// Returns the lines before a shell reports a full disk.
fn without_complaints(stderr: &[u8]) -> &[u8] {
    let complains = |line: &&[u8]| {
        let is_in = |text: &str| memchr::memmem::find(line, text.as_bytes()).is_some();
        is_in("I/O error") || is_in("No space left on device")
    };
    let lines = stderr.split_inclusive(|&byte| byte == b'\n');
    let len = lines.take_while(|line| !complains(line)).map(<[u8]>::len).sum::<usize>();
    &stderr[..len]
}

fn step(scene: &Scene, name: &str, index: usize, count: u64, script: &str) -> serde_json::Value {
    if index > 0 {
        return serde_json::json!({ "name": name, "script": script });
    }
    let emit = scene.path("emit").to_str().unwrap().to_owned();
    serde_json::json!({ "name": name, "func": emit, "inputs": { "id": name, "lines": count, "script": script } })
}

fn count_of_first(run: &[serde_json::Value]) -> String {
    run[0]["inputs"]["lines"].to_string()
}

/// Returns a line about processes up to `end`. Other lines are returned whole.
fn before<'a>(line: &'a str, end: &str) -> &'a str {
    line.split_once(end)
        .map(|(text, _)| text)
        .filter(|text| text.ends_with(" process running") || text.ends_with(" processes running"))
        .unwrap_or(line)
}

fn last_line(log: &[u8]) -> String {
    let text = String::from_utf8_lossy(log);
    text.lines().last().unwrap_or_default().to_owned()
}
