//! The connection between daemon and keeper, with random delays.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use super::{Shared, is_put_in, moment, perform, run_timers};
use crate::random::Random;
use step_runner::keeper::protocol::{FromKeeper, ToKeeper};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// Time for which a keeper with the fault `writes_late` collects frames to write them together.
const LATE: Duration = Duration::from_millis(1_500);

/// The task that reads from a connection.
pub(crate) struct Reader {
    /// Tells it that another connection has come.
    replaced: Rc<Notify>,
    task: JoinHandle<()>,
}

/// Accepts a daemon's connection, which replaces an earlier one. What has come on that one is performed before.
pub(crate) async fn connect(keeper: &Shared, wire: DuplexStream) {
    let earlier = keeper.borrow_mut().reader.take();
    if let Some(Reader { replaced, task }) = earlier {
        replaced.notify_one();
        drop(task.await);
    }
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
    let (shared, replaced) = (Rc::clone(keeper), Rc::new(Notify::new()));
    let hurry = Rc::clone(&replaced);
    let task = tokio::task::spawn_local(async move {
        let mut is_replaced = false;
        loop {
            let mut frame = pin!(async {
                let len = read.read_u32_le().await?;
                let mut bytes = vec![0; len as usize];
                read.read_exact(&mut bytes).await?;
                std::io::Result::Ok(bytes)
            });
            if !is_replaced {
                tokio::select! {
                    biased;
                    () = hurry.notified() => is_replaced = true,
                    frame = &mut frame => {
                        let Ok(bytes) = frame else { break };
                        dawdle(&mut random).await;
                        receive(&shared, serial, &bytes);
                        continue;
                    }
                }
            }
            // Only what is there already.
            let there = poll_fn(|context| Poll::Ready(frame.as_mut().poll(context))).await;
            let Poll::Ready(Ok(bytes)) = there else { break };
            receive(&shared, serial, &bytes);
        }
        let mut keeper = shared.borrow_mut();
        if keeper.connection.0 == serial {
            keeper.connection.1 = None;
        }
    });
    keeper.borrow_mut().reader = Some(Reader { replaced, task });
}

fn receive(keeper: &Shared, serial: u32, frame: &[u8]) {
    let is_current = keeper.borrow().is_alive && keeper.borrow().connection.0 == serial;
    if is_current {
        let ToKeeper { id, request } = postcard::from_bytes(frame).unwrap();
        perform(keeper, id, request);
    }
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
