/* disk.c: the file, its space and its transfers. Two backends execute transfers: io_uring where the
 * system has it, otherwise a few threads. SAC_IO=threads selects the latter.
 *
 * Invariants:
 *  1. A transfer is free, owned by whoever has taken it, or in flight. n_under_way counts the
 *     transfers in flight, and a call of `woken` that is scheduled or has not returned.
 *  2. The file is unlinked before the first byte is reserved in it. */
#include "kv/disk.h"

#include "base/mem.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ALIGN_DEFAULT 4096u /* alignment of direct I/O if the system does not report it */

struct disk {
    struct disk_params params;
    char path[4096];
    int fd;
    size_t slot_bytes;
    const struct disk_backend *backend;
    void *state; /* the backend's */
    pthread_mutex_t lock;
    pthread_cond_t idle;
    uint32_t n_under_way; /* transfers in flight, and a pending call of `woken` */
    bool wakes;           /* this call has not begun */
    struct disk_io *free;
    struct disk_io io[DISK_DEPTH];
    uint8_t *buffers; /* owned, [DISK_DEPTH][DISK_RUN][slot_bytes] */
    size_t buffer_bytes;
};

static ssize_t plain_read(int fd, void *to, size_t n, off_t at)
{
    return pread(fd, to, n, at);
}

static ssize_t plain_write(int fd, const void *from, size_t n, off_t at)
{
    return pwrite(fd, from, n, at);
}

static ssize_t plain_read_now(int fd, const struct iovec *to, int n, off_t at)
{
    return preadv2(fd, to, n, at, RWF_NOWAIT);
}

static const struct disk_calls plain_calls = {plain_read, plain_write, plain_read_now};

/* ---- The file ---- */

/* The alignment that direct I/O requires of offsets and lengths. */
static size_t alignment(int fd)
{
    struct statx st = {0};
#ifdef STATX_DIOALIGN
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &st) == 0 && st.stx_dio_offset_align >= 512 &&
        st.stx_dio_offset_align <= ALIGN_DEFAULT)
        return st.stx_dio_offset_align;
#else
    (void)fd;
    (void)st;
#endif
    return ALIGN_DEFAULT;
}

static sac_status failed(const struct disk *d, const char *what, int error, sac_error *err)
{
    return error_set(err, SAC_ERR_IO, "cannot %s %s: %s", what, d->path, strerror(error));
}

/* Opens a new file and unlinks it. */
static sac_status open_file(struct disk *d, sac_error *err)
{
    struct stat st;
    d->fd = open(d->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (d->fd < 0) return failed(d, "create", errno, err);
    if (fstat(d->fd, &st) != 0) return failed(d, "look at", errno, err);
    if (!S_ISREG(st.st_mode) || st.st_size > 0)
        return error_set(err, SAC_ERR_ARG,
                         "%s is there already: name a file that is not, it is scratch memory and "
                         "removed at once",
                         d->path);
    if (unlink(d->path) != 0) return failed(d, "remove", errno, err);
    /* Some file systems have no direct I/O: then the system's page cache is used. */
    const int flags = fcntl(d->fd, F_GETFL);
    if (flags >= 0) (void)!fcntl(d->fd, F_SETFL, flags | O_DIRECT);
    return SAC_OK;
}

static sac_status reserve(struct disk *d, sac_error *err)
{
    const struct disk_params *p = &d->params;
    const size_t align = alignment(d->fd);
    d->slot_bytes = (p->slot_bytes + align - 1) / align * align;
    const uint64_t bytes = (uint64_t)p->n_slot * d->slot_bytes;
    if (bytes > p->limit)
        return error_set(err, SAC_ERR_ARG,
                         "%s may take %llu MiB and all pages need %llu MiB: allow more, or ask for "
                         "less context",
                         d->path, (unsigned long long)(p->limit >> 20),
                         (unsigned long long)((bytes + (1u << 20) - 1) >> 20));
    const int error = posix_fallocate(d->fd, 0, (off_t)bytes);
    if (error == 0) return SAC_OK;
    return error_set(err, SAC_ERR_IO, "cannot reserve %llu MiB in %s: %s",
                     (unsigned long long)(bytes >> 20), d->path, strerror(error));
}

static sac_status make_transfers(struct disk *d, sac_error *err)
{
    d->buffer_bytes = (size_t)DISK_DEPTH * DISK_RUN * d->slot_bytes;
    d->buffers = mem_map(d->buffer_bytes);
    if (!d->buffers) return error_set(err, SAC_ERR_MEMORY, "no memory for transfers of a disk");
    for (size_t i = 0; i < DISK_DEPTH; i++) {
        d->io[i].buffer = d->buffers + i * DISK_RUN * d->slot_bytes;
        d->io[i].next = d->free;
        d->free = &d->io[i];
    }
    return SAC_OK;
}

static sac_status start(struct disk *d, sac_error *err)
{
    const char *wanted = getenv("SAC_IO");
    const bool may_ring = !d->params.calls && (!wanted || strcmp(wanted, "threads") != 0);
    if (!d->params.calls) d->params.calls = &plain_calls;
    if (may_ring && disk_ring.start(d)) {
        d->backend = &disk_ring;
        return SAC_OK;
    }
    if (!disk_threads.start(d))
        return error_set(err, SAC_ERR_MEMORY, "cannot start the threads of %s", d->path);
    d->backend = &disk_threads;
    return SAC_OK;
}

sac_status disk_create(struct disk **out, const struct disk_params *params, sac_error *err)
{
    struct disk *d = mem_calloc(1, sizeof *d);
    if (!d) return error_set(err, SAC_ERR_MEMORY, "out of memory for a disk");
    d->params = *params;
    d->fd = -1;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->idle, NULL);
    sac_status status = SAC_OK;
    if (snprintf(d->path, sizeof d->path, "%s", params->path) >= (int)sizeof d->path)
        status =
            error_set(err, SAC_ERR_ARG, "a path of %zu bytes is too long", strlen(params->path));
    if (status == SAC_OK) status = open_file(d, err);
    if (status == SAC_OK) status = reserve(d, err);
    if (status == SAC_OK) status = make_transfers(d, err);
    if (status == SAC_OK) status = start(d, err);
    if (status != SAC_OK) {
        disk_destroy(d);
        return status;
    }
    *out = d;
    return SAC_OK;
}

void disk_destroy(struct disk *d)
{
    if (!d) return;
    pthread_mutex_lock(&d->lock);
    while (d->n_under_way) pthread_cond_wait(&d->idle, &d->lock);
    pthread_mutex_unlock(&d->lock);
    if (d->backend) d->backend->stop(d);
    if (d->fd >= 0) close(d->fd);
    if (d->buffers) mem_unmap(d->buffers, d->buffer_bytes);
    pthread_mutex_destroy(&d->lock);
    pthread_cond_destroy(&d->idle);
    mem_free(d);
}

/* ---- Transfers ---- */

const char *disk_path(const struct disk *d)
{
    return d->path;
}

size_t disk_slot_bytes(const struct disk *d)
{
    return d->slot_bytes;
}

const char *disk_backend_name(const struct disk *d)
{
    return d->backend->name;
}

struct disk_io *disk_take(struct disk *d)
{
    pthread_mutex_lock(&d->lock);
    struct disk_io *io = d->free;
    if (io) d->free = io->next;
    if (io) io->next = NULL;
    pthread_mutex_unlock(&d->lock);
    return io;
}

void disk_give(struct disk *d, struct disk_io *io)
{
    pthread_mutex_lock(&d->lock);
    io->next = d->free;
    d->free = io;
    pthread_mutex_unlock(&d->lock);
}

void disk_submit(struct disk *d, struct disk_io *io)
{
    uint32_t n = 0;
    for (const struct disk_io *i = io; i; i = i->next, n++) {
        assert(i->n_slot > 0 && i->n_slot <= DISK_RUN);
        assert(i->source ? !i->writes && i->source->stride <= d->slot_bytes
                         : (uint64_t)i->slot + i->n_slot <= d->params.n_slot);
    }
    if (n == 0) return;
    pthread_mutex_lock(&d->lock);
    d->n_under_way += n;
    pthread_mutex_unlock(&d->lock);
    d->backend->submit(d, io);
}

bool disk_read_now(const struct disk *d, struct disk_io *io)
{
    const struct disk_calls *c = d->params.calls;
    const size_t stride = disk_stride(d, io);
    struct iovec to[DISK_RUN];
    assert(io->source && !io->writes);
    if (!c->read_now) return false;
    for (uint32_t i = 0; i < io->n_slot; i++)
        to[i] =
            (struct iovec){.iov_base = io->tag[i].into ? io->tag[i].into : io->buffer + i * stride,
                           .iov_len = stride};
    io->result = c->read_now(disk_fd(d, io), to, (int)io->n_slot, disk_at(d, io));
    return io->result == (ssize_t)disk_bytes(d, io);
}

void disk_wake(struct disk *d)
{
    pthread_mutex_lock(&d->lock);
    const bool is_awake = d->wakes;
    d->wakes = true;
    d->n_under_way += !is_awake;
    pthread_mutex_unlock(&d->lock);
    if (!is_awake) d->backend->wake(d);
}

/* One of the things that disk_destroy waits for has ended. */
static void end_one(struct disk *d)
{
    pthread_mutex_lock(&d->lock);
    if (--d->n_under_way == 0) pthread_cond_broadcast(&d->idle);
    pthread_mutex_unlock(&d->lock);
}

void disk_call_woken(struct disk *d)
{
    pthread_mutex_lock(&d->lock);
    d->wakes = false;
    pthread_mutex_unlock(&d->lock);
    d->params.woken(d->params.user);
    end_one(d);
}

int disk_fd(const struct disk *d, const struct disk_io *io)
{
    return io->source ? io->source->fd : d->fd;
}

size_t disk_stride(const struct disk *d, const struct disk_io *io)
{
    return io->source ? io->source->stride : d->slot_bytes;
}

void **disk_backend_state(struct disk *d)
{
    return &d->state;
}

off_t disk_at(const struct disk *d, const struct disk_io *io)
{
    return (io->source ? io->source->at : 0) + (off_t)((uint64_t)io->slot * disk_stride(d, io));
}

size_t disk_bytes(const struct disk *d, const struct disk_io *io)
{
    return io->n_slot * disk_stride(d, io);
}

void disk_finish(struct disk *d, struct disk_io *io, ssize_t n)
{
    const struct disk_calls *c = d->params.calls;
    const size_t bytes = disk_bytes(d, io);
    while (n >= 0 && (size_t)n < bytes) {
        const off_t at = disk_at(d, io) + n;
        const int fd = disk_fd(d, io);
        const ssize_t more = io->writes ? c->write(fd, io->buffer + n, bytes - (size_t)n, at)
                                        : c->read(fd, io->buffer + n, bytes - (size_t)n, at);
        if (more < 0 && errno == EINTR) continue;
        if (more == 0) break; /* the file has become shorter */
        n = more < 0 ? -errno : n + more;
    }
    io->result = n;
    d->params.done(d->params.user, io);
    end_one(d);
}
