//! The line of files that wait to be written in the background, in the order of the times at which they are
//! due.
//!
//! A mapping joins when its first block becomes dirty, gets a new place when a pass over it has ended, and
//! leaves when nothing in it is dirty or in flight. A thread that writes takes from the front what it needs;
//! the rest costs it nothing. Those that join while it works are not for it: their numbers say so.
//!
//! Small and large files have a line each, with places from one count: a thread that must leave the small
//! ones to another does not pass them one by one. A file that has once been large stays with these until it
//! is clean.
//!
//! Neighbours: [`crate::mapping`] joins and leaves, [`crate::flusher`] takes. The line has one lock, in
//! [`crate::core`].

use quire_base::Timestamp;
use std::collections::BTreeMap;
use std::ops::Bound;

/// Where something stands in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    key: Key,
    is_large: bool,
}

/// When it is due, and the count of those that have joined before.
pub(crate) type Key = (Timestamp, u64);

/// What stands in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiting<T> {
    pub place: Place,
    /// Since when it waits.
    pub since: Timestamp,
    /// When it is to be written at the latest.
    pub due: Timestamp,
    pub what: T,
}

/// See the module's documentation.
pub(crate) struct DirtyLine<T> {
    next: u64,
    small: Places<T>,
    large: Places<T>,
}

/// Since when they wait, and what they are.
type Places<T> = BTreeMap<Key, (Timestamp, T)>;

impl<T> Default for DirtyLine<T> {
    fn default() -> DirtyLine<T> {
        DirtyLine { next: 0, small: BTreeMap::new(), large: BTreeMap::new() }
    }
}

impl<T: Clone> DirtyLine<T> {
    fn line(&mut self, is_large: bool) -> &mut Places<T> {
        if is_large { &mut self.large } else { &mut self.small }
    }

    /// Lets a small file join, which waits since then for so many nanoseconds at most.
    pub fn join(&mut self, what: T, since: Timestamp, patience: i64) -> Place {
        self.put(what, since, patience, false)
    }

    fn put(&mut self, what: T, since: Timestamp, patience: i64, is_large: bool) -> Place {
        let key = (Timestamp(since.0.saturating_add(patience)), self.next);
        self.next += 1;
        self.line(is_large).insert(key, (since, what));
        Place { key, is_large }
    }

    /// Takes it out.
    pub fn leave(&mut self, place: Place) {
        self.line(place.is_large).remove(&place.key);
    }

    /// Counts it as large from now on, at the same place.
    pub fn enlarge(&mut self, place: Place) -> Place {
        if !place.is_large
            && let Some(waiting) = self.small.remove(&place.key)
        {
            self.large.insert(place.key, waiting);
        }
        Place { is_large: true, ..place }
    }

    /// Gives it a new place, waiting since then.
    pub fn go_back(&mut self, place: Place, since: Timestamp, patience: i64) -> Place {
        match self.line(place.is_large).remove(&place.key) {
            Some((_, what)) => self.put(what, since, patience, place.is_large),
            None => place,
        }
    }

    /// The number that the next to join gets: those with less are in the line now.
    pub fn end(&self) -> u64 {
        self.next
    }

    /// The first behind `from` with a number less than `end`, of the large ones only or of all; and its key.
    pub fn first(&self, from: Option<Key>, end: u64, only_large: bool) -> Option<(Waiting<T>, Key)> {
        let start = from.map_or(Bound::Unbounded, Bound::Excluded);
        let front = |line: &Places<T>| {
            let found = line.range((start, Bound::Unbounded)).find(|((_, number), _)| *number < end);
            found.map(|(key, (since, what))| (*key, *since, what.clone()))
        };
        let small = if only_large { None } else { front(&self.small) };
        let large = front(&self.large);
        let is_large = match (&small, &large) {
            (Some(small), Some(large)) => large.0 < small.0,
            (small, _) => small.is_none(),
        };
        let (key, since, what) = if is_large { large? } else { small? };
        Some((Waiting { place: Place { key, is_large }, since, due: key.0, what }, key))
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
        let (mut from, mut taken) = (None, String::new());
        while let Some((waiting, next)) = line.first(from, line.end(), only_large) {
            taken.push(waiting.what);
            from = Some(next);
        }
        taken
    }

    #[test]
    fn the_longest_waiting_come_first_whatever_their_size() {
        let mut line = DirtyLine::default();
        let places: Vec<Place> =
            "abcd".chars().enumerate().map(|(n, name)| line.join(name, Timestamp(n as i64), 30)).collect();
        let large = line.enlarge(places[1]);
        assert_eq!((taken(&line, false), taken(&line, true)), ("abcd".into(), "b".into()));
        assert_eq!(line.enlarge(large), large);
        let behind = line.go_back(large, Timestamp(9), 30);
        assert_eq!((taken(&line, false), taken(&line, true)), ("acdb".into(), "b".into()));
        let (waiting, _) = line.first(Some(places[3].key), line.end(), false).unwrap();
        assert_eq!((waiting.since, waiting.place), (Timestamp(9), behind));
        line.leave(places[0]);
        line.leave(behind);
        assert_eq!(taken(&line, false), "cd");
        assert_eq!(line.all().collect::<String>(), "cd");
        assert_eq!(line.go_back(behind, Timestamp(10), 30), behind, "it has left");
    }

    #[test]
    fn what_is_due_sooner_comes_first_even_if_it_came_later() {
        let mut line = DirtyLine::default();
        line.join('a', Timestamp(0), 30);
        let end = line.end();
        line.join('b', Timestamp(5), 1);
        line.join('c', Timestamp(6), 24);
        assert_eq!(taken(&line, false), "bac");
        let (waiting, _) = line.first(None, end, false).unwrap();
        assert_eq!((waiting.what, waiting.due), ('a', Timestamp(30)), "the others came later");
        assert_eq!(line.join('d', Timestamp(i64::MAX), 30).key.0, Timestamp(i64::MAX));
    }

    #[test]
    fn who_takes_sees_what_was_there_when_it_began() {
        let mut line = DirtyLine::default();
        let first = line.join('a', Timestamp(0), 30);
        let end = line.end();
        line.go_back(first, Timestamp(1), 30);
        line.join('b', Timestamp(1), 30);
        assert!(line.first(None, end, false).is_none());
        assert_eq!(taken(&line, false), "ab");
    }
}
