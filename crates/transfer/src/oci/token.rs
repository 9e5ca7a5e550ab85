//! Challenges of a registry, and the tokens that answer them.

use http::header::WWW_AUTHENTICATE;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use http_auth::{ChallengeParser, ChallengeRef};
use reqwest::Client;
use serde::Deserialize;
use url::Url;

use super::error::Problem;
use super::http::{Request, follow, read};
use step_runner_web::{Network, is_loopback};

/// Most bytes of a token server's answer.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// Most scopes of a challenge that are passed on. A registry sends one.
const MAX_SCOPES: usize = 8;

/// One way in which a registry lets a client in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    /// With a token.
    Bearer(Bearer),
    /// With user and password.
    Basic,
}

/// What a registry says about its tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bearer {
    realm: String,
    service: Option<String>,
    scopes: Vec<String>,
}

impl Challenge {
    /// Returns the challenges of an answer that are understood, in their order.
    pub(super) fn all(headers: &HeaderMap) -> Vec<Self> {
        let texts = headers.get_all(WWW_AUTHENTICATE).into_iter().filter_map(|value| value.to_str().ok());
        texts
            .flat_map(|text| ChallengeParser::new(text).map_while(Result::ok))
            .filter_map(|challenge| Self::of(&challenge))
            .collect()
    }

    /// Chooses the challenge to answer: a token, which is only good for this repository, before a password.
    pub(super) fn best(challenges: Vec<Self>) -> Option<Self> {
        let bearer = |challenge: &Self| matches!(challenge, Self::Bearer(_));
        let at = challenges.iter().position(bearer).unwrap_or(0);
        challenges.into_iter().nth(at)
    }

    fn of(challenge: &ChallengeRef<'_>) -> Option<Self> {
        if challenge.scheme.eq_ignore_ascii_case("Basic") {
            return Some(Self::Basic);
        }
        if !challenge.scheme.eq_ignore_ascii_case("Bearer") {
            return None;
        }
        let value = |name: &str| {
            let found = challenge.params.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.to_unescaped()).filter(|value| !value.is_empty())
        };
        let scopes = value("scope").unwrap_or_default();
        let scopes = scopes.split_whitespace().take(MAX_SCOPES).map(str::to_owned).collect();
        Some(Self::Bearer(Bearer { realm: value("realm")?, service: value("service"), scopes }))
    }
}

#[derive(Deserialize)]
struct Answer {
    token: Option<String>,
    access_token: Option<String>,
}

/// Fetches a token for `scope`. The token server is the one that the registry names, also on another host, as in
/// containerd: the registry gets the password of its user in any case. It gets none without TLS, unless the registry at
/// `base` itself is reached without.
pub(super) async fn fetch(
    (client, network): (&Client, &Network),
    base: &Url,
    bearer: &Bearer,
    scope: &str,
    login: Option<&HeaderValue>,
) -> Result<HeaderValue, Problem> {
    let nonsense = |text: &str| Problem::Nonsense(text.to_owned());
    let mut url = Url::parse(&bearer.realm)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https") && url.host().is_some())
        .ok_or_else(|| nonsense("its token server has no address"))?;
    if url.scheme() == "http" && base.scheme() == "https" && !is_loopback(&url) {
        return Err(nonsense("its token server is one without TLS"));
    }
    step_runner_web::redirect::without_login(&mut url);
    let others = bearer.scopes.iter().map(String::as_str).filter(|other| !covers(scope, other));
    {
        let mut query = url.query_pairs_mut();
        query.extend_pairs(bearer.service.iter().map(|service| ("service", service)));
        query.extend_pairs(std::iter::once(scope).chain(others).map(|scope| ("scope", scope)));
    }
    let response = follow(client, network, &Request::new(Method::GET, url.clone()), login, &url).await?;
    let status = response.status();
    if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        return Err(Problem::Denied);
    }
    let asked = step_runner_web::retry::retry_after(response.headers(), chrono::Utc::now());
    if step_runner_web::retry::is_transient(status) {
        return Err(Problem::of_status(status, asked, &[]));
    }
    if !status.is_success() {
        return Err(Problem::Nonsense(format!("its token server answers with status {}", status.as_u16())));
    }
    let answer = read(response, MAX_ANSWER_BYTES).await?;
    let answer: Answer = serde_json::from_slice(&answer).map_err(|error| no_token(&error))?;
    let token = answer.token.filter(|token| !token.is_empty()).or(answer.access_token);
    self::bearer(&token.ok_or_else(|| nonsense("its token server sent no token"))?)
}

/// Translates an answer of a token server that cannot be read. Tells the place only: the reason may quote a token.
fn no_token(error: &serde_json::Error) -> Problem {
    let (line, column) = (error.line(), error.column());
    Problem::Nonsense(format!(
        "its token server sent no token: see line {line}, column {column} of its answer"
    ))
}

/// Returns the value of `Authorization` for a token, marked as secret.
pub(super) fn bearer(token: &str) -> Result<HeaderValue, Problem> {
    let mut value = HeaderValue::try_from(format!("Bearer {token}"))
        .map_err(|_| Problem::Nonsense("a token of it holds characters that no token has".into()))?;
    value.set_sensitive(true);
    Ok(value)
}

/// True if a token for `scope` is good for `other`, too.
fn covers(scope: &str, other: &str) -> bool {
    let parts =
        |text: &str| text.rsplit_once(':').map(|(name, actions)| (name.to_owned(), actions.to_owned()));
    match (parts(scope), parts(other)) {
        (Some((name, actions)), Some((other_name, other_actions))) => {
            let has = |wanted: &str| actions.split(',').any(|action| action == wanted);
            name == other_name && other_actions.split(',').all(has)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn challenges(values: &[&'static str]) -> Vec<Challenge> {
        let headers = values.iter().map(|value| (WWW_AUTHENTICATE, HeaderValue::from_static(value)));
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name, value);
        }
        Challenge::all(&map)
    }

    #[test]
    fn a_token_comes_before_a_password() {
        let realm = |challenge: Option<Challenge>| match challenge {
            Some(Challenge::Bearer(bearer)) => Some(bearer.realm),
            _ => None,
        };
        let bearer = r#"Bearer realm="https://t/a",service="s",scope="repository:a/b:pull""#;
        assert_eq!(realm(Challenge::best(challenges(&[bearer]))).unwrap(), "https://t/a");
        assert_eq!(
            realm(Challenge::best(challenges(&[r#"Basic realm="r""#, bearer]))).unwrap(),
            "https://t/a"
        );
        assert_eq!(
            Challenge::best(challenges(&[r#"Digest realm="r", basic realm="r""#])),
            Some(Challenge::Basic)
        );
        for none in [&[][..], &["Digest realm=\"r\""], &["Bearer"], &["Bearer service=\"s\""], &["=,\""]] {
            assert_eq!(Challenge::best(challenges(none)), None, "{none:?}");
        }
    }

    #[test]
    fn an_answer_without_a_token_is_refused_with_the_place_and_without_its_text() {
        let error = serde_json::from_str::<Answer>("{\n  \"token\": \"s3cret").map(drop).unwrap_err();
        let text = no_token(&error).to_string();
        assert!(text.contains("line 2, column 18") && !text.contains("s3cret"), "{text}");
        let error = serde_json::from_str::<Answer>("{\"token\": 53}").map(drop).unwrap_err();
        let text = no_token(&error).to_string();
        assert!(text.contains("line 1") && !text.contains("53"), "{text}");
    }

    #[test]
    fn scopes_that_are_asked_for_anyway_are_not_repeated() {
        assert!(covers("repository:a/b:pull,push", "repository:a/b:pull"));
        assert!(!covers("repository:a/b:pull", "repository:a/b:pull,push"));
        assert!(!covers("repository:a/b:pull", "repository:a/c:pull"));
        assert!(!covers("repository:a/b:pull", "registry"));
    }
}
