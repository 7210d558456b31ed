# For RocksDB's Makefile: link or copy this directory to plugin/quire there, and `make ROCKSDB_PLUGINS=quire`. libquire is
# found through pkg-config.
quire_SOURCES = quire_fs.cc
quire_HEADERS = quire_fs.h
quire_FUNC = register_QuireFileSystem
quire_CXXFLAGS = $(shell pkg-config --cflags quire)
quire_LDFLAGS = $(shell pkg-config --libs quire)
quire_PKGCONFIG_REQUIRES = quire
