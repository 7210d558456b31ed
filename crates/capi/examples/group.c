// Transfers between two files as groups of writes, and a crash in their midst: no money is lost or made.
//
//   group IMAGE
//
// A child transfers without end and is killed. The parent opens the volume, and finds every transfer that the child
// reported, and none in part.
#define _POSIX_C_SOURCE 200809L // kill
#include <fcntl.h>
#include <inttypes.h>
#include <quire.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ACCOUNTS = 1000, START = 100, TRANSFERS = 500 };

struct bank {
    quire_volume *volume;
    quire_file *balances; // one number for each account
    quire_file *ledger;   // one entry for each transfer
};

struct entry {
    uint32_t from, to;
    int64_t amount;
};

static int64_t check(int64_t result, const char *doing)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", doing, quire_error_message());
        exit(1);
    }
    return result;
}

static struct bank open_bank(const char *image)
{
    struct quire_volume_options options = {.size = sizeof options, .cache_bytes = 32 << 20};
    struct bank bank;
    check(quire_volume_open(image, &options, &bank.volume), "opening the volume");
    check(quire_open(bank.volume, "balances", O_RDWR | O_CREAT, 0644, &bank.balances), "opening the balances");
    check(quire_open(bank.volume, "ledger", O_RDWR | O_CREAT, 0644, &bank.ledger), "opening the ledger");
    return bank;
}

static void close_bank(struct bank bank)
{
    quire_close(bank.balances);
    quire_close(bank.ledger);
    check(quire_volume_close(bank.volume), "closing the volume");
}

static void change(quire_group *group, quire_file *balances, uint32_t account, int64_t by)
{
    int64_t balance;
    uint64_t place = account * sizeof balance;
    // What the group has written before is seen by it alone.
    check(quire_group_pread(group, balances, &balance, sizeof balance, place), "reading a balance");
    balance += by;
    check(quire_group_pwrite(group, balances, &balance, sizeof balance, place), "writing a balance");
}

static void transfer(struct bank bank, struct entry entry)
{
    quire_group *group;
    check(quire_group_begin(bank.volume, &group), "beginning a transfer");
    change(group, bank.balances, entry.from, -entry.amount);
    change(group, bank.balances, entry.to, entry.amount);
    uint64_t end = (uint64_t)check(quire_group_size(group, bank.ledger), "asking for the end of the ledger");
    check(quire_group_pwrite(group, bank.ledger, &entry, sizeof entry, end), "writing into the ledger");
    check(quire_group_commit(group, QUIRE_COMMIT_NOW, 0), "committing a transfer");
}

// Transfers without end, and writes a byte into the pipe when one is durable.
static void transfer_on(const char *image, int pipe)
{
    struct bank bank = open_bank(image);
    for (uint32_t n = 0;; n++) {
        transfer(bank, (struct entry){n % ACCOUNTS, (n * 7 + 1) % ACCOUNTS, n % 13 + 1});
        if (write(pipe, "", 1) != 1)
            exit(1);
    }
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s IMAGE\n", argv[0]);
        return 2;
    }
    struct quire_format_options format = {.size = sizeof format, .flags = QUIRE_FORCE, .bytes = 64 << 20};
    check(quire_format(argv[1], &format), "making the volume");
    struct bank bank = open_bank(argv[1]);
    quire_group *group;
    check(quire_group_begin(bank.volume, &group), "beginning a group");
    for (uint64_t account = 0; account < ACCOUNTS; account++) {
        int64_t balance = START;
        uint64_t place = account * sizeof balance;
        check(quire_group_pwrite(group, bank.balances, &balance, sizeof balance, place), "writing a balance");
    }
    check(quire_group_commit(group, QUIRE_COMMIT_NOW, 0), "committing the first balances");
    close_bank(bank);

    int ends[2], status;
    if (pipe(ends) != 0) {
        perror("pipe");
        return 1;
    }
    pid_t child = fork(); // before it opens the volume: threads do not survive a fork
    if (child == 0) {
        close(ends[0]);
        transfer_on(argv[1], ends[1]);
    }
    close(ends[1]);
    uint64_t reported = 0;
    char byte;
    while (child > 0 && reported < TRANSFERS && read(ends[0], &byte, 1) == 1)
        reported++;
    if (child < 0 || kill(child, SIGKILL) != 0 || waitpid(child, &status, 0) != child || !WIFSIGNALED(status)) {
        fprintf(stderr, "the child ended early\n");
        return 1;
    }
    while (read(ends[0], &byte, 1) == 1)
        reported++;

    static int64_t balances[ACCOUNTS], expected[ACCOUNTS];
    bank = open_bank(argv[1]);
    int64_t sum = 0;
    check(quire_pread(bank.balances, balances, sizeof balances, 0), "reading the balances");
    for (int account = 0; account < ACCOUNTS; account++)
        expected[account] = START;
    struct entry entry;
    uint64_t entries = 0;
    while (check(quire_pread(bank.ledger, &entry, sizeof entry, entries * sizeof entry), "reading") == sizeof entry) {
        expected[entry.from] -= entry.amount;
        expected[entry.to] += entry.amount;
        entries++;
    }
    for (int account = 0; account < ACCOUNTS; account++) {
        sum += balances[account];
        if (balances[account] != expected[account]) {
            fprintf(stderr, "account %d has %" PRId64 ", its ledger %" PRId64 "\n", account, balances[account],
                    expected[account]);
            return 1;
        }
    }
    close_bank(bank);
    if (entries < reported || sum != (int64_t)ACCOUNTS * START) {
        fprintf(stderr, "%" PRIu64 " of %" PRIu64 " transfers, a sum of %" PRId64 "\n", entries, reported, sum);
        return 1;
    }
    printf("killed after %d transfers or more: all are there, and the sum is %" PRId64 "\n", TRANSFERS, sum);
    return 0;
}
