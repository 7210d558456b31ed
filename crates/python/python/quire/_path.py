"""Paths inside a volume, with the methods of `pathlib.Path`.

A path is not an `os.PathLike`: the built-in `open` would look for it on the host.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import total_ordering
from glob import has_magic
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import TypeAlias

    from typing_extensions import Buffer

    from ._properties import Cache, Properties, Untorn
    from ._volume import Volume

    Part: TypeAlias = "str | os.PathLike[str] | Path"


@total_ordering
class Path:
    """A path in a volume. `volume / "a" / "b"` makes one."""

    __slots__ = ("_pure", "volume")

    def __init__(self, volume: Volume, *parts: Part) -> None:
        self.volume = volume
        self._pure = PurePosixPath("/", *map(_plain, parts))

    # What is known without looking.

    def _with(self, pure: PurePosixPath) -> Path:
        return Path(self.volume, pure)

    def __str__(self) -> str:
        return str(self._pure)

    def __repr__(self) -> str:
        return f"quire.Path({self.volume.image!r}, {str(self)!r})"

    def __hash__(self) -> int:
        return hash((id(self.volume), self._pure))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Path):
            return NotImplemented
        return self.volume is other.volume and self._pure == other._pure

    def __lt__(self, other: Path) -> bool:
        if not isinstance(other, Path) or self.volume is not other.volume:
            return NotImplemented
        return self._pure < other._pure

    def __truediv__(self, part: Part) -> Path:
        return self._with(self._pure / _plain(part))

    def joinpath(self, *parts: Part) -> Path:
        return self._with(self._pure.joinpath(*map(_plain, parts)))

    def as_posix(self) -> str:
        return str(self)

    def absolute(self) -> Path:
        return self

    def is_absolute(self) -> bool:
        return True

    @property
    def parts(self) -> tuple[str, ...]:
        return self._pure.parts

    @property
    def name(self) -> str:
        return self._pure.name

    @property
    def stem(self) -> str:
        return self._pure.stem

    @property
    def suffix(self) -> str:
        return self._pure.suffix

    @property
    def suffixes(self) -> list[str]:
        return self._pure.suffixes

    @property
    def parent(self) -> Path:
        return self._with(self._pure.parent)

    @property
    def parents(self) -> list[Path]:
        return [self._with(pure) for pure in self._pure.parents]

    def with_name(self, name: str) -> Path:
        return self._with(self._pure.with_name(name))

    def with_stem(self, stem: str) -> Path:
        return self._with(self._pure.with_stem(stem))

    def with_suffix(self, suffix: str) -> Path:
        return self._with(self._pure.with_suffix(suffix))

    def relative_to(self, other: Part) -> PurePosixPath:
        """The way from `other` to this path, without a volume."""
        return self._pure.relative_to(_pure(other))

    def is_relative_to(self, other: Part) -> bool:
        return self._pure.is_relative_to(_pure(other))

    def match(self, pattern: str) -> bool:
        return self._pure.match(pattern)

    # What is there.

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return self.volume.stat(str(self), follow_symlinks=follow_symlinks)

    def lstat(self) -> os.stat_result:
        return self.stat(follow_symlinks=False)

    def exists(self) -> bool:
        return self.volume.exists(str(self))

    def is_dir(self) -> bool:
        return self.volume.isdir(str(self))

    def is_file(self) -> bool:
        return self.volume.isfile(str(self))

    def is_symlink(self) -> bool:
        return self.volume.islink(str(self))

    def is_fifo(self) -> bool:
        return self.volume._kind(self, True) == stat.S_IFIFO

    def is_socket(self) -> bool:
        return self.volume._kind(self, True) == stat.S_IFSOCK

    def is_block_device(self) -> bool:
        return self.volume._kind(self, True) == stat.S_IFBLK

    def is_char_device(self) -> bool:
        return self.volume._kind(self, True) == stat.S_IFCHR

    def samefile(self, other: Path) -> bool:
        return self.volume is other.volume and self.stat().st_ino == other.stat().st_ino

    def iterdir(self) -> Iterator[Path]:
        for name in self.volume.listdir(str(self)):
            yield self / name

    def walk(self) -> Iterator[tuple[Path, list[str], list[str]]]:
        """As `pathlib.Path.walk`: links to directories are among the files, unlike in `Volume.walk`."""
        for directory, directories, files in self.volume._walk(self, links_are_files=True):
            yield self._with(PurePosixPath(directory)), directories, files

    def glob(self, pattern: str) -> Iterator[Path]:
        """Paths below this one that fit a pattern, as in Python 3.11: `**` stands for any number of directories, and does not
        follow links. Directories that vanish meanwhile are skipped.
        """
        if not pattern:
            raise ValueError(f"Unacceptable pattern: {pattern!r}")
        return self._matching(*_parts(pattern))

    def rglob(self, pattern: str) -> Iterator[Path]:
        """As `glob` with `**/` before the pattern."""
        return self._matching("**", *_parts(pattern))

    def _matching(self, *parts: str) -> Iterator[Path]:
        """What fits a pattern below this path. The last part is empty if only directories fit."""
        if not parts or parts == ("",):
            yield self
            return
        part, rest = parts[0], parts[1:]
        if part == "**":
            # Another `**` behind this one leads to the same paths from several directories.
            repeats = "**" in rest
            found: set[Path] = set()
            for directory, _, _ in self.walk():
                for path in directory._matching(*rest):
                    if not repeats:
                        yield path
                    elif path not in found:
                        found.add(path)
                        yield path
        elif not has_magic(part):
            path = self / part
            if path.is_dir() if rest else path.exists():
                yield from path._matching(*rest)
        else:
            try:
                entries = list(self.volume.scandir(self))
            except (FileNotFoundError, NotADirectoryError):
                return
            for entry in entries:
                if fnmatchcase(entry.name, part) and (not rest or entry.is_dir()):
                    yield from (self / entry.name)._matching(*rest)

    def readlink(self) -> str:
        return self.volume.readlink(str(self))

    # Contents.

    def open(
        self,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        **options: Any,
    ) -> Any:
        """As `Volume.open`."""
        return self.volume.open(str(self), mode, buffering, encoding, errors, newline, **options)

    def read_bytes(self) -> bytes:
        with self.volume.open(str(self), "rb", 0) as file:
            return file.readall()

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        with self.open("r", -1, encoding, errors) as file:
            return str(file.read())

    def write_bytes(self, data: Buffer) -> int:
        with self.volume.open(str(self), "wb") as file:
            return file.write(data)

    def write_text(
        self,
        data: str,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> int:
        with self.open("w", -1, encoding, errors, newline) as file:
            return int(file.write(data))

    def touch(self, mode: int = 0o644, exist_ok: bool = True) -> None:
        try:
            self.volume.open(str(self), "xb", 0, permissions=mode).close()
        except FileExistsError:
            if not exist_ok:
                raise
            self.volume.utime(str(self))

    # Names.

    def mkdir(self, mode: int = 0o755, parents: bool = False, exist_ok: bool = False) -> None:
        if parents:
            return self.volume.makedirs(str(self), mode, exist_ok)
        try:
            self.volume.mkdir(str(self), mode)
        except OSError:
            if not exist_ok or not self.is_dir():
                raise

    def rmdir(self) -> None:
        self.volume.rmdir(str(self))

    def rmtree(self) -> None:
        """Removes a directory and everything below it."""
        self.volume.rmtree(str(self))

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            self.volume.unlink(str(self))
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rename(self, target: Part) -> Path:
        """Renames, atomically, over what has the new name; gives the new path."""
        new = target if isinstance(target, Path) else self._with(_pure(target))
        self.volume.rename(self, new)
        return new

    def replace(self, target: Part) -> Path:
        return self.rename(target)

    def symlink_to(self, target: Part) -> None:
        self.volume.symlink(str(target), str(self))

    def hardlink_to(self, target: Part) -> None:
        self.volume.link(target, self)

    def chmod(self, mode: int) -> None:
        self.volume.chmod(str(self), mode)

    # Extended attributes.

    def getxattr(self, name: str) -> bytes:
        return self.volume.getxattr(str(self), name)

    def setxattr(self, name: str, value: Buffer) -> None:
        self.volume.setxattr(str(self), name, value)

    def removexattr(self, name: str) -> None:
        self.volume.removexattr(str(self), name)

    def listxattr(self) -> list[str]:
        return self.volume.listxattr(str(self))

    # Properties.

    def properties(self) -> Properties:
        return self.volume.properties(str(self))

    def set_properties(self, *, untorn: Untorn | None = None, cache: Cache | None = None) -> None:
        self.volume.set_properties(str(self), untorn=untorn, cache=cache)


def _plain(part: Part) -> str | os.PathLike[str]:
    return part._pure if isinstance(part, Path) else part


def _pure(path: Part) -> PurePosixPath:
    return PurePosixPath("/", _plain(path))


def _parts(pattern: str) -> tuple[str, ...]:
    """The parts of a pattern, and an empty one if a slash ends it."""
    parts = PurePosixPath(pattern).parts
    if pattern.startswith("/"):
        raise NotImplementedError("Non-relative patterns are unsupported")
    if any("**" in part and part != "**" for part in parts):
        raise ValueError("Invalid pattern: '**' can only be an entire path component")
    return (*parts, "") if pattern.endswith("/") else parts
