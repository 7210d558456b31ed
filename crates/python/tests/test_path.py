"""Paths, beside `pathlib.Path` on the host."""

import errno
import pathlib
from pathlib import Path, PurePosixPath

import pytest

import quire

TREE = ["a/one.txt", "a/two.bin", "a/deep/er/three.txt", "b/one.txt", "top.txt", "a[1].txt", "a/.hidden"]
PATTERNS = ["*", "*.txt", "**/*.txt", "*/one.*", "a/**", "**", "**/", "a/*/", "?/one.txt", "[ab]/*", "[!a]/*", "none/*"]
PATTERNS += ["link/*", "*/*/two.bin", "**/link/*", "broken", "br*", "a/../b/*", "*/../*.txt", "top.txt/", "a/", "**/*/"]
PATTERNS += ["**/er/*", "a/deep", "**/**/one.txt", "a/**/**", "a[[]1].txt", "*/*/*"]


def grow(root: "quire.Path | pathlib.Path") -> None:
    for name in TREE:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (root / "link").symlink_to("a")
    (root / "broken").symlink_to("nowhere")


def test_globs_are_those_of_pathlib(volume: quire.Volume, tmp_path: Path) -> None:
    """`rglob("*")` had the directory itself, so that a program that removed what it got met it. Links to directories that a
    pattern names were not followed, and nothing fitted a pattern with `..`.
    """
    host = tmp_path / "tree"
    host.mkdir()
    grow(host)
    grow(volume.path())
    for pattern in PATTERNS:
        # Python 3.13 made `**` list files, too.
        expected = {str(path.relative_to(host)) for path in host.glob(pattern) if pattern[-2:] != "**" or path.is_dir()}
        found = [str(path.relative_to("/")) for path in volume.path().glob(pattern)]
        assert set(found) == expected and len(found) == len(expected), pattern
        if not pattern.endswith("**"):
            expected = {str(path.relative_to(host / "a")) for path in (host / "a").rglob(pattern)}
            found = [str(path.relative_to("/a")) for path in volume.path("a").rglob(pattern)]
            assert set(found) == expected and len(found) == len(expected), pattern
    assert volume.path("a") not in volume.path("a").rglob("*")
    for wrong, error in (("", ValueError), ("a**", ValueError), ("/a", NotImplementedError)):
        with pytest.raises(error):
            list(volume.path().glob(wrong))


def test_parts(volume: quire.Volume) -> None:
    path = volume / "a" / "b.tar.gz"
    assert str(path) == path.as_posix() == "/a/b.tar.gz" == str(volume.path("a/b.tar.gz"))
    assert (path.name, path.stem, path.suffix, path.suffixes) == ("b.tar.gz", "b.tar", ".gz", [".tar", ".gz"])
    assert path.parts == ("/", "a", "b.tar.gz")
    assert path.parent == volume / "a" and path.parents == [volume / "a", volume.path()]
    assert path.with_name("c") == volume / "a/c" and path.with_suffix(".x").name == "b.tar.x"
    assert path.with_stem("d").name == "d.gz" and path.joinpath("e", "f") == path / "e/f"
    assert path.relative_to(volume / "a") == PurePosixPath("b.tar.gz")
    assert path.is_relative_to("a") and not path.is_relative_to(volume / "b") and path.match("*.gz")
    assert len({path, volume.path("a", "b.tar.gz")}) == 1 and volume / "a" < volume / "b" <= volume / "b"
    assert path != "/a/b.tar.gz" and "data.img" in repr(path)
    assert path.absolute() == path and path.is_absolute() and volume.path(volume / "a", "b.tar.gz") == path
    # The built-in `open` would look on the host.
    with pytest.raises(TypeError):
        open(path)  # type: ignore[call-overload]


def test_what_paths_do(volume: quire.Volume) -> None:
    path = volume / "dir" / "file"
    with pytest.raises(FileNotFoundError):
        path.touch()
    path.parent.mkdir(0o700)
    path.parent.mkdir(exist_ok=True)
    with pytest.raises(FileExistsError):
        path.parent.mkdir()
    assert path.parent.stat().st_mode & 0o777 == 0o700
    path.touch(0o600)
    assert path.stat().st_mode & 0o777 == 0o600
    path.touch(mode=0o644)
    assert path.stat().st_mode & 0o777 == 0o600
    assert not any((path.is_fifo(), path.is_socket(), path.is_block_device(), path.is_char_device()))
    with pytest.raises(FileExistsError):
        path.touch(exist_ok=False)
    with pytest.raises(FileExistsError):
        path.mkdir(exist_ok=True)
    assert path.write_bytes(b"123") == 3 and path.read_bytes() == b"123"
    assert path.write_text("äöü", "utf-8") == 3 and path.read_text("utf-8") == "äöü"
    moved = path.rename(volume / "moved")
    assert moved == volume / "moved" and moved.is_file() and not path.exists()
    link = volume / "link"
    link.symlink_to("moved")
    (volume / "hard").hardlink_to(moved)
    assert link.is_symlink() and link.readlink() == "moved" and link.samefile(volume / "hard")
    assert link.lstat().st_ino != link.stat().st_ino
    moved.chmod(0o600)
    assert moved.stat().st_mode == 0o100600
    assert sorted(path.name for path in volume.path().iterdir()) == ["dir", "hard", "link", "moved"]
    assert [str(directory) for directory, _, _ in volume.path().walk()] == ["/", "/dir"]
    link.unlink()
    link.unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError):
        link.unlink()
    path.parent.rmdir()
    (volume / "x/y").mkdir(parents=True)
    (volume / "x").rmtree()
    assert not (volume / "x").is_dir()


def test_paths_of_two_volumes(volume: quire.Volume, tmp_path: Path) -> None:
    quire.mkfs(tmp_path / "other.img", size=64 << 20)
    with quire.Volume(tmp_path / "other.img") as other:
        (volume / "a").touch()
        assert volume / "a" != other / "a"
        with pytest.raises(OSError, match="another volume") as raised:
            (volume / "a").rename(other / "a")
        assert raised.value.errno == errno.EXDEV
        for call in (volume.stat, volume.open, volume.listdir, lambda path: list(volume.walk(path)), volume.makedirs):
            with pytest.raises(OSError, match="another volume: '/a'"):
                call(other / "a")


def test_paths_name_files(volume: quire.Volume) -> None:
    """The class said that paths may be of the module, and every function refused them."""
    directory = volume / "dir"
    volume.mkdir(directory)
    volume.makedirs(directory / "below" / "deep")
    with volume.open(directory / "a", "w") as file:
        file.write("text")
        assert file.name == "/dir/a"
    volume.rename(directory / "a", directory / "b")
    volume.link(directory / "b", "hard")
    volume.symlink(directory / "b", volume / "soft")
    with volume.replacing(volume / "soft") as file:
        file.write(b"new")
    assert volume.readlink(volume / "soft") == "/dir/b" and (directory / "b").read_text() == "new"
    volume.setxattr(directory / "b", "user.a", b"1")
    assert volume.getxattr(directory / "b", "user.a") == b"1" and volume.stat(directory / "b").st_size == 3
    assert sorted(volume.listdir(directory)) == ["b", "below"]
    assert [entry.path for entry in volume.scandir(directory / "below")] == ["/dir/below/deep"]
    assert [top for top, _, _ in volume.walk(directory)] == ["/dir", "/dir/below", "/dir/below/deep"]
    assert volume.exists(directory) and volume.isdir(directory) and not volume.isfile(directory)
    volume.rmtree(directory)
    assert not volume.lexists(directory)
