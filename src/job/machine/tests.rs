//! Behaviour of the machine, observed through a small world: a map of files, and processes whose command line says how
//! they end.

mod cancel;
mod errors;
mod language;
mod races;
mod results;
mod world;
