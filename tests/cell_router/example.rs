//! A router in front of the cells of a GitLab instance, for trying out: `cargo run --example cell-router`. It prints a
//! line for each request: time is the reader's, tokens are not shown.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]
#![allow(unreachable_pub, reason = "one file of a test's module")]
#![allow(clippy::allow_attributes, reason = "as above")]

#[path = "mod.rs"]
mod cell_router;

use std::net::TcpListener;
use std::process::ExitCode;

use cell_router::CellRouter;
use cell_router::options::{Options, USAGE};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|word| word == "--help") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let options = match Options::parse(&words) {
        Ok(options) => options,
        Err(wrong) => {
            eprintln!("cell-router: {wrong}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let listener = match TcpListener::bind(options.listen) {
        Ok(listener) => listener,
        Err(error) => {
            eprintln!("cell-router: cannot listen at {}: {error}", options.listen);
            return ExitCode::FAILURE;
        }
    };
    let router = CellRouter::start(listener, options.routes, |exchange| {
        let path = exchange.request.split('?').next().unwrap_or_default();
        let note = exchange.note.map(|note| format!(" ({note})")).unwrap_or_default();
        println!("cell {}: {path}: {}{note}", exchange.cell, exchange.status);
    });
    println!("the router is at {}", router.url());
    router.wait();
    ExitCode::SUCCESS
}
