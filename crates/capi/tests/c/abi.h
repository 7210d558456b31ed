// The binary interface of version 1 on systems of 64 bits, as a table. A line that no longer compiles is a change that
// breaks programs which were linked with an older library: give the structure or constant its old shape back. New fields
// take the place of spare words, or, in structures of options, stand at the end; their lines and the size are added.
#include <assert.h>
#include <quire.h>
#include <stddef.h>

#define SIZE(type, bytes) static_assert(sizeof(struct type) == (bytes), #type)
#define PLACE(type, field, offset, bytes)                                                                    \
    static_assert(offsetof(struct type, field) == (offset) && sizeof(((struct type *)0)->field) == (bytes),  \
                  #type "." #field)
#define CONSTANT(name, value) static_assert((name) == (value), #name)

SIZE(quire_format_options, 32);
PLACE(quire_format_options, size, 0, 4);
PLACE(quire_format_options, flags, 4, 4);
PLACE(quire_format_options, bytes, 8, 8);
PLACE(quire_format_options, journal_bytes, 16, 8);
PLACE(quire_format_options, label, 24, 8);

SIZE(quire_volume_options, 32);
PLACE(quire_volume_options, size, 0, 4);
PLACE(quire_volume_options, flags, 4, 4);
PLACE(quire_volume_options, cache_bytes, 8, 8);
PLACE(quire_volume_options, node_cache_bytes, 16, 8);
PLACE(quire_volume_options, commit_seconds, 24, 4);
PLACE(quire_volume_options, access_times, 28, 4);

SIZE(quire_info, 200);
PLACE(quire_info, uuid, 0, 16);
PLACE(quire_info, label, 16, 72);
PLACE(quire_info, version_major, 88, 4);
PLACE(quire_info, version_minor, 92, 4);
PLACE(quire_info, block_size, 96, 4);
PLACE(quire_info, mount_count, 100, 4);
PLACE(quire_info, blocks, 104, 8);
PLACE(quire_info, journal_blocks, 112, 8);
PLACE(quire_info, checkpoint, 120, 8);
PLACE(quire_info, read_only, 128, 4);
PLACE(quire_info, failed, 132, 4);
PLACE(quire_info, spare, 136, 64);

SIZE(quire_space, 80);
PLACE(quire_space, blocks, 0, 8);
PLACE(quire_space, free, 8, 8);
PLACE(quire_space, available, 16, 8);
PLACE(quire_space, inodes, 24, 8);
PLACE(quire_space, free_inodes, 32, 8);
PLACE(quire_space, block_size, 40, 4);
PLACE(quire_space, name_max, 44, 4);
PLACE(quire_space, spare, 48, 32);

SIZE(quire_metric, 24);
PLACE(quire_metric, name, 0, 8);
PLACE(quire_metric, value, 8, 8);
PLACE(quire_metric, kind, 16, 4);
PLACE(quire_metric, spare, 20, 4);

SIZE(quire_extent, 32);
PLACE(quire_extent, offset, 0, 8);
PLACE(quire_extent, length, 8, 8);
PLACE(quire_extent, device, 16, 8);
PLACE(quire_extent, kind, 24, 4);
PLACE(quire_extent, reserved, 28, 4);

SIZE(quire_dirent, 24);
PLACE(quire_dirent, ino, 0, 8);
PLACE(quire_dirent, kind, 8, 4);
PLACE(quire_dirent, name_length, 12, 4);
PLACE(quire_dirent, name, 16, 8);

SIZE(quire_attributes, 152);
PLACE(quire_attributes, ino, 0, 8);
PLACE(quire_attributes, generation, 8, 8);
PLACE(quire_attributes, bytes, 16, 8);
PLACE(quire_attributes, blocks, 24, 8);
PLACE(quire_attributes, rdev, 32, 8);
PLACE(quire_attributes, mode, 40, 4);
PLACE(quire_attributes, nlink, 44, 4);
PLACE(quire_attributes, uid, 48, 4);
PLACE(quire_attributes, gid, 52, 4);
PLACE(quire_attributes, atime, 56, 16);
PLACE(quire_attributes, mtime, 72, 16);
PLACE(quire_attributes, ctime, 88, 16);
PLACE(quire_attributes, btime, 104, 16);
PLACE(quire_attributes, spare, 120, 32);

SIZE(quire_properties, 32);
PLACE(quire_properties, untorn_bytes, 0, 4);
PLACE(quire_properties, flags, 4, 4);
PLACE(quire_properties, spare, 8, 24);

SIZE(quire_snapshot, 40);
PLACE(quire_snapshot, name, 0, 8);
PLACE(quire_snapshot, created, 8, 16);
PLACE(quire_snapshot, number, 24, 4);
PLACE(quire_snapshot, deleting, 28, 1);
PLACE(quire_snapshot, deleted_percent, 29, 1);
PLACE(quire_snapshot, spare, 30, 10);

SIZE(quire_completion, 16);
PLACE(quire_completion, user_data, 0, 8);
PLACE(quire_completion, result, 8, 8);

SIZE(quire_sync_options, 32);
PLACE(quire_sync_options, size, 0, 4);
PLACE(quire_sync_options, flags, 4, 4);
PLACE(quire_sync_options, offset, 8, 8);
PLACE(quire_sync_options, length, 16, 8);
PLACE(quire_sync_options, lazy_ms, 24, 4);
PLACE(quire_sync_options, spare, 28, 4);

CONSTANT(QUIRE_ABI, 1);
CONSTANT(QUIRE_READ_ONLY, 1);
CONSTANT(QUIRE_DISCARD, 2);
CONSTANT(QUIRE_LAZY_TIMES, 4);
CONSTANT(QUIRE_NO_AUTO_DA_ALLOC, 8);
CONSTANT(QUIRE_ACCESS_TIMES_RELATIVE, 0);
CONSTANT(QUIRE_ACCESS_TIMES_NEVER, 1);
CONSTANT(QUIRE_ACCESS_TIMES_STRICT, 2);
CONSTANT(QUIRE_FORCE, 1);
CONSTANT(QUIRE_COUNTER, 0);
CONSTANT(QUIRE_GAUGE, 1);
CONSTANT(QUIRE_COMMIT_NOW, 0);
CONSTANT(QUIRE_COMMIT_LAZY, 1);
CONSTANT(QUIRE_COMMIT_ORDERED, 2);
CONSTANT(QUIRE_EXTENT_WRITTEN, 1);
CONSTANT(QUIRE_EXTENT_UNWRITTEN, 2);
CONSTANT(QUIRE_EXTENT_HOLE, 3);
CONSTANT(QUIRE_LEASE_REVOKED, 0);
CONSTANT(QUIRE_LEASE_VALID, 1);
CONSTANT(QUIRE_LEASE_RECALLED, 2);
CONSTANT(QUIRE_CACHE_DROP, 1);
CONSTANT(QUIRE_SYNC_DATA, 1);
