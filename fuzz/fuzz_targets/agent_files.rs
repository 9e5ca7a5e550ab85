//! Files of the agent. Any bytes are a record, a checkpoint, or neither; one that is read is written as it was. Any text
//! is a configuration, or errors with their lines, and a change of it is read back. Any text is a GitLab Runner's file
//! whose import is a configuration in TOML, or an error.

#![no_main]

use libfuzzer_sys::fuzz_target;
use step_runner_agent::config::Config;
use step_runner_agent::config::edit::{Value, append, remove, set};
use step_runner_agent::import::Import;
use step_runner_agent::record::Record;
use step_runner_agent::trace::{Checkpoint, Form, resume};

const TOKEN: &str = "glrt-\"\\new";

fuzz_target!(|bytes: &[u8]| {
    if let Ok(record) = Record::decode(bytes) {
        let file = record.encode().expect("a record is JSON");
        assert!(Record::decode(&file) == Ok(record), "a record changes on its way");
    }
    if let Ok(checkpoint) = Checkpoint::decode(bytes) {
        drop(resume(&checkpoint, bytes, Form::Lines, 1 << 20));
        let file = checkpoint.encode().expect("a checkpoint is JSON");
        assert_eq!(Checkpoint::decode(&file), Ok(checkpoint));
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match Config::read("f", text) {
        Ok(config) => changes(text, &config),
        Err(errors) => assert!(errors.messages().iter().all(|message| message.starts_with("f:"))),
    }
    let Ok(import) = Import::read(text) else { return };
    let Ok(file) = import.apply("", &|index| format!("/pod-{index}")) else { return };
    if let Err(errors) = Config::read("f", &file) {
        assert!(!errors.to_string().contains("not TOML"), "{errors}\n{file}");
    }
});

/// Adds an entry, changes it, and removes it.
fn changes(text: &str, config: &Config) {
    let count = config.entries.len();
    let values = [
        ("url", Value::Text("https://added.test".to_owned())),
        ("token", Value::Text("glrt-added".to_owned())),
    ];
    let Ok(more) = append(text, &values, &[]) else { return };
    let changed = set(&more, count, "token", &Value::Text(TOKEN.to_owned())).expect("the entry is there");
    let read = Config::read("f", &changed).expect("an entry can be added");
    assert_eq!(read.entries.len(), count + 1);
    assert!(read.entries.last().is_some_and(|entry| entry.token.expose() == TOKEN));
    assert_eq!(read.entries[..count], config.entries[..], "the others stay");
    let less = remove(&changed, count).expect("the entry is there");
    assert_eq!(Config::read("f", &less).expect("an entry can be removed").entries, config.entries);
}
