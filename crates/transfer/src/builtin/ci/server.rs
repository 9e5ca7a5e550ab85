//! Artifacts at a GitLab instance (ci.md §5): the calls, which of their failures pass, and what the others mean.
//!
//! A call with a token follows a redirect to its own host only. A download goes to any other host without the token.

use std::fs::File;
use std::io::{self, Seek as _};
use std::time::Duration;

use reqwest::StatusCode;
use reqwest::blocking::multipart::{Form, Part};
use reqwest::blocking::{Client, RequestBuilder, Response};
use reqwest::header::LOCATION;
use serde_json::Value as Json;
use url::Url;

use super::super::{
    AUTHENTICATION, BuiltinEnvironment, BuiltinError, BuiltinValues, CONFIGURATION, FAULT_OF_JOB, NETWORK,
};
use step_runner_model::error::Chain;
use step_runner_web::Network;

/// Time limit of one call with its content.
const CALL: Duration = Duration::from_hours(1);

/// Redirects that one call follows.
const REDIRECTS: usize = 5;

/// Tries of a call; of an upload that the server has no room for now, more.
const TRIES: u32 = 3;
const TRIES_WHILE_BUSY: u32 = 6;

/// Time before the second try. It doubles.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// Header of the token of a job.
const TOKEN: &str = "JOB-TOKEN";

/// Longest words of a server that are shown.
const SHOWN: usize = 512;

/// An artifact on its way to the server.
pub(super) struct Upload<'u> {
    /// Name of the file.
    pub(super) name: String,
    /// `archive`, `junit` and the like.
    pub(super) kind: &'u str,
    /// `zip`, `gzip`, `raw`.
    pub(super) format: &'u str,
    /// Time until the server removes it.
    pub(super) expire_in: &'u str,
}

/// The artifacts of an instance.
pub(super) struct Server<'e> {
    api: Url,
    client: Client,
    environment: &'e BuiltinEnvironment<'e>,
}

/// A call that failed.
struct Failed {
    status: Option<StatusCode>,
    why: String,
}

impl<'e> Server<'e> {
    /// Reads the input `server`; `None` without one. Call it where it may block.
    pub(super) fn of(
        inputs: &BuiltinValues,
        environment: &'e BuiltinEnvironment<'e>,
    ) -> Result<Option<Self>, BuiltinError> {
        let Some(text) = inputs.get("server").and_then(Json::as_str).filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        let api = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        let api = api.ok_or_else(|| BuiltinError::input("server", "is no address of an API"))?;
        let variable = |name: &str| match name {
            "SSL_CERT_FILE" => {
                (environment.variable)("CI_SERVER_TLS_CA_FILE").or_else(|| (environment.variable)(name))
            }
            other => (environment.variable)(other),
        };
        let client = Network::new(variable, |_| None).blocking_client();
        let client = client.map_err(|error| stage(CONFIGURATION, Chain(&error).to_string()))?;
        Ok(Some(Self { api, client, environment }))
    }

    fn address(&self, job: &str) -> Url {
        let mut url = self.api.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(["jobs", job, "artifacts"]);
        }
        url
    }

    /// Sends a file as an artifact of a job.
    pub(super) fn send(
        &self,
        job: &str,
        token: &str,
        upload: &Upload<'_>,
        file: &File,
    ) -> Result<(), BuiltinError> {
        let mut url = self.address(job);
        for (key, value) in [
            ("artifact_format", upload.format),
            ("artifact_type", upload.kind),
            ("expire_in", upload.expire_in),
        ] {
            if !value.is_empty() {
                url.query_pairs_mut().append_pair(key, value);
            }
        }
        let what = format!("upload of {}", upload.name.escape_debug());
        self.tried(&what, |_| {
            let form = || -> io::Result<Form> {
                let mut file = file.try_clone()?;
                file.rewind()?;
                let length = file.metadata()?.len();
                Ok(Form::new()
                    .part("file", Part::reader_with_length(file, length).file_name(upload.name.clone())))
            };
            let request = |url: Url| Ok(self.client.post(url).header(TOKEN, token).multipart(form()?));
            let response = Self::follow(&url, request)?;
            match response.status() {
                StatusCode::CREATED => Ok(()),
                _ => Err(Failed::of(response)),
            }
        })
    }

    /// Receives the archive of a job into a file.
    pub(super) fn receive(
        &self,
        job: &str,
        token: &str,
        name: &str,
        into: &mut File,
    ) -> Result<(), BuiltinError> {
        let what = format!("download of the artifacts of {}", name.escape_debug());
        self.tried(&what, |attempt| {
            let mut url = self.address(job);
            // Later tries go through the server, in case its store cannot be reached from here.
            if attempt == 1 {
                url.query_pairs_mut().append_pair("direct_download", "true");
            }
            let mut response = Self::sent(self.client.get(url.clone()).header(TOKEN, token))?;
            for _ in 0..REDIRECTS {
                let Some(next) = redirect(&response, &url) else { break };
                url = next;
                response = Self::sent(self.client.get(url.clone()))?;
            }
            if response.status() != StatusCode::OK {
                return Err(Failed::of(response));
            }
            let cut = |error: io::Error| Failed { status: None, why: error.to_string() };
            into.set_len(0).and_then(|()| into.rewind()).map_err(cut)?;
            response
                .copy_to(into)
                .map(drop)
                .map_err(|error| Failed { status: None, why: Chain(&error).to_string() })
        })
    }

    fn sent(request: RequestBuilder) -> Result<Response, Failed> {
        request.timeout(CALL).send().map_err(|error| {
            // The address may hold a signature.
            Failed { status: None, why: Chain(&error.without_url()).to_string() }
        })
    }

    /// Makes a call with a token, and again where the server sends it to another place of its own.
    fn follow(url: &Url, request: impl Fn(Url) -> io::Result<RequestBuilder>) -> Result<Response, Failed> {
        let mut url = url.clone();
        for _ in 0..=REDIRECTS {
            let request =
                request(url.clone()).map_err(|error| Failed { status: None, why: error.to_string() })?;
            let response = Self::sent(request)?;
            let keeps_method =
                matches!(response.status(), StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT);
            let Some(next) = redirect(&response, &url).filter(|_| keeps_method) else { return Ok(response) };
            if next.origin() != url.origin() {
                let host = next.host_str().unwrap_or_default();
                let why =
                    format!("the server redirects to the host {host}, which must not learn the job's token");
                return Err(Failed { status: Some(StatusCode::FORBIDDEN), why });
            }
            url = next;
        }
        Err(Failed { status: Some(StatusCode::FORBIDDEN), why: "the server redirects too often".to_owned() })
    }

    /// Makes a call until it succeeds, fails for good, or has failed too often.
    fn tried<T>(
        &self,
        what: &str,
        mut call: impl FnMut(u32) -> Result<T, Failed>,
    ) -> Result<T, BuiltinError> {
        let mut attempt = 1;
        let mut pause = FIRST_PAUSE;
        loop {
            let failed = match call(attempt) {
                Ok(value) => return Ok(value),
                Err(failed) => failed,
            };
            let most = match failed.status {
                Some(StatusCode::SERVICE_UNAVAILABLE) => TRIES_WHILE_BUSY,
                Some(status) if is_final(status) => 1,
                _ => TRIES,
            };
            if attempt >= most {
                return Err(stage(failed.code(), format!("the {what} has failed: {}", failed.why)));
            }
            (self.environment.say)(&format!(
                "WARNING: the {what} has failed, and is tried again: {}",
                failed.why
            ));
            std::thread::sleep(pause);
            (attempt, pause) = (attempt + 1, pause * 2);
        }
    }
}

/// Returns where a response sends its request.
fn redirect(response: &Response, from: &Url) -> Option<Url> {
    let place = response.headers().get(LOCATION).filter(|_| response.status().is_redirection())?;
    from.join(place.to_str().ok()?).ok()
}

/// True if the same call can have no other answer.
fn is_final(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_REQUEST
            | StatusCode::UNAUTHORIZED
            | StatusCode::FORBIDDEN
            | StatusCode::NOT_FOUND
            | StatusCode::PAYLOAD_TOO_LARGE
    )
}

impl Failed {
    fn of(response: Response) -> Self {
        let status = response.status();
        let words = io::Read::take(response, SHOWN as u64);
        let text = io::read_to_string(words).unwrap_or_default();
        let message = serde_json::from_str::<Json>(&text).ok().and_then(|json| {
            Some(json.get("message").or_else(|| json.get("error"))?.as_str()?.escape_debug().to_string())
        });
        let hint = match status {
            StatusCode::PAYLOAD_TOO_LARGE => {
                "it is larger than the server takes: save less, or raise its limit"
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                "the server refuses the job's token, or the artifacts"
            }
            StatusCode::NOT_FOUND => "the server has none, or removed them",
            _ => "the server failed",
        };
        let words = message.map(|message| format!(" ({message})")).unwrap_or_default();
        Self { status: Some(status), why: format!("status {}: {hint}{words}", status.as_u16()) }
    }

    fn code(&self) -> u8 {
        match self.status {
            Some(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => AUTHENTICATION,
            Some(StatusCode::NOT_FOUND | StatusCode::PAYLOAD_TOO_LARGE | StatusCode::BAD_REQUEST) => {
                FAULT_OF_JOB
            }
            _ => NETWORK,
        }
    }
}

fn stage(code: u8, message: String) -> BuiltinError {
    BuiltinError::Stage { code, message }
}
