// C++ over quire.h: handles that close themselves, errors as exceptions, and threads that append to one log.
//
//   log IMAGE
#include <cstdio>
#include <fcntl.h>
#include <memory>
#include <quire.h>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace {

// The result, or an exception with the library's text.
template <typename T> T check(T result)
{
    if (result < 0)
        throw std::system_error(static_cast<int>(-result), std::generic_category(), quire_error_message());
    return result;
}

struct Close {
    void operator()(quire_file *file) const { quire_close(file); }
    // For the way out after an exception; else the volume is closed by hand, since that can fail.
    void operator()(quire_volume *volume) const { quire_volume_close(volume); }
    void operator()(quire_dir *directory) const { quire_closedir(directory); }
};
using Volume = std::unique_ptr<quire_volume, Close>;
using File = std::unique_ptr<quire_file, Close>;
using Directory = std::unique_ptr<quire_dir, Close>;

Volume open_volume(const char *image)
{
    quire_volume_options options{};
    options.size = sizeof options;
    options.cache_bytes = 32 << 20;
    quire_volume *volume;
    check(quire_volume_open(image, &options, &volume));
    return Volume(volume);
}

File open_file(const Volume &volume, const std::string &path, int flags)
{
    quire_file *file;
    check(quire_open(volume.get(), path.c_str(), flags, 0644, &file));
    return File(file);
}

void run(const char *image)
{
    quire_format_options format{};
    format.size = sizeof format;
    format.flags = QUIRE_FORCE;
    format.bytes = 64 << 20;
    check(quire_format(image, &format));
    Volume volume = open_volume(image);
    check(quire_mkdir(volume.get(), "logs", 0750));
    const File log = open_file(volume, "logs/today", O_WRONLY | O_APPEND | O_CREAT);

    constexpr int threads = 8, records = 100;
    std::vector<std::thread> appenders;
    for (int number = 0; number < threads; number++) {
        appenders.emplace_back([&log, number] {
            for (int record = 0; record < records; record++) {
                const std::string line = "thread " + std::to_string(number) + " record " + std::to_string(record) + "\n";
                check(quire_append(log.get(), line.data(), line.size()));
                if (record % 10 == 9)
                    check(quire_fdatasync(log.get()));
            }
        });
    }
    for (auto &appender : appenders)
        appender.join();

    quire_attributes stat;
    check(quire_stat(volume.get(), "logs/today", &stat));
    std::string text(stat.bytes, '\0');
    check(quire_pread(open_file(volume, "logs/today", O_RDONLY).get(), text.data(), text.size(), 0));
    int lines = 0;
    for (char byte : text)
        lines += byte == '\n';
    if (lines != threads * records)
        throw std::runtime_error("a record is lost or torn");

    quire_dir *listing;
    check(quire_opendir(volume.get(), "logs", &listing));
    const Directory directory(listing);
    quire_dirent entry;
    while (check(quire_readdir(directory.get(), &entry)) > 0)
        std::printf("%s: %d records\n", entry.name, lines);
    check(quire_volume_close(volume.release()));
}

} // namespace

int main(int argc, char **argv)
{
    if (argc != 2) {
        std::fprintf(stderr, "usage: %s IMAGE\n", argv[0]);
        return 2;
    }
    try {
        run(argv[1]);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    return 0;
}
