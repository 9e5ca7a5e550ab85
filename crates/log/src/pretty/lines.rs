//! Format `pretty`: one line with time and tag for each line of output (logs.md §8).

use chrono::FixedOffset;
use memchr::memchr;

use super::names::Names;
use super::text::{Marker, show};
use crate::line::{Entry, SourceKey};

/// A joined line longer than this is shown before its end, to bound memory.
const MAX_HELD: usize = 1 << 20;

/// Prefix of a malformed line (logs.md §8).
const MALFORMED: &[u8] = b"????????.??? ???  ";

/// Options of `pretty` (logs.md §8).
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Show every part between carriage returns as a line of its own, not only the last.
    pub all: bool,
    /// Time zone of the times shown.
    pub offset: FixedOffset,
    /// Pass colour sequences; set for a terminal.
    pub color: bool,
    /// Show the names of steps that run side by side in place of their tags.
    pub names: bool,
}

impl Options {
    /// UTC, no colours, and only the last part of each line.
    pub fn plain_utc() -> Self {
        Self { all: false, offset: chrono::Offset::fix(&chrono::Utc), color: false, names: false }
    }
}

/// A time of day as shown: `HH:MM:SS.mmm`.
type TimeOfDay = [u8; 12];

/// The state of `pretty`.
///
/// A line whose end is certain ([`Entry::ends_line`]) is shown at once. Any other line is held until its source begins
/// a new one.
pub(super) struct Lines {
    options: Options,
    /// Sorted by the start of the lines.
    held: Vec<Held>,
    /// Source of a line that was shown without its end.
    unended: Option<SourceKey>,
    names: Names,
}

/// A line that may be continued.
#[derive(Clone)]
struct Held {
    key: SourceKey,
    tag: [u8; 3],
    /// Time of the line's first entry; with `all`, of the entry in which `part` began.
    time: TimeOfDay,
    /// Bytes after the last carriage return.
    part: Vec<u8>,
    /// The last earlier part that shows anything.
    earlier: Option<Vec<u8>>,
    /// Name of a section that begins on this line.
    section: Option<Vec<u8>>,
    /// True if the line may be left out when nothing else shows: a part was shown, or a section ended.
    done: bool,
}

impl Lines {
    pub(super) const fn new(options: Options) -> Self {
        Self { options, held: Vec::new(), unended: None, names: Names::new() }
    }

    pub(super) fn entry(&mut self, entry: &Entry<'_>, out: &mut Vec<u8>) {
        let Some(time) = time_of_day(entry, self.options.offset) else {
            return self.malformed(&[entry.header(), entry.body].concat(), out);
        };
        if self.options.names {
            self.names.take(entry);
        }
        let key = entry.key();
        let held = self.held.iter().position(|held| held.key == key).map(|at| self.held.remove(at));
        let mut line = match held {
            Some(line) if entry.continues() => line,
            held => {
                if let Some(line) = held {
                    self.end_line(line, out);
                }
                if self.unended == Some(key) && entry.continues() && memchr(b'\r', entry.body).is_none() {
                    show(entry.body, self.options.color, out);
                    if entry.ends_line() {
                        self.end_shown(out);
                    }
                    return;
                }
                if entry.ends_line() {
                    self.show_line(key, tag(entry), time, entry.body, false, out);
                    self.end_shown(out);
                    return;
                }
                Held::new(entry, time)
            }
        };
        self.add(&mut line, entry.body, time, out);
        if entry.ends_line() {
            self.end_line(line, out);
        } else if line.part.len() > MAX_HELD {
            self.show_held(line, out);
        } else {
            self.held.push(line);
        }
    }

    pub(super) fn malformed(&mut self, line: &[u8], out: &mut Vec<u8>) {
        self.end_shown(out);
        out.extend_from_slice(MALFORMED);
        show(line, self.options.color, out);
        out.push(b'\n');
    }

    /// Ends the line shown last. Held lines stay held.
    pub(super) fn interrupt(&mut self, out: &mut Vec<u8>) {
        self.end_shown(out);
    }

    /// Appends the line of the entry `growing` as it is so far, or else the last line held.
    pub(super) fn unfinished(&self, growing: Option<Entry<'_>>, out: &mut Vec<u8>) {
        let growing = growing.and_then(|entry| self.growing(&entry));
        let Some(line) = growing.as_ref().or(self.held.last()).filter(|line| !line.done) else { return };
        let part = Some(line.part.as_slice()).filter(|part| shows_anything(part));
        if let Some(text) = part.or(line.earlier.as_deref()).or(line.section.as_deref()) {
            out.extend_from_slice(&line.time);
            out.push(b' ');
            out.extend_from_slice(&line.tag);
            out.extend_from_slice(b"  ");
            show(text, self.options.color, out);
        }
    }

    /// Returns the line that ends with this entry so far.
    fn growing(&self, entry: &Entry<'_>) -> Option<Held> {
        let time = time_of_day(entry, self.options.offset)?;
        let held = self.held.iter().find(|held| held.key == entry.key() && entry.continues());
        let mut line = held.cloned().unwrap_or_else(|| Held::new(entry, time));
        line.extend(entry.body, time, self.options.all);
        line.done = false;
        Some(line)
    }

    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        for line in std::mem::take(&mut self.held) {
            self.end_line(line, out);
        }
        self.end_shown(out);
    }

    /// Adds a body to a line, part by part.
    fn add(&mut self, line: &mut Held, mut body: &[u8], time: TimeOfDay, out: &mut Vec<u8>) {
        while let Some(end) = memchr(b'\r', body) {
            line.extend(&body[..end], time, self.options.all);
            body = &body[end + 1..];
            self.end_part(line, out);
        }
        line.extend(body, time, self.options.all);
    }

    /// Ends a part at a carriage return: notes a section marker; shows (with `all`) or remembers any other part.
    fn end_part(&mut self, line: &mut Held, out: &mut Vec<u8>) {
        let part = std::mem::take(&mut line.part);
        match Marker::parse(&part) {
            Some(Marker::Start(name)) => line.section = Some(name.to_vec()),
            Some(Marker::End) => line.done = true,
            None if !shows_anything(&part) => {}
            None if self.options.all => {
                let heading = line.section.take().is_some();
                self.show_line(line.key, line.tag, line.time, &part, heading, out);
                self.end_shown(out);
                line.done = true;
            }
            None => line.earlier = Some(part),
        }
    }

    fn end_line(&mut self, line: Held, out: &mut Vec<u8>) {
        self.show_held(line, out);
        self.end_shown(out);
    }

    /// Shows a held line: its last part that shows anything, or else the name of its section.
    fn show_held(&mut self, line: Held, out: &mut Vec<u8>) {
        let heading = line.section.is_some();
        let last = Some(line.part).filter(|part| shows_anything(part));
        let text = match last.or(line.earlier).or(line.section) {
            Some(text) => text,
            None if line.done => return,
            None => Vec::new(),
        };
        self.show_line(line.key, line.tag, line.time, &text, heading, out);
    }

    /// Shows a line without its line feed.
    fn show_line(
        &mut self,
        key: SourceKey,
        tag: [u8; 3],
        time: TimeOfDay,
        text: &[u8],
        heading: bool,
        out: &mut Vec<u8>,
    ) {
        self.end_shown(out);
        out.extend_from_slice(&time);
        out.push(b' ');
        match self.names.of(key) {
            Some(name) if self.options.color => {
                out.extend_from_slice(Names::color(key).as_bytes());
                show(name, false, out);
                out.extend_from_slice(b"\x1b[0m");
            }
            Some(name) => show(name, false, out),
            None => out.extend_from_slice(&tag),
        }
        out.extend_from_slice(b"  ");
        if heading && self.options.color {
            out.extend_from_slice(b"\x1b[1m");
            show(text, true, out);
            out.extend_from_slice(b"\x1b[0m");
        } else {
            show(text, self.options.color, out);
        }
        self.unended = Some(key);
    }

    /// Ends the line shown last.
    fn end_shown(&mut self, out: &mut Vec<u8>) {
        if self.unended.take().is_some() {
            out.push(b'\n');
        }
    }
}

impl Held {
    fn new(entry: &Entry<'_>, time: TimeOfDay) -> Self {
        Self {
            key: entry.key(),
            tag: tag(entry),
            time,
            part: Vec::new(),
            earlier: None,
            section: None,
            done: false,
        }
    }

    fn extend(&mut self, bytes: &[u8], time: TimeOfDay, part_has_own_time: bool) {
        if part_has_own_time && self.part.is_empty() {
            self.time = time;
        }
        self.part.extend_from_slice(bytes);
    }
}

/// Returns the tag of the source (logs.md §8).
fn tag(entry: &Entry<'_>) -> [u8; 3] {
    match entry.source() {
        [b'0', b'1', b'O'] => *b"out",
        [b'0', b'1', b'E'] => *b"err",
        [b'0', b'0', _] => *b"run",
        other => other.map(|byte| if byte.is_ascii_graphic() { byte } else { b'?' }),
    }
}

/// Returns the entry's time of day, cut to milliseconds, or `None` if its header has no valid time.
fn time_of_day(entry: &Entry<'_>, offset: FixedOffset) -> Option<TimeOfDay> {
    const DIGITS: [usize; 9] = [0, 1, 3, 4, 6, 7, 9, 10, 11];
    let mut time: TimeOfDay = *entry.time().get(11..)?.first_chunk()?;
    if !entry.has_format() || !DIGITS.iter().all(|&at| time[at].is_ascii_digit()) {
        return None;
    }
    let shift = offset.local_minus_utc();
    if shift != 0 {
        let two = |at: usize| i32::from(time[at] - b'0') * 10 + i32::from(time[at + 1] - b'0');
        let second = (two(0) * 3600 + two(3) * 60 + two(6) + shift).rem_euclid(86_400);
        for (at, value) in [(0, second / 3600), (3, second / 60 % 60), (6, second % 60)] {
            time[at] = b'0' + (value / 10) as u8;
            time[at + 1] = b'0' + (value % 10) as u8;
        }
    }
    Some(time)
}

/// True if a part has any bytes left once its control sequences are removed.
fn shows_anything(part: &[u8]) -> bool {
    let mut shown = Vec::new();
    show(part, false, &mut shown);
    !shown.is_empty()
}
