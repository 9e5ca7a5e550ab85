//! Limits of the kernel on what a process is given: its arguments and its environment.

use std::path::Path;

use rustix::process::{Resource, getrlimit};

use super::sys;

/// Pages of memory that one argument or variable may take, with its NUL (`MAX_ARG_STRLEN`).
const PAGES_OF_AN_ENTRY: usize = 32;

/// Bytes that all of them may take however small the stack is (`ARG_MAX`).
const LEAST: usize = 128 << 10;

/// Bytes that they may take however large the stack is: three quarters of 8 MiB.
const MOST: usize = 6 << 20;

/// Room that the kernel has for arguments and environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Longest argument or variable in bytes. A variable counts as `NAME=VALUE`.
    pub entry: usize,
    /// Bytes of all of them together.
    pub total: usize,
}

/// An argument or variable that no process can be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ungivable {
    /// The argument at this index.
    Argument(usize, Fault),
    /// The variable at this index.
    Variable(usize, Fault),
    /// All of them together.
    Total {
        /// Bytes of the arguments.
        arguments: usize,
        /// Bytes of the environment.
        environment: usize,
    },
}

/// The reason why an argument or variable cannot be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It holds a NUL byte.
    Nul,
    /// It has this many bytes, more than [`Room::entry`].
    TooLong(usize),
}

impl Room {
    /// Returns the room for a process that this one, or a child with its limits, starts.
    pub fn here() -> Self {
        let of_stack = getrlimit(Resource::Stack).current.map_or(MOST, |stack| (stack / 4) as usize);
        Self { entry: PAGES_OF_AN_ENTRY * sys::page_size() - 1, total: of_stack.clamp(LEAST, MOST) }
    }

    /// Checks that the kernel can start `program` with these arguments and this environment.
    ///
    /// # Errors
    /// Names the first thing that is too long.
    pub fn check(&self, program: &Path, argv: &[String], env: &[Vec<u8>]) -> Result<(), Ungivable> {
        let arguments = || argv.iter().map(String::as_bytes);
        let variables = || env.iter().map(Vec::as_slice);
        if let Some((index, fault)) = self.first_fault(arguments()) {
            return Err(Ungivable::Argument(index, fault));
        }
        if let Some((index, fault)) = self.first_fault(variables()) {
            return Err(Ungivable::Variable(index, fault));
        }
        let [arguments, environment] = [taken(arguments()), taken(variables())];
        let name = program.as_os_str().len() + 1;
        if name + arguments + environment > self.total {
            return Err(Ungivable::Total { arguments, environment });
        }
        Ok(())
    }

    fn first_fault<'a>(&self, mut entries: impl Iterator<Item = &'a [u8]>) -> Option<(usize, Fault)> {
        let mut index = 0;
        entries.find_map(|entry| {
            let at = index;
            index += 1;
            let fault = if memchr::memchr(0, entry).is_some() {
                Fault::Nul
            } else if entry.len() > self.entry {
                Fault::TooLong(entry.len())
            } else {
                return None;
            };
            Some((at, fault))
        })
    }
}

/// Returns the bytes that strings take: each with its NUL and a pointer to it.
fn taken<'a>(entries: impl Iterator<Item = &'a [u8]>) -> usize {
    entries.map(|entry| entry.len() + 1 + size_of::<usize>()).sum()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// Starts `true` with these, and returns what the kernel says.
    fn starts(arguments: &[String], variables: &[(String, String)]) -> bool {
        let mut command = Command::new("/bin/true");
        command.args(arguments).env_clear().envs(variables.iter().cloned()).stdin(Stdio::null());
        command.status().is_ok()
    }

    #[test]
    fn the_longest_entry_is_that_of_the_kernel() {
        let room = Room::here();
        for (length, fits) in [(room.entry, true), (room.entry + 1, false)] {
            let argument = "x".repeat(length);
            assert_eq!(starts(std::slice::from_ref(&argument), &[]), fits, "{length}");
            let checked = room.check(Path::new("/bin/true"), &["true".into(), argument], &[]);
            let expected = if fits { Ok(()) } else { Err(Ungivable::Argument(1, Fault::TooLong(length))) };
            assert_eq!(checked, expected);
            let value = "x".repeat(length - 2);
            assert_eq!(starts(&[], &[("V".into(), value.clone())]), fits, "{length}");
            let env = [b"A=1".to_vec(), format!("V={value}").into_bytes()];
            let checked = room.check(Path::new("/bin/true"), &["true".into()], &env);
            let expected = if fits { Ok(()) } else { Err(Ungivable::Variable(1, Fault::TooLong(length))) };
            assert_eq!(checked, expected);
        }
    }

    #[test]
    fn whatever_the_check_accepts_the_kernel_accepts_and_little_more() {
        let room = Room::here();
        let program = Path::new("/bin/true");
        // Entries of 1 KiB, so that pointers hardly count, and short ones, so that they count most.
        for length in [1024, 7] {
            let each = length + 1 + size_of::<usize>();
            let most = room.total / each;
            let argv = |count: usize| -> Vec<String> {
                std::iter::once("true".to_owned()).chain((1..count).map(|_| "x".repeat(length))).collect()
            };
            let last = (0..40)
                .map(|less| most + 2 - less)
                .find(|count| room.check(program, &argv(*count), &[]).is_ok());
            let last = last.unwrap();
            assert!(last + 8 > most, "{last} of {most}");
            assert!(starts(&argv(last)[1..], &[]), "{length}: {last}");
            assert!(!starts(&argv(last + 4096 / each + 600)[1..], &[]), "{length}: {last}");
        }
    }

    #[test]
    fn a_nul_is_found_wherever_it_is() {
        let room = Room::here();
        let check = |argv: &[&str], env: &[&str]| {
            let argv: Vec<String> = argv.iter().map(|&text| text.to_owned()).collect();
            let env: Vec<Vec<u8>> = env.iter().map(|text| text.as_bytes().to_vec()).collect();
            room.check(Path::new("/bin/true"), &argv, &env)
        };
        assert_eq!(check(&["a", "b\0"], &["A=\0"]), Err(Ungivable::Argument(1, Fault::Nul)));
        assert_eq!(check(&["a"], &["A=1", "B\0=2"]), Err(Ungivable::Variable(1, Fault::Nul)));
        assert_eq!(check(&["a"], &["A=1"]), Ok(()));
    }
}
