use super::*;
use proptest::prelude::*;

fn sorted(mut patterns: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    patterns.sort();
    patterns.dedup();
    patterns
}

/// `matched` and `hold` at the end of `text`, straight from the definition.
fn by_definition(patterns: &[Vec<u8>], text: &[u8]) -> (usize, usize) {
    let matched = patterns.iter().filter(|p| text.ends_with(p)).map(Vec::len).max().unwrap_or(0);
    let hold = (0..=text.len())
        .filter(|&n| patterns.iter().any(|p| n < p.len() && p.starts_with(&text[text.len() - n..])))
        .max()
        .unwrap_or(0);
    (matched, hold)
}

#[test]
fn a_run_is_known_in_advance_and_taken_whole() {
    let automaton = Automaton::with_row_budget(&sorted(vec![b"abcdefghijklmnop".to_vec()]), 0);
    let a = automaton.step(ROOT, b'a');
    assert_eq!(automaton.run(a), 14, "up to the last but one");
    assert_eq!(automaton.follows(a, 14, b"bcd"), Some(3));
    assert_eq!(automaton.follows(a, 2, b"bcd"), Some(2));
    assert_eq!(automaton.follows(a, 14, b"bcx"), None);
    assert_eq!(automaton.follows(a, 0, b"x"), Some(0));
    assert_eq!(automaton.walk(a, b"bcdefgh", 1).1, 7, "though one is enough");
    assert_eq!(automaton.walk(ROOT, b"xyz", 2), (ROOT, 2));
    assert!(automaton.leaves_root(b'a') && !automaton.leaves_root(b'b'));

    let automaton = Automaton::with_row_budget(&sorted(vec![b"ab".to_vec(), b"abcdef".to_vec()]), 0);
    let (ab, taken) = automaton.walk(ROOT, b"abcd", 4);
    assert_eq!(
        (taken, automaton.matched(ab), automaton.run(ab)),
        (2, 2, 0),
        "a match ends a walk, and has no run"
    );
}

proptest! {
    #[test]
    fn texts_have_their_first_bytes_in_common(start in "[ab]{0,20}", a in "[ab]{0,20}", b in "[ab]{0,20}") {
        let (a, b) = ([start.as_str(), &a].concat(), [start.as_str(), &b].concat());
        let same = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
        prop_assert_eq!(common_prefix(a.as_bytes(), b.as_bytes()), same);
    }

    #[test]
    fn every_state_has_the_longest_match_and_the_longest_open_prefix(
        patterns in prop::collection::vec("[abc]{1,7}".prop_map(String::into_bytes), 1..8),
        text in "[abcd]{0,40}",
        budget in prop::sample::select(vec![0_usize, 40, 200, 100_000]),
    ) {
        let patterns = sorted(patterns);
        let automaton = Automaton::with_row_budget(&patterns, budget);
        let mut state = ROOT;
        for (at, &byte) in text.as_bytes().iter().enumerate() {
            state = automaton.step(state, byte);
            prop_assert_eq!(
                (automaton.matched(state), automaton.hold(state)),
                by_definition(&patterns, &text.as_bytes()[..=at])
            );
        }
    }
}

#[test]
fn no_pattern_is_an_automaton_that_stays_at_its_root() {
    let automaton = Automaton::new::<&[u8]>(&[]);
    assert_eq!(automaton.step(ROOT, b'a'), ROOT);
    assert_eq!((automaton.matched(ROOT), automaton.hold(ROOT)), (0, 0));
}

#[test]
fn all_byte_values_can_be_patterns() {
    let patterns: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    for budget in [0, 1 << 20] {
        let automaton = Automaton::with_row_budget(&patterns, budget);
        assert!((0..=255).all(|byte| automaton.matched(automaton.step(ROOT, byte)) == 1));
    }
}

#[test]
fn fault_40_memory_stays_below_thirty_bytes_for_a_pattern_byte() {
    let random = |n: u64| format!("{:016x}", n.wrapping_mul(0x9E37_79B9_7F4A_7C15)).into_bytes();
    let patterns = sorted((0..20_000).map(|n| [random(n), random(n + 1), random(n + 2)].concat()).collect());
    let bytes: usize = patterns.iter().map(Vec::len).sum();
    assert!(Automaton::new(&patterns).heap_bytes() < 30 * bytes);
}
