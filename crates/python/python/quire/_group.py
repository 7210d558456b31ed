"""Groups of writes: visible at once, and after a crash there as a whole or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ._aio import syncing
from ._file import File, _bytes, _native_of
from ._native import NativeGroup

if TYPE_CHECKING:
    from types import TracebackType
    from typing import TypeAlias

    from typing_extensions import Buffer, Self

    from ._volume import Volume

    Commit: TypeAlias = Literal["now", "lazy", "ordered"]


class _Group:
    """What both kinds of groups are: a block, `with` or `async with`, whose end commits."""

    def __init__(self, volume: Volume, commit: Commit, within: float) -> None:
        self.volume = volume
        self._native = NativeGroup(volume, commit, within)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.abort()
        elif not self.ended:
            self.commit()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.abort()
        elif not self.ended:
            await self.commit_async()

    @property
    def ended(self) -> bool:
        """Whether the group has been committed or aborted."""
        return self._native.ended

    def commit(self) -> None:
        """Makes all of the group visible at once, and durable as the group was asked to be.

        The group has ended then, also if that fails. On an error nothing has changed, unless the volume has failed or
        could not make the group durable: then a crash leaves all of it or nothing.
        """
        self._native.commit()

    async def commit_async(self) -> None:
        """As `commit`; no thread waits for durability. Commits that are under way together share writes of the journal.

        The group is visible at once. A task that is cancelled gives up waiting, and leaves the group as it is then.
        """
        await syncing(lambda completions, future: completions.commit_group(self._native, future))

    def abort(self) -> None:
        """Ends the group without a trace. Nothing happens if it has ended already."""
        self._native.abort()


class Group(_Group):
    """Writes to one or several files of a volume, from `Volume.atomic`.

    Nobody but the group sees them until it is committed. Free space bounds a group (`Volume.group_bytes_max`); a write
    beyond that, or beyond another limit, raises an `OSError` with ENOSPC or E2BIG, and the group stays as it was.
    """

    def __repr__(self) -> str:
        return f"<quire.Group of {self.volume!r}{' ended' if self.ended else ''}>"

    def pwrite(self, file: File, data: Buffer, offset: int) -> int:
        """Adds a write at an offset, which counts for a file opened for appending, too; gives the count."""
        native = _native_of(file)
        file._check_writable()
        return self._native.pwrite(native, _bytes(data), offset)

    def truncate(self, file: File, size: int) -> int:
        """Adds a change of the file's size: what lies beyond is gone, what is gained reads as zeros."""
        native = _native_of(file)
        file._check_writable()
        self._native.truncate(native, size)
        return size

    def pread(self, file: File, size: int, offset: int) -> bytes:
        """Reads what the file will hold when the group has been committed, if nobody else writes to it."""
        native = _native_of(file)
        file._check_readable()
        return self._native.pread(native, size, offset)

    def size(self, file: File) -> int:
        """The size that the file will have when the group has been committed, if nobody else changes it."""
        return self._native.size(_native_of(file))


class FileGroup(_Group):
    """Writes to one file, from `File.atomic`. As `Group` otherwise."""

    def __init__(self, file: File, commit: Commit, within: float) -> None:
        super().__init__(file.volume, commit, within)
        self.file = file

    def __repr__(self) -> str:
        return f"<quire.FileGroup of {self.file!r}{' ended' if self.ended else ''}>"

    def pwrite(self, data: Buffer, offset: int) -> int:
        """Adds a write at an offset; gives the count."""
        self.file._check_writable()
        return self._native.pwrite(self.file._native, _bytes(data), offset)

    def truncate(self, size: int) -> int:
        """Adds a change of the file's size: what lies beyond is gone, what is gained reads as zeros."""
        self.file._check_writable()
        self._native.truncate(self.file._native, size)
        return size

    def pread(self, size: int, offset: int) -> bytes:
        """Reads what the file will hold when the group has been committed, if nobody else writes to it."""
        self.file._check_readable()
        return self._native.pread(self.file._native, size, offset)

    def size(self) -> int:
        """The size that the file will have when the group has been committed, if nobody else changes it."""
        return self._native.size(self.file._native)
