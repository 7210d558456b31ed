"""What names a file or an attribute: text, bytes, or what `os.fspath` takes. A `quire.Path` names a file, too."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from ._path import Path

Name: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
PathName: TypeAlias = "Name | Path"
