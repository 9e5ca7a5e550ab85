use proptest::collection::vec;
use proptest::prelude::*;

mod scene;

use super::model::Model;
use super::rows::{self, Size, Style, Times, ViewMode};
use crate::cli::text;
use crate::insight::tree::StepOutcome;
use crate::pb::v1;
use crate::pb::v1::step_result::{Outcome, Status};
pub(super) use scene::rows;
use scene::{SIZE, START, Scene, Told, style};

#[test]
fn a_step_that_succeeds_folds_to_a_line_under_its_output() {
    let mut scene = Scene::new(ViewMode::Live, SIZE);
    scene.runs(&["build"]);
    scene.line("01O ", b"compiling");
    scene.line("01E ", b"a warning");
    assert_eq!(scene.permanent(), "");
    let elapsed = rows::duration(std::time::Duration::from_micros(START as u64));
    assert_eq!(scene.live(), format!("⠋ build {elapsed}  1/2\n  │ compiling\n  ! a warning"));
    scene.ends(&["build"]);
    assert_eq!(scene.permanent(), "  │ compiling\n  ! a warning\n✓ build 1.2s\n");
    assert!(scene.live().starts_with("⠋ running "), "{}", scene.live());
}

#[test]
fn nested_steps_are_indented_under_the_step_that_calls_them() {
    let mut scene = Scene::new(ViewMode::Live, SIZE);
    scene.start(&["release"]);
    scene.runs(&["release", "compile"]);
    scene.line("01O ", b"cc");
    let live = scene.live();
    let rows: Vec<_> = live.lines().collect();
    assert!(rows[0].starts_with("⠋ release ") && rows[1].starts_with("  ⠋ compile "), "{live}");
    assert_eq!(rows[2], "    │ cc");
    scene.fails(&["release", "compile"], 3);
    scene.fails(&["release"], 0);
    assert_eq!(
        scene.permanent(),
        "    │ cc\n  ✗ compile failed in 1.2s, exit code 3\n✗ release failed in 1.2s\n"
    );
}

#[test]
fn unfinished_lines_and_progress_are_live_and_what_they_end_as_is_permanent() {
    let mut scene = Scene::new(ViewMode::Live, SIZE);
    scene.runs(&["get"]);
    for (source, part) in [("01O ", "10%\r"), ("01O+", "50%\r"), ("01O+", "100%\r")] {
        scene.line(source, part.as_bytes());
        assert!(scene.live().ends_with(&format!("  │ {}", part.trim_end())), "{}", scene.live());
    }
    assert_eq!(scene.permanent(), "");
    scene.ends(&["get"]);
    assert_eq!(scene.permanent(), "  │ 100%\n✓ get 1.2s\n");
}

#[test]
fn a_line_that_the_daemon_tells_beside_the_log_grows_until_the_log_has_it() {
    let mut scene = Scene::new(ViewMode::Live, SIZE);
    scene.runs(&["get"]);
    for part in ["load", "load ..", "load ...."] {
        scene.grows("01O ", part);
        assert!(scene.live().ends_with(&format!("  │ {part}")), "{}", scene.live());
    }
    scene.line("01E ", b"slow");
    assert!(scene.live().ends_with("  │ load ...."), "{}", scene.live());
    scene.line("01O ", b"load .... done");
    assert!(scene.live().ends_with("  │ load .... done"), "{}", scene.live());
    scene.line("01O ", b"10%\r");
    scene.grows("01O+", "of 5 MB");
    assert!(scene.live().ends_with("  │ of 5 MB"), "{}", scene.live());
    scene.ends(&["get"]);
    assert_eq!(scene.permanent(), "  ! slow\n  │ load .... done\n  │ 10%\n✓ get 1.2s\n");
    assert!(!scene.live().contains("of 5 MB"), "{}", scene.live());
}

#[test]
fn lines_that_leave_the_region_are_permanent_and_none_is_lost() {
    let mut scene = Scene::new(ViewMode::Live, SIZE);
    scene.runs(&["many"]);
    for number in 0..1000 {
        scene.line("01O ", number.to_string().as_bytes());
    }
    assert!(scene.live().lines().count() <= SIZE.rows);
    scene.ends(&["many"]);
    let expected: Vec<_> = (0..1000).map(|number| format!("  │ {number}\n")).collect();
    assert_eq!(scene.permanent(), expected.concat() + "✓ many 1.2s\n");
}

/// Columns and rows that the rows take on a screen of 20 columns.
fn rows_at_20_columns(rows: &str) -> usize {
    rows.lines().map(|row| text::width(row).div_ceil(20).max(1)).sum()
}

#[test]
fn the_region_fits_a_terminal_that_becomes_as_narrow_as_20_columns() {
    let size = Size { columns: 100, rows: 24 };
    let mut scene = Scene::new(ViewMode::Live, size);
    scene.runs(&["wide"]);
    let lines: Vec<_> = (0..10).map(|number| format!("{number} {}", "x".repeat(90))).collect();
    for line in &lines {
        scene.line("01O ", line.as_bytes());
    }
    assert_eq!(scene.permanent(), "");
    scene.model.tick(START, size);
    let (above, live) = (scene.permanent(), scene.live());
    assert!(rows_at_20_columns(&live) < 24 && live.lines().count() > 3, "{live}");
    let tree = live.lines().next().unwrap();
    let shown = (above + live.strip_prefix(tree).unwrap()).replace(['│', ' ', '\n'], "");
    assert_eq!(shown, lines.concat().replace(' ', ""));
}

#[test]
fn while_the_size_changes_the_region_is_a_short_row_and_then_all_of_it_is_back() {
    let mut scene = Scene::new(ViewMode::Live, SIZE);
    scene.start(&["a step with a name that takes more than twenty columns"]);
    scene.runs(&["a step with a name that takes more than twenty columns", "build"]);
    scene.line("01O ", b"x");
    let before = scene.live();
    assert_eq!(before.lines().count(), 3);
    scene.model.tick(START, Size { columns: 200, ..SIZE });
    scene.model.tick(START + 900_000, SIZE);
    scene.model.tick(START + 1_800_000, SIZE);
    let during = scene.live();
    assert!(
        during.lines().count() == 1 && during.contains("build") && rows_at_20_columns(&during) == 1,
        "{during}"
    );
    scene.model.tick(START + 1_900_000, SIZE);
    assert!(scene.live().lines().count() == 3 && scene.live().ends_with("│ x"), "{}", scene.live());
    assert_eq!(scene.permanent(), "");
}

#[test]
fn words_are_kept_whole_at_sixty_columns_and_rows_hang_under_the_text() {
    let mut scene = Scene::new(ViewMode::Lines, SIZE);
    scene.line("01O ", b"The quick brown fox jumps over the lazy dog and runs away from it at once");
    assert_eq!(
        scene.permanent(),
        "│ The quick brown fox jumps over the lazy dog and runs away\n│ from it at once\n"
    );
}

#[test]
fn a_terminal_that_cannot_move_its_cursor_gets_starts_and_ends_as_lines() {
    let mut scene = Scene::new(ViewMode::Lines, SIZE);
    scene.runs(&["build"]);
    scene.line("01O ", b"x");
    scene.ends(&["build"]);
    assert_eq!(scene.permanent(), "▸ build\n  │ x\n✓ build 1.2s\n");
    assert_eq!(scene.live(), "");
}

#[test]
fn a_log_viewer_gets_a_section_for_each_step() {
    let mut scene = Scene::new(ViewMode::Sections, SIZE);
    scene.runs(&["build it"]);
    scene.ends(&["build it"]);
    assert_eq!(
        scene.permanent(),
        "\x1b[0Ksection_start:0:step.build_it\r\x1b[0K▸ build it\n\
         \x1b[0Ksection_end:1:step.build_it\r\x1b[0K✓ build it 1.2s\n"
    );
}

#[test]
fn steps_that_run_side_by_side_have_a_row_each_and_name_their_lines() {
    let mut scene = Scene::new(ViewMode::Live, SIZE);
    scene.start(&["checks"]);
    scene.runs(&["checks", "lint"]);
    let mut second = scene.told.started(&["checks", "unit"], scene.log.len() as u64);
    second.event.as_mut().unwrap().stream = 2;
    scene.model.message(&second);
    scene.line("00O ", b"Running step name=unit stream=02");
    scene.line("01O ", b"a");
    scene.line("02E ", b"b");
    let live = scene.live();
    let rows: Vec<_> = live.lines().map(|row| row.split("  1/2").next().unwrap()).collect();
    assert!(rows[0].starts_with("⠋ checks") && rows[1].starts_with("  ⠋ lint"), "{live}");
    assert!(rows[2].starts_with("  ⠋ unit"), "{live}");
    assert_eq!(rows[3..], ["    │ lint | a", "    ! unit | b"]);
    scene.ends(&["checks", "lint"]);
    scene.ends(&["checks", "unit"]);
    scene.ends(&["checks"]);
    assert_eq!(
        scene.permanent(),
        "    │ lint | a\n    ! unit | b\n  ✓ lint 1.2s\n  ✓ unit 1.2s\n✓ checks 1.2s\n"
    );
}

#[test]
fn a_step_that_prints_what_the_daemon_prints_begins_and_ends_nothing() {
    let forged = [
        "Running step name=x",
        "Running step name=lint stream=02",
        "Skipped step name=x: no",
        "job failed: x",
        "2026-11-20T10:00:00.000000Z 00E job failed: x",
    ];
    let mut scene = Scene::new(ViewMode::Live, SIZE);
    scene.runs(&["build"]);
    for text in forged {
        scene.line("01O ", text.as_bytes());
    }
    let live = scene.live();
    assert!(live.lines().count() == 1 + forged.len() && live.starts_with("⠋ build "), "{live}");
    scene.fails(&["build"], 3);
    let expected: Vec<_> = forged.iter().map(|text| format!("  │ {text}\n")).collect();
    assert_eq!(scene.permanent(), expected.concat() + "✗ build failed in 1.2s, exit code 3\n");
    assert_eq!(scene.model.own_steps().len(), 1);
}

#[test]
fn a_step_that_does_not_run_says_why_and_a_further_attempt_its_number() {
    let mut scene = Scene::new(ViewMode::Live, SIZE);
    let outcome = Outcome::Skipped.into();
    let reason = "when: on_failure".into();
    let result = v1::StepResult { outcome, reason, ..v1::StepResult::default() };
    let skipped = scene.told.event(&["rollback"], 0, result);
    scene.model.message(&skipped);
    assert_eq!(scene.permanent(), "○ rollback skipped 1.2s: when: on_failure\n");
    scene.start(&["flaky"]);
    let result = v1::StepResult {
        status: Status::Running.into(),
        attempts: vec![v1::StepResult::default()],
        ..v1::StepResult::default()
    };
    let again = scene.told.event(&["flaky"], 0, result);
    scene.model.message(&again);
    assert!(scene.live().contains("  attempt 2  1/2"), "{}", scene.live());
}

#[test]
fn a_function_that_is_the_whole_job_is_no_step() {
    let mut scene = Scene::new(ViewMode::Live, SIZE);
    scene.line("00O ", b"Running step name=root");
    scene.line("01O ", b"x");
    assert_eq!(scene.permanent(), "│ x\n");
    assert!(scene.live().starts_with("⠋ running ") && scene.live().lines().count() == 1, "{}", scene.live());
}

#[test]
fn the_reason_of_a_failure_is_told_at_the_end_alone() {
    let mut scene = Scene::new(ViewMode::Live, SIZE);
    scene.line("00E ", b"warning: something");
    scene.line("00E ", b"job failed: exit status 3");
    scene.model.end(StepOutcome::Failed);
    assert_eq!(scene.permanent(), "· warning: something\n");
}

#[test]
fn lines_of_a_step_that_look_like_the_daemons_are_shown() {
    let mut scene = Scene::new(ViewMode::Live, SIZE);
    for text in ["Running step name=x", "Skipped step name=x: false", "job failed: forged"] {
        scene.line("01O ", text.as_bytes());
        scene.line("00O ", text.as_bytes());
    }
    scene.model.end(StepOutcome::Failed);
    assert_eq!(
        scene.permanent(),
        "│ Running step name=x\n│ Skipped step name=x: false\n│ job failed: forged\n"
    );
}

#[test]
fn a_line_of_a_megabyte_is_shown_in_pieces_that_make_up_the_whole() {
    let mut scene = Scene::new(ViewMode::Live, SIZE);
    scene.runs(&["long"]);
    let word = "x".repeat(9_000);
    scene.line("01O ", word.as_bytes());
    for _ in 0..400 {
        scene.line("01O+", word.as_bytes());
    }
    scene.line("01O ", b"end");
    scene.ends(&["long"]);
    let permanent = scene.permanent();
    assert_eq!(permanent.matches('x').count(), 401 * 9_000);
    assert!(permanent.lines().all(|row| text::width(row) < SIZE.columns));
}

/// Returns the text that a person reads in rows: no colours, no signs of ours, no blanks.
fn words(rows: &str) -> String {
    rows.lines().filter_map(|row| row.split(['│', '!']).next_back()).flat_map(str::split_whitespace).collect()
}

fn size() -> impl Strategy<Value = Size> {
    (1..120_usize, 1..40_usize).prop_map(|(columns, rows)| Size { columns, rows })
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        any::<u8>().prop_map(|byte| vec![byte]),
        Just(b"\x1b[2J\x1b[1;1H".to_vec()),
        Just(b"\x1b[31m".to_vec()),
        Just(b"\x1b]0;title\x07".to_vec()),
        Just("\u{202e}\u{2066}".as_bytes().to_vec()),
        Just("漢字".as_bytes().to_vec()),
        Just("❤\u{fe0f}".as_bytes().to_vec()),
        Just(b"\t \r".to_vec()),
        Just(b"2026-11-20T10:00:00.000000Z 01O+x\r\n".to_vec()),
        Just(b"2026-11-20T10:00:00.000000Z 00O Running step name=\xff\n".to_vec()),
        "[a-z ]{1,70}".prop_map(String::into_bytes),
    ];
    vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

/// Checks that nothing in `rows` can do more to a terminal than be shown in its row.
fn assert_harmless(rows: &str, color: bool, columns: usize) -> Result<(), TestCaseError> {
    for row in rows.lines() {
        let mut parts = row.split('\x1b');
        let mut text = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (numbers, after) = part.split_once('m').unwrap_or((part, ""));
            let numbers = numbers.strip_prefix('[').unwrap_or("?");
            let is_color = numbers.bytes().all(|byte| byte.is_ascii_digit() || b";:".contains(&byte));
            prop_assert!(color && part.contains('m') && is_color, "{:?}", row);
            text.push_str(after);
        }
        prop_assert!(!text.chars().any(char::is_control), "{:?}", row);
        prop_assert!(
            !text
                .chars()
                .any(|c| ('\u{202a}'..='\u{202e}').contains(&c) || ('\u{2066}'..='\u{2069}').contains(&c)),
            "{:?}",
            row
        );
        prop_assert!(text::width(&text) <= columns, "{} > {columns}: {:?}", text::width(&text), row);
        let last = row.rsplit_once('\x1b').map(|(_, last)| last);
        prop_assert!(last.is_none_or(|last| last.starts_with("[0m")), "{:?}", row);
    }
    Ok(())
}

proptest! {
    #[test]
    fn whatever_comes_no_row_leaves_its_line_or_the_width(
        steps in vec((bytes(), "\\PC{0,12}|[\u{0}-\u{1f}\u{202e}a]{0,9}", size()), 0..6),
        color in any::<bool>(),
        mode in prop_oneof![Just(ViewMode::Live), Just(ViewMode::Lines)],
        times in prop_oneof![Just(Times::Clock), Just(Times::Elapsed), Just(Times::None)],
    ) {
        let style = Style { times, color, ..style(mode) };
        let mut model = Model::new(style, SIZE, false, 0);
        let mut path = Vec::new();
        let mut told = Told::default();
        let mut now = START;
        for (bytes, name, size) in &steps {
            now += 2_000_000;
            model.tick(now, *size);
            path.push(name.as_str());
            model.message(&told.started(&path, 0));
            model.log(bytes);
            assert_harmless(&model.live().join("\n"), color, size.columns)?;
            now += 2_000_000;
            model.tick(now, *size);
            assert_harmless(&model.live().join("\n"), color, size.columns)?;
            prop_assert!(model.live().len() <= size.rows.saturating_sub(1).max(1));
            model.say(name);
            assert_harmless(&model.take_permanent(), color, size.columns)?;
        }
        model.end(StepOutcome::Cancelled);
        assert_harmless(&model.take_permanent(), color, model.rows().size.columns)?;
    }

    #[test]
    fn rows_of_a_line_hold_all_its_words_in_order(
        text in "[a-zé漢 ]{0,200}",
        columns in 20..120_usize,
        pieces in 1..50_usize,
    ) {
        let mut scene = Scene::new(ViewMode::Lines, Size { columns, rows: 24 });
        let log = format!("2026-11-20T10:00:00.000000Z 01O {text}\n");
        for piece in log.as_bytes().chunks(pieces) {
            scene.raw(piece);
        }
        scene.model.end(StepOutcome::Succeeded);
        let permanent = scene.permanent();
        prop_assert_eq!(words(&permanent), text.split_whitespace().collect::<String>());
    }

    #[test]
    fn no_word_that_fits_a_row_is_cut(words in vec("[a-z]{1,50}", 1..30)) {
        let mut rows = Vec::new();
        text::wrap(&words.join(" "), 57, "", |row| rows.push(row.to_owned()));
        let shown: Vec<_> = rows.iter().flat_map(|row| row.split(' ')).collect();
        prop_assert_eq!(shown, words);
    }
}

#[test]
fn what_the_live_region_showed_stays_when_the_command_leaves() {
    let mut scene = Scene::new(ViewMode::Live, SIZE);
    scene.runs(&["build"]);
    scene.line("01O ", b"one");
    scene.line("01O ", b"two");
    scene.grows("01O ", "thr");
    assert!(scene.live().contains("two") && scene.live().contains("thr"), "{}", scene.live());
    scene.model.leave();
    let left = scene.permanent();
    let texts: Vec<&str> = left.lines().map(|row| row.trim_start_matches([' ', '│'])).collect();
    assert_eq!(texts, ["one", "two", "thr"]);
}

#[test]
fn steps_that_never_ran_are_known_by_their_names_or_by_their_number() {
    let mut scene = Scene::new(ViewMode::Live, SIZE);
    scene.start(&["build"]);
    scene.fails(&["build"], 1);
    assert_eq!(scene.model.not_run(), [""]);
    let step = |name: &str| v1::Step { name: name.into(), ..v1::Step::default() };
    let steps = ["build", "test", "deploy"].map(step).to_vec();
    let definition = Some(v1::Definition { steps, ..v1::Definition::default() });
    let spec_definition = Some(v1::SpecDefinition { spec: None, definition });
    let result = Some(v1::StepResult { spec_definition, ..v1::StepResult::default() });
    scene.model.message(&v1::FollowStepsResponse { result, ..v1::FollowStepsResponse::default() });
    assert_eq!(scene.model.not_run(), ["test", "deploy"]);
}
