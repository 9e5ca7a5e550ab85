//! Tests of a fetcher whose worker is a shell script: answers, failures, deaths and cancels of the worker.

use std::fs;
use std::time::Duration;

use tempfile::TempDir;
use tokio::task::JoinSet;

use super::permits::MAX_WORKERS;
use super::*;
use step_runner_lang::ast::Template;
use step_runner_lang::diagnostic::Position;

const HASH: &str = "0123456789abcdef0123456789abcdef01234567";
const JOB: JobKey = JobKey([1; 16]);

/// Start of the script: reads the order and reports the resolved version.
const RESOLVE: &str = r#"read -r order
echo x >> BASE/resolved
say() { echo "$1"; }
say '{"resolved":"HASH"}'
read -r answer
into=${answer#*:\"}
into=${into%\"\}}
echo x >> BASE/transferred
"#;

/// Rest of the script: fills the tree.
const FILL: &str = r#"echo text > "$into/func.yml"
say '{"done":{"files":1,"entries":1,"bytes":5}}'
"#;

/// State folder and worker of a test.
struct World {
    base: TempDir,
}

impl World {
    /// `rest` is the part of the script that transfers.
    fn new(rest: &str) -> Self {
        let world = Self { base: tempfile::tempdir().unwrap() };
        fs::create_dir(world.path("state")).unwrap();
        world.worker(&format!("{RESOLVE}{rest}"));
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.base.path().join(name)
    }

    fn worker(&self, script: &str) {
        let script = script.replace("BASE", self.base.path().to_str().unwrap()).replace("HASH", HASH);
        // A running worker may still read the old one.
        fs::write(self.path("new"), script).unwrap();
        fs::rename(self.path("new"), self.path("worker")).unwrap();
    }

    fn fetcher(&self, cache: u64) -> Arc<Fetcher> {
        self.limited(CacheLimits { cache, kept_free: 0 })
    }

    fn limited(&self, limits: CacheLimits) -> Arc<Fetcher> {
        let program = Program::script(self.path("worker"));
        Arc::new(Fetcher::with_program(program, &self.path("state"), limits, |_| None).unwrap())
    }

    /// Counts the workers that got to the point `what`.
    fn count(&self, what: &str) -> usize {
        fs::read_to_string(self.path(what)).unwrap_or_default().lines().count()
    }
}

fn git(path: &str, rev: &str) -> Reference {
    let file: Arc<str> = "f".into();
    let text = |text: &str| Template::literal(text, &file, Position::START);
    let url = text(&format!("https://u:secret@h/{path}"));
    Reference::Git { url, rev: text(rev), dir: text(""), files: vec![text("func.yml")] }
}

async fn find(fetcher: &Fetcher, rev: &str, environment: &[(&str, &str)]) -> Result<Fetched, FetchFailure> {
    let environment =
        environment.iter().map(|(name, value)| (name.as_bytes().into(), value.as_bytes().into()));
    fetcher.find(JOB, git("p", rev), None, environment.collect(), &|_, _| {}).await
}

async fn find_all(
    fetcher: &Arc<Fetcher>,
    rev: &'static str,
    count: usize,
) -> Vec<Result<Fetched, FetchFailure>> {
    let mut all = JoinSet::new();
    for _ in 0..count {
        let fetcher = Arc::clone(fetcher);
        all.spawn(async move { find(&fetcher, rev, &[]).await });
    }
    all.join_all().await
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let asking = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), asking)
        .await
        .unwrap_or_else(|_| panic!("waited too long until {what}"));
}

#[tokio::test]
async fn a_tag_is_asked_for_each_time_and_its_tree_fetched_once() {
    let world = World::new(FILL);
    let fetcher = world.fetcher(1 << 20);
    for round in 1..=3 {
        let found = find(&fetcher, "v1", &[]).await.ok().unwrap();
        assert_eq!((found.text.as_str(), found.version.as_deref()), ("text\n", Some(HASH)));
        assert!(Path::new(&found.dir).starts_with(world.path("state").canonicalize().unwrap()));
        assert_eq!((world.count("resolved"), world.count("transferred")), (round, 1));
    }
}

#[tokio::test]
async fn a_full_hash_is_asked_for_once_by_each_credential() {
    let world = World::new(FILL);
    let fetcher = world.fetcher(1 << 20);
    let token = [("CI_SERVER_HOST", "h"), ("CI_JOB_TOKEN", "t")];
    for (environment, asked) in [(&[][..], 1), (&[], 1), (&token, 2), (&token, 2), (&[], 2)] {
        assert!(find(&fetcher, HASH, environment).await.is_ok());
        assert_eq!((world.count("resolved"), world.count("transferred")), (asked, 1));
    }
    // The next daemon knows the tree, but not who may read it.
    assert!(find(&world.fetcher(1 << 20), HASH, &[]).await.is_ok());
    assert_eq!((world.count("resolved"), world.count("transferred")), (3, 1));
}

#[tokio::test]
async fn many_at_once_share_one_transfer() {
    let world = World::new(&format!("sleep 0.2\n{FILL}"));
    let fetcher = world.fetcher(1 << 20);
    for found in find_all(&fetcher, "v1", 20).await {
        assert_eq!(found.ok().unwrap().text, "text\n");
    }
    assert_eq!((world.count("resolved"), world.count("transferred")), (20, 1));
}

#[tokio::test]
async fn the_next_one_leads_when_a_leader_fails_or_is_cancelled() {
    // The first worker that transfers writes to a pipe that nobody reads.
    let hang = "mkdir BASE/first 2>/dev/null && { mkfifo BASE/pipe; echo > BASE/pipe; }\n";
    let world = World::new(&format!("{hang}{FILL}"));
    let fetcher = world.fetcher(1 << 20);
    let mut leader = Box::pin(find(&fetcher, "v1", &[]));
    let mut other = Box::pin(find(&fetcher, "v1", &[]));
    tokio::select! {
        _ = &mut leader => panic!("it waits for ever"),
        () = until("one transfers", || world.path("pipe").exists()) => {}
    }
    tokio::select! {
        _ = &mut leader => panic!("it waits for ever"),
        _ = &mut other => panic!("it waits for the leader"),
        () = until("the other has asked", || world.count("resolved") == 2) => {}
    }
    drop(leader);
    assert_eq!(other.await.ok().unwrap().text, "text\n");
    let failing = "mkdir BASE/second 2>/dev/null && { say '{\"failed\":{\"class\":\"fetch\",\"message\":\"no\"}}'; exit; }\n";
    world.worker(&format!("{RESOLVE}{failing}{FILL}").replace("HASH", &HASH.replace('0', "f")));
    let ends = find_all(&fetcher, "v2", 2).await;
    assert_eq!(ends.iter().filter(|end| end.is_ok()).count(), 1);
    assert!(ends.iter().any(|end| end.as_ref().err().is_some_and(|failure| failure.message == "no")));
}

#[tokio::test]
async fn what_is_too_large_for_one_is_too_large_for_all_who_wait() {
    let waits = "until [ -e BASE/go ]; do sleep 0.01; done\n";
    let world =
        World::new(&format!("{waits}say '{{\"failed\":{{\"class\":\"limit\",\"message\":\"no\"}}}}'\n"));
    let fetcher = world.fetcher(1 << 20);
    let mut all = JoinSet::new();
    for _ in 0..5 {
        let fetcher = Arc::clone(&fetcher);
        all.spawn(async move { find(&fetcher, "v1", &[]).await });
    }
    // A fetch that waits for another's transfer has given up its place.
    until("all but one wait for it", || {
        world.count("resolved") == 5 && fetcher.permits.free() == MAX_WORKERS - 1
    })
    .await;
    fs::write(world.path("go"), "").unwrap();
    for end in all.join_all().await {
        assert_eq!(end.err().unwrap().message, "no");
    }
    assert_eq!((world.count("resolved"), world.count("transferred")), (5, 1));
}

#[test]
fn what_may_be_one_jobs_credentials_is_everyones_when_it_comes_twice() {
    let failed = |class, message: &str| failure(class, message.to_owned());
    let network = failed(Class::Fetch, "silent");
    assert!(is_everyones(&failed(Class::Limit, "large"), None));
    assert!(!is_everyones(&network, None));
    assert!(!is_everyones(&network, Some(&failed(Class::Fetch, "denied"))));
    assert!(is_everyones(&network, Some(&network)));
}

#[tokio::test]
async fn nothing_is_fetched_that_would_fill_the_disk() {
    let world = World::new(FILL);
    assert!(find(&world.fetcher(1 << 20), "v1", &[]).await.is_ok());
    let fetcher = world.limited(CacheLimits { cache: 1 << 20, kept_free: u64::MAX });
    fetcher.recovered().await;
    // A tree in the cache can be used. It is evicted for others only when nobody uses it.
    assert!(find(&fetcher, "v1", &[]).await.is_ok());
    fetcher.release(JOB);
    world.worker(&format!("{RESOLVE}{FILL}").replace("HASH", &HASH.replace('0', "f")));
    let failure = find(&fetcher, "v2", &[]).await.err().unwrap();
    assert_eq!(failure.class, Class::Limit);
    assert!(failure.message.starts_with("cannot fetch h/p@v2: "), "{}", failure.message);
    assert!(failure.message.contains("(state_limit)"), "{}", failure.message);
    assert_eq!(world.count("transferred"), 1);
    assert_eq!(fs::read_dir(world.path("state/cache/git")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_transfer_ends_when_what_is_to_come_has_no_room() {
    let world =
        World::new("say '{\"progress\":{\"bytes\":1,\"total\":9000000000000000000}}'; exec sleep 600\n");
    let failure = find(&world.fetcher(1 << 20), "v1", &[]).await.err().unwrap();
    assert_eq!(failure.class, Class::Limit);
    assert!(failure.message.contains("8999999999999999999 more"), "{}", failure.message);
}

#[tokio::test]
async fn nothing_of_a_cancelled_transfer_is_left() {
    let world = World::new("echo $$ > BASE/pid.new; mv BASE/pid.new BASE/pid; exec sleep 600\n");
    let fetcher = world.fetcher(1 << 20);
    let mut transfer = Box::pin(find(&fetcher, "v1", &[]));
    tokio::select! {
        _ = &mut transfer => panic!("it sleeps"),
        () = until("it transfers", || world.path("pid").exists()) => {}
    }
    let pid = fs::read_to_string(world.path("pid")).unwrap();
    drop(transfer);
    let left = || fs::read_dir(world.path("state/cache/tmp")).unwrap().count();
    let process = Path::new("/proc").join(pid.trim());
    until("nothing of it is left", || left() == 0 && !process.exists()).await;
    assert!(!world.path("state/cache/git").exists());
    assert_eq!(fetcher.permits.free(), MAX_WORKERS);
}

#[tokio::test]
async fn how_a_worker_died_is_told_without_credentials() {
    for (end, class, part) in [
        ("kill -9 $$", Class::Limit, "memory"),
        ("kill -ABRT $$", Class::Limit, "memory"),
        ("kill -XFSZ $$", Class::Limit, "a file of more than"),
        ("kill -XCPU $$", Class::Limit, "processor time"),
        ("kill -SEGV $$", Class::Fetch, "segmentation fault"),
        ("exit 3", Class::Fetch, "code 3"),
        ("echo nonsense", Class::Fetch, "did not answer as it should"),
    ] {
        let world = World::new(&format!("{end}\n"));
        let failure = find(&world.fetcher(1 << 20), "v1", &[]).await.err().unwrap();
        assert_eq!(failure.class, class, "{end}");
        assert!(failure.message.starts_with("cannot fetch h/p@v1: "), "{}", failure.message);
        assert!(failure.message.contains(part) && !failure.message.contains("secret"), "{}", failure.message);
    }
}

#[tokio::test]
async fn a_further_try_is_told_with_the_source_and_without_credentials() {
    static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let world = World::new(&format!("say '{{\"retry\":\"no: trying again\"}}'\n{FILL}"));
    let retried = |origin: &str, why: &str| TOLD.lock().push(format!("{origin}: {why}"));
    let found = world.fetcher(1 << 20).find(JOB, git("p", "v1"), None, Vec::new(), &retried).await;
    assert_eq!(found.ok().unwrap().text, "text\n");
    assert_eq!(*TOLD.lock(), ["h/p@v1: no: trying again"]);
}

#[tokio::test]
async fn a_version_of_another_form_is_none() {
    let world = World::new(FILL);
    world.worker(&RESOLVE.replace("HASH", "../../../etc"));
    let failure = find(&world.fetcher(1 << 20), "v1", &[]).await.err().unwrap();
    assert!(failure.message.contains("no usable version"), "{}", failure.message);
}

#[tokio::test]
async fn trees_leave_when_their_jobs_are_over_and_there_is_no_room() {
    let world = World::new(FILL);
    let fetcher = world.fetcher(1);
    fetcher.recovered().await;
    let found = find(&fetcher, "v1", &[]).await.ok().unwrap();
    assert!(Path::new(&found.path).exists(), "in use");
    fetcher.release(JOB);
    assert!(!Path::new(&found.path).exists());
}
