//! Summary of a failed job: the last lines on stderr (cli.md, "On failure").

use anstyle::AnsiColor;

use super::end;
use super::made;
use super::states::printable;
use super::stopped::{self, ShellReport};
use super::tail::{StepOutput, Tail};
use super::written::{Program, Written};
use crate::client::Request;
use crate::insight::cause::deciding;
use crate::model::{self, exit_code};
use crate::pb::v1::{self, CancelCause};

/// Longest path of steps that is shown whole.
const NAMED: usize = 12;

/// Reason in the first line of the summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SummaryReason {
    /// The job's message.
    Message,
    /// None, because it is shown already.
    AlreadyShown,
    /// The job's message, except for a cancelled job: its reader has cancelled it.
    ByUser,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    Full,
    /// No output of the failed step, because it stands above.
    WithoutOutput,
    /// Only what the failed step wrote to stdout: its stderr stands above.
    WithoutStderr,
    /// Neither output nor advice.
    Brief,
}

/// What a failed step ran, and where in it it stopped.
struct Stopped<'a> {
    written: Option<Written<'a>>,
    report: Option<ShellReport>,
    /// Index of the line of the script, or of the command.
    at: Option<usize>,
}

/// Returns the place where the job stopped as `FILE:LINE`: the line of the script that the shell reports, else the
/// step.
fn place(
    failed: Option<&v1::StepResult>,
    path: &[&str],
    request: Option<&Request>,
    stopped: &Stopped<'_>,
) -> Option<String> {
    let written = stopped.written.as_ref();
    let is_command = written.is_some_and(|written| matches!(written.program, Program::Command));
    if let Some((report, written)) = stopped.report.as_ref().zip(written).filter(|_| is_command)
        && let Some(place) = report.place_in(written.command)
    {
        return Some(place);
    }
    let told = failed.map(|failed| failed.place.as_str()).filter(|place| !place.is_empty());
    let told = told.and_then(|place| place.rsplit_once(':')).and_then(|(file, line)| {
        let line: usize = line.parse().ok()?;
        let is_own = request.is_some_and(|request| request.file_name() == file);
        let text = request.filter(|_| is_own).map(|request| request.steps().to_owned());
        // A file of a daemon elsewhere cannot be read here.
        Some((file, line, text.or_else(|| std::fs::read_to_string(file).ok())))
    });
    let own = || {
        let request = request?;
        let line = stopped::step_line(request.steps(), request.file_name(), path.first()?)?;
        Some((request.file_name(), line, Some(request.steps().to_owned())))
    };
    let (file, line, text) = told.or_else(own).filter(|(file, ..)| !made::is_made(file))?;
    let exact = written.zip(stopped.at).and_then(|(written, at)| match &written.program {
        Program::Command => None,
        Program::Script { text: script, .. } => {
            stopped::line_in_document(text.as_deref()?, line, script, at + 1)
        }
        Program::Commands(_) => stopped::command_line_in(text.as_deref()?, file, line, at),
    });
    Some(format!("{}:{}", made::shown(file), exact.unwrap_or(line)))
}

/// Returns the place in the job's document that `message` names, as `FILE:LINE:COLUMN`. The line itself may hold
/// secrets that only the daemon knows, such as a text that a step gives to a sensitive input.
fn place_told(request: &Request, message: &str) -> Option<String> {
    let file = Some(request.file_name()).filter(|file| !file.is_empty())?;
    let (_, place) = message.split_once(&format!("{file}:"))?;
    let mut numbers = place.split(':').map(str::parse::<u32>);
    let (Some(Ok(line)), Some(Ok(column))) = (numbers.next(), numbers.next()) else { return None };
    Some(format!("{}:{line}:{column}", made::shown(file)))
}

/// Returns the steps that a message names before the error itself. One that could not be loaded has no result.
fn steps_of(message: &str) -> Vec<&str> {
    let mut steps = Vec::new();
    let mut rest = message;
    while let Some((step, after)) = rest.strip_prefix("step \"").and_then(|rest| rest.split_once("\": ")) {
        steps.push(step);
        rest = after;
    }
    steps
}

/// Returns the message for people, without the step and the places of a document that was made from the reference
/// `name`.
fn without_places(message: &str, name: &str) -> String {
    let message = message.strip_prefix("step \"run\": ").unwrap_or(message);
    let file = format!("{name}:");
    let mut parts = message.split(&file);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        // `LINE:COLUMN: PATH: what is wrong`
        let (place, rest) = part.split_once(": ").unwrap_or_default();
        if !place.is_empty() && place.bytes().all(|byte| byte.is_ascii_digit() || byte == b':') {
            text.push_str(
                rest.strip_prefix("run[0]")
                    .and_then(|rest| rest.split_once(": "))
                    .map_or(rest, |(_, rest)| rest),
            );
        } else {
            text.push_str(&file);
            text.push_str(part);
        }
    }
    text
}

/// Returns the summary of a job that did not succeed. `request` is given if the job was submitted here.
pub(super) fn lines(
    status: &v1::Status,
    root: Option<&v1::StepResult>,
    tail: &Tail,
    request: Option<&Request>,
    reason: SummaryReason,
    detail: Detail,
) -> Vec<String> {
    let red = AnsiColor::Red.on_default().bold();
    let what = match status.exit_code {
        exit_code::CANCELLED => "was cancelled",
        exit_code::TIME_LIMIT => "was ended by a time limit",
        exit_code::INTERRUPTED => "was interrupted",
        _ => "failed",
    };
    let reference = request.map(Request::file_name);
    let reference = reference.filter(|name| request.is_some_and(|r| made::is_of_reference(r.steps(), name)));
    let message = match reference {
        Some(name) => without_places(&status.message, name),
        None => status.message.clone(),
    };
    let message = match reason {
        SummaryReason::ByUser if status.exit_code == exit_code::CANCELLED => String::new(),
        SummaryReason::AlreadyShown => String::new(),
        SummaryReason::Message | SummaryReason::ByUser => message,
    };
    let mut lines = vec![match message.as_str() {
        "" => format!("{red}job {} {what}{red:#}", status.id),
        message => format!("{red}job {} {what}:{red:#} {}", status.id, printable(message)),
    }];
    let failed = root.map(deciding).unwrap_or_default();
    let result = failed.last().copied().or(root);
    let names = failed.iter().filter_map(|result| result.step.as_ref());
    let path: Vec<&str> = names.map(|step| step.name.as_str()).collect();
    let named = steps_of(&status.message);
    // The longer path counts: a step that could not be loaded has no result.
    let path = if named.starts_with(&path) { named } else { path };
    let path = path.as_slice();
    // With a reference, the first step belongs to a document that nobody wrote.
    let (reference_step, own) = path.split_at(usize::from(reference.is_some() && !path.is_empty()));
    if let Some(name) = reference {
        lines.push(format!("  function   {}", printable(name)));
    }
    if !own.is_empty() {
        lines.push(format!("  step       {}", printable(&step_path(own))));
    }
    let printed = tail.of_step(&failed);
    let output = printed.lines();
    let report = ShellReport::find(StepOutput::errors(&output), status.exit_code);
    let written = result.and_then(Written::of);
    let at = written.as_ref().and_then(|written| written.stopped_at(report.as_ref(), &printed));
    let stopped = Stopped { written, report, at };
    if let Some(written) = &stopped.written {
        lines.extend(written.rows(stopped.at));
    }
    if status.exit_code > 0 {
        let meaning = end::meaning(status.exit_code).map(|meaning| format!(" ({meaning})"));
        lines.push(format!("  exit code  {}{}", status.exit_code, meaning.unwrap_or_default()));
    }
    if reference_step.is_empty() {
        let told = request.and_then(|request| place_told(request, &status.message));
        if let Some(place) = told.or_else(|| place(result, path, request, &stopped)) {
            lines.push(format!("  at         {}", printable(&place)));
        }
    }
    if detail == Detail::Brief {
        return lines;
    }
    let (heading, output) = match detail {
        Detail::Full => ("  end of its output:", output),
        Detail::WithoutStderr => ("  end of its stdout:", StepOutput::without_errors(output)),
        Detail::WithoutOutput | Detail::Brief => ("", Vec::new()),
    };
    if !output.is_empty() {
        lines.push(heading.to_owned());
        lines.extend(output.into_iter().map(|line| format!("    {line}")));
    }
    if let Some(advice) = advice(status, reference.is_some()) {
        lines.push(format!("  try: {advice}"));
    }
    lines
}

/// Joins the names of steps, the outermost first. Of very many it keeps the first and the last.
fn step_path(steps: &[&str]) -> String {
    let inner = steps.len().saturating_sub(NAMED / 2);
    match (steps.get(..NAMED / 2), steps.get(inner..)) {
        (Some(first), Some(last)) if steps.len() > NAMED => {
            format!("{}/…/{} ({} deep)", first.join("/"), last.join("/"), steps.len())
        }
        _ => steps.join("/"),
    }
}

/// Returns advice, if the end suggests any.
fn advice(status: &v1::Status, of_reference: bool) -> Option<&'static str> {
    // An older daemon tells the cause in words alone.
    let is_by = |cause, words: model::CancelCause| match status.cancel_cause() {
        CancelCause::Unspecified => status.message.starts_with(words.text()),
        told => told == cause,
    };
    // A request's --timeout does not change the time limits of the daemon.
    Some(match status.exit_code {
        126 => "make the command executable, or run it by its interpreter",
        127 => "install the command in the job's environment, or correct its PATH",
        137 => "look for a process that ran out of memory; --limit memory=SIZE sets the job's own limit",
        exit_code::FAILED if status.message.contains(": cannot fetch ") => {
            "run it again, or check the network, the reference and the credentials"
        }
        exit_code::FAILED if status.message.contains(": the image ") => {
            "publish the image again, without the fault that the message names, or name another version of it"
        }
        exit_code::FAILED if of_reference && status.message.contains(": run[0].inputs.") => {
            "give the function its inputs with --input NAME=VALUE"
        }
        exit_code::FAILED => "correct the function; `step-runner help exit-codes` explains the ends of a job",
        exit_code::CANCELLED => return None,
        exit_code::TIME_LIMIT if is_by(CancelCause::Silent, model::CancelCause::Silent) => {
            "print something now and then, or raise the daemon's setting silent_after (serve --silent-after TIME)"
        }
        exit_code::TIME_LIMIT if is_by(CancelCause::Runaway, model::CancelCause::Runaway) => {
            "raise the daemon's setting runaway_after (serve --runaway-after TIME), or find out what the job waited for"
        }
        exit_code::TIME_LIMIT => "give the job more time with --timeout, or find out what the job waited for",
        exit_code::INTERRUPTED => "run it again; the daemon's own log tells what died",
        _ => "look at the output above; --output raw shows the log as it is, --results FILE all results",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::tail::tests::{entry, told};
    use crate::insight::tree::Tree;
    use v1::step_result::{ExecResult, Status};

    fn result(name: &str, status: Status, below: Vec<v1::StepResult>) -> v1::StepResult {
        let step = (!name.is_empty()).then(|| v1::Step { name: name.into(), ..Default::default() });
        v1::StepResult { step, status: status as i32, sub_step_results: below, ..Default::default() }
    }

    #[test]
    fn the_deepest_failing_step_is_named_with_command_code_and_its_own_output() {
        let mut compile = result("compile", Status::Failure, vec![]);
        compile.exec_result = Some(ExecResult {
            command: vec!["sh".into(), "-c".into(), "exit 3".into()],
            exit_code: 3,
            ..Default::default()
        });
        let build = result("build", Status::Failure, vec![result("fetch", Status::Success, vec![]), compile]);
        let root = result("", Status::Failure, vec![result("setup", Status::Success, vec![]), build]);
        let log = [
            entry("00O", "Running step name=setup"),
            entry("01O", "not this"),
            entry("00O", "Running step name=compile"),
            entry("01E", "but this"),
            entry("00E", "job failed: nor this"),
        ];
        let place = |count: usize| log[..count].concat().len();
        let mut tree = Tree::default();
        for (call, parent, name, at, is_end) in [
            (0, 0, "", 0, false),
            (1, 0, "setup", 0, false),
            (1, 0, "setup", 2, true),
            (2, 0, "build", 2, false),
            (3, 2, "fetch", 2, true),
            (4, 2, "compile", 2, false),
            (4, 2, "compile", 4, true),
            (2, 0, "build", 4, true),
        ] {
            tree.take(&told((call, parent), name, 1, place(at), (is_end, 0)));
        }
        let mut tail = Tail::default();
        tail.push(log.concat().as_bytes());
        tail.set_steps(tree);
        let status = v1::Status { id: "42".into(), exit_code: 3, finished: true, ..Default::default() };
        let steps = "spec: {}\n---\nrun:\n- name: setup\n  script: a\n- name: build\n  func: ./build\n";
        let request = Request::new(crate::model::JobId::parse("42").unwrap(), steps).file("/ci/func.yml");
        let text = lines(&status, Some(&root), &tail, Some(&request), SummaryReason::Message, Detail::Full)
            .join("\n");
        for part in [
            "job 42 failed",
            "build/compile",
            "sh -c 'exit 3'",
            "exit code  3",
            "/ci/func.yml:6",
            "but this",
            "try: ",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("not this") && !text.contains("nor this"), "{text}");
    }

    #[test]
    fn a_step_that_could_not_be_loaded_is_named_whole_although_it_has_no_result() {
        let root = result("", Status::Failure, vec![result("digest", Status::Failure, vec![])]);
        let message = "step \"digest\": step \"chosen\": failed to load: /f.yml:8:5: run[0]: nothing";
        let status = v1::Status { exit_code: -1, message: message.into(), ..Default::default() };
        let text = lines(&status, Some(&root), &Tail::default(), None, SummaryReason::Message, Detail::Full)
            .join("\n");
        assert!(
            text.contains("step       digest/chosen") && text.contains("try: correct the function"),
            "{text}"
        );
    }

    #[test]
    fn what_could_not_be_fetched_is_not_blamed_on_the_function() {
        let message = "step \"a\": failed to load: f.yml:1:2: run[0]: cannot fetch from h/x: no such host";
        let status = v1::Status { exit_code: -1, message: message.into(), ..Default::default() };
        let text =
            lines(&status, None, &Tail::default(), None, SummaryReason::Message, Detail::Full).join("\n");
        assert!(text.contains("check the network") && !text.contains("correct the function"), "{text}");
    }

    #[test]
    fn an_image_that_cannot_be_used_is_not_blamed_on_the_network() {
        let message = "step \"a\": failed to load: f.yml:1:2: run[0]: the image h/x:1 cannot be used: no";
        let status = v1::Status { exit_code: -1, message: message.into(), ..Default::default() };
        let advice = advice(&status, false).unwrap();
        assert!(advice.contains("publish the image again") && !advice.contains("network"), "{advice}");
    }

    #[test]
    fn each_time_limit_names_what_raises_it() {
        let options = ["--timeout", "silent_after", "runaway_after"];
        for (cause, option) in [
            (CancelCause::TimeLimit, "--timeout"),
            (CancelCause::Silent, "silent_after"),
            (CancelCause::Runaway, "runaway_after"),
        ] {
            let status = v1::Status { exit_code: -3, cancel_cause: cause.into(), ..Default::default() };
            let advice = advice(&status, false).unwrap();
            for other in options {
                assert_eq!(advice.contains(other), other == option, "{advice}");
            }
        }
    }

    #[test]
    fn a_reference_has_no_places() {
        let steps = r#"[{"name": "run", "func": "builtin://nope"}]"#;
        let request = Request::new(crate::model::JobId::parse("42").unwrap(), steps).file("builtin://nope");
        let message =
            "step \"run\": failed to load: builtin://nope:1:2: run[0]: builtin \"nope\" was not found";
        let status =
            v1::Status { id: "42".into(), exit_code: -1, message: message.into(), ..Default::default() };
        let text =
            lines(&status, None, &Tail::default(), Some(&request), SummaryReason::Message, Detail::Full)
                .join("\n");
        assert!(text.contains("failed to load: builtin \"nope\" was not found\n"), "{text}");
        assert!(
            text.contains("function   builtin://nope") && !text.contains("run[0]") && !text.contains(":1:2")
        );
    }

    #[test]
    fn control_bytes_of_messages_and_commands_do_not_reach_the_terminal() {
        let status = v1::Status { exit_code: -1, message: "a\x1b]0;x\x07b".into(), ..Default::default() };
        let lines = lines(&status, None, &Tail::default(), None, SummaryReason::Message, Detail::Full);
        assert!(lines[0].ends_with("a ]0;x b"));
        assert_eq!(super::super::written::command_line(&["a\x1bb".into()]), "'a b'");
    }
}
