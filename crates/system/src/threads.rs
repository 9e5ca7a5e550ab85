//! Threads for work that would hold up the thread that serves: long computations, and files that may block.
//!
//! Each kind of work has its own few threads, so that one kind never waits for another: a job ends while requests are
//! checked and folders are deleted. Within a kind the order is that of arrival. A job hands over one piece of work at a
//! time, so jobs take turns; what can be long beyond its limits is done in slices ([`in_slices`]).

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::failpoint;
use step_runner_model::error::{Chain, Exit, Failure};

/// Kinds of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Checks of requests, and answers to calls.
    Requests,
    /// Evaluation and masking for jobs.
    Jobs,
    /// Files that steps have written, or are to read.
    Files,
    /// The ends of jobs.
    Ends,
    /// Deletion of folders.
    Removals,
    /// The search for left-over processes.
    Remains,
    /// Syncs of the file system.
    Syncs,
    /// Look-ups of functions.
    Functions,
    /// Looks at paths that jobs name, where a file system may not answer.
    Lookups,
}

/// Threads of a kind that computes: hosts with one processor have two kinds of such work at a time, too.
const COMPUTING: usize = 2;

/// Threads of a kind that mostly waits for the disk.
const WAITING: usize = 4;

/// Threads of all kinds together, and some for work of libraries. Those that may never end have their own.
pub const ALL: usize = 2 * COMPUTING + 4 * WAITING + 2 + WAITING;

/// Niceness of these threads, added to that of the daemon: a third of the processor time of the thread that serves, when both
/// want the same processor. Processes of jobs are no nicer than the daemon.
const NICENESS: i32 = 5;

/// Time between two attempts to start a thread.
const THREAD_PAUSE: Duration = Duration::from_millis(100);

/// One piece of work in slices takes so long at a time.
const SLICE: Duration = Duration::from_millis(20);

/// Threads of the runtime that have begun. They never end.
static BEGUN: AtomicUsize = AtomicUsize::new(0);

/// Longest time that the threads of [`on_each_idle`] wait for one another.
const MEETING: Duration = Duration::from_millis(50);

impl Work {
    /// The kinds whose threads are those of the runtime, and how many each has.
    const OF_THE_RUNTIME: [(Self, usize); 8] = [
        (Self::Requests, COMPUTING),
        (Self::Jobs, COMPUTING),
        (Self::Files, WAITING),
        (Self::Ends, WAITING),
        (Self::Removals, WAITING),
        (Self::Remains, 1),
        (Self::Syncs, 1),
        (Self::Functions, WAITING),
    ];

    /// True if it may wait for a file system that never answers.
    const fn may_never_end(self) -> bool {
        matches!(self, Self::Lookups)
    }

    fn places(self) -> &'static Arc<Semaphore> {
        use std::sync::LazyLock;
        type Places = LazyLock<Arc<Semaphore>>;
        static REQUESTS: Places = LazyLock::new(|| Arc::new(Semaphore::new(COMPUTING)));
        static JOBS: Places = LazyLock::new(|| Arc::new(Semaphore::new(COMPUTING)));
        static FILES: Places = LazyLock::new(|| Arc::new(Semaphore::new(WAITING)));
        static ENDS: Places = LazyLock::new(|| Arc::new(Semaphore::new(WAITING)));
        static REMOVALS: Places = LazyLock::new(|| Arc::new(Semaphore::new(WAITING)));
        static REMAINS: Places = LazyLock::new(|| Arc::new(Semaphore::new(1)));
        static SYNCS: Places = LazyLock::new(|| Arc::new(Semaphore::new(1)));
        static FUNCTIONS: Places = LazyLock::new(|| Arc::new(Semaphore::new(WAITING)));
        static LOOKUPS: Places = LazyLock::new(|| Arc::new(Semaphore::new(WAITING)));
        match self {
            Self::Requests => &REQUESTS,
            Self::Jobs => &JOBS,
            Self::Files => &FILES,
            Self::Ends => &ENDS,
            Self::Removals => &REMOVALS,
            Self::Remains => &REMAINS,
            Self::Syncs => &SYNCS,
            Self::Functions => &FUNCTIONS,
            Self::Lookups => &LOOKUPS,
        }
    }
}

/// Starts a thread and waits for its end, to see that the system lets us: a runtime panics without one.
///
/// # Errors
/// Says why there is no thread, and what to do.
pub fn probe() -> Result<(), Failure> {
    match std::thread::Builder::new().spawn(|| ()) {
        Ok(thread) => {
            thread.join().ok();
            Ok(())
        }
        Err(error) => Err(refused(&error)),
    }
}

/// Returns the failure of a start of a thread.
fn refused(error: &io::Error) -> Failure {
    let failure = Failure::new(Exit::Failure, format!("cannot start a thread: {error}"));
    // No limit of the system is told with this error. C libraries start threads by `clone3`, and use an older call only
    // if it is missing.
    if error.kind() != io::ErrorKind::PermissionDenied {
        return failure;
    }
    failure.with_remedy(
        "the container's filter of system calls (seccomp) refuses clone3: update the container engine, or use the \
         static program, which needs no clone3",
    )
}

/// Prepares a thread of the runtime, which calls this at its start.
pub fn begin_runtime_thread() {
    BEGUN.fetch_add(1, Ordering::Relaxed);
    come_second();
}

/// Lowers the priority of the calling thread. The thread that serves calls comes first when all processors are busy.
fn come_second() {
    // It is only the latency of calls that suffers without.
    rustix::process::nice(NICENESS).ok();
}

/// Has each thread of the runtime do `work`, unless one of them has other work: then nothing happens.
pub fn on_each_idle(work: fn()) {
    let is_idle = |(kind, all): &(Work, usize)| kind.places().available_permits() == *all;
    if !Work::OF_THE_RUNTIME.iter().all(is_idle) {
        return;
    }
    let all = BEGUN.load(Ordering::Relaxed).min(ALL);
    let met = Arc::new(AtomicUsize::new(0));
    for _ in 0..all {
        let met = Arc::clone(&met);
        drop(spawn_blocking(move || {
            met.fetch_add(1, Ordering::Relaxed);
            work();
            // The runtime gives the next piece to another thread as long as this one is busy.
            let until = Instant::now() + MEETING;
            while met.load(Ordering::Relaxed) < all && Instant::now() < until {
                std::thread::sleep(MEETING / 50);
            }
        }));
    }
}

/// Runs `work` on a thread of its kind. It runs also if the result is dropped.
pub fn run<T: Send + 'static>(kind: Work, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    #[cfg(feature = "failpoints")]
    if crate::clock::is_steered() {
        return tokio::task::spawn_local(async move { work() });
    }
    let places = Arc::clone(kind.places());
    if kind.may_never_end() {
        return tokio::spawn(async move {
            let _place = places.acquire().await.ok();
            on_own_thread(work).await
        });
    }
    match Arc::clone(&places).try_acquire_owned() {
        Ok(place) => spawn_blocking(move || {
            let _place = place;
            work()
        }),
        Err(_) => tokio::spawn(async move {
            // It is never closed.
            let _place = places.acquire().await.ok();
            match spawn_blocking(work).await {
                Ok(done) => done,
                Err(error) => resume_unwind(error.try_into_panic().unwrap_or_else(|error| Box::new(error))),
            }
        }),
    }
}

/// Runs `work` on a thread that the end of the runtime does not wait for.
async fn on_own_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = tokio::sync::oneshot::channel();
    let work = move || {
        come_second();
        // Nobody may want the result any more.
        done.send(catch_unwind(AssertUnwindSafe(work))).ok();
    };
    start_thread(work).await;
    match result.await {
        Ok(Ok(done)) => done,
        Ok(Err(panic)) => resume_unwind(panic),
        Err(_) => resume_unwind(Box::new("a thread has ended without a result")),
    }
}

/// Starts a thread, as soon as the system has one: a limit of threads is used up only for now (faults.md row 15).
async fn start_thread(work: impl FnOnce() + Send + 'static) {
    // A start that fails drops its closure, so the closure only shares the work.
    let work = Arc::new(Mutex::new(Some(work)));
    let mut is_first_try = true;
    loop {
        let shared = Arc::clone(&work);
        let take_and_run = move || {
            let work = shared.lock().take();
            if let Some(work) = work {
                work();
            }
        };
        let started = failpoint::io("threads::start")
            .and_then(|()| std::thread::Builder::new().name("look".into()).spawn(take_and_run));
        match started {
            Ok(_) => return,
            Err(error) if std::mem::replace(&mut is_first_try, false) => {
                tracing::warn!(error = %Chain(&error), "cannot start a thread; the job waits until this works");
            }
            Err(_) => {}
        }
        tokio::time::sleep(THREAD_PAUSE).await;
    }
}

/// Runs `work` again and again until it has a result, other work of the kind between. It ends a slice when its argument
/// says no more.
pub async fn in_slices<T: Send + 'static>(
    kind: Work,
    work: impl FnMut(&dyn Fn() -> bool) -> Option<T> + Send + 'static,
) -> T {
    let mut work = work;
    loop {
        let slice = move || {
            let until = Instant::now() + SLICE;
            let done = work(&|| goes_on(until));
            (work, done)
        };
        match run(kind, slice).await {
            Ok((_, Some(done))) => return done,
            Ok((again, None)) => work = again,
            Err(error) => resume_unwind(error.try_into_panic().unwrap_or_else(|error| Box::new(error))),
        }
    }
}

/// True before `until`. With steered clocks the real time decides nothing.
fn goes_on(until: Instant) -> bool {
    #[cfg(feature = "failpoints")]
    if crate::clock::is_steered() {
        return true;
    }
    Instant::now() < until
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Another test may keep a kind busy, so it is tried until it is done.
    #[test]
    fn fault_76_every_idle_thread_is_met() {
        static MET: Mutex<Vec<std::thread::ThreadId>> = Mutex::new(Vec::new());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .on_thread_start(begin_runtime_thread)
            .enable_time()
            .build();
        runtime.unwrap().block_on(async {
            let together = Arc::new(std::sync::Barrier::new(3));
            let mut threads = Vec::new();
            for _ in 0..3 {
                let together = Arc::clone(&together);
                threads.push(spawn_blocking(move || {
                    together.wait();
                    std::thread::current().id()
                }));
            }
            for thread in threads {
                let id = thread.await.unwrap();
                while !MET.lock().contains(&id) {
                    on_each_idle(|| MET.lock().push(std::thread::current().id()));
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        });
    }

    #[tokio::test]
    async fn fault_76_one_kind_of_work_never_waits_for_another() {
        let (free, blocked) = mpsc::channel::<()>();
        let blocked = Arc::new(parking_lot::Mutex::new(blocked));
        let stuck: Vec<_> = (0..2 * WAITING)
            .flat_map(|_| [Work::Requests, Work::Removals, Work::Functions])
            .map(|kind| {
                let blocked = Arc::clone(&blocked);
                run(kind, move || blocked.lock().recv().is_ok())
            })
            .collect();
        assert_eq!(run(Work::Ends, || 1).await.unwrap(), 1);
        assert_eq!(run(Work::Jobs, || 2).await.unwrap(), 2);
        drop(free);
        for stuck in stuck {
            assert!(!stuck.await.unwrap());
        }
    }

    #[tokio::test]
    async fn fault_76_long_work_in_slices_lets_other_work_of_its_kind_through() {
        let long: Vec<_> = (0..WAITING)
            .map(|_| {
                let mut left = 50;
                tokio::spawn(in_slices(Work::Removals, move |goes_on| {
                    while goes_on() {
                        std::thread::sleep(MEETING / 50);
                    }
                    left -= 1;
                    (left == 0).then_some(())
                }))
            })
            .collect();
        run(Work::Removals, || ()).await.unwrap();
        assert!(long.iter().any(|long| !long.is_finished()));
        for long in long {
            long.await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_panic_is_told_to_who_waits_however_the_work_came_to_its_thread() {
        let all: Vec<_> = (0..3 * COMPUTING).map(|_| run(Work::Jobs, || panic!("on purpose"))).collect();
        for one in all {
            assert!(one.await.unwrap_err().is_panic());
        }
        assert_eq!(run(Work::Jobs, || 1).await.unwrap(), 1);
    }
}
