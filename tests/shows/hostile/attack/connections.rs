//! Connections that send nothing, or only half of the preface.

use std::io;

use super::{Field, PATIENCE, Tally};
use crate::hostile::frames::{self, Wire};

/// Opens 1,000 connections that send nothing, repeatedly.
pub(super) fn silent(field: &Field, _: usize) -> Tally {
    crowd(field, |wire| wire.patience(PATIENCE))
}

pub(super) fn half_preface(field: &Field, _: usize) -> Tally {
    crowd(field, |wire| wire.send(&frames::PREFACE[..frames::PREFACE.len() - 1]))
}

fn crowd(field: &Field, begin: impl Fn(&mut Wire) -> io::Result<()>) -> Tally {
    let mut wires = Vec::new();
    let mut tally = Tally::default();
    while wires.len() < 1_000 && field.goes_on() {
        let Ok(mut wire) = Wire::silent(&field.socket) else { continue };
        tally.connections += 1;
        begin(&mut wire).ok();
        wires.push(wire);
    }
    tally.ended = field.hold(&wires);
    tally
}
