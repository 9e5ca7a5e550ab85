//! Identity of a process.

use serde::{Deserialize, Serialize};

/// Identity of a process across restarts. A pid counts only together with boot id and start time (service.md §6.5).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// The kernel's id of the running boot.
    pub boot_id: String,
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_time: u64,
}
