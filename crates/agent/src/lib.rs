//! The decisions of an agent that takes CI jobs from a GitLab instance, runs each as one job of a daemon, and reports
//! trace and result (agent.md).
//!
//! The crate is pure: it opens no socket and no file, reads no clock, draws no random number, and starts neither
//! thread nor process. The time is a parameter ([`time`]), and so is randomness ([`time::Jitter`]). A state machine
//! takes an event and returns the actions that its caller must perform, in that order.
//!
//! | module | owns | may not |
//! |---|---|---|
//! | [`time`] | moments, waits and their jitter, dates of HTTP | |
//! | [`config`] | the file of the agent, its mistakes and its changes | read or write it |
//! | [`import`] | a GitLab Runner's file as one of the agent, and what is lost | hide a key |
//! | [`tokens`] | the form of tokens and what a router reads in them | decide anything by a token's content |
//! | [`routing`] | address, method, path and token header of each call | |
//! | [`answer`] | what an answer of the server means; waits, redirects and error texts | keep state between calls |
//! | [`scheduler`] | slots, who asks for a job next and when, signals | look into jobs |
//! | [`trace`] | the bytes of a trace, how far they are safe, which of them are sent when | mask, or send what is not safe |
//! | [`outcome`] | the end of a daemon's job as state, failure reason and exit code | |
//! | [`environment`] | where a job runs, and what it may choose there | run a program |
//! | [`payload`] | what the agent needs of a job that the server sent | read what the job does: the crate `ci` does |
//! | [`record`] | what is on disk about a job | forget anything that was done |
//! | [`names`] | names that are the same after each restart | |
//! | [`lifecycle`] | one job, from the server's answer to the end of its record | act before its record allows it |
//! | [`final_update`] | the last message about a job, until the server has taken it | send two different ones |
//! | [`sealed`] | files of state that were written whole or are told apart | know what they say |

pub mod answer;
pub mod config;
pub mod environment;
pub mod final_update;
pub mod import;
pub mod lifecycle;
pub mod names;
pub mod outcome;
pub mod payload;
pub mod record;
pub mod routing;
pub mod scheduler;
pub mod sealed;
pub mod time;
pub mod tokens;
pub mod trace;
