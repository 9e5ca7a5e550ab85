//! Calls of clients. Each call is a task that can be given up.

use std::rc::Rc;
use std::time::Duration;

use super::{World, job_id};
use crate::simulate::request::CLEANUP;
use crate::simulate::schedule::Schedule;
use indexmap::IndexMap;
use step_runner::actors::handle::JobsHandle;
use step_runner::actors::log_sink::MAX_MESSAGE;
use step_runner::model::JobId;
use step_runner::request::{RequestLabels, RequestOrigin, Run, RunEnvironment};
use tokio::time::sleep;

impl World {
    pub(super) fn operate<F: Future<Output = ()> + 'static>(&self, work: impl FnOnce(JobsHandle) -> F) {
        if let Some(daemon) = &self.daemon {
            drop(daemon.set.spawn_local(work(daemon.jobs.clone())));
        }
    }

    /// Starts a call, which can be given up. It ends with the daemon.
    fn call(&self, leaves: Option<u64>, work: impl Future<Output = ()> + 'static) {
        let Some(daemon) = &self.daemon else { return };
        let call = daemon.set.spawn_local(work);
        if let Some(turns) = leaves {
            tokio::task::spawn_local(async move {
                for _ in 0..turns {
                    tokio::task::yield_now().await;
                }
                if turns.is_multiple_of(3) {
                    sleep(Duration::from_millis(turns)).await;
                }
                call.abort();
            });
        }
    }

    pub(super) fn run(&self, id: u64, content: u64, leaves: Option<u64>) {
        let Some(daemon) = &self.daemon else { return };
        let (jobs, oracle) = (daemon.jobs.clone(), Rc::clone(&self.oracle));
        let request = request(&self.schedule, id, content);
        let asked = oracle.borrow_mut().run_asked(id);
        self.call(leaves, async move {
            let job = request.id.clone();
            let answer = jobs.run(request).await;
            if oracle.borrow().has_extra_slots() {
                let mut all = jobs.all();
                jobs.place(&mut all).await;
                oracle.borrow_mut().placed(&all);
            }
            oracle.borrow_mut().observe(&jobs.all());
            oracle.borrow_mut().run_answered(asked, id, content, &answer, jobs.status(&job).ok().as_ref());
        });
    }

    pub(super) fn finish(&self, id: u64, leaves: Option<u64>) {
        let Some(daemon) = &self.daemon else { return };
        let (jobs, oracle) = (daemon.jobs.clone(), Rc::clone(&self.oracle));
        let job = job_id(id);
        let asked = oracle.borrow_mut().finish_asked(id, jobs.status(&job).ok().as_ref());
        self.call(leaves, async move {
            let answer = jobs.finish(&job).await;
            oracle.borrow_mut().observe(&jobs.all());
            let there = jobs.status(&job).ok();
            oracle.borrow_mut().finish_answered(asked, id, &answer, there.as_ref());
        });
    }

    pub(super) fn cancel(&self, id: u64) {
        let Some(daemon) = &self.daemon else { return };
        let (jobs, oracle) = (daemon.jobs.clone(), Rc::clone(&self.oracle));
        let job = job_id(id);
        let before = jobs.status(&job).ok();
        oracle.borrow_mut().cancel_asked(id, before.as_ref());
        self.call(None, async move {
            let answer = jobs.cancel(&job, id.is_multiple_of(5)).await;
            let after = jobs.status(&job).ok();
            oracle.borrow_mut().cancel_answered(id, before.as_ref(), &answer, after.as_ref());
        });
    }

    pub(super) fn follow(&self, id: u64, from: u64, leaves: Option<u64>) {
        let Some(daemon) = &self.daemon else { return };
        let (jobs, oracle) = (daemon.jobs.clone(), Rc::clone(&self.oracle));
        let job = job_id(id);
        let Ok(status) = jobs.status(&job) else { return };
        let offset = oracle.borrow().seen(id, status.registered) * from / 3;
        let follower = oracle.borrow_mut().follow_asked(id, status.registered, leaves.is_some());
        self.call(None, async move {
            let mut cursor = match jobs.follow_logs(&job, offset) {
                Ok(cursor) => cursor,
                Err(refusal) => return oracle.borrow_mut().follow_refused(follower, offset, &refusal),
            };
            let mut at = offset;
            let mut pieces = 0;
            loop {
                if leaves.is_some_and(|most| pieces >= most) {
                    return;
                }
                pieces += 1;
                match cursor.next(|| MAX_MESSAGE).await {
                    Ok(Some(bytes)) => {
                        oracle.borrow_mut().read(follower, at, &bytes);
                        at += bytes.len() as u64;
                    }
                    Ok(None) => {
                        return oracle.borrow_mut().read_to_end(
                            follower,
                            at,
                            jobs.status(&job).ok().as_ref(),
                        );
                    }
                    Err(refusal) => return oracle.borrow_mut().follow_refused(follower, at, &refusal),
                }
            }
        });
    }

    pub(super) fn follow_steps(&self, id: u64) {
        let Some(daemon) = &self.daemon else { return };
        let (jobs, oracle) = (daemon.jobs.clone(), Rc::clone(&self.oracle));
        let job = job_id(id);
        let Ok(status) = jobs.status(&job) else { return };
        let registered = status.registered;
        self.call(None, async move {
            let mut cursor = match jobs.follow_steps(&job) {
                Ok(cursor) => cursor,
                Err(refusal) => return oracle.borrow_mut().steps_refused(id, registered, &refusal),
            };
            let mut at = 0;
            loop {
                match cursor.next().await {
                    Ok(Some(result)) => oracle.borrow_mut().step_read(id, registered, at, &result),
                    Ok(None) => return oracle.borrow_mut().steps_end(id, registered, at),
                    Err(refusal) => return oracle.borrow_mut().steps_refused(id, registered, &refusal),
                }
                at += 1;
            }
        });
    }
}

pub(super) fn request(schedule: &Schedule, id: u64, content: u64) -> Run {
    let planned = &schedule.requests[id as usize][content as usize];
    new_request(job_id(id), planned.text(), content, planned.limit)
}

pub(super) fn long_request(number: u64) -> Run {
    let id = JobId::parse(&format!("last-{number}")).unwrap();
    new_request(id, "[{name: s, script: 'sim 999 1 10000000 0 0 1 0'}]".into(), 0, None)
}

pub(super) fn new_request(id: JobId, steps: String, content: u64, timeout: Option<Duration>) -> Run {
    Run {
        id,
        digest: [content as u8 + 1; 32],
        size: steps.len(),
        labels: RequestLabels::default(),
        environment: RunEnvironment::default(),
        steps,
        file: None,
        inputs: IndexMap::new(),
        timeout,
        cancel_grace: None,
        cleanup_timeout: Some(CLEANUP),
        errexit: false,
        trace_sections: false,
        limits: step_runner::model::ResourceLimits::default(),
        origin: RequestOrigin::V1,
    }
}
