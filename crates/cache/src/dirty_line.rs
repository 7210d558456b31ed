//! The line of files that wait to be written in the background, longest first.
//!
//! A mapping joins at the end when its first block becomes dirty, goes back to the end when a pass over it
//! has ended, and leaves when nothing in it is dirty or in flight. So the places are in the order of the
//! times since which the files wait, but for what a pass has left behind, and a thread that writes takes from
//! the front what it needs; the rest costs it nothing.
//!
//! Small and large files have a line each, with places from one count: a thread that must leave the small
//! ones to another does not pass them one by one. A file that has once been large stays with these until it
//! is clean.
//!
//! Neighbours: [`crate::mapping`] joins and leaves, [`crate::flusher`] takes. The line has one lock, in
//! [`crate::core`].

use quire_base::Timestamp;
use std::collections::BTreeMap;

/// Where something stands in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    number: u64,
    is_large: bool,
}

/// What stands in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiting<T> {
    pub place: Place,
    /// Since when it waits.
    pub since: Timestamp,
    pub what: T,
}

/// See the module's documentation.
pub(crate) struct DirtyLine<T> {
    next: u64,
    small: BTreeMap<u64, (Timestamp, T)>,
    large: BTreeMap<u64, (Timestamp, T)>,
}

impl<T> Default for DirtyLine<T> {
    fn default() -> DirtyLine<T> {
        DirtyLine { next: 0, small: BTreeMap::new(), large: BTreeMap::new() }
    }
}

impl<T: Clone> DirtyLine<T> {
    fn line(&mut self, is_large: bool) -> &mut BTreeMap<u64, (Timestamp, T)> {
        if is_large { &mut self.large } else { &mut self.small }
    }

    /// Puts a small file at the end.
    pub fn join(&mut self, what: T, since: Timestamp) -> Place {
        self.put(what, since, false)
    }

    fn put(&mut self, what: T, since: Timestamp, is_large: bool) -> Place {
        let number = self.next;
        self.next += 1;
        self.line(is_large).insert(number, (since, what));
        Place { number, is_large }
    }

    /// Takes it out.
    pub fn leave(&mut self, place: Place) {
        self.line(place.is_large).remove(&place.number);
    }

    /// Counts it as large from now on, at the same place.
    pub fn enlarge(&mut self, place: Place) -> Place {
        if !place.is_large
            && let Some(waiting) = self.small.remove(&place.number)
        {
            self.large.insert(place.number, waiting);
        }
        Place { is_large: true, ..place }
    }

    /// Puts it at the end, waiting since then.
    pub fn go_back(&mut self, place: Place, since: Timestamp) -> Place {
        match self.line(place.is_large).remove(&place.number) {
            Some((_, what)) => self.put(what, since, place.is_large),
            None => place,
        }
    }

    /// The place that the next to join gets: those before it are in the line now.
    pub fn end(&self) -> u64 {
        self.next
    }

    /// The first with a place of at least `from` and less than `end`, of the large ones only or of all; and
    /// the place to go on from.
    pub fn first(&self, from: u64, end: u64, only_large: bool) -> Option<(Waiting<T>, u64)> {
        fn front<T>(
            line: &BTreeMap<u64, (Timestamp, T)>,
            from: u64,
            end: u64,
        ) -> Option<(&u64, &(Timestamp, T))> {
            line.range(from..end.max(from)).next()
        }
        let small = if only_large { None } else { front(&self.small, from, end) };
        let large = front(&self.large, from, end);
        let is_large = match (small, large) {
            (Some((small, _)), Some((large, _))) => large < small,
            (small, _) => small.is_none(),
        };
        let (number, (since, what)) = if is_large { large? } else { small? };
        let place = Place { number: *number, is_large };
        Some((Waiting { place, since: *since, what: what.clone() }, number + 1))
    }

    /// Everything in it, in no order that matters.
    pub fn all(&self) -> impl Iterator<Item = &T> {
        self.small.values().chain(self.large.values()).map(|(_, what)| what)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// What is taken from the front, one after the other.
    fn taken(line: &DirtyLine<char>, only_large: bool) -> String {
        let (mut from, mut taken) = (0, String::new());
        while let Some((waiting, next)) = line.first(from, line.end(), only_large) {
            taken.push(waiting.what);
            from = next;
        }
        taken
    }

    #[test]
    fn the_longest_waiting_come_first_whatever_their_size() {
        let mut line = DirtyLine::default();
        let places: Vec<Place> =
            "abcd".chars().enumerate().map(|(n, name)| line.join(name, Timestamp(n as i64))).collect();
        let large = line.enlarge(places[1]);
        assert_eq!((taken(&line, false), taken(&line, true)), ("abcd".into(), "b".into()));
        assert_eq!(line.enlarge(large), large);
        let behind = line.go_back(large, Timestamp(9));
        assert_eq!((taken(&line, false), taken(&line, true)), ("acdb".into(), "b".into()));
        let (waiting, _) = line.first(4, line.end(), false).unwrap();
        assert_eq!((waiting.since, waiting.place), (Timestamp(9), behind));
        line.leave(places[0]);
        line.leave(behind);
        assert_eq!(taken(&line, false), "cd");
        assert_eq!(line.all().collect::<String>(), "cd");
        assert_eq!(line.go_back(behind, Timestamp(10)), behind, "it has left");
    }

    #[test]
    fn who_takes_sees_what_was_there_when_it_began() {
        let mut line = DirtyLine::default();
        let first = line.join('a', Timestamp(0));
        let end = line.end();
        line.go_back(first, Timestamp(1));
        line.join('b', Timestamp(1));
        assert!(line.first(0, end, false).is_none());
        assert_eq!(taken(&line, false), "ab");
    }
}
