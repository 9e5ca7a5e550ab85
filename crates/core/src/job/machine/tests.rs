//! The machine in a small simulated world: a map of files, and processes that end as their command line says.

mod builtins;
mod cancel;
mod errors;
mod fetching;
mod language;
mod races;
mod results;
mod times;
mod weight;
mod world;
