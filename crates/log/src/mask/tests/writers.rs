//! Programs that write a secret with escapes. `tests/shows/masking` includes this file too.

/// A kind of escapes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Writer {
    Percent,
    Json,
    Shell,
    Python,
    Xml,
    /// Marks that are written twice: CSV, SQL, Compose files, unit files.
    Doubled,
    All,
}

impl Writer {
    pub(crate) const EACH: [Self; 7] =
        [Self::Percent, Self::Json, Self::Shell, Self::Python, Self::Xml, Self::Doubled, Self::All];

    /// Writes a secret, each character in a way that `choose` selects from a number of ways.
    pub(crate) fn written(self, secret: &str, mut choose: impl FnMut(usize) -> usize) -> String {
        let mut out = String::new();
        for (at, character) in secret.chars().enumerate() {
            let ways = ways(self, character, at > 0);
            out.push_str(&ways[choose(ways.len())]);
        }
        out
    }
}

/// All ways of a writer to write a character.
fn ways(writer: Writer, character: char, inside: bool) -> Vec<String> {
    let mut ways = vec![character.to_string()];
    let bytes = character.to_string().into_bytes();
    let each = |one: &dyn Fn(&u8) -> String| bytes.iter().map(one).collect::<String>();
    let code = u32::from(character);
    let units = |one: &dyn Fn(&u16) -> String| {
        character.encode_utf16(&mut [0; 2]).iter().map(one).collect::<String>()
    };
    let short = |pairs: &[(char, &str)]| {
        pairs
            .iter()
            .filter(|(plain, _)| *plain == character)
            .map(|(_, short)| (*short).to_owned())
            .collect::<Vec<_>>()
    };
    match writer {
        Writer::Percent => {
            ways.extend([each(&|byte| format!("%{byte:02x}")), each(&|byte| format!("%{byte:02X}"))]);
            ways.push(units(&|unit| format!("%u{unit:04X}")));
            ways.extend((0x80..0x100).contains(&code).then(|| format!("%{code:02X}")));
            ways.extend(short(&[(' ', "+")]));
        }
        Writer::Json => {
            ways.extend([units(&|unit| format!("\\u{unit:04x}")), units(&|unit| format!("\\u{unit:04X}"))]);
            ways.extend(short(&[('"', "\\\""), ('\\', "\\\\"), ('/', "\\/"), ('\n', "\\n"), ('\t', "\\t")]));
            ways.extend(short(&[('\n', "\r\n"), ('\n', "\r\r\r\n"), ('\n', "\\r\\n")]));
        }
        Writer::Shell => {
            ways.extend([each(&|byte| format!("\\{byte:03o}")), each(&|byte| format!("\\x{byte:02x}"))]);
            ways.extend(short(&[
                ('\'', "\\'"),
                ('\'', r"'\''"),
                ('\'', r#"'"'"'"#),
                ('\n', "\\n"),
                ('\n', "'\n'"),
            ]));
            if inside {
                let octal = each(&|byte| format!("\\{byte:03o}"));
                ways.extend([format!("'$'{octal}"), format!("''{octal}")]);
            }
            if !character.is_ascii_alphanumeric() {
                ways.push(format!("\\{character}"));
            }
        }
        Writer::Python => {
            ways.push(format!("\\U{code:08x}"));
            ways.extend((code < 0x100).then(|| format!("\\x{code:02x}")));
            ways.extend((code < 0x1_0000).then(|| format!("\\u{code:04x}")));
            ways.extend(short(&[('\'', "\\'"), ('\\', "\\\\"), ('\n', "\\n"), ('\t', "\\t")]));
        }
        Writer::Xml => {
            ways.extend([format!("&#{code};"), format!("&#x{code:x};"), format!("&#x{code:04X};")]);
            ways.push(units(&|unit| format!("&#x{unit:x};")));
            ways.extend(short(&[
                ('&', "&amp;"),
                ('<', "&lt;"),
                ('>', "&gt;"),
                ('"', "&quot;"),
                ('\'', "&apos;"),
            ]));
        }
        Writer::Doubled => {
            ways.extend("'\"$%".contains(character).then(|| format!("{character}{character}")));
        }
        Writer::All => {
            let others = Writer::EACH.into_iter().filter(|writer| !matches!(writer, Writer::All));
            ways.extend(others.flat_map(|writer| self::ways(writer, character, inside)));
        }
    }
    ways
}
