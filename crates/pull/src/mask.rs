//! Hides a job's secrets in the agent's own lines of its trace, which no daemon masks (agent.md §11.3).

use std::sync::Arc;

use step_runner_agent::answer::text::{self, TOKEN_PREFIXES};
use step_runner_agent::record::Record;
use step_runner_ci::job::Job;
use step_runner_log::mask::{MASK_TEXT, MaskConfig, Masker, PhraseSet};

/// The secrets of a job, in the forms that a daemon hides.
pub(super) struct Mask(
    /// `None`: the job has more secrets than can be looked for, so nothing is shown.
    Option<Arc<Masker>>,
);

impl Mask {
    /// Takes the secrets of a job. Without `job`, its payload cannot be read, and only its token is known.
    pub(super) fn new(record: &Record, job: Option<&Job>) -> Self {
        let mut phrases = vec![record.token.expose().to_owned()];
        let mut prefixes: Vec<String> = TOKEN_PREFIXES.iter().map(|prefix| (*prefix).to_owned()).collect();
        if let Some(job) = job {
            for variable in job.variables.iter().filter(|variable| variable.masked) {
                phrases.extend([variable.value.clone(), variable.value.replace("$$", "$")]);
            }
            let tokens = job.dependencies.iter().filter_map(|dependency| dependency.token.clone());
            phrases.extend(job.token.iter().chain(&job.phrases).cloned().chain(tokens));
            prefixes.extend(job.token_prefixes.iter().cloned());
        }
        Self::of(&phrases, &prefixes)
    }

    fn of(phrases: &[String], prefixes: &[String]) -> Self {
        let set = PhraseSet::prepare(phrases, prefixes, &MaskConfig::default());
        Self(set.ok().map(|(set, _)| Masker::compile(&set)))
    }

    /// Returns a text on one line, without secrets.
    pub(super) fn line(&self, line: &str) -> String {
        match &self.0 {
            Some(masker) => text::clean(&masker.mask(line).into_data(), &[]),
            None => MASK_TEXT.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a29_secrets_are_hidden_the_longer_ones_first_and_in_the_forms_that_a_daemon_hides() {
        let mask = Mask::of(&["secret-and-more".to_owned(), "secret".to_owned()], &[]);
        assert_eq!(
            mask.line("a secret-and-more, a secret\nglpat-abc c2VjcmV0LWFuZC1tb3Jl"),
            "a [MASKED], a [MASKED]\\nglpat-[MASKED] [MASKED]"
        );
        assert_eq!(Mask::of(&vec!["x".repeat(300 << 10); 2], &[]).line("anything"), MASK_TEXT);
    }
}
