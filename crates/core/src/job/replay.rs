//! Replays a job's record to its machine, event by event. Only one decoded event is in memory at a time.

use std::collections::{HashMap, HashSet, VecDeque};

use super::effect::Effect;
use super::event::{Event, Fetched, ProcessNumber};
use super::machine::Machine;
use super::record::{self, RecordError, Recorder};

/// A machine that has handled a record, with the facts that the job's actor needs.
pub struct Replayed {
    /// The machine.
    pub machine: Machine,
    /// Its effects, in order. An earlier daemon has performed most of them.
    pub effects: VecDeque<Effect>,
    /// Encodes the next events.
    pub recorder: Recorder,
    /// Attempts whose fetch has ended, successful or not.
    pub fetched: HashSet<ProcessNumber>,
    /// Attempts whose process has ended.
    pub exited: HashSet<ProcessNumber>,
    /// Trees that hold fetched functions.
    pub trees: Vec<String>,
    /// Number of the effect whose phrases could not be masked, and the reason.
    pub unmasked: Option<(u32, String)>,
    /// Time of the admission, microseconds since the epoch.
    pub admitted: Option<i64>,
    /// True if a cancel was asked for.
    pub is_cancelled: bool,
    /// Texts of functions by event number, for events that leave theirs out.
    texts: HashMap<u32, String>,
}

impl Replayed {
    /// Wraps a machine that has handled nothing.
    pub fn new(machine: Machine) -> Self {
        Self {
            machine,
            effects: VecDeque::new(),
            recorder: Recorder::default(),
            fetched: HashSet::new(),
            exited: HashSet::new(),
            trees: Vec::new(),
            unmasked: None,
            admitted: None,
            is_cancelled: false,
            texts: HashMap::new(),
        }
    }

    /// Replays `events`: the record without its first event, the request, from which the machine was made.
    ///
    /// # Errors
    /// Fails if an event cannot be read.
    pub fn play<'r>(mut self, events: impl Iterator<Item = &'r [u8]>) -> Result<Self, RecordError> {
        for encoded in events {
            let (event, at) = record::decode(encoded)?;
            if let Event::Fetched { result: Ok(Fetched { text, .. }), .. } = &event
                && record::is_recorded_once(text)
            {
                self.texts.insert(self.recorder.count(), text.clone());
            }
            let event = self.whole(event)?;
            self.note(&event);
            self.effects.extend(self.machine.handle(&event, at));
            self.recorder.recorded(&event, encoded.len());
        }
        self.texts = HashMap::new();
        Ok(self)
    }

    /// Restores a text that was left out.
    fn whole(&self, event: Event) -> Result<Event, RecordError> {
        match event {
            Event::FetchedAgain { process, text_of, fetched } => {
                let text = self.texts.get(&text_of).ok_or(RecordError::NoText(text_of))?.clone();
                Ok(Event::Fetched { process, result: Ok(Fetched { text, ..fetched }) })
            }
            event => Ok(event),
        }
    }

    fn note(&mut self, event: &Event) {
        match event {
            Event::Admitted { at } => self.admitted = self.admitted.or(Some(*at)),
            Event::Fetched { process, result } => {
                self.fetched.insert(*process);
                self.trees.extend(result.as_ref().ok().and_then(|fetched| fetched.tree.clone()));
            }
            Event::Exited { process, .. } | Event::Returned { process, .. } => {
                self.exited.insert(*process);
            }
            Event::CancelAsked { .. } => self.is_cancelled = true,
            Event::Unmasked { op, message } => self.unmasked = Some((*op, message.clone())),
            Event::Accepted(_)
            | Event::Unprepared { .. }
            | Event::Broken { .. }
            | Event::Due { .. }
            | Event::Cleared { .. }
            | Event::FetchRetried { .. }
            | Event::FetchedAgain { .. } => {}
        }
    }
}
