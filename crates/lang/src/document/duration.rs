//! Durations as text.

use std::time::Duration;

/// Parses a duration such as `1m30s` or `500ms`. Every number needs a unit.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|character: char| !(character.is_ascii_digit() || character == '.'))?;
        let (number, tail) = rest.split_at_checked(digits)?;
        let unit = tail.find(|character: char| !character.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at_checked(unit)?;
        let seconds = match unit {
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        let part = Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()?;
        total = total.checked_add(part)?;
        rest = tail;
    }
    (!text.is_empty()).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_units() {
        assert_eq!(duration("1m30s"), Some(Duration::from_secs(90)));
        assert_eq!(duration("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(duration("1.5s"), Some(Duration::from_millis(1500)));
        for text in ["", "10", "s", "10 s", "10x", "-1s", "1..2s", "99999999999999999999h"] {
            assert_eq!(duration(text), None, "{text}");
        }
    }
}
