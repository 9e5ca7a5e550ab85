//! Memory of daemon and keeper, as proportional set size: pages that both map count once.

use std::time::Duration;

use super::daemon::{CALLS_PER_CONNECTION, Daemon, finish_all, runtime};
use super::report::{Aim, Report};
use super::{Failure, Size};

/// Until then, daemon and keeper have given back what they do not need.
const REST: Duration = Duration::from_secs(8);

pub(crate) fn measure(report: &mut Report, size: Size) -> Result<(), Failure> {
    let count = size.pick(100, 1_000);
    let daemon = Daemon::start()?;
    let runtime = runtime()?;
    report.figure("daemon before its first job", pss(&[daemon.pid()])? / 1024.0, "MiB", Aim::Open);
    runtime.block_on(async {
        let clients = daemon.connect(count / CALLS_PER_CONNECTION).await?;
        let mut first = clients.first().ok_or("no client")?.clone();
        first.run("first", &steps("/bin/true"), Vec::new()).await?;
        first.follow("first").await?;
        let pids = [daemon.pid(), daemon.keeper_pid().ok_or("no keeper")?];
        let (idle, idle_threads) = (pss(&pids)?, threads(&pids)?);
        report.figure("idle daemon and keeper, after one job", idle / 1024.0, "MiB", Aim::AtMost(8.0));
        report.figure("keeper alone", pss(&pids[1..])? / 1024.0, "MiB", Aim::Open);
        report.figure("threads, idle", idle_threads, "", Aim::Open);
        let sleeping = ids("sleep", count);
        run_all(&clients, &sleeping, &steps("/bin/sleep\", \"1000")).await?;
        let running = (pss(&pids)? - idle) / count as f64;
        report.figure(&format!("a running job ({count} of them)"), running, "KiB", Aim::AtMost(12.0));
        tokio::time::sleep(REST).await;
        let rested = pss(&pids)?;
        report.figure("idle, with those jobs", rested / 1024.0, "MiB", Aim::Open);
        report.figure("threads, with those jobs", threads(&pids)?, "", Aim::AtMost(idle_threads));
        finish_all(&clients, &sleeping).await?;
        tokio::time::sleep(REST).await;
        let before = pss(&pids)?;
        report.figure("idle again, after those jobs", before / 1024.0, "MiB", Aim::Open);
        let held = (rested - before) / count as f64;
        report.figure("a running job, both times idle", held, "KiB", Aim::Open);
        let ended = ids("ended", count);
        run_all(&clients, &ended, &steps("/bin/true")).await?;
        for (id, client) in ended.iter().zip(clients.iter().cycle()) {
            client.clone().follow(id).await?;
        }
        tokio::time::sleep(REST).await;
        let kept = (pss(&pids)? - before) / count as f64;
        report.figure(&format!("a job that has ended ({count} of them)"), kept, "KiB", Aim::Open);
        Ok(())
    })
}

fn ids(name: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{name}-{number}")).collect()
}

fn steps(command: &str) -> String {
    format!(r#"{{"exec": {{"command": ["{command}"]}}}}"#)
}

/// Starts all of `ids` and waits until they run.
async fn run_all(clients: &[super::daemon::Client], ids: &[String], steps: &str) -> Result<(), Failure> {
    let mut tasks = tokio::task::JoinSet::new();
    for (id, client) in ids.iter().zip(clients.iter().cycle()) {
        let (mut client, id, steps) = (client.clone(), id.clone(), steps.to_owned());
        tasks.spawn(async move { client.run(&id, &steps, Vec::new()).await });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    // Waits for starts that are still under way.
    tokio::time::sleep(Duration::from_secs(2)).await;
    Ok(())
}

/// Returns the proportional set size of all of `pids` in KiB.
fn pss(pids: &[u32]) -> Result<f64, Failure> {
    sum(pids, "smaps_rollup", "Pss:")
}

/// Returns the number of threads of all of `pids`.
fn threads(pids: &[u32]) -> Result<f64, Failure> {
    sum(pids, "status", "Threads:")
}

fn sum(pids: &[u32], file: &str, name: &str) -> Result<f64, Failure> {
    let mut total = 0.0;
    for pid in pids {
        let text = std::fs::read_to_string(format!("/proc/{pid}/{file}"))?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)).ok_or("no such line")?;
        total += line.split_ascii_whitespace().next().ok_or("no number")?.parse::<f64>()?;
    }
    Ok(total)
}
