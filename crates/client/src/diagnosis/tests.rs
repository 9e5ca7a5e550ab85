//! Tests of the table of connectors.md §5, row by row.

use super::*;
use ConnectorKind::{Command, Docker, Kube, Podman, Ssh};

const fn code(code: u8) -> ExitStatus {
    ExitStatus::Code(code)
}

fn judge(kind: ConnectorKind, end: impl Into<Option<ExitStatus>>, stderr: &str) -> Meaning {
    meaning(&Seen { kind: Some(kind), end: end.into(), stderr: stderr.as_bytes(), ..Seen::default() })
}

#[test]
fn ssh_without_a_network_is_tried_again() {
    for said in [
        "ssh: connect to host 10.0.0.7 port 22: Connection refused",
        "ssh: connect to host 10.0.0.7 port 22: Connection timed out",
        "mux_client_request_session: session request failed: Session open refused by peer",
        "ssh: Could not resolve hostname build7: Temporary failure in name resolution",
        "Connection to 127.0.0.1 closed by remote host.",
        "client_loop: send disconnect: Broken pipe",
        "",
    ] {
        assert_eq!(judge(Ssh, code(255), said), Meaning::Network, "{said}");
    }
    assert_eq!(Meaning::Network.repeats(), Repeats::UntilTheLimit);
}

#[test]
fn ssh_without_the_right_to_is_final() {
    for (said, expected) in [
        ("ci@build7: Permission denied (publickey).", Meaning::Denied),
        ("Host key verification failed.", Meaning::Denied),
        ("Received disconnect from 10.0.0.7: Too many authentication failures", Meaning::Denied),
        ("ssh: Could not resolve hostname build7: Name or service not known", Meaning::UnknownHost),
        ("/home/ci/.ssh/config: line 1: Bad configuration option: x", Meaning::Usage),
    ] {
        assert_eq!(judge(Ssh, code(255), said), expected, "{said}");
        let may_pass = expected != Meaning::Usage;
        assert_eq!(expected.repeats(), if may_pass { Repeats::Briefly } else { Repeats::Never }, "{said}");
    }
}

#[test]
fn a_missing_program_is_final_and_says_how_to_bring_it() {
    let oci = "OCI runtime exec failed: exec failed: unable to start container process: exec: \"step-runner\": executable file not found in $PATH: unknown";
    for (kind, end, said) in [
        (Ssh, code(127), "sh: 1: step-runner: not found"),
        (Docker, code(126), ""),
        (Docker, code(127), oci),
        (
            Podman,
            code(127),
            "Error: crun: executable file `step-runner` not found: No such file or directory",
        ),
        (Kube, code(126), "command terminated with exit code 126"),
        (
            Kube,
            code(1),
            "error: Internal error occurred: exec: \"step-runner\": executable file not found in $PATH",
        ),
        (Command, code(127), ""),
    ] {
        assert_eq!(judge(kind, end, said), Meaning::NoProgram, "{kind:?} {said}");
    }
    let on_stdout =
        Seen { kind: Some(Docker), end: Some(code(126)), stdout: oci.as_bytes(), ..Seen::default() };
    assert_eq!(meaning(&on_stdout), Meaning::NoProgram);
    assert_eq!(Meaning::NoProgram.repeats(), Repeats::Never);
    assert!(Meaning::NoProgram.remedy().unwrap().contains("bootstrap"));
}

/// Messages of container runtimes about a program that they cannot start, cut at the limit for standard output.
#[test]
fn a_program_that_a_runtime_cannot_start_is_missing() {
    let new = "OCI runtime exec failed: exec failed: unable to start container process: ";
    let old =
        "OCI runtime exec failed: exec failed: container_linux.go:380: starting container process caused: ";
    let kubectl = "error: Internal error occurred: error executing command in container: failed to exec in container: failed to start exec \"6e56\": ";
    let long = format!("exec: \"/{0}\": stat /{0}: no such file or directory: unknown", "folder/".repeat(30));
    for (kind, end, said) in [
        (Docker, 126, format!("{new}exec: \"/opt/step-runner\": stat /opt/step-runner: no such file or directory: unknown")),
        (Docker, 127, format!("{new}exec: \"step-runner\": executable file not found in $PATH: unknown")),
        (Docker, 126, format!("{old}exec: \"/opt\": permission denied: unknown")),
        (Docker, 126, format!("{new}exec: \"/opt\": is a directory: unknown")),
        (Docker, 126, format!("{new}exec /opt/step-runner: exec format error: unknown")),
        (Docker, 126, "OCI runtime exec failed: crun: executable file `step-runner` not found: unknown".into()),
        (Docker, 126, format!("{new}{long}")),
        (Kube, 1, format!("{kubectl}{new}exec: \"/bin/bash\": stat /bin/bash: no such file or directory: unknown")),
        (Kube, 1, "exec failed: unable to start container process: exec: \"/x\": stat /x: no such file or directory".into()),
    ] {
        assert_eq!(judge(kind, code(end), &said), Meaning::NoProgram, "{said}");
        let shown = said.as_bytes().get(..SHOWN).unwrap_or(said.as_bytes());
        if kind == Docker {
            let seen = Seen { kind: Some(kind), end: Some(code(end)), stdout: shown, ..Seen::default() };
            assert_eq!(meaning(&seen), Meaning::NoProgram, "{said}");
        }
    }
}

#[test]
fn an_exec_into_a_container_that_is_just_ending_is_no_missing_program() {
    for (said, expected) in [
        ("container is not running\r\n", Meaning::Stopped),
        ("No such container: 1f\r\n", Meaning::Gone),
        ("container \"1f\" in namespace \"moby\": not found\r\n", Meaning::Stopped),
        ("cannot exec in a deleted state: unknown\r\n", Meaning::Stopped),
        (
            "OCI runtime exec failed: exec failed: unable to start container process: error executing setns process: exit status 1: unknown\r\n",
            Meaning::Lost,
        ),
        (
            "OCI runtime exec failed: exec failed: unable to start container process: error adding pid 9 to cgroups: failed to write 9: open /sys/fs/cgroup/systemd/docker/1f/cgroup.procs: no such file or directory: unknown\r\n",
            Meaning::Lost,
        ),
        (
            "OCI runtime exec failed: exec failed: unable to start container process: open /proc/self/fd: no such file or directory: unknown\r\n",
            Meaning::Lost,
        ),
        ("ttrpc: closed: unknown\r\n", Meaning::Lost),
        ("Container 1f is paused, unpause the container before exec\r\n", Meaning::Engine),
    ] {
        let seen =
            Seen { kind: Some(Docker), end: Some(code(126)), stdout: said.as_bytes(), ..Seen::default() };
        assert_eq!(meaning(&seen), expected, "{said}");
        // Its client may still be alive by then.
        if said.starts_with("OCI") {
            assert_eq!(meaning(&Seen { end: None, ..seen }), expected, "{said}");
        }
    }
    let kubectl = "error: Internal error occurred: error executing command in container: failed to exec in container: failed to start exec \"6e56\": OCI runtime exec failed: exec failed: unable to start container process: open /proc/self/fd: no such file or directory: unknown";
    assert_eq!(judge(Kube, code(1), kubectl), Meaning::Lost);
}

#[test]
fn a_kubelet_that_does_not_know_the_pod_is_asked_again() {
    let said = "error: unable to upgrade connection: pod does not exist";
    assert_eq!(judge(Kube, code(1), said), Meaning::Lost);
}

#[test]
fn what_is_gone_is_final_and_what_may_come_back_is_tried_briefly() {
    for (kind, end, said, expected) in [
        (Docker, code(1), "Error response from daemon: No such container: job", Meaning::Gone),
        (Docker, code(1), "Error response from daemon: container 1f is not running", Meaning::Stopped),
        (
            Docker,
            code(126),
            "OCI runtime exec failed: exec failed: cannot exec in a stopped container: unknown",
            Meaning::Stopped,
        ),
        (
            Docker,
            code(126),
            "OCI runtime exec failed: exec failed: cannot exec a container that has stopped: unknown",
            Meaning::Stopped,
        ),
        (
            Podman,
            code(125),
            "Error: no container with name or ID \"job\" found: no such container",
            Meaning::Gone,
        ),
        (
            Podman,
            code(255),
            "Error: can only create exec sessions on running containers: container state improper",
            Meaning::Stopped,
        ),
        (
            Docker,
            code(126),
            "OCI runtime exec failed: cannot exec in a deleted state: unknown",
            Meaning::Stopped,
        ),
        (Kube, code(1), "Error from server (NotFound): pods \"p\" not found", Meaning::Gone),
        (
            Kube,
            code(1),
            "error: Internal error occurred: error executing command in container: failed to exec in container: container is in CONTAINER_EXITED state",
            Meaning::Stopped,
        ),
        (
            Kube,
            code(1),
            "error: Internal error occurred: error executing command in container: failed to exec in container: failed to load task: no running task found: task 6e56 not found: not found",
            Meaning::Stopped,
        ),
        (
            Kube,
            code(1),
            "error: Internal error occurred: error executing command in container: container is not created or running",
            Meaning::Stopped,
        ),
        (
            Kube,
            code(1),
            "error: cannot exec into a container in a completed pod; current phase is Failed",
            Meaning::Gone,
        ),
        (Kube, code(1), "Error from server (Forbidden): pods \"p\" is forbidden", Meaning::Denied),
        (Kube, code(1), "error: context \"x\" does not exist", Meaning::Usage),
        (
            Docker,
            code(1),
            "permission denied while trying to connect to the Docker daemon socket",
            Meaning::Denied,
        ),
    ] {
        assert_eq!(judge(kind, end, said), expected, "{said}");
        let may_pass = matches!(expected, Meaning::Stopped | Meaning::Denied);
        assert_eq!(expected.repeats(), if may_pass { Repeats::Briefly } else { Repeats::Never }, "{said}");
    }
}

#[test]
fn an_engine_that_is_away_is_tried_again() {
    for (kind, said) in [
        (
            Docker,
            "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
        ),
        (Docker, "error during connect: Get \"http://x\": EOF"),
        (Docker, "Error response from daemon: Container job is paused, unpause the container before exec"),
        (Podman, "Error: unable to connect to Podman socket"),
        (
            Kube,
            "The connection to the server 127.0.0.1:6443 was refused - did you specify the right host or port?",
        ),
        (Kube, "Unable to connect to the server: dial tcp 10.0.0.1:6443: i/o timeout"),
        (
            Kube,
            "Error from server (ServiceUnavailable): the server is currently unable to handle the request",
        ),
    ] {
        assert_eq!(judge(kind, code(1), said), Meaning::Engine, "{said}");
    }
    assert_eq!(Meaning::Engine.repeats(), Repeats::UntilTheLimit);
}

#[test]
fn a_daemon_that_is_not_there_yet_is_tried_again_and_a_socket_of_others_is_not() {
    for kind in [Ssh, Docker, Podman, Kube, Command] {
        let absent = "step-runner proxy: connect /s: No such file or directory (os error 2)";
        assert_eq!(judge(kind, code(1), absent), Meaning::NoDaemon);
        let closed = "step-runner proxy: connect /s: Permission denied (os error 13)";
        assert_eq!(judge(kind, code(1), closed), Meaning::BadSocket);
        let file = "step-runner proxy: connect /s: the file there is not a socket";
        assert_eq!(judge(kind, code(1), file), Meaning::BadSocket);
        let foreign = "step-runner proxy: connect: the socket /s belongs to user 7; if you trust it, name it";
        assert_eq!(judge(kind, code(1), foreign), Meaning::BadSocket);
    }
    assert_eq!(Meaning::NoDaemon.repeats(), Repeats::UntilTheLimit);
    assert_eq!(Meaning::BadSocket.repeats(), Repeats::Never);
}

#[test]
fn a_line_that_was_cut_is_tried_again() {
    for kind in [Ssh, Docker, Podman, Kube, Command] {
        for end in
            [137, 143, 0, 1].map(|n| Some(code(n))).into_iter().chain([Some(ExitStatus::Signal(9)), None])
        {
            assert_eq!(judge(kind, end, ""), Meaning::Lost, "{kind:?} {end:?}");
        }
    }
    assert_eq!(Meaning::Lost.repeats(), Repeats::UntilTheLimit);
}

#[test]
fn a_silent_far_side_is_tried_twice_more() {
    let seen = Seen { kind: Some(Ssh), silent: true, ..Seen::default() };
    assert_eq!(meaning(&seen), Meaning::Silent);
    assert_eq!(Meaning::Silent.repeats(), Repeats::Twice);
}

#[test]
fn a_banner_is_shown_and_final() {
    let seen = Seen { kind: Some(Ssh), stdout: b"Welcome to build7!\n\x1b[0m", ..Seen::default() };
    let diagnosis = Diagnosis::of("ssh", &seen);
    assert_eq!(diagnosis.meaning().repeats(), Repeats::Never);
    assert!(diagnosis.to_string().contains(r"Welcome to build7!\n\x1b[0m"), "{diagnosis}");
    let long = [b'x'; 1000];
    let shown = Diagnosis::of("ssh", &Seen { stdout: &long, ..seen }).to_string();
    assert_eq!(shown.matches('x').count(), SHOWN);
}

#[test]
fn a_message_ends_with_the_last_lines_of_the_connector() {
    let stderr: Vec<_> = (0..9).map(|line| format!("line {line}\r\n\n")).collect();
    let stderr = stderr.concat();
    let seen = Seen { kind: Some(Ssh), end: Some(code(255)), stderr: stderr.as_bytes(), ..Seen::default() };
    let text = Diagnosis::of("ssh", &seen).to_string();
    assert!(text.starts_with("`ssh` ended with exit status 255: the host"), "{text}");
    assert!(text.ends_with(": line 4 | line 5 | line 6 | line 7 | line 8"), "{text}");
    assert!(last_lines(b"\x1b[31mred\x07").contains(r"\u{1b}[31mred\u{7}"));
}

#[test]
fn bytes_that_are_no_answer_are_blamed_on_a_proxy_only_where_there_is_one() {
    let remedy = |kind| {
        let diagnosis = Diagnosis::of("x", &Seen { kind, stdout: b"220 ready", ..Seen::default() });
        assert_eq!(diagnosis.meaning(), Meaning::Foreign);
        diagnosis.remedy().unwrap()
    };
    assert!(remedy(None).contains("another program listens"));
    assert!(remedy(Some(Ssh)).contains("let the proxy alone write"));
}
