/* disk.h: a file of slots below the memory that holds pages. Its space is reserved before anything
 * is written; transfers are asynchronous and bypass the system's page cache where the file system
 * allows it.
 *
 * The file has no name while it is used: it is unlinked as soon as it is open, so a killed process
 * leaves nothing behind and the next one finds a clean store.
 *
 * Threads: every function may be called from any thread. `done` and `woken` are called from threads
 * of the disk, `done` one at a time for each transfer, and may submit and return transfers. A
 * failure of a transfer is its result and affects nothing else. */
#ifndef SAC_KV_DISK_H
#define SAC_KV_DISK_H

#include "kv/source.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#define DISK_RUN   16u /* maximum adjacent slots of one transfer */
#define DISK_DEPTH 32u /* maximum transfers in flight */

struct disk;

/* One transfer. Whoever takes it fills the first group and the tags. */
struct disk_io {
    bool writes;
    bool is_early;         /* a read that nobody waits for */
    uint32_t slot, n_slot; /* neighbours */
    struct source *source; /* slots of this file, for reading only; NULL: the disk's own file */
    struct {
        uint32_t page, frame; /* PAGE_NONE for slots that a read only bridges */
        uint64_t sum;         /* checksum of the bytes read */
        uint8_t *into;        /* destination of disk_read_now; NULL: the buffer */
        bool is_good;         /* all bytes were read, and match the checksum */
    } tag[DISK_RUN];
    uint8_t *buffer;      /* slot i is at i * disk_stride; bytes to write, or read */
    ssize_t result;       /* in `done`: bytes moved, or -errno */
    struct disk_io *next; /* submitted together; otherwise used by the disk */
};

/* The system calls, so that tests can break them. */
struct disk_calls {
    ssize_t (*read)(int fd, void *to, size_t n, off_t at);
    ssize_t (*write)(int fd, const void *from, size_t n, off_t at);
    /* Reads like readv, into n places, only what the system's page cache has; fewer bytes or -1
     * otherwise. NULL: not used. */
    ssize_t (*read_now)(int fd, const struct iovec *to, int n, off_t at);
};

struct disk_params {
    const char *path; /* must not exist, or be empty */
    uint64_t limit;   /* maximum bytes of the file */
    uint32_t n_slot;
    size_t slot_bytes;              /* bytes used of a slot, which is aligned for direct I/O */
    const struct disk_calls *calls; /* NULL: the system calls */
    void (*done)(void *user, struct disk_io *io);
    void (*woken)(void *user); /* called by a disk thread some time after disk_wake */
    void *user;
};

/* SAC_ERR_IO: the space is not available; SAC_ERR_ARG: the limit is too small. */
sac_status disk_create(struct disk **out, const struct disk_params *params, sac_error *err);
/* Waits for transfers in flight. */
void disk_destroy(struct disk *d);

const char *disk_path(const struct disk *d);
size_t disk_slot_bytes(const struct disk *d);
/* "io_uring" or "threads". */
const char *disk_backend_name(const struct disk *d);

/* Distance between slots of a transfer, in the file and in the buffer. */
size_t disk_stride(const struct disk *d, const struct disk_io *io);
/* Returns a transfer to fill, or NULL: all are in use. Pass it to disk_submit; the caller of `done`
 * owns it again and passes it to disk_give. */
struct disk_io *disk_take(struct disk *d);
void disk_give(struct disk *d, struct disk_io *io);
/* Submits a list linked by `next`. */
void disk_submit(struct disk *d, struct disk_io *io);
/* Reads everything of one transfer from a source at once, in the caller's thread, if no disk access
 * is needed: it is then the caller's, as in `done`. False: nothing has happened. */
bool disk_read_now(const struct disk *d, struct disk_io *io);
/* Causes a call of `woken` on a disk thread, for work that the caller should not do itself. */
void disk_wake(struct disk *d);

/* ---- For the backends: disk_ring.c, disk_threads.c ---- */

struct disk_backend {
    const char *name;
    /* False: the system does not have it. */
    bool (*start)(struct disk *d);
    void (*submit)(struct disk *d, struct disk_io *io); /* a list */
    void (*wake)(struct disk *d);
    void (*stop)(struct disk *d); /* nothing is in flight */
};
extern const struct disk_backend disk_ring, disk_threads;

int disk_fd(const struct disk *d, const struct disk_io *io);
void **disk_backend_state(struct disk *d); /* the backend's own */
off_t disk_at(const struct disk *d, const struct disk_io *io);
size_t disk_bytes(const struct disk *d, const struct disk_io *io);
void disk_call_woken(struct disk *d);
/* Completes a transfer after its first `n` bytes with plain calls, and delivers it. n < 0: it has
 * failed. */
void disk_finish(struct disk *d, struct disk_io *io, ssize_t n);

#endif
