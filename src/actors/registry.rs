//! The one map from ids to jobs.
//!
//! Read by every call without asking an actor; written by the supervisor, and by calls that reserve an id while they
//! check their request. Reservations put racing Runs of one id in order: exactly one is checked and admitted at a time,
//! the others wait and then see what became of it (service.md §3.1 "Races").

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use actix::Addr;
use chrono::SecondsFormat;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Semaphore;

use super::job::{JobActor, Said};
use super::remembered::Remembered;
use super::view::JobView;
use crate::model::{JobId, JobKey, Reason, Refusal};

/// A change of a slot that callers wait for. A semaphore without permits: closing it wakes them in the order in which they
/// began to wait, so that of several Runs that wait for an id the first one gets it.
#[derive(Clone)]
pub struct Change(Arc<Semaphore>);

impl Change {
    /// The change, and what brings it about when dropped.
    fn new() -> (Pending, Self) {
        let semaphore = Arc::new(Semaphore::new(0));
        (Pending(Arc::clone(&semaphore)), Self(semaphore))
    }

    /// Ends when the slot has changed.
    pub async fn wait(&self) {
        drop(self.0.acquire().await);
    }
}

/// Held by whoever is going to change a slot.
struct Pending(Arc<Semaphore>);

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// What the map holds for an id.
enum Slot {
    /// A Run is being checked.
    Reserved(Change),
    /// A registered job; the address is there while it has not ended.
    Present(Arc<JobView>, Option<Addr<JobActor>>),
    /// Being removed. Seen as before until it is gone.
    Removing(Arc<JobView>, Option<Addr<JobActor>>, Change),
}

/// See the module's text.
#[derive(Default)]
pub struct Registry {
    /// In order, so that what concerns all jobs happens in the same order every time.
    slots: RwLock<BTreeMap<JobId, Slot>>,
    keys: RwLock<HashMap<JobKey, JobId>>,
    /// Records that could not be read: their ids answer `data_loss` (service.md §6.4, 5).
    broken: Mutex<HashSet<JobKey>>,
    /// What the keeper said of jobs whose actors died, until others have their places.
    held_back: Mutex<HashMap<JobKey, Vec<Said>>>,
    /// Ids that had their turn.
    pub(super) remembered: Mutex<Remembered>,
}

/// Answer to [`Registry::reserve`].
pub enum Reserve {
    /// The id is registered: the Run has nothing to do.
    Registered(Arc<JobView>),
    /// Somebody else is at it; ask again when this ends.
    Wait(Change),
    /// The id is the caller's until the reservation is dropped or turned into a job.
    Granted(Reservation),
}

/// An id held for a Run. Dropping it lets the next one try.
pub struct Reservation {
    registry: Arc<Registry>,
    id: JobId,
    registered: bool,
    _pending: Pending,
}

impl Reservation {
    /// Turns the reservation into a registered job.
    pub fn register(mut self, view: Arc<JobView>, job: Addr<JobActor>) {
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

/// A removal in progress, held by the one who removes.
pub struct Removal {
    registry: Arc<Registry>,
    /// The job.
    pub view: Arc<JobView>,
    /// Its actor, if it had not ended.
    pub job: Option<Addr<JobActor>>,
    _pending: Pending,
}

impl Drop for Removal {
    fn drop(&mut self) {
        self.registry.slots.write().remove(&self.view.id);
        self.registry.keys.write().remove(&self.view.key);
    }
}

/// Answer to [`Registry::remove`].
pub enum Remove {
    /// No such id.
    Unknown,
    /// Already being removed; over when this ends.
    Joined(Change),
    /// The caller removes; over when the change comes.
    Begun(Removal, Change),
}

impl Registry {
    /// Reserves `id` for a Run.
    pub fn reserve(self: &Arc<Self>, id: &JobId) -> Reserve {
        let mut slots = self.slots.write();
        match slots.get(id) {
            Some(Slot::Present(view, _)) => Reserve::Registered(Arc::clone(view)),
            Some(Slot::Reserved(change) | Slot::Removing(_, _, change)) => Reserve::Wait(change.clone()),
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

    /// Puts a job in; recovery does so without a reservation.
    pub fn insert(&self, view: Arc<JobView>, job: Option<Addr<JobActor>>) {
        self.keys.write().insert(view.key, view.id.clone());
        self.slots.write().insert(view.id.clone(), Slot::Present(view, job));
    }

    /// Begins or joins the removal of `id`.
    pub fn remove(self: &Arc<Self>, id: &JobId) -> Remove {
        let mut slots = self.slots.write();
        match slots.get(id) {
            // A Run that came after this call.
            None | Some(Slot::Reserved(_)) => Remove::Unknown,
            Some(Slot::Removing(_, _, change)) => Remove::Joined(change.clone()),
            Some(Slot::Present(view, job)) => {
                let (pending, change) = Change::new();
                let (view, job) = (Arc::clone(view), job.clone());
                slots.insert(id.clone(), Slot::Removing(Arc::clone(&view), job.clone(), change.clone()));
                let registry = Arc::clone(self);
                Remove::Begun(Removal { registry, view, job, _pending: pending }, change)
            }
        }
    }

    /// Forgets the actor of a job that has ended.
    pub fn ended(&self, id: &JobId) {
        if let Some(Slot::Present(_, job) | Slot::Removing(_, job, _)) = self.slots.write().get_mut(id) {
            *job = None;
        }
    }

    /// Keeps what the keeper says of a job whose actor died, until [`Self::hand_out`].
    pub(super) fn hold_back(&self, key: JobKey) {
        self.held_back.lock().entry(key).or_default();
    }

    /// What was said of the job since [`Self::hold_back`], in order. From now on its actor is told.
    pub(super) fn hand_out(&self, key: JobKey) -> Vec<Said> {
        self.held_back.lock().remove(&key).unwrap_or_default()
    }

    /// The actor that is to hear what the keeper says of its job; `None`: there is none, or it is kept for the next one.
    pub(super) fn hearer(&self, key: JobKey, said: Said) -> Option<(Addr<JobActor>, Said)> {
        if let Some(kept) = self.held_back.lock().get_mut(&key) {
            kept.push(said);
            return None;
        }
        self.by_key(key)?.1.map(|job| (job, said))
    }

    /// Sets the actor of a registered job anew.
    pub fn replace(&self, id: &JobId, addr: Addr<JobActor>) {
        if let Some(Slot::Present(_, job) | Slot::Removing(_, job, _)) = self.slots.write().get_mut(id) {
            *job = Some(addr);
        }
    }

    /// The registered job `id`.
    pub fn view(&self, id: &JobId) -> Option<Arc<JobView>> {
        match self.slots.read().get(id)? {
            Slot::Present(view, _) | Slot::Removing(view, ..) => Some(Arc::clone(view)),
            Slot::Reserved(_) => None,
        }
    }

    /// The registered job `id`, unless it is on its way out.
    pub fn present(&self, id: &JobId) -> Option<Arc<JobView>> {
        match self.slots.read().get(id)? {
            Slot::Present(view, _) => Some(Arc::clone(view)),
            Slot::Removing(..) | Slot::Reserved(_) => None,
        }
    }

    /// What ends when the Run that is checked under `id` has its answer.
    pub fn reserved(&self, id: &JobId) -> Option<Change> {
        match self.slots.read().get(id)? {
            Slot::Reserved(change) => Some(change.clone()),
            Slot::Present(..) | Slot::Removing(..) => None,
        }
    }

    /// The registered job `id`, or why there is none.
    pub fn known(&self, id: &JobId) -> Result<Arc<JobView>, Refusal> {
        if let Some(view) = self.view(id) {
            return Ok(view);
        }
        if self.is_broken(id.key()) {
            return Err(Refusal::new(
                Reason::DataLoss,
                "the record of this job could not be read and was set aside in the state folder's broken/",
            ));
        }
        let text = match self.remembered.lock().finished_at(id.key()) {
            Some(at) => format!("finished at {}", at.to_rfc3339_opts(SecondsFormat::Secs, true)),
            None => "no job with this id is registered".to_owned(),
        };
        Err(Refusal::new(Reason::UnknownJob, text))
    }

    /// The actor of a job that has not ended.
    pub fn job(&self, id: &JobId) -> Option<Addr<JobActor>> {
        match self.slots.read().get(id)? {
            Slot::Present(_, job) | Slot::Removing(_, job, _) => job.clone(),
            Slot::Reserved(_) => None,
        }
    }

    /// View and actor of the job with this key.
    pub fn by_key(&self, key: JobKey) -> Option<(Arc<JobView>, Option<Addr<JobActor>>)> {
        let id = self.keys.read().get(&key)?.clone();
        match self.slots.read().get(&id)? {
            Slot::Present(view, job) | Slot::Removing(view, job, _) => Some((Arc::clone(view), job.clone())),
            Slot::Reserved(_) => None,
        }
    }

    /// All registered jobs with their actors, ordered by id.
    pub fn all(&self) -> Vec<(Arc<JobView>, Option<Addr<JobActor>>)> {
        let slots = self.slots.read();
        slots
            .values()
            .filter_map(|slot| match slot {
                Slot::Present(view, job) | Slot::Removing(view, job, _) => {
                    Some((Arc::clone(view), job.clone()))
                }
                Slot::Reserved(_) => None,
            })
            .collect()
    }

    /// Number of registered jobs and reservations.
    pub fn len(&self) -> usize {
        self.slots.read().len()
    }

    /// No job is registered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether an id with this key is reserved by a Run: its folder may be there already.
    pub fn is_reserved(&self, key: JobKey) -> bool {
        self.slots.read().iter().any(|(id, slot)| matches!(slot, Slot::Reserved(_)) && id.key() == key)
    }

    /// The record of `key` was set aside.
    pub fn set_broken(&self, key: JobKey) {
        self.broken.lock().insert(key);
    }

    /// Whether the record of `key` was set aside.
    pub fn is_broken(&self, key: JobKey) -> bool {
        self.broken.lock().contains(&key)
    }

    /// What was set aside for `key` is gone.
    pub fn mend(&self, key: JobKey) -> bool {
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
