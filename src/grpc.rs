//! The services on the socket: validate, call the [`crate::actors::handle::JobsHandle`], encode. No state.

pub mod accept;
mod calls;
mod check;
mod compatible;
mod deadline;
mod definition;
mod draft;
mod encode;
mod heads;
mod intake;
mod peer;
pub mod server;
mod status;
mod v1;
mod validate;

pub use check::check_run;
pub use encode::{is_root_result, step_result_bytes};
pub use peer::AllowedUsers;
