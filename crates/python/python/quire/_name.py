"""What names a file or an attribute: text, bytes, or what `os.fspath` takes."""

import os
from typing import TypeAlias

Name: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
