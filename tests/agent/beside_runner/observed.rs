//! Requests, result and trace of a job as the server sees them, without times, ids and other things that differ between runs.

use crate::fake_gitlab::World;
use crate::fake_gitlab::http::Request;

/// Length of the time before a line of a trace, with its source.
const TIME: usize = "2026-11-28T00:00:00.000000Z 00O ".len();

/// A job as a server observes it.
pub(super) struct Observed {
    pub(super) case: &'static str,
    pub(super) lines: Vec<String>,
}

/// True if the server has a job's result, or has closed the job and refused one.
pub(super) fn is_over(world: &World, job: u64) -> bool {
    let is_closed = !["pending", "running", "canceling"].contains(&world.jobs[&job].state.as_str());
    is_closed && result(world, job).is_some()
}

/// Returns the final update of a job, even if the server has refused it.
fn result(world: &World, job: u64) -> Option<String> {
    let path = format!("/jobs/{job}");
    world.seen.iter().filter(|request| request.path == path).find_map(|request| {
        let body = request.json();
        let state = body["state"].as_str().filter(|state| *state != "running")?.to_owned();
        let reason = body["failure_reason"].as_str().unwrap_or_default().to_owned();
        let code = body["exit_code"].as_i64().map_or_else(String::new, |code| format!("exit code {code}"));
        Some([state, reason, code].join(" ").trim_end().to_owned())
    })
}

impl Observed {
    /// `names` are texts that are others in each run, with what they are called here.
    pub(super) fn of(world: &World, case: &'static str, job: u64, names: &[(String, &str)]) -> Self {
        let mut lines = Vec::new();
        for request in &world.seen {
            let is_own = request.path.split(['/', '?']).nth(2) == Some(&job.to_string());
            let line = is_own.then(|| describe(request));
            // Pieces of a trace come as time has it.
            lines.extend(line.filter(|line| lines.last() != Some(line)));
        }
        lines.push(format!("result: {}", result(world, job).unwrap_or_else(|| "none".to_owned())));
        lines.push(format!("at the server: {}", world.jobs[&job].state));
        let text = plain(&world.jobs[&job].text());
        let text = text.lines().map(untimed).filter(|line| !is_of_others(line));
        lines.extend(text.map(|line| format!("| {line}")));
        // A job prints this until its cancel reaches it.
        lines.dedup_by(|line, before| line == before && line == "| tick");
        let own = [(world.jobs[&job].token.clone(), "TOKEN"), (job.to_string(), "JOB")];
        for line in &mut lines {
            for (from, to) in own.iter().chain(names) {
                *line = line.replace(from.as_str(), to);
            }
            if let Some((before, after)) = line.split_once("pid=") {
                *line = format!(
                    "{before}pid=N{}",
                    after.trim_start_matches(|digit: char| digit.is_ascii_digit())
                );
            }
        }
        Self { case, lines }
    }
}

/// Returns the method, the path, the token's headers and the fields of a request.
fn describe(request: &Request) -> String {
    let mut words = vec![request.method.clone(), request.path.clone()];
    let header = ["job-token", "private-token", "runner-token"];
    words.extend(
        header.iter().filter(|name| request.headers.contains_key(**name)).map(|name| (*name).to_owned()),
    );
    if let Some(body) = request.json().as_object() {
        words.push(format!("state={}", body["state"].as_str().unwrap_or_default()));
        words.extend(body.keys().filter(|key| *key != "state").cloned());
    }
    words.join(" ")
}

/// Returns a trace without colours and times. Marks of sections have lines of their own.
fn plain(trace: &str) -> String {
    let mut text = String::new();
    let mut rest = trace;
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        text.push_str(before);
        rest = after.split_once(|letter: char| letter.is_ascii_alphabetic()).map_or("", |(_, rest)| rest);
    }
    text.push_str(rest);
    let mut lines = String::new();
    for line in text.split('\n') {
        for part in line.split_inclusive('\r') {
            let words: Vec<&str> = part.trim_end_matches('\r').splitn(3, ':').collect();
            match words[..] {
                [mark, _, name] if mark.ends_with("section_start") || mark.ends_with("section_end") => {
                    let name = name.split('[').next().unwrap_or_default();
                    lines.extend([mark, " ", name, "\n"]);
                }
                _ => lines.push_str(&part.replace('\r', "\\r")),
            }
        }
        lines.push('\n');
    }
    lines
}

/// Returns a line of a trace without its time. A payload that cannot be read does not say that times are not wanted.
fn untimed(line: &str) -> &str {
    match line.split_at_checked(TIME) {
        Some((time, rest)) if time.ends_with("Z 00O ") => rest,
        _ => line,
    }
}

/// True for lines that come from other programs as they please: advice of git, a shell's word about a killed process.
fn is_of_others(line: &str) -> bool {
    line.starts_with("hint:") || line == "Terminated"
}
