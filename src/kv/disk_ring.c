/* disk_ring.c: transfers of a disk through io_uring. A thread that submits enters the ring under a
 * lock; one thread of the disk takes completed transfers out. */
#include "kv/disk.h"

#include "base/mem.h"
#include "base/thread.h"

#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <pthread.h>

struct ring {
    struct disk *disk;
    struct io_uring uring;
    pthread_mutex_t lock; /* protects submissions */
    uint32_t n_entered; /* atomic: makes what was written before a submission visible to the thread
                           that reaps it; the kernel's own ordering is unknown to the language */
    pthread_t reaper;
};

/* A transfer that could not be submitted is executed by plain calls when it comes out here. */
static void *reap(void *arg)
{
    struct ring *r = arg;
    for (;;) {
        struct io_uring_cqe *cqe = NULL;
        const int error = io_uring_wait_cqe(&r->uring, &cqe);
        if (error == -EINTR) continue;
        assert(error == 0);
        struct disk_io *io = io_uring_cqe_get_data(cqe);
        const int n = cqe->res;
        io_uring_cqe_seen(&r->uring, cqe);
        (void)__atomic_load_n(&r->n_entered, __ATOMIC_ACQUIRE);
        if (!io) return NULL; /* the entry that `stop` submitted */
        if ((void *)io == r) {
            disk_call_woken(r->disk);
            continue;
        }
        const bool again = n == -EINTR || n == -EAGAIN;
        disk_finish(r->disk, io, again ? 0 : n);
    }
}

/* There is always a free entry: there are as many as transfers, plus one for a wake and one for the
 * end. */
static struct io_uring_sqe *next_entry(struct ring *r, void *data)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&r->uring);
    assert(sqe);
    io_uring_prep_nop(sqe);
    io_uring_sqe_set_data(sqe, data);
    return sqe;
}

static void enter(struct ring *r)
{
    (void)__atomic_add_fetch(&r->n_entered, 1, __ATOMIC_RELEASE);
    /* Entries for which the kernel has no room are submitted by the next call. */
    for (int n = 0; n <= 0;) n = io_uring_submit(&r->uring);
}

static void enter_nop(struct ring *r, void *data)
{
    pthread_mutex_lock(&r->lock);
    (void)next_entry(r, data);
    enter(r);
    pthread_mutex_unlock(&r->lock);
}

static void add(struct ring *r, struct disk *d, struct disk_io *io)
{
    struct io_uring_sqe *sqe = next_entry(r, io);
    if (io->writes)
        io_uring_prep_write(sqe, disk_fd(d, io), io->buffer, (unsigned)disk_bytes(d, io),
                            (uint64_t)disk_at(d, io));
    else
        io_uring_prep_read(sqe, disk_fd(d, io), io->buffer, (unsigned)disk_bytes(d, io),
                           (uint64_t)disk_at(d, io));
    io_uring_sqe_set_data(sqe, io);
}

/* Submits all entries with one call. */
static void submit(struct disk *d, struct disk_io *io)
{
    struct ring *r = *disk_backend_state(d);
    pthread_mutex_lock(&r->lock);
    for (struct disk_io *next; io; io = next) {
        next = io->next;
        add(r, d, io);
    }
    enter(r);
    pthread_mutex_unlock(&r->lock);
}

static void wake(struct disk *d)
{
    struct ring *r = *disk_backend_state(d);
    enter_nop(r, r);
}

static void stop(struct disk *d)
{
    struct ring *r = *disk_backend_state(d);
    enter_nop(r, NULL);
    pthread_join(r->reaper, NULL);
    io_uring_queue_exit(&r->uring);
    pthread_mutex_destroy(&r->lock);
    mem_free(r);
}

static bool start(struct disk *d)
{
    struct ring *r = mem_calloc(1, sizeof *r);
    if (!r) return false;
    r->disk = d;
    if (io_uring_queue_init(2 * DISK_DEPTH, &r->uring, 0) < 0) {
        mem_free(r);
        return false;
    }
    pthread_mutex_init(&r->lock, NULL);
    *disk_backend_state(d) = r;
    if (thread_start(&r->reaper, reap, r)) return true;
    io_uring_queue_exit(&r->uring);
    pthread_mutex_destroy(&r->lock);
    mem_free(r);
    return false;
}

const struct disk_backend disk_ring = {"io_uring", start, submit, wake, stop};
