//! `crash --records [--mib N]`: kills the daemon while the keeper holds N MiB of records (1024), then restarts it. It
//! must answer Status within 2 s and at any time after that, and every job must run to its end (faults.md row 77).

use std::time::{Duration, Instant};

use step_runner::pb::v1;

use crate::arguments::Arguments;
use crate::client::Client;
use crate::daemon::{Daemon, Scene, check_stop};
use crate::proc;
use crate::verdict::Shown;

const MIB: u64 = 1 << 10;
const SMALL: u64 = 48;

/// Number of texts that a job returns.
const TEXTS: u64 = 4;

/// Size of each text in MiB. Together they stay below the limit of a record.
const TEXT_MIB: u64 = 12;

/// Bound on the time from the start to the first answer.
const FIRST_ANSWER: Duration = Duration::from_secs(2);

/// Bound on the time of every later answer.
const LATER_ANSWER: Duration = Duration::from_secs(1);

const PATIENCE: Duration = Duration::from_mins(20);

/// A function that writes one text in the form of a step result.
const FUNCTION: &str = r#"spec: {outputs: delegate}
---
exec:
  command:
    - sh
    - -c
    - |
      { printf '{"outputs":{"text":"'; head -c "$1" /dev/zero | tr '\0' x; printf '"}}'; } > "$2"
    - return
"#;

pub(crate) fn run(arguments: &Arguments, small: bool) -> Shown {
    let mib = arguments.number("mib", if small { SMALL } else { MIB });
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    let mut scene = Scene::new("records");
    let shown = runtime.block_on(prove(&scene, mib, !small));
    if shown.is_err() {
        scene.keep();
    }
    shown
}

async fn prove(scene: &Scene, mib: u64, is_timed: bool) -> Shown {
    let jobs = mib.div_ceil(TEXTS * TEXT_MIB);
    let daemon = Daemon::start(scene)?;
    let client = Client::new(&scene.socket());
    let text = steps(scene);
    let ids: Vec<_> = (0..jobs).map(|number| format!("job-{number}")).collect();
    for id in &ids {
        let request = v1::RunRequest { id: id.clone(), steps: text.clone(), ..v1::RunRequest::default() };
        client.run(&request).await?;
        let is_ready = |job: &v1::Status| u64::try_from(job.steps_done) == Ok(TEXTS);
        until(&client, &format!("the last step of {id}"), |all| {
            all.iter().any(|job| job.id == *id && is_ready(job))
        })
        .await?;
    }
    let keeper = scene.keeper().ok_or("there is no keeper")?;
    daemon.kill()?;
    let begun = Instant::now();
    let daemon = Daemon::spawn(scene);
    let all = client.all().await?;
    let first = begun.elapsed();
    let is_true =
        |job: &&v1::Status| job.state() == v1::State::Running && u64::try_from(job.steps_done) == Ok(TEXTS);
    if all.len() as u64 != jobs || all.iter().filter(is_true).count() as u64 != jobs {
        return Err(format!("Status is not true after {first:?}: {all:?}"));
    }
    std::fs::write(scene.path("go"), "").map_err(|error| error.to_string())?;
    let mut later = Duration::ZERO;
    let ended = loop {
        let asked = Instant::now();
        let all = client.all().await?;
        later = later.max(asked.elapsed());
        if all.iter().all(|job| job.finished) {
            break all;
        }
        if begun.elapsed() > PATIENCE {
            return Err(format!("jobs do not end: {all:?}"));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let took = begun.elapsed();
    let lost: Vec<_> = ended.iter().filter(|job| job.state() != v1::State::Success).collect();
    if !lost.is_empty() {
        return Err(format!("{} jobs did not go on: {lost:?}", lost.len()));
    }
    let peaks = [daemon.pid(), keeper].map(proc::peak_memory);
    for id in &ids {
        client.finish(id).await?;
    }
    tokio::task::block_in_place(|| check_stop(scene, daemon))?;
    let figures = format!(
        "{jobs} jobs with records of {} MiB together: Status after {first:.1?}, later within {later:.1?}; all went on, the last \
         one ended after {took:.1?}; peak memory: daemon {} MiB, keeper {} MiB",
        jobs * TEXTS * TEXT_MIB,
        peaks[0] >> 10,
        peaks[1] >> 10
    );
    let is_late = first > FIRST_ANSWER || later > LATER_ANSWER;
    if is_timed && is_late { Err(figures) } else { Ok(figures) }
}

/// Returns steps that return texts, and a last one that waits.
fn steps(scene: &Scene) -> String {
    let folder = scene.path("return");
    std::fs::create_dir(&folder).unwrap();
    let bytes = TEXT_MIB << 20;
    let definition = format!("{FUNCTION}    - \"{bytes}\"\n    - ${{{{ output_file }}}}\n");
    std::fs::write(folder.join("func.yml"), definition).unwrap();
    let large = (0..TEXTS).map(|number| serde_json::json!({"name": format!("text{number}"), "func": folder}));
    let wait = format!("until [ -e {} ]; do sleep 0.1; done", scene.path("go").display());
    let last = serde_json::json!({"name": "last", "script": wait});
    serde_json::to_string(&large.chain([last]).collect::<Vec<_>>()).unwrap()
}

async fn until(client: &Client, what: &str, holds: impl Fn(&[v1::Status]) -> bool) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        let all = client.all().await?;
        if holds(&all) {
            return Ok(());
        }
        if begun.elapsed() > PATIENCE || all.iter().any(|job| job.finished) {
            return Err(format!("waited in vain for {what}: {all:?}"));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
