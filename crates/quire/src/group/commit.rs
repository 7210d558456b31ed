//! Groups that go into one record of the journal; and what comes before the other ones.
//!
//! Order of a commit
//! 1. the gates of the files, buffered, by inode; then the size locks of those that grow;
//! 2. what a file that grows on disk has unwritten is written back: the size on disk rises over nothing else.
//!    It has to rise over the group also where plain writes have made the file longer already;
//! 3. `quire_cache::write_group` loads and locks; with the locks held the transaction is only tried for, as
//!    the lock order has it. Without room the commit releases everything, waits for room, and starts 3 over;
//! 4. [`Engine::commit_data`]; then the contents and the sizes become visible, and the locks go;
//! 5. the journal is forced, if the caller wants it now.
//!
//! A group that sets sizes has its files to itself meanwhile: gates exclusively, and writeback held off, once
//! what it needs is in memory. What lies beyond a smaller size is dropped when the record is in the journal,
//! and nothing can fail any more. Too many extents for one transaction are freed behind it, as a logged
//! operation. The size of an untorn file is locked.
//!
//! Neighbours: [`crate::file::journaled`] journals; [`super::exchange`] commits what is larger.

use super::collected::Collected;
use super::exchange::Buffer;
use crate::engine::Engine;
use crate::file::journaled::{FileData, data_cost};
use crate::gate::GateState;
use crate::store::transaction::Cost;
use quire_base::sync::Arc;
use quire_base::units::blocks_for;
use quire_base::{BLOCK_SIZE, Error, ErrorKind, Result, Seq};
use quire_cache::{Composed, GroupPart, WritebackHold, load_group, write_group};
use quire_format::extent::FILE_BLOCKS_MAX;
use quire_format::key::Key;
use quire_format::logged::{LoggedKind, LoggedOp};

impl Engine {
    /// Commits a group; its record is in the journal, and not forced.
    pub(super) fn commit_group(self: &Arc<Engine>, files: &[&Collected], is_large: bool) -> Result<Seq> {
        // Memory is waited for before the gates.
        let buffer = if is_large { Some(Buffer::new(self)?) } else { None };
        if is_large {
            // Most of it, while others may read and write.
            files.iter().try_for_each(|file| self.write_back_growth(file))?;
        }
        self.retry_without_space(|| match &buffer {
            Some(buffer) => self.commit_alone(files, files, Some(buffer)),
            None => match self.commit_to_journal(files) {
                // Files or units have become such that no record takes the group any more.
                Err(error) if error.kind() == ErrorKind::TooLarge => {
                    self.commit_alone(files, files, Some(&Buffer::new(self)?))
                }
                committed => committed,
            },
        })
    }

    fn commit_to_journal(self: &Arc<Engine>, files: &[&Collected]) -> Result<Seq> {
        if files.iter().any(|file| file.size.is_some()) {
            return self.commit_alone(files, files, None);
        }
        let _permits: Vec<_> = files.iter().map(|file| file.inode.gate.enter(GateState::Buffered)).collect();
        let growing: Vec<bool> = files.iter().map(|file| file.earns_now().is_some()).collect();
        let _sizes: Vec<_> = files
            .iter()
            .zip(&growing)
            .filter(|(file, grows)| **grows || file.inode.unit_blocks().is_some())
            .map(|(file, _)| file.inode.size_lock.lock())
            .collect();
        for (file, _) in files.iter().zip(&growing).filter(|(_, grows)| **grows) {
            self.settle_group_growth(file)?;
        }
        let fillers = fillers_of(files);
        self.write_and_journal(files, &parts_of(files, &fillers), false)
    }

    /// Puts on disk what a group's larger size would show.
    fn settle_group_growth(&self, file: &Collected) -> Result<()> {
        let inode = &file.inode;
        // All gaps below the last range; those between ranges, too.
        if let Some(at) = file.last_start().filter(|at| *at > inode.size()) {
            self.expose(inode, at)?;
        }
        self.write_back_growth(file)
    }

    /// Writes back what lies between the size on disk and the size that the group earns.
    fn write_back_growth(&self, file: &Collected) -> Result<()> {
        let inode = &file.inode;
        let on_disk = inode.meta().record.size;
        match file.earns(on_disk) {
            Some(end) => {
                let growth = inode.blocks_touched(on_disk, end.min(file.keeps()));
                inode.mapping().write_back(growth.start, growth.end)
            }
            None => Ok(()),
        }
    }

    /// Commits with all files to itself: it enters the gates of `rest`, a level of the stack each, and then
    /// goes on. With a buffer the content goes to fresh blocks.
    fn commit_alone(
        self: &Arc<Engine>,
        files: &[&Collected],
        rest: &[&Collected],
        buffer: Option<&Buffer<'_>>,
    ) -> Result<Seq> {
        if let [first, rest @ ..] = rest {
            return self.exclusively(&first.inode, || self.commit_alone(files, rest, buffer));
        }
        self.commit_held(files, buffer)
    }

    /// As [`Engine::commit_alone`], with the gates entered.
    fn commit_held(self: &Arc<Engine>, files: &[&Collected], buffer: Option<&Buffer<'_>>) -> Result<Seq> {
        for file in files {
            let inode = &file.inode;
            self.settle_group_growth(file)?;
            self.settle_end(inode, file.keeps())?;
            if file.end() > inode.size() {
                self.settle_growth(inode, file.end())?;
            }
        }
        if let Some(buffer) = buffer {
            return self.exchange_group(files, buffer);
        }
        let fillers = fillers_of(files);
        let parts = parts_of(files, &fillers);
        let loaded = load_group(&parts)?;
        let holds: Vec<WritebackHold<'_>> =
            files.iter().map(|file| file.inode.mapping().hold_writeback(0, u64::MAX)).collect();
        let seq = self.write_and_journal(files, &parts, true)?;
        drop(loaded);
        for (file, hold) in files.iter().zip(&holds).filter(|(file, _)| file.size.is_some()) {
            hold.discard(blocks_for(file.keeps()), u64::MAX);
        }
        self.store.device.recorded().await_batch();
        Ok(seq)
    }

    fn write_and_journal(
        self: &Arc<Engine>,
        files: &[&Collected],
        parts: &[GroupPart<'_>],
        alone: bool,
    ) -> Result<Seq> {
        let blocks: u64 = parts.iter().flat_map(GroupPart::runs).map(|(first, end)| end - first).sum();
        // A unit may have become larger since the writes were collected.
        let (bytes, most) = (blocks * BLOCK_SIZE as u64, self.group_record_bytes());
        if bytes > most {
            return Err(too_large(bytes, most));
        }
        // The cost that there was no room for.
        let mut refused = None;
        loop {
            let mut committed = None;
            let written = write_group(
                parts,
                &mut |composed| {
                    committed = Some(self.journal_group(files, composed, &mut refused)?);
                    Ok(())
                },
                &mut || {
                    // All at once: a thread that has seen one file grow finds the others grown.
                    let _metas: Vec<_> = files.iter().map(|file| file.inode.meta()).collect();
                    for file in files {
                        // A size that was set is in the inode since its record is in the journal.
                        if file.size.is_none() {
                            file.inode.raise_size(file.end());
                        }
                        file.inode.touch_written();
                    }
                },
            );
            match (written, committed) {
                (Err(error), None) if error.kind() == ErrorKind::WouldBlock => {
                    self.await_homes()?;
                    // Room for less would not do, and this thread would try for ever.
                    if let Some(cost) = refused {
                        self.store.begin(cost).map(drop)?;
                    }
                }
                (Err(error), _) => return Err(error),
                (Ok(()), committed) => {
                    let (seq, logged) = committed.expect("it was journaled");
                    debug_assert!(alone || logged.is_empty());
                    for (at, id, operation) in logged {
                        self.run_logged_live(&files[at].inode, id, operation)?;
                    }
                    return Ok(seq);
                }
            }
        }
    }

    /// Everything is locked: waits for nothing. `refused`: the cost that there was no room for, which the
    /// caller has waited for since.
    fn journal_group(
        &self,
        files: &[&Collected],
        composed: &[Composed<'_>],
        refused: &mut Option<Cost>,
    ) -> Result<(Seq, Logged)> {
        let full = || Error::new(ErrorKind::WouldBlock, "the journal has no room");
        if self.wants_homes() {
            return Err(full());
        }
        let mut data = Vec::with_capacity(files.len());
        for (file, composed) in files.iter().zip(composed) {
            let mut one = FileData::new(self, &file.inode);
            for (first, count) in composed.runs() {
                one.add(first, count, |block, out| composed.copy(block, out))?;
            }
            match file.size {
                Some(size) => one.resize(size, file.keeps())?,
                // What lies before it has been written back.
                None => one.grows_to = file.earns_now().unwrap_or_default(),
            }
            data.push(one);
        }
        let cost = data_cost(&data);
        let most = self.store.journal()?.payload_max();
        if cost.bytes > most {
            // Many files, or many new homes: more than the margin of a record holds.
            return Err(too_large(cost.bytes as u64, most as u64));
        }
        let Some(mut transaction) = self.store.try_begin(cost, refused.take().is_some()) else {
            *refused = Some(cost);
            return Err(full());
        };
        let mut logged = Logged::new();
        for (at, one) in data.iter().enumerate() {
            one.warm(&transaction)?;
            if one.frees_too_many() {
                let (inode, size) = (&files[at].inode, files[at].end());
                let id = self.new_logged_id();
                let operation = self.logged_operation(
                    inode,
                    LoggedKind::Truncate,
                    blocks_for(size),
                    FILE_BLOCKS_MAX,
                    size,
                );
                transaction.warm(&[Key::logged(id)])?;
                transaction.put(Key::logged(id), &operation.encode());
                logged.push((at, id, operation));
            }
        }
        self.commit_data(&mut data, transaction).map(|seq| (seq, logged))
    }
}

type Fillers = Vec<(u64, Vec<u8>)>;

/// The zeros that the files' parts need. Their sizes do not change meanwhile.
fn fillers_of(files: &[&Collected]) -> Vec<Fillers> {
    files.iter().map(|file| file.fillers()).collect()
}

fn parts_of<'a>(files: &[&'a Collected], fillers: &'a [Fillers]) -> Vec<GroupPart<'a>> {
    files.iter().zip(fillers).map(|(file, fillers)| file.part(fillers)).collect()
}

/// No record takes the group; it goes to fresh blocks then.
fn too_large(bytes: u64, most: u64) -> Error {
    let (bytes, most) = (bytes / 1024, most / 1024);
    Error::new(
        ErrorKind::TooLarge,
        format!("the group takes a record of {bytes} KiB, and {most} KiB is the most"),
    )
}

/// Truncates that are to be finished: the place of the file in its group, the operation and its id.
type Logged = Vec<(usize, u64, LoggedOp)>;
