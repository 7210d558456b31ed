//! A small seeded generator (SplitMix64: Steele, Lea, Flood, OOPSLA 2014) for hash seeds, victim choice and
//! simulation. Not for secrets.

/// A stream of numbers that its seed determines.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The stream of `seed`.
    pub fn seeded(seed: u64) -> Random {
        Random { state: seed }
    }

    /// A stream nobody can repeat, for identifiers and hash seeds of real volumes. On a simulated thread the
    /// run's seed decides it.
    pub fn from_entropy() -> Random {
        #[cfg(all(feature = "simulation", not(any(loom, shuttle))))]
        if crate::simulation::is_active() {
            return Random::seeded(crate::simulation::random());
        }
        use std::hash::{BuildHasher, Hasher};
        let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
        hasher.write_u128(
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos()),
        );
        hasher.write_u32(std::process::id());
        Random { state: hasher.finish() }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound` (at least 1), near enough uniform for test workloads.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
