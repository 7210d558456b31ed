// RocksDB on Quire: a FileSystem whose files live in a volume, an image file or a block device, without a mount.
//
// A program gets one by its address, `quire://IMAGE`, from FileSystem::CreateFromString, Env::CreateFromUri or the
// option --fs_uri of RocksDB's tools, or from NewQuireFileSystem. docs/rocksdb.md has the options of an address.
//
// Neighbours: quire_fs.cc; preload.cc registers it in programs that were not built with it.
#pragma once

#include <memory>
#include <string>

#include "rocksdb/file_system.h"
#include "rocksdb/io_status.h"
#include "rocksdb/utilities/object_registry.h"
#include "rocksdb/version.h"

// RocksDB changes the interface of file systems between minor versions, often without an error of the compiler: an
// overridden function that has a new parameter is just never called. So only versions that this was tested with are let in.
#if ROCKSDB_MAJOR != 7 || ROCKSDB_MINOR != 8
#error "quire: this plugin is for RocksDB 7.8; see docs/rocksdb.md about other versions"
#endif

namespace ROCKSDB_NAMESPACE {

// Opens the volume of an address, or shares it with the file systems of this process that have it open.
Status NewQuireFileSystem(const std::string &uri, std::shared_ptr<FileSystem> *result);

} // namespace ROCKSDB_NAMESPACE

// Registers the addresses `quire://` with a library of objects. RocksDB's build calls it, for plugins that are built in.
extern "C" int register_QuireFileSystem(ROCKSDB_NAMESPACE::ObjectLibrary &library, const std::string &);
