//! Where each call goes and which token it carries (agent.md §2): everything that a router without memory can go by.

use std::fmt;

use crate::tokens::Token;

/// Path of the API below an instance's address.
const API: &str = "/api/v4";

/// Longest address of an instance.
const MAX_ADDRESS: usize = 2_048;

/// Header with the ticket of a job request, for routers. Its value is also in the body as `last_update`.
pub const TICKET_HEADER: &str = "X-GitLab-Last-Update";

/// The address of an instance as an entry has it: scheme, host, port and path, without `/` at the end.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Base(String);

/// A text that is no address of an instance. A part that could be a secret is not shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAddress {
    /// Another scheme, or none.
    #[error("the address must begin with http:// or https://")]
    Scheme,
    /// No host.
    #[error("the address names no host")]
    Host,
    /// It has a user or a password.
    #[error("the address has a user or password: the token is a setting of its own")]
    User,
    /// It has a query or a fragment.
    #[error("the address has a `?` or `#`: give the address of the instance alone")]
    Query,
    /// It has a blank or a control character, or is too long.
    #[error("the address has a blank or control character, or more than {MAX_ADDRESS} bytes")]
    Form,
}

impl Base {
    /// Takes the address of an instance. `/` and `/ci` at the end are removed: old installations have them.
    pub fn new(text: &str) -> Result<Self, BadAddress> {
        let text = text.trim();
        if text.len() > MAX_ADDRESS
            || !text.chars().all(|c| c.is_ascii_graphic() || !c.is_ascii() && c.is_alphanumeric())
        {
            return Err(BadAddress::Form);
        }
        let (scheme, rest) = text.split_once("://").ok_or(BadAddress::Scheme)?;
        let scheme = scheme.to_ascii_lowercase();
        if !["http", "https"].contains(&scheme.as_str()) {
            return Err(BadAddress::Scheme);
        }
        if rest.contains(['?', '#', '\\']) {
            return Err(BadAddress::Query);
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.contains('@') {
            return Err(BadAddress::User);
        }
        let host = authority.to_ascii_lowercase();
        if host.is_empty() || host.starts_with(':') {
            return Err(BadAddress::Host);
        }
        let path = path.trim_end_matches('/');
        let path =
            if path == "ci" { "" } else { path.strip_suffix("/ci").unwrap_or(path) }.trim_end_matches('/');
        let separator = if path.is_empty() { "" } else { "/" };
        Ok(Self(format!("{scheme}://{host}{separator}{path}")))
    }

    /// Returns the address.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the address of the API.
    pub fn api(&self) -> String {
        format!("{}{API}", self.0)
    }

    /// Returns the URL of a call.
    pub fn url(&self, call: &Call) -> String {
        format!("{}{API}{}", self.0, call.path())
    }

    /// True for an address without TLS.
    pub fn is_plain(&self) -> bool {
        self.0.starts_with("http:")
    }
}

impl fmt::Display for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A call of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Creates a runner.
    CreateRunner,
    /// Registers a runner with an old registration token.
    Register,
    /// Asks if a runner's token is valid.
    Verify,
    /// Replaces a runner's token.
    ResetToken,
    /// Removes this machine from a created runner.
    DeleteManager,
    /// Removes a runner.
    DeleteRunner,
    /// Asks for a job.
    RequestJob,
    /// Tells the state of a job.
    UpdateJob(u64),
    /// Appends to the trace of a job.
    AppendTrace {
        /// The job.
        job: u64,
        /// True if the job prints each of its commands.
        debug: bool,
    },
    /// Uploads artifacts of a job.
    UploadArtifacts(u64),
    /// Downloads artifacts, of a dependency with that dependency's own token.
    DownloadArtifacts {
        /// The job that made them.
        job: u64,
        /// True to ask for a redirect to the storage.
        direct: bool,
    },
}

/// Whose token a call carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credential {
    /// A person's or a group's access token. It is never stored.
    Access,
    /// A registration token, in the body only: no header is known for it.
    Registration,
    /// The entry's runner token.
    Runner,
    /// The token of the job that the call names.
    Job,
}

impl Credential {
    /// Returns the one header that carries the token.
    pub const fn header(self) -> Option<&'static str> {
        match self {
            Self::Access => Some("PRIVATE-TOKEN"),
            Self::Registration => None,
            Self::Runner => Some("RUNNER-TOKEN"),
            Self::Job => Some("JOB-TOKEN"),
        }
    }
}

impl Call {
    /// Returns the method.
    pub const fn method(&self) -> &'static str {
        match self {
            Self::CreateRunner
            | Self::Register
            | Self::Verify
            | Self::ResetToken
            | Self::RequestJob
            | Self::UploadArtifacts(_) => "POST",
            Self::DeleteManager | Self::DeleteRunner => "DELETE",
            Self::UpdateJob(_) => "PUT",
            Self::AppendTrace { .. } => "PATCH",
            Self::DownloadArtifacts { .. } => "GET",
        }
    }

    /// Returns path and query below the API. Artifacts to upload have a longer query, which their caller adds.
    pub fn path(&self) -> String {
        match self {
            Self::CreateRunner => "/user/runners".to_owned(),
            Self::Register | Self::DeleteRunner => "/runners".to_owned(),
            Self::Verify => "/runners/verify".to_owned(),
            Self::ResetToken => "/runners/reset_authentication_token".to_owned(),
            Self::DeleteManager => "/runners/managers".to_owned(),
            Self::RequestJob => "/jobs/request".to_owned(),
            Self::UpdateJob(job) => format!("/jobs/{job}"),
            Self::AppendTrace { job, debug } => format!("/jobs/{job}/trace?debug_trace={debug}"),
            Self::UploadArtifacts(job) => format!("/jobs/{job}/artifacts"),
            Self::DownloadArtifacts { job, direct } => {
                let query = if *direct { "?direct_download=true" } else { "" };
                format!("/jobs/{job}/artifacts{query}")
            }
        }
    }

    /// Returns whose token the call carries.
    pub const fn credential(&self) -> Credential {
        match self {
            Self::CreateRunner => Credential::Access,
            Self::Register => Credential::Registration,
            Self::Verify | Self::ResetToken | Self::DeleteManager | Self::DeleteRunner | Self::RequestJob => {
                Credential::Runner
            }
            Self::UpdateJob(_)
            | Self::AppendTrace { .. }
            | Self::UploadArtifacts(_)
            | Self::DownloadArtifacts { .. } => Credential::Job,
        }
    }

    /// True if the JSON body has the token as `token`, too: GitLab requires it there, while routers see headers only.
    pub const fn has_token_in_body(&self) -> bool {
        matches!(
            self,
            Self::Register
                | Self::Verify
                | Self::ResetToken
                | Self::DeleteManager
                | Self::DeleteRunner
                | Self::RequestJob
                | Self::UpdateJob(_)
        )
    }

    /// Returns the headers that differ from call to call: the token, and a ticket.
    pub fn headers<'t>(&self, token: &'t Token, ticket: Option<&'t Ticket>) -> Vec<(&'static str, &'t str)> {
        let token = self.credential().header().map(|name| (name, token.expose()));
        let ticket =
            ticket.filter(|_| *self == Self::RequestJob).map(|ticket| (TICKET_HEADER, ticket.as_str()));
        token.into_iter().chain(ticket).collect()
    }
}

/// Longest ticket that is kept.
pub const MAX_TICKET: usize = 8 << 10;

/// A ticket of the server for one entry's next request. It is opaque and sent back byte for byte.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ticket(String);

impl Ticket {
    /// Takes the value of an answer's header. `None`: it is empty, too long, or cannot be sent back in a header.
    pub fn new(value: &str) -> Option<Self> {
        let can_be_sent = value.bytes().all(|byte| byte == b' ' || byte == b'\t' || byte.is_ascii_graphic());
        (!value.is_empty() && value.len() <= MAX_TICKET && can_be_sent).then(|| Self(value.to_owned()))
    }

    /// Returns the ticket as it came.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every call, with a job's number where one is named.
    fn calls() -> Vec<Call> {
        vec![
            Call::CreateRunner,
            Call::Register,
            Call::Verify,
            Call::ResetToken,
            Call::DeleteManager,
            Call::DeleteRunner,
            Call::RequestJob,
            Call::UpdateJob(7),
            Call::AppendTrace { job: 7, debug: false },
            Call::UploadArtifacts(7),
            Call::DownloadArtifacts { job: 7, direct: true },
        ]
    }

    #[test]
    fn a01_each_call_has_its_method_path_and_token() {
        let shown: Vec<String> = calls()
            .iter()
            .map(|call| {
                let header = call.credential().header().unwrap_or("-");
                let body = if call.has_token_in_body() { "body" } else { "-" };
                format!("{} {} {header} {body}", call.method(), call.path())
            })
            .collect();
        assert_eq!(
            shown,
            [
                "POST /user/runners PRIVATE-TOKEN -",
                "POST /runners - body",
                "POST /runners/verify RUNNER-TOKEN body",
                "POST /runners/reset_authentication_token RUNNER-TOKEN body",
                "DELETE /runners/managers RUNNER-TOKEN body",
                "DELETE /runners RUNNER-TOKEN body",
                "POST /jobs/request RUNNER-TOKEN body",
                "PUT /jobs/7 JOB-TOKEN body",
                "PATCH /jobs/7/trace?debug_trace=false JOB-TOKEN -",
                "POST /jobs/7/artifacts JOB-TOKEN -",
                "GET /jobs/7/artifacts?direct_download=true JOB-TOKEN -",
            ]
        );
    }

    #[test]
    fn a21_the_path_of_an_address_is_in_each_call() {
        for (text, base) in [
            ("https://gitlab.test", "https://gitlab.test"),
            ("https://gitlab.test/", "https://gitlab.test"),
            ("https://gitlab.test/ci", "https://gitlab.test"),
            ("https://gitlab.test/ci/", "https://gitlab.test"),
            ("HTTPS://GitLab.test:8443/Sub/Path//", "https://gitlab.test:8443/Sub/Path"),
            ("http://gitlab.test/cells/ci", "http://gitlab.test/cells"),
            ("http://gitlab.test/basci", "http://gitlab.test/basci"),
            ("http://[::1]:80/a", "http://[::1]:80/a"),
        ] {
            let address = Base::new(text).unwrap();
            assert_eq!(address.as_str(), base, "{text}");
            for call in calls() {
                assert_eq!(address.url(&call), format!("{base}/api/v4{}", call.path()));
            }
        }
    }

    #[test]
    fn a21_other_texts_are_no_address() {
        for (text, error) in [
            ("gitlab.test", BadAddress::Scheme),
            ("ftp://gitlab.test", BadAddress::Scheme),
            ("https://", BadAddress::Host),
            ("https://:80", BadAddress::Host),
            ("https://user:secret@gitlab.test", BadAddress::User),
            ("https://gitlab.test/?private_token=x", BadAddress::Query),
            ("https://gitlab.test/#a", BadAddress::Query),
            ("https://gitlab test", BadAddress::Form),
        ] {
            assert_eq!(Base::new(text), Err(error), "{text}");
            assert!(!error.to_string().contains("secret"));
        }
    }

    #[test]
    fn c03_a_ticket_comes_back_byte_for_byte() {
        let all: String = (b'!'..=b'~').map(char::from).collect();
        for text in ["a", "Odd value/+=;%20\"x\"", &all, &all.repeat(80)] {
            assert_eq!(Ticket::new(text).unwrap().as_str(), text);
        }
        for text in ["", "a\nb", "\u{e9}", &"x".repeat(MAX_TICKET + 1)] {
            assert_eq!(Ticket::new(text), None);
        }
    }

    #[test]
    fn c03_only_a_job_request_carries_a_ticket() {
        let (token, ticket) = (Token::new("glrt-x").unwrap(), Ticket::new("t").unwrap());
        for call in calls() {
            let headers = call.headers(&token, Some(&ticket));
            let carries = headers.iter().any(|(name, _)| *name == TICKET_HEADER);
            assert_eq!(carries, call == Call::RequestJob, "{call:?}");
            let tokens = headers.iter().filter(|(name, _)| name.ends_with("TOKEN")).count();
            assert_eq!(tokens, usize::from(call != Call::Register), "{call:?}");
        }
    }

    #[test]
    fn c14_no_token_is_in_a_url() {
        let base = Base::new("https://gitlab.test/a").unwrap();
        for call in calls() {
            assert!(!base.url(&call).to_ascii_lowercase().contains("token="), "{call:?}");
        }
    }

    proptest! {
        #[test]
        fn an_address_is_its_own_address(text in "(https?://)?[a-z@:/?#.ci ]{0,30}") {
            if let Ok(base) = Base::new(&text) {
                prop_assert!(Base::new(base.as_str()).is_ok_and(|again| again == base) , "{base}");
                prop_assert!(!base.as_str().ends_with('/') && !base.as_str().ends_with("/ci"));
            }
        }
    }
}
