//! A double of a GitLab instance on the loopback: the API that runners use, with a record of requests and faults on
//! request. It checks tokens, ranges and checksums as GitLab does, and notes every breach.

#![allow(dead_code, reason = "each program uses a part")]
#![allow(clippy::allow_attributes, reason = "as above: `expect` would fail in a program that uses all")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "for tests only")]

mod artifacts;
pub(crate) mod cell;
pub(crate) mod clients;
pub(crate) mod http;
mod jobs;
pub(crate) mod port;
mod queue;
pub(crate) mod selection;
mod times;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use clients::Client;
use http::{Answer, Request};
use serde_json::{Value, json};

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_mins(1);

/// Token of the runner that exists from the start.
pub(crate) const RUNNER: &str = "glrt-t1_A1FakeRunner0001";

/// A registration token and an access token.
pub(crate) const REGISTRATION: &str = "GR1348941FakeRegistration";
pub(crate) const ACCESS: &str = "glpat-FakeAccessToken0001";

/// Fault of the server.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// This answer, and nothing is done.
    Answer(Answer),
    /// The request is carried out, and its answer is lost.
    Lost,
    /// The connection is closed before anything is done.
    Reset,
    /// The answer comes only after this time.
    Slow(Duration),
}

/// A fault for requests whose method and path begin with a text.
struct Rule {
    start: String,
    times: usize,
    fault: Fault,
}

/// A job at the server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Job {
    pub(crate) token: String,
    /// `pending`, `running`, `canceling`, `canceled`, `success`, `failed`.
    pub(crate) state: String,
    pub(crate) trace: Vec<u8>,
    /// Bodies of updates with a final state, each as it was taken.
    pub(crate) finals: Vec<Value>,
    /// Number of updates that said `running`.
    pub(crate) running: usize,
    /// Artifacts: the query of each upload, name of the file, content.
    pub(crate) artifacts: Vec<(String, String, Vec<u8>)>,
    /// Number of uploads that came again with the same content.
    pub(crate) uploads_again: usize,
    pub(crate) times: times::Times,
}

impl Job {
    /// Returns the trace as a text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.trace).into_owned()
    }

    /// True if it has not ended.
    fn is_live(&self) -> bool {
        ["pending", "running", "canceling"].contains(&self.state.as_str())
    }
}

/// Everything that the server knows.
#[derive(Default)]
pub(crate) struct World {
    /// Valid tokens of runners, with their numbers.
    pub(crate) runners: BTreeMap<String, u64>,
    pub(crate) queue: VecDeque<Value>,
    pub(crate) selection: selection::Selection,
    given: Vec<queue::Given>,
    /// Number of requests for a job that are held.
    pub(crate) held: usize,
    pub(crate) jobs: BTreeMap<u64, Job>,
    pub(crate) seen: Vec<Request>,
    /// What a client did that GitLab would refuse, or that no client should do.
    pub(crate) breaches: Vec<String>,
    /// Program that calls. Our agent, unless a test says otherwise.
    pub(crate) client: Client,
    rules: Vec<Rule>,
    tickets: u64,
    /// Time for which a request with the latest ticket is held.
    pub(crate) hold: Duration,
    /// Seconds between two pieces of a trace.
    pub(crate) interval: u64,
    made: u64,
    cell: Option<cell::Cell>,
    /// Tokens of runners, also of those that are gone.
    issued: BTreeSet<String>,
    /// Beginning of all tickets.
    pub(crate) ticket: String,
    is_away: bool,
    is_over: bool,
}

impl World {
    /// Returns the requests that were seen, each as `METHOD PATH`.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.seen.iter().map(|request| format!("{} {}", request.method, request.path)).collect()
    }
}

struct Shared {
    world: Mutex<World>,
    changed: Condvar,
}

/// A running server.
pub(crate) struct FakeGitlab {
    shared: Arc<Shared>,
    address: SocketAddr,
    prefix: String,
    /// Of a cell, which can be away.
    port: Option<port::Port>,
}

impl FakeGitlab {
    /// Starts a server on a free port.
    pub(crate) fn start() -> Self {
        Self::start_at("127.0.0.1:0", "")
    }

    /// Starts a server at an address. `prefix` is the path of the instance.
    pub(crate) fn start_at(address: &str, prefix: &str) -> Self {
        Self::start_on(TcpListener::bind(address).unwrap(), prefix)
    }

    fn start_on(listener: TcpListener, prefix: &str) -> Self {
        let address = listener.local_addr().unwrap();
        let mut world = World { interval: 1, ..World::default() };
        world.add_runner(RUNNER.to_owned(), 11);
        let shared = Arc::new(Shared { world: Mutex::new(world), changed: Condvar::new() });
        accept(listener, Arc::clone(&shared), prefix.to_owned());
        Self { shared, address, prefix: prefix.to_owned(), port: None }
    }

    /// Returns the address of the instance.
    pub(crate) fn url(&self) -> String {
        format!("http://{}{}", self.address, self.prefix)
    }

    /// Returns what the server knows.
    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.shared)
    }

    /// Changes what the server knows.
    pub(crate) fn change<T>(&self, work: impl FnOnce(&mut World) -> T) -> T {
        let result = work(&mut self.world());
        self.shared.changed.notify_all();
        result
    }

    /// Waits until `state` returns a value.
    #[track_caller]
    pub(crate) fn wait_for<T>(&self, what: &str, mut state: impl FnMut(&World) -> Option<T>) -> T {
        let start = Instant::now();
        let mut world = self.world();
        loop {
            if let Some(found) = state(&world) {
                return found;
            }
            let left = PATIENCE.checked_sub(start.elapsed());
            let left =
                left.unwrap_or_else(|| panic!("waited too long for {what}; calls: {:#?}", world.calls()));
            world = self.shared.changed.wait_timeout(world, left).unwrap().0;
        }
    }

    /// Makes the next `times` requests that begin with `start`, such as `PATCH /jobs/7/`, meet a fault.
    pub(crate) fn fault(&self, start: &str, times: usize, fault: Fault) {
        self.change(|world| world.rules.push(Rule { start: start.to_owned(), times, fault }));
    }

    /// Ends all faults.
    pub(crate) fn forget_faults(&self) {
        self.change(|world| world.rules.clear());
    }

    /// Puts a job into the queue. Returns its number.
    pub(crate) fn add(&self, change: impl FnOnce(&mut Value)) -> u64 {
        self.add_tagged(BTreeSet::new(), change)
    }

    fn add_tagged(&self, tags: BTreeSet<String>, change: impl FnOnce(&mut Value)) -> u64 {
        self.change(|world| {
            world.made += 1;
            let id = 1_000 + world.made;
            world.selection.tags.insert(id, tags);
            let (server, token) = world.face(self.url(), id);
            let mut job = payload(id, &server, &token);
            change(&mut job);
            let token = job["token"].as_str().unwrap_or_default().to_owned();
            world.jobs.insert(id, Job { token, state: "pending".to_owned(), ..Job::default() });
            world.tickets += 1;
            world.queue.push_back(job);
            id
        })
    }

    /// Puts a job with one script into the queue.
    pub(crate) fn add_script(&self, lines: &[&str]) -> u64 {
        self.add(|job| job["steps"][0]["script"] = json!(lines))
    }

    /// Waits until a job is over at the server, and returns it.
    #[track_caller]
    pub(crate) fn ended(&self, job: u64) -> Job {
        self.wait_for(&format!("the end of job {job}"), |world| {
            let found = world.jobs.get(&job)?;
            (!found.finals.is_empty()).then(|| found.clone())
        })
    }

    /// Waits for the end of a job as long as it takes, and returns it.
    pub(crate) fn wait_for_ever(&self, job: u64) -> Job {
        let mut world = self.world();
        loop {
            match world.jobs.get(&job) {
                Some(found) if !found.finals.is_empty() => return found.clone(),
                _ => world = self.shared.changed.wait(world).unwrap(),
            }
        }
    }

    /// Asserts that no client did what GitLab would refuse.
    #[track_caller]
    pub(crate) fn assert_clean(&self) {
        let world = self.world();
        assert!(world.breaches.is_empty(), "{:#?}", world.breaches);
    }
}

impl Drop for FakeGitlab {
    fn drop(&mut self) {
        self.change(|world| world.is_over = true);
        // Wakes the thread that accepts.
        drop(TcpStream::connect(self.address));
    }
}

/// Returns a job as GitLab sends it.
fn payload(id: u64, server: &str, token: &str) -> Value {
    let variable =
        |key: &str, value: &str| json!({"key": key, "value": value, "public": true, "masked": false});
    json!({
        "id": id,
        "token": token,
        "allow_git_fetch": true,
        "job_info": {"id": id, "name": "job", "stage": "test", "project_id": 5, "project_name": "project"},
        "git_info": {
            "repo_url": format!("{}/group/project.git", server.replace("http://", &format!("http://gitlab-ci-token:{token}@"))),
            "ref": "main",
            "sha": "1111111111111111111111111111111111111111",
            "before_sha": "0000000000000000000000000000000000000000",
            "ref_type": "branch",
            "refspecs": ["+refs/heads/main:refs/remotes/origin/main"],
            "depth": 20,
        },
        "runner_info": {"timeout": 600},
        "variables": [
            variable("CI_JOB_ID", &id.to_string()),
            {"key": "CI_JOB_TOKEN", "value": token, "public": false, "masked": true},
            variable("CI", "true"),
            variable("CI_SERVER_URL", server),
            variable("CI_PROJECT_ID", "5"),
            variable("CI_PROJECT_PATH", "group/project"),
            variable("GIT_STRATEGY", "none"),
        ],
        "steps": [{"name": "script", "script": ["echo hello"], "timeout": 600, "when": "on_success"}],
        "image": null,
        "services": [],
        "artifacts": null,
        "cache": [],
        "credentials": [],
        "dependencies": [],
        "hooks": [],
        "features": {"trace_sections": true, "token_mask_prefixes": ["glpat-"], "failure_reasons": ["unknown_failure",
            "script_failure", "runner_system_failure", "job_execution_timeout", "runner_configuration_error",
            "job_canceled", "runner_interrupted"]},
    })
}

/// Locks the world. A test that has failed may have poisoned it.
fn lock(shared: &Shared) -> MutexGuard<'_, World> {
    shared.world.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Serves connections until the server is over or away.
fn accept(listener: TcpListener, shared: Arc<Shared>, prefix: String) {
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let is_done = {
                let world = lock(&shared);
                world.is_over || world.is_away
            };
            if is_done {
                return;
            }
            let (shared, prefix) = (Arc::clone(&shared), prefix.clone());
            std::thread::spawn(move || serve(&shared, &prefix, connection));
        }
    });
}

fn serve(shared: &Shared, prefix: &str, mut connection: TcpStream) {
    let Some(mut request) = Request::read(&mut connection) else { return };
    let Some(path) = lock(shared).api_path(prefix, &request.path) else {
        return cell::elsewhere(shared, &request, &mut connection);
    };
    request.path = path;
    let fault = {
        let mut world = lock(shared);
        let name = format!("{} {}", request.method, request.path);
        world.seen.push(request.clone());
        world.rules.retain(|rule| rule.times > 0);
        let rule = world.rules.iter_mut().find(|rule| name.starts_with(&rule.start));
        rule.map(|rule| {
            rule.times -= 1;
            rule.fault.clone()
        })
    };
    shared.changed.notify_all();
    let answer = match fault {
        Some(Fault::Answer(answer)) => answer,
        Some(Fault::Reset) => return drop(connection.shutdown(Shutdown::Both)),
        Some(Fault::Lost) => {
            handle(shared, &request);
            return drop(connection.shutdown(Shutdown::Both));
        }
        Some(Fault::Slow(time)) => {
            std::thread::sleep(time);
            handle(shared, &request)
        }
        None => handle(shared, &request),
    };
    answer.write(&mut connection);
}

fn handle(shared: &Shared, request: &Request) -> Answer {
    let mut world = lock(shared);
    if breaches(&mut world, request) {
        return Answer::status(400);
    }
    let path = request.path.split('?').next().unwrap_or_default().to_owned();
    let words: Vec<&str> = path.trim_matches('/').split('/').collect();
    let answer = match (request.method.as_str(), &words[..]) {
        ("POST", ["user", "runners"]) => create(&mut world, request),
        ("POST", ["runners"]) => register(&mut world, request),
        ("POST", ["runners", "verify"]) => match world.runners.get(&request.token()) {
            Some(id) => Answer::json(200, &json!({"id": id, "token": request.token()})),
            None => refused(),
        },
        ("POST", ["runners", "reset_authentication_token"]) => match world.runners.remove(&request.token()) {
            Some(_) => make_runner(&mut world, "glrt-"),
            None => refused(),
        },
        ("DELETE", ["runners", "managers"] | ["runners"]) => match world.runners.remove(&request.token()) {
            Some(_) => Answer::status(204),
            None => refused(),
        },
        ("POST", ["jobs", "request"]) => {
            let Some(runner) = world.runners.get(&request.token()).copied() else { return refused() };
            return ask(shared, world, runner, request);
        }
        ("PUT", ["jobs", id]) => jobs::update(&mut world, id.parse().unwrap_or_default(), request),
        ("POST", ["jobs", id, "artifacts"]) => {
            artifacts::upload(&mut world, id.parse().unwrap_or_default(), request)
        }
        ("GET", ["jobs", id, "artifacts"]) => {
            artifacts::download(&mut world, id.parse().unwrap_or_default(), request)
        }
        ("PATCH", ["jobs", id, "trace"]) => jobs::append(&mut world, id.parse().unwrap_or_default(), request),
        _ => Answer::status(404),
    };
    drop(world);
    shared.changed.notify_all();
    answer
}

fn refused() -> Answer {
    Answer::json(403, &json!({"message": "403 Forbidden"}))
}

/// Notes what no client may do: a token in a URL, none or several token headers, another token in the body. Returns true
/// if the server cannot even tell whose request it is.
fn breaches(world: &mut World, request: &Request) -> bool {
    if world.client != Client::Agent {
        clients::breaches(world, request);
        return false;
    }
    let name = format!("{} {}", request.method, request.path);
    let tokens: Vec<&String> = ["runner-token", "job-token", "private-token"]
        .iter()
        .filter_map(|name| request.headers.get(*name))
        .collect();
    if request.path.contains("gl") && request.path.contains("token") {
        world.breaches.push(format!("{name}: a token in the URL"));
    }
    let is_registration = request.method == "POST" && request.path == "/runners";
    if tokens.len() != usize::from(!is_registration) {
        world.breaches.push(format!("{name}: {} headers with tokens", tokens.len()));
    }
    let in_body = request.json()["token"].as_str().map(str::to_owned);
    let has_two = tokens.first().zip(in_body).is_some_and(|(header, body)| **header != body);
    if has_two {
        world.breaches.push(format!("{name}: the header has another token than the body"));
    }
    if !request.headers.get("user-agent").is_some_and(|agent| agent.starts_with("step-runner")) {
        world.breaches.push(format!("{name}: no User-Agent"));
    }
    has_two
}

fn make_runner(world: &mut World, prefix: &str) -> Answer {
    world.made += 1;
    let (id, token) = (500 + world.made, world.new_runner_token(prefix));
    world.add_runner(token.clone(), id);
    Answer::json(201, &json!({"id": id, "token": token, "token_expires_at": null}))
}

fn create(world: &mut World, request: &Request) -> Answer {
    match request.headers.get("private-token") {
        Some(token) if token == ACCESS => make_runner(world, "glrt-"),
        _ => Answer::json(401, &json!({"message": "401 Unauthorized"})),
    }
}

fn register(world: &mut World, request: &Request) -> Answer {
    if request.token() == REGISTRATION { make_runner(world, "glrtr-") } else { refused() }
}

fn ask(shared: &Shared, mut world: MutexGuard<'_, World>, runner: u64, request: &Request) -> Answer {
    let ticket = clients::ticket(&mut world, request);
    let until = Instant::now() + world.hold;
    let mut is_held = false;
    loop {
        let latest = format!("{}ticket/{}+=;", world.ticket, world.tickets);
        if let Some(job) = world.take(runner) {
            if let Some(given) = job["id"].as_u64().and_then(|id| world.jobs.get_mut(&id)) {
                times::note(&mut given.times.given);
            }
            clients::hand_out(&mut world, job["id"].as_u64().unwrap_or_default());
            world.held -= usize::from(is_held);
            drop(world);
            shared.changed.notify_all();
            return Answer::json(201, &job).header("X-GitLab-Last-Update", &latest);
        }
        let left = until.saturating_duration_since(Instant::now());
        let may_hold =
            ticket.as_ref() == Some(&latest) && !left.is_zero() && !world.is_over && !world.is_away;
        if !may_hold {
            world.held -= usize::from(is_held);
            return Answer::status(204).header("X-GitLab-Last-Update", &latest);
        }
        if !is_held {
            is_held = true;
            world.held += 1;
            shared.changed.notify_all();
        }
        world = shared.changed.wait_timeout(world, left).unwrap().0;
    }
}
