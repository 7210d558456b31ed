//! `quire bench-null`: the bare server, to measure the transport.

use quire_fuse::{null, session, signals};

use crate::arguments::BenchNull;
use crate::exit::Outcome;
use crate::logging;

/// Serves in the foreground until unmounted or stopped.
pub fn run(arguments: &BenchNull) -> Outcome {
    signals::block();
    logging::to_terminal();
    let threads = arguments.threads.unwrap_or_else(session::default_threads);
    null::serve(&arguments.dir, arguments.size, threads, || {
        eprintln!(
            "quire: {}/{} answers from memory, {threads} threads; end with Ctrl-C",
            arguments.dir.display(),
            null::FILE
        );
    })?;
    Ok(())
}
