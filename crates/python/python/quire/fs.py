"""The fsspec file system of `quire://` URLs.

    quire://IMAGE/path/in/the/volume

IMAGE is a path of the host: `quire://data.img/t.parquet` is relative, `quire:///srv/data.img/t.parquet` is absolute. It
ends at the first part that is no directory of the host. Where the image is given as an option (`image=`, or `volume=` for
an open `quire.Volume`), the URL may have only the path in the volume.

A volume that this process has open is shared, else it is opened with the first use, and closed when the program ends. A
snapshot of an open volume is opened beside it.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from contextlib import suppress
from datetime import datetime, timezone
from glob import has_magic
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.config import apply_config
from fsspec.utils import stringify_path, tokenize

from ._volume import Volume, _identity, absolute, beside, followed, opened, take_over

_PROTOCOL = "quire://"
#: Options for the buffers of fsspec's own files, which programs pass to every file system. They have no effect here.
_OF_BUFFERED_FILES = ("cache_type", "size", "fill_cache", "max_blocks")
_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory"}
#: Held while a volume is looked for and opened: two threads would open it twice.
_opening = threading.Lock()


def split(url: str) -> tuple[str | None, str]:
    """The image of a URL, absolute, and the path in its volume; no image if the host has none there."""
    rest = url[len(_PROTOCOL) :]
    parts = rest.split("/")
    for count in range(1, len(parts) + 1):
        image = "/".join(parts[:count])
        try:
            mode = os.stat(image or "/").st_mode
        except OSError:
            break
        if stat.S_ISREG(mode) or stat.S_ISBLK(mode):
            return os.path.abspath(image), "/" + "/".join(parts[count:])
        if not stat.S_ISDIR(mode):
            break
    return None, "/" + rest


def _plain(path: str) -> str:
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


class _Identified(type(AbstractFileSystem)):  # type: ignore[misc]
    """Gives fsspec arguments that identify the volume. It finds existing instances by the text of the arguments, and sends the
    arguments to other processes. A relative path depends on the working directory, and two volumes may look the same.
    """

    def __call__(cls, image: Any = None, *arguments: Any, **options: Any) -> Any:
        options = apply_config(cls, options if image is None else options | {"image": image})
        if options.get("image") is not None:
            options["image"] = absolute(stringify_path(options["image"]))
        volume = options.get("volume")
        if volume is None:
            return super().__call__(*arguments, **options)
        made = super().__call__(*arguments, **options | {"skip_instance_cache": True})
        made._fs_token_ = tokenize(made._fs_token_, id(volume))
        return made


class QuireFileSystem(AbstractFileSystem, metaclass=_Identified):  # type: ignore[misc]
    """Files of a volume for fsspec, and so for pandas, pyarrow and others.

    `image` is the path of the volume's image file or block device, or `volume` an open `quire.Volume`. With `auto_mkdir=True`
    the directories above a file that is created are created, too. `options` are those of `quire.Volume`. If the process has
    the volume open, `snapshot` opens a snapshot beside it, `read_only=True` refuses changes through this file system, and
    other options must be those that the volume was opened with.
    """

    protocol = "quire"
    root_marker = "/"
    local_file = False

    def __init__(
        self,
        image: str | os.PathLike[str] | None = None,
        *,
        volume: Volume | None = None,
        image_of_url: str | None = None,
        auto_mkdir: bool = False,
        **options: Any,
    ) -> None:
        of_fsspec = {
            name: options.pop(name)
            for name in ("use_listings_cache", "listings_expiry_time", "max_paths", "asynchronous", "loop")
            if name in options
        }
        super().__init__(**of_fsspec)
        known = Volume.__init__.__kwdefaults__ or {}
        for name in options:
            if name not in known or name.startswith("_"):
                raise TypeError(f"neither quire.Volume nor the file system has an option {name!r}")
        #: A URL of another image is a mistake then; else it may be a path in the volume.
        self._is_of_url = volume is None and image is None
        if self._is_of_url:
            image = image_of_url
        if volume is None and image is None:
            raise ValueError(
                "there is no image: the URL quire://IMAGE/path has none that exists, and neither image= nor volume= is given"
            )
        #: A volume that was given is not opened again when it has been closed.
        self._is_given = volume is not None
        self._volume = volume
        self._options = options
        self.auto_mkdir = auto_mkdir
        if volume is not None:
            self.image = volume.image
            self._compare(volume)
        else:
            self.image = str(image)
        if image_of_url is not None and not self._is(image_of_url):
            raise ValueError(f"the URL leads into {image_of_url}, and the given image is {self.image}")
        # The class's own knows no image, and cuts a URL at any.
        self._strip_protocol = self._strip  # type: ignore[method-assign]

    @property
    def volume(self) -> Volume:
        """The volume, opened if need be."""
        if self._volume is None or (self._volume.closed and not self._is_given):
            with _opening:
                if self._volume is None or self._volume.closed:
                    self._volume = self._opened()
        return self._volume

    def _opened(self) -> Volume:
        """The volume that is open already, or a snapshot of it; otherwise it is opened."""
        snapshot = self._options.get("snapshot")
        shared = opened(self.image, snapshot)
        if shared is None and snapshot is not None and (live := opened(self.image)) is not None:
            shared = live.open_snapshot(snapshot)
            shared._warns = False
        if shared is not None:
            self._compare(shared)
            return shared
        volume = Volume(self.image, **self._options)
        # The end of the program closes it.
        volume._warns = False
        return volume

    def _compare(self, volume: Volume) -> None:
        """Refuses a volume that is open with other options than those asked for. `_writable` enforces `read_only=True`."""
        for name, value in self._options.items():
            own = volume.snapshot if name == "snapshot" else volume._options[name]
            fits = value == own or (name == "read_only" and (value or volume.snapshot is not None))
            if not fits:
                raise ValueError(f"the volume {volume.image} is open with {name}={own!r}, and {name}={value!r} is asked for")

    @property
    def _writable(self) -> Volume:
        """The volume, for what changes it."""
        if self._options.get("read_only"):
            raise OSError(errno.EROFS, "the file system was made with read_only=True", self.image)
        return self.volume

    @property
    def fsid(self) -> str:
        return f"quire_{self.volume.info().uuid}"

    # URLs.

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = stringify_path(path)
        return _plain(split(path)[1] if path.startswith(_PROTOCOL) else path)

    def _strip(self, path: Any) -> Any:
        if isinstance(path, list):
            return [self._strip(one) for one in path]
        path = stringify_path(path)
        return _plain(self._inside(path) if path.startswith(_PROTOCOL) else path)

    def _inside(self, url: str) -> str:
        """The path in the volume: without the image if that is this one."""
        own = _PROTOCOL + self.image
        if url == own or url.startswith(own + "/"):
            return url[len(own) :]
        image, inside = split(url)
        if image is not None and self._is(image):
            return inside
        if image is not None and self._is_of_url:
            raise ValueError(f"{url} is not in {self.image}")
        return url[len(_PROTOCOL) :]

    def _is(self, image: str) -> bool:
        try:
            return _identity(image) == _identity(self.image)
        except OSError:
            return image == self.image

    def _parent(self, path: Any) -> str:
        # The base class has one of the class.
        return os.path.dirname(str(self._strip(path)))

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        image = split(path)[0] if path.startswith(_PROTOCOL) else None
        return {} if image is None else {"image_of_url": image}

    def unstrip_protocol(self, name: str) -> str:
        if name.startswith(_PROTOCOL):
            return name
        return f"{_PROTOCOL}{self.image}{self._strip_protocol(name)}"

    # Looking.

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        found = self.volume.lstat(path)
        is_link = stat.S_ISLNK(found.st_mode)
        info = {"name": path, "islink": is_link}
        if is_link:
            info["destination"] = self.volume.readlink(path)
            if not self.volume.exists(path):
                return info | {"type": "link", "size": found.st_size, "mtime": found.st_mtime}
            found = self.volume.stat(path)
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "other")
        return info | {
            "type": kind,
            "size": found.st_size if kind == "file" else 0,
            "mode": found.st_mode,
            "uid": found.st_uid,
            "gid": found.st_gid,
            "ino": found.st_ino,
            "nlink": found.st_nlink,
            "mtime": found.st_mtime,
            "created": self.volume.created(path),
        }

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path)
        if self.volume.isdir(path):
            paths = [os.path.join(path, name) for name in sorted(self.volume.listdir(path))]
        else:
            paths = [path]
            self.volume.lstat(path)
        if not detail:
            return paths
        infos = []
        for each in paths:
            try:
                infos.append(self.info(each))
            except FileNotFoundError:
                if each == path:
                    raise
        return infos

    def exists(self, path: str, **_: Any) -> bool:
        return self.volume.exists(self._strip_protocol(path))

    def lexists(self, path: str, **_: Any) -> bool:
        return self.volume.lexists(self._strip_protocol(path))

    def isdir(self, path: str) -> bool:
        return self.volume.isdir(self._strip_protocol(path))

    def isfile(self, path: str) -> bool:
        return self.volume.isfile(self._strip_protocol(path))

    def islink(self, path: str) -> bool:
        return self.volume.islink(self._strip_protocol(path))

    def created(self, path: str) -> datetime:
        return datetime.fromtimestamp(self.volume.created(self._strip_protocol(path)), timezone.utc)

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(self.info(path)["mtime"], timezone.utc)

    # Contents.

    def open(self, path: Any, mode: str = "rb", *arguments: Any, **options: Any) -> Any:
        # `_open` adds the file of a transaction. This is called for each layer, and the outermost one comes last.
        uncommitted = options.setdefault("_uncommitted", [])
        file = super().open(path, mode, *arguments, **options)
        for inner in uncommitted:
            inner.outer = file
        return file

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        _uncommitted: list[Any] | None = None,
        **options: Any,
    ) -> Any:
        path = self._strip_protocol(path)
        for name in _OF_BUFFERED_FILES:
            options.pop(name, None)
        reads_only = "r" in mode and "+" not in mode
        volume = self.volume if reads_only else self._writable
        if "r" not in mode:
            self._make_parent(path)
        if autocommit or reads_only:
            file = volume.open(path, mode, **options)
        else:
            uncommitted = _Uncommitted(volume, path, mode, options)
            if _uncommitted is not None:
                _uncommitted.append(uncommitted)
            if "r" in mode:
                # Those of other modes fsspec itself adds to the transaction.
                self.transaction.files.append(uncommitted)
            file = uncommitted
        file.path, file.fs = path, self
        if reads_only:
            # `read_block` and others expect it.
            file.size = file.seek(0, os.SEEK_END)
            file.seek(0)
        return file

    def _make_parent(self, path: str) -> None:
        if self.auto_mkdir:
            self._writable.makedirs(self._parent(path), exist_ok=True)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        with self.volume.open(self._strip_protocol(path), "rb", 0) as file:
            size = file.stat().st_size
            start, end, _step = slice(start, end).indices(size)
            return file.pread(max(end - start, 0), start)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        with self.open(path, "xb" if mode == "create" else "wb") as file:
            file.write(value)

    def touch(self, path: str, truncate: bool = True, **_: Any) -> None:
        path = self._strip_protocol(path)
        if truncate or not self.volume.exists(path):
            self.open(path, "wb").close()
        else:
            self._writable.utime(path)

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        self._make_parent(path2)
        if self.volume.isdir(path1):
            self._writable.makedirs(path2, exist_ok=True)
        else:
            self._writable.copyfile(path1, path2)

    # Names.

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        make = self._writable.makedirs if create_parents else self._writable.mkdir
        make(self._strip_protocol(path))

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self._writable.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        self._writable.rmdir(self._strip_protocol(path))

    def rm_file(self, path: str) -> None:
        self._writable.unlink(self._strip_protocol(path))

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        for each in [path] if isinstance(path, (str, os.PathLike)) else path:
            each = self._strip_protocol(each)
            found = [each] if not isinstance(each, str) or "*" not in each else self.expand_path(each)
            for one in found:
                if not self.volume.isdir(one) or self.volume.islink(one):
                    self._writable.unlink(one)
                elif recursive:
                    self._writable.rmtree(one)
                else:
                    raise IsADirectoryError(errno.EISDIR, "remove a directory with recursive=True", one)

    def mv(self, path1: Any, path2: Any, **_: Any) -> None:
        """Renames a file or directory, or moves it into `path2` if that is a directory. Several, of a list or a pattern, are
        moved into the directory `path2`, which is made if need be, or to the names of a list.
        """
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        if isinstance(path1, str) and has_magic(path1) and not self.volume.lexists(path1):
            path1 = self.expand_path(path1)
        if isinstance(path1, str):
            path1, path2 = [path1], [path2]
        elif isinstance(path2, str):
            self._writable.makedirs(path2, exist_ok=True)
            path2 = [path2] * len(path1)
        for source, target in zip(path1, path2, strict=True):
            if source != target and self.volume.isdir(target):
                target = os.path.join(target, os.path.basename(source))
            self._writable.rename(source, target)

    mv_file = mv

    def link(self, src: str, dst: str, **_: Any) -> None:
        self._writable.link(self._strip_protocol(src), self._strip_protocol(dst))

    def symlink(self, src: str, dst: str, **_: Any) -> None:
        self._writable.symlink(self._strip_protocol(src), self._strip_protocol(dst))


class _Uncommitted:
    """A file of a transaction: written beside its place, and renamed to it by `commit`."""

    def __init__(self, volume: Volume, path: str, mode: str, options: dict[str, Any]) -> None:
        self._volume = volume
        self.path = path
        self._replace = "x" not in mode
        if not self._replace and volume.lexists(path):
            raise FileExistsError(errno.EEXIST, "the name is taken", path)
        self._target = followed(volume, path)
        self._beside = beside(self._target)
        try:
            if "r" in mode or ("a" in mode and volume.exists(path)):
                volume.copyfile(path, self._beside)
            self._file = volume.open(self._beside, mode, **options)
            take_over(volume, self._target, self._beside, with_mode="permissions" not in options)
        except BaseException:
            self._remove()
            raise
        # What makes text of it, or compresses, with a buffer of its own.
        self.outer = self._file

    def commit(self) -> None:
        try:
            # What it has in its buffers belongs to it. What compresses leaves it open.
            self.outer.close()
            self._file.close()
            # Its name must not become durable before its data.
            with self._volume.open(self._beside, "rb", 0) as file:
                file.fsync()
            self._volume.rename(self._beside, self._target, replace=self._replace)
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        for file in (self.outer, self._file):
            with suppress(OSError):
                file.close()
        self._remove()

    def _remove(self) -> None:
        with suppress(FileNotFoundError):
            self._volume.unlink(self._beside)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __iter__(self) -> Any:
        return iter(self._file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
