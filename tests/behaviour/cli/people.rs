//! Messages to users besides the job's output: errors with `-q`, closed pipes, Ctrl-C in `follow`, unseen local files.

use std::io::Read as _;
use std::process::Stdio;

use super::{Scene, failing_job, program, stderr, stdout};
use crate::fake::{Daemon, Job};

#[test]
fn quiet_keeps_the_error_and_leaves_out_output_and_advice() {
    let scene = Scene::new(Daemon::with_job("42", failing_job()));
    let output = scene.run(&["follow", "42", "--quiet"]);
    assert_eq!(output.status.code(), Some(3));
    let text = stderr(&output);
    for part in ["job 42 failed", "step       build", "exit code  3"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("try: ") && !text.contains("end of its output"), "{text}");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error_to_tell_of() {
    let scene = Scene::new(Daemon::with_job("42", failing_job()));
    for words in [["follow", "42", "--merge"].as_slice(), &["follow", "42", "--output", "json"], &["status"]]
    {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = scene.command(words).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        let text = stderr(&output);
        assert!(!text.contains("step-runner:"), "{words:?}: {text}");
    }
}

#[test]
fn follow_says_after_an_interrupt_that_the_job_goes_on_and_how_to_come_back() {
    let job = Job { running: true, ..failing_job() };
    let scene = Scene::new(Daemon::with_job("42", job));
    let mut command = scene.command(&["follow", "42", "--output", "raw"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // `follow` handles signals once it has printed something.
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 10]).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT)
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let expected = format!(
        "step-runner: interrupted; the job goes on; come back with `step-runner follow --address unix:{} 42`\n",
        scene.socket()
    );
    assert!(stderr(&output).ends_with(&expected), "{output:?}");
}

#[test]
fn a_daemon_elsewhere_is_said_not_to_see_local_files() {
    let folder = tempfile::tempdir().unwrap();
    let steps = "spec: {}\n---\nrun:\n- {name: a, func: ./greet}\n";
    std::fs::write(folder.path().join("func.yml"), steps).unwrap();
    for command in ["run", "submit"] {
        let words = [command, ".", "--via", "false", "--connect-timeout", "1s"];
        let text = stderr(&program(&words).current_dir(folder.path()).output().unwrap());
        assert!(text.contains("cannot see local files: it looks for ./greet in its own"), "{text}");
        let words = [&words[..], &["--quiet"]].concat();
        let text = stderr(&program(&words).current_dir(folder.path()).output().unwrap());
        assert!(!text.contains("cannot see local files"), "{text}");
    }
}

#[test]
fn a_script_of_several_lines_is_shown_as_written_with_the_line_where_it_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let steps = "spec: {}\n---\nrun:\n- name: a\n  script: |\n    set -e\n    echo one\n    nosuch-command two\n    echo three\n";
    std::fs::write(folder.path().join("func.yml"), steps).unwrap();
    let output = program(&["run"]).current_dir(folder.path()).output().unwrap();
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(127), "one\n"));
    let text = stderr(&output);
    for part in [
        "\n               echo one\n             > nosuch-command two\n               echo three\n",
        "\n  exit code  127 (the command was not found)\n",
        "\n  at         func.yml:8\n",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn empty_variables_count_as_unset() {
    let scene = Scene::new(Daemon::with_job("42", failing_job()));
    let plain = scene.run(&["follow", "42"]);
    let mut command = scene.command(&["follow", "42"]);
    for name in ["OFFSET", "OUTPUT", "QUIET", "COLOR", "TIMES", "STEPS", "CONNECT_TIMEOUT", "ADDRESS"] {
        command.env(format!("STEP_RUNNER_{name}"), "");
    }
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), plain.status.code(), "{}", stderr(&output));
    assert_eq!(stdout(&output), stdout(&plain));
}

#[test]
fn what_cannot_be_read_or_used_is_named_with_its_remedy() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("latin1.yml"), b"- {name: a,\n   script: caf\xe9}\n").unwrap();
    std::fs::write(folder.path().join("job.yml"), "- {name: a, script: 'true'}\n").unwrap();
    for (words, expected) in [
        (["run", "latin1.yml"].as_slice(), ["latin1.yml:2:15", "save the file as UTF-8"].as_slice()),
        (&["run", ""], &["the name of the file is empty"]),
        (&["run", "--work-dir", "job.yml", "job.yml"], &["job.yml is a file, not a folder"]),
        (&["follow", "a/b"], &["character 2 of the id is not allowed"]),
    ] {
        let output = program(words).current_dir(folder.path()).output().unwrap();
        assert!(!output.status.success(), "{words:?}");
        for part in expected {
            assert!(stderr(&output).contains(part), "{words:?}: {}", stderr(&output));
        }
    }
}
