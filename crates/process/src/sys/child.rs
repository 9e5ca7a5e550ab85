//! Code of a new process between `clone` and `execve`: `prctl`, `prlimit`, `setpgid`, `chdir`, `close_range`, `dup2`,
//! and `execve` itself. It runs in its parent's memory, so it may neither allocate nor panic.

use std::convert::Infallible;
use std::ffi::{CStr, c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

use super::errno;
use super::signal::{KernelAction, LAST_SIGNAL, empty_signal_set, signal_action};

/// Dispositions and limits for started processes: as they were before we changed ours.
pub(crate) struct Inheritance {
    /// Signals whose disposition is not the default.
    signals: Vec<c_int>,
    /// Limits to set, as they were.
    limits: Vec<(c_int, libc::rlimit)>,
    /// Our process id. A child with another parent has lost us before it set its parent-death signal.
    parent: libc::pid_t,
}

impl Inheritance {
    /// Reads the present limits; call before they are changed.
    pub(crate) fn read() -> Self {
        let limits = [libc::RLIMIT_NOFILE as c_int, libc::RLIMIT_CORE as c_int]
            .into_iter()
            .filter_map(|resource| {
                let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                // SAFETY: `limit` is writable; the call only reads our own limits.
                let read = unsafe { libc::prlimit(0, resource as _, ptr::null(), &raw mut limit) };
                (read == 0).then_some((resource, limit))
            })
            .collect();
        // SAFETY: always succeeds.
        let parent = unsafe { libc::getpid() };
        let mut inheritance = Self { signals: Vec::new(), limits, parent };
        inheritance.read_signals();
        inheritance
    }

    /// Notes which signals are ignored or handled now; call again after changing one.
    pub(crate) fn read_signals(&mut self) {
        self.signals = (1..=LAST_SIGNAL)
            .filter(|&signal| {
                let mut action: KernelAction = [0; 8];
                // SAFETY: `action` has room for the kernel's structure; without a new action nothing changes.
                let read = unsafe { signal_action(signal, ptr::null(), &raw mut action) };
                read == 0 && action.first().is_some_and(|&handler| handler != libc::SIG_DFL as u64)
            })
            .collect();
    }
}

/// Plan of the child between `clone` and `execve`. The parent prepares everything: the child may not allocate.
pub(crate) struct ChildPlan<'a> {
    pub(crate) program: &'a CStr,
    /// Null-terminated array of C strings.
    pub(crate) argv: *const *const libc::c_char,
    /// Null-terminated array of C strings.
    pub(crate) envp: *const *const libc::c_char,
    pub(crate) work_dir: &'a CStr,
    pub(crate) stdin: BorrowedFd<'a>,
    pub(crate) stdout: BorrowedFd<'a>,
    pub(crate) stderr: BorrowedFd<'a>,
    /// If set, the streams above have smaller numbers than this, and the child copies no descriptor from this number
    /// on: a copy of the whole table costs more than the rest of a start once thousands of jobs run. Needs
    /// [`can_leave_table`](super::can_leave_table).
    pub(crate) first_left_out: Option<c_int>,
    /// Directory of the control group to start in.
    pub(crate) cgroup: Option<BorrowedFd<'a>>,
    /// `cgroup.procs` of the groups of version 1 to join.
    pub(crate) join: &'a [BorrowedFd<'a>],
    /// Limits to set last: the program's own.
    pub(crate) limits: &'a [ProcessLimit],
    pub(crate) inheritance: &'a Inheritance,
}

/// A limit of one process, for its soft and its hard value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessLimit {
    /// Open files.
    OpenFiles(u64),
    /// Processes of the user.
    UserProcesses(u64),
}

impl ProcessLimit {
    /// Lowers the limit of the calling process; one that is lower stays. Async-signal-safe.
    fn apply(self) -> bool {
        let (resource, most) = match self {
            Self::OpenFiles(most) => (libc::RLIMIT_NOFILE as c_int, most),
            Self::UserProcesses(most) => (libc::RLIMIT_NPROC as c_int, most),
        };
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` is readable and writable; the calls concern the calling process alone.
        unsafe {
            if libc::prlimit(0, resource as _, ptr::null(), &raw mut limit) != 0 {
                return false;
            }
            limit.rlim_cur = limit.rlim_cur.min(most);
            limit.rlim_max = limit.rlim_max.min(most);
            libc::prlimit(0, resource as _, &raw const limit, ptr::null_mut()) == 0
        }
    }
}

/// Stage at which the child failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChildStage {
    /// Group, parent-death signal, dispositions, limits.
    Prepare = 1,
    /// Joining its control group.
    Cgroup = 2,
    /// Standard streams.
    Pipe = 3,
    /// Changing to its working directory.
    WorkDir = 4,
    /// Executing the program.
    Exec = 5,
    /// The job's limits.
    Limits = 6,
}

impl ChildStage {
    /// Returns the stage that a child noted.
    pub(super) fn from_number(number: i32) -> Self {
        match number {
            2 => Self::Cgroup,
            3 => Self::Pipe,
            4 => Self::WorkDir,
            5 => Self::Exec,
            6 => Self::Limits,
            _ => Self::Prepare,
        }
    }
}

/// Data shared with the child through common memory.
pub(super) struct ChildShared<'a> {
    pub(super) plan: &'a ChildPlan<'a>,
    /// True if the child must join its group by itself (no `clone3`).
    pub(super) join_cgroup: bool,
    /// True if the child was cloned with the parent's table of descriptors, which it must not change.
    pub(super) has_our_table: bool,
    /// The [`ChildStage`] that failed, 0 for none.
    pub(super) stage: AtomicI32,
    /// Error number of the failure.
    pub(super) errno: AtomicI32,
}

impl ChildShared<'_> {
    /// Flag for `clone`: with it the child starts with the parent's table of descriptors, without it with a copy.
    pub(super) const fn table_flag(&self) -> c_int {
        if self.has_our_table { libc::CLONE_FILES } else { 0 }
    }
}

/// Runs in the child. Never returns: it executes the program, or notes what failed and exits.
pub(super) extern "C" fn child_main(data: *mut c_void) -> ! {
    // SAFETY: `data` is the `ChildShared` of the suspended parent.
    let shared = unsafe { &*data.cast::<ChildShared<'_>>() };
    let (stage, errno) = match run_child(shared) {
        Err(stage) => (stage, errno()),
    };
    shared.errno.store(errno, Ordering::Relaxed);
    shared.stage.store(stage as i32, Ordering::Relaxed);
    // SAFETY: ends the child without running anything of the parent's.
    unsafe { libc::_exit(127) }
}

/// Runs the stages of the child. Returns only on failure.
fn run_child(shared: &ChildShared<'_>) -> Result<Infallible, ChildStage> {
    let plan = shared.plan;
    let ok = |result: c_int, stage: ChildStage| if result < 0 { Err(stage) } else { Ok(()) };
    // SAFETY (all calls below): async-signal-safe system calls on memory that the parent has prepared and keeps.
    unsafe {
        if shared.join_cgroup {
            join_cgroup(plan.cgroup)?;
        }
        for procs in plan.join {
            let joined = libc::write(procs.as_raw_fd(), b"0".as_ptr().cast(), 1);
            ok(joined as c_int, ChildStage::Limits)?;
        }
        ok(libc::setpgid(0, 0), ChildStage::Prepare)?;
        ok(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL), ChildStage::Prepare)?;
        if libc::getppid() != plan.inheritance.parent {
            libc::_exit(127);
        }
        let default: KernelAction = [0; 8];
        for &signal in &plan.inheritance.signals {
            signal_action(signal, &raw const default, ptr::null_mut());
        }
        for (resource, limit) in &plan.inheritance.limits {
            libc::prlimit(0, *resource as _, ptr::from_ref(limit), ptr::null_mut());
        }
        if let Some(first) = plan.first_left_out.filter(|_| shared.has_our_table) {
            let (last, flags) = (libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE);
            let left = libc::syscall(libc::SYS_close_range, first as libc::c_uint, last, flags);
            ok(left as c_int, ChildStage::Pipe)?;
        }
        ok(libc::dup2(plan.stdin.as_raw_fd(), 0), ChildStage::Pipe)?;
        ok(libc::dup2(plan.stdout.as_raw_fd(), 1), ChildStage::Pipe)?;
        ok(libc::dup2(plan.stderr.as_raw_fd(), 2), ChildStage::Pipe)?;
        ok(libc::chdir(plan.work_dir.as_ptr()), ChildStage::WorkDir)?;
        let none = empty_signal_set();
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
        if !plan.limits.iter().all(|limit| limit.apply()) {
            return Err(ChildStage::Limits);
        }
        libc::execve(plan.program.as_ptr(), plan.argv, plan.envp);
    }
    Err(ChildStage::Exec)
}

/// Moves the calling child into its control group.
///
/// # Safety
/// Only in the child of [`clone_exec`](super::clone::clone_exec).
unsafe fn join_cgroup(cgroup: Option<BorrowedFd<'_>>) -> Result<(), ChildStage> {
    let Some(cgroup) = cgroup else { return Ok(()) };
    // SAFETY: system calls on a descriptor the parent keeps open and on constant memory.
    unsafe {
        let procs =
            libc::openat(cgroup.as_raw_fd(), c"cgroup.procs".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if procs < 0 || libc::write(procs, b"0".as_ptr().cast(), 1) != 1 {
            return Err(ChildStage::Cgroup);
        }
        libc::close(procs);
    }
    Ok(())
}
