//! The start of a process: `clone3` where the kernel has it, else `clone`.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::{io, ptr};

use super::child::{ChildPlan, ChildShared, ChildStage, child_main};
use super::memory::{CHILD_STACK, ChildStack};
use super::signal::empty_signal_set;
use super::wait::reap;

/// Failure of a [`clone_exec`].
#[derive(Debug)]
pub(crate) enum CloneError {
    /// No child was made.
    Clone(io::Error),
    /// The child failed before its program; it has been reaped.
    Child(ChildStage, io::Error),
}

/// Starts a process. Like with `vfork`, the child runs in our memory, on a stack of its own, and we wait until it has
/// executed its program or failed. So the cost does not depend on our size, and a failure is known at once.
///
/// The child leads a process group of its own, dies with the *thread* that called this, and has the descriptors 0, 1, 2
/// of the plan; all our others must be close-on-exec.
pub(crate) fn clone_exec(
    plan: &ChildPlan<'_>,
    stack: &mut ChildStack,
) -> Result<(libc::pid_t, OwnedFd), CloneError> {
    let mut shared = ChildShared {
        plan,
        join_cgroup: false,
        has_our_table: plan.first_left_out.is_some(),
        stage: AtomicI32::new(0),
        errno: AtomicI32::new(0),
    };
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

/// Clones into the control group if the kernel can, else lets the child join it.
fn clone_vfork(shared: &mut ChildShared<'_>, stack: &mut ChildStack) -> io::Result<(libc::pid_t, OwnedFd)> {
    if let Some(cgroup) = shared.plan.cgroup {
        match clone3_into(cgroup, shared, stack) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::E2BIG)) => {
                shared.join_cgroup = true;
                // It opens a file for that, which must not take a place in our table.
                shared.has_our_table = false;
            }
            done => return done,
        }
    }
    let mut pidfd: c_int = -1;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | shared.table_flag() | libc::SIGCHLD;
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

/// Like `clone`, with the child born in `cgroup`: joining later costs a wait for all processors.
fn clone3_into(
    cgroup: BorrowedFd<'_>,
    shared: &mut ChildShared<'_>,
    stack: &mut ChildStack,
) -> io::Result<(libc::pid_t, OwnedFd)> {
    let mut pidfd: c_int = -1;
    let flags = (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | shared.table_flag()) as u64;
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

/// Makes the system call, and runs [`child_main`] in the child. Returns a process id or a negated error number.
///
/// # Safety
/// `args` asks for a stack of its own and `CLONE_VFORK`; `data` points to a [`ChildShared`].
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

/// Makes the system call, and runs [`child_main`] in the child. Returns a process id or a negated error number.
///
/// # Safety
/// `args` asks for a stack of its own and `CLONE_VFORK`; `data` points to a [`ChildShared`].
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

/// Fails: the child joins its group by itself.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn clone3(_args: &CloneArgs, _data: *mut c_void) -> i64 {
    -i64::from(libc::ENOSYS)
}
