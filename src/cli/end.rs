//! From the end of a job to an exit code (cli.md, "Exit codes").

use crate::pb::v1;

/// Exit code of `run` and `follow` for an ended job.
pub(super) fn code(status: &v1::Status) -> u8 {
    match status.exit_code {
        -2 => 130,
        -3 => 124,
        -4 => 70,
        code => u8::try_from(code).unwrap_or(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
