//! The daemon's orders and the keeper's answers.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use super::processes::{close, start};
use super::{Ending, Job, Keeper, Shared, encode};
use step_runner::keeper::protocol::{
    FromKeeper, HeldJob, HoldJob, KeeperError, PROTOCOL_VERSION, Reply, Request, SecretBytes,
};
use step_runner::model::JobKey;
use tokio::sync::watch;
use tokio::time::Instant;

/// Most bytes of a record in one answer. It is so small that a record takes several answers.
const PIECE: usize = 1_000;

/// Returns a record in the form in which it is read.
fn stream(record: &[Vec<u8>]) -> Vec<u8> {
    record.iter().flat_map(|event| [&(event.len() as u32).to_le_bytes(), event.as_slice()].concat()).collect()
}

pub(super) fn perform(keeper: &Shared, id: u64, request: Request) {
    let reply = answer(keeper, request);
    let keeper = keeper.borrow();
    if id != 0
        && let Some(to) = &keeper.connection.1
    {
        drop(to.send(encode(&FromKeeper::Reply { id, reply })));
    }
}

fn answer(shared: &Shared, request: Request) -> Result<Reply, KeeperError> {
    let mut keeper = shared.borrow_mut();
    match request {
        Request::Hello { digest_key, .. } => {
            keeper.greeted = true;
            let digest_key = *keeper.digest_key.get_or_insert(digest_key);
            Ok(Reply::Hello {
                version: PROTOCOL_VERSION,
                pid: 1,
                cgroup: None,
                jobs: keeper.jobs.keys().copied().collect(),
                remembered: keeper.remembered.clone(),
                digest_key,
                unenforceable: Vec::new(),
            })
        }
        Request::Hold(hold) => {
            keeper.is_told = true;
            keeper.hold(*hold)
        }
        Request::Remember(entry) => {
            keeper.remembered.retain(|known| known.key != entry.key);
            keeper.remembered.push(entry);
            Ok(Reply::Done)
        }
        Request::Bye => {
            keeper.die();
            Ok(Reply::Done)
        }
        Request::Drop { key } => {
            keeper.forget(key);
            Ok(Reply::Done)
        }
        request => {
            drop(keeper);
            for_job(shared, request)
        }
    }
}

impl Keeper {
    fn hold(&mut self, hold: HoldJob) -> Result<Reply, KeeperError> {
        if let Some(job) = self.jobs.get(&hold.key) {
            if job.tag != hold.tag {
                self.wrong(format!("{} is held a second time", hold.key));
            }
            return Ok(Reply::Held { log_inode: job.inode, log_len: job.len });
        }
        let path = self.state.join(format!("jobs/{}/log", hold.key));
        let log = File::options()
            .append(true)
            .create(true)
            .open(&path)
            .map_err(|e| KeeperError::Log { errno: e.raw_os_error().unwrap_or(0), message: e.to_string() })?;
        log.set_len(hold.log_len).unwrap();
        let meta = log.metadata().unwrap();
        let job = Job {
            tag: hold.tag,
            record: vec![hold.record],
            brief: hold.brief,
            last_op: 0,
            over: Vec::new(),
            running: None,
            closing: false,
            closed: None,
            inode: meta.ino(),
            len: meta.len(),
            log,
            end: watch::channel(None).0,
        };
        let reply = Reply::Held { log_inode: job.inode, log_len: job.len };
        self.jobs.insert(hold.key, job);
        Ok(reply)
    }

    fn forget(&mut self, key: JobKey) {
        if let Some(job) = self.jobs.remove(&key) {
            self.account.borrow_mut().alive.remove(&job.tag);
        }
    }

    /// Asks the job's processes to end. Of several graces the shorter one counts.
    pub(super) fn stop(&mut self, key: JobKey, grace: Duration) {
        let Some(job) = self.jobs.get_mut(&key) else { return };
        let now = Instant::now();
        job.end.send_modify(|end| {
            let first = end.map_or(now, |end| end.first);
            let kill_at = end.map_or(first + grace, |end| end.kill_at.min(end.first + grace));
            *end = Some(Ending { first, kill_at });
        });
    }

    fn is_new(&mut self, key: JobKey, op: u32) -> bool {
        let Some(job) = self.jobs.get_mut(&key) else { return false };
        let new = op > job.last_op;
        job.last_op = job.last_op.max(op);
        new
    }
}

fn for_job(shared: &Shared, request: Request) -> Result<Reply, KeeperError> {
    let mut keeper = shared.borrow_mut();
    let key = match &request {
        Request::Record { key, .. }
        | Request::Phrases { key, .. }
        | Request::Line { key, .. }
        | Request::Stop { key, .. }
        | Request::Close { key, .. }
        | Request::Resume { key }
        | Request::WatchUnfinished { key }
        | Request::ReadRecord { key, .. } => *key,
        Request::Spawn(spawn) => spawn.key,
        _ => return Err(KeeperError::UnknownJob),
    };
    let Some(job) = keeper.jobs.get_mut(&key) else { return Err(KeeperError::UnknownJob) };
    match request {
        Request::Record { seq, event, .. } if seq as usize == job.record.len() => job.record.push(event),
        Request::Resume { .. } => {
            return Ok(Reply::Resumed(Box::new(HeldJob {
                tag: job.tag,
                brief: SecretBytes(job.brief.clone()),
                events: job.record.len() as u32,
                record_len: stream(&job.record).len() as u64,
                last_op: job.last_op,
                over: job.over.clone(),
                closed: job.closed.clone(),
                log_inode: job.inode,
                log_len: job.len,
            })));
        }
        Request::ReadRecord { offset, .. } => {
            let rest = stream(&job.record).split_off(offset as usize);
            let piece = rest.into_iter().take(PIECE).collect();
            return Ok(Reply::Piece(SecretBytes(piece)));
        }
        Request::Stop { grace, .. } => {
            if job.running.is_some() {
                let tag = job.tag;
                keeper.account.borrow_mut().stopped.insert(tag);
            }
            keeper.stop(key, grace);
        }
        Request::Line { op, text, .. } if keeper.is_new(key, op) => {
            keeper.append(key, &format!("line {text}\n"));
        }
        Request::Phrases { op, .. } => drop(keeper.is_new(key, op)),
        Request::Spawn(spawn) if keeper.is_new(key, spawn.op) => {
            drop(keeper);
            start(shared, &spawn);
        }
        Request::Close { op, leftover_grace, lines, .. } if keeper.is_new(key, op) => {
            keeper.close(key);
            drop(keeper);
            close(shared, key, leftover_grace, lines.into_iter().map(|(_, text)| text).collect());
        }
        _ => {}
    }
    Ok(Reply::Done)
}
