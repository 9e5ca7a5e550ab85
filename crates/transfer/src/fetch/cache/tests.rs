use std::time::Duration;

use super::*;

const JOB: JobKey = JobKey([1; 16]);
const OTHER: JobKey = JobKey([2; 16]);

fn cache_in(state: &Path, limit: u64, run: u64) -> Cache {
    cache_of_boot(state, limit, run, "boot")
}

fn cache_of_boot(state: &Path, limit: u64, run: u64, boot: &str) -> Cache {
    let cache = Cache::new(state, limit, run, boot.to_owned()).unwrap();
    cache.scan().unwrap();
    settle(&cache);
    cache
}

/// Waits until all queued removals are done.
fn settle(cache: &Cache) {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(cache.removed());
}

/// Evicts trees. Returns their number.
fn evict(cache: &Cache) -> usize {
    let before = cache.shared.lock().entries.len();
    cache.evict();
    settle(cache);
    before - cache.shared.lock().entries.len()
}

fn key(number: u8) -> CacheKey {
    CacheKey { kind: Kind::Git, digest: [number; 32] }
}

/// Fills and publishes a tree of `bytes`, leased to [`JOB`].
fn fill(cache: &Cache, number: u8, bytes: u64) -> PathBuf {
    let temporary = cache.temporary().unwrap();
    fs::write(temporary.tree().join("func.yml"), [number]).unwrap();
    let stats = Stats { bytes, ..Stats::default() };
    let tree = cache.publish(key(number), JOB, &temporary, "v", stats).unwrap();
    drop(temporary);
    settle(cache);
    tree
}

#[test]
fn a_tree_has_its_name_only_when_it_is_whole() {
    let state = tempfile::tempdir().unwrap();
    let cache = cache_in(state.path(), 100, 1);
    assert!(cache.take(key(1), JOB).is_none());
    let tree = fill(&cache, 1, 10);
    assert_eq!(cache.take(key(1), OTHER).unwrap(), tree);
    assert_eq!(fs::read(tree.join("func.yml")).unwrap(), [1]);
    assert_eq!(fs::read_dir(state.path().join("cache/tmp")).unwrap().count(), 0);
}

#[test]
fn of_two_copies_the_first_stays() {
    let state = tempfile::tempdir().unwrap();
    let cache = cache_in(state.path(), 100, 1);
    let first = fill(&cache, 1, 10);
    fs::write(first.join("mark"), "").unwrap();
    assert_eq!(fill(&cache, 1, 10), first);
    assert!(first.join("mark").exists());
    assert_eq!(cache.shared.lock().size, 10);
}

#[test]
fn the_next_daemon_finds_whole_trees_and_removes_the_rest() {
    let state = tempfile::tempdir().unwrap();
    let first = cache_in(state.path(), 100, 1);
    fill(&first, 1, 10);
    let half = first.temporary().unwrap();
    fs::create_dir(state.path().join("cache/git/0123")).unwrap();
    fs::create_dir_all(state.path().join("cache").join(key(2).to_string()).join("tree")).unwrap();
    let second = cache_in(state.path(), 100, 2);
    assert!(second.take(key(1), JOB).is_some());
    assert!(second.take(key(2), JOB).is_none());
    assert!(!half.tree().exists());
    assert_eq!(fs::read_dir(state.path().join("cache/git")).unwrap().count(), 1);
    assert_eq!(fs::read_dir(state.path().join("cache/tmp")).unwrap().count(), 0);
}

#[test]
fn the_tree_not_used_for_longest_goes_first_and_none_that_is_in_use() {
    let state = tempfile::tempdir().unwrap();
    let cache = cache_in(state.path(), 25, 1);
    cache.recovered();
    let trees: Vec<_> = (1..=3).map(|number| fill(&cache, number, 10)).collect();
    assert_eq!(evict(&cache), 0, "all are leased");
    cache.release(JOB);
    for (number, age) in [(1, 10), (2, 30), (3, 20)] {
        let used = clock::now() - Duration::from_secs(age);
        cache.shared.lock().entries.get_mut(&key(number)).unwrap().used = used;
    }
    cache.take(key(2), OTHER).unwrap();
    assert_eq!(evict(&cache), 1);
    assert_eq!(trees.iter().map(|tree| tree.exists()).collect::<Vec<_>>(), [true, true, false]);
    assert!(cache.take(key(3), JOB).is_none());
    assert_eq!(fs::read_dir(state.path().join("cache/tmp")).unwrap().count(), 0);
    fill(&cache, 3, 5);
    assert!(cache.take(key(3), JOB).is_some());
}

#[test]
fn leases_of_an_earlier_daemon_count_before_anything_is_evicted() {
    let state = tempfile::tempdir().unwrap();
    let tree = fill(&cache_in(state.path(), 100, 1), 1, 10);
    let next = cache_in(state.path(), 1, 2);
    assert_eq!(evict(&next), 0, "nobody has said yet what is in use");
    next.hold(JOB, &tree);
    next.hold(JOB, Path::new("/elsewhere/git/x/tree"));
    next.recovered();
    assert_eq!(evict(&next), 0);
    next.release(JOB);
    assert_eq!(evict(&next), 1);
}

#[test]
fn a_tree_that_somebody_removed_is_fetched_again() {
    let state = tempfile::tempdir().unwrap();
    let cache = cache_in(state.path(), 100, 1);
    fs::remove_dir_all(fill(&cache, 1, 10)).unwrap();
    assert!(cache.take(key(1), JOB).is_none());
    assert_eq!(cache.shared.lock().size, 0);
}

#[test]
fn a_folder_that_nobody_knows_makes_way() {
    let state = tempfile::tempdir().unwrap();
    let cache = cache_in(state.path(), 100, 1);
    let tree = fill(&cache, 1, 10);
    // State after a failed look-up: the folder exists, but is not known.
    cache.shared.lock().entries.clear();
    fs::write(tree.join("func.yml"), "another").unwrap();
    cache.shared.lock().size = 0;
    assert!(cache.take(key(1), JOB).is_none());
    assert_eq!(fill(&cache, 1, 10), tree);
    assert_eq!(fs::read(tree.join("func.yml")).unwrap(), [1]);
    assert_eq!(fs::read_dir(state.path().join("cache/tmp")).unwrap().count(), 0);
    assert_eq!(cache.shared.lock().size, 10);
}

#[test]
fn a_tree_stays_when_its_use_cannot_be_noted() {
    let state = tempfile::tempdir().unwrap();
    let cache = cache_in(state.path(), 100, 1);
    let tree = fill(&cache, 1, 10);
    let record = tree.with_file_name(RECORD);
    fs::remove_file(&record).unwrap();
    fs::create_dir(&record).unwrap();
    assert_eq!(cache.take(key(1), JOB), Some(tree));
}

#[test]
fn trees_of_another_boot_are_not_used_again() {
    let state = tempfile::tempdir().unwrap();
    let tree = fill(&cache_of_boot(state.path(), 100, 1, "first"), 1, 10);
    assert!(cache_of_boot(state.path(), 100, 2, "first").take(key(1), JOB).is_some());
    let next = cache_of_boot(state.path(), 100, 3, "second");
    assert!(next.take(key(1), JOB).is_none() && !tree.exists());
    assert_eq!(next.shared.lock().size, 0);
}

#[test]
fn folders_and_links_count_too() {
    let state = tempfile::tempdir().unwrap();
    let cache = cache_in(state.path(), 100, 1);
    let temporary = cache.temporary().unwrap();
    let stats = Stats { files: 1, entries: 5, bytes: 10 };
    cache.publish(key(1), JOB, &temporary, "v", stats).unwrap();
    assert_eq!(cache.shared.lock().size, 10 + 5 * ENTRY_COST);
}

#[test]
fn what_an_earlier_daemon_left_is_counted_once() {
    let state = tempfile::tempdir().unwrap();
    let first = cache_in(state.path(), 100, 1);
    fill(&first, 1, 10);
    fill(&first, 2, 10);
    let next = Cache::new(state.path(), 100, 2, "boot".to_owned()).unwrap();
    // The second folder cannot be listed, so the scan fails half-way and is repeated.
    fs::write(state.path().join("cache/oci"), "").unwrap();
    assert!(next.scan().is_err());
    fs::remove_file(state.path().join("cache/oci")).unwrap();
    next.scan().unwrap();
    next.scan().unwrap();
    assert_eq!(next.shared.lock().size, 20);
}

#[test]
fn room_on_the_disk_is_made_of_what_nobody_uses() {
    let state = tempfile::tempdir().unwrap();
    let cache = cache_in(state.path(), 100, 1);
    cache.recovered();
    let trees: Vec<_> = (1..=3).map(|number| fill(&cache, number, 10)).collect();
    cache.release(JOB);
    cache.take(key(1), OTHER).unwrap();
    cache.evict_more(15);
    settle(&cache);
    assert_eq!(trees.iter().map(|tree| tree.exists()).collect::<Vec<_>>(), [true, false, false]);
}
