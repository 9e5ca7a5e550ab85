//! Jobs of a double of GitLab whose trace and artifacts are known, byte for byte.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::agent::Site;
use crate::fake_gitlab::{Fault, Job};
use crate::log::{check_equal, check_prefix};
use crate::random::Random;
use crate::verdict::Check;

/// Prints numbered lines on both streams, with a byte and a character that are no ASCII, and writes a file.
const PRINT: &str = r#"i=0
while [ $i -lt "$2" ]; do
  printf '%s out %s \377\303\274\n' "$1" $i
  [ "$5" = out ] || echo "$1 err $i" >&2
  i=$((i+1))
  [ $((i % 40)) -ne 0 ] || sleep "$3"
done
i=0
while [ $i -lt 50 ]; do
  echo "$1 made $i"
  i=$((i+1))
done >"made-$1"
exit "$4"
"#;

/// Lines of the file that each job writes.
const MADE: u64 = 50;

/// Beginnings of the lines about a job that was cut off: where its log may end, and the agent's word after that. One that is
/// cancelled early skips its first stages or its script, and the shell says of a program of its own that a signal has ended it.
const WORDS: [&str; 8] = [
    "section_",
    "Skipped step name=",
    "Terminated",
    "Running step name=cleanup",
    "Running step name=upload_artifacts",
    "job cancelled:",
    "job failed: step \"step_script\"",
    "job interrupted:",
];

/// The agent's lines before a job runs. They come with each preparation, perhaps cut off by the next one.
const HEAD: [&str; 3] = ["Running with step-runner ", "  on proof, system ID ", "  with a daemon of its own"];

/// All of a trace without times.
const ALL: [u8; 3] = *b"all";

/// Whom a job's end comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Treatment {
    /// It ends by itself.
    Wait,
    /// The server cancels it, and waits for its end.
    Cancel,
    /// The server ends it, and wants no result.
    Abort,
}

/// How a job ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Natural,
    /// Cancelled by the server.
    Cancelled,
    /// Its keeper was killed.
    Interrupted,
    /// The agent was killed in all three preparations.
    Unprepared,
}

/// A job and what it prints.
pub(crate) struct Work {
    pub(crate) id: u64,
    /// Its name in what it prints, and in the environment of its processes.
    pub(crate) mark: String,
    pub(crate) treatment: Treatment,
    command: String,
    lines: u64,
    code: i64,
    /// The trace has times and sources.
    has_times: bool,
    /// Format of its artifact.
    artifact: Option<&'static str>,
    /// The answer to the first upload is lost.
    loses_answer: bool,
}

/// Writes the script that jobs call.
pub(crate) fn prepare(site: &Site) {
    fs::write(script(site), PRINT).unwrap();
}

fn script(site: &Site) -> PathBuf {
    site.scene.path("print.sh")
}

impl Work {
    /// Makes up a job and puts it into the queue of the server.
    pub(crate) fn add(site: &Site, number: u64, random: &mut Random) -> Self {
        let mark = format!("job-{number}");
        let treatment = match random.below(8) {
            0 => Treatment::Cancel,
            1 => Treatment::Abort,
            _ => Treatment::Wait,
        };
        let (lines, code) = (random.below(400), if random.one_in(4) { 7 } else { 0 });
        let (has_times, pause) = (random.one_in(2), random.below(20));
        let artifact = (code == 0).then(|| [None, None, Some("gzip"), Some("raw")][random.below(4) as usize]);
        let artifact = artifact.flatten();
        let loses_answer = artifact.is_some() && random.one_in(3);
        let streams = if has_times { "both" } else { "out" };
        let command = format!("sh {} {mark} {lines} 0.{pause:02} {code} {streams}", script(site).display());
        let id = site.gitlab.add(|job| {
            job["steps"][0]["script"] = json!([command]);
            let variables = job["variables"].as_array_mut().unwrap();
            variables.push(json!({"key": "SHOWS_JOB", "value": mark}));
            variables.push(json!({"key": "FF_TIMESTAMPS", "value": has_times.to_string()}));
            if let Some(format) = artifact {
                job["artifacts"] = artifacts(&mark, format);
            }
        });
        if loses_answer {
            site.gitlab.fault(&format!("POST /jobs/{id}/artifacts"), 1, Fault::Lost);
        }
        Self { id, mark, treatment, command, lines, code, has_times, artifact, loses_answer }
    }

    /// Checks a job that has its one result. `may_be_interrupted`: its keeper was killed.
    pub(crate) fn check(&self, job: &Job, may_be_interrupted: bool) -> Check<End> {
        let [result] = &job.finals[..] else { return Err(format!("{} results", job.finals.len())) };
        let reason = result["failure_reason"].as_str().unwrap_or_default();
        let text = job.text();
        let end = match (result["state"].as_str().unwrap_or_default(), reason) {
            ("success", _) if self.code == 0 => End::Natural,
            ("failed", "script_failure") if result["exit_code"] == json!(self.code) => End::Natural,
            ("failed", "job_canceled") if self.treatment == Treatment::Cancel => End::Cancelled,
            ("failed", "runner_system_failure") if text.contains("the environment was prepared 3 times") => {
                End::Unprepared
            }
            ("failed", "runner_system_failure") if may_be_interrupted => End::Interrupted,
            _ => return Err(format!("its result is {result}")),
        };
        self.check_trace(&job.trace, end)?;
        self.check_artifacts(job, end)?;
        Ok(end)
    }

    fn check_trace(&self, trace: &[u8], end: End) -> Check {
        let (found, expected) = (self.streams(trace)?, self.expected(end));
        for (source, found) in &found {
            let name = String::from_utf8_lossy(source);
            let expected = expected.get(source).map_or(&[][..], |text| text.as_bytes());
            if end == End::Natural {
                check_equal(&name, found.as_bytes(), expected)?;
            } else {
                check_prefix(&name, without_words(found).as_bytes(), expected)?;
            }
        }
        match expected.keys().find(|source| end == End::Natural && !found.contains_key(*source)) {
            Some(source) => Err(format!("nothing of the source {}", String::from_utf8_lossy(source))),
            None => Ok(()),
        }
    }

    /// Checks what the server has of a job that it has ended itself: the beginning of the trace.
    pub(crate) fn check_aborted(&self, job: &Job) -> Check {
        if !job.finals.is_empty() {
            return Err("a result of a job that the server had ended".into());
        }
        let whole = job.trace.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        self.check_trace(&job.trace[..whole], End::Cancelled)
    }

    /// Takes a trace apart into its sources, without the head and without the agent's last line.
    fn streams(&self, trace: &[u8]) -> Check<BTreeMap<[u8; 3], String>> {
        let text = std::str::from_utf8(trace).map_err(|error| format!("the trace is no UTF-8: {error}"))?;
        let mut streams = BTreeMap::<_, String>::new();
        if self.has_times {
            let sources = crate::log::Sources::read(trace)?;
            if sources.malformed > 0 {
                return Err(format!("{} lines are no entries", sources.malformed));
            }
            for name in sources.names() {
                let source = <[u8; 3]>::try_from(name.as_bytes()).map_err(|_| name)?;
                streams.insert(source, String::from_utf8_lossy(sources.of(source)).into_owned());
            }
        } else {
            streams.insert(ALL, text.to_owned());
        }
        let own = streams.entry(if self.has_times { *b"00O" } else { ALL }).or_default();
        let head = own.lines().take_while(|line| HEAD.iter().any(|known| line.starts_with(known)));
        let length = head.map(|line| line.len() + 1).sum::<usize>().min(own.len());
        let mut rest = own.split_off(length);
        for words in ["Job succeeded\n", "ERROR: Job failed: "] {
            let last = rest.trim_end().rfind('\n').map_or(0, |end| end + 1);
            if rest.get(last..).is_some_and(|line| line.starts_with(words)) {
                rest.truncate(last);
            }
        }
        *own = without_times(&rest);
        if self.loses_answer {
            let is_told = |line: &&str| !line.starts_with("WARNING: the upload of ");
            for stream in streams.values_mut() {
                *stream = stream.split_inclusive('\n').filter(is_told).collect();
            }
        }
        streams.retain(|_, text| !text.is_empty());
        Ok(streams)
    }

    /// Returns what each source prints.
    fn expected(&self, end: End) -> BTreeMap<[u8; 3], String> {
        let mut streams = BTreeMap::<_, String>::new();
        let mut say = |source: [u8; 3], line: &str| {
            let stream = streams.entry(if self.has_times { source } else { ALL }).or_default();
            writeln!(stream, "{line}").unwrap();
        };
        let begin = |say: &mut dyn FnMut([u8; 3], &str), name: &str, heading: &str| {
            say(*b"00O", &format!("section_start:T:{name}\r\x1b[0K{heading}"));
            say(*b"00O", &format!("Running step name={name}"));
        };
        let end_of = |say: &mut dyn FnMut([u8; 3], &str), name: &str| {
            say(*b"00O", &format!("section_end:T:{name}\r\x1b[0K"));
        };
        begin(&mut say, "prepare", "Prepare");
        end_of(&mut say, "prepare");
        begin(&mut say, "get_sources", "Get sources");
        say(*b"01O", "Skipping Git repository setup");
        end_of(&mut say, "get_sources");
        begin(&mut say, "step_script", "Step script");
        say(*b"01O", &format!("\x1b[32;1m$ {}\x1b[0;m", self.command));
        for line in 0..self.lines {
            say(*b"01O", &format!("{} out {line} \u{FFFD}ü", self.mark));
            if self.has_times {
                say(*b"01E", &format!("{} err {line}", self.mark));
            }
        }
        end_of(&mut say, "step_script");
        if let Some(format) = self.artifact {
            let name = if format == "gzip" { "made.gz" } else { "made" };
            begin(&mut say, "upload_artifacts", "Upload artifacts");
            say(*b"01O", &format!("Uploaded 1 file as {name}"));
            end_of(&mut say, "upload_artifacts");
        }
        begin(&mut say, "cleanup", "Cleanup");
        end_of(&mut say, "cleanup");
        if self.code != 0 && end == End::Natural {
            say(*b"00E", &format!("job failed: step \"step_script\": exec: exit status {}", self.code));
        }
        streams
    }

    fn check_artifacts(&self, job: &Job, end: End) -> Check {
        if job.uploads_again > 0 && !self.loses_answer {
            return Err(format!("{} uploads came again though their answers got through", job.uploads_again));
        }
        let made: String = (0..MADE).fold(String::new(), |mut text, line| {
            writeln!(text, "{} made {line}", self.mark).unwrap();
            text
        });
        match (&job.artifacts[..], self.artifact) {
            ([], None) => Ok(()),
            ([], Some(_)) if end != End::Natural => Ok(()),
            ([(_, _, content)], Some(format)) => {
                let mut bytes = Vec::new();
                match format {
                    "gzip" => flate2::read::MultiGzDecoder::new(&content[..])
                        .read_to_end(&mut bytes)
                        .map_err(|error| format!("its artifact is no gzip: {error}"))?,
                    _ => content.as_slice().read_to_end(&mut bytes).unwrap(),
                };
                check_equal("its artifact", &bytes, made.as_bytes())
            }
            (found, _) => Err(format!("{} artifacts", found.len())),
        }
    }
}

/// Takes the times out of the marks of sections.
fn without_times(text: &str) -> String {
    let line = |line: &str| {
        let mark = ["section_start:", "section_end:"].into_iter().find(|mark| line.starts_with(mark));
        let name = mark.and_then(|mark| Some((mark, line.strip_prefix(mark)?.split_once(':')?.1)));
        name.map_or_else(|| line.to_owned(), |(mark, name)| format!("{mark}T:{name}"))
    };
    text.split_inclusive('\n').map(line).collect()
}

/// Takes the words about a cut from the end of a text.
fn without_words(text: &str) -> String {
    let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
    while lines.last().is_some_and(|line| WORDS.iter().any(|words| line.starts_with(words))) {
        lines.pop();
    }
    lines.concat()
}

fn artifacts(mark: &str, format: &str) -> Value {
    json!([{
        "name": "made", "paths": [format!("made-{mark}")], "when": "on_success",
        "artifact_type": if format == "gzip" { "junit" } else { "dotenv" }, "artifact_format": format,
    }])
}
