"""What scripts share that work on a mount: a server that can be killed, and PostgreSQL in a directory. A script that imports this
ends at SIGTERM as it does at Ctrl-C, through its `finally` blocks."""
import glob, os, shutil, signal, subprocess, sys, tempfile, time

root = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))


def install(packages):
    """Installs those of Debian's packages whose program or file is missing. `packages` has a package for each of these."""
    missing = sorted({package for need, package in packages.items() if not shutil.which(need) and not os.path.exists(need)})
    for words in (["update"], ["install", "-y", "--no-install-recommends", *missing]) if missing else ():
        subprocess.run(["apt-get", "-qq", *words], check=True, stdout=subprocess.DEVNULL,
                       env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"})


def program():
    """The program `quire`: the one that QUIRE names, or a release build."""
    quire = os.path.abspath(os.environ.get("QUIRE") or os.path.join(root, "target/release/quire"))
    if not os.path.exists(quire):
        subprocess.run(["cargo", "build", "--release", "--locked", "-p", "quire-cli"], check=True, cwd=root)
    return quire


def postgres_programs(*wanted):
    """The directory of Debian's newest PostgreSQL server; ends the script if it, or one of these programs, is missing."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
    missing = [name for name in ("initdb", "pg_ctl", "pgbench", "psql", *wanted) if not found or not os.path.exists(f"{found[-1]}/{name}")]
    if missing:
        sys.exit(f"PostgreSQL's {missing[0]} is missing: apt install postgresql")
    return found[-1]


def is_mounted(path):
    """Also of a mount whose server is dead, which `os.path.ismount` does not see."""
    return any(line.split()[1] == path for line in open("/proc/self/mounts"))


class Place:
    """A directory of its own with what works in it: programs, mounts, databases. Leaves nothing behind, also after a failure,
    Ctrl-C and SIGTERM. A program that failed is shown with the ends of the logs (files `*log`, and those of databases)."""

    def __init__(self, name):
        self.name, self.children, self.mounts, self.databases = name, [], [], []

    def __enter__(self):
        self.quire = program()
        self.folder = tempfile.mkdtemp(prefix=f"quire-{self.name}-", dir=os.environ.get("TMPDIR", "/tmp"))
        # The user postgres must get through.
        os.chmod(self.folder, 0o755)
        self.log = open(f"{self.folder}/log", "a")
        return self

    def __exit__(self, kind, error, _):
        logs = glob.glob(f"{self.folder}/*log") + glob.glob(f"{self.folder}/server-*/log")
        said = [open(file, errors="replace").read()[-2000:] for file in logs]
        for database in self.databases:
            database.end()
        for child in self.children:
            if child.poll() is None:
                child.terminate()
        for mount in self.mounts:
            while is_mounted(mount) and subprocess.run(["umount", "--lazy", mount], stderr=self.log).returncode == 0:
                pass
        for child in self.children:
            try:
                child.wait(timeout=30)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        if kind in (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            sys.exit("\n".join([str(error), *said]))

    def run(self, *command, **options):
        return subprocess.run(command, check=True, **{"timeout": 300, "stderr": self.log, **options})

    def start(self, *command, **options):
        child = subprocess.Popen(command, **{"stdout": subprocess.DEVNULL, "stderr": self.log, **options})
        self.children.append(child)
        return child

    def attach(self, image, mount, *options):
        """Mounts an image; gives the server."""
        os.makedirs(mount, exist_ok=True)
        if mount not in self.mounts:
            self.mounts.append(mount)
        server = self.start(self.quire, "mount", "--foreground", *options, image, mount)
        for _ in range(1200):
            if os.path.ismount(mount):
                return server
            if server.poll() is not None:
                break
            time.sleep(0.05)
        sys.exit(f"the mount does not appear:\n{open(self.folder + '/log').read()[-3000:]}")

    def detach(self, server, mount):
        self.run("umount", mount)
        server.wait(timeout=120)
        self.children.remove(server)

    def kill(self, server, mount):
        """Ends a server by SIGKILL, and takes its mount away."""
        server.kill()
        server.wait(timeout=60)
        self.children.remove(server)
        while is_mounted(mount):
            self.run("umount", "--lazy", mount)


class Database:
    """PostgreSQL's server on a data directory, over a socket in a directory beside it. Every server has a port of its own."""

    next_port = 5432

    def __init__(self, place, programs, data, *settings):
        self.place, self.programs, self.data = place, programs, data
        self.port, Database.next_port = Database.next_port, Database.next_port + 1
        # The user's own, for the socket and the log.
        self.folder = f"{place.folder}/server-{self.port}"
        os.mkdir(self.folder)
        shutil.chown(self.folder, "postgres", "postgres")
        settings = ["listen_addresses=''", f"unix_socket_directories={self.folder}", f"port={self.port}", *settings]
        self.options = " ".join(f"-c {setting}" for setting in settings)
        self.address = ["-h", self.folder, "-p", str(self.port)]
        place.databases.append(self)

    def command(self, name, *arguments):
        user = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--init-groups"]
        return [*user, f"{self.programs}/{name}", *arguments]

    def run(self, name, *arguments, **options):
        return self.place.run(*self.command(name, *arguments), **{"cwd": "/", "stdout": subprocess.DEVNULL, **options})

    def make(self, *arguments):
        os.mkdir(self.data)
        shutil.chown(self.data, "postgres", "postgres")
        self.run("initdb", "-D", self.data, "--locale=C", "--auth=trust", "--data-checksums", *arguments)

    def control(self, *arguments):
        self.run("pg_ctl", "-D", self.data, "-l", f"{self.folder}/log", "-w", "-t", "120", "-o", self.options, *arguments)

    def ask(self, query, database="postgres"):
        said = self.run("psql", *self.address, "-AtX", "-c", query, database, stdout=subprocess.PIPE, text=True)
        return said.stdout.strip()

    def sums(self):
        """pgbench's balances, four sums that are equal after any number of transactions, and how many those were."""
        *sums, count = self.ask(
            "SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers), "
            "(SELECT sum(bbalance) FROM pgbench_branches), coalesce(sum(delta), 0), count(*) FROM pgbench_history").split("|")
        return sums, int(count)

    def end(self):
        if os.path.exists(f"{self.data}/postmaster.pid"):
            subprocess.run(self.command("pg_ctl", "-D", self.data, "-m", "immediate", "stop"),
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")
