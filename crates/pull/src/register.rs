//! Calls that make, check and remove runners at the server (agent.md §11.4).

use serde_json::{Map, Value as Json};

use super::api::{Api, CallFailure, CallResult, Content, Response};
use super::info::runner_body;
use step_runner_agent::routing::Call;
use step_runner_agent::tokens::{RunnerTokenKind, Token};
use step_runner_model::error::Chain;

/// A runner as the server tells of it.
#[derive(Default)]
pub struct Runner {
    /// Its token, if the server gave one.
    pub token: Option<Token>,
    /// Its number.
    pub id: Option<u64>,
    /// Time at which the token expires, as the server wrote it.
    pub expires: Option<String>,
}

/// Reasons why the server did not do it. Holds no token.
#[derive(Debug, thiserror::Error)]
pub enum RegisterFailure {
    /// It refuses.
    #[error("{url}: the server refuses the token: {message}")]
    Refused {
        /// The server.
        url: String,
        /// Its words.
        message: String,
    },
    /// It refuses what it was asked for, whatever the token.
    #[error("{url}: the server refuses the options: {message}")]
    Options {
        /// The server.
        url: String,
        /// Its words.
        message: String,
    },
    /// It does not take registration tokens any more.
    #[error(
        "{url}: registration tokens are switched off there: create a runner, and register its token with --token-file"
    )]
    Gone {
        /// The server.
        url: String,
    },
    /// It answers with something else.
    #[error("{url}: {message}: this is not the API of a GitLab instance; check the address")]
    NotApi {
        /// The server.
        url: String,
        /// What it answered.
        message: String,
    },
    /// It cannot answer now.
    #[error("{url}: {message}: try again later")]
    Later {
        /// The server.
        url: String,
        /// Its words.
        message: String,
    },
    /// No answer came.
    #[error("{url}: {message}")]
    Unreachable {
        /// The server.
        url: String,
        /// The reason.
        message: String,
    },
}

impl RegisterFailure {
    /// True if the server said that the token is not valid.
    pub const fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }
}

/// A server, as the commands for runners reach it.
pub struct Registry {
    api: Api,
    url: String,
    system_id: String,
    info: Json,
}

impl Registry {
    /// Makes the calls from the machine `system_id`. `info` is the description of the agent.
    pub const fn new(api: Api, url: String, system_id: String, info: Json) -> Self {
        Self { api, url, system_id, info }
    }

    /// Asks if a runner's token is valid.
    pub async fn verify(&self, token: &Token) -> Result<Runner, RegisterFailure> {
        let body = runner_body(token, &self.system_id, &self.info);
        let response = self.expect(&[200], token, self.call(&Call::Verify, token, body).await)?;
        // Old servers answer with a text.
        Ok(runner(&response.body))
    }

    /// Registers a runner with a registration token.
    pub async fn register(
        &self,
        token: &Token,
        options: &Map<String, Json>,
    ) -> Result<Runner, RegisterFailure> {
        let mut body = runner_body(token, &self.system_id, &self.info);
        if let Json::Object(body) = &mut body {
            body.extend(options.clone());
        }
        let response = self.expect(&[201], token, self.call(&Call::Register, token, body).await)?;
        self.made(&response)
    }

    /// Creates a runner with an access token.
    pub async fn create(
        &self,
        access: &Token,
        options: &Map<String, Json>,
    ) -> Result<Runner, RegisterFailure> {
        let body = Json::Object(options.clone());
        let response = self.expect(&[201], access, self.call(&Call::CreateRunner, access, body).await)?;
        self.made(&response)
    }

    /// Gives a runner a new token. The old one is not valid any more.
    pub(super) async fn reset(&self, token: &Token) -> Result<Runner, RegisterFailure> {
        let body = serde_json::json!({"token": token.expose(), "system_id": self.system_id});
        let response = self.expect(&[201], token, self.call(&Call::ResetToken, token, body).await)?;
        self.made(&response)
    }

    /// Removes this machine from a created runner, or a registered runner.
    pub async fn remove(&self, token: &Token) -> Result<(), RegisterFailure> {
        let (call, taken): (_, &[u16]) = match token.runner_kind() {
            RunnerTokenKind::Created => (Call::DeleteManager, &[204, 404]),
            RunnerTokenKind::Registered => (Call::DeleteRunner, &[204]),
        };
        let mut body = runner_body(token, &self.system_id, &self.info);
        if let Json::Object(body) = &mut body {
            body.remove("info");
        }
        self.expect(taken, token, self.call(&call, token, body).await).map(drop)
    }

    /// Removes a runner with all its machines.
    pub async fn delete(&self, token: &Token) -> Result<(), RegisterFailure> {
        let body = serde_json::json!({"token": token.expose()});
        self.expect(&[204], token, self.call(&Call::DeleteRunner, token, body).await).map(drop)
    }

    async fn call(&self, call: &Call, token: &Token, body: Json) -> CallResult {
        self.api.call(call, token, None, Content::Json(body)).await
    }

    fn made(&self, response: &Response) -> Result<Runner, RegisterFailure> {
        let runner = runner(&response.body);
        if runner.token.is_some() {
            return Ok(runner);
        }
        let message = "the answer has no token of a runner".to_owned();
        Err(RegisterFailure::NotApi { url: self.url.clone(), message })
    }

    fn expect(&self, wanted: &[u16], token: &Token, result: CallResult) -> Result<Response, RegisterFailure> {
        let url = self.url.clone();
        let response = match result {
            Ok(response) => response,
            Err(error @ (CallFailure::Transport(_) | CallFailure::Redirect(_) | CallFailure::TooLong(_))) => {
                return Err(RegisterFailure::Unreachable { url, message: Chain(&error).to_string() });
            }
        };
        let message = response.message(token);
        match response.answer.status {
            // Before an instance that is away there is often a page that says so.
            408 | 429 | 500.. => Err(RegisterFailure::Later { url, message }),
            _ if response.is_page => {
                Err(RegisterFailure::NotApi { url, message: "the answer is a web page".into() })
            }
            status if wanted.contains(&status) => Ok(response),
            410 => Err(RegisterFailure::Gone { url }),
            400 => Err(RegisterFailure::Options { url, message }),
            401 | 403 | 422 => Err(RegisterFailure::Refused { url, message }),
            _ => Err(RegisterFailure::NotApi { url, message }),
        }
    }
}

fn runner(body: &[u8]) -> Runner {
    let json: Json = serde_json::from_slice(body).unwrap_or_default();
    let text = |key: &str| json.get(key).and_then(Json::as_str);
    Runner {
        token: text("token").and_then(|token| Token::new(token).ok()),
        id: json.get("id").and_then(Json::as_u64).filter(|id| *id > 0),
        expires: text("token_expires_at").map(str::to_owned),
    }
}
