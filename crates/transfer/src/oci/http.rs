//! One exchange with a registry or its token server: a request, the redirects on its way, and its answer.

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION};
use http::{HeaderMap, HeaderValue, Method};
use reqwest::{Client, Response};
use url::Url;

use super::error::Problem;
use step_runner_web::Network;
use step_runner_web::fault::RequestFault;
use step_runner_web::redirect::{self, MAX_REDIRECTS};

/// A request whose body can be sent again.
pub(super) struct Request {
    method: Method,
    url: Url,
    headers: HeaderMap,
    body: Bytes,
}

impl Request {
    pub(super) fn new(method: Method, url: Url) -> Self {
        Self { method, url, headers: HeaderMap::new(), body: Bytes::new() }
    }

    pub(super) fn accept(mut self, media_types: &[&'static str]) -> Self {
        let values = media_types.iter().map(|media_type| (ACCEPT, HeaderValue::from_static(media_type)));
        for (name, value) in values {
            self.headers.append(name, value);
        }
        self
    }

    pub(super) fn body(mut self, bytes: Vec<u8>, media_type: HeaderValue) -> Self {
        self.headers.insert(http::header::CONTENT_TYPE, media_type);
        self.body = bytes.into();
        self
    }
}

/// Sends a request through redirects. Only `base`'s server gets the authorization.
pub(super) async fn follow(
    client: &Client,
    network: &Network,
    request: &Request,
    authorization: Option<&HeaderValue>,
    base: &Url,
) -> Result<Response, Problem> {
    let mut url = request.url.clone();
    for _ in 0..=MAX_REDIRECTS {
        let mut sent = client.request(request.method.clone(), url.clone()).headers(request.headers.clone());
        if let Some(value) = authorization.filter(|_| redirect::is_same_server(base, &url)) {
            sent = sent.header(AUTHORIZATION, value.clone());
        }
        if !request.body.is_empty() {
            sent = sent.body(request.body.clone());
        }
        let response = sent.send().await.map_err(|error| Problem::of_request(network.fault(&error)))?;
        let reads = matches!(request.method, Method::GET | Method::HEAD);
        if !(response.status().is_redirection() && reads) {
            return Ok(response);
        }
        url = redirect::target(&url, response.headers()).map_err(Problem::of_redirect)?;
    }
    Err(Problem::Nonsense("a redirection that leads nowhere".into()))
}

/// Reads an answer of at most `limit` bytes.
pub(super) async fn read(mut response: Response, limit: usize) -> Result<Vec<u8>, Problem> {
    let mut bytes = Vec::new();
    let cut = |error| Problem::of_request(RequestFault::of(&error));
    while let Some(piece) = response.chunk().await.map_err(cut)? {
        if bytes.len() + piece.len() > limit {
            return Err(Problem::TooLarge("answer"));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}
