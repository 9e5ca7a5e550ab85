//! The sources of a job, from a real Git server.

use std::fs;

use serde_json::{Value, json};

use crate::git_server::GitServer;
use crate::scene::Scene;
use crate::support::programs::write_program;
use crate::support::tree;

/// Makes a job's sources those of a commit. The server wants the job's token.
fn sources(job: &mut Value, server: &GitServer, name: &str, sha: &str) {
    let token = job["token"].as_str().unwrap().to_owned();
    server.require("gitlab-ci-token", &token);
    job["git_info"]["repo_url"] = json!(server.url_as(&format!("gitlab-ci-token:{token}"), name));
    job["git_info"]["sha"] = json!(sha);
    let variables = job["variables"].as_array_mut().unwrap();
    variables.retain(|variable| variable["key"] != "GIT_STRATEGY");
}

#[test]
fn a15_sources_come_by_the_job_s_token_which_stays_nowhere() {
    let Some(server) = GitServer::start("a15_sources_come_by_the_job_s_token") else { return };
    let repository = server.repository("group/project");
    let first = repository.file("text", "one\n").commit("first");
    let second = repository.file("text", "two\n").commit("second");
    let mut scene = Scene::new();
    scene.start();
    for (sha, wanted) in [(&second, "two"), (&first, "one")] {
        let job = scene.gitlab.add(|job| {
            sources(job, &server, "group/project", sha);
            job["git_info"]["depth"] = json!(0);
            job["hooks"] = json!([{"name": "pre_get_sources_script", "script": ["echo hook before"]}]);
            job["steps"][0]["script"] = json!([
                "cat text",
                "touch left",
                "ls left | wc -l",
                "git config --list --local",
                "cat .git/config"
            ]);
        });
        let ended = scene.gitlab.ended(job);
        let text = ended.text();
        assert_eq!(ended.state, "success", "{text}");
        assert!(text.contains(&format!(" {wanted}\n")) && text.contains("hook before"), "{text}");
        assert!(!text.contains(&ended.token) && !text.contains("gitlab-ci-token:"), "{text}");
        for (path, content) in tree(&scene.path("state/builds")) {
            let has_token = content.windows(ended.token.len()).any(|part| part == ended.token.as_bytes());
            assert!(!has_token, "{}", path.display());
        }
    }
    assert!(scene.path("state/builds").exists());
    scene.gitlab.assert_clean();
}

#[test]
fn a15_failures_of_sources_are_told_apart() {
    let Some(server) = GitServer::start("a15_failures_of_sources") else { return };
    let repository = server.repository("group/project");
    let sha = repository.file("text", "one\n").commit("first");
    let mut scene = Scene::new();
    scene.start();
    let end = |change: &dyn Fn(&mut Value)| {
        let job = scene.gitlab.add(|job| {
            sources(job, &server, "group/project", &sha);
            change(job);
        });
        let ended = scene.gitlab.ended(job);
        (ended.finals[0]["failure_reason"].clone(), ended.text())
    };
    let (reason, text) =
        end(&|job| job["git_info"]["refspecs"] = json!(["+refs/heads/gone:refs/remotes/origin/gone"]));
    assert_eq!(reason, "script_failure", "{text}");
    let (reason, text) = end(&|_| server.require("gitlab-ci-token", "another"));
    assert_eq!(reason, "runner_system_failure", "{text}");
    assert!(text.contains("refuses the job's token"), "{text}");
    let (reason, text) =
        end(&|job| job["git_info"]["repo_url"] = json!("http://127.0.0.1:1/group/project.git"));
    assert_eq!(reason, "runner_system_failure", "not listed by the server as an external failure: {text}");
    assert!(text.contains("the server cannot be reached"), "{text}");
    let (reason, text) = end(&|job| job["git_info"]["repo_url"] = json!("ext::sh -c id"));
    assert!(reason == "script_failure" && !text.contains("uid="), "{text}");
}

/// A folder with the programs that a script needs, and no `git`.
pub(crate) fn tools(scene: &Scene) -> std::path::PathBuf {
    let folder = scene.path("tools");
    fs::create_dir(&folder).unwrap();
    let path = std::env::var_os("PATH").unwrap();
    for name in ["bash", "sh", "cat", "ls", "mkdir", "rm", "env"] {
        let found = std::env::split_paths(&path).map(|path| path.join(name)).find(|path| path.exists());
        std::os::unix::fs::symlink(found.unwrap(), folder.join(name)).unwrap();
    }
    folder
}

#[test]
fn a15_without_the_program_git_the_files_of_the_commit_come() {
    let Some(server) = GitServer::start("a15_without_the_program_git") else { return };
    let repository = server.repository("group/project");
    let first = repository.file("text", "one\n").file("deep/run.sh", "echo ran\n").commit("first");
    let second = repository.file("text", "two\n").commit("second");
    let mut scene = Scene::new();
    let tools = tools(&scene);
    scene.start_with(|command| {
        command.env("PATH", &tools);
    });
    let job = |change: &dyn Fn(&mut Value), sha: &str| {
        scene.gitlab.add(|job| {
            sources(job, &server, "group/project", sha);
            job["steps"][0]["script"] = json!(["cat text", "sh deep/run.sh", "ls -A", ": > left"]);
            change(job);
        })
    };
    for (sha, wanted) in [(&second, "two"), (&first, "one")] {
        let ended = scene.gitlab.ended(job(&|_| {}, sha));
        let text = ended.text();
        assert_eq!(ended.state, "success", "{text}");
        for part in [&format!(" {wanted}\n"), " ran\n", "WARNING: there is no `git` program"] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        assert!(
            !text.contains(" .git\n") && !text.contains(" left\n") && !text.contains(&ended.token),
            "{text}"
        );
    }
    let end = |change: &dyn Fn(&mut Value), sha: &str| {
        let ended = scene.gitlab.ended(job(change, sha));
        (ended.finals[0]["failure_reason"].clone(), ended.text())
    };
    let (reason, text) = end(&|_| {}, "1111111111111111111111111111111111111111");
    assert!(reason == "script_failure" && text.contains("cannot find revision"), "{reason}: {text}");
    let (reason, text) = end(&|_| server.require("gitlab-ci-token", "another"), &first);
    assert!(reason == "runner_system_failure" && text.contains("credentials"), "{reason}: {text}");
    let elsewhere =
        |job: &mut Value| job["git_info"]["repo_url"] = json!("http://127.0.0.1:1/group/project.git");
    let (reason, text) = end(&elsewhere, &first);
    assert!(reason == "runner_system_failure" && text.contains("cannot fetch from"), "{reason}: {text}");
}

#[test]
fn a15_submodules_come_with_the_same_token() {
    let Some(server) = GitServer::start("a15_submodules") else { return };
    let inner = server.repository("group/inner").file("inside", "deep\n").commit("inner");
    let outer = server.repository("group/outer");
    outer.file(".gitmodules", "[submodule \"inner\"]\n\tpath = inner\n\turl = ../inner\n").commit("first");
    outer.git(&["update-index", "--add", "--cacheinfo", &format!("160000,{inner},inner")]);
    outer.git(&["commit", "--quiet", "--message", "second"]);
    let sha = outer.git(&["rev-parse", "HEAD"]);
    let mut scene = Scene::new();
    scene.start();
    let builds = scene.path("state/builds");
    // What a job leaves for the next one: hooks and settings, in a repository elsewhere too, which runs nothing there.
    let plants = [
        "for at in .git .git/modules/inner; do mkdir -p $at/hooks; printf '#!/bin/sh\\necho PLANTED\\n' > $at/hooks/post-checkout; \
         chmod +x $at/hooks/post-checkout; git --git-dir $at config core.fsmonitor 'echo PLANTED'; done",
        "mv .git ../elsewhere; echo \"gitdir: $PWD/../elsewhere\" > .git",
        "rm -rf .git/modules; ln -s \"$PWD/../elsewhere/modules\" .git/modules",
        "true",
    ];
    for plant in plants {
        let job = scene.gitlab.add(|job| {
            sources(job, &server, "group/outer", &sha);
            let variables = job["variables"].as_array_mut().unwrap();
            variables.push(json!({"key": "GIT_SUBMODULE_STRATEGY", "value": "recursive"}));
            job["steps"][0]["script"] = json!(["cat inner/inside", plant]);
        });
        let ended = scene.gitlab.ended(job);
        let text = ended.text();
        assert!(ended.state == "success" && text.contains(" deep\n"), "{text}");
        assert!(!text.lines().any(|line| line.ends_with(" PLANTED")), "{text}");
        let has_token =
            |content: &Vec<u8>| content.windows(ended.token.len()).any(|part| part == ended.token.as_bytes());
        assert!(!tree(&builds).values().any(has_token));
    }
    fs::remove_dir_all(builds).unwrap();
}

/// Double of `git-lfs`. It fetches nothing without its filter or the job's token.
const LFS: &str = r#"#!/bin/sh
case $1 in
version) exec test ! -e "$0.absent" ;;
pull)
    test -n "$(git config filter.lfs.clean)" || exit 9
    printf 'url=%s\n\n' "$(git config remote.origin.url)" | git credential fill | grep -q '^password=.' || exit 9
    git ls-files -- ':(attr:filter=lfs)' | while read -r name; do echo "content of $name" >"$name"; done
    ;;
*) exit 9 ;;
esac
"#;

/// Runs a job with files in Git LFS, also in a submodule. Returns its trace.
fn job_with_large_files(server: &GitServer, sha: &str, is_there: bool, skip: Option<&str>) -> String {
    let mut scene = Scene::new();
    let programs = scene.path("programs");
    fs::create_dir(&programs).unwrap();
    write_program(&programs.join("git-lfs"), LFS);
    if !is_there {
        fs::write(programs.join("git-lfs.absent"), "").unwrap();
    }
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    scene.start_with(|command| _ = command.env("PATH", path));
    let job = scene.gitlab.add(|job| {
        sources(job, server, "group/large", sha);
        let variables = job["variables"].as_array_mut().unwrap();
        variables.push(json!({"key": "GIT_SUBMODULE_STRATEGY", "value": "normal"}));
        if let Some(value) = skip {
            variables.push(json!({"key": "GIT_LFS_SKIP_SMUDGE", "value": value}));
        }
        job["steps"][0]["script"] = json!(["cat big.bin", "cat below/deep.bin"]);
    });
    let ended = scene.gitlab.ended(job);
    assert_eq!(ended.state, "success", "{}", ended.text());
    assert!(!ended.text().contains(&ended.token), "{}", ended.text());
    ended.text()
}

#[test]
fn files_of_git_lfs_come_unless_the_job_does_not_want_them() {
    let Some(server) = GitServer::start("files_of_git_lfs") else { return };
    let attributes = "*.bin filter=lfs\n";
    let inner = server.repository("group/below");
    let inner = inner.file(".gitattributes", attributes).file("deep.bin", "pointer\n").commit("inner");
    let outer = server.repository("group/large");
    outer.file(".gitattributes", attributes).file("big.bin", "pointer\n");
    outer.file(".gitmodules", "[submodule \"below\"]\n\tpath = below\n\turl = ../below\n").commit("first");
    outer.git(&["update-index", "--add", "--cacheinfo", &format!("160000,{inner},below")]);
    outer.git(&["commit", "--quiet", "--message", "second"]);
    let sha = outer.git(&["rev-parse", "HEAD"]);
    let warning = "stay pointers: there is no `git-lfs` program";
    for (is_there, skip, fetched, warned) in [
        (true, None, true, false),
        (true, Some("0"), true, false),
        (true, Some("1"), false, false),
        (true, Some("true"), false, false),
        (false, None, false, true),
        (false, Some("1"), false, false),
    ] {
        let text = job_with_large_files(&server, &sha, is_there, skip);
        let case = format!("{is_there} {skip:?}: {text}");
        for name in ["big.bin", "deep.bin"] {
            assert_eq!(text.contains(&format!("content of {name}\n")), fetched, "{case}");
        }
        assert_eq!(text.contains(warning), warned, "{case}");
    }
}
