"""A volume, with the names of `os` and `shutil`."""

from __future__ import annotations

import atexit
import errno
import io
import os
import stat
import time
import uuid
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TextIO, overload

from . import _native
from ._aio import syncing
from ._file import File, _bytes, _no_attribute
from ._name import Name, PathName
from ._properties import Properties, _set

if TYPE_CHECKING:
    from types import TracebackType
    from typing import TypeAlias

    from typing_extensions import Buffer, Self

    from ._group import Commit, Group
    from ._path import Part, Path
    from ._properties import Cache, Untorn

    TextMode: TypeAlias = Literal["r", "w", "a", "x", "r+", "w+", "a+", "x+", "rt", "wt", "at", "xt"]
    BytesMode: TypeAlias = Literal[
        "rb", "wb", "ab", "xb", "r+b", "w+b", "a+b", "x+b", "rb+", "wb+", "ab+", "xb+"
    ]

#: Links that a path may lead through, as on Linux.
_LINKS_MAX = 40

#: Bytes of the buffers that `Volume.open` makes.
BUFFER_SIZE = 128 << 10

#: Volumes that this process has open for writing or reading, by device and inode of their image and the name of a snapshot.
_open: weakref.WeakValueDictionary[tuple[object, str | None], Volume] = weakref.WeakValueDictionary()


@dataclass(frozen=True)
class VolumeInfo:
    """What a volume is."""

    uuid: uuid.UUID
    label: str
    version: tuple[int, int]
    block_size: int
    blocks: int
    journal_blocks: int
    free_blocks: int
    inodes: int
    clean: bool
    #: Seconds since 1970.
    created: float
    mounted: float

    @classmethod
    def _of(cls, fields: dict[str, Any]) -> VolumeInfo:
        return cls(**{**fields, "uuid": uuid.UUID(bytes=fields["uuid"])})


def mkfs(
    image: str | os.PathLike[str],
    size: int | None = None,
    *,
    label: str = "",
    journal_bytes: int | None = None,
    force: bool = False,
) -> VolumeInfo:
    """Makes a volume in an image file or on a block device, and tells what it is.

    An image that does not exist needs a size in bytes, and gets mode 0600. What already holds a file system is refused
    unless `force` is set.
    """
    return VolumeInfo._of(_native.mkfs(image, size, label, journal_bytes, force))


def resize(
    image: str | os.PathLike[str],
    size: int | Literal["whole"] | None = None,
    *,
    journal_bytes: int | None = None,
) -> VolumeInfo:
    """Makes a volume that nobody has open larger, and tells what it is then.

    `size` is in bytes, and an image file that is smaller grows, too; `"whole"` takes the whole file or device. `journal_bytes`
    makes the journal larger. After a crash the volume has its old shape or the new one.
    """
    whole = size == "whole"
    return VolumeInfo._of(_native.resize(image, None if size == "whole" else size, whole, journal_bytes))


def set_label(image: str | os.PathLike[str], label: str) -> VolumeInfo:
    """Gives a volume that nobody has open another name for people, of at most 64 bytes."""
    return VolumeInfo._of(_native.set_label(image, label))


def roll_back(image: str | os.PathLike[str], name: str) -> None:
    """Rolls a volume that nobody has open back to its newest snapshot. What was done since is lost; the snapshot stays."""
    _native.roll_back(image, name)


@dataclass(frozen=True)
class DirEntry:
    """One entry of a directory, as `os.DirEntry`."""

    name: str
    #: The directory as it was given, with the name.
    path: str
    _kind: str
    _inode: int
    _volume: Volume

    def inode(self) -> int:
        return self._inode

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        if self._kind == "l" and follow_symlinks:
            return self._volume.isdir(self.path)
        return self._kind == "d"

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        if self._kind == "l" and follow_symlinks:
            return self._volume.isfile(self.path)
        return self._kind == "f"

    def is_symlink(self) -> bool:
        return self._kind == "l"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return self._volume.stat(self.path, follow_symlinks=follow_symlinks)


@dataclass(frozen=True)
class Snapshot:
    """A snapshot of a volume."""

    name: str
    number: int
    """How many snapshots had ever been taken of the volume, with this one."""
    created: float
    """Seconds since 1970."""
    deleting: bool
    """It is being deleted, and cannot be opened any more."""


class Volume(_native.NativeVolume):
    """An open volume: `Volume(image)`, closed by `close` or at the end of a `with` block.

    One process at a time has a volume open for writing. Any thread may use it. Paths begin at the root of the volume, with
    a slash or without, as text, bytes, `pathlib.PurePath` or `quire.Path`. Operations on names are atomic, also over a
    crash. Nothing checks permissions: the program owns the volume.

    `access_times` is `"relative"`, `"never"` or `"strict"`; `commit_seconds` bounds how long unsynced changes stay in
    memory. `cache_bytes` is by default a quarter of memory or of the control group's limit, whichever is less. `snapshot`
    opens a snapshot of an image that nobody uses, read-only.
    """

    def __init__(
        self,
        image: str | os.PathLike[str],
        *,
        read_only: bool = False,
        cache_bytes: int | None = None,
        node_cache_bytes: int | None = None,
        discard: bool = False,
        access_times: Literal["relative", "never", "strict"] = "relative",
        lazy_times: bool = False,
        commit_seconds: int = 5,
        snapshot: str | None = None,
        _beside: Volume | None = None,
    ) -> None:
        # The base class has opened it, with these options.
        self.image = absolute(image)
        self.snapshot = snapshot
        self._options: dict[str, Any] = {
            "read_only": read_only,
            "cache_bytes": cache_bytes,
            "node_cache_bytes": node_cache_bytes,
            "discard": discard,
            "access_times": access_times,
            "lazy_times": lazy_times,
            "commit_seconds": commit_seconds,
        }
        #: Whether a program that forgets to close it is warned.
        self._warns = True
        self._files: weakref.WeakSet[Any] = weakref.WeakSet()
        _open[_identity(self.image), snapshot] = self

    def __repr__(self) -> str:
        snapshot = "" if self.snapshot is None else f" snapshot={self.snapshot!r}"
        return f"<quire.Volume image={self.image!r}{snapshot}{' closed' if self.closed else ''}>"

    def __del__(self) -> None:
        if getattr(self, "_warns", False) and self._of_this_process() and not self.closed:
            warnings.warn(f"unclosed volume {self!r}", ResourceWarning, stacklevel=2, source=self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files of the volume that are open, writes everything back, and closes it; a second time nothing happens.

        All are closed, whichever of them fails; the first failure is raised at the end.
        """
        failed: Exception | None = None
        with suppress(KeyError):
            while True:
                # Not by going through them: other threads may open files.
                file = self._files.pop()
                try:
                    file.close()
                except Exception as error:
                    failed = failed or error
        try:
            super().close()
        finally:
            if failed is not None:
                raise failed

    def __truediv__(self, name: Part) -> Path:
        return self.path() / name

    def path(self, *parts: Part) -> Path:
        """A path with the methods of `pathlib.Path`."""
        from ._path import Path

        return Path(self, *parts)

    def info(self) -> VolumeInfo:
        """What the volume is."""
        return VolumeInfo._of(self._info())

    def statvfs(self) -> os.statvfs_result:
        """Space and inodes, as `os.statvfs` has them."""
        blocks, free, available, inodes, free_inodes, block_size, name_max = self._statfs()
        flag = os.ST_RDONLY if self.read_only else 0
        return os.statvfs_result(
            (block_size, block_size, blocks, free, available, inodes, free_inodes, free_inodes, flag, name_max)
        )

    def trim(self, start: int = 0, end: int | None = None) -> int:
        """Discards the free space between two offsets in bytes, all of it by default; returns how many bytes that were.

        Space is free when its freeing is durable, so `sync` before includes all.
        """
        return self._trim(start, (1 << 64) - 1 if end is None else end)

    async def sync_async(self) -> None:
        """As `sync`: makes everything durable; no thread waits."""
        await syncing(lambda completions, future: completions.sync_volume(self, future))

    # Snapshots; `take_snapshot` and `delete_snapshot` are the base class's.

    def snapshots(self) -> list[Snapshot]:
        """The snapshots of the volume, the oldest first."""
        return [Snapshot(*fields) for fields in self._snapshots()]

    def open_snapshot(self, name: str) -> Volume:
        """Opens a snapshot of this volume for reading, while the volume is in use. It cannot be deleted until the result
        is closed, which may be later than this volume is.
        """
        return Volume(self.image, snapshot=name, _beside=self, **self._options)

    # Files.

    @overload
    def open(
        self,
        path: PathName,
        mode: TextMode = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        direct: bool = False,
        sync: Literal["all", "data"] | None = None,
        permissions: int = 0o644,
    ) -> TextIO: ...

    @overload
    def open(  # type: ignore[overload-overlap]  # As the built-in `open` is typed.
        self,
        path: PathName,
        mode: BytesMode,
        buffering: Literal[0],
        encoding: None = None,
        errors: None = None,
        newline: None = None,
        *,
        direct: bool = False,
        sync: Literal["all", "data"] | None = None,
        permissions: int = 0o644,
    ) -> File: ...

    @overload
    def open(
        self,
        path: PathName,
        mode: BytesMode,
        buffering: int = -1,
        encoding: None = None,
        errors: None = None,
        newline: None = None,
        *,
        direct: bool = False,
        sync: Literal["all", "data"] | None = None,
        permissions: int = 0o644,
    ) -> BinaryIO: ...

    @overload
    def open(
        self,
        path: PathName,
        mode: str,
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        direct: bool = False,
        sync: Literal["all", "data"] | None = None,
        permissions: int = 0o644,
    ) -> Any: ...

    def open(
        self,
        path: PathName,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        direct: bool = False,
        sync: Literal["all", "data"] | None = None,
        permissions: int = 0o644,
    ) -> Any:
        """Opens a file as the built-in `open` does, with the same modes and the same kinds of results.

        `mode="rb", buffering=0` and the like give a `quire.File`. `direct` reads and writes past the cache; `sync` makes each
        write durable when it returns, with all attributes ("all") or what reading it back needs ("data"); a file that is
        created gets `permissions`.
        """
        what = _mode(mode, buffering, encoding, errors, newline)
        name = self._text(path)
        native = self._open(
            path,
            "r" in what or "+" in what,
            "r" not in what or "+" in what,
            "a" in what,
            what[0] in "wa",
            what[0] == "x",
            what[0] == "w",
            direct,
            sync,
            permissions,
        )
        if native.is_dir():
            native.close()
            raise IsADirectoryError(errno.EISDIR, "it is a directory", name)
        raw = File(self, native, name, _raw_mode(what))
        if buffering == 0:
            self._files.add(raw)
            return raw
        size = BUFFER_SIZE if buffering < 0 or buffering == 1 else buffering
        buffered: io.BufferedRandom | io.BufferedReader | io.BufferedWriter
        if "+" in what:
            buffered = io.BufferedRandom(raw, size)
        elif what[0] == "r":
            buffered = io.BufferedReader(raw, size)
        else:
            buffered = io.BufferedWriter(raw, size)
        if "b" in mode:
            self._files.add(buffered)
            return buffered
        encoding = io.text_encoding(encoding)
        text = io.TextIOWrapper(buffered, encoding, errors, newline, line_buffering=buffering == 1)
        text.mode = mode  # type: ignore[misc]
        self._files.add(text)
        return text

    def atomic(self, commit: Commit = "now", *, within: float = 1.0) -> Group:
        """A group of writes to files of the volume: `with volume.atomic() as group` commits it at the end of the block,
        and drops it if the block raises.

        All of it becomes visible at once, and after a crash all of it is there or nothing. With `commit="now"` it is
        durable when the block ends; with "lazy", too, but the force is left to others for `within` seconds; with "ordered"
        nothing is waited for: it becomes durable with the next force, and not without what was committed before it. With
        `async with` an event loop waits, and no thread.
        """
        from ._group import Group

        return Group(self, commit, within)

    @contextmanager
    def replacing(self, path: PathName, mode: str = "wb", **options: Any) -> Iterator[Any]:
        """Replaces a file at once: `with volume.replacing(path) as file` writes a new one beside it, makes that durable,
        and renames it over the old one. If the block raises, the old file stays.

        Where links lead to the old file, they stay, and the new one has its owner, extended attributes and mode, unless
        `permissions` are given. The modes are those with "w", and with "x" for a file that must be new.
        """
        if not {"w", "x"} & set(mode):
            raise ValueError(f"invalid mode for a file that replaces another: {mode!r}")
        name = followed(self, self._text(path))
        unfinished = beside(name)
        try:
            with self.open(unfinished, mode.replace("w", "x"), **options) as file:
                take_over(self, name, unfinished, with_mode="permissions" not in options)
                yield file
                file.flush()
                raw = getattr(file, "buffer", file)
                getattr(raw, "raw", raw).fsync()
            self.rename(unfinished, name, replace="x" not in mode)
        except BaseException:
            if self.lexists(unfinished):
                self.unlink(unfinished)
            raise

    # Names.

    def stat(self, path: PathName, *, follow_symlinks: bool = True) -> os.stat_result:
        """What `os.stat` shows."""
        return os.stat_result(self._stat(path, follow_symlinks))

    def lstat(self, path: PathName) -> os.stat_result:
        """What `os.lstat` shows."""
        return self.stat(path, follow_symlinks=False)

    def exists(self, path: PathName) -> bool:
        """Whether a path leads to something."""
        return self._kind(path, True) is not None

    def lexists(self, path: PathName) -> bool:
        """Whether there is something of that name, a link that leads nowhere included."""
        return self._kind(path, False) is not None

    def isdir(self, path: PathName) -> bool:
        """Whether a path leads to a directory."""
        return self._kind(path, True) == 0o040000

    def isfile(self, path: PathName) -> bool:
        """Whether a path leads to a regular file."""
        return self._kind(path, True) == 0o100000

    def islink(self, path: PathName) -> bool:
        """Whether a path names a symbolic link."""
        return self._kind(path, False) == 0o120000

    def _kind(self, path: PathName, follow_symlinks: bool) -> int | None:
        try:
            return self._stat(path, follow_symlinks)[0] & 0o170000
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                return None
            raise

    def listdir(self, path: PathName = "/") -> list[str]:
        """The names in a directory."""
        return [name for name, _, _ in self._entries(path)]

    def scandir(self, path: PathName = "/") -> Iterator[DirEntry]:
        """The entries of a directory."""
        directory = self._text(path)
        for name, kind, inode in self._entries(path):
            yield DirEntry(name, os.path.join(directory, name), kind, inode, self)

    def walk(self, top: PathName = "/") -> Iterator[tuple[str, list[str], list[str]]]:
        """Directories below `top`, top down, as `os.walk`: links to directories are among the directories and not followed,
        and a directory that is not there, or has vanished meanwhile, is skipped.
        """
        return self._walk(top, links_are_files=False)

    def _walk(self, top: PathName, links_are_files: bool) -> Iterator[tuple[str, list[str], list[str]]]:
        waiting = [self._text(top)]
        while waiting:
            directory = waiting.pop()
            directories: list[str] = []
            files: list[str] = []
            links: set[str] = set()
            try:
                entries = self._entries(directory)
            except (FileNotFoundError, NotADirectoryError):
                continue
            for name, kind, _ in entries:
                if kind == "l" and not links_are_files and self.isdir(os.path.join(directory, name)):
                    links.add(name)
                (directories if kind == "d" or name in links else files).append(name)
            yield directory, directories, files
            waiting.extend(os.path.join(directory, name) for name in reversed(directories) if name not in links)

    def makedirs(self, path: PathName, mode: int = 0o755, exist_ok: bool = False) -> None:
        """Creates a directory and those above it that are missing, as `os.makedirs`.

        Of several that create one directory at the same time without `exist_ok`, one succeeds.
        """
        pure = PurePosixPath(self._text(path))
        with suppress(FileExistsError):  # A file there is an error of the next step.
            self._makedirs(pure.parent)
        try:
            self.mkdir(pure, mode)
        except OSError:  # A volume that is read-only says so before it looks.
            if not exist_ok or not self.isdir(pure):
                raise

    def utime(
        self,
        path: PathName,
        times: tuple[float, float] | None = None,
        *,
        ns: tuple[int, int] | None = None,
    ) -> None:
        """Sets the times of the last access and the last change, as `os.utime`; without either to now."""
        if times is not None and ns is not None:
            raise ValueError("utime: either times or ns, not both")
        if ns is None:
            ns = (round(times[0] * 1e9), round(times[1] * 1e9)) if times else (time.time_ns(),) * 2
        self._utime(path, *ns)

    def properties(self, path: PathName) -> Properties:
        """What is asked of a file or directory besides."""
        return Properties._of(self._properties(path))

    def set_properties(
        self, path: PathName, *, untorn: Untorn | None = None, cache: Cache | None = None
    ) -> None:
        """Changes the properties that are given.

        `untorn` is the size of the aligned units that a crash must not leave in part: bytes or text like "16k", a power
        of two from 4 KiB to 1 MiB; 0 or "off" for none. With `cache="drop"` what was read and written does not stay in the
        cache. A directory's properties are handed to what is created in it later.
        """
        _set(lambda name, value: self.setxattr(path, name, value), untorn, cache)

    def getxattr(self, path: PathName, name: Name) -> bytes:
        """An extended attribute; an `OSError` with ENODATA if there is none."""
        value = self._getxattr(path, name)
        if value is None:
            raise _no_attribute(name, self._text(path))
        return value

    def setxattr(self, path: PathName, name: Name, value: Buffer) -> None:
        """Sets an extended attribute; names begin with `user.`, `trusted.` or `security.`."""
        super().setxattr(path, name, _bytes(value))


def _mode(
    mode: str, buffering: int, encoding: str | None, errors: str | None, newline: str | None
) -> str:
    """The mode without `b` and `t`, its letter first; refused as the built-in `open` refuses it."""
    letters = [letter for letter in mode if letter in "rwax"]
    if len(letters) != 1 or len(set(mode)) != len(mode) or set(mode) - set("rwax+bt") or {"b", "t"} <= set(mode):
        raise ValueError(f"invalid mode: {mode!r}")
    if "b" in mode:
        for given, name in ((encoding, "encoding"), (errors, "errors"), (newline, "newline")):
            if given is not None:
                raise ValueError(f"binary mode doesn't take an {name} argument")
        if buffering == 1:
            warnings.warn(
                "line buffering (buffering=1) isn't supported in binary mode, the default buffer size will be used",
                RuntimeWarning,
                stacklevel=3,
            )
    elif buffering == 0:
        raise ValueError("can't have unbuffered text I/O")
    return letters[0] + ("+" if "+" in mode else "")


def _raw_mode(what: str) -> str:
    """What `io.FileIO` calls a mode."""
    return {"w+": "rb+"}.get(what, what[0] + "b" + what[1:])


def _is_address(image: str | os.PathLike[str]) -> bool:
    """Whether it is on a server, and no file."""
    return os.fsdecode(image).startswith(("nbd://", "nbds://", "nbd+unix://", "nbds+unix://"))


def absolute(image: str | os.PathLike[str]) -> str:
    """The address of an image, or its path from the root of the host."""
    text = os.fsdecode(image)
    return text if _is_address(text) else os.path.abspath(text)


def _identity(image: str | os.PathLike[str]) -> tuple[object, ...]:
    """Equal for all names of one image."""
    if _is_address(image):
        return (os.fspath(image),)
    found = os.stat(image)
    return (found.st_dev, found.st_ino)


def beside(path: str) -> str:
    """A new name beside a file, for what is to take its place. A name has 255 bytes."""
    directory, name = os.path.split(path)
    return os.path.join(directory, os.fsdecode(b"." + os.fsencode(name)[:200] + f".{uuid.uuid4().hex}".encode()))


def followed(volume: Volume, path: str) -> str:
    """The path of the file itself, for one that symbolic links lead to."""
    for _ in range(_LINKS_MAX):
        if not volume.islink(path):
            return path
        path = os.path.join(os.path.dirname(path), volume.readlink(path))
    raise OSError(errno.ELOOP, "too many links", path)


def take_over(volume: Volume, old: str, new: str, with_mode: bool = True) -> None:
    """Gives a new file what a write to the old one would have left alone, if there is an old one."""
    if not volume.isfile(old):
        return
    found = volume.stat(old)
    volume.chown(new, found.st_uid, found.st_gid)
    for name in volume.listxattr(old):
        volume.setxattr(new, name, volume.getxattr(old, name))
    if with_mode:
        volume.chmod(new, stat.S_IMODE(found.st_mode))


def opened(image: str | os.PathLike[str], snapshot: str | None = None) -> Volume | None:
    """The volume of an image, or a snapshot of it, that this process has open already."""
    try:
        volume = _open.get((_identity(image), snapshot))
    except OSError:
        return None
    return volume if volume is not None and volume._of_this_process() and not volume.closed else None


@atexit.register
def _close_all() -> None:
    """What a program leaves open is closed in order at its end."""
    failed: Exception | None = None
    for volume in list(_open.values()):
        if volume._of_this_process():
            try:
                volume.close()
            except Exception as error:
                failed = failed or error
    if failed is not None:
        raise failed
