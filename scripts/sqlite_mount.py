"""What the scripts for SQLite share: a mount, and the extension loaded into this process."""
import contextlib, os, sqlite3, subprocess

from mounts import Place, root


def load():
    """Loads the extension: the one that QUIRE_SQLITE_EXTENSION names, or a release build."""
    named, made = os.environ.get("QUIRE_SQLITE_EXTENSION"), f"{root}/target/release/libquire_sqlite.so"
    if not named and not os.path.exists(made):
        subprocess.run(["cargo", "build", "--release", "--locked", "-p", "quire-sqlite"], check=True, cwd=root)
    connection = sqlite3.connect(":memory:")
    connection.enable_load_extension(True)
    connection.load_extension(named or made)
    connection.close()


@contextlib.contextmanager
def mounted():
    """A folder on a mount: the one that QUIRE_SQLITE_FOLDER names, or a mount of a fresh image (2 GiB) below TMPDIR."""
    given = os.environ.get("QUIRE_SQLITE_FOLDER")
    if given:
        yield given
        return
    with Place("sqlite") as place:
        image, mount = f"{place.folder}/image", f"{place.folder}/mount"
        place.run(place.quire, "mkfs", "--quiet", "--size", "2G", image)
        place.attach(image, mount)
        # SQLite leaves parts of files mapped (mmap_size with pages smaller than the system's, with the default VFS as well). So the
        # mount may be in use at the end, and the place takes it away.
        yield mount
