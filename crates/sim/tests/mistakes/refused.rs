//! Homes that the device refuses, entirely: every crash while content waits in the journal, checkpoints are
//! tried, and other files go on.
//!
//! What was fsynced is there after each, and once the device takes everything again nothing is left waiting.

use super::every_crash;
use quire::inodes::{Create, IoFlags};
use quire::{ErrorKind, FormatOptions};
use quire_base::simulation::mistakes::{self, Mistake};
use quire_device::simulated::{Fault, FaultOp};
use quire_device::{IoClass, SimulatedBackend};
use sim::image;
use std::sync::Arc;

const BLOCK: usize = 4096;

/// Goes through the crashes; gives how many there were, and the first that is wrong.
fn crashes() -> (u64, Option<String>) {
    let device = Arc::new(SimulatedBackend::new(8192));
    let format = FormatOptions::new().seed(1).clock(image::clock());
    format.format_backend(device.clone()).unwrap();
    let volume = image::options().open_backend(device.clone()).unwrap();
    let inodes = volume.inodes();
    let logs: Vec<_> = [b"a", b"b"]
        .map(|name| inodes.create(&inodes.root(), name, &Create::file(0o644)).unwrap())
        .into_iter()
        .collect();
    volume.sync().unwrap();
    volume.checkpoint().unwrap();
    let fault = Fault::on(FaultOp::Write).class(IoClass::Data);
    device.inject(fault.times(u64::MAX).kind(ErrorKind::NoSpace));
    for (log, byte) in logs.iter().zip(1..) {
        inodes.append(log, &[byte; BLOCK], IoFlags::APPEND | IoFlags::DATASYNC).unwrap();
    }
    let from = device.event_count();
    for attempt in 0..3 {
        let refused = volume.checkpoint();
        let kind = refused.err().map(|error| error.kind());
        if kind != Some(ErrorKind::NoSpace) {
            return (0, Some(format!("checkpoint {attempt} was taken: {kind:?}")));
        }
        inodes.create(&inodes.root(), format!("n{attempt}").as_bytes(), &Create::file(0o644)).unwrap();
        volume.sync().unwrap();
    }
    device.clear_faults();
    volume.checkpoint().unwrap();
    volume.checkpoint().unwrap();
    every_crash::look_at(&device, from, (6, 4), &mut |image| {
        let after = image::options().open_backend(Arc::new(SimulatedBackend::from_image(image))).unwrap();
        match [("a", 1), ("b", 2)].iter().find(|(name, byte)| after.read(name).unwrap() != [*byte; BLOCK]) {
            Some((name, _)) => Err(format!("{name} is not what was fsynced")),
            None => Ok(()),
        }
    })
}

#[test]
fn no_crash_loses_content_that_has_no_home() {
    let (images, wrong) = mistakes::with(None, crashes);
    println!("{images} images");
    assert!(wrong.is_none(), "{wrong:?}");
    assert!(images > 50, "only {images} images");
}

#[test]
#[ignore = "scripts/mistakes runs it"]
fn a_refused_home_that_counts_as_written_is_found() {
    let wrong = mistakes::with(Some(Mistake::RefusedHomePassed), || crashes().1);
    println!("{wrong:?}");
    assert!(wrong.is_some());
}
