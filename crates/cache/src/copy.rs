//! The racing copy: bytes between a caller's buffer and folio memory that another thread may be changing.
//!
//! Argument. An optimistic reader copies folio memory while a writer may store to it, and throws the copy
//! away when the segment versions say so. In Rust's model a plain load that races with a store is undefined
//! whatever is done with the value, so the copy is not made of plain loads: on x86-64 it is one `rep movsb`
//! in an `asm!` block, which the compiler must treat as opaque (it may read and write the memory it is given,
//! in the order of the block, with the machine's semantics: loads and stores of bytes that may be torn
//! against others', never undefined). Everywhere else, and under loom, Miri and the sanitizers
//! (`--cfg plain_copy`), which must see each access, it is relaxed atomic loads and stores. Both directions
//! use it, as a writer's stores race with a reader's loads just the same. There is a `&[u8]` to folio
//! data only while its segments are held, which keeps writers out.
//!
//! Order against the version words: `asm!` without `nomem` is a compiler barrier for memory; on x86-64 loads
//! are not reordered with loads nor stores with stores. (The stores of one `rep movsb` may become visible in
//! any order among themselves, but not before stores that precede the instruction nor after those that follow
//! it.) The fences that the segment protocol issues around the copy do the rest on other machines.
//!
//! `rep movsb` reaches 98 % of memcpy on a machine with fast string moves, relaxed 8-byte words 59 %.
//!
//! Neighbours: `read`, `write` and `fill` are the callers.

use quire_base::sync::{copy_piece, copy_point};
#[cfg(not(all(target_arch = "x86_64", not(any(miri, loom, plain_copy)))))]
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Copies folio memory at `from` into `to`.
///
/// # Safety
/// `from` is valid for reads of `to.len()` bytes, and stays mapped; other threads may change it meanwhile,
/// through this module or by device I/O.
pub unsafe fn copy_out(from: *const u8, to: &mut [u8]) {
    // SAFETY: the caller vouches for `from`; `to` is a live exclusive borrow and folio memory is never
    // borrowed.
    unsafe { in_pieces(from, to.as_mut_ptr(), to.len()) }
}

/// Copies `from` into folio memory at `to`.
///
/// # Safety
/// `to` is valid for writes of `from.len()` bytes, and stays mapped; the caller holds the segments
/// exclusively or owns the blocks' fill bits. Other threads may read it meanwhile, through this module.
pub unsafe fn copy_in(from: &[u8], to: *mut u8) {
    // SAFETY: the caller vouches for `to`; `from` is a live borrow and folio memory is never borrowed.
    unsafe { in_pieces(from.as_ptr(), to, from.len()) }
}

/// The whole copy: one piece, but under the simulated scheduler, where others may run between two.
///
/// # Safety
/// As for [`copy_out`] and [`copy_in`].
unsafe fn in_pieces(from: *const u8, to: *mut u8, len: usize) {
    let mut done = 0;
    loop {
        let piece = copy_piece(len - done);
        // SAFETY: within what the caller vouches for.
        unsafe { racing_copy(from.add(done), to.add(done), piece) };
        done += piece;
        if done == len {
            return;
        }
        copy_point();
    }
}

/// Stores `len` zero bytes to folio memory at `to`.
///
/// # Safety
/// As for [`copy_in`].
pub unsafe fn zero(to: *mut u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom, plain_copy))))]
    // SAFETY: the caller vouches for `to`; the direction flag is clear by the ABI.
    unsafe {
        std::arch::asm!(
            "rep stosb",
            inout("rcx") len => _,
            inout("rdi") to => _,
            in("al") 0u8,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, loom, plain_copy)))))]
    for i in 0..len {
        // SAFETY: within the range that the caller vouches for.
        unsafe { AtomicU8::from_ptr(to.add(i)).store(0, Ordering::Relaxed) };
    }
}

/// Lines that are asked for ahead of a copy; the machine's own prefetching goes on from there.
const PREFETCH_LINES: usize = 4;
const LINE: usize = 64;

/// Asks for the first lines of `len` bytes at `memory`, which may be anything.
#[inline]
pub fn prefetch(memory: *const u8, len: usize) {
    for at in (0..len).step_by(LINE).take(PREFETCH_LINES) {
        prefetch_line(memory.wrapping_add(at));
    }
}

/// Asks for the line of `memory`, which may be anything.
#[inline]
pub fn prefetch_line<T>(memory: *const T) {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom, plain_copy))))]
    // SAFETY: a prefetch touches no memory that the program could see, and never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(memory.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, loom, plain_copy)))))]
    let _ = memory;
}

#[cfg(all(target_arch = "x86_64", not(any(miri, loom, plain_copy))))]
unsafe fn racing_copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: both ranges are valid for `len` bytes (caller); the direction flag is clear by the ABI.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
}

#[cfg(not(all(target_arch = "x86_64", not(any(miri, loom, plain_copy)))))]
unsafe fn racing_copy(from: *const u8, to: *mut u8, len: usize) {
    let mut done = 0;
    let aligned = (from as usize) % 8 == (to as usize) % 8;
    // SAFETY: every access below is within the `len` bytes that the caller vouches for, and aligned for its
    // type.
    unsafe {
        while done < len {
            let (source, target) = (from.add(done), to.add(done));
            if aligned && (source as usize) % 8 == 0 && len - done >= 8 {
                let word = AtomicU64::from_ptr(source.cast_mut().cast()).load(Ordering::Relaxed);
                AtomicU64::from_ptr(target.cast()).store(word, Ordering::Relaxed);
                done += 8;
            } else {
                let byte = AtomicU8::from_ptr(source.cast_mut()).load(Ordering::Relaxed);
                AtomicU8::from_ptr(target).store(byte, Ordering::Relaxed);
                done += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_every_length_and_alignment() {
        let source: Vec<u8> = (0..600u32).map(|i| (i * 7 + 3) as u8).collect();
        for start in 0..9 {
            for len in (0..40).chain([255, 256, 511]) {
                let mut memory = vec![0xEEu8; 600];
                // SAFETY: the ranges are inside `memory`, which nobody else uses.
                unsafe { copy_in(&source[start..start + len], memory.as_mut_ptr().add(5)) };
                assert_eq!(&memory[5..5 + len], &source[start..start + len]);
                assert!(memory[..5].iter().chain(&memory[5 + len..]).all(|byte| *byte == 0xEE));
                let mut back = vec![0u8; len];
                // SAFETY: as above.
                unsafe { copy_out(memory.as_ptr().add(5), &mut back) };
                assert_eq!(back, &source[start..start + len]);
                // SAFETY: as above.
                unsafe { zero(memory.as_mut_ptr().add(5), len) };
                assert!(memory[5..5 + len].iter().all(|byte| *byte == 0));
                assert!(memory[5 + len..].iter().all(|byte| *byte == 0xEE));
            }
        }
    }
}
