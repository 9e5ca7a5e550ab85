//! Translates the end of a stage for the Runner (custom-executor.md §8).

use std::io::Write as _;
use std::path::Path;

use step_runner_client::{Error, Loss};
use step_runner_model::exit_code;
use step_runner_proto::v1;

/// End of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It has succeeded.
    Success,
    /// Its script has failed, with this exit code (128 + signal).
    Failed(u8),
    /// The system has failed, with the reason: nothing is known of the script.
    System(String),
    /// It was cancelled, as the Runner asked.
    Cancelled,
}

impl Verdict {
    /// Returns the verdict on a job that has ended. `asked` is true if the Runner has told us to end it.
    pub fn of(status: &v1::Status, asked: bool) -> Self {
        let with_message = |what: &str| {
            let why = if status.message.is_empty() { "" } else { ": " };
            Self::System(format!("{what}{why}{}", status.message))
        };
        match status.exit_code {
            0 => Self::Success,
            exit_code::CANCELLED if asked => Self::Cancelled,
            exit_code::CANCELLED => with_message("the stage was cancelled, but not by the Runner"),
            exit_code::TIME_LIMIT => with_message("the stage ran into a time limit of the daemon"),
            exit_code::INTERRUPTED => with_message("the stage was interrupted, so its effect is unknown"),
            code => u8::try_from(code)
                .map_or_else(|_| with_message("the stage failed without an exit code"), Self::Failed),
        }
    }

    /// Returns the verdict on a job whose end is not known.
    pub fn unknown(error: &Error) -> Self {
        Self::System(match error {
            Error::Lost { loss: Loss::Finished { .. }, .. } => {
                "the stage was ended and removed by someone else: by cleanup, or by a client that called finish".to_owned()
            }
            Error::Lost { .. } => format!("the stage is lost, so its effect is unknown: {}", chain(error)),
            Error::OutOfReach { address, message, .. } => {
                format!("the daemon at {address} went out of reach during the stage: {message}")
            }
            _ => chain(error),
        })
    }
}

pub(super) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    step_runner_model::error::Chain(error).to_string()
}

/// Writes the exit code for the Runner, whole or not at all. After a failure the Runner takes the code for 1.
pub fn write_code(file: &Path, code: u8) -> std::io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    let temporary = folder.join(format!(".step-runner-code-{}", std::process::id()));
    // An earlier process with our pid may have left one.
    drop(std::fs::remove_file(&temporary));
    let write = || {
        let mut out = std::fs::OpenOptions::new().write(true).create_new(true).open(&temporary)?;
        out.write_all(format!("{code}\n").as_bytes())?;
        std::fs::rename(&temporary, file)
    };
    write().inspect_err(|_| drop(std::fs::remove_file(&temporary)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use step_runner_model::JobId;

    fn status(exit_code: i32) -> v1::Status {
        v1::Status { finished: true, exit_code, message: "why".into(), ..Default::default() }
    }

    #[test]
    fn ends_of_jobs_become_ends_of_stages() {
        assert_eq!(Verdict::of(&status(0), true), Verdict::Success);
        for code in [1, 2, 42, 137, 255] {
            assert_eq!(Verdict::of(&status(code), false), Verdict::Failed(code as u8));
        }
        assert_eq!(Verdict::of(&status(-2), true), Verdict::Cancelled);
        for (code, part) in [
            (-1, "exit code: why"),
            (-2, "not by the Runner: why"),
            (-3, "time limit"),
            (-4, "interrupted"),
            (256, "why"),
        ] {
            let Verdict::System(message) = Verdict::of(&status(code), false) else { panic!("{code}") };
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn a_job_that_is_gone_is_never_a_failure_of_the_script() {
        let id = JobId::parse("x").unwrap();
        let lost = |loss| Verdict::unknown(&Error::Lost { id: id.clone(), loss });
        assert_eq!(
            lost(Loss::Finished { at: "T".into() }),
            Verdict::System("the stage was ended and removed by someone else: by cleanup, or by a client that called finish".into())
        );
        assert!(matches!(lost(Loss::Unknown), Verdict::System(text) if text.contains("effect is unknown")));
    }

    #[test]
    fn the_code_file_is_replaced_whole() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("code");
        std::fs::write(&file, "a long stale text").unwrap();
        write_code(&file, 42).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "42\n");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        write_code(&folder.path().join("absent/code"), 1).unwrap_err();
    }
}
