"""Files as `io` has them, and what else they can do."""

import asyncio
import errno
import io
import os
import threading
import zipfile
from pathlib import Path

import pytest

import quire


MODES = [("rb", 0), ("rb", -1), ("wb", -1), ("r+b", -1), ("ab", 0), ("r", -1), ("w", 1), ("a+", -1)]
MODES += [("w+b", 0), ("a+b", -1), ("wb", 0), ("rb", -2), ("r", -7)]


def test_reads_that_reach_the_end_are_not_torn(volume: quire.Volume) -> None:
    """The buffer of a read ended where the file did when the read began. A write that made the file longer in between was read in
    part.
    """
    ended = threading.Event()

    def write() -> None:
        with volume.open("grows", "r+b", 0) as file:
            while not ended.is_set():
                file.truncate(0)
                file.pwrite(b"A" * 4096, 0)
                file.pwrite(b"B" * 12288, 0)

    (volume / "grows").write_bytes(b"")
    writer = threading.Thread(target=write)
    writer.start()
    torn = 0
    try:
        with volume.open("grows", "rb", 0) as file:
            for _ in range(20000):
                for data in (file.pread(65536, 0), file.read(65536), file.readall()):
                    torn += len(data) == 4096 and data.startswith(b"B")
                    file.seek(0)
    finally:
        ended.set()
        writer.join()
    assert torn == 0


def test_modes_give_what_open_gives(volume: quire.Volume, tmp_path: Path) -> None:
    """The mode of a binary file had no "b", and programs that looked for it took the file for text. Sizes of buffers below -1
    were refused.
    """
    (volume / "a").write_bytes(b"x")
    (tmp_path / "a").write_bytes(b"x")
    for mode, buffering in MODES:
        with volume.open("a", mode, buffering) as ours, open(tmp_path / "a", mode, buffering) as theirs:
            expected = quire.File if isinstance(theirs, io.FileIO) else type(theirs)
            assert type(ours) is expected
            assert (ours.readable(), ours.writable()) == (theirs.readable(), theirs.writable())
            assert ours.mode == theirs.mode
            if isinstance(theirs, io.TextIOWrapper):
                assert isinstance(ours, io.TextIOWrapper)
                assert ours.encoding == theirs.encoding
    for mode, buffering in [("", -1), ("rw", -1), ("rbt", -1), ("q", -1), ("rr", -1), ("r", 0)]:
        with pytest.raises(ValueError):
            volume.open("a", mode, buffering)
    with pytest.raises(ValueError, match="encoding"):
        volume.open("a", "rb", encoding="utf-8")
    with pytest.raises(IsADirectoryError):
        volume.open("/")
    with pytest.raises(FileNotFoundError):
        volume.open("none")
    with pytest.raises(FileExistsError):
        volume.open("a", "x")


def test_lines_have_no_buffer_in_binary_mode(volume: quire.Volume) -> None:
    """It was an error, which it is not for the built-in `open`."""
    with pytest.warns(RuntimeWarning, match="line buffering"), volume.open("a", "wb", 1) as file:
        assert isinstance(file, io.BufferedWriter)


def test_appending_begins_at_the_end(volume: quire.Volume, tmp_path: Path) -> None:
    """A header was written again with every opening: `tell` said 0."""
    for place in (volume, tmp_path):
        for mode in ("ab", "a+", "a"):
            (place / "log").write_bytes(b"header\n")
            file = volume.open("log", mode) if place is volume else open(tmp_path / "log", mode)
            with file:
                assert file.tell() == 7
                if "+" in mode:
                    assert file.read() == ""


def test_text_lines(volume: quire.Volume) -> None:
    with volume.open("a", "w", encoding="utf-8") as file:
        file.write("eins\nzwei\ndrei ß\n")
    with volume.open("a", "a", encoding="utf-8") as file:
        file.write("vier\n")
    with volume.open("a", encoding="utf-8") as file:
        assert list(file) == ["eins\n", "zwei\n", "drei ß\n", "vier\n"]
    assert (volume / "a").read_text("utf-8").split()[-1] == "vier"


def test_the_same_calls_on_a_file_of_the_host(volume: quire.Volume, tmp_path: Path) -> None:
    """A raw file and `io.FileIO` agree call by call. A seek to a place before the file raised a `ValueError`."""

    def calls(file: io.RawIOBase) -> list[object]:
        seen: list[object] = [file.write(b"hello world"), file.tell(), file.seek(0), file.read(5), file.read()]
        buffer = bytearray(8)
        seen += [file.seek(-5, os.SEEK_END), file.readinto(buffer), bytes(buffer), file.readinto(buffer)]
        seen += [file.truncate(3), file.tell(), file.read(1), file.seek(0), file.readall(), file.read(10)]
        seen += [file.seek(10), file.write(memoryview(b"far")), file.seek(0), file.read(-1), file.seek(2, os.SEEK_CUR)]
        seen += [file.readable(), file.writable(), file.seekable(), file.isatty(), file.closed]
        for wrong in ((file.seek, -100), (file.seek, -100, 1), (file.seek, -100, 2), (file.seek, 0, 9), (file.truncate, -1)):
            with pytest.raises(OSError) as raised:
                wrong[0](*wrong[1:])
            assert raised.value.errno == errno.EINVAL
        seen.append(file.tell())
        for whence in (os.SEEK_DATA, os.SEEK_HOLE):
            with pytest.raises(OSError) as raised:
                file.seek(-1, whence)
            assert raised.value.errno == errno.ENXIO
        file.close()
        with pytest.raises(ValueError):
            file.read(1)
        with pytest.raises(ValueError):
            file.seekable()
        return seen

    ours = volume.open("a", "w+b", 0)
    theirs = open(tmp_path / "a", "w+b", 0)
    assert calls(ours) == calls(theirs)


def test_short_files_are_no_archives(volume: quire.Volume) -> None:
    """`zipfile` seeks to a place before a short file and expects an `OSError`; it raised a `ValueError`."""
    for data in (b"", b"abc"):
        (volume / "a").write_bytes(data)
        with volume.open("a", "rb") as file:
            assert not zipfile.is_zipfile(file)
        with volume.open("a", "rb") as file, pytest.raises(zipfile.BadZipFile):
            zipfile.ZipFile(file)


def test_files_that_nobody_closes(volume: quire.Volume) -> None:
    """Nobody was told of files that were never closed, as Python tells of its own."""
    for mode, buffering in (("wb", 0), ("wb", -1), ("r+b", -1), ("w", -1)):
        file = volume.open("a", mode, buffering)
        with pytest.warns(ResourceWarning, match="unclosed file .*'a'"):
            del file
    closed = volume.open("a")
    closed.close()
    del closed


def test_buffered_files_where_raw_ones_are_needed(volume: quire.Volume) -> None:
    """They raised an `AttributeError` about internals."""
    with volume.open("a", "w+b", 0) as raw, volume.open("b", "w+b") as buffered:
        with pytest.raises(TypeError, match="buffering=0"):
            raw.copy_range_to(0, buffered, 0, 1)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="buffering=0"):
            asyncio.run(quire.fsync_files([raw, buffered]))  # type: ignore[list-item]


def test_errors_of_files_name_them(volume: quire.Volume) -> None:
    """Errors of an open file did not say which one."""
    with volume.open("a", "w+b", 0) as file:
        for call in (lambda: file.punch_hole(0, 0), lambda: file.getxattr("user.a"), lambda: file.seek(-1)):
            with pytest.raises(OSError, match="'a'") as raised:
                call()
            assert raised.value.filename == "a"
        with file.atomic() as group, pytest.raises(OSError, match="'a'"):
            group.pwrite(bytes(64 << 20), 0)


def test_what_was_not_asked_for_is_refused(volume: quire.Volume) -> None:
    (volume / "a").touch()
    with volume.open("a", "rb", 0) as file:
        for wrong in (file.write, file.append):
            with pytest.raises(io.UnsupportedOperation):
                wrong(b"")
        with pytest.raises(io.UnsupportedOperation):
            file.truncate(0)
        with pytest.raises(io.UnsupportedOperation):
            file.fileno()
    with volume.open("a", "wb", 0) as file, pytest.raises(io.UnsupportedOperation):
        file.read()
    with pytest.raises(ValueError, match="all and data"):
        volume.open("a", "wb", sync="some")  # type: ignore[call-overload]


def test_appends_tell_their_place_and_never_mix(volume: quire.Volume) -> None:
    with volume.open("log", "a+b", 0) as file:

        def work(letter: bytes) -> None:
            for _ in range(200):
                offset = file.append(letter * 37)
                assert file.pread(37, offset) == letter * 37

        threads = [threading.Thread(target=work, args=(letter,)) for letter in (b"a", b"b", b"c", b"d")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert file.stat().st_size == 4 * 200 * 37
        content = file.pread(1 << 20, 0)
    assert {content[at : at + 37] for at in range(0, len(content), 37)} == {b * 37 for b in (b"a", b"b", b"c", b"d")}


def test_threads_share_a_position(volume: quire.Volume) -> None:
    """Each byte is read once."""
    (volume / "a").write_bytes(bytes(range(256)) * 400)
    got: list[bytes] = []
    with volume.open("a", "rb", 0) as file:

        def work() -> None:
            while part := file.read(100):
                got.append(part)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(map(len, got)) == 102_400
    assert all(bytes((part[0] + at) % 256 for at in range(len(part))) == part for part in got)


def test_a_large_count_costs_no_memory(volume: quire.Volume) -> None:
    (volume / "a").write_bytes(b"small")
    with volume.open("a", "rb", 0) as file:
        assert file.read(1 << 50) == b"small" and file.pread(1 << 50, 3) == b"ll" and file.pread(9, 99) == b""


def test_space_of_a_file(volume: quire.Volume) -> None:
    block = 4096
    with volume.open("a", "w+b", 0) as file:
        file.write(b"".join(bytes([number]) * block for number in range(1, 9)))
        file.punch_hole(block, block)
        file.fsync()
        assert file.pread(1, block) == b"\0"
        assert file.seek(0, os.SEEK_HOLE) == block and file.seek(block, os.SEEK_DATA) == 2 * block
        with pytest.raises(OSError) as raised:
            file.seek(100 * block, os.SEEK_DATA)
        assert raised.value.errno == errno.ENXIO
        file.collapse_range(block, block)
        assert (file.pread(1, block), file.stat().st_size) == (b"\3", 7 * block)
        file.insert_range(0, block)
        assert (file.pread(1, block), file.stat().st_size) == (b"\1", 8 * block)
        file.zero_range(2 * block, block)
        assert file.pread(1, 2 * block) == b"\0"
        file.allocate(0, 16 * block)
        file.allocate(0, 32 * block, keep_size=True)
        assert file.stat().st_size == 16 * block and file.stat().st_blocks >= 32 * 8
        with volume.open("b", "wb", 0) as other:
            assert file.copy_range_to(block, other, 0, block) == block
        assert (volume / "b").read_bytes() == b"\1" * block
        for advice in ("sequential", "willneed", "random", "dontneed", "normal"):
            file.advise(0, 0, advice)
        with pytest.raises(ValueError, match="normal, sequential"):
            file.advise(0, 0, "often")  # type: ignore[arg-type]
        file.setxattr("user.a", b"1")
        assert (file.getxattr("user.a"), file.listxattr()) == (b"1", ["user.a"])
        file.removexattr("user.a")
        with pytest.raises(OSError):
            file.getxattr("user.a")


def test_direct_and_synchronous_files(volume: quire.Volume) -> None:
    with volume.open("a", "w+b", 0, direct=True) as file:
        file.write(b"d" * 8192)
        assert file.pread(4096, 4096) == b"d" * 4096
    for sync in ("all", "data"):
        before = volume.metrics()["device_flushes_total"]
        with volume.open("a", "r+b", 0, sync=sync) as file:
            file.pwrite(b"s", 0)
        assert volume.metrics()["device_flushes_total"] > before


def test_files_outlive_their_names_and_end_with_the_volume(volume: quire.Volume) -> None:
    file = volume.open("a", "w+b", 0)
    file.write(b"unnamed")
    volume.unlink("a")
    assert file.pread(7, 0) == b"unnamed"
    volume.close()
    assert file.closed
    with pytest.raises(ValueError, match="closed"):
        file.pwrite(b"late", 0)


def test_appends_without_space_tell_how_much_was_written(volume: quire.Volume) -> None:
    """A write in mode "a" that ran out of space midway failed with EIO, as if nothing had been written. A program that tried
    again had the beginning twice.
    """
    with volume.open("filler", "wb", 0) as filler:
        filler.allocate(0, (volume.statvfs().f_bavail * 4096) - (9 << 20))
    with volume.open("log", "a+b", 0) as log:
        data = bytes(range(256)) * (16 << 12)
        count = log.write(data)
        assert 1 << 20 <= count < len(data)
        assert log.tell() == log.stat().st_size == count
        assert log.pread(len(data), 0) == data[:count]
        # The next write may find a little more: what the first had promised beyond its need.
        with pytest.raises(OSError):
            while True:
                count += log.write(data[count:])
        assert log.pread(len(data), 0) == data[:count]
        for call in (log.write, log.append):
            with pytest.raises(OSError) as raised:
                call(data[count:])
            assert raised.value.errno == errno.ENOSPC
    with volume.open("log", "ab", 0) as log:
        log.truncate(0)
        with pytest.raises(OSError, match="only") as raised:
            log.append(data)
        assert raised.value.errno == errno.ENOSPC and 0 < log.stat().st_size < len(data)


def test_buffers_of_several_dimensions(volume: quire.Volume) -> None:
    """An empty array of several dimensions was refused."""
    table = memoryview(bytearray(range(24))).cast("h", (3, 4))
    with volume.open("a", "w+b", 0) as file:
        empty = table[:0]
        assert empty.shape == (0, 4)
        assert file.write(empty) == file.pwrite(empty, 0) == file.readinto(empty) == 0
        assert file.write(table) == 24 and file.append(table) == 24
        read = memoryview(bytearray(24)).cast("h", (3, 4))
        assert file.seek(0) == 0 and file.readinto(read) == 24 and read == table


def test_a_buffer_that_cannot_be_filled_takes_nothing(volume: quire.Volume) -> None:
    """`readinto` of a buffer that is read-only moved the position, and then failed."""
    (volume / "a").write_bytes(b"text")
    with volume.open("a", "rb", 0) as file:
        for buffer in (b"....", memoryview(bytearray(8))[::2]):
            with pytest.raises(TypeError):
                file.readinto(buffer)
            assert file.tell() == 0
