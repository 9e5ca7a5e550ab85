//! Redirects: a token goes to the entry's own server, and to hosts that the entry allows (agent.md §2.3).

/// Redirects that one call follows.
const LONGEST_CHAIN: u32 = 5;

/// Parts of a URL that decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'u> {
    /// `http` or `https`, in lower case.
    pub scheme: &'u str,
    /// Host, in lower case.
    pub host: &'u str,
    /// Port, the default one if none is written.
    pub port: u16,
}

/// What becomes of a redirect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Redirect {
    /// Send the same method and body there. `with_token` says if the token goes along.
    Follow {
        /// True if the token goes along.
        with_token: bool,
    },
    /// Give up, with this message.
    Refuse(String),
}

/// Kind of a call, by what may follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A call of the API: its token must not reach others.
    Api,
    /// A download of artifacts: the storage has another host and gets no token.
    Download,
}

/// Decides a redirect. `followed` counts those that this call has followed before.
pub fn decide(
    kind: Kind,
    status: u16,
    from: Place<'_>,
    to: Place<'_>,
    allowed_hosts: &[String],
    followed: u32,
) -> Redirect {
    let refuse = |why: &str| Redirect::Refuse(format!("the server redirects to the host {}: {why}", to.host));
    if followed >= LONGEST_CHAIN {
        return refuse("too many redirects for one call");
    }
    match kind {
        Kind::Download if matches!(status, 302 | 307) => Redirect::Follow { with_token: false },
        Kind::Api if matches!(status, 307 | 308) => {
            let is_allowed = || allowed_hosts.iter().any(|host| host.eq_ignore_ascii_case(to.host));
            let keeps_tls = from.scheme == "http" || to.scheme == "https";
            if from == to || is_allowed() && keeps_tls {
                Redirect::Follow { with_token: true }
            } else if is_allowed() {
                refuse("it is allowed, but the new address is without TLS")
            } else {
                refuse(
                    "if it is the same instance, add the host to `allowed_redirect_hosts` or correct `url`",
                )
            }
        }
        Kind::Api | Kind::Download => refuse("this kind of redirect is not followed, correct `url`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOME: Place<'_> = Place { scheme: "https", host: "gitlab.test", port: 443 };

    #[test]
    fn c10_a_token_stays_with_its_server_and_allowed_hosts() {
        let allowed = ["Cell-2.test".to_owned()];
        let cell = Place { host: "cell-2.test", ..HOME };
        for (status, to, follows) in [
            (307, HOME, true),
            (308, HOME, true),
            (301, HOME, false),
            (302, HOME, false),
            (303, HOME, false),
            (307, cell, true),
            (307, Place { scheme: "http", port: 80, ..cell }, false),
            (307, Place { host: "evil.test", ..HOME }, false),
            (307, Place { port: 8443, ..HOME }, false),
            (307, Place { scheme: "http", ..HOME }, false),
        ] {
            match decide(Kind::Api, status, HOME, to, &allowed, 0) {
                Redirect::Follow { with_token } => assert!(with_token && follows, "{status} {to:?}"),
                Redirect::Refuse(message) => {
                    assert!(!follows && message.contains(to.host), "{status} {to:?}: {message}");
                }
            }
        }
    }

    #[test]
    fn a_download_goes_to_any_host_without_the_token() {
        let storage = Place { scheme: "http", host: "storage.test", port: 80 };
        for (status, follows) in [(302, true), (307, true), (301, false), (308, false)] {
            let decided = decide(Kind::Download, status, HOME, storage, &[], 0);
            assert_eq!(decided == Redirect::Follow { with_token: false }, follows, "{status}");
        }
    }

    #[test]
    fn a_chain_of_redirects_ends() {
        assert!(matches!(decide(Kind::Api, 307, HOME, HOME, &[], 4), Redirect::Follow { .. }));
        assert!(matches!(decide(Kind::Api, 307, HOME, HOME, &[], 5), Redirect::Refuse(_)));
    }
}
