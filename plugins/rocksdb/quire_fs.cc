// See quire_fs.h.
//
// Protocol: one volume of a process is open once; the file systems and files that use it share it, and the last closes
// it. Who opens it meanwhile waits. Locks of databases are names in a table, since the volume itself is locked against
// other processes.
//
// Durability: Sync is fdatasync and Fsync is fsync of Quire, which threads share. Files are not preallocated: the first
// write to preallocated blocks needs a second flush, and small appends without are made durable with one.

#include "quire_fs.h"

#include <cerrno>
#include <climits>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <quire.h>
#include <set>
#include <sys/stat.h>
#include <vector>

namespace ROCKSDB_NAMESPACE {
namespace {

constexpr char kScheme[] = "quire://";
constexpr size_t kBlock = 4096;

// The failure of a call, with the library's text. Damage (EUCLEAN) is an I/O error: RocksDB's recovery takes Corruption of
// a log for its torn end, drops what follows, and later removes the log.
IOStatus Failed(int64_t result)
{
    const char *text = quire_error_message();
    switch (-result) {
    case ENOENT:
        return IOStatus::PathNotFound(text);
    case ENOSPC: {
        IOStatus status = IOStatus::NoSpace(text);
        status.SetRetryable(true);
        return status;
    }
    case EBUSY:
        return IOStatus::Busy(text);
    case EOPNOTSUPP:
        return IOStatus::NotSupported(text);
    default:
        return IOStatus::IOError(text);
    }
}

IOStatus ToStatus(int64_t result)
{
    return result < 0 ? Failed(result) : IOStatus::OK();
}

// An open volume.
class Volume {
public:
    Volume(quire_volume *handle, std::string image) : handle_(handle), image_(std::move(image)) {}
    ~Volume();
    Volume(const Volume &) = delete;
    Volume &operator=(const Volume &) = delete;

    quire_volume *get() const { return handle_; }
    const std::string &image() const { return image_; }

    IOStatus Open(const std::string &path, int flags, quire_file **file) const
    {
        return ToStatus(quire_open(handle_, path.c_str(), flags, 0644, file));
    }

    // True if the name was free.
    bool Lock(const std::string &name)
    {
        std::lock_guard<std::mutex> guard(mutex_);
        return locked_.insert(name).second;
    }
    void Unlock(const std::string &name)
    {
        std::lock_guard<std::mutex> guard(mutex_);
        locked_.erase(name);
    }

private:
    quire_volume *handle_;
    std::string image_;
    std::mutex mutex_;
    std::set<std::string> locked_;
};
using VolumeRef = std::shared_ptr<Volume>;

// An open file, with the volume that it is in.
class Handle {
public:
    Handle(VolumeRef volume, quire_file *file) : volume_(std::move(volume)), file_(file) {}
    ~Handle() { quire_close(file_); }
    Handle(const Handle &) = delete;
    Handle &operator=(const Handle &) = delete;

    quire_file *get() const { return file_; }

    IOStatus Read(uint64_t offset, size_t n, Slice *result, char *scratch) const
    {
        const int64_t count = quire_pread(file_, scratch, n, offset);
        *result = Slice(scratch, count < 0 ? 0 : static_cast<size_t>(count));
        return ToStatus(count);
    }

    IOStatus Write(const Slice &data, uint64_t offset) const
    {
        size_t done = 0;
        while (done < data.size()) {
            const int64_t count = quire_pwrite(file_, data.data() + done, data.size() - done, offset + done);
            if (count <= 0)
                return count < 0 ? Failed(count) : IOStatus::IOError("a write that wrote nothing");
            done += static_cast<size_t>(count);
        }
        return IOStatus::OK();
    }

    IOStatus Advise(uint64_t offset, uint64_t length, int advice) const
    {
        return ToStatus(quire_fadvise(file_, offset, length, advice));
    }

private:
    VolumeRef volume_;
    quire_file *file_;
};

class SequentialFile : public FSSequentialFile {
public:
    SequentialFile(VolumeRef volume, quire_file *file, bool direct) : handle_(std::move(volume), file), direct_(direct) {}

    IOStatus Read(size_t n, const IOOptions &, Slice *result, char *scratch, IODebugContext *) override
    {
        IOStatus status = handle_.Read(offset_, n, result, scratch);
        offset_ += result->size();
        return status;
    }
    IOStatus PositionedRead(uint64_t offset, size_t n, const IOOptions &, Slice *result, char *scratch,
                            IODebugContext *) override
    {
        return handle_.Read(offset, n, result, scratch);
    }
    IOStatus Skip(uint64_t n) override
    {
        offset_ += n;
        return IOStatus::OK();
    }
    bool use_direct_io() const override { return direct_; }
    size_t GetRequiredBufferAlignment() const override { return kBlock; }
    IOStatus InvalidateCache(size_t offset, size_t length) override
    {
        return handle_.Advise(offset, length, POSIX_FADV_DONTNEED);
    }

private:
    Handle handle_;
    const bool direct_;
    uint64_t offset_ = 0;
};

class RandomAccessFile : public FSRandomAccessFile {
public:
    RandomAccessFile(VolumeRef volume, quire_file *file, bool direct) : handle_(std::move(volume), file), direct_(direct) {}

    IOStatus Read(uint64_t offset, size_t n, const IOOptions &, Slice *result, char *scratch,
                  IODebugContext *) const override
    {
        return handle_.Read(offset, n, result, scratch);
    }
    IOStatus Prefetch(uint64_t offset, size_t n, const IOOptions &, IODebugContext *) override
    {
        return direct_ || n == 0 ? IOStatus::OK() : handle_.Advise(offset, n, POSIX_FADV_WILLNEED);
    }
    void Hint(AccessPattern pattern) override
    {
        switch (pattern) {
        case kNormal:
            handle_.Advise(0, 0, POSIX_FADV_NORMAL).PermitUncheckedError();
            break;
        case kRandom:
            handle_.Advise(0, 0, POSIX_FADV_RANDOM).PermitUncheckedError();
            break;
        case kSequential:
            handle_.Advise(0, 0, POSIX_FADV_SEQUENTIAL).PermitUncheckedError();
            break;
        case kWillNeed:
            handle_.Advise(0, 0, POSIX_FADV_WILLNEED).PermitUncheckedError();
            break;
        case kWontNeed:
            handle_.Advise(0, 0, POSIX_FADV_DONTNEED).PermitUncheckedError();
            break;
        }
    }
    bool use_direct_io() const override { return direct_; }
    size_t GetRequiredBufferAlignment() const override { return kBlock; }
    IOStatus InvalidateCache(size_t offset, size_t length) override
    {
        return handle_.Advise(offset, length, POSIX_FADV_DONTNEED);
    }

private:
    Handle handle_;
    const bool direct_;
};

class WritableFile : public FSWritableFile {
public:
    WritableFile(VolumeRef volume, quire_file *file, uint64_t size, const FileOptions &options)
        : FSWritableFile(options), handle_(new Handle(std::move(volume), file)), direct_(options.use_direct_writes),
          size_(size)
    {
    }

    using FSWritableFile::Append;
    using FSWritableFile::PositionedAppend;
    IOStatus Append(const Slice &data, const IOOptions &, IODebugContext *) override
    {
        return WriteAt(data, size_);
    }
    IOStatus PositionedAppend(const Slice &data, uint64_t offset, const IOOptions &, IODebugContext *) override
    {
        return WriteAt(data, offset);
    }
    IOStatus PositionedAppend(const Slice &data, uint64_t offset, const IOOptions &, const DataVerificationInfo &,
                              IODebugContext *) override
    {
        return WriteAt(data, offset);
    }
    IOStatus Truncate(uint64_t size, const IOOptions &, IODebugContext *) override
    {
        IOStatus status = ToStatus(quire_ftruncate(handle_->get(), size));
        if (status.ok())
            size_ = size;
        return status;
    }
    IOStatus Close(const IOOptions &, IODebugContext *) override
    {
        handle_.reset();
        return IOStatus::OK();
    }
    IOStatus Flush(const IOOptions &, IODebugContext *) override { return IOStatus::OK(); }
    IOStatus Sync(const IOOptions &, IODebugContext *) override { return ToStatus(quire_fdatasync(handle_->get())); }
    IOStatus Fsync(const IOOptions &, IODebugContext *) override { return ToStatus(quire_fsync(handle_->get())); }
    // One thread may append while others sync, and those share the device's flushes.
    bool IsSyncThreadSafe() const override { return true; }
    bool use_direct_io() const override { return direct_; }
    size_t GetRequiredBufferAlignment() const override { return kBlock; }
    uint64_t GetFileSize(const IOOptions &, IODebugContext *) override { return size_; }
    IOStatus InvalidateCache(size_t offset, size_t length) override
    {
        return handle_->Advise(offset, length, POSIX_FADV_DONTNEED);
    }

private:
    IOStatus WriteAt(const Slice &data, uint64_t offset)
    {
        IOStatus status = handle_->Write(data, offset);
        if (status.ok())
            size_ = offset + data.size();
        return status;
    }

    std::unique_ptr<Handle> handle_;
    const bool direct_;
    uint64_t size_;
};

class RandomRWFile : public FSRandomRWFile {
public:
    RandomRWFile(VolumeRef volume, quire_file *file) : handle_(new Handle(std::move(volume), file)) {}

    IOStatus Write(uint64_t offset, const Slice &data, const IOOptions &, IODebugContext *) override
    {
        return handle_->Write(data, offset);
    }
    IOStatus Read(uint64_t offset, size_t n, const IOOptions &, Slice *result, char *scratch,
                  IODebugContext *) const override
    {
        return handle_->Read(offset, n, result, scratch);
    }
    IOStatus Flush(const IOOptions &, IODebugContext *) override { return IOStatus::OK(); }
    IOStatus Sync(const IOOptions &, IODebugContext *) override { return ToStatus(quire_fdatasync(handle_->get())); }
    IOStatus Fsync(const IOOptions &, IODebugContext *) override { return ToStatus(quire_fsync(handle_->get())); }
    IOStatus Close(const IOOptions &, IODebugContext *) override
    {
        handle_.reset();
        return IOStatus::OK();
    }

private:
    std::unique_ptr<Handle> handle_;
};

class Directory : public FSDirectory {
public:
    Directory(VolumeRef volume, quire_file *file) : handle_(new Handle(std::move(volume), file)) {}

    // Costs nothing if the names are durable already, as they are after an fsync of the new file.
    IOStatus Fsync(const IOOptions &, IODebugContext *) override { return ToStatus(quire_fsync(handle_->get())); }
    IOStatus Close(const IOOptions &, IODebugContext *) override
    {
        handle_.reset();
        return IOStatus::OK();
    }

private:
    std::unique_ptr<Handle> handle_;
};

class Lock : public FileLock {
public:
    explicit Lock(std::string name) : name(std::move(name)) {}
    const std::string name;
};

class QuireFileSystem : public FileSystem {
public:
    explicit QuireFileSystem(VolumeRef volume) : volume_(std::move(volume)) {}

    static const char *kClassName() { return "QuireFileSystem"; }
    const char *Name() const override { return kClassName(); }
    const char *NickName() const override { return "quire"; }

    IOStatus NewSequentialFile(const std::string &path, const FileOptions &options,
                               std::unique_ptr<FSSequentialFile> *result, IODebugContext *) override
    {
        quire_file *file;
        IOStatus status = volume_->Open(path, O_RDONLY | Direct(options.use_direct_reads), &file);
        if (status.ok())
            result->reset(new SequentialFile(volume_, file, options.use_direct_reads));
        return status;
    }

    IOStatus NewRandomAccessFile(const std::string &path, const FileOptions &options,
                                 std::unique_ptr<FSRandomAccessFile> *result, IODebugContext *) override
    {
        quire_file *file;
        IOStatus status = volume_->Open(path, O_RDONLY | Direct(options.use_direct_reads), &file);
        if (status.ok())
            result->reset(new RandomAccessFile(volume_, file, options.use_direct_reads));
        return status;
    }

    IOStatus NewWritableFile(const std::string &path, const FileOptions &options,
                             std::unique_ptr<FSWritableFile> *result, IODebugContext *) override
    {
        return OpenWritable(path, O_CREAT | O_TRUNC, options, result);
    }

    IOStatus ReopenWritableFile(const std::string &path, const FileOptions &options,
                                std::unique_ptr<FSWritableFile> *result, IODebugContext *) override
    {
        return OpenWritable(path, O_CREAT, options, result);
    }

    IOStatus ReuseWritableFile(const std::string &path, const std::string &old_path, const FileOptions &options,
                               std::unique_ptr<FSWritableFile> *result, IODebugContext *) override
    {
        IOStatus status = ToStatus(quire_rename(volume_->get(), old_path.c_str(), path.c_str(), 0));
        if (!status.ok())
            return status;
        // The blocks stay: overwriting them needs no change of metadata.
        quire_file *file;
        status = volume_->Open(path, O_WRONLY | Direct(options.use_direct_writes), &file);
        if (status.ok())
            result->reset(new WritableFile(volume_, file, 0, options));
        return status;
    }

    IOStatus NewRandomRWFile(const std::string &path, const FileOptions &, std::unique_ptr<FSRandomRWFile> *result,
                             IODebugContext *) override
    {
        quire_file *file;
        IOStatus status = volume_->Open(path, O_RDWR, &file);
        if (status.ok())
            result->reset(new RandomRWFile(volume_, file));
        return status;
    }

    IOStatus NewDirectory(const std::string &path, const IOOptions &, std::unique_ptr<FSDirectory> *result,
                          IODebugContext *) override
    {
        quire_file *file;
        IOStatus status = volume_->Open(path, O_RDONLY | O_DIRECTORY, &file);
        if (status.ok())
            result->reset(new Directory(volume_, file));
        return status;
    }

    IOStatus FileExists(const std::string &path, const IOOptions &, IODebugContext *) override
    {
        quire_attributes found;
        return NotFoundOr(quire_stat(volume_->get(), path.c_str(), &found));
    }

    IOStatus GetChildren(const std::string &path, const IOOptions &, std::vector<std::string> *result,
                         IODebugContext *) override
    {
        result->clear();
        quire_dir *directory;
        const int opened = quire_opendir(volume_->get(), path.c_str(), &directory);
        if (opened < 0)
            return NotFoundOr(opened);
        quire_dirent entry;
        int more;
        while ((more = quire_readdir(directory, &entry)) > 0)
            result->emplace_back(entry.name, entry.name_length);
        IOStatus status = ToStatus(more);
        quire_closedir(directory);
        return status;
    }

    IOStatus DeleteFile(const std::string &path, const IOOptions &, IODebugContext *) override
    {
        return ToStatus(quire_unlink(volume_->get(), path.c_str()));
    }

    IOStatus Truncate(const std::string &path, size_t size, const IOOptions &, IODebugContext *) override
    {
        quire_file *file;
        IOStatus status = volume_->Open(path, O_WRONLY, &file);
        if (!status.ok())
            return status;
        status = ToStatus(quire_ftruncate(file, size));
        quire_close(file);
        return status;
    }

    IOStatus CreateDir(const std::string &path, const IOOptions &, IODebugContext *) override
    {
        return ToStatus(quire_mkdir(volume_->get(), path.c_str(), 0755));
    }

    // With those above it: a volume is empty at first, and nobody has made a place for the database.
    IOStatus CreateDirIfMissing(const std::string &path, const IOOptions &, IODebugContext *) override
    {
        return ToStatus(quire_mkdir_all(volume_->get(), path.c_str()));
    }

    IOStatus DeleteDir(const std::string &path, const IOOptions &, IODebugContext *) override
    {
        return ToStatus(quire_rmdir(volume_->get(), path.c_str()));
    }

    IOStatus GetFileSize(const std::string &path, const IOOptions &, uint64_t *size, IODebugContext *) override
    {
        quire_attributes found;
        IOStatus status = Stat(path, &found);
        *size = status.ok() ? found.bytes : 0;
        return status;
    }

    IOStatus GetFileModificationTime(const std::string &path, const IOOptions &, uint64_t *time,
                                     IODebugContext *) override
    {
        quire_attributes found;
        IOStatus status = Stat(path, &found);
        if (status.ok())
            *time = static_cast<uint64_t>(found.mtime.tv_sec);
        return status;
    }

    IOStatus IsDirectory(const std::string &path, const IOOptions &, bool *is_directory, IODebugContext *) override
    {
        quire_attributes found;
        IOStatus status = Stat(path, &found);
        if (status.ok())
            *is_directory = S_ISDIR(found.mode);
        return status;
    }

    IOStatus NumFileLinks(const std::string &path, const IOOptions &, uint64_t *count, IODebugContext *) override
    {
        quire_attributes found;
        IOStatus status = Stat(path, &found);
        if (status.ok())
            *count = found.nlink;
        return status;
    }

    IOStatus AreFilesSame(const std::string &first, const std::string &second, const IOOptions &, bool *same,
                          IODebugContext *) override
    {
        quire_attributes one, other;
        IOStatus status = Stat(first, &one);
        if (status.ok())
            status = Stat(second, &other);
        if (status.ok())
            *same = one.ino == other.ino;
        return status;
    }

    IOStatus RenameFile(const std::string &from, const std::string &to, const IOOptions &, IODebugContext *) override
    {
        return ToStatus(quire_rename(volume_->get(), from.c_str(), to.c_str(), 0));
    }

    IOStatus LinkFile(const std::string &from, const std::string &to, const IOOptions &, IODebugContext *) override
    {
        return ToStatus(quire_link(volume_->get(), from.c_str(), to.c_str()));
    }

    IOStatus LockFile(const std::string &path, const IOOptions &, FileLock **lock, IODebugContext *) override
    {
        *lock = nullptr;
        quire_file *file;
        IOStatus status = volume_->Open(path, O_RDWR | O_CREAT, &file);
        if (!status.ok())
            return status;
        quire_close(file);
        if (!volume_->Lock(path))
            return IOStatus::IOError("lock " + path, "it is held by this process already");
        *lock = new Lock(path);
        return IOStatus::OK();
    }

    IOStatus UnlockFile(FileLock *lock, const IOOptions &, IODebugContext *) override
    {
        std::unique_ptr<Lock> held(static_cast<Lock *>(lock));
        volume_->Unlock(held->name);
        return IOStatus::OK();
    }

    IOStatus GetTestDirectory(const IOOptions &options, std::string *path, IODebugContext *dbg) override
    {
        *path = "/rocksdbtest";
        return CreateDirIfMissing(*path, options, dbg);
    }

    IOStatus GetAbsolutePath(const std::string &path, const IOOptions &, std::string *result, IODebugContext *) override
    {
        *result = !path.empty() && path[0] == '/' ? path : "/" + path;
        return IOStatus::OK();
    }

    IOStatus GetFreeSpace(const std::string &, const IOOptions &, uint64_t *bytes, IODebugContext *) override
    {
        quire_space space;
        const int found = quire_volume_space(volume_->get(), &space);
        if (found == 0)
            *bytes = space.available * space.block_size;
        return ToStatus(found);
    }

private:
    static int Direct(bool wanted) { return wanted ? O_DIRECT : 0; }

    static IOStatus NotFoundOr(int result)
    {
        if (result == -ENOENT || result == -ENOTDIR)
            return IOStatus::NotFound(quire_error_message());
        return ToStatus(result);
    }

    IOStatus Stat(const std::string &path, quire_attributes *found) const
    {
        return ToStatus(quire_stat(volume_->get(), path.c_str(), found));
    }

    IOStatus OpenWritable(const std::string &path, int flags, const FileOptions &options,
                          std::unique_ptr<FSWritableFile> *result)
    {
        quire_file *file;
        IOStatus status = volume_->Open(path, O_WRONLY | flags | Direct(options.use_direct_writes), &file);
        if (!status.ok())
            return status;
        quire_attributes found;
        const int known = quire_fstat(file, &found);
        if (known < 0) {
            status = Failed(known);
            quire_close(file);
            return status;
        }
        result->reset(new WritableFile(volume_, file, found.bytes, options));
        return status;
    }

    VolumeRef volume_;
};

// What an address asks for.
struct Address {
    std::string image;
    quire_volume_options options{};
    // Of a volume that is made if there is none.
    uint64_t size = 0;
};

// A number of bytes: 4096, 64k, 512m, 20g.
bool ParseBytes(const std::string &text, uint64_t *bytes)
{
    if (text.empty() || text[0] < '0' || text[0] > '9')
        return false;
    char *end;
    errno = 0;
    *bytes = std::strtoull(text.c_str(), &end, 10);
    int shift = 0;
    switch (*end) {
    case 'k': case 'K': shift = 10; break;
    case 'm': case 'M': shift = 20; break;
    case 'g': case 'G': shift = 30; break;
    case 't': case 'T': shift = 40; break;
    }
    end += shift > 0;
    if (errno != 0 || *end != '\0' || *bytes > UINT64_MAX >> shift)
        return false;
    *bytes <<= shift;
    return true;
}

Status ParseAddress(const std::string &uri, Address *address)
{
    if (uri.compare(0, strlen(kScheme), kScheme) != 0)
        return Status::InvalidArgument(uri, "an address begins with quire://");
    const std::string rest = uri.substr(strlen(kScheme));
    const size_t mark = rest.find('?');
    address->image = rest.substr(0, mark);
    if (address->image.empty())
        return Status::InvalidArgument(uri, "an address names an image file or a block device: quire://IMAGE");
    address->options.size = sizeof address->options;
    address->options.access_times = QUIRE_ACCESS_TIMES_NEVER;
    size_t at = mark == std::string::npos ? rest.size() : mark + 1;
    while (at < rest.size()) {
        const size_t end = std::min(rest.find('&', at), rest.size());
        const std::string option = rest.substr(at, end - at);
        const size_t colon = std::min(option.find(':'), option.size());
        const std::string name = option.substr(0, colon);
        const std::string value = option.substr(std::min(colon + 1, option.size()));
        bool good = true;
        if (name == "cache")
            good = ParseBytes(value, &address->options.cache_bytes);
        else if (name == "node_cache")
            good = ParseBytes(value, &address->options.node_cache_bytes);
        else if (name == "size")
            good = ParseBytes(value, &address->size);
        else if (name == "ro" && value.empty())
            address->options.flags |= QUIRE_READ_ONLY;
        else if (name == "discard" && value.empty())
            address->options.flags |= QUIRE_DISCARD;
        else
            return Status::InvalidArgument(
                uri, "the options of an address are cache:BYTES, node_cache:BYTES, size:BYTES, discard and ro");
        if (!good)
            return Status::InvalidArgument(uri, name + ":" + value + " is no number of bytes, like 512m");
        at = end + 1;
    }
    return Status::OK();
}

// The volumes that this process has open, and those that it is closing: nobody has these any more. Never freed: files of
// other static objects may outlive it otherwise.
struct Volumes {
    std::mutex mutex;
    std::condition_variable closed;
    std::map<std::string, std::weak_ptr<Volume>> open;
};

Volumes &AllVolumes()
{
    static Volumes *volumes = new Volumes;
    return *volumes;
}

Volume::~Volume()
{
    if (quire_volume_close(handle_) < 0)
        std::fprintf(stderr, "quire: closing %s: %s\n", image_.c_str(), quire_error_message());
    Volumes &volumes = AllVolumes();
    std::lock_guard<std::mutex> guard(volumes.mutex);
    volumes.open.erase(image_);
    volumes.closed.notify_all();
}

Status OpenVolume(const Address &address, VolumeRef *result)
{
    Volumes &volumes = AllVolumes();
    std::unique_lock<std::mutex> guard(volumes.mutex);
    struct stat found;
    if (address.size > 0 && stat(address.image.c_str(), &found) != 0 && errno == ENOENT) {
        quire_format_options format{};
        format.size = sizeof format;
        format.bytes = address.size;
        const int made = quire_format(address.image.c_str(), &format);
        if (made < 0)
            return Failed(made);
    }
    std::string name = address.image;
    if (char *real = realpath(name.c_str(), nullptr)) {
        name = real;
        free(real);
    }
    for (auto found = volumes.open.find(name); found != volumes.open.end(); found = volumes.open.find(name)) {
        if ((*result = found->second.lock()))
            return Status::OK();
        // Until it is closed it would be busy.
        volumes.closed.wait(guard);
    }
    quire_volume *handle;
    const int opened = quire_volume_open(name.c_str(), &address.options, &handle);
    if (opened < 0)
        return Failed(opened);
    *result = std::make_shared<Volume>(handle, name);
    volumes.open[name] = *result;
    return Status::OK();
}

} // namespace

Status NewQuireFileSystem(const std::string &uri, std::shared_ptr<FileSystem> *result)
{
    Address address;
    Status status = ParseAddress(uri, &address);
    VolumeRef volume;
    if (status.ok())
        status = OpenVolume(address, &volume);
    if (status.ok())
        *result = std::make_shared<QuireFileSystem>(volume);
    return status;
}

} // namespace ROCKSDB_NAMESPACE

extern "C" int register_QuireFileSystem(ROCKSDB_NAMESPACE::ObjectLibrary &library, const std::string &)
{
    using namespace ROCKSDB_NAMESPACE;
    library.AddFactory<FileSystem>(
        ObjectLibrary::PatternEntry("quire", false).AddSeparator("://", false),
        [](const std::string &uri, std::unique_ptr<FileSystem> *guard, std::string *message) -> FileSystem * {
            Address address;
            Status status = ParseAddress(uri, &address);
            VolumeRef volume;
            if (status.ok())
                status = OpenVolume(address, &volume);
            if (!status.ok()) {
                *message = status.ToString();
                return nullptr;
            }
            guard->reset(new QuireFileSystem(volume));
            return guard->get();
        });
    return 1;
}
