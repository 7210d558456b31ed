"""The fsspec file system, and the programs that open files through it."""

import errno
import pickle
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import fsspec
import pandas
import pyarrow
import pyarrow.dataset
import pyarrow.parquet
import pytest

import quire
import quire.fs
from quire.fs import QuireFileSystem, split


@pytest.fixture
def url(image: Path) -> str:
    return f"quire://{image}"


@pytest.fixture
def fs(volume: quire.Volume) -> QuireFileSystem:
    return QuireFileSystem(volume=volume, skip_instance_cache=True)


def table(rows: int, first: int = 0) -> pandas.DataFrame:
    numbers = range(first, first + rows)
    return pandas.DataFrame({"number": numbers, "name": [f"row {number}" for number in numbers]})


def test_the_image_of_a_url(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert split(f"quire://{image}/a/b") == (str(image), "/a/b")
    assert split(f"quire://{image}") == (str(image), "/")
    monkeypatch.chdir(image.parent)
    assert split("quire://data.img/a") == (str(image), "/a")
    assert split("quire://./data.img//a") == (str(image), "//a")
    assert split("quire://a/b") == (None, "/a/b")
    for path in ("quire://data.img/a//b/", "/a/b", "a/b"):
        assert QuireFileSystem._strip_protocol(path) == "/a/b"
    with pytest.raises(ValueError, match="no image"):
        fsspec.open("quire://none.img/a").open()


def test_pandas_reads_and_writes_parquet(url: str) -> None:
    written = table(10_000)
    written.to_parquet(f"{url}/table.parquet")
    read = pandas.read_parquet(f"{url}/table.parquet")
    pandas.testing.assert_frame_equal(read, written)
    only = pandas.read_parquet(f"{url}/table.parquet", columns=["number"], filters=[("number", "<", 10)])
    assert list(only["number"]) == list(range(10))
    written.to_csv(f"{url}/table.csv", index=False)
    pandas.testing.assert_frame_equal(pandas.read_csv(f"{url}/table.csv"), written)


def test_pyarrow_datasets(image: Path, url: str) -> None:
    with quire.Volume(image) as volume:
        fs = fsspec.filesystem("quire", volume=volume)
        whole = pyarrow.Table.from_pandas(table(5000).assign(part=lambda frame: frame["number"] % 3))
        pyarrow.dataset.write_dataset(
            whole, "/sets/a", filesystem=fs, format="parquet", partitioning=["part"], partitioning_flavor="hive"
        )
        assert sorted(volume.listdir("/sets/a")) == ["part=0", "part=1", "part=2"]
        for dataset in (
            pyarrow.dataset.dataset("/sets/a", filesystem=fs, partitioning="hive"),
            pyarrow.dataset.dataset(f"fsspec+{url}/sets/a", partitioning="hive"),
        ):
            assert dataset.count_rows() == 5000
            third = dataset.to_table(filter=pyarrow.dataset.field("part") == 1)
            assert sorted(third["number"].to_pylist()) == list(range(1, 5000, 3))
        # The volume that is open already was used, not opened a second time.
        assert pyarrow.parquet.read_table("/sets/a", filesystem=fs).num_rows == 5000


def test_a_url_shares_an_open_volume(image: Path, url: str) -> None:
    with quire.Volume(image) as volume:
        (volume / "a").write_text("shared")
        with fsspec.open(f"{url}/a", "r") as file:
            assert file.read() == "shared"
    # Closed meanwhile: it is opened again.
    with fsspec.open(f"{url}/a", "rb") as file:
        assert file.read() == b"shared"
    fs, path = fsspec.core.url_to_fs(f"{url}/a")
    assert (fs.image, path, fs.unstrip_protocol(path)) == (str(image), "/a", f"{url}/a")
    fs.volume.close()


def test_a_path_is_not_cut_at_files_of_the_host(image: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL was cut at any file of the host: `rm("quire://backup/logs")` removed `/logs`, if the working directory had a file
    `backup`, though the image was given.
    """
    monkeypatch.chdir(image.parent)
    Path("backup").touch()
    with quire.Volume(image) as volume:
        for given in (QuireFileSystem("data.img"), QuireFileSystem(volume=volume)):
            given.makedirs("/logs", exist_ok=True)
            given.makedirs("/backup/logs", exist_ok=True)
            given.pipe({"/logs/a": b"kept", "/backup/logs/a": b"old"})
            given.rm("quire://backup/logs", recursive=True)
            assert given.find("/") == ["/logs/a"] and given._parent("quire://backup/a") == "/backup"
            # The image's own URLs are cut.
            assert given.cat("quire://data.img/logs/a") == given.cat(f"{url}/logs/a") == b"kept"
            assert given._strip_protocol([url, f"{url}/", f"{url}.old"]) == ["/", "/", f"{image}.old"]
        of_url, _ = fsspec.url_to_fs(f"{url}/logs")
        assert of_url.cat("quire://data.img/logs/a") == of_url.cat("quire://logs/a") == b"kept"
        with pytest.raises(ValueError, match="backup/logs is not in"):
            of_url.rm("quire://backup/logs", recursive=True)
        for option in ({"image": "data.img"}, {"volume": volume}):
            assert fsspec.url_to_fs("quire://data.img/logs", **option)[1] == "/logs"
            with pytest.raises(ValueError, match="the URL leads into .*backup"):
                fsspec.url_to_fs("quire://backup/logs", **option)
        assert volume.path("/logs/a").read_bytes() == b"kept"


def test_an_image_on_a_server() -> None:
    """An address was made a path of the host."""
    address = "nbd://localhost:1/export"
    fs = fsspec.filesystem("quire", image=address)
    assert fs.image == address
    assert fs.unstrip_protocol("/a") == f"quire://{address}/a" and fs._strip_protocol(f"quire://{address}/a") == "/a"


def test_options_reach_the_volume(image: Path) -> None:
    fs = fsspec.filesystem("quire", image=str(image), read_only=True)
    assert fs.volume.read_only
    with pytest.raises(OSError):
        fs.mkdir("/a")
    fs.volume.close()


def test_options_count_for_an_open_volume(image: Path, url: str) -> None:
    """Where the process had the volume open, all options were dropped: `snapshot=` showed the live volume and changed it, and
    so did `read_only=True`.
    """
    with quire.Volume(image, commit_seconds=7) as volume:
        (volume / "a").write_text("old")
        volume.take_snapshot("monday")
        (volume / "a").write_text("new")
        monday = fsspec.filesystem("quire", image=str(image), snapshot="monday")
        assert monday.cat("/a") == b"old" and monday.volume.read_only and monday.volume is not volume
        with pytest.raises(OSError) as raised:
            monday.pipe("/a", b"newer")
        assert raised.value.errno == errno.EROFS
        with fsspec.open(f"{url}/a", snapshot="monday") as file:
            assert file.read() == b"old"
        # A snapshot that is open is shared, too.
        again = QuireFileSystem(str(image), snapshot="monday", read_only=True, skip_instance_cache=True)
        assert again.volume is monday.volume
        monday.volume.close()

        read_only = fsspec.filesystem("quire", image=str(image), read_only=True)
        assert read_only.cat("/a") == b"new" and read_only.find("/") == ["/a"]
        changes: list[Callable[[], object]] = [
            lambda: read_only.pipe("/a", b"newer"),
            lambda: read_only.open("/a", "r+b"),
            lambda: read_only.touch("/a", truncate=False),
            lambda: read_only.cp("/a", "/b"),
            lambda: read_only.mv("/a", "/b"),
            lambda: read_only.rm("/a"),
            lambda: read_only.mkdir("/b"),
            lambda: read_only.makedirs("/b"),
            lambda: read_only.rmdir("/b"),
            lambda: read_only.link("/a", "/b"),
            lambda: read_only.symlink("/a", "/b"),
        ]
        for change in changes:
            with pytest.raises(OSError) as raised:
                change()
            assert raised.value.errno == errno.EROFS
        assert volume.listdir() == ["a"] and (volume / "a").read_text() == "new"

        same = fsspec.filesystem("quire", image=str(image), commit_seconds=7, access_times="relative")
        assert same.volume is volume
        other = fsspec.filesystem("quire", image=str(image), commit_seconds=8)
        with pytest.raises(ValueError, match="commit_seconds=7, and commit_seconds=8 is asked for"):
            other.ls("/")
        with pytest.raises(ValueError, match="snapshot=None"):
            fsspec.filesystem("quire", volume=volume, snapshot="monday")
    with quire.Volume(image, read_only=True), pytest.raises(ValueError, match="read_only=True, and read_only=False"):
        fsspec.filesystem("quire", image=str(image), read_only=False).ls("/")


def test_options_that_nobody_knows_are_refused(image: Path) -> None:
    """They were dropped where the volume was open."""
    with quire.Volume(image) as volume:
        for option in ({"cache": "much"}, {"_beside": volume}):
            for given in ({"image": str(image)}, {"volume": volume}):
                with pytest.raises(TypeError, match="no|option"):
                    fsspec.filesystem("quire", **given, **option)


def test_a_relative_image_is_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fsspec kept the file system of a relative image by that text, and gave it to a program that had changed its directory
    since: the program wrote into the other image. A pickle was of the image that the receiver's directory had.
    """
    systems = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        quire.mkfs("data.img", size=64 << 20)
        fs = fsspec.filesystem("quire", image="data.img")
        fs.pipe("/name", name.encode())
        assert QuireFileSystem(Path("data.img")) is fs
        systems.append(fs)
    one, two = systems
    assert (one.cat("/name"), two.cat("/name")) == (b"one", b"two") and one != two
    for travelled in (pickle.loads(pickle.dumps(one)), fsspec.AbstractFileSystem.from_json(one.to_json())):
        assert travelled is one
    for fs in systems:
        fs.volume.close()


def test_a_given_volume_stays_the_one(image: Path) -> None:
    """A file system of a snapshot or of a read-only volume became the live volume, and writable, when that was closed. Two
    volumes of one image, a snapshot and the live one for example, were one file system for fsspec.
    """
    with quire.Volume(image) as volume:
        (volume / "a").write_text("old")
        volume.take_snapshot("monday")
        (volume / "a").write_text("new")
        live = fsspec.filesystem("quire", volume=volume)
        with volume.open_snapshot("monday") as snapshot:
            monday = fsspec.filesystem("quire", volume=snapshot)
            assert (live.cat("/a"), monday.cat("/a")) == (b"new", b"old") and live != monday
            read_only = fsspec.filesystem("quire", volume=volume, read_only=True)
            with pytest.raises(OSError, match="read_only=True"):
                read_only.rm("/a")
        with pytest.raises(ValueError, match="closed"):
            monday.cat("/a")
    with pytest.raises(ValueError, match="closed"):
        live.pipe("/a", b"newer")
    with quire.Volume(image) as volume:
        assert fsspec.filesystem("quire", volume=volume).cat("/a") == b"new"


def test_what_files_of_fsspec_take_and_have(fs: QuireFileSystem) -> None:
    """Options that fsspec's own files take were refused, `read_block` failed, and there was no `created`."""
    before = time.time()
    fs.mkdir("/dir")
    fs.pipe("/dir/a", b"one\ntwo\nthree\n")
    with fs.open("/dir/a", cache_type="readahead", fill_cache=False, size=14, block_size=1 << 20) as file:
        assert (file.size, file.path, file.fs) == (14, "/dir/a", fs) and file.read() == b"one\ntwo\nthree\n"
    with fs.open("/dir/a", buffering=0) as file:
        assert file.size == 14
    with fs.transaction, fs.open("/dir/b", "wb", cache_type="none") as file:
        assert (file.path, file.fs) == ("/dir/b", fs)
    with pytest.raises(TypeError):
        fs.open("/dir/a", cash_type="none")
    assert fs.read_block("/dir/a", 4, 3) == b"two" and fs.read_block("/dir/a", 3, 3, b"\n") == b"two\n"
    assert before - 60 < fs.info("/dir/a")["created"] < time.time() + 60
    assert abs(fs.created("/dir/a").timestamp() - fs.info("/dir/a")["created"]) < 1e-3


def test_directories_that_files_lack(image: Path) -> None:
    """There was no `auto_mkdir`, which zarr and others need."""
    fs = fsspec.filesystem("quire", image=str(image), auto_mkdir=True)
    fs.pipe("/a/b/c", b"1")
    fs.cp_file("/a/b/c", "/d/e")
    with fs.transaction:
        fs.pipe("/f/g", b"2")
    assert fs.find("/") == ["/a/b/c", "/d/e", "/f/g"]
    with pytest.raises(FileNotFoundError):
        fs.open("/none/a")
    assert not fs.exists("/none")
    fs.volume.close()


def test_what_file_systems_do(fs: QuireFileSystem, tmp_path: Path) -> None:
    fs.makedirs("a/b")
    with pytest.raises(FileExistsError):
        fs.mkdir("a")
    with pytest.raises(FileNotFoundError):
        fs.mkdir("x/y", create_parents=False)
    fs.pipe({"/a/one": b"1", "/a/two": b"22"})
    assert fs.cat("/a/two") == b"22" and fs.cat_file("/a/two", -1) == b"2" and fs.cat_file("/a/two", 5, 9) == b""
    assert fs.ls("/a", detail=False) == ["/a/b", "/a/one", "/a/two"]
    assert [(each["name"], each["type"], each["size"]) for each in fs.ls("a")] == [
        ("/a/b", "directory", 0),
        ("/a/one", "file", 1),
        ("/a/two", "file", 2),
    ]
    assert fs.ls("/a/one", detail=False) == ["/a/one"]
    for call in (fs.ls, fs.info, fs.cat_file, fs.rm_file):
        with pytest.raises(FileNotFoundError):
            call("/none")
    assert fs.find("/") == ["/a/one", "/a/two"] and fs.glob("/a/t*") == ["/a/two"] and fs.du("/") == 3
    fs.cp("/a", "/copy", recursive=True)
    fs.mv("/copy/one", "/copy/moved")
    assert fs.exists("/copy/moved") and not fs.exists("/copy/one") and fs.isdir("/copy/b") and fs.isfile("/copy/two")
    fs.symlink("/a/two", "/link")
    fs.symlink("/nowhere", "/broken")
    assert fs.islink("/link") and fs.info("/link")["destination"] == "/a/two" and fs.info("/link")["size"] == 2
    assert fs.info("/broken")["type"] == "link" and fs.lexists("/broken") and not fs.exists("/broken")
    fs.link("/a/two", "/hard")
    assert fs.info("/hard")["nlink"] == 2
    fs.touch("/a/two", truncate=False)
    assert fs.size("/a/two") == 2 and fs.modified("/a/two").timestamp() > 1e9
    fs.touch("/a/two")
    assert fs.size("/a/two") == 0
    with pytest.raises(IsADirectoryError):
        fs.rm("/copy")
    fs.rm(["/copy", "/link"], recursive=True)
    fs.rm("/a/o*")
    assert fs.find("/") == ["/a/two", "/broken", "/hard"]
    fs.rmdir("/a/b")
    (tmp_path / "host").write_bytes(b"from outside")
    fs.put(str(tmp_path / "host"), "/put")
    fs.get("/put", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == b"from outside"
    with fs.open("/text", "w", encoding="utf-8") as file:
        file.write("ä\n")
    assert fs.read_text("/text", encoding="utf-8") == "ä\n"
    assert fs.head("/put", 4) == b"from" and fs.tail("/put", 7) == b"outside"
    assert fs.fsid == f"quire_{fs.volume.info().uuid}"


def test_a_transaction_is_seen_when_it_is_committed(fs: QuireFileSystem) -> None:
    with fs.transaction:
        with fs.open("/a", "wb") as file:
            file.write(b"new")
        assert not fs.exists("/a")
    assert fs.cat("/a") == b"new"
    with pytest.raises(RuntimeError), fs.transaction:
        with fs.open("/a", "wb") as file:
            file.write(b"newer")
        raise RuntimeError
    assert fs.cat("/a") == b"new" and fs.find("/") == ["/a"]


def test_a_transaction_has_what_its_files_have_in_buffers(fs: QuireFileSystem) -> None:
    """A file that was not closed was renamed without what its buffer had, and so was cut off."""
    fs.pipe("/a", b"old")
    with fs.transaction:
        file, text = fs.open("/a", "wb"), fs.open("/b", "w")
        file.write(b"whole")
        text.write("whole")
    assert fs.cat("/a") == fs.cat("/b") == b"whole" and fs.find("/") == ["/a", "/b"]
    assert file.closed and text.closed


def test_a_transaction_has_all_of_a_compressed_file(fs: QuireFileSystem) -> None:
    """A compressed file that was not closed was committed without its end, or empty."""
    left_open = []
    with fs.transaction:
        for compression in ("gzip", "bz2", "xz"):
            file = fs.open(f"/{compression}", "wb", compression=compression)
            text = fs.open(f"/{compression}.text", "w", compression=compression)
            file.write(b"whole")
            text.write("whole")
            left_open += [file, text]
    for name in ("gzip", "bz2", "xz"):
        for path in (f"/{name}", f"/{name}.text"):
            with fs.open(path, "rb", compression=name) as file:
                assert file.read() == b"whole"


def test_a_transaction_outlives_a_crash_whole(fs: QuireFileSystem, tmp_path: Path) -> None:
    """The names of files became durable before their data: after a crash a new file could be empty."""
    with fs.transaction:
        for name in ("/a", "/b"):
            fs.open(name, "wb").write(b"whole" * 10_000)
    with fs.volume.open("/other", "wb", 0) as other:
        # All names before it become durable with it.
        other.fsync()
    crashed = tmp_path / "crashed.img"
    shutil.copyfile(fs.image, crashed)
    with quire.Volume(crashed) as volume:
        assert volume.path("/a").read_bytes() == volume.path("/b").read_bytes() == b"whole" * 10_000


def test_a_transaction_creates_what_is_to_be_new(fs: QuireFileSystem) -> None:
    """A file of mode "x" replaced the one that was there."""
    fs.pipe("/a", b"first")
    with pytest.raises(FileExistsError), fs.transaction:
        fs.open("/a", "xb")
    with pytest.raises(FileExistsError), fs.transaction:
        fs.open("/b", "xb").write(b"mine")
        fs.volume.path("/b").write_bytes(b"another's")
    assert fs.cat("/a") == b"first" and fs.cat("/b") == b"another's" and fs.find("/") == ["/a", "/b"]


def test_a_transaction_that_fails_leaves_nothing_behind(fs: QuireFileSystem) -> None:
    """A file whose buffer could not be written stayed beside its place, under its hidden name."""

    def full(_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    fs.pipe("/a", b"old")
    with pytest.raises(OSError, match="full"), fs.transaction:
        for name in ("/a", "/b"):
            file = fs.open(name, "wb")
            file.write(b"new")
            file.raw.write = full
    assert fs.cat("/a") == b"old" and fs.find("/") == ["/a"]
    with pytest.raises(RuntimeError), fs.transaction:
        file = fs.open("/a", "wb")
        file.write(b"new")
        file.raw.write = full
        raise RuntimeError
    assert fs.cat("/a") == b"old" and fs.find("/") == ["/a"]


def test_all_writing_of_a_transaction_waits_for_its_end(fs: QuireFileSystem) -> None:
    """Files that were opened for reading and writing, and what `pipe` and `touch` wrote, were changed at once."""
    fs.pipe({"/a": b"old", "/b": b"old", "/c": b"old\n"})
    for commits in (False, True):
        try:
            with fs.transaction:
                with fs.open("/a", "r+b") as file:
                    assert list(file) == [b"old"]
                    file.write(b" and new")
                fs.pipe("/b", b"new")
                with fs.open("/c", "a") as text:
                    text.write("new\n")
                fs.pipe_file("/d", b"new", mode="create")
                fs.touch("/e")
                assert fs.cat("/a") == fs.cat("/b") == b"old" and not fs.exists("/d") and not fs.exists("/e")
                if not commits:
                    raise RuntimeError
        except RuntimeError:
            assert fs.find("/") == ["/a", "/b", "/c"]
            assert fs.cat("/a") == fs.cat("/b") == b"old" and fs.cat("/c") == b"old\n"
    assert fs.cat("/a") == b"old and new" and fs.cat("/b") == fs.cat("/d") == b"new" and fs.cat("/e") == b""
    assert fs.cat("/c") == b"old\nnew\n"
    with pytest.raises(FileNotFoundError), fs.transaction:
        fs.open("/none", "r+b")
    assert fs.find("/") == ["/a", "/b", "/c", "/d", "/e"]


def test_an_open_that_fails_leaves_nothing_behind(fs: QuireFileSystem) -> None:
    """The hidden copy of a file stayed when its opening failed in a transaction."""
    fs.pipe("/a", b"old")
    for mode in ("r+b", "ab"):
        with pytest.raises(TypeError), fs.transaction:
            fs.open("/a", mode, unknown=1)
    assert fs.find("/") == ["/a"]


def test_threads_open_a_volume_once(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two threads found no open volume, and the second that opened one was told that it is busy."""
    opened = quire._volume.opened

    def slowly(path: str, snapshot: str | None = None) -> quire.Volume | None:
        found = opened(path, snapshot)
        time.sleep(0.05)
        return found

    monkeypatch.setattr(quire.fs, "opened", slowly)
    shared = QuireFileSystem(str(image), skip_instance_cache=True)
    used: list[quire.Volume] = []

    def use(fs: QuireFileSystem) -> None:
        used.append(fs.volume)

    each = [shared, shared, QuireFileSystem(str(image), skip_instance_cache=True)]
    threads = [threading.Thread(target=use, args=(fs,)) for fs in each]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(used) == 3 and len(set(used)) == 1
    shared.volume.close()


def test_what_is_moved_into_a_directory(fs: QuireFileSystem) -> None:
    """A file could not be moved into a directory, and a pattern was taken for a name."""
    fs.mkdir("/into")
    fs.pipe({f"/{name}": name.encode() for name in ("one", "two", "three", "[x]", "x")})
    fs.mv("/one", "/into")
    fs.mv("/t*", "/into")
    assert fs.find("/") == ["/[x]", "/into/one", "/into/three", "/into/two", "/x"]
    # A name that looks like a pattern.
    fs.mv("/[x]", "/y")
    assert fs.cat("/y") == b"[x]" and fs.cat("/x") == b"x"
    fs.mv(["/x", "/into"], "/made/below")
    fs.mv(["/y", "/made/below/x"], ["/1", "/2"])
    assert fs.find("/") == ["/1", "/2", "/made/below/into/one", "/made/below/into/three", "/made/below/into/two"]
    fs.mv("/made/below/into", "/made/below/into")
    fs.mv("/made/below/into", "/top")
    assert fs.ls("/made/below") == [] and fs.ls("/top", detail=False) == ["/top/one", "/top/three", "/top/two"]
    for missing in ("/none", "/none*", ["/none"]):
        with pytest.raises(FileNotFoundError):
            fs.mv(missing, "/top")


def test_file_systems_are_shared_and_travel(image: Path, url: str) -> None:
    fs = fsspec.filesystem("quire", image=str(image))
    assert fs is fsspec.filesystem("quire", image=str(image))
    fs.pipe_file("/a", b"1")
    assert pickle.loads(pickle.dumps(fs)).cat("/a") == b"1"
    fs.volume.close()
