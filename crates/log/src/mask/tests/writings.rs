//! Part of the second implementation: masking.md §2 on escapes. It goes from a form to its writings, where the masker
//! goes from a text to what it stands for. `tests/shows/masking.rs` includes this file too.

/// Escapes of a fixed number of digits, which stand for a byte or a character: head, number of digits, radix.
const UNITS: [(&str, usize, u32); 3] = [("%", 2, 16), (r"\x", 2, 16), ("\\", 3, 8)];

/// Shorter forms count without escapes only.
const SHORTEST: usize = 8;

/// Returns the ends of all occurrences of `form` with escapes that start at `start`.
pub(crate) fn ends(form: &[u8], text: &[u8], start: usize) -> Vec<usize> {
    if form.len() < SHORTEST {
        return Vec::new();
    }
    let mut walk = Walk::new(form, text);
    walk.go(start, 0, false);
    walk.ends
}

/// True if bytes behind `text` can complete an occurrence of `form` that starts at `start`. `open` tells if a text is
/// the beginning of an escape.
pub(crate) fn may_go_on(form: &[u8], text: &[u8], start: usize, open: impl Fn(&[u8]) -> bool) -> bool {
    let mut walk = Walk::new(form, text);
    walk.go(start, 0, false);
    walk.seen
        .iter()
        .any(|&(at, done, _)| at == text.len() && at > start && done < form.len() || open(&text[at..]))
}

/// All ways to read a text as a form.
struct Walk<'a> {
    form: &'a [u8],
    text: &'a [u8],
    /// Position in the text, in the form, and if a CR of a line end is before it.
    seen: Vec<(usize, usize, bool)>,
    ends: Vec<usize>,
}

impl<'a> Walk<'a> {
    fn new(form: &'a [u8], text: &'a [u8]) -> Self {
        Self { form, text, seen: Vec::new(), ends: Vec::new() }
    }

    fn go(&mut self, at: usize, done: usize, behind_cr: bool) {
        if done == self.form.len() {
            self.ends.push(at);
            return;
        }
        if self.seen.contains(&(at, done, behind_cr)) {
            return;
        }
        self.seen.push((at, done, behind_cr));
        let (form, text) = (&self.form[done..], &self.text[at..]);
        for (taken, length) in writings(form, text) {
            if !behind_cr || form[0] == b'\n' && taken == 1 {
                self.go(at + length, done + taken, false);
            }
        }
        if done > 0 && !behind_cr {
            for nothing in ["''", "'$'"] {
                if text.starts_with(nothing.as_bytes()) {
                    self.go(at + nothing.len(), done, false);
                }
            }
        }
        if done > 0 && form[0] == b'\n' {
            for (_, length) in writings(b"\r", text) {
                self.go(at + length, done, true);
            }
        }
    }
}

/// Returns how many bytes at the start of `form` the start of `text` can stand for, and the length of that start.
fn writings(form: &[u8], text: &[u8]) -> Vec<(usize, usize)> {
    let byte = form[0];
    let mut all = Vec::new();
    if text.first() == Some(&byte) {
        all.push((1, 1));
    }
    if !text.first().is_some_and(|first| b"%\\&'+\"$".contains(first)) {
        return all;
    }
    let mut fixed = Vec::new();
    let letter = match byte {
        0x07 => "a",
        0x08 => "b",
        b'\t' => "t",
        b'\n' => "n",
        0x0B => "v",
        0x0C => "f",
        b'\r' => "r",
        0x1B => "eE",
        _ => "",
    };
    fixed.extend(letter.bytes().map(|letter| vec![b'\\', letter]));
    if !byte.is_ascii_alphanumeric() {
        fixed.push(vec![b'\\', byte]);
    }
    if b"'\"$%".contains(&byte) {
        fixed.push(vec![byte, byte]);
    }
    fixed.extend(
        match byte {
            b' ' => &["+"][..],
            b'\n' => &["'\n'"],
            b'\'' => &[r"'\''", "&apos;"],
            b'"' => &["&quot;"],
            b'&' => &["&amp;"],
            b'<' => &["&lt;"],
            b'>' => &["&gt;"],
            _ => &[],
        }
        .iter()
        .map(|&writing| writing.as_bytes().to_vec()),
    );
    all.extend(fixed.iter().filter(|writing| text.starts_with(writing)).map(|writing| (1, writing.len())));
    for (head, count, radix) in UNITS {
        all.extend(digits(text, head, count..=count, "", radix, u32::from(byte)).map(|length| (1, length)));
    }

    let quotes = form.iter().take(4).take_while(|byte| **byte == b'\'').count();
    for count in 1..=quotes {
        let writing = format!("'\"{}\"'", "'".repeat(count));
        all.extend(text.starts_with(writing.as_bytes()).then_some((count, writing.len())));
    }

    let Some(character) = character(form) else { return all };
    let (taken, code) = (character.len_utf8(), u32::from(character));
    let utf16 = |unit: &dyn Fn(&[u8], u32) -> Option<usize>| {
        let units = character.encode_utf16(&mut [0; 2]).to_vec();
        units.iter().try_fold(0, |length, one| Some(length + unit(&text[length..], u32::from(*one))?))
    };
    let lengths = [
        utf16(&|text, unit| digits(text, r"\u", 4..=4, "", 16, unit)),
        utf16(&|text, unit| digits(text, "%u", 4..=4, "", 16, unit)),
        utf16(&reference),
        reference(text, code),
        digits(text, r"\U", 8..=8, "", 16, code),
        digits(text, r"\u{", 1..=8, "}", 16, code),
        digits(text, r"\x{", 1..=8, "}", 16, code),
    ];
    let units = UNITS.map(|(head, count, radix)| {
        digits(text, head, count..=count, "", radix, code).filter(|_| taken == 2)
    });
    all.extend(lengths.into_iter().chain(units).flatten().map(|length| (taken, length)));
    all
}

/// Returns the length of a reference of XML to a number, if `text` starts with it.
fn reference(text: &[u8], code: u32) -> Option<usize> {
    let hexadecimal = ["&#x", "&#X"].into_iter().find_map(|head| digits(text, head, 1..=8, ";", 16, code));
    hexadecimal.or_else(|| digits(text, "&#", 1..=9, ";", 10, code))
}

fn character(form: &[u8]) -> Option<char> {
    form.utf8_chunks().next()?.valid().chars().next()
}

/// Returns the length of `head`, digits that are `code`, and `tail`, if `text` starts with them.
fn digits(
    text: &[u8],
    head: &str,
    count: std::ops::RangeInclusive<usize>,
    tail: &str,
    radix: u32,
    code: u32,
) -> Option<usize> {
    let rest = text.strip_prefix(head.as_bytes())?;
    let most = rest.iter().take(*count.end()).take_while(|byte| char::from(**byte).is_digit(radix)).count();
    let fits = |&length: &usize| {
        let number = std::str::from_utf8(&rest[..length])
            .ok()
            .and_then(|digits| u32::from_str_radix(digits, radix).ok());
        number == Some(code) && rest[length..].starts_with(tail.as_bytes())
    };
    let length = count.filter(|length| *length <= most).find(fits)?;
    Some(head.len() + length + tail.len())
}
