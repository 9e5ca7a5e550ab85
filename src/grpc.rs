//! The services on the socket: validate, call the [`crate::actors::handle::JobsHandle`], encode. No state.

pub mod accept;
mod deadline;
mod definition;
mod encode;
mod intake;
mod peer;
pub mod server;
mod status;
mod v1;
mod validate;

pub use encode::{is_root_result, step_result_bytes};
pub use peer::AllowedUsers;
pub use validate::check_run;
