//! Behaviour that no golden screen shows.

use std::path::Path;
use std::time::{Duration, Instant};

use super::session::{OVER, Session};
use crate::random::Random;
use crate::verdict::Check;

type Behaviour = fn() -> Check;

pub(super) const ALL: [(&str, Behaviour); 6] = [
    ("Ctrl-Z and fg", suspended),
    ("a terminal that hangs", fault_93_a_terminal_that_hangs_holds_up_printing_alone),
    ("Ctrl-C twice in a terminal that hangs", fault_93_a_second_ctrl_c_leaves_a_terminal_that_hangs),
    ("Ctrl-C in a terminal program that hangs", fault_93_a_signal_ends_run_though_nobody_reads_its_output),
    (
        "Ctrl-C on follow in a terminal program that hangs",
        fault_93_a_signal_ends_follow_though_nobody_reads_its_output,
    ),
    ("a terminal that is closed", closed),
];

pub(super) const SIZES: &str = "sizes that change";

/// True if the screen shows a frame of the spinner. A screen returned to the shell must have none.
fn has_spinner(screen: &str) -> bool {
    screen.contains(|c: char| ('\u{2800}'..='\u{28ff}').contains(&c))
}

/// Ctrl-Z removes the live region before the shell gets the terminal. `fg` brings it back.
fn suspended() -> Check {
    let session = Session::open(80, 24)?;
    session.write("job.yml", &job("echo waiting; until [ -e go ]; do sleep 0.05; done; echo on"))?;
    session.start_in_shell("step-runner run job.yml --times none --id example")?;
    session.shows("the live region", |screen| has_spinner(screen) && super::screen::waits(screen))?;
    session.key("C-z")?;
    session.shows("the shell", |screen| screen.contains("Stopped") && !has_spinner(screen))?;
    session.go_on()?;
    session.shows("the live region again", |screen| has_spinner(screen) && super::screen::waits(screen))?;
    session.write("go", "")?;
    session.over()?;
    let screen = session.screen()?;
    if has_spinner(&screen) || !screen.contains(&format!("{OVER}0")) {
        return Err(format!("it did not end well:\n{screen}"));
    }
    Ok(())
}

/// A job with much output ends while its terminal accepts nothing. All output is there afterwards.
fn fault_93_a_terminal_that_hangs_holds_up_printing_alone() -> Check {
    const LINES: u32 = 20_000;
    let session = Session::open(80, 24)?;
    let script = format!("echo waiting; until [ -e go ]; do sleep 0.05; done; seq {LINES}; touch ran");
    session.write("job.yml", &job(&script))?;
    session.start("", "step-runner run job.yml --times none --id example")?;
    session.shows("the step", super::screen::waits)?;
    session.key("C-s")?;
    session.write("go", "")?;
    appears(&session.path("ran"))?;
    session.key("C-q")?;
    session.over()?;
    let screen = session.screen()?;
    let number = |line: &str| line.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse::<u32>().ok();
    let plain: Vec<_> = screen.lines().map(super::screen::without_colors).collect();
    let shown: Vec<_> = plain.iter().filter_map(|line| number(line)).collect();
    let last = (LINES - 100..=LINES).all(|number| shown.contains(&number));
    if last && screen.contains(&format!("{OVER}0")) {
        Ok(())
    } else {
        Err(format!("lines are lost:\n{screen}"))
    }
}

/// The user can leave a job without first resuming the terminal.
fn fault_93_a_second_ctrl_c_leaves_a_terminal_that_hangs() -> Check {
    let session = Session::open(80, 24)?;
    session.write("job.yml", &job("trap '' TERM; echo waiting; while :; do sleep 0.1; done"))?;
    session.start("", "step-runner run job.yml --times none --id example; touch left")?;
    session.shows("the step", super::screen::waits)?;
    session.key("C-s")?;
    session.key("C-c")?;
    session.key("C-c")?;
    appears(&session.path("left"))
}

/// Script that prints more than all buffers before a terminal hold.
const FLOOD: &str = "trap 'touch cancelled; exit 1' TERM; seq 400000; touch ran; while :; do sleep 0.1; done";

/// A terminal program that reads nothing delays neither the job nor a signal, in any format.
fn fault_93_a_signal_ends_run_though_nobody_reads_its_output() -> Check {
    for format in ["pretty", "plain", "raw", "json"] {
        let session = Session::open(80, 24)?;
        session.write("job.yml", &job(FLOOD))?;
        let line = format!(
            "sh -c 'echo $$ > pid; mv pid started; exec step-runner run job.yml --output {format} --id example'; touch left"
        );
        session.start("", &line)?;
        let reader = Stopped::new(&session)?;
        let check = appears(&session.path("ran"))
            .and_then(|()| interrupt(&session))
            .and_then(|()| appears(&session.path("cancelled")))
            .and_then(|()| interrupt(&session))
            .and_then(|()| appears(&session.path("left")));
        drop(reader);
        check.map_err(|miss| format!("--output {format}: {miss}"))?;
    }
    Ok(())
}

/// `follow` ends with the first signal. The job goes on.
fn fault_93_a_signal_ends_follow_though_nobody_reads_its_output() -> Check {
    for format in ["--output pretty", "--output plain", "--output raw", "--output json"] {
        let session = Session::open(80, 24)?;
        session.write("job.yml", &job(FLOOD))?;
        let line = format!(
            "step-runner serve --socket d.sock --state-dir state 2>/dev/null & daemon=$!; \
             until [ -S d.sock ]; do sleep 0.05; done; export STEP_RUNNER_SOCKET=$PWD/d.sock; \
             step-runner submit job.yml --id example --work-dir $PWD; until [ -e ran ]; do sleep 0.05; done; \
             sh -c 'echo $$ > pid; mv pid started; exec step-runner follow example {format}'; touch left; \
             step-runner finish example; kill $daemon; wait"
        );
        session.start("", &line)?;
        // Some of the output is on the terminal, and more is pending.
        session.shows("the first lines", |screen| {
            screen.lines().filter(|line| line.contains("11")).count() > 1
        })?;
        let reader = Stopped::new(&session)?;
        let check = interrupt(&session).and_then(|()| appears(&session.path("left")));
        drop(reader);
        check.map_err(|miss| format!("follow {format}: {miss}"))?;
        // Waits until the daemon has ended, before its folder is removed.
        session.over()?;
    }
    Ok(())
}

/// Sends SIGINT, as Ctrl-C does, to the process whose id the command has written.
fn interrupt(session: &Session) -> Check {
    let started = session.path("started");
    appears(&started)?;
    let id = std::fs::read_to_string(started).map_err(|error| error.to_string())?;
    signal(&id, rustix::process::Signal::INT)
}

fn signal(id: &str, signal: rustix::process::Signal) -> Check {
    let id = id.trim().parse().ok().and_then(rustix::process::Pid::from_raw);
    let id = id.ok_or_else(|| "no process id".to_owned())?;
    rustix::process::kill_process(id, signal).map_err(|error| error.to_string())
}

/// Stops the terminal program of a session. It continues when this value is dropped.
struct Stopped(String);

impl Stopped {
    fn new(session: &Session) -> Check<Self> {
        let id = session.variable("pid")?;
        signal(&id, rustix::process::Signal::STOP)?;
        Ok(Self(id))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        drop(signal(&self.0, rustix::process::Signal::CONT));
    }
}

/// Checks that output which is printed during many changes of the terminal's size is there once and in order, and that
/// nothing else is left on the screen. Returns figures.
pub(super) fn sizes_that_change(seed: u64, changes: u32) -> Check<String> {
    // Prints lines of 1 to 25 words in two parts, so that some frames show an incomplete line.
    const SCRIPT: &str = "until [ -e go ]; do sleep 0.05; done; n=0; \
        until [ -e stop ]; do n=$((n + 1)); printf '%s ' w$n.0; w=0; line=; \
        until [ $w = $((n % 25)) ]; do w=$((w + 1)); line=\"$line w$n.$w\"; done; \
        sleep 0.005; echo \"$line\"; done; echo $n > printed";
    let mut random = Random::new(seed);
    let session = Session::open(80, 24)?;
    session.write("job.yml", &job(SCRIPT))?;
    session.start("", "step-runner run job.yml --times none --id example")?;
    session.shows("the live region", has_spinner)?;
    let mut change = |times: u32| -> Check {
        (0..times).try_for_each(|_| session.resize(20 + random.below(181), 5 + random.below(56)))
    };
    change(20)?;
    session.write("go", "")?;
    change(changes)?;
    session.write("stop", "")?;
    change(50)?;
    session.over()?;
    let printed = std::fs::read_to_string(session.path("printed")).map_err(|error| error.to_string())?;
    let printed: u32 = printed.trim().parse().map_err(|_| format!("printed: {printed:?}"))?;
    session.resize(200, 60)?;
    let lines = session.whole_lines()?;
    let words = lines.iter().flat_map(|line| line.split_whitespace()).filter(|word| is_numbered(word));
    let expected = (1..=printed).flat_map(|line| (0..=line % 25).map(move |word| format!("w{line}.{word}")));
    let mut last = "the start".to_owned();
    let mut words = words.fuse();
    for expected in expected.map(Some).chain([None]) {
        let shown = words.next();
        if shown != expected.as_deref() {
            let shot = lines.join("\n");
            return Err(format!("after {last} came {shown:?} instead of {expected:?}:\n{shot}"));
        }
        last = expected.unwrap_or_default();
    }
    if lines.iter().any(|line| has_spinner(line)) || !lines.contains(&format!("{OVER}0")) {
        return Err(format!("it did not end well:\n{}", lines.join("\n")));
    }
    for flag in ["cursor_flag", "wrap_flag"] {
        if session.variable(flag)? != "1" {
            return Err(format!("{flag} is off"));
        }
    }
    Ok(format!("{printed} lines over {changes} sizes"))
}

/// True for `wLINE.WORD`.
fn is_numbered(word: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    word.strip_prefix('w')
        .and_then(|word| word.split_once('.'))
        .is_some_and(|(line, word)| is_number(line) && is_number(word))
}

/// Closing the terminal cancels the job.
fn closed() -> Check {
    let session = Session::open(80, 24)?;
    session.write(
        "job.yml",
        &job("trap 'touch cancelled; exit 1' TERM; echo waiting; while :; do sleep 0.1; done"),
    )?;
    session.start("", "step-runner run job.yml --times none --id example")?;
    session.shows("the step", super::screen::waits)?;
    session.tmux(&["kill-session"])?;
    appears(&session.path("cancelled"))
}

fn job(script: &str) -> String {
    format!("spec: {{}}\n---\nrun:\n  - name: step\n    script: |\n      {script}\n")
}

fn appears(file: &Path) -> Check {
    let start = Instant::now();
    while !file.exists() {
        if start.elapsed() > Duration::from_mins(1) {
            return Err(format!("{} never appeared", file.display()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
