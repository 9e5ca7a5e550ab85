//! The services on the socket: validate, call the [`crate::actors::handle::JobsHandle`], encode. They keep no state.

pub(crate) mod accept;
mod by_rights;
mod calls;
mod check;
mod compatible;
mod deadline;
mod definition;
mod draft;
mod encode;
mod intake;
mod length_headers;
mod names;
mod peer;
mod plain_log;
mod reflection;
pub(crate) mod server;
mod sizes;
mod status;
mod v1;
mod validate;
mod value;

pub use check::{check_frames, check_run};
pub use encode::{step_event_bytes, step_result_bytes, stored_kind};
pub(crate) use peer::AllowedUsers;
