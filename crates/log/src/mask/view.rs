//! A *view*: the source as a search reads it that passes over line ends (`wrap.rs`) or reads escapes (`readings.rs`).

use std::{iter::Peekable, ops::Range, sync::Arc};

/// Number of places that are copied with a view. Older ones are shared.
const CHUNK: usize = 32;

/// The places at which a view differs from its source. Positions are those of the source. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct View {
    /// Most views have one place. It needs no memory on the heap.
    last: Option<Place>,
    /// Places before the last one, oldest first.
    earlier: Vec<Place>,
    /// Places before those.
    chunk: Option<Arc<Chunk>>,
    /// Number of places, shared ones included.
    length: usize,
    /// Number of places when some were last forgotten.
    kept: usize,
}

/// A full vector of places, oldest first, and what was before it.
struct Chunk {
    places: Vec<Place>,
    before: Option<Arc<Chunk>>,
}

/// Bytes of the source for which the view has other bytes.
#[derive(Clone, Copy)]
struct Place {
    start: usize,
    end: usize,
    /// Number of bytes that the view has for them. It is at most the length of the place.
    kept: usize,
    /// By how many bytes the view is shorter up to the start of the place.
    removed: usize,
}

impl Place {
    fn removed_behind(&self) -> usize {
        self.removed + (self.end - self.start) - self.kept
    }

    /// Returns where the place is in the view.
    fn start_in_view(&self) -> usize {
        self.start - self.removed
    }

    /// Returns where in the source a byte of the view starts that is in the place, or behind it and before the next one.
    fn start_of(&self, at: usize) -> usize {
        if at < self.start_in_view() + self.kept { self.start } else { at + self.removed_behind() }
    }
}

impl View {
    /// Adds a place behind all others. The view has `kept` bytes for it.
    pub(super) fn add(&mut self, Range { start, end }: Range<usize>, kept: usize) {
        let removed = self.removed();
        let last = self.last.replace(Place { start, end, kept, removed });
        if self.earlier.len() == CHUNK {
            let places = std::mem::take(&mut self.earlier);
            self.chunk = Some(Arc::new(Chunk { places, before: self.chunk.take() }));
        }
        self.earlier.extend(last);
        self.length += 1;
    }

    /// Makes the last place one byte longer. The view has no byte for it.
    pub(super) fn extend_last(&mut self) {
        if let Some(last) = &mut self.last {
            last.end += 1;
        }
    }

    /// Returns the number of places. Up to half of them may be forgotten soon.
    pub(super) fn len(&self) -> usize {
        self.length
    }

    fn removed(&self) -> usize {
        self.last.map_or(0, |last| last.removed_behind())
    }

    /// True if the last `depth` bytes of the view before `end` contain some of the last place, or are on both sides of
    /// it.
    #[inline]
    pub(super) fn spans(&self, end: usize, depth: usize) -> bool {
        self.last.is_some_and(|last| depth > end - last.end)
    }

    /// Returns where in the source the last `depth` bytes of the view before `end` start. A place counts as a whole.
    pub(super) fn start(&self, end: usize, depth: usize) -> usize {
        let start = end - self.removed() - depth;
        let before = |place: &Place| place.start_in_view() <= start;
        let mut place = self.last.filter(before);
        let (mut places, mut chunk) = (&self.earlier, &self.chunk);
        while place.is_none() {
            if places.first().is_some_and(before) {
                let behind = places.partition_point(before);
                place = places.get(behind - 1).copied();
            } else if let Some(earlier) = chunk {
                (places, chunk) = (&earlier.places, &earlier.before);
            } else {
                break;
            }
        }
        place.map_or(start, |place| place.start_of(start))
    }

    /// Forgets the places that end at or before `start`. Does so only now and then, so that it costs little.
    pub(super) fn forget_before(&mut self, start: usize) {
        if self.length > CHUNK.max(2 * self.kept) {
            let mut places: Vec<Place> = self.places_behind(start).copied().collect();
            places.reverse();
            *self = Self { kept: places.len(), ..Self::default() };
            for place in places {
                self.add(place.start..place.end, place.kept);
            }
        }
    }

    /// True if both views have the same places behind `start`, and these are not too many to tell.
    pub(super) fn agrees_with(&self, other: &Self, start: usize) -> bool {
        let mut here = self.places_behind(start);
        let mut there = other.places_behind(start);
        for _ in 0..2 * CHUNK {
            match (here.next(), there.next()) {
                (None, None) => return true,
                (Some(a), Some(b)) if (a.start, a.end, a.kept) == (b.start, b.end, b.kept) => {}
                _ => return false,
            }
        }
        false
    }

    /// True if each of the last `depth` bytes of this view before `end` starts no later than the same one of `other`. Both
    /// views have the same bytes there. Bytes behind many places are not looked at: each view finds, and hides, what the
    /// other one finds, and a byte in front of it can belong to it in one of them only.
    pub(super) fn starts_no_later(&self, other: &Self, end: usize, depth: usize) -> bool {
        let mut here = Starts { length: end - self.removed(), places: self.places_behind(0).peekable() };
        let mut there = Starts { length: end - other.removed(), places: other.places_behind(0).peekable() };
        let mut at = 0;
        for _ in 0..CHUNK {
            at = here.next_change(at).min(there.next_change(at));
            if at > depth {
                return true;
            } else if here.start(at) > there.start(at) {
                return false;
            }
        }
        true
    }

    /// Returns the places that end behind `start`, newest first.
    fn places_behind(&self, start: usize) -> impl Iterator<Item = &Place> {
        let chunks = std::iter::successors(self.chunk.as_ref(), |chunk| chunk.before.as_ref());
        let shared = chunks.flat_map(|chunk| chunk.places.iter().rev());
        let all = self.last.iter().chain(self.earlier.iter().rev()).chain(shared);
        all.take_while(move |place| place.end > start)
    }

    /// Returns the memory on the heap, in bytes, as if nothing were shared.
    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        self.length.max(self.earlier.capacity()) * size_of::<Place>()
    }
}

/// Where the bytes of a view start, from the last one (depth 1) to earlier ones.
struct Starts<'v, I: Iterator<Item = &'v Place>> {
    /// Length of the view.
    length: usize,
    /// The places that do not begin behind the byte, newest first.
    places: Peekable<I>,
}

impl<'v, I: Iterator<Item = &'v Place>> Starts<'v, I> {
    /// Returns the next depth at which the distance to another view's start can have become larger than before: at the
    /// last and the first byte of a place, and at the byte before it.
    fn next_change(&mut self, depth: usize) -> usize {
        let Some(place) = self.places.peek() else { return usize::MAX };
        let before = self.length - place.start_in_view() + 1;
        [before - place.kept, before - 1].into_iter().find(|at| *at > depth).unwrap_or(before)
    }

    /// Returns the start of the byte at `depth`, which is no less than in the call before.
    fn start(&mut self, depth: usize) -> usize {
        let at = self.length - depth;
        while self.places.next_if(|place| place.start_in_view() > at).is_some() {}
        self.places.peek().map_or(at, |place| place.start_of(at))
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    #[test]
    fn positions_in_the_view_are_positions_in_the_source() {
        // 0123456789 without 2..3 and 6..8: the view is 0 1 3 4 5 8 9.
        let mut view = View::default();
        view.add(2..3, 0);
        view.add(6..8, 0);
        let starts: Vec<usize> = (0..=7).map(|depth| view.start(10, depth)).collect();
        assert_eq!(starts, [10, 9, 8, 5, 4, 3, 1, 0]);
        assert!(!view.spans(10, 2) && view.spans(10, 3));
    }

    #[test]
    fn many_places_are_found_and_forgotten() {
        let mut view = View::default();
        for at in 0..1000 {
            view.add(4 * at..4 * at + 3, 1);
            let other = view.clone();
            for back in [0, 1, 31, 32, 33, 64, 100].into_iter().filter(|back| *back <= at.min(100)) {
                let end = 4 * at + 4;
                assert_eq!(other.start(end, 2 * back + 2), 4 * (at - back), "{at} {back}");
                assert_eq!(other.start(end, 2 * back + 1), 4 * (at - back) + 3, "{at} {back}");
            }
            view.forget_before((4 * at).saturating_sub(400));
            assert!(view.len() <= 210 && view.kept <= 101);
        }
    }

    #[test]
    fn bytes_of_an_escape_start_where_it_starts() {
        // a%2Fb\u00e4c: the view is a / b C3 A4 c.
        let mut view = View::default();
        view.add(1..4, 1);
        view.add(5..11, 2);
        let starts: Vec<usize> = (0..=6).map(|depth| view.start(12, depth)).collect();
        assert_eq!(starts, [12, 11, 5, 5, 4, 1, 0]);
        assert!(!view.spans(12, 1) && view.spans(12, 2));
    }

    proptest! {
        #[test]
        fn starts_no_later_is_told_of_each_byte(
            one in vec((0_usize..4, 1_usize..5, 0_usize..4), 0..6),
            other in vec((0_usize..4, 1_usize..5, 0_usize..4), 0..6),
            depth in 0_usize..50,
        ) {
            let view = |places: &[(usize, usize, usize)]| {
                let (mut view, mut at) = (View::default(), 40);
                for (gap, length, kept) in places {
                    view.add(at + gap..at + gap + length, *kept.min(length));
                    at += gap + length;
                }
                view
            };
            let (one, other, end) = (view(&one), view(&other), 90);
            let each = (1..=depth).all(|depth| one.start(end, depth) <= other.start(end, depth));
            prop_assert_eq!(one.starts_no_later(&other, end, depth), each);
        }
    }

    #[test]
    fn views_agree_up_to_a_place_that_only_one_has() {
        let (mut one, mut other) = (View::default(), View::default());
        one.add(1..4, 1);
        for view in [&mut one, &mut other] {
            view.add(5..8, 1);
        }
        assert!(one.agrees_with(&other, 4) && !one.agrees_with(&other, 3));
        other.add(8..11, 1);
        assert!(!one.agrees_with(&other, 4));
    }
}
