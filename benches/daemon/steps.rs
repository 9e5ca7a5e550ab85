//! Time of a job and of each further step when nothing else runs, compared with a bare and with a dressed spawn.

use std::path::Path;
use std::time::Instant;

use super::daemon::{Client, Daemon, runtime};
use super::dressed::DressedSpawner;
use super::jobs::{check, one_job, one_step};
use super::machine;
use super::report::{Aim, Report, median};
use super::{Failure, Size};

/// Number of steps after the first in the job that measures further steps.
const FURTHER: usize = 50;

/// Steps of a job with `count` steps, each a call of the function in `folder`.
fn steps(count: usize, folder: &Path) -> Result<String, Failure> {
    std::fs::write(folder.join("func.yml"), format!("spec: {{}}\n---\n{}\n", one_step()))?;
    let step = |number| format!(r#"{{"name": "s{number}", "func": "{}"}}"#, folder.display());
    Ok(format!("[{}]", (0..count).map(step).collect::<Vec<_>>().join(",")))
}

pub(crate) fn measure(report: &mut Report, size: Size) -> Result<(), Failure> {
    let (daemon, folder) = (Daemon::start()?, tempfile::tempdir()?);
    let rounds = size.pick(100, 400);
    let before = machine::spawn_latency(rounds)?;
    let mut dressed = DressedSpawner::new()?;
    let dressed_before = dressed.latency(rounds)?;
    let (one, listed, many, wakes) = runtime()?.block_on(async {
        let mut client = daemon.connect(1).await?.pop().ok_or("no client")?;
        one_job(&mut client, "first", &one_step()).await?;
        let one = timed(&mut client, "one", &one_step(), rounds).await?;
        let listed = timed(&mut client, "listed", &steps(1, folder.path())?, rounds / 2).await?;
        let before = daemon.wakes()?;
        let count = rounds / 10;
        let many = timed(&mut client, "many", &steps(1 + FURTHER, folder.path())?, count).await?;
        let wakes = wakes_since(&daemon, before)?.iter().sum::<f64>() / (count * (1 + FURTHER)) as f64;
        check(&[client]).await?;
        Ok::<_, Failure>((one, listed, many, wakes))
    })?;
    let bare = f64::midpoint(before, machine::spawn_latency(rounds)?);
    let dressed = f64::midpoint(dressed_before, dressed.latency(rounds)?);
    let asked = machine::spawn_and_ask_latency(rounds)?;
    let further = (many - listed) / FURTHER as f64;
    report.figure("bare spawn and wait", bare, "µs", Aim::Open);
    report.figure("dressed spawn and wait", dressed, "µs", Aim::Open);
    report.figure("bare spawn and a question / bare spawn", asked / bare, "×", Aim::Open);
    report.figure("one-step job", one, "µs", Aim::Open);
    report.figure("one-step job / bare spawn", one / bare, "×", Aim::Open);
    report.figure("one-step job / dressed spawn", one / dressed, "×", Aim::Open);
    report.figure("job with a list of one step", listed, "µs", Aim::Open);
    report.figure("each further step", further, "µs", Aim::Open);
    report.figure("each further step / bare spawn", further / bare, "×", Aim::Open);
    report.figure("each further step / dressed spawn", further / dressed, "×", Aim::AtMost(1.5));
    // On a busy machine this figure is more reliable than a time.
    report.figure("each further step, daemon and keeper", wakes, "wake-ups", Aim::Open);
    let [daemon, keeper] = whole_jobs(rounds)?;
    report.figure("one-step job, daemon", daemon, "wake-ups", Aim::Open);
    report.figure("one-step job, keeper", keeper, "wake-ups", Aim::Open);
    Ok(())
}

/// Returns the wake-ups of daemon and keeper for one of `count` jobs, one after the other: Run, FollowLogs to its end,
/// Status, Finish.
fn whole_jobs(count: usize) -> Result<[f64; 2], Failure> {
    let daemon = Daemon::start()?;
    runtime()?.block_on(async {
        let mut client = daemon.connect(1).await?.pop().ok_or("no client")?;
        one_job(&mut client, "first", &one_step()).await?;
        let before = daemon.wakes()?;
        for number in 0..count {
            let id = format!("whole-{number}");
            one_job(&mut client, &id, &one_step()).await?;
            client.status(&id).await?;
            client.finish(&id).await?;
        }
        Ok(wakes_since(&daemon, before)?.map(|wakes| wakes / count as f64))
    })
}

fn wakes_since(daemon: &Daemon, before: [f64; 2]) -> Result<[f64; 2], Failure> {
    let [of_daemon, of_keeper] = daemon.wakes()?;
    Ok([of_daemon - before[0], of_keeper - before[1]])
}

/// Returns the median time of a job in microseconds, of `count`.
async fn timed(client: &mut Client, name: &str, steps: &str, count: usize) -> Result<f64, Failure> {
    let mut times = Vec::with_capacity(count);
    for number in 0..count {
        let began = Instant::now();
        one_job(client, &format!("{name}-{number}"), steps).await?;
        times.push(began.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(times))
}
