//! Limits of a configuration: what is just within them is read, and what is just beyond is refused.

use super::*;

/// Reads files, and returns whether they are taken, and all messages.
fn read_files(files: &[(&'static str, String)]) -> Result<(), String> {
    read_all(files).map(drop).map_err(|errors| errors.join("\n"))
}

fn read_text(text: String) -> Result<(), String> {
    read_files(&[("ci.yml", text)])
}

/// Checks that the first text is taken, and the second one is refused with a part of a message.
fn is_limit(within: String, beyond: String, part: &str) {
    read_text(within).unwrap();
    let refused = read_text(beyond).unwrap_err();
    assert!(refused.contains(part), "{part:?} is not in {refused}");
}

#[test]
fn counts_of_a_job_have_the_limits_of_gitlab() {
    let others = each(51, |job| format!("j{job}: {{script: x}}\n"));
    let needs =
        |count| format!("{others}a: {{script: x, needs: [{}]}}", each(count, |job| format!("j{job}, ")));
    is_limit(needs(50), needs(51), "more than 50 jobs are needed");
    let caches = |count| format!("a: {{script: x, cache: [{}]}}", "{paths: [x]}, ".repeat(count));
    is_limit(caches(4), caches(5), "more than 4 caches");
    for keyword in ["exists", "changes"] {
        let paths = |count| {
            format!(
                "a: {{script: x, rules: [{{{keyword}: [{}]}}]}}",
                each(count, |path| format!("p{path}, "))
            )
        };
        is_limit(paths(50), paths(51), "more than 50 paths");
    }
    let parallel = |count| format!("a: {{script: x, parallel: {count}}}");
    is_limit(parallel(200), parallel(201), "a whole number from 1 to 200");
    let matrix = |count| {
        format!("a: {{script: x, parallel: {{matrix: [{{A: [{}]}}]}}}}", each(count, |n| format!("{n}, ")))
    };
    is_limit(matrix(200), matrix(201), "the matrix has 201 combinations");
    is_limit(matrix(1), matrix(0), "the matrix has 0 combinations");
}

#[test]
fn names_of_a_matrix_are_as_long_as_those_of_any_job() {
    // `job: [aa, VALUE]` takes 11 bytes beside the value.
    let names = |length: usize| {
        format!("job: {{script: x, parallel: {{matrix: [{{A: [a, aa], B: [{}]}}]}}}}", "b".repeat(length))
    };
    let longest = read_one(&names(244)).unwrap().jobs["job"].copies.iter().map(|copy| copy.name.len()).max();
    assert_eq!(longest, Some(255));
    is_limit(names(244), names(245), "a name of the matrix has more than 255 bytes");
    let keys = |last: &str| {
        let keys = each(4, |key| format!("? {}{key}\n: a\n", "K".repeat(1_022)).replace('\n', "\n        "));
        format!("job:\n  script: x\n  parallel:\n    matrix:\n      - {keys}? {last}\n        : a\n")
    };
    let of_mappings = |mappings: &str| format!("job: {{script: x, parallel: {{matrix: [{mappings}]}}}}");
    is_limit(of_mappings("{A: b}"), of_mappings("{}, {A: b}"), "it has no variable");
    is_limit(keys("KKKK"), keys("KKKKK"), "more than 4096 bytes");
}

#[test]
fn jobs_are_counted_with_their_copies() {
    let many = each(49, |job| format!("j{job}: {{script: x, parallel: 200}}\n"));
    let file = |more: usize| format!("{many}{}", each(more, |job| format!("k{job}: {{script: x}}\n")));
    is_limit(file(200), file(201), "more than 10000 jobs");
}

#[test]
fn included_files_are_counted_and_may_be_fifty_inside_each_other() {
    let files = |count: usize| {
        let main = format!("include: [{}]\na: {{script: x}}", "b.yml, ".repeat(count));
        [("ci.yml", main), ("b.yml", ".b: {script: y}".to_owned())]
    };
    read_files(&files(150)).unwrap();
    assert!(read_files(&files(151)).unwrap_err().contains("more than 150 files are included"));

    let names: Vec<&'static str> = (0..50).map(|n| &*format!("f{n}.yml").leak()).collect();
    let chain = |count: usize| {
        let mut files = vec![("ci.yml", format!("include: {}", names[0]))];
        files.extend(names.windows(2).take(count - 2).map(|pair| (pair[0], format!("include: {}", pair[1]))));
        files.push((names[count - 2], "a: {script: x}".to_owned()));
        files
    };
    read_files(&chain(50)).unwrap();
    assert!(read_files(&chain(51)).unwrap_err().contains("more than 50 files include each other"));
}

#[test]
fn a_file_has_at_most_two_mebibytes() {
    let mib = 1024 * 1024;
    let padded = |text: &str, length: usize| format!("{text}\n#{}", "x".repeat(length - text.len() - 2));
    is_limit(
        padded("a: {script: x}", 2 * mib),
        padded("a: {script: x}", 2 * mib + 1),
        "the file has more than 2 MiB",
    );
}

#[test]
fn what_is_copied_may_be_large() {
    // Some megabytes each: far below the limits of 64 MiB, far above those of one file.
    let lines = "xxxxxxxxxx, ".repeat(1_000);
    let users = |keyword: &str| each(40, |job| format!("j{job}: {{{keyword}}}\n"));
    read_text(format!(".a: {{script: [{lines}]}}\n{}", users("extends: .a"))).unwrap();
    read_text(format!(".a: {{script: [{lines}]}}\n{}", users("script: !reference [.a, script]"))).unwrap();
    let header = format!("spec: {{inputs: {{long: {{default: {}}}}}}}\n---\n", "x".repeat(200_000));
    read_text(format!("{header}{}", users("script: \"$[[ inputs.long ]] x\""))).unwrap();
}

#[test]
fn references_may_be_ten_inside_each_other_and_their_result_128_levels_deep() {
    let chain = |count: usize| {
        let first = ".r0: {script: x}\n".to_owned();
        let more = each(count, |n| format!(".r{}: {{script: !reference [.r{n}, script]}}\n", n + 1));
        format!("{first}{more}a: {{script: !reference [.r{count}, script]}}")
    };
    is_limit(chain(9), chain(10), "more than 10 references inside each other");

    for (open, close) in [("[", "]"), ("{k: ", "}")] {
        let level =
            |n: usize, inner: &str| format!(".r{n}: {{x: {}{inner}{}}}\n", open.repeat(50), close.repeat(50));
        let two = format!("{}{}a: {{script: x}}\n", level(0, "v"), level(1, "!reference [.r0, x]"));
        let three = format!("{two}{}", level(2, "!reference [.r1, x]"));
        is_limit(two, three, "more than 128 levels");
    }
}

#[test]
fn lists_of_rules_and_scripts_may_be_ten_inside_each_other() {
    let nested = |open: &str, depth: usize| format!("{}{open}{}", "[".repeat(depth), "]".repeat(depth));
    let rules = |depth: usize| format!("a: {{script: x, rules: {}}}", nested("{when: never}", depth + 1));
    is_limit(rules(10), rules(11), "more than 10 lists inside each other");
    let script = |depth: usize| format!("a: {{script: {}}}", nested("x", depth));
    is_limit(script(10), script(11), "more than 10 lists inside each other");
}

#[test]
fn names_that_were_meant_are_searched_fifty_times() {
    let errors = errors(&each(60, |job| format!("j{job}: {{script: x, tgas: y}}\n")));
    let unknown: Vec<&String> = errors.iter().filter(|error| error.contains("unknown key")).collect();
    let searched = errors.iter().filter(|error| error.contains("did you mean")).count();
    assert_eq!((unknown.len(), searched), (60, 50));
    assert!(unknown[0].contains("did you mean \"tags\"?"), "{}", unknown[0]);
}

#[test]
fn warnings_are_bounded_apart_from_errors() {
    let variables = |count: usize| each(count, |n| format!("V{n}: 012, "));
    let file = read_one(&format!("variables: {{{}}}\na: {{script: x}}", variables(1_100))).unwrap();
    assert_eq!(file.warnings.len(), 1_000);
    let errors = errors(&format!("variables: {{{}}}\na: {{scirpt: x}}", variables(1_100)));
    assert!(errors.len() > 1_000 && errors.iter().any(|error| error.contains("scirpt")));
}

#[test]
fn long_lists_of_names_end() {
    let names = |count: usize| {
        let text = format!("a: {{script: x, parallel: {count}}}");
        read_one(&text).unwrap().find("a").unwrap_err().to_string()
    };
    assert!(names(20).ends_with("\"a 20/20\")"), "{}", names(20));
    assert!(names(21).ends_with("\"a 20/21\" and so on)"), "{}", names(21));
}
