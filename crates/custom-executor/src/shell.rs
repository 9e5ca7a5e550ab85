//! Chooses the program that runs a stage's script (custom-executor.md §7.2). Pure.

use std::path::Path;

/// Command that runs a PowerShell script.
const POWERSHELL: [&str; 6] =
    ["pwsh", "-NoProfile", "-NonInteractive", "-ExecutionPolicy", "Bypass", "-File"];

/// Bytes of a script's first line that are looked at; the kernel reads fewer.
const MAX_LINE: usize = 512;

/// Returns the command that takes the script as its last argument. The script is not executed itself, so it may lie
/// where nothing can be.
pub(super) fn command(script: &Path, content: &[u8]) -> Vec<String> {
    if script.extension().is_some_and(|extension| extension == "ps1") {
        return POWERSHELL.map(str::to_owned).to_vec();
    }
    named(content).unwrap_or_else(|| vec!["bash".to_owned()])
}

/// Returns program and arguments of the first line `#!…`.
fn named(content: &[u8]) -> Option<Vec<String>> {
    let line = content.get(..content.len().min(MAX_LINE))?.split(|byte| *byte == b'\n').next()?;
    let line = std::str::from_utf8(line).ok()?.strip_prefix("#!")?;
    let mut words = line.split_whitespace().peekable();
    let program = name_of(words.next()?)?;
    let program = if program == "env" {
        words.next_if_eq(&"-S");
        name_of(words.next()?)?
    } else {
        program
    };
    Some(std::iter::once(program).chain(words).map(str::to_owned).collect())
}

/// Drops the folder of a program, which is searched for where the script runs.
fn name_of(path: &str) -> Option<&str> {
    path.rsplit('/').next().filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_names_the_shell() {
        for (script, content, expected) in [
            ("script", "#!/usr/bin/env bash\n\nset -e", "bash"),
            ("script", "#!/bin/sh\nx", "sh"),
            ("script", "#! /usr/bin/env -S bash -x\n", "bash -x"),
            ("script", "#!/usr/local/bin/bash -e\r\n", "bash -e"),
            ("script", "echo no line", "bash"),
            ("script", "", "bash"),
            ("script", "#!", "bash"),
            ("script", "#!/usr/bin/env\n", "bash"),
            ("script.ps1", "#!/bin/sh", "pwsh -NoProfile -NonInteractive -ExecutionPolicy Bypass -File"),
        ] {
            assert_eq!(command(Path::new(script), content.as_bytes()).join(" "), expected, "{content:?}");
        }
        assert_eq!(command(Path::new("script"), b"#!/bin/\xff\n"), ["bash"]);
    }
}
