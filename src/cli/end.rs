//! Exit codes for the ends of jobs (cli.md, "Exit codes").

use crate::model::exit_code;
use crate::pb::v1;

/// Returns the exit code of `run` and `follow` for an ended job.
pub(super) fn code(status: &v1::Status) -> u8 {
    match status.exit_code {
        exit_code::CANCELLED => 130,
        exit_code::TIME_LIMIT => 124,
        exit_code::INTERRUPTED => 70,
        code => u8::try_from(code).unwrap_or(1),
    }
}

/// Returns the usual meaning of an exit code, if it has one.
pub(super) fn meaning(exit_code: i32) -> Option<String> {
    const SIGNALS: [&str; 15] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
        "ALRM", "TERM",
    ];
    match exit_code {
        126 => Some("the command cannot be executed".to_owned()),
        127 => Some("the command was not found".to_owned()),
        137 => Some("killed by SIGKILL, perhaps for lack of memory".to_owned()),
        129.. => {
            let signal = usize::try_from(exit_code - 129).ok().and_then(|at| SIGNALS.get(at))?;
            Some(format!("killed by SIG{signal}"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_shells_and_signals_have_a_meaning() {
        assert_eq!(meaning(127).as_deref(), Some("the command was not found"));
        assert_eq!(meaning(139).as_deref(), Some("killed by SIGSEGV"));
        assert_eq!(meaning(143).as_deref(), Some("killed by SIGTERM"));
        assert_eq!([1, 3, 128, 144, 255].map(meaning), [const { None }; 5]);
    }

    #[test]
    fn every_end_has_its_code() {
        for (exit_code, expected) in [
            (0, 0),
            (1, 1),
            (3, 3),
            (137, 137),
            (255, 255),
            (-1, 1),
            (-2, 130),
            (-3, 124),
            (-4, 70),
            (-9, 1),
            (256, 1),
        ] {
            let status = v1::Status { finished: true, exit_code, ..Default::default() };
            assert_eq!(code(&status), expected, "{exit_code}");
        }
    }
}
