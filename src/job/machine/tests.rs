//! Behaviour of the machine, observed through a small world: a map of files, and processes whose command line says how
//! they end.

mod builtins;
mod cancel;
mod errors;
mod fetching;
mod language;
mod races;
mod results;
mod world;
