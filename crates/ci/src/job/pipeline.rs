//! The jobs of a CI file as a pipeline would have them (ci.md §4): which start, and which must run before others.

use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::collections::{HashMap, HashSet};

use step_runner_lang::diagnostic::Diagnostic;
use step_runner_model::text::quote;

use super::Job;
use super::from_file::{Circumstances, Evaluation, earlier, names};
use super::standing::Standing;
use crate::file::{AllowFailure, CiFile, Definition, Need};

/// Returns a job by its full name.
pub fn of_file(file: &CiFile, name: &str, circumstances: &Circumstances<'_>) -> Result<Job, Vec<Diagnostic>> {
    Pipeline::new(file, circumstances).job(name)
}

/// The decisions of one job's rules.
#[derive(Clone)]
struct Decided<'p> {
    definition: &'p Definition,
    standing: Standing,
    allowed: AllowFailure,
    /// `needs` of the rule that matches, else of the job.
    needs: Option<&'p [Need]>,
}

/// The jobs of a CI file. The rules of each are evaluated once, whatever is asked.
pub struct Pipeline<'p> {
    file: &'p CiFile,
    circumstances: &'p Circumstances<'p>,
    decided: HashMap<String, Decided<'p>>,
}

impl<'p> Pipeline<'p> {
    /// Returns the pipeline of a file. Nothing is evaluated yet.
    pub fn new(file: &'p CiFile, circumstances: &'p Circumstances<'p>) -> Self {
        Self { file, circumstances, decided: HashMap::new() }
    }

    /// Returns the standing of a job by its full name, and which of its failures do not count.
    pub fn standing(&mut self, name: &str) -> Result<(Standing, AllowFailure), Vec<Diagnostic>> {
        let Decided { standing, allowed, needs, .. } = self.decided(name)?.clone();
        if standing.is_absent() {
            return Ok((standing, allowed));
        }
        let required = needs.into_iter().flatten().filter(|need| !need.optional);
        for other in required.flat_map(|need| names(self.file, need)) {
            if self.decided(other)?.standing.is_absent() {
                let why = format!("it needs \"{}\", which would not be in it", quote(other));
                return Ok((Standing::Absent(why), allowed));
            }
        }
        Ok((standing, allowed))
    }

    /// Returns a job by its full name.
    pub fn job(&mut self, name: &str) -> Result<Job, Vec<Diagnostic>> {
        let (standing, _) = self.standing(name)?;
        Evaluation::of(self.file, name, self.circumstances)?.job(name, standing)
    }

    /// Returns the full names of the jobs that must run right before a job: those that `needs` or `dependencies` name, else
    /// those of earlier stages that have artifacts and start by themselves. An optional one that the rules leave out is none.
    pub fn needs(&mut self, name: &str) -> Result<Vec<&'p str>, Vec<Diagnostic>> {
        let file = self.file;
        let Decided { definition, needs, .. } = *self.decided(name)?;
        let mut before = Vec::new();
        if let Some(needs) = needs.or(definition.dependencies.as_deref()) {
            for need in needs {
                for other in names(file, need) {
                    if !(need.optional && self.decided(other)?.standing.is_absent()) {
                        before.push(other);
                    }
                }
            }
        } else {
            for other in earlier(file, definition).flat_map(Definition::full_names) {
                if self.decided(other)?.standing.starts_by_itself() {
                    before.push(other);
                }
            }
        }
        Ok(before)
    }

    /// Returns the full names of all jobs that must run before a job, in an order in which they can.
    pub fn needed(&mut self, name: &str) -> Result<Vec<String>, Vec<Diagnostic>> {
        // Each is entered twice: when it is found, and behind those that it needs. A circle, which rules can make, ends
        // as well.
        let mut seen = HashSet::new();
        let mut order = Vec::new();
        let mut open = vec![(name.to_owned(), false)];
        while let Some((job, is_behind)) = open.pop() {
            if is_behind {
                order.push(job);
                continue;
            }
            if !seen.insert(job.clone()) {
                continue;
            }
            let before = self.needs(&job)?;
            open.push((job, true));
            let unseen = before.into_iter().rev().filter(|other| !seen.contains(*other));
            open.extend(unseen.map(|other| (other.to_owned(), false)));
        }
        order.pop();
        Ok(order)
    }

    fn decided(&mut self, name: &str) -> Result<&Decided<'p>, Vec<Diagnostic>> {
        let (file, circumstances) = (self.file, self.circumstances);
        match self.decided.entry(name.to_owned()) {
            Occupied(entry) => Ok(entry.into_mut()),
            Vacant(entry) => {
                let evaluation = Evaluation::of(file, name, circumstances)?;
                Ok(entry.insert(Decided {
                    definition: evaluation.definition,
                    standing: evaluation.standing(),
                    allowed: evaluation.allowed(),
                    needs: evaluation.needs(),
                }))
            }
        }
    }
}
