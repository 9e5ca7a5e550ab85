//! Journal and steps against a model in memory. Whatever is cut off or changed, the records before it are read, and
//! nothing is read that was not written.

use std::fs;

use proptest::prelude::*;

use super::*;
use step_runner_log::journal;
use step_runner_model::{CancelCause, ExitStatus};

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (any::<i64>(), any::<Option<u64>>()).prop_map(|(at, boot)| Event::Started { at, boot }),
        (any::<String>(), any::<u64>(), any::<u64>()).prop_map(|(path, device, inode)| Event::File {
            path,
            device,
            inode
        }),
        (0..4_u32, any::<u32>(), any::<u64>()).prop_map(|(process, pid, start_time)| Event::StepStarted {
            process,
            pgid: pid,
            pid,
            start_time
        }),
        (0..4_u32, any::<u8>())
            .prop_map(|(process, code)| Event::StepEnded { process, status: Some(ExitStatus::Code(code)) }),
        Just(Event::Cancel { cause: CancelCause::Silent }),
        any::<String>().prop_map(|message| Event::Ended(End { outcome: Outcome::failed(message), ..end() })),
    ]
}

/// The model: a journal is its events, applied in order.
fn model(events: &[Event]) -> Journal {
    let bytes: Vec<u8> = events.iter().flat_map(|event| journal::encode(event).unwrap()).collect();
    Journal::read(&bytes).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn fault_43_journal_cut_at_any_byte_gives_the_events_before(events in prop::collection::vec(event(), 1..6)) {
        let temp = temp();
        let state = open(&temp);
        let job_folder = create(&state, "1");
        let mut ends = vec![0];
        for event in &events {
            job_folder.append(event).unwrap();
            ends.push(fs::metadata(job_folder.path("journal")).unwrap().len() as usize);
        }
        let bytes = fs::read(job_folder.path("journal")).unwrap();
        for cut in 0..=bytes.len() {
            let whole = ends.iter().filter(|end| **end <= cut && **end > 0).count();
            let torn = (ends[whole] < cut).then_some(ends[whole] as u64);
            let expected = Journal { torn, ..model(&events[..whole]) };
            prop_assert_eq!(Journal::read(&bytes[..cut]), Ok(expected));
        }
    }

    #[test]
    fn fault_44_changed_byte_is_reported_or_harmless(events in prop::collection::vec(event(), 1..4), bit in 0..8_u8) {
        let bytes: Vec<u8> = events.iter().flat_map(|event| journal::encode(event).unwrap()).collect();
        let good = Journal::read(&bytes).unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            if let Ok(read) = Journal::read(&changed) {
                prop_assert!(read.torn.is_some(), "byte {} passed unnoticed", at);
                prop_assert_ne!(read, good.clone());
            }
        }
    }

    #[test]
    fn fault_43_steps_cut_at_any_byte_give_the_results_before(results in prop::collection::vec(any::<Vec<u8>>(), 1..5)) {
        let temp = temp();
        let state = open(&temp);
        let job_folder = create(&state, "1");
        let mut ends = vec![0];
        for result in &results {
            job_folder.append_step(result).unwrap();
            ends.push(fs::metadata(job_folder.path("steps")).unwrap().len() as usize);
        }
        let bytes = fs::read(job_folder.path("steps")).unwrap();
        for cut in (0..=bytes.len()).rev() {
            fs::OpenOptions::new().write(true).open(job_folder.path("steps")).unwrap().set_len(cut as u64).unwrap();
            let whole = ends.iter().filter(|end| **end <= cut && **end > 0).count();
            let steps = job_folder.read_steps().unwrap();
            prop_assert_eq!(steps.count as usize, whole);
            prop_assert_eq!(&job_folder.step_records(), &results[..whole]);
            prop_assert_eq!(steps.damage.map(|damage| damage.at), (ends[whole] < cut).then_some(ends[whole] as u64));
        }
    }

    #[test]
    fn fault_44_records_with_any_byte_changed_never_stop_a_scan(at in 0..200_usize, bit in 0..8_u8) {
        let temp = temp();
        let state = open(&temp);
        let job_folder = create(&state, "1");
        let mut bytes = fs::read(job_folder.path("job.json")).unwrap();
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        fs::write(job_folder.path("job.json"), bytes).unwrap();
        match scan_one(&state) {
            Some(Found::Unreadable { folder, .. }) => {
                folder.set_aside().unwrap();
                prop_assert!(state.set_aside_keys().unwrap().contains(&folder.key()));
                prop_assert!(scan_one(&state).is_none());
            }
            Some(Found::Job(job)) => prop_assert_eq!(job.record.id, "1"),
            other => prop_assert!(false, "{other:?}"),
        }
    }
}
