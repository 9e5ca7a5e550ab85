//! Tests of servers that fail, for ever or for a while.

use super::*;

#[test]
fn every_trouble_of_a_server_has_its_own_words() {
    // Some faults are waited for, so all have their turn at once.
    std::thread::scope(|scope| {
        for (trouble, words) in [
            (Trouble::Status(500), "status 500"),
            (Trouble::Status(503), "status 503"),
            (Trouble::Status(429), "status 429"),
            (Trouble::Limited(600), "status 429"),
            (Trouble::Status(403), "credentials"),
            (Trouble::Status(404), "no such repository"),
            (Trouble::Status(418), "status 418"),
            (Trouble::Page, "not Git's protocol"),
            (Trouble::Noise, "not Git's protocol"),
            (Trouble::Says("access denied"), "the server says: access denied"),
            (Trouble::CutList, "connection broke"),
            (Trouble::CutPack, "connection broke"),
            (Trouble::Closed, "connection broke"),
            (Trouble::DamagedPack, "is damaged ("),
        ] {
            scope.spawn(move || {
                let Some(server) = GitServer::start("every_trouble_of_a_server") else { return };
                server.repository("p").file("f", &"0123456789\n".repeat(1000)).commit("1");
                server.trouble(trouble.clone());
                let message = error(&server.url_as("user:s3cret", "p"), "main");
                assert!(
                    message.starts_with(&format!("cannot fetch from {}/p: ", server.host())),
                    "{message}"
                );
                assert!(message.contains(words), "{trouble:?}: {message}");
                assert!(!message.contains("s3cret"));
            });
        }
    });
}

#[test]
fn fault_112_a_read_from_a_git_server_is_tried_again() {
    for (trouble, requests) in [
        (Trouble::Status(503), 1),
        (Trouble::Status(408), 2),
        (Trouble::Limited(1), 1),
        (Trouble::Closed, 1),
        (Trouble::CutList, 1),
        (Trouble::CutPack, 2),
    ] {
        let Some(server) = GitServer::start("a_read_from_a_git_server_is_tried_again") else { return };
        let repository = server.repository("p");
        let commit = repository.file("f", &"0123456789\n".repeat(1000)).commit("1");
        for revision in ["main", commit.get(..7).unwrap()] {
            server.trouble_for(requests, trouble.clone());
            let tree = fetch(&server.url("p"), revision);
            let tree = tree.unwrap_or_else(|error| panic!("{trouble:?}, {revision}: {error}"));
            assert_eq!((&tree.commit, tree.read("f").len()), (&commit, 11_000), "{trouble:?}");
        }
    }
    let Some(server) = GitServer::start("a_read_from_a_git_server_is_tried_again") else { return };
    for trouble in [Trouble::Status(401), Trouble::Status(403), Trouble::Status(404), Trouble::Limited(600)] {
        server.seen();
        server.trouble(trouble.clone());
        error(&server.url("p"), "main");
        assert_eq!(server.seen().len(), 1, "{trouble:?}");
    }
}
