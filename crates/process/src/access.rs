//! Checks of what this process may do with a file.

use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD};
use rustix::io::Errno;

/// Checks that this process may do `wanted` with the file at `path`.
///
/// # Errors
/// Returns the reason of the system.
pub fn check(path: &Path, wanted: Access) -> Result<(), Errno> {
    match rustix::fs::accessat(CWD, path, wanted, AtFlags::EACCESS) {
        // The flag needs `faccessat2`, of Linux 5.8. Filters of older container engines refuse it with EPERM, not with
        // ENOSYS. The older call asks for the real user: ours, because this program is never set-user-id.
        Err(Errno::PERM) => rustix::fs::accessat(CWD, path, wanted, AtFlags::empty()),
        answer => answer,
    }
}
