//! The jobs whose screens are compared.

use super::session::Session;
use crate::verdict::Check;

/// Action of a user while a job runs. It returns the screen to compare, or `None` for the screen at the end.
type Act = fn(&Session) -> Check<Option<String>>;

/// A job, and the actions that lead to the compared screen.
pub(super) struct Job {
    pub(super) name: &'static str,
    /// Documents by file name.
    files: &'static [(&'static str, &'static str)],
    line: &'static str,
    act: Option<Act>,
    /// True if the documentation shows its picture.
    pub(super) has_picture: bool,
}

const RUN: &str = "step-runner run job.yml --id example";

impl Job {
    /// Returns the screen in a terminal of this width.
    pub(super) fn screen(&self, columns: u16, color: bool) -> Check<String> {
        let session = Session::open(columns, 40)?;
        for (name, text) in self.files {
            session.write(name, text)?;
        }
        session.start(if color { "" } else { "NO_COLOR=1" }, self.line)?;
        let shown = self.act.map_or(Ok(None), |act| act(&session))?;
        if let Some(screen) = shown {
            session.write("go", "")?;
            session.over()?;
            return Ok(screen);
        }
        session.over()?;
        session.screen()
    }
}

const fn job(name: &'static str, document: &'static [(&'static str, &'static str)]) -> Job {
    Job { name, files: document, line: RUN, act: None, has_picture: false }
}

/// Returns all jobs.
pub(super) fn all() -> Vec<Job> {
    vec![
        Job { has_picture: true, ..job("green", &[("job.yml", GREEN)]) },
        Job { has_picture: true, ..job("red", &[("job.yml", RED)]) },
        Job { has_picture: true, ..job("nested", &[("job.yml", NESTED), ("build/func.yml", BUILD)]) },
        Job {
            act: Some(|session| {
                session
                    .shows("the bar", |screen| screen.contains("fetching 40%") && screen.contains("2/3"))
                    .map(Some)
            }),
            has_picture: true,
            ..job("running", &[("job.yml", RUNNING), ("build/func.yml", FETCH)])
        },
        job("progress", &[("job.yml", PROGRESS)]),
        Job {
            act: Some(|session| session.shows("the dots", |screen| screen.contains("loading ...")).map(Some)),
            ..job("unfinished", &[("job.yml", UNFINISHED)])
        },
        Job {
            act: Some(|session| {
                session.shows("the step", super::screen::waits)?;
                session.key("C-c")?;
                Ok(None)
            }),
            ..job("cancel", &[("job.yml", WAITS)])
        },
        Job {
            // A short wait, so that the keeper soon ends what its daemon leaves.
            line: "step-runner serve --socket d.sock --state-dir state --keeper-wait 10s 2>/dev/null & \
                   until [ -S d.sock ]; do sleep 0.1; done; \
                   step-runner submit job.yml --socket d.sock --id example >/dev/null; \
                   until [ -e up ]; do sleep 0.1; done; \
                   (until step-runner status --socket d.sock | grep -q running; do sleep 0.1; done; \
                   until [ -e shown ]; do sleep 0.1; done; kill -9 $!) & \
                   step-runner follow example --socket d.sock --reconnect-timeout 3s",
            act: Some(|session| {
                session.shows("the step", super::screen::waits)?;
                session.write("shown", "")?;
                Ok(None)
            }),
            ..job("lost-daemon", &[("job.yml", WAITS)])
        },
        job("long-lines", &[("job.yml", LONG)]),
        Job {
            line: "sh make.sh && step-runner run job.yml --id example",
            ..job("many-steps", &[("make.sh", MANY)])
        },
        job("hostile", &[("job.yml", HOSTILE)]),
        Job {
            act: Some(|session| {
                session.shows("the step", super::screen::waits)?;
                session.key("C-c")?;
                session.shows("what the first Ctrl-C does", |screen| screen.contains("Ctrl-C again"))?;
                session.key("C-c")?;
                Ok(None)
            }),
            ..job("cancel-twice", &[("job.yml", STUBBORN)])
        },
        Job { line: "TERM=dumb step-runner run job.yml --id example", ..job("dumb", &[("job.yml", GREEN)]) },
        Job { line: "CI=true step-runner run job.yml --id example", ..job("ci", &[("job.yml", GREEN)]) },
    ]
}

const UNFINISHED: &str = r"spec: {}
---
run:
  - name: load
    script: |
      echo connected
      printf 'loading ...'
      until [ -e go ]; do sleep 0.1; done
      echo ' done'
";

const GREEN: &str = r"spec: {}
---
run:
  - name: build
    script: |
      echo compiling main.c
      echo 'main.c:3: warning: unused variable' >&2
      sleep 0.3
  - name: test
    script: echo 12 tests passed
";

const RED: &str = r#"spec: {}
---
run:
  - name: build
    script: echo compiling main.c
  - name: deploy
    script: |
      set -e
      echo "deploying to staging"
      kubeclt apply -f app.yml
      echo done
"#;

const NESTED: &str = r"spec: {}
---
run:
  - name: fetch
    script: echo fetched 3 packages
  - name: build
    func: ./build
";

const BUILD: &str = r"spec: {}
---
run:
  - name: compile
    script: echo cc -c main.c
  - name: link
    script: |
      echo ld main.o
      echo 'main.o: undefined reference to frob' >&2
      exit 3
";

const RUNNING: &str = r"spec: {}
---
run:
  - name: lint
    script: echo no complaints
  - name: build
    func: ./build
  - name: test
    script: echo 12 tests passed
";

const FETCH: &str = r"spec: {}
---
run:
  - name: unpack
    script: |
      set -e
      echo unpacking
      for part in 10 20 30 40; do printf 'fetching %s%%\r' $part; done
      until [ -e go ]; do sleep 0.05; done
      echo 'fetching 100%'
";

const PROGRESS: &str = r"spec: {}
---
run:
  - name: fetch
    script: |
      set -e
      for part in 10 20 30 40 50 60 70 80 90 100; do printf '\rfetching %s%%' $part; done
      echo
      echo done
";

const WAITS: &str = r"spec: {}
---
run:
  - name: first
    script: touch up; echo ready
  - name: wait
    script: |
      echo waiting
      exec sleep 600
";

const STUBBORN: &str = r"spec: {}
---
run:
  - name: wait
    script: |
      trap '' TERM
      echo waiting
      while :; do sleep 1; done
";

const LONG: &str = r#"spec: {}
---
run:
  - name: a_step_with_a_name_that_is_too_long_for_a_narrow_terminal_and_goes_on_for_quite_a_while
    script: |
      echo "The quick brown fox jumps over the lazy dog, then turns round, and jumps over the very same dog a second time before it runs away into the woods for good."
      printf '%0300d\n' 7
      echo "    indented: $(seq -s ' ' 60)"
      echo "wide: 漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字"
"#;

const MANY: &str = r#"{
echo 'spec: {}'
echo ---
echo run:
for number in $(seq 200); do echo "- {name: step$number, script: ': '}"; done
} > job.yml
"#;

const HOSTILE: &str = r"spec: {}
---
run:
  - name: clear
    script: |
      printf '\033[2J\033[1;1H\033[?1049h\033[31mred\033[0m and \033]0;title\007plain\n'
      printf 'up \033[5A down \033[5B \033c \033[?25l\n'
      printf 'half a character \303 and a whole one \303\251\n'
      printf 'turned \342\200\256 round\n'
      printf 'bell \007 backspace \010 null \000\n'
      printf '\033[41mred to the end\n' >&2
";
