//! Escapes: other writings of a byte or a character (masking.md §2). Each has a first byte by which it is found, and
//! at most [`LONGEST`] bytes.

use std::ops::Range;

/// Length of the longest escapes: two references of XML with eight hexadecimal digits each, for a surrogate pair.
pub(super) const LONGEST: usize = 24;

/// Limits of the digits in escapes of variable length. All characters fit, with some leading zeros.
const HEX_DIGITS: usize = 8;
const DECIMAL_DIGITS: usize = 9;

/// The first units of the pairs that stand for characters beyond U+FFFF.
const HIGH_SURROGATES: Range<u32> = 0xD800..0xDC00;

/// Bytes that an escape can stand for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Decoded {
    bytes: [u8; 4],
    length: u8,
}

impl Decoded {
    fn byte(byte: u8) -> Self {
        Self { bytes: [byte, 0, 0, 0], length: 1 }
    }

    fn character(code: u32) -> Result<Self, Stop> {
        let character = char::from_u32(code).ok_or(Stop::Other)?;
        let mut decoded = Self { length: character.len_utf8() as u8, ..Self::default() };
        character.encode_utf8(&mut decoded.bytes);
        Ok(decoded)
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// An escape at the start of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Escape {
    pub(super) length: usize,
    meaning: Decoded,
    other_meaning: Option<Decoded>,
}

impl Escape {
    fn new(length: usize, meaning: Decoded) -> Self {
        Self { length, meaning, other_meaning: None }
    }
}

/// One way to read an escape.
#[derive(Clone, Copy)]
pub(super) enum Way {
    As(Decoded),
    /// A CR that belongs to a line end. Only its LF counts.
    LineEnd,
}

/// Returns the ways to read an escape that starts with `introducer`.
#[inline]
pub(super) fn ways(introducer: u8, escape: &Escape) -> impl Iterator<Item = Way> + use<> {
    let raw = introducer == b'\r';
    let line_end = raw || escape.meaning.as_slice() == b"\r";
    let ways = [
        (!raw).then_some(Way::As(escape.meaning)),
        escape.other_meaning.map(Way::As),
        line_end.then_some(Way::LineEnd),
    ];
    ways.into_iter().flatten()
}

/// Reasons why a text does not start with an escape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// More bytes can make it one.
    Open,
    /// It is other text.
    Other,
}

/// Bytes with which escapes start, and the byte that a form must have for it; `None`: any. A CR is one: it may be part
/// of a line end.
pub(super) const INTRODUCERS: [(u8, Option<u8>); 6] =
    [(b'%', None), (b'&', None), (b'\'', None), (b'\\', None), (b'+', Some(b' ')), (b'\r', Some(b'\n'))];

/// Further bytes with which escapes start: two of them stand for one. They are frequent in other text.
pub(super) const DOUBLED: [u8; 2] = [b'"', b'$'];

/// True if escapes start with `byte`.
#[cfg(test)]
pub(super) fn introduces(byte: u8) -> bool {
    DOUBLED.contains(&byte) || INTRODUCERS.iter().any(|(introducer, _)| *introducer == byte)
}

/// Reads the escape at the start of `text`.
pub(super) fn parse(text: &[u8]) -> Result<Escape, Stop> {
    match text.first().ok_or(Stop::Open)? {
        b'%' => percent(text),
        mark @ (b'"' | b'$') => doubled(*mark, text),
        b'+' => Ok(Escape::new(1, Decoded::byte(b' '))),
        b'\r' => Ok(Escape::new(1, Decoded::default())),
        b'&' => reference(text),
        b'\'' => quotes(text),
        b'\\' => backslash(text),
        _ => Err(Stop::Other),
    }
}

/// Reads `count` digits at the start of `text`.
fn number(text: &[u8], count: usize, radix: u32) -> Result<u32, Stop> {
    (0..count).try_fold(0, |value, at| {
        let byte = *text.get(at).ok_or(Stop::Open)?;
        Ok(value * radix + char::from(byte).to_digit(radix).ok_or(Stop::Other)?)
    })
}

/// Reads one to `most` digits and `end` behind them. Returns the number and the length of both.
fn number_up_to(text: &[u8], most: usize, radix: u32, end: u8) -> Result<(u32, usize), Stop> {
    let digits = text.iter().take_while(|byte| char::from(**byte).is_digit(radix)).count();
    match text.get(digits) {
        _ if digits > most => Err(Stop::Other),
        None => Err(Stop::Open),
        Some(byte) if digits > 0 && *byte == end => Ok((number(text, digits, radix)?, digits + 1)),
        Some(_) => Err(Stop::Other),
    }
}

/// Reads the one of `words` that `text` starts with. Returns its length and its value.
fn word<T: Copy>(text: &[u8], words: &[(&[u8], T)]) -> Result<(usize, T), Stop> {
    if let Some((word, value)) = words.iter().find(|(word, _)| text.starts_with(word)) {
        return Ok((word.len(), *value));
    }
    let open = words.iter().any(|(word, _)| word.starts_with(text));
    Err(if open { Stop::Open } else { Stop::Other })
}

/// Reads an escape of URLs: of bytes, or the outdated one of JavaScript for units of UTF-16. Or reads `%%`.
fn percent(text: &[u8]) -> Result<Escape, Stop> {
    match text.get(1).ok_or(Stop::Open)? {
        b'%' => doubled(b'%', text),
        b'u' => utf16(&text[2..], b"%u"),
        _ => unit(3, number(&text[1..], 2, 16)?),
    }
}

/// Reads two equal marks, which stand for one of them.
fn doubled(mark: u8, text: &[u8]) -> Result<Escape, Stop> {
    let second = *text.get(1).ok_or(Stop::Open)?;
    if second == mark { Ok(Escape::new(2, Decoded::byte(mark))) } else { Err(Stop::Other) }
}

/// Reads a reference of XML and HTML.
fn reference(text: &[u8]) -> Result<Escape, Stop> {
    const NAMES: [(&[u8], u8); 5] =
        [(b"&amp;", b'&'), (b"&lt;", b'<'), (b"&gt;", b'>'), (b"&quot;", b'"'), (b"&apos;", b'\'')];
    if !matches!(text, [_, b'#', ..]) {
        let (length, byte) = word(text, &NAMES)?;
        return Ok(Escape::new(length, Decoded::byte(byte)));
    }
    let (code, length) = numeric_reference(text)?;
    if !HIGH_SURROGATES.contains(&code) {
        return Ok(Escape::new(length, Decoded::character(code)?));
    }
    // Java writes some XML so.
    let (low, more) = numeric_reference(&text[length..])?;
    Ok(Escape::new(length + more, Decoded::character(pair(code, low)?)?))
}

/// Reads a reference of XML by number. Returns the number and its length.
fn numeric_reference(text: &[u8]) -> Result<(u32, usize), Stop> {
    let (head, (code, length)) = match text {
        [b'&', b'#', b'x' | b'X', rest @ ..] => (3, number_up_to(rest, HEX_DIGITS, 16, b';')?),
        [b'&', b'#', rest @ ..] => (2, number_up_to(rest, DECIMAL_DIGITS, 10, b';')?),
        [] | [b'&'] => return Err(Stop::Open),
        _ => return Err(Stop::Other),
    };
    Ok((code, head + length))
}

/// Reads quotes of a shell: those between two pieces of one word, and those that stand for a quote.
fn quotes(text: &[u8]) -> Result<Escape, Stop> {
    const QUOTE: Decoded = Decoded { bytes: [b'\'', 0, 0, 0], length: 1 };
    const NOTHING: Decoded = Decoded { bytes: [0; 4], length: 0 };
    const LINE_FEED: Decoded = Decoded { bytes: [b'\n', 0, 0, 0], length: 1 };
    const QUOTES: [(&[u8], Decoded); 4] =
        [(b"''", NOTHING), (b"'$'", NOTHING), (b"'\n'", LINE_FEED), (br"'\''", QUOTE)];
    if text.starts_with(b"'\"") {
        return quoted_quotes(text);
    }
    let (length, meaning) = word(text, &QUOTES)?;
    let other_meaning = (length == 2).then_some(QUOTE);
    Ok(Escape { length, meaning, other_meaning })
}

/// Reads `'"'"'`, or with up to four single quotes in the middle. They stand for themselves.
fn quoted_quotes(text: &[u8]) -> Result<Escape, Stop> {
    const END: &[u8] = b"\"'";
    let bytes = [b'\''; 4];
    let middle = &text[2..];
    let count = middle.iter().take(bytes.len()).take_while(|byte| **byte == b'\'').count();
    let rest = &middle[count..];
    if count > 0 && rest.starts_with(END) {
        return Ok(Escape::new(2 + count + END.len(), Decoded { bytes, length: count as u8 }));
    }
    let open = END.starts_with(rest) && (count > 0 || rest.is_empty());
    Err(if open { Stop::Open } else { Stop::Other })
}

/// Reads an escape that starts with a backslash: of JSON, Python, C, or a shell.
fn backslash(text: &[u8]) -> Result<Escape, Stop> {
    let next = *text.get(1).ok_or(Stop::Open)?;
    let rest = &text[2..];
    let letter = match next {
        b'a' => 0x07,
        b'b' => 0x08,
        b't' => b'\t',
        b'n' => b'\n',
        b'v' => 0x0B,
        b'f' => 0x0C,
        b'r' => b'\r',
        b'e' | b'E' => 0x1B,
        b'0'..=b'3' => return unit(4, number(&text[1..], 3, 8)?),
        b'x' | b'u' if rest.first() == Some(&b'{') => return in_braces(rest),
        b'x' => return unit(4, number(rest, 2, 16)?),
        b'u' => return utf16(rest, br"\u"),
        b'U' => return Ok(Escape::new(10, Decoded::character(number(rest, 8, 16)?)?)),
        _ if next.is_ascii_alphanumeric() => return Err(Stop::Other),
        _ => next,
    };
    Ok(Escape::new(2, Decoded::byte(letter)))
}

/// Returns an escape for a number below 256: a byte, and also a character, as Python and JavaScript write it.
fn unit(length: usize, code: u32) -> Result<Escape, Stop> {
    let other_meaning = if code < 0x80 { None } else { Some(Decoded::character(code)?) };
    Ok(Escape { length, meaning: Decoded::byte(code as u8), other_meaning })
}

/// Reads `{H…}` behind `\u` or `\x`, as Rust, JavaScript and Perl write it.
fn in_braces(text: &[u8]) -> Result<Escape, Stop> {
    let (code, length) = number_up_to(&text[1..], HEX_DIGITS, 16, b'}')?;
    Ok(Escape::new(3 + length, Decoded::character(code)?))
}

/// Reads what follows `head`, which is `\u` or `%u`: a unit of UTF-16, and a second one behind a surrogate.
fn utf16(text: &[u8], head: &[u8]) -> Result<Escape, Stop> {
    let unit = number(text, 4, 16)?;
    if !HIGH_SURROGATES.contains(&unit) {
        return Ok(Escape::new(6, Decoded::character(unit)?));
    }
    let second = &text[4..];
    if !second.starts_with(head) {
        return Err(if head.starts_with(second) { Stop::Open } else { Stop::Other });
    }
    let low = number(&second[2..], 4, 16)?;
    Ok(Escape::new(12, Decoded::character(pair(unit, low)?)?))
}

/// Returns the number of the character that two units of UTF-16 stand for. The first is a high surrogate.
fn pair(high: u32, low: u32) -> Result<u32, Stop> {
    let low = low.checked_sub(0xDC00).filter(|low| *low < 0x400).ok_or(Stop::Other)?;
    Ok(0x1_0000 + (high - HIGH_SURROGATES.start) * 0x400 + low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fault_35_each_escape_has_its_meanings() {
        for (text, meanings) in [
            ("%2f", &["/"][..]),
            ("%C3", &["\u{c3}", "\u{c3}"]),
            ("%u20AC", &["\u{20ac}"]),
            ("%uD83D%udd11", &["\u{1f511}"]),
            ("%%", &["%"]),
            ("\"\"", &["\""]),
            ("$$", &["$"]),
            ("+", &[" "]),
            ("\r", &[""]),
            ("&amp;", &["&"]),
            ("&#39;", &["'"]),
            ("&#x27;", &["'"]),
            ("&#x0001F511;", &["\u{1f511}"]),
            ("&#000128273;", &["\u{1f511}"]),
            ("&#xd83d;&#xDD11;", &["\u{1f511}"]),
            ("&#55357;&#x0000dd11;", &["\u{1f511}"]),
            ("''", &["", "'"]),
            ("'$'", &[""]),
            (r"'\''", &["'"]),
            (r#"'"'"'"#, &["'"]),
            (r#"'"''''"'"#, &["''''"]),
            (r"\n", &["\n"]),
            (r"\E", &["\u{1b}"]),
            (r"\/", &["/"]),
            (r"\ ", &[" "]),
            ("\\\t", &["\t"]),
            ("\\\r", &["\r"]),
            ("\\\n", &["\n"]),
            ("'\n'", &["\n"]),
            (r"\303", &["\u{c3}", "\u{c3}"]),
            (r"\x0a", &["\n"]),
            (r"\xE4", &["\u{e4}", "\u{e4}"]),
            (r"\u002B", &["+"]),
            (r"\ud83d\uDD11", &["\u{1f511}"]),
            (r"\U0001f511", &["\u{1f511}"]),
            (r"\u{1f511}", &["\u{1f511}"]),
            (r"\x{e4}", &["\u{e4}"]),
        ] {
            let escape = parse(text.as_bytes()).unwrap_or_else(|stop| panic!("{text}: {stop:?}"));
            let all = [Some(escape.meaning), escape.other_meaning];
            let found: Vec<String> = all.into_iter().flatten().map(shown).collect();
            assert_eq!(
                (escape.length, found),
                (text.len(), meanings.iter().map(|&text| text.to_owned()).collect())
            );
            for end in 0..text.len() {
                assert_eq!(parse(&text.as_bytes()[..end]), Err(Stop::Open), "{text} up to {end}");
            }
        }
    }

    /// Shows one byte beyond ASCII as the character of the same number.
    fn shown(meaning: Decoded) -> String {
        let bytes = meaning.as_slice();
        match (bytes, std::str::from_utf8(bytes)) {
            (_, Ok(text)) => text.to_owned(),
            _ => bytes.iter().map(|&byte| char::from(byte)).collect(),
        }
    }

    #[test]
    fn other_text_is_no_escape() {
        for text in [
            "a",
            "%g",
            "%1g",
            "& ",
            "&am;",
            "&#;",
            "&#x;",
            "&#xd800;a",
            "&#xd800;&#x41;",
            "&#xdd11;",
            "&#x110000;",
            "&#x123456789",
            "'a",
            r#"'""'"#,
            r#"'"'''''"'"#,
            "'$a",
            r"\z",
            r"\8",
            r"\400",
            r"\18",
            r"\xg",
            r"\u00g",
            r"\ud83da",
            r"\ud83d\n",
            r"\ud83d\u0041",
            r"\udd11",
            r"\U00110000",
            r"\u{}",
            r"\u{110000}",
            "%ug",
            "%ud83d\\udd11",
            "\"a",
            "$a",
            "'\na",
        ] {
            assert_eq!(parse(text.as_bytes()), Err(Stop::Other), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_read_depends_on_its_own_bytes_alone(text in r#"[%+&#;'"$\\xuU{}0-9a-fn\n]{1,14}"#) {
            let bytes = text.as_bytes();
            let whole = parse(bytes);
            prop_assert!(whole.is_ok() <= introduces(bytes[0]));
            for end in 0..bytes.len() {
                match (parse(&bytes[..end]), whole) {
                    (Err(Stop::Open), Ok(escape)) => prop_assert!(end < escape.length),
                    (Err(Stop::Open), _) => prop_assert!(end < LONGEST),
                    (cut, whole) => prop_assert_eq!(cut, whole),
                }
            }
        }
    }
}
