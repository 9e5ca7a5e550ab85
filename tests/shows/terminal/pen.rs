//! Normalizes the colours of a screen: where tmux sets and resets them depends on the previous content of the screen.

use std::collections::BTreeSet;

const RESET: &str = "\x1b[0m";

/// Look of the characters that follow.
#[derive(Clone, Default, PartialEq)]
struct Pen {
    color: Option<String>,
    ground: Option<String>,
    /// Numbers such as 1 for bold.
    effects: BTreeSet<u8>,
}

impl Pen {
    /// Takes the numbers of an escape sequence for colours.
    fn set(&mut self, numbers: &str) {
        let mut numbers = numbers.split(';');
        while let Some(number) = numbers.next() {
            match number.split(':').next().and_then(|number| number.parse::<u8>().ok()).unwrap_or(0) {
                0 => *self = Self::default(),
                22 => self.effects.retain(|effect| ![1, 2].contains(effect)),
                off @ 23..=29 => {
                    self.effects.remove(&(off - 20));
                }
                38 => self.color = Some(rest(number, &mut numbers)),
                48 => self.ground = Some(rest(number, &mut numbers)),
                39 => self.color = None,
                49 => self.ground = None,
                30..=37 | 90..=97 => self.color = Some(number.to_owned()),
                40..=47 | 100..=107 => self.ground = Some(number.to_owned()),
                effect => {
                    self.effects.insert(effect);
                }
            }
        }
    }

    /// Returns the escape sequence that turns the default look into this one.
    fn sequence(&self) -> String {
        let effects = self.effects.iter().map(u8::to_string);
        let numbers: Vec<String> = effects.chain(self.color.clone()).chain(self.ground.clone()).collect();
        if numbers.is_empty() { String::new() } else { format!("\x1b[{}m", numbers.join(";")) }
    }
}

/// Returns the number of an indexed or direct colour with all that belongs to it.
fn rest<'a>(number: &'a str, numbers: &mut impl Iterator<Item = &'a str>) -> String {
    [number].into_iter().chain(numbers).collect::<Vec<_>>().join(";")
}

/// Returns the lines of a screen, each of which starts and ends with the default look.
pub(super) fn lines(screen: &str) -> Vec<String> {
    let mut pen = Pen::default();
    screen.lines().map(|line| steady(line, &mut pen)).collect()
}

fn steady(line: &str, pen: &mut Pen) -> String {
    let (mut out, mut shown) = (String::new(), Pen::default());
    let mut rest = line;
    loop {
        let (text, sequence) = rest.split_at(rest.find('\x1b').unwrap_or(rest.len()));
        if !text.is_empty() {
            if *pen != shown {
                out.push_str(if shown == Pen::default() { "" } else { RESET });
                out.push_str(&pen.sequence());
                shown = pen.clone();
            }
            out.push_str(text);
        }
        let Some((numbers, after)) = sequence.split_once('m') else { break };
        pen.set(numbers.trim_start_matches("\x1b["));
        rest = after;
    }
    let blanks = out.trim_end().len();
    out.truncate(blanks);
    out.push_str(if shown == Pen::default() { "" } else { RESET });
    out
}
