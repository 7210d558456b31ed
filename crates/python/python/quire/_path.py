"""Paths inside a volume, with the methods of `pathlib.Path`.

A path is not an `os.PathLike`: the built-in `open` would look for it on the host.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from functools import lru_cache, total_ordering
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ._properties import Cache, Properties, Untorn
    from ._volume import Volume

    Part = str | os.PathLike[str]


@total_ordering
class Path:
    """A path in a volume. `volume / "a" / "b"` makes one."""

    __slots__ = ("_pure", "volume")

    def __init__(self, volume: Volume, *parts: Part) -> None:
        self.volume = volume
        self._pure = PurePosixPath("/", *parts)

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
        return self._with(self._pure / part)

    def joinpath(self, *parts: Part) -> Path:
        return self._with(self._pure.joinpath(*parts))

    def as_posix(self) -> str:
        return str(self)

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

    def relative_to(self, other: Path | Part) -> PurePosixPath:
        """The way from `other` to this path, without a volume."""
        return self._pure.relative_to(_pure(other))

    def is_relative_to(self, other: Path | Part) -> bool:
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

    def samefile(self, other: Path) -> bool:
        return self.volume is other.volume and self.stat().st_ino == other.stat().st_ino

    def iterdir(self) -> Iterator[Path]:
        for name in self.volume.listdir(str(self)):
            yield self / name

    def walk(self) -> Iterator[tuple[Path, list[str], list[str]]]:
        for directory, directories, files in self.volume.walk(str(self)):
            yield self._with(PurePosixPath(directory)), directories, files

    def glob(self, pattern: str) -> Iterator[Path]:
        """Paths below this one that fit a pattern; `**` stands for any number of directories."""
        if not pattern or pattern.startswith("/"):
            raise ValueError(f"unacceptable pattern: {pattern!r}")
        only_directories = pattern.endswith("/")
        parts = PurePosixPath(pattern).parts
        if parts[-1] == "**":
            only_directories = True
        fits = _pattern(parts)
        deep = len(parts) if "**" not in parts else None
        if parts[0] == "**" and fits.fullmatch("") and self.is_dir():
            yield self
        yield from self._below("", fits, deep, only_directories)

    def _below(
        self, way: str, fits: re.Pattern[str], deep: int | None, only_directories: bool
    ) -> Iterator[Path]:
        try:
            entries = list(self.volume.scandir(str(self / way)))
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in entries:
            found = f"{way}/{entry.name}" if way else entry.name
            is_directory = entry.is_dir(follow_symlinks=False)
            if fits.fullmatch(found) and (is_directory or not only_directories or self._leads_to_dir(found)):
                yield self / found
            if is_directory and (deep is None or found.count("/") + 1 < deep):
                yield from self._below(found, fits, deep, only_directories)

    def _leads_to_dir(self, way: str) -> bool:
        return (self / way).is_dir()

    def rglob(self, pattern: str) -> Iterator[Path]:
        return self.glob(f"**/{pattern}")

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

    def touch(self, *, exist_ok: bool = True) -> None:
        try:
            self.volume.open(str(self), "xb", 0).close()
        except FileExistsError:
            if not exist_ok:
                raise
            self.volume.utime(str(self))

    # Names.

    def mkdir(self, mode: int = 0o755, parents: bool = False, exist_ok: bool = False) -> None:
        if parents:
            self.volume.makedirs(str(self.parent))
        try:
            self.volume.mkdir(str(self), mode)
        except FileExistsError:
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

    def rename(self, target: Path | Part) -> Path:
        """Renames, atomically, over what has the new name; gives the new path."""
        if isinstance(target, Path) and target.volume is not self.volume:
            raise OSError(errno.EXDEV, "the paths are on different volumes", str(self), None, str(target))
        new = self._with(_pure(target))
        self.volume.rename(str(self), str(new))
        return new

    def replace(self, target: Path | Part) -> Path:
        return self.rename(target)

    def symlink_to(self, target: Path | Part) -> None:
        self.volume.symlink(str(target), str(self))

    def hardlink_to(self, target: Path | Part) -> None:
        self.volume.link(str(_pure(target)), str(self))

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


def _pure(path: Path | Part) -> PurePosixPath:
    return path._pure if isinstance(path, Path) else PurePosixPath("/", path)


@lru_cache(maxsize=256)
def _pattern(parts: tuple[str, ...]) -> re.Pattern[str]:
    """What the relative paths that fit the parts of a pattern look like."""
    text = ""
    for index, part in enumerate(parts):
        last = index + 1 == len(parts)
        if part == "**":
            if index and parts[index - 1] == "**":
                continue
            if not last and set(parts[index:]) != {"**"}:
                text += "(?:[^/]+/)*"
            elif text:
                # What stands before it fits, too.
                text = text.removesuffix("/") + "(?:/[^/]+)*"
            else:
                text += "(?:[^/]+(?:/[^/]+)*)?"
        else:
            text += _component(part) + ("" if last else "/")
    return re.compile(text, re.DOTALL)


def _component(part: str) -> str:
    """A shell pattern for one name as a regular expression."""
    text, at = "", 0
    while at < len(part):
        letter = part[at]
        at += 1
        end = part.find("]", at + 1 + part.startswith("!", at)) if letter == "[" else -1
        if letter == "*":
            text += "[^/]*"
        elif letter == "?":
            text += "[^/]"
        elif end > 0:
            letters = part[at:end].replace("\\", r"\\").replace("[", r"\[").replace("^", r"\^")
            text += "[" + ("^" + letters[1:] if letters.startswith("!") else letters) + "]"
            at = end + 1
        else:
            text += re.escape(letter)
    return text
