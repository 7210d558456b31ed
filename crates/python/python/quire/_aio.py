"""Fsyncs that an event loop waits for. The library does them; no thread waits for one.

Each event loop has one `Completions`, and watches its descriptor. It lives as long as the loop does.

Tasks that fsync one file in the same turn of the loop share an fsync of the library. It begins when all tasks of that turn
have run, and covers what they had written. So one flush serves all of them, however slowly Python makes them ready.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ._native import Completions, NativeFile

if TYPE_CHECKING:
    from ._file import File


class _Shared:
    """An fsync of a file that several tasks wait for."""

    def __init__(self, file: NativeFile, loop: asyncio.AbstractEventLoop) -> None:
        self.file = file
        self.waiting: list[asyncio.Future[None]] = []
        self.outcome: asyncio.Future[None] = loop.create_future()
        self.outcome.add_done_callback(self._settle)
        self.number: int | None = None

    def is_given_up(self) -> bool:
        """Whether all its tasks were cancelled."""
        return all(future.done() for future in self.waiting)

    def begin(self, completions: Completions, data_only: bool) -> None:
        try:
            self.number = completions.sync_file(self.file, data_only, self.outcome)
            if self.number is None:
                self.outcome.set_result(None)
        except Exception as error:
            self.outcome.set_exception(error)

    def _settle(self, outcome: asyncio.Future[None]) -> None:
        error = outcome.exception()
        for future in self.waiting:
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)


class _Loop:
    """What an event loop has under way. It must not keep the loop alive, which is its key."""

    def __init__(self) -> None:
        self.completions = Completions()
        self._gathered: dict[tuple[int, bool], _Shared] = {}

    def share(self, file: NativeFile, data_only: bool, loop: asyncio.AbstractEventLoop) -> _Shared:
        """The fsync of a file that begins at the end of this turn."""
        if not self._gathered:
            loop.call_soon(self._begin)
        # The file lives as long as it is gathered, so nothing else has its number.
        key = (id(file), data_only)
        if key not in self._gathered:
            self._gathered[key] = _Shared(file, loop)
        return self._gathered[key]

    def _begin(self) -> None:
        gathered, self._gathered = self._gathered, {}
        for (_, data_only), shared in gathered.items():
            if not shared.is_given_up():
                shared.begin(self.completions, data_only)


_of_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Loop] = weakref.WeakKeyDictionary()


def _of(loop: asyncio.AbstractEventLoop) -> _Loop:
    of_loop = _of_loops.get(loop)
    if of_loop is None:
        of_loop = _Loop()
        loop.add_reader(of_loop.completions.fileno(), of_loop.completions.drain)
        _of_loops[loop] = of_loop
    return of_loop


async def sync_file(file: NativeFile, data_only: bool) -> None:
    """Awaits an fsync of a file; it is given up when all tasks that share it are cancelled."""
    loop = asyncio.get_running_loop()
    of_loop = _of(loop)
    shared = of_loop.share(file, data_only, loop)
    future: asyncio.Future[None] = loop.create_future()
    shared.waiting.append(future)
    try:
        await future
    except asyncio.CancelledError:
        if shared.number is not None and shared.is_given_up():
            of_loop.completions.withdraw(shared.number)
        raise


async def syncing(begin: Callable[[Completions, asyncio.Future[None]], int | None]) -> None:
    """Awaits an fsync that `begin` starts; a task that is cancelled gives it up."""
    loop = asyncio.get_running_loop()
    completions = _of(loop).completions
    future: asyncio.Future[None] = loop.create_future()
    number = begin(completions, future)
    if number is None:
        return
    try:
        await future
    except asyncio.CancelledError:
        completions.withdraw(number)
        raise


async def fsync_files(files: Iterable[File], *, data_only: bool = False) -> None:
    """Makes files of one volume durable together: they share a few writes of the journal.

    Raises the first error. Buffered files are flushed by their own `flush` before; these are the raw ones.
    """
    from ._file import _native_of

    files = list(files)
    natives = [_native_of(file) for file in files]
    if not files:
        return
    volume = files[0].volume
    for file in files:
        if file.volume is not volume:
            raise ValueError("the files are on different volumes")
    await syncing(lambda completions, future: completions.sync_files(volume, natives, data_only, future))
