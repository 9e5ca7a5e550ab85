//! The machine in a small simulated world: a map of files, and processes that end as their command line says.

mod builtins;
mod cancel;
mod errors;
mod fetching;
mod flow;
mod job;
mod language;
mod races;
mod replay;
mod results;
mod sections;
mod times;
mod weight;
mod world;
