//! Keywords of a job and of the file: what is taken, what is noted, and what is refused (ci.md §2).

use super::*;
use crate::file::definition::Inherit;

fn job(keywords: &str) -> Definition {
    read_one(&format!("a: {{{keywords}}}")).unwrap().jobs.shift_remove("a").unwrap()
}

/// Checks that each text is refused with a part of a message.
fn are_refused(texts: &[(&str, &str)]) {
    for (keywords, part) in texts {
        let errors = errors(&format!("a: {{{keywords}}}"));
        assert!(errors.iter().any(|error| error.contains(part)), "{keywords}: {errors:?}");
    }
}

#[test]
fn names_of_jobs_and_copies_are_found() {
    let file = read_one(
        "one: {script: x, parallel: 2}\ntwo: {script: x}\nthree: {script: x, parallel: {matrix: [{A: [x, y], B: 5}]}}",
    )
    .unwrap();
    let names = ["one 1/2", "one 2/2", "two", "three: [x, 5]", "three: [y, 5]"];
    assert_eq!(file.full_names().collect::<Vec<_>>(), names);
    for name in names {
        let (definition, copy) = file.find(name).unwrap();
        assert_eq!(copy.map_or(definition.name.as_str(), |copy| copy.name.as_str()), name);
        assert_eq!(file.definition(name).map(|found| &found.name), Some(&definition.name));
    }
    let of_matrix = &file.jobs["three"].copies[1];
    assert_eq!((of_matrix.node, &*of_matrix.variables["A"], &*of_matrix.variables["B"]), ((2, 2), "y", "5"));
    assert!(file.definition("four").is_none());
    for (name, part) in [
        ("one", "is a parallel job of 2 parts (name one: \"one 1/2\", \"one 2/2\")"),
        ("tow", "there is no job \"tow\" (did you mean \"two\"?)"),
        (".two", "a hidden job is a template for others"),
        ("nothing like it", "jobs: one, two, three"),
    ] {
        let error = file.find(name).unwrap_err().to_string();
        assert!(error.contains(part), "{name}: {error}");
    }
}

#[test]
fn a_job_has_one_of_script_and_run_unless_the_server_acts() {
    are_refused(&[
        ("script: x, run: [{name: s, script: y}]", "\"run\" and \"script\" exclude each other"),
        ("image: i", "the job has neither \"script\" nor \"run\""),
        ("script: []", "the script is empty"),
        ("run: []", "expected a list of at least one step"),
        ("run: x", "expected a list of at least one step"),
        ("script: {b: c}", "expected a command, this is a mapping"),
        ("script: 5", "quote it"),
        ("script: [yes]", "quote it"),
    ]);
    assert_eq!(errors("a: {script: [~]}").len(), 1);
    for keywords in ["trigger: g/p", "release: {tag_name: v1}"] {
        assert_eq!(job(keywords).refused.len(), 1, "{keywords}");
    }
    assert_eq!(job("script: [a, [b, [c]], d]").script, ["a", "b", "c", "d"]);
    assert!(job("run: [{name: s, script: y}]").run.is_some());
    let wrong = errors("a:\n  run:\n    - {name: s, script: y}\n    - {name: t, fnuc: z}\n");
    assert!(has(&wrong, "4:7", "did you mean \"func\"?"), "{wrong:?}");
}

#[test]
fn keywords_without_effect_are_noted_and_those_that_are_null_are_not_there() {
    let noted = |keywords: &str| {
        let job = job(keywords);
        job.noted.iter().map(|noted| noted.keyword.clone()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(noted("script: x, tags: [a], retry: 2, only: [main]"), "tags retry only");
    assert_eq!(noted("script: x, tags: ~, retry: null, artifacts: ~"), "");
    assert!(job("script: x, trigger: ~, inputs: ~").refused.is_empty());
    assert_eq!(
        noted("script: x, artifacts: {paths: [a], expire_in: 1h, reports: {junit: r.xml, dotenv: d.env}}"),
        "artifacts:expire_in artifacts:reports:junit"
    );
    assert_eq!(noted("script: x, cache: {paths: [a], unprotect: true}"), "cache:unprotect");
    let file =
        read_one("workflow: {name: n, rules: [{when: always}], auto_cancel: {}}\na: {script: x}").unwrap();
    let of_file: Vec<&str> = file.noted.iter().map(|noted| noted.keyword.as_str()).collect();
    assert_eq!((of_file, file.workflow.len()), (vec!["workflow:name", "workflow:auto_cancel"], 1));
    are_refused(&[
        ("script: x, scirpts: y", "did you mean \"script\"?"),
        ("script: x, zzzz: y", "unknown key \"zzzz\""),
    ]);
}

#[test]
fn values_are_taken_in_each_of_their_forms() {
    let found = job(
        "script: x, artifacts: {paths: [p], exclude: [e, f], untracked: true, when: on_failure, name: n, reports: {dotenv: [d]}}",
    );
    let artifacts = found.artifacts.unwrap();
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let expected = Artifacts {
        name: Some("n".to_owned()),
        paths: texts(&["p"]),
        exclude: texts(&["e", "f"]),
        untracked: true,
        when: Some("on_failure".to_owned()),
        dotenv: texts(&["d"]),
    };
    assert_eq!(artifacts, expected);
    assert!(!job("script: x, artifacts: {paths: [p], untracked: false}").artifacts.unwrap().untracked);
    for (text, key) in [("k", "k"), ("12", "12"), ("1.10", "1.1"), ("yes", "true"), ("$A", "$A")] {
        let found = job(&format!("script: x, cache: {{key: {text}, paths: [p]}}"));
        assert_eq!(found.caches[0].key, CacheKey::Text(key.to_owned()));
    }
    let caches = job("script: x, cache: [{paths: [p], untracked: true, policy: pull, fallback_keys: [f], when: always}, {key: {files_commits: [a, b], prefix: q}}]").caches;
    assert_eq!(caches[0].key, CacheKey::Text("default".to_owned()));
    assert!(caches[0].untracked && !caches[1].untracked);
    assert_eq!((caches[0].policy.as_deref(), caches[0].when.as_deref()), (Some("pull"), Some("always")));
    assert_eq!(caches[0].fallback_keys, ["f"]);
    let key = CacheKey::Files { files: texts(&["a", "b"]), commits: true, prefix: Some("q".to_owned()) };
    assert_eq!(caches[1].key, key);
    for (text, seconds) in [("90", 90), ("1h 30m", 5_400), ("\"2 hours\"", 7_200)] {
        assert_eq!(
            job(&format!("script: x, timeout: {text}")).timeout.map(|time| time.as_secs()),
            Some(seconds)
        );
    }
    for (text, allowed) in [
        ("true", &[3, 4, 5][..]),
        ("false", &[]),
        ("{exit_codes: 3}", &[3]),
        ("{exit_codes: [3, 4]}", &[3, 4]),
        ("{exit_codes: []}", &[]),
    ] {
        let job = job(&format!("script: x, allow_failure: {text}"));
        let codes: Vec<u8> = (3..6).filter(|code| job.allow_failure.allows(*code)).collect();
        assert_eq!(codes, allowed, "{text}");
    }
    assert_eq!(job("script: x, when: manual").when.as_deref(), Some("manual"));
    let plain = job("script: x, environment: prod").environment.unwrap();
    assert_eq!(plain, Environment { name: "prod".to_owned(), ..Environment::default() });
    let whole =
        job("script: x, environment: {name: n, url: u, action: stop, deployment_tier: $TIER}").environment;
    let expected = Environment {
        name: "n".to_owned(),
        url: Some("u".to_owned()),
        action: Some("stop".to_owned()),
        tier: Some("$TIER".to_owned()),
    };
    assert_eq!(whole.unwrap(), expected);
    let found = job(
        "script: x, image: {name: i, entrypoint: [''], pull_policy: always}, services: [s, {name: t, alias: u, command: [v]}]",
    );
    let image = found.image.unwrap();
    assert_eq!((image.name.as_str(), image.entrypoint), ("i", Some(texts(&[""]))));
    assert_eq!(image.options["pull_policy"], "always");
    let services: Vec<&str> = found.services.iter().map(|service| service.name.as_str()).collect();
    assert_eq!((services, found.services[1].alias.as_deref()), (vec!["s", "t"], Some("u")));
    assert_eq!(found.services[1].command, Some(texts(&["v"])));
}

#[test]
fn values_that_are_none_are_told_with_their_remedy() {
    are_refused(&[
        ("script: x, artifacts: {when: never}", "write one of on_success, on_failure, always"),
        ("script: x, artifacts: {untracked: x}", "expected true or false, this is a text"),
        ("script: x, artifacts: {paths: 5}", "expected a text or a list of texts, this is a number"),
        ("script: x, artifacts: {paths: [5]}", "quote it"),
        ("script: x, artifacts: {reports: {junti: x}}", "did you mean \"junit\"?"),
        ("script: x, cache: {policy: fetch}", "write one of pull-push, pull, push"),
        ("script: x, cache: {key: a/b}", "\"a/b\" cannot be the key of a cache"),
        ("script: x, cache: {key: ..}", "\"..\" cannot be the key of a cache"),
        ("script: x, cache: {key: \"\"}", "\"\" cannot be the key of a cache"),
        ("script: x, cache: {key: {files: [a], prefix: b/c}}", "\"b/c\" cannot be the key of a cache"),
        ("script: x, cache: {key: {files: []}}", "one or two files make the key"),
        ("script: x, cache: {key: {files: [a, b, c]}}", "one or two files make the key"),
        ("script: x, cache: {key: {prefix: p}}", "it has neither \"files\" nor \"files_commits\""),
        ("script: x, artifacts: {expire_in: soon}", "a.artifacts.expire_in: it is no duration"),
        ("script: x, artifacts: {expire_in: [1 week]}", "expected a text"),
        ("script: x, timeout: soon", "\"soon\" is no duration"),
        ("script: x, allow_failure: maybe", "expected true or false"),
        ("script: x, allow_failure: {exit_codes: 256}", "a whole number from 0 to 255"),
        ("script: x, allow_failure: {exit_codes: [1.5]}", "a whole number from 0 to 255"),
        ("script: x, when: never", "\"never\" is not possible here"),
        ("script: x, environment: {name: n, action: strat}", "did you mean \"start\"?"),
        ("script: x, environment: {name: n, deployment_tier: best}", "write one of production"),
        ("script: x, image: {entrypoint: [a]}", "it has no name"),
        ("script: x, services: s", "expected a list of services"),
        ("script: x, services: [{name: s, ports: [1]}]", "unknown key \"ports\""),
        ("script: x, needs: a", "expected a list of jobs"),
        ("script: x, needs: [{artifacts: true}]", "it names no job"),
        ("script: x, parallel: {}", "it has no \"matrix\""),
        ("script: x, parallel: {matrix: [{A: yes}]}", "quote it"),
        ("script: x, rules: x", "expected a list of rules"),
        ("script: x, rules: [~]", "a.rules[0]: expected a rule, this is nothing (remove it)"),
        (
            "script: x, rules: [{when: never}, [~]]",
            "a.rules[1][0]: expected a rule, this is nothing (remove it)",
        ),
        ("script: x, rules: [{if: $A ==}]", "the expression ends too early at the end"),
        ("script: x, rules: [{if: $A = b}]", "\"=\" means nothing here at \"= b\""),
        ("script: x, rules: [{changes: {compare_to: main}}]", "it has no \"paths\""),
        ("script: x, rules: [{exists: ['[b-a]']}]", "not a regular expression"),
        ("script: x, variables: {A: {value: b, description: c}}", "unknown key \"description\""),
        ("script: x, variables: {A: [b]}", "expected a text, this is a list"),
        ("script: x, variables: {A=B: c}", "cannot be the name of a variable"),
        ("script: x, inherit: {default: 5}", "expected a text or a list of texts"),
        ("script: x, extends: b", "there is no job \"b\""),
    ]);
}

#[test]
fn files_of_another_project_refuse_the_job_whose_rule_looks_at_them() {
    let rules = "rules: [{exists: {paths: [a], project: g/p}}]";
    let file = read_one(&format!("a: {{script: x, {rules}}}\nb: {{script: x}}")).unwrap();
    assert!(file.jobs["a"].refused[0].message.contains("files of another project need a server"));
    assert!(file.jobs["b"].refused.is_empty());
    let errors = errors(&format!("workflow: {{{rules}}}\nb: {{script: x}}"));
    assert!(has(&errors, "1:42", "files of another project"), "{errors:?}");
}

#[test]
fn values_that_a_server_refuses_are_refused_here() {
    let list = "expected a list of texts, this is a text (put it into a list: [\"…\"])";
    are_refused(&[
        ("script: x, artifacts: {paths: x}", list),
        ("script: x, artifacts: {exclude: x}", list),
        ("script: x, cache: {paths: x}", list),
        ("script: x, cache: {key: {files: x}}", list),
        ("script: x, rules: [{changes: x}]", list),
        ("script: x, rules: [{exists: {paths: x}}]", list),
        ("script: x, dependencies: x", list),
        ("script: x, tags: x", list),
        ("script: x, tags: [5]", "quote it"),
        ("script: x, only: main", "expected a list of conditions, or a mapping"),
        ("script: x, retry: 3", "a.retry: expected a whole number from 0 to 2"),
        ("script: x, retry: {max: 5}", "a.retry.max: expected a whole number from 0 to 2"),
        ("script: x, retry: {count: 1}", "unknown key \"count\""),
        ("script: x, interruptible: maybe", "expected true or false"),
        ("script: x, coverage: total", "write it between slashes"),
        ("script: x, when: delayed", "\"delayed\" needs a time"),
        ("script: x, when: delayed, start_in: soon", "it is no duration"),
        ("script: x, when: manual, start_in: 1h", "\"start_in\" is for \"when: delayed\""),
        ("script: x, rules: [{when: delayed}]", "\"delayed\" needs a time"),
        ("script: x, rules: [{start_in: 1h}]", "\"start_in\" is for \"when: delayed\""),
        ("script: x, rules: [{when: delayed, start_in: soon}]", "it is no duration"),
        ("script: x, environment: {url: x}", "it has no name"),
        ("script: x, trigger: g/p", "\"trigger\" and \"script\" exclude each other"),
    ]);
    let told = errors("b: {script: x}\nc: {script: x}\na: {script: x, needs: [c], dependencies: [b]}");
    assert!(has(&told, "3:43", "\"b\" is not in \"needs\""), "{told:?}");
    let fine = "tags: [$T], only: {refs: [main]}, except: [tags], retry: {max: 2, when: always}, interruptible: no, coverage: '/a/'";
    assert_eq!(job(&format!("script: x, {fine}, when: delayed, start_in: 30 minutes")).noted.len(), 8);
}

#[test]
fn a_mistake_that_two_jobs_share_is_told_once() {
    assert_eq!(errors("default: {image: {nmae: i}}\na: {script: x}\nb: {script: x}").len(), 2);
    // A reference that is none is told where it stands, and nowhere else.
    for keyword in ["rules", "script", "services", "needs"] {
        let told = errors(&format!("a: {{script: x, {keyword}: [!reference []]}}"));
        assert_eq!(told.len(), 1, "{told:?}");
    }
}

#[test]
fn stages_have_their_order_with_the_first_and_the_last() {
    let stages =
        |text: &str| read_one(&format!("{text}\na: {{script: x, stage: .pre}}")).unwrap().stages.join(" ");
    assert_eq!(stages(""), ".pre build test deploy .post");
    assert_eq!(stages("stages: [b, a]"), ".pre b a .post");
    assert_eq!(stages("stages: [.post, a, .pre, b]"), ".pre a b .post");
    let errors = errors("stages: [a, b]\nx: {script: x, stage: c}\ny: {script: x}");
    assert!(errors[0].contains("there is no stage \"c\" (stages: .pre, a, b, .post)"), "{errors:?}");
    assert!(errors[1].contains("there is no stage \"test\""), "{errors:?}");
}

#[test]
fn jobs_take_of_the_top_what_they_inherit() {
    let file = read_one(
        "default: {before_script: [b], after_script: [c], tags: [t]}\n\
         variables: {A: a, B: b}\n\
         all: {script: x}\n\
         none: {script: x, inherit: {default: false, variables: false}}\n\
         some: {script: x, inherit: {default: [after_script], variables: [B]}}\n\
         plain: {script: x, inherit: {default: true, variables: true}}\n",
    )
    .unwrap();
    for (name, before, after, noted, variables) in
        [("all", 1, 1, 1, "A B"), ("none", 0, 0, 0, ""), ("some", 0, 1, 0, "B"), ("plain", 1, 1, 1, "A B")]
    {
        let job = &file.jobs[name];
        let found = (job.before_script.len(), job.after_script.len(), job.noted.len());
        assert_eq!(found, (before, after, noted), "{name}");
        let taken = inherited_variables(&file, job).into_keys().collect::<Vec<_>>().join(" ");
        assert_eq!(taken, variables, "{name}");
    }
    assert_eq!(file.jobs["some"].inherit, Inherit::Names(vec!["B".to_owned()]));
    let old = read_one("image: i\nbefore_script: [b]\na: {script: x}").unwrap();
    assert_eq!(old.jobs["a"].before_script, ["b"]);
    let twice = errors("image: i\ndefault: {image: j}\na: {script: x}");
    assert!(twice[0].contains("\"image\" is in \"default\", too"), "{twice:?}");
}

#[test]
fn needs_say_what_is_wanted_of_which_copies() {
    let file = read_one(
        "m: {script: x, parallel: {matrix: [{A: [a, b], B: [c, d]}]}}\nn: {script: x}\no: {script: x}\n\
         j: {script: x, needs: [n, {job: o, artifacts: false, optional: true}, {job: m, parallel: {matrix: [{A: a, B: [c, d]}, {A: b, B: d}]}}]}\n\
         k: {script: x, needs: [\"m: [a, c]\", {job: gone, optional: true}], dependencies: [m]}\n",
    )
    .unwrap();
    let needs = file.jobs["j"].needs.as_ref().unwrap();
    let flags: Vec<(bool, bool)> = needs.iter().map(|need| (need.artifacts, need.optional)).collect();
    assert_eq!(flags, [(true, false), (false, true), (true, false)]);
    let matrix = needs[2].matrix.as_ref().unwrap();
    let named: Vec<&str> = (file.jobs["m"].copies.iter())
        .filter(|copy| copy.is_in(matrix))
        .map(|copy| copy.name.as_str())
        .collect();
    assert_eq!(named, ["m: [a, c]", "m: [a, d]", "m: [b, d]"]);
    let named = file.jobs["k"].dependencies.as_ref().unwrap();
    assert!(named[0].artifacts && !named[0].optional && named[0].job == "m");
    for need in [
        "{pipeline: $P, job: m}",
        "{project: g/p, job: m, ref: main}",
        "{job: a, parallel: {matrix: [{A: \"$[[ matrix.A ]]\"}]}}",
    ] {
        let file = read_one(&format!(
            "a: {{script: x, parallel: {{matrix: [{{A: b}}]}}}}\nj: {{script: x, needs: [{need}]}}"
        ));
        assert_eq!(file.unwrap().jobs["j"].refused.len(), 1, "{need}");
    }
    let later = errors("stages: [a, b]\nj: {stage: a, script: x, needs: [k]}\nk: {stage: b, script: x}");
    assert!(later[0].contains("\"k\" is in the stage \"b\", which comes later than \"a\""), "{later:?}");
    let errors = errors("build: {script: x}\nj: {script: x, needs: [biuld], rules: [{needs: [gone]}]}");
    assert!(errors[0].contains("there is no job \"biuld\" (did you mean \"build\"?)"), "{errors:?}");
    assert!(errors[1].contains("there is no job \"gone\""), "{errors:?}");
}

#[test]
fn a_job_is_needed_once_but_for_combinations_of_its_matrix() {
    for needs in ["[b, b]", "[b, {job: b, artifacts: false}]"] {
        let errors = super::errors(&format!("b: {{script: x}}\na: {{script: x, needs: {needs}}}"));
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].contains("\"b\" is needed twice"), "{errors:?}");
    }
    let combination = |value: &str| format!("{{job: b, parallel: {{matrix: [{{A: {value}}}]}}}}");
    let file = read_one(&format!(
        "b: {{script: x, parallel: {{matrix: [{{A: [c, d]}}]}}}}\na: {{script: x, needs: [{}, {}]}}",
        combination("c"),
        combination("d")
    ));
    assert_eq!(file.unwrap().jobs["a"].needs.as_ref().map(Vec::len), Some(2));
}

#[test]
fn lists_in_lists_are_flattened_where_gitlab_flattens_them() {
    let file = read_one(
        ".lists: {needs: [b, [c]], services: [t], cache: [{key: l}]}\n\
         b: {script: x}\nc: {script: x}\nd: {script: x, needs: {job: b}}\n\
         a:\n  script: x\n  needs: [!reference [.lists, needs], [[d], [~]]]\n  services: [s, !reference [.lists, services]]\n  \
         cache: [!reference [.lists, cache], [{key: k}]]\n",
    )
    .unwrap();
    let job = &file.jobs["a"];
    let needs: Vec<&str> = job.needs.iter().flatten().map(|need| need.job.as_str()).collect();
    let services: Vec<&str> = job.services.iter().map(|service| service.name.as_str()).collect();
    let keys: Vec<&CacheKey> = job.caches.iter().map(|cache| &cache.key).collect();
    let text = |key: &str| CacheKey::Text(key.to_owned());
    assert_eq!((needs, services), (vec!["b", "c", "d"], vec!["s", "t"]));
    assert_eq!(keys, [&text("l"), &text("k")]);
    assert_eq!(file.jobs["d"].needs.as_ref().map(Vec::len), Some(1));
    are_refused(&[
        ("script: x, cache: [[{}, {}], [{}, {}, {}]]", "more than 4 caches"),
        ("script: x, extends: [[b]]", "expected a text, this is a list"),
    ]);
}

#[test]
fn variables_are_texts_of_what_yaml_reads() {
    let found = job("script: x, variables: {A: true, B: on, C: , D: {value: no}, E: {value: ~}, F: \"off\"}");
    let values: Vec<&str> = found.variables.values().map(|defined| defined.value.as_str()).collect();
    assert_eq!(values, ["true", "true", "", "false", "", "off"]);
    let of_input = read_one(
        "spec: {inputs: {i: {type: boolean, default: false}}}\n---\na: {script: x, variables: {A: \"$[[ inputs.i ]]\"}}",
    );
    assert_eq!(of_input.unwrap().jobs["a"].variables["A"].value, "false");
}

#[test]
fn only_and_except_do_not_stand_beside_rules() {
    are_refused(&[
        ("script: x, rules: [{when: always}], only: [main]", "\"only\" cannot stand beside \"rules\""),
        ("script: x, except: [main], rules: []", "\"except\" cannot stand beside \"rules\""),
    ]);
    assert_eq!(job("script: x, rules: ~, only: [main]").noted.len(), 1);
    assert!(job("script: x, rules: [{when: always}], only: ~").noted.is_empty());
}

#[test]
fn variables_at_the_top_have_options_and_keep_their_dollars() {
    let file = read_one(
        "variables: {A: {value: b, description: d, options: [a, b]}, N: {value: 5, options: [5, 6]}, T: {value: true, options: [true, false]}, R: {value: $A, expand: false}, E: {expand: true}, F: 1.5}\na: {script: x}",
    )
    .unwrap();
    let values: Vec<(&str, bool)> =
        file.variables.values().map(|found| (found.value.as_str(), found.raw)).collect();
    assert_eq!(
        values,
        [("b", false), ("5", false), ("true", false), ("$A", true), ("", false), ("1.5", false)]
    );
    assert!(file.warnings.is_empty());
    let changed = read_one("variables: {A: 1.10, B: yes, C: true}\na: {script: x}").unwrap();
    assert!(changed.warnings[0].to_string().contains("1.10 is read as 1.1"), "{:?}", changed.warnings);
    assert!(changed.warnings[1].to_string().contains("yes is read as true"), "{:?}", changed.warnings);
    assert_eq!(changed.warnings.len(), 2);
    for text in ["{value: c, options: [a, b]}", "{value: c, options: [5, [c]]}", "{value: 7, options: [5]}"] {
        let errors = errors(&format!("variables: {{A: {text}}}\na: {{script: x}}"));
        assert!(errors[0].contains("the value is none of the options"), "{text}: {errors:?}");
    }
}
