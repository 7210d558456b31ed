//! `quire backup`: a program of its own, so the client of S3 and what that needs are not in this one.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::arguments::Backup;
use crate::exit::{Failure, Outcome, SYSTEM};

const PROGRAM: &str = "quire-backup";

/// Becomes `quire-backup`. Returns only if that fails.
pub fn run(arguments: &Backup) -> Outcome {
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name(PROGRAM));
    let program = beside.filter(|program| program.is_file()).unwrap_or_else(|| PathBuf::from(PROGRAM));
    let error = Command::new(&program).args(&arguments.arguments).exec();
    let advice = match error.kind() {
        std::io::ErrorKind::NotFound => {
            "; install it beside quire or in PATH (cargo build --release --locked -p quire-backup)"
        }
        _ => "",
    };
    Err(Failure::new(SYSTEM, format!("cannot run {}: {error}{advice}", program.display())))
}
