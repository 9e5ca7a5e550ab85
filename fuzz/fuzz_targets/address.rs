//! Any text either parses as an address or is an error. A parsed address, printed and parsed again, is the same
//! address. No host, user or container name from an address is taken for an option of the program that connects to it.

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
    // Only the words before the remote command line count: the user can choose those behind it.
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
