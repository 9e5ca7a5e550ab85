//! Behaviour of a simulated process. It is encoded in the script's text, which the simulated keeper reads.

use crate::random::Random;

#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// Content of the request it belongs to.
    pub(crate) content: u64,
    /// Number of lines that it prints, one at a time.
    pub(crate) lines: u32,
    /// Time before each line.
    pub(crate) millis: u64,
    pub(crate) exit: u8,
    /// Ignores SIGTERM.
    pub(crate) stubborn: bool,
    /// Time from SIGTERM to its end, in milliseconds.
    pub(crate) dying: u64,
    /// Number of processes it leaves running.
    pub(crate) left: u32,
}

impl Program {
    pub(crate) fn random(content: u64, random: &mut Random) -> Self {
        let millis = match random.below(8) {
            0 => 0,
            1..=4 => random.below(40),
            5..=6 => random.below(4_000),
            _ => random.below(3_000_000),
        };
        Self {
            content,
            lines: 1 + random.below(4) as u32,
            millis,
            exit: if random.one_in(6) { 1 + random.below(3) as u8 } else { 0 },
            stubborn: random.one_in(6),
            dying: random.below(30),
            left: if random.one_in(5) { 1 + random.below(2) as u32 } else { 0 },
        }
    }

    pub(crate) fn text(&self) -> String {
        let Self { content, lines, millis, exit, stubborn, dying, left } = self;
        format!("sim {content} {lines} {millis} {exit} {} {dying} {left}", u8::from(*stubborn))
    }

    pub(crate) fn read(text: &str) -> Self {
        let mut numbers = text.split(' ').skip(1).map(|word| word.parse::<u64>().unwrap());
        let mut next = || numbers.next().unwrap();
        Self {
            content: next(),
            lines: next() as u32,
            millis: next(),
            exit: next() as u8,
            stubborn: next() == 1,
            dying: next(),
            left: next() as u32,
        }
    }
}
