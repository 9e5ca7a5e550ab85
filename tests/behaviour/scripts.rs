//! Scripts of `scripts/` take a part that is missing for a skip, and a part that is there but fails for a failure.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A program that succeeds and prints nothing.
const WORKS: &str = "exit 0";

/// A program that fails.
const FAILS: &str = "echo 'this part is broken' >&2; exit 1";

/// A Go that is new enough. Its other commands succeed.
const NEW_GO: &str = "[ \"$1 $2\" != 'env GOVERSION' ] || echo go1.24.0";

/// A run of a script with some programs replaced: its words, and name and text of each program.
struct Case {
    words: &'static [&'static str],
    parts: &'static [(&'static str, &'static str)],
}

const fn case(words: &'static [&'static str], parts: &'static [(&'static str, &'static str)]) -> Case {
    Case { words, parts }
}

/// At least one case of each script.
const CASES: &[Case] = &[
    case(&["clients", "go"], &[("go", NEW_GO), ("protoc", FAILS)]),
    case(&["clients", "grpcurl"], &[("go", NEW_GO), ("protoc", FAILS)]),
    case(&["clients", "ghz"], &[("go", NEW_GO), ("protoc", FAILS)]),
    case(&["clients", "health-probe"], &[("go", NEW_GO), ("protoc", FAILS)]),
    case(&["clients", "go"], &[("go", FAILS), ("protoc", WORKS)]),
    case(&["clients", "go"], &[("go", "[ \"$1\" = env ] && echo go1.24.0"), ("protoc", WORKS)]),
    case(&["clients", "python"], &[("python3", FAILS)]),
    case(&["clients", "python"], &[("python3", "[ \"$1\" = -c ]")]),
    case(&["clients", "node"], &[("node", WORKS), ("npm", FAILS)]),
    case(&["clients", "jvm"], &[("javac", WORKS), ("mvn", FAILS)]),
    // The clients after the first one count, too.
    case(
        &["clients", "health-probe", "jvm"],
        &[("go", NEW_GO), ("protoc", FAILS), ("javac", WORKS), ("mvn", WORKS)],
    ),
    case(&["gitlab-runner"], &[("python3", WORKS), ("go", FAILS)]),
    case(
        &["gitlab-runner"],
        &[("python3", WORKS), ("go", "[ \"$1\" != mod ] && { [ \"$1\" != env ] || echo go1.24.0; }")],
    ),
    case(&["agent-compare"], &[("git", WORKS), ("go", FAILS)]),
    case(&["ci-runner"], &[("git", WORKS), ("go", FAILS)]),
    case(&["ci-peer"], &[("git", WORKS), ("node", WORKS), ("npm", FAILS), ("rsync", WORKS)]),
    case(&["reference-client"], &[("python3", WORKS), ("go", FAILS)]),
    case(
        &["docker"],
        &[("id", "echo 0"), ("dockerd", WORKS), ("docker", WORKS), ("busybox", WORKS), ("readelf", FAILS)],
    ),
    case(
        &["agent-docker"],
        &[("id", "echo 0"), ("dockerd", WORKS), ("docker", WORKS), ("busybox", WORKS), ("readelf", FAILS)],
    ),
    case(&["agent-kube"], &[KUBE[0], KUBE[1], KUBE[2], KUBE[3], KUBE[4], KUBE[5], KUBE[6], ("go", FAILS)]),
    case(&["kube-test"], &[KUBE[0], KUBE[1], KUBE[2], KUBE[3], KUBE[4], KUBE[5], KUBE[6], ("go", FAILS)]),
    case(
        &["kube-test"],
        &[KUBE[0], KUBE[1], KUBE[2], KUBE[3], KUBE[4], KUBE[5], KUBE[6], ("go", NEW_GO), ("readelf", FAILS)],
    ),
    case(&["static-build"], &[("rustup", WORKS), ("musl-gcc", WORKS), ("cargo", WORKS), ("readelf", FAILS)]),
    case(&["guided-build"], &[("rustup", FAILS)]),
    case(&["release", "--no-rpm"], &[("jq", WORKS), ("xz", WORKS), ("dpkg-deb", WORKS), ("git", FAILS)]),
    case(
        &["newcomer", "--dry-run"],
        &[
            ("id", "echo 0"),
            ("unshare", WORKS),
            ("setsid", WORKS),
            ("chroot", WORKS),
            ("mount", WORKS),
            ("cargo", WORKS),
            ("rustc", "echo /usr"),
            ("cc", WORKS),
            ("git", FAILS),
        ],
    ),
    case(&["picture-crash"], &[("python3", FAILS)]),
    case(&["tour-kill"], &[("step-runner", FAILS)]),
    case(&["mutants", "queue"], &[("cargo", FAILS)]),
    case(&["fuzz-rustc", "rustc"], &[("rustc", FAILS)]),
    case(&["agent-crash"], &[("cargo", FAILS)]),
    case(&["agent-load"], &[("go", FAILS)]),
    case(&["agent-load", "--alone"], &[("cargo", FAILS)]),
    case(&["bench"], &[("cargo", FAILS)]),
    case(&["cancel"], &[("cargo", FAILS)]),
    case(&["crash"], &[("cargo", FAILS)]),
    case(&["empty-root"], &[("cargo", FAILS)]),
    case(&["faults"], &[("cargo", FAILS)]),
    case(&["followers"], &[("cargo", FAILS)]),
    case(&["fuzz"], &[("cargo", FAILS)]),
    case(&["fuzz-build"], &[("cargo", FAILS)]),
    case(&["hostile"], &[("cargo", FAILS)]),
    case(&["load"], &[("cargo", FAILS)]),
    case(&["masking"], &[("cargo", FAILS)]),
    case(&["power"], &[("cargo", FAILS)]),
    case(&["proxy"], &[("cargo", FAILS)]),
    case(&["race"], &[("cargo", FAILS)]),
    case(&["relay"], &[("cargo", FAILS)]),
    case(&["simulate"], &[("cargo", FAILS)]),
    case(&["soak"], &[("cargo", FAILS)]),
    case(&["ssh"], &[("cargo", FAILS)]),
    case(&["terminal"], &[("cargo", FAILS)]),
    case(&["volume"], &[("cargo", FAILS)]),
];

/// Parts of a Kubernetes node that work.
const KUBE: [(&str, &str); 7] = [
    ("id", "echo 0"),
    ("containerd", WORKS),
    ("ctr", WORKS),
    ("openssl", WORKS),
    ("busybox", WORKS),
    ("python3", WORKS),
    ("unshare", WORKS),
];

/// A folder with programs that come before those of the machine.
struct Machine(tempfile::TempDir);

impl Machine {
    fn with(parts: &[(&str, &str)]) -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        fs::create_dir(machine.path("bin")).unwrap();
        for (name, text) in parts {
            let program = machine.path("bin").join(name);
            fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
            fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
        }
        // What `reference-client` takes for a checkout of the reference.
        for folder in ["reference/pkg/api/service", "reference/dist/steps/script"] {
            fs::create_dir_all(machine.path(folder)).unwrap();
        }
        fs::write(machine.path("reference/pkg/api/service/service.go"), "").unwrap();
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs a script with `words`. It builds nothing of this repository, and writes into the folder of this machine.
    fn run(&self, words: &[&str], required: bool) -> Output {
        let program = self.path("bin/step-runner");
        let program = if program.exists() { program } else { "/bin/true".into() };
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap());
        let mut command = Command::new(scripts().join(words[0]));
        command.args(&words[1..]).env("PATH", path).env("TMPDIR", self.0.path()).env_remove("GITLAB_RUNNER");
        command.env("CARGO_TARGET_DIR", self.path("target")).env("STEP_RUNNER_BIN", program);
        command.env("STEP_RUNNER_REFERENCE", self.path("reference")).env_remove("STEP_RUNNER_REQUIRE_PARTS");
        if required {
            command.env("STEP_RUNNER_REQUIRE_PARTS", "1");
        }
        command.output().unwrap()
    }
}

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts")
}

#[test]
fn a_part_that_is_there_but_fails_is_a_failure_in_every_script() {
    for Case { words, parts } in CASES {
        for required in [false, true] {
            let output = Machine::with(parts).run(words, required);
            let said = [&output.stdout[..], &output.stderr].concat();
            let said = String::from_utf8_lossy(&said);
            assert!(!output.status.success(), "{words:?}, required {required}: {said}");
            assert!(!said.contains("skipped"), "{words:?}, required {required}: {said}");
        }
    }
    let known: BTreeSet<_> = CASES.iter().map(|case| case.words[0].to_owned()).collect();
    let there = fs::read_dir(scripts()).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    assert_eq!(known, there.collect::<BTreeSet<_>>());
}

/// A part that is missing is a skip for a person, and a failure where parts are required.
#[test]
fn a_part_that_is_missing_is_named() {
    // The machine's own programs, but none of those that the script looks for.
    let machine = Machine::with(&[]);
    for name in ["bash", "dirname", "realpath", "mktemp", "mkdir", "rm", "sed", "env", "cat", "sort", "id"] {
        let found = std::env::split_paths(&std::env::var_os("PATH").unwrap())
            .map(|folder| folder.join(name))
            .find(|file| file.is_file());
        std::os::unix::fs::symlink(found.unwrap(), machine.path("bin").join(name)).unwrap();
    }
    for (words, part) in [
        (&["clients", "go"][..], "no go"),
        (&["clients", "python"], "no python3"),
        (&["clients", "node"], "no node"),
        (&["clients", "jvm"], "no javac"),
        (&["gitlab-runner"], "no python3"),
        (&["reference-client"], "no go"),
        (&["ci-peer"], "no git"),
        (&["agent-compare"], "no git"),
        (&["ci-runner"], "no git"),
        (&["agent-load"], "no go"),
    ] {
        for required in [false, true] {
            let mut command = Command::new(machine.path("bin/bash"));
            command.arg(scripts().join(words[0])).args(&words[1..]);
            command.env_clear().env("PATH", machine.path("bin")).env("TMPDIR", machine.0.path());
            command.env("CARGO_TARGET_DIR", machine.path("target")).env("STEP_RUNNER_BIN", "/bin/true");
            command.env("STEP_RUNNER_REFERENCE", machine.path("reference"));
            if required {
                command.env("STEP_RUNNER_REQUIRE_PARTS", "1");
            }
            let output = command.output().unwrap();
            let said = [&output.stdout[..], &output.stderr].concat();
            let said = String::from_utf8_lossy(&said);
            assert_eq!(output.status.success(), !required, "{words:?}, required {required}: {said}");
            assert!(said.contains(&format!("skipped: {part}")), "{words:?}: {said}");
        }
    }
}
