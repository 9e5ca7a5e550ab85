//! Tests against a real Git server.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use super::*;
use step_runner_lang::diagnostic::Class;
use step_runner_web::Network;

#[path = "../../../../../../tests/support/git_server.rs"]
mod git_server;
#[path = "../../../../../../tests/support/parts.rs"]
mod parts;

mod tls;
mod troubles;

use git_server::{GitServer, Repository, Trouble};

#[derive(Default)]
struct Client {
    credentials: BTreeMap<String, String>,
    /// Longest silence of the server.
    patience: Option<Duration>,
    variables: BTreeMap<&'static str, String>,
}

struct Tree {
    commit: String,
    stats: Stats,
    into: TempDir,
    /// Last reported number of bytes.
    bytes: u64,
}

impl Client {
    fn with(name: &str, value: &str) -> Self {
        let credentials = BTreeMap::from([(name.to_owned(), value.to_owned())]);
        Self { credentials, ..Self::default() }
    }

    fn fetch(&self, url: &str, revision: &str) -> Result<Tree, String> {
        let scratch = tempfile::tempdir().unwrap();
        let into = tempfile::tempdir().unwrap();
        let order = Order {
            source: Source::Git { url: url.to_owned(), revision: revision.to_owned() },
            network: Network::new(|name| self.variables.get(name).cloned(), |_| None),
            credentials: self.credentials.clone(),
            scratch: scratch.path().to_owned(),
        };
        let mut bytes = 0;
        let mut report = |progress: Progress| bytes = progress.bytes;
        let mut fetch = || {
            let mut git = match self.patience {
                Some(patience) => {
                    step_runner_web::use_ring();
                    let client = reqwest::blocking::Client::builder().no_proxy().timeout(patience);
                    Git::with_client(&order, client.build().unwrap())?
                }
                None => Git::new(&order)?,
            };
            let commit = git.resolve(&mut report)?;
            Ok((commit, git.transfer(into.path(), &mut report)?))
        };
        let fetched: Result<_, FetchFailure> = fetch();
        match fetched {
            Ok((commit, stats)) => Ok(Tree { commit, stats, into, bytes }),
            Err(failure) => {
                assert_eq!(failure.class, Class::Fetch);
                Err(failure.message)
            }
        }
    }
}

fn fetch(url: &str, revision: &str) -> Result<Tree, String> {
    Client::default().fetch(url, revision)
}

fn error(url: &str, revision: &str) -> String {
    fetch(url, revision).err().expect("a failure")
}

impl Tree {
    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.into.path().join(path)).unwrap()
    }

    fn paths(&self) -> Vec<String> {
        fn walk(folder: &Path, root: &Path, paths: &mut Vec<String>) {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                paths.push(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
                if path.is_dir() && !path.is_symlink() {
                    walk(&path, root, paths);
                }
            }
        }
        let mut paths = Vec::new();
        walk(self.into.path(), self.into.path(), &mut paths);
        paths.sort();
        paths
    }
}

/// Creates a repository with three commits, the first of which is no tip.
fn history(server: &GitServer) -> (Repository, [String; 3]) {
    let repository = server.repository("g/p");
    let one = repository.file("f", "one").commit("one");
    repository.git(&["tag", "v1"]);
    let two = repository.file("f", "two").file("steps/a/func.yml", "two").commit("two");
    repository.git(&["tag", "-d", "v1"]);
    repository.git(&["tag", "-a", "-m", "a tag", "v2"]);
    repository.git(&["tag", "-a", "-m", "a tag of a tag", "v2-again", "v2"]);
    let three = repository.file("f", "three").commit("three");
    repository.git(&["tag", "v3"]);
    repository.git(&["branch", "feature/x", "v2"]);
    (repository, [one, two, three])
}

#[test]
fn tags_branches_and_hashes_are_found_in_every_version_of_the_protocol() {
    for old in [false, true] {
        let Some(server) = GitServer::start("tags_branches_and_hashes") else { return };
        let (_repository, [one, two, three]) = history(&server);
        if old {
            server.use_old_protocol();
        }
        for (revision, commit, content) in [
            ("v2", &two, "two"),
            ("v2-again", &two, "two"),
            ("v3", &three, "three"),
            ("main", &three, "three"),
            ("HEAD", &three, "three"),
            ("feature/x", &two, "two"),
            (three.as_str(), &three, "three"),
            (one.as_str(), &one, "one"),
            ("refs/heads/main", &three, "three"),
            ("refs/heads/feature/x", &two, "two"),
            ("refs/tags/v2-again", &two, "two"),
            (three.get(..7).unwrap(), &three, "three"),
            (one.get(..7).unwrap(), &one, "one"),
            (two.get(..12).unwrap(), &two, "two"),
            (one.get(..39).unwrap(), &one, "one"),
        ] {
            let tree =
                fetch(&server.url("g/p"), revision).unwrap_or_else(|error| panic!("{revision}: {error}"));
            assert_eq!(&tree.commit, commit, "{revision}, old: {old}");
            assert_eq!(tree.read("f"), content, "{revision}");
            assert!(tree.bytes > 0);
        }
        let tree = fetch(&server.url("g/p"), "v2").unwrap();
        assert_eq!(tree.paths(), ["f", "steps", "steps/a", "steps/a/func.yml"]);
        assert_eq!(tree.stats, Stats { files: 2, entries: 4, bytes: 6 });
    }
}

#[test]
fn a_tag_or_branch_costs_one_small_pack() {
    let Some(server) = GitServer::start("a_tag_or_branch_costs_one_small_pack") else { return };
    history(&server);
    server.seen();
    fetch(&server.url("g/p"), "v2").unwrap();
    let seen = server.seen();
    assert_eq!(seen.len(), 3, "{seen:?}");
    assert_eq!(seen.iter().filter(|seen| seen.pack).count(), 1);
}

#[test]
fn a_commit_that_is_no_tip_is_found_whatever_the_server_allows() {
    for (is_old, filters, refuses, requests) in [
        // Greeting and pack.
        (false, false, false, 2),
        (true, false, false, 2),
        // Also a refusal, a new greeting, a list (which an old server's greeting includes) and the history.
        (false, false, true, 5),
        (true, false, true, 4),
        // Also the history without files, then one with them.
        (false, true, true, 7),
        (true, true, true, 5),
    ] {
        let Some(server) = GitServer::start("a_commit_that_is_no_tip") else { return };
        let (repository, [one, ..]) = history(&server);
        if is_old {
            server.use_old_protocol();
        }
        repository.git(&["config", "uploadpack.allowFilter", if filters { "true" } else { "false" }]);
        if refuses {
            server.trouble(Trouble::Refuses(one.clone()));
        }
        for revision in [one.as_str(), one.get(..10).unwrap()] {
            let tree = fetch(&server.url("g/p"), revision).unwrap();
            assert_eq!((tree.commit.as_str(), tree.read("f").as_str()), (one.as_str(), "one"));
            let seen = server.seen();
            assert!(revision != one || seen.len() == requests, "{is_old} {filters} {refuses}: {seen:?}");
        }
    }
}

#[test]
fn what_the_repository_does_not_have_is_said_by_name() {
    for old in [false, true] {
        let Some(server) = GitServer::start("what_the_repository_does_not_have") else { return };
        history(&server);
        server.repository("empty");
        if old {
            server.use_old_protocol();
        }
        for revision in [
            "v9",
            "deadbeef",
            "deadbee",
            "deadbe",
            "refs/tags/main",
            "deadbeefdeadbeefdeadbeefdeadbeefdeadbeef",
            "main~1",
            "-x",
        ] {
            let expected = format!("cannot find revision \"{revision}\" in {}/g/p", server.host());
            assert_eq!(error(&server.url("g/p"), revision), expected);
        }
        assert!(error(&server.url("empty"), "main").starts_with("cannot find revision \"main\""));
        assert!(error(&server.url("empty"), "deadbeef").starts_with("cannot find revision"));
        assert!(error(&server.url("nothing"), "main").contains("knows no such repository"));
    }
}

#[test]
fn a_moved_branch_is_seen_at_once() {
    let Some(server) = GitServer::start("a_moved_branch_is_seen_at_once") else { return };
    let repository = server.repository("p");
    let first = repository.file("f", "1").commit("1");
    assert_eq!(fetch(&server.url("p"), "main").unwrap().commit, first);
    let second = repository.file("f", "2").commit("2");
    let tree = fetch(&server.url("p"), "main").unwrap();
    assert_eq!((tree.commit, tree.into.path().join("f").metadata().unwrap().len()), (second, 1));
}

#[test]
fn what_is_no_commit_is_refused() {
    let Some(server) = GitServer::start("what_is_no_commit_is_refused") else { return };
    let repository = server.repository("p");
    repository.file("f", "x").commit("1");
    let tree = repository.git(&["rev-parse", "HEAD^{tree}"]);
    repository.git(&["tag", "tree", &tree]);
    for revision in ["tree", &tree] {
        assert!(error(&server.url("p"), revision).contains("is no commit"));
    }
}

#[test]
fn several_commits_whose_hashes_begin_alike_are_ambiguous() {
    let Some(server) = GitServer::start("several_commits_whose_hashes_begin_alike") else { return };
    let repository = server.repository("p");
    repository.file("f", "x").commit("1");
    let tree = repository.git(&["rev-parse", "HEAD^{tree}"]);
    let (first, second) = alike(&tree);
    let write = |text: &str| repository.git_with(&["hash-object", "-t", "commit", "-w", "--stdin"], text);
    let hashes = [write(&first), write(&second)];
    let prefix = hashes[0].get(..8).unwrap();
    assert!(hashes[1].starts_with(prefix));
    for (branch, hash) in ["a", "b"].iter().zip(&hashes) {
        repository.git(&["update-ref", &format!("refs/heads/{branch}"), hash]);
    }
    let ambiguous = format!("revision \"{prefix}\" in {}/p is ambiguous", server.host());
    assert!(error(&server.url("p"), prefix).starts_with(&ambiguous));
    let shorter = hashes[0].get(..7).unwrap();
    assert!(error(&server.url("p"), shorter).contains("is ambiguous"));
    let next = repository.git(&["commit-tree", &tree, "-p", &hashes[0], "-m", "next"]);
    repository.git(&["update-ref", "refs/heads/a", &next]);
    assert!(error(&server.url("p"), prefix).starts_with(&ambiguous), "one at a tip, one below");
    for (branch, hash) in ["a", "b"].iter().zip(&hashes) {
        let next = repository.git(&["commit-tree", &tree, "-p", hash, "-m", "next"]);
        repository.git(&["update-ref", &format!("refs/heads/{branch}"), &next]);
    }
    assert!(error(&server.url("p"), prefix).starts_with(&ambiguous), "below the tips");
    assert_eq!(fetch(&server.url("p"), hashes[0].get(..30).unwrap()).unwrap().commit, hashes[0]);
}

/// Makes two commits of `tree` whose hashes share the first eight digits.
fn alike(tree: &str) -> (String, String) {
    let mut seen = BTreeMap::new();
    (0..)
        .find_map(|number: u32| {
            let person = "A U Thor <author@example.com> 1700000000 +0000";
            let text = format!("tree {tree}\nauthor {person}\ncommitter {person}\n\n{number}\n");
            let id = gix::objs::compute_hash(gix::hash::Kind::Sha1, Kind::Commit, text.as_bytes()).unwrap();
            let begin: [u8; 4] = id.as_bytes().get(..4).unwrap().try_into().unwrap();
            seen.insert(begin, text.clone()).map(|other| (other, text))
        })
        .unwrap()
}

#[test]
fn files_keep_their_executable_bit_and_their_bytes() {
    let Some(server) = GitServer::start("files_keep_their_executable_bit") else { return };
    let repository = server.repository("p");
    repository.file("run.sh", "#!/bin/sh\r\n").executable("run.sh").file("plain", "$Id$\n");
    repository.file(".gitattributes", "* text eol=crlf ident filter=evil\n");
    repository.git(&["config", "core.autocrlf", "false"]);
    let canary = tempfile::tempdir().unwrap();
    let evil = format!("touch {}/ran", canary.path().display());
    repository.git(&["config", "filter.evil.smudge", &evil]);
    repository.file(".git/hooks/post-checkout", &format!("#!/bin/sh\n{evil}\n"));
    repository.executable(".git/hooks/post-checkout");
    repository.commit("1");
    let tree = fetch(&server.url("p"), "main").unwrap();
    let mode = |path: &str| fs::metadata(tree.into.path().join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("run.sh"), mode("plain")), (0o555, 0o444));
    assert_eq!(tree.read("plain"), repository.git(&["cat-file", "blob", "main:plain"]) + "\n");
    assert!(!canary.path().join("ran").exists());
}

#[test]
fn fault_68_links_stay_inside_and_submodules_stay_out() {
    let Some(server) = GitServer::start("fault_68_links_stay_inside_and_submodules_stay_out") else { return };
    let repository = server.repository("p");
    repository.file("a/f", "content").link("a/inside", "../a/f").link("dir", "a").link("dangling", "none");
    repository.link("a/out", "../../etc").link("absolute", "/etc/passwd").link("a/around", "b/../../../etc");
    repository.commit("1");
    let commit = repository.git(&["rev-parse", "HEAD"]);
    repository.git(&["update-index", "--add", "--cacheinfo", &format!("160000,{commit},sub")]);
    repository.git(&["commit", "-q", "-m", "2"]);
    let tree = fetch(&server.url("p"), "main").unwrap();
    assert_eq!(tree.paths(), ["a", "a/f", "a/inside", "dangling", "dir"]);
    assert_eq!(tree.read("dir/inside"), "content");
}

#[test]
fn fault_69_a_tree_with_hostile_names_is_refused() {
    let Some(server) = GitServer::start("fault_69_a_tree_with_hostile_names_is_refused") else { return };
    let repository = server.repository("p");
    repository.file("f", "x").commit("1");
    let blob = repository.blob("[core]\nfsmonitor = touch canary\n");
    let config = repository.tree(&format!("100644 blob {blob}\tconfig\n"));
    for (name, kind) in [
        (".git", "040000 tree"),
        (".GIT", "040000 tree"),
        ("git~1", "040000 tree"),
        (".g\u{200c}it", "040000 tree"),
        ("..", "040000 tree"),
        (".", "040000 tree"),
        ("..", "100644 blob"),
        (".gitmodules", "120000 blob"),
    ] {
        let object = if kind.ends_with("tree") { &config } else { &blob };
        let tree = repository.tree(&format!("{kind} {object}\t{name}\n"));
        let commit = repository.commit_of_tree(&tree);
        repository.git(&["update-ref", "refs/heads/hostile", &commit]);
        let message = error(&server.url("p"), "hostile");
        assert!(message.contains("which is refused"), "{name:?}: {message}");
    }
}

#[test]
fn credentials_come_from_the_url_or_after_being_asked_from_netrc() {
    let Some(server) = GitServer::start("credentials_come_from_the_url") else { return };
    let repository = server.repository("p");
    let commit = repository.file("f", "x").commit("1");
    server.require("us@er", "s3cr:t");
    let url = server.url("p");
    assert_eq!(fetch(&server.url_as("us%40er:s3cr%3At", "p"), "main").unwrap().commit, commit);
    assert!(server.seen().iter().all(|seen| seen.authorization.is_some()));
    for netrc in ["machine 127.0.0.1 login us@er password s3cr:t", "default login us@er password s3cr:t"] {
        let client = Client::with("netrc", netrc);
        assert_eq!(client.fetch(&url, "main").unwrap().commit, commit);
        let seen = server.seen();
        assert!(seen.first().unwrap().authorization.is_none(), "not before it is asked for");
        assert!(seen.iter().skip(1).all(|seen| seen.authorization.is_some()));
    }
    let refused = |client: &Client, url: &str| {
        let message = client.fetch(url, "main").err().unwrap();
        assert!(
            message.starts_with(&format!("cannot fetch from {}/p: credentials", server.host())),
            "{message}"
        );
        assert!(
            !message.contains("s3cr") && !message.contains("us@er") && !message.contains("us%40er"),
            "{message}"
        );
    };
    refused(&Client::default(), &url);
    refused(&Client::default(), &server.url_as("us%40er:s3cret", "p"));
    refused(&Client::with("netrc", "machine 127.0.0.1 login us@er password s3cret"), &url);
    refused(&Client::with("netrc", "machine example.com login us@er password s3cr:t"), &url);
    let mut token = Client::with("CI_JOB_TOKEN", "s3cr:t");
    token.credentials.insert("CI_SERVER_HOST".to_owned(), "127.0.0.1".to_owned());
    server.seen();
    refused(&token, &url);
    assert!(server.seen().iter().all(|seen| seen.authorization.is_none()), "a token in clear text");
}

#[test]
fn a_redirect_is_followed_without_taking_credentials_along() {
    let Some(server) = GitServer::start("a_redirect_is_followed") else { return };
    let Some(other) = GitServer::start("a_redirect_is_followed") else { return };
    let commit = server.repository("p").file("f", "x").commit("1");
    assert_eq!(other.repository("p").file("f", "x").commit("1"), commit);
    server.trouble(Trouble::Redirect(String::new()));
    assert_eq!(fetch(&server.url_as("user:s3cret", "moved/p"), "main").unwrap().commit, commit);
    assert!(server.seen().iter().all(|seen| seen.authorization.is_some()), "the same server");
    server.trouble(Trouble::Redirect(format!("http://x:y@{}", other.host())));
    assert_eq!(fetch(&server.url_as("user:s3cret", "moved/p"), "main").unwrap().commit, commit);
    let seen = other.seen();
    assert_eq!(seen.len(), 3, "the requests after the first go straight there");
    assert!(seen.iter().all(|seen| seen.authorization.is_none()), "{seen:?}");
    other.require("user", "s3cret");
    assert!(error(&server.url_as("user:s3cret", "moved/p"), "main").contains("credentials are missing"));
    let anybody = Client::with("netrc", "default login user password s3cret");
    other.seen();
    assert!(anybody.fetch(&server.url("moved/p"), "main").is_err());
    assert!(other.seen().iter().all(|seen| seen.authorization.is_none()), "the default entry went astray");
}

#[test]
fn a_redirect_that_leads_nowhere_is_not_followed() {
    let Some(server) = GitServer::start("a_redirect_that_leads_nowhere") else { return };
    let redirected = |to: &str| {
        server.trouble(Trouble::Redirect(to.to_owned()));
        error(&server.url("moved/p"), "main")
    };
    assert!(redirected("/moved").contains("redirects too often"));
    for place in ["/users/sign_in?", "file://", "ftp://example.com", "ext::"] {
        let message = redirected(place);
        assert!(message.contains("no Git repository") || message.contains("no such repository"), "{message}");
    }
}

#[test]
fn a_server_that_falls_silent_is_given_up() {
    let Some(server) = GitServer::start("a_server_that_falls_silent_is_given_up") else { return };
    server.repository("p").file("f", &"0123456789\n".repeat(1000)).commit("1");
    for trouble in [Trouble::Silent, Trouble::SilentPack] {
        server.trouble(trouble.clone());
        let impatient = Client { patience: Some(Duration::from_secs(1)), ..Client::default() };
        let message = impatient.fetch(&server.url("p"), "main").err().unwrap();
        assert!(message.contains("sent nothing"), "{trouble:?}: {message}");
    }
}

#[test]
fn hosts_that_cannot_be_reached_have_their_own_words() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert!(error(&format!("http://{free}/p"), "main").contains("connection was refused"));
    assert!(error("https://no-such-host.invalid/p", "main").contains("cannot be resolved"));
    let Some(server) = GitServer::start("hosts_that_cannot_be_reached") else { return };
    let clear = server.url("p").replace("http://", "https://");
    assert!(error(&clear, "main").contains("no TLS connection"));
    let mut client = Client::default();
    client.variables.insert("http_proxy", format!("http://user:s3cret@{free}"));
    let message = client.fetch("http://no-such-host.invalid/p", "main").err().unwrap();
    assert!(message.contains("refused") && !message.contains("s3cret"), "{message}");
    assert!(message.contains("the proxy in http_proxy"), "{message}");
}

#[test]
fn a_repository_of_sha_256_is_refused_by_name() {
    let Some(server) = GitServer::start("a_repository_of_sha_256_is_refused_by_name") else { return };
    for old in [false, true] {
        let name = format!("p{old}");
        let repository = server.repository_with(&name, &["-q", "-b", "main", "--object-format=sha256"]);
        repository.file("f", "x").commit("1");
        if old {
            server.use_old_protocol();
        }
        let message = error(&server.url(&name), "main");
        assert!(message.contains("SHA-256"), "{message}");
    }
}

#[test]
fn a_url_that_is_refused_is_not_quoted() {
    for url in ["ssh://git:s3cret@h/p", "https://u:s3cret@/p", "https://u:s3cret@h/p?x"] {
        let message = error(url, "main");
        assert!(message.starts_with("the repository's URL") && !message.contains("s3cret"), "{message}");
    }
}

#[test]
fn a_url_that_gits_library_refuses_is_not_taken_for_an_answer_of_a_server() {
    let host = "a.".repeat(600);
    let message = error(&format!("https://u:s3cret@{host}test/p"), "main");
    assert!(message.contains("Git's library does not take the repository's URL (The host"), "{message}");
    assert!(message.contains("too long") && !message.contains("s3cret"), "{message}");
}
