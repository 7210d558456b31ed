// Kills a program that writes to a database on Quire, again and again, and looks for what is lost.
//
//   killcheck URI [KILLS [SEED [unsynced]]]        quire://IMAGE?..., 10 kills, 1 at least
//
// With `unsynced` the writes are not synchronous, and the check must fail at one that is lost: that shows that it can. Where none is
// lost, it says so and fails as well.
//
// A writer has eight threads, each with keys of its own; they overwrite them with sync=true. Before a Put a thread notes
// the version that it tries, after it the version that was acknowledged, both in memory that this process shares and
// keeps. The writer is killed (SIGKILL) at a random time. A reader, a process of its own as well, opens the database and
// checks every key: its version lies between the acknowledged and the tried one, and its value is that version's. It scans
// for keys that nobody wrote, and has RocksDB verify all checksums.
//
// This process never opens the volume, so that every recovery is that of a new process.

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "quire_fs.h"
#include "rocksdb/db.h"
#include "rocksdb/env.h"
#include "rocksdb/table.h"

namespace {

using namespace ROCKSDB_NAMESPACE;

constexpr unsigned kThreads = 8, kKeys = 1000, kValueBytes = 400;
constexpr char kDatabase[] = "/check/database";

// What outlives a writer.
struct Known {
    struct Key {
        std::atomic<uint64_t> tried, acknowledged;
    } keys[kThreads][kKeys];
    std::atomic<bool> ready;
};

std::string KeyOf(unsigned thread, unsigned key)
{
    char text[32];
    std::snprintf(text, sizeof text, "thread%02u/%06u", thread, key);
    return text;
}

std::string ValueOf(unsigned thread, unsigned key, uint64_t version)
{
    char head[64];
    const int length = std::snprintf(head, sizeof head, "%u %u %" PRIu64 " ", thread, key, version);
    std::string value(head, static_cast<size_t>(length));
    std::mt19937_64 random(version * 1000003 + thread * kKeys + key);
    while (value.size() < kValueBytes)
        value.push_back(static_cast<char>(random()));
    return value;
}

[[noreturn]] void Fail(const std::string &what)
{
    std::fprintf(stderr, "killcheck: %s\n", what.c_str());
    std::fflush(stderr);
    _exit(1);
}

void Check(const Status &status, const std::string &doing)
{
    if (!status.ok())
        Fail(doing + ": " + status.ToString());
}

// The database, with small buffers so that flushes and compactions run all the time. Odd rounds reuse log files.
struct Database {
    std::unique_ptr<Env> env;
    std::unique_ptr<DB> db;

    Database(const std::string &uri, unsigned round)
    {
        std::shared_ptr<FileSystem> files;
        Check(NewQuireFileSystem(uri, &files), "opening " + uri);
        env = NewCompositeEnv(files);
        Options options;
        options.env = env.get();
        options.create_if_missing = true;
        options.paranoid_checks = true;
        options.write_buffer_size = 512 << 10;
        options.target_file_size_base = 512 << 10;
        options.max_bytes_for_level_base = 2 << 20;
        options.max_background_jobs = 4;
        options.compression = kNoCompression;
        if (round % 2 == 1) {
            options.recycle_log_file_num = 2;
            options.wal_recovery_mode = WALRecoveryMode::kTolerateCorruptedTailRecords;
        }
        Check(env->CreateDirIfMissing("/check"), "creating /check");
        DB *opened;
        Check(DB::Open(options, kDatabase, &opened), "opening the database");
        db.reset(opened);
    }
};

[[noreturn]] void Write(const std::string &uri, unsigned round, uint64_t seed, bool sync, Known *known)
{
    Database database(uri, round);
    known->ready = true;
    std::vector<std::thread> threads;
    for (unsigned thread = 0; thread < kThreads; thread++) {
        threads.emplace_back([&, thread] {
            std::mt19937_64 random(seed * kThreads + thread);
            WriteOptions options;
            options.sync = sync;
            for (;;) {
                const unsigned key = static_cast<unsigned>(random() % kKeys);
                Known::Key &place = known->keys[thread][key];
                const uint64_t version = place.tried.load() + 1;
                place.tried = version;
                Check(database.db->Put(options, KeyOf(thread, key), ValueOf(thread, key, version)), "writing");
                place.acknowledged = version;
            }
        });
    }
    for (auto &thread : threads)
        thread.join();
    _exit(1);
}

[[noreturn]] void Read(const std::string &uri, unsigned round, Known *known)
{
    {
        Database database(uri, round);
        ReadOptions options;
        options.verify_checksums = true;
        uint64_t there = 0;
        for (unsigned thread = 0; thread < kThreads; thread++) {
            for (unsigned key = 0; key < kKeys; key++) {
                Known::Key &place = known->keys[thread][key];
                const uint64_t acknowledged = place.acknowledged, tried = place.tried;
                std::string value;
                const Status status = database.db->Get(options, KeyOf(thread, key), &value);
                uint64_t version = 0;
                if (!status.IsNotFound()) {
                    Check(status, "reading " + KeyOf(thread, key));
                    there++;
                    if (std::sscanf(value.c_str(), "%*u %*u %" SCNu64, &version) != 1 ||
                        value != ValueOf(thread, key, version))
                        Fail(KeyOf(thread, key) + " holds what nobody wrote");
                }
                if (version < acknowledged)
                    Fail(KeyOf(thread, key) + " is of version " + std::to_string(version) + ", but " +
                         std::to_string(acknowledged) + " was acknowledged");
                if (version > tried)
                    Fail(KeyOf(thread, key) + " is of version " + std::to_string(version) + ", which nobody wrote");
                // What a crash left is what later rounds build on.
                place.tried = place.acknowledged = version;
            }
        }
        std::unique_ptr<Iterator> all(database.db->NewIterator(options));
        uint64_t scanned = 0;
        for (all->SeekToFirst(); all->Valid(); all->Next())
            scanned++;
        Check(all->status(), "scanning");
        all.reset();
        if (scanned != there)
            Fail("a scan finds " + std::to_string(scanned) + " keys of " + std::to_string(there));
        Check(database.db->VerifyChecksum(options), "verifying the checksums");
        Check(database.db->Close(), "closing the database");
    }
    _exit(0);
}

// A child ends with this process, whatever ends it.
pid_t Fork()
{
    const pid_t parent = getpid(), child = fork();
    if (child < 0)
        Fail(std::string("fork: ") + std::strerror(errno));
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
    }
    return child;
}

} // namespace

int main(int argc, char **argv)
{
    char *end = nullptr;
    const long count = argc > 2 ? std::strtol(argv[2], &end, 10) : 10;
    if (argc < 2 || argc > 5 || count <= 0 || count > UINT_MAX || (end && *end) || (argc == 5 && std::strcmp(argv[4], "unsynced") != 0)) {
        std::fprintf(stderr, "usage: %s quire://IMAGE [KILLS [SEED [unsynced]]]\n", argv[0]);
        return 2;
    }
    const std::string uri = argv[1];
    const unsigned kills = static_cast<unsigned>(count);
    const uint64_t seed = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1;
    void *memory = mmap(nullptr, sizeof(Known), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        Fail("no memory to share");
    Known *known = new (memory) Known();

    std::mt19937_64 random(seed);
    uint64_t written = 0, unanswered = 0;
    for (unsigned round = 0; round < kills; round++) {
        uint64_t before = 0;
        for (auto &thread : known->keys)
            for (auto &key : thread)
                before += key.acknowledged;
        known->ready = false;
        const pid_t writer = Fork();
        if (writer == 0)
            Write(uri, round, seed + round, argc < 5, known);
        int status;
        while (!known->ready) {
            if (waitpid(writer, &status, WNOHANG) != 0)
                Fail("the writer of round " + std::to_string(round) + " ended by itself");
            usleep(1000);
        }
        usleep(static_cast<useconds_t>(random() % 1000000));
        kill(writer, SIGKILL);
        if (waitpid(writer, &status, 0) != writer || !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
            Fail("the writer of round " + std::to_string(round) + " ended by itself");
        uint64_t after = 0;
        for (auto &thread : known->keys)
            for (auto &key : thread) {
                after += key.acknowledged;
                unanswered += key.tried - key.acknowledged;
            }
        written += after - before;
        const pid_t reader = Fork();
        if (reader == 0)
            Read(uri, round, known);
        if (waitpid(reader, &status, 0) != reader || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
            Fail("round " + std::to_string(round) + " of seed " + std::to_string(seed) + " failed");
    }
    if (written == 0)
        Fail("nothing was acknowledged: nothing was tested");
    if (argc == 5)
        Fail("no write was synchronous, and none was lost: the check sees no loss");
    std::printf("%u kills, %" PRIu64 " writes acknowledged, %" PRIu64 " cut off, none lost\n", kills, written, unanswered);
    return 0;
}
