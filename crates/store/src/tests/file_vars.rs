use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;

use super::*;
use crate::file_vars::{probe, remove, write_all};
use step_runner_core::variables::FileVariable;
use step_runner_model::Reason;

struct Case {
    temp: TempDir,
    state: StateDir,
}

impl Case {
    fn new() -> Self {
        let temp = temp();
        let state = open(&temp);
        Self { temp, state }
    }

    fn directory(&self) -> PathBuf {
        self.temp.path().join("build/p.tmp")
    }

    fn text(&self) -> String {
        self.directory().to_str().unwrap().to_owned()
    }

    fn variables(&self, names: &[&str]) -> Vec<FileVariable> {
        let directory = self.text();
        let variable = |name: &&str| FileVariable {
            path: format!("{directory}/{name}"),
            directory: directory.clone(),
            name: (*name).to_owned(),
            content: format!("s3cret of {name}\0"),
        };
        names.iter().map(variable).collect()
    }

    /// Makes a job as Run leaves it.
    fn job(&self, id: &str, names: &[&str]) -> (JobFolder, JobRecord) {
        let job_folder = folder(&self.state, id);
        let made_directory = probe(job_folder.key(), &self.text()).unwrap();
        let files = self.variables(names).into_iter().map(|variable| variable.path).collect();
        let job_record = JobRecord { files, made_directory, ..record(id) };
        job_folder.make().unwrap();
        job_folder.write_record(&job_record).unwrap();
        (job_folder, job_record)
    }

    fn names(&self) -> Vec<String> {
        let Ok(list) = fs::read_dir(self.directory()) else { return Vec::new() };
        let mut names: Vec<_> = list.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn written(folder: &JobFolder) -> Vec<(String, u64, u64)> {
    folder.read_journal().unwrap().files
}

#[test]
fn files_are_written_whole_and_private_and_removed_with_the_directory() {
    let case = Case::new();
    let (job_folder, job_record) = case.job("1", &["A", "B"]);
    assert!(case.names().is_empty(), "probing leaves nothing");
    write_all(&job_folder, &case.variables(&["A", "B"])).unwrap();
    assert_eq!(case.names(), ["A", "B"]);
    assert_eq!(fs::read(case.directory().join("A")).unwrap(), b"s3cret of A\0");
    assert_eq!(fs::metadata(case.directory().join("A")).unwrap().mode() & 0o7777, 0o600);
    assert_eq!(fs::metadata(case.directory()).unwrap().mode() & 0o7777, 0o700);
    // A restarted daemon writes the files again.
    write_all(&job_folder, &case.variables(&["A", "B"])).unwrap();
    remove(job_folder.key(), &job_record, &written(&job_folder)).unwrap();
    assert!(!case.directory().exists());
}

#[test]
fn what_is_not_ours_any_more_stays() {
    let case = Case::new();
    let (first, first_record) = case.job("1", &["A", "B"]);
    write_all(&first, &case.variables(&["A", "B"])).unwrap();
    // A second job with the same directory: the last writer wins.
    let (second, second_record) = case.job("2", &["A"]);
    assert_eq!(second_record.made_directory, None);
    write_all(&second, &case.variables(&["A"])).unwrap();
    remove(first.key(), &first_record, &written(&first)).unwrap();
    assert_eq!(case.names(), ["A"]);
    remove(second.key(), &second_record, &written(&second)).unwrap();
    assert!(!case.directory().exists(), "the second was its last job");
}

#[test]
fn a_directory_goes_with_its_last_job_whoever_has_made_it() {
    let case = Case::new();
    // A job that has not written its files yet finds the directory gone, and makes it again.
    let (first, first_record) = case.job("1", &["A"]);
    let (second, second_record) = case.job("2", &["B"]);
    remove(first.key(), &first_record, &written(&first)).unwrap();
    assert!(!case.directory().exists());
    write_all(&second, &case.variables(&["B"])).unwrap();
    remove(second.key(), &second_record, &written(&second)).unwrap();
    assert!(!case.directory().exists());
    // Files of others keep it, and a link in its place is left alone.
    fs::create_dir(case.directory()).unwrap();
    fs::write(case.directory().join("masking.db"), "").unwrap();
    let (third, third_record) = case.job("3", &["C"]);
    write_all(&third, &case.variables(&["C"])).unwrap();
    remove(third.key(), &third_record, &written(&third)).unwrap();
    assert_eq!(case.names(), ["masking.db"]);
    fs::rename(case.directory(), case.temp.path().join("moved")).unwrap();
    symlink(case.temp.path().join("moved"), case.directory()).unwrap();
    remove(third.key(), &third_record, &[]).unwrap();
    assert!(case.directory().is_symlink() && case.temp.path().join("moved/masking.db").exists());
}

#[test]
fn link_at_the_path_is_replaced_and_never_followed() {
    let case = Case::new();
    let victim = case.temp.path().join("victim");
    fs::write(&victim, "stays").unwrap();
    let (job_folder, _) = case.job("1", &["A"]);
    symlink(&victim, case.directory().join("A")).unwrap();
    write_all(&job_folder, &case.variables(&["A"])).unwrap();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "stays");
    assert!(fs::symlink_metadata(case.directory().join("A")).unwrap().is_file());
}

#[test]
fn directory_that_is_a_link_or_a_file_is_refused() {
    for make in [|at: &PathBuf| symlink("/tmp", at).unwrap(), |at: &PathBuf| fs::write(at, "x").unwrap()] {
        let case = Case::new();
        fs::create_dir(case.temp.path().join("build")).unwrap();
        make(&case.directory());
        let key = folder(&case.state, "1").key();
        assert_eq!(probe(key, &case.text()).unwrap_err().reason(), Reason::NotWritable);
    }
    let case = Case::new();
    fs::write(case.temp.path().join("build"), "a file as parent").unwrap();
    let error = probe(folder(&case.state, "1").key(), &case.text()).unwrap_err();
    assert_eq!(error.reason(), Reason::NotWritable);
}

#[test]
fn a_directory_of_others_is_refused_where_every_user_may_make_one() {
    let case = Case::new();
    let parent = case.directory().parent().unwrap().to_owned();
    fs::create_dir_all(case.directory()).unwrap();
    let key = folder(&case.state, "1").key();
    for (parent_mode, own_mode, refused) in [
        (0o1777, 0o700, false),
        (0o1777, 0o755, false),
        (0o1777, 0o777, true),
        (0o1777, 0o770, true),
        (0o755, 0o777, false),
    ] {
        fs::set_permissions(&parent, fs::Permissions::from_mode(parent_mode)).unwrap();
        fs::set_permissions(case.directory(), fs::Permissions::from_mode(own_mode)).unwrap();
        let error = probe(key, &case.text()).err();
        assert_eq!(error.is_some(), refused, "{parent_mode:o} {own_mode:o}");
        assert!(error.is_none_or(|error| error.reason() == Reason::NotWritable));
    }
}

#[test]
fn all_files_or_none() {
    let case = Case::new();
    let (job_folder, job_record) = case.job("1", &["A", "B", "C"]);
    fs::create_dir_all(case.directory().join("B/in the way")).unwrap();
    assert!(write_all(&job_folder, &case.variables(&["A", "B", "C"])).is_err());
    assert_eq!(case.names(), ["B"]);
    remove(job_folder.key(), &job_record, &written(&job_folder)).unwrap();
    assert_eq!(case.names(), ["B"]);
}

#[test]
fn recovery_removes_what_a_crash_left_under_temporary_names() {
    let case = Case::new();
    let (job_folder, job_record) = case.job("1", &["A", "B"]);
    fs::write(case.directory().join(format!(".step-runner-{}-1", job_folder.key())), "s3cret").unwrap();
    let end = close_interrupted(&job(scan_one(&case.state)), "test", None, 0, 0).unwrap();
    assert!(is_interrupted(&end));
    assert!(!case.directory().exists());
    assert_eq!(job_record.files.len(), 2);
}

#[test]
fn full_disk_has_a_reason_of_its_own() {
    let full = |errno: i32| FileErrorFor(errno).reason();
    assert_eq!(full(libc::ENOSPC), Reason::DiskFull);
    assert_eq!(full(libc::EDQUOT), Reason::DiskFull);
    assert_eq!(full(libc::EROFS), Reason::NotWritable);
}

struct FileErrorFor(i32);

impl FileErrorFor {
    fn reason(&self) -> Reason {
        let source = std::io::Error::from_raw_os_error(self.0);
        StoreError { action: "write", path: PathBuf::new(), source }.reason()
    }
}

#[test]
fn fault_99_a_device_that_lost_a_part_of_the_journal_keeps_no_file_that_the_rest_names() {
    let case = Case::new();
    let (job_folder, _) = case.job("1", &["A", "B"]);
    write_all(&job_folder, &case.variables(&["A", "B"])).unwrap();
    let journal = job_folder.path("journal");
    let good = fs::read(&journal).unwrap();
    fs::write(&journal, [&good, &b"\"crc32\":\"09f08a47\"}\n"[..], &good].concat()).unwrap();
    job_folder.remove_file_variables().unwrap();
    assert!(!case.directory().exists());
    // A file that the good part does not name may be anybody's, and may hold a secret.
    fs::remove_file(&journal).unwrap();
    write_all(&job_folder, &case.variables(&["A", "B"])).unwrap();
    let first = good.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    fs::write(&journal, [&good[..first], &b"lost\n"[..]].concat()).unwrap();
    let left = job_folder.remove_file_variables().unwrap_err();
    assert!(left.has_content && left.path().ends_with("B"), "{left}: {}", left.path().display());
    assert!(case.names().contains(&"B".to_owned()));
}

#[test]
fn fault_117_files_that_the_journal_cannot_name_get_no_names() {
    let case = Case::new();
    let cut_at_its_begin = "\"crc32\":\"09f08a47\"}\n";
    let cut_at_its_end = "{\"crc32\":\"09f0";
    for (id, lost) in [("1", cut_at_its_begin), ("2", cut_at_its_end)] {
        let (job_folder, _) = case.job(id, &["A", "B"]);
        fs::write(job_folder.path("journal"), lost).unwrap();
        let error = write_all(&job_folder, &case.variables(&["A", "B"])).unwrap_err();
        let text = step_runner_model::error::Chain(&error).to_string();
        assert!(text.contains("journal: damaged at byte 0"), "{text}");
        assert!(case.names().is_empty(), "{:?}", case.names());
        job_folder.remove_file_variables().unwrap();
    }
}
