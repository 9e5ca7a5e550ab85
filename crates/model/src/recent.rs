//! Jobs in the order in which they were last added.

use std::collections::{BTreeMap, HashMap};

use crate::JobKey;

/// Values of jobs, in the order in which they were last added. Each operation takes a time that hardly grows with their
/// number, because a busy daemon remembers thousands of finished jobs and adds one with each Finish.
#[derive(Clone, Debug)]
pub struct Recent<V> {
    /// By serial number: a job that is added again gets a new one.
    entries: BTreeMap<u64, (JobKey, V)>,
    serials: HashMap<JobKey, u64>,
    next: u64,
}

impl<V> Default for Recent<V> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), serials: HashMap::new(), next: 0 }
    }
}

impl<V> Recent<V> {
    /// Adds a job as the youngest. An earlier value of it is replaced.
    pub fn add(&mut self, key: JobKey, value: V) {
        if let Some(earlier) = self.serials.insert(key, self.next) {
            self.entries.remove(&earlier);
        }
        self.entries.insert(self.next, (key, value));
        self.next += 1;
    }

    /// Returns the value of a job.
    pub fn get(&self, key: JobKey) -> Option<&V> {
        self.entries.get(self.serials.get(&key)?).map(|(_, value)| value)
    }

    /// Returns the value that was added first.
    pub fn oldest(&self) -> Option<&V> {
        self.entries.first_key_value().map(|(_, (_, value))| value)
    }

    /// Removes the job that was added first.
    pub fn forget_oldest(&mut self) {
        if let Some((_, (key, _))) = self.entries.pop_first() {
            self.serials.remove(&key);
        }
    }

    /// Returns the values, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &V> {
        self.entries.values().map(|(_, value)| value)
    }

    /// Returns the number of jobs.
    pub fn len(&self) -> usize {
        self.serials.len()
    }

    /// True if there is no job.
    pub fn is_empty(&self) -> bool {
        self.serials.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::JobId;

    fn key(number: u32) -> JobKey {
        JobId::parse(&number.to_string()).unwrap().key()
    }

    #[test]
    fn a_job_that_is_added_again_is_the_youngest_and_counts_once() {
        let mut recent = Recent::default();
        // The same, done by searching.
        let mut plain: Vec<(u32, u32)> = Vec::new();
        for round in 0..1_000 {
            let job = round * round % 37;
            recent.add(key(job), (job, round));
            plain.retain(|(known, _)| *known != job);
            plain.push((job, round));
            if round % 3 == 0 {
                recent.forget_oldest();
                plain.remove(0);
            }
            assert!(recent.iter().eq(plain.iter()));
            assert_eq!((recent.oldest(), recent.len()), (plain.first(), plain.len()));
            assert_eq!(recent.is_empty(), plain.is_empty());
            let found = plain.iter().find(|(known, _)| *known == 4);
            assert_eq!(recent.get(key(4)), found);
        }
    }

    #[test]
    fn the_oldest_of_none_is_none() {
        let mut recent = Recent::<u8>::default();
        recent.forget_oldest();
        assert_eq!((recent.oldest(), recent.is_empty()), (None, true));
    }
}
