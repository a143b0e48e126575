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
#define DISK_DEPTH 32u /* transfers under way, at most */

struct disk;

/* One transfer. Its taker fills the first group and the tags. */
struct disk_io {
    bool writes;
    bool is_early;         /* a read that nobody waits for */
    uint32_t slot, n_slot; /* neighbours */
    struct source *source; /* places in this file, for reading only; NULL: in the disk's own */
    struct {
        uint32_t page, frame; /* a slot that is read over has neither */
        uint64_t sum;         /* of what is read */
        uint8_t *into;        /* destination of disk_read_now; NULL: the buffer */
        bool is_good;         /* it was read, and matches the sum */
    } tag[DISK_RUN];
    uint8_t *buffer;      /* slot i at i * disk_stride; what is written, or what was read */
    ssize_t result;       /* in `done`: bytes moved, or -errno */
    struct disk_io *next; /* submitted with it; else the disk's own */
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
    const char *path; /* a file that does not exist yet, or is empty */
    uint64_t limit;   /* bytes that it may take */
    uint32_t n_slot;
    size_t slot_bytes;              /* bytes used; a slot begins where direct I/O can begin */
    const struct disk_calls *calls; /* NULL: the system's */
    void (*done)(void *user, struct disk_io *io);
    void (*woken)(void *user); /* a thread of the disk calls it some time after disk_wake */
    void *user;
};

/* SAC_ERR_IO: the space is not available; SAC_ERR_ARG: the limit is too small. */
sac_status disk_create(struct disk **out, const struct disk_params *params, sac_error *err);
/* Waits for what is under way. */
void disk_destroy(struct disk *d);

const char *disk_path(const struct disk *d);
size_t disk_slot_bytes(const struct disk *d);
/* "io_uring" or "threads". */
const char *disk_backend_name(const struct disk *d);

/* Distance between slots of a transfer, in the file and in the buffer. */
size_t disk_stride(const struct disk *d, const struct disk_io *io);
/* A transfer to fill, or NULL: all are in use. It goes to disk_submit, and from `done`, whose
 * caller owns it, to disk_give. */
struct disk_io *disk_take(struct disk *d);
void disk_give(struct disk *d, struct disk_io *io);
/* Those behind it by `next`, too. */
void disk_submit(struct disk *d, struct disk_io *io);
/* Reads everything of one transfer from a source at once, in the caller's thread, if no disk access
 * is needed: it is then the caller's, as in `done`. False: nothing has happened. */
bool disk_read_now(const struct disk *d, struct disk_io *io);
/* Causes a call of `woken`, for work that the caller has no time for. */
void disk_wake(struct disk *d);

/* ---- For the backends: disk_ring.c, disk_threads.c ---- */

struct disk_backend {
    const char *name;
    /* False: the system does not have it. */
    bool (*start)(struct disk *d);
    void (*submit)(struct disk *d, struct disk_io *io); /* and those behind it */
    void (*wake)(struct disk *d);
    void (*stop)(struct disk *d); /* nothing is under way */
};
extern const struct disk_backend disk_ring, disk_threads;

int disk_fd(const struct disk *d, const struct disk_io *io);
void **disk_backend_state(struct disk *d); /* the backend's own */
off_t disk_at(const struct disk *d, const struct disk_io *io);
size_t disk_bytes(const struct disk *d, const struct disk_io *io);
void disk_call_woken(struct disk *d);
/* Moves what remains after the first `n` bytes, by plain calls, and delivers the transfer. n < 0:
 * it has failed. */
void disk_finish(struct disk *d, struct disk_io *io, ssize_t n);

#endif
