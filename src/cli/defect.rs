//! Reports panics: the location, and the message only if it is a literal of our source. A message composed at run time
//! may hold data, even a secret (faults.md row 38).

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt::Write;
use std::panic::PanicHookInfo;

use super::{terminal, view};

/// Replaces the standard library's report of panics. With `RUST_BACKTRACE` in the environment a backtrace follows.
pub(super) fn report_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let mut report = line("step-runner", panic);
        let backtrace = Backtrace::capture();
        if backtrace.status() == BacktraceStatus::Captured {
            write!(report, "{backtrace}").ok();
        }
        view::screen::abandon();
        terminal::write_stderr(report.as_bytes());
    }));
}

/// Like [`report_panics`], but without a backtrace, so always on one line (connectors.md §2.2).
pub(super) fn report_panics_of_proxy() {
    std::panic::set_hook(Box::new(|panic| {
        terminal::write_stderr(line("step-runner proxy", panic).as_bytes());
    }));
}

fn line(program: &str, panic: &PanicHookInfo<'_>) -> String {
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    // A literal is a `&'static str`, a composed message a `String`.
    let text = panic.payload().downcast_ref::<&'static str>().map(|text| format!(": {text}"));
    format!("{program}: internal error: panic at {place}{}\n", text.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn fault_38_the_text_of_a_panic_is_shown_only_if_it_stands_in_the_source() {
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let heard = Arc::clone(&lines);
        let thread = std::thread::current().id();
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if std::thread::current().id() == thread {
                heard.lock().unwrap().push(line("p", panic));
            } else {
                before(panic);
            }
        }));
        let secret = "can\u{e4}ry";
        assert!(std::panic::catch_unwind(|| panic!("as written")).is_err());
        assert!(std::panic::catch_unwind(|| panic!("about {secret}")).is_err());
        assert!(std::panic::catch_unwind(|| secret.split_at(4).0.len()).is_err());
        drop(std::panic::take_hook());
        let lines = lines.lock().unwrap().clone();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].starts_with("p: internal error: panic at src/cli/defect.rs:"), "{lines:?}");
        assert!(lines[0].ends_with(": as written\n"), "{lines:?}");
        assert!(lines.iter().all(|line| !line.contains(secret)), "{lines:?}");
    }
}
