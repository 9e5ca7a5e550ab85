//! HTTP for Git's protocol: redirects, credentials, silence and size of answers. Knows requests and bytes, not their
//! meaning.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{self, BufReader, Cursor, Read, Write};
use std::mem;
use std::rc::Rc;
use std::time::{Duration, Instant};

use chrono::Utc;
use gix_transport::client::blocking_io::http::{GetResponse, Http, PostBodyDataKind, PostResponse};
use reqwest::blocking::{Client, Response};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use reqwest::{Method, StatusCode};
use url::Url;

use super::fault::Fault;
use super::location::Location;
use super::login::Login;
use step_runner_web::redirect::{self, MAX_REDIRECTS, is_same_server};
use step_runner_web::{Network, TransferRate, retry};

/// Bytes read from an answer at a time.
const READ_BYTES: usize = 64 << 10;

/// State shared by the transfers of one repository.
#[derive(Default)]
pub(super) struct TransferState {
    /// First fault since the last command began. Git's own errors say less.
    fault: RefCell<Option<Fault>>,
    /// Bytes that answers may still have.
    left: Cell<u64>,
    /// Speed check for lists. There is none here before a pack: a server that prepares one sends almost nothing.
    pace: RefCell<Option<TransferRate>>,
}

impl TransferState {
    /// Starts a command whose answer is a list of at most `limit` bytes.
    pub(super) fn begin_list(&self, limit: u64) {
        self.begin_pack(limit);
        self.pace.replace(Some(TransferRate::default()));
    }

    /// Starts a command whose answer is a pack of at most `limit` bytes.
    pub(super) fn begin_pack(&self, limit: u64) {
        self.fault.replace(None);
        self.left.set(limit);
        self.pace.replace(None);
    }

    /// Returns the first fault of this command.
    pub(super) fn fault(&self) -> Option<Fault> {
        self.fault.borrow().clone()
    }

    fn received(&self, bytes: usize, waited: Duration) -> io::Result<usize> {
        if let Some(pace) = &mut *self.pace.borrow_mut() {
            self.check_pace(pace, waited, bytes)?;
        }
        match self.left.get().checked_sub(bytes as u64) {
            Some(left) => self.left.set(left),
            None => return Err(io::Error::other(self.note(Fault::TooLarge))),
        }
        Ok(bytes)
    }

    /// Fails if the bytes come too slowly.
    pub(super) fn check_pace(
        &self,
        pace: &mut TransferRate,
        waited: Duration,
        bytes: usize,
    ) -> io::Result<()> {
        if pace.is_too_slow(waited, bytes as u64) {
            return Err(io::Error::other(self.note(Fault::Slow)));
        }
        Ok(())
    }

    /// Keeps the first fault.
    fn note(&self, fault: Fault) -> Fault {
        self.fault.borrow_mut().get_or_insert(fault).clone()
    }
}

/// Makes the requests of one repository. Holds credentials, so there is no `Debug`.
#[derive(Clone)]
pub(super) struct Web {
    client: Client,
    state: Rc<TransferState>,
    server: Rc<Server>,
}

/// The repository's location and credentials.
struct Server {
    network: Network,
    location: Location,
    credentials: BTreeMap<String, String>,
    /// The repository's URL after redirects.
    base: RefCell<Url>,
    /// True once the server has asked for credentials.
    asked: Cell<bool>,
}

impl Web {
    pub(super) fn new(
        (network, client): (&Network, Client),
        location: Location,
        credentials: BTreeMap<String, String>,
        state: Rc<TransferState>,
    ) -> Self {
        let base = RefCell::new(location.base().clone());
        let network = network.clone();
        let server = Server { network, location, credentials, base, asked: Cell::new(false) };
        Self { client, state, server: Rc::new(server) }
    }

    /// Sends a request for `tail` below the repository, through redirects. Returns a successful answer.
    fn send(&self, method: &Method, tail: &str, headers: &HeaderMap, body: &[u8]) -> Result<Response, Fault> {
        let mut url = below(&self.server.base.borrow(), tail);
        for _ in 0..=MAX_REDIRECTS {
            let login = self.server.login(&url);
            let with_login = login.is_some();
            let answer = self.ask(method, &url, headers, body, login)?;
            let status = answer.status();
            if status.is_success() {
                return Ok(answer);
            }
            if status == StatusCode::UNAUTHORIZED && !with_login {
                self.server.asked.set(true);
                if self.server.login(&url).is_some() {
                    continue;
                }
            }
            if !status.is_redirection() || method != Method::GET {
                let asked = retry::retry_after(answer.headers(), Utc::now());
                return Err(Fault::of_status(status, asked));
            }
            url = redirect::target(&url, answer.headers()).map_err(Fault::of_redirect)?;
            *self.server.base.borrow_mut() = base(&url, tail)?;
        }
        Err(Fault::Redirects)
    }

    fn ask(
        &self,
        method: &Method,
        url: &Url,
        headers: &HeaderMap,
        body: &[u8],
        login: Option<Login>,
    ) -> Result<Response, Fault> {
        let mut request = self.client.request(method.clone(), url.clone()).headers(headers.clone());
        if let Some(value) = login.and_then(|login| login.header()) {
            request = request.header(AUTHORIZATION, value);
        }
        if method == Method::POST {
            request = request.body(body.to_owned());
        }
        request.send().map_err(|error| Fault::Request(self.server.network.fault(&error)))
    }

    /// Sends like [`Self::send`]. Notes a fault, and returns it as the error.
    fn exchange(
        &self,
        method: &Method,
        tail: &str,
        headers: &HeaderMap,
        body: &[u8],
    ) -> io::Result<(Cursor<Vec<u8>>, Response)> {
        let answer = self
            .send(method, tail, headers, body)
            .map_err(|fault| io::Error::other(self.state.note(fault)))?;
        let mut lines = Vec::new();
        for (name, value) in answer.headers() {
            lines.extend_from_slice(name.as_str().as_bytes());
            lines.extend_from_slice(b": ");
            lines.extend_from_slice(value.as_bytes());
            lines.push(b'\n');
        }
        Ok((Cursor::new(lines), answer))
    }
}

impl Server {
    /// Returns the credentials for `url`. Those in the repository's URL go to its own server only, and at once. Those
    /// stored for the host of `url` are used once the server asked.
    fn login(&self, url: &Url) -> Option<Login> {
        let same = is_same_server(self.location.base(), url);
        let of_url = self.location.login().filter(|_| same).cloned();
        of_url.or_else(|| self.asked.get().then(|| Login::find(&self.credentials, url, same)).flatten())
    }
}

/// URL of `tail` below a repository.
fn below(base: &Url, tail: &str) -> Url {
    let (path, query) = tail.split_once('?').map_or((tail, None), |(path, query)| (path, Some(query)));
    let mut url = base.clone();
    url.set_path(&format!("{}/{path}", base.path().trim_end_matches('/')));
    url.set_query(query);
    url
}

/// URL of the repository whose `tail` is at `url`.
fn base(url: &Url, tail: &str) -> Result<Url, Fault> {
    let text = url.as_str().strip_suffix(tail).and_then(|text| text.strip_suffix('/'));
    text.and_then(|text| Url::parse(text).ok()).ok_or(Fault::RedirectElsewhere)
}

/// Parses the headers that Git's transport gives, without its `User-Agent`.
fn headers(lines: impl IntoIterator<Item = impl AsRef<str>>) -> HeaderMap {
    let parsed = lines.into_iter().filter_map(|line| {
        let (name, value) = line.as_ref().split_once(':')?;
        Some((HeaderName::try_from(name.trim()).ok()?, HeaderValue::try_from(value.trim()).ok()?))
    });
    parsed.filter(|(name, _)| name != USER_AGENT).collect()
}

impl Http for Web {
    type Headers = BufReader<HeaderLines>;
    type ResponseBody = BufReader<AnswerBody>;
    type PostBody = PostBody;

    fn get(
        &mut self,
        url: &str,
        base_url: &str,
        lines: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> gix::Result<GetResponse<Self::Headers, Self::ResponseBody>> {
        let exchange = Exchange::new(self, Method::GET, tail(url, base_url), headers(lines));
        // Ask now: the repository's URL after redirects must be known when this returns.
        exchange.borrow_mut().answer().map_err(gix::Error::from_error)?;
        let (headers, body) = Exchange::halves(&exchange);
        Ok(GetResponse { headers, body })
    }

    fn post(
        &mut self,
        url: &str,
        base_url: &str,
        lines: impl IntoIterator<Item = impl AsRef<str>>,
        _body: PostBodyDataKind,
    ) -> gix::Result<PostResponse<Self::Headers, Self::ResponseBody, Self::PostBody>> {
        let exchange = Exchange::new(self, Method::POST, tail(url, base_url), headers(lines));
        let (headers, body) = Exchange::halves(&exchange);
        Ok(PostResponse { post_body: PostBody(exchange), headers, body })
    }

    fn configure(&mut self, _config: &dyn Any) -> gix::Result<()> {
        Ok(())
    }
}

/// Returns the part of a URL below the repository. The rest is not used, because [`Server`] knows it better.
fn tail(url: &str, base_url: &str) -> String {
    url.strip_prefix(base_url).unwrap_or(url).trim_start_matches('/').to_owned()
}

/// A request and its answer. The request is sent when the answer is first read; until then its body can be written.
pub(super) struct Exchange {
    web: Web,
    method: Method,
    tail: String,
    headers: HeaderMap,
    body: Vec<u8>,
    answer: Option<(Cursor<Vec<u8>>, Response)>,
}

impl Exchange {
    fn new(web: &Web, method: Method, tail: String, headers: HeaderMap) -> Rc<RefCell<Self>> {
        let web = web.clone();
        Rc::new(RefCell::new(Self { web, method, tail, headers, body: Vec::new(), answer: None }))
    }

    fn halves(exchange: &Rc<RefCell<Self>>) -> (BufReader<HeaderLines>, BufReader<AnswerBody>) {
        let headers = BufReader::new(HeaderLines(Rc::clone(exchange)));
        (headers, BufReader::with_capacity(READ_BYTES, AnswerBody(Rc::clone(exchange))))
    }

    fn answer(&mut self) -> io::Result<&mut (Cursor<Vec<u8>>, Response)> {
        if self.answer.is_none() {
            let body = mem::take(&mut self.body);
            let answer = self.web.exchange(&self.method, &self.tail, &self.headers, &body)?;
            return Ok(self.answer.insert(answer));
        }
        self.answer.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

pub(super) struct PostBody(Rc<RefCell<Exchange>>);

impl Write for PostBody {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().body.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An answer's headers, one per line.
pub(super) struct HeaderLines(Rc<RefCell<Exchange>>);

impl Read for HeaderLines {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.borrow_mut().answer()?.0.read(buffer)
    }
}

pub(super) struct AnswerBody(Rc<RefCell<Exchange>>);

impl Read for AnswerBody {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut exchange = self.0.borrow_mut();
        let state = Rc::clone(&exchange.web.state);
        let answer = &mut exchange.answer()?.1;
        let begin = Instant::now();
        match answer.read(buffer) {
            Ok(read) => state.received(read, begin.elapsed()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            Err(error) => Err(io::Error::other(state.note(Fault::of_read(&error)))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn places_below_a_repository_and_back() {
        let tail = "info/refs?service=git-upload-pack";
        let refs = below(&url("https://h/g/p%20q"), tail);
        assert_eq!(refs.as_str(), "https://h/g/p%20q/info/refs?service=git-upload-pack");
        assert_eq!(base(&refs, tail), Ok(url("https://h/g/p%20q")));
        assert_eq!(base(&url("https://h/users/sign_in"), tail), Err(Fault::RedirectElsewhere));
        assert_eq!(below(&url("https://h/g/p"), "git-upload-pack").as_str(), "https://h/g/p/git-upload-pack");
    }

    #[test]
    fn an_answer_may_have_so_many_bytes() {
        let state = TransferState::default();
        let soon = Duration::ZERO;
        state.begin_pack(10);
        assert_eq!(state.received(10, soon).unwrap(), 10);
        assert_eq!(state.fault(), None);
        assert!(state.received(1, soon).is_err());
        assert_eq!(state.fault(), Some(Fault::TooLarge));
    }
}
