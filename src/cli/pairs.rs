//! Reads `NAME=VALUE`, and several in one argument, as GitLab's first step runner takes them: `--inputs`, `--job`.

use indexmap::IndexMap;

use crate::error::{Exit, Failure};

/// Splits `NAME=VALUE`. The error never quotes the value.
pub(super) fn split_pair<'a>(pair: &'a str, option: &str) -> Result<(&'a str, &'a str), Failure> {
    pair.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(|| {
        Failure::new(Exit::Usage, format!("--{option} wants NAME=VALUE, with a name before the `=`"))
    })
}

/// Returns values by name. The last of a name counts.
pub(super) fn by_name(arguments: &[String], option: &str) -> Result<IndexMap<String, String>, Failure> {
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    arguments.iter().map(|argument| split_pair(argument, option).map(owned)).collect()
}

/// Returns all pairs in the arguments of an option. Errors never quote an argument: values may be secrets.
pub(super) fn read(arguments: &[String], option: &str) -> Result<Vec<String>, Failure> {
    let pairs = arguments.iter().map(|argument| parse(argument)).collect::<Result<Vec<_>, _>>();
    pairs.map(|pairs| pairs.concat()).map_err(|what| Failure::new(Exit::Usage, format!("--{option}: {what}")))
}

/// Parses one argument. With one `=` it is one pair, whatever else stands in it. With several it is a list separated by
/// commas, in which a pair may stand in quotes.
fn parse(argument: &str) -> Result<Vec<String>, String> {
    let pairs = match argument.matches('=').count() {
        0 => Vec::new(),
        1 => vec![argument.trim_matches('"').to_owned()],
        _ => split(argument)?,
    };
    if pairs.is_empty() || pairs.iter().any(|pair| pair.find('=').is_none_or(|at| at == 0)) {
        return Err("write NAME=VALUE, or several separated by commas".to_owned());
    }
    Ok(pairs)
}

fn split(line: &str) -> Result<Vec<String>, String> {
    let mut pairs = Vec::new();
    let mut rest = Some(line);
    while let Some(line) = rest {
        if let Some(quoted) = line.strip_prefix('"') {
            let (pair, after) = unquote(quoted)?;
            pairs.push(pair);
            rest = match after.strip_prefix(',') {
                None if after.is_empty() => None,
                None => return Err("a quote ends before its value does".to_owned()),
                after => after,
            };
        } else {
            let (pair, after) =
                line.split_once(',').map_or((line, None), |(pair, after)| (pair, Some(after)));
            pairs.push(pair.to_owned());
            rest = after;
        }
    }
    Ok(pairs)
}

/// Returns the text before the closing quote and the text after it. Two quotes stand for one.
fn unquote(mut line: &str) -> Result<(String, &str), String> {
    let mut value = String::new();
    loop {
        let (before, after) = line.split_once('"').ok_or("a quote is not closed")?;
        value.push_str(before);
        match after.strip_prefix('"') {
            Some(after) => {
                value.push('"');
                line = after;
            }
            None => return Ok((value, after)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_separate_pairs_where_there_are_several() {
        for (argument, expected) in [
            ("a=b", &["a=b"][..]),
            ("a=b,c", &["a=b,c"]),
            ("\"a=b\"", &["a=b"]),
            ("a=b,c=d", &["a=b", "c=d"]),
            ("a=,b=", &["a=", "b="]),
            ("\"a=b,c\",d=\"e", &["a=b,c", "d=\"e"]),
            ("\"a=say \"\"hi\"\"\",b=1", &["a=say \"hi\"", "b=1"]),
        ] {
            assert!(parse(argument).is_ok_and(|pairs| pairs == expected), "{argument}");
        }
        for argument in ["", "a", "=b", "a=b,c,d=e", "a=b,c=d,", "a=b,=c=", "\"a=b,c=d", "\"a=b\"x,c=d"] {
            assert!(parse(argument).is_err(), "{argument}");
        }
    }
}
