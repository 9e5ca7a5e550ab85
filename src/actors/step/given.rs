//! Messages about arguments and variables that no process can be given.

use crate::job::effect::Program;
use crate::keeper::protocol::SpawnStep;
use crate::model::text;
use crate::process::given::{Fault, Room, Ungivable};

/// Checks that the kernel can start `step`, which runs `program`. Returns what is in the way, and what to do.
pub(super) fn check(step: &SpawnStep, program: &Program) -> Result<(), String> {
    let room = Room::here();
    let checked = room.check(&step.program, &step.argv, &step.env);
    checked.map_err(|fault| match fault {
        Ungivable::Argument(index, fault) => of_argument(index, fault, program, room),
        Ungivable::Variable(index, fault) => {
            let name = step.env.get(index).and_then(|entry| entry.split(|byte| *byte == b'=').next());
            of_variable(&String::from_utf8_lossy(name.unwrap_or_default()), fault, room)
        }
        Ungivable::Total { arguments, environment } => too_large(Some([arguments, environment]), room.total),
    })
}

fn of_argument(index: usize, fault: Fault, program: &Program, room: Room) -> String {
    let what = match program {
        Program::Command(_) => format!("command[{index}]"),
        Program::Script(_) => "the text of the script".to_owned(),
        Program::ScriptFile(_) | Program::LegacyScript(_) | Program::Builtin(_) => {
            format!("argument {index}")
        }
    };
    match fault {
        Fault::Nul => {
            format!("{what} holds a NUL byte, which no argument of a process can hold: take it out")
        }
        Fault::TooLong(bytes) => format!(
            "{what} has {bytes} bytes, and an argument of a process can have {}: hand it over in a file",
            room.entry
        ),
    }
}

fn of_variable(name: &str, fault: Fault, room: Room) -> String {
    let name = text::quote(name);
    match fault {
        Fault::Nul => {
            format!(
                "the variable {name} holds a NUL byte, which no variable of a process can hold: take it out"
            )
        }
        Fault::TooLong(bytes) => format!(
            "the variable {name} has {bytes} bytes with its name, and a variable of a process can have {}: hand it \
             over in a file",
            room.entry
        ),
    }
}

/// Returns the message for arguments and environment that are larger than `most` bytes together. `sizes` are theirs, if
/// known.
pub(super) fn too_large(sizes: Option<[usize; 2]>, most: usize) -> String {
    let parts = match sizes {
        Some([arguments, environment]) => {
            format!("the arguments take {arguments} bytes and the environment {environment}")
        }
        None => "the arguments and the environment are too large".to_owned(),
    };
    format!(
        "{parts}: a process can be given {most} bytes of both (a quarter of its stack, ulimit -s, and at most 6 MiB); \
         hand large values over in files"
    )
}
