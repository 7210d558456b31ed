"""Volumes and names."""

import errno
import gc
import multiprocessing
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import pytest

import quire
from quire.fs import QuireFileSystem


def test_mkfs_tells_what_it_made(tmp_path: Path) -> None:
    image = tmp_path / "a.img"
    with pytest.raises(FileNotFoundError, match="give a size"):
        quire.mkfs(image)
    info = quire.mkfs(image, size=64 << 20, label="backup")
    assert (info.label, info.blocks, info.block_size) == ("backup", 16384, 4096)
    assert abs(info.created - time.time()) < 60
    assert image.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError, match="nothing was changed"):
        quire.mkfs(image)
    assert quire.mkfs(image, force=True).uuid != info.uuid


def test_a_volume_grows_and_gets_another_label(tmp_path: Path) -> None:
    image = tmp_path / "a.img"
    quire.mkfs(image, size=64 << 20, journal_bytes=4 << 20)
    assert quire.resize(image, 128 << 20).blocks == 32768
    assert image.stat().st_size == 128 << 20
    assert quire.resize(image, journal_bytes=8 << 20).journal_blocks == 2048
    os.truncate(image, 192 << 20)
    info = quire.resize(image, "whole")
    assert (info.blocks, info.journal_blocks, info.clean) == (49152, 2048, True)
    assert quire.set_label(image, "archive").label == "archive"
    with pytest.raises(OSError) as raised:
        quire.resize(image, 64 << 20)
    assert raised.value.errno == errno.EINVAL
    with pytest.raises(OSError):
        quire.set_label(image, "x" * 65)
    with quire.Volume(image) as volume:
        assert volume.info().label == "archive" and volume.info().blocks == 49152
        with pytest.raises(OSError) as raised:
            quire.resize(image, "whole")
        assert raised.value.errno == errno.EBUSY


def test_a_trim_gives_back_free_space(tmp_path: Path) -> None:
    image = tmp_path / "a.img"
    quire.mkfs(image, size=64 << 20)
    with quire.Volume(image) as volume:
        (volume / "a").write_bytes(b"x" * (16 << 20))
        volume.sync()
        volume.unlink("a")
        volume.sync()
        before = image.stat().st_blocks
        assert volume.trim() >= 16 << 20
        # The file is freed behind the scenes.
        for _ in range(200):
            if image.stat().st_blocks < before:
                break
            time.sleep(0.05)
            volume.sync()
            volume.trim()
        assert image.stat().st_blocks < before
        assert volume.trim(0, 4096) == 0


def test_a_volume_is_closed_once_and_keeps_what_it_has(image: Path) -> None:
    with quire.Volume(image) as volume:
        (volume / "a").write_text("kept")
        assert not volume.closed and not volume.read_only
    assert volume.closed
    volume.close()
    with pytest.raises(ValueError, match="closed"):
        volume.listdir("/")
    with quire.Volume(image, read_only=True) as volume:
        assert volume.read_only and volume.info().clean and volume.info().label == "test"
        assert (volume / "a").read_text() == "kept"
        with pytest.raises(OSError) as raised:
            volume.mkdir("b")
        assert raised.value.errno == errno.EROFS


def test_one_process_has_it_open(volume: quire.Volume) -> None:
    with pytest.raises(BlockingIOError if errno.EBUSY == errno.EAGAIN else OSError) as raised:
        quire.Volume(volume.image)
    assert raised.value.errno == errno.EBUSY


def test_no_volume_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        quire.Volume(tmp_path / "none")
    (tmp_path / "text").write_text("x" * 100_000)
    with pytest.raises(OSError) as raised:
        quire.Volume(tmp_path / "text")
    assert raised.value.errno == errno.EINVAL
    with pytest.raises(ValueError, match="relative, never and strict"):
        quire.Volume(tmp_path / "text", access_times="often")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        quire.Volume(tmp_path / "text", cache="much")  # type: ignore[call-arg]


def test_names(volume: quire.Volume) -> None:
    volume.makedirs("a/b/c")
    volume.makedirs("a/b/c", exist_ok=True)
    with pytest.raises(FileExistsError):
        volume.makedirs("a/b", exist_ok=False)
    with pytest.raises(FileExistsError):
        volume.mkdir("/a")
    with pytest.raises(FileNotFoundError, match="x/y"):
        volume.mkdir("x/y")
    volume.mkdir("private", 0o700)
    assert volume.stat("private").st_mode == 0o040700
    for name in ("one", "two"):
        volume.open(f"a/{name}", "x").close()
    with pytest.raises(FileExistsError):
        volume.rename("a/one", "a/two", replace=False)
    volume.rename("a/one", "a/two")
    volume.link("a/two", "a/linked")
    volume.symlink("two", "a/soft")
    assert volume.readlink("a/soft") == "two"
    assert volume.stat("a/soft").st_ino == volume.stat("a/linked").st_ino
    assert volume.lstat("a/soft").st_ino != volume.stat("a/linked").st_ino
    assert volume.stat("a/two").st_nlink == 2
    assert sorted(volume.listdir("a")) == ["b", "linked", "soft", "two"]
    kinds = {entry.name: (entry.is_dir(), entry.is_file(), entry.is_symlink()) for entry in volume.scandir("a")}
    assert kinds["b"] == (True, False, False) and kinds["soft"] == (False, True, True)
    volume.symlink("nowhere", "broken")
    assert volume.lexists("broken") and not volume.exists("broken") and volume.islink("broken")
    volume.symlink("circle", "circle")
    assert not volume.exists("circle") and not volume.isdir("a/two/below")
    with pytest.raises(OSError) as raised:
        volume.rmdir("a")
    assert raised.value.errno == errno.ENOTEMPTY
    volume.exchange("a/b", "a/two")
    assert volume.isfile("a/b") and volume.isdir("a/two/c")
    assert [directory for directory, _, _ in volume.walk("a")] == ["a", "a/two", "a/two/c"]
    volume.rmtree("a")
    assert not volume.exists("a")


@pytest.mark.parametrize("through", ["volume", "path", "mkdir of fsspec", "makedirs of fsspec"])
def test_one_of_several_threads_makes_a_directory(volume: quire.Volume, through: str) -> None:
    """Several threads that made the same directory, parents included, all succeeded: none knew whether it was its own."""
    fs = QuireFileSystem(volume=volume)
    calls: dict[str, Callable[[str], object]] = {
        "volume": volume.makedirs,
        "path": lambda name: volume.path(name).mkdir(parents=True),
        "mkdir of fsspec": fs.mkdir,
        "makedirs of fsspec": fs.makedirs,
    }
    make = calls[through]
    threads_at_once = 4
    barrier = threading.Barrier(threads_at_once)
    made: list[str] = []

    def work() -> None:
        for number in range(100):
            barrier.wait(60)
            with suppress(FileExistsError):
                make(f"{number}/below")
                made.append(f"{number}/below")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(threads_at_once)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert sorted(made) == sorted(f"{number}/below" for number in range(100))


def test_makedirs_is_that_of_os(volume: quire.Volume, tmp_path: Path) -> None:
    """A file in the place of the directory was no `FileExistsError`, and an existing directory was no error."""
    (volume / "file").touch()
    (tmp_path / "file").touch()
    for path, exist_ok in (("file", True), ("file", False), ("file/a", True), ("a/b", False), ("a/b", False), ("a/b/.", True)):
        outcomes: list[int | None] = []
        for makedirs, root in ((volume.makedirs, ""), (os.makedirs, str(tmp_path))):
            try:
                makedirs(os.path.join(root, path), exist_ok=exist_ok)
                outcomes.append(None)
            except OSError as error:
                outcomes.append(error.errno)
        assert outcomes[0] == outcomes[1], (path, exist_ok)
    volume.makedirs("c/d", 0o700)
    assert stat.S_IMODE(volume.stat("c/d").st_mode) == 0o700 and stat.S_IMODE(volume.stat("c").st_mode) == 0o755
    # A volume that is read-only says so before it looks.
    volume.take_snapshot("now")
    with volume.open_snapshot("now") as snapshot:
        snapshot.makedirs("c/d", exist_ok=True)
        snapshot.path("c/d").mkdir(exist_ok=True)
        with pytest.raises(OSError):
            snapshot.makedirs("c/e", exist_ok=True)
    with pytest.raises(OSError) as without:
        volume.take_snapshot("now")
    assert len(without.value.args) == 2


def test_errors_have_the_names(volume: quire.Volume, tmp_path: Path) -> None:
    """`filename` of errors was None, and a program that printed it, or made the missing directory, had nothing."""
    with pytest.raises(FileNotFoundError) as raised:
        volume.open("none/a")
    assert raised.value.filename == "none/a" and str(raised.value).endswith(": 'none/a'")
    # The name stands there once.
    assert str(raised.value).count("none/a") == 1
    for call in (volume.rename, volume.link, volume.exchange, volume.copyfile):
        with pytest.raises(FileNotFoundError) as raised:
            call("one", "two")
        assert (raised.value.filename, raised.value.filename2) == ("one", "two")
        assert str(raised.value).endswith(": 'one' -> 'two'")
    with pytest.raises(FileNotFoundError) as raised:
        volume.stat(b"caf\xe9")
    assert raised.value.filename == os.fsdecode(b"caf\xe9")
    volume.path("a").touch()
    with pytest.raises(OSError, match="no attribute user.b: 'a'"):
        volume.getxattr("a", "user.b")
    with pytest.raises(FileNotFoundError) as raised:
        quire.Volume(tmp_path / "none.img")
    assert raised.value.filename == str(tmp_path / "none.img")


def test_images_without_sense(tmp_path: Path) -> None:
    """A name with a null byte was an error of the device."""
    for call in (quire.Volume, lambda image: quire.mkfs(image, 64 << 20), lambda image: quire.set_label(image, "x")):
        with pytest.raises(ValueError, match="null byte"):
            call("a\0b")


def test_what_a_volume_is_shown_as(image: Path) -> None:
    """A snapshot was shown as the volume itself."""
    with quire.Volume(image) as volume:
        volume.take_snapshot("monday")
        with volume.open_snapshot("monday") as monday:
            assert repr(monday) == f"<quire.Volume image='{image}' snapshot='monday'>"
    assert repr(volume) == f"<quire.Volume image='{image}' closed>"


def test_volumes_that_nobody_closes(image: Path) -> None:
    """Nobody was told of them."""
    volume = quire.Volume(image)
    with pytest.warns(ResourceWarning, match="unclosed volume .*data.img"):
        del volume
    # One that the file system of fsspec has opened is not the program's to close.
    fs = QuireFileSystem(str(image), skip_instance_cache=True)
    fs.ls("/")
    del fs
    gc.collect()
    with quire.Volume(image, read_only=True) as volume:
        assert volume.info().clean


def test_a_walk_is_that_of_os(volume: quire.Volume, tmp_path: Path) -> None:
    """`walk` had links to directories among the files. `pathlib` has them there, and `os.walk` among the directories."""
    for place in (volume.path(), tmp_path):
        (place / "top" / "dir" / "below").mkdir(parents=True)
        (place / "top" / "link").symlink_to("dir")
        (place / "top" / "broken").symlink_to("nowhere")
        (place / "top" / "file").touch()

    def seen(walk: Iterable[tuple[str, list[str], list[str]]]) -> list[tuple[str, list[str], list[str]]]:
        return sorted((os.path.basename(top), sorted(names), sorted(files)) for top, names, files in walk)

    assert seen(volume.walk("top")) == seen(os.walk(tmp_path / "top"))
    tree = {str(top): (names, sorted(files)) for top, names, files in volume.path("top").walk()}
    assert tree["/top"] == (["dir"], ["broken", "file", "link"]) and list(tree) == ["/top", "/top/dir", "/top/dir/below"]


def test_names_that_are_no_text(volume: quire.Volume) -> None:
    volume.open(b"caf\xe9", "xb").close()
    (name,) = volume.listdir()
    assert os.fsencode(name) == b"caf\xe9" and volume.exists(name)
    with pytest.raises(ValueError, match="null byte"):
        volume.exists("a\0b")
    with pytest.raises(TypeError):
        volume.exists(7)  # type: ignore[arg-type]
    with pytest.raises(OSError) as raised:
        volume.mkdir("x" * 256)
    assert raised.value.errno == errno.ENAMETOOLONG


def test_attributes(volume: quire.Volume) -> None:
    before = time.time()
    with volume.open("a", "xb", permissions=0o640) as file:
        file.write(b"x" * 5000)
    found = volume.stat("a")
    assert (found.st_size, found.st_mode, found.st_blksize) == (5000, 0o100640, 4096)
    assert found.st_blocks == 0 or found.st_blocks == 16
    assert before - 60 < found.st_mtime < time.time() + 60
    volume.utime("a", ns=(1, 1_000_000_001))
    assert (volume.stat("a").st_atime_ns, volume.stat("a").st_mtime_ns) == (1, 1_000_000_001)
    volume.utime("a", (-1.5, 2.5))
    assert (volume.stat("a").st_atime, volume.stat("a").st_mtime) == (-1.5, 2.5)
    volume.utime("a")
    assert volume.stat("a").st_mtime > before - 60
    volume.chmod("a", 0o4755)
    volume.chown("a", 1000)
    assert (volume.stat("a").st_uid, volume.stat("a").st_gid) == (1000, 0)
    volume.chown("a", gid=50)
    assert (volume.stat("a").st_uid, volume.stat("a").st_gid) == (1000, 50)


def test_extended_attributes(volume: quire.Volume) -> None:
    path = volume / "a"
    path.touch()
    path.setxattr("user.one", b"1")
    path.setxattr("user.two", bytearray(b"22"))
    assert path.getxattr("user.two") == b"22"
    assert sorted(path.listxattr()) == ["user.one", "user.two"]
    path.removexattr("user.one")
    for call in (path.getxattr, path.removexattr):
        with pytest.raises(OSError) as raised:
            call("user.one")
        assert raised.value.errno == errno.ENODATA
    with pytest.raises(OSError):
        path.setxattr("elsewhere.one", b"")


def test_space_and_numbers(volume: quire.Volume) -> None:
    space = volume.statvfs()
    assert space.f_bsize == 4096 and 0 < space.f_bavail <= space.f_bfree < space.f_blocks <= 16384
    before = volume.metrics()["transactions_total"]
    volume.mkdir("a")
    assert volume.metrics()["transactions_total"] > before


def test_a_walk_skips_what_has_vanished(volume: quire.Volume) -> None:
    """A walk raised when somebody removed a directory, or replaced it by a file, before the walk came to it."""
    for walk in (volume.walk, lambda top: volume.path(top).walk()):
        volume.makedirs("/top/a", exist_ok=True)
        volume.makedirs("/top/b", exist_ok=True)
        volume.makedirs("/top/c", exist_ok=True)
        found = []
        for directory, directories, _ in walk("/top"):
            found.append(str(directory))
            if directories:
                first, second, third = (f"/top/{name}" for name in directories)
                volume.rmdir(first)
                volume.rmdir(second)
                volume.path(second).touch()
        assert found == ["/top", third]
        assert list(walk("/missing")) == list(walk(second)) == []
        volume.unlink(second)


def replaced(volume: quire.Volume, replace: Callable[[str, bytes], None]) -> None:
    """A file that is replaced by way of links is as a write to it had left it, but for what it holds."""
    volume.makedirs("/dir/below")
    old = volume.path("/dir/a")
    old.write_bytes(b"old")
    volume.chmod("/dir/a", 0o600)
    volume.chown("/dir/a", 1000, 1001)
    attributes = {"user.one": b"1", "trusted.two": b"2" * 1000}
    for name, value in attributes.items():
        old.setxattr(name, value)
    old.set_properties(untorn="16k")
    volume.symlink("../a", "/dir/below/first")
    volume.symlink("dir/below/first", "/link")
    replace("/link", b"new")
    found = old.lstat()
    assert (stat.S_IFMT(found.st_mode), stat.S_IMODE(found.st_mode)) == (stat.S_IFREG, 0o600)
    assert (found.st_uid, found.st_gid) == (1000, 1001) and old.properties().untorn == 16384
    assert attributes.items() <= {name: old.getxattr(name) for name in old.listxattr()}.items()
    assert old.read_bytes() == volume.path("/link").read_bytes() == b"new"
    assert volume.readlink("/link") == "dir/below/first" and volume.readlink("/dir/below/first") == "../a"
    assert sorted(volume.listdir("/dir")) == ["a", "below"] and volume.listdir("/dir/below") == ["first"]
    # A link that leads nowhere yet.
    volume.symlink("made", "/to-be-made")
    replace("/to-be-made", b"made")
    assert volume.path("/made").read_bytes() == b"made" and stat.S_IMODE(volume.stat("/made").st_mode) == 0o644
    volume.symlink("loop", "/loop")
    with pytest.raises(OSError, match="links"):
        replace("/loop", b"")


def test_replacing_keeps_attributes_and_links(volume: quire.Volume) -> None:
    """A file of mode 0600 had 0644 after it was replaced, and lost its owner and its attributes; a link became a file."""

    def replace(path: str, data: bytes) -> None:
        with volume.replacing(path) as file:
            file.write(data)

    replaced(volume, replace)
    with volume.replacing("/dir/a", permissions=0o640) as file:
        file.write(b"newer")
    assert stat.S_IMODE(volume.stat("/dir/a").st_mode) == 0o640 and volume.stat("/dir/a").st_uid == 1000


def test_transactions_of_fsspec_keep_attributes_and_links(volume: quire.Volume) -> None:
    """As above: a file that was written in a transaction is a new one, too."""
    fs = QuireFileSystem(volume=volume, skip_instance_cache=True)

    def replace(path: str, data: bytes) -> None:
        with fs.transaction:
            fs.pipe_file(path, data)

    replaced(volume, replace)
    with fs.transaction:
        fs.open("/link", "r+b").write(b"NEW")
        fs.open("/made", "ab").write(b", and more")
    assert volume.stat("/dir/a").st_uid == 1000 and volume.path("/dir/a").read_bytes() == b"NEW"
    assert volume.path("/made").read_bytes() == b"made, and more"


def test_replacing_is_all_or_nothing(volume: quire.Volume) -> None:
    (volume / "a").write_text("old")
    with pytest.raises(RuntimeError), volume.replacing("a") as file:
        file.write(b"half")
        raise RuntimeError
    assert (volume / "a").read_text() == "old" and volume.listdir() == ["a"]
    with volume.replacing("a", "w", encoding="utf-8") as file:
        file.write("new")
    assert (volume / "a").read_text() == "new" and volume.listdir() == ["a"]


def test_replacing_writes_a_new_file(volume: quire.Volume) -> None:
    """With the mode "a" the old contents were lost, and "x" replaced a file that was there."""
    (volume / "a").write_text("old")
    for mode in ("a", "r", "r+b", "ab"):
        with pytest.raises(ValueError, match="mode"), volume.replacing("a", mode):
            pass
    with pytest.raises(FileExistsError), volume.replacing("a", "x") as file:
        file.write("new")
    assert (volume / "a").read_text() == "old" and volume.listdir() == ["a"]
    with volume.replacing("b", "xb") as file:
        file.write(b"new")
    assert (volume / "b").read_bytes() == b"new"


def child_of_a_fork(volume: quire.Volume, answer: "multiprocessing.Queue[str]") -> None:
    try:
        volume.mkdir("child")
        answer.put("it could")
    except RuntimeError as error:
        answer.put(str(error))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_is_refused(volume: quire.Volume) -> None:
    """Its engine's threads are not in the child: a call would wait for ever."""
    context = multiprocessing.get_context("fork")
    answer = context.Queue()
    child = context.Process(target=child_of_a_fork, args=(volume, answer))
    child.start()
    assert "after the fork" in answer.get(timeout=30)
    child.join(30)
    assert child.exitcode == 0
    # The child's end has closed nothing.
    volume.mkdir("parent")
    assert volume.listdir() == ["parent"]


def test_a_program_that_forgets_to_close(tmp_path: Path) -> None:
    """The volume is closed in order at the end, so that the next user need not recover it."""
    image = tmp_path / "a.img"
    program = (
        "import quire, sys\n"
        "quire.mkfs(sys.argv[1], size=64 << 20)\n"
        "volume = quire.Volume(sys.argv[1])\n"
        "file = volume.open('a', 'wb', 0)\n"
        "file.write(b'kept')\n"
    )
    subprocess.run([sys.executable, "-c", program, image], check=True, timeout=60)
    with quire.Volume(image, read_only=True) as volume:
        assert volume.info().clean and (volume / "a").read_bytes() == b"kept"


def test_what_a_program_leaves_in_buffers_is_written_at_its_end(tmp_path: Path) -> None:
    """The volume was closed before the buffer of the file, and what was in it was lost."""
    image = tmp_path / "a.img"
    quire.mkfs(image, size=64 << 20)
    program = "import quire, sys; volume = quire.Volume(sys.argv[1]); file = volume.open('x', 'w'); file.write('hi')"
    done = subprocess.run([sys.executable, "-c", program, image], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    with quire.Volume(image) as volume:
        assert (volume / "x").read_text() == "hi"


def test_what_is_in_buffers_is_written_when_the_volume_is_closed(image: Path) -> None:
    """The volume was closed before the files, and what they had in their buffers was lost without a word."""
    with quire.Volume(image) as volume:
        text, data, raw = volume.open("text", "w"), volume.open("data", "wb"), volume.open("raw", "wb", 0)
        text.write("hi")
        data.write(b"hi")
        assert not (volume / "text").read_bytes()
    assert text.closed and data.closed and raw.closed
    with quire.Volume(image) as volume:
        assert (volume / "text").read_text() == "hi" and (volume / "data").read_bytes() == b"hi"


def test_a_buffer_that_cannot_be_written_fails_the_closing(image: Path) -> None:
    """And everything else is closed in order."""

    def full(_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    volume = quire.Volume(image)
    files = [volume.open(name, "wb") for name in "abcdef"]
    for file in files:
        file.write(b"hi")
    setattr(files[2].raw, "write", full)  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="full"):
        volume.close()
    assert volume.closed and all(file.closed for file in files)
    volume.close()
    with quire.Volume(image, read_only=True) as volume:
        assert volume.info().clean
        assert [(volume / name).read_bytes() for name in "abcdef"] == [b"hi", b"hi", b"", b"hi", b"hi", b"hi"]


def test_at_the_end_of_a_program_each_volume_is_closed(tmp_path: Path) -> None:
    """The first that failed kept those behind it from being closed. What a thread has that never ends was lost."""
    program = (
        "import quire, sys, threading\n"
        "def fail(): raise OSError('no device')\n"
        "volumes = []\n"
        "for image in sys.argv[1:]:\n"
        "    quire.mkfs(image, size=64 << 20)\n"
        "    volumes.append(quire.Volume(image))\n"
        "files = [volume.open('x', 'w') for volume in volumes]\n"
        "for file in files: file.write('hi')\n"
        "threading.Thread(target=lambda kept: threading.Event().wait(), args=(files,), daemon=True).start()\n"
        "volumes[0].close = fail\n"
    )
    images = [tmp_path / "a.img", tmp_path / "b.img", tmp_path / "c.img"]
    done = subprocess.run([sys.executable, "-c", program, *images], capture_output=True, text=True, timeout=60)
    assert "no device" in done.stderr
    for image in images[1:]:
        with quire.Volume(image, read_only=True) as volume:
            assert volume.info().clean and (volume / "x").read_text() == "hi"


def test_long_names_are_replaced(volume: quire.Volume) -> None:
    """The name of the unfinished file was cut by characters, and had too many bytes."""
    name = "é" * 120
    with volume.replacing(name) as file:
        file.write(b"whole")
    assert (volume / name).read_bytes() == b"whole" and volume.listdir("/") == [name]


def test_snapshots(tmp_path: Path) -> None:
    image = tmp_path / "a.img"
    quire.mkfs(image, size=64 << 20)
    with quire.Volume(image) as volume:
        (volume / "note").write_text("before")
        volume.take_snapshot("monday")
        with pytest.raises(FileExistsError):
            volume.take_snapshot("monday")
        (volume / "note").write_text("after")
        [monday] = volume.snapshots()
        assert (monday.name, monday.number, monday.deleting) == ("monday", 1, False)
        assert abs(monday.created - time.time()) < 60
        with volume.open_snapshot("monday") as snapshot:
            assert (snapshot / "note").read_text() == "before" and snapshot.read_only
            with pytest.raises(OSError, match="read-only"):
                (snapshot / "new").write_text("no")
            with pytest.raises(OSError, match="open for reading"):
                volume.delete_snapshot("monday")
        volume.take_snapshot("tuesday")
        volume.delete_snapshot("monday")
        with pytest.raises(FileNotFoundError):
            volume.open_snapshot("monday")
        (volume / "note").write_text("later")
    with quire.Volume(image, snapshot="tuesday") as snapshot:
        assert (snapshot / "note").read_text() == "after"
    quire.roll_back(image, "tuesday")
    with quire.Volume(image) as volume:
        assert (volume / "note").read_text() == "after"
        volume.delete_snapshot("tuesday", wait=False)
