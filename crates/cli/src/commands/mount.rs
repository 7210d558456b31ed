//! `quire mount`: in the foreground, or through a server in the background ([`crate::server`]).

use quire_fuse::mount::{self, MountFlags};

use crate::arguments::Mount;
use crate::exit::{self, Failure, Outcome};
use crate::mount_check::{Checked, check};
use crate::mount_options::{LogTarget, MountOptions};
use crate::server::{process, serve, supervise};
use crate::{control, logging, places};

/// Mounts.
pub fn run(arguments: &Mount) -> Outcome {
    if arguments.report {
        return serve::and_report(arguments);
    }
    if arguments.watch {
        return supervise::run(arguments);
    }
    if let Ok(options) = MountOptions::parse(&arguments.options)
        && options.remount
    {
        return remount(arguments);
    }
    let checked = check(arguments)?;
    if arguments.foreground {
        return serve::here(&checked);
    }
    for note in in_background(&checked, &arguments.options, arguments.supervise)? {
        eprintln!("quire: {note}");
    }
    Ok(())
}

/// Changes what the kernel does on a mount, as far as it is named. mount(8) gives all options of the mount,
/// those that cannot change included.
fn remount(arguments: &Mount) -> Outcome {
    let entry = places::mounted(&arguments.dir)?;
    let (now, options) = (entry.flags(), arguments.options.as_slice());
    let keeps = |flags: &MountFlags| flags.read_only || flags.no_atime;
    let (was_read_only, kept) = (now.read_only, keeps(&now));
    let wanted = MountOptions::parse_remount(options, now).map_err(Failure::usage)?.serve.flags;
    // The kernel would take the changes, and the server would not.
    let takes_none = || control::ask(&entry.dir, "info").is_ok_and(|told| told.trim().ends_with(" ro"));
    if was_read_only && !wanted.read_only && takes_none() {
        let why = format!("{} was mounted read-only: unmount it, and mount it with rw", entry.dir.display());
        return Err(Failure::new(exit::FAILED, why));
    }
    // The kernel does not say with a read whether its mount notes access times. The server stops before the
    // mount is read-only: nothing is written behind that.
    let tell = |keep: bool| {
        let what = if keep { "keep" } else { "note" };
        if let Err(failure) = control::ask(&entry.dir, &format!("access-times {what}")) {
            eprintln!("quire: warning: access times are noted as before: {failure}");
        }
    };
    if keeps(&wanted) {
        tell(true);
    }
    let remounted = mount::remount(&entry, &wanted);
    let keeps_now = if remounted.is_ok() { keeps(&wanted) } else { kept };
    if !keeps_now {
        tell(false);
    }
    Ok(remounted?)
}

/// Mounts through a server in the background; returns its notes.
pub fn in_background(checked: &Checked, options: &[String], supervise: bool) -> Outcome<Vec<String>> {
    let log = match &checked.options.log {
        LogTarget::Standard => Some(logging::standard_file(&checked.volume)),
        LogTarget::File(path) => Some(path.clone()),
        LogTarget::Syslog => None,
    };
    // The server works in the root directory.
    let mut options = options.to_vec();
    if let LogTarget::File(path) = &checked.options.log
        && path.is_relative()
    {
        let path =
            std::path::absolute(path).map_err(|error| Failure::system("finding the log file", &error))?;
        let fits = path.to_str().filter(|path| !path.contains(','));
        let fits = fits.ok_or_else(|| {
            Failure::usage(format!(
                "the log file {} cannot stand among mount options, which have no commas and are UTF-8: choose another \
                 with -o log=FILE, or log=syslog",
                path.display()
            ))
        })?;
        options.push(format!("log={fits}"));
    }
    process::start(&checked.volume, &checked.dir, &options, log.as_deref(), supervise)
}
