//! What stands behind `-o`, in `quire mount`, in mount(8) and in /etc/fstab.
//!
//! Options that other programs act on (`noauto`, `user`, `_netdev`, `x-...`) are accepted and ignored. An
//! unknown option is an error that names it, since a mistyped one would silently mount with other promises.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use quire::{AccessTimes, VolumeOptions};
use quire_fuse::{MountFlags, ServeOptions, ShowSnapshots, TransportChoice};

use quire_base::size;

/// Where the server writes its messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LogTarget {
    /// The standard file of the volume's name.
    #[default]
    Standard,
    /// This file.
    File(PathBuf),
    /// The system's log.
    Syslog,
}

/// Where the numbers are served over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsTarget {
    /// A port of the loopback interface.
    Port(SocketAddr),
    /// A Unix socket, for its owner.
    Socket(PathBuf),
}

impl MetricsTarget {
    /// Parses `PORT`, `ADDRESS:PORT` with a loopback address, or the absolute path of a socket.
    pub fn parse(text: &str) -> std::result::Result<MetricsTarget, String> {
        if text.starts_with('/') {
            return Ok(MetricsTarget::Socket(text.into()));
        }
        let address = match text.parse::<u16>() {
            Ok(port) => Ok(SocketAddr::from(([127, 0, 0, 1], port))),
            Err(_) => text.parse::<SocketAddr>(),
        };
        match address {
            Ok(address) if address.ip().is_loopback() && address.port() != 0 => {
                Ok(MetricsTarget::Port(address))
            }
            Ok(_) => Err(format!("metrics={text}: only a port of the loopback address is served")),
            Err(_) => Err(format!(
                "metrics={text}: the choices are a port, as in metrics=9101 or metrics=127.0.0.1:9101, and the \
                 absolute path of a socket"
            )),
        }
    }
}

/// Everything `-o` can say.
#[derive(Clone, Debug, Default)]
pub struct MountOptions {
    /// How the volume is opened.
    pub volume: VolumeOptions,
    /// How it is served, the source excepted.
    pub serve: ServeOptions,
    /// Where messages go.
    pub log: LogTarget,
    /// Where its numbers are served.
    pub metrics: Option<MetricsTarget>,
    /// How long a volume is waited for that is not there.
    wait: Option<Duration>,
    /// The volume is behind a network.
    network: bool,
    /// What the kernel does on a mount that is there is to change; all else stays.
    pub remount: bool,
    /// Whether a volume on an export is opened whatever its owner's mark says.
    pub takes_over: bool,
    /// Shown as the source instead of the volume's path.
    pub fs_name: Option<String>,
    /// `allow_other` was asked for, or refused; `None`: root yes, others no.
    allow_other: Option<bool>,
}

/// The options in one line each, for `--help`.
pub const HELP: &str = "\
Mount options (-o, separated by commas):
  ro, rw                 take no changes (a journal is replayed in memory only)
                         / take changes (default)
  cache=engine|auto|kernel|writeback
                         who caches file data: Quire (default; reads and writes
                         of a file run side by side and untorn), the kernel for
                         files that nobody has open for writing and Quire for
                         others (an open reader then makes later writers of its
                         file exclude one another), the kernel (quicker for a
                         single reader; a read that races with a write may see
                         half of it, as on ext4), or the kernel with what is
                         written as well, until it is synced or closed (quicker
                         for small writes one after the other; a full volume is
                         told then, not by the write)
  cache_size=SIZE        limit of Quire's cache (default: a quarter of memory or
                         of the control group's limit, whichever is less)
  node_cache=SIZE        limit of the cache of metadata nodes, beside cache_size
                         (default: an eighth of cache_size, from 64M to 1G)
  commit=SECONDS         unsynced changes are made durable after this time
                         (default 5)
  relatime, strictatime, noatime, lazytime
                         when reads update access times (default relatime); keep
                         pure time changes in memory
  noauto_da_alloc        do not write data back before a rename over a file and
                         at the close of a rewritten one
  snapshot=NAME          show a snapshot of the volume, read-only (see: quire
                         snapshot)
  snapshots=list|hide|off
                         the directory .snapshots in the root has a directory
                         for each snapshot: it is listed, only there for those
                         who name it (default), or not there
  discard, nodiscard     tell the device about freed blocks (default nodiscard)
  allow_other, noallow_other
                         other users may use the mount (default for root only)
  dev, suid, exec, nodev, nosuid, noexec, sync, dirsync
                         as for every file system
  log=FILE|syslog        where the server writes messages (default in the
                         foreground: the terminal, else
                         $XDG_STATE_HOME/quire/VOLUME.log, else
                         /var/log/quire-VOLUME.log for root,
                         ~/.local/state/quire/VOLUME.log for users)
  metrics=PORT|ADDRESS:PORT|/SOCKET
                         serve the server's numbers to Prometheus, at a loopback
                         port or a socket of the owner's
  lease_timeout=SECONDS  what moves blocks waits so long for a lease of them
                         before it revokes it (default 5)
  sync_timeout=SECONDS   syncfs and sync fail when the device completes nothing
                         for so long (default 60)
  fsname=NAME            shown as the source in mount tables; root's mount then
                         has no loop device as its source, so syncfs and sync do
                         not reach it
  transport=auto|ring|dev
                         how requests come from the kernel: through io_uring
                         (much quicker) where it offers that (auto, the
                         default), only so (ring), or through /dev/fuse (dev)
  takeover               open a volume on a server's export although its owner
                         may live: you have seen to it that the server keeps
                         that one out
  remount                change ro, rw, noatime, nodev, nosuid and noexec of a
                         mount; all else stays as it is
  wait=SECONDS           wait so long for a volume that is not there yet, or
                         that somebody has open who has not mounted it
                         (default 0, with _netdev 30)
  threads=N              threads that receive requests from /dev/fuse
  defaults, auto, noauto, user, users, owner, group, nofail, _netdev, x-...
                         accepted; for other programs";

/// How long a volume behind a network is waited for, if nothing else is said.
const NETWORK_PATIENCE: Duration = Duration::from_secs(30);

const UNKNOWN: &str = "unknown mount option";

impl MountOptions {
    /// Parses lists as they come with each `-o`. Later options win.
    pub fn parse<S: AsRef<str>>(lists: &[S]) -> Result<MountOptions, String> {
        MountOptions::default().and(lists)
    }

    /// As [`MountOptions::parse`], for what a mount that is there shall become.
    pub fn parse_remount<S: AsRef<str>>(lists: &[S], now: MountFlags) -> Result<MountOptions, String> {
        let serve = ServeOptions { flags: now, ..ServeOptions::default() };
        MountOptions { serve, ..MountOptions::default() }.and(lists)
    }

    fn and<S: AsRef<str>>(self, lists: &[S]) -> Result<MountOptions, String> {
        let mut options = self;
        for item in lists.iter().flat_map(|list| list.as_ref().split(',')) {
            let item = item.trim();
            if !item.is_empty() {
                options.apply(item)?;
            }
        }
        Ok(options)
    }

    fn apply(&mut self, item: &str) -> Result<(), String> {
        let (name, value) = match item.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (item, None),
        };
        let volume = self.volume.clone();
        let flags = &mut self.serve.flags;
        match (name, value) {
            ("ro", None) => (self.volume, flags.read_only) = (volume.read_only(true), true),
            ("rw", None) => (self.volume, flags.read_only) = (volume.read_only(false), false),
            ("noatime", None) => {
                (self.volume, flags.no_atime) = (volume.access_times(AccessTimes::Never), true);
            }
            ("relatime" | "atime" | "norelatime" | "nostrictatime", None) => {
                (self.volume, flags.no_atime) = (volume.access_times(AccessTimes::Relative), false);
            }
            ("strictatime", None) => {
                (self.volume, flags.no_atime) = (volume.access_times(AccessTimes::Strict), false);
            }
            ("lazytime", None) => self.volume = volume.lazy_times(true),
            ("nolazytime", None) => self.volume = volume.lazy_times(false),
            ("auto_da_alloc", None) => self.volume = volume.auto_da_alloc(true),
            ("noauto_da_alloc", None) => self.volume = volume.auto_da_alloc(false),
            ("discard", None) => self.volume = volume.discard(true),
            ("nodiscard", None) => self.volume = volume.discard(false),
            ("snapshot", Some(name)) if !name.is_empty() => {
                (self.volume, flags.read_only) = (volume.read_only(true).snapshot(name), true);
            }
            ("snapshots", Some("list")) => self.serve.snapshots = ShowSnapshots::List,
            ("snapshots", Some("hide")) => self.serve.snapshots = ShowSnapshots::Hide,
            ("snapshots", Some("off")) => self.serve.snapshots = ShowSnapshots::Off,
            ("snapshots", Some(other)) if !other.is_empty() => {
                return Err(format!("snapshots={other}: the choices are list, hide and off"));
            }
            ("allow_other", None) => self.allow_other = Some(true),
            ("noallow_other", None) => self.allow_other = Some(false),
            ("dev", None) => flags.no_dev = false,
            ("nodev", None) => flags.no_dev = true,
            ("suid", None) => flags.no_suid = false,
            ("nosuid", None) => flags.no_suid = true,
            ("exec", None) => flags.no_exec = false,
            ("noexec", None) => flags.no_exec = true,
            ("sync", None) => flags.sync = true,
            ("async", None) => flags.sync = false,
            ("dirsync", None) => flags.dir_sync = true,
            ("default_permissions", None) => {}
            ("_netdev", None) => self.network = true,
            (
                "defaults" | "auto" | "noauto" | "user" | "nouser" | "users" | "nousers" | "owner"
                | "noowner" | "group" | "nogroup" | "nofail" | "diratime" | "nodiratime" | "iversion"
                | "noiversion" | "silent" | "loud" | "_rnetdev",
                None,
            ) => {}
            ("user" | "uhelper" | "helper" | "comment" | "subtype", Some(_)) => {}
            (name, _) if name.starts_with("x-") || name.starts_with("X-") => {}
            ("cache", Some(cache)) => self.serve.cache = cache.parse()?,
            ("cache_size", Some(value)) => {
                self.volume = volume.cache_bytes(at_least("cache_size", value, 8 << 20)?);
            }
            ("node_cache", Some(value)) => {
                self.volume = volume.node_cache_bytes(at_least("node_cache", value, 1 << 20)?);
            }
            ("commit", Some(value)) => {
                self.volume = volume.commit_seconds(number("commit", value, 1, 3600)?);
            }
            ("threads", Some(value)) => {
                self.serve.threads = Some(number("threads", value, 1, 1024)? as usize);
            }
            ("sync_timeout", Some(value)) => {
                let seconds = number("sync_timeout", value, 1, 86_400)?;
                self.serve.sync_patience = Some(Duration::from_secs(seconds.into()));
            }
            ("lease_timeout", Some(value)) => {
                let seconds = number("lease_timeout", value, 0, 3600)?;
                self.volume = volume.lease_recall_time(Duration::from_secs(seconds.into()));
            }
            ("wait", Some(value)) => {
                self.wait = Some(Duration::from_secs(number("wait", value, 0, 3600)?.into()));
            }
            ("transport", Some(name)) if !name.is_empty() => self.serve.transport = transport(name)?,
            ("log", Some("syslog")) => self.log = LogTarget::Syslog,
            ("log", Some("")) => return Err("log= needs a file name, or syslog".into()),
            ("log", Some(file)) => self.log = LogTarget::File(file.into()),
            ("metrics", Some(target)) if !target.is_empty() => {
                self.metrics = Some(MetricsTarget::parse(target)?);
            }
            ("fsname", Some(name)) if !name.is_empty() => self.fs_name = Some(name.into()),
            ("remount", None) => self.remount = true,
            ("takeover", None) => self.takes_over = true,
            (
                "cache" | "cache_size" | "node_cache" | "commit" | "threads" | "transport" | "log" | "fsname"
                | "metrics" | "lease_timeout" | "sync_timeout" | "wait" | "snapshot" | "snapshots",
                None | Some(""),
            ) => {
                return Err(format!("mount option {name} needs a value: {name}=..."));
            }
            (name, _) => {
                return Err(format!("{UNKNOWN} '{name}'; `quire mount --help` lists them"));
            }
        }
        Ok(())
    }

    /// How long a volume is waited for that is not there, or that is locked: at boot, a network may bring it
    /// later, and a killed server's lock may outlive it.
    pub fn patience(&self) -> Duration {
        self.wait.unwrap_or(if self.network { NETWORK_PATIENCE } else { Duration::ZERO })
    }

    /// The kernel's part for a mount of `source`, made by root or not.
    pub fn flags(&self, source: &OsStr, root: bool) -> MountFlags {
        MountFlags {
            source: self.fs_name.as_ref().map_or_else(|| source.to_owned(), |name| name.into()),
            volume: self.fs_name.is_none().then(|| source.into()),
            allow_other: self.allow_other.unwrap_or(root),
            ..self.serve.flags.clone()
        }
    }
}

/// The lists without the options that [`MountOptions::parse`] does not know (`mount -s`).
pub fn known_only(lists: &[String]) -> Vec<String> {
    let items = lists.iter().flat_map(|list| list.split(','));
    items
        .filter(|item| !matches!(MountOptions::parse(&[item]), Err(error) if error.starts_with(UNKNOWN)))
        .map(str::to_owned)
        .collect()
}

/// A choice of transport by its name.
pub fn transport(name: &str) -> Result<TransportChoice, String> {
    match name {
        "auto" => Ok(TransportChoice::Auto),
        "ring" => Ok(TransportChoice::Ring),
        "dev" => Ok(TransportChoice::Device),
        other => Err(format!("transport={other}: the choices are auto, ring and dev")),
    }
}

fn at_least(name: &str, value: &str, least: u64) -> Result<u64, String> {
    let bytes = size::parse(value).map_err(|error| format!("{name}: {error}"))?;
    if bytes < least {
        return Err(format!("{name}={value} is too small: at least {}", size::show(least)));
    }
    Ok(bytes)
}

fn number(name: &str, value: &str, least: u32, most: u32) -> Result<u32, String> {
    value
        .parse()
        .ok()
        .filter(|number| (least..=most).contains(number))
        .ok_or_else(|| format!("{name}={value}: must be a number from {least} to {most}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_ports_and_absolute_paths() {
        let port = |text: &str| MetricsTarget::Port(text.parse().unwrap());
        assert_eq!(MetricsTarget::parse("9101"), Ok(port("127.0.0.1:9101")));
        assert_eq!(MetricsTarget::parse("[::1]:9101"), Ok(port("[::1]:9101")));
        assert_eq!(MetricsTarget::parse("/run/q.sock"), Ok(MetricsTarget::Socket("/run/q.sock".into())));
        for text in ["0.0.0.0:9101", "10.0.0.1:80", "0", "q.sock", "70000", "localhost:80"] {
            assert!(MetricsTarget::parse(text).is_err(), "{text}");
        }
    }

    fn parse(list: &str) -> MountOptions {
        MountOptions::parse(&[list]).unwrap()
    }

    #[test]
    fn a_line_of_fstab() {
        let options = parse(
            "defaults,noauto,user,_netdev,x-systemd.automount,x-gvfs-show=1,rw,noatime,lazytime,cache=kernel,\
             cache_size=512M,node_cache=32M,noauto_da_alloc,discard,log=/var/log/q.log,commit=30,nosuid,fsname=pool",
        );
        let volume = VolumeOptions::new().access_times(AccessTimes::Never).lazy_times(true).discard(true);
        let volume = volume.auto_da_alloc(false).cache_bytes(512 << 20).node_cache_bytes(32 << 20);
        assert_eq!(options.volume, volume.commit_seconds(30));
        assert_eq!(options.serve.cache, quire_fuse::CacheMode::Kernel);
        assert_eq!(options.log, LogTarget::File("/var/log/q.log".into()));
        let flags = options.flags(OsStr::new("/a.img"), true);
        assert!(flags.no_suid && !flags.no_dev && flags.allow_other && flags.no_atime);
        assert_eq!((flags.source.to_str(), flags.volume), (Some("pool"), None));
        let flags = parse("sync_timeout=5").flags(OsStr::new("/a.img"), true);
        assert_eq!((flags.source.to_str(), flags.volume), (Some("/a.img"), Some("/a.img".into())));
        assert_eq!(parse("sync_timeout=5").serve.sync_patience, Some(Duration::from_secs(5)));
    }

    #[test]
    fn volumes_behind_a_network_are_waited_for() {
        assert_eq!(parse("rw").patience(), Duration::ZERO);
        assert_eq!(parse("_netdev").patience(), NETWORK_PATIENCE);
        assert_eq!(parse("wait=5,_netdev").patience(), Duration::from_secs(5));
        assert_eq!(parse("_netdev,wait=0").patience(), Duration::ZERO);
    }

    #[test]
    fn later_options_win() {
        let options = MountOptions::parse(&["ro,noatime", "rw,relatime,log=syslog"]).unwrap();
        assert_eq!(options.volume, VolumeOptions::new());
        assert!(!options.serve.flags.read_only && !options.serve.flags.no_atime);
        assert_eq!(options.log, LogTarget::Syslog);
        assert_eq!(parse("transport=ring,transport=dev").serve.transport, TransportChoice::Device);
    }

    #[test]
    fn allow_other_is_for_root_unless_said() {
        assert!(!parse("").flags(OsStr::new("x"), false).allow_other);
        assert!(parse("").flags(OsStr::new("x"), true).allow_other);
        assert!(parse("allow_other").flags(OsStr::new("x"), false).allow_other);
        assert!(!parse("noallow_other").flags(OsStr::new("x"), true).allow_other);
    }

    #[test]
    fn mistakes_are_named() {
        for (list, word) in [
            ("rw,fastplease", "'fastplease'"),
            ("cache=fast", "cache=engine"),
            ("cache", "needs a value"),
            ("transport=fast", "auto, ring"),
            ("transport", "needs a value"),
            ("cache_size=1", "too small"),
            ("cache_size=lots", "not a size"),
            ("commit=0", "from 1"),
            ("commit=x", "number"),
            ("lease_timeout=9999", "3600"),
            ("sync_timeout=0", "from 1"),
            ("wait=-1", "from 0"),
            ("wait", "needs a value"),
            ("log=", "file name"),
            ("ro=1", "'ro'"),
            ("remount=1", "'remount'"),
            ("fsname=", "needs a value"),
        ] {
            let error = MountOptions::parse(&[list]).unwrap_err();
            assert!(error.contains(word), "{list}: {error}");
        }
    }

    #[test]
    fn sloppy_mounts_drop_what_is_unknown_only() {
        let lists = ["ro,fastplease".to_owned(), "commit=0,soft".to_owned()];
        assert_eq!(known_only(&lists), ["ro", "commit=0"]);
    }

    #[test]
    fn empty_items_are_nothing() {
        assert!(MountOptions::parse(&["", ",,rw,,"]).is_ok());
    }
}
