//! What is at the socket's path, and who holds its lock, when a daemon starts.

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;

use rustix::fs::FlockOperation;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

use super::Scene;
use crate::support::wait_for;

#[test]
fn sockets_that_are_left_over_are_taken_and_nothing_else() {
    let scene = Scene::new();
    let socket = scene.socket();
    // The listener of this socket is gone.
    drop(UnixListener::bind(&socket).unwrap());
    let mut serving = scene.start(&["steps", "serve", "--socket", socket.to_str().unwrap()]);
    assert_eq!(serving.marked(), socket);
    drop(UnixStream::connect(&socket).unwrap());
    // A daemon serves this socket.
    let second = scene.start(&["steps", "serve", "--socket", socket.to_str().unwrap()]);
    let (status, stdout, stderr) = second.ended();
    assert_eq!((status.code(), stdout.as_str()), (Some(1), ""));
    assert!(stderr.contains(&format!("already serving on {}", socket.display())), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    drop(serving);
    // Another program listens on this socket.
    let other = scene.path("other.sock");
    let _listener = UnixListener::bind(&other).unwrap();
    let refused = scene.start(&["steps", "serve", "--socket", other.to_str().unwrap()]);
    let (status, _, stderr) = refused.ended();
    assert!(status.code() == Some(1) && stderr.contains("already serving on"), "{stderr}");
}

#[test]
fn a_file_in_place_of_the_socket_is_refused_before_anything_is_made() {
    let scene = Scene::new();
    let file = scene.path("file");
    std::fs::write(&file, "content").unwrap();
    let (status, _, stderr) = scene.start(&["serve", "--socket", file.to_str().unwrap()]).ended();
    assert_eq!(status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("file is a file, not a socket: remove it"), "{stderr}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "content");
    for made in ["file.lock", "file.state"] {
        assert!(!scene.path(made).exists(), "{made}");
    }
}

/// Returns a descriptor that can be read as soon as somebody opens the file at `path` again.
fn opened(path: &Path) -> OwnedFd {
    let watches = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
    inotify::add_watch(&watches, path, WatchFlags::OPEN).unwrap();
    watches
}

/// A daemon killed while it starts a program leaves a copy of itself that holds its locks until it executes the program.
#[test]
fn locks_that_a_killed_daemon_has_left_to_its_child_are_waited_for() {
    let scene = Scene::new();
    let (socket, state) = (scene.socket(), scene.path("state"));
    std::fs::create_dir(&state).unwrap();
    // The folder is used by nobody else, as the daemon requires.
    std::fs::set_permissions(&state, std::fs::Permissions::from_mode(0o700)).unwrap();
    let mut killed = Command::new("true").spawn().unwrap();
    killed.wait().unwrap();
    let leave = |path: &Path| {
        let file = std::fs::File::create(path).unwrap();
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        std::fs::write(path, format!("{}\n", killed.id())).unwrap();
        file
    };
    let locks = [socket.with_extension("sock.lock"), state.join("lock")];
    let [of_socket, of_state] = locks.each_ref().map(|path| leave(path));
    let [socket_opened, state_opened] = locks.each_ref().map(|path| opened(path));
    let (socket, state) = (socket.to_str().unwrap(), state.to_str().unwrap());
    let mut serving = scene.start(&["serve", "--socket", socket, "--state-dir", state]);
    for (opened, left) in [(state_opened, of_state), (socket_opened, of_socket)] {
        wait_for("the daemon's look at the lock", || rustix::io::read(&opened, &mut [0; 256]).ok());
        drop(left);
    }
    assert_eq!(serving.marked(), Path::new(socket));
}

#[test]
fn what_is_no_socket_is_never_removed() {
    let scene = Scene::new();
    let file = scene.path("file");
    std::fs::write(&file, "mine").unwrap();
    std::fs::create_dir(scene.path("folder")).unwrap();
    std::os::unix::fs::symlink(&file, scene.path("link")).unwrap();
    for name in ["file", "folder", "link"] {
        let path = scene.path(name);
        let (status, stdout, stderr) = scene.start(&["serve", "--socket", path.to_str().unwrap()]).ended();
        assert_eq!((status.code(), stdout.as_str()), (Some(1), ""), "{name}");
        assert!(stderr.contains(path.to_str().unwrap()) && stderr.contains("not a socket"), "{stderr}");
        assert!(path.symlink_metadata().is_ok(), "{name}");
    }
    assert_eq!(std::fs::read(file).unwrap(), b"mine");
}
