//! The encoded forms of a phrase (masking.md §2): pure functions from bytes to byte strings.

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD},
};

/// Shorter phrases, and shorter lines of phrases, have no encoded forms: those would match too much other text.
pub(super) const MIN_LENGTH: usize = 8;

/// Returns the group *lines*, without the phrase itself: the phrase with other line ends, and each of its long lines.
pub(super) fn lines(phrase: &[u8]) -> Vec<Vec<u8>> {
    if phrase.len() < MIN_LENGTH || memchr::memchr2(b'\r', b'\n', phrase).is_none() {
        return Vec::new();
    }
    let line_feeds = replace(phrase, b"\r\n", b"\n");
    let both = replace(&line_feeds, b"\n", b"\r\n");
    let mut forms = vec![line_feeds, both];
    forms.extend(
        phrase
            .split(|byte| matches!(byte, b'\r' | b'\n'))
            .map(trim)
            .filter(|line| line.len() >= MIN_LENGTH)
            .map(<[u8]>::to_vec),
    );
    forms
}

/// Returns the groups below *lines* of a phrase or a *lines* form; perhaps with duplicates and the phrase itself.
pub(super) fn encodings(phrase: &[u8]) -> Vec<Vec<u8>> {
    let mut forms = Vec::new();
    if phrase.len() >= MIN_LENGTH {
        base64(phrase, &mut forms);
        percent(phrase, &mut forms);
        if let Ok(text) = std::str::from_utf8(phrase) {
            json(text, &mut forms);
        }
        shell(phrase, &mut forms);
    }
    forms
}

/// Removes leading and trailing Unicode white space. Bytes that are not UTF-8 do not count as white space.
pub(super) fn trim(bytes: &[u8]) -> &[u8] {
    trim_end(trim_start(bytes))
}

fn trim_start(bytes: &[u8]) -> &[u8] {
    let valid = bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    &bytes[valid.len() - valid.trim_start().len()..]
}

fn trim_end(mut bytes: &[u8]) -> &[u8] {
    // The last character has at most four bytes; all but its first are continuation bytes.
    while let Some(start) = bytes.iter().rposition(|byte| byte & 0xC0 != 0x80)
        && let Ok(last) = std::str::from_utf8(&bytes[start..])
        && last.chars().all(char::is_whitespace)
    {
        bytes = &bytes[..start];
    }
    bytes
}

fn replace(text: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = 0;
    for at in memchr::memmem::find_iter(text, from) {
        out.extend_from_slice(&text[rest..at]);
        out.extend_from_slice(to);
        rest = at + from.len();
    }
    out.extend_from_slice(&text[rest..]);
    out
}

// === base64 ===

fn base64(phrase: &[u8], forms: &mut Vec<Vec<u8>>) {
    let line = [phrase, b"\n"].concat();
    for text in [phrase, &line] {
        for encoded in [
            STANDARD.encode(text),
            STANDARD_NO_PAD.encode(text),
            URL_SAFE.encode(text),
            URL_SAFE_NO_PAD.encode(text),
        ] {
            forms.push(encoded.into_bytes());
        }
    }
    // The characters that depend on the phrase alone if `before` other bytes share its first group of three.
    for before in 0..3 {
        let shifted = [&[0, 0][..before], phrase].concat();
        let wholly = (8 * before).div_ceil(6)..8 * shifted.len() / 6;
        for encoded in [STANDARD_NO_PAD.encode(&shifted), URL_SAFE_NO_PAD.encode(&shifted)] {
            forms.push(encoded.as_bytes()[wholly.clone()].to_vec());
        }
    }
}

// === percent ===

fn percent(phrase: &[u8], forms: &mut Vec<Vec<u8>>) {
    const KEPT_BESIDES: [&[u8]; 4] = [b"", b"!'()*", b"/", b"!'()*;,/?:@&=+$#"];
    for hex in [b"0123456789ABCDEF", b"0123456789abcdef"] {
        for kept in KEPT_BESIDES {
            forms.push(percent_encode(phrase, kept, hex, false));
        }
        forms.push(percent_encode(phrase, b"", hex, true));
    }
}

fn percent_encode(phrase: &[u8], kept: &[u8], hex: &[u8; 16], blank_as_plus: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(phrase.len() + phrase.len() / 2);
    for &byte in phrase {
        match byte {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'.' | b'_' | b'~' => out.push(byte),
            b' ' if blank_as_plus => out.push(b'+'),
            _ if kept.contains(&byte) => out.push(byte),
            _ => {
                out.push(b'%');
                push_hex(byte, hex, &mut out);
            }
        }
    }
    out
}

fn push_hex(byte: u8, digits: &[u8; 16], out: &mut Vec<u8>) {
    out.extend_from_slice(&[digits[usize::from(byte >> 4)], digits[usize::from(byte & 15)]]);
}

// === JSON ===

#[derive(Clone, Copy, Default)]
struct JsonStyle {
    slash: bool,
    html: bool,
    ascii: bool,
}

fn json(phrase: &str, forms: &mut Vec<Vec<u8>>) {
    for style in [
        JsonStyle::default(),
        JsonStyle { slash: true, ..JsonStyle::default() },
        JsonStyle { html: true, ..JsonStyle::default() },
        JsonStyle { ascii: true, ..JsonStyle::default() },
        JsonStyle { ascii: true, slash: true, ..JsonStyle::default() },
    ] {
        forms.push(json_encode(phrase, style));
    }
}

fn json_encode(phrase: &str, style: JsonStyle) -> Vec<u8> {
    let mut out = Vec::with_capacity(phrase.len() + 8);
    for character in phrase.chars() {
        let short = match character {
            '"' => Some(b'"'),
            '\\' => Some(b'\\'),
            '\u{8}' => Some(b'b'),
            '\u{c}' => Some(b'f'),
            '\n' => Some(b'n'),
            '\r' => Some(b'r'),
            '\t' => Some(b't'),
            '/' if style.slash => Some(b'/'),
            _ => None,
        };
        let long = character < ' '
            || style.html && matches!(character, '<' | '>' | '&' | '\u{2028}' | '\u{2029}')
            || style.ascii && character > '\u{7f}';
        if let Some(letter) = short {
            out.extend_from_slice(&[b'\\', letter]);
        } else if long {
            for unit in character.encode_utf16(&mut [0; 2]) {
                out.extend_from_slice(format!("\\u{unit:04x}").as_bytes());
            }
        } else {
            out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
    out
}

// === shell ===

fn shell(phrase: &[u8], forms: &mut Vec<Vec<u8>>) {
    for quote in [&br"'\''"[..], br#"'"'"'"#, b"''"] {
        forms.push(replace(phrase, b"'", quote));
    }
    forms.push(escape(phrase, |byte| matches!(byte, b'\\' | b'"' | b'$' | b'`')));
    if !phrase.iter().any(u8::is_ascii_control) {
        forms.push(backslash_style(phrase));
    }
    // Shells write the rarer bytes of `$'...'` differently; see `AnsiC`.
    for style in [AnsiC::Octal, AnsiC::Hex, AnsiC::LineHex, AnsiC::AllHex] {
        forms.push(ansi_c(phrase, style));
    }
}

/// Inserts a backslash before each byte that `special` selects.
fn escape(phrase: &[u8], special: impl Fn(u8) -> bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(phrase.len() + 8);
    for &byte in phrase {
        if special(byte) {
            out.push(b'\\');
        }
        out.push(byte);
    }
    out
}

/// Quotes as `printf %q` does for a text without control characters.
fn backslash_style(phrase: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(phrase.len() + 8);
    let mut before = None;
    for &byte in phrase {
        let special = match byte {
            b'#' => before.is_none(),
            b'~' => matches!(before, None | Some(b':' | b'=')),
            _ => b" !\"$&'()*,;<>?[\\]^`{|}".contains(&byte),
        };
        if special {
            out.push(b'\\');
        }
        out.push(byte);
        before = Some(byte);
    }
    out
}

/// Escapes used inside `$'...'`. All styles have `\\` and `\'`.
#[derive(Clone, Copy, PartialEq)]
enum AnsiC {
    /// Letters where they exist, also `\E`; octal digits for other control bytes.
    Octal,
    /// Letters where they exist, except `\E`; hex digits for other bytes below 0x20 and from 0x7F on.
    Hex,
    /// Letters for TAB, LF and CR; hex digits for other bytes below 0x20 and from 0x7F on.
    LineHex,
    /// Hex digits for all bytes below 0x20 and from 0x7F on.
    AllHex,
}

fn ansi_c(phrase: &[u8], style: AnsiC) -> Vec<u8> {
    let mut out = Vec::with_capacity(phrase.len() + 8);
    for &byte in phrase {
        let letter = match byte {
            b'\\' | b'\'' => Some(byte),
            b'\t' if style != AnsiC::AllHex => Some(b't'),
            b'\n' if style != AnsiC::AllHex => Some(b'n'),
            b'\r' if style != AnsiC::AllHex => Some(b'r'),
            0x07 if matches!(style, AnsiC::Octal | AnsiC::Hex) => Some(b'a'),
            0x08 if matches!(style, AnsiC::Octal | AnsiC::Hex) => Some(b'b'),
            0x0B if matches!(style, AnsiC::Octal | AnsiC::Hex) => Some(b'v'),
            0x0C if matches!(style, AnsiC::Octal | AnsiC::Hex) => Some(b'f'),
            0x1B if style == AnsiC::Octal => Some(b'E'),
            _ => None,
        };
        if let Some(letter) = letter {
            out.extend_from_slice(&[b'\\', letter]);
        } else if style == AnsiC::Octal && byte.is_ascii_control() {
            out.extend_from_slice(format!("\\{byte:03o}").as_bytes());
        } else if style != AnsiC::Octal && !(0x20..0x7F).contains(&byte) {
            out.extend_from_slice(b"\\x");
            push_hex(byte, b"0123456789abcdef", &mut out);
        } else {
            out.push(byte);
        }
    }
    out
}

#[cfg(test)]
mod tests;
