//! An agent in front of two cells. It knows the address of their router alone.

use std::process::Output;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::cell_router::options::Options;
use crate::cell_router::{CellRouter, Exchange};
use crate::fake_gitlab::FakeGitlab;
use crate::fake_gitlab::cell::runner_token;
use crate::fake_gitlab::http::Request;
use crate::fake_gitlab::port::Port;
use crate::scene::Scene;
use crate::support::PATIENCE;

/// Requests that the router has passed on.
#[derive(Default)]
struct Record {
    exchanges: Mutex<Vec<Exchange>>,
    changed: Condvar,
}

/// Two cells behind a router, and an agent's folder.
pub(crate) struct Cells {
    /// The agent. Its server is cell 1, the default.
    pub(crate) scene: Scene,
    pub(crate) two: FakeGitlab,
    port: Port,
    router: Option<CellRouter>,
    record: Arc<Record>,
}

impl Cells {
    /// Starts both cells and the router. There is no configuration yet.
    pub(crate) fn new() -> Self {
        let port = Port::new();
        let (one, two) = (FakeGitlab::cell(1, &port.url()), FakeGitlab::cell(2, &port.url()));
        let mut cells = Self { scene: Scene::bare(one), two, port, router: None, record: Arc::default() };
        cells.start_router();
        cells
    }

    /// Makes a configuration with an entry for each cell, and starts the agent.
    pub(crate) fn start(top: &str, entry: &str) -> Self {
        let mut cells = Self::new();
        cells.configure(
            top,
            &[("one", &cells.url(), &token(1), entry), ("two", &cells.url(), &token(2), entry)],
        );
        cells.scene.start();
        cells
    }

    /// Writes a configuration: lines for all entries, then name, address, token and lines of each.
    pub(crate) fn configure(&self, top: &str, entries: &[(&str, &str, &str, &str)]) {
        let top = format!("check_interval = 1\n{top}\n");
        let entries = entries.iter().map(|(name, url, token, lines)| {
            format!("[[runners]]\nname = \"{name}\"\nurl = \"{url}\"\ntoken = \"{token}\"\n{lines}\n")
        });
        self.scene.configure(&std::iter::once(top).chain(entries).collect::<String>());
    }

    pub(crate) fn one(&self) -> &FakeGitlab {
        &self.scene.gitlab
    }

    /// Returns the address of the instance.
    pub(crate) fn url(&self) -> String {
        self.port.url()
    }

    pub(crate) fn start_router(&mut self) {
        let (one, two) = (self.one().url(), self.two.url());
        let (first, second) = (format!("1={one}"), format!("2={two}"));
        let listen = self.port.url().replace("http://", "");
        let words = [
            "--listen",
            &listen,
            "--cell",
            &first,
            "--cell",
            &second,
            "--path",
            "/cell-2/=2",
            "--default",
            "1",
        ];
        let options = Options::parse(&words).unwrap();
        let record = Arc::clone(&self.record);
        self.router = Some(CellRouter::start(self.port.listen(), options.routes, move |exchange| {
            record.exchanges.lock().unwrap().push(exchange);
            record.changed.notify_all();
        }));
    }

    /// Kills the router: its connections are cut, and new ones are refused.
    pub(crate) fn kill_router(&mut self) {
        self.router = None;
    }

    /// Returns what the router has routed.
    pub(crate) fn record(&self) -> MutexGuard<'_, Vec<Exchange>> {
        self.record.exchanges.lock().unwrap()
    }

    /// Waits until the router's record, from exchange `start` on, has something.
    #[track_caller]
    pub(crate) fn wait_for_exchanges(
        &self,
        what: &str,
        start: usize,
        is_there: impl Fn(&[Exchange]) -> bool,
    ) {
        let begin = Instant::now();
        let mut record = self.record();
        while !is_there(&record[start..]) {
            let left = PATIENCE.saturating_sub(begin.elapsed());
            assert!(left > Duration::ZERO, "waited too long for {what}: {:#?}", &record[start..]);
            record = self.record.changed.wait_timeout(record, left).unwrap().0;
        }
    }

    /// Runs a command. Returns its exit code and what it said.
    pub(crate) fn run(&self, words: &[&str]) -> (Option<i32>, String) {
        let Output { status, stdout, stderr } = self.scene.run(words);
        (status.code(), String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned())
    }

    /// Asserts that no cell saw a token of the other one, but for `lost`, and that clients made no mistake. Header and
    /// body of every request had the same token: the double notes it otherwise.
    #[track_caller]
    pub(crate) fn assert_apart(&self, lost: Option<&str>) {
        for (cell, other) in [(self.one(), &self.two), (&self.two, self.one())] {
            cell.assert_clean();
            let tokens = other.tokens();
            for request in &cell.world().seen {
                let text = text_of(request);
                let found =
                    tokens.iter().find(|token| text.contains(token.as_str()) && Some(token.as_str()) != lost);
                assert!(
                    found.is_none(),
                    "{} {} shows a token of the other cell",
                    request.method,
                    request.path
                );
            }
        }
    }
}

/// Returns everything that a request shows to its server.
fn text_of(request: &Request) -> String {
    let mut text = format!("{}\n{}\n", request.path, String::from_utf8_lossy(&request.body));
    for value in request.headers.values() {
        text.push_str(value);
        let login = value.strip_prefix("Basic ").and_then(|login| STANDARD.decode(login).ok());
        text.push_str(&String::from_utf8_lossy(&login.unwrap_or_default()));
        text.push('\n');
    }
    text
}

/// Returns the token of the runner that a cell has from the start.
pub(crate) fn token(cell: u64) -> String {
    runner_token(cell, "glrt-", 0)
}

/// Returns how many requests a server has seen that begin with a text.
pub(crate) fn count(gitlab: &FakeGitlab, start: &str) -> usize {
    gitlab.world().calls().iter().filter(|call| call.starts_with(start)).count()
}
