use std::fs;
use std::os::unix::fs::FileExt;

use super::*;
use step_runner_log::journal::{Damage, DamageKind, MAX_FRAMED, MAX_RECORD, append_record};

fn change(folder: &JobFolder, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(folder.path("steps")).unwrap();
    change(&mut bytes);
    fs::write(folder.path("steps"), bytes).unwrap();
}

#[test]
fn fault_43_results_behind_a_torn_one_can_be_read_once_it_is_cut() {
    let temp = temp();
    let folder = create(&open(&temp), "1");
    for result in ["first", "second", "third"] {
        folder.append_step(result.as_bytes()).unwrap();
    }
    change(&folder, |bytes| bytes.truncate(bytes.len() - 2));
    let len = folder.steps_len();
    let steps = folder.mend_steps_of(|_| true).unwrap();
    assert_eq!((steps.count, steps.last.as_deref(), steps.damage), (2, Some(&b"second"[..]), None));
    assert!(folder.steps_len() < len);
    folder.append_step(b"third again").unwrap();
    assert_eq!(folder.step_records(), [&b"first"[..], b"second", b"third again"]);
}

#[test]
fn fault_44_a_changed_result_is_not_cut_away() {
    let temp = temp();
    let folder = create(&open(&temp), "1");
    folder.append_step(b"first").unwrap();
    let at = folder.steps_len();
    folder.append_step(&vec![7; 40_000]).unwrap();
    folder.append_step(b"third").unwrap();
    change(&folder, |bytes| bytes[30_000] ^= 1);
    let len = folder.steps_len();
    let steps = folder.mend_steps_of(|_| true).unwrap();
    assert_eq!((steps.count, steps.damage), (1, Some(Damage { at, kind: DamageKind::Corrupt })));
    assert_eq!(folder.steps_len(), len);
    folder.open_steps().unwrap().record_at(at, len).unwrap_err();
}

#[test]
fn results_of_any_length_together_are_counted() {
    let temp = temp();
    let folder = create(&open(&temp), "1");
    let mut record = Vec::new();
    append_record(&vec![0; MAX_RECORD], &mut record).unwrap();
    folder.append_steps(&[]).unwrap();
    let file = fs::OpenOptions::new().write(true).open(folder.path("steps")).unwrap();
    for number in 0..5 {
        // Zeros take no space on the disk.
        file.write_all_at(&record[..8], number * MAX_FRAMED as u64).unwrap();
    }
    file.set_len(5 * MAX_FRAMED as u64).unwrap();
    folder.append_step(b"last").unwrap();
    let steps = folder.read_steps().unwrap();
    assert_eq!((steps.count, steps.last.as_deref(), steps.damage), (6, Some(&b"last"[..]), None));
}

#[test]
fn fault_15_what_is_used_up_for_now_is_told_from_what_is_forbidden() {
    let reason = |errno| reason_of(&io::Error::from_raw_os_error(errno));
    for errno in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EAGAIN, libc::ENOSPC, libc::EDQUOT] {
        assert!(reason(errno).may_pass(), "{errno}: {:?}", reason(errno));
    }
    for errno in [libc::EACCES, libc::ENOTDIR, libc::EROFS, libc::ELOOP] {
        assert_eq!(reason(errno), Reason::NotWritable);
        assert!(!reason(errno).may_pass());
    }
}
