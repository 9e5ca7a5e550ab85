//! Peers of the keeper's socket: a daemon is accepted, a process of a job is not (docs/operate/threat-model.md).

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use step_runner::keeper::protocol::{FromKeeper, PROTOCOL_VERSION, Request, ToKeeper};
use step_runner::model::JobId;

use crate::keeper::support::{Job, Keeper, exited, settings};

/// Variable for [`attacker`]: path of the socket. Without it the function does nothing.
const SOCKET: &str = "ATTACKED_KEEPER_SOCKET";

/// Variable for [`attacker`]: if set, it leaves the connection to a child process and exits at once.
const LEAVES: &str = "ATTACKER_LEAVES";

/// Name of the job whose record the attacker asks for.
const VICTIM: &str = "victim";

/// Record of the victim.
const SECRET: &[u8] = b"the-record-of-another-job";

fn frame(id: u64, request: Request) -> Vec<u8> {
    let body = postcard::to_stdvec(&ToKeeper { id, request }).unwrap();
    [&(body.len() as u32).to_le_bytes()[..], &body].concat()
}

/// Runs as a step when the variable is set: asks the keeper for the record of another job and prints the answer.
#[test]
#[expect(clippy::zombie_processes, reason = "the child shall outlive this process")]
fn attacker() {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    let key = JobId::parse(VICTIM).unwrap().key();
    let hello = Request::Hello { version: PROTOCOL_VERSION, settings: settings(), digest_key: [9; 16] };
    let mut stream = UnixStream::connect(socket).unwrap();
    if std::env::var_os(LEAVES).is_some() {
        // The process that connected has exited when the keeper looks at it. Its child holds the connection.
        let request = [frame(1, hello), frame(2, Request::ReadRecord { key, offset: 0 })].concat();
        stream.write_all(&request).ok();
        let mut child = Command::new("timeout");
        child.args(["20", "cat"]).stdin(Stdio::from(std::os::fd::OwnedFd::from(stream)));
        child.spawn().unwrap();
        return;
    }
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(&frame(1, hello)).ok();
    stream.write_all(&frame(2, Request::ReadRecord { key, offset: 0 })).ok();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok();
    let told = format!("answered with {} bytes\n{}\n", answer.len(), String::from_utf8_lossy(&answer));
    std::io::stdout().write_all(told.as_bytes()).unwrap();
}

/// Starts a step that runs [`attacker`] behind the words of `before`.
fn attack(keeper: &mut Keeper, job: &mut Job, before: &str, leaves: bool) {
    let program = std::env::current_exe().unwrap();
    let script = format!("{before} {} --exact keeper::peers::attacker --nocapture", program.display());
    let mut spawn = job.command(&["/bin/sh", "-c", &script]);
    spawn.env.push(format!("{SOCKET}={}", keeper.dir.path().join("keeper.sock").display()).into_bytes());
    if leaves {
        spawn.env.push(format!("{LEAVES}=1").into_bytes());
    }
    let process = spawn.process;
    keeper.client.tell(Request::Spawn(Box::new(spawn)));
    assert_eq!(keeper.client.step_ended(job.key, process).end, exited(0));
}

/// Waits for the notice to the operator about refused peers, and returns it.
fn refusal(keeper: &mut Keeper) -> String {
    keeper.client.event(|event| match event {
        FromKeeper::Notice(text) if text.contains("keeper.sock") => Some(text.clone()),
        _ => None,
    })
}

#[test]
fn fault_79_a_step_that_asks_the_keeper_for_another_jobs_record_is_refused() {
    for cgroup in ["auto", "off"] {
        for (before, leaves) in [("exec", false), ("setsid -w", false), ("exec", true)] {
            let mut keeper = Keeper::start(cgroup);
            let victim = keeper.register_with(VICTIM, |asked| asked.record = SECRET.to_vec());
            let mut job = keeper.register("attacker");
            attack(&mut keeper, &mut job, before, leaves);
            let text = refusal(&mut keeper);
            assert!(text.contains("refused"), "{text}");
            // The attacker got no answer, and the daemon is still connected.
            assert_eq!(victim.record(&mut keeper.client), [SECRET.to_vec()]);
            job.close(&mut keeper.client);
            let said = job.lines().join("\n");
            assert!(!said.contains("the-record"), "{cgroup} {before} {leaves}: {said}");
            assert!(leaves || said.contains("answered with 0 bytes"), "{cgroup} {before}: {said}");
            keeper.end();
        }
    }
}

#[test]
fn fault_79_an_orphan_of_a_step_is_refused_and_the_operator_hears_it_once() {
    for cgroup in ["auto", "off"] {
        let mut keeper = Keeper::start(cgroup);
        keeper.register_with(VICTIM, |asked| asked.record = SECRET.to_vec());
        let mut job = keeper.register("attacker");
        let done = keeper.dir.path().join("done");
        // The attacker's parents have ended, its environment does not name the job, and it has its own session.
        let path = keeper.dir.path().join("keeper.sock");
        let program = std::env::current_exe().unwrap();
        let script = format!(
            "(env -i PATH=$PATH setsid sh -c 'while kill -0 $1; do :; done; \
             for i in 1 2 3; do {SOCKET}={} {} --exact keeper::peers::attacker --nocapture; done; touch {}' sh $$ 2>/dev/null &)",
            path.display(),
            program.display(),
            done.display()
        );
        assert_eq!(job.run(&mut keeper.client, &script).end, exited(0));
        refusal(&mut keeper);
        crate::keeper::support::wait_for_file(&done);
        job.close(&mut keeper.client);
        let said = job.lines().join("\n");
        assert_eq!(said.matches("answered with 0 bytes").count(), 3, "{cgroup}: {said}");
        assert!(!said.contains("the-record"), "{cgroup}: {said}");
        // A daemon is still accepted.
        keeper.client.hang_up();
        keeper.reconnect(settings());
        keeper.end();
    }
}
