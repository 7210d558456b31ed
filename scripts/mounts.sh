# For scripts that mount.

# Ends the process groups of jobs (of `set -m`), and returns when their processes have ended: after SIGTERM, or ten seconds later after
# SIGKILL.
end_groups() {
    local group
    for group; do
        kill -- "-$group" 2>/dev/null || true
        kill -CONT -- "-$group" 2>/dev/null || true
    done
    for group; do
        for _ in {1..100}; do
            pgrep --pgroup "$group" --runstates D,R,S,T >/dev/null || continue 2
            sleep 0.1
        done
        kill -KILL -- "-$group" 2>/dev/null || true
    done
}

# Whether something is mounted there, also if its server is dead: mountpoint(1) does not see such a mount.
is_mounted() { findmnt --mountpoint "$1" >/dev/null; }

# Takes away what is mounted at each of the directories.
unmount() {
    local dir
    for dir; do
        if is_mounted "$dir"; then umount "$dir" 2>/dev/null || umount -l "$dir"; fi
    done
}
