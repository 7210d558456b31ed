//! `quire bench-null`: the bare server, to measure the transport.

use quire_fuse::{null, session, signals};

use crate::arguments::BenchNull;
use crate::exit::{Failure, Outcome};
use crate::logging;
use crate::mount_options::transport;

/// Serves in the foreground until unmounted or stopped.
pub fn run(arguments: &BenchNull) -> Outcome {
    signals::block();
    // As a mount's server.
    signals::run_soon();
    logging::to_terminal();
    let threads = arguments.threads.unwrap_or_else(session::default_threads);
    let transport = transport(&arguments.transport).map_err(Failure::usage)?;
    null::serve(&arguments.dir, arguments.size, threads, transport, |transport| {
        eprintln!(
            "quire: {}/{} answers from memory, transport {transport}; end with Ctrl-C",
            arguments.dir.display(),
            null::FILE
        );
    })?;
    Ok(())
}
