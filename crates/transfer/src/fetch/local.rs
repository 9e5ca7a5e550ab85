//! Reads definition files, in the job's environment and inside fetched trees (language.md §7). Blocks.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, retry_on_intr};

use step_runner_core::job::event::{FetchFailure, Fetched};
use step_runner_lang::diagnostic::Class;

/// Largest definition file in bytes (language.md §6).
pub(super) const MAX_FILE: u64 = 1 << 20;

/// Flags for opening a file to read. `O_NONBLOCK`, because a FIFO at the path must not delay the job.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// Reads the first of `files` that exists in the folder `dir`. `inside` is the root of the fetched tree that the caller
/// came with, without symbolic links. Messages name places in such a tree from its root.
pub(super) fn find(dir: &str, files: &[String], inside: Option<&str>) -> Result<Fetched, FetchFailure> {
    let below = |path: &Path| match inside.map(|tree| path.strip_prefix(tree)) {
        Some(Ok(below)) if below.as_os_str().is_empty() => "the root folder".to_owned(),
        Some(Ok(below)) => text_of(below),
        _ => text_of(path),
    };
    for name in files {
        let path = Path::new(dir).join(name);
        if let Some(text) = read(&path, inside.map(Path::new), &below(&path))? {
            let path = path.to_string_lossy().into_owned();
            let tree = inside.map(str::to_owned);
            return Ok(Fetched { dir: dir.to_owned(), path, text, tree, version: None });
        }
    }
    let place = below(Path::new(&shown(dir)));
    Err(failure(Class::NotFound, format!("no {} in {place}", files.join(" or "))))
}

/// Returns `dir` for messages. Resolves its `..` if the part up to the last one exists.
fn shown(dir: &str) -> String {
    let Some(last) = dir.rfind("/../") else { return dir.to_owned() };
    let (above, below) = dir.split_at(last + "/..".len());
    match Path::new(above).canonicalize() {
        Ok(above) => text_of(&above.join(below.trim_start_matches('/'))),
        Err(_) => dir.to_owned(),
    }
}

/// Reads the first of `files` that exists in the folder `dir` of the fetched tree `tree`, a path without symbolic
/// links. If `files` is empty, finds what `dir` names and reads nothing. `origin` names the tree's source in messages.
pub(super) fn find_in_tree(
    tree: &Path,
    dir: &str,
    files: &[String],
    origin: &str,
) -> Result<Fetched, FetchFailure> {
    let leaves = || failure(Class::Fetch, format!("{dir:?} is outside of {origin}: name a folder inside"));
    let inside = cleaned(dir).ok_or_else(leaves)?;
    let folder = tree.join(&inside);
    if files.is_empty() {
        return find_place(tree, &folder, &format!("{} of {origin}", inside.display()));
    }
    for name in files {
        let path = folder.join(name);
        let shown = format!("{} of {origin}", inside.join(name).display());
        if let Some(text) = read(&path, Some(tree), &shown)? {
            return Ok(Fetched {
                dir: text_of(path.parent().unwrap_or(&folder)),
                path: text_of(&path),
                text,
                tree: Some(text_of(tree)),
                version: None,
            });
        }
    }
    let root = inside.as_os_str().is_empty();
    let place = if root { "the root folder".to_owned() } else { inside.display().to_string() };
    let message = format!("no {} in {place} of {origin}", files.join(" or "));
    Err(failure(Class::NotFound, message))
}

/// Finds the folder or file at the path `place` in the fetched tree `tree`, without reading it.
fn find_place(tree: &Path, place: &Path, shown: &str) -> Result<Fetched, FetchFailure> {
    let reached = open_inside(tree, place, OFlags::PATH | OFlags::CLOEXEC)
        .and_then(|found| Ok(fs::read_link(format!("/proc/self/fd/{}", found.as_raw_fd()))?));
    let real = match reached {
        Ok(real) => real,
        Err(Unreachable::Missing) => {
            return Err(failure(Class::NotFound, format!("there is no {shown}")));
        }
        Err(Unreachable::Outside) => return Err(leaves(&shown)),
        Err(Unreachable::Other(e)) => {
            return Err(failure(Class::NotFound, format!("cannot reach {shown}: {e}")));
        }
    };
    Ok(Fetched {
        dir: text_of(&real),
        path: text_of(place).trim_end_matches('/').to_owned(),
        text: String::new(),
        tree: Some(text_of(tree)),
        version: None,
    })
}

/// Removes `.`, `..` and empty segments from a path in a tree; `None` if the path leads out of the tree.
fn cleaned(dir: &str) -> Option<PathBuf> {
    let mut clean = PathBuf::new();
    for segment in dir.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                if !clean.pop() {
                    return None;
                }
            }
            name => clean.push(name),
        }
    }
    Some(clean)
}

fn text_of(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

const fn failure(class: Class, message: String) -> FetchFailure {
    FetchFailure { class, message }
}

fn leaves(shown: &dyn fmt::Display) -> FetchFailure {
    failure(Class::Fetch, format!("{shown} leaves the tree it was fetched with"))
}

/// Reasons why nothing could be opened.
#[derive(Debug)]
enum Unreachable {
    Missing,
    /// It is outside of the tree.
    Outside,
    Other(io::Error),
}

impl From<io::Error> for Unreachable {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => Self::Missing,
            ErrorKind::CrossesDevices => Self::Outside,
            _ => Self::Other(error),
        }
    }
}

/// Opens `path`, which must be below the fetched tree `tree`. Links are followed, but the kernel rejects any that leads
/// out of the tree, even if the tree changes meanwhile.
fn open_inside(tree: &Path, path: &Path, flags: OFlags) -> Result<OwnedFd, Unreachable> {
    let below = match path.strip_prefix(tree) {
        Ok(below) if below.as_os_str().is_empty() => Path::new("."),
        Ok(below) => below,
        Err(_) => return Err(Unreachable::Outside),
    };
    let root = open(tree, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC)?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    match retry_on_intr(|| rustix::fs::openat2(&root, below, flags, Mode::empty(), resolve)) {
        // The kernel or a sandbox lacks the call, or a concurrent rename made the kernel unsure.
        Err(Errno::NOSYS | Errno::PERM | Errno::AGAIN) => open_and_look(tree, path, flags),
        opened => Ok(opened.map_err(io::Error::from)?),
    }
}

/// Opens like [`open_inside`], but checks only afterwards where that was.
fn open_and_look(tree: &Path, path: &Path, flags: OFlags) -> Result<OwnedFd, Unreachable> {
    let file = open(path, flags)?;
    if path.canonicalize()?.starts_with(tree) { Ok(file) } else { Err(Unreachable::Outside) }
}

fn open(path: &Path, flags: OFlags) -> Result<OwnedFd, Unreachable> {
    let opened = retry_on_intr(|| rustix::fs::openat(CWD, path, flags, Mode::empty()));
    Ok(opened.map_err(io::Error::from)?)
}

/// Reads a text file, named `shown` in messages; `None` if it is missing.
fn read(
    path: &Path,
    inside: Option<&Path>,
    shown: &dyn fmt::Display,
) -> Result<Option<String>, FetchFailure> {
    let io = |e: io::Error| failure(Class::NotFound, format!("cannot read {shown}: {e}"));
    let opened = inside.map_or_else(|| open(path, READ), |tree| open_inside(tree, path, READ));
    let file = match opened {
        Ok(file) => File::from(file),
        Err(Unreachable::Missing) => return Ok(None),
        Err(Unreachable::Outside) => return Err(leaves(shown)),
        Err(Unreachable::Other(e)) => return Err(io(e)),
    };
    let metadata = file.metadata().map_err(io)?;
    if !metadata.is_file() {
        return Err(failure(Class::NotFound, format!("{shown} is not a regular file")));
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(failure(Class::Limit, format!("{shown} is larger than {} MiB", MAX_FILE >> 20)));
    }
    String::from_utf8(bytes).map(Some).map_err(|_| failure(Class::Yaml, format!("{shown} is not UTF-8")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use step_runner_lang::reference::DEFINITION_FILES;

    const ORIGIN: &str = "h/p@v1";

    /// Creates a tree with a file beside it.
    fn tree() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let tree = root.join("tree");
        fs::create_dir_all(tree.join("steps/a")).unwrap();
        fs::create_dir_all(tree.join("old")).unwrap();
        fs::write(tree.join("steps/a/func.yml"), "new").unwrap();
        fs::write(tree.join("steps/a/step.yml"), "old").unwrap();
        fs::write(tree.join("old/step.yml"), "old").unwrap();
        fs::write(root.join("func.yml"), "outside").unwrap();
        (folder, tree)
    }

    fn look(tree: &Path, dir: &str, files: &[&str]) -> Result<Fetched, FetchFailure> {
        let files: Vec<String> = files.iter().map(|name| (*name).to_owned()).collect();
        find_in_tree(tree, dir, &files, ORIGIN)
    }

    #[test]
    fn files_are_tried_in_order_in_a_cleaned_folder() {
        let (_folder, tree) = tree();
        for dir in ["steps/a", "/steps//a/", "./old/../steps/a", "steps/a/."] {
            let found = look(&tree, dir, &DEFINITION_FILES).ok().unwrap();
            assert_eq!(
                (found.text.as_str(), Path::new(&found.dir)),
                ("new", &*tree.join("steps/a")),
                "{dir}"
            );
            assert_eq!(found.tree.as_deref(), tree.to_str());
        }
        assert_eq!(look(&tree, "old", &DEFINITION_FILES).ok().unwrap().text, "old");
        let named = look(&tree, "", &["steps/a/step.yml"]).ok().unwrap();
        assert_eq!((named.text.as_str(), Path::new(&named.dir)), ("old", &*tree.join("steps/a")));
    }

    #[test]
    fn nothing_outside_of_the_tree_is_read() {
        let (_folder, tree) = tree();
        symlink("..", tree.join("up")).unwrap();
        symlink("../../func.yml", tree.join("old/func.yml")).unwrap();
        for (dir, file) in [("..", "func.yml"), ("up", "func.yml"), ("old", "func.yml"), ("", "../func.yml")]
        {
            let failure = look(&tree, dir, &[file]).err().unwrap();
            assert_eq!(failure.class, Class::Fetch, "{dir} {}", failure.message);
        }
        let inside = tree.to_str().unwrap();
        let up = format!("{inside}/old/../..");
        assert!(find(&up, &["func.yml".to_owned()], Some(inside)).is_err());
        assert_eq!(find(&up, &["func.yml".to_owned()], None).ok().unwrap().text, "outside");
    }

    #[test]
    fn with_and_without_the_kernels_help_the_same_is_inside() {
        let (_folder, tree) = tree();
        symlink("..", tree.join("up")).unwrap();
        symlink("../steps", tree.join("old/steps")).unwrap();
        symlink("/proc/self/cwd", tree.join("magic")).unwrap();
        for path in ["", "old/steps/a/func.yml", "old/../steps", "none", "old/step.yml/x"] {
            let path = tree.join(path);
            for open in [open_inside, open_and_look] {
                assert_eq!(open(&tree, &path, READ).is_ok(), path.exists(), "{}", path.display());
            }
        }
        for path in ["up", "up/func.yml", "..", "magic", "old/../../func.yml"] {
            for open in [open_inside, open_and_look] {
                let end = open(&tree, &tree.join(path), READ);
                assert!(matches!(end, Err(Unreachable::Outside)), "{path}: {end:?}");
            }
        }
    }

    #[test]
    fn without_names_of_files_the_place_itself_is_found() {
        let (_folder, tree) = tree();
        symlink("..", tree.join("up")).unwrap();
        for (dir, place) in
            [("", ""), ("/", ""), ("steps/a", "steps/a"), ("./steps//a/func.yml", "steps/a/func.yml")]
        {
            let found = look(&tree, dir, &[]).ok().unwrap();
            assert_eq!(Path::new(&found.path), tree.join(place), "{dir}");
            assert_eq!((found.text.as_str(), found.tree.as_deref()), ("", tree.to_str()));
        }
        for (dir, class) in [("no", Class::NotFound), ("up", Class::Fetch), ("../x", Class::Fetch)] {
            assert_eq!(look(&tree, dir, &[]).err().unwrap().class, class, "{dir}");
        }
    }

    #[test]
    fn a_place_in_the_tree_of_the_caller_is_named_from_its_root() {
        let (_folder, tree) = tree();
        let inside = tree.to_str().unwrap();
        let message = |dir: &str| {
            let dir = format!("{inside}{dir}");
            find(&dir, &["func.yml".to_owned()], Some(inside)).err().unwrap().message
        };
        assert_eq!(message("/steps/b"), "no func.yml in steps/b");
        assert_eq!(message("/steps/../old"), "no func.yml in old");
        assert_eq!(message(""), "no func.yml in the root folder");
        assert_eq!(message("/old/../.."), "old/../../func.yml leaves the tree it was fetched with");
    }

    #[test]
    fn what_is_missing_is_named_by_its_origin() {
        let (_folder, tree) = tree();
        let message = |dir| look(&tree, dir, &DEFINITION_FILES).err().unwrap().message;
        assert_eq!(message("no/such"), "no func.yml or step.yml in no/such of h/p@v1");
        assert_eq!(message(""), "no func.yml or step.yml in the root folder of h/p@v1");
    }

    #[test]
    fn only_regular_files_of_text_are_read() {
        let (_folder, tree) = tree();
        fs::write(tree.join("bytes.yml"), [0xff]).unwrap();
        fs::write(tree.join("large.yml"), vec![b'x'; MAX_FILE as usize + 1]).unwrap();
        for (file, class) in
            [("old", Class::NotFound), ("bytes.yml", Class::Yaml), ("large.yml", Class::Limit)]
        {
            assert_eq!(look(&tree, "", &[file]).err().unwrap().class, class, "{file}");
        }
    }
}
