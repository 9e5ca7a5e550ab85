//! `durability = power` against every power cut. A story of jobs is written as daemon and keeper write them; then each
//! state in which a cut could leave the folder is recovered as at a start. Everything that clients were told exists,
//! and nothing is torn.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::*;
use step_runner_system::files::recorder::{Choices, History, Recording};

struct Story {
    history: History,
    /// Number of earlier operations, job id, promise.
    told: Vec<(usize, &'static str, Promise)>,
    logs: BTreeMap<&'static str, Vec<u8>>,
}

struct Teller<'a> {
    state: &'a StateDir,
    recording: &'a Recording,
    told: Vec<(usize, &'static str, Promise)>,
    /// Promises that become valid after the next round.
    next: Vec<(&'static str, Promise)>,
    logs: BTreeMap<&'static str, Vec<u8>>,
}

impl Teller<'_> {
    /// Performs a Run up to its answer.
    fn run(&mut self, id: &'static str) -> JobFolder {
        let job = folder(self.state, id);
        job.make().unwrap();
        job.begin_synced().unwrap();
        job.write_record(&record(id)).unwrap();
        self.next.push((id, Promise::Registered));
        job
    }

    /// Writes a log as the keeper does; NUL bytes are output like any other.
    fn print(&mut self, id: &'static str, job: &JobFolder, text: &str) {
        let log = files::open_append(&job.shared.jobs, job.inside("log").as_str()).unwrap();
        let entry = format!("2026-01-01T00:00:00.000000Z 01O {text}\n");
        files::append(log, entry.as_bytes()).unwrap();
        self.logs.entry(id).or_default().extend_from_slice(entry.as_bytes());
    }

    /// Performs a round of the group sync with the logs of these jobs, and an end.
    fn round(&mut self, logs: &[(&'static str, &JobFolder)], ends: Option<(&'static str, &JobFolder)>) {
        self.state.sync_all().unwrap();
        for (id, job) in logs {
            let len = self.logs[id].len();
            job.note_synced(len as u64).unwrap();
            self.next.push((id, Promise::Log(len)));
        }
        if let Some((id, job)) = ends {
            let end = End { log_len: self.logs[id].len() as u64, log_inode: 0, steps_done: 1, ..end() };
            job.record_end(&end).unwrap();
            self.next.push((id, Promise::Ended(end)));
        }
        self.state.sync_all().unwrap();
        let position = self.recording.position();
        self.told.extend(self.next.drain(..).map(|(id, told)| (position, id, told)));
    }
}

fn story() -> Story {
    let temp = temp();
    let state = open(&temp);
    let recording = Recording::start(state.path()).unwrap();
    let mut teller = Teller {
        state: &state,
        recording: &recording,
        told: Vec::new(),
        next: Vec::new(),
        logs: BTreeMap::new(),
    };
    let ended = teller.run("ended");
    ended.append(&Event::Started { at: 3, boot: None }).unwrap();
    teller.print("ended", &ended, "one");
    teller.round(&[("ended", &ended)], None);

    ended.append_step(&[0; 600]).unwrap();
    teller.next.push(("ended", Promise::Steps(1)));
    teller.print("ended", &ended, &"two\0".repeat(300));
    let running = teller.run("running");
    running.append(&Event::Started { at: 4, boot: None }).unwrap();
    teller.print("running", &running, &"\0".repeat(700));
    teller.round(&[("ended", &ended), ("running", &running)], Some(("ended", &ended)));

    teller.print("running", &running, &"long ".repeat(300));
    running.append_step(b"result").unwrap();
    let removed = teller.run("removed");
    teller.print("removed", &removed, "gone soon");
    teller.round(&[("removed", &removed)], Some(("removed", &removed)));

    let gone = removed.begin_removal().unwrap().unwrap();
    teller.print("running", &running, "last");
    teller.round(&[], None);
    gone.delete().unwrap();
    teller.told.push((recording.position(), "removed", Promise::Removed));
    teller.run("half-made");
    teller.print("running", &running, "never seen");

    let Teller { told, logs, .. } = teller;
    Story { history: recording.finish(), told, logs }
}

/// Recovers a folder as a start with `durability = power` does. Syncs matter only where they are recorded; elsewhere
/// they only cost time.
fn recover(path: &Path, syncs: bool) -> BTreeMap<String, (JobFolder, End)> {
    let state = StateDir::open(path, &daemon()).unwrap();
    let (mut ends, mut begun) = (BTreeMap::new(), Vec::new());
    for found in state.scan().unwrap() {
        match found {
            Found::Job(job) => {
                if let Some(end) = &job.journal.end {
                    ends.insert(job.record.id.clone(), (job.folder.clone(), end.clone()));
                } else {
                    let outcome = step_runner_model::Outcome::interrupted("a power cut");
                    let closing = Closing::begin(&job, outcome, Death::Host, 1, 0).unwrap();
                    begun.push((job, closing));
                }
            }
            Found::Unreadable { folder, reason } => assert!(folder.drop_unanswered(), "{reason}"),
            Found::Gone(removed) => removed.delete().unwrap(),
            Found::Orphan { name, .. } => delete(state.remove_orphan(&name)),
        }
    }
    let sync = || {
        if syncs {
            state.sync_all().unwrap();
        }
    };
    sync();
    for (job, closing) in begun {
        closing.record().unwrap();
        ends.insert(job.record.id.clone(), (job.folder, closing.end()));
    }
    sync();
    ends
}

/// Checks that the promises made before operation number `count` hold in the folder `path`, and that no job shows data
/// that was never written.
fn check(story: &Story, count: usize, path: &Path, what: &str) {
    let jobs = recover(path, false);
    for (id, (folder, end)) in &jobs {
        let log = fs::read(folder.path("log")).unwrap_or_default();
        assert_eq!(end.log_len, log.len() as u64, "{what}: {id}");
        assert_eq!(end.lost_from, None, "{what}: {id}");
        let whole = story.logs.get(id.as_str()).map_or(&[][..], Vec::as_slice);
        assert_not_torn(whole, &log, end, &format!("{what}: {id}"));
        assert!(folder.read_steps().unwrap().damage.is_none(), "{what}: {id}");
    }
    for (_, id, told) in story.told.iter().filter(|(at, ..)| *at <= count) {
        let Some((folder, end)) = jobs.get(*id) else {
            assert!(*id == "removed", "{what}: {id} is gone");
            continue;
        };
        match told {
            Promise::Registered => {}
            Promise::Log(len) => {
                let log = fs::read(folder.path("log")).unwrap();
                assert!(log.starts_with(&story.logs[id][..*len]), "{what}: {id}");
            }
            Promise::Steps(number) => assert!(folder.read_steps().unwrap().count as usize >= *number),
            Promise::Ended(told) => assert_eq!(end, told, "{what}: {id}"),
            Promise::Removed => panic!("{what}: {id} is back"),
        }
    }
}

/// Asserts that a log consists of whole entries from the beginning of the written log, then the line about the
/// interruption.
fn assert_not_torn(whole: &[u8], log: &[u8], end: &End, what: &str) {
    if !is_interrupted(end) {
        return assert_eq!(log, whole.get(..log.len()).unwrap_or_default(), "{what}");
    }
    let before = log.strip_suffix(b"\n").and_then(|log| {
        let at = log.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let said = b"1970-01-01T00:00:00.000001Z 00E job interrupted: a power cut";
        log[at..].starts_with(said).then_some(&log[..at])
    });
    let before = before.unwrap_or_else(|| panic!("{what}: {}", String::from_utf8_lossy(log)));
    assert!(whole.starts_with(before), "{what}: {}", String::from_utf8_lossy(log));
}

fn cuts(story: &History, count: usize, random: u64) -> Vec<Choices> {
    Choices::list(story.unsynced(count).len(), 3, random)
}

#[test]
fn fault_43_with_durability_power_a_power_cut_takes_nothing_that_was_seen() {
    let story = story();
    for count in 0..=story.history.ops.len() {
        let choices = cuts(&story.history, count, 4);
        let every = (choices.len() / 12).max(1);
        for choice in choices.into_iter().skip(count % every).step_by(every) {
            let temp = temp();
            let path = temp.path().join("state");
            story.history.power_cut(count, choice).write_to(&path).unwrap();
            check(&story, count, &path, &format!("after {count}, {choice:?}"));
        }
    }
}

#[test]
fn fault_43_a_power_cut_during_the_recovery_from_one_takes_nothing_either() {
    let story = story();
    for count in (0..=story.history.ops.len()).step_by(9) {
        let temp = temp();
        let path = temp.path().join("state");
        story.history.power_cut(count, Choices::Seed(count as u64)).write_to(&path).unwrap();
        let recording = Recording::start(&path).unwrap();
        recover(&path, true);
        let recovery = recording.finish();
        for done in (0..=recovery.ops.len()).step_by(2) {
            for choice in [Choices::None, Choices::All, Choices::Seed(done as u64), Choices::Seed(!0)] {
                let temp = super::temp();
                let path = temp.path().join("state");
                recovery.power_cut(done, choice).write_to(&path).unwrap();
                check(&story, count, &path, &format!("after {count} and {done}, {choice:?}"));
            }
        }
    }
}
