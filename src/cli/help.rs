//! `step-runner help`.

use super::{Ending, command, terminal};
use crate::error::{Exit, Failure};

/// The topics and their texts.
pub(super) const TOPICS: [(&str, &str); 4] = [
    ("exit-codes", include_str!("help/exit-codes.txt")),
    ("environment", include_str!("help/environment.txt")),
    ("masking", include_str!("help/masking.txt")),
    ("recovery", include_str!("help/recovery.txt")),
];

/// Explain a topic or a command
#[derive(clap::Args)]
#[command(after_long_help = "Examples:\n  step-runner help exit-codes\n  step-runner help run")]
pub(super) struct Arguments {
    /// exit-codes, environment, masking, recovery, or a command
    #[arg(value_name = "TOPIC")]
    topic: Option<String>,
}

pub(super) fn execute(arguments: &Arguments) -> Ending {
    let mut program = command();
    program.build();
    let text = match arguments.topic.as_deref() {
        None => program.render_long_help().to_string(),
        Some(name) => match TOPICS.iter().find(|(topic, _)| *topic == name) {
            Some((_, text)) => (*text).to_owned(),
            None => match program.find_subcommand_mut(name) {
                Some(found) => found.render_long_help().to_string(),
                None => return Err(unknown(name)),
            },
        },
    };
    terminal::write_stdout(text.as_bytes())?;
    Ok(0)
}

fn unknown(name: &str) -> Failure {
    let topics: Vec<_> = TOPICS.iter().map(|(topic, _)| *topic).collect();
    Failure::new(Exit::Usage, format!("there is no topic or command `{name}`"))
        .with_remedy(format!("topics are {}", topics.join(", ")))
}
