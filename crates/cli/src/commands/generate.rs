//! `quire man` and `quire completions`: generated from the command line's own definition.

use std::path::Path;

use clap::CommandFactory;

use crate::arguments::Cli;
use crate::exit::{Failure, Outcome};
use crate::output;

/// Writes a page for the program and one for each command.
pub fn manual(dir: &Path) -> Outcome {
    let failed = |error: &std::io::Error| {
        Failure::new(crate::exit::FAILED, format!("writing manual pages to {}: {error}", dir.display()))
    };
    std::fs::create_dir_all(dir).map_err(|error| failed(&error))?;
    clap_mangen::generate_to(Cli::command(), dir).map_err(|error| failed(&error))
}

/// Prints the completions of a shell.
pub fn completions(shell: clap_complete::Shell) -> Outcome {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "quire", &mut text);
    output::bytes(&text);
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn pages_for_each_command() {
        let directory = tempfile::tempdir().unwrap();
        super::manual(directory.path()).unwrap();
        for page in ["quire.1", "quire-mount.1", "quire-fsck.1", "quire-up.1"] {
            assert!(directory.path().join(page).exists(), "{page}");
        }
        assert!(!directory.path().join("quire-bench-null.1").exists());
    }
}
