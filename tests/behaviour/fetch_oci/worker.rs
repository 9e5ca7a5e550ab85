//! The fetching process, with one request each.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::mpsc;

use serde_json::json;
use step_runner::fetch::order::{Order, Source, Stats};
use step_runner::lang::diagnostic::Class;
use step_runner::oci::digest_of;
use step_runner::web::Network;

use super::site::{Site, manifest, scripted};
use super::{gzip, image, tar, zstd};
use crate::support::PATIENCE;
use crate::support::registry::{
    DockerRegistry, GZIP_LAYER, PASSWORD, PLAIN_LAYER, STEP_LAYER, Scripted, USER, authority, docker_config,
    response,
};

#[test]
fn a_worker_is_held_to_what_a_transfer_needs() {
    let (asked, was_asked) = mpsc::channel();
    // No request is answered before the end of the test.
    let registry = Scripted::start(move |_| {
        asked.send(()).ok();
        std::thread::park();
        Vec::new()
    });
    let mut command = Command::new(env!("CARGO_BIN_EXE_step-runner"));
    command.arg("fetch").env_clear().stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    let (registry, repository, version) = (registry.address.clone(), "g/echo".into(), "1".into());
    let source = Source::Oci { registry, repository, version };
    let (network, credentials) = (Network::default(), BTreeMap::new());
    let order = Order { source, network, credentials, scratch: "/nonexistent".into() };
    let line = serde_json::to_string(&order).unwrap() + "\n";
    let mut input = child.stdin.take().unwrap();
    input.write_all(line.as_bytes()).unwrap();
    was_asked.recv_timeout(PATIENCE).unwrap();

    let read = |name: &str| std::fs::read_to_string(format!("/proc/{}/{name}", child.id())).unwrap();
    assert_eq!(read("oom_score_adj").trim(), "1000");
    let limits = read("limits");
    let limit = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().to_owned()
    };
    for (name, expected) in [("Max cpu time", 600), ("Max core file size", 0)] {
        assert_eq!(limit(name), expected.to_string(), "{name}");
    }
    // What the program has mapped before counts besides.
    let data: u64 = limit("Max data size").parse().unwrap();
    assert!((512 << 20..576 << 20).contains(&data), "{data}");
    drop(input);
    child.wait().unwrap();
}

#[test]
fn layers_of_every_packing_make_one_tree() {
    let Some(registry) = DockerRegistry::start() else { return };
    let layers = [
        (PLAIN_LAYER, tar(&[("func.yml", 0o644, "old"), ("gone", 0o644, "x"), ("bin/run", 0o755, "#!")])),
        (GZIP_LAYER, gzip(&tar(&[("func.yml", 0o644, "new"), (".wh.gone", 0o644, "")]))),
        (STEP_LAYER, zstd(&tar(&[("reverse/func.yml", 0o644, "deep")]))),
    ];
    let digest = registry.push("g/echo", "1", &layers);
    let site = Site::new();
    for version in ["1", digest.as_str()] {
        let (resolved, stats) = site.fetch(&registry.address, "g/echo", version).unwrap();
        assert_eq!(resolved, digest);
        assert_eq!(stats, Stats { files: 3, entries: 5, bytes: 9 });
        assert_eq!((site.text("func.yml"), site.text("reverse/func.yml")), ("new".into(), "deep".into()));
        assert!(!site.tree().join("gone").exists());
        let mode =
            |path: &str| std::fs::metadata(site.tree().join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("bin/run"), mode("func.yml")), (0o555, 0o444));
    }
}

#[test]
fn a_tag_is_looked_up_each_time_and_a_digest_stays() {
    let Some(registry) = DockerRegistry::start() else { return };
    let first = registry.push("echo", "latest", &image("1"));
    let site = Site::new();
    assert_eq!(site.fetch(&registry.address, "echo", "").unwrap().0, first);
    let second = registry.push("echo", "latest", &image("2"));
    assert_eq!(site.fetch(&registry.address, "echo", "").unwrap().0, second);
    assert_eq!(site.text("func.yml"), "2");
    assert_eq!(site.fetch(&registry.address, "echo", &first).unwrap().0, first);
    assert_eq!(site.text("func.yml"), "1");
}

#[test]
fn an_index_gives_the_image_for_this_machine_else_the_generic_one() {
    let Some(registry) = DockerRegistry::start() else { return };
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let ours = registry.push("echo", "ours", &image("ours"));
    let generic = registry.push("echo", "generic", &image("generic"));
    let other = registry.push("echo", "other", &image("other"));
    let here = format!("linux/{architecture}");
    registry.push_index(
        "echo",
        "all",
        &[("windows/arm", other.clone()), ("generic/generic", generic.clone()), (&here, ours.clone())],
    );
    registry.push_index(
        "echo",
        "any",
        &[("windows/arm", other.clone()), ("generic/generic", generic.clone())],
    );
    registry.push_index("echo", "none", &[("windows/arm", other)]);

    let site = Site::new();
    assert_eq!(site.fetch(&registry.address, "echo", "all").unwrap().0, ours);
    assert_eq!(site.text("func.yml"), "ours");
    assert_eq!(site.fetch(&registry.address, "echo", "any").unwrap().0, generic);
    let error = site.fetch(&registry.address, "echo", "none").unwrap_err();
    assert_eq!(error.class, Class::Fetch);
    assert!(error.message.contains(&here) && error.message.contains("windows/arm"), "{}", error.message);
}

#[test]
fn credentials_come_from_the_docker_configuration() {
    let Some(registry) = DockerRegistry::start_protected() else { return };
    registry.push("g/echo", "1", &image("x"));
    let address = &registry.address;
    let says = |config: &str| {
        let error = Site::with_config(config).fetch(address, "g/echo", "1").unwrap_err();
        assert_eq!(error.class, Class::Fetch);
        assert!(
            error.message.starts_with(&format!("cannot fetch {address}/g/echo:1: ")),
            "{}",
            error.message
        );
        assert!(!error.message.contains("hunter2") && !error.message.contains(PASSWORD), "{}", error.message);
        error.message
    };
    for key in [address.clone(), format!("{address}/g/echo"), format!("https://{address}/v1/")] {
        Site::with_config(&docker_config(&key, USER, PASSWORD)).fetch(address, "g/echo", "1").unwrap();
    }
    assert!(says(&docker_config(address, USER, "hunter2")).contains("refuses the credentials"));
    assert!(says("{}").contains("asks for credentials"));
    assert!(says("hunter2").contains("DOCKER_AUTH_CONFIG"));
    let both = json!({"auths": {
        address: {"username": USER, "password": PASSWORD},
        format!("{address}/g/echo"): {"username": USER, "password": "hunter2"},
    }});
    assert!(says(&both.to_string()).contains("refuses the credentials"), "the repository's come first");
}

#[test]
fn what_is_not_there_is_said() {
    let Some(registry) = DockerRegistry::start() else { return };
    registry.push("echo", "1", &image("x"));
    let site = Site::new();
    for (repository, version) in
        [("echo", "2"), ("other", "1"), ("echo", &format!("sha256:{}", "0".repeat(64)))]
    {
        let error = site.fetch(&registry.address, repository, version).unwrap_err();
        assert_eq!(error.class, Class::Fetch);
        assert!(error.message.contains("no such repository or tag"), "{}", error.message);
    }
    for (registry, repository, version) in
        [("r.example.com/x", "e", "1"), (&registry.address, "../e", "1"), (&registry.address, "e", "a b")]
    {
        assert!(site.fetch(registry, repository, version).unwrap_err().message.contains("is not a valid"));
    }
}

#[test]
fn fault_69_hostile_images_touch_nothing_outside() {
    let Some(registry) = DockerRegistry::start() else { return };
    let mut escape = tar(&[("xx/canary", 0o644, "bad")]);
    escape[..2].copy_from_slice(b"..");
    // Computes the checksum of the changed header.
    let sum: u32 =
        escape[..148].iter().chain(&escape[156..512]).map(|&byte| u32::from(byte)).sum::<u32>() + 256;
    escape[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let zeros = zstd::stream::encode_all(std::io::Read::take(std::io::repeat(0), 96 << 20), 1).unwrap();
    let mut header = tar::Header::new_ustar();
    header.set_path("bomb").unwrap();
    header.set_size(96 << 20);
    header.set_mode(0o644);
    header.set_cksum();
    let bomb = [zstd(header.as_bytes()), zeros].concat();
    registry.push("bad", "escape", &[(PLAIN_LAYER, escape)]);
    registry.push("bad", "bomb", &[(STEP_LAYER, bomb)]);
    registry.push("bad", "type", &[("application/vnd.wasm.content.layer.v1+wasm", b"x".to_vec())]);
    registry.push("bad", "garbage", &[(GZIP_LAYER, b"garbage".to_vec())]);

    let site = Site::new();
    for (tag, class, says) in [
        ("escape", Class::Fetch, "../canary"),
        ("bomb", Class::Limit, "200 times"),
        ("type", Class::Fetch, "wasm"),
        ("garbage", Class::Fetch, "no valid archive"),
    ] {
        let error = site.fetch(&registry.address, "bad", tag).unwrap_err();
        assert_eq!(error.class, class, "{tag}: {}", error.message);
        assert!(error.message.contains(says), "{tag}: {}", error.message);
    }
}

#[test]
fn a_registry_on_this_machine_is_reached_without_a_proxy() {
    let layer = tar(&[("func.yml", 0o644, "x")]);
    let registry = scripted(move |head| match head {
        head if head.contains("/blobs/") => response("200 OK", "", &layer),
        _ => manifest(&digest_of(&layer), layer.len()),
    });
    let network =
        Network::new(|name| (name == "http_proxy").then(|| "http://127.0.0.1:1".to_owned()), |_| None);
    let site = Site { network, ..Site::new() };
    site.fetch(&registry.address, "g/echo", "1").unwrap();
}

#[test]
fn every_fault_of_a_registry_has_its_own_words() {
    let plain = |status: &'static str| scripted(move |_| response(status, "", b"<html>"));
    let layer = tar(&[("func.yml", 0o644, "x")]);
    let (digest, size) = (digest_of(&layer), layer.len());
    let blob = |size: usize, answer: Vec<u8>| {
        let digest = digest.clone();
        scripted(move |head| if head.contains("/blobs/") { answer.clone() } else { manifest(&digest, size) })
    };
    let cut = response("200 OK", "", &layer)[..600].to_vec();
    let other = [&layer[..size - 1], b"x"].concat();
    let long = [&layer[..], b"x"].concat();
    let faults = [
        ("forbidden", plain("403 Forbidden"), "asks for credentials"),
        ("limited", plain("429 Too Many Requests"), "status 429"),
        ("failing", plain("500 Internal Server Error"), "status 500"),
        ("unavailable", plain("503 Service Unavailable"), "status 503"),
        ("odd", plain("418 Teapot"), "status 418"),
        ("html", plain("200 OK"), "not a registry's"),
        ("no http", scripted(|_| b"SSH-2.0-OpenSSH\r\n".to_vec()), "connection broke"),
        ("closes", scripted(|_| Vec::new()), "connection broke"),
        (
            "redirects for ever",
            scripted(|_| response("302 Found", "Location: /v2/x\r\n", b"")),
            "redirection",
        ),
        ("cut", blob(size, cut), "connection broke"),
        ("shorter", blob(size + 1, response("200 OK", "", &layer)), "connection broke"),
        ("longer", blob(size, response("200 OK", "", &long)), "larger than announced"),
        ("other content", blob(size, response("200 OK", "", &other)), "does not have the digest"),
        ("blob gone", blob(size, response("404 Not Found", "", b"")), "the registry lacks sha256:"),
        ("bad digest", scripted(|_| manifest("sha256:../../x", 1)), "malformed digest"),
        ("too large", scripted(|_| manifest(&digest_of(b""), 2 << 30)), "larger than"),
    ];
    // Some faults are waited for, so all have their turn at once.
    std::thread::scope(|scope| {
        for (name, registry, says) in &faults {
            scope.spawn(move || {
                let error = Site::new().fetch(&registry.address, "g/echo", "1").unwrap_err();
                let class = if *name == "too large" { Class::Limit } else { Class::Fetch };
                assert_eq!(error.class, class, "{name}: {}", error.message);
                assert!(error.message.contains(says), "{name}: {}", error.message);
                let image = format!("{}/g/echo:1", registry.address);
                let is_of_image = ["other content", "blob gone", "too large"].contains(name);
                let used = format!("the image {image} cannot be used: ");
                let begin = if is_of_image { used } else { format!("cannot fetch {image}: ") };
                assert!(error.message.starts_with(&begin), "{name}: {}", error.message);
            });
        }
    });

    let site = Site::new();
    let pinned = format!("sha256:{}", "0".repeat(64));
    let wrong = scripted(move |_| manifest(&digest_of(b""), 0));
    let error = site.fetch(&wrong.address, "g/echo", &pinned).unwrap_err();
    assert!(error.message.contains("does not have the digest"), "{}", error.message);

    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let error = site.fetch(&closed, "g/echo", "1").unwrap_err();
    assert!(error.message.contains("cannot be reached"), "{}", error.message);
}

#[test]
fn another_server_that_refuses_does_not_blame_the_credentials() {
    let layer = tar(&[("func.yml", 0o644, "x")]);
    let storage = Scripted::start(|_| response("401 Unauthorized", "", b""));
    let elsewhere = format!("Location: http://{}/layer?signature=s3cret\r\n", storage.address);
    let registry = scripted(move |head| match head {
        head if head.contains("/blobs/") => response("307 Temporary Redirect", &elsewhere, b""),
        _ => manifest(&digest_of(&layer), layer.len()),
    });
    let config = docker_config(&registry.address, USER, PASSWORD);
    let message = Site::with_config(&config).fetch(&registry.address, "g/echo", "1").unwrap_err().message;
    let says = format!("redirects to {}, which refuses the request (status 401)", storage.address);
    assert!(message.contains(&says) && !message.contains("s3cret"), "{message}");
}

/// Starts a registry that asks for a token of the token server at `realm`.
fn asking_for_token(realm: String) -> Scripted {
    Scripted::start(move |head| {
        if head.contains("\r\nauthorization: Bearer good-token\r\n") {
            return if head.contains("/blobs/") {
                response("200 OK", "", &tar(&[("func.yml", 0o644, "x")]))
            } else if head.starts_with("GET /v2/ ") {
                response("200 OK", "", b"{}")
            } else {
                let layer = tar(&[("func.yml", 0o644, "x")]);
                manifest(&digest_of(&layer), layer.len())
            };
        }
        let challenge =
            format!("WWW-Authenticate: Bearer realm=\"http://{realm}/token\",service=\"tests\"\r\n");
        response("401 Unauthorized", &challenge, b"{}")
    })
}

#[test]
fn a_token_is_fetched_where_the_registry_says_and_credentials_go_no_further() {
    let tokens = Scripted::start(|head| {
        // Base64 of user:secret.
        if head.contains("\r\nauthorization: Basic dXNlcjpzZWNyZXQ=\r\n") {
            response("200 OK", "", br#"{"token": "good-token"}"#)
        } else {
            response("401 Unauthorized", "", b"{}")
        }
    });
    let registry = asking_for_token(tokens.address.clone());
    let config = docker_config(&registry.address, USER, PASSWORD);
    Site::with_config(&config).fetch(&registry.address, "g/echo", "1").unwrap();
    let asked = tokens.heads();
    assert!(asked[0].contains("scope=repository%3Ag%2Fecho%3Apull"), "{asked:?}");
    assert!(
        registry.heads().iter().all(|head| !head.contains("Basic")),
        "the password goes to the token server alone"
    );

    let config = docker_config(&registry.address, USER, "hunter2");
    let error = Site::with_config(&config).fetch(&registry.address, "g/echo", "1").unwrap_err();
    assert!(error.message.contains("refuses the credentials"), "{}", error.message);

    let third = Scripted::start(|_| response("200 OK", "", br#"{"token": "good-token"}"#));
    let elsewhere = format!("Location: http://{}/token\r\n", third.address);
    let redirecting = Scripted::start(move |_| response("307 Temporary Redirect", &elsewhere, b""));
    let registry = asking_for_token(redirecting.address.clone());
    let config = docker_config(&registry.address, USER, PASSWORD);
    Site::with_config(&config).fetch(&registry.address, "g/echo", "1").unwrap();
    assert!(third.heads().iter().all(|head| !head.contains("uthorization:")), "{:?}", third.heads());
}

#[test]
fn a_token_that_is_none_is_an_error() {
    for token in [r#"{"token": "a\nb"}"#, "{}", "<html>", r#"{"token": "e30.eyJleHAiOjF9.x"}"#] {
        let tokens = Scripted::start(move |_| response("200 OK", "", token.as_bytes()));
        let registry = asking_for_token(tokens.address.clone());
        let error = Site::new().fetch(&registry.address, "g/echo", "1").unwrap_err();
        assert_eq!(error.class, Class::Fetch, "{token}: {}", error.message);
        assert!(!error.message.contains("defect"), "{token}: {}", error.message);
    }
}

#[test]
fn other_registries_are_reached_by_tls_and_through_the_proxy() {
    let layer = tar(&[("func.yml", 0o644, "x")]);
    let proxy = Scripted::behind_proxy(move |head| match head {
        head if head.contains("/blobs/") => response("200 OK", "", &layer),
        head if head.contains("/manifests/") => manifest(&digest_of(&layer), layer.len()),
        _ => response("200 OK", "", b"{}"),
    });
    let address = format!("http://{USER}:{PASSWORD}@{}", proxy.address);
    let authority = authority().to_str().unwrap().to_owned();
    let site = |variables: &[(&str, &str)]| {
        let value =
            |name: &str| variables.iter().find(|known| known.0 == name).map(|known| known.1.to_owned());
        Site { network: Network::new(value, |_| None), ..Site::new() }
    };
    for name in ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"] {
        let site = site(&[(name, &address), ("SSL_CERT_FILE", &authority)]);
        site.fetch("registry.example.com", "g/echo", "1").unwrap();
        assert_eq!(site.text("func.yml"), "x");
    }
    assert!(proxy.heads()[0].starts_with("CONNECT registry.example.com:443 "), "{:?}", proxy.heads());

    for (variables, says) in [
        (vec![("HTTPS_PROXY", address.as_str())], "certificate or TLS is refused"),
        (vec![("HTTPS_PROXY", "ftp://secret@")], "HTTPS_PROXY"),
        (vec![("SSL_CERT_FILE", "/nonexistent/secret")], "SSL_CERT_FILE"),
    ] {
        let error = site(&variables).fetch("registry.example.com", "g/echo", "1").unwrap_err();
        assert_eq!(error.class, Class::Fetch);
        assert!(error.message.contains(says) && !error.message.contains(PASSWORD), "{}", error.message);
    }
    let error = site(&[("HTTPS_PROXY", &address), ("SSL_CERT_FILE", &authority)]).fetch(
        "other.example.com",
        "e",
        "1",
    );
    assert!(error.unwrap_err().message.contains("TLS is refused"), "the certificate is another's");
}
