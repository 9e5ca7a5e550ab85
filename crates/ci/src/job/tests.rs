//! One job of a CI file after its variables and rules were applied (ci.md §2, §3).

use std::collections::BTreeMap;

use indexmap::IndexMap;
use serde_json::json;
use step_runner_model::text::for_people;

use super::*;
use crate::file::{AllowFailure, CiFile, Source, read};
use crate::files::tests::Texts;
use crate::variables::{Defined, Facts, Level};

struct Scene {
    files: Texts,
    facts: Facts,
    given: Level,
    dotenv: Level,
    file: CiFile,
}

impl Scene {
    fn new(text: &str) -> Self {
        let files = Texts(BTreeMap::from([("ci.yml", text.to_owned()), ("src/a.rs", String::new())]));
        let (facts, inputs, given) = (Facts::default(), IndexMap::new(), Level::new());
        let file =
            read(&Source { path: "ci.yml", files: &files, inputs: &inputs, facts: &facts, given: &given })
                .unwrap();
        Self { files, facts, given, dotenv: Level::new(), file }
    }

    fn circumstances(&self) -> Circumstances<'_> {
        Circumstances {
            facts: Some(&self.facts),
            files: &self.files,
            given: &self.given,
            dotenv: &self.dotenv,
        }
    }

    fn try_job(&self, name: &str) -> Result<Job, String> {
        let told = |findings: Vec<step_runner_lang::diagnostic::Diagnostic>| {
            findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        of_file(&self.file, name, &self.circumstances()).map_err(told)
    }

    fn job(&self, name: &str) -> Job {
        self.try_job(name).unwrap()
    }

    fn standing(&self, name: &str) -> Standing {
        Pipeline::new(&self.file, &self.circumstances()).standing(name).unwrap().0
    }

    fn allowed(&self, name: &str) -> AllowFailure {
        Pipeline::new(&self.file, &self.circumstances()).standing(name).unwrap().1
    }

    fn needed(&self, name: &str) -> Vec<String> {
        Pipeline::new(&self.file, &self.circumstances()).needed(name).unwrap()
    }

    fn variable(&self, job: &str, name: &str) -> Option<String> {
        self.job(job)
            .variables
            .into_iter()
            .find(|variable| variable.key == name)
            .map(|variable| variable.value)
    }

    /// Returns the dependencies of a job; `?` behind those that may be missing.
    fn dependencies(&self, job: &str) -> String {
        let shown = |found: &Dependency| format!("{}{}", found.name, if found.required { "" } else { "?" });
        self.job(job).dependencies.iter().map(shown).collect::<Vec<_>>().join(" ")
    }
}

#[test]
fn later_levels_of_variables_win() {
    let text = "variables: {A: top, B: top, C: top, D: top, E: top, F: top}\n\
        workflow: {rules: [{if: $CI, variables: {B: workflow, C: workflow, D: workflow, E: workflow, F: workflow}}]}\n\
        j: {script: x, variables: {C: job, D: job, E: job, F: job}, rules: [{if: $C == \"job\", variables: {D: rule, E: rule, F: rule}}]}\n";
    let mut scene = Scene::new(text);
    scene.dotenv.extend([("E".to_owned(), Defined::raw("dotenv")), ("F".to_owned(), Defined::raw("dotenv"))]);
    scene.given.insert("F".to_owned(), Defined::raw("given"));
    for (name, value) in
        [("A", "top"), ("B", "workflow"), ("C", "job"), ("D", "rule"), ("E", "dotenv"), ("F", "given")]
    {
        assert_eq!(scene.variable("j", name).as_deref(), Some(value), "{name}");
    }
}

#[test]
fn the_first_rule_that_matches_decides() {
    let text = "none: {script: x}\n\
        by-hand: {script: x, when: manual}\n\
        at-once: {script: x, when: manual, rules: [{when: on_success}]}\n\
        of-job: {script: x, when: delayed, rules: [{if: $CI}]}\n\
        never: {script: x, rules: [{if: $CI, when: never}, {when: always}]}\n\
        always: {script: x, rules: [{if: $NONE, when: never}, {when: always}]}\n\
        no-match: {script: x, rules: [{if: $NONE}]}\n\
        no-rules: {script: x, rules: []}\n\
        file: {script: x, rules: [{exists: [src/*.rs]}]}\n\
        no-file: {script: x, rules: [{exists: [src/*.c, '*.rs']}]}\n\
        both: {script: x, rules: [{if: $NONE, exists: [src/*.rs]}]}\n\
        changed: {script: x, rules: [{changes: [src/*.rs]}]}\n";
    let mut scene = Scene::new(text);
    let waits = |when: &str| Standing::Waits(when.to_owned());
    let absent = |why: &str| Standing::Absent(why.to_owned());
    let (unmatched, never) =
        (absent("none of its rules matches"), absent("the rule that matches says \"never\""));
    for (name, expected) in [
        ("none", Standing::Runs),
        ("by-hand", waits("manual")),
        ("at-once", Standing::Runs),
        ("of-job", waits("delayed")),
        ("never", never),
        ("always", Standing::Always),
        ("no-match", unmatched.clone()),
        ("no-rules", unmatched.clone()),
        ("file", Standing::Runs),
        ("no-file", unmatched.clone()),
        ("both", unmatched.clone()),
        ("changed", Standing::Runs),
    ] {
        assert_eq!(scene.standing(name), expected, "{name}");
    }
    for (changed, expected) in [("src/a.rs", Standing::Runs), ("README.md", unmatched)] {
        scene.facts.changed = Some(vec![changed.to_owned()]);
        assert_eq!(scene.standing("changed"), expected, "{changed}");
    }
    for (workflow, expected) in [
        ("[{if: $CI}]", Standing::Runs),
        ("[{if: $NONE}]", absent("\"workflow:rules\" make no pipeline")),
        ("[{if: $CI, when: never}]", absent("\"workflow:rules\" make no pipeline")),
    ] {
        let scene = Scene::new(&format!("workflow: {{rules: {workflow}}}\nj: {{script: x}}"));
        assert_eq!(scene.standing("j"), expected, "{workflow}");
    }
    let wrong = Scene::new("variables: {P: /(/}\nj: {script: x, rules: [{if: $CI =~ $P}]}");
    assert!(
        wrong.try_job("j").err().unwrap().contains("correct the variable that holds the regular expression")
    );
}

#[test]
fn a_manual_job_may_fail_unless_it_or_its_rule_says_otherwise() {
    let scene = Scene::new(
        "by-hand: {script: x, when: manual}\n\
         counts: {script: x, when: manual, allow_failure: false}\n\
         ruled: {script: x, rules: [{when: manual}]}\n\
         both: {script: x, when: manual, rules: [{if: $CI}]}\n\
         rule-counts: {script: x, when: manual, rules: [{allow_failure: false}]}\n\
         plain: {script: x}\n",
    );
    for (name, expected) in [
        ("by-hand", AllowFailure::All),
        ("counts", AllowFailure::None),
        ("ruled", AllowFailure::None),
        ("both", AllowFailure::All),
        ("rule-counts", AllowFailure::None),
        ("plain", AllowFailure::None),
    ] {
        assert_eq!(scene.allowed(name), expected, "{name}");
    }
}

#[test]
fn a_named_job_starts_at_once_and_tells_what_a_pipeline_would_do() {
    let text = "plain: {script: x}\nby-hand: {script: x, when: manual, tags: [a], coverage: /x/}\nabsent: {script: x, rules: []}\n";
    let scene = Scene::new(text);
    let told = |name: &str| -> Vec<(bool, String)> {
        let messages = scene.job(name).messages;
        messages
            .into_iter()
            .map(|message| (message.is_warning, for_people(&message.text).into_owned()))
            .collect()
    };
    assert_eq!(told("plain"), []);
    assert_eq!(
        told("by-hand"),
        [
            (false, "in a pipeline this job is \"manual\": here it starts at once".to_owned()),
            (false, "keywords without effect here: when, tags, coverage".to_owned()),
        ]
    );
    assert_eq!(
        told("absent"),
        [(true, "this job would not be in the pipeline: none of its rules matches".to_owned())]
    );
    let scene = Scene::new("variables: {GIT_STRATEGY: pull, N: 012}\nj: {script: x}");
    let told: Vec<String> = scene.job("j").messages.into_iter().map(|message| message.text).collect();
    assert!(told[0].contains("012 is read as 10") && told[1].contains("GIT_STRATEGY"), "{told:?}");
}

#[test]
fn artifacts_come_of_the_jobs_that_are_named_or_of_earlier_stages() {
    let text = "stages: [a, b, c]\n\
        one: {stage: a, script: x, artifacts: {paths: [x]}}\n\
        two: {stage: a, script: x, parallel: {matrix: [{M: [p, q]}]}, artifacts: {paths: [x]}}\n\
        bare: {stage: a, script: x, parallel: 2}\n\
        same: {stage: c, script: x, artifacts: {paths: [x]}}\n\
        all: {stage: c, script: x}\n\
        second: {stage: b, script: x, artifacts: {paths: [x]}}\n\
        needs: {stage: c, script: x, needs: [second, bare, {job: one, optional: true}, {job: gone, optional: true}]}\n\
        without: {stage: c, script: x, needs: [{job: one, artifacts: false}, second]}\n\
        copy: {stage: c, script: x, needs: [\"two: [q]\"]}\n\
        of-matrix: {stage: c, script: x, needs: [{job: two, parallel: {matrix: [{M: p}]}}]}\n\
        both: {stage: c, script: x, needs: [one, second], dependencies: [second]}\n\
        named: {stage: c, script: x, dependencies: [two]}\n\
        none: {stage: c, script: x, dependencies: []}\n\
        ruled: {stage: c, script: x, needs: [one], rules: [{needs: [second]}]}\n\
        unruled: {stage: c, script: x, needs: [one], rules: [{when: always}]}\n\
        first: {stage: .pre, script: x}\n";
    let scene = Scene::new(text);
    for (job, expected) in [
        ("all", "one? two: [p]? two: [q]? second?"),
        ("needs", "second one?"),
        ("without", "second"),
        ("copy", "two: [q]"),
        ("of-matrix", "two: [p]"),
        ("both", "second"),
        ("named", "two: [p] two: [q]"),
        ("none", ""),
        ("ruled", "second"),
        ("unruled", "one"),
        ("first", ""),
    ] {
        assert_eq!(scene.dependencies(job), expected, "{job}");
    }
    let before = |job: &str| scene.needed(job).join(" ");
    for (job, expected) in [
        ("ruled", "one two: [p] two: [q] second"),
        ("copy", "two: [q]"),
        ("of-matrix", "two: [p]"),
        ("none", ""),
        ("first", ""),
    ] {
        assert_eq!(before(job), expected, "{job}");
    }
}

#[test]
fn jobs_that_start_by_themselves_run_before_those_of_later_stages() {
    let part = "stage: a, script: x, artifacts: {paths: [x]}";
    let scene = Scene::new(&format!(
        "stages: [a, b]\n\
         plain: {{{part}}}\nalways: {{{part}, when: always}}\nruled: {{{part}, rules: [{{when: always}}]}}\n\
         delayed: {{{part}, when: delayed, start_in: 1 day}}\nby-hand: {{{part}, when: manual}}\n\
         broken: {{{part}, when: on_failure}}\nabsent: {{{part}, rules: []}}\nlast: {{stage: b, script: x}}\n"
    ));
    assert_eq!(scene.needed("last"), ["plain", "always", "ruled", "delayed"]);
}

/// Counts how often rules have looked at the files.
struct Counted(std::cell::Cell<usize>);

impl crate::files::Files for Counted {
    fn read(&self, _: &str) -> Result<String, crate::files::ReadError> {
        Err(crate::files::ReadError::NotFound)
    }

    fn list(&self) -> Result<Vec<String>, crate::files::ReadError> {
        self.0.set(self.0.get() + 1);
        Ok(vec!["a".to_owned()])
    }
}

#[test]
fn the_rules_of_each_job_are_evaluated_once() {
    let job = |name: &str, stage: &str| {
        format!(
            "{name}: {{stage: {stage}, script: x, artifacts: {{paths: [x]}}, rules: [{{exists: [a]}}]}}\n"
        )
    };
    let jobs: String =
        (0..30).map(|number| job(&format!("j{number}"), ["a", "b", "c"][number / 10])).collect();
    let scene = Scene::new(&format!("stages: [a, b, c]\n{jobs}"));
    let files = Counted(std::cell::Cell::new(0));
    let circumstances = Circumstances { files: &files, ..scene.circumstances() };
    let mut pipeline = Pipeline::new(&scene.file, &circumstances);
    for name in scene.file.full_names() {
        assert_eq!(pipeline.standing(name).unwrap().0, Standing::Runs);
        assert_eq!(pipeline.needs(name).unwrap().len(), pipeline.needed(name).unwrap().len());
    }
    assert_eq!(files.0.get(), 30);
}

#[test]
fn an_optional_job_that_the_rules_leave_out_is_not_needed() {
    let scene = Scene::new(
        "x: {script: x, artifacts: {paths: [x]}, rules: [{if: $NOPE}]}\n\
         here: {script: x}\n\
         y: {script: x, needs: [{job: x, optional: true}, {job: here, optional: true}]}\n\
         z: {script: x, needs: [x]}\n\
         after: {script: x, needs: [z]}\n",
    );
    assert_eq!((scene.needed("y"), scene.standing("y")), (vec!["here".to_owned()], Standing::Runs));
    // Who names a job wants it, whatever the rules say.
    assert_eq!(scene.needed("z"), ["x"]);
    let Standing::Absent(why) = scene.standing("z") else { panic!("{:?}", scene.standing("z")) };
    assert_eq!(for_people(&why), "it needs \"x\", which would not be in it");
    assert_eq!(scene.standing("after"), Standing::Runs);
    let told = scene.job("z").messages;
    assert!(
        told[0].is_warning && told[0].text.starts_with("this job would not be in the pipeline: it needs")
    );
}

#[test]
fn variables_are_filled_into_keywords() {
    let text = "variables: {V: \"1\", POLICY: pull, DIR: out, TIER: staging}\n\
        j:\n  script: x\n  image: rust:$V\n  services: [{name: db:$V, alias: db-$V}]\n  \
        cache:\n    - {key: $V, paths: [$DIR/x], policy: $POLICY, fallback_keys: [f-$V]}\n    \
        - {key: {files: [a.$V]}, paths: [x]}\n    - {key: {files_commits: [b], prefix: p-$V}, untracked: true, when: always}\n  \
        artifacts: {name: n-$V, paths: [$DIR], exclude: [e-$V], reports: {dotenv: $DIR.env}}\n  \
        environment: {name: review/$V, url: 'https://$CI_ENVIRONMENT_SLUG.example.com', action: prepare, deployment_tier: $TIER}\n";
    let scene = Scene::new(text);
    let job = scene.job("j");
    assert_eq!(job.image.unwrap().name, "rust:1");
    assert_eq!((job.services[0].name.as_str(), job.services[0].alias.as_deref()), ("db:1", Some("db-1")));
    assert_eq!(scene.variable("j", "CI_JOB_IMAGE").as_deref(), Some("rust:1"));
    let keys: Vec<&Json> = job.caches.iter().map(|cache| &cache.key).collect();
    assert_eq!(
        keys,
        [
            &json!("1"),
            &json!({"files": ["a.1"], "prefix": "1"}),
            &json!({"files_commits": ["b"], "prefix": "p-1"}),
        ]
    );
    let caches: Vec<(&str, &str, bool)> = job
        .caches
        .iter()
        .map(|cache| (cache.policy.as_str(), cache.when.as_str(), cache.untracked))
        .collect();
    assert_eq!(
        caches,
        [("pull", "on_success", false), ("pull-push", "on_success", false), ("pull-push", "always", true)]
    );
    assert_eq!(
        (job.caches[0].paths.join(" "), job.caches[0].fallback_keys.join(" ")),
        ("out/x".into(), "f-1".into())
    );
    let artifacts: Vec<String> = (job.artifacts.iter())
        .map(|found| {
            format!(
                "{} {} {} {} {:?} {:?}",
                found.name, found.kind, found.format, found.when, found.paths, found.exclude
            )
        })
        .collect();
    assert_eq!(
        artifacts,
        [r#"n-1 archive zip on_success ["out"] ["e-1"]"#, r#".env dotenv gzip always ["out.env"] []"#]
    );
    for (name, value) in [
        ("CI_ENVIRONMENT_NAME", "review/1"),
        ("CI_ENVIRONMENT_ACTION", "prepare"),
        ("CI_ENVIRONMENT_TIER", "staging"),
    ] {
        assert_eq!(scene.variable("j", name).as_deref(), Some(value), "{name}");
    }
    let url = scene.variable("j", "CI_ENVIRONMENT_URL").unwrap();
    assert!(url.starts_with("https://review-1-") && url.ends_with(".example.com"), "{url}");
}

#[test]
fn a_cache_or_an_artifact_alone_has_the_defaults_of_gitlab() {
    let text = "c: {script: x, cache: [{key: {files: [a]}, paths: [x]}], artifacts: {untracked: true}}\n\
        d: {script: x, cache: {paths: [x]}, artifacts: {reports: {dotenv: d.env}}}\n\
        e: {script: x, artifacts: {when: always}, environment: prod}\n\
        f: {script: x, cache: {policy: $NONE, paths: [x]}}\n";
    let scene = Scene::new(text);
    let job = scene.job("c");
    assert_eq!(job.caches[0].key, json!({"files": ["a"], "prefix": null}));
    assert!(job.artifacts.len() == 1 && job.artifacts[0].untracked && job.artifacts[0].name == "artifacts");
    let job = scene.job("d");
    assert_eq!(
        (&job.caches[0].key, job.artifacts.len(), job.artifacts[0].kind.as_str()),
        (&json!("default"), 1, "dotenv")
    );
    assert!(scene.job("e").artifacts.is_empty());
    assert_eq!(scene.variable("e", "CI_ENVIRONMENT_ACTION").as_deref(), Some("start"));
    assert_eq!(scene.variable("e", "CI_ENVIRONMENT_SLUG").as_deref(), Some("prod"));
    assert_eq!(scene.variable("e", "CI_ENVIRONMENT_TIER").as_deref(), Some("production"));
    assert!(scene.try_job("f").err().unwrap().contains("\"\" is no policy of a cache"));
}

#[test]
fn variables_of_a_server_must_be_given() {
    let text = "variables: {B: b}\n\
        j: {script: x, id_tokens: {A: {aud: x}}, secrets: {B: {vault: x}}}\n\
        k: {script: x, identity: google_cloud}\n\
        l: {trigger: g/p}\n";
    let mut scene = Scene::new(text);
    let refused = scene.try_job("j").err().unwrap();
    assert!(
        refused.contains("\"A\" of \"id_tokens\" comes from a server") && !refused.contains("\"B\""),
        "{refused}"
    );
    scene.given.insert("A".to_owned(), Defined { file: true, ..Defined::raw("token") });
    assert!(scene.try_job("j").is_ok());
    assert!(scene.try_job("k").err().unwrap().contains("\"identity\" needs a server"));
    assert!(scene.try_job("l").err().unwrap().contains("\"trigger\" cannot be used here"));
}

#[test]
fn work_is_one_script_or_steps_with_commands_before_them() {
    let scene = Scene::new(
        "a: {before_script: [b], script: [c, d]}\ne: {before_script: [b], run: [{name: s, script: y}]}\nf: {run: [{name: s, script: y}]}\n",
    );
    let names = |job: &str| scene.job(job).work.into_iter().map(|work| work.name).collect::<Vec<_>>();
    assert_eq!(
        scene.job("a").work,
        [Work {
            name: "step_script".to_owned(),
            content: Content::Script(["b", "c", "d"].map(str::to_owned).to_vec()),
        }]
    );
    assert_eq!(names("e"), ["step_before_script", "step_run"]);
    assert_eq!(names("f"), ["step_run"]);
    assert_eq!(step_name("a-b c_1"), "step_a_b_c_1");
}
