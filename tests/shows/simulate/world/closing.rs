//! The end of a run: conditions that must hold once everything has ended.

use std::rc::Rc;
use std::time::Duration;

use super::clients::long_request;
use super::stage::living;
use super::{Verdict, World};
use step_runner::actors::handle::JobsHandle;
use step_runner::model::JobId;

impl World {
    /// Finishes all jobs and checks that nothing of them is left and all slots are free.
    pub(super) async fn close(&mut self) {
        self.armed.iter().for_each(step_runner::failpoint::fail::remove);
        if self.is_paused {
            self.is_paused = false;
            self.operate(|jobs| async move { jobs.resume().await });
        }
        self.oracle.borrow_mut().note("the end: every id is finished".into());
        self.pass(Duration::from_mins(2)).await;
        self.check_alive().await;
        let Some(daemon) = &self.daemon else { return };
        let jobs = daemon.jobs.clone();
        let oracle = Rc::clone(&self.oracle);
        for id in 0..crate::simulate::schedule::IDS {
            self.finish(id, None);
        }
        self.pass(Duration::from_mins(5)).await;
        let left = jobs.all().len();
        if left > 0 {
            self.wrong(format!("{left} jobs are registered after every id was finished: {:?}", jobs.all()));
        }
        oracle.borrow_mut().all_finished();
        self.slots(&jobs).await;
        self.pass(Duration::from_mins(2)).await;
        if !jobs.all().is_empty() {
            self.wrong("jobs of the last round are left");
        }
        if let Some(keeper) = living() {
            let held = keeper.borrow().holds();
            if held > 0 {
                self.wrong(format!("the keeper holds {held} jobs that nobody knows"));
            }
        }
        let alive: u32 = self.account.borrow().alive.values().sum();
        if alive > 0 {
            self.wrong(format!("{alive} processes are left"));
        }
        self.check_disk();
    }

    /// Checks that as many jobs as there are slots run at once, and no more.
    async fn slots(&self, jobs: &JobsHandle) {
        let slots = match (self.max_running, self.schedule.per_project) {
            (0, Some(most)) => most,
            (0, None) => 3,
            (most, Some(project)) => most.min(project),
            (most, None) => most,
        };
        let most = slots + self.schedule.max_queued.min(1);
        let Some(daemon) = &self.daemon else { return };
        for number in 0..most {
            let (jobs, request) = (jobs.clone(), long_request(number));
            drop(daemon.set.spawn_local(async move { jobs.run(request).await }));
        }
        self.pass(Duration::from_secs(20)).await;
        let running = jobs.all().iter().filter(|job| job.start_time.is_some()).count() as u64;
        let expected =
            if self.max_running == 0 && self.schedule.per_project.is_none() { most } else { slots };
        if running != expected {
            self.wrong(format!("{running} jobs run where {expected} slots are free: {:?}", jobs.all()));
        }
        for number in 0..most {
            let (jobs, id) = (jobs.clone(), JobId::parse(&format!("last-{number}")).unwrap());
            drop(daemon.set.spawn_local(async move { jobs.finish(&id).await }));
        }
    }

    fn check_disk(&self) {
        for folder in ["jobs", "broken"] {
            let path = self.folder.join("state").join(folder);
            let names: Vec<_> =
                std::fs::read_dir(path).into_iter().flatten().map(|e| e.unwrap().file_name()).collect();
            if !names.is_empty() {
                self.wrong(format!("{folder} is not empty: {names:?}"));
            }
        }
    }

    pub(super) fn verdict(&self) -> Verdict {
        Verdict {
            wrongs: self.wrongs.borrow().clone(),
            trace: self.oracle.borrow().trace(),
            passed: self.dawn.elapsed(),
        }
    }
}
