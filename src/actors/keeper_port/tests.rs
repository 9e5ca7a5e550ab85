use super::*;

#[test]
fn a_keeper_that_ends_its_jobs_is_waited_for_as_long_as_that_may_take() {
    let config = Config {
        cancel_grace: Duration::from_mins(5),
        kill_wait: Duration::from_mins(2),
        ..Config::default()
    };
    assert!(find_time(&config) > Duration::from_mins(5 + 2) + GIVE_UP_AFTER);
}

#[cfg(feature = "failpoints")]
mod played;

/// Keepers that keep silent, on virtual time.
#[cfg(feature = "failpoints")]
mod silent {
    use std::cell::RefCell;
    use std::io::Seek;

    use rustix::io::Errno;

    use super::super::silence::{ANSWER_TIME, BYE_TIME, WAKE_AFTER};
    use super::played::{Scene, answer, halves, hello, next, play, send};
    use super::*;

    const MOMENT: Duration = Duration::from_millis(100);

    #[tokio::test(start_paused = true)]
    async fn fault_42_a_keeper_found_silent_is_continued_and_then_killed() {
        play(async |scene| {
            let found = scene.port.find(&scene.supervisor).await;
            assert!(found.unwrap().is_none(), "its jobs are those of a dead one");
            let life = scene.host.0.lock();
            assert!(scene.passed(life.woken) < WAKE_AFTER + MOMENT);
            assert!(!life.alive && scene.passed(life.killed) >= ANSWER_TIME);
            assert!(scene.begun.elapsed() < ANSWER_TIME + MOMENT);
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn fault_42_a_silent_keeper_that_cannot_be_ended_is_an_error_and_no_wait() {
        play(async |scene| {
            scene.host.0.lock().unknown_until += Duration::from_hours(1);
            let problem = scene.port.find(&scene.supervisor).await.err().unwrap().to_string();
            assert!(problem.contains("keeper.lock"), "{problem}");
            assert!(scene.begun.elapsed() < 2 * ANSWER_TIME);
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_keeper_that_keeps_silent_refuses_its_job_and_leaves_room_for_another() {
        play(async |scene| {
            scene.host.0.lock().alive = false;
            for _ in 0..2 {
                let Err(problem) = scene.port.get(&scene.supervisor).await else { panic!("no keeper") };
                assert!(matches!(problem, KeeperProblem::Link(LinkError::Silent)), "{problem}");
                assert!(!scene.host.0.lock().alive);
            }
            assert!(scene.port.living().await.is_none());
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_keeper_that_a_killed_daemon_had_just_started_makes_way_for_another() {
        play(async |scene| {
            scene.host.0.lock().answers = true;
            let keeper = scene.port.get(&scene.supervisor).await.unwrap();
            assert!(!keeper.link.is_over() && scene.host.0.lock().killed.is_some());
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn callers_at_the_same_time_get_one_keeper() {
        play(async |scene| {
            {
                let mut life = scene.host.0.lock();
                (life.alive, life.answers) = (false, true);
            }
            let get = || scene.port.get(&scene.supervisor);
            let (first, second, living) = tokio::join!(get(), get(), scene.port.living());
            assert!(first.is_ok() && second.is_ok() && living.is_some());
            assert_eq!(scene.host.0.lock().ends.len(), 1);
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_keeper_of_another_version_is_left_alone() {
        play(async |scene| {
            let answer = async {
                tokio::time::sleep(MOMENT).await;
                let theirs = scene.host.0.lock().ends.remove(0);
                let (mut read, mut write) = halves(theirs);
                let asked = next(&mut read).await.unwrap();
                send(&mut write, asked.id, hello(PROTOCOL_VERSION + 1, [0; 16])).await;
            };
            let (found, ()) = tokio::join!(scene.port.find(&scene.supervisor), answer);
            let Err(KeeperProblem::OtherVersion { theirs }) = found else { panic!("a version is accepted") };
            assert_eq!(theirs, PROTOCOL_VERSION + 1);
            assert!(scene.port.living().await.is_none() && scene.host.0.lock().alive);
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn settings_changed_without_a_keeper_reach_the_next_one() {
        play(async |scene| {
            scene.host.0.lock().alive = false;
            let kill_wait = Duration::from_secs(77);
            scene.port.configure(Arc::new(Config { kill_wait, ..Config::default() }));
            let read = async {
                tokio::time::sleep(MOMENT).await;
                let theirs = scene.host.0.lock().ends.remove(0);
                let asked = next(&mut halves(theirs).0).await.unwrap().request;
                assert!(matches!(&asked, Request::Hello { settings, .. } if settings.kill_wait == kill_wait));
            };
            let (got, ()) = tokio::join!(scene.port.get(&scene.supervisor), read);
            assert!(got.is_err(), "nobody answered");
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_keeper_that_hangs_before_it_has_its_lock_is_killed() {
        play(async |scene| {
            {
                let mut life = scene.host.0.lock();
                (life.alive, life.hangs) = (false, true);
            }
            let Err(problem) = scene.port.get(&scene.supervisor).await else { panic!("no keeper") };
            assert!(matches!(problem, KeeperProblem::Link(LinkError::Silent)), "{problem}");
            assert_eq!(scene.host.0.lock().hanging, None);
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn fault_58_a_stop_leaves_no_keeper_that_hangs_in_its_start() {
        play(async |scene| {
            {
                let mut life = scene.host.0.lock();
                (life.alive, life.hangs) = (false, true);
            }
            let stop = async {
                tokio::time::sleep(MOMENT).await;
                assert!(!scene.port.say_bye().await);
                assert_eq!(scene.host.0.lock().hanging, None);
            };
            let (got, ()) = tokio::join!(scene.port.get(&scene.supervisor), stop);
            assert!(got.is_err());
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_keeper_gets_its_time_to_die_though_an_earlier_one_did_not_die_in_it() {
        play(async |scene| {
            {
                let mut life = scene.host.0.lock();
                (life.alive, life.unknown_until) = (false, scene.begun + Duration::from_hours(1));
            }
            let Err(problem) = scene.port.get(&scene.supervisor).await else { panic!("no keeper") };
            assert!(matches!(problem, KeeperProblem::Lasting { .. }), "{problem}");
            {
                let mut life = scene.host.0.lock();
                (life.alive, life.answers) = (false, true);
            }
            let link = scene.port.get(&scene.supervisor).await.unwrap().link;
            {
                let mut life = scene.host.0.lock();
                for end in life.ends.drain(..) {
                    end.shutdown(std::net::Shutdown::Both).unwrap();
                }
                life.unknown_until = Instant::now() + MOMENT;
            }
            while !link.is_over() {
                tokio::task::yield_now().await;
            }
            scene.port.try_forget().await.unwrap();
            assert!(!scene.host.0.lock().alive);
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_takes_its_time_is_waited_for_while_the_keeper_answers_others() {
        play(async |scene| {
            let scene = scene.greeted().await;
            let theirs = scene.host.0.lock().ends.remove(0);
            tokio::task::spawn_local(answer(theirs, Duration::ZERO, 3 * ANSWER_TIME));
            let link = scene.port.now().unwrap().link;
            let key = crate::model::JobId::parse("1").unwrap().key();
            let asked = scene.port.ask_living(&link, Request::Resume { key }).await;
            assert!(matches!(asked, Ok(Reply::Done)), "{asked:?}");
            assert!(scene.begun.elapsed() >= 3 * ANSWER_TIME && scene.host.0.lock().woken.is_none());
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_operator_hears_once_of_a_keeper_that_is_slow_again_and_again() {
        // Runs in a process of its own: the first thread that writes a log line settles who gets all lines.
        if std::env::var_os("LOG_OF_PORT").is_none() {
            let test = std::env::current_exe().unwrap();
            let name = "actors::keeper_port::tests::silent::\
                        the_operator_hears_once_of_a_keeper_that_is_slow_again_and_again";
            let mut command = std::process::Command::new(test);
            command.args(["--exact", name]).env("LOG_OF_PORT", "1").stdout(std::process::Stdio::null());
            assert!(command.status().unwrap().success());
            return;
        }
        let log = Arc::new(tempfile::tempfile().unwrap());
        let writer = tracing_subscriber::fmt().with_writer(Arc::clone(&log)).finish();
        let _writes = tracing::subscriber::set_default(writer);
        play(async |scene| {
            let scene = scene.greeted().await;
            let theirs = scene.host.0.lock().ends.remove(0);
            tokio::task::spawn_local(answer(theirs, 2 * WAKE_AFTER, ANSWER_TIME));
            let link = scene.port.now().unwrap().link;
            let key = crate::model::JobId::parse("1").unwrap().key();
            scene.port.ask_living(&link, Request::Resume { key }).await.unwrap();
        })
        .await;
        (&*log).rewind().unwrap();
        let said = std::io::read_to_string(&*log).unwrap();
        assert_eq!(said.matches("does not answer").count(), 1, "{said}");
    }

    /// Asks the keeper, which does not answer.
    async fn asks_in_vain(scene: &Scene) {
        let link = scene.port.now().unwrap().link;
        let key = crate::model::JobId::parse("1").unwrap().key();
        let asked = scene.port.ask_living(&link, Request::Resume { key }).await;
        assert!(matches!(asked, Err(LinkError::Silent)), "{asked:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_not_waited_for_when_the_keeper_answers_nothing() {
        play(async |scene| {
            let scene = scene.greeted().await;
            asks_in_vain(&scene).await;
            assert!(scene.begun.elapsed() < 2 * ANSWER_TIME && scene.host.0.lock().woken.is_some());
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn jobs_are_taken_again_once_a_silent_keeper_was_ended() {
        play(async |scene| {
            let scene = scene.greeted().await;
            asks_in_vain(&scene).await;
            assert!(scene.port.is_silent() && scene.port.answers().await.is_err());
            scene.port.end_silent().await.unwrap();
            assert!(!scene.port.is_silent() && scene.port.answers().await.is_ok());
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn jobs_are_taken_again_after_a_new_keeper_kept_silent() {
        play(async |scene| {
            scene.host.0.lock().alive = false;
            assert!(scene.port.get(&scene.supervisor).await.is_err());
            assert!(!scene.port.is_silent() && scene.port.answers().await.is_ok());
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn fault_54_a_keeper_that_cannot_be_looked_at_counts_as_living_until_it_can() {
        play(async |scene| {
            let scene = scene.cut_off().await;
            let back = scene.begun + Duration::from_secs(20);
            {
                let mut life = scene.host.0.lock();
                (life.unseen, life.unknown_until) = (Some((Errno::MFILE, back)), back);
            }
            let forgotten = RefCell::new(false);
            let forget = async {
                scene.port.forget().await;
                *forgotten.borrow_mut() = true;
            };
            let run = async {
                tokio::time::sleep(Duration::from_secs(10)).await;
                let Err(problem) = scene.port.get(&scene.supervisor).await else { panic!("no keeper") };
                assert!(matches!(problem, KeeperProblem::Io(_)), "{problem}");
                assert!(!*forgotten.borrow(), "its jobs were to be interrupted beside it");
            };
            tokio::join!(forget, run);
            assert!(scene.host.0.lock().killed.unwrap() >= back);
            assert!(scene.port.now().is_none());
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_that_can_never_be_read_holds_nothing_up() {
        play(async |scene| {
            let scene = scene.cut_off().await;
            scene.host.0.lock().unseen = Some((Errno::ACCESS, scene.begun + Duration::from_hours(1)));
            scene.port.forget().await;
            assert!(!scene.host.0.lock().alive);
            assert!(scene.begun.elapsed() < Duration::from_secs(10));
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn fault_58_a_keeper_that_does_not_hear_the_bye_is_killed() {
        play(async |scene| {
            let scene = scene.greeted().await;
            assert!(!scene.port.say_bye().await);
            assert!(!scene.host.0.lock().alive);
            assert!(scene.begun.elapsed() < BYE_TIME + MOMENT);
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn fault_58_a_stop_does_not_wait_behind_a_start_of_a_keeper() {
        play(async |scene| {
            scene.host.0.lock().alive = false;
            let stop = async {
                tokio::time::sleep(MOMENT).await;
                assert!(!scene.port.say_bye().await);
                assert!(scene.begun.elapsed() < BYE_TIME + 2 * MOMENT);
            };
            let (got, ()) = tokio::join!(scene.port.get(&scene.supervisor), stop);
            assert!(got.is_err());
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_bye_without_a_keeper_is_heard() {
        play(async |scene| assert!(scene.port.say_bye().await)).await;
    }
}

#[test]
fn a_refusal_for_want_of_a_keeper_says_why() {
    let problem = KeeperProblem::from(std::io::Error::other("no memory"));
    let refusal = Refusal::from(problem).to_string();
    assert!(refusal.contains("cannot start or reach the keeper: no memory"), "{refusal}");
}
