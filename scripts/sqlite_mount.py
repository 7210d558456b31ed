"""What the scripts for SQLite share: a mount, and the extension loaded into this process."""
import contextlib, os, sqlite3, subprocess, tempfile, time

root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")


def build(file, package):
    path = os.path.join(root, "target/release", file)
    if not os.path.exists(path):
        subprocess.run(["cargo", "build", "--release", "--locked", "-p", package], check=True, cwd=root)
    return path


def load():
    """Loads the extension."""
    extension = os.environ.get("QUIRE_SQLITE_EXTENSION") or build("libquire_sqlite.so", "quire-sqlite")
    connection = sqlite3.connect(":memory:")
    connection.enable_load_extension(True)
    connection.load_extension(extension)
    connection.close()


@contextlib.contextmanager
def mounted():
    """A folder on a mount: the one that QUIRE_SQLITE_FOLDER names, or a mount of a fresh image (2 GiB) below TMPDIR."""
    given = os.environ.get("QUIRE_SQLITE_FOLDER")
    if given:
        yield given
        return
    quire = os.environ.get("QUIRE") or build("quire", "quire-cli")
    with tempfile.TemporaryDirectory(prefix="quire-sqlite-") as folder:
        image, mount = os.path.join(folder, "image"), os.path.join(folder, "mount")
        os.mkdir(mount)
        subprocess.run([quire, "mkfs", "--quiet", "--size", "2G", image], check=True)
        server = subprocess.Popen([quire, "mount", "--foreground", image, mount])
        try:
            for _ in range(200):
                if os.path.ismount(mount):
                    break
                time.sleep(0.05)
            else:
                raise SystemExit("the mount does not appear")
            yield mount
        finally:
            for _ in range(100):
                if subprocess.run(["umount", mount], stderr=subprocess.DEVNULL).returncode == 0:
                    break
                time.sleep(0.1)
            else:
                # SQLite itself leaves parts of files mapped (mmap_size with pages smaller than the system's, with the
                # default VFS as well): the mount goes with this process, and the server with the mount.
                subprocess.run(["umount", "-l", mount])
                server = None
            if server:
                server.wait()
