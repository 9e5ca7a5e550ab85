//! Any text is an address or an error; what was read, written again, is read as the same; and nothing that stands for a
//! place becomes an option of the program that reaches it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use step_runner::client::{Address, ConnectorKind};

fuzz_target!(|text: &str| {
    let Ok(address) = text.parse::<Address>() else { return };
    let shown = address.to_string();
    assert!(shown.parse::<Address>().is_ok_and(|again| again == address), "{text:?} is written {shown:?}");

    let Address::Process(connector) = address else { return };
    let words = connector.words();
    assert!(words.first().is_some_and(|program| !program.is_empty() && !program.starts_with('-')));
    if connector.kind() == ConnectorKind::Command {
        return;
    }
    // Up to the far side's own command line, which the user may write as he likes.
    let far = |word: &&String| ["step-runner", "'step-runner'"].contains(&word.as_str());
    let ours = ["-T", "-o", "-p", "--", "-H", "-i", "--user", "--context", "-n", "-c"];
    let near = words.iter().take_while(|word| !far(word));
    if !text.contains("command=") {
        assert!(words.iter().any(|word| far(&word)));
        for word in near {
            assert!(!word.starts_with('-') || ours.contains(&word.as_str()), "{text:?}: {word:?}");
        }
    }
    assert!(words.iter().all(|word| !word.contains(['\0', '\n'])), "{words:?}");
});
