//! All crashes of a short run: at every event, with every subset of the unflushed writes, and torn ones.

use quire_device::SimulatedBackend;
use quire_device::simulated::{CrashPolicy, Image};

/// Goes through the crashes from event `from` on, as long as `look` finds nothing wrong. Of each event the
/// subsets of so many unflushed writes are tried, and so many cuts of the power that tear. Gives how many
/// images there were, and what is wrong with the last.
pub fn look_at(
    device: &SimulatedBackend,
    from: usize,
    (writes_max, cuts): (usize, u64),
    look: &mut dyn FnMut(Image) -> Result<(), String>,
) -> (u64, Option<String>) {
    let mut images = 0;
    for event in from..=device.event_count() {
        let writes = device.unsafe_writes_at(event).unwrap_or(0).min(writes_max);
        let subsets = (0..1u64 << writes).map(|kept| CrashPolicy::Subset { kept });
        for policy in subsets.chain((0..cuts).map(|seed| CrashPolicy::Power { seed })) {
            let Some(image) = device.crash_at(event, policy) else { continue };
            images += 1;
            if let Err(wrong) = look(image) {
                return (images, Some(format!("event {event}, {policy:?}: {wrong}")));
            }
        }
    }
    (images, None)
}
