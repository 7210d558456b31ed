// Many requests under way at once, and one event loop: writes 64 MiB by direct I/O with 32 requests in flight, makes them
// durable, and reads them back.
//
//   queue IMAGE
#define _GNU_SOURCE // O_DIRECT
#include <fcntl.h>
#include <poll.h>
#include <quire.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 64 << 10, BLOCKS = 1024, IN_FLIGHT = 32 };

struct slot {
    unsigned char *memory;
    unsigned block;
};

static void check(int64_t result, const char *doing)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", doing, quire_error_message());
        exit(1);
    }
}

static unsigned char content(unsigned block)
{
    return (unsigned char)(block * 37 + 1);
}

static void submit(quire_queue *queue, quire_file *file, struct slot *slot, int writes)
{
    uint64_t offset = (uint64_t)slot->block * BLOCK;
    if (writes) {
        memset(slot->memory, content(slot->block), BLOCK);
        check(quire_submit_pwrite(queue, file, slot->memory, BLOCK, offset, slot), "submitting a write");
    } else {
        check(quire_submit_pread(queue, file, slot->memory, BLOCK, offset, slot), "submitting a read");
    }
}

// Every block once, IN_FLIGHT at a time; waits as an event loop does, on the descriptor.
static void all_blocks(quire_queue *queue, quire_file *file, struct slot *slots, int writes)
{
    unsigned begun = 0, ended = 0;
    for (; begun < IN_FLIGHT; begun++) {
        slots[begun].block = begun;
        submit(queue, file, &slots[begun], writes);
    }
    struct pollfd ready = {.fd = quire_queue_fd(queue), .events = POLLIN};
    while (ended < BLOCKS) {
        if (poll(&ready, 1, -1) < 0) {
            perror("poll");
            exit(1);
        }
        struct quire_completion completions[8];
        int count = quire_queue_wait(queue, completions, 8, 0, 0);
        check(count, "reaping");
        for (int i = 0; i < count; i++, ended++) {
            struct slot *slot = completions[i].user_data;
            check(completions[i].result, writes ? "writing" : "reading");
            if (completions[i].result != BLOCK || slot->memory[BLOCK - 1] != content(slot->block)) {
                fprintf(stderr, "block %u is wrong\n", slot->block);
                exit(1);
            }
            if (begun < BLOCKS) {
                slot->block = begun++;
                submit(queue, file, slot, writes);
            }
        }
    }
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s IMAGE\n", argv[0]);
        return 2;
    }
    struct quire_format_options format = {.size = sizeof format, .flags = QUIRE_FORCE, .bytes = 256 << 20};
    check(quire_format(argv[1], &format), "making the volume");
    struct quire_volume_options options = {.size = sizeof options, .cache_bytes = 32 << 20};
    quire_volume *volume;
    check(quire_volume_open(argv[1], &options, &volume), "opening the volume");
    quire_file *file;
    check(quire_open(volume, "blocks", O_RDWR | O_CREAT | O_DIRECT, 0644, &file), "creating the file");
    // Requests inside the file hold no thread; those that grow it are done when they are submitted.
    check(quire_ftruncate(file, (uint64_t)BLOCK * BLOCKS), "sizing the file");
    quire_queue *queue;
    check(quire_queue_new(0, &queue), "making the queue");

    struct slot slots[IN_FLIGHT];
    for (int i = 0; i < IN_FLIGHT; i++) {
        slots[i].memory = aligned_alloc(4096, BLOCK);
        if (!slots[i].memory) {
            perror("memory");
            return 1;
        }
    }
    all_blocks(queue, file, slots, 1);
    struct quire_completion durable;
    check(quire_submit_fsync(queue, file, NULL, NULL), "submitting an fsync");
    check(quire_queue_wait(queue, &durable, 1, 1, -1), "waiting for it");
    check(durable.result, "fsync");
    for (int i = 0; i < IN_FLIGHT; i++)
        memset(slots[i].memory, 0, BLOCK);
    all_blocks(queue, file, slots, 0);

    for (int i = 0; i < IN_FLIGHT; i++)
        free(slots[i].memory);
    quire_queue_free(queue);
    quire_close(file);
    check(quire_volume_close(volume), "closing the volume");
    printf("%d blocks written, durable and read back\n", BLOCKS);
    return 0;
}
