//! Requests to one repository of a registry: authorization and further tries.
//!
//! A request goes out without credentials until the registry asks for them, as containerd does it. The challenge of the
//! request itself counts: many registries let everybody read some repositories and ask for others only.

use std::time::Instant;

use chrono::Utc;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use parking_lot::Mutex;
use reqwest::{Body, Client, Response};
use url::Url;

use super::Access;
use super::credentials::Credentials;
use super::error::Problem;
use super::http::{Request, follow, read};
use super::name::ImageName;
use super::token::{self, Challenge};
use step_runner_web::Network;
use step_runner_web::redirect;
use step_runner_web::retry::{self, Notice, Retries};

/// Most bytes of an error's text that are read.
const MAX_ERROR_BYTES: usize = 64 << 10;

/// Sends the requests of one repository. Holds credentials, so there is no `Debug`.
pub(super) struct Session {
    /// `https://HOST/v2/`.
    base: Url,
    repository: String,
    access: Access,
    network: Network,
    client: Client,
    /// Sends bodies of any size, see `push`: has no limit for silence.
    uploads: Client,
    credentials: Credentials,
    /// Value of `Authorization` that the registry accepted last.
    authorization: Mutex<Option<HeaderValue>>,
    notice: Notice,
    /// Begin of the task, for the time in which reads are tried again.
    begin: Mutex<Instant>,
}

impl Session {
    pub(super) fn new(
        network: &Network,
        name: &ImageName,
        credentials: Credentials,
        access: Access,
    ) -> Result<Self, Problem> {
        let base = name.base().ok_or_else(|| Problem::Nonsense("its name is no host".into()))?;
        let tls = network.tls()?;
        let clients =
            [network.client(&tls, Some(step_runner_web::READ_TIMEOUT))?, network.client(&tls, None)?];
        Ok(Self::with_clients(base, name.repository(), (network, clients), credentials, access))
    }

    pub(super) fn with_clients(
        base: Url,
        repository: &str,
        (network, [client, uploads]): (&Network, [Client; 2]),
        credentials: Credentials,
        access: Access,
    ) -> Self {
        Self {
            base,
            repository: repository.to_owned(),
            access,
            network: network.clone(),
            client,
            uploads,
            credentials,
            authorization: Mutex::default(),
            notice: &|_| {},
            begin: Mutex::new(Instant::now()),
        }
    }

    pub(super) fn tell(&mut self, notice: Notice) {
        self.notice = notice;
    }

    /// Starts a task of its own, so that its reads may be tried again for as long as those of any other.
    pub(super) fn begin_task(&self) {
        *self.begin.lock() = Instant::now();
    }

    /// Returns the URL of `path` in the repository.
    pub(super) fn url(&self, path: &str) -> Result<Url, Problem> {
        let joined = self.base.join(&format!("{}/{path}", self.repository));
        joined.map_err(|_| Problem::Nonsense("its name is no address".into()))
    }

    /// Does `work`, which only reads, and does it again if it fails in a way that may pass.
    pub(super) async fn retrying<T>(
        &self,
        mut work: impl AsyncFnMut() -> Result<T, Problem>,
    ) -> Result<T, Problem> {
        let mut retries = Retries::since(*self.begin.lock());
        loop {
            let problem = match work().await {
                Err(problem) if problem.is_transient() => problem,
                end => return end,
            };
            let Some(wait) = retries.next_wait(Instant::now(), problem.retry_after()) else {
                return Err(problem);
            };
            (self.notice)(&retry::notice(&problem, wait));
            tokio::time::sleep(wait).await;
        }
    }

    /// Sends a request and returns a successful answer.
    pub(super) async fn send(&self, request: &Request) -> Result<Response, Problem> {
        let response = self.answer(request).await?;
        if response.status().is_success() { Ok(response) } else { Err(self.problem(response).await) }
    }

    /// Sends a request, with the registry's authorization as soon as it asks for one, and returns the answer.
    pub(super) async fn answer(&self, request: &Request) -> Result<Response, Problem> {
        let known = self.authorization.lock().clone();
        let response = self.follow(request, known.as_ref()).await?;
        if self.authorize(&response, known.is_some()).await? {
            let authorization = self.authorization.lock().clone();
            return self.follow(request, authorization.as_ref()).await;
        }
        Ok(response)
    }

    /// Puts a body that can be sent only once, with the authorization that the registry accepted last. Follows no redirect.
    pub(super) async fn upload(&self, url: Url, headers: HeaderMap, body: Body) -> Result<Response, Problem> {
        let mut request = self.uploads.put(url.clone()).headers(headers).body(body);
        if redirect::is_same_server(&self.base, &url) {
            let authorization = self.authorization.lock().clone();
            request = authorization
                .into_iter()
                .fold(request, |request, value| request.header(AUTHORIZATION, value));
        }
        let response = request.send().await;
        let response = response.map_err(|error| Problem::of_request(self.network.fault(&error)))?;
        if response.status().is_success() { Ok(response) } else { Err(self.problem(response).await) }
    }

    /// Drops an authorization that may have expired.
    pub(super) fn forget_authorization(&self) {
        self.authorization.lock().take();
    }

    /// Sends a request through redirects. Other servers get no authorization.
    async fn follow(
        &self,
        request: &Request,
        authorization: Option<&HeaderValue>,
    ) -> Result<Response, Problem> {
        follow(&self.client, &self.network, request, authorization, &self.base).await
    }

    /// Answers the challenge of a refusal. True if there is a new authorization to try. `known` is true if the refused
    /// request had one.
    async fn authorize(&self, refusal: &Response, known: bool) -> Result<bool, Problem> {
        if !redirect::is_same_server(&self.base, refusal.url()) {
            return Ok(false);
        }
        let mut challenges = match refusal.status() {
            StatusCode::UNAUTHORIZED => Challenge::all(refusal.headers()),
            // Some registries hide from strangers what they would show to a user.
            StatusCode::FORBIDDEN | StatusCode::NOT_FOUND if !known && self.credentials.is_some() => {
                Vec::new()
            }
            _ => return Ok(false),
        };
        if challenges.is_empty() {
            let greeting = Request::new(Method::GET, self.base.clone());
            let greeting = self.follow(&greeting, None).await?;
            if greeting.status() == StatusCode::UNAUTHORIZED {
                challenges = Challenge::all(greeting.headers());
            }
        }
        let Some(challenge) = Challenge::best(challenges) else { return Ok(false) };
        let scope = format!("repository:{}:{}", self.repository, self.access.scope());
        let granted = match challenge {
            Challenge::Bearer(bearer) => match &self.credentials {
                Credentials::Token(token) => Some(token::bearer(token)?),
                credentials => {
                    let (header, sender) = (credentials.basic()?, (&self.client, &self.network));
                    Some(token::fetch(sender, &self.base, &bearer, &scope, header.as_ref()).await?)
                }
            },
            Challenge::Basic => self.credentials.basic()?,
        };
        let is_new = granted.is_some();
        *self.authorization.lock() = granted;
        Ok(is_new)
    }

    /// Translates an answer other than success.
    async fn problem(&self, response: Response) -> Problem {
        let status = response.status();
        let refuses = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        if refuses && !redirect::is_same_server(&self.base, response.url()) {
            return Problem::Elsewhere(response.url().authority().to_owned(), status.as_u16());
        }
        let asked = retry::retry_after(response.headers(), Utc::now());
        let body = read(response, MAX_ERROR_BYTES).await.unwrap_or_default();
        Problem::of_status(status, asked, &body)
    }

    /// Names the missing part of a refusal: credentials, or rights.
    pub(super) fn explained(&self, problem: Problem) -> Problem {
        match problem {
            Problem::Denied if !self.credentials.is_some() => Problem::Unknown,
            problem => problem,
        }
    }
}
