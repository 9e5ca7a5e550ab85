//! A real Git server on the loopback: Git's own `http-backend` behind HTTP, with credentials, a record of requests, and
//! faults. Makes repositories with fixed authors and dates.

#![allow(dead_code, reason = "each test program uses a part")]
#![allow(clippy::allow_attributes, reason = "as above: `expect` would fail in a program that uses all")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "for tests only")]

use std::fs;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, LOCATION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use base64::Engine as _;
use futures_util::{StreamExt as _, stream};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::parts::skipped;

/// Fault of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Nothing.
    #[default]
    None,
    /// Answers everything with this status.
    Status(u16),
    /// Answers everything with status 429, and asks to wait so many seconds.
    Limited(u64),
    /// Closes the connection before the answer's first byte.
    Closed,
    /// Accepts requests and never answers.
    Silent,
    /// Sends half of a pack, then nothing more.
    SilentPack,
    /// Cuts the connection in the middle of a pack.
    CutPack,
    /// Cuts the connection in the middle of the list of references.
    CutList,
    /// Changes a byte in the middle of a pack.
    DamagedPack,
    /// Refuses a pack for this commit, as servers do that only serve the tips of branches.
    Refuses(String),
    /// Answers with an HTML page.
    Page,
    /// Answers with noise that has the content type of Git's protocol.
    Noise,
    /// Refuses in the protocol's own form, a line `ERR REASON`.
    Says(&'static str),
    /// Redirects everything below `/moved` to this address.
    Redirect(String),
}

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// Path and query.
    pub(crate) target: String,
    /// Value of the header `Authorization`.
    pub(crate) authorization: Option<String>,
    /// True if the answer contained a pack.
    pub(crate) pack: bool,
}

/// Configuration of the server, and its record of requests.
#[derive(Default)]
struct Shared {
    root: PathBuf,
    /// Required user and password.
    login: Mutex<Option<(String, String)>>,
    /// True if the server does not use version 2 of the protocol.
    old_protocol: Mutex<bool>,
    trouble: Mutex<Trouble>,
    /// Number of requests that the fault is left for; `None` for all.
    left: Mutex<Option<usize>>,
    seen: Mutex<Vec<Seen>>,
}

/// A running server; stops when dropped.
pub(crate) struct GitServer {
    runtime: Option<Runtime>,
    address: SocketAddr,
    shared: Arc<Shared>,
    folder: TempDir,
}

impl GitServer {
    /// Starts a server without repositories. Without `git` it reports `test` as skipped and returns `None`.
    pub(crate) fn start(test: &str) -> Option<Self> {
        if Command::new("git")
            .arg("http-backend")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_err()
        {
            skipped(test, "git");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let shared = Arc::new(Shared { root: folder.path().to_owned(), ..Shared::default() });
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(serve).with_state(Arc::clone(&shared));
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, router).await.unwrap();
        });
        Some(Self { runtime: Some(runtime), address, shared, folder })
    }

    /// Makes an empty repository.
    pub(crate) fn repository(&self, name: &str) -> Repository {
        Repository::new(self.folder.path().join(name), &["-q", "-b", "main"])
    }

    /// Makes an empty repository with options of `git init`.
    pub(crate) fn repository_with(&self, name: &str, options: &[&str]) -> Repository {
        Repository::new(self.folder.path().join(name), options)
    }

    /// Returns `127.0.0.1:PORT`.
    pub(crate) fn host(&self) -> String {
        self.address.to_string()
    }

    /// Returns the address of a repository.
    pub(crate) fn url(&self, name: &str) -> String {
        format!("http://{}/{name}", self.address)
    }

    /// Like [`Self::url`], with credentials before the host.
    pub(crate) fn url_as(&self, login: &str, name: &str) -> String {
        format!("http://{login}@{}/{name}", self.address)
    }

    /// Requires this user and password from now on.
    pub(crate) fn require(&self, user: &str, password: &str) {
        *self.shared.login.lock().unwrap() = Some((user.to_owned(), password.to_owned()));
    }

    /// Does not use version 2 of the protocol from now on.
    pub(crate) fn use_old_protocol(&self) {
        *self.shared.old_protocol.lock().unwrap() = true;
    }

    /// Sets the fault of the server from now on.
    pub(crate) fn trouble(&self, trouble: Trouble) {
        *self.shared.trouble.lock().unwrap() = trouble;
        *self.shared.left.lock().unwrap() = None;
    }

    /// Sets the fault of the server for the next requests that it applies to.
    pub(crate) fn trouble_for(&self, requests: usize, trouble: Trouble) {
        self.trouble(trouble);
        *self.shared.left.lock().unwrap() = Some(requests);
    }

    /// Returns the requests received since the last call.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut *self.shared.seen.lock().unwrap())
    }

    /// Returns the number of packs sent since the last call of this or [`Self::seen`].
    pub(crate) fn packs(&self) -> usize {
        self.seen().iter().filter(|seen| seen.pack).count()
    }
}

impl Drop for GitServer {
    fn drop(&mut self) {
        // A request that is never answered must not delay the end.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn serve(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let target = head.uri.path_and_query().map_or_else(String::new, ToString::to_string);
    let authorization =
        head.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let index = {
        let mut seen = shared.seen.lock().unwrap();
        seen.push(Seen { target: target.clone(), authorization: authorization.clone(), pack: false });
        seen.len() - 1
    };
    let trouble = shared.trouble_of(&target);
    match &trouble {
        Trouble::Limited(seconds) => {
            let answer = Response::builder().status(StatusCode::TOO_MANY_REQUESTS);
            return answer.header("retry-after", seconds.to_string()).body(Body::empty()).unwrap();
        }
        Trouble::Closed => {
            let cut = stream::iter([Err::<Bytes, _>(io::Error::from(io::ErrorKind::ConnectionReset))]);
            return Response::builder().header("content-length", "10").body(Body::from_stream(cut)).unwrap();
        }
        Trouble::Status(status) => return plain(StatusCode::from_u16(*status).unwrap(), "trouble"),
        Trouble::Silent => std::future::pending().await,
        Trouble::Page => return plain(StatusCode::OK, "<html>Sign in</html>"),
        Trouble::Noise => {
            let kind = "application/x-git-upload-pack-advertisement";
            return Response::builder()
                .header(CONTENT_TYPE, kind)
                .body(Body::from("no packet lines"))
                .unwrap();
        }
        Trouble::Says(reason) => {
            let kind = "application/x-git-upload-pack-advertisement";
            let said = format!("ERR {reason}\n");
            let lines = format!("001e# service=git-upload-pack\n0000{:04x}{said}", said.len() + 4);
            return Response::builder().header(CONTENT_TYPE, kind).body(Body::from(lines)).unwrap();
        }
        Trouble::Redirect(address) if target.starts_with("/moved") => {
            let target = target.strip_prefix("/moved").unwrap();
            let there = format!("{address}{target}");
            let answer = Response::builder().status(StatusCode::MOVED_PERMANENTLY).header(LOCATION, there);
            return answer.body(Body::empty()).unwrap();
        }
        _ => {}
    }
    if !shared.lets_in(authorization.as_deref()) {
        let answer = Response::builder().status(StatusCode::UNAUTHORIZED);
        return answer.header(WWW_AUTHENTICATE, "Basic realm=\"git\"").body(Body::empty()).unwrap();
    }
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    if let Trouble::Refuses(commit) = &trouble
        && memchr::memmem::find(&body, format!("want {commit}").as_bytes()).is_some()
    {
        let said = format!("ERR upload-pack: not our ref {commit}\n");
        let line = format!("{:04x}{said}", said.len() + 4);
        let kind = "application/x-git-upload-pack-result";
        return Response::builder().header(CONTENT_TYPE, kind).body(Body::from(line)).unwrap();
    }
    let backend = Arc::clone(&shared);
    let asked =
        (head.method.to_string(), head.uri.path().to_owned(), head.uri.query().unwrap_or("").to_owned());
    let answer =
        tokio::task::spawn_blocking(move || backend.run(&asked, &head.headers, &body)).await.unwrap();
    let (status, kind, body) = answer;
    let pack = body.windows(5).position(|bytes| bytes == b"\x01PACK");
    if let Some(seen) = shared.seen.lock().unwrap().get_mut(index) {
        seen.pack = pack.is_some();
    }
    let answer = Response::builder().status(status).header(CONTENT_TYPE, kind);
    answer.body(troubled(body, pack, &trouble)).unwrap()
}

fn plain(status: StatusCode, text: &'static str) -> Response {
    Response::builder().status(status).header(CONTENT_TYPE, "text/html").body(Body::from(text)).unwrap()
}

/// Returns the body of an answer, changed as the fault requires. `pack` is the offset of the pack.
fn troubled(mut body: Vec<u8>, pack: Option<usize>, trouble: &Trouble) -> Body {
    let middle = pack.map(|begin| begin + (body.len() - begin) / 2);
    let begin = |body: Vec<u8>, at: usize| {
        let bytes = Bytes::from(body.get(..at).unwrap_or_default().to_owned());
        stream::iter([Ok::<_, io::Error>(bytes)])
    };
    let cut = || stream::iter([Err(io::Error::from(io::ErrorKind::ConnectionReset))]);
    match (trouble, middle) {
        (Trouble::CutPack, Some(middle)) => Body::from_stream(begin(body, middle).chain(cut())),
        (Trouble::CutList, None) => {
            let middle = body.len() / 2;
            Body::from_stream(begin(body, middle).chain(cut()))
        }
        (Trouble::SilentPack, Some(middle)) => {
            Body::from_stream(begin(body, middle).chain(stream::pending()))
        }
        (Trouble::DamagedPack, Some(middle)) => {
            if let Some(byte) = body.get_mut(middle) {
                *byte = !*byte;
            }
            Body::from(body)
        }
        _ => Body::from(body),
    }
}

impl Shared {
    /// Returns the fault for a request. Faults of lists and packs leave other requests alone.
    fn trouble_of(&self, target: &str) -> Trouble {
        let trouble = self.trouble.lock().unwrap().clone();
        let is_pack = target.ends_with("/git-upload-pack");
        let applies = match trouble {
            Trouble::CutPack | Trouble::SilentPack | Trouble::DamagedPack => is_pack,
            _ => true,
        };
        let mut left = self.left.lock().unwrap();
        match left.as_mut().filter(|_| applies) {
            None => trouble,
            Some(0) => Trouble::None,
            Some(left) => {
                *left -= 1;
                trouble
            }
        }
    }

    fn lets_in(&self, authorization: Option<&str>) -> bool {
        let login = self.login.lock().unwrap();
        login.as_ref().is_none_or(|(user, password)| {
            let pair = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
            authorization == Some(format!("Basic {pair}").as_str())
        })
    }

    /// Runs Git's `http-backend` for one request. Returns status, content type and body.
    fn run(
        &self,
        (method, path, query): &(String, String, String),
        headers: &HeaderMap,
        body: &[u8],
    ) -> (StatusCode, String, Vec<u8>) {
        let header =
            |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("").to_owned();
        let mut command = git(&self.root);
        command
            .arg("http-backend")
            .env("GIT_PROJECT_ROOT", &self.root)
            .env("GIT_HTTP_EXPORT_ALL", "1")
            .env("REQUEST_METHOD", method)
            .env("PATH_INFO", path)
            .env("QUERY_STRING", query)
            .env("CONTENT_TYPE", header("content-type"))
            .env("CONTENT_LENGTH", body.len().to_string());
        if !*self.old_protocol.lock().unwrap() {
            command.env("GIT_PROTOCOL", header("git-protocol"));
        }
        let output = run(command, body);
        let end = output.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap_or(output.len());
        let (head, rest) = output.split_at(end);
        let head = String::from_utf8_lossy(head).to_ascii_lowercase();
        let value = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let status =
            value("status:").and_then(|status| status.get(..3)).map_or(Ok(StatusCode::OK), str::parse);
        let kind = value("content-type:").unwrap_or("text/plain").to_owned();
        (status.unwrap(), kind, rest.get(4..).unwrap_or_default().to_owned())
    }
}

/// Returns a `git` command in `folder` that works the same on every machine.
fn git(folder: &Path) -> Command {
    let mut command = Command::new("git");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("GIT_") {
            command.env_remove(name);
        }
    }
    command
        .current_dir(folder)
        .env("HOME", folder)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("LC_ALL", "C");
    for role in ["AUTHOR", "COMMITTER"] {
        command
            .env(format!("GIT_{role}_NAME"), "A U Thor")
            .env(format!("GIT_{role}_EMAIL"), "author@example.com")
            .env(format!("GIT_{role}_DATE"), "1700000000 +0000");
    }
    command
}

/// Runs a command with `input`. Returns its stdout.
fn run(mut command: Command, input: &[u8]) -> Vec<u8> {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(input));
        child.wait_with_output().unwrap()
    });
    output.stdout
}

/// A repository with its work tree, on the server.
pub(crate) struct Repository {
    folder: PathBuf,
}

impl Repository {
    fn new(folder: PathBuf, options: &[&str]) -> Self {
        fs::create_dir_all(&folder).unwrap();
        let repository = Self { folder };
        repository.git(&[&["init"], options].concat());
        repository
    }

    /// Runs `git`. Returns its output without the final line feed.
    pub(crate) fn git(&self, arguments: &[&str]) -> String {
        self.git_with(arguments, "")
    }

    /// Like [`Self::git`], with this standard input.
    pub(crate) fn git_with(&self, arguments: &[&str], input: &str) -> String {
        let mut command = git(&self.folder);
        command.args(arguments).stderr(Stdio::inherit());
        String::from_utf8(run(command, input.as_bytes())).unwrap().trim_end().to_owned()
    }

    /// Writes a file into the work tree.
    pub(crate) fn file(&self, path: &str, content: &str) -> &Self {
        let path = self.folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    /// Makes a file of the work tree executable.
    pub(crate) fn executable(&self, path: &str) -> &Self {
        fs::set_permissions(self.folder.join(path), fs::Permissions::from_mode(0o755)).unwrap();
        self
    }

    /// Makes a symlink in the work tree.
    pub(crate) fn link(&self, path: &str, target: &str) -> &Self {
        let path = self.folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
        self
    }

    /// Commits the work tree. Returns the commit's hash.
    pub(crate) fn commit(&self, message: &str) -> String {
        self.git(&["add", "-A"]);
        self.git(&["commit", "-q", "--allow-empty", "-m", message]);
        self.git(&["rev-parse", "HEAD"])
    }

    /// Writes a commit of this tree without a reference to it. Returns its hash.
    pub(crate) fn commit_of_tree(&self, tree: &str) -> String {
        self.git(&["commit-tree", tree, "-m", "made"])
    }

    /// Writes a tree from lines in the format of `git ls-tree`. Returns its hash.
    pub(crate) fn tree(&self, lines: &str) -> String {
        self.git_with(&["mktree", "--missing"], lines)
    }

    /// Writes the content of a file. Returns its hash.
    pub(crate) fn blob(&self, content: &str) -> String {
        self.git_with(&["hash-object", "-w", "--stdin"], content)
    }
}
