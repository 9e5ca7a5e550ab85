//! Time from the start of a daemon to its first answer.

use std::time::Instant;

use super::daemon::{Daemon, runtime};
use super::report::{Aim, Report, median};
use super::{Failure, Size};

pub(crate) fn measure(report: &mut Report, size: Size) -> Result<(), Failure> {
    let runtime = runtime()?;
    let mut times = Vec::new();
    for _ in 0..size.pick(5, 20) {
        let began = Instant::now();
        let daemon = Daemon::start()?;
        runtime.block_on(async {
            let mut client = daemon.connect(1).await?.pop().ok_or("no client")?;
            client.status("").await
        })?;
        times.push(began.elapsed().as_secs_f64() * 1e3);
    }
    report.figure("start to first Status", median(times), "ms", Aim::AtMost(8.0));
    Ok(())
}
