//! `terminal`: compares the screens of jobs, in tmux sessions of several widths, with golden screens.
//!
//! A golden screen is `tests/golden/terminal/NAME-COLUMNS[-color].txt`, with placeholders for times, sizes and bars.
//! `--bless` rewrites these files and the pictures for the documentation. `--only NAME` takes one job or behaviour. The last part
//! tests what no golden screen can show: Ctrl-Z, and a terminal that hangs, is closed or changes its size. `--seed N` repeats
//! the sizes. `--untimed` measures what a viewer costs a job, but does not judge it.

mod behaviours;
mod cost;
mod jobs;
mod pen;
mod picture;
mod screen;
mod session;

use std::path::PathBuf;
use std::process::Command;

use crate::arguments::Arguments;
use crate::parts::skipped;
use crate::verdict::{Check, Misses, Shown};
use jobs::Job;

const WIDTHS: [u16; 3] = [60, 100, 200];

pub(crate) fn run(arguments: &Arguments, small: bool) -> Shown {
    if Command::new("tmux").arg("-V").output().is_err() {
        skipped("terminal", "tmux");
        return Ok("skipped: no tmux".into());
    }
    let misses = Misses::default();
    let (mut screens, only) = (0, arguments.text("only"));
    let widths = if small { &WIDTHS[..1] } else { &WIDTHS[..] };
    for job in jobs::all() {
        if only.is_some_and(|only| only != job.name) {
            continue;
        }
        for &columns in widths {
            for color in [false, true] {
                let check = golden(&job, columns, color, arguments.flag("bless"));
                misses.check(&format!("{} at {columns} columns, colour {color}", job.name), check);
                screens += 1;
            }
        }
    }
    let mut behaviours = 0;
    for (name, behaviour) in behaviours::ALL {
        if only.is_none_or(|only| only == name) {
            misses.check(name, behaviour());
            behaviours += 1;
        }
    }
    let (mut cost, mut changes) = (String::new(), String::new());
    if only.is_none_or(|only| only == behaviours::SIZES) {
        let seed = arguments.seed();
        changes = format!("; {}, seed {seed}: ", behaviours::SIZES);
        match behaviours::sizes_that_change(seed, if small { 200 } else { 4_000 }) {
            Ok(figures) => changes.push_str(&figures),
            Err(miss) => misses.add(format!("{changes}{miss}")),
        }
    }
    if only.is_none() {
        match cost::measured(if small { 2 } else { 20 }, arguments.judges_time(small)) {
            Ok(figures) => cost = format!("; {figures}"),
            Err(miss) => misses.add(miss),
        }
    }
    misses.verdict(format!("{screens} screens as the golden ones, {behaviours} behaviours{changes}{cost}"))
}

fn golden(job: &Job, columns: u16, color: bool, bless: bool) -> Check {
    let shown = job.screen(columns, color)?;
    let text = screen::normal(&shown);
    let kind = if color { "-color" } else { "" };
    let file = folder("tests/golden/terminal").join(format!("{}-{columns}{kind}.txt", job.name));
    if bless {
        std::fs::write(&file, &text).map_err(|error| error.to_string())?;
        if color && columns == 100 && job.has_picture {
            let picture = folder("docs/pictures").join(format!("{}.svg", job.name));
            std::fs::write(picture, picture::svg(&shown, columns)).map_err(|error| error.to_string())?;
        }
        return Ok(());
    }
    let expected = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    if text == expected {
        return Ok(());
    }
    Err(format!("differs from {}; it is now:\n{text}", file.display()))
}

fn folder(path: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::create_dir_all(&folder).ok();
    folder
}
