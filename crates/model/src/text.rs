//! Quotations in messages. A message is built before it is masked. A quotation that is cut or escaped could hold half a
//! secret, which no masker finds. So a message holds each quotation unchanged between two marks, and [`for_people`]
//! escapes and cuts it after masking.

use std::borrow::Cow;

/// Marks before and after a quotation: two code points that Unicode reserves for internal use.
const MARKS: [char; 2] = ['\u{fdd0}', '\u{fdd1}'];

/// Longest quotation shown to people, in characters.
const LONGEST: usize = 64;

/// Words that may occur only before the exit status at the end of a failed job's message (language.md §14.4).
const EXIT_STATUS: &str = "exit status";

/// Marks foreign text as a quotation in a message. Short plain text needs no marks.
pub fn quote(text: &str) -> Cow<'_, str> {
    let is_plain = |character: char| character.is_alphanumeric() || "_-. ".contains(character);
    if text.len() <= LONGEST && text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let [open, close] = MARKS;
    Cow::Owned(format!("{open}{text}{close}"))
}

/// Returns a message for people: escapes its quotations and cuts long ones. Secrets in it must be masked before.
pub fn for_people(message: &str) -> Cow<'_, str> {
    let [open, close] = MARKS;
    if !message.contains(open) {
        return Cow::Borrowed(message);
    }
    let mut pieces = message.split(open);
    let mut shown = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (quoted, behind) = piece.split_once(close).unwrap_or((piece, ""));
        let cut = quoted.char_indices().nth(LONGEST).map(|(cut, _)| cut);
        shown.extend(quoted.get(..cut.unwrap_or(quoted.len())).unwrap_or_default().escape_debug());
        if cut.is_some() {
            shown.push('…');
        }
        shown.push_str(behind);
    }
    Cow::Owned(shown)
}

/// Returns `message` on one line. Behind a mark of a section, the carriage return stays: log viewers need it.
pub fn on_one_line(message: &str) -> String {
    let (mark, text) = message.split_at(section_mark(message));
    [mark, &text.replace(['\r', '\n'], " ")].concat()
}

/// Returns the length of the mark of a section that `message` begins with (service.md §3.1), 0 without one.
fn section_mark(message: &str) -> usize {
    const END: &str = "\r\x1b[0K";
    let is_mark = message.starts_with("section_start:") || message.starts_with("section_end:");
    let end = message.find(['\r', '\n']).filter(|_| is_mark);
    end.filter(|end| message.get(*end..).is_some_and(|rest| rest.starts_with(END)))
        .map_or(0, |end| end + END.len())
}

/// Returns the exit status that the message of a failed job ends with: of a process, or of a step whose `timeout` has
/// passed (language.md §14.4).
pub fn told_exit_status(message: &str) -> Option<i32> {
    let (before, status) = message.rsplit_once(EXIT_STATUS)?;
    let cause = before.strip_suffix(": ")?.rsplit(": ").next()?;
    let digits =
        status.strip_prefix(' ').filter(|status| status.bytes().all(|byte| byte.is_ascii_digit()))?;
    let is_cause = cause == "exec" || cause.starts_with("timed out after ");
    digits.parse().ok().filter(|_| is_cause)
}

/// Returns a message without the words at which clients cut it to read the rest as an exit status (language.md §14.4).
pub fn without_exit_status(message: &str) -> String {
    message.replace(EXIT_STATUS, "exit-status")
}

/// Returns a message with these words before the exit status at its end alone: a name in it can hold them, too.
pub fn with_last_exit_status(message: &str) -> String {
    let (before, end) = message.split_at(message.rfind(EXIT_STATUS).unwrap_or(message.len()));
    without_exit_status(before) + end
}

/// True for the marks that reorder what follows them on a terminal, and for separators of lines.
pub const fn is_directional(character: char) -> bool {
    matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns the form in which people see a character that is not to have its effect: `<U+202E>`.
pub fn code_point(character: char) -> String {
    format!("<U+{:04X}>", u32::from(character))
}

/// Formats a number of bytes for people: `49.9 MiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["B", "KiB", "MiB", "GiB"];
    let power = (bytes.checked_ilog2().unwrap_or_default() / 10).min(3);
    let unit = UNITS.get(power as usize).copied().unwrap_or_default();
    if power == 0 {
        format!("{bytes} {unit}")
    } else {
        format!("{:.1} {unit}", bytes as f64 / 1024_f64.powi(power as i32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotations_are_escaped_and_cut_only_for_people() {
        for (text, shown) in [
            ("plain_name-1.2 x", "plain_name-1.2 x"),
            ("a\nb", "a\\nb"),
            ("a\u{1b}[0mb", "a\\u{1b}[0mb"),
            ("", ""),
        ] {
            let message = format!("key \"{}\" is unknown", quote(text));
            assert!(message.contains(text));
            assert_eq!(for_people(&message), format!("key \"{shown}\" is unknown"));
        }
        let long = "é".repeat(LONGEST + 1);
        let message = format!("{} and {}", quote(&long), quote("b\t"));
        assert!(message.contains(&long));
        assert_eq!(for_people(&message), format!("{}… and b\\t", "é".repeat(LONGEST)));
    }

    #[test]
    fn a_quotation_whose_end_is_gone_goes_to_the_end() {
        assert_eq!(for_people("a \u{fdd0}b\n"), "a b\\n");
    }

    #[test]
    fn only_the_last_words_tell_an_exit_status() {
        for (message, told) in [
            ("exec: exit status 3", Some(3)),
            ("step \"a\": exec: exit status 127", Some(127)),
            ("step \"exit status 9\": exec: exit status 3", Some(3)),
            ("out of memory: exec: exit status 3", Some(3)),
            ("job failed: step \"a\": timed out after 1m30s: exit status 124", Some(124)),
            ("exec: exit status 3.", None),
            ("exec: exit status ", None),
            ("exec: exit status", None),
            ("no func.yml in ./exit status 3", None),
            ("no func.yml in ./exec: exit status 3", None),
            ("internal: exit status 3", None),
        ] {
            assert_eq!(told_exit_status(message), told, "{message}");
        }
        assert_eq!(without_exit_status("exit status 3"), "exit-status 3");
        assert_eq!(
            with_last_exit_status("step \"exit status 9\": exec: exit status 3"),
            "step \"exit-status 9\": exec: exit status 3"
        );
        assert_eq!(with_last_exit_status("exec: signal: killed"), "exec: signal: killed");
    }

    #[test]
    fn only_a_mark_of_a_section_keeps_its_carriage_return() {
        for (message, line) in [
            ("a\r\nb", "a  b"),
            ("section_start:1:a\r\x1b[0KA\rB", "section_start:1:a\r\x1b[0KA B"),
            ("section_end:1:a\r\x1b[0K", "section_end:1:a\r\x1b[0K"),
            ("section_end:1:a\n\r\x1b[0K", "section_end:1:a  \x1b[0K"),
            ("section_end:1:a\rb\r\x1b[0K", "section_end:1:a b \x1b[0K"),
            ("x section_end:1:a\r\x1b[0K", "x section_end:1:a \x1b[0K"),
        ] {
            assert_eq!(on_one_line(message), line);
        }
    }
}
