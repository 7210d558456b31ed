//! Repairs of generated damages that are cut off at each of their events, as a power cut or a kill does it:
//! what is left is no worse than before, and the next repair ends as clean, with nothing lost beside what was
//! damaged.

use super::damage::Damage;
use super::judge::{self, Touched};
use super::{World, touched};
use crate::common::*;
use quire_base::random::Random;
use quire_base::sync::Arc;
use quire_device::simulated::{CrashPolicy, Image, SimulatedBackend};
use quire_format::layout;
use quire_fsck::{IssueKind, Options, Report, check_backend};

/// Damages of each structure whose repairs are cut off; more with `QUIRE_FSCK_INTERRUPTED=30`.
const EACH: usize = 1;

fn each() -> usize {
    std::env::var("QUIRE_FSCK_INTERRUPTED").ok().and_then(|text| text.parse().ok()).unwrap_or(EACH)
}

fn mend(backend: Arc<SimulatedBackend>) -> quire_base::Result<Report> {
    check_backend(backend, &Options { repair: true, ..Options::default() })
}

/// Cuts a repair off at each of its events; gives how many images that made. None if the damage is not mended
/// whole.
fn cut_off(
    world: &World,
    image: &Image,
    touched: &Touched,
    random: &mut Random,
    what: &str,
) -> Option<usize> {
    let before = check(image).ok().filter(|report| !report.is_clean())?;
    let backend = Arc::new(SimulatedBackend::from_image(image.clone()));
    if mend(backend.clone()).ok()?.exit_code() != 1 {
        return None;
    }
    let mut images = 0;
    for at in 0..=backend.event_count() {
        let seed = random.next_u64();
        let policy = match random.below(4) {
            0 => CrashPolicy::KeepAll,
            1 => CrashPolicy::LoseAll,
            2 => CrashPolicy::Killed { seed },
            _ => CrashPolicy::Power { seed },
        };
        let Some(image) = backend.crash_at(at, policy) else { continue };
        let when = format!("{what}, cut off at {at} of {}, {policy:?}", backend.event_count());
        let now = check(&image).unwrap_or_else(|error| panic!("{when}: {error}"));
        // A slot that was being written may be torn; repair wrote it for the sake of something as bad.
        let torn = now.has(IssueKind::SuperblockDamaged);
        assert!(now.worst() <= before.worst() || torn, "{when}: worse: {:#?}", now.issues);
        let again = device(&image);
        let report = mend(again.clone()).unwrap_or_else(|error| panic!("{when}: {error}"));
        assert!(matches!(report.exit_code(), 0 | 1), "{when}: {:#?}", report.issues);
        assert_clean(&again.visible(), &when);
        let seen = judge::see(&again.visible()).unwrap_or_else(|error| panic!("{when}: {error}"));
        assert_eq!(seen.errors, 0, "{when}: something cannot be read");
        judge::assert_untouched(&world.original, &seen, touched);
        images += 1;
    }
    Some(images)
}

#[test]
fn repairs_of_generated_damages_may_be_cut_off_anywhere() {
    let world = World::closed();
    let mut random = Random::seeded(41);
    let (mut repairs, mut images) = (0, 0);
    for layout in layout::ALL.iter().filter(|layout| !layout.name.starts_with("journal")) {
        let mut damages: Vec<Damage> = world.damages(layout.name, &mut random);
        let mut done = 0;
        while done < each() && !damages.is_empty() {
            let damage = damages.swap_remove(random.below(damages.len() as u64) as usize);
            let touched = touched(&world.editor, &damage);
            let image = world.damaged(&damage).image;
            if let Some(cut) = cut_off(&world, &image, &touched, &mut random, &damage.describe()) {
                (done, images) = (done + 1, images + cut);
            }
        }
        repairs += done;
    }
    println!("{repairs} repairs, {images} images");
    assert!(repairs >= 12 * each() && images >= 200 * each(), "only {repairs} repairs, {images} images");
}
