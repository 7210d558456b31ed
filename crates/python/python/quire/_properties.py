"""Properties: what a program asks of a file besides what it writes into it (docs/properties.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from typing import TypeAlias

    Untorn: TypeAlias = int | str
    Cache: TypeAlias = Literal["keep", "drop"]


@dataclass(frozen=True)
class Properties:
    """Properties of a file or directory. A directory hands them to what is created in it."""

    #: Bytes of the aligned units that a crash must not leave in part; 0 if it may.
    untorn: int = 0
    #: Whether what was read and written stays in the cache.
    cache: Cache = "keep"

    @classmethod
    def _of(cls, fields: tuple[int, bool]) -> Properties:
        untorn, cache_drop = fields
        return cls(untorn, "drop" if cache_drop else "keep")


def _set(setxattr: Callable[[str, bytes], None], untorn: Untorn | None, cache: Cache | None) -> None:
    """Sets those that are given, by their attributes: each changes alone."""
    if untorn is not None:
        setxattr("user.quire.untorn", b"off" if untorn == 0 else str(untorn).encode())
    if cache is not None:
        setxattr("user.quire.cache", cache.encode())
