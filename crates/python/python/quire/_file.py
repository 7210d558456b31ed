"""An open file as `io.RawIOBase`, with what else Quire knows about files."""

from __future__ import annotations

import errno
import io
import os
import warnings
from typing import TYPE_CHECKING, Literal

from ._aio import sync_file
from ._name import Name
from ._native import NativeFile
from ._properties import Properties, _set

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ._group import Commit, FileGroup
    from ._properties import Cache, Untorn
    from ._volume import Volume


def _bytes(data: Buffer) -> bytes:
    """The data as `bytes`, which nobody can change while other threads run."""
    return data if isinstance(data, bytes) else memoryview(data).tobytes()


def _no_attribute(name: Name, path: str) -> OSError:
    return OSError(errno.ENODATA, f"no attribute {os.fsdecode(name)}", path)


def _native_of(file: File) -> NativeFile:
    """The file, raw: a buffer in front of it would hold bytes back."""
    if not isinstance(file, File):
        raise TypeError(f"a quire.File is needed, as buffering=0 gives, and not {type(file).__name__}")
    return file._native


class File(io.RawIOBase):
    """An open file of a volume, unbuffered. `Volume.open` makes it, and wraps it in a buffer if not told otherwise.

    It may be used by several threads. `read`, `write` and `seek` share one position; `pread`, `pwrite` and `append` have
    none. A read sees every write entirely or not at all, and appends of several threads never mix.
    """

    def __init__(self, volume: Volume, native: NativeFile, name: str, mode: str) -> None:
        self.volume = volume
        self.name = name
        self.mode = mode
        self._native = native

    def __repr__(self) -> str:
        return f"<quire.File name={self.name!r} mode={self.mode!r}>"

    def __del__(self) -> None:
        try:
            if not self.closed:
                self._dealloc_warn(self)
        finally:
            super().__del__()

    def _dealloc_warn(self, source: object) -> None:
        """Warns of a file that nobody closed. A buffer in front of it that nobody closed calls it, too."""
        warnings.warn(f"unclosed file {source!r}", ResourceWarning, stacklevel=2, source=source)

    # What io.RawIOBase needs.

    def readable(self) -> bool:
        self._check_open()
        return "r" in self.mode or "+" in self.mode

    def writable(self) -> bool:
        self._check_open()
        return "r" not in self.mode or "+" in self.mode

    def seekable(self) -> bool:
        self._check_open()
        return True

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file.")

    def _check_readable(self) -> None:
        if not self.readable():
            raise io.UnsupportedOperation("not readable")

    def _check_writable(self) -> None:
        if not self.writable():
            raise io.UnsupportedOperation("not writable")

    def read(self, size: int | None = -1, /) -> bytes:
        self._check_readable()
        return self._native.read(None if size is None or size < 0 else size)

    def readall(self) -> bytes:
        self._check_readable()
        return self._native.read()

    def readinto(self, buffer: Buffer, /) -> int:
        self._check_readable()
        with memoryview(buffer) as view:
            # What cannot be filled is refused before anything is read, and an empty view of several dimensions has no cast.
            if view.readonly:
                raise TypeError("readinto needs a buffer that can be written")
            if view.nbytes == 0:
                return 0
            with view.cast("B") as flat:
                data = self._native.read(len(flat))
                flat[: len(data)] = data
        return len(data)

    def write(self, data: Buffer, /) -> int:
        self._check_writable()
        return self._native.write(_bytes(data))

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Moves the position. `os.SEEK_DATA` and `os.SEEK_HOLE` find data and holes."""
        self._check_open()
        return self._native.seek(offset, whence)

    def tell(self) -> int:
        self._check_open()
        return self._native.tell()

    def truncate(self, size: int | None = None, /) -> int:
        self._check_writable()
        size = self.tell() if size is None else size
        self._native.truncate(size)
        return size

    def fileno(self) -> int:
        raise io.UnsupportedOperation("a file of a Quire volume has no descriptor")

    def isatty(self) -> bool:
        self._check_open()
        return False

    def close(self) -> None:
        if not self.closed:
            try:
                super().close()
            finally:
                self._native.close()

    # By offset, without a position.

    def pread(self, size: int, offset: int) -> bytes:
        """Reads at an offset; fewer bytes at the end of the file."""
        self._check_readable()
        return self._native.pread(size, offset)

    def pwrite(self, data: Buffer, offset: int) -> int:
        """Writes at an offset, or at the end of a file that was opened for appending; gives the count."""
        self._check_writable()
        return self._native.pwrite(_bytes(data), offset)

    def append(self, data: Buffer) -> int:
        """Writes at the end; gives the offset that the data got. An append of more than 1 MiB that fails may leave a part
        there; `write` to a file opened for appending gives the count of that part instead.
        """
        self._check_writable()
        return self._native.append(_bytes(data))

    def atomic(self, commit: Commit = "now", *, within: float = 1.0) -> FileGroup:
        """A group of writes to this file, as `Volume.atomic`."""
        from ._group import FileGroup

        self._check_open()
        return FileGroup(self, commit, within)

    # Durability.

    def fsync(self) -> None:
        """Makes contents, attributes and name durable."""
        self._native.sync(False)

    def fdatasync(self) -> None:
        """Makes the contents durable, and what reading them back needs."""
        self._native.sync(True)

    async def fsync_async(self) -> None:
        """As `fsync`; no thread waits. Fsyncs that are under way together share writes of the journal."""
        await sync_file(self._native, False)

    async def fdatasync_async(self) -> None:
        """As `fdatasync`; no thread waits."""
        await sync_file(self._native, True)

    # Space.

    def allocate(self, offset: int, length: int, *, keep_size: bool = False) -> None:
        """Reserves blocks for a range; the file grows to hold it unless `keep_size`."""
        self._check_writable()
        self._native.allocate(offset, length, keep_size)

    def punch_hole(self, offset: int, length: int) -> None:
        """Makes a range read as zeros, and gives its whole blocks back."""
        self._check_writable()
        self._native.punch_hole(offset, length)

    def zero_range(self, offset: int, length: int) -> None:
        """Makes a range read as zeros, with blocks reserved for it; the file grows to hold it."""
        self._check_writable()
        self._native.zero_range(offset, length)

    def collapse_range(self, offset: int, length: int) -> None:
        """Cuts a range of whole blocks out; what follows moves down."""
        self._check_writable()
        self._native.collapse_range(offset, length)

    def insert_range(self, offset: int, length: int) -> None:
        """Opens a hole of whole blocks; what follows moves up."""
        self._check_writable()
        self._native.insert_range(offset, length)

    def copy_range_to(self, offset: int, to: File, to_offset: int, length: int) -> int:
        """Copies a range to another file of the volume, or of this one; gives the count."""
        self._check_readable()
        return self._native.copy_range_to(offset, _native_of(to), to_offset, length)

    def advise(
        self,
        offset: int,
        length: int,
        advice: Literal["normal", "sequential", "random", "willneed", "dontneed"],
    ) -> None:
        """Takes advice about a range (posix_fadvise); a length of 0 means to the end."""
        self._native.advise(offset, length, advice)

    # Attributes.

    def stat(self) -> os.stat_result:
        """What `os.fstat` shows of a file."""
        return os.stat_result(self._native.stat())

    def properties(self) -> Properties:
        """What is asked of the file besides."""
        return Properties._of(self._native.properties())

    def set_properties(self, *, untorn: Untorn | None = None, cache: Cache | None = None) -> None:
        """As `Volume.set_properties`."""
        _set(self.setxattr, untorn, cache)

    def getxattr(self, name: Name) -> bytes:
        """An extended attribute; an `OSError` with ENODATA if there is none."""
        value = self._native.getxattr(name)
        if value is None:
            raise _no_attribute(name, self.name)
        return value

    def setxattr(self, name: Name, value: Buffer) -> None:
        """Sets an extended attribute; names begin with `user.`, `trusted.` or `security.`."""
        self._native.setxattr(name, _bytes(value))

    def removexattr(self, name: Name) -> None:
        """Removes an extended attribute."""
        self._native.removexattr(name)

    def listxattr(self) -> list[str]:
        """The names of the extended attributes."""
        return self._native.listxattr()
