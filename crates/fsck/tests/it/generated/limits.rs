//! No hang, no large allocation: a watchdog and a counting allocator for the whole test program.

use std::alloc::{GlobalAlloc, Layout, System};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Mutex, Once};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// No damaged volume takes longer; the volumes are small.
const TIME_MAX: Duration = Duration::from_secs(30);
/// No allocation for a damaged volume is larger: several times what a whole one needs.
const ALLOCATION_MAX: usize = 64 << 20;

struct Limited;

// SAFETY: every call is passed on to the system's allocator as it is, or gets no memory.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > ALLOCATION_MAX {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above; the memory came from the system's allocator.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Limited = Limited;

static RUNNING: Mutex<BTreeMap<String, (Instant, String)>> = Mutex::new(BTreeMap::new());

fn me() -> String {
    let id: ThreadId = std::thread::current().id();
    format!("{id:?}")
}

/// Starts the watchdog.
pub fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // A panic is reported with the damage that it came from.
        let outer = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let me = me();
            let trying = RUNNING.lock().is_ok_and(|running| running.contains_key(&me));
            if !trying {
                outer(info);
            }
        }));
        std::thread::spawn(|| {
            loop {
                std::thread::sleep(Duration::from_secs(1));
                let running = RUNNING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                for (started, what) in running.values() {
                    if started.elapsed() > TIME_MAX {
                        eprintln!("hangs: {what}");
                        std::process::abort();
                    }
                }
            }
        });
    });
}

/// A damage is tried from here on.
pub fn begin(what: &str) {
    RUNNING.lock().unwrap().insert(me(), (Instant::now(), what.to_string()));
}

/// It has ended.
pub fn end() {
    RUNNING.lock().unwrap().remove(&me());
}

/// What a panic said, in short.
pub fn message(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()))
        .unwrap_or_else(|| "a panic".into())
}
