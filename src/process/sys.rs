//! System calls that no safe library offers: the start of a process without a copy of our memory, the signal
//! descriptor, and a few calls on descriptors we were started with.
#![expect(
    unsafe_code,
    reason = "the one file that talks to the kernel directly; every block says why it is sound"
)]

use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use crate::model::ExitStatus;

/// Bytes of the stack a new process runs on until its `execve`. The functions it calls are thin wrappers of system
/// calls; 64 KiB is what the C library's own `posix_spawn` is generous with.
const CHILD_STACK: usize = 64 << 10;

/// Unmapped bytes below the stack, so that an overflow is a fault and not silent damage.
const STACK_GUARD: usize = 64 << 10;

/// Highest signal number.
const LAST_SIGNAL: c_int = 64;

/// Stack for the child of one [`clone_exec`] at a time.
pub(super) struct ChildStack {
    base: *mut c_void,
}

impl ChildStack {
    /// Maps the stack. Its pages cost memory only once they are used.
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: a new private anonymous mapping touches no memory that exists.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                STACK_GUARD + CHILD_STACK,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stack = Self { base };
        // SAFETY: the range lies within the mapping made above.
        let made = unsafe { libc::mprotect(stack.lowest(), CHILD_STACK, libc::PROT_READ | libc::PROT_WRITE) };
        if made == 0 { Ok(stack) } else { Err(io::Error::last_os_error()) }
    }

    fn lowest(&self) -> *mut c_void {
        // SAFETY: the mapping is STACK_GUARD + CHILD_STACK bytes long.
        unsafe { self.base.byte_add(STACK_GUARD) }
    }

    fn top(&self) -> *mut c_void {
        // SAFETY: one past the end of the mapping.
        unsafe { self.base.byte_add(STACK_GUARD + CHILD_STACK) }
    }
}

impl Drop for ChildStack {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and no child uses it: `clone_exec` returns only once its child is gone from it.
        unsafe { libc::munmap(self.base, STACK_GUARD + CHILD_STACK) };
    }
}

/// What a started process must not inherit from us: dispositions and limits as they were before we changed ours.
pub(super) struct Inheritance {
    /// Signals whose disposition is not the default.
    signals: Vec<c_int>,
    /// Limits to set, as they were.
    limits: Vec<(c_int, libc::rlimit)>,
    /// Our process id; a child with another parent has lost us before it asked for its parent-death signal.
    parent: libc::pid_t,
}

impl Inheritance {
    /// Reads the present limits; call before they are changed.
    pub(super) fn read() -> Self {
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
    pub(super) fn read_signals(&mut self) {
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

/// The kernel's own `struct sigaction`, with room to spare: the handler is its first word, all zeros the default.
type KernelAction = [u64; 8];

/// The system call itself: the C library's function refuses the two signals that it keeps for itself, which whoever
/// started us may have left ignored.
///
/// # Safety
/// `old` is null or writable. Async-signal-safe.
unsafe fn signal_action(signal: c_int, new: *const KernelAction, old: *mut KernelAction) -> libc::c_long {
    const SET_BYTES: usize = 8;
    // SAFETY: as the function's own contract.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, new, old, SET_BYTES) }
}

/// What the child does between `clone` and `execve`. Everything was prepared by the parent: the child may not allocate.
pub(super) struct ChildPlan<'a> {
    pub(super) program: &'a CStr,
    /// Null-terminated array of C strings.
    pub(super) argv: *const *const libc::c_char,
    /// Null-terminated array of C strings.
    pub(super) envp: *const *const libc::c_char,
    pub(super) work_dir: &'a CStr,
    pub(super) stdin: BorrowedFd<'a>,
    pub(super) stdout: BorrowedFd<'a>,
    pub(super) stderr: BorrowedFd<'a>,
    /// Directory of the control group to start in.
    pub(super) cgroup: Option<BorrowedFd<'a>>,
    /// `cgroup.procs` of the groups of version 1 to join.
    pub(super) join: &'a [BorrowedFd<'a>],
    /// Limits to set last: the program's own.
    pub(super) limits: &'a [ProcessLimit],
    pub(super) inheritance: &'a Inheritance,
}

/// A limit of a resource of one process, for its soft and its hard value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessLimit {
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

/// What the child was doing when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChildStage {
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
    fn from_number(number: i32) -> Self {
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

/// Why no process came of a [`clone_exec`].
#[derive(Debug)]
pub(super) enum CloneError {
    /// There was no child at all.
    Clone(io::Error),
    /// The child failed before its program; it has been reaped.
    Child(ChildStage, io::Error),
}

/// Shared with the child through common memory.
struct Shared<'a> {
    plan: &'a ChildPlan<'a>,
    /// The child is not in its group yet (`clone3` was not to be had).
    join_cgroup: bool,
    stage: AtomicI32,
    errno: AtomicI32,
}

/// Starts a process: like `vfork` the child runs in our memory, on a stack of its own, and we wait until it has
/// executed its program or failed. So the cost does not depend on our size, and its failure is known at once.
///
/// The child leads a process group of its own, dies with the *thread* that called this, and has the descriptors
/// 0, 1, 2 of the plan; all our others must be close-on-exec.
pub(super) fn clone_exec(
    plan: &ChildPlan<'_>,
    stack: &mut ChildStack,
) -> Result<(libc::pid_t, OwnedFd), CloneError> {
    let mut shared = Shared { plan, join_cgroup: false, stage: AtomicI32::new(0), errno: AtomicI32::new(0) };
    let mut old_mask = empty_signal_set();
    // SAFETY: an all-zero signal set is a valid value of the type.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `all` and `old_mask` are writable. No handler of ours may run in the child: it has our memory.
    unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old_mask);
    }
    let cloned = clone_vfork(&mut shared, stack);
    // SAFETY: sets back the mask read above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old_mask, ptr::null_mut()) };
    let (pid, pidfd) = cloned.map_err(CloneError::Clone)?;
    match shared.stage.load(Ordering::Relaxed) {
        0 => Ok((pid, pidfd)),
        stage => {
            reap(pid);
            let error = io::Error::from_raw_os_error(shared.errno.load(Ordering::Relaxed));
            Err(CloneError::Child(ChildStage::from_number(stage), error))
        }
    }
}

/// Clones into the control group where the kernel can, else lets the child join it.
fn clone_vfork(shared: &mut Shared<'_>, stack: &mut ChildStack) -> io::Result<(libc::pid_t, OwnedFd)> {
    if let Some(cgroup) = shared.plan.cgroup {
        match clone3_into(cgroup, shared, stack) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::E2BIG)) => {
                shared.join_cgroup = true;
            }
            done => return done,
        }
    }
    let mut pidfd: c_int = -1;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;
    // SAFETY: with CLONE_VFORK we are suspended until the child has left our memory by `execve` or `_exit`, so
    // `shared`, the plan and the stack outlive its use of them. The child calls only async-signal-safe functions.
    let pid = unsafe {
        libc::clone(child_of_libc, stack.top(), flags, ptr::from_mut(shared).cast(), &raw mut pidfd)
    };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened this descriptor for us.
    Ok((pid, unsafe { OwnedFd::from_raw_fd(pidfd) }))
}

extern "C" fn child_of_libc(data: *mut c_void) -> c_int {
    child_main(data)
}

/// Runs in the child. Never returns: it executes the program, or notes what failed and exits.
extern "C" fn child_main(data: *mut c_void) -> ! {
    // SAFETY: `data` is the `Shared` of the suspended parent.
    let shared = unsafe { &*data.cast::<Shared<'_>>() };
    let (stage, errno) = match run_child(shared) {
        Err(stage) => (stage, errno()),
    };
    shared.errno.store(errno, Ordering::Relaxed);
    shared.stage.store(stage as i32, Ordering::Relaxed);
    // SAFETY: ends the child without running anything of the parent's.
    unsafe { libc::_exit(127) }
}

/// Result of the steps in the child: only ever a failure, success does not return.
fn run_child(shared: &Shared<'_>) -> Result<std::convert::Infallible, ChildStage> {
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
/// Only in the child of [`clone_exec`].
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

fn errno() -> c_int {
    // SAFETY: the location of the calling thread's errno; in the child it is the suspended parent's, which reads its
    // own only after a call of its own.
    unsafe { *libc::__errno_location() }
}

fn empty_signal_set() -> libc::sigset_t {
    // SAFETY: an all-zero signal set is a valid value, and the empty set.
    unsafe { std::mem::zeroed() }
}

fn reap(pid: libc::pid_t) {
    let mut status = 0;
    loop {
        // SAFETY: `status` is writable; `pid` is an exited child that nobody else waits for.
        let reaped = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        if reaped >= 0 || errno() != libc::EINTR {
            return;
        }
    }
}

/// `struct clone_args` of the kernel, version 2.
#[repr(C, align(8))]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// `CLONE_INTO_CGROUP`, a flag of `clone3` alone.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// As `clone`, with the child born in `cgroup`: joining later costs a wait for all processors.
fn clone3_into(
    cgroup: BorrowedFd<'_>,
    shared: &mut Shared<'_>,
    stack: &mut ChildStack,
) -> io::Result<(libc::pid_t, OwnedFd)> {
    let mut pidfd: c_int = -1;
    let flags = (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD) as u64;
    let args = CloneArgs {
        flags: flags | CLONE_INTO_CGROUP,
        pidfd: ptr::from_mut(&mut pidfd) as u64,
        exit_signal: libc::SIGCHLD as u64,
        stack: stack.lowest() as u64,
        stack_size: CHILD_STACK as u64,
        cgroup: cgroup.as_raw_fd() as u64,
        ..CloneArgs::default()
    };
    // SAFETY: as for `clone` in `clone_vfork`: we are suspended while the child uses `shared` and the stack.
    let result = unsafe { clone3(&args, ptr::from_mut(shared).cast()) };
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result as i32));
    }
    // SAFETY: the kernel has just opened this descriptor for us.
    Ok((result as libc::pid_t, unsafe { OwnedFd::from_raw_fd(pidfd) }))
}

/// The system call, and [`child_main`] in the child. Returns a process id or a negated error number.
///
/// # Safety
/// `args` asks for a stack of its own and `CLONE_VFORK`; `data` points to a [`Shared`].
#[cfg(target_arch = "x86_64")]
unsafe fn clone3(args: &CloneArgs, data: *mut c_void) -> i64 {
    let result: i64;
    // SAFETY: in the parent only the declared registers change. The child starts on its own stack, which is aligned
    // to a page, and enters a function that does not return.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone3 => result,
            in("rdi") ptr::from_ref(args),
            in("rsi") size_of::<CloneArgs>(),
            in("r12") data,
            in("r13") child_main as extern "C" fn(*mut c_void) -> !,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

/// The system call, and [`child_main`] in the child. Returns a process id or a negated error number.
///
/// # Safety
/// `args` asks for a stack of its own and `CLONE_VFORK`; `data` points to a [`Shared`].
#[cfg(target_arch = "aarch64")]
unsafe fn clone3(args: &CloneArgs, data: *mut c_void) -> i64 {
    let result: i64;
    // SAFETY: as on x86_64.
    unsafe {
        std::arch::asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x0, x20",
            "blr x21",
            "brk 1",
            "2:",
            in("x8") libc::SYS_clone3,
            inlateout("x0") ptr::from_ref(args) as i64 => result,
            in("x1") size_of::<CloneArgs>(),
            in("x20") data,
            in("x21") child_main as extern "C" fn(*mut c_void) -> !,
        );
    }
    result
}

/// Elsewhere the child joins its group by itself.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn clone3(_args: &CloneArgs, _data: *mut c_void) -> i64 {
    -i64::from(libc::ENOSYS)
}

/// A descriptor that becomes readable when one of its signals is pending.
pub struct Signals(OwnedFd);

impl Signals {
    /// Blocks SIGCHLD for this thread and all it starts later, and makes its descriptor.
    pub fn children() -> io::Result<Self> {
        let mut set = empty_signal_set();
        // SAFETY: `set` is writable and initialised; the new descriptor belongs to nobody else.
        unsafe {
            libc::sigaddset(&raw mut set, libc::SIGCHLD);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut());
            match libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
                -1 => Err(io::Error::last_os_error()),
                fd => Ok(Self(OwnedFd::from_raw_fd(fd))),
            }
        }
    }

    /// Takes what is pending.
    pub fn clear(&self) {
        // Of one signal at most one is pending, so a second read would find nothing.
        let mut buffer = [0_u8; size_of::<libc::signalfd_siginfo>()];
        rustix::io::retry_on_intr(|| rustix::io::read(&self.0, &mut buffer)).ok();
    }
}

impl std::os::fd::AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Ignores the signals a terminal or an impatient script sends: the keeper ends by its own rules.
pub fn ignore_signals() {
    for signal in [
        libc::SIGHUP,
        libc::SIGINT,
        libc::SIGQUIT,
        libc::SIGTERM,
        libc::SIGPIPE,
        libc::SIGTTIN,
        libc::SIGTTOU,
    ] {
        // SAFETY: no handler is installed, so none can run at a bad time.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    ignore_file_size_signal();
}

/// A write beyond the limit on the size of files fails as one to a full disk does, instead of ending the process.
pub fn ignore_file_size_signal() {
    // SAFETY: no handler is installed, so none can run at a bad time.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Process id of a child that has ended and is not reaped; it stays unreaped.
pub fn peek_exited_child() -> Option<u32> {
    // SAFETY: an all-zero siginfo is a valid value; the call writes only to it.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        let waited = libc::waitid(libc::P_ALL, 0, &raw mut info, options);
        let pid = info.si_pid();
        (waited == 0 && pid > 0).then_some(pid as u32)
    }
}

/// Which child to wait for.
#[derive(Clone, Copy)]
pub(super) enum Child<'a> {
    /// The one behind this descriptor.
    Pidfd(BorrowedFd<'a>),
    /// The one with this process id.
    Pid(u32),
}

/// Reaps a child if it has ended: its exit code or the signal that ended it, and the processor time that it and the
/// children it had reaped used. The library's call does not tell the time.
pub(super) fn reap_ended(child: Child<'_>) -> Option<(ExitStatus, Duration)> {
    let (kind, id) = match child {
        Child::Pidfd(fd) => (libc::P_PIDFD, fd.as_raw_fd() as libc::id_t),
        Child::Pid(pid) => (libc::P_PID, pid),
    };
    // SAFETY: all-zero values are valid for both; the call writes only to them.
    let (waited, info, usage) = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let mut usage: libc::rusage = std::mem::zeroed();
        let options = libc::WEXITED | libc::WNOHANG;
        let waited = loop {
            let waited = libc::syscall(libc::SYS_waitid, kind, id, &raw mut info, options, &raw mut usage);
            if waited == 0 || errno() != libc::EINTR {
                break waited;
            }
        };
        (waited, info, usage)
    };
    // SAFETY: the kernel filled in the fields of a child's end, or left zeros.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    if waited != 0 || pid == 0 {
        return None;
    }
    let status = match info.si_code {
        libc::CLD_EXITED => ExitStatus::Code(status as u8),
        _ => ExitStatus::Signal(status as u8),
    };
    Some((status, time_of(usage.ru_utime) + time_of(usage.ru_stime)))
}

fn time_of(time: libc::timeval) -> Duration {
    Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
}

/// Takes over descriptor `fd` that this process was started with, and makes it close-on-exec. Standard input is
/// copied, as others may hold it too. The caller names a descriptor that nothing else in the process uses: one given
/// on the command line, taken once.
pub fn inherited_descriptor(fd: RawFd) -> io::Result<OwnedFd> {
    match fd {
        0 => return io::stdin().as_fd().try_clone_to_owned(),
        1 | 2 => {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a descriptor to read and write"));
        }
        _ => {}
    }
    // SAFETY: `fcntl` with F_SETFD touches no memory; it fails if the descriptor is not open.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open and, by this function's contract, ours alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes every descriptor from `first` on close-on-exec, whoever opened it.
pub fn close_on_exec_from(first: RawFd) -> io::Result<()> {
    // SAFETY: the call sets a flag of descriptors and touches no memory.
    let done = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first as libc::c_uint,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Gives free memory of the heap back to the system, also that between blocks in use. The C library does so by itself
/// only at the heap's end, where after a burst of jobs something always lives on.
pub fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the allocator locks what it looks at; blocks in use stay where they are.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Makes descriptors 0, 1 and 2 `/dev/null`, so that no pipe or terminal of our starter is held open by us.
pub fn quieten_standard_streams() -> io::Result<()> {
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    for stream in 0..3 {
        // SAFETY: replaces a standard stream; nothing holds them as an owned descriptor.
        if unsafe { libc::dup2(null.as_raw_fd(), stream) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

// SAFETY: the mapping is plain memory without ties to the thread that made it.
unsafe impl Send for ChildStack {}
