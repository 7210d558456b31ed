// Calls every function of quire.h and checks what it gives. Is C and C++.
//
//   interface IMAGE
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "abi.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <quire.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define EXPECT(condition)                                                                                    \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: %s; last message: %s\n", __FILE__, __LINE__, #condition,                 \
                    quire_error_message());                                                                  \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)
#define OK(call) EXPECT((call) == 0)

static quire_volume *volume;

static quire_file *opened(const char *path, int flags)
{
    quire_file *file;
    OK(quire_open(volume, path, flags, 0640, &file));
    return file;
}

static void volumes(const char *image)
{
    EXPECT(strcmp(quire_error_message(), "") == 0);
    EXPECT(quire_abi() == QUIRE_ABI && strchr(quire_version(), '.'));
    EXPECT(quire_volume_open("/no/such/image", NULL, &volume) == -ENOENT && !volume);
    EXPECT(strstr(quire_error_message(), "/no/such/image"));
    EXPECT(quire_volume_open(NULL, NULL, &volume) == -EINVAL);
    EXPECT(quire_volume_open(image, NULL, NULL) == -EINVAL);

    struct quire_format_options format;
    memset(&format, 0, sizeof format);
    format.bytes = 64 << 20;
    EXPECT(quire_format(image, &format) == -EINVAL); // the size is not set
    format.size = sizeof format;
    format.label = "interface";
    format.flags = 1u << 31;
    EXPECT(quire_format(image, &format) == -EINVAL);
    format.flags = QUIRE_FORCE;
    OK(quire_format(image, &format));
    EXPECT(quire_resize_journal(image, 4096) == -EINVAL);
    EXPECT(quire_resize_journal("/no/such/image", 4 << 20) == -ENOENT);
    OK(quire_resize_journal(image, 4 << 20));
    EXPECT(quire_resize(image, 4096) == -EINVAL);
    EXPECT(quire_resize("/no/such/image", 0) == -ENOENT);
    OK(quire_resize(image, 0));
    EXPECT(quire_set_label(image, NULL) == -EINVAL);
    OK(quire_set_label(image, "another"));

    struct quire_volume_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.access_times = 77;
    EXPECT(quire_volume_open(image, &options, &volume) == -EINVAL);
    options.access_times = QUIRE_ACCESS_TIMES_STRICT;
    options.cache_bytes = 16 << 20;
    options.node_cache_bytes = 16 << 20;
    options.commit_seconds = 60;
    options.flags = QUIRE_DISCARD | QUIRE_LAZY_TIMES | QUIRE_NO_AUTO_DA_ALLOC;
    OK(quire_volume_open(image, &options, &volume));
    quire_volume *second;
    EXPECT(quire_volume_open(image, NULL, &second) == -EBUSY && !second);

    struct quire_info info;
    OK(quire_volume_info(volume, &info));
    EXPECT(strcmp((const char *)info.label, "another") == 0 && info.block_size == 4096);
    EXPECT(info.blocks == (64 << 20) / 4096 && !info.read_only && !info.failed);
    EXPECT(info.journal_blocks == (4 << 20) / 4096);
    struct quire_space space;
    OK(quire_volume_space(volume, &space));
    EXPECT(space.available > 0 && space.available <= space.blocks && space.name_max == 255);
    OK(quire_volume_set_cache_bytes(volume, 24 << 20));
    EXPECT(quire_volume_set_cache_bytes(volume, 1) == -EINVAL);
    OK(quire_volume_sync(volume));
    EXPECT(quire_volume_trim(volume, 0, UINT64_MAX) > 0 && quire_volume_trim(volume, 0, 4096) == 0);
    EXPECT(quire_volume_trim(NULL, 0, 1) == -EINVAL);
    OK(quire_volume_grow(volume, 0));
    EXPECT(quire_volume_grow(volume, 4096) == -EINVAL && quire_volume_grow(NULL, 0) == -EINVAL);

    quire_metrics *metrics;
    OK(quire_volume_metrics(volume, &metrics));
    int64_t count = quire_metrics_count(metrics);
    EXPECT(count > 20);
    struct quire_metric metric;
    uint64_t value;
    for (int64_t place = 0; place < count; place++) {
        OK(quire_metrics_get(metrics, (size_t)place, &metric));
        EXPECT(metric.kind == QUIRE_COUNTER || metric.kind == QUIRE_GAUGE);
        OK(quire_metrics_find(metrics, metric.name, &value));
        EXPECT(value == metric.value);
    }
    EXPECT(quire_metrics_get(metrics, (size_t)count, &metric) == -EINVAL);
    EXPECT(quire_metrics_find(metrics, "unheard_of", &value) == -ENOENT);
    OK(quire_metrics_find(metrics, "cache_limit_bytes", &value));
    EXPECT(value == 24 << 20);
    quire_metrics_free(metrics);
    quire_metrics_free(NULL);
}

static void files(void)
{
    quire_file *file;
    EXPECT(quire_open(volume, "missing", O_RDONLY, 0, &file) == -ENOENT && !file);
    EXPECT(quire_open(volume, "data", O_RDONLY | O_CREAT, 0644, &file) == -EINVAL);
    EXPECT(quire_open(volume, "data", O_RDWR | O_PATH, 0644, &file) == -EINVAL);
    EXPECT(quire_open(volume, "data", O_RDWR | O_NOFOLLOW, 0644, &file) == -EINVAL);
    file = opened("data", O_RDWR | O_CREAT | O_EXCL);
    quire_file *other;
    EXPECT(quire_open(volume, "data", O_RDWR | O_CREAT | O_EXCL, 0644, &other) == -EEXIST);
    EXPECT(quire_open(volume, "data", O_RDONLY | O_DIRECTORY, 0, &other) == -ENOTDIR);

    char text[32];
    memset(text, 0, sizeof text);
    EXPECT(quire_pwrite(file, "hello world", 11, 0) == 11);
    EXPECT(quire_pread(file, text, sizeof text, 6) == 5 && memcmp(text, "world", 5) == 0);
    EXPECT(quire_pread(file, text, sizeof text, 11) == 0);
    EXPECT(quire_pread(file, NULL, 1, 0) == -EINVAL && quire_pread(NULL, text, 1, 0) == -EINVAL);
    EXPECT(quire_pread(file, NULL, 0, 0) == 0);
    char head[6], tail[16];
    struct iovec parts[2] = {{head, sizeof head}, {tail, sizeof tail}};
    EXPECT(quire_preadv(file, parts, 2, 0) == 11);
    EXPECT(memcmp(head, "hello ", 6) == 0 && memcmp(tail, "world", 5) == 0);
    // Buffers may be larger than the file, and than memory: the library had a buffer of its own as large as both.
    char *half = (char *)mmap(NULL, 64UL << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (half != MAP_FAILED) {
        struct iovec halves[2] = {{half, 32UL << 30}, {half + (32UL << 30), 32UL << 30}};
        EXPECT(quire_preadv(file, halves, 2, 0) == 11 && memcmp(half, "hello world", 11) == 0);
        EXPECT(munmap(half, 64UL << 30) == 0);
    }
    memcpy(head, "HELLO ", 6);
    memcpy(tail, "WORLD", 5);
    parts[1].iov_len = 5;
    EXPECT(quire_pwritev(file, parts, 2, 0) == 11);
    EXPECT(quire_pwritev(file, parts, 2000, 0) == -EINVAL);
    EXPECT(quire_append(file, "!", 1) == 11 && quire_appendv(file, parts, 2) == 12);
    EXPECT(quire_pread(file, text, sizeof text, 0) == 23);
    EXPECT(memcmp(text, "HELLO WORLD!HELLO WORLD", 23) == 0);
    OK(quire_fdatasync(file));
    OK(quire_fsync(file));

    quire_file *copy;
    OK(quire_dup(file, &copy));
    other = opened("copy", O_WRONLY | O_CREAT | O_TRUNC);
    EXPECT(quire_copy_range(copy, 6, other, 0, 100) == 17);
    EXPECT(quire_pread(other, text, 1, 0) == -EBADF);
    quire_close(copy);
    quire_close(other);

    OK(quire_ftruncate(file, 1 << 20));
    OK(quire_fallocate(file, 0, 1 << 20, 1 << 20));
    OK(quire_fallocate(file, FALLOC_FL_KEEP_SIZE, 0, 1 << 16));
    OK(quire_fallocate(file, FALLOC_FL_ZERO_RANGE, 4096, 4096));
    OK(quire_fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 1 << 16));
    EXPECT(quire_fallocate(file, FALLOC_FL_PUNCH_HOLE, 0, 1) == -EOPNOTSUPP);
    OK(quire_fallocate(file, FALLOC_FL_COLLAPSE_RANGE, 0, 4096));
    OK(quire_fallocate(file, FALLOC_FL_INSERT_RANGE, 0, 4096));
    struct quire_attributes stat;
    OK(quire_fstat(file, &stat));
    EXPECT(stat.bytes == 2 << 20);
    OK(quire_ftruncate(file, 1 << 20));
    EXPECT(quire_pwrite(file, "x", 1, 512 << 10) == 1);
    EXPECT(quire_seek_data(file, 0) == 512 << 10 && quire_seek_hole(file, 512 << 10) == (512 << 10) + 4096);
    EXPECT(quire_seek_data(file, 900 << 10) == -ENXIO && quire_seek_hole(file, 2 << 20) == -ENXIO);
    OK(quire_fadvise(file, 0, 0, POSIX_FADV_SEQUENTIAL));
    OK(quire_fadvise(file, 0, 0, POSIX_FADV_DONTNEED));
    EXPECT(quire_fadvise(file, 0, 0, 99) == -EINVAL);
    quire_close(file);
    quire_close(NULL);
}

static void names(void)
{
    OK(quire_mkdir(volume, "/dir", 0750));
    EXPECT(quire_mkdir(volume, "dir/", 0750) == -EEXIST && quire_mkdir(volume, "/", 0750) == -EEXIST);
    EXPECT(quire_mkdir(volume, "no/dir", 0750) == -ENOENT && quire_mkdir(volume, "", 0750) == -ENOENT);
    OK(quire_mkdir(volume, "dir//sub/", 0700));
    OK(quire_mkdir_all(volume, "dir/a/b/c"));
    quire_close(opened("dir/file", O_WRONLY | O_CREAT));
    OK(quire_link(volume, "dir/file", "dir/second"));
    OK(quire_symlink(volume, "file", "dir/link"));
    char target[8];
    EXPECT(quire_readlink(volume, "dir/link", target, sizeof target) == 4 && memcmp(target, "file", 4) == 0);
    EXPECT(quire_readlink(volume, "dir/link", target, 1) == 4);
    OK(quire_rename(volume, "dir/second", "dir/third", 0));
    EXPECT(quire_rename(volume, "dir/third", "dir/file", 1) == -EEXIST);
    OK(quire_rename(volume, "dir/third", "dir/sub", 2));
    OK(quire_rename(volume, "dir/third", "dir/sub", 2));
    EXPECT(quire_rename(volume, "dir/third", "dir/sub", 64) == -EINVAL);

    quire_dir *directory;
    OK(quire_opendir(volume, "dir", &directory));
    struct quire_dirent entry;
    int count = 0, kinds = 0, more;
    while ((more = quire_readdir(directory, &entry)) > 0) {
        EXPECT(strlen(entry.name) == entry.name_length && entry.ino > 0);
        kinds |= 1 << entry.kind;
        count++;
    }
    OK(more);
    quire_closedir(directory);
    quire_closedir(NULL);
    EXPECT(count == 5 && kinds == (1 << DT_DIR | 1 << DT_REG | 1 << DT_LNK));
    EXPECT(quire_opendir(volume, "dir/file", &directory) == -ENOTDIR && !directory);

    OK(quire_unlink(volume, "dir/third"));
    EXPECT(quire_unlink(volume, "dir/sub") == -EISDIR && quire_rmdir(volume, "dir") == -ENOTEMPTY);
    OK(quire_rmdir(volume, "dir/sub"));
    OK(quire_remove_all(volume, "dir/a"));
}

static void attributes(void)
{
    struct quire_attributes stat;
    quire_file *file = opened("dir/file", O_RDWR);
    OK(quire_chmod(volume, "dir/link", 0600));
    OK(quire_stat(volume, "dir/link", &stat));
    EXPECT(stat.mode == (S_IFREG | 0600) && stat.nlink == 1 && stat.uid == 0);
    OK(quire_lstat(volume, "dir/link", &stat));
    EXPECT(S_ISLNK(stat.mode) && stat.bytes == 4);
    OK(quire_fchmod(file, 0644));
    OK(quire_chown(volume, "dir/file", 7, 8));
    OK(quire_lchown(volume, "dir/link", 9, (uint32_t)-1));
    OK(quire_fchown(file, (uint32_t)-1, 10));
    struct timespec times[2] = {{.tv_sec = 1000, .tv_nsec = 5}, {.tv_sec = 0, .tv_nsec = UTIME_OMIT}};
    OK(quire_utimens(volume, "dir/file", times));
    OK(quire_futimens(file, times));
    OK(quire_fstat(file, &stat));
    EXPECT(stat.mode == (S_IFREG | 0644) && stat.uid == 7 && stat.gid == 10);
    EXPECT(stat.atime.tv_sec == 1000 && stat.atime.tv_nsec == 5 && stat.mtime.tv_sec > 1000);
    OK(quire_utimens(volume, "dir/file", NULL));
    times[0].tv_nsec = 2000000000;
    EXPECT(quire_futimens(file, times) == -EINVAL);
    EXPECT(quire_chmod(volume, "dir/none", 0600) == -ENOENT);

    char value[16];
    OK(quire_setxattr(volume, "dir/file", "user.a", "one", 3, 0));
    EXPECT(quire_fsetxattr(file, "user.a", "two", 3, XATTR_CREATE) == -EEXIST);
    EXPECT(quire_fsetxattr(file, "user.b", "two", 3, XATTR_REPLACE) == -ENODATA);
    OK(quire_fsetxattr(file, "user.b", "", 0, 0));
    EXPECT(quire_getxattr(volume, "dir/file", "user.a", NULL, 0) == 3);
    EXPECT(quire_getxattr(volume, "dir/file", "user.a", value, 2) == -ERANGE);
    EXPECT(quire_fgetxattr(file, "user.a", value, sizeof value) == 3 && memcmp(value, "one", 3) == 0);
    EXPECT(quire_fgetxattr(file, "user.b", value, sizeof value) == 0);
    EXPECT(quire_listxattr(volume, "dir/file", NULL, 0) == 14);
    EXPECT(quire_flistxattr(file, value, sizeof value) == 14);
    OK(quire_removexattr(volume, "dir/file", "user.a"));
    OK(quire_fremovexattr(file, "user.b"));
    EXPECT(quire_fremovexattr(file, "user.b") == -ENODATA);
    quire_close(file);
}

// Groups are seen when they are committed; those that are freed leave nothing.
static void groups(const char *image)
{
    quire_group *group;
    EXPECT(quire_group_begin(NULL, &group) == -EINVAL && !group);
    EXPECT(quire_group_begin(volume, NULL) == -EINVAL);
    int64_t most = quire_group_bytes_max(volume);
    EXPECT(most >= 64 << 10 && most % 4096 == 0 && quire_group_bytes_max(NULL) == -EINVAL);
    quire_file *first = opened("first", O_RDWR | O_CREAT), *second = opened("second", O_RDWR | O_CREAT | O_APPEND);
    EXPECT(quire_pwrite(first, "0123456789", 10, 0) == 10 && quire_pwrite(second, "abc", 3, 0) == 3);

    OK(quire_group_begin(volume, &group));
    EXPECT(quire_group_pwrite(group, first, "XY", 2, 2) == 2 && quire_group_pwrite(group, second, "Z", 1, 1) == 1);
    EXPECT(quire_group_pwrite(group, first, NULL, 0, 0) == 0);
    EXPECT(quire_group_pwrite(group, first, NULL, 1, 0) == -EINVAL);
    EXPECT(quire_group_pwrite(group, NULL, "", 0, 0) == -EINVAL);
    EXPECT(quire_group_pwrite(NULL, first, "", 0, 0) == -EINVAL && quire_group_ftruncate(NULL, first, 0) == -EINVAL);
    OK(quire_group_ftruncate(group, first, 6));
    char text[16];
    EXPECT(quire_group_size(group, first) == 6 && quire_group_size(NULL, first) == -EINVAL);
    EXPECT(quire_group_pread(group, first, text, sizeof text, 0) == 6 && memcmp(text, "01XY45", 6) == 0);
    EXPECT(quire_group_pread(NULL, first, text, sizeof text, 0) == -EINVAL);
    EXPECT(quire_pread(first, text, sizeof text, 0) == 10 && memcmp(text, "0123456789", 10) == 0);
    size_t too_much = (size_t)most + (16 << 20); // space that is given back meanwhile may be free as well
    char *much = (char *)calloc(1, too_much);
    EXPECT(much && quire_group_pwrite(group, first, much, too_much, 0) == -ENOSPC);
    EXPECT(strstr(quire_error_message(), "blocks"));
    quire_close(second); // the group keeps what it needs
    OK(quire_group_commit(group, QUIRE_COMMIT_NOW, 0));
    EXPECT(quire_pread(first, text, sizeof text, 0) == 6 && memcmp(text, "01XY45", 6) == 0);
    second = opened("second", O_RDONLY);
    EXPECT(quire_pread(second, text, sizeof text, 0) == 3 && memcmp(text, "aZc", 3) == 0);

    OK(quire_group_begin(volume, &group));
    EXPECT(quire_group_pwrite(group, second, "q", 1, 0) == -EBADF);
    EXPECT(quire_group_ftruncate(group, second, 0) == -EBADF);
    EXPECT(quire_group_pwrite(group, first, much, (size_t)most / 2, 0) == most / 2);
    quire_group_free(group);
    quire_group_free(NULL);
    EXPECT(quire_pread(first, text, sizeof text, 0) == 6 && memcmp(text, "01XY45", 6) == 0);
    free(much);

    // Another volume's files, by the same numbers, are no files of the group.
    char path[4096];
    snprintf(path, sizeof path, "%s.other", image);
    struct quire_format_options format;
    memset(&format, 0, sizeof format);
    format.size = sizeof format;
    format.bytes = 64 << 20;
    format.flags = QUIRE_FORCE;
    OK(quire_format(path, &format));
    quire_volume *other;
    OK(quire_volume_open(path, NULL, &other));
    OK(quire_group_begin(other, &group));
    EXPECT(quire_group_pwrite(group, first, "q", 1, 0) == -EXDEV && quire_group_ftruncate(group, first, 0) == -EXDEV);
    EXPECT(quire_group_pread(group, first, text, 1, 0) == -EXDEV && quire_group_size(group, first) == -EXDEV);
    OK(quire_group_commit(group, QUIRE_COMMIT_NOW, 0)); // nothing
    OK(quire_group_begin(other, &group));
    OK(quire_volume_close(other)); // the group's handle stays valid
    quire_group_free(group);
    EXPECT(unlink(path) == 0);

    const uint32_t hows[] = {QUIRE_COMMIT_NOW, QUIRE_COMMIT_LAZY, QUIRE_COMMIT_ORDERED, QUIRE_COMMIT_ORDERED, 7};
    const uint32_t waits[] = {0, 20, 0, 1, 0};
    const int results[] = {0, 0, 0, -EINVAL, -EINVAL};
    for (int i = 0; i < 5; i++) {
        char letter = (char)('a' + i);
        OK(quire_group_begin(volume, &group));
        EXPECT(quire_group_pwrite(group, first, &letter, 1, 0) == 1);
        EXPECT(quire_group_commit(group, hows[i], waits[i]) == results[i]);
        EXPECT(quire_pread(first, text, 1, 0) == 1 && (text[0] == letter) == (results[i] == 0));
    }
    EXPECT(quire_group_commit(NULL, QUIRE_COMMIT_NOW, 0) == -EINVAL);
    quire_close(first);
    quire_close(second);
}

static void *cuts(void *file)
{
    OK(quire_ftruncate((quire_file *)file, 4096));
    return NULL;
}

static void leases(const char *image)
{
    quire_file *file = opened("leased", O_RDWR | O_CREAT);
    quire_lease *lease;
    struct quire_extent extents[4];
    char block[4096], read[4096];
    memset(block, 'q', sizeof block);
    EXPECT(quire_pwrite(file, block, sizeof block, 0) == 4096 && quire_pwrite(file, block, sizeof block, 8192) == 4096);
    EXPECT(quire_lease_take(NULL, 0, 1, &lease) == -EINVAL && !lease && quire_lease_take(file, 2, 1, &lease) == -EINVAL);
    EXPECT(quire_lease_take(file, 0, 1, NULL) == -EINVAL);
    OK(quire_lease_take(file, 0, UINT64_MAX, &lease));
    EXPECT(quire_lease_end(lease) == 3 * 4096 && quire_lease_end(NULL) == -EINVAL);
    EXPECT(quire_lease_extents(lease, NULL, 0) == 3 && quire_lease_extents(lease, NULL, 1) == -EINVAL);
    EXPECT(quire_lease_extents(NULL, extents, 4) == -EINVAL && quire_lease_extents(lease, extents, 4) == 3);
    EXPECT(extents[0].kind == QUIRE_EXTENT_WRITTEN && extents[1].kind == QUIRE_EXTENT_HOLE && extents[1].offset == 4096);
    EXPECT(extents[2].offset == 8192 && extents[2].length == 4096 && extents[2].device % 4096 == 0);
    FILE *device = fopen(image, "rb");
    EXPECT(device && fseek(device, (long)extents[2].device, SEEK_SET) == 0 && fread(read, 1, sizeof read, device) == 4096);
    EXPECT(quire_lease_state(lease) == QUIRE_LEASE_VALID && memcmp(read, block, sizeof block) == 0);
    fclose(device);
    EXPECT(quire_lease_wait(lease, 0) == QUIRE_LEASE_VALID && quire_lease_wait(NULL, 0) == -EINVAL);
    int event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    EXPECT(quire_lease_notify(lease, -1) == -EBADF && quire_lease_notify(NULL, event) == -EINVAL);
    // It counted in whatever it was given: in a file it wrote eight bytes.
    EXPECT(quire_lease_notify(lease, 1) == -EINVAL);
    OK(quire_lease_notify(lease, event));
    pthread_t thread;
    EXPECT(pthread_create(&thread, NULL, cuts, file) == 0);
    struct pollfd polled = {event, POLLIN, 0};
    EXPECT(poll(&polled, 1, 60000) == 1 && quire_lease_wait(lease, 60000) == QUIRE_LEASE_RECALLED);
    quire_lease_return(lease);
    quire_lease_return(NULL);
    EXPECT(pthread_join(thread, NULL) == 0 && quire_lease_state(NULL) == -EINVAL);
    OK(quire_lease_take(file, 0, UINT64_MAX, &lease));
    EXPECT(quire_lease_end(lease) == 4096);
    quire_lease_return(lease);
    close(event);
    quire_close(file);
}

static void properties(void)
{
    struct quire_properties found, wanted;
    memset(&wanted, 0, sizeof wanted);
    OK(quire_mkdir(volume, "db", 0755));
    OK(quire_get_properties(volume, "db", &found));
    EXPECT(memcmp(&found, &wanted, sizeof found) == 0);
    wanted.untorn_bytes = 16384;
    OK(quire_set_properties(volume, "db", &wanted));
    quire_file *file = opened("db/pages", O_RDWR | O_CREAT); // has those of its directory
    OK(quire_fget_properties(file, &found));
    EXPECT(found.untorn_bytes == 16384 && found.flags == 0);
    char value[8];
    EXPECT(quire_fgetxattr(file, "user.quire.untorn", value, sizeof value) == 3 && memcmp(value, "16k", 3) == 0);
    wanted.untorn_bytes = 8192;
    wanted.flags = QUIRE_CACHE_DROP;
    OK(quire_fset_properties(file, &wanted));
    OK(quire_get_properties(volume, "db/pages", &found));
    EXPECT(memcmp(&found, &wanted, sizeof found) == 0);
    EXPECT(quire_pwrite(file, "unit", 4, 0) == 4);

    wanted.untorn_bytes = 12288;
    EXPECT(quire_fset_properties(file, &wanted) == -EINVAL);
    wanted.untorn_bytes = 4096;
    wanted.flags = 1u << 20;
    EXPECT(quire_fset_properties(file, &wanted) == -EINVAL);
    wanted.flags = 0;
    wanted.spare[2] = 1;
    EXPECT(quire_fset_properties(file, &wanted) == -E2BIG);
    wanted.spare[2] = 0;
    EXPECT(quire_fset_properties(NULL, &wanted) == -EINVAL && quire_fset_properties(file, NULL) == -EINVAL);
    EXPECT(quire_fget_properties(file, NULL) == -EINVAL && quire_fget_properties(NULL, &found) == -EINVAL);
    EXPECT(quire_set_properties(volume, "none", &wanted) == -ENOENT);
    EXPECT(quire_get_properties(volume, "none", &found) == -ENOENT);
    OK(quire_fget_properties(file, &found));
    EXPECT(found.untorn_bytes == 8192 && found.flags == QUIRE_CACHE_DROP);
    quire_close(file);
}

static void ended(quire_queue *queue, void *user_data, int64_t result)
{
    struct quire_completion completion;
    EXPECT(quire_queue_wait(queue, &completion, 1, 1, 60000) == 1);
    EXPECT(completion.user_data == user_data && completion.result == result);
}

// Requests through the cache, past it on aligned and on other memory, in a queue with workers and in one without.
static void queues(unsigned workers)
{
    quire_queue *queue;
    EXPECT(quire_queue_new(100000, &queue) == -EINVAL && !queue);
    OK(quire_queue_new(workers, &queue));
    struct pollfd ready;
    memset(&ready, 0, sizeof ready);
    ready.fd = quire_queue_fd(queue);
    ready.events = POLLIN;
    struct quire_completion completions[4];
    EXPECT(quire_queue_wait(queue, completions, 4, 4, -1) == 0); // nothing is under way

    char *memory = (char *)aligned_alloc(4096, 16384);
    EXPECT(memory);
    const int kinds[] = {0, O_DIRECT, O_DIRECT | O_DSYNC, O_SYNC};
    for (int kind = 0; kind < 4; kind++) {
        quire_file *file = opened("queued", O_RDWR | O_CREAT | O_TRUNC | kinds[kind]);
        for (int shift = 0; shift <= 1; shift++) {
            memset(memory, 'a' + kind + shift, 16384);
            OK(quire_submit_pwrite(queue, file, memory + shift, 8192, 0, memory));
            ended(queue, memory, 8192);
            memset(memory, 0, 16384);
            OK(quire_submit_pread(queue, file, memory + shift, 12288, 0, &ready));
            ended(queue, &ready, 8192);
            EXPECT(memory[shift] == 'a' + kind + shift && memory[8191 + shift] == 'a' + kind + shift);
        }
        // Several buffers, one of them empty; the vector is gone when the request is done.
        struct iovec parts[3] = {{memory, 4096}, {NULL, 0}, {memory + 4099, 8192}};
        memset(memory, 'p' + kind, 4096);
        memset(memory + 4099, 'P' + kind, 8192);
        OK(quire_submit_pwritev(queue, file, parts, 3, 4096, memory));
        memset(parts, 0, sizeof parts);
        ended(queue, memory, 12288);
        memset(memory, 0, 16384);
        struct iovec back[2] = {{memory, 4097}, {memory + 5000, 9000}};
        OK(quire_submit_preadv(queue, file, back, 2, 4096, memory));
        ended(queue, memory, 12288);
        EXPECT(memory[0] == 'p' + kind && memory[4095] == 'p' + kind && memory[4096] == 'P' + kind);
        EXPECT(memory[4097] == 0 && memory[5000] == 'P' + kind && memory[5000 + 8190] == 'P' + kind);
        EXPECT(memory[5000 + 8191] == 0);
        OK(quire_submit_preadv(queue, file, NULL, 0, 0, back));
        ended(queue, back, 0);
        OK(quire_submit_pwritev(queue, file, NULL, 0, 0, back));
        ended(queue, back, 0);
        EXPECT(quire_submit_preadv(queue, file, back, 2000, 0, memory) == -EINVAL);
        EXPECT(quire_submit_pwritev(queue, file, NULL, 1, 0, memory) == -EINVAL);
        struct quire_sync_options how;
        memset(&how, 0, sizeof how);
        how.size = sizeof how;
        how.flags = QUIRE_SYNC_DATA;
        how.lazy_ms = 10;
        how.length = 4096;
        how.spare = 1;
        EXPECT(quire_submit_fsync(queue, file, &how, NULL) == -E2BIG);
        how.spare = 0;
        how.flags |= 2;
        EXPECT(quire_submit_fsync(queue, file, &how, NULL) == -EINVAL);
        how.flags = QUIRE_SYNC_DATA;
        OK(quire_submit_fsync(queue, file, &how, NULL));
        OK(quire_submit_fsync(queue, file, NULL, NULL));
        OK(quire_submit_volume_sync(queue, volume, NULL));
        quire_group *group;
        OK(quire_group_begin(volume, &group));
        EXPECT(quire_group_pwrite(group, file, "group", 5, 0) == 5);
        OK(quire_submit_group_commit(queue, group, (uint32_t)kind % 3, kind == 1 ? 10 : 0, NULL));
        quire_close(file); // the requests keep what they need
        EXPECT(quire_queue_wait(queue, completions, 4, 4, -1) == 4);
        for (int i = 0; i < 4; i++)
            EXPECT(completions[i].result == 0);
        EXPECT(poll(&ready, 1, 0) == 0);
    }
    quire_file *file = opened("queued", O_RDONLY);
    EXPECT(quire_pread(file, memory, 5, 0) == 5 && memcmp(memory, "group", 5) == 0);
    EXPECT(quire_submit_group_commit(queue, NULL, QUIRE_COMMIT_NOW, 0, NULL) == -EINVAL);
    quire_group *group;
    OK(quire_group_begin(volume, &group));
    EXPECT(quire_submit_group_commit(queue, group, QUIRE_COMMIT_NOW, 7, NULL) == -EINVAL); // and frees it
    OK(quire_group_begin(volume, &group));
    OK(quire_submit_group_commit(queue, group, QUIRE_COMMIT_NOW, 0, memory)); // nothing to be done
    ended(queue, memory, 0);
    OK(quire_submit_pwrite(queue, file, memory, 4096, 0, memory));
    EXPECT(poll(&ready, 1, 60000) == 1);
    EXPECT(poll(&ready, 1, 0) == 1); // until it has been reaped
    ended(queue, memory, -EBADF);
    EXPECT(strstr(quire_error_message(), "writing"));
    EXPECT(poll(&ready, 1, 0) == 0);
    quire_close(file);
    file = opened("queued", O_WRONLY | O_DIRECT);
    struct iovec part = {memory, 4096};
    OK(quire_submit_preadv(queue, file, &part, 1, 0, memory));
    ended(queue, memory, -EBADF);
    OK(quire_submit_pread(queue, file, memory, 4096, 0, memory));
    ended(queue, memory, -EBADF);
    OK(quire_submit_pwrite(queue, file, memory, 4096, 0, memory));
    quire_close(file);
    quire_queue_free(queue); // waits
    quire_queue_free(NULL);
    free(memory);
}

static void snapshots(void)
{
    OK(quire_mkdir(volume, "kept", 0755));
    quire_file *file = opened("kept/note", O_RDWR | O_CREAT);
    EXPECT(quire_pwrite(file, "before", 6, 0) == 6);
    OK(quire_snapshot_take(volume, "monday"));
    EXPECT(quire_snapshot_take(volume, "monday") == -EEXIST);
    EXPECT(quire_snapshot_take(volume, "a/b") == -EINVAL && quire_snapshot_take(volume, "\xff") == -EINVAL);
    OK(quire_snapshot_take(volume, "tuesday"));
    EXPECT(quire_pwrite(file, "after.", 6, 0) == 6);
    quire_close(file);

    quire_snapshot_list *list;
    struct quire_snapshot one;
    OK(quire_snapshots(volume, &list));
    EXPECT(quire_snapshots_count(list) == 2);
    OK(quire_snapshots_get(list, 0, &one));
    EXPECT(strcmp(one.name, "monday") == 0 && one.number == 1 && !one.deleting && one.created.tv_sec > 0);
    EXPECT(quire_snapshots_get(list, 2, &one) == -EINVAL);
    quire_snapshots_free(list);
    quire_snapshots_free(NULL);

    quire_volume *monday;
    EXPECT(quire_snapshot_open(volume, "sunday", &monday) == -ENOENT && !monday);
    OK(quire_snapshot_open(volume, "monday", &monday));
    char text[8];
    OK(quire_open(monday, "kept/note", O_RDONLY, 0, &file));
    EXPECT(quire_pread(file, text, sizeof text, 0) == 6 && memcmp(text, "before", 6) == 0);
    quire_close(file);
    EXPECT(quire_mkdir(monday, "new", 0755) == -EROFS);
    EXPECT(quire_snapshot_delete(volume, "monday") == -EBUSY);
    OK(quire_volume_close(monday));
    OK(quire_snapshot_delete(volume, "monday"));
    EXPECT(quire_snapshot_delete(volume, "monday") == -ENOENT);
    EXPECT(quire_snapshot_delete_later(volume, "monday") == -ENOENT);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    volumes(argv[1]);
    files();
    names();
    attributes();
    groups(argv[1]);
    leases(argv[1]);
    properties();
    queues(0);
    queues(2);
    snapshots();
    quire_file *left = opened("left", O_RDWR | O_CREAT);
    EXPECT(quire_pwrite(left, "kept", 4, 0) == 4);
    quire_queue *queue;
    OK(quire_queue_new(0, &queue));
    OK(quire_submit_fsync(queue, left, NULL, NULL));
    OK(quire_volume_close(volume));
    EXPECT(quire_pwrite(left, "lost", 4, 0) == -EIO);
    // The image is free when the last handle and the last completion are gone.
    EXPECT(quire_volume_open(argv[1], NULL, &volume) == -EBUSY);
    quire_close(left);
    EXPECT(quire_volume_open(argv[1], NULL, &volume) == -EBUSY);
    ended(queue, NULL, 0);
    OK(quire_volume_open(argv[1], NULL, &volume));
    OK(quire_volume_close(volume));
    quire_queue_free(queue);
    OK(quire_volume_close(NULL));
    EXPECT(quire_roll_back(argv[1], "sunday") == -ENOENT);
    OK(quire_roll_back(argv[1], "tuesday"));
    OK(quire_volume_open(argv[1], NULL, &volume));
    left = opened("kept/note", O_RDWR);
    char before[8];
    EXPECT(quire_pread(left, before, sizeof before, 0) == 6 && memcmp(before, "before", 6) == 0);
    quire_close(left);
    left = opened("left", O_RDWR | O_CREAT);
    EXPECT(quire_pwrite(left, "kept", 4, 0) == 4);
    quire_close(left);
    OK(quire_snapshot_delete_later(volume, "tuesday"));
    OK(quire_volume_close(volume));

    struct quire_volume_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.flags = QUIRE_READ_ONLY;
    OK(quire_volume_open(argv[1], &options, &volume));
    EXPECT(quire_mkdir(volume, "new", 0755) == -EROFS);
    char text[8];
    left = opened("left", O_RDONLY);
    EXPECT(quire_pread(left, text, sizeof text, 0) == 4 && memcmp(text, "kept", 4) == 0);
    quire_close(left);
    OK(quire_volume_close(volume));
    puts("every function does what quire.h says");
    return 0;
}
