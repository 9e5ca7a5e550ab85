//! Times in options.

use std::time::Duration;

/// Reads a time, which may be 0.
pub(super) fn any(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    humantime::parse_duration(text).map_err(|_| "write a time such as 90s or 1h 30m, or 0".to_owned())
}

/// Reads a time that must not be 0.
pub(super) fn positive(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(time) if time.is_zero() => Err("it must be longer than 0".to_owned()),
        Ok(time) => Ok(time),
        Err(_) => Err("write a time such as 90s or 1h 30m".to_owned()),
    }
}
