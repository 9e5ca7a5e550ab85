//! `crash --syscalls [--jobs flow] [--every K] [--only TEXT] [--parallel N]`: kills daemon and keeper before the Nth call of
//! every kind that a life of two jobs makes. `faults --syscalls …`: makes each of these calls fail once with each error
//! (faults.md rows 15, 25–28, 41, 42, 47).
//!
//! A dry run counts the calls. Points are sorted by target, call, number and fault. `--every 10` takes every tenth;
//! `--only "Keeper write:"` takes those whose name contains the text.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::arguments::Arguments;
use crate::daemon::Scene;
use crate::inject::{self, Fault, Injection};
use crate::life::{Met, Target, live};
use crate::verdict::{Misses, Shown};

/// Number of concurrent lives.
const PARALLEL: u64 = 4;

/// Number of points in a small run.
const SMALL: usize = 16;

/// Calls beyond those of the dry run, because no two runs are alike.
const BEYOND: u32 = 2;

/// A point: one life with a fault.
struct Point {
    target: Target,
    injection: Injection,
}

impl Point {
    fn name(&self) -> String {
        format!("{:?} {}", self.target, self.injection)
    }
}

#[derive(Default)]
struct Figures {
    points: u32,
    met: u32,
    /// Number of faults that met a wake-up of an event loop. They prove nothing, because no kernel fails that call.
    wake_ups: u32,
    ended: u32,
    restarts: u32,
    refused: u32,
    failed: u32,
    interrupted: u32,
    damaged: u32,
    slowest_start: Duration,
    /// Number of faults that met a call, by kind of call.
    calls: BTreeMap<&'static str, u32>,
}

impl Figures {
    fn add(&mut self, point: &Point, met: &Met) {
        let is_met = met.at.is_some() || met.ended;
        self.points += 1;
        self.met += u32::from(is_met);
        self.ended += u32::from(met.ended);
        self.restarts += met.restarts;
        self.refused += met.refused;
        self.failed += met.failed;
        self.interrupted += met.interrupted;
        self.damaged += met.damaged;
        self.slowest_start = self.slowest_start.max(met.slowest_start);
        *self.calls.entry(point.injection.call).or_default() += u32::from(is_met);
    }
}

/// Kills before each system call.
pub(crate) fn crash(arguments: &Arguments, is_flow: bool, small: bool) -> Shown {
    prove("kills", &[Fault::Kill], is_flow, arguments, small)
}

/// Makes each system call fail.
pub(crate) fn faults(arguments: &Arguments, small: bool) -> Shown {
    prove("errors", &Fault::ERRORS, false, arguments, small)
}

fn prove(what: &str, faults: &[Fault], is_flow: bool, arguments: &Arguments, small: bool) -> Shown {
    if !inject::is_possible() {
        crate::parts::skipped(what, "strace");
        return Ok(format!("{what} at system calls: skipped: no strace"));
    }
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    let points = runtime.block_on(points(faults, is_flow))?;
    let only = arguments.text("only").unwrap_or_default();
    let chosen: Vec<_> = points.into_iter().filter(|point| point.name().contains(only)).collect();
    let all = chosen.len();
    let every = if small { all.div_ceil(SMALL) as u64 } else { 1 };
    let every = arguments.number("every", every).max(1) as usize;
    let chosen: VecDeque<_> = chosen.into_iter().step_by(every).collect();
    let (queue, shared) = (Arc::new(Mutex::new(chosen)), Arc::new(Mutex::new(Figures::default())));
    let misses = Misses::default();
    let begun = Instant::now();
    runtime.block_on(async {
        let worker = || tokio::spawn(work(Arc::clone(&queue), is_flow, Arc::clone(&shared), misses.clone()));
        let workers: Vec<_> = (0..arguments.number("parallel", PARALLEL)).map(|_| worker()).collect();
        for worker in workers {
            worker.await.map_err(|error| error.to_string())?;
        }
        Ok::<_, String>(())
    })?;
    let figures = shared.lock().unwrap();
    let Figures {
        points,
        met,
        wake_ups,
        ended,
        restarts,
        refused,
        failed,
        interrupted,
        damaged,
        slowest_start,
        calls,
    } = &*figures;
    if *met == 0 && only.is_empty() {
        misses.add("no fault was met".into());
    }
    misses.verdict(format!(
        "{what} at system calls: {points} of {all} points in {:?}, {met} met a call ({calls:?}), {wake_ups} a wake-up, \
         which does not count; {ended} ended the process, \
         {restarts} restarts, slowest start {slowest_start:?}; {refused} Runs refused and retried, {failed} jobs failed \
         with a cause, {interrupted} interrupted, {damaged} logs named as damaged; nothing lost, nothing left",
        begun.elapsed()
    ))
}

/// Processes points until none is left.
async fn work(
    queue: Arc<Mutex<VecDeque<Point>>>,
    is_flow: bool,
    figures: Arc<Mutex<Figures>>,
    misses: Misses,
) {
    loop {
        let Some(point) = queue.lock().unwrap().pop_front() else { return };
        let mut scene = Scene::new("calls");
        let lived = live(&scene, point.target, Some(&point.injection), is_flow).await;
        // The dry run names the wake-ups by number, but the numbers differ between runs.
        if point.injection.fault != Fault::Kill && inject::has_met(&scene.path("trace"), inject::WAKE_UP) {
            figures.lock().unwrap().wake_ups += 1;
            continue;
        }
        match lived {
            Ok(met) => figures.lock().unwrap().add(&point, &met),
            Err(miss) => {
                let at = inject::met(&scene.path("trace")).unwrap_or_default();
                misses.add(format!("{}: {miss}\n  met {at}", point.name()));
                scene.keep();
            }
        }
    }
}

fn is_possible(point: &Point, wakes: bool) -> bool {
    point.injection.is_possible() && (!wakes || point.injection.fault == Fault::Kill)
}

/// Returns all points: the calls of a life without a fault, and a few more.
async fn points(faults: &[Fault], is_flow: bool) -> Result<Vec<Point>, String> {
    let mut points = Vec::new();
    for target in [Target::Daemon, Target::Recovery, Target::Keeper] {
        let mut scene = Scene::new("calls");
        if let Err(miss) = live(&scene, target, None, is_flow).await {
            scene.keep();
            return Err(format!("without a fault: {miss}"));
        }
        for (call, seen) in inject::calls(&scene.path("trace")) {
            for when in 1..=seen.len() as u32 + BEYOND {
                if seen.get(when as usize - 1).is_some_and(|arguments| inject::is_loader(arguments)) {
                    continue;
                }
                let wakes =
                    seen.get(when as usize - 1).is_some_and(|arguments| arguments.contains(inject::WAKE_UP));
                let at = |&fault| Point { target, injection: Injection { call, when, fault } };
                points.extend(faults.iter().map(at).filter(|point| is_possible(point, wakes)));
            }
        }
    }
    Ok(points)
}
