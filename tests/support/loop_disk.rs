//! A file system on a new loop device, with simulated power cuts: data that was not on the disk is lost.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

/// Result with an error message.
type Check<T = ()> = Result<T, String>;

/// Number of attempts to unmount, a hundredth of a second apart. Processes that use the file system can still be
/// ending.
const ATTEMPTS: u32 = 3_000;

/// Bytes of the image, which is sparse: room for a daemon and its jobs.
const SIZE: u64 = 256 << 20;

/// Major number of loop devices.
const LOOP: u32 = 7;

/// Script that calls `FS_IOC_SHUTDOWN` without flushing the journal, so that the kernel's unwritten data is lost. It
/// first waits for a line, so that the cut itself takes no time. It checks again that the device is a loop device.
const CUTTER: &str = r#"
import fcntl, os, struct, sys
folder = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)
assert os.fstat(folder).st_dev == int(sys.argv[2]) and os.major(os.fstat(folder).st_dev) == 7
print("ready", flush=True)
if sys.stdin.readline():
    fcntl.ioctl(folder, 0x8004587d, struct.pack("I", 2))
    print("cut", flush=True)
"#;

/// Returns the name of a part that this machine lacks, if there is one.
pub(crate) fn missing_part() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("root");
    }
    for (word, part) in [("mkfs.ext4", "mkfs.ext4"), ("losetup", "losetup"), ("python3", "python3")] {
        if Command::new(word).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
            return Some(part);
        }
    }
    let works = |program: &str, words: &[&str]| output(program, words).is_ok();
    if !works("unshare", &["--mount", "true"]) {
        return Some("permission to mount");
    }
    if works("losetup", &["--find"]) { None } else { Some("loop device") }
}

/// The file system. Dropped, it is unmounted and its loop device is freed, even if it is still used.
pub(crate) struct LoopDisk {
    device: PathBuf,
    at: PathBuf,
    cutter: Option<Cutter>,
    _image: tempfile::NamedTempFile,
}

struct Cutter {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<std::process::ChildStdout>,
}

impl LoopDisk {
    /// Makes a file system and mounts it at the new folder `at`.
    pub(crate) fn new(at: &Path) -> Check<Self> {
        let folder = Path::new("/dev/shm");
        let mut image = tempfile::Builder::new();
        let image = image.prefix("sr-power-");
        let image = if folder.is_dir() { image.tempfile_in(folder) } else { image.tempfile() };
        let image = image.map_err(|error| error.to_string())?;
        image.as_file().set_len(SIZE).map_err(|error| error.to_string())?;
        let path = image.path().to_str().unwrap_or_default();
        output("mkfs.ext4", &["-q", "-F", path])?;
        fs::create_dir(at).map_err(|error| error.to_string())?;
        let device = PathBuf::from(output("losetup", &["--find", "--show", path])?.trim());
        let mut disk = Self { device, at: at.to_owned(), cutter: None, _image: image };
        disk.mount()?;
        fs::remove_dir(at.join("lost+found")).map_err(|error| error.to_string())?;
        fs::set_permissions(at, PermissionsExt::from_mode(0o700)).map_err(|error| error.to_string())?;
        rustix::fs::syncfs(File::open(at).map_err(|error| error.to_string())?).map_err(|e| e.to_string())?;
        Ok(disk)
    }

    /// Mounts it. After a cut the file system first replays its journal.
    pub(crate) fn mount(&mut self) -> Check {
        let (device, at) = (text(&self.device), text(&self.at));
        output("mount", &["-t", "ext4", &device, &at])?;
        for _ in 0..ATTEMPTS {
            if self.is_alive() {
                break;
            }
            // Another mount namespace still holds the dead file system, so the kernel has mounted that one again.
            output("umount", &[&at])?;
            std::thread::sleep(Duration::from_millis(10));
            output("mount", &["-t", "ext4", &device, &at])?;
        }
        let mounted = fs::metadata(&self.at).map_err(|error| error.to_string())?.dev();
        let ours = fs::metadata(&self.device).map_err(|error| error.to_string())?.rdev();
        if mounted != ours || rustix::fs::major(mounted) != LOOP {
            return Err(format!("{at} is not our loop device {device}"));
        }
        let mut child = Command::new("python3")
            .args(["-c", CUTTER, &at, &mounted.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (Some(stdin), Some(stdout)) = (stdin, stdout) else { return Err("no pipes".into()) };
        let mut cutter = Cutter { child, stdin, stdout: BufReader::new(stdout) };
        cutter.expect("ready")?;
        self.cutter = Some(cutter);
        Ok(())
    }

    fn is_alive(&self) -> bool {
        let probe = self.at.join(".probe");
        fs::write(&probe, "").and_then(|()| fs::remove_file(&probe)).is_ok()
    }

    /// Cuts the power.
    pub(crate) fn cut(&mut self) -> Check {
        let mut cutter = self.cutter.take().ok_or("not mounted")?;
        cutter.stdin.write_all(b"\n").map_err(|error| error.to_string())?;
        cutter.expect("cut")?;
        cutter.child.wait().map_err(|error| error.to_string())?;
        Ok(())
    }

    /// Unmounts it once nothing uses it any more.
    pub(crate) fn unmount(&mut self) -> Check {
        self.cutter = None;
        let at = text(&self.at);
        let mut last = Ok(String::new());
        for _ in 0..ATTEMPTS {
            last = output("umount", &[&at]);
            if last.is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        last.map(drop)
    }
}

impl Cutter {
    fn expect(&mut self, word: &str) -> Check {
        let mut line = String::new();
        self.stdout.read_line(&mut line).map_err(|error| error.to_string())?;
        if line.trim() == word { Ok(()) } else { Err(format!("the cutter says {line:?}, not {word:?}")) }
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        self.cutter = None;
        output("umount", &["--lazy", &text(&self.at)]).ok();
        output("losetup", &["--detach", &text(&self.device)]).ok();
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn output(program: &str, words: &[&str]) -> Check<String> {
    let done = Command::new(program).args(words).stdin(Stdio::null()).output();
    let done = done.map_err(|error| format!("{program}: {error}"))?;
    if !done.status.success() {
        return Err(format!("{program} {words:?}: {}", String::from_utf8_lossy(&done.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}
