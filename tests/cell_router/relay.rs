//! One connection of a client: each of its requests goes to the cell that it names, as a stream.
//!
//! Each request has a connection of its own to its cell. So one connection of a client can carry requests for several
//! cells, and nothing is kept between them.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{Shutdown, TcpStream, ToSocketAddrs as _};

use super::head::{Body, Head, pass_on};
use super::{Exchange, Shared, Target};

/// Serves a connection until one side ends it.
pub(super) fn serve(shared: &Shared, client: &TcpStream) {
    let mut reader = BufReader::new(client);
    while let Ok(Some(head)) = Head::read(&mut reader) {
        if !matches!(exchange(shared, client, &mut reader, &head), Ok(Next::Request)) {
            break;
        }
    }
    client.shutdown(Shutdown::Both).ok();
}

/// State of a connection after a request.
enum Next {
    /// Another one can come on the same connection.
    Request,
    /// The connection ends.
    Close,
}

type Reader<'c> = BufReader<&'c TcpStream>;

/// Serves one request.
fn exchange(shared: &Shared, client: &TcpStream, reader: &mut Reader<'_>, head: &Head) -> io::Result<Next> {
    let Some([method, path, _]) = head.words() else {
        return refuse(client, 400, "not a request of HTTP");
    };
    let Some(body) = head.body(Body::None) else {
        return refuse(client, 400, "the length of the body is told twice or not as a number");
    };
    let choice = match shared.routes.rules.choose(path, &head.headers()) {
        Ok(choice) => choice,
        Err(unknown) => {
            return refuse(client, 404, &format!("the token names cell {}, which is not here", unknown.0));
        }
    };
    let report = |status, note: Option<String>| {
        (shared.report)(Exchange { cell: choice.cell, request: format!("{method} {path}"), status, note });
    };
    if let Some(name) = choice.repeated {
        report(0, Some(format!("header {name} came more than once, the first counts")));
    }
    let target = shared.routes.targets.get(&choice.cell).ok_or(io::ErrorKind::NotFound)?;
    match connect(target) {
        Ok(cell) => {
            let _open = shared.keep(&cell);
            let carried = Carried { client, cell: &cell, head, body };
            carried.carry(reader, &target.path, report)
        }
        Err(error) => {
            report(503, Some(error.to_string()));
            // What the client still sends would reset the connection before it has read the answer.
            if !head.has("Expect", "100-continue") {
                pass_on(reader, &mut io::sink(), body)?;
            }
            refuse(client, 503, &format!("cell {} is not reached: {error}", choice.cell))
        }
    }
}

/// A request on its way to a cell.
struct Carried<'r> {
    client: &'r TcpStream,
    cell: &'r TcpStream,
    head: &'r Head,
    body: Body,
}

impl Carried<'_> {
    /// Passes the request on and its answer back, both at the same time. `path` comes before that of the request.
    fn carry(
        &self,
        reader: &mut Reader<'_>,
        path: &str,
        report: impl Fn(u16, Option<String>),
    ) -> io::Result<Next> {
        let is_sent = self.send_head(path).is_ok();
        std::thread::scope(|scope| {
            let upload = scope.spawn(|| {
                let result = pass_on(reader, &mut &*self.cell, self.body);
                // The next bytes are another request, or the client's end, which ends the request at the cell.
                if result.is_err() || reader.fill_buf().is_ok_and(<[u8]>::is_empty) {
                    self.cell.shutdown(Shutdown::Both).ok();
                }
            });
            let next = match is_sent.then(|| self.answer()) {
                Some(Ok(Answered { status, is_whole: true, stays })) => {
                    report(status, None);
                    Ok(if stays { Next::Request } else { Next::Close })
                }
                Some(Ok(Answered { status, .. })) => {
                    report(status, Some("the answer was cut".to_owned()));
                    Ok(Next::Close)
                }
                Some(Err(_)) | None => {
                    report(502, Some("no answer".to_owned()));
                    refuse(self.client, 502, "the cell did not answer")
                }
            };
            if !matches!(next, Ok(Next::Request)) {
                self.client.shutdown(Shutdown::Both).ok();
            }
            upload.join().ok();
            next
        })
    }

    fn send_head(&self, path: &str) -> io::Result<()> {
        let [method, rest, version] = self.head.words().ok_or(io::ErrorKind::InvalidData)?;
        let peer = self.client.peer_addr()?.ip().to_string();
        let host = self.head.all("Host").join(", ");
        let more = [
            ("X-Forwarded-For", peer.as_str()),
            ("X-Forwarded-Proto", "http"),
            ("X-Forwarded-Host", host.as_str()),
            ("Connection", "close"),
        ];
        self.head.write(&mut &*self.cell, format!("{method} {path}{rest} {version}").as_bytes(), &more)
    }

    /// Passes an answer back, with what comes before the final one. The error: none came.
    fn answer(&self) -> io::Result<Answered> {
        let (mut client, mut reader) = (self.client, BufReader::new(self.cell));
        let [method, _, version] = self.head.words().ok_or(io::ErrorKind::InvalidData)?;
        let may_stay = version == "HTTP/1.1" && !self.head.has("Connection", "close");
        loop {
            let head = Head::read(&mut reader)?.ok_or(io::ErrorKind::UnexpectedEof)?;
            let status = head.words().and_then(|[_, status, _]| status.parse().ok());
            let status: u16 = status.ok_or(io::ErrorKind::InvalidData)?;
            if (100..200).contains(&status) {
                head.write(&mut client, &head.start, &[])?;
                continue;
            }
            let has_none = method == "HEAD" || status == 204 || status == 304;
            let body = if has_none { Some(Body::None) } else { head.body(Body::UntilClose) };
            let body = body.ok_or(io::ErrorKind::InvalidData)?;
            let stays = may_stay && body != Body::UntilClose;
            let connection = if stays { "keep-alive" } else { "close" };
            let is_whole = head.write(&mut client, &head.start, &[("Connection", connection)]).is_ok()
                && pass_on(&mut reader, &mut client, body).unwrap_or(false);
            return Ok(Answered { status, is_whole, stays });
        }
    }
}

struct Answered {
    status: u16,
    /// True if the client got all of it.
    is_whole: bool,
    /// True if the client's connection can carry another request.
    stays: bool,
}

fn connect(target: &Target) -> io::Result<TcpStream> {
    let mut error = io::Error::from(io::ErrorKind::NotFound);
    for address in target.host.to_socket_addrs()? {
        match TcpStream::connect(address) {
            Ok(stream) => return Ok(stream),
            Err(failure) => error = failure,
        }
    }
    Err(error)
}

/// Answers in place of a cell.
fn refuse(mut client: &TcpStream, status: u16, why: &str) -> io::Result<Next> {
    let body = serde_json::json!({"message": format!("{status} {why}")}).to_string();
    let length = body.len();
    let text = format!(
        "HTTP/1.1 {status} router\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    client.write_all(text.as_bytes())?;
    client.shutdown(Shutdown::Write)?;
    Ok(Next::Close)
}
