"""Fsyncs that an event loop waits for."""

import asyncio
import threading
from pathlib import Path

import pytest

import quire


def test_many_fsyncs_hold_no_thread(volume: quire.Volume) -> None:
    """A thousand tasks append and wait, and share the flushes; the program gets no thread more."""
    log = volume.open("log", "ab", 0)

    async def append(number: int) -> None:
        for record in range(5):
            log.append(b"%d %d\n" % (number, record))
            await log.fdatasync_async()

    async def main() -> int:
        most = 0
        tasks = [asyncio.create_task(append(number)) for number in range(1000)]
        while not all(task.done() for task in tasks):
            most = max(most, threading.active_count())
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        return most

    before = volume.metrics()["device_flushes_total"]
    threads = threading.active_count()
    assert asyncio.run(main()) == threads
    flushes = volume.metrics()["device_flushes_total"] - before
    assert 1 <= flushes < 2500, flushes
    assert log.stat().st_size == sum(len(b"%d %d\n" % (n, r)) for n in range(1000) for r in range(5))
    log.close()


def test_tasks_of_one_turn_share_an_fsync(volume: quire.Volume) -> None:
    """Each fsync had begun by itself, so a flush served the few tasks that had run by then: 14 of 100."""
    log = volume.open("log", "ab", 0)

    async def append(number: int) -> None:
        for record in range(20):
            log.append(b"%d %d\n" % (number, record))
            await log.fdatasync_async()

    async def main() -> None:
        await asyncio.gather(*(append(number) for number in range(100)))

    before = volume.metrics()["device_flushes_total"]
    asyncio.run(main())
    # One for each record of all tasks; some more for the volume's own purposes.
    assert volume.metrics()["device_flushes_total"] - before < 60
    log.close()


def test_of_tasks_that_share_an_fsync_one_is_cancelled(volume: quire.Volume) -> None:
    file = volume.open("a", "wb", 0)

    async def sync() -> None:
        file.write(b"x")
        await file.fsync_async()

    async def main() -> None:
        for turns in range(4):
            tasks = [asyncio.create_task(sync()) for _ in range(3)]
            for _ in range(turns):
                await asyncio.sleep(0)
            tasks[0].cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert outcomes[1:] == [None, None]

    asyncio.run(main())
    file.close()


def test_a_file_that_is_closed_meanwhile_raises_in_every_task(volume: quire.Volume) -> None:
    file = volume.open("a", "wb", 0)

    async def main() -> None:
        tasks = [asyncio.create_task(file.fsync_async()) for _ in range(3)]
        await asyncio.sleep(0)
        file.close()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(outcome, (ValueError, OSError)) for outcome in outcomes), outcomes

    asyncio.run(main())


def test_files_and_volumes_become_durable(volume: quire.Volume, tmp_path: Path) -> None:
    files = [volume.open(f"{number}", "wb", 0) for number in range(20)]

    async def main() -> None:
        for file in files:
            file.write(b"data")
        await quire.fsync_files(files)
        await quire.fsync_files([])
        await quire.fsync_files(files, data_only=True)
        await files[0].fsync_async()
        await volume.sync_async()
        # Nothing is left to do, so nothing is waited for.
        await volume.sync_async()
        quire.mkfs(tmp_path / "other.img", size=64 << 20)
        with quire.Volume(tmp_path / "other.img") as other, other.open("a", "wb", 0) as stranger:
            with pytest.raises(ValueError, match="different volumes"):
                await quire.fsync_files([files[0], stranger])

    asyncio.run(main())
    for file in files:
        file.close()


def test_a_task_may_be_cancelled(volume: quire.Volume) -> None:
    """Nothing is promised of its fsync, and others go on."""
    file = volume.open("a", "wb", 0)

    async def sync(number: int) -> None:
        file.pwrite(b"x", number)
        await file.fsync_async()

    async def main() -> None:
        tasks = [asyncio.create_task(sync(number)) for number in range(200)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(outcome is None for outcome in outcomes[1::2])
        assert all(outcome is None or isinstance(outcome, asyncio.CancelledError) for outcome in outcomes[::2])
        assert any(outcome is not None for outcome in outcomes)
        await asyncio.wait_for(sync(0), 30)

    asyncio.run(main())
    file.close()


def test_what_fails_raises_in_the_task(volume: quire.Volume) -> None:
    file = volume.open("a", "wb", 0)

    async def late() -> None:
        file.write(b"x")
        # Beneath the file, which `Volume.close` would close before.
        super(quire.Volume, volume).close()
        await file.fsync_async()

    with pytest.raises(OSError, match="clos"):
        asyncio.run(late())
    file.close()

    async def closed() -> None:
        await file.fsync_async()

    with pytest.raises(ValueError, match="closed file"):
        asyncio.run(closed())


def test_loops_one_after_the_other_and_side_by_side(volume: quire.Volume) -> None:
    file = volume.open("a", "wb", 0)

    async def main() -> None:
        for number in range(20):
            file.pwrite(b"x", number)
            await file.fdatasync_async()

    for _ in range(3):
        asyncio.run(main())
    threads = [threading.Thread(target=asyncio.run, args=(main(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    file.close()
