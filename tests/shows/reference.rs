//! Two jobs whose output is known byte for byte. The subject uses all features of a job. The bystander runs beside it,
//! from before its start until after its end.

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
    steps: &'static [&'static str],
    out: &'static str,
    err: &'static str,
    ran: PathBuf,
    build: PathBuf,
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
        Self::new(
            scene,
            "subject",
            &steps,
            &["one", "two"],
            "gives\ntakes the sum\na file\nno line feed\n",
            "the secret is [MASKED]\n",
        )
    }

    /// Returns the job beside it. It ends after a line is written to the FIFO `go`.
    pub(crate) fn bystander(scene: &Scene) -> Self {
        let go = scene.path("go");
        rustix::fs::mknodat(rustix::fs::CWD, &go, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let steps = serde_json::json!([{ "name": "waits", "script": WAITS }]);
        Self::new(scene, "bystander", &steps, &["waits"], "before\nafter on\n", "an error\n")
    }

    fn new(
        scene: &Scene,
        id: &str,
        steps: &serde_json::Value,
        names: &'static [&'static str],
        out: &'static str,
        err: &'static str,
    ) -> Self {
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
        Self { request, secret, steps: names, out, err, ran, build }
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
        let ran: Vec<_> = ran.lines().collect();
        let fits = if ended == Ended::Whole { ran == self.steps } else { self.steps.starts_with(&ran) };
        if !fits {
            return Err(format!("steps that ran: {ran:?}, expected {:?}", self.steps));
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
        if sources.malformed > usize::from(ended == Ended::Interrupted) {
            return Err(format!(
                "{} malformed lines in {:?}",
                sources.malformed,
                String::from_utf8_lossy(log)
            ));
        }
        let errors = sources.lines(*b"00E");
        let (stdout, stderr) = (sources.of(*b"01O"), sources.of(*b"01E"));
        if ended == Ended::Whole {
            check_equal("stdout", stdout, self.out.as_bytes())?;
            check_equal("stderr", stderr, self.err.as_bytes())?;
            let said = sources.lines(*b"00O");
            let expected: Vec<_> =
                self.steps.iter().map(|name| format!("Running step name={name}")).collect();
            if said != expected {
                return Err(format!("lines of the daemon: {said:?}, expected {expected:?}"));
            }
            return if errors.is_empty() { Ok(()) } else { Err(format!("error lines: {errors:?}")) };
        }
        check_prefix("stdout", stdout, self.out.as_bytes())?;
        check_prefix("stderr", stderr, self.err.as_bytes())?;
        let word = if ended == Ended::Interrupted { "job interrupted:" } else { "job failed:" };
        let ends = errors.iter().filter(|line| line.starts_with(word)).count();
        if ends == 1 { Ok(()) } else { Err(format!("{ends} lines {word:?} among {errors:?}")) }
    }

    fn check_results(&self, results: &[v1::StepResult], ended: Ended) -> Check {
        let (root, steps) = results.split_last().ok_or("no step results")?;
        let name =
            |result: &v1::StepResult| result.step.as_ref().map(|step| step.name.clone()).unwrap_or_default();
        let names: Vec<_> = steps.iter().map(name).collect();
        let fits = names.iter().zip(self.steps).all(|(found, expected)| found == expected)
            && (names.len() == self.steps.len() || ended != Ended::Whole);
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
