//! Entry point of the `step-runner` program.

fn main() {}
