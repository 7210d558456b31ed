# For scripts that mount.

# Whether something is mounted there, also if its server is dead: mountpoint(1) does not see such a mount.
is_mounted() { findmnt --mountpoint "$1" >/dev/null; }

# Takes away what is mounted at each of the directories.
unmount() {
    local dir
    for dir; do
        if is_mounted "$dir"; then umount "$dir" 2>/dev/null || umount -l "$dir"; fi
    done
}
