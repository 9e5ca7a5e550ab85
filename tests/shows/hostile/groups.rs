//! Steps that write to the files of control groups: of their own leaf, and of the groups around it. They write only what the
//! keeper can undo: a kill of the groups around it, or a freeze of the group that daemon and keeper are in, ends or stops
//! everything of this user (docs/operate/threat-model.md).

use std::fmt::Write as _;

use crate::random::Random;

/// Maximum number of writes of one step.
const WRITES: u64 = 20;

/// Seconds that an escaped process sleeps. No other process of the proof has this command.
const ESCAPED: &str = "35711.5";

/// Returns a script that writes to some files of control groups. It does nothing where there are none.
pub(super) fn script(random: &mut Random) -> String {
    let mut text = "own=$(sed -n 's/^0:://p' /proc/self/cgroup)\n\
         for at in /sys/fs/cgroup /sys/fs/cgroup/unified; do [ -e $at$own/cgroup.procs ] && g=$at$own; done\n\
         [ -n \"$g\" ] || exit 0\n"
        .to_owned();
    for _ in 0..=random.below(WRITES) {
        let line = match random.below(9) {
            0 => "echo 1 > $g/cgroup.freeze".to_owned(),
            1 => "echo 1 > $g/../cgroup.freeze".to_owned(),
            2 => "for leaf in $g/../*/; do echo 1 > $leaf/cgroup.freeze; break; done".to_owned(),
            3 => format!("(setsid sleep {ESCAPED} >/dev/null 2>&1 & echo $! > $g/../../cgroup.procs)"),
            4 => format!(
                "(env -i setsid sh -c 'echo $$ > '$g'/../../cgroup.procs; exec sleep {ESCAPED}' >/dev/null 2>&1 &)"
            ),
            5 => format!(
                "for leaf in $g/../*/; do (setsid sleep {ESCAPED} >/dev/null 2>&1 & echo $! > $leaf/cgroup.procs); \
                 break; done"
            ),
            6 => "echo $$ > $g/../../cgroup.procs".to_owned(),
            7 => {
                "mkdir -p $g/below; echo threaded > $g/below/cgroup.type; echo 0 > $g/cgroup.max.descendants"
                    .to_owned()
            }
            _ => "echo +cpu > $g/cgroup.subtree_control; echo max > $g/pids.max; chmod 0 $g/cgroup.procs"
                .to_owned(),
        };
        writeln!(text, "{line} 2>/dev/null").unwrap();
    }
    if random.one_in(4) {
        text.push_str("echo 1 > $g/cgroup.kill 2>/dev/null\n");
    }
    text + "exit 3"
}

/// Returns the escaped processes that live.
pub(super) fn escaped() -> Vec<u32> {
    let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let command = format!("sleep\0{ESCAPED}\0");
    pids.filter(|pid: &u32| {
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == command.as_bytes())
    })
    .collect()
}
