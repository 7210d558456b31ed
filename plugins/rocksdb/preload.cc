// Registers `quire://` when the library is loaded, for programs that were not built with the plugin:
//
//   LD_PRELOAD=libquire-rocksdb.so db_bench --fs_uri=quire://IMAGE
//
// Neighbours: quire_fs.cc.

#include <cstdio>

#include "quire_fs.h"

namespace {

struct Registration {
    Registration()
    {
        const std::string built = std::to_string(ROCKSDB_MAJOR) + "." + std::to_string(ROCKSDB_MINOR);
        const std::string loaded = ROCKSDB_NAMESPACE::GetRocksVersionAsString(false);
        if (loaded.compare(0, built.size(), built) != 0 ||
            (loaded.size() > built.size() && loaded[built.size()] != '.')) {
            std::fprintf(stderr, "quire: this plugin is for RocksDB %s, the program has %s: quire:// is not available\n",
                         built.c_str(), loaded.c_str());
            return;
        }
        register_QuireFileSystem(*ROCKSDB_NAMESPACE::ObjectLibrary::Default(), "");
    }
};
const Registration registration;

} // namespace
