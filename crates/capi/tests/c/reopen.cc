// Two threads that open a volume one after the other, through the plugin for RocksDB, while its last user closes it, which
// takes long: reopen URI.

#include <chrono>
#include <cstdio>
#include <dlfcn.h>
#include <memory>
#include <thread>

#include "quire.h"
#include "quire_fs.h"

namespace {

using namespace std::chrono_literals;
using FileSystemRef = std::shared_ptr<rocksdb::FileSystem>;

FileSystemRef Open(const char *uri)
{
    FileSystemRef fs;
    const rocksdb::Status status = rocksdb::NewQuireFileSystem(uri, &fs);
    if (!status.ok())
        std::printf("%s\n", status.ToString().c_str());
    return fs;
}

} // namespace

// The plugin calls this one: a device to which much has to be written, longer than the library is patient with locks.
extern "C" int quire_volume_close(quire_volume *volume)
{
    std::this_thread::sleep_for(1500ms);
    const auto close = reinterpret_cast<int (*)(quire_volume *)>(dlsym(RTLD_NEXT, "quire_volume_close"));
    return close(volume);
}

int main(int, char **arguments)
{
    FileSystemRef first = Open(arguments[1]);
    std::thread closes([&first] { first.reset(); });
    std::this_thread::sleep_for(200ms);
    FileSystemRef second;
    std::thread opens([&second, arguments] { second = Open(arguments[1]); });
    FileSystemRef third = Open(arguments[1]);
    opens.join();
    closes.join();
    std::puts(second && third ? "both opened it" : "it was not opened");
}
