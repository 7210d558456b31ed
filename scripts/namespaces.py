"""For scripts that bring up a cluster on this one machine: name spaces, patience, load.

`enter` starts the script again in name spaces of its own for processes, mounts and network. When the script ends, whichever way,
the kernel ends all its processes and mounts. Daemons find only loopback, and everything from 127.0.0.1 to 127.255.255.254 is
theirs. Neighbours: scripts/gluster, scripts/ceph, scripts/cold."""
import os, shutil, signal, subprocess, sys, tempfile, time

from mounts import install, program, root


def enter(name, packages, private=(), prepare=lambda: None):
    """Returns a directory and the program quire, in the name spaces. `packages` is what `install` takes, and
    `private` has the directories of the system that are empty ones inside; `prepare` runs outside, where the network is."""
    if "IN_NAMESPACES" not in os.environ:
        _outside(name, packages, prepare)
    if os.getpid() == 1 and (script := os.fork()):
        # A daemon takes a process for alive until somebody has waited for it; the first process has to. Its end ends all others.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        while (ended := os.wait())[0] != script:
            pass
        sys.exit(1 if ended[1] else 0)
    run("ip", "link", "set", "lo", "up")
    for place in private:
        os.makedirs(place, exist_ok=True)
        run("mount", "-t", "tmpfs", "tmpfs", place)
    return os.environ["IN_NAMESPACES"], os.environ["QUIRE"]


def _outside(name, packages, prepare):
    if os.geteuid() != 0:
        sys.exit(f"scripts/{name} needs root")
    install(packages)
    quire = program()
    prepare()
    folder = tempfile.mkdtemp(prefix=f"quire-{name}-")
    child = subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--mount", "--net", "--ipc",
                              sys.executable, *sys.argv],
                             env=os.environ | {"IN_NAMESPACES": folder, "QUIRE": quire})
    try:
        code = child.wait()
    finally:
        child.kill()
        child.wait()
        # Killed processes may still be ending.
        for _ in range(100):
            shutil.rmtree(folder, ignore_errors=True)
            if not os.path.exists(folder):
                break
            time.sleep(0.1)
    sys.exit(1 if code else 0)


def run(*command, **options):
    """The command's output; its failure ends the script."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {(done.stdout + done.stderr).strip()[-2000:]}")
    return done.stdout


def until(what, condition, patience=60):
    """The first value of `condition` that counts as true."""
    deadline = time.monotonic() + patience
    while not (value := condition()):
        if time.monotonic() > deadline:
            sys.exit(f"{what}: not within {patience} s")
        time.sleep(0.1)
    return value


def fio(directory, jobs, seconds, size="16m"):
    """Random 4K writes a second, each followed by fdatasync."""
    out = run("fio", "--name=fio", f"--directory={directory}", "--rw=randwrite", "--bs=4k", f"--size={size}", "--fdatasync=1",
              f"--numjobs={jobs}", "--group_reporting", "--time_based", f"--runtime={seconds}", "--output-format=terse",
              "--terse-version=3", cwd=directory)
    line = next(line for line in out.splitlines() if line.startswith("3;"))
    return int(line.split(";")[48])


def small_files(directory, count, durable=True):
    """Makes a directory of files of 4 KiB; how many a second."""
    os.mkdir(directory)
    began = time.monotonic()
    for number in range(count):
        with open(f"{directory}/{number}", "wb", buffering=0) as file:
            file.write(number.to_bytes(4, "big") * 1024)
            if durable:
                os.fsync(file.fileno())
    return count / (time.monotonic() - began)
