//! The program `quire-backup`, which `quire backup` runs: incremental backups of volumes in a bucket or
//! directory.
//!
//! It works through the program `quire`, whose streams it stores. It is a program of its own, so the client
//! of S3 and what that needs are in nothing else.
//!
//! | module | what |
//! | --- | --- |
//! | [`arguments`] | what people write |
//! | [`create`], [`list`], [`restore`], [`verify`], [`prune`] | one module a command |
//! | [`manifest`] | what a backup consists of; checks of what was stored |
//! | [`retention`] | which backups a prune keeps |
//! | [`store`], [`directory`] | objects in a directory or bucket; what a directory needs of its own |
//! | [`program`] | running `quire` |
//! | [`failure`], [`output`] | messages and exit codes; what goes to the standard output |

mod arguments;
mod create;
mod directory;
mod failure;
mod list;
mod manifest;
mod output;
mod program;
mod prune;
mod restore;
mod retention;
mod store;
mod verify;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind as ParseError;

use arguments::{Cli, Command};
use failure::{Failure, Outcome};

/// Wrong usage.
const USAGE: u8 = 1;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return match error.kind() {
                ParseError::DisplayHelp | ParseError::DisplayVersion => ExitCode::SUCCESS,
                _ => ExitCode::from(USAGE),
            };
        }
    };
    // A reader of a backup reads all files of the volume, whatever their permissions.
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    match run(&cli.command).and_then(|()| output::verdict()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("quire backup: {failure}");
            ExitCode::from(failure.code)
        }
    }
}

fn run(command: &Command) -> Outcome {
    // The store's client has no default for its cryptography. This fails only if one was chosen already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::system("starting", &error))?;
    runtime.block_on(async {
        match command {
            Command::Create(arguments) => create::run(arguments).await,
            Command::List(arguments) => list::run(arguments).await,
            Command::Restore(arguments) => restore::run(arguments).await,
            Command::Verify(arguments) => verify::run(arguments).await,
            Command::Prune(arguments) => prune::run(arguments).await,
        }
    })
}
