//! The end of a daemon's life without a signal: idleness or its maximum lifetime (service.md §1.2).

use std::time::Duration;

const IDLE_CHECK: Duration = Duration::from_millis(500);

/// Resolves when nothing has used the daemon for `limit`. `uses` counts uses, to notice those between two checks.
pub(super) async fn idle(limit: Option<Duration>, is_used: impl Fn() -> bool, uses: impl Fn() -> u64) {
    let Some(limit) = limit else { return std::future::pending().await };
    let (mut since, mut seen) = (tokio::time::Instant::now(), uses());
    loop {
        tokio::time::sleep(IDLE_CHECK.min(limit)).await;
        if std::mem::replace(&mut seen, uses()) != seen || is_used() {
            since = tokio::time::Instant::now();
        } else if since.elapsed() >= limit {
            return;
        }
    }
}

pub(super) async fn after(limit: Option<Duration>) {
    match limit {
        Some(limit) => tokio::time::sleep(limit).await,
        None => std::future::pending().await,
    }
}

#[cfg(all(test, feature = "failpoints"))] // which brings virtual time
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_daemon_is_idle_when_nothing_used_it_for_the_whole_time() {
        let begun = tokio::time::Instant::now();
        let until = |seconds| begun.elapsed() < Duration::from_secs(seconds);
        // A job until 10 s, and a short call in every second until 20 s.
        let calls = || begun.elapsed().as_secs().min(20);
        idle(Some(Duration::from_secs(5)), || until(10), calls).await;
        let ended = begun.elapsed();
        assert!(ended >= Duration::from_secs(25) && ended <= Duration::from_secs(26), "{ended:?}");
    }
}
