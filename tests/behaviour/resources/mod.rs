//! Resources of jobs: limits, usage, and the behaviour when the machine runs out of something (service.md §3.1,
//! faults.md rows 6, 12, 15).

mod groups;
mod limits;
mod memory;
mod processes;
mod shortage;
mod usage;

use std::sync::LazyLock;

use crate::support::parts::skipped;
use crate::support::{Client, request, script};
use step_runner::model::{LimitName, Unenforceable};
use step_runner::pb::v1::{self, Limits, RunRequest};
use step_runner::process::cgroup::{CgroupMode, Pool};
use step_runner::process::limiter::Limiter;

const MIB: i64 = 1 << 20;

/// Script that allocates memory until it is killed.
const HOG: &str = "exec tail /dev/zero";

/// Script that starts more processes than any limit here allows. The inner shell gives up at the first fork that fails.
const CROWD: &str = "exec sh -c 'i=0; while [ $i -lt 100 ]; do sleep 600 & i=$((i+1)); done; echo all'";

/// True if this host can enforce these limits on jobs. Otherwise reports `test` as skipped.
fn holds(test: &str, limits: &[LimitName]) -> bool {
    // Determined once, because concurrent tests of this process would make the same group.
    static MISSING: LazyLock<Vec<Unenforceable>> = LazyLock::new(|| {
        let pool = Pool::open().ok();
        Limiter::new(CgroupMode::Auto).unenforceable(pool.as_ref())
    });
    let missing = MISSING.iter().find(|missing| limits.contains(&missing.limit));
    if let Some(missing) = missing {
        skipped(test, &format!("control group for limit {}", missing.limit));
    }
    missing.is_none()
}

fn limited(id: &str, steps: &str, limits: Limits) -> RunRequest {
    RunRequest { limits: Some(limits), ..request(id, steps) }
}

const fn memory(bytes: i64) -> Limits {
    Limits { processes: 0, memory: bytes, cpus: 0.0, open_files: 0 }
}

const fn processes(most: i64) -> Limits {
    Limits { processes: most, memory: 0, cpus: 0.0, open_files: 0 }
}

const fn open_files(most: i64) -> Limits {
    Limits { processes: 0, memory: 0, cpus: 0.0, open_files: most }
}

async fn run_limited(client: &Client, id: &str, text: &str, limits: Limits) -> v1::Status {
    client.try_run(limited(id, &script(text), limits)).await.unwrap();
    client.ended(id).await
}
