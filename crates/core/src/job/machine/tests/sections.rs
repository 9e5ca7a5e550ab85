//! Marks of sections around the steps of the root.

use super::job::{Job, lines, timers};
use super::world::{World, request};
use crate::job::event::{Event, JobSpec};

fn log(steps: &str) -> Vec<String> {
    let function = "spec: {}\n---\nrun: [{name: inside, script: exit 0}]";
    let spec = JobSpec { trace_sections: true, ..request(steps) };
    World::new([("/job/f/step.yml", function)]).run(&spec).log()
}

#[test]
fn each_step_of_the_root_that_begins_has_a_section() {
    let steps = "[{name: get_sources, func: ./f}, {name: no, if: '${{ false }}', script: exit 0}, {name: a, script: exit 0}]";
    let expected = [
        "O section_start:0:get_sources\r\x1b[0KGet sources",
        "O Running step name=inside",
        "O section_end:0:get_sources\r\x1b[0K",
        "O Skipped step name=no: false",
        "O section_start:0:a\r\x1b[0KA",
        "O Running step name=a",
        "O section_end:0:a\r\x1b[0K",
    ];
    assert_eq!(log(steps), expected);
}

#[test]
fn a_section_holds_all_members_of_a_group() {
    let steps = "[{name: all, parallel: [{name: one, script: exit 0}, {name: two, script: exit 0}], max: 1}]";
    let log = log(steps);
    let count = |text: &str| log.iter().filter(|line| line.contains(text)).count();
    assert_eq!((count("section_start"), count("section_end"), count("Running step")), (1, 1, 2), "{log:?}");
}

#[test]
fn a_section_holds_all_attempts() {
    let spec = JobSpec { trace_sections: true, ..request("[{name: a, retry: 1, script: x}]") };
    let mut job = Job::begin(&World::default(), &spec);
    let failed = job.exit("a", 1);
    job.tell(Event::Cleared { call: 1 });
    let [timer] = timers(&failed)[..] else { panic!("not one timer: {failed:?}") };
    let further = job.tell(Event::Due { timer });
    let ended = job.exit("a", 0);
    let effects = [failed, further, ended].concat();
    let marks: Vec<_> = lines(&effects).into_iter().filter(|line| line.contains("section_")).collect();
    assert_eq!(marks, ["section_end:0:a\r\x1b[0K"]);
}

#[test]
fn a_section_of_a_step_that_failed_ends_before_the_last_line() {
    let log = log("[{name: a, script: exit 3}]");
    let ends = ["O section_end:0:a\r\x1b[0K", "E job failed: step a: exit code 3"];
    assert!(
        log.windows(2).any(|pair| pair[0] == ends[0]) && log.last().unwrap().starts_with("E job failed"),
        "{log:?}"
    );
}
