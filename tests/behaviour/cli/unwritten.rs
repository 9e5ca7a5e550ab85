//! Output that cannot be written.

use std::process::Stdio;

use super::{program, stderr};

#[test]
fn output_that_a_full_disk_does_not_take_is_a_failure() {
    for words in [
        &["--version"][..],
        &["-V"],
        &["--help"],
        &["help"],
        &["help", "language"],
        &["help", "run"],
        &["run", "--help"],
        &["steps", "serve", "--help"],
        &["completions", "bash"],
        &["completions", "zsh"],
        &["man"],
        &["man", "run"],
        &["schema"],
        &["schema", "events"],
        &["doctor"],
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = program(words).stdout(full).stderr(Stdio::piped()).output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
        assert!(said.contains("write stdout: No space left on device"), "{words:?}: {said}");
        assert!(!said.contains("panic"), "{words:?}: {said}");
    }
}

#[test]
fn a_reader_that_has_gone_ends_help_without_a_word() {
    for words in [&["--version"][..], &["--help"], &["help", "language"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = program(words).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(stderr(&output), "", "{words:?}");
        assert_eq!(output.status.code(), Some(1), "{words:?}");
    }
}
