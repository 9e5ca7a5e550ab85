//! Named places where a test makes this program fail. Without the feature `failpoints` they do nothing.
//!
//! The environment variable `FAILPOINTS` (`name=action;…`) sets a place, or a test does in its own process. Actions:
//! `return(ENOSPC)` fails with that error (a name of `errno(3)` or a number), `panic` panics, `pause` and `sleep(MS)`
//! hold the thread, `2*off->return(EIO)` lets two calls pass first. docs/internals/failpoints.md lists the names; a
//! test compares that list with the source. A keeper gets the failpoints that its daemon has in `KEEPER_FAILPOINTS`.

use std::io;
use std::time::Duration;

/// For tests that set a place in their own process.
#[cfg(feature = "failpoints")]
pub use fail;

/// Reads `FAILPOINTS`. Call it once, at the start of a program, before its threads.
#[cfg(feature = "failpoints")]
pub fn set_up() {
    // Dropping the scenario would clear what it has set.
    std::mem::forget(fail::FailScenario::setup());
}

/// Does nothing: this program has no failpoints.
#[cfg(not(feature = "failpoints"))]
pub const fn set_up() {}

/// Fails if a test wants `name` to fail.
#[cfg(feature = "failpoints")]
pub fn io(name: &str) -> io::Result<()> {
    fail::eval(name, |error| errno(error.as_deref().unwrap_or("EIO"))).map_or(Ok(()), Err)
}

/// Never fails: this program has no failpoints.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
#[expect(clippy::inline_always, reason = "stands for the function with the feature, at no cost")]
pub const fn io(_name: &str) -> io::Result<()> {
    Ok(())
}

/// Returns the `FAILPOINTS` for a keeper.
#[cfg(feature = "failpoints")]
pub fn of_keeper() -> Option<std::ffi::OsString> {
    std::env::var_os("KEEPER_FAILPOINTS")
}

/// Returns `None`: this program has no failpoints.
#[cfg(not(feature = "failpoints"))]
pub const fn of_keeper() -> Option<std::ffi::OsString> {
    None
}

/// Returns the part of `all` that passes: the number that a test gave `name` (`return(3)`), if that is less.
#[cfg(feature = "failpoints")]
pub fn amount(name: &str, all: usize) -> usize {
    let wanted = fail::eval(name, |number| number.and_then(|number| number.parse().ok())).flatten();
    wanted.map_or(all, |wanted: usize| wanted.min(all))
}

/// Returns `all`: this program has no failpoints.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
#[expect(clippy::inline_always, reason = "stands for the function with the feature, at no cost")]
pub const fn amount(_name: &str, all: usize) -> usize {
    all
}

/// Returns the time by which a test sets the clock at `name` forward.
#[cfg(feature = "failpoints")]
pub fn late(name: &str) -> Duration {
    let wanted = fail::eval(name, |number| number.and_then(|number| number.parse().ok())).flatten();
    wanted.map_or(Duration::ZERO, Duration::from_secs)
}

/// Returns zero: this program has no failpoints.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
#[expect(clippy::inline_always, reason = "stands for the function with the feature, at no cost")]
pub const fn late(_name: &str) -> Duration {
    Duration::ZERO
}

/// Panics, holds the thread, or kills the process (`return(KILL)`), if a test wants it at `name`.
#[cfg(feature = "failpoints")]
pub fn hit(name: &str) {
    if fail::eval(name, |what| what.as_deref() == Some("KILL")) == Some(true) {
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).ok();
    }
}

/// Does nothing: this program has no failpoints.
#[cfg(not(feature = "failpoints"))]
pub const fn hit(_name: &str) {}

#[cfg(feature = "failpoints")]
fn errno(name: &str) -> io::Error {
    use rustix::io::Errno;
    let known = [
        ("ENOSPC", Errno::NOSPC),
        ("EDQUOT", Errno::DQUOT),
        ("EIO", Errno::IO),
        ("EINTR", Errno::INTR),
        ("EAGAIN", Errno::AGAIN),
        ("EMFILE", Errno::MFILE),
        ("ENFILE", Errno::NFILE),
        ("ENOMEM", Errno::NOMEM),
        ("EACCES", Errno::ACCESS),
        ("EROFS", Errno::ROFS),
    ];
    let code = known.iter().find(|(known, _)| *known == name).map(|(_, code)| code.raw_os_error());
    io::Error::from_raw_os_error(code.or_else(|| name.parse().ok()).unwrap_or(libc::EIO))
}
