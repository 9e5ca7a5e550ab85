//! Makes text safe to show to a person: control sequences and section markers (logs.md §8).

use memchr::memchr;
use step_runner_model::text::{code_point, is_directional};

const ESC: u8 = 0x1b;
const BEL: u8 = 0x07;

/// Appends `text` to `out` in a form that cannot control the terminal.
///
/// With `color`, colour sequences pass, and a reset closes them at the end. Other CSI and OSC sequences are removed.
/// Other control bytes except TAB, and bytes that are not UTF-8, become `\xNN`. Marks that change the direction of writing
/// become `<U+NNNN>`.
pub(super) fn show(text: &[u8], color: bool, out: &mut Vec<u8>) {
    let mut rest = text;
    let mut colored = false;
    while let Some(at) = rest.iter().position(|&byte| !is_plain(byte)) {
        let (plain, special) = rest.split_at(at);
        out.extend_from_slice(plain);
        if let Some(sequence) = Sequence::parse(special) {
            let (bytes, after) = special.split_at(sequence.len);
            if color && sequence.color {
                out.extend_from_slice(bytes);
                colored = !sequence.is_reset(bytes);
            }
            rest = after;
        } else {
            let end = special.iter().position(u8::is_ascii).unwrap_or(special.len()).max(1);
            let (run, after) = special.split_at(end);
            show_special(run, out);
            rest = after;
        }
    }
    out.extend_from_slice(rest);
    if colored {
        out.extend_from_slice(b"\x1b[0m");
    }
}

/// True for printable ASCII and TAB.
const fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~' | b'\t')
}

/// Appends one ASCII control byte, or a run of non-ASCII bytes, in a safe form.
fn show_special(run: &[u8], out: &mut Vec<u8>) {
    for chunk in run.utf8_chunks() {
        for character in chunk.valid().chars() {
            let mut buffer = [0; 4];
            let bytes = character.encode_utf8(&mut buffer).as_bytes();
            // U+0080 to U+009F are control characters too: some terminals read U+009B as a CSI.
            if character.is_control() {
                show_hex(bytes, out);
            } else if is_directional(character) {
                out.extend_from_slice(code_point(character).as_bytes());
            } else {
                out.extend_from_slice(bytes);
            }
        }
        show_hex(chunk.invalid(), out);
    }
}

fn show_hex(bytes: &[u8], out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    for &byte in bytes {
        out.extend_from_slice(&[b'\\', b'x', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
    }
}

/// A complete CSI or OSC sequence at the start of a text.
struct Sequence {
    len: usize,
    color: bool,
}

impl Sequence {
    fn parse(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [ESC, b'[', body @ ..] => {
                let parameters = body.iter().take_while(|byte| matches!(byte, b'0'..=b'?')).count();
                let between =
                    body[parameters..].iter().take_while(|byte| matches!(byte, b' '..=b'/')).count();
                let last = *body.get(parameters + between)?;
                // `<`, `=`, `>` and `?` start a private sequence. It is no colour even if it ends in `m`.
                let color =
                    last == b'm' && between == 0 && body[..parameters].iter().all(|byte| *byte < b'<');
                matches!(last, b'@'..=b'~').then_some(Self { len: 2 + parameters + between + 1, color })
            }
            [ESC, b']', body @ ..] => {
                let end = body.iter().position(|&byte| byte == BEL || byte == ESC)?;
                let terminator = match body[end..] {
                    [BEL, ..] => 1,
                    [ESC, b'\\', ..] => 2,
                    _ => return None,
                };
                Some(Self { len: 2 + end + terminator, color: false })
            }
            _ => None,
        }
    }

    /// True if this colour sequence resets all colours.
    fn is_reset(&self, bytes: &[u8]) -> bool {
        self.color && matches!(bytes, b"\x1b[m" | b"\x1b[0m" | b"\x1b[0;m" | b"\x1b[;m")
    }
}

/// A section marker of a GitLab job log, without the carriage return that ends it (logs.md §8).
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Marker<'a> {
    /// `section_start:T:NAME`, with its name.
    Start(&'a [u8]),
    /// `section_end:T:NAME`.
    End,
}

impl<'a> Marker<'a> {
    /// Parses a part that is a marker and nothing else, apart from leading erase sequences.
    pub(super) fn parse(mut part: &'a [u8]) -> Option<Self> {
        while let Some(rest) = part.strip_prefix(b"\x1b[0K").or_else(|| part.strip_prefix(b"\x1b[K")) {
            part = rest;
        }
        let (start, rest) = match (part.strip_prefix(b"section_start:"), part.strip_prefix(b"section_end:")) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => return None,
        };
        let colon = memchr(b':', rest)?;
        let (time, name) = (&rest[..colon], &rest[colon + 1..]);
        // Options such as `[collapsed=true]` may follow the name.
        let name = memchr(b'[', name).map_or(name, |end| &name[..end]);
        let named = !name.is_empty() && name.iter().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(b));
        if time.is_empty() || !time.iter().all(u8::is_ascii_digit) || !named {
            return None;
        }
        Some(if start { Self::Start(name) } else { Self::End })
    }
}
