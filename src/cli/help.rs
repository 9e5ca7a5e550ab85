//! `step-runner help`.

pub(super) mod brief;
pub(super) mod layout;
mod markdown;
mod wrapped;

use super::{CommandResult, command, terminal};
use crate::error::{Exit, Failure};

/// The reference of the language (docs/use/step-language.md).
const LANGUAGE: &str = include_str!("../../docs/use/step-language.md");

pub(super) const TOPICS: [&str; 6] =
    ["language", "expressions", "exit-codes", "environment", "masking", "recovery"];

/// Explain a topic or a command
#[derive(clap::Args)]
#[command(after_long_help = "Examples:\n  step-runner help language\n  step-runner help run")]
pub(super) struct Arguments {
    /// language, expressions, exit-codes, environment, masking, recovery, or a command, such as `steps serve`
    #[arg(value_name = "TOPIC")]
    topic: Vec<String>,
}

pub(super) fn execute(arguments: &Arguments) -> CommandResult {
    let mut program = layout::compact(command());
    program.build();
    let text = match arguments.topic.as_slice() {
        [] => program.render_help().to_string(),
        [name] if let Some(text) = topic(name) => match terminal::width() {
            Some(columns) => wrapped::fit(&text, columns),
            None => text,
        },
        names => {
            let mut found = &mut program;
            for name in names {
                found = found.find_subcommand_mut(name).ok_or_else(|| unknown(&names.join(" ")))?;
            }
            found.render_help().to_string()
        }
    };
    terminal::print(text.as_bytes())?;
    Ok(0)
}

fn topic(name: &str) -> Option<String> {
    let color = terminal::stdout_has_color();
    Some(match name {
        "language" => markdown::render(LANGUAGE, color),
        "expressions" => markdown::render(markdown::section(LANGUAGE, "Expressions"), color),
        "exit-codes" => include_str!("help/exit-codes.txt").to_owned(),
        "environment" => include_str!("help/environment.txt").to_owned(),
        "masking" => include_str!("help/masking.txt").to_owned(),
        "recovery" => include_str!("help/recovery.txt").to_owned(),
        _ => return None,
    })
}

fn unknown(name: &str) -> Failure {
    Failure::new(Exit::Usage, format!("there is no topic or command `{name}`"))
        .with_remedy(format!("topics are {}", TOPICS.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_topic_has_a_text() {
        for name in TOPICS {
            assert!(topic(name).is_some_and(|text| text.len() > 500), "{name}");
        }
    }
}
