//! The list of differences from a release of the Runner: each line that only one of the two programs has, with a reason.
//!
//! `differences-RELEASE.txt` has reasons, each with a word for it, and lines `WORD SIGN LINE @ JOBS`. `-` is a line of the
//! Runner, `+` one of the agent.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::observed::Observed;

/// Stands between the reasons and the lines.
const BORDER: &str = "\n\n";

/// Word of a line whose reason nobody has written yet.
const UNKNOWN: &str = "?";

/// Compares what was observed with the list. With `UPDATE_EXPECTED` set it writes the list, with the reasons that are known.
pub(super) fn check(release: &str, there: &[Observed], here: &[Observed]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agent/beside_runner");
    let path = folder.join(format!("differences-{release}.txt"));
    let is_renewed = std::env::var_os("UPDATE_EXPECTED").is_some();
    let text = match fs::read_to_string(&path) {
        Err(_) if is_renewed => BORDER.to_owned(),
        text => text.unwrap_or_else(|error| panic!("no list for GitLab Runner {release}: {error}")),
    };
    let (reasons, listed) = text.split_once(BORDER).unwrap();
    let words: BTreeMap<&str, &str> = listed.lines().filter_map(entry).collect();
    let mut list = String::new();
    for (line, jobs) in collected(there, here) {
        let word = words.get(line.as_str()).unwrap_or(&UNKNOWN);
        let all = jobs.len() == there.len() || jobs.len() + 1 == there.len() && !jobs.contains(&"broken");
        let jobs = if all { "each job".to_owned() } else { jobs.join(", ") };
        list.extend([word, " ", &line, " @ ", &jobs, "\n"]);
    }
    if is_renewed {
        fs::write(path, format!("{reasons}{BORDER}{list}")).unwrap();
        return;
    }
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let changed = differing(&lines(listed), &lines(&list));
    assert!(
        changed.is_empty(),
        "other differences from GitLab Runner {release} than listed:\n{}",
        changed.join("\n")
    );
    for line in listed.lines() {
        let word = line.split(' ').next().unwrap();
        let has_reason = reasons.lines().any(|reason| reason.split(": ").next() == Some(word));
        assert!(has_reason, "no reason: {line}");
    }
}

/// Returns the line of an entry of the list, with its sign, and the word for its reason.
fn entry(entry: &str) -> Option<(&str, &str)> {
    let (word, rest) = entry.split_once(' ')?;
    Some((rest.rsplit_once(" @ ")?.0, word))
}

/// Returns each line that differs, with the jobs in which it does, in the order in which lines appear.
fn collected<'o>(there: &'o [Observed], here: &[Observed]) -> Vec<(String, Vec<&'o str>)> {
    let mut lines: Vec<(String, Vec<&str>)> = Vec::new();
    for (there, here) in there.iter().zip(here) {
        for line in differing(&there.lines, &here.lines) {
            match lines.iter_mut().find(|(known, _)| *known == line) {
                Some((_, jobs)) if jobs.last() == Some(&there.case) => {}
                Some((_, jobs)) => jobs.push(there.case),
                None => lines.push((line, vec![there.case])),
            }
        }
    }
    lines
}

/// Returns the lines that only one of two texts has, in their order.
fn differing(old: &[String], new: &[String]) -> Vec<String> {
    let start = old.iter().zip(new).take_while(|(old, new)| old == new).count();
    let (old, new) = (&old[start..], &new[start..]);
    let end = old.iter().rev().zip(new.iter().rev()).take_while(|(old, new)| old == new).count();
    let (old, new) = (&old[..old.len() - end], &new[..new.len() - end]);
    // Lengths of the longest common parts behind each pair of places.
    let mut common = vec![vec![0_u32; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i][j] = if old[i] == new[j] {
                common[i + 1][j + 1] + 1
            } else {
                common[i + 1][j].max(common[i][j + 1])
            };
        }
    }
    let (mut i, mut j, mut lines) = (0, 0, Vec::new());
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            (i, j) = (i + 1, j + 1);
        } else if j == new.len() || (i < old.len() && common[i + 1][j] >= common[i][j + 1]) {
            lines.push(format!("- {}", old[i]));
            i += 1;
        } else {
            lines.push(format!("+ {}", new[j]));
            j += 1;
        }
    }
    lines
}
