//! Tests the real `kubectl` under the `kube://` connector. A fake of the API server's exec endpoint speaks WebSocket
//! and starts the real proxy (connectors.md §9).
#![expect(clippy::print_stderr, reason = "says why a test was skipped")]

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::support::{Daemon, wait_for};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// Channels of the exec protocol: the first byte of every message.
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
/// In version 5 of the protocol: closes the channel named by the next byte.
const CLOSE: u8 = 255;

/// Kinds of frames (RFC 6455 §5.2).
const MORE: u8 = 0;
const BINARY: u8 = 2;
const BYE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// Behaviour of the fake API server, and a record of its requests.
#[derive(Default)]
struct Cluster {
    socket: PathBuf,
    /// Bytes of standard output after which the next connections are cut without a message. The last entry is used
    /// first.
    cuts: Mutex<Vec<usize>>,
    /// Command to run instead of the proxy.
    instead: Mutex<Option<[&'static str; 3]>>,
    /// Queries of exec requests, in order, and the protocols agreed on.
    queries: Mutex<Vec<String>>,
    protocols: Mutex<Vec<String>>,
    /// Number of refused requests for SPDY.
    refused: AtomicUsize,
    /// Number of next requests to answer with Forbidden, as a server does that has not loaded its rules yet.
    forbids: AtomicUsize,
    /// Number of requests to forbid after the next cut.
    forbids_then: AtomicUsize,
}

/// The fake API server on a loopback port, and the configuration by which `kubectl` finds it.
struct Scene {
    daemon: Daemon,
    cluster: Arc<Cluster>,
    config: PathBuf,
}

impl Scene {
    /// Returns `None` if there is no `kubectl` that uses WebSocket.
    fn new(test: &str) -> Option<Self> {
        let version = Command::new("kubectl").args(["version", "--client", "--output=json"]).output();
        let minor = version.ok().and_then(|output| {
            let version: Value = serde_json::from_slice(&output.stdout).ok()?;
            let digits = version["clientVersion"]["minor"].as_str()?.trim_end_matches('+').to_owned();
            digits.parse::<u32>().ok()
        });
        // Before 1.31, `kubectl exec` used only SPDY by default.
        if minor.is_none_or(|minor| minor < 31) {
            // Not reported as a missing part: the gate cannot install it, since Debian's version is older.
            eprintln!("{test}: skipped: no kubectl of 1.31 or later");
            return None;
        }
        let daemon = Daemon::start();
        let cluster = Arc::new(Cluster { socket: daemon.socket.clone(), ..Cluster::default() });
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = Arc::clone(&cluster);
        // Ends with the test process.
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let cluster = Arc::clone(&server);
                thread::spawn(move || answer(connection, &cluster).ok());
            }
        });
        let config = daemon.file("kubeconfig");
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "other",
            "clusters": [{"name": "here", "cluster": {"server": format!("http://127.0.0.1:{port}")}},
                         {"name": "away", "cluster": {"server": "http://127.0.0.1:1"}}],
            "users": [{"name": "ci", "user": {}}],
            "contexts": [{"name": "lab", "context": {"cluster": "here", "user": "ci"}},
                         {"name": "other", "context": {"cluster": "away", "user": "ci"}}],
        });
        fs::write(&config, text.to_string()).unwrap();
        Some(Self { daemon, cluster, config })
    }

    fn call(&self, words: &[&str], address: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_step-runner"));
        command.args(words).args(["--address", address]).stdin(Stdio::null());
        command.env("KUBECONFIG", &self.config).env("HOME", &self.daemon.path).current_dir(&self.daemon.path);
        command.output().unwrap()
    }

    #[track_caller]
    fn fails(&self, words: &[&str], address: &str, parts: &[&str]) {
        let output = self.call(words, address);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(69), "{said}");
        assert!(parts.iter().all(|part| said.contains(part)), "{said}, expected {parts:?}");
    }
}

const ADDRESS: &str = "kube://lab@ci/runner-0/build";

/// Head of an HTTP request.
struct Head {
    method: String,
    path: String,
    query: String,
    headers: Vec<(String, String)>,
}

impl Head {
    fn read(from: &mut impl BufRead) -> io::Result<Self> {
        let mut lines = from.lines();
        let first = lines.next().ok_or(io::ErrorKind::UnexpectedEof)??;
        let mut words = first.split(' ').map(str::to_owned);
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let mut headers = Vec::new();
        for line in lines {
            let line = line?;
            let Some((name, value)) = line.split_once(':') else { break };
            headers.push((name.to_lowercase(), value.trim().to_owned()));
        }
        Ok(Self { method, path: path.to_owned(), query: query.to_owned(), headers })
    }

    fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }
}

/// Answers one request: about a pod, or to run a command in it.
fn answer(mut connection: TcpStream, cluster: &Cluster) -> io::Result<()> {
    let mut from = BufReader::new(connection.try_clone()?);
    let head = Head::read(&mut from)?;
    let discovered = match head.path.as_str() {
        "/api" => Some(json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})),
        "/apis" => Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": []})),
        "/api/v1" => Some(json!({
            "kind": "APIResourceList", "groupVersion": "v1", "resources": [
                {"name": "pods", "singularName": "pod", "namespaced": true, "kind": "Pod", "verbs": ["get"]},
                {"name": "pods/exec", "singularName": "", "namespaced": true, "kind": "PodExecOptions", "verbs": ["create", "get"]},
            ],
        })),
        _ => None,
    };
    if let Some(list) = discovered {
        return reply(&mut connection, 200, &list);
    }
    let pod = head.path.strip_prefix("/api/v1/namespaces/ci/pods/").unwrap_or_default();
    let less = |left: usize| left.checked_sub(1);
    if !pod.is_empty() && cluster.forbids.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
        return refuse(&mut connection, 403, "Forbidden", "pods \"runner-0\" is forbidden: RBAC: not found");
    }
    if let Some(pod) = pod.strip_suffix("/exec") {
        assert_eq!(pod, "runner-0");
        if head.header("upgrade") == "websocket" && head.method == "GET" {
            return exec(&head, from, &connection, cluster);
        }
        cluster.refused.fetch_add(1, Ordering::Relaxed);
        return refuse(&mut connection, 400, "BadRequest", "this server speaks WebSocket alone");
    }
    match pod {
        "runner-0" => {
            let pod = json!({
                "kind": "Pod", "apiVersion": "v1", "metadata": {"name": pod, "namespace": "ci"},
                "spec": {"containers": [{"name": "build", "image": "x"}]}, "status": {"phase": "Running"},
            });
            reply(&mut connection, 200, &pod)
        }
        "forbidden" => refuse(&mut connection, 403, "Forbidden", "pods \"forbidden\" is forbidden"),
        _ => refuse(&mut connection, 404, "NotFound", &format!("pods \"{pod}\" not found")),
    }
}

fn refuse(to: &mut TcpStream, code: u16, reason: &str, message: &str) -> io::Result<()> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    });
    reply(to, code, &status)
}

fn reply(to: &mut TcpStream, code: u16, body: &Value) -> io::Result<()> {
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    to.write_all((head + &body).as_bytes())
}

/// Agrees on a protocol and runs the proxy for this connection.
fn exec(
    head: &Head,
    mut from: BufReader<TcpStream>,
    connection: &TcpStream,
    cluster: &Cluster,
) -> io::Result<()> {
    cluster.queries.lock().unwrap().push(head.query.clone());
    let offered: Vec<_> = head.header("sec-websocket-protocol").split(',').map(str::trim).collect();
    let agreed = ["v5.channel.k8s.io", "v4.channel.k8s.io"].into_iter().find(|known| offered.contains(known));
    let agreed = agreed.ok_or_else(|| io::Error::other("no protocol in common"))?;
    cluster.protocols.lock().unwrap().push(agreed.to_owned());
    let mut hasher = gix::hash::hasher(gix::hash::Kind::Sha1);
    hasher.update(head.header("sec-websocket-key").as_bytes());
    hasher.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    let accept = STANDARD.encode(hasher.try_finalize().unwrap().as_slice());
    let mut out = connection.try_clone()?;
    let head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n";
    write!(out, "{head}Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {agreed}\r\n\r\n")?;

    // `kubectl` drops bytes that arrive before it has made its streams ("Unknown stream id"). It makes them before it
    // sends its first bytes. A real container starts its program well after that, so wait for the first bytes.
    from.fill_buf()?;
    let mut child = start(cluster);
    let line = Arc::new(Mutex::new(out));
    let left = cluster.cuts.lock().unwrap().pop().unwrap_or(usize::MAX);
    let (stdin, stdout, stderr) =
        (child.stdin.take(), child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let pongs = Arc::clone(&line);
    // Ends with the connection.
    thread::spawn(move || take(from, stdin, &pongs).ok());
    let errors = Arc::clone(&line);
    let complaints = thread::spawn(move || give(stderr, STDERR, &errors, usize::MAX));
    let whole = give(stdout, STDOUT, &line, left);
    if !matches!(whole, Ok(true)) {
        cluster.forbids.fetch_add(cluster.forbids_then.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        // Cuts the connection without a message.
        connection.shutdown(Shutdown::Both).ok();
        child.kill().ok();
    }
    let code = child.wait()?.code().unwrap_or(137);
    if !matches!(complaints.join(), Ok(Ok(_))) || !matches!(whole, Ok(true)) {
        return Ok(());
    }
    let status = if code == 0 {
        json!({"metadata": {}, "status": "Success"})
    } else {
        json!({
            "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
            "message": format!("command terminated with non-zero exit code: {code}"),
            "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
        })
    };
    let status = [&[STATUS], status.to_string().as_bytes()].concat();
    send(&line, BINARY, &status)?;
    send(&line, BYE, &1000_u16.to_be_bytes())
}

fn start(cluster: &Cluster) -> Child {
    let instead = *cluster.instead.lock().unwrap();
    let mut command = if let Some([program, words @ ..]) = instead {
        let mut command = Command::new(program);
        command.args(words);
        command
    } else {
        let mut command = Command::new(env!("CARGO_BIN_EXE_step-runner"));
        command.args(["proxy", "--socket"]).arg(&cluster.socket);
        command
    };
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Reads messages of the client and passes on standard input, until that or the connection ends.
fn take(mut from: impl Read, mut stdin: Option<impl Write>, line: &Mutex<TcpStream>) -> io::Result<()> {
    let mut message = Vec::new();
    loop {
        let [first, second] = read::<2>(&mut from)?;
        let length = match second & 0x7F {
            126 => u64::from(u16::from_be_bytes(read(&mut from)?)),
            127 => u64::from_be_bytes(read(&mut from)?),
            short => u64::from(short),
        };
        let mask: [u8; 4] = read(&mut from)?;
        let mut data = vec![0; length as usize];
        from.read_exact(&mut data)?;
        data.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
        match first & 0x0F {
            BINARY | MORE => message.extend(data),
            PING => send(line, PONG, &data)?,
            _ => return Ok(()),
        }
        if first & 0x80 == 0 || first & 0x0F == PING {
            continue;
        }
        match std::mem::take(&mut message).split_first() {
            // A process that has ended takes no more input.
            Some((&STDIN, data)) => drop(stdin.as_mut().map(|stdin| stdin.write_all(data))),
            Some((&CLOSE, [STDIN])) => stdin = None,
            other => panic!("a message {other:?}"),
        }
    }
}

fn read<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Sends the output on a channel. Returns `false` if the connection is to be cut here.
fn give(mut from: impl Read, channel: u8, line: &Mutex<TcpStream>, mut left: usize) -> io::Result<bool> {
    let mut piece = [0; 4096];
    loop {
        let length = from.read(&mut piece)?;
        if length == 0 {
            return Ok(true);
        }
        let Some(rest) = left.checked_sub(length) else { return Ok(false) };
        left = rest;
        send(line, BINARY, &[&[channel], &piece[..length]].concat())?;
    }
}

/// Sends one frame, unmasked as servers do.
fn send(line: &Mutex<TcpStream>, kind: u8, data: &[u8]) -> io::Result<()> {
    let mut frame = vec![0x80 | kind];
    match data.len() {
        short @ ..126 => frame.push(short as u8),
        long => frame.extend([&[126], &(long as u16).to_be_bytes()[..]].concat()),
    }
    frame.extend_from_slice(data);
    line.lock().unwrap().write_all(&frame)
}

#[test]
fn a_job_runs_in_a_pod() {
    let Some(scene) = Scene::new("a_job_runs_in_a_pod") else { return };
    let file = scene.daemon.file("job.yml");
    fs::write(&file, "spec: {}\n---\nrun: [{name: s, script: echo hello; exit 7}]\n").unwrap();
    let output = scene.call(&["run", "--output", "plain", "job.yml"], ADDRESS);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{said}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("hello"));
    let expected = "command=step-runner&command=proxy&container=build&stderr=true&stdin=true&stdout=true";
    assert_eq!(*scene.cluster.queries.lock().unwrap(), [expected]);
    assert_eq!(*scene.cluster.protocols.lock().unwrap(), ["v5.channel.k8s.io"]);
    assert_eq!(scene.cluster.refused.load(Ordering::Relaxed), 0);
}

#[test]
fn a_stream_that_is_cut_is_followed_on_at_the_same_byte() {
    let Some(scene) = Scene::new("a_stream_that_is_cut_is_followed_on_at_the_same_byte") else { return };
    let file = scene.daemon.file("job.yml");
    let script = "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; exit 3";
    fs::write(&file, format!("spec: {{}}\n---\nrun: [{{name: s, script: \"{script}\"}}]\n")).unwrap();
    assert!(scene.call(&["submit", "--id", "j", "job.yml"], ADDRESS).status.success());
    *scene.cluster.cuts.lock().unwrap() = vec![50_000, 20_000, 400, 5];
    let output = scene.call(&["follow", "j", "--output", "plain"], ADDRESS);
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<_> = text.lines().filter(|line| line.contains("line ")).collect();
    assert_eq!(lines.len(), 2000);
    assert!(lines.iter().enumerate().all(|(number, line)| line.ends_with(&format!("line {number}"))));
    assert!(scene.cluster.cuts.lock().unwrap().is_empty());
    wait_for("the end of the proxies", || {
        let socket = scene.daemon.socket.display().to_string();
        crate::support::processes_with(&format!("proxy\0--socket\0{socket}")).is_empty().then_some(())
    });
}

#[test]
fn an_api_server_that_forbids_everything_just_after_its_start_costs_a_follower_nothing() {
    let test = "an_api_server_that_forbids_everything_just_after_its_start_costs_a_follower_nothing";
    let Some(scene) = Scene::new(test) else { return };
    let file = scene.daemon.file("job.yml");
    let script = "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; exit 3";
    fs::write(&file, format!("spec: {{}}\n---\nrun: [{{name: s, script: \"{script}\"}}]\n")).unwrap();
    assert!(scene.call(&["submit", "--id", "j", "job.yml"], ADDRESS).status.success());
    // The first connection is cut, and the next requests are forbidden.
    *scene.cluster.cuts.lock().unwrap() = vec![20_000];
    scene.cluster.forbids_then.store(2, Ordering::Relaxed);
    let follower = scene.call(&["follow", "j", "--output", "plain"], ADDRESS);
    assert_eq!(follower.status.code(), Some(3), "{}", String::from_utf8_lossy(&follower.stderr));
    assert_eq!(String::from_utf8_lossy(&follower.stdout).matches("line ").count(), 2000);
    assert_eq!(scene.cluster.forbids.load(Ordering::Relaxed), 0);
    // A client that never had a connection does not retry.
    scene.cluster.forbids.store(usize::MAX, Ordering::Relaxed);
    scene.fails(&["status"], ADDRESS, &["access is refused", "(Forbidden)"]);
}

#[test]
fn what_a_cluster_says_is_told_as_what_it_means() {
    let Some(scene) = Scene::new("what_a_cluster_says_is_told_as_what_it_means") else { return };
    scene.fails(&["status"], "kube://lab@ci/gone/build", &["not there, or has ended", "(NotFound)"]);
    scene.fails(&["status"], "kube://lab@ci/forbidden/build", &["access is refused", "(Forbidden)"]);
    scene.fails(&["status"], "kube://nobody@ci/runner-0", &["does not exist"]);
    let once = ["status", "--connect-timeout", "1ms"];
    scene.fails(&once, "kube://ci/runner-0", &["API server does not answer", "refused"]);
    for (program, parts) in [
        (
            ["sh", "-c", "echo 'sh: step-runner: not found' >&2; exit 127"],
            ["step-runner: not found", "bootstrap"],
        ),
        (
            ["sh", "-c", "echo Welcome"],
            ["not from a step-runner daemon; the output was \"Welcome\\n", "must print nothing"],
        ),
        (["sh", "-c", "exit 137"], ["exit status 137", "the connection ended"]),
        (
            ["sh", "-c", "echo 'step-runner proxy: connect /s: No such file or directory' >&2; exit 1"],
            ["no daemon listens there yet", "step-runner proxy: connect /s"],
        ),
    ] {
        *scene.cluster.instead.lock().unwrap() = Some(program);
        scene.fails(&once, ADDRESS, &parts);
    }
}
