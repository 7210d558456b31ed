//! Damage to metadata at rest: of each piece one copy, as a bad disk leaves it.
//!
//! Neighbours: [`crate::image`] recovers what is damaged, and has it healed.

use quire::internals::inspect;
use quire_base::random::Random;
use quire_base::{BLOCK_SIZE, BlockNo};
use quire_device::SimulatedBackend;
use quire_device::simulated::Image;
use quire_format::place::{NO_TWIN, Place};
use quire_format::superblock::{SLOT_BLOCKS, far_slots};
use std::sync::Arc;

/// Damages one copy of about every second piece of metadata that the volume has in two places, and one copy
/// of each superblock: not the first ones of both, which are the sign that a volume is there at all. Also
/// says how many blocks. None if nothing but superblocks is kept twice.
pub fn at_rest(image: &Image, seed: u64) -> Result<Option<(Image, u64)>, String> {
    let device = Arc::new(SimulatedBackend::from_image(image.clone()));
    let volume = inspect::Image::load(device).map_err(|error| format!("looking for metadata: {error}"))?;
    let mut places: Vec<Place> = volume.tree.pool_state().places().collect();
    let walked = volume.tree.walk(&mut |at, _| {
        places.push(at.place());
        Ok(())
    });
    walked.map_err(|error| format!("looking for metadata: {error}"))?;
    places.retain(|place| place.twin != NO_TWIN);
    if places.is_empty() {
        return Ok(None);
    }
    let mut random = Random::seeded(seed);
    let mut bad: Vec<BlockNo> = Vec::new();
    for place in places {
        if random.one_in(2) {
            bad.push(if random.one_in(2) { place.block } else { place.twin });
        }
    }
    let (near, far) = (random.below(2) as usize, far_slots(image.blocks()));
    bad.extend([SLOT_BLOCKS[near], far[1 - near]]);
    let mut damaged = image.clone();
    for &at in &bad {
        match random.below(4) {
            0 => damaged.edit(at, |block| {
                let bit = random.below(8 * BLOCK_SIZE as u64) as usize;
                block[bit / 8] ^= 1 << (bit % 8);
            }),
            1 => damaged.set(at, None),
            // What belongs elsewhere.
            2 => {
                let other = bad[random.below(bad.len() as u64) as usize];
                let flipped = if other == at { BlockNo(at.0 ^ 1) } else { other };
                damaged.set(at, image.get(flipped).cloned());
            }
            _ => damaged.edit(at, |block| block[BLOCK_SIZE / 2..].fill(0xA5)),
        }
    }
    Ok(Some((damaged, bad.len() as u64)))
}
