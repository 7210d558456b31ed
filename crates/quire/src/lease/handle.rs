//! A lease in a program's hands.

use super::table::Lease;
use crate::engine::Engine;
use crate::inode::InodeRef;
use quire_base::sync::Arc;
use quire_base::sync::time::Duration;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Where a part of a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// On the device, or in the image, at this byte.
    Device(u64),
    /// It has blocks, and reads as zeros whatever they hold.
    Unwritten,
    /// It has no blocks, and reads as zeros.
    Hole,
}

/// A part of a file: whole blocks of 4096 bytes. What lies behind the end of the file in the last one means
/// nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutExtent {
    /// In the file, in bytes.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Where it is.
    pub place: Place,
}

/// The layout of a part of a file, and the promise that what is written there stays where it is. From
/// [`File::lease_layout`](crate::File::lease_layout); dropping it returns it.
///
/// What would move or free blocks of it recalls it, waits for its return
/// ([`VolumeOptions::lease_recall_time`](crate::VolumeOptions::lease_recall_time)), and revokes it then. So
/// what was read from the device counts only if [`LayoutLease::is_valid`] is true *afterwards*.
///
/// Blocks that are overwritten stay where they are, and the lease stays as it is: the device has their new
/// content when it is written back. Holes and unwritten parts may be written to without a recall.
///
/// ```
/// # use quire::{FormatOptions, VolumeOptions, backend::{BlockNo, MemoryBackend}};
/// use quire::{OpenOptions, Place};
///
/// # fn main() -> quire::Result<()> {
/// # let device = std::sync::Arc::new(MemoryBackend::new(16384));
/// # FormatOptions::new().format_backend(device.clone())?;
/// # let volume = VolumeOptions::new().open_backend(device.clone())?;
/// let file = OpenOptions::new().read(true).write(true).create(true).open(&volume, "table")?;
/// file.write_all_at(&[7; 8192], 0)?;
/// let lease = file.lease_layout(..)?;
/// for extent in lease.extents() {
///     if let Place::Device(at) = extent.place {
///         println!("bytes {}+{} are at {at}", extent.offset, extent.len);
///         // Read them from the device here. What was read counts if this holds:
///         assert!(lease.is_valid());
///     }
/// }
/// drop(lease);
/// # drop(file);
/// # volume.close()
/// # }
/// ```
#[must_use = "the lease is returned when this is dropped"]
pub struct LayoutLease {
    lease: Arc<Lease>,
    inode: InodeRef,
    engine: Arc<Engine>,
    range: Range<u64>,
    extents: Vec<LayoutExtent>,
}

impl LayoutLease {
    pub(super) fn new(
        engine: Arc<Engine>,
        inode: InodeRef,
        lease: Arc<Lease>,
        range: Range<u64>,
        extents: Vec<LayoutExtent>,
    ) -> LayoutLease {
        LayoutLease { lease, inode, engine, range, extents }
    }

    /// The bytes of the file that it covers: what was asked for in whole blocks, as far as the file went. A
    /// lease names at most 1,024 extents, and ends before the next: ask for another one from there.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Where they are, in the order of the file, holes included: without gaps over [`LayoutLease::range`].
    pub fn extents(&self) -> &[LayoutExtent] {
        &self.extents
    }

    /// Whether what was read from the device up to now counts. Once false it stays false.
    pub fn is_valid(&self) -> bool {
        self.lease.is_valid()
    }

    /// Whether an operation waits for its return, or the lease was revoked.
    pub fn is_recalled(&self) -> bool {
        self.lease.is_recalled()
    }

    /// Waits on this thread for a recall, at most this long; whether it has come.
    pub fn wait_recalled(&self, limit: Duration) -> bool {
        self.lease.wait_recalled(limit)
    }

    /// A future that ends when the lease is recalled, revoked or returned.
    pub fn recalled(&self) -> Recalled {
        Recalled { lease: self.lease.clone(), number: None }
    }

    /// Calls `call` once when the lease is recalled or revoked, at once if it was. It runs on the thread that
    /// does so, perhaps under locks of the volume: it may note the recall, wake a task or write to an
    /// eventfd; it must not wait, nor use the volume. A program that it starts has all signals blocked. The
    /// return of the lease drops a call that has not begun.
    pub fn on_recall(&self, call: impl FnOnce() + Send + 'static) {
        self.lease.on_recall(Box::new(call));
    }
}

impl Drop for LayoutLease {
    fn drop(&mut self) {
        self.engine.leases.give_back(&self.lease, &self.inode.marks);
    }
}

impl std::fmt::Debug for LayoutLease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LayoutLease")
            .field("inode", &self.inode.number())
            .field("range", &self.range)
            .field("valid", &self.is_valid())
            .field("recalled", &self.is_recalled())
            .field("extents", &self.extents)
            .finish()
    }
}

/// The recall of a lease, as a future; from [`LayoutLease::recalled`].
#[must_use = "a future does nothing unless it is awaited"]
pub struct Recalled {
    lease: Arc<Lease>,
    /// Under which the lease knows it, from the first poll on.
    number: Option<u64>,
}

impl Future for Recalled {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Recalled { lease, number } = self.get_mut();
        if lease.poll_recalled(number, context.waker()) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Recalled {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.lease.forget_waker(number);
        }
    }
}

impl std::fmt::Debug for Recalled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Recalled ({})", if self.lease.is_recalled() { "it is" } else { "not yet" })
    }
}
