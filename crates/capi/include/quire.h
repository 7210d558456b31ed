// Quire: a crash-safe, journaling file system in user space, for C and C++.
//
// A volume is an image file or a block device. A program opens it by itself, without a mount or privileges. docs/c.md is
// the manual, docs/durability.md says what is there after a crash.
//
// Results. A function that can fail returns a negative error number (-ENOENT); quire_error_message() then has a text
// for the calling thread, which says what was being done, to what, and why it failed; the text is valid until the next
// call on that thread. Numbers that nothing else gives:
// -EUCLEAN, the volume is damaged; -ENOTRECOVERABLE, the library has met a defect of its own: close the volume.
//
// Ownership. A handle belongs to the program from the function that made it until the function that closes or frees it.
// A file's handle keeps what it needs of its volume. Texts and structures that a program gives are its own and are not
// kept. Memory of a submitted request belongs to the request until its completion has been reaped.
//
// Threads. Any function may be called from any thread, at the same time as any other and on the same handles, except
// where its comment says otherwise: a handle is closed when no other call uses it. A child that fork(2) makes gets
// -EPERM for the handles of its parent, and closing them there does nothing.
//
// Paths begin at the root of the volume, with a slash or without.
//
// Structures of options begin with their size: set that field to sizeof the structure, all others to zero, and then
// those that matter. Structures that the library fills have spare words, which it sets to zero. Of the structures that
// a program fills, quire_properties and quire_sync_options have some: they must be zero (-E2BIG). Flags that the library
// does not know give -EINVAL.
//
// Stability. This is version 1 of the interface, libquire.so.1. As long as that number stands, programs that were
// linked with an older library run with a newer one: functions and fields are added, and none changes or goes.

#ifndef QUIRE_H
#define QUIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>
#include <time.h>

// The version of the binary interface that this header describes. Within one version functions and fields
// are added, and none changes or goes.
#define QUIRE_ABI 1

// For `quire_volume_options.flags`: take no changes; a journal is replayed in memory only.
#define QUIRE_READ_ONLY 1

// For `quire_volume_options.flags`: tell the device about freed blocks.
#define QUIRE_DISCARD 2

// For `quire_volume_options.flags`: keep changes of times alone in memory until something else is written.
#define QUIRE_LAZY_TIMES 4

// For `quire_volume_options.flags`: do not write data back before a rename over an existing file.
#define QUIRE_NO_AUTO_DA_ALLOC 8

// For `quire_volume_options.access_times`: when older than the last change, or than a day (the default).
#define QUIRE_ACCESS_TIMES_RELATIVE 0

// For `quire_volume_options.access_times`: never.
#define QUIRE_ACCESS_TIMES_NEVER 1

// For `quire_volume_options.access_times`: at every read.
#define QUIRE_ACCESS_TIMES_STRICT 2

// For `quire_format_options.flags`: overwrite what is there, whatever it is.
#define QUIRE_FORCE 1

// For `quire_metric.kind`: a number that only grows while the volume is open.
#define QUIRE_COUNTER 0

// For `quire_metric.kind`: how something is now.
#define QUIRE_GAUGE 1

// For `quire_group_commit`: it survives a crash when the call returns.
#define QUIRE_COMMIT_NOW 0

// For `quire_group_commit`: as QUIRE_COMMIT_NOW, but the call waits for a force that others make, and makes
// one itself after so many milliseconds.
#define QUIRE_COMMIT_LAZY 1

// For `quire_group_commit`: the call waits for nothing. It is durable with the next force that anybody
// makes, and not without what was committed before it.
#define QUIRE_COMMIT_ORDERED 2

// Of an extent: on the device, at `device`.
#define QUIRE_EXTENT_WRITTEN 1

// Of an extent: it has blocks, and reads as zeros whatever they hold.
#define QUIRE_EXTENT_UNWRITTEN 2

// Of an extent: it has no blocks, and reads as zeros.
#define QUIRE_EXTENT_HOLE 3

// Of a lease: what was read from the device up to now does not count.
#define QUIRE_LEASE_REVOKED 0

// Of a lease: what was read from the device up to now counts.
#define QUIRE_LEASE_VALID 1

// Of a lease: what was read from the device up to now counts, and somebody waits for its return.
#define QUIRE_LEASE_RECALLED 2

// For `quire_properties.flags`: what was read and written does not stay in the cache (`cache=drop`).
#define QUIRE_CACHE_DROP 1

// For `quire_sync_options.flags`: of the attributes only those that reading the data back needs.
#define QUIRE_SYNC_DATA 1

// A directory that is being listed.
typedef struct quire_dir quire_dir;

// An open file.
typedef struct quire_file quire_file;

// A group of writes that has not been committed.
typedef struct quire_group quire_group;

// A lease of a file's layout.
typedef struct quire_lease quire_lease;

// The numbers of a volume, as they were when the list was made.
typedef struct quire_metrics quire_metrics;

// A queue of requests.
typedef struct quire_queue quire_queue;

// The snapshots of a volume, as they were when the list was made.
typedef struct quire_snapshot_list quire_snapshot_list;

// An open volume.
typedef struct quire_volume quire_volume;

// How a volume is made. Set `size` to the structure's size; zero in any other field is the default.
typedef struct quire_format_options {
    // sizeof(struct quire_format_options).
    uint32_t size;
    // QUIRE_FORCE, or 0.
    uint32_t flags;
    // Bytes of the volume; 0: the whole device or existing file. A file that does not exist needs them.
    uint64_t bytes;
    // Bytes of the journal; 0: chosen by the size of the volume.
    uint64_t journal_bytes;
    // A name for people, at most 64 bytes of UTF-8, or NULL.
    const char *label;
} quire_format_options;

// How a volume is opened. Set `size` to the structure's size; zero in any other field is the default.
typedef struct quire_volume_options {
    // sizeof(struct quire_volume_options).
    uint32_t size;
    // QUIRE_READ_ONLY, QUIRE_DISCARD, QUIRE_LAZY_TIMES, QUIRE_NO_AUTO_DA_ALLOC.
    uint32_t flags;
    // Limit of the page cache; 0: a quarter of the machine's memory or of the lowest limit of the process's
    // control groups, whichever is less. The pages are the process's own.
    uint64_t cache_bytes;
    // Limit of the cache of metadata; 0: an eighth of the page cache's, at least 64 MiB (or as much as a
    // smaller page cache has by default), at most 1 GiB.
    uint64_t node_cache_bytes;
    // Seconds after which changes become durable without fsync; 0: 5.
    uint32_t commit_seconds;
    // QUIRE_ACCESS_TIMES_RELATIVE, _NEVER or _STRICT.
    uint32_t access_times;
} quire_volume_options;

// What a volume is.
typedef struct quire_info {
    // Its identity (RFC 9562).
    uint8_t uuid[16];
    // The name for people, ended by a zero byte.
    uint8_t label[72];
    // Major version of the format.
    uint32_t version_major;
    // Minor version of the format.
    uint32_t version_minor;
    // Bytes of a block.
    uint32_t block_size;
    // Times it was opened for writing.
    uint32_t mount_count;
    // Blocks of the volume.
    uint64_t blocks;
    // Blocks of the journal.
    uint64_t journal_blocks;
    // Number of the newest checkpoint.
    uint64_t checkpoint;
    // 1 if it takes no changes.
    uint32_t read_only;
    // 1 if it has been shut down by an error: reads go on, every change and every fsync fails.
    uint32_t failed;
    // Zeros, for later versions.
    uint64_t spare[8];
} quire_info;

// The space of a volume.
typedef struct quire_space {
    // Data blocks of the volume.
    uint64_t blocks;
    // Free ones.
    uint64_t free;
    // Those that can be promised now.
    uint64_t available;
    // Inodes in use and inodes that would fit.
    uint64_t inodes;
    // Inodes that would still fit.
    uint64_t free_inodes;
    // Bytes of a block.
    uint32_t block_size;
    // Bytes of the longest name.
    uint32_t name_max;
    // Zeros, for later versions.
    uint64_t spare[4];
} quire_space;

// One number that a running volume counts.
typedef struct quire_metric {
    // Its name, with the unit at the end. Belongs to the list that it came from.
    const char *name;
    // Its value.
    uint64_t value;
    // QUIRE_COUNTER or QUIRE_GAUGE.
    uint32_t kind;
    // Zero, for later versions.
    uint32_t spare;
} quire_metric;

// A part of a file, whole blocks of 4096 bytes. What lies behind the end of the file in the last one means
// nothing.
typedef struct quire_extent {
    // In the file, in bytes.
    uint64_t offset;
    // Bytes.
    uint64_t length;
    // On the device or in the image, in bytes; 0 unless it is written.
    uint64_t device;
    // QUIRE_EXTENT_WRITTEN, QUIRE_EXTENT_UNWRITTEN or QUIRE_EXTENT_HOLE.
    uint32_t kind;
    // Zero.
    uint32_t reserved;
} quire_extent;

// An entry of a directory.
typedef struct quire_dirent {
    // Number of the inode.
    uint64_t ino;
    // DT_REG, DT_DIR, DT_LNK and so on, as readdir(3) has them.
    uint32_t kind;
    // Bytes of the name, without the zero byte.
    uint32_t name_length;
    // The name, ended by a zero byte. Belongs to the directory's handle, until the next call with it.
    const char *name;
} quire_dirent;

// What stat(2) shows.
typedef struct quire_attributes {
    // Number of the inode; never used again on this volume.
    uint64_t ino;
    // With `ino` it names a file for ever.
    uint64_t generation;
    // Bytes.
    uint64_t bytes;
    // Allocated units of 512 bytes.
    uint64_t blocks;
    // Device number, of a device.
    uint64_t rdev;
    // Type (S_IFMT) and permission bits.
    uint32_t mode;
    // Names.
    uint32_t nlink;
    // Owner.
    uint32_t uid;
    // Group.
    uint32_t gid;
    // Last access.
    struct timespec atime;
    // Last change of the contents.
    struct timespec mtime;
    // Last change of anything.
    struct timespec ctime;
    // Creation.
    struct timespec btime;
    // Zeros, for later versions.
    uint64_t spare[4];
} quire_attributes;

// Properties of a file or directory.
typedef struct quire_properties {
    // The property `untorn`: bytes of the aligned units that a crash must not leave in part, a power of two
    // from 4096 to 1 MiB; 0: none.
    uint32_t untorn_bytes;
    // QUIRE_CACHE_DROP, or 0.
    uint32_t flags;
    // For properties of later versions: as quire_get_properties gave them, or zeros.
    uint64_t spare[3];
} quire_properties;

// A snapshot.
typedef struct quire_snapshot {
    // Its name, UTF-8. Belongs to the list that it came from.
    const char *name;
    // When it was taken.
    struct timespec created;
    // How many snapshots had ever been taken of the volume, with this one.
    uint32_t number;
    // 1 if it is being deleted, and cannot be opened any more; else 0.
    uint8_t deleting;
    // How much of the volume has been searched for its space then.
    uint8_t deleted_percent;
    // Zero, for later versions.
    uint8_t spare[10];
} quire_snapshot;

// How a request ended.
typedef struct quire_completion {
    // As it was submitted.
    void *user_data;
    // What the plain function would have returned: bytes, 0, or a negative error number.
    int64_t result;
} quire_completion;

// What an fsync of a queue makes durable, and how soon. Set `size` to the structure's size; zero in any
// other field is the default.
typedef struct quire_sync_options {
    // sizeof(struct quire_sync_options).
    uint32_t size;
    // QUIRE_SYNC_DATA, or 0 for all attributes.
    uint32_t flags;
    // First byte of the contents.
    uint64_t offset;
    // Bytes of the contents; 0: to the end.
    uint64_t length;
    // 0: force the journal at once. Else the data is written at once, and then a force that others make is
    // waited for, for at most so many milliseconds.
    uint32_t lazy_ms;
    // Zero.
    uint32_t spare;
} quire_sync_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The text of what failed last on this thread: what was being done, to what, and why it failed.
//
// Returns: a text, never NULL; empty if nothing has failed on this thread. It belongs to the library, and is
// valid until the next call of another function of this library on this thread, or the thread's end.
// Threads: any; each has its own text.
const char *quire_error_message(void);

// The version of the library, as "0.1.0".
//
// Returns: a text that is valid for ever.
// Threads: any.
const char *quire_version(void);

// The version of the binary interface of the library that is loaded: QUIRE_ABI of its own header.
//
// Returns: that number.
// Threads: any.
uint32_t quire_abi(void);

// Makes a volume in an image file or on a block device. Refuses to overwrite a file system unless forced;
// creates the file, with mode 0600, if there is none and a size is given. `options` may be NULL.
//
// Returns: 0 or a negative error number.
// Threads: any.
int quire_format(const char *image, const struct quire_format_options *options);

// Gives a volume that nobody has open a journal of so many bytes: more than it has, at most a quarter of the
// volume and 4 GiB. It needs as much free space in one piece (-ENOSPC). After a crash the volume has the old
// journal or the new one.
//
// Returns: 0 or a negative error number; then nothing has changed.
// Threads: any.
int quire_resize_journal(const char *image, uint64_t bytes);

// Makes a volume that nobody has open larger: `bytes` long, or as large as the device or file if that is 0.
// An image file that is smaller grows, too. After a crash the volume has its old size or the new one.
//
// Returns: 0 or a negative error number; then nothing has changed.
// Threads: any.
int quire_resize(const char *image, uint64_t bytes);

// Gives a volume that nobody has open another name for people, at most 64 bytes of UTF-8.
//
// Returns: 0 or a negative error number; then nothing has changed.
// Threads: any.
int quire_set_label(const char *image, const char *label);

// Opens the volume in an image file or on a block device. One process at a time has it open for writing
// (-EBUSY); a child that `fork` makes cannot use it (-EPERM). `options` may be NULL.
//
// Returns: 0 and a handle in `*volume`, which the caller gives to quire_volume_close; or a negative error
// number, and `*volume` is NULL.
// Threads: any.
int quire_volume_open(const char *image,
                      const struct quire_volume_options *options,
                      struct quire_volume **volume);

// Closes a volume: writes everything back, marks it clean, and frees the handle, also on failure. Handles of
// its files, groups and leases stay valid and must still be closed; changes through them fail with -EIO. The
// image stays locked (-EBUSY) until the last of them is closed and the last completion of a request on them
// has been reaped.
//
// Returns: 0, or a negative error number: then not everything is durable. 0 for NULL.
// Threads: any; no other call uses this handle then or later.
int quire_volume_close(struct quire_volume *volume);

// Makes everything in the volume durable (syncfs).
//
// Returns: 0 or a negative error number.
// Threads: any.
int quire_volume_sync(const struct quire_volume *volume);

// Makes the volume larger while it is in use: `bytes` long, or as large as the device or file has become if
// that is 0. An image file that is smaller grows, too. After a crash the volume has its old size or the new
// one.
//
// Returns: 0 or a negative error number.
// Threads: any.
int quire_volume_grow(const struct quire_volume *volume, uint64_t bytes);

// Discards the free space between two offsets of the volume, in bytes; 0 and UINT64_MAX are all of it. Space
// is free when its freeing is durable, so quire_volume_sync before includes all.
//
// Returns: the number of bytes that were discarded, or a negative error number.
// Threads: any.
int64_t quire_volume_trim(const struct quire_volume *volume, uint64_t start, uint64_t end);

// What the volume is, and whether an error has shut it down; quire_error_message has that error's text then.
//
// Returns: 0 or a negative error number.
// Threads: any.
int quire_volume_info(const struct quire_volume *volume, struct quire_info *info);

// The space of the volume (statfs).
//
// Returns: 0 or a negative error number.
// Threads: any.
int quire_volume_space(const struct quire_volume *volume, struct quire_space *space);

// Changes the limit of the page cache; what is over it leaves soon.
//
// Returns: 0; -EINVAL for a limit that the cache could not work in, and it stays as it was.
// Threads: any.
int quire_volume_set_cache_bytes(const struct quire_volume *volume, uint64_t bytes);

// Reads the numbers that the volume counts: cache, journal, tree, space, device.
//
// Returns: 0 and a list in `*metrics`, which the caller gives to quire_metrics_free; or a negative error
// number, and `*metrics` is NULL.
// Threads: any.
int quire_volume_metrics(const struct quire_volume *volume, struct quire_metrics **metrics);

// How many numbers a list has.
//
// Returns: the count, or a negative error number.
// Threads: any.
int64_t quire_metrics_count(const struct quire_metrics *metrics);

// The number at a place of the list, from 0 on. Its name belongs to the list.
//
// Returns: 0; -EINVAL behind the end.
// Threads: any.
int quire_metrics_get(const struct quire_metrics *metrics, size_t place, struct quire_metric *metric);

// The number of a name.
//
// Returns: 0; -ENOENT if the list has no such name.
// Threads: any.
int quire_metrics_find(const struct quire_metrics *metrics, const char *name, uint64_t *value);

// Frees a list. NULL is fine.
//
// Threads: any; no other call uses this list then or later.
void quire_metrics_free(struct quire_metrics *metrics);

// Opens a file.
//
// `flags` are those of open(2): one of O_RDONLY, O_WRONLY and O_RDWR, and any of O_APPEND, O_CREAT, O_EXCL,
// O_TRUNC, O_DIRECT, O_SYNC, O_DSYNC, O_DIRECTORY; O_CLOEXEC, O_NOCTTY and O_LARGEFILE change nothing.
// Unlike open(2) it refuses O_CREAT and O_APPEND without O_WRONLY or O_RDWR, and O_TRUNC with O_APPEND, with
// -EINVAL. `mode` has the permission bits of a file that is created; its owner and group are 0 until
// quire_chown. A directory may be opened with O_RDONLY, for quire_fsync and its attributes. Nothing checks
// permissions: the program owns the volume.
//
// Returns: 0 and a handle in `*file`, which the caller gives to quire_close; or a negative error number, and
// `*file` is NULL.
// Threads: any.
int quire_open(const struct quire_volume *volume,
               const char *path,
               int flags,
               uint32_t mode,
               struct quire_file **file);

// Closes a file and frees the handle. Nothing becomes durable by it. Requests of a queue that work on the
// file go on. NULL is fine.
//
// Threads: any; no other call uses this handle then or later.
void quire_close(struct quire_file *file);

// Reads up to `length` bytes at `offset`. No read sees half of a write.
//
// Returns: how many bytes were read, fewer than asked for only at the end of the file, 0 behind it; or a
// negative error number.
// Threads: any, at the same time on one file.
int64_t quire_pread(const struct quire_file *file, void *buffer, size_t length, uint64_t offset);

// Writes `length` bytes at `offset`; at the end if the file was opened with O_APPEND. Readers see all of it
// or nothing.
//
// Returns: how many bytes were written, fewer than asked for only after an error midway in a write larger
// than 1 MiB; or a negative error number.
// Threads: any, at the same time on one file.
int64_t quire_pwrite(const struct quire_file *file, const void *buffer, size_t length, uint64_t offset);

// Reads into several buffers as one operation, at most 1024.
//
// Returns: as quire_pread.
// Threads: any, at the same time on one file.
int64_t quire_preadv(const struct quire_file *file,
                     const struct iovec *vector,
                     size_t count,
                     uint64_t offset);

// Writes several buffers as one operation, at most 1024.
//
// Returns: as quire_pwrite.
// Threads: any, at the same time on one file.
int64_t quire_pwritev(const struct quire_file *file,
                      const struct iovec *vector,
                      size_t count,
                      uint64_t offset);

// Appends, however the file was opened for writing. Appends of several threads never mix.
//
// Returns: the offset that the data got; or a negative error number: then a part of more than 1 MiB of data
// may be at the end of the file. quire_pwrite in a file opened with O_APPEND gives the count instead.
// Threads: any, at the same time on one file.
int64_t quire_append(const struct quire_file *file, const void *buffer, size_t length);

// Appends several buffers as one operation, at most 1024.
//
// Returns: as quire_append.
// Threads: any, at the same time on one file.
int64_t quire_appendv(const struct quire_file *file, const struct iovec *vector, size_t count);

// Makes durable what had been written when it was called, with size and attributes, and the name by which
// the file was made or last renamed.
//
// Returns: 0 or a negative error number: then it is not durable, and the next call says so again.
// Threads: any, at the same time on one file; threads that wait share the device's flushes.
int quire_fsync(const struct quire_file *file);

// As quire_fsync, but of the attributes only those that reading the data back needs.
//
// Returns: as quire_fsync.
// Threads: as quire_fsync.
int quire_fdatasync(const struct quire_file *file);

// Sets the size in bytes; what is gained reads as zeros.
//
// Returns: 0 or a negative error number.
// Threads: any.
int quire_ftruncate(const struct quire_file *file, uint64_t size);

// Changes the allocation of a range. `mode` is that of fallocate(2): 0 or FALLOC_FL_KEEP_SIZE reserve
// blocks, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE gives them back, FALLOC_FL_ZERO_RANGE makes zeros (the
// file grows), FALLOC_FL_COLLAPSE_RANGE and FALLOC_FL_INSERT_RANGE move what follows.
//
// Returns: 0 or a negative error number.
// Threads: any.
int quire_fallocate(const struct quire_file *file, int mode, uint64_t offset, uint64_t length);

// The first byte of data at or behind `offset`.
//
// Returns: its offset; -ENXIO if there is none; or another negative error number.
// Threads: any.
int64_t quire_seek_data(const struct quire_file *file, uint64_t offset);

// The first byte of a hole at or behind `offset`; the end of the file counts as one.
//
// Returns: its offset; -ENXIO behind the end of the file; or another negative error number.
// Threads: any.
int64_t quire_seek_hole(const struct quire_file *file, uint64_t offset);

// Copies up to `length` bytes from `offset` of a file to `to_offset` of another one or of the same, on one
// volume. The ranges must not overlap.
//
// Returns: how many bytes were copied, fewer at the end of the file; or a negative error number.
// Threads: any.
int64_t quire_copy_range(const struct quire_file *file,
                         uint64_t offset,
                         const struct quire_file *to,
                         uint64_t to_offset,
                         uint64_t length);

// Takes advice about a range of a file: POSIX_FADV_NORMAL, _SEQUENTIAL, _RANDOM, _WILLNEED, _DONTNEED. A
// length of 0 means to the end. Advice changes speed, never contents.
//
// Returns: 0 or a negative error number.
// Threads: any.
int quire_fadvise(const struct quire_file *file, uint64_t offset, uint64_t length, int advice);

// Another handle of the same file, opened as this one was.
//
// Returns: 0 and a handle in `*copy`, which the caller gives to quire_close; or a negative error number, and
// `*copy` is NULL.
// Threads: any.
int quire_dup(const struct quire_file *file, struct quire_file **copy);

// Begins a group of writes to files of a volume. It becomes visible to readers at once when it is committed,
// and after a crash all of it is there or nothing. Until then it is kept in memory, and only
// quire_group_pread and quire_group_size see it. The end of the process ends it as quire_group_free does.
//
// Returns: 0 and a handle in `*group`, which the caller gives to quire_group_commit or quire_group_free; or
// a negative error number, and `*group` is NULL.
// Threads: any. Calls on one group wait for each other.
int quire_group_begin(const struct quire_volume *volume, struct quire_group **group);

// The most bytes that a group of a volume may write, as the volume is now: its free space, counted in whole
// blocks of 4096 bytes (whole units in files with the property `untorn`). Groups of more than 2 MiB may
// write 512 runs of blocks.
//
// Returns: that number, or a negative error number.
// Threads: any.
int64_t quire_group_bytes_max(const struct quire_volume *volume);

// Adds a write of `length` bytes at `offset`, which counts for a file opened with O_APPEND, too. The bytes
// are copied; the file's handle may be closed before the commit. The file was opened for writing.
//
// Returns: `length`; -ENOSPC or -E2BIG if the group would pass a limit, -EXDEV for a file of
// another volume; or another negative error number. After an error the group is as it was. Only where the
// volume could not take what no longer fits in memory (more than 2 MiB), later writes and the commit fail.
// Threads: any.
int64_t quire_group_pwrite(const struct quire_group *group,
                           const struct quire_file *file,
                           const void *buffer,
                           size_t length,
                           uint64_t offset);

// Adds a change of a file's size in bytes: what lies beyond is gone, what is gained reads as zeros.
//
// Returns: 0 or a negative error number, as quire_group_pwrite.
// Threads: any.
int quire_group_ftruncate(const struct quire_group *group, const struct quire_file *file, uint64_t size);

// Reads what the file will hold when the group has been committed, if nobody else writes to it.
//
// Returns: as quire_pread; -EXDEV for a file of another volume.
// Threads: any.
int64_t quire_group_pread(const struct quire_group *group,
                          const struct quire_file *file,
                          void *buffer,
                          size_t length,
                          uint64_t offset);

// The size that the file will have when the group has been committed, if nobody else changes it.
//
// Returns: its bytes; -EXDEV for a file of another volume; or another negative error number.
// Threads: any.
int64_t quire_group_size(const struct quire_group *group, const struct quire_file *file);

// Commits a group, and frees the handle, also on failure. `how` is QUIRE_COMMIT_NOW, QUIRE_COMMIT_LAZY or
// QUIRE_COMMIT_ORDERED; `lazy_ms` is for QUIRE_COMMIT_LAZY, and 0 for the others.
//
// Returns: 0, or a negative error number: then nothing has changed, unless the volume has failed or could
// not make the group durable (-EIO): readers may see it then, and a crash leaves all of it or nothing.
// Threads: any; no other call uses this group then or later.
int quire_group_commit(struct quire_group *group, uint32_t how, uint32_t lazy_ms);

// Frees a group that was not committed: it leaves no trace. NULL is fine.
//
// Threads: any; no other call uses this group then or later.
void quire_group_free(struct quire_group *group);

// Makes bytes `[start, end)` of a file durable, as far as the file goes, and leases their layout: where they
// are on the device, and the promise that they stay there. What would move them recalls the lease, waits for
// its return a bounded time, and revokes it then: what was read from the device counts only if
// quire_lease_state says so afterwards. A lease has a bounded number of extents; quire_lease_end says
// where it ends, and another lease goes on from there. The file was opened for reading; its handle may be
// closed before the lease is returned. Closing the volume revokes it.
//
// Returns: 0 and a handle in `*lease`, which the caller gives to quire_lease_return; -EBUSY while an
// operation that moves blocks of the range is under way, and if the volume has 4096 leases; or another
// negative error number. On an error `*lease` is NULL.
// Threads: any.
int quire_lease_take(const struct quire_file *file, uint64_t start, uint64_t end, struct quire_lease **lease);

// Where the range of a lease is: extents in the order of the file, holes included, without gaps. At most
// `room` of them are written to `extents`.
//
// Returns: how many there are, which may be more than `room`; or a negative error number.
// Threads: any.
int64_t quire_lease_extents(const struct quire_lease *lease, struct quire_extent *extents, size_t room);

// The end of the range that a lease covers, in bytes: another lease goes on there.
//
// Returns: that offset, or a negative error number.
// Threads: any.
int64_t quire_lease_end(const struct quire_lease *lease);

// Whether what was read from the device up to now counts.
//
// Returns: QUIRE_LEASE_VALID, QUIRE_LEASE_RECALLED or QUIRE_LEASE_REVOKED, or a negative error number.
// Threads: any. It waits for nothing.
int quire_lease_state(const struct quire_lease *lease);

// Waits until a lease is recalled or revoked, at most so many milliseconds.
//
// Returns: as quire_lease_state.
// Threads: any.
int quire_lease_wait(const struct quire_lease *lease, uint64_t milliseconds);

// Makes an eventfd readable when a lease is recalled or revoked, at once if it was: 1 is added to it. The
// library uses a duplicate of the descriptor, so the caller may close its own.
//
// Returns: 0; -EBADF for a descriptor that is not open, -EINVAL for one that is no eventfd; or another
// negative error number.
// Threads: any.
int quire_lease_notify(const struct quire_lease *lease, int eventfd);

// Returns a lease. NULL is fine.
//
// Threads: any; no other call uses this lease then or later.
void quire_lease_return(struct quire_lease *lease);

// Creates a directory with the permission bits `mode`, owner and group 0.
//
// Returns: 0; -EEXIST if the name is taken; or another negative error number.
// Threads: any.
int quire_mkdir(const struct quire_volume *volume, const char *path, uint32_t mode);

// Creates a directory and those above it that are missing, with mode 0755. Fine if it is there.
//
// Returns: 0 or a negative error number.
// Threads: any.
int quire_mkdir_all(const struct quire_volume *volume, const char *path);

// Removes an empty directory.
//
// Returns: 0; -ENOTEMPTY if it has entries; or another negative error number.
// Threads: any.
int quire_rmdir(const struct quire_volume *volume, const char *path);

// Removes a directory and everything below it. Symbolic links are removed, not followed.
//
// Returns: 0 or a negative error number; then a part of it may be gone.
// Threads: any.
int quire_remove_all(const struct quire_volume *volume, const char *path);

// Removes a name of a file or a link. The file is freed with its last name and its last handle.
//
// Returns: 0; -EISDIR for a directory; or another negative error number.
// Threads: any.
int quire_unlink(const struct quire_volume *volume, const char *path);

// Renames, atomically, over what has the new name if that may be replaced. `flags` are those of
// renameat2(2): 0, or RENAME_EXCHANGE (2), or RENAME_NOREPLACE (1) and RENAME_WHITEOUT (4) or one of these.
//
// Returns: 0 or a negative error number.
// Threads: any.
int quire_rename(const struct quire_volume *volume, const char *from, const char *to, uint32_t flags);

// Gives a file another name. A symbolic link at the end of `original` is not followed.
//
// Returns: 0 or a negative error number.
// Threads: any.
int quire_link(const struct quire_volume *volume, const char *original, const char *link);

// Creates a symbolic link at `link` that leads to `target`.
//
// Returns: 0 or a negative error number.
// Threads: any.
int quire_symlink(const struct quire_volume *volume, const char *target, const char *link);

// Reads where a symbolic link leads: up to `length` bytes, without a zero byte at the end.
//
// Returns: the bytes of the whole target, which may be more than `length`; or a negative error number.
// Threads: any.
int64_t quire_readlink(const struct quire_volume *volume, const char *path, char *buffer, size_t length);

// Begins to list a directory, removed or not while that lasts.
//
// Returns: 0 and a handle in `*directory`, which the caller gives to quire_closedir; or a negative error
// number, and `*directory` is NULL.
// Threads: any.
int quire_opendir(const struct quire_volume *volume, const char *path, struct quire_dir **directory);

// The next entry, in the directory's own order, without "." and "..". Entries that come and go meanwhile are
// listed or not, all others once.
//
// Returns: 1 and an entry, 0 at the end; or a negative error number.
// Threads: one at a time for each handle, since the name is valid until the next call with it.
int quire_readdir(const struct quire_dir *directory, struct quire_dirent *entry);

// Ends a listing and frees the handle. NULL is fine.
//
// Threads: any; no other call uses this handle then or later.
void quire_closedir(struct quire_dir *directory);

// What stat(2) shows of what a path leads to.
//
// Returns: 0 or a negative error number.
// Threads: any.
int quire_stat(const struct quire_volume *volume, const char *path, struct quire_attributes *stat);

// As quire_stat, but of a symbolic link at the end of the path the link itself.
//
// Returns: 0 or a negative error number.
// Threads: any.
int quire_lstat(const struct quire_volume *volume, const char *path, struct quire_attributes *stat);

// As quire_stat, of an open file.
//
// Returns: 0 or a negative error number.
// Threads: any.
int quire_fstat(const struct quire_file *file, struct quire_attributes *stat);

// Changes permissions: the bits 07777 of `mode`.
//
// Returns: 0 or a negative error number.
// Threads: any.
int quire_chmod(const struct quire_volume *volume, const char *path, uint32_t mode);

// As quire_chmod, of an open file.
//
// Returns: 0 or a negative error number.
// Threads: any.
int quire_fchmod(const struct quire_file *file, uint32_t mode);

// Changes owner and group; (uint32_t)-1 leaves one as it is.
//
// Returns: 0 or a negative error number.
// Threads: any.
int quire_chown(const struct quire_volume *volume, const char *path, uint32_t uid, uint32_t gid);

// As quire_chown, but a symbolic link at the end of the path is not followed.
//
// Returns: 0 or a negative error number.
// Threads: any.
int quire_lchown(const struct quire_volume *volume, const char *path, uint32_t uid, uint32_t gid);

// As quire_chown, of an open file.
//
// Returns: 0 or a negative error number.
// Threads: any.
int quire_fchown(const struct quire_file *file, uint32_t uid, uint32_t gid);

// Sets the times of the last access, `times[0]`, and of the last change, `times[1]`, as utimensat(2) does:
// UTIME_NOW, UTIME_OMIT; NULL sets both to now.
//
// Returns: 0 or a negative error number.
// Threads: any.
int quire_utimens(const struct quire_volume *volume, const char *path, const struct timespec *times);

// As quire_utimens, of an open file.
//
// Returns: 0 or a negative error number.
// Threads: any.
int quire_futimens(const struct quire_file *file, const struct timespec *times);

// Reads an extended attribute of what a path leads to. With a length of 0 it only says how long it is.
//
// Returns: the bytes of the value; -ENODATA if there is no such attribute, -ERANGE if the buffer is too
// small; or another negative error number.
// Threads: any.
int64_t quire_getxattr(const struct quire_volume *volume,
                       const char *path,
                       const char *name,
                       void *value,
                       size_t length);

// As quire_getxattr, of an open file.
//
// Returns: as quire_getxattr.
// Threads: any.
int64_t quire_fgetxattr(const struct quire_file *file, const char *name, void *value, size_t length);

// Sets an extended attribute of what a path leads to, at most 64 KiB. Names begin with "user.", "trusted."
// or "security.". `flags` are 0, XATTR_CREATE (-EEXIST if it exists) or XATTR_REPLACE (-ENODATA if not).
//
// Returns: 0 or a negative error number.
// Threads: any.
int quire_setxattr(const struct quire_volume *volume,
                   const char *path,
                   const char *name,
                   const void *value,
                   size_t length,
                   int flags);

// As quire_setxattr, of an open file.
//
// Returns: as quire_setxattr.
// Threads: any.
int quire_fsetxattr(const struct quire_file *file,
                    const char *name,
                    const void *value,
                    size_t length,
                    int flags);

// The names of the extended attributes of what a path leads to, each ended by a zero byte. With a length of
// 0 it only says how long they are.
//
// Returns: the bytes of the names; -ERANGE if the buffer is too small; or another negative error number.
// Threads: any.
int64_t quire_listxattr(const struct quire_volume *volume, const char *path, char *names, size_t length);

// As quire_listxattr, of an open file.
//
// Returns: as quire_listxattr.
// Threads: any.
int64_t quire_flistxattr(const struct quire_file *file, char *names, size_t length);

// Removes an extended attribute of what a path leads to.
//
// Returns: 0; -ENODATA if there is none; or another negative error number.
// Threads: any.
int quire_removexattr(const struct quire_volume *volume, const char *path, const char *name);

// As quire_removexattr, of an open file.
//
// Returns: as quire_removexattr.
// Threads: any.
int quire_fremovexattr(const struct quire_file *file, const char *name);

// Reads the properties of the file or directory that a path leads to.
//
// Returns: 0 or a negative error number.
// Threads: any.
int quire_get_properties(const struct quire_volume *volume,
                         const char *path,
                         struct quire_properties *properties);

// As quire_get_properties, of an open file.
//
// Returns: as quire_get_properties.
// Threads: any.
int quire_fget_properties(const struct quire_file *file, struct quire_properties *properties);

// Gives the file or directory that a path leads to other properties, all of them: begin with those that
// quire_get_properties gives. Files and directories that are created in a directory get its properties;
// those that are there keep their own. Where a file's `untorn_bytes` change, the call waits for its readers
// and writers, and what was written before is durable when it returns, as is the change.
//
// Returns: 0; -EINVAL for a unit that is no power of two from 4096 to 1 MiB or is too large for the volume's
// journal, and for what is neither file nor directory; or another negative error number.
// Threads: any.
int quire_set_properties(const struct quire_volume *volume,
                         const char *path,
                         const struct quire_properties *properties);

// As quire_set_properties, of an open file.
//
// Returns: as quire_set_properties.
// Threads: any.
int quire_fset_properties(const struct quire_file *file, const struct quire_properties *properties);

// Takes a snapshot of a volume in use. Changes that begin meanwhile wait for a moment, reads go on. It has
// what all changes made that had returned before, and is durable.
//
// Returns: 0; -EEXIST if there is one of that name; -EBUSY while the volume is frozen; or another negative
// error number. There is no snapshot then.
// Threads: any.
int quire_snapshot_take(const struct quire_volume *volume, const char *name);

// Deletes a snapshot, and returns when its space is free. Others that use the volume go on meanwhile.
//
// Returns: 0; -ENOENT; -EBUSY while the snapshot is open; or another negative error number: then the
// deletion may have begun, and goes on when the volume is opened for writing again.
// Threads: any.
int quire_snapshot_delete(const struct quire_volume *volume, const char *name);

// Deletes a snapshot in the background: when this returns it cannot be opened any more, and will be deleted
// whatever happens. Its space is free later; it is listed until then.
//
// Returns: 0; -ENOENT; -EBUSY while the snapshot is open; or another negative error number.
// Threads: any.
int quire_snapshot_delete_later(const struct quire_volume *volume, const char *name);

// Opens a snapshot of a volume for reading, while the volume is in use. It shares the volume's cache, and
// stays open when the volume is closed.
//
// Returns: 0 and a handle in `*snapshot`, which the caller gives to quire_volume_close; or a negative error
// number, and `*snapshot` is NULL: -ENOENT if there is none of that name.
// Threads: any.
int quire_snapshot_open(const struct quire_volume *volume, const char *name, struct quire_volume **snapshot);

// Rolls the volume in an image file or on a block device, which nobody has open, back to its newest
// snapshot. What was done since the snapshot is lost; the snapshot stays.
//
// Returns: 0; -ENOENT; -EINVAL if there are newer snapshots; -EBUSY if the volume is open or has an
// unfinished receive; or another negative error number. Nothing has changed then.
// Threads: any.
int quire_roll_back(const char *image, const char *name);

// Lists the snapshots of a volume, the oldest first.
//
// Returns: 0 and a list in `*snapshots`, which the caller gives to quire_snapshots_free; or a negative error
// number, and `*snapshots` is NULL.
// Threads: any.
int quire_snapshots(const struct quire_volume *volume, struct quire_snapshot_list **snapshots);

// How many snapshots a list has.
//
// Returns: the count, or a negative error number.
// Threads: any.
int64_t quire_snapshots_count(const struct quire_snapshot_list *snapshots);

// The snapshot at a place of the list, from 0 on. Its name belongs to the list.
//
// Returns: 0; -EINVAL behind the end.
// Threads: any.
int quire_snapshots_get(const struct quire_snapshot_list *snapshots,
                        size_t place,
                        struct quire_snapshot *snapshot);

// Frees a list. NULL is fine.
//
// Threads: any; no other call uses this list then or later.
void quire_snapshots_free(struct quire_snapshot_list *snapshots);

// Makes a queue. Up to `workers` threads do what cannot be done without waiting: buffered writes, buffered
// reads that the cache cannot answer, and direct I/O that cannot go to the device at once. They start when
// there is such work. With 0 such requests are done before their submission returns. Fsyncs need no workers.
// The order of requests is not kept: submit what depends on another request when that has been reaped.
//
// Returns: 0 and a handle in `*queue`, which the caller gives to quire_queue_free; or a negative error
// number, and `*queue` is NULL.
// Threads: any.
int quire_queue_new(unsigned int workers, struct quire_queue **queue);

// Waits until every request has ended, and frees the queue; completions that were not reaped are lost. NULL
// is fine.
//
// Threads: any; no other call uses this queue then or later.
void quire_queue_free(struct quire_queue *queue);

// A descriptor that is readable exactly while there are completions to reap, for poll(2), epoll(7) and event
// loops. It belongs to the queue: do not read, write or close it.
//
// Returns: the descriptor, or a negative error number.
// Threads: any.
int quire_queue_fd(const struct quire_queue *queue);

// Takes out up to `most` completions, the oldest first. Waits until there are `least` of them, until no
// request is under way, or for `timeout_ms` milliseconds (negative: without limit). With `least` 0 it
// only looks.
//
// Returns: how many completions were put into `completions`, or a negative error number. If a request among
// them failed, quire_error_message has the text of the last such.
// Threads: any, at the same time on one queue; each completion goes to one of them.
int quire_queue_wait(const struct quire_queue *queue,
                     struct quire_completion *completions,
                     unsigned int most,
                     unsigned int least,
                     int timeout_ms);

// Submits what quire_pread does. With O_DIRECT, and offset, length and memory on boundaries of 4096 bytes,
// no thread waits for it, unless others are writing there or the cache has newer data.
//
// Returns: 0: its completion will come, with the same `user_data`; or a negative error number: it will not.
// Threads: any. The file's handle may be closed meanwhile. The memory belongs to the request until its
// completion has been reaped: nobody reads, writes or frees it.
int quire_submit_pread(const struct quire_queue *queue,
                       const struct quire_file *file,
                       void *buffer,
                       size_t length,
                       uint64_t offset,
                       void *user_data);

// Submits what quire_pwrite does. With O_DIRECT, inside the file, and with offset, length and memory on
// boundaries of 4096 bytes, no thread waits for it, unless others use that place or the cache has data of
// it; else a worker does it. With O_SYNC or O_DSYNC it is durable when it completes.
//
// Returns: 0: its completion will come, with the same `user_data`; or a negative error number: it will not.
// Threads: as quire_submit_pread.
int quire_submit_pwrite(const struct quire_queue *queue,
                        const struct quire_file *file,
                        const void *buffer,
                        size_t length,
                        uint64_t offset,
                        void *user_data);

// Submits what quire_fsync does, or as `options` say; they may be NULL. It covers what had been written when
// it was submitted; thousands under way together cost a few writes of the journal.
//
// Returns: 0: its completion will come, with the same `user_data`; or a negative error number: it will not.
// Threads: any; it waits only while 65,536 are under way. The file's handle may be closed meanwhile.
int quire_submit_fsync(const struct quire_queue *queue,
                       const struct quire_file *file,
                       const struct quire_sync_options *options,
                       void *user_data);

// Submits what quire_volume_sync does. A worker does it, or with none this call.
//
// Returns: 0: its completion will come, with the same `user_data`; or a negative error number: it will not.
// Threads: any.
int quire_submit_volume_sync(const struct quire_queue *queue,
                             const struct quire_volume *volume,
                             void *user_data);

// Submits what quire_group_commit does, and frees the group's handle, also on failure. A worker makes the
// group visible, or with none this call; then no thread waits for its durability, and commits under way
// together share writes of the journal.
//
// Returns: 0: its completion will come, with the same `user_data`; or a negative error number: it will not,
// and nothing has changed.
// Threads: any; no other call uses this group then or later.
int quire_submit_group_commit(const struct quire_queue *queue,
                              struct quire_group *group,
                              uint32_t how,
                              uint32_t lazy_ms,
                              void *user_data);

// Submits what quire_preadv does. With O_DIRECT, inside the file, and with offset and length on boundaries
// of 4096 bytes, no thread waits for it; else a worker does it. The vector may change when this returns.
//
// Returns: 0: its completion will come, with the same `user_data`; or a negative error number: it will not.
// Threads: as quire_submit_pread. The buffers belong to the request until its completion has been reaped.
int quire_submit_preadv(const struct quire_queue *queue,
                        const struct quire_file *file,
                        const struct iovec *vector,
                        size_t count,
                        uint64_t offset,
                        void *user_data);

// Submits what quire_pwritev does. With O_DIRECT, inside the file, and with offset and length on boundaries
// of 4096 bytes, no thread waits for it; else a worker does it. The vector may change when this returns.
// With O_SYNC or O_DSYNC it is durable when it completes.
//
// Returns: 0: its completion will come, with the same `user_data`; or a negative error number: it will not.
// Threads: as quire_submit_preadv.
int quire_submit_pwritev(const struct quire_queue *queue,
                         const struct quire_file *file,
                         const struct iovec *vector,
                         size_t count,
                         uint64_t offset,
                         void *user_data);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* QUIRE_H */
