//! Events as bytes: what the keeper holds of a job, so that the next daemon can rebuild the job's machine
//! (recovery.md). One event, one record; where records begin and end is the
//! keeper's business.

use super::event::Event;

/// First byte of every record. Raised whenever [`Event`] or anything inside it changes its shape; a further event behind
/// the others changes none of theirs.
///
/// The protocol's version is raised together with it: a daemon that greets the keeper of another one is handed its records,
/// and a job whose record cannot be read is interrupted.
pub const FORMAT: u8 = 4;

/// Why a record could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Nothing there at all.
    #[error("the record of an event is empty")]
    Empty,
    /// Written by a daemon of another format.
    #[error("the record has format {0}, this daemon reads format {FORMAT}")]
    Format(u8),
    /// Not what an event looks like.
    #[error("the record of an event is damaged")]
    Damaged(#[source] postcard::Error),
    /// An event, then more.
    #[error("{0} bytes follow the record of an event")]
    Trailing(usize),
    /// The event could not be written.
    #[error("the event cannot be recorded")]
    Unwritable(#[source] postcard::Error),
}

/// One record. It holds secrets: it may be kept in memory files only.
pub fn encode(event: &Event) -> Result<Vec<u8>, RecordError> {
    postcard::to_extend(event, vec![FORMAT]).map_err(RecordError::Unwritable)
}

/// The event of one record.
pub fn decode(record: &[u8]) -> Result<Event, RecordError> {
    let (&format, body) = record.split_first().ok_or(RecordError::Empty)?;
    if format != FORMAT {
        return Err(RecordError::Format(format));
    }
    match postcard::take_from_bytes(body).map_err(RecordError::Damaged)? {
        (event, []) => Ok(event),
        (_, rest) => Err(RecordError::Trailing(rest.len())),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::job::event::{FetchFailure, Fetched, FileContent, JobSpec, ProcessEnd};
    use crate::lang::diagnostic::Class;
    use crate::lang::value::{Data, Value};
    use crate::model::{CancelCause, ExitStatus};

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
                prop::collection::vec(inner.clone(), 0..4).prop_map(|all| Value::plain(Data::Array(all))),
                prop::collection::vec((".{0,4}", inner), 0..4)
                    .prop_map(|all| Value::plain(Data::Object(all.into_iter().collect()))),
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

    fn events() -> impl Strategy<Value = Event> {
        prop_oneof![
            specs().prop_map(|spec| Event::Accepted(Box::new(spec))),
            any::<i64>().prop_map(|at| Event::Admitted { at }),
            (any::<u32>(), ".{0,9}", ".{0,99}", prop::option::of(".{0,9}")).prop_map(
                |(call, dir, text, tree)| {
                    let (path, version) = (format!("{dir}/func.yml"), tree.clone());
                    Event::Fetched { call, result: Ok(Fetched { dir, path, text, tree, version }) }
                }
            ),
            (any::<u32>(), ".{0,9}").prop_map(|(call, message)| Event::Fetched {
                call,
                result: Err(FetchFailure { class: Class::NotFound, message }),
            }),
            (any::<u32>(), ends(), prop::option::of(".{0,9}"), contents(), contents()).prop_map(
                |(call, end, shell, outputs, exports)| Event::Exited { call, end, shell, outputs, exports }
            ),
            prop::option::of(any::<u32>()).prop_map(|ms| Event::CancelAsked {
                cause: CancelCause::Silent,
                grace_limit: ms.map(|ms| Duration::from_millis(ms.into())),
            }),
            ".{0,9}".prop_map(|message| Event::Unprepared { message }),
            ".{0,9}".prop_map(|message| Event::Broken { message }),
            (any::<u32>(), ".{0,9}").prop_map(|(op, message)| Event::Unmasked { op, message }),
        ]
    }

    proptest! {
        #[test]
        fn what_was_recorded_is_read_back(event in events()) {
            let record = encode(&event).unwrap();
            prop_assert!(decode(&record).unwrap() == event);
        }

        #[test]
        fn a_cut_record_is_damaged_and_a_longer_one_has_a_tail(event in events(), at in any::<prop::sample::Index>()) {
            let mut record = encode(&event).unwrap();
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
    fn fault_46_another_format_is_named() {
        let mut record = encode(&Event::Admitted { at: 7 }).unwrap();
        record[0] = 9;
        assert_eq!(
            decode(&record).err().unwrap().to_string(),
            "the record has format 9, this daemon reads format 4"
        );
        assert!(matches!(decode(&[]), Err(RecordError::Empty)));
    }
}
