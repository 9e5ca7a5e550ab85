//! Pieces of lines that are too long to be shown whole.

/// Longest piece in which a line is shown, in bytes.
pub(super) const MAX_PIECE: usize = 64 * 1024;

/// Returns the length of a first piece of a line. The cut is between words if possible, and never inside a character or
/// a colour sequence.
pub(super) fn piece_length(line: &[u8]) -> usize {
    const SEQUENCE: usize = 64;
    let last = line.len().saturating_sub(MAX_PIECE / 2);
    if let Some(blank) = memchr::memrchr(b' ', line.get(last..).unwrap_or_default()) {
        return last + blank + 1;
    }
    let near = line.len().saturating_sub(SEQUENCE);
    let end = match memchr::memrchr(0x1b, line.get(near..).unwrap_or_default()) {
        Some(escape) if !line.get(near + escape..).unwrap_or_default().contains(&b'm') => near + escape,
        _ => line.len(),
    };
    let is_start = |byte: &u8| byte & 0xc0 != 0x80;
    line.get(..end).and_then(|line| line.iter().rposition(is_start)).filter(|at| *at > 0).unwrap_or(end)
}
