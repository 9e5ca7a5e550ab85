//! The order in which variables are resolved, and which of them form cycles. Works without recursion: chains can be as
//! long as a job has variables.

/// Result of a walk over all references.
pub(crate) struct Order {
    /// All nodes; a node comes after those that it refers to, but for cycles.
    pub(crate) post_order: Vec<usize>,
    /// Number of each node's component. Nodes of one cycle have the same number.
    pub(crate) component: Vec<usize>,
}

/// Returns the order of a graph, given as targets by node.
pub(crate) fn of(edges: &[Vec<usize>]) -> Order {
    let post_order = post_order(edges, 0..edges.len(), &mut vec![false; edges.len()]);
    let mut backward = vec![Vec::new(); edges.len()];
    for (from, targets) in edges.iter().enumerate() {
        for target in targets {
            if let Some(sources) = backward.get_mut(*target) {
                sources.push(from);
            }
        }
    }
    // Against the references and in reverse order, a walk from a node reaches exactly its own cycle.
    let mut component = vec![0; edges.len()];
    let mut seen = vec![false; edges.len()];
    for (number, node) in post_order.iter().rev().enumerate() {
        for member in self::post_order(&backward, *node..*node + 1, &mut seen) {
            if let Some(found) = component.get_mut(member) {
                *found = number;
            }
        }
    }
    Order { post_order, component }
}

fn post_order(edges: &[Vec<usize>], starts: std::ops::Range<usize>, seen: &mut [bool]) -> Vec<usize> {
    let mut order = Vec::new();
    let mut visit = |node: usize| seen.get_mut(node).is_some_and(|seen| !std::mem::replace(seen, true));
    for start in starts {
        if !visit(start) {
            continue;
        }
        let mut stack = vec![(start, 0)];
        while let Some((node, next)) = stack.pop() {
            match edges.get(node).and_then(|targets| targets.get(next)) {
                Some(target) => {
                    stack.push((node, next + 1));
                    if visit(*target) {
                        stack.push((*target, 0));
                    }
                }
                None => order.push(node),
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_come_first_and_cycles_are_found() {
        let order = of(&[vec![1], vec![2, 3], vec![1], vec![], vec![4]]);
        let place = |node| order.post_order.iter().position(|other| *other == node);
        assert!(place(3) < place(1) && place(1) < place(0));
        assert_eq!(order.component[1], order.component[2]);
        assert_eq!(order.component.iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
    }

    proptest::proptest! {
        #[test]
        fn nodes_are_of_one_component_exactly_if_each_reaches_the_other(
            edges in proptest::collection::vec(proptest::collection::vec(0_usize..7, 0..3), 7),
        ) {
            let reaches = |from: usize, to: usize| {
                let mut seen = vec![from];
                let mut next = 0;
                while let Some(node) = seen.get(next).copied() {
                    next += 1;
                    let new: Vec<usize> = edges[node].iter().copied().filter(|target| !seen.contains(target)).collect();
                    seen.extend(new);
                }
                seen.contains(&to)
            };
            let order = of(&edges);
            let mut nodes = order.post_order.clone();
            let place = |node: usize| order.post_order.iter().position(|other| *other == node).unwrap();
            for a in 0..edges.len() {
                for b in 0..edges.len() {
                    let is_cycle = reaches(a, b) && reaches(b, a);
                    proptest::prop_assert_eq!(order.component[a] == order.component[b], is_cycle, "{} {}", a, b);
                    proptest::prop_assert!(is_cycle || !edges[a].contains(&b) || place(b) < place(a), "{} {}", a, b);
                }
            }
            nodes.sort_unstable();
            proptest::prop_assert!(nodes.into_iter().eq(0..edges.len()));
        }
    }
}
