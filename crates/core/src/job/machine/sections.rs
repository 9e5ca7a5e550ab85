//! Marks of sections in the log, which GitLab's log viewer can fold: one for each step of the root's list that begins, if
//! the request asks for them (service.md §3.1).

use step_runner_log::words::DaemonLine;

use crate::job::event::CallId;

use super::{Machine, ROOT};

impl Machine {
    /// Opens the section of a step of the root's list that begins. Its further attempts are in the same section.
    pub(super) fn open_section(&mut self, id: CallId) {
        let time = self.times.seconds();
        let Some(call) = self.calls.get(&id).filter(|_| self.constants.trace_sections) else { return };
        if call.parent == Some(ROOT) && !call.is_noted {
            let (name, heading) = (call.name.clone(), heading(&call.name));
            self.log(&DaemonLine::SectionStart { time, name: &name, heading: &heading });
        }
    }

    /// Closes the section of a step that has ended.
    pub(super) fn close_section(&mut self, parent: CallId, name: &str) {
        if self.constants.trace_sections && parent == ROOT {
            let time = self.times.seconds();
            self.log(&DaemonLine::SectionEnd { time, name });
        }
    }
}

/// Returns the name in words: without a heading the viewer shows no section.
fn heading(name: &str) -> String {
    let words = name.replace('_', " ");
    let mut letters = words.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
