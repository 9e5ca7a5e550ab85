//! Storing and following of step results and events.

use std::cell::RefCell;

use super::*;
use crate::actors::redact::MaskedResult;
use crate::model::{JobId, StepStatus};
use crate::process::host::this_process;
use crate::store::StateDir;

/// The results `first` and `root` of a job that has ended.
fn ended() -> (tempfile::TempDir, JobFolder, Arc<TraceFeed>) {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(&dir.path().join("state"), &this_process()).unwrap();
    let folder = state.folder(JobId::parse("1").unwrap().key());
    folder.make().unwrap();
    let feed = TraceFeed::new(0, false);
    for result in ["first", "root"] {
        feed.grow(folder.append_step(result.as_bytes()).unwrap());
    }
    feed.end();
    (dir, folder, feed)
}

/// Returns the records of a job's `steps` in their order.
fn step_records(folder: &JobFolder) -> Vec<Vec<u8>> {
    let records = RefCell::new(Vec::new());
    folder
        .read_steps_of(|record| {
            records.borrow_mut().push(record.to_vec());
            true
        })
        .unwrap();
    records.into_inner()
}

#[test]
fn what_the_disk_refused_goes_before_the_next_result() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(&dir.path().join("state"), &this_process()).unwrap();
    let folder = state.folder(JobId::parse("1").unwrap().key());
    folder.make().unwrap();
    // A directory cannot be appended to.
    folder.make_dir("steps").unwrap();
    let feed = TraceFeed::new(0, false);
    let mut sink = TraceSink::new(Arc::clone(&feed), folder.clone());
    let result = |status| Append(vec![MaskedResult::of(vec![status as u8])]);
    let mut ctx = Context::new();
    sink.handle(result(StepStatus::Success), &mut ctx).unwrap_err();
    assert_eq!(feed.progress.get().len, 0);
    std::fs::remove_dir(folder.path("steps")).unwrap();
    sink.handle(result(StepStatus::Failure), &mut ctx).unwrap();
    assert_eq!(step_records(&folder), [[StepStatus::Success as u8], [StepStatus::Failure as u8]]);
    assert_eq!(feed.progress.get().len, folder.steps_len());
}

#[test]
fn events_wait_for_a_result_unless_somebody_follows_them() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(&dir.path().join("state"), &this_process()).unwrap();
    let folder = state.folder(JobId::parse("1").unwrap().key());
    folder.make().unwrap();
    let feed = TraceFeed::new(0, false);
    let mut sink = TraceSink::new(Arc::clone(&feed), folder.clone());
    let mut ctx = Context::new();
    let news = |what: u8| AppendEvent(MaskedResult::of(vec![what]));
    sink.handle(news(1), &mut ctx);
    assert_eq!(feed.progress.get().len, 0);
    sink.handle(Append(vec![MaskedResult::of(vec![2])]), &mut ctx).unwrap();
    sink.handle(news(3), &mut ctx);
    assert_eq!(step_records(&folder), [[1], [2]]);
    feed.watch();
    sink.handle(Flush { last: false }, &mut ctx).unwrap();
    assert_eq!(step_records(&folder), [[1], [2], [3]]);
    sink.handle(news(4), &mut ctx);
    assert_eq!(step_records(&folder), [[1], [2], [3], [4]]);
    assert_eq!(feed.progress.get().len, folder.steps_len());
}

#[tokio::test]
async fn results_that_are_never_stored_are_named_as_lost() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(&dir.path().join("state"), &this_process()).unwrap();
    let folder = state.folder(JobId::parse("1").unwrap().key());
    folder.make().unwrap();
    let feed = TraceFeed::new(0, false);
    let mut cursor = feed.follow(&folder, 9).unwrap();
    feed.grow(folder.append_step(b"first").unwrap());
    feed.lose();
    feed.end();
    assert_eq!(cursor.next().await.unwrap().unwrap(), b"first");
    assert_eq!(cursor.next().await.err().map(|refusal| refusal.reason), Some(Reason::DataLoss));
}

#[tokio::test]
async fn a_follower_reads_to_the_end_though_the_job_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(&dir.path().join("state"), &this_process()).unwrap();
    let folder = state.folder(JobId::parse("1").unwrap().key());
    folder.make().unwrap();
    let feed = TraceFeed::new(0, false);
    let mut early = feed.follow(&folder, 9).unwrap();
    for result in ["first", "root"] {
        feed.grow(folder.append_step(result.as_bytes()).unwrap());
    }
    feed.end();
    let mut late = feed.follow(&folder, 9).unwrap();
    folder.begin_removal().unwrap().unwrap().delete().unwrap();
    for cursor in [&mut early, &mut late] {
        assert_eq!(cursor.next().await.unwrap().unwrap(), b"first");
        assert_eq!(cursor.next().await.unwrap().unwrap(), b"root");
        assert_eq!(cursor.next().await.unwrap(), None);
    }
    drop((early, late));
    assert_eq!(feed.follow(&folder, 9).err().map(|refusal| refusal.reason), Some(Reason::DataLoss));
}

#[tokio::test]
async fn fault_83_a_follower_that_comes_while_a_job_is_removed_reads_to_the_end() {
    let (_dir, folder, feed) = ended();
    let held = feed.hold(&folder).unwrap();
    feed.expire();
    folder.begin_removal().unwrap().unwrap().delete().unwrap();
    let mut late = feed.follow(&folder, 1).unwrap();
    drop(held);
    assert_eq!(late.next().await.unwrap().unwrap(), b"first");
    assert_eq!(late.next().await.unwrap().unwrap(), b"root");
    assert_eq!(late.next().await.unwrap(), None);
    drop(late);
    assert_eq!(feed.follow(&folder, 1).err().map(|refusal| refusal.reason), Some(Reason::DataLoss));
}

#[cfg(feature = "failpoints")] // which brings virtual time
#[tokio::test(start_paused = true)]
async fn a_follower_that_rests_after_finish_is_dropped() {
    let (_dir, folder, feed) = ended();
    let mut resting = feed.follow(&folder, 1).unwrap();
    assert_eq!(feed.follow(&folder, 1).err().map(|refusal| refusal.reason), Some(Reason::TooManyFollowers));
    assert_eq!(resting.next().await.unwrap().unwrap(), b"first");
    feed.expire();
    tokio::time::sleep(std::time::Duration::from_mins(2)).await;
    assert_eq!(resting.next().await.err().map(|refusal| refusal.reason), Some(Reason::FollowersDropped));
}
