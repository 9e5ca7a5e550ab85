//! An Aho–Corasick automaton that stores two numbers for each state: the length of the longest pattern that ends here,
//! and how many of the last bytes may still become one (masking.md §6).
//!
//! Layout: states are numbered depth-first over the sorted patterns. So the first child of a state is its successor,
//! and the long unbranched tails typical of secrets are contiguous in memory and compared with the text as a whole.
//! Branching states near the root have a complete transition row each, as far as a memory budget allows. In total an
//! automaton takes less than 30 bytes for each byte of a pattern (masking.md §8).

/// A state of an [`Automaton`]: the offset of a row or, with [`NODE`] set, the number of a node. [`MATCHED`] is set if
/// a pattern ends in it.
pub(super) type AutomatonState = u32;

/// The state before any byte of a pattern: the first row.
pub(super) const ROOT: AutomatonState = 0;

/// Marks a state that has no row.
const NODE: u32 = 1 << 31;

/// Marks a state in which a pattern ends, so that for all others the stored length need not be read.
const MATCHED: u32 = 1 << 30;

/// Length of a row's head: `matched` and `hold` of its state. The next states follow.
const ROW_HEAD: usize = 2;

/// Bytes of rows that any state may use, so that small automata consist of rows only.
const ROW_BYTES_ALWAYS: usize = 64 * 1024;

/// Further bytes of rows for each state. Only states with several children may use them: seldom-used rows would push
/// nodes out of the CPU caches.
const ROW_BYTES_PER_STATE: usize = 1;

/// Storage of a node's children: the low two bits of [`Node::edges`]. The other bits are an index or a length.
mod edges {
    /// No child.
    pub(super) const LEAF: u32 = 0;
    /// One child, which is the next node. The other bits are the length of the run: how many of the following nodes are
    /// only children in which no pattern ends.
    pub(super) const SINGLE: u32 = 1;
    /// Several children, listed in `sparse`.
    pub(super) const SPARSE: u32 = 2;
    /// A complete row.
    pub(super) const ROW: u32 = 3;
}

#[derive(Clone, Copy)]
struct Node {
    edges: u32,
    /// The state to continue from if no child matches: the longest proper suffix that can do better than this state.
    jump: u32,
    /// Length of the longest suffix of the text that is a proper prefix of a pattern.
    hold: u32,
    /// Length of the longest pattern that ends here, or 0.
    matched: u32,
}

impl Node {
    /// Returns the state for this node, which has number `number`.
    fn state(self, number: u32, stride: usize) -> AutomatonState {
        let mark = if self.matched > 0 { MATCHED } else { 0 };
        mark | if self.edges & 3 == edges::ROW { (self.edges >> 2) * stride as u32 } else { number | NODE }
    }
}

/// Searches for many byte strings at once, one byte at a time.
pub(super) struct Automaton {
    nodes: Box<[Node]>,
    /// The byte that leads to each node.
    labels: Box<[u8]>,
    sparse: Sparse,
    /// Column of each byte in a row. Bytes that are in no pattern share one.
    classes: Box<[u8; 256]>,
    /// Length of a row.
    stride: usize,
    rows: Box<[u32]>,
}

impl Automaton {
    /// Builds the automaton of `patterns`, which must be sorted, unique and not empty.
    pub(super) fn new<P: AsRef<[u8]>>(patterns: &[P]) -> Self {
        let states: usize = patterns.iter().map(|pattern| pattern.as_ref().len()).sum();
        Self::with_row_budget(patterns, ROW_BYTES_ALWAYS + ROW_BYTES_PER_STATE * states)
    }

    /// Builds an automaton with at most `budget` bytes of rows. The root always has one.
    pub(super) fn with_row_budget<P: AsRef<[u8]>>(patterns: &[P], budget: usize) -> Self {
        let mut trie = Trie::new(patterns);
        let order = trie.breadth_first();
        trie.link(&order, budget);
        trie.finish()
    }

    /// Returns the state after `byte`.
    #[inline]
    pub(super) fn step(&self, state: AutomatonState, byte: u8) -> AutomatonState {
        if state & NODE == 0 { self.step_in_row(state, byte) } else { self.step_from_node(state, byte) }
    }

    #[inline]
    fn step_in_row(&self, row: AutomatonState, byte: u8) -> AutomatonState {
        self.rows[place(row) + ROW_HEAD + usize::from(self.classes[usize::from(byte)])]
    }

    fn step_from_node(&self, mut state: AutomatonState, byte: u8) -> AutomatonState {
        while state & NODE != 0 {
            let number = place(state);
            let node = self.nodes[number];
            match node.edges & 3 {
                edges::SINGLE if self.labels[number + 1] == byte => {
                    return self.nodes[number + 1].state(number as u32 + 1, self.stride);
                }
                edges::SPARSE => {
                    if let Some(child) = self.sparse.child(node.edges >> 2, byte) {
                        return child;
                    }
                }
                _ => {}
            }
            state = node.jump;
        }
        self.step_in_row(state, byte)
    }

    /// Takes bytes of `text` up to the first with which a pattern ends. Stops after `enough` bytes too, except that a
    /// run is taken as a whole. Returns the state and the number of bytes taken.
    #[inline]
    pub(super) fn walk(
        &self,
        mut state: AutomatonState,
        text: &[u8],
        enough: usize,
    ) -> (AutomatonState, usize) {
        let mut at = 0;
        while at < enough {
            let Some(&byte) = text.get(at) else { break };
            if state & NODE == 0 {
                state = self.step_in_row(state, byte);
            } else {
                let number = place(state);
                let run = self.run_behind(number);
                let same = common_prefix(&self.labels[number + 1..=number + run], &text[at..]);
                if same > 0 {
                    state = (place(state) + same) as u32 | NODE;
                    at += same;
                    continue;
                }
                state = self.step_from_node(state, byte);
            }
            at += 1;
            if state & MATCHED != 0 {
                break;
            }
        }
        (state, at)
    }

    /// Returns the length of the run that follows `state` (see [`edges::SINGLE`]); 0 if a pattern ends in `state`.
    #[inline]
    pub(super) fn run(&self, state: AutomatonState) -> usize {
        if state & (NODE | MATCHED) == NODE { self.run_behind(place(state)) } else { 0 }
    }

    #[inline]
    fn run_behind(&self, number: usize) -> usize {
        let edges = self.nodes[number].edges;
        if edges & 3 == edges::SINGLE { (edges >> 2) as usize } else { 0 }
    }

    /// Compares `text` with the bytes of the next `run` states. Returns how many were compared; `None` if they differ.
    #[inline]
    pub(super) fn follows(&self, state: AutomatonState, run: usize, text: &[u8]) -> Option<usize> {
        let next = place(state) + 1;
        let length = run.min(text.len());
        (run == 0 || self.labels[next..next + length] == text[..length]).then_some(length)
    }

    /// Returns the length of the longest pattern that ends in `state`, or 0.
    #[inline]
    pub(super) fn matched(&self, state: AutomatonState) -> usize {
        if state & MATCHED == 0 {
            0
        } else if state & NODE == 0 {
            self.rows[place(state)] as usize
        } else {
            self.nodes[place(state)].matched as usize
        }
    }

    /// Returns the length of the longest suffix of the text so far that is a proper prefix of a pattern.
    #[inline]
    pub(super) fn hold(&self, state: AutomatonState) -> usize {
        if state & NODE == 0 {
            self.rows[place(state) + 1] as usize
        } else {
            self.nodes[place(state)].hold as usize
        }
    }

    /// True if a pattern starts with `byte`.
    #[inline]
    pub(super) fn leaves_root(&self, byte: u8) -> bool {
        self.step(ROOT, byte) != ROOT
    }

    /// Returns the memory on the heap, in bytes.
    #[cfg(test)]
    fn heap_bytes(&self) -> usize {
        size_of_val(&*self.nodes)
            + size_of_val(&*self.labels)
            + self.sparse.labels.capacity()
            + self.sparse.targets.capacity() * size_of::<u32>()
            + size_of_val(&*self.rows)
    }
}

/// Removes the marks from a state.
#[inline]
fn place(state: AutomatonState) -> usize {
    (state & !(NODE | MATCHED)) as usize
}

/// Returns the length of the common prefix of two byte strings.
#[inline]
fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let words = a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0);
    let mut same = 0;
    for (a, b) in words {
        let differ = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if differ != 0 {
            return same + differ.trailing_zeros() as usize / 8;
        }
        same += 8;
    }
    same + a[same..].iter().zip(&b[same..]).take_while(|(a, b)| a == b).count()
}

/// Lists of children. A list has a head, labelled with the number of children minus one, then children by label.
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

/// The automaton while it is built. All states are node numbers, even those with rows. Until [`Trie::link`], `hold` is
/// the depth of a state.
struct Trie {
    nodes: Vec<Node>,
    labels: Vec<u8>,
    sparse: Sparse,
    classes: Box<[u8; 256]>,
    /// Length of a row.
    stride: usize,
    rows: Vec<u32>,
}

/// The root during construction.
const FIRST: u32 = 0;

impl Trie {
    fn new<P: AsRef<[u8]>>(patterns: &[P]) -> Self {
        let leaf = |depth: usize| Node { edges: edges::LEAF, jump: FIRST, hold: depth as u32, matched: 0 };
        let mut nodes = vec![leaf(0)];
        let mut labels = vec![0];
        // Edges to children that are not the next node.
        let mut branches: Vec<(u32, u32)> = Vec::new();
        // The states of the previous pattern, by depth.
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

    /// Returns all states, sorted by depth.
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

    /// Completes all states in `order`, which must be sorted by depth: sets their failure links (in `jump`), `matched`
    /// and `hold`. Builds rows of at most `budget` bytes; the root always has one.
    fn link(&mut self, order: &[u32], budget: usize) {
        let room = budget / size_of::<u32>();
        let room_always = room.min(ROW_BYTES_ALWAYS / size_of::<u32>());
        for &state in order {
            let Node { edges, jump: fail, .. } = self.nodes[state as usize];
            let children = match edges & 3 {
                edges::SINGLE => 1,
                edges::SPARSE => self.sparse.labels(edges >> 2).len(),
                _ => 0,
            };
            let rows_end = self.rows.len() + self.stride;
            let row = rows_end <= if children > 1 { room } else { room_always } || state == FIRST;
            if row {
                self.begin_row(state, fail);
            }
            for index in 0..children {
                let child = match edges & 3 {
                    edges::SPARSE => self.sparse.targets[(edges >> 2) as usize + 1 + index],
                    _ => state + 1,
                };
                let byte = self.labels[child as usize];
                let target = if state == FIRST { FIRST } else { self.step(fail, byte) };
                self.set_suffix(child, target);
                if row {
                    let place = self.place_in_row(self.nodes[state as usize].edges >> 2, byte);
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

    /// Gives `state` the next row, filled with the transitions of its suffix.
    fn begin_row(&mut self, state: u32, fail: u32) {
        let start = self.rows.len();
        self.rows.resize(start + self.stride, FIRST);
        if state != FIRST {
            for byte in 0..=u8::MAX {
                self.rows[start + ROW_HEAD + usize::from(self.classes[usize::from(byte)])] =
                    self.step(fail, byte);
            }
        }
        self.nodes[state as usize].edges = ((start / self.stride) as u32) << 2 | edges::ROW;
    }

    fn place_in_row(&self, row: u32, byte: u8) -> usize {
        row as usize * self.stride + ROW_HEAD + usize::from(self.classes[usize::from(byte)])
    }

    /// Does the same as [`Automaton::step`], on node numbers.
    fn step(&self, mut state: u32, byte: u8) -> u32 {
        loop {
            let node = self.nodes[state as usize];
            match node.edges & 3 {
                edges::ROW => return self.rows[self.place_in_row(node.edges >> 2, byte)],
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

    /// Redirects the failure link of a state if its target would fail on the same byte. This bounds the length of
    /// failure chains, and no chain visits a leaf twice. The children of the state must be linked already.
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

    /// Replaces node numbers with states and sets the lengths of runs.
    fn finish(mut self) -> Automaton {
        let (nodes, stride) = (&self.nodes, self.stride);
        let state = |number: u32| nodes[number as usize].state(number, stride);
        for target in self.rows.chunks_exact_mut(stride).flat_map(|row| row.iter_mut().skip(ROW_HEAD)) {
            *target = state(*target);
        }
        for target in &mut self.sparse.targets {
            *target = state(*target);
        }
        let mut run = 0; // from the node behind
        for number in (0..self.nodes.len()).rev() {
            let Node { edges, jump, hold, matched } = self.nodes[number];
            if edges & 3 == edges::ROW {
                let start = (edges >> 2) as usize * stride;
                (self.rows[start], self.rows[start + 1]) = (matched, hold);
            }
            self.nodes[number].jump = self.nodes[jump as usize].state(jump, stride);
            if edges == edges::SINGLE {
                self.nodes[number].edges |= run << 2;
            } else {
                run = 0;
            }
            let plain = matched == 0 && edges & 3 != edges::ROW;
            run = if plain { run + 1 } else { 0 };
        }
        Automaton {
            nodes: self.nodes.into_boxed_slice(),
            labels: self.labels.into_boxed_slice(),
            sparse: self.sparse,
            classes: self.classes,
            stride,
            rows: self.rows.into_boxed_slice(),
        }
    }
}

/// Numbers the bytes that occur in patterns. All others share column 0.
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
mod tests;
