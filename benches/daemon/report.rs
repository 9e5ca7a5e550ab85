//! Collects the figures: prints each at once, or keeps them for one object at the end.

use serde_json::{Map, Value, json};

/// Bound that a figure should meet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Aim {
    /// No bound: the figure is only informative.
    Open,
    /// The figure should not be less.
    AtLeast(f64),
    /// The figure should not be more.
    AtMost(f64),
}

impl Aim {
    fn text(self) -> String {
        match self {
            Self::Open => String::new(),
            Self::AtLeast(bound) => format!("≥ {bound}"),
            Self::AtMost(bound) => format!("≤ {bound}"),
        }
    }

    fn is_kept(self, value: f64) -> Option<bool> {
        match self {
            Self::Open => None,
            Self::AtLeast(bound) => Some(value >= bound),
            Self::AtMost(bound) => Some(value <= bound),
        }
    }
}

/// The figures of one run.
pub(crate) struct Report {
    print: bool,
    figures: Map<String, Value>,
}

impl Report {
    pub(crate) fn new(print: bool) -> Self {
        if print {
            println!("{:<44} {:>12} {:<18} {:>9}", "figure", "value", "unit", "aim");
        }
        Self { print, figures: Map::new() }
    }

    /// Adds a figure.
    pub(crate) fn figure(&mut self, name: &str, value: f64, unit: &str, aim: Aim) {
        let kept = aim.is_kept(value);
        if self.print {
            let mark = match kept {
                Some(true) => "kept",
                Some(false) => "MISSED",
                None => "",
            };
            println!("{name:<44} {value:>12.2} {unit:<18} {:>9} {mark}", aim.text());
        }
        let figure = json!({ "value": value, "unit": unit, "aim": aim.text(), "kept": kept });
        self.figures.insert(name.to_owned(), figure);
    }

    /// Adds the median of repeated measurements, with the least and the largest.
    pub(crate) fn samples(&mut self, name: &str, values: Vec<f64>, unit: &str, aim: Aim) {
        let (least, largest) = bounds(&values);
        self.figure(name, median(values), unit, aim);
        if self.print {
            println!("{:<44} {least:>12.2} to {largest:.2}", "");
        }
        if let Some(figure) = self.figures.get_mut(name).and_then(Value::as_object_mut) {
            figure.insert("least".into(), least.into());
            figure.insert("largest".into(), largest.into());
        }
    }

    /// Returns all figures as one object.
    pub(crate) fn json(self) -> Value {
        Value::Object(self.figures)
    }
}

/// Returns the median.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Returns the least and the largest value.
pub(crate) fn bounds(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    (least, values.iter().copied().fold(f64::NEG_INFINITY, f64::max))
}
