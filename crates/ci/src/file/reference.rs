//! `!reference [JOB, KEYWORD…]` (ci.md §2): replaces each by the value that it names, across files, before `extends`.

use std::sync::Arc;

use step_runner_lang::diagnostic::Class;
use step_runner_model::text::quote;

use crate::finding::{Findings, at_index, join};
use crate::node::{Entry, Kind, Map, Node, Place};

/// Maximum number of references inside each other, as in GitLab.
const LEVELS: usize = 10;

/// Largest weight of all that references bring (language.md §6): ten levels can unfold without end.
const WEIGHT_LIMIT: usize = 64 * 1024 * 1024;

/// Deepest nesting of the result.
const DEPTH_LIMIT: usize = 128;

/// Replaces all references of a merged configuration.
pub(super) fn resolve(root: &Node, findings: &mut Findings) -> Node {
    let mut resolver = Resolver { root, findings, left: WEIGHT_LIMIT, under_way: Vec::new() };
    resolver.node(root, "", 0)
}

struct Resolver<'r> {
    root: &'r Node,
    findings: &'r mut Findings,
    left: usize,
    /// References that are being resolved, outermost first.
    under_way: Vec<Arc<Vec<String>>>,
}

impl Resolver<'_> {
    fn node(&mut self, node: &Node, path: &str, depth: usize) -> Node {
        let kind = match &node.kind {
            Kind::Reference(names) => return self.reference(names, &node.place, path, depth),
            Kind::List(items) => {
                let items = items.iter().enumerate();
                let resolved = items.map(|(index, item)| self.node(item, &at_index(path, index), depth + 1));
                Kind::List(Arc::new(resolved.collect()))
            }
            Kind::Map(map) => {
                let mut resolved = Map::new();
                for (name, entry) in map.iter() {
                    let value = self.node(&entry.value, &join(path, name), depth + 1);
                    resolved.insert(name.clone(), Entry { key: entry.key.clone(), value });
                }
                Kind::Map(Arc::new(resolved))
            }
            other => other.clone(),
        };
        Node::new(node.place.clone(), kind)
    }

    fn reference(&mut self, names: &Arc<Vec<String>>, place: &Place, path: &str, depth: usize) -> Node {
        // What stays a reference was reported here or when it was read, and nobody reports it again.
        let nothing = Node::new(place.clone(), Kind::Reference(Arc::clone(names)));
        if names.is_empty() {
            return nothing;
        }
        let shown = || quote(&names.join(", ")).into_owned();
        if self.under_way.contains(names) {
            let message = format!("!reference [{}] leads back to itself", shown());
            self.findings.error(place, path, message);
            return nothing;
        }
        if self.under_way.len() >= LEVELS {
            let message = format!("more than {LEVELS} references inside each other");
            self.findings.add(place.error_of(Class::Limit, message).with_path(path));
            return nothing;
        }
        self.under_way.push(Arc::clone(names));
        let resolved = self.brought(names, place, path, depth);
        self.under_way.pop();
        resolved.unwrap_or(nothing)
    }

    /// Returns the value that a reference brings, without references in it.
    fn brought(&mut self, names: &[String], place: &Place, path: &str, depth: usize) -> Option<Node> {
        let target = self.target(names, place, path)?;
        let fits = self.left.checked_sub(target.weight());
        let (Some(left), true) = (fits, depth + target.height() <= DEPTH_LIMIT) else {
            self.left = 0;
            let message = "the references bring more than 64 MiB, or more than 128 levels";
            self.findings.add(place.error_of(Class::Limit, message).with_path(path));
            return None;
        };
        self.left = left;
        Some(self.node(&target, path, depth))
    }

    /// Returns the value that a reference names.
    fn target(&mut self, names: &[String], place: &Place, path: &str) -> Option<Node> {
        let mut node = self.root.clone();
        for name in names {
            // A step of the way can be a reference itself.
            if let Kind::Reference(inner) = &node.kind {
                let (inner, at) = (Arc::clone(inner), node.place.clone());
                node = self.reference(&inner, &at, path, 0);
            }
            let next = node.as_map().and_then(|map| map.get(name)).map(|entry| entry.value.clone());
            if let Some(next) = next {
                node = next;
            } else {
                let message =
                    format!("!reference [{}]: there is no \"{}\"", quote(&names.join(", ")), quote(name));
                let finding = place.error_of(Class::NotFound, message).with_path(path);
                let known = node.as_map().into_iter().flat_map(|map| map.keys().map(String::as_str));
                self.findings.add_with_suggestion(finding, name, known, None);
                return None;
            }
        }
        Some(node)
    }
}
