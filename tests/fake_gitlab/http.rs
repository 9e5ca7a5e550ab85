//! Requests and answers of HTTP/1.1, one a connection, so that a test has each byte in its hands.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

use serde_json::Value;

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// Path and query.
    pub(crate) path: String,
    /// Headers, by their names in lower case.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    /// Reads a request; `None` if the client goes before its end.
    pub(crate) fn read(connection: &mut TcpStream) -> Option<Self> {
        let mut reader = BufReader::new(connection);
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let mut words = line.split_whitespace();
        let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            headers.insert(name.to_ascii_lowercase(), value.to_owned());
        }
        let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        if headers.get("transfer-encoding").is_some_and(|encoding| encoding == "chunked") {
            body = chunks(&mut reader)?;
        }
        Some(Self { method, path, headers, body })
    }

    /// Returns the body as JSON; null if it is none.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// Returns the token of the body.
    pub(crate) fn token(&self) -> String {
        self.json()["token"].as_str().unwrap_or_default().to_owned()
    }
}

/// Reads a body that comes in chunks.
fn chunks(reader: &mut impl std::io::BufRead) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let mut chunk = vec![0; usize::from_str_radix(line.trim(), 16).ok()?];
        reader.read_exact(&mut chunk).ok()?;
        reader.read_line(&mut line).ok()?;
        if chunk.is_empty() {
            return Some(body);
        }
        body.extend(chunk);
    }
}

/// An answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Answer {
    /// Makes an answer without a body.
    pub(crate) fn status(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new() }
    }

    /// Makes an answer with JSON.
    pub(crate) fn json(status: u16, body: &Value) -> Self {
        let answer = Self { body: body.to_string().into_bytes(), ..Self::status(status) };
        answer.header("Content-Type", "application/json")
    }

    /// Makes an answer with a file.
    pub(crate) fn bytes(status: u16, body: Vec<u8>) -> Self {
        let answer = Self { body, ..Self::status(status) };
        answer.header("Content-Type", "application/octet-stream")
    }

    /// Makes a web page.
    pub(crate) fn page(status: u16) -> Self {
        let answer = Self { body: b"<html><body>Sign in</body></html>".to_vec(), ..Self::status(status) };
        answer.header("Content-Type", "text/html; charset=utf-8")
    }

    /// Adds a header.
    #[must_use]
    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Writes the answer. A client that has gone does not matter.
    pub(crate) fn write(&self, connection: &mut TcpStream) {
        let mut head = format!("HTTP/1.1 {} status\r\nConnection: close\r\n", self.status);
        for (name, value) in &self.headers {
            head.extend([name.as_str(), ": ", value.as_str(), "\r\n"]);
        }
        if self.status != 204 {
            head.extend(["Content-Length: ", &self.body.len().to_string(), "\r\n"]);
        }
        head.push_str("\r\n");
        connection.write_all(head.as_bytes()).and_then(|()| connection.write_all(&self.body)).ok();
    }
}
