//! Jobs per second. A job is one step that runs [`machine::PROGRAM`]. It counts as done when the stream of its log has
//! ended; Finish is not measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::daemon::{CALLS_PER_CONNECTION, Client, Daemon, finish_all, runtime};
use super::machine;
use super::report::{Aim, Report};
use super::{Failure, Size};

/// Numbers of jobs under way at once.
pub(crate) const AT_ONCE: [usize; 4] = [1, 16, 256, 1_000];

/// Number of Runs that must be accepted within a second.
const BURST: usize = 5_000;

/// Steps of a job with one step, given as a bare definition.
pub(crate) fn one_step() -> String {
    format!(r#"{{"exec": {{"command": ["{}"]}}}}"#, machine::PROGRAM)
}

pub(crate) fn measure(report: &mut Report, size: Size) -> Result<(), Failure> {
    let runtime = runtime()?;
    for at_once in AT_ONCE {
        let count = size.pick(200.max(at_once), 1_000.max(at_once * 4));
        throughput(report, &runtime, at_once, count, size.pick(400, 2_000))?;
    }
    burst(report, size, &runtime)
}

fn throughput(
    report: &mut Report,
    runtime: &tokio::runtime::Runtime,
    at_once: usize,
    count: usize,
    spawns: usize,
) -> Result<(), Failure> {
    let daemon = Daemon::start()?;
    let before = machine::spawns_per_second(2, spawns)?;
    let (seconds, own) = runtime.block_on(async {
        let clients = daemon.connect(at_once.div_ceil(CALLS_PER_CONNECTION)).await?;
        // The first job starts the keeper.
        one_job(&mut clients.first().ok_or("no client")?.clone(), "first", &one_step()).await?;
        let used = daemon.cpu_seconds()?;
        let began = Instant::now();
        let ids = many(&clients, at_once, count).await?;
        let seconds = began.elapsed().as_secs_f64();
        let own = daemon.cpu_seconds()? - used;
        check(&clients).await?;
        finish_all(&clients, &ids).await?;
        Ok::<_, Failure>((seconds, own))
    })?;
    let bare = f64::midpoint(before, machine::spawns_per_second(2, spawns)?);
    let speed = count as f64 / seconds;
    let aim = if at_once == 1_000 { Aim::AtLeast(75.0) } else { Aim::Open };
    report.figure(&format!("jobs, {at_once} at once"), speed, "jobs/s", Aim::Open);
    report.figure(&format!("jobs, {at_once} at once, of bare spawns"), speed / bare * 100.0, "%", aim);
    // This figure shows the program's own cost even on a busy machine.
    let name = format!("jobs, {at_once} at once, daemon and keeper");
    report.figure(&name, own / count as f64 * 1e6, "µs CPU a job", Aim::Open);
    Ok(())
}

pub(crate) async fn check(clients: &[Client]) -> Result<(), Failure> {
    match clients.first().ok_or("no client")?.clone().failures().await? {
        0 => Ok(()),
        failed => Err(format!("{failed} jobs failed").into()),
    }
}

pub(crate) async fn one_job(client: &mut Client, id: &str, steps: &str) -> Result<(), Failure> {
    client.run(id, steps, Vec::new()).await?;
    client.follow(id).await?;
    Ok(())
}

/// Runs `count` jobs, `at_once` of them at a time. Returns their ids.
async fn many(clients: &[Client], at_once: usize, count: usize) -> Result<Vec<String>, Failure> {
    let (next, steps) = (Arc::new(AtomicUsize::new(0)), Arc::new(one_step()));
    let mut tasks = tokio::task::JoinSet::new();
    for client in clients.iter().cycle().take(at_once) {
        let (mut client, next, steps) = (client.clone(), Arc::clone(&next), Arc::clone(&steps));
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return Ok::<_, Failure>(());
                }
                one_job(&mut client, &format!("job-{number}"), &steps).await?;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok((0..count).map(|number| format!("job-{number}")).collect())
}

fn burst(report: &mut Report, size: Size, runtime: &tokio::runtime::Runtime) -> Result<(), Failure> {
    let count = size.pick(500, BURST);
    let daemon = Daemon::start()?;
    let seconds = runtime.block_on(async {
        let clients = daemon.connect(count.div_ceil(90)).await?;
        one_job(&mut clients.first().ok_or("no client")?.clone(), "first", &one_step()).await?;
        let steps = Arc::new(one_step());
        let began = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for (number, client) in (0..count).zip(clients.iter().cycle()) {
            let (mut client, steps) = (client.clone(), Arc::clone(&steps));
            tasks.spawn(async move { client.run(&format!("job-{number}"), &steps, Vec::new()).await });
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        Ok::<_, Failure>(began.elapsed().as_secs_f64())
    })?;
    let aim = size.pick(Aim::Open, Aim::AtMost(0.6));
    report.figure(&format!("{count} Runs at once accepted"), seconds, "s", aim);
    Ok(())
}
