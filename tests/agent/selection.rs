//! Runners of all types, beside each other: which job goes to whom, and changes at the server that take effect at once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::{Value, json};

use crate::fake_gitlab::selection::{Kind, Project, Runner, Selection, Waiting};
use crate::fake_gitlab::{FakeGitlab, RUNNER};
use crate::jobs::waits_for;
use crate::scene::Scene;

/// Numbers of the double's runner and of a second one.
const FIRST: u64 = 11;
const SECOND: u64 = 12;

/// Token of the second runner.
const OTHER: &str = "glrt-t1_A1FakeRunner0002";

/// Returns an instance runner with a change.
fn instance(change: impl FnOnce(&mut Runner)) -> Runner {
    let mut runner = Runner::new(Kind::Instance);
    change(&mut runner);
    runner
}

fn tags(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn a19_each_rule_of_the_choice() {
    let job = |id: u64, project: u64, names: &[&str], is_protected: bool| Waiting {
        id,
        project,
        tags: tags(names),
        is_protected,
    };
    let queue = [
        job(1, 1, &[], false),
        job(2, 1, &["docker"], false),
        job(3, 2, &["docker", "arm"], true),
        job(4, 3, &[], true),
    ];
    let below = |group: &str| Project { group: group.to_owned(), ..Project::default() };
    let projects = BTreeMap::from([
        (1, Project { shared_runners_enabled: false, ..below("a/b") }),
        (2, Project { group_runners_enabled: false, ..below("a") }),
        (3, below("ab")),
    ]);
    let group = |path: &str| Runner::new(Kind::Group(path.to_owned()));
    let project = |ids: &[u64]| Runner::new(Kind::Project(ids.iter().copied().collect()));
    for (what, runner, wanted) in [
        ("project 1 wants no instance runner", instance(|_| {}), Some(4)),
        ("paused", instance(|runner| runner.is_paused = true), None),
        (
            "its tags, untagged jobs too",
            instance(|runner| runner.tags = tags(&["arm", "docker", "x"])),
            Some(3),
        ),
        (
            "tagged jobs only, and not all their tags",
            instance(|runner| (runner.run_untagged, runner.tags) = (false, tags(&["docker"]))),
            None,
        ),
        ("a group with what is below it", group("a"), Some(1)),
        (
            "project 2 wants no group runner",
            Runner { tags: tags(&["docker", "arm"]), run_untagged: false, ..group("a") },
            Some(2),
        ),
        ("a name that only begins alike", group("a/bc"), None),
        ("enabled projects", project(&[3]), Some(4)),
        ("protected jobs only", Runner { ref_protected: true, ..project(&[1, 3]) }, Some(4)),
        ("no project", project(&[]), None),
    ] {
        let selection = Selection {
            runners: BTreeMap::from([(7, runner)]),
            projects: projects.clone(),
            ..Selection::default()
        };
        assert_eq!(selection.choose(7, &queue, &BTreeMap::new()), wanted, "{what}");
    }
    assert_eq!(Selection::default().choose(7, &queue, &BTreeMap::new()), Some(1), "no settings: the first");
}

#[test]
fn a19_types_change_one_way_and_locks_keep_projects_out() {
    let mut selection = Selection::default();
    selection.runners.insert(7, instance(|runner| runner.is_locked = true));
    assert_eq!(selection.enable(7, 1), Err("only project runners are enabled for projects"));
    assert_eq!(selection.make_project_runner(7, 1), Ok(()));
    assert_eq!(selection.make_project_runner(7, 2), Err("only instance runners become project runners"));
    assert_eq!(selection.enable(7, 2), Err("the runner is locked"));
    selection.projects.insert(1, Project { shared_runners_enabled: false, ..Project::default() });
    selection.fork(1, 9, "people/me");
    assert!(!selection.projects[&9].shared_runners_enabled, "a fork has the settings");
    let job = Waiting { id: 1, project: 9, ..Waiting::default() };
    assert_eq!(selection.choose(7, &[job], &BTreeMap::new()), None, "a fork has none of the project runners");
}

/// Two agents at one server, each with some slots.
struct Pair {
    first: Scene,
    second: Scene,
    /// Number of each job at the server, in the order of the examples.
    jobs: Vec<u64>,
}

impl Pair {
    /// Makes three projects with the jobs 1, 2, 3; 4, 5; 6. Each runs until its file is there. The second agent has
    /// this token.
    fn new(second: &str) -> Self {
        let pair = Self { first: Scene::new(), second: Scene::bare(FakeGitlab::start()), jobs: Vec::new() };
        let gitlab = &pair.first.gitlab;
        gitlab.change(|world| {
            world.runners.insert(second.to_owned(), if second == RUNNER { FIRST } else { SECOND })
        });
        let projects = [1, 1, 1, 2, 2, 3];
        let jobs = projects.iter().zip(1..).map(|(project, number)| {
            let script = waits_for(&pair.go_on(number), "begun");
            gitlab.add_for(*project, &[], |job| job["steps"][0]["script"] = json!([script]))
        });
        let jobs = jobs.collect();
        Self { jobs, ..pair }
    }

    fn go_on(&self, number: usize) -> std::path::PathBuf {
        self.first.path(&format!("go-on-{number}"))
    }

    /// Gives the agents so many slots.
    fn slots(&self, first: usize, second: (usize, &str)) {
        let url = self.first.gitlab.url();
        for (scene, slots, token) in [(&self.first, first, RUNNER), (&self.second, second.0, second.1)] {
            scene.configure(&format!(
                "concurrent = {slots}\ncheck_interval = 1\n[[runners]]\nname = \"r\"\nid = 11\nurl = \"{url}\"\ntoken = \"{token}\"\n"
            ));
        }
    }

    /// Returns the numbers of the examples, in the order in which runners got the jobs.
    fn order(&self) -> Vec<usize> {
        let number = |job: &u64| 1 + self.jobs.iter().position(|other| other == job).unwrap();
        self.first.gitlab.given().iter().map(number).collect()
    }

    #[track_caller]
    fn wait_until_given(&self, wanted: &[usize]) {
        let (gitlab, count) = (&self.first.gitlab, wanted.len());
        gitlab.wait_for(&format!("{count} jobs"), |world| (world.queue.len() + count <= 6).then_some(()));
        assert_eq!(self.order(), wanted);
    }

    /// Lets a job end and waits until the server knows. Its runner gets nothing meanwhile, so that the server has the
    /// end before the next request: an agent that has a slot again asks at once, and the update can come later.
    fn end(&self, number: usize, runner: u64) {
        let pause = |is_paused| {
            self.first
                .gitlab
                .change(|world| world.selection.runners.get_mut(&runner).unwrap().is_paused = is_paused);
        };
        pause(true);
        fs::write(self.go_on(number), "").unwrap();
        assert_eq!(self.first.gitlab.ended(self.jobs[number - 1]).state, "success");
        pause(false);
    }

    /// Lets all jobs end.
    fn end_all(&self) {
        for number in 1..=self.jobs.len() {
            fs::write(self.go_on(number), "").unwrap();
        }
        for job in &self.jobs {
            assert_eq!(self.first.gitlab.ended(*job).state, "success");
        }
        self.first.gitlab.assert_clean();
    }
}

#[test]
fn a19_instance_runners_take_turns_between_projects() {
    let mut pair = Pair::new(OTHER);
    pair.first.gitlab.change(|world| {
        world.selection.runners = BTreeMap::from([(FIRST, instance(|_| {})), (SECOND, instance(|_| {}))]);
    });
    pair.slots(3, (3, OTHER));
    pair.first.start();
    pair.second.start();
    pair.wait_until_given(&[1, 4, 6, 2, 5, 3]);
    pair.end_all();
}

#[test]
fn a19_a_project_whose_job_has_ended_is_served_again() {
    let mut pair = Pair::new(OTHER);
    pair.first.gitlab.change(|world| {
        world.selection.runners = BTreeMap::from([(FIRST, instance(|_| {})), (SECOND, instance(|_| {}))]);
    });
    pair.slots(1, (1, OTHER));
    pair.first.start();
    pair.wait_until_given(&[1]);
    pair.end(1, FIRST);
    pair.wait_until_given(&[1, 2]);
    pair.second.start();
    pair.wait_until_given(&[1, 2, 4]);
    pair.end(4, SECOND);
    pair.wait_until_given(&[1, 2, 4, 5]);
    pair.slots(2, (1, OTHER));
    pair.wait_until_given(&[1, 2, 4, 5, 6]);
    pair.slots(2, (2, OTHER));
    pair.wait_until_given(&[1, 2, 4, 5, 6, 3]);
    pair.end_all();
}

#[test]
fn a19_a_project_runner_on_two_machines_takes_jobs_in_their_order() {
    let mut pair = Pair::new(RUNNER);
    let kind = Kind::Project(BTreeSet::from([1, 2, 3]));
    pair.first.gitlab.change(|world| world.selection.runners.insert(FIRST, Runner::new(kind)));
    pair.slots(3, (3, RUNNER));
    pair.first.start();
    pair.second.start();
    pair.wait_until_given(&[1, 2, 3, 4, 5, 6]);
    pair.end_all();
}

/// One agent whose runner is changed at the server while it runs.
struct Changes(Scene);

impl Changes {
    /// Puts two jobs into the queue, of which the agent gets the later one alone. Returns the other.
    fn only_the_second(&self, add: [&dyn Fn(&FakeGitlab) -> u64; 2]) -> u64 {
        let [first, second] = add.map(|add| add(&self.0.gitlab));
        self.is_done(second);
        assert_eq!(self.0.gitlab.world().jobs[&first].state, "pending");
        first
    }

    fn change(&self, change: impl FnOnce(&mut Selection)) {
        self.0.gitlab.change(|world| change(&mut world.selection));
    }

    fn runner(&self, change: impl FnOnce(&mut Runner)) {
        self.change(|selection| change(selection.runners.get_mut(&FIRST).unwrap()));
    }

    #[track_caller]
    fn is_done(&self, job: u64) {
        assert_eq!(self.0.gitlab.ended(job).state, "success");
    }
}

/// Returns an agent at work for an instance runner with a change.
fn changes(change: impl FnOnce(&mut Runner)) -> Changes {
    let mut scene = Scene::new();
    scene.gitlab.change(|world| world.selection.runners.insert(FIRST, instance(change)));
    scene.start();
    Changes(scene)
}

/// Returns what adds a job of a project with tags.
fn job(project: u64, names: &'static [&'static str], is_protected: bool) -> impl Fn(&FakeGitlab) -> u64 {
    let protect = move |job: &mut Value| job["git_info"]["protected"] = json!(is_protected);
    move |gitlab| gitlab.add_for(project, names, protect)
}

#[test]
fn a19_tags_protection_and_pauses_take_effect_without_a_restart() {
    let all = changes(|runner| runner.tags = tags(&["docker"]));
    let other = all.only_the_second([&job(1, &["docker", "arm"], false), &job(1, &["docker"], false)]);
    all.runner(|runner| runner.tags = tags(&["docker", "arm"]));
    all.is_done(other);
    all.runner(|runner| runner.run_untagged = false);
    let untagged = all.only_the_second([&job(1, &[], false), &job(1, &["arm"], false)]);
    all.runner(|runner| (runner.run_untagged, runner.ref_protected) = (true, true));
    let late = job(1, &[], true)(&all.0.gitlab);
    all.is_done(late);
    assert_eq!(all.0.gitlab.world().jobs[&untagged].state, "pending");
    all.runner(|runner| (runner.ref_protected, runner.is_paused) = (false, true));
    let asked = |world: &crate::fake_gitlab::World| {
        world.calls().iter().filter(|call| *call == "POST /jobs/request").count()
    };
    let before = asked(&all.0.gitlab.world());
    all.0
        .gitlab
        .wait_for("two requests of the paused runner", |world| (asked(world) >= before + 2).then_some(()));
    assert_eq!(all.0.gitlab.world().jobs[&untagged].state, "pending");
    all.runner(|runner| runner.is_paused = false);
    all.is_done(untagged);
    all.0.gitlab.assert_clean();
}

#[test]
fn a19_types_locks_projects_and_forks_take_effect_without_a_restart() {
    let all = changes(|_| {});
    all.change(|selection| {
        let settings =
            Project { group: "a/b".to_owned(), shared_runners_enabled: false, ..Project::default() };
        selection.projects.insert(1, settings);
    });
    let first = all.only_the_second([&job(1, &[], false), &job(2, &[], false)]);
    all.change(|selection| selection.projects.get_mut(&1).unwrap().shared_runners_enabled = true);
    all.is_done(first);
    all.change(|selection| selection.make_project_runner(FIRST, 1).unwrap());
    let second = all.only_the_second([&job(2, &[], false), &job(1, &[], false)]);
    all.runner(|runner| runner.is_locked = true);
    all.change(|selection| assert!(selection.enable(FIRST, 2).is_err()));
    all.change(|selection| selection.fork(1, 3, "people/me"));
    let fork = all.only_the_second([&job(3, &[], false), &job(1, &[], false)]);
    assert_eq!(all.0.gitlab.world().jobs[&second].state, "pending");
    all.runner(|runner| runner.is_locked = false);
    all.change(|selection| selection.enable(FIRST, 2).unwrap());
    all.is_done(second);
    // Another runner's settings under the same number: of the group of project 1.
    all.runner(|runner| runner.kind = Kind::Group("a".to_owned()));
    let late = job(1, &[], false)(&all.0.gitlab);
    all.is_done(late);
    all.change(|selection| selection.projects.get_mut(&1).unwrap().group_runners_enabled = false);
    all.change(|selection| selection.projects.get_mut(&3).unwrap().group = "a".to_owned());
    let closed = all.only_the_second([&job(1, &[], false), &job(3, &[], false)]);
    all.is_done(fork);
    all.change(|selection| selection.projects.get_mut(&1).unwrap().group_runners_enabled = true);
    all.is_done(closed);
    all.0.gitlab.assert_clean();
}
