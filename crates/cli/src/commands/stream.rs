//! `quire send` and `quire receive`: snapshots as streams. The snapshots of a mounted volume are sent by its
//! server ([`crate::server::sending`]); a volume that receives is not mounted.

use std::io::{BufRead, BufReader, BufWriter, IsTerminal, Write};

use indicatif::ProgressBar;
use quire::{ReceiveOptions, StreamProgress, VolumeOptions};
use quire_base::{Error, size};

use crate::arguments::{Receive, Send};
use crate::exit::{self, Failure, Outcome};
use crate::frames::{self, Request};
use crate::output;
use crate::places::{mount_of, unmounted};

/// Bytes that are collected before they are written to a pipe.
const BUFFER_BYTES: usize = 1 << 20;

const BAR: &str = "{bar:40} {percent:>3}% {bytes} of {total_bytes}, {bytes_per_sec}, {eta}";

/// Writes a snapshot to the standard output.
pub fn send(arguments: &Send) -> Outcome {
    let stdout = std::io::stdout();
    if stdout.is_terminal() {
        return Err(Failure::usage(
            "a stream is not for a terminal: redirect it to a file or to `quire receive`",
        ));
    }
    let request = match (&arguments.resume, &arguments.name) {
        (Some(token), _) => Request::Rest { token: token.clone() },
        (None, Some(name)) => Request::Snapshot { name: name.clone(), from: arguments.from.clone() },
        (None, None) => return Err(Failure::usage("the name of a snapshot is missing")),
    };
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, stdout.lock());
    let bar = output::bar(!arguments.quiet, BAR);
    let progress = &mut |at| show(&bar, at);
    match mount_of(&arguments.volume)? {
        Some(dir) => frames::from_mount(&dir, &request, &mut out, progress)?,
        None => {
            let volume = VolumeOptions::new().read_only(true).open(unmounted(&arguments.volume)?)?;
            request.send(&volume, &mut out, progress)?;
            volume.close()?;
        }
    }
    bar.finish_and_clear();
    out.flush().map_err(|error| Failure::system("writing the stream", &error))
}

/// Makes a volume what the standard input says; shows or gives up what an earlier stream has left.
pub fn receive(arguments: &Receive) -> Outcome {
    let path = unmounted(&arguments.volume)?;
    if arguments.resume_token {
        return match ReceiveOptions::unfinished(&path)? {
            Some(there) => {
                eprintln!("{:?}: {} items, {} are there", there.name, there.items, size::show(there.bytes));
                output::line(there.token);
                Ok(())
            }
            None => Err(Failure::new(exit::MISSING, format!("{} has no unfinished receive", path.display()))),
        };
    }
    if arguments.abort {
        return match ReceiveOptions::abort(&path)? {
            true => Ok(()),
            false => {
                Err(Failure::new(exit::MISSING, format!("{} has no unfinished receive", path.display())))
            }
        };
    }
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Err(Failure::usage(
            "a stream does not come from a terminal: give a file or a pipe of `quire send`",
        ));
    }
    let bar = output::bar(!arguments.quiet, BAR);
    let mut input = BufReader::with_capacity(BUFFER_BYTES, stdin.lock());
    let options = ReceiveOptions::new().force(arguments.force);
    // Streams may come one behind the other, as `cat` joins them.
    let received = loop {
        let received = options.receive(&path, &mut input, &mut |at| show(&bar, at));
        let ends = received.and_then(|_| {
            let more = input.fill_buf().map_err(|error| Error::os("reading the stream", &error))?;
            Ok(more.is_empty())
        });
        if !matches!(ends, Ok(false)) {
            break ends;
        }
    };
    bar.finish_and_clear();
    let Err(error) = received else { return Ok(()) };
    let refused = error.kind() == quire::ErrorKind::Busy;
    let failure = match error.kind() {
        // The volume is sound, and needs no advice.
        quire::ErrorKind::Corrupt if error.to_string().starts_with("the stream is damaged") => {
            Failure::new(exit::DAMAGED, error.to_string())
        }
        _ => Failure::from(error),
    };
    match ReceiveOptions::unfinished(&path) {
        Ok(Some(there)) if !refused => Err(Failure {
            message: format!(
                "{}\n{} of the stream of {:?} are kept. Send the rest with\n    quire send --resume {} VOLUME\nor give \
                 it up with\n    quire receive --abort {}",
                failure.message,
                size::show(there.bytes),
                there.name,
                there.token,
                path.display()
            ),
            ..failure
        }),
        _ => Err(failure),
    }
}

fn show(bar: &ProgressBar, at: StreamProgress) {
    bar.set_length(at.total);
    bar.set_position(at.bytes);
}
