//! What a volume is opened for; [`super::target`] locks accordingly.

/// What a volume is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Reads and writes; nobody else may have it open.
    ReadWrite,
    /// Reads only, beside other readers.
    ReadOnly,
    /// Reads only, without any lock: what it reads may be changing.
    Look,
}
