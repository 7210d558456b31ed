//! Mapped files: stores through a shared mapping beside writes, mapped reads after writes, and msync of a
//! program that is killed.
//!
//! A store changes a page in memory, which the file system later writes as a whole. So a write to another
//! part of the page, in between, may be undone. Each thread here has words of its own, counts upwards in
//! them, and looks whether its last number is still there.

use super::{Arena, Finding, part};
use crate::outcome::{Outcome, os};
use quire_base::sync::atomic::{AtomicU64, Ordering};
use quire_base::{Error, Result};
use quire_device::AlignedBuf;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;

const PAGE: usize = 4096;
/// The least that O_DIRECT writes.
const SECTOR: usize = 512;
const PAGES: usize = 4;
const WORD: usize = size_of::<u64>();

/// A shared mapping of the first pages of a file.
struct Mapping(*mut u8);

// SAFETY: plain memory, which words of are read and stored as wholes.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(file: &File) -> Result<Mapping> {
        let (protection, length) = (libc::PROT_READ | libc::PROT_WRITE, PAGES * PAGE);
        // SAFETY: a new mapping of an open file; the result is checked.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if start == libc::MAP_FAILED {
            return Err(os("mapping a file")(std::io::Error::last_os_error()));
        }
        Ok(Mapping(start.cast()))
    }

    fn word(&self, at: usize) -> *mut u64 {
        assert!(at.is_multiple_of(WORD) && at < PAGES * PAGE);
        // SAFETY: inside the mapping.
        unsafe { self.0.add(at).cast() }
    }

    fn store(&self, at: usize, number: u64) {
        // SAFETY: an aligned word of the mapping. Others may change it meanwhile, hence volatile.
        unsafe { self.word(at).write_volatile(number) }
    }

    fn load(&self, at: usize) -> u64 {
        // SAFETY: as in store.
        unsafe { self.word(at).read_volatile() }
    }

    /// Has the page of `at` written; what the call returns.
    fn sync(&self, at: usize) -> i32 {
        // SAFETY: one page of the mapping.
        unsafe { libc::msync(self.0.add(at / PAGE * PAGE).cast(), PAGE, libc::MS_SYNC) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, used no more.
        unsafe { libc::munmap(self.0.cast(), PAGES * PAGE) };
    }
}

/// Stores go to the first page; where writes go, and how.
struct Way {
    name: &'static str,
    question: &'static str,
    /// Of the written words.
    offset: usize,
    /// Bytes of a write.
    length: usize,
    flags: i32,
}

const WAYS: [Way; 4] = [
    Way {
        name: "mapped_beside_buffered_same_page",
        question: "lost beside stores: buffered writes to other words of the page",
        offset: 1024,
        length: WORD,
        flags: 0,
    },
    Way {
        name: "mapped_beside_direct_same_page",
        question: "lost beside stores: direct writes to other sectors of the page",
        offset: 1024,
        length: SECTOR,
        flags: libc::O_DIRECT,
    },
    Way {
        name: "mapped_beside_buffered_next_page",
        question: "lost beside stores: buffered writes to the next page",
        offset: PAGE,
        length: WORD,
        flags: 0,
    },
    Way {
        name: "mapped_beside_direct_next_page",
        question: "lost beside stores: direct writes to the next page",
        offset: PAGE,
        length: PAGE,
        flags: libc::O_DIRECT,
    },
];

/// All of it.
pub fn mapped_files(arena: &Arena<'_>) -> Outcome<Vec<Finding>> {
    let direct = arena.can_direct();
    let mut findings = Vec::new();
    for way in &WAYS {
        findings.push(match &direct {
            Err(why) if way.flags != 0 => Finding::not_tried(way.name, way.question, why),
            _ => lost(arena, way)?,
        });
    }
    for (name, question, flags) in [
        ("stale_mapped_after_buffered", "stale reads: mapped after a buffered write", 0),
        ("stale_mapped_after_direct", "stale reads: mapped after a direct write", libc::O_DIRECT),
    ] {
        findings.push(match &direct {
            Err(why) if flags != 0 => Finding::not_tried(name, question, why),
            _ => stale(arena, name, question, flags)?,
        });
    }
    findings.push(killed(arena)?);
    Ok(findings)
}

fn prepare(arena: &Arena<'_>, name: &str) -> Result<File> {
    let file = arena.open(name, 0)?;
    file.write_all_at(&[0; PAGES * PAGE], 0).map_err(os("writing"))?;
    file.sync_all().map_err(os("fsync"))?;
    Ok(file)
}

/// Lost stores and lost writes. A number is lost if, after it is known to be in the file, an older one is.
fn lost(arena: &Arena<'_>, way: &Way) -> Outcome<Finding> {
    let file = prepare(arena, way.name)?;
    let writer = arena.open(way.name, way.flags)?;
    let mut sector = AlignedBuf::zeroed(PAGE);
    if let Err(error) = writer.write_at(&sector[..way.length], way.offset as u64) {
        arena.remove(way.name);
        let how = if way.flags == 0 { "" } else { "O_DIRECT " };
        let why = format!("no {how}writes of {} bytes here: {error}", way.length);
        return Ok(Finding::not_tried(way.name, way.question, &why));
    }
    let mapping = Mapping::new(&file)?;
    let stores = part(move |stage| {
        let (mut number, mut lost) = (0, 0);
        while !stage.is_over() {
            // Some pages are written back at once, some by whoever writes beside.
            lost += u64::from(mapping.load(0) != number);
            number += 1;
            mapping.store(0, number);
            if number.is_multiple_of(64) {
                // Linux says with EIO that a direct write met changed pages. What was lost is counted above.
                mapping.sync(0);
            }
        }
        Ok((lost, 0, number))
    });
    let writes = part(move |stage| {
        let (mut number, mut lost) = (0u64, 0);
        let mut seen = AlignedBuf::zeroed(PAGE);
        while !stage.is_over() {
            number += 1;
            sector[..WORD].copy_from_slice(&number.to_ne_bytes());
            writer.write_all_at(&sector[..way.length], way.offset as u64).map_err(os("writing"))?;
            // At once, and when the page may have been written by the other.
            for _ in 0..2 {
                writer.read_exact_at(&mut seen[..way.length], way.offset as u64).map_err(os("reading"))?;
                if seen[..WORD] != number.to_ne_bytes() {
                    lost += 1;
                    break;
                }
            }
        }
        Ok((0, lost, number))
    });
    let counts = arena.race(way.question, vec![stores, writes])?;
    arena.remove(way.name);
    let (stores, writes) = (counts[0].0, counts[1].1);
    let note = format!("{stores} of {} stores, {writes} of {} writes", counts[0].2, counts[1].2);
    let all = counts[0].2 + counts[1].2;
    Ok(Finding::counted(way.name, way.question, stores + writes, all).with_note(note))
}

/// A load that begins after a write has returned must see it or a later one.
fn stale(arena: &Arena<'_>, name: &'static str, question: &'static str, flags: i32) -> Outcome<Finding> {
    let mapping = Mapping::new(&prepare(arena, name)?)?;
    let writer = arena.open(name, flags)?;
    let published: Vec<AtomicU64> = (0..PAGES).map(|_| AtomicU64::new(0)).collect();
    let published = &published;
    let writes = part(move |stage| {
        let mut page = AlignedBuf::zeroed(PAGE);
        for number in 1u64.. {
            if stage.is_over() {
                break;
            }
            let at = number as usize % PAGES;
            page.as_chunks_mut::<WORD>().0.fill(number.to_ne_bytes());
            writer.write_all_at(&page, (at * PAGE) as u64).map_err(os("writing"))?;
            published[at].store(number, Ordering::SeqCst);
        }
        Ok((0, 0))
    });
    let loads = part(move |stage| {
        let (mut stale, mut loads) = (0u64, 0u64);
        while !stage.is_over() {
            let at = loads as usize % PAGES;
            let at_least = published[at].load(Ordering::SeqCst);
            stale += u64::from(mapping.load(at * PAGE + loads as usize * WORD % PAGE) < at_least);
            loads += 1;
        }
        Ok((stale, loads))
    });
    let counts = arena.race(question, vec![writes, loads])?;
    arena.remove(name);
    Ok(Finding::counted(name, question, counts[1].0, counts[1].1))
}

/// A program stores, calls msync, stores again and is killed. What it had synced must be there.
fn killed(arena: &Arena<'_>) -> Outcome<Finding> {
    let (name, question) = ("lost_after_msync", "synced stores lost with a program that is killed");
    let file = prepare(arena, name)?;
    // Past the kernel's pages, if that can be had.
    let flags = if arena.can_direct().is_ok() { libc::O_DIRECT } else { 0 };
    let reader = arena.open(name, flags)?;
    let race = part(move |stage| {
        let mapping = Mapping::new(&file)?;
        let (mut lost, mut number) = (0, 0);
        let mut page = AlignedBuf::zeroed(PAGE);
        while !stage.is_over() {
            number += 1;
            let at = number as usize % PAGES * PAGE;
            store_sync_and_die(&mapping, at, number)?;
            reader.read_exact_at(&mut page, at as u64).map_err(os("reading"))?;
            let words = page.as_chunks::<WORD>().0;
            lost += u64::from(words.iter().any(|word| u64::from_ne_bytes(*word) < number));
        }
        Ok((lost, number))
    });
    let counts = arena.race(question, vec![race])?;
    arena.remove(name);
    Ok(Finding::counted(name, question, counts[0].0, counts[0].1))
}

/// In a child process, which is dead when this returns.
fn store_sync_and_die(mapping: &Mapping, at: usize, number: u64) -> Result<()> {
    let failed = |what: &str| Err(Error::os(what, &std::io::Error::last_os_error()));
    let mut pipe = [0; 2];
    // SAFETY: the array has room for both descriptors.
    if unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return failed("making a pipe");
    }
    // SAFETY: fresh descriptors, owned from here on.
    let (mut from, to) = unsafe { (File::from_raw_fd(pipe[0]), File::from_raw_fd(pipe[1])) };
    // SAFETY: the child stores, and makes system calls with plain numbers; it takes no lock and no memory.
    let child = unsafe { libc::fork() };
    match child {
        -1 => return failed("starting a process"),
        0 => {
            (0..PAGE).step_by(WORD).for_each(|word| mapping.store(at + word, number));
            let synced = mapping.sync(at) == 0;
            // SAFETY: as above.
            unsafe {
                libc::write(pipe[1], [u8::from(synced)].as_ptr().cast(), 1);
                mapping.store(at, number + 1);
                libc::alarm(60);
                loop {
                    libc::pause();
                }
            }
        }
        _ => {}
    }
    drop(to);
    let mut synced = [0];
    let told = from.read_exact(&mut synced);
    // SAFETY: the child is this process's, and is waited for once.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    told.map_err(os("waiting for a process"))?;
    match synced[0] {
        1 => Ok(()),
        _ => Err(Error::invalid("msync failed in a process")),
    }
}
