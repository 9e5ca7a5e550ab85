//! Encoding of events. The keeper stores the bytes, so that the next daemon can rebuild the job's machine
//! (recovery.md). One event makes one record; the keeper delimits records.

use std::collections::HashMap;

use sha2::{Digest, Sha256};
use step_runner_lang::diagnostic::Class;
use step_runner_lang::output_file::{FileKind, OutputFileError};

use super::event::{Event, FetchFailure, Fetched, Unusable};

/// First byte of every record. Raise it whenever [`Event`] or a type inside it changes shape. A new event at the end of
/// the enum changes no other.
///
/// Raise the protocol's version together with it. A daemon that can greet a keeper gets that keeper's records, and a
/// job whose record cannot be read is interrupted.
pub const FORMAT: u8 = 9;

/// Reason why a record could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The record is empty.
    #[error("the record of an event is empty")]
    Empty,
    /// Written by a daemon of another format.
    #[error("the record has format {0}, this daemon reads format {FORMAT}")]
    Format(u8),
    /// The bytes are not an event.
    #[error("the record of an event is damaged")]
    Damaged(#[source] postcard::Error),
    /// Bytes follow the event.
    #[error("{0} bytes follow the record of an event")]
    Trailing(usize),
    /// A text was left out, but no earlier event has it.
    #[error("event {0} of the record, which has the text of a function, is not there")]
    NoText(u32),
    /// The event could not be written.
    #[error("the event cannot be recorded")]
    Unwritable(#[source] postcard::Error),
}

/// Length in bytes that most events do not exceed.
const USUAL_BYTES: usize = 256;

/// Encodes an event with the time at which it was handled, in microseconds since the host's boot. The bytes hold
/// secrets: keep them in memory files only.
pub fn encode(event: &Event, at: u64) -> Result<Vec<u8>, RecordError> {
    let mut bytes = Vec::with_capacity(USUAL_BYTES);
    bytes.extend([FORMAT]);
    postcard::to_extend(&(at, event), bytes).map_err(RecordError::Unwritable)
}

/// Decodes an event and the time at which it was handled.
pub fn decode(record: &[u8]) -> Result<(Event, u64), RecordError> {
    let (&format, body) = record.split_first().ok_or(RecordError::Empty)?;
    if format != FORMAT {
        return Err(RecordError::Format(format));
    }
    match postcard::take_from_bytes(body).map_err(RecordError::Damaged)? {
        ((at, event), []) => Ok((event, at)),
        (_, rest) => Err(RecordError::Trailing(rest.len())),
    }
}

/// Maximum size of a job's record after the request: outputs, exports and fetched functions.
pub(crate) const MAX_RECORD: u64 = 64 << 20;

/// Minimum length in bytes of a function's text that is recorded only once.
const LONG_TEXT: usize = 1 << 10;

/// Encodes the events of one job for its record.
pub struct Recorder {
    /// Number of recorded events, including the request.
    count: u32,
    /// Number of bytes recorded after the request.
    bytes: u64,
    max: u64,
    /// Numbers of the events that have a text, by the text's digest.
    texts: HashMap<[u8; 32], u32>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self::limited(MAX_RECORD)
    }
}

impl Recorder {
    /// Creates the recorder of a job whose request is recorded, with room for `max` further bytes.
    pub(crate) fn limited(max: u64) -> Self {
        Self { count: 1, bytes: 0, max, texts: HashMap::new() }
    }

    /// Number of recorded events, including the request.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Encodes `event`. Returns it as the record will hold it: without room it is replaced by one that fails the step.
    /// The caller must then call [`Self::recorded`].
    pub fn encode(&self, event: Event, at: u64) -> Result<(Event, Vec<u8>), RecordError> {
        let (event, bytes) = self.encode_once(event, at)?;
        if self.bytes + bytes.len() as u64 <= self.max {
            return Ok((event, bytes));
        }
        drop(bytes);
        let event = without_room(event, self.max);
        let bytes = encode(&event, at)?;
        Ok((event, bytes))
    }

    /// Encodes the event without a text that is recorded already.
    fn encode_once(&self, mut event: Event, at: u64) -> Result<(Event, Vec<u8>), RecordError> {
        if let Event::Fetched { process, result: Ok(fetched) } = &mut event
            && is_recorded_once(&fetched.text)
            && let Some(&text_of) = self.texts.get(&digest(&fetched.text))
        {
            let text = std::mem::take(&mut fetched.text);
            let again = Event::FetchedAgain { process: *process, text_of, fetched: fetched.clone() };
            fetched.text = text;
            return Ok((event, encode(&again, at)?));
        }
        let bytes = encode(&event, at)?;
        Ok((event, bytes))
    }

    /// Notes that `event` was recorded with this number of bytes.
    pub fn recorded(&mut self, event: &Event, bytes: usize) {
        if let Event::Fetched { result: Ok(Fetched { text, .. }), .. } = event
            && is_recorded_once(text)
        {
            self.texts.entry(digest(text)).or_insert(self.count);
        }
        self.count += 1;
        self.bytes += bytes as u64;
    }
}

/// True for a function's text that later events leave out.
pub(super) const fn is_recorded_once(text: &str) -> bool {
    text.len() >= LONG_TEXT
}

fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text).into()
}

/// Returns the event to record when there is no room. Events without values stay as they are: they are small and few.
fn without_room(event: Event, max: u64) -> Event {
    let message = format!(
        "limit: outputs, exports and functions of this job take more than {} MiB together: hand large values over in \
         files and return their paths",
        max >> 20
    );
    match event {
        Event::Returned { process, status, shell, returned: _, ran } => {
            let error = OutputFileError { class: Class::Limit, file: FileKind::Output, line: None, message };
            let returned = Box::new(Err(Unusable { error, line: None }));
            Event::Returned { process, status, shell, returned, ran }
        }
        Event::Fetched { process, result: Ok(_) } => {
            Event::Fetched { process, result: Err(FetchFailure { class: Class::Limit, message }) }
        }
        event => event,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use indexmap::IndexMap;
    use proptest::prelude::*;
    use step_runner_lang::value::{Data, Value};
    use step_runner_model::{CancelCause, ExitStatus, FinishedProcess, StepUsage};

    use super::*;
    use crate::job::event::{FileContent, JobSpec, ProcessEnd};
    use crate::plan::returned::ProcessOutputs;

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::plain(Data::Null)),
            any::<bool>().prop_map(|sensitive| Value { data: Data::Bool(true), sensitive }),
            (-1e300..1e300).prop_map(|number| Value::plain(Data::Number(number))),
            (".{0,8}", any::<bool>())
                .prop_map(|(text, sensitive)| Value { data: Data::String(text), sensitive }),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::array),
                prop::collection::vec((".{0,4}", inner), 0..4)
                    .prop_map(|all| Value::object(all.into_iter().collect())),
            ]
        })
    }

    fn specs() -> impl Strategy<Value = JobSpec> {
        let pairs = || prop::collection::vec((".{0,4}", values()), 0..4);
        let base = prop::collection::vec((any::<Vec<u8>>(), any::<Vec<u8>>()), 0..3);
        (".{0,40}", pairs(), pairs(), base, prop::option::of(0u64..1 << 40), prop::option::of(".{1,9}"))
            .prop_map(|(steps, inputs, vars, base, millis, file)| JobSpec {
                id: "42".into(),
                steps,
                file,
                inputs: inputs.into_iter().collect(),
                vars: vars.into_iter().collect(),
                base_env: Arc::new(base),
                env: [("A".to_owned(), "b".to_owned())].into_iter().collect(),
                work_dir: "/job".into(),
                tmp_dir: "/tmp/x".into(),
                timeout: millis.map(Duration::from_millis),
                cancel_grace: millis.map(Duration::from_nanos),
                default_grace: Duration::from_secs(5),
                cleanup_timeout: Duration::from_mins(1),
                members_at_a_time: 14,
                errexit: false,
                trace_sections: false,
            })
    }

    fn contents() -> impl Strategy<Value = Option<FileContent>> {
        prop::option::of(prop_oneof![
            any::<Vec<u8>>().prop_map(FileContent::Bytes),
            ".{0,9}".prop_map(FileContent::Unreadable),
        ])
    }

    fn ends() -> impl Strategy<Value = ProcessEnd> {
        prop_oneof![
            any::<u8>().prop_map(|code| ProcessEnd::Exited(ExitStatus::Code(code))),
            any::<u8>().prop_map(|signal| ProcessEnd::Exited(ExitStatus::Signal(signal))),
            ".{0,9}".prop_map(ProcessEnd::NotStarted),
            (any::<u8>(), ".{0,9}")
                .prop_map(|(code, of)| ProcessEnd::Short { status: ExitStatus::Code(code), of }),
        ]
    }

    fn runs() -> impl Strategy<Value = Option<FinishedProcess>> {
        let usage = (0u64..1 << 40, prop::option::of(any::<u64>())).prop_map(|(micros, bytes)| StepUsage {
            user: Duration::from_micros(micros),
            system: Duration::ZERO,
            peak_memory: bytes,
            read: bytes,
            written: None,
        });
        let ran = (any::<u64>(), any::<u64>(), prop::option::of(usage));
        prop::option::of(ran.prop_map(|(ended, log_len, usage)| FinishedProcess { ended, log_len, usage }))
    }

    fn returned_event(process: u32, code: u8, returned: Result<ProcessOutputs, Unusable>) -> Event {
        let status = ExitStatus::Code(code);
        Event::Returned { process, status, shell: None, returned: Box::new(returned), ran: None }
    }

    fn fetched(process: u32, text: &str) -> Event {
        let (dir, path) = ("/f".into(), format!("/f/{process}.yml"));
        Event::Fetched {
            process,
            result: Ok(Fetched { dir, path, text: text.into(), tree: None, version: None }),
        }
    }

    /// Records an event. Returns it as recorded, and its bytes.
    fn record(recorder: &mut Recorder, event: Event) -> (Event, Vec<u8>) {
        let (event, bytes) = recorder.encode(event, 7).unwrap();
        recorder.recorded(&event, bytes.len());
        (event, bytes)
    }

    fn events() -> impl Strategy<Value = Event> {
        prop_oneof![
            specs().prop_map(|spec| Event::Accepted(Box::new(spec))),
            any::<i64>().prop_map(|at| Event::Admitted { at }),
            (any::<u32>(), ".{0,9}", ".{0,99}", prop::option::of(".{0,9}")).prop_map(
                |(process, dir, text, tree)| {
                    let (path, version) = (format!("{dir}/func.yml"), tree.clone());
                    Event::Fetched { process, result: Ok(Fetched { dir, path, text, tree, version }) }
                }
            ),
            (any::<u32>(), ".{0,9}").prop_map(|(process, message)| Event::Fetched {
                process,
                result: Err(FetchFailure { class: Class::NotFound, message }),
            }),
            (any::<u32>(), ends(), prop::option::of(".{0,9}"), contents(), contents(), runs()).prop_map(
                |(process, end, shell, outputs, exports, ran)| Event::Exited {
                    process,
                    end,
                    shell,
                    outputs,
                    exports,
                    ran
                }
            ),
            prop::option::of(any::<u32>()).prop_map(|ms| Event::CancelAsked {
                cause: CancelCause::Silent,
                grace_limit: ms.map(|ms| Duration::from_millis(ms.into())),
                force: ms.is_some(),
            }),
            any::<u32>().prop_map(|timer| Event::Due { timer }),
            any::<u32>().prop_map(|call| Event::Cleared { call }),
            (any::<u32>(), ".{0,9}").prop_map(|(process, why)| Event::FetchRetried { process, why }),
            ".{0,9}".prop_map(|message| Event::Unprepared { message }),
            ".{0,9}".prop_map(|message| Event::Broken { message }),
            (any::<u32>(), ".{0,9}").prop_map(|(op, message)| Event::Unmasked { op, message }),
            (any::<u32>(), any::<u8>(), prop::collection::vec((".{0,4}", values()), 0..4)).prop_map(
                |(process, code, outputs)| {
                    let exports = [("A".to_owned(), "b".to_owned())].into_iter().collect();
                    let written = vec!["1.0E-07".to_owned()];
                    let returned =
                        ProcessOutputs { outputs: outputs.into_iter().collect(), exports, written };
                    returned_event(process, code, Ok(returned))
                }
            ),
            (any::<u32>(), ".{0,9}", prop::option::of(any::<Vec<u8>>())).prop_map(
                |(process, message, line)| {
                    let error =
                        OutputFileError { class: Class::Type, file: FileKind::Export, line: None, message };
                    returned_event(process, 0, Err(Unusable { error, line }))
                }
            ),
        ]
    }

    proptest! {
        #[test]
        fn what_was_recorded_is_read_back(event in events(), at in any::<u64>()) {
            let record = encode(&event, at).unwrap();
            prop_assert!(decode(&record).unwrap() == (event, at));
        }

        #[test]
        fn a_cut_record_is_damaged_and_a_longer_one_has_a_tail(event in events(), at in any::<prop::sample::Index>()) {
            let mut record = encode(&event, 7).unwrap();
            let cut = at.index(record.len());
            prop_assert!(matches!(decode(&record[..cut]), Err(RecordError::Damaged(_) | RecordError::Empty)));
            record.extend([0, 0]);
            prop_assert!(matches!(decode(&record), Err(RecordError::Trailing(2))));
        }

        #[test]
        fn no_bytes_make_the_reader_fail_otherwise(bytes in any::<Vec<u8>>()) {
            drop(decode(&bytes));
        }
    }

    #[test]
    fn fault_77_a_record_has_a_limit_and_what_goes_beyond_it_fails_its_step() {
        let mut recorder = Recorder::limited(3 << 20);
        let large = |process| {
            let outputs = [("a".to_owned(), Value::text("x".repeat(1 << 20)))].into_iter().collect();
            returned_event(
                process,
                0,
                Ok(ProcessOutputs { outputs, exports: IndexMap::new(), written: Vec::new() }),
            )
        };
        for process in 0..2 {
            let (event, _) = record(&mut recorder, large(process));
            assert!(event == large(process));
        }
        let (event, bytes) = record(&mut recorder, large(2));
        assert!(decode(&bytes).unwrap() == (event.clone(), 7));
        let Event::Returned { process: 2, returned, .. } = event else { panic!("another event") };
        let error = returned.err().unwrap().error;
        assert_eq!(error.class, Class::Limit);
        assert!(error.message.starts_with("limit: ") && error.message.contains("3 MiB"), "{}", error.message);
        let (event, _) = record(&mut recorder, fetched(3, &"y".repeat(2 << 20)));
        assert!(matches!(
            event,
            Event::Fetched { result: Err(FetchFailure { class: Class::Limit, .. }), .. }
        ));
        let small = Event::Broken { message: "z".repeat(4 << 20) };
        assert!(record(&mut recorder, small.clone()).0 == small, "an end is recorded in any case");
        assert_eq!(recorder.count(), 6);
    }

    #[test]
    fn fault_77_one_text_is_recorded_once() {
        let mut recorder = Recorder::limited(64 << 10);
        let text = "z".repeat(40 << 10);
        let (first, _) = record(&mut recorder, fetched(1, &text));
        assert!(first == fetched(1, &text));
        for process in 2..100 {
            let (event, bytes) = record(&mut recorder, fetched(process, &text));
            assert!(event == fetched(process, &text), "who goes on has the text");
            assert!(bytes.len() < 100);
            assert!(matches!(decode(&bytes).unwrap().0, Event::FetchedAgain { text_of: 1, .. }));
        }
        let other = fetched(100, &"y".repeat(LONG_TEXT));
        for event in [&other, &fetched(101, "short"), &fetched(102, "short")] {
            let (_, bytes) = record(&mut recorder, event.clone());
            assert!(decode(&bytes).unwrap().0 == *event, "another text, or one too short to look up");
        }
    }

    #[test]
    fn fault_46_another_format_is_named() {
        let mut record = encode(&Event::Admitted { at: 7 }, 7).unwrap();
        record[0] = 10;
        assert_eq!(
            decode(&record).err().unwrap().to_string(),
            "the record has format 10, this daemon reads format 9"
        );
        assert!(matches!(decode(&[]), Err(RecordError::Empty)));
    }
}
