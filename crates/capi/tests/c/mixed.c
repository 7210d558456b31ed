/* Readers and writers at random aligned offsets of one cached file, as `quire bench mixed` has them, through the C interface.
 *
 *   mixed IMAGE READERS WRITERS SECONDS      operations of 4 KiB in a file of 256 MiB; prints "READS WRITES" a second
 *
 * scripts/c-mixed runs it beside the benchmark in Rust. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <quire.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 4096, BYTES = 256 << 20, CHUNK = 1 << 20 };

static quire_file *file;
static atomic_int stage; /* 0: warming up, 1: measured, 2: over */

struct thread {
    pthread_t id;
    int writes;
    uint64_t random, operations;
};

static void check(int64_t result, const char *doing)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", doing, quire_error_message());
        exit(1);
    }
}

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void *work(void *argument)
{
    struct thread *thread = argument;
    char *buffer = aligned_alloc(BLOCK, BLOCK);
    struct timespec now;
    memset(buffer, (int)thread->random, BLOCK);
    for (int at; (at = atomic_load_explicit(&stage, memory_order_relaxed)) < 2;) {
        uint64_t offset = next(&thread->random) % (BYTES / BLOCK) * BLOCK;
        if (thread->writes)
            check(quire_pwrite(file, buffer, BLOCK, offset), "writing");
        else
            check(quire_pread(file, buffer, BLOCK, offset), "reading");
        clock_gettime(CLOCK_MONOTONIC, &now); /* the benchmark looks at the clock, too */
        thread->operations += at == 1;
    }
    free(buffer);
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: %s IMAGE READERS WRITERS SECONDS\n", argv[0]);
        return 2;
    }
    int readers = atoi(argv[2]), threads = readers + atoi(argv[3]), seconds = atoi(argv[4]);
    struct quire_format_options format = {.size = sizeof format, .bytes = (uint64_t)1 << 30, .flags = QUIRE_FORCE};
    check(quire_format(argv[1], &format), "making the volume");
    struct quire_volume_options options = {.size = sizeof options, .cache_bytes = (uint64_t)512 << 20};
    quire_volume *volume;
    check(quire_volume_open(argv[1], &options, &volume), "opening the volume");
    check(quire_open(volume, "file", O_RDWR | O_CREAT, 0644, &file), "opening the file");
    char *chunk = calloc(1, CHUNK);
    for (uint64_t offset = 0; offset < BYTES; offset += CHUNK)
        check(quire_pwrite(file, chunk, CHUNK, offset), "filling the file");
    free(chunk);
    check(quire_fsync(file), "making it durable");

    struct thread *all = calloc((size_t)threads, sizeof *all);
    for (int n = 0; n < threads; n++) {
        all[n].writes = n >= readers;
        all[n].random = 88172645463325252u + (uint64_t)n * 7919;
        if (pthread_create(&all[n].id, NULL, work, &all[n]))
            return 1;
    }
    usleep(300000);
    atomic_store(&stage, 1);
    sleep((unsigned)seconds);
    atomic_store(&stage, 2);
    uint64_t operations[2] = {0, 0};
    for (int n = 0; n < threads; n++) {
        pthread_join(all[n].id, NULL);
        operations[all[n].writes] += all[n].operations;
    }
    printf("%llu %llu\n", (unsigned long long)(operations[0] / (unsigned)seconds), (unsigned long long)(operations[1] / (unsigned)seconds));
    free(all);
    quire_close(file);
    check(quire_volume_close(volume), "closing the volume");
    return 0;
}
