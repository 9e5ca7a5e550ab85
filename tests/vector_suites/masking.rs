//! Vectors of masking.md §11. Each is masked in the writes given, whole, byte by byte, and in random pieces.

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::STANDARD};
use libtest_mimic::Failed;
use serde_json::Value;
use step_runner::log::mask::{DefaultPrefixes, MaskConfig, MaskStream, Masker, PhraseSet};

const RANDOM_CUTTINGS: u64 = 50;

/// Checks one vector.
pub(crate) fn run(vector: &Value) -> Result<(), Failed> {
    let config = MaskConfig {
        forms: vector["forms"].as_bool().ok_or("forms: no boolean")?,
        default_prefixes: match vector["defaults"].as_str() {
            Some("none") => DefaultPrefixes::None,
            Some("glpat") => DefaultPrefixes::Glpat,
            Some("all") => DefaultPrefixes::All,
            other => return Err(format!("defaults: {other:?}").into()),
        },
        ..MaskConfig::default()
    };
    let (set, _) = PhraseSet::prepare(list(&vector["phrases"])?, list(&vector["prefixes"])?, &config)?;
    let masker = Masker::compile(&set);
    let writes = list(&vector["writes"])?;
    let expected = data(&vector["out"])?;

    check("as written", &masker, writes.iter().map(Vec::as_slice), &expected)?;
    let input = writes.concat();
    check("whole", &masker, [input.as_slice()], &expected)?;
    check("byte by byte", &masker, input.chunks(1), &expected)?;
    for seed in 1..=RANDOM_CUTTINGS {
        check(&format!("random cutting {seed}"), &masker, cut(&input, seed), &expected)?;
    }
    if masker.mask_bytes(&input) != expected {
        return Err("as a text of its own: differs".into());
    }
    Ok(())
}

fn check<'a>(
    how: &str,
    masker: &Arc<Masker>,
    writes: impl IntoIterator<Item = &'a [u8]>,
    expected: &[u8],
) -> Result<(), Failed> {
    let mut stream = MaskStream::new(Arc::clone(masker));
    let mut out = Vec::new();
    for write in writes {
        stream.push(write, &mut out);
    }
    stream.finish(&mut out);
    if out == expected {
        return Ok(());
    }
    let (out, expected) = (out.escape_ascii(), expected.escape_ascii());
    Err(format!("{how}:\n  expected {expected}\n  got      {out}").into())
}

/// Cuts the input into random pieces of one to eight bytes.
fn cut(input: &[u8], seed: u64) -> impl Iterator<Item = &[u8]> {
    let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut rest = input;
    std::iter::from_fn(move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let (piece, after) = rest.split_at_checked(1 + (random % 8) as usize).unwrap_or((rest, &[]));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

fn list(value: &Value) -> Result<Vec<Vec<u8>>, Failed> {
    value.as_array().ok_or("no list")?.iter().map(data).collect()
}

/// Decodes bytes: a string, a list of parts (string or `[text, count]`), or `{"b64": …}`.
fn data(value: &Value) -> Result<Vec<u8>, Failed> {
    match value {
        Value::String(text) => Ok(text.clone().into_bytes()),
        Value::Array(parts) => {
            let mut bytes = Vec::new();
            for part in parts {
                match part {
                    Value::String(text) => bytes.extend_from_slice(text.as_bytes()),
                    Value::Array(repeated) => {
                        let text = repeated.first().and_then(Value::as_str).ok_or("no text to repeat")?;
                        let count = repeated.get(1).and_then(Value::as_u64).ok_or("no count")?;
                        bytes.extend_from_slice(text.repeat(usize::try_from(count)?).as_bytes());
                    }
                    other => return Err(format!("no part: {other}").into()),
                }
            }
            Ok(bytes)
        }
        Value::Object(object) => {
            Ok(STANDARD.decode(object.get("b64").and_then(Value::as_str).ok_or("no base64")?)?)
        }
        other => Err(format!("no data: {other}").into()),
    }
}
