//! Requests of jobs in the order in which they were last added.

use std::collections::{BTreeMap, HashMap};

use crate::JobKey;

/// Digest of a request.
type RequestDigest = [u8; 16];

/// Maximum number of requests of one job. A client that uses an id again and again with other content must not push those of
/// other jobs out.
const MOST_OF_A_JOB: usize = 8;

/// Values of requests, in the order in which they were last added. Each operation takes a time that hardly grows with their
/// number, because a busy daemon remembers thousands of finished jobs and adds one with each Finish.
#[derive(Clone, Debug)]
pub struct Recent<V> {
    /// By serial number: a request that is added again gets a new one.
    entries: BTreeMap<u64, (JobKey, RequestDigest, V)>,
    /// Serial numbers of each job's requests, ascending.
    serials: HashMap<JobKey, Vec<u64>>,
    next: u64,
}

impl<V> Default for Recent<V> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), serials: HashMap::new(), next: 0 }
    }
}

impl<V> Recent<V> {
    /// Adds a request as the youngest. An earlier value of it is replaced. The oldest request of a job that has too many is
    /// forgotten.
    pub fn add(&mut self, key: JobKey, digest: RequestDigest, value: V) {
        let serials = self.serials.entry(key).or_default();
        let same = |serial: &u64| self.entries.get(serial).is_some_and(|(_, known, _)| *known == digest);
        let too_many = (serials.len() == MOST_OF_A_JOB).then_some(0);
        if let Some(at) = serials.iter().position(same).or(too_many) {
            self.entries.remove(&serials.remove(at));
        }
        serials.push(self.next);
        self.entries.insert(self.next, (key, digest, value));
        self.next += 1;
    }

    /// Returns the value of a request.
    pub fn get(&self, key: JobKey, digest: RequestDigest) -> Option<&V> {
        let mut values = self.serials.get(&key)?.iter().filter_map(|serial| self.entries.get(serial));
        values.find(|(_, known, _)| *known == digest).map(|(.., value)| value)
    }

    /// Returns the value of a job's youngest request.
    pub fn youngest(&self, key: JobKey) -> Option<&V> {
        self.entries.get(self.serials.get(&key)?.last()?).map(|(.., value)| value)
    }

    /// Returns the value that was added first.
    pub fn oldest(&self) -> Option<&V> {
        self.entries.first_key_value().map(|(_, (.., value))| value)
    }

    /// Removes the request that was added first.
    pub fn forget_oldest(&mut self) {
        let Some((serial, (key, ..))) = self.entries.pop_first() else { return };
        if let Some(serials) = self.serials.get_mut(&key) {
            serials.retain(|known| *known != serial);
            if serials.is_empty() {
                self.serials.remove(&key);
            }
        }
    }

    /// Returns the values, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &V> {
        self.entries.values().map(|(.., value)| value)
    }

    /// Returns the number of requests.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there is no request.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
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
    fn a_request_that_is_added_again_is_the_youngest_and_counts_once() {
        let mut recent = Recent::default();
        // The same, done by searching: job, request, round.
        let mut plain: Vec<(u32, u8, u32)> = Vec::new();
        for round in 0_u32..4_000 {
            let (job, request) = (round * round % 7, (round * 31 % 11) as u8);
            recent.add(key(job), [request; 16], (job, request, round));
            plain.retain(|known| (known.0, known.1) != (job, request));
            plain.push((job, request, round));
            if plain.iter().filter(|known| known.0 == job).count() > MOST_OF_A_JOB {
                let oldest = plain.iter().position(|known| known.0 == job).unwrap();
                plain.remove(oldest);
            }
            if round % 5 == 0 {
                recent.forget_oldest();
                plain.remove(0);
            }
            assert!(recent.iter().eq(plain.iter()));
            assert_eq!((recent.oldest(), recent.len()), (plain.first(), plain.len()));
            assert_eq!(recent.is_empty(), plain.is_empty());
            assert_eq!(recent.youngest(key(4)), plain.iter().rfind(|known| known.0 == 4));
            let found = plain.iter().find(|known| (known.0, known.1) == (4, 3));
            assert_eq!(recent.get(key(4), [3; 16]), found);
        }
    }

    #[test]
    fn the_oldest_of_none_is_none() {
        let mut recent = Recent::<u8>::default();
        recent.forget_oldest();
        assert_eq!((recent.oldest(), recent.is_empty()), (None, true));
    }
}
