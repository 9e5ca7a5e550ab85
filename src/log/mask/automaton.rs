//! An Aho–Corasick automaton that knows, for each state, the two numbers masking needs: how long the longest
//! occurrence that ends here is, and how many of the last bytes may still become one (masking.md §6).
//!
//! Layout: states are numbered in depth-first order of the sorted patterns, so the first child of a state is its
//! successor and the long unbranched tails that secrets are made of lie one byte after the other in memory. The
//! states nearest to the root, where text without a secret spends its time, have a complete row of a deterministic
//! automaton each, as many as a memory budget allows. All in all less than 30 bytes for each byte of a pattern
//! (masking.md §8).

/// A state of an [`Automaton`]: the place of a row, or with [`NODE`] set, the number of a node.
pub(super) type State = u32;

/// The state before any byte of a pattern: the first row.
pub(super) const ROOT: State = 0;

/// Marks a state that has no row.
const NODE: u32 = 1 << 31;

/// A row begins with `matched` and `hold` of its state; then come the next states.
const ROW_HEAD: usize = 2;

/// Rows may always take this much memory, so that small automata have no other states.
const ROW_BYTES_ALWAYS: usize = 64 * 1024;

/// Bytes of rows for each state beyond that. More would make text that is full of near misses slower again, as rows
/// that are seldom needed push nodes out of the caches.
const ROW_BYTES_PER_STATE: usize = 3;

/// How the children of a node are stored. The low two bits of [`Node::edges`]; the rest is an index.
mod edges {
    /// No child.
    pub(super) const LEAF: u32 = 0;
    /// One child, the next node.
    pub(super) const SINGLE: u32 = 1;
    /// Several children: a list in `sparse`.
    pub(super) const SPARSE: u32 = 2;
    /// In a complete row.
    pub(super) const ROW: u32 = 3;
}

#[derive(Clone, Copy)]
struct Node {
    edges: u32,
    /// Where to go on when no child fits: the longest proper suffix that can do better than this state.
    jump: u32,
    /// Length of the longest suffix of the text that is a proper prefix of a pattern.
    hold: u32,
    /// Length of the longest pattern that ends here, or 0.
    matched: u32,
}

/// Searches for many byte strings at once, one byte at a time.
pub(super) struct Automaton {
    nodes: Box<[Node]>,
    /// The byte that leads to a node.
    labels: Box<[u8]>,
    sparse: Sparse,
    /// Column of each byte in a row; bytes in no pattern share one.
    classes: Box<[u8; 256]>,
    rows: Box<[u32]>,
}

impl Automaton {
    /// Builds the automaton of `patterns`, which must be sorted, without duplicates and not empty strings.
    pub(super) fn new<P: AsRef<[u8]>>(patterns: &[P]) -> Self {
        let states: usize = patterns.iter().map(|pattern| pattern.as_ref().len()).sum();
        Self::with_row_budget(patterns, ROW_BYTES_ALWAYS + ROW_BYTES_PER_STATE * states)
    }

    /// As [`Automaton::new`]; `budget` is the memory for rows in bytes. The root has one in any case.
    pub(super) fn with_row_budget<P: AsRef<[u8]>>(patterns: &[P], budget: usize) -> Self {
        let mut trie = Trie::new(patterns);
        let order = trie.breadth_first();
        trie.link(&order, budget);
        trie.finish()
    }

    /// The state after `byte`.
    #[expect(clippy::inline_always, reason = "called for each byte; a call costs as much as the rest")]
    #[inline(always)]
    pub(super) fn step(&self, state: State, byte: u8) -> State {
        if state & NODE == 0 {
            return self.step_in_row(state, byte);
        }
        let number = (state & !NODE) as usize;
        if self.nodes[number].edges == edges::SINGLE && self.labels[number + 1] == byte {
            return state + 1;
        }
        self.step_aside(state, byte)
    }

    #[inline]
    fn step_in_row(&self, row: State, byte: u8) -> State {
        self.rows[row as usize + ROW_HEAD + usize::from(self.classes[usize::from(byte)])]
    }

    /// As [`Automaton::step`], where the next node is not the next state.
    fn step_aside(&self, mut state: State, byte: u8) -> State {
        while state & NODE != 0 {
            let number = (state & !NODE) as usize;
            let node = self.nodes[number];
            match node.edges & 3 {
                edges::SINGLE if self.labels[number + 1] == byte => return state + 1,
                edges::SPARSE => {
                    if let Some(child) = self.sparse.child(node.edges >> 2, byte) {
                        return child | NODE; // below a node without a row there is none
                    }
                }
                _ => {}
            }
            state = node.jump;
        }
        self.step_in_row(state, byte)
    }

    /// Length of the longest pattern that ends in `state`, or 0.
    #[inline]
    pub(super) fn matched(&self, state: State) -> usize {
        if state & NODE == 0 {
            self.rows[state as usize] as usize
        } else {
            self.nodes[(state & !NODE) as usize].matched as usize
        }
    }

    /// How many of the last bytes form a proper prefix of a pattern, at most.
    #[inline]
    pub(super) fn hold(&self, state: State) -> usize {
        if state & NODE == 0 {
            self.rows[state as usize + 1] as usize
        } else {
            self.nodes[(state & !NODE) as usize].hold as usize
        }
    }

    /// Whether a pattern starts with `byte`.
    #[inline]
    pub(super) fn leaves_root(&self, byte: u8) -> bool {
        self.step(ROOT, byte) != ROOT
    }

    /// Memory on the heap, in bytes.
    #[cfg(test)]
    fn heap_bytes(&self) -> usize {
        size_of_val(&*self.nodes)
            + size_of_val(&*self.labels)
            + self.sparse.labels.capacity()
            + self.sparse.targets.capacity() * size_of::<u32>()
            + size_of_val(&*self.rows)
    }
}

/// Lists of children: a head (number of children less one, 0), then pairs in order of the label.
#[derive(Default)]
struct Sparse {
    labels: Vec<u8>,
    targets: Vec<u32>,
}

impl Sparse {
    fn labels(&self, list: u32) -> &[u8] {
        let head = list as usize;
        &self.labels[head + 1..=head + 1 + usize::from(self.labels[head])]
    }

    fn child(&self, list: u32, byte: u8) -> Option<u32> {
        let place = memchr::memchr(byte, self.labels(list))?;
        Some(self.targets[list as usize + 1 + place])
    }
}

/// The automaton while it is built. States are numbers of nodes, those with rows too. Until links are set, `hold`
/// is the depth of a state.
struct Trie {
    nodes: Vec<Node>,
    labels: Vec<u8>,
    sparse: Sparse,
    classes: Box<[u8; 256]>,
    /// Length of a row.
    stride: usize,
    rows: Vec<u32>,
}

/// The root while building.
const FIRST: u32 = 0;

impl Trie {
    fn new<P: AsRef<[u8]>>(patterns: &[P]) -> Self {
        let leaf = |depth: usize| Node { edges: edges::LEAF, jump: FIRST, hold: depth as u32, matched: 0 };
        let mut nodes = vec![leaf(0)];
        let mut labels = vec![0];
        // Edges to a child that is not the next state.
        let mut branches: Vec<(u32, u32)> = Vec::new();
        // The states of the pattern before, by depth.
        let mut path = vec![FIRST];
        let mut before: &[u8] = &[];
        for pattern in patterns {
            let pattern = pattern.as_ref();
            debug_assert!(before < pattern, "patterns are sorted, without duplicates and not empty");
            let shared = before.iter().zip(pattern).take_while(|(a, b)| a == b).count();
            path.truncate(shared + 1);
            for (depth, &byte) in pattern.iter().enumerate().skip(shared) {
                let parent = path[depth];
                let child = nodes.len() as u32;
                if child == parent + 1 {
                    nodes[parent as usize].edges = edges::SINGLE;
                } else {
                    branches.push((parent, child));
                }
                nodes.push(leaf(depth + 1));
                labels.push(byte);
                path.push(child);
            }
            if let Some(last) = nodes.last_mut() {
                last.matched = pattern.len() as u32;
            }
            before = pattern;
        }
        let (classes, columns) = classify(&labels);
        let stride = ROW_HEAD + columns;
        let mut trie = Self { nodes, labels, sparse: Sparse::default(), classes, stride, rows: Vec::new() };
        trie.list_children(branches);
        trie
    }

    /// Writes the lists of the states with several children.
    fn list_children(&mut self, mut branches: Vec<(u32, u32)>) {
        branches.sort_unstable();
        let Sparse { labels, targets } = &mut self.sparse;
        for family in branches.chunk_by(|a, b| a.0 == b.0) {
            let parent = family[0].0;
            self.nodes[parent as usize].edges = (labels.len() as u32) << 2 | edges::SPARSE;
            labels.push(family.len() as u8); // one less than there are: the next state is not in the family
            targets.push(0);
            for child in std::iter::once(parent + 1).chain(family.iter().map(|&(_, child)| child)) {
                labels.push(self.labels[child as usize]);
                targets.push(child);
            }
        }
    }

    /// All states, by depth.
    fn breadth_first(&self) -> Vec<u32> {
        let deepest = self.nodes.iter().map(|node| node.hold as usize).max().unwrap_or(0);
        let mut places = vec![0_usize; deepest + 2];
        for node in &self.nodes {
            places[node.hold as usize + 1] += 1;
        }
        for depth in 0..=deepest {
            places[depth + 1] += places[depth];
        }
        let mut order = vec![FIRST; self.nodes.len()];
        for (state, node) in self.nodes.iter().enumerate() {
            let place = &mut places[node.hold as usize];
            order[*place] = state as u32;
            *place += 1;
        }
        order
    }

    /// Sets, shortest states first, failure links (in `jump`), `matched`, `hold` and as many rows as the budget
    /// allows.
    fn link(&mut self, order: &[u32], budget: usize) {
        let row_count = (budget / (self.stride * size_of::<u32>())).clamp(1, order.len());
        self.rows = vec![FIRST; row_count * self.stride];
        for (rank, &state) in order.iter().enumerate() {
            let Node { edges, jump: fail, .. } = self.nodes[state as usize];
            let children = match edges & 3 {
                edges::SINGLE => 1,
                edges::SPARSE => self.sparse.labels(edges >> 2).len(),
                _ => 0,
            };
            if rank < row_count {
                self.begin_row(rank, state, fail);
            }
            for index in 0..children {
                let child = match edges & 3 {
                    edges::SPARSE => self.sparse.targets[(edges >> 2) as usize + 1 + index],
                    _ => state + 1,
                };
                let byte = self.labels[child as usize];
                let target = if state == FIRST { FIRST } else { self.step(fail, byte) };
                self.set_suffix(child, target);
                if rank < row_count {
                    let place = self.place_in_row(rank, byte);
                    self.rows[place] = child;
                }
            }
            self.shorten(state);
        }
    }

    fn set_suffix(&mut self, state: u32, suffix: u32) {
        let Node { hold, matched, .. } = self.nodes[suffix as usize];
        let node = &mut self.nodes[state as usize];
        node.jump = suffix;
        if node.matched == 0 {
            node.matched = matched;
        }
        if node.edges == edges::LEAF {
            node.hold = hold;
        }
    }

    /// Gives `state` a row: that of its suffix, which has one because it is shorter.
    fn begin_row(&mut self, rank: usize, state: u32, fail: u32) {
        if state != FIRST {
            let suffix = (self.nodes[fail as usize].edges >> 2) as usize * self.stride;
            self.rows.copy_within(suffix..suffix + self.stride, rank * self.stride);
        }
        self.nodes[state as usize].edges = (rank as u32) << 2 | edges::ROW;
    }

    fn place_in_row(&self, rank: usize, byte: u8) -> usize {
        rank * self.stride + ROW_HEAD + usize::from(self.classes[usize::from(byte)])
    }

    /// As [`Automaton::step`].
    fn step(&self, mut state: u32, byte: u8) -> u32 {
        loop {
            let node = self.nodes[state as usize];
            match node.edges & 3 {
                edges::ROW => return self.rows[self.place_in_row((node.edges >> 2) as usize, byte)],
                edges::SINGLE if self.labels[state as usize + 1] == byte => return state + 1,
                edges::SPARSE => {
                    if let Some(child) = self.sparse.child(node.edges >> 2, byte) {
                        return child;
                    }
                }
                _ => {}
            }
            state = node.jump;
        }
    }

    /// Lets the failure link of a state pass over one that must fail on the same byte. This bounds the length of a
    /// chain of failures, and leaves are never visited twice. The children of the state must be linked before.
    fn shorten(&mut self, state: u32) {
        let node = self.nodes[state as usize];
        let suffix = self.nodes[node.jump as usize];
        let useless = match (node.edges & 3, suffix.edges & 3) {
            (_, edges::LEAF) => true,
            (edges::SINGLE, edges::SINGLE) => {
                self.labels[state as usize + 1] == self.labels[node.jump as usize + 1]
            }
            _ => false,
        };
        if useless {
            self.nodes[state as usize].jump = suffix.jump;
        }
    }

    /// Replaces numbers of nodes by states.
    fn finish(mut self) -> Automaton {
        let stride = self.stride;
        let encode = |nodes: &[Node], number: u32| match nodes[number as usize].edges {
            row if row & 3 == edges::ROW => (row >> 2) * stride as u32,
            _ => number | NODE,
        };
        for target in self.rows.chunks_exact_mut(stride).flat_map(|row| row.iter_mut().skip(ROW_HEAD)) {
            *target = encode(&self.nodes, *target);
        }
        for number in 0..self.nodes.len() {
            let Node { edges, jump, hold, matched } = self.nodes[number];
            if edges & 3 == edges::ROW {
                let start = (edges >> 2) as usize * stride;
                (self.rows[start], self.rows[start + 1]) = (matched, hold);
            }
            self.nodes[number].jump = encode(&self.nodes, jump);
        }
        Automaton {
            nodes: self.nodes.into_boxed_slice(),
            labels: self.labels.into_boxed_slice(),
            sparse: self.sparse,
            classes: self.classes,
            rows: self.rows.into_boxed_slice(),
        }
    }
}

/// Numbers the bytes that occur; all others share column 0.
fn classify(labels: &[u8]) -> (Box<[u8; 256]>, usize) {
    let mut used = [false; 256];
    for &label in labels.iter().skip(1) {
        used[usize::from(label)] = true;
    }
    let all = used.iter().all(|&used| used);
    let mut classes = Box::new([0; 256]);
    let mut columns = usize::from(!all);
    for (class, used) in classes.iter_mut().zip(used) {
        if used {
            *class = columns as u8;
            columns += 1;
        }
    }
    (classes, columns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sorted(mut patterns: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        patterns.sort();
        patterns.dedup();
        patterns
    }

    /// `matched` and `hold` at the end of `text`, by definition.
    fn by_definition(patterns: &[Vec<u8>], text: &[u8]) -> (usize, usize) {
        let matched = patterns.iter().filter(|p| text.ends_with(p)).map(Vec::len).max().unwrap_or(0);
        let hold = (0..=text.len())
            .filter(|&n| patterns.iter().any(|p| n < p.len() && p.starts_with(&text[text.len() - n..])))
            .max()
            .unwrap_or(0);
        (matched, hold)
    }

    proptest! {
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
        let patterns =
            sorted((0..20_000).map(|n| [random(n), random(n + 1), random(n + 2)].concat()).collect());
        let bytes: usize = patterns.iter().map(Vec::len).sum();
        assert!(Automaton::new(&patterns).heap_bytes() < 30 * bytes);
    }
}
