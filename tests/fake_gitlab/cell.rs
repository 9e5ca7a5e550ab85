//! A GitLab instance as one of several cells behind a router: its tokens name it, and its addresses are the router's.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::TcpStream;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::http::{Answer, Request};
use super::port::Port;
use super::{FakeGitlab, Shared, World, accept, lock};

/// What makes a server a cell.
pub(super) struct Cell {
    number: u64,
    /// Address of the router, which is that of the instance.
    public: String,
    /// Host and port of the server with the repositories.
    git: Option<String>,
}

impl FakeGitlab {
    /// Starts cell `number` of the instance at the address `public`. Its one runner has the token `runner_token(number)`.
    /// It serves the API below `/cell-NUMBER`, too. Numbers of its jobs begin with its own.
    pub(crate) fn cell(number: u64, public: &str) -> Self {
        let port = Port::new();
        let mut gitlab = Self::start_on(port.listen(), "");
        gitlab.port = Some(port);
        gitlab.change(|world| {
            world.cell = Some(Cell { number, public: public.to_owned(), git: None });
            world.made = number * 10_000;
            (world.runners, world.issued) = Default::default();
            world.add_runner(runner_token(number, "glrt-", 0), number);
        });
        gitlab
    }

    /// Passes requests that are not for the API to this host and port, as Git's.
    pub(crate) fn serve_git(&self, host: String) {
        self.change(|world| {
            if let Some(cell) = &mut world.cell {
                cell.git = Some(host);
            }
        });
    }

    /// Returns every token that was valid here at some time.
    pub(crate) fn tokens(&self) -> BTreeSet<String> {
        let world = self.world();
        let of_jobs = world.jobs.values().map(|job| job.token.clone());
        world.issued.iter().cloned().chain(of_jobs).collect()
    }

    /// Refuses connections from now on.
    pub(crate) fn go_away(&self) {
        self.change(|world| world.is_away = true);
        // The first one wakes the thread that accepts.
        while TcpStream::connect(self.address).is_ok() {}
    }

    /// Accepts connections again.
    pub(crate) fn come_back(&self) {
        self.change(|world| world.is_away = false);
        let port = self.port.as_ref().expect("a cell has a port of its own");
        accept(port.listen(), Arc::clone(&self.shared), self.prefix.clone());
    }
}

impl World {
    /// Makes a token valid for a runner.
    pub(crate) fn add_runner(&mut self, token: String, id: u64) {
        self.issued.insert(token.clone());
        self.runners.insert(token, id);
    }

    /// Returns a new token for a runner.
    pub(super) fn new_runner_token(&self, prefix: &str) -> String {
        match &self.cell {
            Some(cell) => runner_token(cell.number, prefix, self.made),
            None => format!("{prefix}FakeMade{}", self.made),
        }
    }

    /// Returns the address of the instance and the token of a new job.
    pub(super) fn face(&self, own: String, job: u64) -> (String, String) {
        match &self.cell {
            Some(cell) => (cell.public.clone(), job_token(cell.number, "", job)),
            None => (own, old_job_token(job)),
        }
    }

    /// Returns the path below the API, if a path is one of it.
    pub(super) fn api_path(&self, prefix: &str, path: &str) -> Option<String> {
        let own = match &self.cell {
            Some(cell) => path.strip_prefix(&format!("/cell-{}", cell.number)).unwrap_or(path),
            None => path.strip_prefix(prefix)?,
        };
        own.strip_prefix("/api/v4").map(str::to_owned)
    }
}

/// Returns the token that a cell gives to a runner of a project.
pub(crate) fn runner_token(cell: u64, prefix: &str, number: u64) -> String {
    let text = format!("c:{}\ng:8\no:rz\np:5\nt:3", base_36(cell, 1));
    let random = u128::from(number).to_be_bytes();
    let payload = URL_SAFE_NO_PAD.encode([&random[..], text.as_bytes(), &[16]].concat());
    let before = format!("{prefix}{payload}.01.{}", base_36(payload.len() as u64, 2));
    let check = base_36(u64::from(crc32fast::hash(before.as_bytes())), 7);
    before + &check
}

/// Returns the token that a cell gives to a job: a JWT, whose signature nobody here verifies.
pub(crate) fn job_token(cell: u64, prefix: &str, job: u64) -> String {
    let claims = format!(r#"{{"c":"{}","o":"rz","p":"5","jti":"{job}"}}"#, base_36(cell, 1));
    let [head, claims] = [r#"{"alg":"RS256"}"#, &claims].map(|part| URL_SAFE_NO_PAD.encode(part));
    let signature = URL_SAFE_NO_PAD.encode([b'S'; 256]);
    format!("{prefix}glcbt-{head}.{claims}.{signature}")
}

/// Returns the token of a job in the form before that, which names no cell.
pub(crate) fn old_job_token(job: u64) -> String {
    format!("glcbt-64_FakeJobToken{job}")
}

fn base_36(mut number: u64, width: usize) -> String {
    let mut digits = Vec::new();
    while number > 0 || digits.len() < width {
        digits.extend(char::from_digit((number % 36) as u32, 36));
        number /= 36;
    }
    digits.iter().rev().collect()
}

/// Answers what is not for the API. Whoever shows no credentials learns nothing, not even if a repository is there.
pub(super) fn elsewhere(shared: &Shared, request: &Request, connection: &mut TcpStream) {
    let git = {
        let mut world = lock(shared);
        let Some(cell) = &world.cell else { return Answer::status(404).write(connection) };
        let git = cell.git.clone();
        world.seen.push(request.clone());
        git
    };
    shared.changed.notify_all();
    match git {
        _ if !request.headers.contains_key("authorization") => {
            Answer::status(401).header("WWW-Authenticate", "Basic realm=\"GitLab\"").write(connection);
        }
        Some(host) => drop(pass_on(request, &host, connection)),
        None => Answer::status(403).write(connection),
    }
}

/// Passes a request to another server, and its answer back.
fn pass_on(request: &Request, host: &str, connection: &mut TcpStream) -> std::io::Result<u64> {
    let mut server = TcpStream::connect(host)?;
    let mut head = format!("{} {} HTTP/1.1\r\nConnection: close\r\n", request.method, request.path);
    let own = ["connection", "transfer-encoding", "content-length"];
    for (name, value) in request.headers.iter().filter(|(name, _)| !own.contains(&name.as_str())) {
        head.extend([name, ": ", value, "\r\n"]);
    }
    head.extend(["Content-Length: ", &request.body.len().to_string(), "\r\n\r\n"]);
    server.write_all(head.as_bytes())?;
    server.write_all(&request.body)?;
    std::io::copy(&mut server, connection)
}
