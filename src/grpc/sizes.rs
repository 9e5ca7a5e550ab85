//! Sizes of requests at which the services do something else.

/// Maximum size of a request in bytes (service.md §1.1).
pub(super) const MAX_REQUEST: usize = 32 << 20;

/// Size in bytes above which a message is decoded on another thread.
pub(super) const LARGE_REQUEST: usize = 64 << 10;
