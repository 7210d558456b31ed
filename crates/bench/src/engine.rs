//! Engines by name, with options: `quire@cache=256m`, `dir:/srv/data`.
//!
//! | module | engines |
//! | --- | --- |
//! | [`library`] | `quire`: the library in this process; `counted` sees what reaches its device |
//! | [`kernel`] | `xfs`, `ext4`, `btrfs` on a loop device |
//! | [`server`] | `mount`, `fuse-null`: a process behind a mount |
//! | [`system`] | system calls on a directory: what the above are driven through, and `dir:PATH` itself |
//! | [`memory`] | `memcpy` |
//! | [`raw`] | `raw` |
//! | [`group`] | groups of writes by system calls, for [`system`] |

mod counted;
pub mod group;
pub mod kernel;
pub mod library;
pub mod memory;
pub mod raw;
pub mod server;
pub mod system;

use crate::arguments::Orphans;
use crate::drive::Surroundings;
use crate::image::Image;
use crate::outcome::{Outcome, Trouble};
use crate::report::machine;
use crate::size;
use crate::target::Target;
use quire::Unit;
use quire_device::NbdAddress;
use std::path::{Path, PathBuf};

/// What an engine is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The library.
    Quire,
    /// The library behind a FUSE mount.
    Mount,
    /// A file system of the kernel.
    Kernel(kernel::FileSystem),
    /// An existing directory.
    Directory(PathBuf),
    /// One buffer.
    Memcpy,
    /// The bare image file.
    Raw,
    /// A FUSE server that answers from memory.
    FuseNull,
}

/// Where a volume's bytes are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Medium {
    /// The image file.
    #[default]
    File,
    /// Memory.
    Memory,
    /// The export that this address names; what it holds is overwritten.
    Export(PathBuf),
}

/// An engine of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// As it was written: the name in tables and JSON.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// `cache=`: bytes of Quire's cache.
    pub cache: Option<u64>,
    /// `device=`.
    pub medium: Medium,
    /// `folio=`: bytes of Quire's folios.
    pub folio: Option<u64>,
    /// `track=folio`: whole folios are written; only in a build for comparisons.
    pub whole_folios: bool,
    /// `threads=`: threads of a FUSE server.
    pub threads: Option<usize>,
    /// `orphans=`: how Quire tracks inodes without a name; all but one way only in a build for comparisons.
    pub orphans: Orphans,
    /// `discard`: freed blocks are told to the device.
    pub discard: bool,
    /// `transport=`: how requests of a mount travel.
    pub transport: Option<String>,
    /// `copies=`: copies of Quire's metadata.
    pub copies: Option<u32>,
    /// `untorn=`: the property of Quire's files.
    pub untorn: Option<Unit>,
    /// `atomic`: files are opened with O_DIRECT, durable writes carry RWF_ATOMIC and RWF_DSYNC.
    pub atomic: bool,
}

impl Spec {
    /// Parses one engine of a list.
    pub fn parse(text: &str) -> Result<Spec, String> {
        let plain = |kind| Spec {
            name: text.into(),
            kind,
            cache: None,
            medium: Medium::File,
            folio: None,
            whole_folios: false,
            threads: None,
            orphans: Orphans::Lockless,
            discard: false,
            transport: None,
            copies: None,
            untorn: None,
            atomic: false,
        };
        if let Some(path) = text.strip_prefix("dir:") {
            if path.is_empty() {
                return Err("dir: needs a directory, as in dir:/srv/data".into());
            }
            return Ok(plain(Kind::Directory(path.into())));
        }
        let mut parts = text.split('@');
        let kind = match parts.next().unwrap_or_default() {
            "quire" => Kind::Quire,
            "mount" => Kind::Mount,
            "xfs" => Kind::Kernel(kernel::FileSystem::Xfs),
            "ext4" => Kind::Kernel(kernel::FileSystem::Ext4),
            "btrfs" => Kind::Kernel(kernel::FileSystem::Btrfs),
            "memcpy" => Kind::Memcpy,
            "raw" => Kind::Raw,
            "fuse-null" => Kind::FuseNull,
            name => {
                return Err(format!(
                    "there is no engine '{name}'; there are quire, mount, xfs, ext4, btrfs, dir:PATH, memcpy, \
                     raw, fuse-null"
                ));
            }
        };
        let mut spec = plain(kind);
        for option in parts {
            spec.apply(option)?;
        }
        Ok(spec)
    }

    fn apply(&mut self, option: &str) -> Result<(), String> {
        if option == "discard" && matches!(self.kind, Kind::Quire | Kind::Mount | Kind::Kernel(_)) {
            self.discard = true;
            return Ok(());
        }
        if option == "atomic" && matches!(self.kind, Kind::Kernel(_)) {
            self.atomic = true;
            return Ok(());
        }
        let (name, value) = option
            .split_once('=')
            .ok_or_else(|| format!("'{option}' in '{}' is not of the form option=value", self.name))?;
        let quire = matches!(self.kind, Kind::Quire | Kind::Mount);
        match (name, value) {
            ("cache", _) if quire => self.cache = Some(size::parse(value)?),
            ("untorn", "off") if quire => self.untorn = None,
            ("untorn", _) if quire => {
                self.untorn = Some(value.parse().map_err(|error: quire::Error| error.to_string())?);
            }
            ("copies", "1") if self.kind == Kind::Quire => self.copies = Some(1),
            ("copies", "2") if self.kind == Kind::Quire => self.copies = Some(2),
            ("copies", _) if self.kind == Kind::Quire => {
                return Err(format!("copies={value}: there are 1 or 2 of metadata"));
            }
            ("device", "file") if self.kind == Kind::Quire => self.medium = Medium::File,
            ("device", "memory") if self.kind == Kind::Quire => self.medium = Medium::Memory,
            ("device", _) if self.kind == Kind::Quire && NbdAddress::is_one(value.as_ref()) => {
                self.medium = Medium::Export(value.into());
            }
            ("folio", _) if self.kind == Kind::Quire => {
                let bytes = size::parse(value)?;
                if !bytes.is_power_of_two() || !(4 << 10..=2 << 20).contains(&bytes) {
                    return Err(format!("folio={value}: a folio has a power of two of bytes, from 4k to 2m"));
                }
                self.folio = Some(bytes);
            }
            ("track", "block") if self.kind == Kind::Quire => self.whole_folios = false,
            ("track", "folio") if self.kind == Kind::Quire => self.whole_folios = true,
            ("orphans", "lockless") if self.kind == Kind::Quire => self.orphans = Orphans::Lockless,
            ("orphans", "locked") if self.kind == Kind::Quire => self.orphans = Orphans::Locked,
            ("orphans", "none") if self.kind == Kind::Quire => self.orphans = Orphans::None,
            ("orphans", _) if self.kind == Kind::Quire => {
                return Err(format!("orphans={value}: they are lockless, locked or none"));
            }
            ("transport", "auto" | "ring" | "dev") if matches!(self.kind, Kind::Mount | Kind::FuseNull) => {
                self.transport = Some(value.into());
            }
            ("transport", _) if matches!(self.kind, Kind::Mount | Kind::FuseNull) => {
                return Err(format!("'{value}' is not a transport; there are auto, ring and dev"));
            }
            ("threads", _) if matches!(self.kind, Kind::Mount | Kind::FuseNull) => {
                let threads = value.parse().ok().filter(|threads| (1..=1024).contains(threads));
                self.threads = Some(threads.ok_or_else(|| format!("threads={value}: not from 1 to 1024"))?);
            }
            _ => return Err(format!("'{option}' is not an option of the engine in '{}'", self.name)),
        }
        Ok(())
    }

    /// The name without options: variants of one engine have the same.
    pub fn family(&self) -> &str {
        match self.kind {
            Kind::Directory(_) => &self.name,
            _ => self.name.split('@').next().unwrap_or_default(),
        }
    }

    /// Whether it works on the image file.
    pub fn needs_image(&self) -> bool {
        match self.kind {
            Kind::Quire => self.medium == Medium::File,
            Kind::Mount | Kind::Kernel(_) | Kind::Raw => true,
            Kind::Directory(_) | Kind::Memcpy | Kind::FuseNull => false,
        }
    }
}

/// Quire writes back in the background from one dirty byte in so many of its cache.
const QUIRE_BACKGROUND_SHARE: u64 = 10;

/// What engines are set up in.
pub struct Workshop<'a> {
    /// A directory of the run's own, for mount points and logs.
    pub directory: &'a Path,
    /// The image, for engines that need it.
    pub image: Option<&'a Image>,
    /// The program `quire`, for the servers.
    pub program: Option<&'a Path>,
    /// Bytes of the workload's files together.
    pub file_bytes: u64,
    /// Files that the workload makes at most, where engines must know.
    pub files: u64,
    /// Bytes that a device must have.
    pub device_bytes: u64,
    /// Ctrl-C and progress.
    pub surroundings: &'a Surroundings<'a>,
}

impl Workshop<'_> {
    fn image(&self) -> Outcome<&Image> {
        self.image.ok_or_else(|| crate::outcome::failed("the run made no image for this engine"))
    }

    /// Quire's cache: what the engine says, else as much as makes its background writeback begin at as many
    /// dirty bytes as the kernel's does: the same cache and dirty limits for all.
    fn cache_bytes(&self, spec: &Spec) -> u64 {
        let wanted = machine::kernel_background_dirty_bytes() * QUIRE_BACKGROUND_SHARE;
        let most = quire_base::memory::usable_bytes() / 4 * 3;
        spec.cache.unwrap_or(wanted.max(3 * self.file_bytes).min(most).max(64 << 20))
    }
}

/// Sets an engine up: formatted, mounted, empty.
pub fn set_up(spec: &Spec, workshop: &Workshop<'_>) -> Outcome<Box<dyn Target>> {
    workshop.surroundings.interrupt.check()?;
    workshop.surroundings.progress.phase("setting up");
    match &spec.kind {
        Kind::Quire => library::set_up(spec, workshop),
        Kind::Mount => server::set_up_mount(spec, workshop),
        Kind::FuseNull => server::set_up_null(spec, workshop),
        Kind::Kernel(file_system) => kernel::set_up(*file_system, spec, workshop),
        Kind::Directory(path) => system::set_up(path),
        Kind::Memcpy => memory::set_up(workshop.file_bytes),
        Kind::Raw => raw::set_up(workshop.image()?),
    }
}

fn skipped(why: impl Into<String>) -> Trouble {
    Trouble::Skipped(why.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lists_may_hold() {
        let spec = Spec::parse("quire@device=nbd+unix:///?socket=/run/s").unwrap();
        assert_eq!(spec.medium, Medium::Export("nbd+unix:///?socket=/run/s".into()));
        let spec = Spec::parse("quire@cache=256m@device=memory").unwrap();
        assert_eq!((&spec.kind, spec.cache, &spec.medium), (&Kind::Quire, Some(256 << 20), &Medium::Memory));
        assert_eq!(spec.family(), "quire");
        assert!(!spec.needs_image());
        assert!(Spec::parse("mount@transport=dev").unwrap().needs_image());
        assert_eq!(Spec::parse("dir:/a@b").unwrap().kind, Kind::Directory("/a@b".into()));
        let spec = Spec::parse("quire@discard").unwrap();
        assert!(spec.discard && spec.family() == "quire");
        assert!(Spec::parse("xfs@discard").unwrap().discard && !Spec::parse("xfs").unwrap().discard);
        assert!(Spec::parse("xfs@atomic").unwrap().atomic && !Spec::parse("xfs").unwrap().atomic);
        let unit = Spec::parse("mount@untorn=8k").unwrap().untorn;
        assert_eq!(unit.map(Unit::bytes), Some(8192));
        assert_eq!(Spec::parse("quire@untorn=off").unwrap().untorn, None);
        assert_eq!(Spec::parse("quire@copies=1").unwrap().copies, Some(1));
        assert_eq!(Spec::parse("fuse-null@threads=4").unwrap().threads, Some(4));
    }

    #[test]
    fn what_they_may_not() {
        for (text, part) in [
            ("zfs", "there is no engine 'zfs'"),
            ("", "there is no engine ''"),
            ("dir:", "needs a directory"),
            ("quire@cache", "option=value"),
            ("raw@discard", "option=value"),
            ("quire@discard=yes", "not an option"),
            ("quire@cache=lots", "not a size"),
            ("quire@orphans=many", "lockless, locked or none"),
            ("mount@orphans=none", "not an option"),
            ("quire@track=page", "not an option"),
            ("quire@folio=big", "not a size"),
            ("mount@transport=fast", "not a transport"),
            ("mount@device=memory", "not an option"),
            ("xfs@cache=1g", "not an option"),
            ("mount@threads=0", "not from 1"),
            ("quire@untorn=12k", "power of two"),
            ("quire@untorn=lots", "no untorn unit"),
            ("quire@copies=3", "1 or 2"),
            ("mount@copies=1", "not an option"),
            ("xfs@untorn=8k", "not an option"),
            ("quire@atomic", "option=value"),
            ("xfs@atomic=yes", "not an option"),
        ] {
            let error = Spec::parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
