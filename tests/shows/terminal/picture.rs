//! Converts screens to pictures.

use std::fmt::Write as _;

/// Size of a character in pixels.
const WIDTH: f64 = 8.4;
const HEIGHT: usize = 18;

const FONT: &str = "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace";

#[derive(Clone, Default, PartialEq)]
struct Look {
    color: Option<&'static str>,
    bold: bool,
    dim: bool,
}

impl Look {
    /// Takes the numbers of an escape sequence for colours.
    fn set(&mut self, numbers: &str) {
        for number in numbers.split([';', ':']) {
            match number {
                "" | "0" => *self = Self::default(),
                "1" => self.bold = true,
                "2" => self.dim = true,
                "31" => self.color = Some("#f7768e"),
                "32" => self.color = Some("#9ece6a"),
                "33" => self.color = Some("#e0af68"),
                "36" => self.color = Some("#7dcfff"),
                "39" => self.color = None,
                _ => {}
            }
        }
    }
}

/// Returns a picture of a screen as `tmux capture-pane -e` gives it. Its last line, the exit code, is left out.
pub(super) fn svg(screen: &str, columns: u16) -> String {
    let lines: Vec<&str> = screen.lines().filter(|line| !line.contains(super::session::OVER)).collect();
    let (width, height) = (f64::from(columns) * WIDTH + 24.0, lines.len() * HEIGHT + 24);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height}\" font-family=\"{FONT}\" font-size=\"14\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#1a1b26\"/>\n<g fill=\"#c0caf5\" xml:space=\"preserve\">\n"
    );
    let mut look = Look::default();
    for (number, line) in lines.iter().enumerate() {
        let y = 12 + (number + 1) * HEIGHT - 4;
        write!(svg, "<text x=\"12\" y=\"{y}\">").ok();
        let mut rest = *line;
        while !rest.is_empty() {
            let end = rest.find('\x1b').unwrap_or(rest.len());
            let (text, sequence) = rest.split_at(end);
            span(&mut svg, text, &look);
            rest = sequence;
            if let Some((sequence, after)) = sequence.split_once('m') {
                look.set(sequence.trim_start_matches("\x1b["));
                rest = after;
            }
        }
        svg.push_str("</text>\n");
    }
    svg + "</g>\n</svg>\n"
}

fn span(svg: &mut String, text: &str, look: &Look) {
    if text.is_empty() {
        return;
    }
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let mut attributes = String::new();
    if let Some(color) = look.color {
        write!(attributes, " fill=\"{color}\"").ok();
    }
    if look.bold {
        attributes.push_str(" font-weight=\"bold\"");
    }
    if look.dim {
        attributes.push_str(" opacity=\"0.6\"");
    }
    if attributes.is_empty() {
        svg.push_str(&text);
    } else {
        write!(svg, "<tspan{attributes}>{text}</tspan>").ok();
    }
}
