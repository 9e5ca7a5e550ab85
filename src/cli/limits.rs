//! Values of `--limit`.

use crate::client::RequestLimits;

/// One `--limit NAME=VALUE`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Limit {
    Processes(i64),
    Memory(i64),
    Cpus(f64),
    OpenFiles(i64),
}

/// Parses `processes=N`, `memory=BYTES` with K, M, G, Ki, Mi, Gi, `cpus=N` with a fraction, `open_files=N`.
pub(super) fn parse(text: &str) -> Result<Limit, String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    let whole = || value.parse().ok().filter(|number| *number > 0).ok_or("write a whole number above 0");
    match name {
        "processes" => whole().map(Limit::Processes),
        "open_files" => whole().map(Limit::OpenFiles),
        "memory" => bytes(value).map(Limit::Memory).ok_or("write a number of bytes, such as 512Mi"),
        "cpus" => match value.parse::<f64>() {
            Ok(number) if number.is_finite() && number > 0.0 => Ok(Limit::Cpus(number)),
            _ => Err("write a number above 0, such as 1.5"),
        },
        _ => Err("the names are processes, memory, cpus and open_files"),
    }
    .map_err(str::to_owned)
}

fn bytes(text: &str) -> Option<i64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match text.strip_prefix(digits)?.trim_end_matches(['B', 'b']) {
        "" => 1,
        "K" | "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        _ => return None,
    };
    digits.parse::<i64>().ok()?.checked_mul(factor).filter(|bytes| *bytes > 0)
}

/// Merges all limits. The last one of each kind counts.
pub(super) fn collect(limits: &[Limit]) -> Option<RequestLimits> {
    let mut all = RequestLimits::default();
    for limit in limits {
        match *limit {
            Limit::Processes(number) => all.processes = Some(number),
            Limit::Memory(number) => all.memory = Some(number),
            Limit::Cpus(number) => all.cpus = Some(number),
            Limit::OpenFiles(number) => all.open_files = Some(number),
        }
    }
    (!limits.is_empty()).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_with_their_units() {
        assert_eq!(parse("processes=100"), Ok(Limit::Processes(100)));
        assert_eq!(parse("memory=512Mi"), Ok(Limit::Memory(512 << 20)));
        assert_eq!(parse("memory=2GB"), Ok(Limit::Memory(2_000_000_000)));
        assert_eq!(parse("cpus=1.5"), Ok(Limit::Cpus(1.5)));
        for wrong in ["memory", "memory=", "memory=-1", "memory=1X", "cpus=NaN", "processes=0", "disk=1"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
