//! Gives daemon, keeper and commands the clock, files, threads and signals of the operating system, and the program's own
//! file.
//!
//! - [`clock`] is the time, which a test can steer;
//! - [`files`] makes every operation on files of ours;
//! - [`threads`] are for work that would hold up a thread that serves;
//! - [`signal`] hears the signals of operators;
//! - [`failpoint`] are the places where a test makes all of these fail;
//! - [`bootstrap`] copies the program to where a job's environment finds it. It has no failpoints.
//!
//! The crate may use `model` only. It knows no job, no log and no format of a file.

pub mod bootstrap;
pub mod clock;
pub mod failpoint;
pub mod files;
pub mod signal;
pub mod threads;
