use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use super::*;
use crate::lock::outwait_the_dead;
use crate::socket::{Claim, ClaimError, MAX_PATH, claim};

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn socket_is_private_serves_and_is_removed_at_the_end() {
    let temp = temp();
    let path = temp.path().join("made/s.sock");
    let (listener, claim) = claim(&path, 0o600).unwrap();
    assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
    let mut client = UnixStream::connect(&path).unwrap();
    client.write_all(b"x").unwrap();
    let mut byte = [0];
    listener.accept().unwrap().0.read_exact(&mut byte).unwrap();
    drop(claim);
    assert!(!path.exists());
    assert!(path.with_extension("sock.lock").exists(), "removing the lock file would open a race");
}

#[test]
fn wider_permissions_are_set_whatever_the_umask() {
    let temp = temp();
    let path = temp.path().join("s");
    let (_listener, _claim) = claim(&path, 0o666).unwrap();
    assert_eq!(mode(&path), 0o666);
}

#[test]
fn living_daemon_is_named_and_not_disturbed() {
    let temp = temp();
    let path = temp.path().join("s");
    let (_listener, first) = claim(&path, 0o600).unwrap();
    let error = claim(&path, 0o600).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("already serving on {} (pid {})", path.display(), std::process::id())
    );
    assert!(UnixStream::connect(&path).is_ok());
    drop(first);
    // A listener that takes no lock.
    let _foreign = UnixListener::bind(&path).unwrap();
    let error = claim(&path, 0o600).unwrap_err();
    assert!(
        matches!(error, ClaimError::AlreadyServing { pid: Some(pid), .. } if pid == std::process::id()),
        "{error}"
    );
    assert!(UnixStream::connect(&path).is_ok());
}

#[test]
fn stale_socket_is_taken_over() {
    let temp = temp();
    let path = temp.path().join("s");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let (_listener, _claim) = claim(&path, 0o600).unwrap();
    assert!(UnixStream::connect(&path).is_ok());
}

#[test]
fn anything_but_a_socket_stays_where_it_is() {
    let temp = temp();
    let at = |name: &str| temp.path().join(name);
    fs::write(at("file"), "x").unwrap();
    fs::create_dir(at("dir")).unwrap();
    symlink(at("file"), at("link")).unwrap();
    symlink(at("nowhere"), at("dangling")).unwrap();
    for (name, what) in [
        ("file", "a file"),
        ("dir", "a directory"),
        ("link", "a symbolic link"),
        ("dangling", "a symbolic link"),
    ] {
        let error = claim(&at(name), 0o600).unwrap_err().to_string();
        assert!(error.contains(&format!("is {what}, not a socket: remove it")), "{error}");
        assert!(fs::symlink_metadata(at(name)).is_ok_and(|found| !found.file_type().is_socket()));
    }
    symlink(at("file"), at("s.lock")).unwrap();
    assert!(claim(&at("s"), 0o600).is_err(), "a link in place of the lock");
    assert_eq!(fs::read_to_string(at("file")).unwrap(), "x");
}

#[test]
fn path_is_limited() {
    let temp = temp();
    let path_of = |length: usize| {
        let directory = temp.path().to_str().unwrap();
        temp.path().join("s".repeat(length - directory.len() - 1))
    };
    for length in [MAX_PATH - 1, MAX_PATH] {
        assert!(claim(&path_of(length), 0o600).is_ok(), "{length}");
    }
    let error = claim(&path_of(MAX_PATH + 1), 0o600).unwrap_err();
    assert!(error.to_string().contains("is 101 bytes long, at most 100 are possible"), "{error}");
}

#[test]
fn what_a_dead_process_left_open_is_waited_for_and_a_living_holder_is_not() {
    let mut dead = std::process::Command::new("true").spawn().unwrap();
    dead.wait().unwrap();
    for (holder, attempts_made) in [(Some(dead.id()), 3), (Some(std::process::id()), 1), (None, 1)] {
        let mut attempts = 0;
        let attempt = || {
            attempts += 1;
            if attempts < 3 { Err(holder) } else { Ok(()) }
        };
        let taken = outwait_the_dead(attempt, |&holder| holder);
        assert_eq!((attempts, taken), (attempts_made, if attempts_made == 3 { Ok(()) } else { Err(holder) }));
    }
}

#[test]
fn socket_of_a_successor_is_not_removed() {
    let temp = temp();
    let path = temp.path().join("s");
    let (_listener, first) = claim(&path, 0o600).unwrap();
    fs::remove_file(&path).unwrap();
    let _successor = UnixListener::bind(&path).unwrap();
    drop(first);
    assert!(path.exists());
}

#[test]
fn of_many_claims_at_once_one_wins_also_over_a_stale_socket() {
    for round in 0..20 {
        let temp = temp();
        let path = temp.path().join("s");
        if round % 2 == 0 {
            drop(UnixListener::bind(&path).unwrap());
        }
        let won: Vec<(UnixListener, Claim)> = std::thread::scope(|scope| {
            let claims: Vec<_> = (0..8).map(|_| scope.spawn(|| claim(&path, 0o600).ok())).collect();
            claims.into_iter().filter_map(|claim| claim.join().unwrap()).collect()
        });
        assert_eq!(won.len(), 1);
        assert!(UnixStream::connect(&path).is_ok());
    }
}
