//! The table of a volume's groups: it grows with the volume, and no group moves, so finding one takes no
//! lock.
//!
//! Layout: the groups that there were at first, and behind them parts that have as many groups as all before
//! them together. A part is made whole; so the table has room for at most twice the groups of the volume.
//!
//! Neighbours: [`crate::allocator`] says how many groups count.

use crate::group::Group;
use quire_base::sync::OnceLock;

/// Doublings from one group to those of 1 PiB.
const PARTS: usize = 20;

pub(crate) struct Groups {
    first: Box<[Group]>,
    more: [OnceLock<Box<[Group]>>; PARTS],
}

impl Groups {
    /// A table of `count` groups, at least one.
    pub(crate) fn new(count: usize) -> Groups {
        Groups { first: part(count.max(1)), more: std::array::from_fn(|_| OnceLock::new()) }
    }

    /// Makes room for `count` groups, at most 2^20.
    pub(crate) fn extend(&self, count: usize) {
        let mut room = self.first.len();
        for more in &self.more {
            if room >= count {
                break;
            }
            more.get_or_init(|| part(room));
            room *= 2;
        }
    }
}

fn part(count: usize) -> Box<[Group]> {
    (0..count).map(|_| Group::new()).collect()
}

impl std::ops::Index<usize> for Groups {
    type Output = Group;

    /// Panics for a group that the table has no room for.
    fn index(&self, number: usize) -> &Group {
        if let Some(group) = self.first.get(number) {
            return group;
        }
        let doublings = (number / self.first.len()).ilog2() as usize;
        let part = self.more[doublings].get().expect("the table has room for every group of the volume");
        &part[number - (self.first.len() << doublings)]
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn groups_stay_where_they_are() {
        for first in [1, 3, 8] {
            let table = Groups::new(first);
            let mut known: Vec<*const Group> = Vec::new();
            for count in [first, first + 1, 2 * first, 5 * first, 5 * first + 1, 100] {
                table.extend(count);
                for number in known.len()..count {
                    known.push(&table[number]);
                }
                let now: Vec<*const Group> =
                    (0..count).map(|number| &table[number] as *const Group).collect();
                assert_eq!(known[..count], now[..]);
            }
            known.sort_unstable();
            known.dedup();
            assert!(known.len() >= 100, "each has a place of its own");
        }
    }
}
