//! Jobs that look for the agent's tokens (A22). As another user they find none; as the agent's own user they can, and the
//! agent warns.

use std::fs;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};

use serde_json::json;

use crate::fake_gitlab::RUNNER;
use crate::scene::Scene;
use crate::support::user::{self, Place};
use crate::support::{is_root, processes_with};

/// Looks for the runner's token in environments, arguments, open files and the folders `$1`. The pattern comes in two pieces,
/// so that the search does not find itself.
const SEARCH: &str = r#"
search() {
    printf '%s%s' "$FIRST" "$SECOND" >pattern
    grep --text --files-with-matches --no-messages --file pattern /proc/[0-9]*/environ /proc/[0-9]*/cmdline
    for file in /proc/[0-9]*/fd/*; do
        [ -f "$file" ] && [ -r "$file" ] && grep --text --quiet --no-messages --file pattern "$file" && echo "$file"
    done
    grep --text --recursive --files-with-matches --no-messages --exclude pattern --file pattern "$1"
    return 0
}
"#;

/// Runs a job that searches a folder. Returns the lines of its trace between the marks: what it has found.
fn found(scene: &Scene, folder: &str) -> Vec<String> {
    let (first, second) = RUNNER.split_at(RUNNER.len() / 2);
    let lines = [
        SEARCH.to_owned(),
        format!("FIRST={first} SECOND={second}"),
        format!("hits=$(search {folder}); echo begin-of-hits; echo \"$hits\"; echo end-of-hits"),
    ];
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let job = scene.gitlab.add_script(&lines);
    let ended = scene.gitlab.ended(job);
    let text = ended.text();
    assert_eq!(ended.state, "success", "{text}");
    // A line may have a time before it.
    let lines = text.lines().skip_while(|line| !line.ends_with("begin-of-hits")).skip(1);
    let hits = lines
        .take_while(|line| !line.ends_with("end-of-hits"))
        .map(|line| line.split_whitespace().last().unwrap_or_default().to_owned());
    hits.filter(|hit| hit.starts_with('/')).collect()
}

/// True if the memory of a process has `text`.
fn has_in_memory(pid: i32, text: &str) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let memory = fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    maps.lines().filter(|line| line.contains(" rw-p ")).any(|line| {
        let (from, to) = line.split_whitespace().next().and_then(|range| range.split_once('-')).unwrap();
        let (from, to) = (u64::from_str_radix(from, 16).unwrap(), u64::from_str_radix(to, 16).unwrap());
        let mut bytes = vec![0; (to - from) as usize];
        let read = memory.read_at(&mut bytes, from).unwrap_or(0);
        bytes[..read].windows(text.len()).any(|part| part == text.as_bytes())
    })
}

/// Lets each user enter the scene's folder. The file with the token is its owner's alone, as `register` makes it.
fn open(scene: &Scene) -> String {
    let config = scene.path("agent.toml");
    fs::set_permissions(&config, fs::Permissions::from_mode(0o600)).unwrap();
    let folder = config.parent().unwrap();
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    folder.display().to_string()
}

#[test]
fn a22_a_job_of_another_user_finds_no_token_of_the_runner() {
    if !is_root("a22_a_job_of_another_user_finds_no_token_of_the_runner") {
        return;
    }
    let place = Place::of(user::lonely());
    let daemon = place.setup().start_in(place.path());
    let entry = format!(
        "address = \"{}\"\nbuilds_dir = \"{}\"\nrequire_separate_user = true",
        daemon.socket.display(),
        daemon.file("builds").display()
    );
    let mut scene = Scene::with("", &entry);
    let folder = open(&scene);
    scene.start();
    assert_eq!(found(&scene, &folder), [""; 0]);
    assert_eq!(found(&scene, &place.path().display().to_string()), [""; 0]);
    assert!(!scene.said().contains("own user"), "{}", scene.said());
    // Of what runs as the job's user nothing has the token, so nobody can get it out of there.
    let own = processes_with(&place.path().display().to_string());
    assert!(!own.is_empty());
    for pid in own {
        assert!(!has_in_memory(pid, RUNNER), "process {pid} has the token");
    }
}

#[test]
fn a22_a_job_of_the_agents_own_user_can_find_the_token_and_the_agent_warns() {
    let mut scene = Scene::new();
    let folder = open(&scene);
    scene.start();
    assert_eq!(found(&scene, &folder), [scene.path("agent.toml").display().to_string()]);
    assert!(scene.said().contains("its jobs run as the agent's own user"), "{}", scene.said());
}

/// The agent's own lines are masked by itself: no daemon has seen them.
#[test]
fn what_the_agent_says_of_a_job_shows_none_of_its_secrets() {
    let mut scene = Scene::new();
    scene.start();
    let secret = json!({"key": "SECRET", "value": "canary-of-a-registry", "masked": true});
    let warned = scene.gitlab.add(|job| {
        let attempts = json!({"key": "GET_SOURCES_ATTEMPTS", "value": "$CI_JOB_TOKEN"});
        let timeout = json!({"key": "RUNNER_SCRIPT_TIMEOUT", "value": "x-$SECRET"});
        job["variables"].as_array_mut().unwrap().extend([secret.clone(), attempts, timeout]);
        job["steps"][0]["script"] = json!(["true"]);
    });
    let ended = scene.gitlab.ended(warned);
    assert!(ended.text().contains("GET_SOURCES_ATTEMPTS is \"[MASKED]\""), "{}", ended.text());
    assert!(ended.text().contains("RUNNER_SCRIPT_TIMEOUT is \"x-[MASKED]\""), "{}", ended.text());
    assert!(!ended.text().contains(&ended.token), "{}", ended.text());
    let refused = scene.gitlab.add(|job| {
        job["variables"].as_array_mut().unwrap().push(secret);
        job["image"] = json!({"name": "$SECRET/image"});
    });
    let text = scene.gitlab.ended(refused).text();
    assert!(text.contains("([MASKED]/image)") && !text.contains("canary"), "{text}");
    assert!(!scene.said().contains("canary"), "{}", scene.said());
}
