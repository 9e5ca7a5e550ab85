//! The keeper as a process, driven over its socket with real children (service.md §6).

mod daemon;
mod ends;
mod groups;
mod logs;
mod output;
mod peers;
mod reaper;
mod start;
mod support;
