//! Call graph of local functions: all files to check, the interface of each, and the calls that can never end.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::files::{Called, CheckedFile};
use super::{local, steps};
use crate::lang::document::CALL_LIMIT;
use crate::plan::check::Interface;

/// A file as its callers see it.
struct Node {
    file: CheckedFile,
    interface: Option<Arc<Interface>>,
    /// Indices of the files that it calls.
    calls: Vec<usize>,
    /// True if the user named it.
    is_root: bool,
    /// First node of its group: the files that call each other in a circle, or the file alone.
    group: usize,
    /// True if its group calls itself.
    in_circle: bool,
    /// Longest chain of calls from it on.
    height: usize,
}

pub(super) struct CallGraph {
    nodes: Vec<Node>,
    index: HashMap<PathBuf, usize>,
}

impl CallGraph {
    /// Follows all calls from the given files on. It reads each file once and keeps no text.
    pub(super) fn from(roots: Vec<CheckedFile>) -> Self {
        let mut calls = Self { nodes: Vec::new(), index: HashMap::new() };
        for root in roots {
            let at = calls.node(root);
            if let Some(node) = calls.nodes.get_mut(at) {
                node.is_root = true;
            }
        }
        let mut next = 0;
        while let Some(node) = calls.nodes.get(next) {
            let file = node.file.clone();
            calls.load(&file, next);
            next += 1;
        }
        calls.group();
        calls
    }

    /// Returns all files, those named by the user first.
    pub(super) fn files(&self) -> impl Iterator<Item = &CheckedFile> {
        self.nodes.iter().map(|node| &node.file)
    }

    /// Returns the interface of a file, or `None` if the file is broken.
    pub(super) fn interface(&self, file: &CheckedFile) -> Option<Arc<Interface>> {
        self.find(file)?.interface.clone()
    }

    /// Returns the reason if the call of `callee` by `caller` can never end. Calls are never conditional.
    pub(super) fn never_ends(&self, caller: &CheckedFile, callee: &CheckedFile) -> Option<String> {
        let (caller, callee) = (self.find(caller)?, self.find(callee)?);
        if caller.group == callee.group && callee.in_circle {
            return Some("the function calls itself, directly or through others, without end".to_owned());
        }
        (caller.is_root && callee.height >= CALL_LIMIT)
            .then(|| format!("functions call each other more than {CALL_LIMIT} levels deep"))
    }

    fn find(&self, file: &CheckedFile) -> Option<&Node> {
        self.index.get(&file.path).and_then(|at| self.nodes.get(*at))
    }

    fn node(&mut self, file: CheckedFile) -> usize {
        let next = self.nodes.len();
        let at = *self.index.entry(file.path.clone()).or_insert(next);
        if at == next {
            let calls = Vec::new();
            self.nodes.push(Node {
                file,
                interface: None,
                calls,
                is_root: false,
                group: next,
                in_circle: false,
                height: 0,
            });
        } else if let Some(node) = self.nodes.get_mut(at) {
            // A called file must be a function file, even if the user named it, too.
            node.file.is_definition |= file.is_definition;
        }
        at
    }

    /// Reads the file of a node: its interface and its calls.
    fn load(&mut self, file: &CheckedFile, at: usize) {
        // A file that cannot be read is reported when it is checked itself.
        let Ok(text) = file.read() else { return };
        let checked = file.parse(&text);
        // Errors that only a check finds do not change the interface.
        let usable = checked.is_whole() || file.parse_to_run(&text).is_ok();
        let Some(function) = checked.function else { return };
        let mut called = Vec::new();
        for (reference, _) in steps(&function).iter().filter_map(local) {
            if let Called::File(file) = file.called(reference) {
                called.push(self.node(file));
            }
        }
        if let Some(node) = self.nodes.get_mut(at) {
            node.calls = called;
            node.interface = usable.then(|| Arc::new(Interface::of(&function)));
        }
    }

    /// Finds the circles and the heights by Tarjan's strongly connected components, without recursion. A callee's group
    /// is complete before its caller's.
    fn group(&mut self) {
        let mut search = Search {
            order: vec![None; self.nodes.len()],
            low: vec![0; self.nodes.len()],
            closed: vec![false; self.nodes.len()],
            ..Search::default()
        };
        for root in 0..self.nodes.len() {
            if search.order.get(root) == Some(&None) {
                search.from(root, &mut self.nodes);
            }
        }
    }
}

/// State of the search for circles.
#[derive(Default)]
struct Search {
    /// Order in which nodes were first met.
    order: Vec<Option<usize>>,
    /// The earliest node that can be reached from it and has no group yet.
    low: Vec<usize>,
    met: usize,
    /// Nodes that have been met and have no group.
    open: Vec<usize>,
    /// True for nodes that have a group.
    closed: Vec<bool>,
    /// Nodes on the way from the root, each with the number of its calls that were followed.
    way: Vec<(usize, usize)>,
}

#[expect(clippy::indexing_slicing, reason = "indices are those of the nodes, which all tables have")]
impl Search {
    fn from(&mut self, root: usize, nodes: &mut [Node]) {
        self.enter(root);
        while let Some((node, followed)) = self.way.last_mut() {
            let node = *node;
            if let Some(callee) = nodes[node].calls.get(*followed).copied() {
                *followed += 1;
                match self.order[callee] {
                    None => self.enter(callee),
                    Some(met) if !self.closed[callee] => self.low[node] = self.low[node].min(met),
                    Some(_) => {}
                }
                continue;
            }
            self.way.pop();
            if let Some((caller, _)) = self.way.last() {
                self.low[*caller] = self.low[*caller].min(self.low[node]);
            }
            if Some(self.low[node]) == self.order[node] {
                self.close(node, nodes);
            }
        }
    }

    fn enter(&mut self, node: usize) {
        self.order[node] = Some(self.met);
        self.low[node] = self.met;
        self.met += 1;
        self.open.push(node);
        self.way.push((node, 0));
    }

    /// Makes a group of the open nodes from `first` on.
    fn close(&mut self, first: usize, nodes: &mut [Node]) {
        let start = self.open.iter().rposition(|node| *node == first).unwrap_or(0);
        let members = self.open.split_off(start);
        for member in &members {
            nodes[*member].group = first;
            self.closed[*member] = true;
        }
        let (mut height, mut in_circle) = (0, false);
        for callee in members.iter().flat_map(|member| &nodes[*member].calls) {
            if nodes[*callee].group == first {
                in_circle = true;
            } else {
                height = height.max(nodes[*callee].height + 1);
            }
        }
        for member in members {
            nodes[member].height = height;
            nodes[member].in_circle = in_circle;
        }
    }
}
