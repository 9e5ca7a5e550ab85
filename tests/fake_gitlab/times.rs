//! Times of what happened to a job at the server.

use std::time::SystemTime;

/// Times of a job, by the wall clock: its script can print that, too.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    /// It was given to a runner.
    pub(crate) given: Option<SystemTime>,
    /// The first piece of its trace came.
    pub(crate) traced: Option<SystemTime>,
    /// Its result came.
    pub(crate) ended: Option<SystemTime>,
}

/// Notes that something happened now, for the first time.
#[expect(clippy::disallowed_methods, reason = "the double is no part of the program")]
pub(crate) fn note(time: &mut Option<SystemTime>) {
    time.get_or_insert_with(SystemTime::now);
}
