// An engine of fio for files in a Quire volume: reads and writes of the library, without a mount.
//
//   fio --thread --ioengine=external:libquire-fio.so --image=data.img --name=job --rw=randwrite --size=1g ...
//
// A process has a volume open once, so all jobs are threads of one process and share it: the first opens it, the last
// closes it. With iodepth 1 a request is a plain call; with more it goes through a queue of the job. File names are paths
// in the volume. A file that is to be read is written first, before the clock starts.
//
// Neighbours: fio's own headers, of the sources of the very version that loads this (it checks); docs/fio.md.
#include "config-host.h"
#include "fio.h"
#include "optgroup.h"

#include <sys/stat.h>

#include <quire.h>

struct options {
    void *pad; // fio takes offset 0 for no option
    char *image;
    unsigned long long image_size;
    unsigned long long cache;
    unsigned int workers;
};

static struct fio_option options[] = {
    {
        .name = "image",
        .lname = "image",
        .type = FIO_OPT_STR_STORE,
        .off1 = offsetof(struct options, image),
        .help = "Image file or block device with the volume",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = "image_size",
        .lname = "image_size",
        .type = FIO_OPT_STR_VAL,
        .off1 = offsetof(struct options, image_size),
        .help = "Make the volume, of this size, if there is no such file",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = "cache",
        .lname = "cache",
        .type = FIO_OPT_STR_VAL,
        .off1 = offsetof(struct options, cache),
        .help = "Limit of the volume's page cache (a quarter of memory, or of the control group's limit, whichever is less)",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = "workers",
        .lname = "workers",
        .type = FIO_OPT_INT,
        .off1 = offsetof(struct options, workers),
        .def = "4",
        .help = "Threads of a job that do buffered requests, with an iodepth above 1",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {.name = NULL},
};

// What the jobs of the process share.
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static quire_volume *volume;
static unsigned int users;

// What a job has.
struct job {
    quire_queue *queue; // NULL with iodepth 1
    struct quire_completion ended[]; // iodepth many
};

static int failed(struct thread_data *td, int64_t result, const char *doing)
{
    log_err("quire: %s: %s\n", doing, quire_error_message());
    td_verror(td, (int)-result, doing);
    return 1;
}

static int open_volume(struct thread_data *td)
{
    struct options *o = td->eo;
    struct stat found;
    int result = 0;

    if (!td->o.use_thread) {
        log_err("quire: one process has a volume open: give --thread\n");
        return 1;
    }
    if (!o->image) {
        log_err("quire: give --image=FILE, the volume\n");
        return 1;
    }
    pthread_mutex_lock(&mutex);
    if (!volume) {
        if (o->image_size && stat(o->image, &found) && errno == ENOENT) {
            struct quire_format_options format = {.size = sizeof format, .bytes = o->image_size};
            result = quire_format(o->image, &format);
        }
        if (result == 0) {
            struct quire_volume_options how = {.size = sizeof how, .cache_bytes = o->cache};
            result = quire_volume_open(o->image, &how, &volume);
        }
    }
    if (result == 0)
        users++;
    pthread_mutex_unlock(&mutex);
    return result < 0 ? failed(td, result, "opening the volume") : 0;
}

static void close_volume(void)
{
    pthread_mutex_lock(&mutex);
    if (--users == 0) {
        if (quire_volume_close(volume) < 0)
            log_err("quire: closing the volume: %s\n", quire_error_message());
        volume = NULL;
    }
    pthread_mutex_unlock(&mutex);
}

static int flags(const struct thread_data *td)
{
    int flags = O_RDWR | O_CREAT;
    if (td->o.odirect)
        flags |= O_DIRECT;
    if (td->o.sync_io & O_SYNC)
        flags |= td->o.sync_io & O_SYNC;
    return flags;
}

// Writes what a file lacks of its size.
static int lay_out(struct thread_data *td, struct fio_file *f)
{
    enum { PIECE = 1 << 20 };
    struct quire_attributes found;
    quire_file *file;
    char *piece;
    int64_t result = quire_open(volume, f->file_name, O_RDWR | O_CREAT, 0644, &file);

    if (result < 0)
        return failed(td, result, "opening a file");
    piece = malloc(PIECE);
    if (!piece) {
        quire_close(file);
        td_verror(td, ENOMEM, "laying out a file");
        return 1;
    }
    result = quire_fstat(file, &found);
    for (uint64_t at = found.bytes; result >= 0 && at < f->real_file_size; at += (uint64_t)result) {
        uint64_t left = f->real_file_size - at;
        for (int i = 0; i < PIECE; i += 8)
            *(uint64_t *)(piece + i) = (at + (uint64_t)i) * 0x9e3779b97f4a7c15ull;
        result = quire_pwrite(file, piece, left < PIECE ? (size_t)left : PIECE, at);
    }
    if (result >= 0)
        result = quire_fsync(file);
    free(piece);
    quire_close(file);
    return result < 0 ? failed(td, result, "laying out a file") : 0;
}

static int engine_setup(struct thread_data *td)
{
    struct fio_file *f;
    unsigned int i;
    int bad = open_volume(td);

    if (bad)
        return bad;
    for_each_file(td, f, i) {
        if (!td->o.size && !td->o.file_size_low) {
            log_err("quire: give --size\n");
            bad = 1;
            break;
        }
        f->filetype = FIO_TYPE_FILE;
        f->real_file_size = td->o.file_size_low ? td->o.file_size_low : td->o.size / td->o.nr_files;
        if ((td_read(td) || td->o.overwrite) && (bad = lay_out(td, f)))
            break;
    }
    // The volume stays open for the job, which closes it.
    if (bad)
        close_volume();
    return bad;
}

static int engine_init(struct thread_data *td)
{
    struct options *o = td->eo;
    struct job *job = calloc(1, sizeof *job + td->o.iodepth * sizeof *job->ended);
    int result = 0;

    if (!job)
        td_verror(td, ENOMEM, "making a queue");
    else if (td->o.iodepth > 1 && (result = quire_queue_new(o->workers, &job->queue)) < 0)
        failed(td, result, "making a queue");
    if (!job || result < 0) {
        free(job);
        close_volume();
        return 1;
    }
    td->io_ops_data = job;
    return 0;
}

static void engine_cleanup(struct thread_data *td)
{
    struct job *job = td->io_ops_data;

    if (job) {
        quire_queue_free(job->queue);
        free(job);
        td->io_ops_data = NULL;
        close_volume();
    }
}

static int engine_open(struct thread_data *td, struct fio_file *f)
{
    quire_file *file;
    int result = quire_open(volume, f->file_name, flags(td), 0644, &file);

    if (result < 0)
        return failed(td, result, "opening a file");
    FILE_SET_ENG_DATA(f, file);
    return 0;
}

static int engine_close(struct thread_data *td, struct fio_file *f)
{
    (void)td;
    quire_close(FILE_ENG_DATA(f));
    FILE_SET_ENG_DATA(f, NULL);
    return 0;
}

static void done(struct io_u *io_u, int64_t result)
{
    io_u->error = 0;
    io_u->resid = 0;
    if (result < 0)
        io_u->error = (int)-result;
    else if (io_u->ddir == DDIR_READ || io_u->ddir == DDIR_WRITE)
        io_u->resid = io_u->xfer_buflen - (unsigned long long)result;
}

static enum fio_q_status at_once(struct thread_data *td, struct io_u *io_u, quire_file *file)
{
    int64_t result;

    switch (io_u->ddir) {
    case DDIR_READ:
        result = quire_pread(file, io_u->xfer_buf, io_u->xfer_buflen, io_u->offset);
        break;
    case DDIR_WRITE:
        result = quire_pwrite(file, io_u->xfer_buf, io_u->xfer_buflen, io_u->offset);
        break;
    case DDIR_SYNC:
        result = quire_fsync(file);
        break;
    case DDIR_DATASYNC:
        result = quire_fdatasync(file);
        break;
    case DDIR_TRIM:
        result = quire_fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, io_u->offset, io_u->xfer_buflen);
        break;
    default:
        result = -EINVAL;
    }
    done(io_u, result);
    if (io_u->error)
        td_verror(td, io_u->error, "quire");
    return FIO_Q_COMPLETED;
}

static enum fio_q_status engine_queue(struct thread_data *td, struct io_u *io_u)
{
    static const struct quire_sync_options data = {.size = sizeof data, .flags = QUIRE_SYNC_DATA};
    struct job *job = td->io_ops_data;
    quire_file *file = FILE_ENG_DATA(io_u->file);
    int result;

    fio_ro_check(td, io_u);
    if (!job->queue)
        return at_once(td, io_u, file);
    switch (io_u->ddir) {
    case DDIR_READ:
        result = quire_submit_pread(job->queue, file, io_u->xfer_buf, io_u->xfer_buflen, io_u->offset, io_u);
        break;
    case DDIR_WRITE:
        result = quire_submit_pwrite(job->queue, file, io_u->xfer_buf, io_u->xfer_buflen, io_u->offset, io_u);
        break;
    case DDIR_SYNC:
        result = quire_submit_fsync(job->queue, file, NULL, io_u);
        break;
    case DDIR_DATASYNC:
        result = quire_submit_fsync(job->queue, file, &data, io_u);
        break;
    default:
        return at_once(td, io_u, file);
    }
    if (result < 0) {
        done(io_u, result);
        td_verror(td, io_u->error, "quire");
        return FIO_Q_COMPLETED;
    }
    return FIO_Q_QUEUED;
}

static int engine_getevents(struct thread_data *td, unsigned int min, unsigned int max, const struct timespec *t)
{
    struct job *job = td->io_ops_data;
    int wait = t ? (int)(t->tv_sec * 1000 + t->tv_nsec / 1000000) : -1;
    int count;

    if (max > td->o.iodepth)
        max = td->o.iodepth;
    count = quire_queue_wait(job->queue, job->ended, max, min, wait);
    for (int i = 0; i < count; i++)
        done(job->ended[i].user_data, job->ended[i].result);
    return count;
}

static struct io_u *engine_event(struct thread_data *td, int event)
{
    struct job *job = td->io_ops_data;

    return job->ended[event].user_data;
}

static int engine_unlink(struct thread_data *td, struct fio_file *f)
{
    int result;

    (void)td;
    result = quire_unlink(volume, f->file_name);
    return result == -ENOENT ? 0 : -result;
}

static int engine_get_size(struct thread_data *td, struct fio_file *f)
{
    (void)td;
    fio_file_set_size_known(f);
    return 0;
}

struct ioengine_ops ioengine = {
    .name = "quire",
    .version = FIO_IOOPS_VERSION,
    .flags = FIO_DISKLESSIO | FIO_NODISKUTIL,
    .setup = engine_setup,
    .init = engine_init,
    .cleanup = engine_cleanup,
    .open_file = engine_open,
    .close_file = engine_close,
    .unlink_file = engine_unlink,
    .get_file_size = engine_get_size,
    .queue = engine_queue,
    .getevents = engine_getevents,
    .event = engine_event,
    .options = options,
    .option_struct_size = sizeof(struct options),
};
