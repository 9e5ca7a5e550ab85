//! The registry: the one map from ids to jobs.
//!
//! Calls read it without asking an actor. The supervisor writes it, and so do calls that reserve an id while they check
//! their request. Reservations serialise concurrent Runs of one id: exactly one is checked and admitted at a time; the
//! others wait and then see its outcome (service.md §3.1 "Races").

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use actix::Addr;
use chrono::SecondsFormat;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Semaphore;

use super::job::JobActor;
use super::messages::KeeperEvent;
use super::remembered::Remembered;
use super::view::JobView;
use crate::model::{JobId, JobKey, Reason, Refusal};

/// A change of a slot that callers wait for. Closing the semaphore, which has no permits, wakes them in the order in
/// which they began to wait. So of several Runs that wait for an id, the first reserves it.
#[derive(Clone)]
pub(crate) struct Change(Arc<Semaphore>);

impl Change {
    /// Returns the change and the guard that triggers it when dropped.
    fn new() -> (Pending, Self) {
        let semaphore = Arc::new(Semaphore::new(0));
        (Pending(Arc::clone(&semaphore)), Self(semaphore))
    }

    /// Resolves when the slot has changed.
    pub(crate) async fn wait(&self) {
        drop(self.0.acquire().await);
    }
}

/// A removal that callers wait for.
#[derive(Clone)]
pub(crate) struct Ongoing {
    change: Change,
    refused: Arc<OnceLock<Refusal>>,
}

impl Ongoing {
    /// Resolves when the removal is over: the job is gone, or registered as before.
    pub(crate) async fn done(&self) -> Result<(), Refusal> {
        self.change.wait().await;
        self.refused.get().cloned().map_or(Ok(()), Err)
    }
}

/// Guard of the task that is going to change a slot.
struct Pending(Arc<Semaphore>);

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// State of an id in the map.
enum Slot {
    /// A Run is being checked.
    Reserved(Change),
    /// A registered job, with its actor until it has ended.
    Present(Arc<JobView>, Option<Addr<JobActor>>),
    /// A job during its removal. Readers see it as before until it is gone.
    Removing(Arc<JobView>, Option<Addr<JobActor>>, Ongoing),
}

/// The map from ids to jobs; see the module.
#[derive(Default)]
pub(crate) struct Registry {
    /// Ordered, so that an operation on all jobs is deterministic.
    slots: RwLock<BTreeMap<JobId, Slot>>,
    keys: RwLock<HashMap<JobKey, JobId>>,
    /// Records that could not be read: their ids answer `data_loss` (service.md §6.4, 5).
    broken: Mutex<HashSet<JobKey>>,
    /// Keeper events of jobs whose actors died, kept for their next actors.
    held_back: Mutex<HashMap<JobKey, Vec<KeeperEvent>>>,
    /// Ids of finished jobs.
    pub(super) remembered: Mutex<Remembered>,
}

/// Answer to [`Registry::reserve`].
pub(crate) enum Reserve {
    /// The id is registered: the Run has nothing to do.
    Registered(Arc<JobView>),
    /// Another call works on the id; ask again when the change resolves.
    Wait(Change),
    /// The id is the caller's until the reservation is dropped or turned into a job.
    Granted(Reservation),
}

/// An id held for a Run. Dropping it lets the next Run try.
pub(crate) struct Reservation {
    registry: Arc<Registry>,
    id: JobId,
    registered: bool,
    _pending: Pending,
}

impl Reservation {
    /// Turns the reservation into a registered job.
    pub(super) fn register(mut self, view: Arc<JobView>, job: Addr<JobActor>) {
        self.registered = true;
        self.registry.insert(view, Some(job));
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if !self.registered {
            self.registry.slots.write().remove(&self.id);
        }
    }
}

/// A removal in progress. [`Self::complete`] frees the id; without it the job is registered as before.
pub(crate) struct Removal {
    registry: Arc<Registry>,
    /// The job.
    pub(crate) view: Arc<JobView>,
    /// Its actor, unless it has ended.
    pub(crate) job: Option<Addr<JobActor>>,
    refused: Arc<OnceLock<Refusal>>,
    is_complete: bool,
    _pending: Pending,
}

impl Removal {
    /// Frees the id: the job is gone.
    pub(crate) fn complete(mut self) {
        self.is_complete = true;
    }

    /// Keeps the job registered. All callers get the refusal.
    pub(crate) fn refuse(self, refusal: Refusal) {
        self.refused.set(refusal).ok();
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        let mut slots = self.registry.slots.write();
        let slot = slots.remove(&self.view.id);
        if self.is_complete {
            self.registry.keys.write().remove(&self.view.key);
            return;
        }
        if let Some(Slot::Removing(view, job, _)) = slot {
            slots.insert(view.id.clone(), Slot::Present(view, job));
        }
        // Only a defect ends a removal without a word.
        self.refused.get_or_init(|| Refusal::new(Reason::Internal, "a defect ended the removal of this job"));
    }
}

/// Answer to [`Registry::remove`].
pub(crate) enum Remove {
    /// No such id.
    Unknown,
    /// Another call removes it already.
    Joined(Ongoing),
    /// The caller must remove it.
    Started(Removal, Ongoing),
}

impl Registry {
    /// Reserves `id` for a Run.
    pub(crate) fn reserve(self: &Arc<Self>, id: &JobId) -> Reserve {
        let mut slots = self.slots.write();
        match slots.get(id) {
            Some(Slot::Present(view, _)) => Reserve::Registered(Arc::clone(view)),
            Some(Slot::Reserved(change)) => Reserve::Wait(change.clone()),
            Some(Slot::Removing(_, _, ongoing)) => Reserve::Wait(ongoing.change.clone()),
            None => {
                let (pending, change) = Change::new();
                slots.insert(id.clone(), Slot::Reserved(change));
                let registry = Arc::clone(self);
                Reserve::Granted(Reservation {
                    registry,
                    id: id.clone(),
                    registered: false,
                    _pending: pending,
                })
            }
        }
    }

    /// Inserts a job. Recovery does so without a reservation.
    pub(crate) fn insert(&self, view: Arc<JobView>, job: Option<Addr<JobActor>>) {
        self.keys.write().insert(view.key, view.id.clone());
        self.slots.write().insert(view.id.clone(), Slot::Present(view, job));
    }

    /// Begins or joins the removal of `id`.
    pub(crate) fn remove(self: &Arc<Self>, id: &JobId) -> Remove {
        let mut slots = self.slots.write();
        match slots.get(id) {
            // Reserved: a Run that came after this call.
            None | Some(Slot::Reserved(..)) => Remove::Unknown,
            Some(Slot::Removing(_, _, ongoing)) => Remove::Joined(ongoing.clone()),
            Some(Slot::Present(view, job)) => {
                let (pending, change) = Change::new();
                let (view, job, registry) = (Arc::clone(view), job.clone(), Arc::clone(self));
                let ongoing = Ongoing { change, refused: Arc::default() };
                let refused = Arc::clone(&ongoing.refused);
                slots.insert(id.clone(), Slot::Removing(Arc::clone(&view), job.clone(), ongoing.clone()));
                let removal = Removal { registry, view, job, refused, is_complete: false, _pending: pending };
                Remove::Started(removal, ongoing)
            }
        }
    }

    /// Forgets the actor of a job that has ended.
    pub(crate) fn ended(&self, id: &JobId) {
        if let Some(Slot::Present(_, job) | Slot::Removing(_, job, _)) = self.slots.write().get_mut(id) {
            *job = None;
        }
    }

    /// Holds back keeper events of a job whose actor died, until [`Self::hand_out`].
    pub(super) fn hold_back(&self, key: JobKey) {
        self.held_back.lock().entry(key).or_default();
    }

    /// Returns the events held back since [`Self::hold_back`], in order. From now on events go to the actor.
    pub(super) fn hand_out(&self, key: JobKey) -> Vec<KeeperEvent> {
        self.held_back.lock().remove(&key).unwrap_or_default()
    }

    /// Returns the actor that must get a keeper event. `None` if the job has no actor or the event was held back.
    pub(super) fn hearer(&self, key: JobKey, event: KeeperEvent) -> Option<(Addr<JobActor>, KeeperEvent)> {
        if let Some(kept) = self.held_back.lock().get_mut(&key) {
            kept.push(event);
            return None;
        }
        self.by_key(key)?.1.map(|job| (job, event))
    }

    /// Replaces the actor of a registered job.
    pub(crate) fn replace(&self, id: &JobId, addr: Addr<JobActor>) {
        if let Some(Slot::Present(_, job) | Slot::Removing(_, job, _)) = self.slots.write().get_mut(id) {
            *job = Some(addr);
        }
    }

    /// Returns the registered job `id`.
    pub(crate) fn view(&self, id: &JobId) -> Option<Arc<JobView>> {
        match self.slots.read().get(id)? {
            Slot::Present(view, _) | Slot::Removing(view, ..) => Some(Arc::clone(view)),
            Slot::Reserved(..) => None,
        }
    }

    /// Returns the registered job `id`, unless it is being removed.
    pub(crate) fn present(&self, id: &JobId) -> Option<Arc<JobView>> {
        match self.slots.read().get(id)? {
            Slot::Present(view, _) => Some(Arc::clone(view)),
            Slot::Removing(..) | Slot::Reserved(..) => None,
        }
    }

    /// Resolves when the Run that is being checked under `id` has its answer. `None` if there is no such Run.
    pub(crate) fn reserved(&self, id: &JobId) -> Option<Change> {
        match self.slots.read().get(id)? {
            Slot::Reserved(change) => Some(change.clone()),
            Slot::Present(..) | Slot::Removing(..) => None,
        }
    }

    /// Returns the registered job `id`, or a refusal that says why there is none.
    pub(crate) fn known(&self, id: &JobId) -> Result<Arc<JobView>, Refusal> {
        if let Some(view) = self.view(id) {
            return Ok(view);
        }
        if self.is_broken(id.key()) {
            return Err(Refusal::new(
                Reason::DataLoss,
                "the record of this job could not be read and was set aside in the state folder's broken/",
            ));
        }
        let unknown = |text: &str| Refusal::new(Reason::UnknownJob, text);
        Err(match self.remembered.lock().finished_at(id.key()) {
            Some(at) => {
                let at = at.to_rfc3339_opts(SecondsFormat::Secs, true);
                unknown(&format!("finished at {at}")).with_fact("finished_at", at)
            }
            None => unknown("no job with this id is registered"),
        })
    }

    /// Returns when a job was finished, in microseconds since the epoch, if it is remembered.
    pub(super) fn finished_at(&self, id: &JobId) -> Option<i64> {
        self.remembered.lock().finished_at(id.key()).map(|at| at.timestamp_micros())
    }

    /// Returns the actor of a job that has not ended.
    pub(crate) fn job(&self, id: &JobId) -> Option<Addr<JobActor>> {
        match self.slots.read().get(id)? {
            Slot::Present(_, job) | Slot::Removing(_, job, _) => job.clone(),
            Slot::Reserved(..) => None,
        }
    }

    /// Returns view and actor of the job with this key, for the keeper's events.
    pub(crate) fn by_key(&self, key: JobKey) -> Option<(Arc<JobView>, Option<Addr<JobActor>>)> {
        let id = self.keys.read().get(&key)?.clone();
        match self.slots.read().get(&id)? {
            Slot::Present(view, job) | Slot::Removing(view, job, _) => Some((Arc::clone(view), job.clone())),
            Slot::Reserved(_) => None,
        }
    }

    /// Returns all registered jobs with their actors, ordered by id.
    pub(crate) fn all(&self) -> Vec<(Arc<JobView>, Option<Addr<JobActor>>)> {
        let slots = self.slots.read();
        slots
            .values()
            .filter_map(|slot| match slot {
                Slot::Present(view, job) | Slot::Removing(view, job, _) => {
                    Some((Arc::clone(view), job.clone()))
                }
                Slot::Reserved(..) => None,
            })
            .collect()
    }

    /// True if a registered job has not ended.
    pub(super) fn has_living(&self) -> bool {
        self.slots.read().values().any(|slot| match slot {
            Slot::Reserved(_) => false,
            Slot::Present(view, _) | Slot::Removing(view, ..) => !view.is_ended(),
        })
    }

    /// Returns the number of registered jobs and reservations.
    pub(crate) fn len(&self) -> usize {
        self.slots.read().len()
    }

    /// True if a Run has reserved an id with this key: its folder may exist already.
    pub(crate) fn is_reserved(&self, key: JobKey) -> bool {
        self.slots.read().iter().any(|(id, slot)| matches!(slot, Slot::Reserved(..)) && id.key() == key)
    }

    /// Notes that the record of `key` was set aside.
    pub(crate) fn set_broken(&self, key: JobKey) {
        self.broken.lock().insert(key);
    }

    /// True if the record of `key` was set aside.
    pub(crate) fn is_broken(&self, key: JobKey) -> bool {
        self.broken.lock().contains(&key)
    }

    /// Notes that the record set aside for `key` is gone. Returns false if none was noted as set aside.
    pub(crate) fn mend(&self, key: JobKey) -> bool {
        self.broken.lock().remove(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn those_who_wait_for_a_change_go_on_in_the_order_in_which_they_came() {
        let (pending, change) = Change::new();
        let order = Arc::new(Mutex::new(Vec::new()));
        let waiters = (0..50).map(|number| {
            let (change, order) = (change.clone(), Arc::clone(&order));
            tokio::spawn(async move {
                change.wait().await;
                order.lock().push(number);
            })
        });
        let waiters: Vec<_> = waiters.collect();
        tokio::task::yield_now().await;
        drop(pending);
        for waiter in waiters {
            waiter.await.unwrap();
        }
        assert!(order.lock().iter().copied().eq(0..50));
        change.wait().await;
    }
}
