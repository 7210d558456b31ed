//! What the figures depend on besides the engine.

use serde_json::{Map, Value, json};
use std::path::Path;

/// Why figures of this build are not the product's; none in an ordinary release build.
pub fn slow_build() -> Option<&'static str> {
    if quire_base::sync::SIMULATED {
        Some(
            "built together with the simulator, so every atomic asks its scheduler (build with -p quire-cli alone)",
        )
    } else if cfg!(debug_assertions) {
        Some("built with debug assertions (build with --release)")
    } else {
        None
    }
}

/// Forgets the most memory that a process has had, so that [`resident_peak_bytes`] counts from now on.
pub fn reset_resident_peak(process: u32) {
    // Where this is refused, the peak counts from the start of the process.
    let _ = std::fs::write(format!("/proc/{process}/clear_refs"), "5");
}

/// The most resident memory that a process has had.
pub fn resident_peak_bytes(process: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let kib = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    kib.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kib| kib * 1024)
}

fn line(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Dirty bytes from which the kernel writes back in the background: a share of what memory is available, or a
/// number.
pub fn kernel_background_dirty_bytes() -> u64 {
    let number = |path| line(path).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    match number("/proc/sys/vm/dirty_background_bytes") {
        0 => available_bytes() / 100 * number("/proc/sys/vm/dirty_background_ratio"),
        bytes => bytes,
    }
}

/// Bytes that programs could have without swapping.
pub fn available_bytes() -> u64 {
    let text = line("/proc/meminfo").unwrap_or_default();
    let kib = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    kib.and_then(|kib| kib.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Processor, memory, kernel, disk, load, and the kernel's limits of dirty memory.
pub fn describe(directory: &Path) -> Map<String, Value> {
    let names = rustix::system::uname();
    let processor = line("/proc/cpuinfo").and_then(|text| {
        let model = text.lines().find(|line| line.starts_with("model name"))?;
        Some(model.split(':').nth(1)?.trim().to_owned())
    });
    let mut machine = Map::new();
    let mut put = |name: &str, value: Value| machine.insert(name.to_owned(), value);
    put("cpus", json!(std::thread::available_parallelism().map_or(1, usize::from)));
    put("processor", json!(processor));
    put("memory_bytes", json!(quire_base::memory::machine_bytes()));
    put("kernel", json!(names.release().to_string_lossy()));
    put("directory", json!(directory.display().to_string()));
    put(
        "load_before",
        json!(line("/proc/loadavg").map(|text| text.split(' ').take(3).collect::<Vec<_>>().join(" "))),
    );
    put("vm_dirty_ratio", json!(line("/proc/sys/vm/dirty_ratio")));
    put("vm_dirty_background_ratio", json!(line("/proc/sys/vm/dirty_background_ratio")));
    put("kernel_background_dirty_bytes", json!(kernel_background_dirty_bytes()));
    put("fuse_max_pages_limit", json!(line("/proc/sys/fs/fuse/max_pages_limit")));
    put("quire_version", json!(env!("CARGO_PKG_VERSION")));
    put("slow_build", json!(slow_build()));
    machine
}
