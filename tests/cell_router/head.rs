//! Heads of HTTP messages, and where their bodies end.

use std::io::{self, BufRead, Read as _, Write};

/// Longest head, of which tokens and tickets are the largest part.
const MAX_HEAD: u64 = 128 << 10;

/// Headers of one connection, which a proxy does not pass on.
const HOP_BY_HOP: [&str; 3] = ["connection", "keep-alive", "proxy-connection"];

/// Where a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    None,
    Length(u64),
    Chunked,
    /// It ends with the connection.
    UntilClose,
}

/// The first line of a message and its headers, byte for byte, without line ends.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) start: Vec<u8>,
    lines: Vec<Vec<u8>>,
}

impl Head {
    /// Reads a head. `None`: the connection ended before its first byte.
    pub(super) fn read(reader: &mut impl BufRead) -> io::Result<Option<Self>> {
        let mut reader = reader.take(MAX_HEAD);
        let mut lines = Vec::new();
        loop {
            let mut line = Vec::new();
            if reader.read_until(b'\n', &mut line)? == 0 && lines.is_empty() {
                return Ok(None);
            }
            if line.pop() != Some(b'\n') {
                return Err(io::Error::other("the head has no end"));
            }
            line.pop_if(|byte| *byte == b'\r');
            match (line.is_empty(), lines.is_empty()) {
                (true, true) => {} // An empty line before a request means nothing.
                (true, false) => break,
                (false, _) => lines.push(line),
            }
        }
        let start = lines.remove(0);
        Ok(Some(Self { start, lines }))
    }

    /// Returns the words of the first line.
    pub(super) fn words(&self) -> Option<[&str; 3]> {
        let mut words = std::str::from_utf8(&self.start).ok()?.splitn(3, ' ');
        Some([words.next()?, words.next()?, words.next().unwrap_or_default()])
    }

    /// Returns all headers that are texts.
    pub(super) fn headers(&self) -> Vec<(&str, &str)> {
        let texts = self.lines.iter().filter_map(|line| std::str::from_utf8(line).ok()?.split_once(':'));
        texts.map(|(name, value)| (name, value.trim())).collect()
    }

    /// Returns the values of a header.
    pub(super) fn all(&self, wanted: &str) -> Vec<&str> {
        let headers = self.headers().into_iter();
        headers.filter(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value).collect()
    }

    /// True if the header has this word in its list.
    pub(super) fn has(&self, name: &str, word: &str) -> bool {
        let mut words = self.all(name).into_iter().flat_map(|value| value.split(','));
        words.any(|found| found.trim().eq_ignore_ascii_case(word))
    }

    /// Returns the body that the headers promise; `None` if they contradict each other.
    pub(super) fn body(&self, otherwise: Body) -> Option<Body> {
        let lengths = self.all("Content-Length");
        match (self.has("Transfer-Encoding", "chunked"), &lengths[..]) {
            (true, []) => Some(Body::Chunked),
            (false, [length]) => length.parse().ok().map(Body::Length),
            (false, []) => Some(otherwise),
            _ => None,
        }
    }

    /// Writes the head with another first line and more headers. Headers of the one connection are left out.
    pub(super) fn write(&self, to: &mut impl Write, start: &[u8], more: &[(&str, &str)]) -> io::Result<()> {
        let mut text = [start, b"\r\n"].concat();
        for line in &self.lines {
            let name = line.split(|byte| *byte == b':').next().unwrap_or_default().to_ascii_lowercase();
            if !HOP_BY_HOP.iter().any(|hop| hop.as_bytes() == name) {
                text.extend_from_slice(line);
                text.extend_from_slice(b"\r\n");
            }
        }
        for (name, value) in more {
            text.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        text.extend_from_slice(b"\r\n");
        to.write_all(&text)
    }
}

/// Passes a body on, each piece as it comes. A failure of `to` does not end the reading: where the body ends counts.
/// Returns true if everything was written.
pub(super) fn pass_on(from: &mut impl BufRead, to: &mut impl Write, body: Body) -> io::Result<bool> {
    match body {
        Body::None => Ok(true),
        Body::Length(length) => pieces(from, to, length),
        Body::UntilClose => {
            let mut is_whole = true;
            loop {
                let count = from.fill_buf()?.len() as u64;
                if count == 0 {
                    return Ok(is_whole);
                }
                is_whole &= pieces(from, to, count)?;
            }
        }
        Body::Chunked => {
            let mut is_whole = true;
            loop {
                let size = line(from, to, &mut is_whole)?;
                let size = size.split(';').next().unwrap_or_default().trim();
                let size = u64::from_str_radix(size, 16).map_err(io::Error::other)?;
                if size == 0 {
                    break;
                }
                is_whole &= pieces(from, to, size)?;
                line(from, to, &mut is_whole)?;
            }
            // Trailers, and the empty line after them.
            while !line(from, to, &mut is_whole)?.is_empty() {}
            Ok(is_whole)
        }
    }
}

fn pieces(from: &mut impl BufRead, to: &mut impl Write, mut left: u64) -> io::Result<bool> {
    let mut is_whole = true;
    while left > 0 {
        let piece = from.fill_buf()?;
        let count = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        is_whole = is_whole && to.write_all(&piece[..count]).is_ok();
        from.consume(count);
        left -= count as u64;
    }
    Ok(is_whole)
}

/// Passes a line on. Returns it without its end.
fn line(from: &mut impl BufRead, to: &mut impl Write, is_whole: &mut bool) -> io::Result<String> {
    let mut line = Vec::new();
    from.take(MAX_HEAD).read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    *is_whole = *is_whole && to.write_all(&line).is_ok();
    Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
}
