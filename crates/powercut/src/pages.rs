//! What keeps a database's pages whole over a power cut, and the count of those that are not.
//!
//! A page is larger than what a drive writes entirely or not at all, so a database either logs whole pages
//! and repairs torn ones, or relies on its file system. A campaign runs it in each of three ways:
//!
//! | | the database logs pages | its files have the property `untorn` | torn pages after a cut |
//! | --- | --- | --- | --- |
//! | [`Pages::Logged`] | yes | no | are repaired, and not counted |
//! | [`Pages::Untorn`] | no | yes | break the promise |
//! | [`Pages::Unprotected`] | no | no | are counted: so it is seen that the count can see them |
//!
//! Neighbours: [`crate::postgres`] and [`crate::mariadb`] count, each with its database's own program.

use crate::failure::{Failure, Outcome};
use clap::ValueEnum;
use rustix::fs::XattrFlags;
use std::path::Path;

/// See the module's documentation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Pages {
    /// The database logs whole pages, as it does by default
    #[default]
    Logged,
    /// The files are untorn, and the database logs no pages
    Untorn,
    /// Neither: counts the pages that a cut tears
    Unprotected,
}

impl Pages {
    /// Gives an empty folder the property `untorn` if that is what protects the pages.
    pub fn prepare(self, folder: &Path, page_bytes: u32) -> Outcome {
        if self != Pages::Untorn {
            return Ok(());
        }
        let value = page_bytes.to_string();
        rustix::fs::setxattr(folder, c"user.quire.untorn", value.as_bytes(), XattrFlags::empty())
            .map_err(|error| Failure::trouble("giving the database's folder the property untorn", error))
    }

    /// Judges a count of torn pages.
    pub fn judge(self, torn: u64, what: &str) -> Outcome {
        if torn > 0 && self == Pages::Untorn {
            return Err(Failure::Broken(format!("{torn} TORN PAGES in untorn files: {what}")));
        }
        Ok(())
    }
}
