//! How much memory this process may use.
//!
//! A container or a service often has a control group with a limit far below the machine's memory. The kernel
//! would kill a process there whose cache took its share of the machine. [`usable_bytes`] is the least of the
//! machine's memory and the limits (`memory.max`, `memory.high`; `memory.limit_in_bytes` of version 1) of the
//! process's group and of those above it. A container does not see the limits above its own group.
//!
//! A group's path in `/proc/self/cgroup` need not exist below the mount: in a container it may be the host's.
//! Its ancestors are looked up like itself, up to the root of the mount, which is the container's own group.
//!
//! Neighbours: the volume's default cache and the benchmarks ask; nobody watches a limit that changes later.

use rustix::system::sysinfo;
use std::fs;
use std::path::{Path, PathBuf};

/// Where control groups are mounted, in both versions. Beside version 1, version 2 may be in `unified`.
const GROUPS: &str = "/sys/fs/cgroup";

/// Bytes of memory that this process may use, the least of all limits.
pub fn usable_bytes() -> u64 {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    group_limit(&groups, Path::new(GROUPS)).unwrap_or(u64::MAX).min(machine_bytes())
}

/// Bytes of memory of this machine.
pub fn machine_bytes() -> u64 {
    let info = sysinfo();
    info.totalram as u64 * u64::from(info.mem_unit)
}

/// The least limit of the groups that `groups` lists, as `/proc/self/cgroup` does. `None` if there is none.
fn group_limit(groups: &str, mount: &Path) -> Option<u64> {
    groups.lines().filter_map(|line| limit_of(line, mount)).min()
}

/// The least limit of one line, `HIERARCHY:CONTROLLERS:PATH`, and of the groups above it.
fn limit_of(line: &str, mount: &Path) -> Option<u64> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?);
    let (mounts, files): (&[&str], &[&str]) = match controllers {
        "" => (&[".", "unified"], &["memory.max", "memory.high"]),
        _ if controllers.split(',').any(|name| name == "memory") => (&["memory"], &["memory.limit_in_bytes"]),
        _ => return None,
    };
    let limit = |file: PathBuf| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
    let groups = || Path::new(path.trim_start_matches('/')).ancestors();
    mounts
        .iter()
        .flat_map(|part| groups().map(move |group| mount.join(part).join(group)))
        .flat_map(|group| files.iter().map(move |file| group.join(file)))
        .filter_map(limit)
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The default cache was a quarter of the machine's memory, whatever the control group allowed: a mount
    /// in a container of 1 GiB on a machine of 64 GiB was killed as soon as its cache had filled.
    #[test]
    fn the_least_limit_of_a_group_and_those_above_it_counts() {
        let mount = tempfile::tempdir().unwrap();
        let put = |file: &str, limit: &str| {
            let file = mount.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, limit).unwrap();
        };
        put("a/b/memory.max", "max\n");
        put("a/b/memory.high", "3000\n");
        put("a/memory.max", "2000\n");
        put("memory/a/memory.limit_in_bytes", "1000\n");
        put("memory/memory.limit_in_bytes", "9223372036854771712\n");
        let limit = |groups| group_limit(groups, mount.path());
        assert_eq!(limit("0::/a/b\n"), Some(2000));
        assert_eq!(limit("0::/\n"), None);
        assert_eq!(limit("4:cpu,memory:/a/b\n0::/a/b\n"), Some(1000));
        assert_eq!(limit("4:cpu:/a\n"), None);
        assert_eq!(limit("what is this\n"), None);
        put("unified/c/memory.max", "700\n");
        assert_eq!(limit("4:cpu:/c\n0::/c\n"), Some(700));
        // A container that sees the host's path has its own group as the root of the mount.
        put("memory.max", "500\n");
        assert_eq!(limit("0::/docker/1234\n"), Some(500));
    }
}
