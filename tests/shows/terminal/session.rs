//! A tmux server with one session.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::verdict::Check;

const PROGRAM: &str = env!("CARGO_BIN_EXE_step-runner");

/// Longest time until a screen shows the expected content.
const PATIENCE: Duration = Duration::from_mins(1);

/// Longest time of a command line. Some print a million lines several times.
const ALL_OF_IT: Duration = Duration::from_mins(15);

/// Text that the shell prints before the exit code when the command line has ended.
pub(super) const OVER: &str = "exit code of the command: ";

/// A terminal of a given size in which a command runs. Dropped, it is closed.
pub(super) struct Session {
    pub(super) folder: tempfile::TempDir,
}

impl Session {
    /// Opens a terminal.
    pub(super) fn open(columns: u16, rows: u16) -> Check<Self> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let session = Self { folder };
        let shell = "exec env -i PS1= PATH=\"$PATH\" TERM=\"$TERM\" HOME=/ LC_ALL=C.UTF-8 sh";
        let (columns, rows) = (columns.to_string(), rows.to_string());
        // The history limit applies only to windows made after it is set.
        session.tmux(&[
            "-f",
            "/dev/null",
            "set-option",
            "-g",
            "history-limit",
            // The tests count lines, so the history must hold all of them.
            "1000000",
            ";",
            "new-session",
            "-d",
            "-x",
            &columns,
            "-y",
            &rows,
            shell,
        ])?;
        // Names of commands and messages of tmux would change the screen.
        session.tmux(&["set-option", "-g", "status", "off"])?;
        session.tmux(&["resize-window", "-x", &columns, "-y", &rows])?;
        session.types("stty -echo")?;
        session.runs("clear")?;
        Ok(session)
    }

    /// Returns the path of a file that steps can wait for or make.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn write(&self, name: &str, text: &str) -> Check {
        let path = self.path(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(|error| error.to_string())?;
        }
        std::fs::write(path, text).map_err(|error| error.to_string())
    }

    /// Types a line into the shell.
    pub(super) fn types(&self, line: &str) -> Check {
        self.tmux(&["send-keys", "-l", line])?;
        self.tmux(&["send-keys", "Enter"]).map(drop)
    }

    /// Sends a key such as `C-c`.
    pub(super) fn key(&self, key: &str) -> Check {
        self.tmux(&["send-keys", key]).map(drop)
    }

    /// Starts a command line in the folder, with the program's folder first on the PATH. `over` waits for its end.
    pub(super) fn start(&self, environment: &str, line: &str) -> Check {
        let script = format!(
            "trap : INT; {} {environment}\n{line}\n{}\n",
            self.go_to_folder(),
            self.report_exit_code()
        );
        self.write("command.sh", &script)?;
        self.types(&format!("sh {}", self.path("command.sh").display()))
    }

    /// Types a command line directly into the shell, which can suspend and resume it. A script in between would be
    /// suspended before its command has cleaned up. `over` waits for the end of [`Session::go_on`].
    pub(super) fn start_in_shell(&self, line: &str) -> Check {
        self.types(&self.go_to_folder())?;
        self.types(line)
    }

    /// Resumes the suspended command.
    pub(super) fn go_on(&self) -> Check {
        self.types(&format!("fg; {}", self.report_exit_code()))
    }

    fn go_to_folder(&self) -> String {
        let bin = Path::new(PROGRAM).parent().unwrap_or(Path::new("/"));
        format!("cd {} && export PATH={}:$PATH", self.folder.path().display(), bin.display())
    }

    fn report_exit_code(&self) -> String {
        format!("echo \"{OVER}$?\"; tmux -S {} wait-for -S over", self.socket().display())
    }

    /// Waits until the command line has ended and the terminal shows all of its output.
    pub(super) fn over(&self) -> Check {
        self.tmux_within(ALL_OF_IT, &["wait-for", "over"])?;
        // A narrow terminal wraps the text.
        let is_over = || Ok(self.whole_lines()?.iter().any(|line| line.contains(OVER)));
        self.waits("the exit code", is_over)
    }

    /// Runs a short command line to its end.
    fn runs(&self, line: &str) -> Check {
        self.types(&format!("{line}; tmux -S {} wait-for -S short", self.socket().display()))?;
        self.tmux(&["wait-for", "short"])?;
        self.tmux(&["clear-history"]).map(drop)
    }

    /// Returns the screen and its history, with colours.
    pub(super) fn screen(&self) -> Check<String> {
        let output = self.tmux(&["capture-pane", "-p", "-e", "-S", "-"])?;
        Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned() + "\n")
    }

    /// Changes the size of the terminal.
    pub(super) fn resize(&self, columns: u64, rows: u64) -> Check {
        self.tmux(&["resize-window", "-x", &columns.to_string(), "-y", &rows.to_string()]).map(drop)
    }

    /// Returns the value of a variable of tmux, such as `cursor_flag`.
    pub(super) fn variable(&self, name: &str) -> Check<String> {
        let output = self.tmux(&["display-message", "-p", &format!("#{{{name}}}")])?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Returns the lines of the screen and its history without colours. Wrapped lines are joined.
    pub(super) fn whole_lines(&self) -> Check<Vec<String>> {
        let output = self.tmux(&["capture-pane", "-p", "-J", "-S", "-"])?;
        Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
    }

    /// Waits until `wanted` holds for the screen, and returns it.
    pub(super) fn shows(&self, what: &str, wanted: impl Fn(&str) -> bool) -> Check<String> {
        let mut last = String::new();
        self.waits(what, || {
            last = self.screen()?;
            Ok(wanted(&last))
        })?;
        Ok(last)
    }

    fn waits(&self, what: &str, mut is_shown: impl FnMut() -> Check<bool>) -> Check {
        let start = Instant::now();
        while !is_shown()? {
            if start.elapsed() > PATIENCE {
                return Err(format!("the screen never showed {what}:\n{}", self.screen()?));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn socket(&self) -> PathBuf {
        self.path("tmux.sock")
    }

    pub(super) fn tmux(&self, words: &[&str]) -> Check<Output> {
        self.tmux_within(PATIENCE, words)
    }

    fn tmux_within(&self, patience: Duration, words: &[&str]) -> Check<Output> {
        let mut command = Command::new("timeout");
        command
            .args([&patience.as_secs().to_string(), "tmux", "-S"])
            .arg(self.socket())
            .args(words)
            .env("TERM", "screen-256color")
            // Otherwise tmux would start the user's login shell, which can be missing.
            .env("SHELL", "/bin/sh");
        let output = command.env_remove("TMUX").output().map_err(|error| format!("tmux: {error}"))?;
        if output.status.success() {
            return Ok(output);
        }
        Err(format!("tmux {words:?}: {}", String::from_utf8_lossy(&output.stderr)))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        drop(self.tmux(&["kill-server"]));
    }
}
