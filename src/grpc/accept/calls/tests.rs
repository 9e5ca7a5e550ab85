use std::convert::Infallible;

use super::*;

#[tokio::test]
async fn a_call_is_open_until_its_answer_is_sent_or_given_up() {
    let calls = CallCounters::default();
    let answer = || async { Ok::<_, Infallible>(Response::new(Body::new("x".to_owned()))) };
    let service = || calls.count(tower::service_fn(move |_: Request<()>| answer()));
    assert!(!calls.is_one_open());
    let answered = service().oneshot(Request::new(())).await.unwrap();
    assert!(calls.is_one_open());
    drop(answered);
    assert!(!calls.is_one_open());
    drop(service().oneshot(Request::new(())));
    assert_eq!((calls.is_one_open(), calls.begun()), (false, 1));
}
/// One call; the answer counts as unread until the returned value is dropped.
#[cfg(feature = "failpoints")]
async fn answered(line: &Counted<Answering>, method: &str) -> Response<Body> {
    let request = Request::get(format!("/steprunner.v1.StepRunner/{method}")).body(()).unwrap();
    line.clone().oneshot(request).await.unwrap()
}

#[cfg(feature = "failpoints")]
type Answering = tower::util::BoxCloneService<Request<()>, Response<Body>, Infallible>;

#[cfg(feature = "failpoints")]
fn line(calls: &CallCounters) -> Counted<Answering> {
    let answer = |_: Request<()>| async { Ok(Response::new(Body::new("x".to_owned()))) };
    calls.count(tower::util::BoxCloneService::new(tower::service_fn(answer)))
}

#[cfg(feature = "failpoints")] // which brings virtual time
#[tokio::test(start_paused = true)]
async fn the_total_duration_has_no_open_call_and_a_second_at_most_of_each_ended_one() {
    let calls = CallCounters::default();
    let line = line(&calls);
    let (short, long, open) = (
        answered(&line, "Status").await,
        answered(&line, "FollowLogs").await,
        answered(&line, "FollowLogs").await,
    );
    tokio::time::sleep(Duration::from_millis(300)).await;
    drop(short);
    assert_eq!(calls.spent(), Duration::from_millis(300));
    tokio::time::sleep(Duration::from_mins(10)).await;
    drop(long);
    assert_eq!(calls.spent(), Duration::from_millis(1_300));
    drop(open);
}

#[cfg(feature = "failpoints")] // which brings virtual time
#[tokio::test(start_paused = true)]
async fn fault_90_who_follows_is_waited_for_until_it_has_finished_its_job_or_has_left() {
    let calls = CallCounters::default();
    let limit = || Instant::now() + READ_TIME;
    assert!(calls.read_to_the_end(limit()).await, "nobody follows");
    let (finishing, leaving) = (line(&calls), line(&calls));
    drop(answered(&finishing, "Status").await);
    assert!(calls.read_to_the_end(limit()).await, "nobody follows");
    let streams = [answered(&finishing, "FollowLogs").await, answered(&leaving, "FollowSteps").await];
    assert!(!calls.read_to_the_end(limit()).await, "they have not come to their ends");
    let start = Instant::now();
    let clients = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        drop(streams);
        tokio::time::sleep(Duration::from_millis(300)).await;
        drop(answered(&finishing, "Status").await);
        drop(leaving);
        tokio::time::sleep(Duration::from_millis(300)).await;
        drop(answered(&finishing, "Finish").await);
    };
    let (read, ()) = tokio::join!(calls.read_to_the_end(limit()), clients);
    assert!(read);
    assert_eq!(start.elapsed(), Duration::from_millis(900), "as long as the last one, and no longer");
}

#[cfg(feature = "failpoints")] // which brings virtual time
#[tokio::test(start_paused = true)]
async fn fault_90_who_has_its_end_and_finishes_nothing_is_waited_for_no_longer_than_it_may_take() {
    let calls = CallCounters::default();
    let resting = line(&calls);
    drop(answered(&resting, "FollowLogs").await);
    let start = Instant::now();
    assert!(calls.read_to_the_end(start + 2 * READ_TIME).await);
    assert_eq!(start.elapsed(), READ_TIME);
    assert!(calls.read_to_the_end(start).await, "it is not waited for once more");
}

#[tokio::test]
async fn fault_89_a_call_of_another_client_comes_between_the_many_of_one() {
    let calls = CallCounters::default();
    let order = Arc::<Mutex<Vec<&str>>>::default();
    let service = |who: &'static str| {
        let order = Arc::clone(&order);
        calls.count(tower::service_fn(move |_: Request<()>| {
            let order = Arc::clone(&order);
            async move {
                order.lock().push(who);
                Ok::<_, Infallible>(Response::new(Body::empty()))
            }
        }))
    };
    let call =
        |line: &mut Counted<_>| tower::Service::call(line, Request::post("/S/Status").body(()).unwrap());
    let (mut many, mut one) = (service("many"), service("one"));
    // All calls are open before the first is started, as when a connection has read them at once.
    let mut under_way: Vec<_> = (0..1_000).map(|_| call(&mut many)).collect();
    under_way.push(call(&mut one));
    let under_way: Vec<_> = under_way.into_iter().map(tokio::spawn).collect();
    for call in under_way {
        call.await.unwrap().unwrap();
    }
    let place = order.lock().iter().position(|who| *who == "one").unwrap();
    assert!(place < 200, "after {place} others");
}

#[tokio::test]
async fn fault_89_many_calls_of_a_client_get_small_pieces_and_streams_wait_for_no_turn() {
    let calls = CallCounters::default();
    let answer = |request: Request<()>| async move {
        Ok::<_, Infallible>(Response::new(Body::new(
            request.extensions().get::<MemoryShare>().unwrap().piece().to_string(),
        )))
    };
    let service = calls.count(tower::service_fn(answer));
    let call =
        |method: &str| service.clone().oneshot(Request::post(format!("/S/{method}")).body(()).unwrap());
    let mut held = Vec::new();
    for _ in 0..1_024 {
        held.push(call("FollowLogs").await.unwrap());
    }
    assert_eq!(service.line.share.piece(), PIECE.1);
    for _ in 0..MAX_UNARY {
        held.push(call("Status").await.unwrap());
    }
    let mut waiting = std::pin::pin!(call("Status"));
    assert!(futures_util::poll!(waiting.as_mut()).is_pending());
    held.push(call("FollowLogs").await.unwrap());
    held.clear();
    waiting.await.unwrap();
    assert_eq!((service.line.share.piece(), calls.is_one_open()), (PIECE.0, false));
}
