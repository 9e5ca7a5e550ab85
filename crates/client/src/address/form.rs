//! Parses the parts of URL-like addresses. Each part is decoded and checked before it is used.
//!
//! A part becomes a word of a command line. We refuse anything that a program could take for an option or interpret in
//! another way, so that nothing has to be escaped later.

use std::net::Ipv6Addr;
use std::path::Path;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use super::AddressError;
use crate::net::Socket;

/// Default program on the far side.
const PROGRAM: &str = "step-runner";

/// Characters to encode in a path.
const PATH: &AsciiSet = &CONTROLS.add(b' ').add(b'%').add(b'?').add(b'#').add(b'"').add(b'\'').add(b'\\');

/// Characters to encode in a value of the query and in a context.
const VALUE: &AsciiSet = &PATH.add(b'&').add(b'@').add(b'+').add(b'/');

/// Form of a scheme's addresses, with the keys of the query.
#[derive(Clone, Copy)]
pub(super) struct Form {
    pub(super) text: &'static str,
    keys: &'static [&'static str],
    keys_text: &'static str,
}

pub(super) const SSH: Form = Form {
    text: "ssh://[USER@]HOST[:PORT][/SOCKET]",
    keys: &["command", "socket"],
    keys_text: "ssh takes `command` and `socket`",
};

pub(super) const DOCKER: Form = Form {
    text: "docker://CONTAINER[/SOCKET]",
    keys: &["command", "host", "socket", "user"],
    keys_text: "docker takes `command`, `host`, `socket` and `user`",
};

pub(super) const PODMAN: Form = Form {
    text: "podman://CONTAINER[/SOCKET]",
    keys: DOCKER.keys,
    keys_text: "podman takes `command`, `host`, `socket` and `user`",
};

pub(super) const KUBE: Form = Form {
    text: "kube://[CONTEXT@]NAMESPACE/POD[/CONTAINER]",
    keys: SSH.keys,
    keys_text: "kube takes `command` and `socket`",
};

pub(super) const COMMAND: &str = "cmd:PROGRAM WORDS";

/// The pieces of `//AUTHORITY[/PATH][?KEY=VALUE&…]`.
pub(super) struct Pieces<'a> {
    form: Form,
    pub(super) authority: &'a str,
    /// Includes the leading slash.
    pub(super) path: &'a str,
    values: Vec<(&'static str, String)>,
}

impl<'a> Pieces<'a> {
    pub(super) fn of(rest: &'a str, form: Form) -> Result<Self, AddressError> {
        let rest = rest.strip_prefix("//").ok_or(AddressError::Malformed {
            part: "scheme",
            problem: "is not followed by `//`".to_owned(),
            form: form.text,
        })?;
        if rest.contains('#') {
            return Err(form.malformed("text", "holds a `#`; in a value it is %23"));
        }
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        let path_at = rest.find('/').unwrap_or(rest.len());
        let (authority, path) = rest.split_at_checked(path_at).unwrap_or((rest, ""));
        let mut pieces = Self { form, authority, path, values: Vec::new() };
        for pair in query.into_iter().flat_map(|query| query.split('&')) {
            pieces.take_pair(pair)?;
        }
        Ok(pieces)
    }

    fn take_pair(&mut self, pair: &str) -> Result<(), AddressError> {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let Some(key) = self.form.keys.iter().find(|known| **known == key) else {
            return Err(AddressError::UnknownKey { key: printable(key), known: self.form.keys_text });
        };
        if self.values.iter().any(|(known, _)| known == key) {
            return Err(self.form.malformed(key, "is given twice"));
        }
        let value = self.form.decode(key, value)?;
        if value.is_empty() {
            return Err(AddressError::Missing { part: key, form: "?KEY=VALUE" });
        }
        self.values.push((key, value));
        Ok(())
    }

    fn value(&self, key: &str) -> Option<&str> {
        self.values.iter().find(|(known, _)| *known == key).map(|(_, value)| value.as_str())
    }

    /// Returns the socket on the far side, from the path if `in_path`, or from the key `socket`.
    pub(super) fn socket(&self, in_path: bool) -> Result<Option<String>, AddressError> {
        let path = if in_path { self.form.decode("socket", self.path)? } else { String::new() };
        let socket = match (path.is_empty(), self.value("socket")) {
            (false, Some(_)) => return Err(self.form.malformed("socket", "is named twice")),
            (false, None) => path,
            (true, Some(named)) => named.to_owned(),
            (true, None) => return Ok(None),
        };
        if !socket.starts_with('/') || socket.ends_with('/') {
            return Err(self.form.malformed("socket", "is no absolute path of a file"));
        }
        Socket::named(Path::new(&socket))?;
        Ok(Some(socket))
    }

    /// Returns the program to run on the far side, without `proxy`.
    pub(super) fn command(&self) -> Result<Vec<String>, AddressError> {
        match self.value("command") {
            None => Ok(vec![PROGRAM.to_owned()]),
            Some(text) => words(text, "command", self.form.text),
        }
    }

    /// Returns `?user=`: a name or number, with a group after a colon.
    pub(super) fn user(&self) -> Result<Option<&str>, AddressError> {
        let is_user = |text: &str| is_word(text.strip_prefix('_').unwrap_or(text), b"._:-") && text != "_";
        self.checked("user", is_user, "is neither USER nor USER:GROUP")
    }

    /// Returns `?host=`: the engine's address.
    pub(super) fn host(&self) -> Result<Option<&str>, AddressError> {
        let host =
            self.checked("host", |text| is_word(text, b"._:/@%~+=[]-"), "is no address of an engine")?;
        match host.and_then(|host| host.rsplit_once('@')) {
            Some((before, _)) if before.rsplit("//").next().is_some_and(|user| user.contains(':')) => {
                Err(AddressError::Password)
            }
            _ => Ok(host),
        }
    }

    fn checked(
        &self,
        key: &'static str,
        holds: impl Fn(&str) -> bool,
        problem: &str,
    ) -> Result<Option<&str>, AddressError> {
        match self.value(key) {
            Some(value) if !holds(value) => Err(self.form.malformed(key, problem)),
            value => Ok(value),
        }
    }
}

impl Form {
    pub(super) fn malformed(self, part: &'static str, problem: &str) -> AddressError {
        AddressError::Malformed { part, problem: problem.to_owned(), form: self.text }
    }

    fn decode(self, part: &'static str, text: &str) -> Result<String, AddressError> {
        let digits_follow = |rest: &str| {
            let mut bytes = rest.bytes();
            [bytes.next(), bytes.next()].iter().all(|byte| byte.is_some_and(|byte| byte.is_ascii_hexdigit()))
        };
        if !text.split('%').skip(1).all(digits_follow) {
            return Err(self.malformed(part, "holds a `%` without two hexadecimal digits"));
        }
        let text = percent_decode_str(text)
            .decode_utf8()
            .map_err(|_| self.malformed(part, "is not UTF-8"))?
            .into_owned();
        if text.chars().any(char::is_control) {
            return Err(self.malformed(part, "holds a control character"));
        }
        Ok(text)
    }

    /// Checks the name of a host, container or pod: `[A-Za-z0-9][A-Za-z0-9._:-]*` (connectors.md §4).
    pub(super) fn name(self, part: &'static str, text: &str) -> Result<String, AddressError> {
        self.name_with(part, text, b"._:-")
    }

    /// Checks a name with other characters allowed after the first.
    pub(super) fn name_with(
        self,
        part: &'static str,
        text: &str,
        others: &[u8],
    ) -> Result<String, AddressError> {
        let name = self.decode(part, text)?;
        if name.is_empty() {
            return Err(AddressError::Missing { part, form: self.text });
        }
        if is_word(&name, others) {
            return Ok(name);
        }
        let others = String::from_utf8_lossy(others);
        let problem = format!("must begin with a letter or digit, and go on with those or `{others}`");
        Err(self.malformed(part, &problem))
    }

    /// Checks a user of the far side. `NAME:PASSWORD` has an error of its own.
    pub(super) fn login(self, text: &str) -> Result<String, AddressError> {
        if self.decode("user", text)?.contains(':') {
            return Err(AddressError::Password);
        }
        match text.strip_prefix('_') {
            Some(rest) if !rest.is_empty() => Ok(format!("_{}", self.name_with("user", rest, b"._-")?)),
            _ => self.name_with("user", text, b"._-"),
        }
    }

    /// Splits `HOST[:PORT]`. An IPv6 address must be in brackets.
    pub(super) fn host_and_port(self, text: &str) -> Result<(String, Option<u16>), AddressError> {
        let (host, port) = if let Some(rest) = text.strip_prefix('[') {
            let (address, port) = rest.split_once(']').ok_or_else(|| self.malformed("host", "has no `]`"))?;
            let number: Ipv6Addr =
                address.parse().map_err(|_| self.malformed("host", "is no IPv6 address in its brackets"))?;
            (number.to_string(), if port.is_empty() { None } else { Some(port) })
        } else {
            let port_at = text.find(':').unwrap_or(text.len());
            let (host, port) = text.split_at_checked(port_at).unwrap_or((text, ""));
            (self.name_with("host", host, b"._-")?, Some(port).filter(|port| !port.is_empty()))
        };
        let Some(port) = port else { return Ok((host, None)) };
        let digits = port.strip_prefix(':').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
        match digits.and_then(|digits| digits.parse().ok()).filter(|&port: &u16| port > 0) {
            Some(port) => Ok((host, Some(port))),
            None => Err(self.malformed("port", "is no number from 1 to 65535")),
        }
    }
}

/// Splits quoted words like a shell. The first is a program, so it must not look like an option.
pub(super) fn words(text: &str, part: &'static str, form: &'static str) -> Result<Vec<String>, AddressError> {
    let malformed = |problem: &str| AddressError::Malformed { part, problem: problem.to_owned(), form };
    let words = shell_words::split(text).map_err(|_| malformed("has a quote that is not closed"))?;
    match words.first().map(String::as_str) {
        None | Some("") => Err(AddressError::Missing { part, form }),
        Some(program) if program.starts_with('-') => Err(malformed("begins with an option, not a program")),
        Some(_) if text.contains('\0') => Err(malformed("holds a NUL byte")),
        Some(_) => Ok(words),
    }
}

/// True for a letter or digit, then those or `others`.
fn is_word(text: &str, others: &[u8]) -> bool {
    text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || others.contains(&byte))
}

fn printable(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_debug).collect()
}

/// Writes `host` as an address needs it.
pub(super) fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

pub(super) fn encode_path(path: &str) -> String {
    utf8_percent_encode(path, PATH).to_string()
}

pub(super) fn encode_value(value: &str) -> String {
    utf8_percent_encode(value, VALUE).to_string()
}

/// Writes the given values as `?KEY=VALUE&…`. Leaves out the default command.
pub(super) fn query(command: &[String], others: &[(&str, Option<&str>)]) -> String {
    let command = (command != [PROGRAM]).then(|| shell_words::join(command));
    let given = [("command", command.as_deref())];
    let pairs = given.iter().chain(others);
    let pairs = pairs.filter_map(|(key, value)| value.map(|value| format!("{key}={}", encode_value(value))));
    let pairs: Vec<_> = pairs.collect();
    if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
}
