"""Fsyncs that an event loop waits for. The library does them; no thread waits for one.

Each event loop has one `Completions`, and watches its descriptor. It lives as long as the loop does.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ._native import Completions

if TYPE_CHECKING:
    from ._file import File

_of_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Completions] = weakref.WeakKeyDictionary()


def _of(loop: asyncio.AbstractEventLoop) -> Completions:
    completions = _of_loops.get(loop)
    if completions is None:
        completions = Completions()
        loop.add_reader(completions.fileno(), completions.drain)
        _of_loops[loop] = completions
    return completions


async def syncing(begin: Callable[[Completions, asyncio.Future[None]], int | None]) -> None:
    """Awaits an fsync that `begin` starts; a task that is cancelled gives it up."""
    loop = asyncio.get_running_loop()
    completions = _of(loop)
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
