//! What a file system says about power loss, which no race can find out.
//!
//! * Quire's property `untorn` (attribute `user.quire.untorn`): a crash leaves no aligned unit of the file in
//!   part. Other file systems keep such an attribute without giving it a meaning. So a new file tells more
//!   than the directory: on Quire it inherits the property.
//! * Untorn direct writes of kernel file systems (`STATX_WRITE_ATOMIC`): single writes with RWF_ATOMIC.

use super::Arena;
use crate::engine::group::atomic_units;
use crate::engine::server::UNTORN;
use crate::outcome::os;
use crate::size;
use quire_base::Result;
use rustix::io::Errno;
use serde_json::{Value, json};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

/// Bytes that a value of the property has at most.
const VALUE_MAX: usize = 64;

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promises {
    /// The property `untorn` of the directory, as it is written there.
    pub directory: Option<String>,
    /// That of a new file in it.
    pub file: Option<String>,
    /// The sizes of untorn direct writes that a new file takes, smallest and largest, in bytes.
    pub direct: Option<(u64, u64)>,
}

fn property(of: impl AsFd) -> std::result::Result<Option<String>, Errno> {
    let mut value = [0; VALUE_MAX];
    match rustix::fs::fgetxattr(of, UNTORN, &mut value) {
        Ok(length) => Ok(Some(String::from_utf8_lossy(&value[..length]).into_owned())),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Promises {
    /// Asks `dir`, and a new file of the arena in it.
    pub fn ask(dir: &Path, arena: &Arena<'_>) -> Result<Promises> {
        let doing = |what: &Path| os(format!("reading {UNTORN} of {}", what.display()));
        let opened = File::open(dir).map_err(os(format!("opening {}", dir.display())))?;
        let directory = property(&opened).map_err(|error| doing(dir)(error.into()))?;
        let name = "promises";
        let file = arena.open(name, 0)?;
        let asked = property(&file).map_err(|error| doing(&arena.directory.join(name))(error.into()));
        let direct = atomic_units(&file);
        arena.remove(name);
        Ok(Promises { directory, file: asked?, direct })
    }

    /// For JSON.
    pub fn json(&self) -> Value {
        json!({
            "untorn": { "directory": self.directory, "file": self.file },
            "untorn_direct_writes": self.direct.map(|(least, most)| json!({ "min": least, "max": most })),
        })
    }

    /// Two lines.
    pub fn text(&self) -> String {
        let untorn = match (&self.directory, &self.file) {
            (_, Some(unit)) => {
                format!("new files have untorn={unit}: a crash leaves no aligned unit of them in part")
            }
            (Some(unit), None) => format!(
                "not promised: the directory has untorn={unit}, but new files do not get it, so this file \
                 system gives it no meaning"
            ),
            (None, None) => format!("not promised: new files do not have the property untorn ({UNTORN})"),
        };
        let direct = match self.direct {
            Some((least, most)) => {
                format!("{} to {} with O_DIRECT and RWF_ATOMIC (statx)", size::show(least), size::show(most))
            }
            None => "not offered (statx)".into(),
        };
        format!("untorn over power loss: {untorn}\nuntorn direct writes: {direct}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_has_its_words() {
        let of = |directory: Option<&str>, file: Option<&str>, direct| Promises {
            directory: directory.map(Into::into),
            file: file.map(Into::into),
            direct,
        };
        let quire = of(Some("8k"), Some("8k"), None);
        assert!(quire.text().contains("new files have untorn=8k"), "{}", quire.text());
        assert!(quire.text().contains("direct writes: not offered"));
        let copied = of(Some("8k"), None, Some((4096, 65536)));
        assert!(copied.text().contains("gives it no meaning"), "{}", copied.text());
        assert!(copied.text().contains("4k to 64k with O_DIRECT"));
        assert_eq!(copied.json()["untorn_direct_writes"]["max"], 65536);
        assert!(of(None, None, None).text().contains("do not have the property"));
        assert!(of(None, None, None).json()["untorn"]["file"].is_null());
    }
}
