//! Numbers of the calls and processes of a job. Both count in one sequence, from 1, in order of creation.

/// Number of a call within its job: of a step with all its attempts, or of a group. The root is 0. Clients see it.
pub type CallId = u32;

/// Number of one attempt of a call within its job: of its fetch, its files and its process. The first attempt of a step
/// has the number of its call. Each further one takes the next number, and so does a root that is itself a process. The
/// keeper knows processes by it. It is not a pid.
pub type ProcessNumber = u32;
