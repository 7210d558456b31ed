//! The server's side: an ordinary volume on an ordinary mount, on a device that can lose its power.
//!
//! Protocol with the harness, in lines:
//!
//! ```text
//!   stdout  ready <transactions replayed>     the mount is usable
//!   stdin   cut                               cut the power:
//!   stdout  cut <lost> <kept> <torn>          ... done; the process ends by its own SIGKILL
//!   stdin   (end of file)                     the harness is gone: detach the mount and end
//!   stdout  closed <writes never flushed>     after an orderly unmount
//! ```
//!
//! Neighbours: [`crate::machine`] is the other end; the same parts as `quire mount` do the serving.

use crate::backend::{Behaviour, LastWords, PowerCutBackend, end_at_once};
use crate::cache::Fates;
use quire::VolumeOptions;
use quire_base::sync::{Arc, thread};
use quire_base::{Error, Result};
use quire_fuse::mount::{self, Unmount};
use quire_fuse::{CacheMode, MountFlags, ServeOptions, Session, signals};
use std::fs::File;
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};

/// Limit of the engine's page cache, small enough that real use evicts.
const CACHE_BYTES: u64 = 96 << 20;

/// What to serve, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The image file.
    pub image: PathBuf,
    /// The mount point.
    pub dir: PathBuf,
    /// A file on the host whose first byte says whether the power is on.
    pub power: PathBuf,
    /// The device's behaviour.
    pub behaviour: Behaviour,
    /// Who caches file data.
    pub cache: CacheMode,
}

/// Serves until unmounted or cut off.
pub fn run(options: &Options) -> Result<()> {
    signals::block();
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    abort_on_panic();
    let power = File::options()
        .write(true)
        .open(&options.power)
        .map_err(|error| Error::os(format_args!("opening {}", options.power.display()), &error))?;
    let last_words = LastWords { power, say: say_fates };
    let backend = Arc::new(PowerCutBackend::open(&options.image, options.behaviour, last_words)?);
    let settings = VolumeOptions::new().cache_bytes(CACHE_BYTES);
    let volume = settings.open_backend(backend.clone())?;
    let replayed = volume.recovery().records;
    let flags = MountFlags {
        source: options.image.clone().into_os_string(),
        // The database runs as a user of its own.
        allow_other: rustix::process::geteuid().is_root(),
        ..MountFlags::default()
    };
    let serving = ServeOptions { cache: options.cache, flags, ..ServeOptions::default() };
    let session = Session::mount(volume, &options.dir, &serving)?;
    let device = backend.clone();
    let dir = options.dir.clone();
    thread::Builder::new()
        .name("powercut-control".into())
        .spawn(move || obey(&device, &dir))
        .map_err(|error| Error::os("starting the control thread", &error))?;
    say(&format!("ready {replayed}"));
    session.run()?;
    say(&format!("closed {}", backend.lose_unflushed()));
    Ok(())
}

fn obey(device: &PowerCutBackend, dir: &Path) {
    for line in std::io::stdin().lock().lines() {
        match line.as_deref() {
            Ok("cut") => device.cut(),
            Ok(other) => tracing::warn!("unknown command {other:?}; there is only: cut"),
            Err(_) => break,
        }
    }
    tracing::warn!("the harness is gone");
    if let Err(error) = mount::unmount(dir, Unmount::Detach) {
        tracing::warn!("{error}");
    }
    end_at_once();
}

fn say_fates(outcome: std::io::Result<Fates>) {
    match outcome {
        Ok(fates) => say(&format!("cut {} {} {}", fates.lost, fates.kept, fates.torn)),
        Err(error) => say(&format!("failed {error}")),
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// A panic of the engine ends the server, as it ends the product's.
fn abort_on_panic() {
    let standard = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        standard(info);
        std::process::abort();
    }));
}
