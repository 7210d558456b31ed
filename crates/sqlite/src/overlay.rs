//! What a transaction changes in a database file, before the file is touched: ranges of bytes, and the size.
//!
//! SQLite writes pages, most of them once, and reads back a few. But `VACUUM` changes the page size, and
//! pieces of pages occur; so ranges may have any length and replace one another in part.
//!
//! Invariants: ranges neither overlap nor are empty, and end at or before `size`; bytes of the file count
//! below `file_end` only: beyond, the file was cut, and what no range covers is zero.

use std::collections::BTreeMap;

/// Where an overlay is written to.
pub(crate) trait Sink {
    type Error;

    /// Writes all of `data`.
    fn write_at(&mut self, data: &[u8], offset: u64) -> Result<(), Self::Error>;

    fn set_len(&mut self, size: u64) -> Result<(), Self::Error>;
}

/// Neighbouring ranges travel together up to so many bytes.
const REQUEST_MAX: usize = 1 << 20;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Overlay {
    ranges: BTreeMap<u64, Vec<u8>>,
    /// The file's size as the transaction sees it.
    size: u64,
    /// Bytes of the file that still count.
    file_end: u64,
    /// The file's size when the transaction began to change it.
    file_size: u64,
    bytes: usize,
}

impl Overlay {
    /// Over a file of `file_size` bytes.
    pub(crate) fn new(file_size: u64) -> Overlay {
        Overlay { ranges: BTreeMap::new(), size: file_size, file_end: file_size, file_size, bytes: 0 }
    }

    /// The file's size as the transaction sees it.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Where the file has to be cut first, if it has.
    pub(crate) fn cut(&self) -> Option<u64> {
        (self.file_end < self.file_size).then_some(self.file_end)
    }

    /// Bytes at the front of the file that still count, changed or not.
    pub(crate) fn file_end(&self) -> u64 {
        self.file_end
    }

    /// The file's size when the transaction began to change it.
    pub(crate) fn file_size(&self) -> u64 {
        self.file_size
    }

    /// Bytes of memory that the ranges hold.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The ranges in order.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.ranges.iter().map(|(&offset, data)| (offset, data.as_slice()))
    }

    /// Whether no byte and no size has changed.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.cut().is_none() && self.size == self.file_size
    }

    /// Writes what has changed, neighbours together.
    pub(crate) fn apply<S: Sink>(&self, to: &mut S) -> Result<(), S::Error> {
        if let Some(end) = self.cut() {
            to.set_len(end)?;
        }
        let mut end = self.file_end();
        let mut run: Vec<u8> = Vec::new();
        let mut ranges = self.ranges().peekable();
        while let Some((start, first)) = ranges.next() {
            let mut length = first.len();
            run.clear();
            while let Some((_, data)) = ranges.next_if(|(offset, data)| {
                *offset == start + length as u64 && length + data.len() <= REQUEST_MAX
            }) {
                if run.is_empty() {
                    run.extend_from_slice(first);
                }
                run.extend_from_slice(data);
                length = run.len();
            }
            // A range without neighbours is written from where it is.
            to.write_at(if run.is_empty() { first } else { &run }, start)?;
            end = end.max(start + length as u64);
        }
        match self.size() > end {
            true => to.set_len(self.size()),
            false => Ok(()),
        }
    }

    /// Puts `data` at `offset`.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let end = offset + data.len() as u64;
        self.size = self.size.max(end);
        if let Some(old) = self.ranges.get_mut(&offset)
            && old.len() == data.len()
        {
            old.copy_from_slice(data);
            return;
        }
        self.remove(offset, end);
        self.bytes += data.len();
        self.ranges.insert(offset, data.to_vec());
    }

    /// Sets the size.
    pub(crate) fn truncate(&mut self, size: u64) {
        self.remove(size, u64::MAX);
        self.file_end = self.file_end.min(size);
        self.size = size;
    }

    /// Takes `[start, end)` out of all ranges.
    fn remove(&mut self, start: u64, end: u64) {
        if let Some((&at, data)) = self.ranges.range_mut(..start).next_back() {
            let data_end = at + data.len() as u64;
            if data_end > start {
                let behind = (data_end > end).then(|| data[(end - at) as usize..].to_vec());
                self.bytes -= data.len();
                data.truncate((start - at) as usize);
                self.bytes += data.len();
                if let Some(behind) = behind {
                    self.bytes += behind.len();
                    self.ranges.insert(end, behind);
                    return;
                }
            }
        }
        while let Some((&at, _)) = self.ranges.range(start..end).next() {
            let Some(mut data) = self.ranges.remove(&at) else { break };
            self.bytes -= data.len();
            let data_end = at + data.len() as u64;
            if data_end > end {
                let behind = data.split_off((end - at) as usize);
                self.bytes += behind.len();
                self.ranges.insert(end, behind);
            }
        }
    }

    /// Puts what the transaction changed over `out`, the file's bytes from `offset` on, of which the file had
    /// the first `from_file`. Returns how many bytes there are up to the end.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8], from_file: usize) -> usize {
        let count = self.size.saturating_sub(offset).min(out.len() as u64) as usize;
        let out = &mut out[..count];
        let kept = self.file_end.saturating_sub(offset).min(from_file as u64).min(count as u64) as usize;
        out[kept..].fill(0);
        let end = offset + count as u64;
        let first = self.ranges.range(..=offset).next_back().map_or(offset, |(&at, _)| at);
        for (&at, data) in self.ranges.range(first..end) {
            let (from, to) = (at.max(offset), (at + data.len() as u64).min(end));
            if from < to {
                out[(from - offset) as usize..(to - offset) as usize]
                    .copy_from_slice(&data[(from - at) as usize..(to - at) as usize]);
            }
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file in memory, and the ends of the writes to it.
    struct Plain {
        file: Vec<u8>,
        ends: Vec<u64>,
    }

    impl Sink for Plain {
        type Error = std::convert::Infallible;

        fn write_at(&mut self, data: &[u8], offset: u64) -> Result<(), Self::Error> {
            // Neighbours travel together.
            assert!(!data.is_empty() && self.ends.last().is_none_or(|end| *end < offset));
            let end = offset as usize + data.len();
            self.ends.push(end as u64);
            self.file.resize(self.file.len().max(end), 0);
            self.file[offset as usize..end].copy_from_slice(data);
            Ok(())
        }

        fn set_len(&mut self, size: u64) -> Result<(), Self::Error> {
            self.file.resize(size as usize, 0);
            Ok(())
        }
    }

    /// The file with the overlay written to it.
    fn applied(overlay: &Overlay, file: &[u8]) -> Vec<u8> {
        let mut plain = Plain { file: file.to_vec(), ends: Vec::new() };
        let Ok(()) = overlay.apply(&mut plain);
        plain.file
    }

    #[test]
    fn neighbours_beyond_the_largest_request_are_written_apart() {
        struct Lengths(Vec<usize>);
        impl Sink for Lengths {
            type Error = std::convert::Infallible;
            fn write_at(&mut self, data: &[u8], _: u64) -> Result<(), Self::Error> {
                self.0.push(data.len());
                Ok(())
            }
            fn set_len(&mut self, _: u64) -> Result<(), Self::Error> {
                Ok(())
            }
        }
        let mut overlay = Overlay::new(0);
        for page in 0..300 {
            overlay.write(page * 4096, &[1; 4096]);
        }
        let mut lengths = Lengths(Vec::new());
        let Ok(()) = overlay.apply(&mut lengths);
        assert_eq!(lengths.0, [REQUEST_MAX, 300 * 4096 - REQUEST_MAX]);
    }

    #[test]
    fn reads_and_the_commit_agree_with_a_plain_file() {
        for seed in 0..300 {
            let mut random = fastrand::Rng::with_seed(seed);
            let file: Vec<u8> = (0..random.usize(0..5000)).map(|_| random.u8(1..)).collect();
            let mut model = file.clone();
            let mut overlay = Overlay::new(file.len() as u64);
            for step in 0..60 {
                let grain = *random.choice(&[1, 512, 1024]).unwrap();
                let offset = random.usize(0..6000 / grain) * grain;
                match random.u8(0..10) {
                    0 => {
                        model.resize(offset, 0);
                        overlay.truncate(offset as u64);
                    }
                    1..=6 => {
                        let data = vec![random.u8(1..); random.usize(1..3) * grain];
                        let end = offset + data.len();
                        model.resize(model.len().max(end), 0);
                        model[offset..end].copy_from_slice(&data);
                        overlay.write(offset as u64, &data);
                    }
                    _ => {
                        let length = random.usize(0..3000);
                        let mut out = vec![0xee; length];
                        let there = file.get(offset..).unwrap_or_default();
                        let from_file = there.len().min(length);
                        out[..from_file].copy_from_slice(&there[..from_file]);
                        let count = overlay.read(offset as u64, &mut out, from_file);
                        let expected = model.get(offset..).unwrap_or_default();
                        let expected = &expected[..expected.len().min(length)];
                        assert_eq!(&out[..count], expected, "seed {seed}, step {step}");
                    }
                }
                assert_eq!(overlay.size(), model.len() as u64, "seed {seed}, step {step}");
                assert_eq!(overlay.bytes(), overlay.ranges().map(|(_, data)| data.len()).sum::<usize>());
                let mut last = 0;
                for (offset, data) in overlay.ranges() {
                    assert!(offset >= last && !data.is_empty(), "seed {seed}, step {step}");
                    last = offset + data.len() as u64;
                }
            }
            assert_eq!(applied(&overlay, &file), model, "seed {seed}");
        }
    }

    #[test]
    fn nothing_changed_is_empty() {
        let mut overlay = Overlay::new(100);
        assert!(overlay.is_empty());
        overlay.truncate(50);
        overlay.write(50, &[0; 50]);
        assert!(!overlay.is_empty(), "the bytes may differ");
        assert_eq!(overlay.cut(), Some(50));
    }
}
