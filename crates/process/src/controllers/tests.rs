//! Groups as the kernel shows them, made of plain files.

use super::*;

const HYBRID: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
                      35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      36 31 0:33 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct\n\
                      37 31 0:34 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

const ALL: ResourceLimits = ResourceLimits {
    processes: Some(64),
    memory: Some(1 << 26),
    cpu_micros: Some(1_500_000),
    open_files: Some(9),
};

#[test]
fn the_group_of_a_hybrid_host_is_found() {
    let groups = "9:name=systemd:/\n4:memory:/x\n0::/\n";
    assert_eq!(find_group(HYBRID, groups), Some("/sys/fs/cgroup/unified".into()));
}

#[test]
fn the_group_below_the_root_of_a_mount_is_found() {
    let mounts = "41 31 0:38 /box /sys/fs/c\\040g rw shared:1 - cgroup2 cgroup rw\n";
    assert_eq!(find_group(mounts, "0::/box/job/1\n"), Some("/sys/fs/c g/job/1".into()));
    assert_eq!(find_group(mounts, "0::/other\n"), None);
}

#[test]
fn hosts_of_version_1_have_none() {
    assert_eq!(find_group(HYBRID, "4:memory:/x\n"), None);
    assert_eq!(find_group("35 31 0:32 / /sys/fs/cgroup rw - cgroup cgroup rw,memory\n", "0::/\n"), None);
}

#[test]
fn hierarchies_of_version_1_are_found_with_the_group_we_are_in() {
    let groups = "9:name=systemd:/\n4:memory:/a/b\n3:cpu,cpuacct:/\n2:pids:/p\n0::/\n";
    let found = find_hierarchies(HYBRID, groups);
    let hierarchy = |own: &str, controllers| Hierarchy { own: own.into(), controllers };
    assert_eq!(
        found,
        [
            hierarchy("/sys/fs/cgroup/memory/a/b", vec![Controller::Memory]),
            hierarchy("/sys/fs/cgroup/cpu,cpuacct/", vec![Controller::Cpu, Controller::Cpuacct]),
        ]
    );
    assert_eq!(find_hierarchies(HYBRID, "0::/\n"), []);
}

/// A folder with files as a group has them.
fn group(files: &[(&str, &str)]) -> (tempfile::TempDir, OwnedFd) {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        fs::write(folder.path().join(name), content).unwrap();
    }
    let directory = open_directory(rustix::fs::CWD, folder.path()).unwrap();
    (folder, directory)
}

#[test]
fn limits_of_version_2_are_written_as_the_kernel_reads_them() {
    let (folder, directory) =
        group(&[("pids.max", "max"), ("memory.max", "max"), ("memory.swap.max", "max"), ("cpu.max", "")]);
    write_limits(&directory, Version::Two, &Controller::UNIFIED, &ALL).unwrap();
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    assert_eq!(read("pids.max"), "64");
    assert_eq!(read("memory.max"), "67108864");
    assert_eq!(read("memory.swap.max"), "0");
    assert_eq!(read("cpu.max"), "150000 100000");
}

#[test]
fn a_kernel_without_swap_accounting_is_no_failure_and_one_without_the_limit_is() {
    let (folder, directory) = group(&[("memory.max", "max")]);
    write_limits(&directory, Version::Two, &[Controller::Memory], &ALL).unwrap();
    assert_eq!(fs::read_to_string(folder.path().join("memory.max")).unwrap(), "67108864");
    assert!(write_limits(&directory, Version::Two, &[Controller::Pids], &ALL).is_err());
    // Files without a limit are not touched.
    write_limits(&directory, Version::Two, &Controller::UNIFIED, &ResourceLimits::default()).unwrap();
}

#[test]
fn limits_of_version_1_are_written_as_the_kernel_reads_them() {
    let (folder, directory) = group(&[
        ("memory.limit_in_bytes", ""),
        ("memory.memsw.limit_in_bytes", ""),
        ("cpu.cfs_period_us", ""),
        ("cpu.cfs_quota_us", ""),
    ]);
    let controllers = [Controller::Memory, Controller::Cpu, Controller::Cpuacct];
    write_limits(&directory, Version::One, &controllers, &ALL).unwrap();
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    assert_eq!(
        (read("memory.limit_in_bytes"), read("memory.memsw.limit_in_bytes")),
        ("67108864".into(), "67108864".into())
    );
    assert_eq!((read("cpu.cfs_quota_us"), read("cpu.cfs_period_us")), ("150000".into(), "100000".into()));
}

#[test]
fn values_beyond_the_kernels_own_bounds_are_taken_to_them() {
    assert_eq!(quota(1), Some(1_000), "the smallest quota");
    assert_eq!(quota(u64::MAX), None);
    let huge =
        ResourceLimits { processes: Some(u64::MAX), cpu_micros: Some(u64::MAX), ..ResourceLimits::default() };
    assert_eq!(Controller::Pids.settings(Version::Two, &huge), []);
    assert_eq!(Controller::Cpu.settings(Version::One, &huge), []);
}

#[test]
fn counts_and_usage_are_read_from_both_versions() {
    let (_two, directory) = group(&[
        ("memory.events", "low 0\nmax 31\noom 2\noom_kill 3\noom_group_kill 0\n"),
        ("pids.events", "max 7\n"),
        ("memory.peak", "4096\n"),
        ("cpu.stat", "usage_usec 1500\nuser_usec 1000\n"),
    ]);
    let both = LimitCounts { oom_kills: 3, refused: 7 };
    assert_eq!(read_counts(&directory, Version::Two, &Controller::UNIFIED), both);
    assert_eq!(read_counts(&directory, Version::Two, &[]), LimitCounts::default());
    assert_eq!(peak_memory(&directory, Version::Two), Some(4096));
    assert_eq!(cpu_time(&directory, Version::Two), Some(Duration::from_micros(1500)));
    let (_one, directory) = group(&[
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
        ("pids.events", "max 7\n"),
        ("memory.max_usage_in_bytes", "8192\n"),
        ("cpuacct.usage", "1500000\n"),
    ]);
    assert_eq!(read_counts(&directory, Version::One, &Controller::UNIFIED), both);
    assert_eq!(peak_memory(&directory, Version::One), Some(8192));
    assert_eq!(cpu_time(&directory, Version::One), Some(Duration::from_micros(1500)));
}

#[test]
fn what_a_group_hands_on_is_asked_for_and_read_back() {
    let (folder, _directory) = group(&[("cgroup.subtree_control", "cpuset memory pids\n")]);
    assert_eq!(hand_on(folder.path()), [Controller::Pids, Controller::Memory]);
    let asked = fs::read_to_string(folder.path().join("cgroup.subtree_control")).unwrap();
    assert_eq!(asked, "cpuset memory pids\n+pids+memory+cpu");
    assert_eq!(hand_on(&folder.path().join("none")), []);
}

#[test]
fn a_group_with_processes_is_asked_to_hand_on_nothing_unless_it_is_the_root() {
    for (files, is_asked) in [
        ([("cgroup.type", "domain\n"), ("cgroup.procs", "12\n")], false),
        ([("cgroup.type", "domain\n"), ("cgroup.procs", "")], true),
        ([("cgroup.stat", ""), ("cgroup.procs", "1\n")], true),
    ] {
        let (folder, _directory) = group(&files);
        for name in ["cgroup.controllers", "cgroup.subtree_control"] {
            fs::write(folder.path().join(name), "pids\n").unwrap();
        }
        let expected: &[Controller] = if is_asked { &[Controller::Pids] } else { &[] };
        assert_eq!((&*hand_on(folder.path()), &*available(folder.path())), (expected, expected), "{files:?}");
        let asked = fs::read_to_string(folder.path().join("cgroup.subtree_control")).unwrap();
        assert_eq!(asked != "pids\n", is_asked, "{files:?}");
    }
}
