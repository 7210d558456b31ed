"""Groups of writes: all of one or nothing, for readers and after a crash; and the properties of files."""

import asyncio
import errno
import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Literal

import pytest

import quire

COMMITS: tuple[Literal["now", "lazy", "ordered"], ...] = ("now", "lazy", "ordered")


def pair(volume: quire.Volume) -> tuple[quire.File, quire.File]:
    return volume.open("a", "w+b", 0), volume.open("b", "w+b", 0)


def test_a_block_that_ends_commits(volume: quire.Volume) -> None:
    a, b = pair(volume)
    a.write(b"0123456789")
    with volume.atomic() as group:
        assert group.pwrite(a, b"XY", 2) == 2
        assert group.pwrite(b, memoryview(bytearray(b"new")), 1) == 3
        assert group.truncate(a, 6) == 6
        assert (group.pread(a, 1 << 50, 0), group.size(a), group.size(b)) == (b"01XY45", 6, 4)
        assert (group.pread(b, 3, 2), group.pread(b, 3, 9)) == (b"ew", b"")
        assert (a.pread(99, 0), b.pread(99, 0)) == (b"0123456789", b"")
        assert not group.ended
        a.close()  # the group keeps what it needs
    assert group.ended
    assert ((volume / "a").read_bytes(), b.pread(99, 0)) == (b"01XY45", b"\0new")
    with pytest.raises(ValueError, match="committed or aborted"):
        group.pwrite(b, b"late", 0)
    with pytest.raises(ValueError, match="committed or aborted"):
        group.commit()
    group.abort()
    b.close()


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_block_that_raises_leaves_nothing(volume: quire.Volume, error: type[BaseException]) -> None:
    a, b = pair(volume)
    with pytest.raises(error), volume.atomic() as group:
        group.pwrite(a, b"lost", 0)
        group.truncate(b, 100)
        raise error
    assert group.ended and a.stat().st_size == 0 == b.stat().st_size
    with volume.atomic() as group:
        group.pwrite(a, b"lost", 0)
        group.abort()
    assert a.stat().st_size == 0
    with volume.atomic() as group:
        group.pwrite(a, b"kept", 0)
        group.commit()
    assert a.pread(9, 0) == b"kept"
    a.close()
    b.close()


def test_a_file_has_groups_of_its_own(volume: quire.Volume) -> None:
    with volume.open("a", "a+b", 0) as file:
        file.write(b"0123456789")
        for number, commit in enumerate(COMMITS):
            with file.atomic(commit, within=0.01) as group:
                assert group.pwrite(b"%d" % number, 0) == 1 and group.truncate(5 + number) == 5 + number
                assert (group.size(), group.pread(2, 0)) == (5 + number, b"%d1" % number)
            assert file.pread(99, 0) == b"%d1234" % number + b"\0" * number
        assert file.tell() == 10


def test_a_group_that_is_durable_has_forced(volume: quire.Volume) -> None:
    with volume.open("a", "wb", 0) as file:
        file.fsync()
        for commit in COMMITS[:2]:
            before = volume.metrics()["device_flushes_total"]
            with volume.atomic(commit, within=0) as group:
                group.pwrite(file, commit.encode(), 0)
            assert volume.metrics()["device_flushes_total"] > before, commit


def test_what_a_group_refuses(volume: quire.Volume, tmp_path: Path) -> None:
    (volume / "a").write_bytes(b"old")
    with pytest.raises(ValueError, match="now, lazy and ordered"):
        volume.atomic("later")  # type: ignore[arg-type]
    for within in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="within"):
            volume.atomic("lazy", within=within)
    group = volume.atomic()
    with volume.open("a", "rb", 0) as readable, volume.open("b", "wb", 0) as writable:
        with pytest.raises(io.UnsupportedOperation):
            group.pwrite(readable, b"x", 0)
        with pytest.raises(io.UnsupportedOperation):
            group.pread(writable, 1, 0)
        assert group.pread(readable, 9, 0) == b"old"
        most = volume.group_bytes_max // 2 // 4096 * 4096
        assert group.pwrite(writable, bytes(most), 0) == most
        with pytest.raises(OSError) as raised:
            # Promises to other files' dirty data may become free meanwhile.
            group.pwrite(writable, bytes(volume.group_bytes_max + (1 << 20)), most)
        assert raised.value.errno == errno.ENOSPC
        assert group.size(writable) == most
        with volume.open("c", "wb") as buffered, pytest.raises(TypeError, match="buffering=0"):
            group.pwrite(buffered, b"x", 0)  # type: ignore[arg-type]
        group.commit()
        assert writable.stat().st_size == most
    with pytest.raises(ValueError, match="closed"):
        readable.atomic()
    quire.mkfs(tmp_path / "other.img", size=64 << 20)
    with quire.Volume(tmp_path / "other.img") as other, volume.open("a", "r+b", 0) as file:
        with pytest.raises(OSError) as raised, other.atomic() as group:
            group.pwrite(file, b"x", 0)
        assert raised.value.errno == errno.EXDEV
        group = other.atomic()
    group.abort()
    volume.close()
    with pytest.raises(ValueError, match="closed"):
        volume.atomic()


def test_readers_see_all_of_a_group_or_nothing(volume: quire.Volume) -> None:
    a, b = pair(volume)
    a.write(bytes(8192))
    b.write(bytes(8192))
    torn: list[bytes] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            data = a.pread(8192, 0)
            if data.count(data[0]) != len(data):
                torn.append(data)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(200):
        with volume.atomic("ordered") as group:
            for offset in range(0, 8192, 1024):
                group.pwrite(a, bytes([number]) * 1024, offset)
                group.pwrite(b, bytes([number]) * 1024, offset)
    done.set()
    for reader in readers:
        reader.join()
    assert torn == [] and a.pread(8192, 0) == b.pread(8192, 0) == bytes([199]) * 8192
    a.close()
    b.close()


CRASHING = """
import os, sys
import quire

volume = quire.Volume(sys.argv[1], cache_bytes=32 << 20)
a, b = volume.open("a", "w+b", 0), volume.open("b", "w+b", 0)
for number in range(1 << 20):
    with volume.atomic() as group:
        group.pwrite(a, b"%7d," % number, 8 * number)
        group.pwrite(b, b"%7d," % number, 0)
    print(number, flush=True)
    half = volume.atomic()
    half.pwrite(b, b"never", 0)
"""


def test_a_process_that_is_killed_leaves_whole_groups(image: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", CRASHING, image], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child, child.stdout as lines:
        reported = next(int(line) for line in lines if int(line) >= 100)
        child.send_signal(signal.SIGKILL)
        reported = max([reported, *(int(line) for line in lines if line.endswith("\n"))])
    assert child.returncode == -signal.SIGKILL
    with quire.Volume(image) as volume:
        numbers = [int(number) for number in (volume / "a").read_text().split(",")[:-1]]
        assert numbers == list(range(len(numbers))) and numbers[-1] >= reported
        assert int((volume / "b").read_text().rstrip(",")) == numbers[-1]


def test_an_event_loop_waits_for_commits(volume: quire.Volume) -> None:
    a, b = pair(volume)

    async def commit(number: int) -> None:
        async with volume.atomic(COMMITS[number % 3], within=0.01) as group:
            group.pwrite(a, b"%5d," % number, 6 * number)
            group.pwrite(b, b"%5d," % number, 6 * number)
        assert group.ended and a.pread(6, 6 * number) == b"%5d," % number

    async def main() -> int:
        before = volume.metrics()["device_flushes_total"]
        await asyncio.gather(*(commit(number) for number in range(300)))
        flushes = volume.metrics()["device_flushes_total"] - before
        with pytest.raises(RuntimeError):
            async with a.atomic() as lost:
                lost.pwrite(b"lost", 0)
                raise RuntimeError
        group = volume.atomic()
        with pytest.raises(OSError):
            group.pwrite(a, b"x" * (volume.group_bytes_max + 1), 0)
        await group.commit_async()
        with pytest.raises(ValueError, match="committed or aborted"):
            await group.commit_async()
        return flushes

    assert asyncio.run(main()) > 0
    assert a.pread(1 << 20, 0) == b.pread(1 << 20, 0) == b"".join(b"%5d," % number for number in range(300))
    volume.close()
    a.close()
    b.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_of_a_fork_may_not_use_a_group(volume: quire.Volume) -> None:
    a, b = pair(volume)
    group = volume.atomic()
    group.pwrite(a, b"parent", 0)
    child = os.fork()
    if child == 0:
        try:
            group.commit()
        except RuntimeError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    group.commit()
    assert a.pread(9, 0) == b"parent"
    a.close()
    b.close()


def test_properties(volume: quire.Volume) -> None:
    volume.mkdir("db")
    assert volume.properties("db") == quire.Properties() == quire.Properties(untorn=0, cache="keep")
    volume.set_properties("db", untorn="16k")
    with volume.open("db/pages", "w+b", 0) as file:
        assert file.properties() == quire.Properties(untorn=16384)
        file.set_properties(cache="drop")
        assert file.properties() == quire.Properties(16384, "drop")
        file.set_properties(untorn=0, cache="keep")
        assert file.properties() == quire.Properties() and file.listxattr() == []
        file.set_properties(untorn=8192)
        assert (file.getxattr("user.quire.untorn"), volume.listdir("db")) == (b"8k", ["pages"])
        for wrong in (12288, "2m", "many"):
            with pytest.raises(OSError) as raised:
                file.set_properties(untorn=wrong)
            assert raised.value.errno == errno.EINVAL
        assert file.write(b"page" * 4096) == 16384
    path = volume / "db"
    path.set_properties(untorn="off", cache="drop")
    assert path.properties() == quire.Properties(cache="drop")
    with pytest.raises(FileNotFoundError):
        volume.properties("none")
