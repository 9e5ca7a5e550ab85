//! A cell or the router is away for some time: the other cell's jobs do not notice, and no byte of a trace is lost.

use std::fs;

use crate::cell_scene::{Cells, count};
use crate::fake_gitlab::http::Answer;
use crate::fake_gitlab::{FakeGitlab, Fault};
use crate::jobs::waits_for;

/// Asserts that a job ended once, with a trace that is whole: it has all lines that the script counted, and the double
/// takes a final update only if its checksum and length are those of the trace.
#[track_caller]
fn assert_whole(cell: &FakeGitlab, job: u64) {
    let ended = cell.ended(job);
    let text = ended.text();
    assert_eq!((ended.state.as_str(), ended.finals.len()), ("success", 1), "{text}");
    let lines = text.lines().rev().find_map(|line| line.rsplit_once(" count ")?.1.parse().ok());
    let lines: usize = lines.unwrap_or_else(|| panic!("no count in {text}"));
    assert!(lines > 0);
    for number in 1..=lines {
        assert_eq!(text.matches(&format!(" line {number}\n")).count(), 1, "line {number} of job {job}");
    }
}

/// Waits until requests for jobs and pieces of traces, one each at least, met the outage of cell 2: an answer of its own,
/// or the router's because nobody listens. How long an outage lasts beyond that is only waiting, and how long the agent
/// waits between requests is shown by the tests of its scheduler in virtual time.
fn wait_until_it_is_noticed(cells: &Cells, is_refused: bool) {
    let start = cells.record().len();
    cells.wait_for_exchanges("requests during the outage", start, |exchanges| {
        let has = |request: &str| {
            let mut lost = exchanges.iter().filter(|exchange| (exchange.cell, exchange.status) == (2, 503));
            lost.any(|exchange| exchange.note.is_some() == is_refused && exchange.request.contains(request))
        };
        has("/jobs/request") && has("/trace")
    });
}

#[test]
fn c08_a_cell_is_away_amid_a_job_and_the_other_one_goes_on() {
    let cells = Cells::start("concurrent = 4", "");
    let (half, end) = (cells.scene.path("half"), cells.scene.path("end"));
    let job = cells.two.add_script(&[
        "for i in $(seq 1 300); do echo line $i; done",
        &waits_for(&half, "half"),
        // A piece of the trace is due all the time.
        &format!("i=300; until test -e {}; do i=$((i + 1)); echo line $i; sleep 0.2; done", end.display()),
        "echo count $i",
    ]);
    cells.two.wait_for("half of it", |world| world.jobs[&job].text().contains(" half\n").then_some(()));
    fs::write(&half, "").unwrap();
    cells.two.fault("P", 100_000, Fault::Answer(Answer::status(503)));
    wait_until_it_is_noticed(&cells, false);
    cells.two.go_away();
    let asked = count(cells.one(), "POST /jobs/request");
    let other = cells.one().add_script(&["echo line 1; echo count 1"]);
    assert_whole(cells.one(), other);
    wait_until_it_is_noticed(&cells, true);
    assert!(count(cells.one(), "POST /jobs/request") > asked);
    cells.two.forget_faults();
    let before = count(&cells.two, "POST /jobs/request");
    cells.two.come_back();
    // The next request is due within a minute, after which `wait_for` gives up.
    cells.two.wait_for("a request for a job", |world| {
        (world.calls().iter().filter(|call| *call == "POST /jobs/request").count() > before).then_some(())
    });
    fs::write(&end, "").unwrap();
    assert_whole(&cells.two, job);
    assert!(count(cells.one(), &format!("PATCH /jobs/{job}")) == 0);
    cells.assert_apart(None);
}

/// Jobs that run while the router is killed, and kills.
const JOBS: usize = 10;
const KILLS: usize = 20;

#[test]
fn c09_the_router_is_killed_and_restarted_twenty_times_amid_ten_jobs() {
    let mut cells = Cells::start("concurrent = 10", "");
    let go_on = cells.scene.path("go-on");
    let script = format!(
        "i=0; until test -e {}; do i=$((i + 1)); echo line $i; sleep 0.1; done; echo count $i",
        go_on.display()
    );
    let jobs: Vec<(bool, u64)> = (0..JOBS)
        .map(|number| {
            let is_first = number % 2 == 0;
            (is_first, if is_first { cells.one() } else { &cells.two }.add_script(&[&script]))
        })
        .collect();
    for (is_first, job) in &jobs {
        let cell = if *is_first { cells.one() } else { &cells.two };
        cell.wait_for("all jobs", |world| world.jobs[job].text().contains(" line 1\n").then_some(()));
    }
    for kill in 0..KILLS {
        cells.kill_router();
        let start = cells.record().len();
        cells.start_router();
        cells.wait_for_exchanges(&format!("a trace after kill {kill}"), start, |exchanges| {
            exchanges.iter().any(|exchange| exchange.status == 202)
        });
    }
    fs::write(&go_on, "").unwrap();
    for (is_first, job) in jobs {
        let cell = if is_first { cells.one() } else { &cells.two };
        assert_whole(cell, job);
    }
    cells.scene.wait_until_closed();
    cells.assert_apart(None);
}
