//! Options and texts of the command line itself.

use std::process::Command;

use super::here::Here;
use super::{program, run, stderr, stdout};
use crate::support::parts;

#[test]
fn the_short_help_is_a_small_screen_and_the_long_one_has_all() {
    for command in ["", "run", "submit", "follow", "status", "cancel", "check", "serve", "doctor", "man"] {
        let words: Vec<&str> = command.split_whitespace().collect();
        let brief = stdout(&run(&[&words[..], &["-h"]].concat()));
        let long = stdout(&run(&[&words[..], &["--help"]].concat()));
        assert!(brief.lines().count() <= 20, "{command}: {brief}");
        assert!(brief.contains("--help"), "{brief}");
        assert!(long.lines().count() > brief.lines().count() && long.contains("Examples:"), "{command}");
    }
    let brief = stdout(&run(&["run", "-h"]));
    for option in ["--input", "--env-file", "--errexit"] {
        assert!(brief.contains(option), "{brief}");
    }
    assert!(!brief.contains("--cancel-grace") && stdout(&run(&["run", "--help"])).contains("--cancel-grace"));
}

#[test]
fn a_slip_in_a_command_is_answered_with_the_command() {
    for (slip, meant) in [("rnu", "run"), ("chekc", "check"), ("stauts", "status")] {
        let output = run(&[slip]);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(&format!("'{meant}'")), "{slip}: {}", stderr(&output));
    }
}

#[test]
fn help_and_man_know_commands_below_commands_and_say_what_there_is() {
    assert!(stdout(&run(&["help", "steps", "serve"])).contains("step-runner steps serve "));
    for (words, told) in [
        (&["help", "steps", "none"][..], "there is no topic or command `steps none`; topics are language"),
        (&["man", "none"], "there is no command `none`; commands are run, submit"),
        (&["man", "steps", "none"], "there is no command `none`; commands are serve, proxy, bootstrap"),
    ] {
        let output = run(words);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(told), "{words:?}: {}", stderr(&output));
    }
}

#[test]
fn an_address_that_is_not_a_daemons_is_answered_with_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let socket = folder.path().join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::io::Write::write_all(&mut stream.unwrap(), b"220 ready\r\n").unwrap();
        }
    });
    for (path, told) in [
        (&file, "the file there is not a socket; name the daemon's socket with --socket or --address"),
        (&socket, "another program listens on this socket: name the daemon's with --socket or --address"),
    ] {
        let path = path.to_str().unwrap();
        let said = stderr(&run(&["status", "--address", path]));
        assert!(said.contains(told) && !said.contains("proxy"), "{said}");
        assert!(said.contains(&format!("at unix:{path}: ")), "{said}");
    }
}

#[test]
fn a_temporary_folder_that_is_not_there_is_named() {
    let here = Here::new("[{name: a, script: pwd}]\n");
    let mut command = program(&["run", "job.yml"]);
    let output = command.current_dir(here.path("")).env("TMPDIR", "/none").output().unwrap();
    let said = stderr(&output);
    assert!(
        said.contains("cannot make a folder for a private daemon in /none: No such file or directory"),
        "{said}"
    );
}

#[test]
fn the_version_is_one_line_and_verbose_tells_the_protocol() {
    let version = stdout(&run(&["--version"]));
    assert!(version.starts_with("step-runner 0.") && version.lines().count() == 1, "{version}");
    let details = stdout(&run(&["-v", "--version"]));
    assert!(details.starts_with(version.trim_end()) && details.contains("Keeper protocol: "), "{details}");
}

#[test]
fn a_working_directory_is_made_only_if_that_is_asked_for() {
    let here = Here::new("[{name: a, script: pwd}]\n");
    let run = |words: &[&str]| {
        program(&[&["run", "job.yml"], words].concat()).current_dir(here.path("")).output().unwrap()
    };
    let output = run(&["--work-dir", "new/deep"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("new/deep does not exist; make it, or add --make-work-dir"),
        "{output:?}"
    );
    assert!(!here.path("new").exists());
    let output = run(&["--work-dir", "new/deep", "--make-work-dir"]);
    assert!(output.status.success() && stdout(&output).ends_with("/new/deep\n"), "{output:?}");
}

#[test]
fn variables_come_from_a_file_and_options_win() {
    let here = Here::new("[{name: a, script: 'echo \"$A|$B|$OWN\"'}]\n");
    here.write("vars.env", "# comment\nexport A='one two'\nB=from file\n\nOWN\n");
    let run = |words: &[&str]| {
        let words = [&["run", "-q", "job.yml"], words].concat();
        program(&words).current_dir(here.path("")).env("OWN", "mine").output().unwrap()
    };
    assert_eq!(stdout(&run(&["--env-file", "vars.env"])), "one two|from file|mine\n");
    assert_eq!(stdout(&run(&["--env-file", "vars.env", "--env", "B=option"])), "one two|option|mine\n");
    here.write("bad.env", "A=1\nS3CRET VALUE\n");
    let output = run(&["--env-file", "bad.env"]);
    assert_eq!(output.status.code(), Some(2));
    let said = stderr(&output);
    assert!(said.contains("bad.env:2: write NAME=VALUE") && !said.contains("S3CRET"), "{said}");
    for (file, what) in [
        ("/dev/zero", "MiB"),
        ("no.env", "--env-file no.env: the file cannot be read"),
        (".", "cannot be read"),
    ] {
        let output = run(&["--env-file", file]);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(what), "{file}: {}", stderr(&output));
    }
}

#[test]
fn one_command_writes_all_pages_of_the_manual() {
    let folder = tempfile::tempdir().unwrap();
    let man = folder.path().join("share/man1");
    let output = run(&["man", "--all-to", man.to_str().unwrap()]);
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    let mut pages = 0;
    for entry in std::fs::read_dir(&man).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        for section in ["EXIT STATUS", "ENVIRONMENT", "FILES", "SEE ALSO"] {
            assert!(
                text.contains(&format!(".SH \"{section}\"")) || text.contains(&format!(".SH {section}")),
                "{text}"
            );
        }
        assert!(!text.contains("see a summary"), "{text}");
        pages += 1;
    }
    assert!(pages > 20, "{pages}");
    for page in ["step-runner.1", "step-runner-run.1", "step-runner-steps-serve.1"] {
        assert!(man.join(page).exists(), "{page}");
    }
    assert!(!man.join("step-runner-keeper.1").exists());
}

#[test]
fn steps_are_asked_for_colours_where_the_view_shows_them() {
    if Command::new("script").arg("--version").output().is_err() {
        return parts::skipped("steps_are_asked_for_colours_where_the_view_shows_them", "script");
    }
    let here = Here::new("[{name: a, script: 'echo \"<$FORCE_COLOR|$CLICOLOR_FORCE>\"'}]\n");
    let shown = |words: &str| {
        let line = format!("{} run {words} job.yml", env!("CARGO_BIN_EXE_step-runner"));
        let mut command = Command::new("script");
        command.args(["-qec", &line, "/dev/null"]).current_dir(here.path("")).env("TERM", "xterm");
        for name in ["NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "CI"] {
            command.env_remove(name);
        }
        stdout(&command.output().unwrap())
    };
    assert!(shown("").contains("<1|1>"), "{}", shown(""));
    for words in ["--color never", "--output plain", "--env NO_COLOR=1"] {
        assert!(shown(words).contains("<|>"), "{words}: {}", shown(words));
    }
    let output = program(&["run", "job.yml"]).current_dir(here.path("")).output().unwrap();
    assert_eq!(stdout(&output), "<|>\n");
}
