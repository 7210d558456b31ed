//! The line of files that wait to be written in the background, longest first.
//!
//! A mapping joins at the end when its first block becomes dirty, goes back to the end when a pass over it
//! has ended, and leaves when nothing in it is dirty or in flight. So the places are in the order of the
//! times since which the files wait, but for what a pass has left behind, and a thread that writes takes from
//! the front what it needs; the rest costs it nothing.
//!
//! Small and large files have a line each, and so have those that are due early, with places from one count:
//! a thread that must leave the small ones to another, or takes only what is due, does not pass the others
//! one by one. A file that has once been large stays with these until it is clean.
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
    is_early: bool,
}

/// Which are looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Which {
    pub only_large: bool,
    /// Those that are due early, or the others, or both.
    pub is_early: Option<bool>,
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
    /// By whether they are large, and whether they are due early.
    lines: [[BTreeMap<u64, (Timestamp, T)>; 2]; 2],
}

impl<T> Default for DirtyLine<T> {
    fn default() -> DirtyLine<T> {
        DirtyLine { next: 0, lines: Default::default() }
    }
}

impl<T: Clone> DirtyLine<T> {
    fn line(&mut self, place: Place) -> &mut BTreeMap<u64, (Timestamp, T)> {
        &mut self.lines[usize::from(place.is_large)][usize::from(place.is_early)]
    }

    /// Puts a small file at the end.
    pub fn join(&mut self, what: T, since: Timestamp, is_early: bool) -> Place {
        self.put(what, since, false, is_early)
    }

    fn put(&mut self, what: T, since: Timestamp, is_large: bool, is_early: bool) -> Place {
        let place = Place { number: self.next, is_large, is_early };
        self.next += 1;
        self.line(place).insert(place.number, (since, what));
        place
    }

    /// Takes it out.
    pub fn leave(&mut self, place: Place) {
        self.line(place).remove(&place.number);
    }

    /// Counts it as large from now on, at the same place.
    pub fn enlarge(&mut self, place: Place) -> Place {
        let large = Place { is_large: true, ..place };
        if let Some(waiting) = self.line(place).remove(&place.number) {
            self.line(large).insert(place.number, waiting);
        }
        large
    }

    /// Puts it at the end, waiting since then.
    pub fn go_back(&mut self, place: Place, since: Timestamp, is_early: bool) -> Place {
        match self.line(place).remove(&place.number) {
            Some((_, what)) => self.put(what, since, place.is_large, is_early),
            None => place,
        }
    }

    /// The place that the next to join gets: those before it are in the line now.
    pub fn end(&self) -> u64 {
        self.next
    }

    /// The first with a place of at least `from` and less than `end`; and the place to go on from.
    pub fn first(&self, from: u64, end: u64, which: Which) -> Option<(Waiting<T>, u64)> {
        let places = [(false, false), (false, true), (true, false), (true, true)];
        let wanted = places.into_iter().filter(|(is_large, is_early)| {
            (*is_large || !which.only_large) && which.is_early.is_none_or(|early| early == *is_early)
        });
        let fronts = wanted.filter_map(|(is_large, is_early)| {
            let line = &self.lines[usize::from(is_large)][usize::from(is_early)];
            let (number, waiting) = line.range(from..end.max(from)).next()?;
            Some((Place { number: *number, is_large, is_early }, waiting))
        });
        let (place, (since, what)) = fronts.min_by_key(|(place, _)| place.number)?;
        Some((Waiting { place, since: *since, what: what.clone() }, place.number + 1))
    }

    /// Everything in it, in no order that matters.
    pub fn all(&self) -> impl Iterator<Item = &T> {
        self.lines.iter().flatten().flat_map(BTreeMap::values).map(|(_, what)| what)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    const ALL: Which = Which { only_large: false, is_early: None };
    const LARGE: Which = Which { only_large: true, is_early: None };

    /// What is taken from the front, one after the other.
    fn taken(line: &DirtyLine<char>, which: Which) -> String {
        let (mut from, mut taken) = (0, String::new());
        while let Some((waiting, next)) = line.first(from, line.end(), which) {
            taken.push(waiting.what);
            from = next;
        }
        taken
    }

    #[test]
    fn the_longest_waiting_come_first_whatever_their_size() {
        let mut line = DirtyLine::default();
        let places: Vec<Place> =
            "abcd".chars().enumerate().map(|(n, name)| line.join(name, Timestamp(n as i64), false)).collect();
        let large = line.enlarge(places[1]);
        assert_eq!((taken(&line, ALL), taken(&line, LARGE)), ("abcd".into(), "b".into()));
        assert_eq!(line.enlarge(large), large);
        let behind = line.go_back(large, Timestamp(9), false);
        assert_eq!((taken(&line, ALL), taken(&line, LARGE)), ("acdb".into(), "b".into()));
        let (waiting, _) = line.first(4, line.end(), ALL).unwrap();
        assert_eq!((waiting.since, waiting.place), (Timestamp(9), behind));
        line.leave(places[0]);
        line.leave(behind);
        assert_eq!(taken(&line, ALL), "cd");
        assert_eq!(line.all().collect::<String>(), "cd");
        assert_eq!(line.go_back(behind, Timestamp(10), false), behind, "it has left");
    }

    #[test]
    fn those_that_are_due_early_are_found_among_all_and_alone() {
        let mut line = DirtyLine::default();
        let late = line.join('a', Timestamp(0), false);
        let early = line.join('b', Timestamp(1), true);
        line.join('c', Timestamp(2), false);
        let only = |is_early| Which { only_large: false, is_early: Some(is_early) };
        assert_eq!((taken(&line, ALL), taken(&line, only(true))), ("abc".into(), "b".into()));
        assert_eq!(taken(&line, only(false)), "ac");
        let early = line.enlarge(early);
        line.go_back(late, Timestamp(3), true);
        assert_eq!((taken(&line, ALL), taken(&line, only(true))), ("bca".into(), "ba".into()));
        assert_eq!(taken(&line, Which { only_large: true, is_early: Some(true) }), "b");
        line.leave(early);
        assert_eq!(line.all().collect::<String>(), "ca");
    }

    #[test]
    fn who_takes_sees_what_was_there_when_it_began() {
        let mut line = DirtyLine::default();
        let first = line.join('a', Timestamp(0), false);
        let end = line.end();
        line.go_back(first, Timestamp(1), false);
        line.join('b', Timestamp(1), false);
        assert!(line.first(0, end, ALL).is_none());
        assert_eq!(taken(&line, ALL), "ab");
    }
}
