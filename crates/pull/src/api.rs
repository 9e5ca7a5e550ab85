//! Calls of a GitLab instance over HTTP (agent.md §2, §11.1). Texts of errors never hold a token or a query of a URL.

use std::path::PathBuf;
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION};
use serde_json::Value as Json;
use url::Url;

use super::clock;
use super::settings::Settings;
use step_runner_agent::answer::redirect::{self, Kind, Place, Redirect};
use step_runner_agent::answer::retry::{self, Hints};
use step_runner_agent::answer::{Answer, Reply, Unreachable, text};
use step_runner_agent::routing::{Base, Call, Ticket};
use step_runner_agent::tokens::Token;
use step_runner_model::error::Chain;
use step_runner_web::fault::RequestFault;
use step_runner_web::{Network, TlsFiles};

/// Longest silence of a server: it may hold a request for a job for minutes.
const SILENCE: Duration = Duration::from_mins(10);

/// Longest time of one request with its answer.
const WHOLE: Duration = Duration::from_hours(1);

/// Longest answer to a request for a job.
const MAX_JOB: usize = 64 << 20;

/// Longest answer to any other call.
const MAX_ANSWER: usize = 64 << 10;

/// The API of one instance, as one entry reaches it. Clones share their connections.
#[derive(Clone)]
pub struct Api {
    base: Base,
    client: reqwest::Client,
    files: TlsFiles,
    allowed_hosts: Vec<String>,
}

/// Connections for jobs of earlier agents. Jobs with the same server and settings share theirs, because preparing a new one
/// reads all certificates of the system.
pub(super) struct Apis {
    /// Longest time that a connection is kept without a call.
    max_age: Duration,
    known: Vec<Api>,
}

/// The content of a request.
#[derive(Clone)]
pub enum Content {
    /// A JSON object.
    Json(Json),
    /// Bytes of a trace, and the position of their first.
    Trace(u64, Vec<u8>),
}

/// An answer of the server.
#[derive(Debug)]
pub struct Response {
    /// The parts that decide.
    pub answer: Answer,
    /// Its content.
    pub body: Vec<u8>,
    /// True if it is a web page: then this is no API.
    pub is_page: bool,
}

/// A call without an answer. Holds no secret.
#[derive(Debug, thiserror::Error)]
pub enum CallFailure {
    /// The request or its answer did not get through.
    #[error("{0}")]
    Transport(String),
    /// A redirect is not followed.
    #[error("{0}")]
    Redirect(String),
    /// The answer is longer than any of its kind.
    #[error("the answer is longer than {0} bytes")]
    TooLong(usize),
}

/// Reasons why the API of an entry cannot be called. Holds no secret.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up connections to {base}: {why}")]
pub struct NoApi {
    base: Base,
    why: String,
}

/// The result of a call.
pub(crate) type CallResult = Result<Response, CallFailure>;

impl Response {
    /// Returns the server's words about a refusal.
    pub fn message(&self, token: &Token) -> String {
        let words = text::message(&String::from_utf8_lossy(&self.body), &[token]);
        let status = self.answer.status;
        if self.is_page {
            format!("status {status} with a web page, not the API of a GitLab instance")
        } else if words.is_empty() {
            format!("status {status}")
        } else {
            format!("status {status}: {words}")
        }
    }
}

/// Returns the parts of a result that the decisions need. A web page comes from something before the server, such as a
/// login or an error of a proxy: the server has not answered.
pub(super) fn reply(result: &CallResult) -> Reply {
    match result {
        Ok(response) if !response.is_page => Ok(response.answer.clone()),
        Ok(_) | Err(_) => Err(Unreachable),
    }
}

impl Api {
    /// Prepares connections to the instance `base`. One without a call is closed after `max_age` (agent.md §3).
    pub fn new(
        base: Base,
        files: &TlsFiles,
        allowed_hosts: Vec<String>,
        max_age: Duration,
    ) -> Result<Self, NoApi> {
        let network = Network::new(|_| None, |name| std::env::var(name).ok());
        let client = network.tls_with(files).and_then(|tls| {
            network.client_with(&tls, Some(SILENCE), |client| client.pool_idle_timeout(max_age))
        });
        match client {
            Ok(client) => Ok(Self { base, client, files: files.clone(), allowed_hosts }),
            Err(error) => Err(NoApi { base, why: Chain(&error).to_string() }),
        }
    }

    /// Prepares the connections of an entry.
    pub(super) fn of(settings: &Settings, base: Base, max_age: Duration) -> Result<Self, NoApi> {
        Self::new(base, &files(settings), settings.allowed_redirect_hosts.clone(), max_age)
    }

    /// Makes a call, with all its tries.
    pub async fn call(
        &self,
        call: &Call,
        token: &Token,
        ticket: Option<&Ticket>,
        content: Content,
    ) -> CallResult {
        let mut tries = 0;
        loop {
            tries += 1;
            let (result, headers) = match self.once(call, token, ticket, &content).await {
                Ok((response, headers)) => (Ok(response), headers),
                Err(failure) => (Err(failure), HeaderMap::new()),
            };
            let outcome = match &result {
                Ok(response) => Ok(response.answer.status),
                Err(_) => Err(Unreachable),
            };
            let hint = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
            let hints = Hints { reset_time: hint("ratelimit-resettime"), retry_after: hint("retry-after") };
            match retry::wait(outcome, hints, tries, clock::wall(), clock::jitter()) {
                Some(wait) => tokio::time::sleep(wait).await,
                None => return result,
            }
        }
    }

    /// Makes one try of a call, with the redirects that it follows.
    async fn once(
        &self,
        call: &Call,
        token: &Token,
        ticket: Option<&Ticket>,
        content: &Content,
    ) -> Result<(Response, HeaderMap), CallFailure> {
        let unusable = || CallFailure::Transport("the address of the server is no URL".to_owned());
        let mut url = Url::parse(&self.base.url(call)).map_err(|_| unusable())?;
        let mut followed = 0;
        loop {
            let request = self.request(call, url.clone(), token, ticket, content);
            let response = request.send().await.map_err(|error| transport(&error))?;
            let status = response.status().as_u16();
            if matches!(status, 301..=303 | 307 | 308)
                && let Some(to) = target(&url, response.headers())
            {
                let (here, there) = (place(&url), place(&to));
                match redirect::decide(Kind::Api, status, here, there, &self.allowed_hosts, followed) {
                    Redirect::Follow { .. } => {
                        followed += 1;
                        url = to;
                        continue;
                    }
                    Redirect::Refuse(message) => return Err(CallFailure::Redirect(message)),
                }
            }
            let headers = response.headers().clone();
            let limit = if *call == Call::RequestJob { MAX_JOB } else { MAX_ANSWER };
            let body = read(response, limit).await?;
            let texts =
                headers.iter().filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)));
            let answer = Answer::read(status, texts);
            return Ok((Response { answer, body, is_page: is_page(&headers) }, headers));
        }
    }

    fn request(
        &self,
        call: &Call,
        url: Url,
        token: &Token,
        ticket: Option<&Ticket>,
        content: &Content,
    ) -> reqwest::RequestBuilder {
        let method = match call.method() {
            "PUT" => reqwest::Method::PUT,
            "PATCH" => reqwest::Method::PATCH,
            "DELETE" => reqwest::Method::DELETE,
            "GET" => reqwest::Method::GET,
            _ => reqwest::Method::POST,
        };
        let mut headers = HeaderMap::new();
        for (name, value) in call.headers(token, ticket) {
            if let (Ok(name), Ok(mut value)) =
                (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value))
            {
                value.set_sensitive(true);
                headers.insert(name, value);
            }
        }
        let request = self.client.request(method, url).timeout(WHOLE).headers(headers);
        let request = request.header("Accept", "application/json").header("X-Request-Id", request_id());
        match content {
            Content::Json(json) => request.header(CONTENT_TYPE, "application/json").body(json.to_string()),
            Content::Trace(first, bytes) => {
                let last = (first + bytes.len() as u64).saturating_sub(1);
                let range = format!("{first}-{last}");
                request.header(CONTENT_TYPE, "text/plain").header("Content-Range", range).body(bytes.clone())
            }
        }
    }
}

impl Apis {
    /// Has no connections yet. One without a call is closed after `max_age`.
    pub(super) fn new(max_age: Duration) -> Self {
        Self { max_age, known: Vec::new() }
    }

    /// Returns the connections of an entry with these settings.
    pub(super) fn of(&mut self, settings: &Settings, base: &Base) -> Result<Api, NoApi> {
        let files = files(settings);
        let is_same = |api: &&Api| {
            api.base == *base && api.files == files && api.allowed_hosts == settings.allowed_redirect_hosts
        };
        if let Some(api) = self.known.iter().find(is_same) {
            return Ok(api.clone());
        }
        let api = Api::of(settings, base.clone(), self.max_age)?;
        self.known.push(api.clone());
        Ok(api)
    }
}

/// Returns the certificates and keys that an entry names.
fn files(settings: &Settings) -> TlsFiles {
    TlsFiles {
        authorities: settings.tls_ca_file.as_ref().map(PathBuf::from),
        identity: settings.tls_identity.as_ref().map(|(cert, key)| (cert.into(), key.into())),
    }
}

/// Returns a new id for one request, by which it is found in the server's log.
fn request_id() -> String {
    let bits = getrandom::u64().unwrap_or_default();
    let more = getrandom::u64().unwrap_or_default();
    format!("{bits:016x}{more:016x}")
}

fn transport(error: &reqwest::Error) -> CallFailure {
    if error.is_timeout() && !error.is_connect() {
        let minutes = SILENCE.as_secs() / 60;
        return CallFailure::Transport(format!("the server sent nothing for {minutes} minutes"));
    }
    CallFailure::Transport(RequestFault::of(error).to_string())
}

fn target(from: &Url, headers: &HeaderMap) -> Option<Url> {
    from.join(headers.get(LOCATION)?.to_str().ok()?).ok()
}

fn place(url: &Url) -> Place<'_> {
    let port = url.port_or_known_default().unwrap_or_default();
    Place { scheme: url.scheme(), host: url.host_str().unwrap_or_default(), port }
}

fn is_page(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
        .is_some_and(|kind| kind.starts_with("text/html"))
}

async fn read(mut response: reqwest::Response, limit: usize) -> Result<Vec<u8>, CallFailure> {
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(|error| transport(&error))? {
        if body.len() + piece.len() > limit {
            return Err(CallFailure::TooLong(limit));
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Answers one request, and returns what comes after it: nothing if the client closes the connection.
    fn answer_one(server: &TcpListener) -> std::io::Result<usize> {
        let (mut connection, _) = server.accept()?;
        connection.set_read_timeout(Some(Duration::from_secs(30)))?;
        let mut request = Vec::new();
        while !request.ends_with(b"}") {
            let mut piece = [0; 1024];
            let length = connection.read(&mut piece)?;
            request.extend_from_slice(&piece[..length]);
        }
        connection.write_all(b"HTTP/1.1 204 No Content\r\n\r\n")?;
        connection.read(&mut [0; 1])
    }

    #[tokio::test]
    async fn a_connection_without_a_call_is_closed_after_its_age() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let base = Base::new(&format!("http://{}", server.local_addr().unwrap())).unwrap();
        let api = Api::new(base, &TlsFiles::default(), Vec::new(), Duration::from_millis(100)).unwrap();
        let server = thread::spawn(move || answer_one(&server));
        let content = Content::Json(serde_json::json!({}));
        let answer = api.call(&Call::Verify, &Token::new("t").unwrap(), None, content).await.unwrap();
        assert_eq!(answer.answer.status, 204);
        let rest = tokio::task::spawn_blocking(|| server.join().unwrap()).await.unwrap();
        assert_eq!(rest.unwrap(), 0, "the connection is closed");
    }

    #[test]
    fn jobs_with_the_same_server_and_settings_share_their_connections() {
        let settings = |hosts: &[&str]| -> Settings {
            serde_json::from_value(serde_json::json!({
                "name": "a", "runner": 1, "ignores_images": false, "builds_dir": "/b", "environment": [],
                "allowed_redirect_hosts": hosts,
            }))
            .unwrap()
        };
        let base = |text: &str| Base::new(text).unwrap();
        let mut apis = Apis::new(Duration::from_mins(15));
        for (server, hosts, known) in [
            ("http://one.test", &[][..], 1),
            ("http://one.test", &[], 1),
            ("http://two.test", &[], 2),
            ("http://one.test", &["cdn.test"], 3),
            ("http://two.test", &[], 3),
        ] {
            apis.of(&settings(hosts), &base(server)).unwrap();
            assert_eq!(apis.known.len(), known, "{server} {hosts:?}");
        }
    }
}
