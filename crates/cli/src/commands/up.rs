//! `quire up`: the first command anyone runs.

use std::path::Path;

use quire_bench::arguments::Probe;
use quire_fuse::mount::{self, Unmount};

use crate::arguments::{Mkfs, Mount, Up};
use crate::exit::{self, Failure, Outcome};
use crate::{commands, mount_check, output};
use quire_base::size;

const IMAGE: &str = "quire.img";
const SIZE: u64 = 10 << 30;

/// Time of each race that is shown.
const RACE_SECONDS: f64 = 0.2;

/// Makes and mounts what is missing, shows it at work, and says what to try.
pub fn run(arguments: &Up) -> Outcome {
    let dir = &arguments.dir;
    // A mount point that does not resolve is made below, or fails there.
    if let Ok(resolved) = mount::resolve(dir)
        && let Some(entry) = mount::mounted_at(&resolved)?
        && entry.is_quire()
    {
        if is_dead(&resolved) {
            output::line(format_args!("The server of {} is gone; mounting again.", dir.display()));
            mount::unmount(&resolved, Unmount::Detach)?;
        } else {
            output::line(format_args!("{} is already mounted on {}.", entry.source.display(), dir.display()));
            output::line(hints(dir));
            return Ok(());
        }
    }
    let image = Path::new(IMAGE);
    if !image.exists() {
        let mkfs = Mkfs {
            size: Some(SIZE),
            label: String::new(),
            journal_size: None,
            metadata_copies: None,
            force: false,
            quiet: true,
            volume: image.into(),
        };
        commands::mkfs::make(&mkfs)?;
        output::line(format_args!(
            "Made {IMAGE}: a volume of {} that takes only the space it needs.",
            size::show(SIZE)
        ));
    }
    std::fs::create_dir_all(dir).map_err(|error| {
        Failure::new(exit::MISSING, format!("making the directory {}: {error}", dir.display()))
    })?;
    let mount = Mount {
        options: Vec::new(),
        foreground: false,
        supervise: false,
        watch: false,
        report: false,
        volume: image.into(),
        dir: dir.clone(),
    };
    let checked = mount_check::check(&mount)?;
    for note in commands::mount::in_background(&checked, &[], false)? {
        output::line(note);
    }
    output::line(format_args!("{IMAGE} is mounted on {}.", dir.display()));
    at_work(dir);
    output::line(hints(dir));
    Ok(())
}

/// Shows the mount at work: races it for a moment, and prints what was tried and what came of it. The mount
/// serves, whatever becomes of that.
fn at_work(dir: &Path) {
    let program = program();
    output::line(format_args!(
        "\nAt work ({program} probe --seconds {RACE_SECONDS} {0}): up to 16 threads at a time on one file of it.",
        dir.display()
    ));
    let probe =
        Probe { seconds: RACE_SECONDS, json: false, direct_load: false, seed: 1, dir: dir.to_owned() };
    match commands::probe::race(&probe) {
        Ok(findings) => output::line(findings.table().trim_end()),
        Err(failure) => output::line(format_args!("Not shown: {}", failure.message)),
    }
}

/// A mount whose server died answers every request so.
fn is_dead(dir: &Path) -> bool {
    matches!(rustix::fs::statfs(dir), Err(rustix::io::Errno::NOTCONN))
}

/// How this program was called.
fn program() -> String {
    std::env::args().next().unwrap_or_else(|| "quire".into())
}

fn hints(dir: &Path) -> String {
    let dir = dir.display();
    let program = program();
    format!(
        "\nTry:   cp -a some-directory {dir}/ && ls -l {dir}\
         \n       fio --name=try --directory={dir} --rw=randrw --bs=4k --size=256m --numjobs=4\
         \nStop:  {program} umount {dir}\
         \nMore:  {program} --help"
    )
}
