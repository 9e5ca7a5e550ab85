//! Random schedules of calls, ends, deaths, defects and clock jumps against the daemon's real actors.
//!
//! `--proof simulate [--seeds N] [--from S] [--seed X] [--seconds N] [--jobs N]`: runs the seeds S … S+N-1 on virtual
//! time. `--seed` runs one and prints its trace. The schedule of a failing seed is shortened, printed with the command
//! that repeats it, and added to `seeds.txt`, whose seeds come first in every run; `--no-keep` leaves the file alone.
//! `--fault` names a failpoint, written as in `FAILPOINTS`, that the simulator must detect. `--races N` and
//! `--abandoned N` run two single proofs with large counts. `--worker` is one of several processes that share the seeds.
#![expect(clippy::needless_pass_by_value, reason = "notes and answers are made to be handed over")]

mod keeper;
mod oracle;
mod program;
mod proofs;
mod request;
mod runs;
mod schedule;
mod world;

use crate::arguments::Arguments;
use crate::verdict::Shown;

pub(crate) fn run(arguments: &Arguments, small: bool) -> Shown {
    // Failpoints that panic are part of it. Whoever comes afterwards has the hook of before.
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let result = if small {
        proofs::run()
    } else if arguments.flag("worker") {
        Ok(runs::work(arguments))
    } else if let Some(seed) = arguments.given("seed") {
        runs::show(seed, arguments)
    } else if let Some(count) = arguments.given("races") {
        proofs::races(count)
    } else if let Some(count) = arguments.given("abandoned") {
        proofs::abandoned(count)
    } else {
        runs::all(arguments)
    };
    std::panic::set_hook(before);
    result
}
