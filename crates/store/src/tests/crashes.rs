//! The store against every crash. A story of jobs is recorded operation by operation; then each state in which a kill
//! or a power cut could leave the folder is recovered as at a start. Promises made before the crash hold after it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::*;
use step_runner_model::{CancelCause, ExitStatus, JobKey};
use step_runner_system::files::recorder::{Choices, History, Image, Recording};

const NOW: i64 = 1_000_000;

/// A story with its promises: number of earlier operations, job id, promise.
struct Story {
    history: History,
    promises: Vec<(usize, &'static str, Promise)>,
    /// The complete logs.
    logs: BTreeMap<&'static str, Vec<u8>>,
}

struct Teller<'a> {
    recording: &'a Recording,
    promises: Vec<(usize, &'static str, Promise)>,
    logs: BTreeMap<&'static str, Vec<u8>>,
}

impl Teller<'_> {
    fn promise(&mut self, id: &'static str, promise: Promise) {
        self.promises.push((self.recording.position(), id, promise));
    }

    fn print(&mut self, id: &'static str, job: &JobFolder, text: &str) {
        let log = files::open_append(&job.shared.jobs, job.inside("log").as_str()).unwrap();
        let entry = format!("2026-01-01T00:00:00.000000Z 01O {text}\n");
        assert_eq!(files::write(log, entry.as_bytes()).unwrap(), entry.len());
        let whole = self.logs.entry(id).or_default();
        whole.extend_from_slice(entry.as_bytes());
        let len = whole.len();
        self.promise(id, Promise::Log(len));
    }

    fn end(&mut self, id: &'static str, job: &JobFolder, steps: u32) {
        let log_len = self.logs.get(id).map_or(0, Vec::len) as u64;
        let end = End { log_len, log_inode: 0, steps_done: steps, ..end() };
        job.append(&Event::Ended(end.clone())).unwrap();
        self.promise(id, Promise::Ended(end));
    }
}

/// Jobs that end, are removed, or go on. With `sync`, everything is synced once the first job has ended.
fn story(sync: bool) -> Story {
    let temp = temp();
    let state = open(&temp);
    let recording = Recording::start(state.path()).unwrap();
    let mut teller = Teller { recording: &recording, promises: Vec::new(), logs: BTreeMap::new() };

    let ended = create(&state, "ended");
    teller.promise("ended", Promise::Registered);
    ended.append(&Event::Started { at: 3, boot: None }).unwrap();
    teller.print("ended", &ended, "one");
    ended.append_step(b"result").unwrap();
    teller.promise("ended", Promise::Steps(1));
    teller.end("ended", &ended, 1);
    if sync {
        state.sync_all().unwrap();
    }

    let running = create(&state, "running");
    teller.promise("running", Promise::Registered);
    let step = Event::StepStarted { process: 1, pgid: 10, pid: 10, start_time: 99 };
    running.append_all(&[Event::Started { at: 4, boot: None }, step]).unwrap();
    teller.print("running", &running, &"long ".repeat(120));
    running.append(&Event::StepEnded { process: 1, status: Some(ExitStatus::Code(0)) }).unwrap();
    running.append_step(&[0; 600]).unwrap();
    teller.promise("running", Promise::Steps(1));

    let removed = create(&state, "removed");
    teller.promise("removed", Promise::Registered);
    let work = removed.make_dir("work").unwrap();
    fs::create_dir(work.join("deep")).unwrap();
    teller.print("removed", &removed, "gone soon");
    teller.end("removed", &removed, 0);
    delete(removed.begin_removal());
    teller.promise("removed", Promise::Removed);

    running.append(&Event::Cancel { cause: CancelCause::Runaway }).unwrap();
    running.write_record(&record("running")).unwrap();
    running.append_step(b"second").unwrap();
    teller.promise("running", Promise::Steps(2));
    teller.print("running", &running, "last");

    let Teller { promises, logs, .. } = teller;
    Story { history: recording.finish(), promises, logs }
}

/// Recovers a folder as a start does. Returns every job with its end, and the ids that answer `data_loss`.
fn recover(path: &Path) -> (BTreeMap<String, (JobFolder, End)>, Vec<JobKey>) {
    let state = StateDir::open(path, &daemon()).unwrap();
    let mut ends = BTreeMap::new();
    for found in state.scan().unwrap() {
        match found {
            Found::Job(job) => {
                let end = job.journal.end.clone();
                let end =
                    end.map_or_else(|| close_interrupted(&job, "the host died", None, NOW, 0), Ok).unwrap();
                ends.insert(job.record.id.clone(), (job.folder, end));
            }
            Found::Unreadable { folder, .. } => folder.set_aside().unwrap(),
            Found::Gone(removed) => removed.delete().unwrap(),
            Found::Orphan { name, .. } => delete(state.remove_orphan(&name)),
        }
    }
    let broken = state.set_aside_keys().unwrap();
    // The next start finds the same and has nothing to do.
    for found in state.scan().unwrap() {
        let Found::Job(job) = found else { panic!("still to be done: {found:?}") };
        assert_eq!(job.journal.end.as_ref(), ends.get(&job.record.id).map(|(_, end)| end));
    }
    (ends, broken)
}

/// Checks that the promises made before operation number `count` hold in the folder `path`.
fn check(story: &Story, count: usize, path: &Path) {
    let (jobs, broken) = recover(path);
    assert_eq!(broken, [], "after {count} operations a record could not be read");
    for (_, id, promise) in story.promises.iter().filter(|(at, ..)| *at <= count) {
        let removing = id.starts_with("removed");
        let Some((folder, end)) = jobs.get(*id) else {
            // After the start of its removal a job may be gone at any time.
            assert!(removing, "after {count} operations {id} is gone");
            continue;
        };
        let whole = story.logs.get(id).map_or(&[][..], Vec::as_slice);
        let log = fs::read(folder.path("log")).unwrap_or_default();
        match promise {
            Promise::Registered => {}
            Promise::Log(len) => assert!(log.starts_with(&whole[..*len]), "after {count}: {id}"),
            Promise::Steps(number) => {
                let steps = folder.read_steps().unwrap();
                assert!(steps.count as usize >= *number && steps.damage.is_none(), "after {count}: {id}");
            }
            Promise::Ended(promised) => assert_eq!(end, promised),
            Promise::Removed => panic!("after {count} operations {id} is back"),
        }
        assert_eq!(end.log_len, log.len() as u64, "after {count}: {id}");
        assert_whole(whole, &log);
    }
}

/// Asserts that a log is the beginning of the complete log. A closed log has a line feed and one more line. In between
/// may be the beginning of that line, if a recovery was killed in it: these logs are never cut.
fn assert_whole(whole: &[u8], log: &[u8]) {
    const LAST: &[u8] = b"1970-01-01T00:00:01.000000Z 00E job interrupted: the host died\n";
    let Some(before) = log.strip_suffix(LAST) else { return assert!(whole.starts_with(log)) };
    let torn = before.strip_suffix(b"\n").unwrap_or(before);
    let is_whole =
        |log: &[u8]| whole.starts_with(log) || whole.starts_with(log.strip_suffix(b"\n").unwrap_or(log));
    let ours = (0..LAST.len()).filter_map(|len| torn.strip_suffix(&LAST[..len]));
    assert!(is_whole(before) || ours.into_iter().any(is_whole), "{}", String::from_utf8_lossy(log));
}

/// Writes the image to a new folder and calls `work` with it.
fn on_disk(image: &Image, work: impl FnOnce(&Path)) {
    let temp = temp();
    let path = temp.path().join("state");
    image.write_to(&path).unwrap();
    work(&path);
}

#[test]
fn fault_43_killed_at_any_operation_and_in_any_write_nothing_promised_is_lost() {
    let story = story(false);
    assert!(story.history.ops.len() > 40, "{}", story.history.ops.len());
    for (count, image) in story.history.kills(6) {
        on_disk(&image, |path| check(&story, count, path));
    }
}

#[test]
fn fault_43_a_recovery_killed_at_any_operation_is_completed_by_the_next() {
    let story = story(false);
    for (count, image) in story.history.kills(1).step_by(9) {
        let mut recovery = None;
        on_disk(&image, |path| {
            let recording = Recording::start(path).unwrap();
            recover(path);
            recovery = Some(recording.finish());
        });
        for (_, image) in recovery.unwrap().kills(2) {
            on_disk(&image, |path| check(&story, count, path));
        }
    }
}

#[test]
fn fault_43_a_power_cut_takes_only_what_was_not_synced_and_never_the_start() {
    let story = story(true);
    let synced = story
        .history
        .ops
        .iter()
        .position(|op| *op == step_runner_system::files::recorder::Op::SyncAll)
        .unwrap();
    let last = story.history.ops.len();
    for count in (0..=last).rev().step_by(4) {
        let pieces = story.history.unsynced(count).len();
        let choices = Choices::list(pieces, 4, 24);
        let every = (choices.len() / 16).max(1);
        for choice in choices.into_iter().step_by(every) {
            on_disk(&story.history.power_cut(count, choice), |path| {
                let (jobs, broken) = recover(path);
                for (id, (folder, _)) in &jobs {
                    assert!(!broken.contains(&folder.key()), "{id} is served and set aside");
                }
                if count > synced {
                    let (folder, end) = &jobs["ended"];
                    assert_eq!(folder.step_records(), [b"result"]);
                    assert_eq!(fs::read(folder.path("log")).unwrap(), story.logs["ended"]);
                    assert!(end.outcome == Outcome::success(), "after {count} with {choice:?}: {end:?}");
                }
            });
        }
    }
}

/// A folder with three jobs: one that has ended, one that has not, and one that stays undamaged.
fn folder_of_three(temp: &TempDir) -> Image {
    let state = open(temp);
    for id in ["ended", "running", "other"] {
        let job = create(&state, id);
        job.append(&Event::Started { at: 3, boot: None }).unwrap();
        fs::write(job.path("log"), "2026-01-01T00:00:00.000000Z 01O one\n").unwrap();
        job.append_step(b"result").unwrap();
        if id != "running" {
            job.append(&Event::Ended(end())).unwrap();
        }
    }
    Image::read(state.path(), |_, _| {}).unwrap()
}

/// Applies every damage to one file of a job. The job is served as before with the rest, or its id answers `data_loss`.
/// The undamaged job is always served.
fn damage_every(id: &str, name: &str, harms: impl Fn(&[u8]) -> Vec<Vec<u8>>) {
    let origin = temp();
    let image = folder_of_three(&origin);
    let key = JobId::parse(id).unwrap().key();
    let good = image.file(&format!("jobs/{key}/{name}")).unwrap().to_vec();
    // The same folder each time: its jobs are made anew.
    let temp = temp();
    let path = temp.path().join("state");
    for harm in harms(&good) {
        fs::remove_dir_all(&path).ok();
        image.write_to(&path).unwrap();
        fs::write(path.join(format!("jobs/{key}/{name}")), &harm).unwrap();
        let (jobs, broken) = recover(&path);
        assert!(jobs.contains_key("other"), "{id}/{name}: the other job is gone");
        match jobs.get(id) {
            None => assert_eq!(broken, [key], "{id}/{name} {harm:?}"),
            Some((folder, found)) => {
                assert_eq!(broken, [], "{id}/{name}");
                let record = folder.read_job().unwrap().record;
                assert_eq!(record, super::record(id), "{id}/{name}: damage passed unnoticed");
                assert!(*found == end() || is_interrupted(found), "{id}/{name}: {found:?}");
                let steps = folder.step_records();
                assert!(steps.iter().all(|step| step == b"result"), "{id}/{name}: {steps:?}");
            }
        }
    }
}

fn flips(good: &[u8]) -> Vec<Vec<u8>> {
    let flip = |at: usize| {
        let mut bad = good.to_vec();
        bad[at] ^= 1 << (at % 8);
        bad
    };
    (0..good.len()).map(flip).collect()
}

fn truncations(good: &[u8]) -> Vec<Vec<u8>> {
    (0..good.len()).map(|len| good[..len].to_vec()).collect()
}

#[test]
fn fault_44_a_flip_of_any_byte_costs_at_most_its_own_job() {
    for name in ["job.json", "journal", "steps"] {
        damage_every("ended", name, flips);
    }
    damage_every("running", "journal", flips);
}

#[test]
fn fault_44_any_truncation_costs_at_most_its_own_job() {
    for name in ["job.json", "journal", "steps"] {
        damage_every("ended", name, truncations);
    }
    damage_every("running", "steps", truncations);
}

#[test]
fn fault_44_a_foreign_thing_under_any_name_of_ours_never_stops_the_start() {
    let origin = temp();
    let image = folder_of_three(&origin);
    for name in ["broken", "jobs", "daemon.json", "reserve", "lock", "spare"] {
        for is_folder in [true, false] {
            if is_folder && name == "jobs" {
                continue;
            }
            on_disk(&image, |path| {
                let at = path.join(name);
                fs::remove_file(&at).or_else(|_| fs::remove_dir_all(&at)).ok();
                if is_folder {
                    fs::create_dir_all(at.join("foreign")).unwrap();
                } else {
                    fs::write(&at, "foreign").unwrap();
                }
                let (jobs, broken) = recover(path);
                assert_eq!(jobs.len(), if name == "jobs" { 0 } else { 3 }, "{name}");
                assert!(broken.is_empty());
                drop(jobs);
                let state = StateDir::open(path, &daemon()).unwrap();
                create(&state, "new").set_aside().unwrap();
                assert_eq!(state.set_aside_keys().unwrap().len(), 1, "{name}");
            });
        }
    }
}

#[test]
fn fault_44_sparse_files_of_four_gibibytes_cost_neither_memory_nor_the_start() {
    let origin = temp();
    let image = folder_of_three(&origin);
    for name in ["job.json", "journal", "steps", "log"] {
        for id in ["ended", "running"] {
            on_disk(&image, |path| {
                let key = JobId::parse(id).unwrap().key();
                let file = path.join(format!("jobs/{key}/{name}"));
                fs::OpenOptions::new().write(true).open(file).unwrap().set_len(4 << 30).unwrap();
                let state = StateDir::open(path, &daemon()).unwrap();
                let found = state.scan().unwrap();
                assert_eq!(found.len(), 3);
                let unreadable =
                    found.iter().filter(|found| matches!(found, Found::Unreadable { .. })).count();
                assert_eq!(unreadable, usize::from(name == "job.json" || name == "journal"), "{name}");
            });
        }
    }
}
