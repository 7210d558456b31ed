"""Quire: a crash-safe, journaling file system in user space.

A volume lives in an image file or on a block device. This module opens it without a mount or privileges:

    import quire

    quire.mkfs("data.img", size=64 << 20)
    with quire.Volume("data.img") as volume:
        volume.makedirs("logs/2026")
        with volume.open("logs/2026/events", "a") as log:
            log.write("started\\n")
        volume.sync()

`quire.fs` has the fsspec file system behind URLs like `quire://data.img/logs/2026/events`.
"""

from ._aio import fsync_files
from ._file import File
from ._group import FileGroup, Group
from ._path import Path
from ._properties import Properties
from ._volume import DirEntry, Snapshot, Volume, VolumeInfo, mkfs, resize, roll_back, set_label

__all__ = [
    "DirEntry",
    "File",
    "FileGroup",
    "Group",
    "Path",
    "Properties",
    "Snapshot",
    "Volume",
    "VolumeInfo",
    "fsync_files",
    "mkfs",
    "resize",
    "roll_back",
    "set_label",
]
