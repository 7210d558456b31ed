//! What may be left of a device after a crash.
//!
//! Safe writes are always there. Each unsafe write has a fate of its own: lost, kept, or torn at sectors of
//! 512 bytes or at blocks (some kept, in any pattern). Fates are independent, so later writes may survive
//! earlier ones: that is the reordering of a volatile cache. Writes to one block keep their order of
//! completion among themselves, since a cache holds only the newest version of a sector.

use super::history::{Medium, Standing, UnsafeWrite};
use super::image::{Block, Image};
use quire_base::random::Random;
use quire_base::{BLOCK_SIZE, BlockNo};
use std::sync::Arc;

/// Unit of tearing in bytes: what a drive writes entirely or not at all.
pub const SECTOR_SIZE: usize = 512;
const SECTORS: usize = BLOCK_SIZE / SECTOR_SIZE;

/// Which of the possible states a crash leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashPolicy {
    /// The process was killed, the device lives on: everything completed is kept; writes in flight (and
    /// failed ones) are kept or lost as wholes, by the seed.
    Killed {
        /// Decides the fates.
        seed: u64,
    },
    /// Power is cut and every unsafe write lost.
    LoseAll,
    /// Power is cut but everything submitted reached the medium, in flight included.
    KeepAll,
    /// Power is cut; the seed picks a style (prefix, independent fates, one survivor, one victim, torn edges)
    /// and the fates within it.
    Power {
        /// Decides style and fates.
        seed: u64,
    },
    /// Power is cut; unsafe write `i`, counted in order of submission, is kept whole if bit `i` is set. For
    /// enumerating small cases; writes from the 64th on are lost.
    Subset {
        /// The bits.
        kept: u64,
    },
}

/// What becomes of one unsafe write.
enum Fate {
    Lost,
    Kept,
    /// Per block a pattern of kept sectors, drawn from this stream.
    Torn(Random),
}

impl Medium {
    /// The image that a crash at this moment leaves under `policy`.
    pub(super) fn crash(&self, policy: CrashPolicy) -> Image {
        let mut image = self.safe.clone();
        for (write, fate) in self.fates(policy) {
            settle(&mut image, write, fate);
        }
        image
    }

    /// The device as it goes on when its process is killed. Reads see what [`CrashPolicy::Killed`] leaves.
    /// What no flush had made safe is in the cache.
    pub(super) fn killed(&self, seed: u64) -> Medium {
        let policy = CrashPolicy::Killed { seed };
        let kept = self.fates(policy).into_iter().filter(|(_, fate)| matches!(fate, Fate::Kept));
        let writes = kept.map(|(write, _)| write.clone()).collect();
        Medium::with_cache(self.safe.clone(), self.crash(policy), writes)
    }

    /// The unsafe writes with their fates, in the order in which they take effect.
    fn fates(&self, policy: CrashPolicy) -> Vec<(&UnsafeWrite, Fate)> {
        let mut order: Vec<usize> = (0..self.unsafe_writes.len()).collect();
        order.sort_by_key(|index| self.unsafe_writes[*index].standing.order());
        let mut fates = Fates::new(policy, &order);
        let fate = |(place, index): (usize, &usize)| {
            let write = &self.unsafe_writes[*index];
            (write, fates.next(place, *index, write))
        };
        order.iter().enumerate().map(fate).collect()
    }
}

fn settle(image: &mut Image, write: &UnsafeWrite, fate: Fate) {
    match fate {
        Fate::Lost => {}
        Fate::Kept => {
            for (at, block) in write.live_blocks() {
                image.set(at, block.clone());
            }
        }
        Fate::Torn(mut random) => {
            // Half of the torn writes are torn between blocks only: what a checksum of a block cannot see.
            let between_blocks = random.one_in(2);
            for (at, block) in write.live_blocks() {
                let every = (1 << SECTORS) - 1;
                let kept = match between_blocks {
                    true => every * random.below(2),
                    false => random.below(every + 1),
                };
                tear(image, at, block, kept);
            }
        }
    }
}

/// Keeps the sectors of `block` whose bit is set in `kept`.
fn tear(image: &mut Image, at: BlockNo, block: &Option<Block>, kept: u64) {
    if kept == 0 {
        return;
    }
    if kept == (1 << SECTORS) - 1 {
        image.set(at, block.clone());
        return;
    }
    let mut bytes = [0; BLOCK_SIZE];
    image.read(at, &mut bytes);
    for sector in (0..SECTORS).filter(|sector| kept >> sector & 1 == 1) {
        let range = sector * SECTOR_SIZE..(sector + 1) * SECTOR_SIZE;
        match block {
            Some(block) => bytes[range.clone()].copy_from_slice(&block[range]),
            None => bytes[range].fill(0),
        }
    }
    image.set(at, Some(Arc::new(bytes)));
}

/// Shapes that seeded power cuts take.
enum Style {
    LoseAll,
    KeepAll,
    /// The first so many, in order of completion, are kept; the next is torn if the flag says so.
    Prefix(usize, bool),
    /// Each is kept with this chance of 256, and torn with that of the second.
    Independent(u64, u64),
    /// Only this one survives; or, with the flag, only this one is lost.
    Single(usize, bool),
}

struct Fates {
    policy: CrashPolicy,
    style: Style,
    random: Random,
}

impl Fates {
    fn new(policy: CrashPolicy, order: &[usize]) -> Fates {
        let seed = match policy {
            CrashPolicy::Killed { seed } | CrashPolicy::Power { seed } => seed,
            _ => 0,
        };
        let mut random = Random::seeded(seed);
        let count = order.len() as u64;
        let style = match random.below(8) {
            0 => Style::LoseAll,
            1 => Style::KeepAll,
            2 | 3 => Style::Prefix(random.below(count + 1) as usize, random.one_in(2)),
            4 => Style::Single(random.below(count.max(1)) as usize, random.one_in(2)),
            5 => Style::Independent(128, 0),
            6 => Style::Independent(random.below(256), random.below(64)),
            _ => Style::Independent(random.below(256), 256),
        };
        Fates { policy, style, random }
    }

    /// The fate of the write at `place` in the order of completion, `index` in that of submission.
    fn next(&mut self, place: usize, index: usize, write: &UnsafeWrite) -> Fate {
        match self.policy {
            CrashPolicy::LoseAll => Fate::Lost,
            CrashPolicy::KeepAll => Fate::Kept,
            CrashPolicy::Subset { kept } => whole(index < 64 && kept >> index & 1 == 1),
            CrashPolicy::Killed { .. } => match write.standing {
                Standing::Completed(_) => Fate::Kept,
                Standing::InFlight | Standing::Failed(_) => whole(self.random.one_in(2)),
            },
            CrashPolicy::Power { .. } => match self.style {
                Style::LoseAll => Fate::Lost,
                Style::KeepAll => Fate::Kept,
                Style::Prefix(kept, true) if place == kept => self.torn(),
                Style::Prefix(kept, _) => whole(place < kept),
                Style::Single(single, is_victim) => whole((place == single) != is_victim),
                Style::Independent(keep, tear) => {
                    let (keep, tear) = (self.random.below(256) < keep, self.random.below(256) < tear);
                    if tear { self.torn() } else { whole(keep) }
                }
            },
        }
    }

    fn torn(&mut self) -> Fate {
        Fate::Torn(Random::seeded(self.random.next_u64()))
    }
}

fn whole(kept: bool) -> Fate {
    if kept { Fate::Kept } else { Fate::Lost }
}
