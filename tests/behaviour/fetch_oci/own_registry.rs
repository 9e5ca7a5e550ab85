//! Registries of people who run their own: certificates, credentials of groups, challenges, nested indexes, and faults
//! that pass.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use step_runner::fetch::order::{Order, Source, WorkerMessage};
use step_runner::oci::digest_of;
use step_runner::web::Network;

use super::site::{Site, manifest, scripted};
use super::tar;
use crate::support::registry::{
    INDEX, MANIFEST, PASSWORD, Scripted, USER, certificate, docker_config, response,
};

/// Base64 of `user:secret`.
const BASIC: &str = "\r\nauthorization: Basic dXNlcjpzZWNyZXQ=\r\n";

/// Returns the layer of a function.
fn layer() -> Vec<u8> {
    tar(&[("func.yml", 0o644, "x")])
}

/// Returns what a registry with one image answers.
fn image(head: &str) -> Vec<u8> {
    let layer = layer();
    if head.contains("/blobs/") {
        response("200 OK", "", &layer)
    } else if head.contains("/manifests/") {
        manifest(&digest_of(&layer), layer.len())
    } else {
        response("200 OK", "", b"{}")
    }
}

fn cut(mut answer: Vec<u8>) -> Vec<u8> {
    answer.truncate(answer.len() - 1);
    answer
}

/// Returns the number of requests whose head holds `part`.
fn count(registry: &Scripted, part: &str) -> usize {
    registry.heads().iter().filter(|head| head.contains(part)).count()
}

#[test]
fn fault_112_bug_one_bad_answer_of_a_registry() {
    let status = |status: &str, headers: &str| response(status, headers, b"");
    let (manifests, blobs) = ("/manifests/", "/blobs/");
    for (to, faults, says) in [
        (manifests, vec![status("503 Service Unavailable", "")], "status 503"),
        (manifests, vec![status("429 Too Many Requests", "Retry-After: 1\r\n")], "429"),
        (manifests, vec![status("408 Request Timeout", ""), status("502 Bad Gateway", "")], "status 408"),
        (manifests, vec![Vec::new()], "connection broke"),
        (manifests, vec![cut(image(manifests))], "connection broke"),
        (blobs, vec![status("500 Internal Server Error", "")], "status 500"),
        (blobs, vec![cut(image(blobs))], "connection broke"),
    ] {
        let number = faults.len();
        let registry = Scripted::failing_first(to, faults, image);
        let site = Site::new();
        let (done, told) = site.fetch_told(&registry.address, "g/echo", "1");
        done.unwrap_or_else(|failure| panic!("{says}: {}", failure.message));
        assert_eq!(site.text("func.yml"), "x");
        assert_eq!(count(&registry, to), number + 1, "{says}");
        assert_eq!(told.len(), number, "{told:?}");
        let first = told.first().unwrap();
        assert!(first.contains(says) && first.contains("trying again in"), "{first}");
    }
}

#[test]
fn fault_112_what_will_not_pass_is_told_at_once() {
    for (status, headers) in [
        ("401 Unauthorized", ""),
        ("403 Forbidden", ""),
        ("404 Not Found", ""),
        ("400 Bad Request", ""),
        ("429 Too Many Requests", "Retry-After: 600\r\n"),
        ("503 Service Unavailable", "Retry-After: 600\r\n"),
    ] {
        let registry = scripted(move |_| response(status, headers, b""));
        let (done, told) = Site::new().fetch_told(&registry.address, "g/echo", "1");
        assert!(done.is_err() && told.is_empty(), "{status}: {told:?}");
        assert_eq!(count(&registry, "/manifests/"), 1, "{status}");
    }
}

#[test]
fn fault_112_tries_are_few_and_the_last_error_is_told() {
    let registry = scripted(|_| response("503 Service Unavailable", "", b""));
    let (done, told) = Site::new().fetch_told(&registry.address, "g/echo", "1");
    let message = done.unwrap_err().message;
    assert!(message.contains("the registry failed (status 503): try again later"), "{message}");
    assert_eq!((told.len(), count(&registry, "/manifests/")), (4, 5));
}

#[test]
fn fault_112_a_waiting_try_ends_with_its_input() {
    let registry = scripted(|_| response("503 Service Unavailable", "Retry-After: 90\r\n", b""));
    let mut command = Command::new(env!("CARGO_BIN_EXE_step-runner"));
    command.arg("fetch").env_clear().stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let source =
        Source::Oci { registry: registry.address.clone(), repository: "g/echo".into(), version: "1".into() };
    let (network, credentials) = (Network::default(), [].into());
    let order = Order { source, network, credentials, scratch: "/nonexistent".into() };
    let mut input = child.stdin.take().unwrap();
    writeln!(input, "{}", serde_json::to_string(&order).unwrap()).unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(matches!(serde_json::from_str(&line).unwrap(), WorkerMessage::Retry(_)), "{line}");
    let begin = Instant::now();
    drop(input);
    child.wait().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(45), "it waited for the next try");
}

#[test]
fn fault_113_bug_tls_self_signed_server() {
    let path = |name: &str| certificate(name).to_str().unwrap().to_owned();
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(certificate("own.pem"), folder.path().join("own.pem")).unwrap();
    let fetch = |server: &str, variable: &str, trusted: &str, host: &str| {
        let proxy = Scripted::behind_proxy_as(server, "own.key", image);
        let address = format!("http://{}", proxy.address);
        let site = Site::with_network(&[("HTTPS_PROXY", &address), (variable, trusted)]);
        site.fetch(host, "g/echo", "1").map(|_| site.text("func.yml")).map_err(|failure| failure.message)
    };
    let host = "registry.example.com";
    assert_eq!(fetch("own.pem", "SSL_CERT_FILE", &path("own.pem"), host), Ok("x".to_owned()));
    assert_eq!(fetch("own.pem", "SSL_CERT_DIR", folder.path().to_str().unwrap(), host), Ok("x".to_owned()));
    for (server, trusted, host, says) in [
        ("own.pem", "own.pem", "other.example.com", "for another host"),
        ("own.pem", "own_other.pem", host, "SSL_CERT_FILE"),
        ("own.pem", "authority.pem", host, "SSL_CERT_FILE"),
        ("own_expired.pem", "own_expired.pem", host, "has expired"),
        ("own_expired.pem", "own.pem", host, "has expired"),
    ] {
        let message = fetch(server, "SSL_CERT_FILE", &path(trusted), host).unwrap_err();
        assert!(message.contains("TLS is refused") && message.contains(says), "{server}: {message}");
    }
}

#[test]
fn bug_no_proxy_forms() {
    for (list, direct) in [
        ("registry.example.invalid:443", true),
        ("*.example.invalid", true),
        (".example.invalid", true),
        ("*", true),
        ("registry.example.invalid:444", false),
        ("*.registry.example.invalid", false),
    ] {
        let proxy = Scripted::start(|_| response("403 Forbidden", "", b""));
        let address = format!("http://{}", proxy.address);
        let site = Site::with_network(&[("HTTPS_PROXY", &address), ("NO_PROXY", list)]);
        site.fetch("registry.example.invalid", "g/echo", "1").unwrap_err();
        assert_eq!(count(&proxy, "CONNECT registry.example.invalid:443 ") == 0, direct, "{list}");
    }
}

#[test]
fn bug_oci_credentials_of_a_group() {
    let registry = Scripted::start(|head| {
        if head.contains(BASIC) {
            image(head)
        } else {
            response("401 Unauthorized", "WWW-Authenticate: Basic realm=\"r\"\r\n", b"{}")
        }
    });
    let address = &registry.address;
    for group in ["", "/team", "/team/sub", "/team/sub/func"] {
        let config = docker_config(&format!("{address}{group}"), USER, PASSWORD);
        Site::with_config(&config).fetch(address, "team/sub/func", "1").unwrap();
    }
    for group in ["/tea", "/team/sub/fun", "/team/sub/func/x", "/other"] {
        let config = docker_config(&format!("{address}{group}"), USER, PASSWORD);
        let message = Site::with_config(&config).fetch(address, "team/sub/func", "1").unwrap_err().message;
        assert!(message.contains("asks for credentials"), "{group}: {message}");
    }
    let nulls = format!(
        r#"{{"auths": {{"x": null, "{address}/team": {{"auth": "dXNlcjpzZWNyZXQ=", "identitytoken": null}}}},
            "credHelpers": null}}"#
    );
    Site::with_config(&nulls).fetch(address, "team/sub/func", "1").unwrap();
    let none = Site::with_config(r#"{"auths": null}"#).fetch(address, "team/sub/func", "1").unwrap_err();
    assert!(none.message.contains("asks for credentials"), "{}", none.message);
}

#[test]
fn bug_oci_challenge_of_the_manifest() {
    let tokens = Scripted::start(|head| {
        if head.contains(BASIC) {
            response("200 OK", "", br#"{"access_token": "good-token"}"#)
        } else {
            response("200 OK", "", br#"{"token": "anonymous"}"#)
        }
    });
    let address = tokens.address.clone();
    let registry = scripted(move |head| {
        if head.contains("\r\nauthorization: Bearer good-token\r\n") {
            return image(head);
        }
        let challenge = format!(
            "WWW-Authenticate: Bearer realm=\"http://{address}/token\",service=\"r\",\
             scope=\"repository:g/private:pull\"\r\n"
        );
        response("401 Unauthorized", &challenge, b"{}")
    });
    let config = docker_config(&registry.address, USER, PASSWORD);
    Site::with_config(&config).fetch(&registry.address, "g/private", "1").unwrap();
    let asked = tokens.heads();
    assert_eq!(asked.len(), 1, "one token serves manifest and blob: {asked:?}");
    let line = "GET /token?service=r&scope=repository%3Ag%2Fprivate%3Apull ";
    assert!(asked[0].starts_with(line), "{asked:?}");
    assert_eq!(count(&registry, "Basic"), 0, "the password goes to the token server alone");
    let message = Site::new().fetch(&registry.address, "g/private", "1").unwrap_err().message;
    assert!(message.contains("asks for credentials"), "{message}");
}

#[test]
fn a_registry_that_hides_or_asks_at_its_root_only_gets_credentials_too() {
    for status in ["404 Not Found", "403 Forbidden", "401 Unauthorized"] {
        let registry = Scripted::start(move |head| {
            if head.contains(BASIC) {
                image(head)
            } else if head.starts_with("GET /v2/ ") {
                response("401 Unauthorized", "WWW-Authenticate: Basic realm=\"r\"\r\n", b"{}")
            } else {
                response(status, "", b"{}")
            }
        });
        let config = docker_config(&registry.address, USER, PASSWORD);
        Site::with_config(&config).fetch(&registry.address, "g/echo", "1").unwrap();
    }
}

#[test]
fn an_authorization_that_expires_in_the_middle_is_renewed() {
    let tokens = std::sync::atomic::AtomicUsize::default();
    let number = move || tokens.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
    let server = Scripted::start(move |_| {
        response("200 OK", "", format!(r#"{{"token": "token-{}"}}"#, number()).as_bytes())
    });
    let address = server.address.clone();
    let registry = Scripted::start(move |head| {
        let wanted = if head.contains("/blobs/") { "Bearer token-2\r\n" } else { "Bearer token-1\r\n" };
        if head.contains(wanted) {
            return image(head);
        }
        let challenge = format!("WWW-Authenticate: Bearer realm=\"http://{address}/token\"\r\n");
        response("401 Unauthorized", &challenge, b"{}")
    });
    Site::new().fetch(&registry.address, "g/echo", "1").unwrap();
    assert_eq!(server.heads().len(), 2);
}

#[test]
fn credentials_never_go_to_another_host() {
    // Asks for credentials itself, which it must not get.
    let other = Scripted::start(|head| match head {
        head if head.contains("uthorization") => response("500 Internal Server Error", "", b""),
        head if head.contains("/ask/") => {
            response("401 Unauthorized", "WWW-Authenticate: Basic realm=\"r\"\r\n", b"{}")
        }
        head => image(head),
    });
    for (part, ask) in [("/blobs/", false), ("/manifests/", false), ("/blobs/", true)] {
        let address = other.address.clone();
        let registry = Scripted::start(move |head| {
            if !head.contains(BASIC) {
                response("401 Unauthorized", "WWW-Authenticate: Basic realm=\"r\"\r\n", b"{}")
            } else if head.contains(part) {
                let place = if ask { "ask/" } else { "" };
                let there = format!("Location: http://{address}/{place}v2/g{part}x\r\n");
                response("307 Temporary Redirect", &there, b"")
            } else {
                image(head)
            }
        });
        let config = docker_config(&registry.address, USER, PASSWORD);
        let done = Site::with_config(&config).fetch(&registry.address, "g/echo", "1");
        assert_eq!(done.is_ok(), !ask, "{part}: {done:?}");
    }
    assert_eq!(count(&other, "uthorization"), 0, "{:?}", other.heads());

    // A token server without TLS gets no password of a registry with TLS.
    let proxy = Scripted::behind_proxy(|_| {
        let challenge = "WWW-Authenticate: Bearer realm=\"http://tokens.example.invalid/token\"\r\n";
        response("401 Unauthorized", challenge, b"{}")
    });
    let authority = certificate("authority.pem");
    let variables = [
        ("HTTPS_PROXY", format!("http://{}", proxy.address)),
        ("SSL_CERT_FILE", authority.to_str().unwrap().to_owned()),
    ];
    let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let mut site = Site::with_network(&variables);
    site.docker_config = Some(docker_config("registry.example.com", USER, PASSWORD));
    let message = site.fetch("registry.example.com", "g/echo", "1").unwrap_err().message;
    assert!(message.contains("without TLS"), "{message}");
}

/// An index of these entries, each with media type, platform and content.
fn index(entries: &[(&str, Option<&str>, &Value)]) -> Value {
    let entries = entries.iter().map(|(media_type, platform, content)| {
        let bytes = content.to_string();
        let mut entry =
            json!({"mediaType": media_type, "digest": digest_of(bytes.as_bytes()), "size": bytes.len()});
        if let Some((os, architecture)) = platform.and_then(|platform| platform.split_once('/')) {
            entry["platform"] = json!({"os": os, "architecture": architecture});
        }
        entry
    });
    json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries.collect::<Vec<_>>()})
}

/// The manifest of an image with one layer.
fn image_manifest(layer: &[u8]) -> Value {
    json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest_of(b"{}"), "size": 2},
        "layers": [{
            "mediaType": "application/vnd.oci.image.layer.v1.tar",
            "digest": digest_of(layer),
            "size": layer.len(),
        }],
    })
}

/// Starts a registry whose tag is the first of `contents`. It has the others, and these layers.
fn holding(contents: &[&Value], layers: &[&[u8]]) -> Scripted {
    let tag = contents[0].to_string().into_bytes();
    let texts = contents.iter().map(|content| content.to_string().into_bytes());
    let blobs: Vec<Vec<u8>> = texts.chain(layers.iter().map(|layer| layer.to_vec())).collect();
    scripted(move |head| {
        if head.contains("/manifests/1 ") {
            return response("200 OK", "", &tag);
        }
        let found = blobs.iter().find(|blob| head.contains(&digest_of(blob)));
        found.map_or_else(|| response("404 Not Found", "", b"{}"), |blob| response("200 OK", "", blob))
    })
}

fn here() -> String {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("linux/{architecture}")
}

#[test]
fn bug_oci_nested_index() {
    let (ours, theirs) = (tar(&[("func.yml", 0o644, "ours")]), tar(&[("func.yml", 0o644, "theirs")]));
    let (own, other) = (image_manifest(&ours), image_manifest(&theirs));
    let here = here();
    let platform = Some(here.as_str());
    let (nobody, unknown) = (Some("plan9/mips"), Some("unknown/unknown"));
    let inner = index(&[(MANIFEST, unknown, &other), (MANIFEST, platform, &own)]);
    let foreign = index(&[(MANIFEST, nobody, &other)]);
    let second = index(&[(INDEX, nobody, &foreign), (INDEX, platform, &inner)]);
    let third = index(&[(INDEX, platform, &second)]);
    let fourth = index(&[(INDEX, platform, &third)]);
    let open = index(&[(MANIFEST, unknown, &other), (MANIFEST, None, &own)]);
    let open_index = index(&[(INDEX, None, &inner)]);
    // The first index without a platform has nothing for us, so the second counts.
    let several = index(&[(INDEX, None, &foreign), (INDEX, None, &inner)]);
    let preferred = index(&[(MANIFEST, None, &other), (MANIFEST, platform, &own)]);
    let generic = index(&[(MANIFEST, None, &other), (INDEX, Some("generic/generic"), &open)]);
    let all = [&own, &other, &inner, &foreign, &second, &third, &fourth, &open];
    for root in [&second, &third, &fourth, &open, &open_index, &several, &preferred, &generic] {
        let contents: Vec<&Value> = std::iter::once(root).chain(all).collect();
        let registry = holding(&contents, &[&ours, &theirs]);
        let site = Site::new();
        let (digest, _) = site.fetch(&registry.address, "g/nested", "1").unwrap();
        assert_eq!((digest, site.text("func.yml")), (digest_of(own.to_string().as_bytes()), "ours".into()));
    }

    let fifth = index(&[(INDEX, platform, &fourth)]);
    let contents: Vec<&Value> = std::iter::once(&fifth).chain(all).collect();
    let deep = holding(&contents, &[]);
    let message = Site::new().fetch(&deep.address, "g/nested", "1").unwrap_err().message;
    assert!(message.contains("more than 3 below each other"), "{message}");

    let nothing = index(&[(INDEX, None, &foreign), (INDEX, nobody, &inner)]);
    let registry = holding(&[&nothing, &foreign], &[]);
    let message = Site::new().fetch(&registry.address, "g/nested", "1").unwrap_err().message;
    assert!(message.contains(&here) && message.contains("plan9/mips"), "{message}");
}
