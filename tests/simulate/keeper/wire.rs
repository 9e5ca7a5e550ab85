//! The connection between daemon and keeper, with random delays.

use std::rc::Rc;
use std::time::Duration;

use super::{Shared, is_put_in, moment, perform, run_timers};
use crate::random::Random;
use step_runner::keeper::protocol::{FromKeeper, ToKeeper};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;
use tokio::time::sleep;

/// Time for which a keeper with the fault `writes_late` collects frames to write them together.
const LATE: Duration = Duration::from_millis(1_500);

/// Accepts a daemon's connection, which replaces an earlier one.
pub(crate) fn connect(keeper: &Shared, wire: DuplexStream) {
    let (mut read, mut write) = tokio::io::split(wire);
    let (sender, mut frames) = mpsc::unbounded_channel::<Vec<u8>>();
    let (serial, mut random) = {
        let mut keeper = keeper.borrow_mut();
        let serial = keeper.connection.0 + 1;
        keeper.connection = (serial, Some(sender));
        keeper.greeted = false;
        (serial, keeper.random.fork(u64::from(serial)))
    };
    if serial == 1 {
        tokio::task::spawn_local(run_timers(Rc::clone(keeper)));
    }
    let mut slow = random.fork(1);
    tokio::task::spawn_local(async move {
        while let Some(mut frame) = frames.recv().await {
            dawdle(&mut slow).await;
            if is_put_in("writes_late") {
                sleep(LATE).await;
                while let Ok(next) = frames.try_recv() {
                    frame.extend(next);
                }
            }
            if write.write_all(&frame).await.is_err() {
                return;
            }
        }
        drop(write.shutdown().await);
    });
    let keeper = Rc::clone(keeper);
    tokio::task::spawn_local(async move {
        loop {
            let frame = async {
                let len = read.read_u32_le().await?;
                let mut bytes = vec![0; len as usize];
                read.read_exact(&mut bytes).await?;
                std::io::Result::Ok(bytes)
            };
            let Ok(bytes) = frame.await else { break };
            dawdle(&mut random).await;
            let current = { keeper.borrow().is_alive && keeper.borrow().connection.0 == serial };
            if !current {
                return;
            }
            let ToKeeper { id, request } = postcard::from_bytes(&bytes).unwrap();
            perform(&keeper, id, request);
        }
        let mut keeper = keeper.borrow_mut();
        if keeper.connection.0 == serial {
            keeper.connection.1 = None;
        }
    });
}

/// Lets other tasks run for a random time: mostly none, sometimes milliseconds.
async fn dawdle(random: &mut Random) {
    match random.below(16) {
        0 => sleep(moment(random)).await,
        1 if random.one_in(8) => sleep(Duration::from_millis(random.below(400))).await,
        2..=5 => {
            for _ in 0..random.below(12) {
                tokio::task::yield_now().await;
            }
        }
        _ => {}
    }
}

pub(super) fn encode(frame: &FromKeeper) -> Vec<u8> {
    let mut bytes = postcard::to_extend(frame, vec![0; 4]).unwrap();
    let len = bytes.len() as u32 - 4;
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    bytes
}
