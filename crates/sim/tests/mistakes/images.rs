//! Images that the tests share a look at.

use quire::internals::inspect::{self, newest_of};
use quire_device::SimulatedBackend;
use quire_device::simulated::Image;
use quire_format::superblock::Superblock;
use std::sync::Arc;

/// A device that holds an image.
pub fn on(image: &Image) -> Arc<SimulatedBackend> {
    Arc::new(SimulatedBackend::from_image(image.clone()))
}

/// The superblock that counts.
pub fn newest(image: &Image) -> Superblock {
    let slots = newest_of(inspect::superblocks(on(image)));
    slots.into_iter().flatten().max_by_key(|slot| slot.checkpoint).expect("a volume")
}
