//! Two jobs whose output is known byte for byte. The subject uses all features of a job, or all of control flow. The bystander
//! runs beside it, from before its start until after its end.

use std::fs;
use std::path::PathBuf;

use rustix::fs::{FileType, Mode};
use step_runner::pb::v1;

use crate::daemon::Scene;
use crate::log::{Sources, check_equal, check_prefix};
use crate::verdict::Check;

/// A function that returns an output.
const GIVE: &str = r#"spec:
  outputs:
    sum: {type: string}
---
exec:
  command:
    - sh
    - -c
    - |
      echo one >> "$RAN"
      echo "gives"
      printf '{"name":"sum","value":"the sum"}\n' >> "$1"
    - give
    - ${{ output_file }}
"#;

const TAKES: &str = r#"echo two >> "$RAN"
echo "takes ${{ steps.one.outputs.sum }}"
cat "$CONF"
echo "the secret is $SECRET" >&2
printf 'no line feed'
"#;

/// Fails once.
const FLAKY: &str = r#"echo flaky >> "$RAN"
[ "$(grep -c flaky "$RAN")" -ge 2 ] || exit 9
"#;

const WAITS: &str = r#"echo waits >> "$RAN"
echo "before"
read go < "$GO"
echo "after $go"
echo "an error" >&2
"#;

/// Arguments of the write of the file variable, as strace prints them.
pub(crate) const FILE: &str = r#", "a file\n", "#;

/// How a job ended, according to Status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    /// All steps succeeded.
    Whole,
    /// A step failed, or something else.
    Failed,
    /// The keeper died.
    Interrupted,
}

/// A job and its expected output.
pub(crate) struct Job {
    pub(crate) request: v1::RunRequest,
    secret: String,
    expected: Expected,
    ran: PathBuf,
    build: PathBuf,
}

/// What a job leaves that comes to its own end.
#[derive(Default)]
struct Expected {
    /// Names of the results of its list.
    results: &'static [&'static str],
    /// What its processes wrote into the file of those that ran.
    ran: &'static [&'static str],
    /// Lines of the daemon.
    said: &'static [&'static str],
    warnings: &'static [&'static str],
    /// Lines of steps side by side. Their order and their streams do not count, nor does the order of these steps.
    beside: &'static [&'static str],
    out: &'static str,
    err: &'static str,
}

/// Returns the secret of a scene's jobs.
pub(crate) fn secret(scene: &Scene) -> String {
    format!("canary-{}", scene.tag.rsplit('=').next().unwrap_or_default())
}

impl Job {
    /// Returns the job that meets the fault.
    pub(crate) fn subject(scene: &Scene) -> Self {
        let give = scene.path("give");
        fs::create_dir(&give).unwrap();
        fs::write(give.join("func.yml"), GIVE).unwrap();
        let steps = serde_json::json!({ "run": [
            { "name": "one", "func": give },
            { "name": "two", "script": TAKES },
        ] });
        let expected = Expected {
            results: &["one", "two"],
            ran: &["one", "two"],
            said: &["Running step name=one", "Running step name=two"],
            out: "gives\ntakes the sum\na file\nno line feed\n",
            err: "the secret is [MASKED]\n",
            ..Expected::default()
        };
        Self::new(scene, "subject", &steps, expected)
    }

    /// Returns the job that meets the fault, with control flow: attempts, an allowed failure, a step that is skipped, steps
    /// side by side, and a cleanup.
    pub(crate) fn flow_subject(scene: &Scene) -> Self {
        let give = scene.path("give");
        fs::create_dir(&give).unwrap();
        fs::write(give.join("func.yml"), GIVE).unwrap();
        let runs = |name: &str, more: &str| serde_json::json!({ "name": name, "script": format!("echo {name} >> \"$RAN\"{more}") });
        let mut may = runs("may", "; exit 7");
        may["continue_on_error"] = true.into();
        let mut cleanup = runs("cleanup", "");
        cleanup["when"] = "always".into();
        let steps = serde_json::json!({ "run": [
            { "name": "one", "func": give },
            { "name": "flaky", "script": FLAKY, "retry": {"max": 1, "delay": "5ms"} },
            may,
            { "name": "skipped", "script": "echo skipped >> \"$RAN\"", "if": false },
            { "name": "side", "parallel": [runs("left", "; echo left side"), runs("right", "; echo right side")] },
            { "name": "two", "script": TAKES, "if": "${{ steps.may.status == \"allowed_failure\" }}" },
            cleanup,
        ] });
        let expected = Expected {
            results: &["one", "flaky", "may", "skipped", "side", "two", "cleanup"],
            ran: &["one", "flaky", "flaky", "may", "left", "right", "two", "cleanup"],
            said: &[
                "Running step name=one",
                "Running step name=flaky",
                "Retrying step name=flaky (attempt 2 of 2) in 5ms: exec: exit-status 9",
                "Running step name=flaky",
                "Running step name=may",
                "Skipped step name=skipped: false",
                "Running step name=left",
                "Running step name=right",
                "Running step name=two",
                "Running step name=cleanup",
            ],
            warnings: &["warning: step \"may\" has failed, which is allowed: exec: exit-status 7"],
            beside: &["left side", "right side"],
            out: "gives\ntakes the sum\na file\nno line feed\n",
            err: "the secret is [MASKED]\n",
        };
        Self::new(scene, "subject", &steps, expected)
    }

    /// Returns the job beside it. It ends after a line is written to the FIFO `go`.
    pub(crate) fn bystander(scene: &Scene) -> Self {
        let go = scene.path("go");
        rustix::fs::mknodat(rustix::fs::CWD, &go, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let steps = serde_json::json!([{ "name": "waits", "script": WAITS }]);
        let expected = Expected {
            results: &["waits"],
            ran: &["waits"],
            said: &["Running step name=waits"],
            out: "before\nafter on\n",
            err: "an error\n",
            ..Expected::default()
        };
        Self::new(scene, "bystander", &steps, expected)
    }

    fn new(scene: &Scene, id: &str, steps: &serde_json::Value, expected: Expected) -> Self {
        let secret = secret(scene);
        let (ran, build) = (scene.path("ran").join(id), scene.path("work").join(id).join("build"));
        let variable = |key: &str, value: &str, file, masked| v1::Variable {
            key: key.into(),
            value: value.into(),
            file,
            masked,
        };
        let job = v1::Job {
            variables: vec![
                variable("RAN", ran.to_str().unwrap(), false, false),
                variable("GO", scene.path("go").to_str().unwrap(), false, false),
                variable("SHOWS_JOB", scene.tag.as_str(), false, false),
                variable("SECRET", &secret, false, true),
                variable("CONF", "a file\n", true, false),
            ],
            build_dir: build.to_str().unwrap().to_owned(),
            ..v1::Job::default()
        };
        let request = v1::RunRequest {
            id: id.to_owned(),
            steps: steps.to_string(),
            job: Some(job),
            ..v1::RunRequest::default()
        };
        Self { request, secret, expected, ran, build }
    }

    pub(crate) fn id(&self) -> &str {
        &self.request.id
    }

    /// True if a step has begun.
    pub(crate) fn has_begun(&self) -> bool {
        self.ran.exists()
    }

    /// Checks that Status, log, results and the records of the steps agree.
    pub(crate) fn check(&self, status: &v1::Status, log: &[u8], results: &[v1::StepResult]) -> Check<Ended> {
        let ended = match status.exit_code {
            0 => Ended::Whole,
            -4 => Ended::Interrupted,
            _ => Ended::Failed,
        };
        self.check_log(log, ended)?;
        self.check_results(results, ended)?;
        let ran = fs::read_to_string(&self.ran).unwrap_or_default();
        let ran = self.expected.in_order(ran.lines().map(str::to_owned).collect());
        let mut wanted = self.expected.ran.iter();
        let fits = match ended {
            Ended::Whole => ran == self.expected.ran,
            _ if self.expected.beside.is_empty() => {
                ran.iter().all(|name| wanted.next() == Some(&name.as_str()))
            }
            // Of steps side by side, any can be the one that did not begin.
            _ => ran.iter().all(|name| wanted.any(|wanted| wanted == name)),
        };
        if !fits {
            return Err(format!("steps that ran: {ran:?}, expected {:?}", self.expected.ran));
        }
        if ended == Ended::Failed && status.message.is_empty() {
            return Err(format!("it failed, and nobody knows why: {status:?}"));
        }
        Ok(ended)
    }

    fn check_log(&self, log: &[u8], ended: Ended) -> Check {
        if memchr::memmem::find(log, self.secret.as_bytes()).is_some() {
            return Err("the log holds the secret".into());
        }
        let sources = Sources::read(log)?;
        // A writer that was killed can leave one incomplete line.
        let writers = self.expected.beside.len().max(1);
        if sources.malformed > if ended == Ended::Interrupted { writers } else { 0 } {
            return Err(format!(
                "{} malformed lines in {:?}",
                sources.malformed,
                String::from_utf8_lossy(log)
            ));
        }
        let errors = sources.lines(*b"00E");
        let (stdout, mut beside) = self.expected.split(&sources);
        let stderr = sources.of(*b"01E");
        let Expected { out, err, said, warnings, beside: members, .. } = &self.expected;
        if ended == Ended::Whole {
            check_equal("stdout", &stdout, out.as_bytes())?;
            check_equal("stderr", stderr, err.as_bytes())?;
            beside.sort_unstable();
            if beside != *members {
                return Err(format!("lines of steps side by side: {beside:?}, expected {members:?}"));
            }
            let lines = sources.lines(*b"00O").into_iter();
            let lines = lines.map(|line| line.split(" stream=").next().unwrap_or_default().to_owned());
            let lines = self.expected.in_order(lines.collect());
            if lines != *said {
                return Err(format!("lines of the daemon: {lines:?}, expected {said:?}"));
            }
            return if errors == *warnings { Ok(()) } else { Err(format!("error lines: {errors:?}")) };
        }
        check_prefix("stdout", &stdout, out.as_bytes())?;
        check_prefix("stderr", stderr, err.as_bytes())?;
        let word = if ended == Ended::Interrupted { "job interrupted:" } else { "job failed:" };
        let ends = errors.iter().filter(|line| line.starts_with(word)).count();
        if ends == 1 { Ok(()) } else { Err(format!("{ends} lines {word:?} among {errors:?}")) }
    }

    fn check_results(&self, results: &[v1::StepResult], ended: Ended) -> Check {
        let (root, steps) = results.split_last().ok_or("no step results")?;
        let name =
            |result: &v1::StepResult| result.step.as_ref().map(|step| step.name.clone()).unwrap_or_default();
        let names: Vec<_> = steps.iter().map(name).collect();
        let expected = self.expected.results;
        let fits = names.iter().zip(expected).all(|(found, expected)| found == expected)
            && (names.len() == expected.len() || ended != Ended::Whole);
        let success = root.status == v1::step_result::Status::Success as i32;
        if fits && name(root).is_empty() && success == (ended == Ended::Whole) {
            return Ok(());
        }
        Err(format!("{ended:?}, results of {names:?}, root {:?} with status {}", name(root), root.status))
    }

    /// Checks that the job left nothing beside its working directory.
    pub(crate) fn check_gone(&self) -> Check {
        let around = self.build.parent().unwrap_or(&self.build);
        let left: Vec<_> = crate::proc::tree(around).into_iter().filter(|path| *path != self.build).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{}: files left: {left:?}", self.id())) }
    }
}

impl Expected {
    /// Puts names and lines of the steps side by side into one order, where they stand beside each other.
    fn in_order(&self, mut lines: Vec<String>) -> Vec<String> {
        let is_of_a_member = |line: &String| {
            let name = line.rsplit(['=', ' ']).next().unwrap_or_default();
            self.beside.iter().any(|text| text.split(' ').next() == Some(name))
        };
        for at in 1..lines.len() {
            if is_of_a_member(&lines[at - 1]) && is_of_a_member(&lines[at]) && lines[at - 1] > lines[at] {
                lines.swap(at - 1, at);
            }
        }
        lines
    }

    /// Returns the output of the steps one after another, and the lines of those side by side.
    fn split(&self, sources: &Sources) -> (Vec<u8>, Vec<String>) {
        let (mut stdout, mut beside) = (Vec::new(), Vec::new());
        for name in sources.names().iter().filter(|name| name.ends_with('O') && *name != "00O") {
            let Ok(stream) = <[u8; 3]>::try_from(name.as_bytes()) else { continue };
            for line in sources.of(stream).split_inclusive(|&byte| byte == b'\n') {
                let text = String::from_utf8_lossy(line).trim_end().to_owned();
                if self.beside.contains(&text.as_str()) {
                    beside.push(text);
                } else {
                    stdout.extend_from_slice(line);
                }
            }
        }
        (stdout, beside)
    }
}
