/* disk.h: a file of slots below the memory that holds pages: its room is reserved before anything
 * is written, transfers are asynchronous and go past the system's cache where the file allows it.
 *
 * The file has no name while it is used: it is removed from its folder as soon as it is open, so a
 * process that is killed leaves nothing behind and whoever starts next finds a clean store.
 *
 * Threads: every function from any thread. `done` and `woken` come from threads of the disk, `done`
 * one at a time for each transfer, and may submit and give back transfers. Whatever goes wrong with
 * a transfer is its result and nobody else's. */
#ifndef SAC_KV_DISK_H
#define SAC_KV_DISK_H

#include "kv/source.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#define DISK_RUN   16u /* neighbouring slots of one transfer, at most */
#define DISK_DEPTH 32u /* transfers under way, at most */

struct disk;

/* One transfer. Its taker fills the first group and the tags. */
struct disk_io {
    bool writes;
    bool is_early;         /* a read that nobody waits for */
    uint32_t slot, n_slot; /* neighbours */
    struct source *source; /* they are places in this file, and read; NULL: in the disk's own */
    struct {
        uint32_t page, frame; /* a slot that is read over has none of either */
        uint64_t sum;         /* of what is read */
        uint8_t *into;        /* where disk_read_now puts it; NULL: into the buffer */
        bool is_good;         /* it was read, and is what the sum says */
    } tag[DISK_RUN];
    uint8_t *buffer;      /* slot i at i * disk_stride; what is written, or what was read */
    ssize_t result;       /* in `done`: bytes moved, or -errno */
    struct disk_io *next; /* submitted with it; else the disk's own */
};

/* The system calls, so that tests can break them. */
struct disk_calls {
    ssize_t (*read)(int fd, void *to, size_t n, off_t at);
    ssize_t (*write)(int fd, const void *from, size_t n, off_t at);
    /* As read, into n places one after the other, of what the system's cache has: fewer bytes, or
     * -1, else. NULL: nothing is asked. */
    ssize_t (*read_now)(int fd, const struct iovec *to, int n, off_t at);
};

struct disk_params {
    const char *path; /* a file that is not there yet, or is empty */
    uint64_t limit;   /* bytes that it may take */
    uint32_t n_slot;
    size_t slot_bytes;              /* that are used; a slot begins where direct I/O can begin */
    const struct disk_calls *calls; /* NULL: the system's */
    void (*done)(void *user, struct disk_io *io);
    void (*woken)(void *user); /* a thread of the disk calls it some time after disk_wake */
    void *user;
};

/* SAC_ERR_IO: the room could not be had; SAC_ERR_ARG: the limit is too small. */
sac_status disk_create(struct disk **out, const struct disk_params *params, sac_error *err);
/* Waits for what is under way. */
void disk_destroy(struct disk *d);

const char *disk_path(const struct disk *d);
size_t disk_slot_bytes(const struct disk *d);
/* "io_uring" or "threads". */
const char *disk_backend_name(const struct disk *d);

/* From one slot of a transfer to the next, in the file and in the buffer. */
size_t disk_stride(const struct disk *d, const struct disk_io *io);
/* A transfer to fill, or NULL: all are under way. It goes to disk_submit, and from `done`, whose
 * caller it belongs to, to disk_give. */
struct disk_io *disk_take(struct disk *d);
void disk_give(struct disk *d, struct disk_io *io);
/* Those behind it by `next`, too. */
void disk_submit(struct disk *d, struct disk_io *io);
/* Reads all of one transfer from a source at once, in the caller's thread, if no disk need be
 * waited for: it is the caller's then, as in `done`. False: nothing has happened. */
bool disk_read_now(const struct disk *d, struct disk_io *io);
/* Has `woken` called: what the caller has no time for is done there. */
void disk_wake(struct disk *d);

/* ---- For the backends: disk_ring.c, disk_threads.c ---- */

struct disk_backend {
    const char *name;
    /* False: the system has none of it. */
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
/* Moves what the first `n` bytes leave over, by plain calls, and hands the transfer out. n < 0: it
 * has failed. */
void disk_finish(struct disk *d, struct disk_io *io, ssize_t n);

#endif
