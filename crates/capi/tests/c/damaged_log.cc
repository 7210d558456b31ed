// A database whose log cannot be read, since the volume's metadata is damaged there: damaged_log URI.

#include <cerrno>
#include <cstdio>
#include <dlfcn.h>
#include <memory>
#include <set>
#include <string>

#include "quire.h"
#include "quire_fs.h"
#include "rocksdb/db.h"
#include "rocksdb/env.h"

namespace {

bool damaged;
std::set<const quire_file *> logs;

template <typename Function> Function *Library(const char *name, Function *)
{
    return reinterpret_cast<Function *>(dlsym(RTLD_NEXT, name));
}

rocksdb::Status Open(rocksdb::Env *env, std::unique_ptr<rocksdb::DB> *db)
{
    rocksdb::Options options;
    options.env = env;
    options.create_if_missing = true;
    options.avoid_flush_during_shutdown = true;
    rocksdb::DB *opened = nullptr;
    const rocksdb::Status status = rocksdb::DB::Open(options, "/database", &opened);
    db->reset(opened);
    return status;
}

} // namespace

// The plugin calls these two.
extern "C" int quire_open(const quire_volume *volume, const char *path, int flags, uint32_t mode, quire_file **file)
{
    const int opened = Library("quire_open", quire_open)(volume, path, flags, mode, file);
    const std::string name(path);
    if (opened == 0 && name.size() > 4 && name.compare(name.size() - 4, 4, ".log") == 0)
        logs.insert(*file);
    return opened;
}

extern "C" int64_t quire_pread(const quire_file *file, void *bytes, size_t count, uint64_t offset)
{
    if (damaged && logs.count(file) != 0)
        return -EUCLEAN;
    return Library("quire_pread", quire_pread)(file, bytes, count, offset);
}

int main(int, char **arguments)
{
    std::shared_ptr<rocksdb::FileSystem> files;
    rocksdb::Status status = rocksdb::NewQuireFileSystem(arguments[1], &files);
    const std::unique_ptr<rocksdb::Env> env = rocksdb::NewCompositeEnv(files);
    std::unique_ptr<rocksdb::DB> db;
    if (status.ok())
        status = Open(env.get(), &db);
    rocksdb::WriteOptions synced;
    synced.sync = true;
    if (status.ok())
        status = db->Put(synced, "key", "value");
    if (status.ok())
        status = db->Close();
    if (!status.ok()) {
        std::puts(status.ToString().c_str());
        return 1;
    }
    damaged = true;
    status = Open(env.get(), &db);
    std::puts(status.ok() ? "it opens" : status.IsIOError() ? "an I/O error" : status.ToString().c_str());
    db.reset();
    damaged = false;
    status = Open(env.get(), &db);
    std::string value;
    if (status.ok())
        status = db->Get(rocksdb::ReadOptions(), "key", &value);
    std::puts(status.ok() ? value.c_str() : status.ToString().c_str());
}
