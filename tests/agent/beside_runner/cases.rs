//! The jobs.

use serde_json::{Value, json};

use crate::git_server::GitServer;

/// A job for both programs.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) change: fn(&mut Value, &Given<'_>),
    /// True if a user cancels it once it has printed `begun`.
    pub(super) cancels: bool,
    /// False if a program may drop it.
    pub(super) is_answered: bool,
}

/// Things that a job can refer to: they are there before it is made.
pub(super) struct Given<'g> {
    /// Number and token of the job before.
    pub(super) earlier: Option<(u64, String)>,
    pub(super) git: &'g GitServer,
}

const fn case(name: &'static str, change: fn(&mut Value, &Given<'_>)) -> Case {
    Case { name, change, cancels: false, is_answered: true }
}

/// A line that prints if the shell is a login shell, which sets `PATH` anew.
const LOGIN: &str = "shopt -q login_shell && echo this is a login shell || echo this is no login shell";

/// The jobs in their order. Those that use what an earlier one has left come after it.
pub(super) const CASES: [Case; 18] = [
    case("success", |job, _| scripts(job, &["echo hello", "echo two; echo three"], &[])),
    case("failure", |job, _| {
        scripts(job, &["echo one", "exit 7", "echo never"], &["echo after $CI_JOB_STATUS", "exit 3"]);
    }),
    case("after_script", |job, _| {
        let after = ["echo after x=$X status=$CI_JOB_STATUS", "pwd", "false", "echo not after a failure"];
        scripts(job, &["X=1", "export X", "echo x=$X", "cd /"], &after);
    }),
    case("errors", |job, _| {
        let lines = [
            "false | true && echo a pipe that ends well",
            "cat /nowhere 2>/dev/null || echo caught",
            "if false; then :; fi",
            "f() {\n  false\n  echo in f\n}",
            "f && echo a function in a condition",
            "set +e",
            "false",
            "echo with set +e",
            "set -e",
            "true | false",
            "echo never",
        ];
        scripts(job, &lines, &[]);
    }),
    case("output", |job, _| {
        let lines = [
            "printf 'no newline'",
            "printf 'a\\rb\\n'",
            "printf 'bytes \\377\\303\\274\\n'",
            "printf '\\033[31mred\\033[0m\\n'",
            "echo 'one\ntwo'",
            "",
            "# a comment",
            "echo \"it's \\$HOME\"",
        ];
        scripts(job, &lines, &[]);
    }),
    case("long", |job, _| scripts(job, &["printf '%0150d\\n' $(seq 2000)"], &[])),
    case("killed", |job, _| scripts(job, &["kill -9 $$"], &["echo after"])),
    Case {
        cancels: true,
        ..case("cancel", |job, _| {
            scripts(
                job,
                &["echo begun", "while :; do echo tick; sleep 0.2; done"],
                &["echo after $CI_JOB_STATUS"],
            );
        })
    },
    case("timeout", |job, _| {
        job["runner_info"]["timeout"] = json!(3);
        scripts(job, &["echo begun", "sleep 600"], &["echo after $CI_JOB_STATUS"]);
        for step in job["steps"].as_array_mut().unwrap() {
            step["timeout"] = json!(3);
        }
    }),
    case("masked", |job, _| {
        add(job, json!({"key": "SECRET", "value": "secretvalue123", "public": false, "masked": true}));
        let lines = [
            "echo $SECRET and x${SECRET}y$SECRET",
            "printf secretv; sleep 0.3; printf 'alue123\\n'",
            "echo $SECRET | base64",
            "echo glpat-abcdefghijklmnopqrst",
            "echo $CI_JOB_TOKEN",
        ];
        scripts(job, &lines, &["echo $SECRET"]);
    }),
    case("variables", variables),
    case("environment", |job, _| {
        scripts(job, &[LOGIN, "env | grep -v -E '^(_|SHLVL|PATH|CONFIG_FILE|STEP_RUNNER_JOB)=' | sort"], &[]);
    }),
    case("cache", |job, _| {
        cache(job);
        scripts(job, &["mkdir -p kept", "echo kept >kept/a"], &[]);
    }),
    case("artifacts", |job, _| {
        cache(job);
        job["artifacts"] = json!([
            {"name": "my name", "untracked": false, "paths": ["out/"], "exclude": null, "when": "on_success",
                "artifact_type": "archive", "artifact_format": "zip", "expire_in": "1 week"},
            {"name": "report.xml", "untracked": false, "paths": ["*.xml", "gone"], "exclude": null, "when": "always",
                "artifact_type": "junit", "artifact_format": "gzip", "expire_in": null},
        ]);
        scripts(job, &["cat kept/a", "mkdir -p out", "echo made >out/a", "echo '<a/>' >a.xml", "ls"], &[]);
    }),
    case("needs", |job, given| {
        let (earlier, token) = given.earlier.clone().unwrap();
        let file = json!({"filename": "artifacts.zip", "size": 200});
        job["dependencies"] = json!([
            {"id": earlier, "token": token, "name": "artifacts", "artifacts_file": file},
            {"id": 1, "token": "glcbt-64_none", "name": "without artifacts"},
        ]);
        variable(job, "GIT_STRATEGY", "clone");
        sources(job, given);
        scripts(job, &["cat out/a", "ls"], &[]);
    }),
    case("sources", |job, given| {
        sources(job, given);
        variable(job, "GIT_STRATEGY", "fetch");
        scripts(
            job,
            &[
                "ls -A",
                "git status --short --branch",
                "git log --format=%s",
                "git remote -v | sed 's/:[^/]*@/:…@/'",
                "git config --list --local | grep -v '^remote' | sort",
            ],
            &[],
        );
    }),
    Case {
        is_answered: false,
        ..case("broken", |job, _| {
            scripts(job, &["echo never"], &[]);
            add(job, json!({"key": "BROKEN", "value": {"a": 1}, "public": true}));
        })
    },
    case("after a broken one", |job, _| {
        job["artifacts"] = json!([{"name": "x", "untracked": false, "paths": ["nowhere"], "exclude": null, "when": "on_success",
            "artifact_type": "archive", "artifact_format": "zip", "expire_in": null}]);
        scripts(job, &["pwd"], &[]);
    }),
];

/// Sets the lines of the script, and those of `after_script` if there are some.
fn scripts(job: &mut Value, script: &[&str], after: &[&str]) {
    let step = |name: &str, lines: &[&str], when: &str| json!({"name": name, "script": lines, "timeout": 600, "when": when, "allow_failure": when == "always"});
    let mut steps = vec![step("script", script, "on_success")];
    if !after.is_empty() {
        steps.push(step("after_script", after, "always"));
    }
    job["steps"] = json!(steps);
    variable(job, "FF_TIMESTAMPS", "false");
}

fn add(job: &mut Value, variable: Value) {
    job["variables"].as_array_mut().unwrap().push(variable);
}

/// Sets a variable, in place of one of that name.
fn variable(job: &mut Value, key: &str, value: &str) {
    job["variables"].as_array_mut().unwrap().retain(|variable| variable["key"] != key);
    add(job, json!({"key": key, "value": value, "public": true, "masked": false}));
}

fn cache(job: &mut Value) {
    job["cache"] = json!([{"key": "k", "untracked": false, "paths": ["kept"], "policy": "pull-push", "when": "on_success"}]);
}

fn variables(job: &mut Value, _: &Given<'_>) {
    for (key, value, more) in [
        ("PLAIN", "a b 'c' \"d\" $HOME_X", json!({})),
        ("BASE", "base", json!({})),
        ("EXPANDED", "<$BASE> <${BASE}> <$UNKNOWN> <$$BASE> <%BASE%> <$HOME>", json!({})),
        ("FIRST", "$SECOND", json!({})),
        ("SECOND", "2 $BASE", json!({})),
        ("ITSELF", "$ITSELF:x", json!({})),
        ("RAW", "<$BASE>", json!({"raw": true})),
        ("FILE", "content of $BASE\nline two", json!({"file": true})),
        ("RAW_FILE", "raw $BASE", json!({"file": true, "raw": true})),
        ("USES_FILE", "path:$FILE", json!({})),
        ("LINES", "l1\nl2\n", json!({})),
        ("BASE", "second", json!({})),
        ("EMPTY", "", json!({})),
    ] {
        let mut one = json!({"key": key, "value": value, "public": true, "masked": false});
        one.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        add(job, one);
    }
    let lines = [
        "echo \"PLAIN $PLAIN\"",
        "echo \"EXPANDED $EXPANDED\"",
        "echo \"FIRST $FIRST ITSELF $ITSELF\"",
        "echo \"RAW $RAW\"",
        "echo \"LINES $LINES EMPTY $EMPTY BASE $BASE\"",
        "echo \"FILE $FILE\"; cat \"$FILE\"; echo; stat -c %a \"$FILE\"",
        "cat \"$RAW_FILE\"; echo",
        "echo \"USES_FILE $USES_FILE\"",
    ];
    scripts(job, &lines, &[]);
}

/// Makes the repository of [`sources`].
pub(super) fn repository(git: &GitServer) {
    let repository = git.repository("group/project");
    repository.file("text", "one\n").file(".gitignore", "kept\n").commit("first");
}

/// Makes the sources of a job those of the repository.
fn sources(job: &mut Value, given: &Given<'_>) {
    let token = job["token"].as_str().unwrap().to_owned();
    given.git.require("gitlab-ci-token", &token);
    let repository = given.git.repository("group/project");
    job["git_info"]["repo_url"] =
        json!(given.git.url_as(&format!("gitlab-ci-token:{token}"), "group/project"));
    job["git_info"]["sha"] = json!(repository.git(&["rev-parse", "main"]).trim());
}
