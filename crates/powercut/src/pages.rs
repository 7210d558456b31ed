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

/// Pages that cuts have torn.
pub struct TornPages {
    pages: Pages,
    total: u64,
}

impl TornPages {
    /// Whether the files have units.
    pub fn are_prevented(&self) -> bool {
        self.pages == Pages::Untorn
    }

    /// None yet.
    pub fn new(pages: Pages) -> TornPages {
        TornPages { pages, total: 0 }
    }

    /// Torn pages of all cuts so far.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Looks at the pages after a cut, before the server recovers; `count` gives the torn ones and the first
    /// of them. Says whether unprotected pages are torn, so that the database is of no use any more.
    pub fn look(&mut self, count: impl FnOnce() -> Outcome<(u64, String)>) -> Outcome<bool> {
        if self.pages == Pages::Logged {
            return Ok(false);
        }
        let (torn, first) = count()?;
        self.total += torn;
        self.pages.judge(torn, &first)?;
        Ok(torn > 0)
    }
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
    fn judge(self, torn: u64, what: &str) -> Outcome {
        if torn > 0 && self == Pages::Untorn {
            return Err(Failure::Broken(format!("{torn} TORN PAGES in untorn files: {what}")));
        }
        Ok(())
    }
}
