/* disk_threads.c: transfers of a disk by plain system calls, each in a thread, for systems without
 * io_uring and for tests that replace them. Reads go before writes, because someone waits for
 * them. */
#include "kv/disk.h"

#include "base/mem.h"
#include "base/thread.h"

#include <assert.h>
#include <pthread.h>

#define N_THREAD DISK_DEPTH /* disks reach more reads per second with a deeper queue */

struct queue {
    struct disk_io *first, *last;
};

struct pool_of_threads {
    struct disk *disk;
    pthread_t thread[N_THREAD];
    uint32_t n_thread;
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct queue queue[2]; /* reads, writes */
    bool wakes;            /* `woken` is to be called */
    bool ends;
};

static struct disk_io *pop(struct queue *q)
{
    struct disk_io *io = q->first;
    if (io) q->first = io->next;
    return io;
}

static void push(struct queue *q, struct disk_io *io)
{
    io->next = NULL;
    if (q->first)
        q->last->next = io;
    else
        q->first = io;
    q->last = io;
}

static void *work(void *arg)
{
    struct pool_of_threads *p = arg;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        struct disk_io *io = pop(&p->queue[0]);
        if (!io && p->wakes) {
            p->wakes = false;
            pthread_mutex_unlock(&p->lock);
            disk_call_woken(p->disk);
            pthread_mutex_lock(&p->lock);
            continue;
        }
        if (!io) io = pop(&p->queue[1]);
        if (!io && p->ends) break;
        if (!io) {
            pthread_cond_wait(&p->more, &p->lock);
            continue;
        }
        pthread_mutex_unlock(&p->lock);
        disk_finish(p->disk, io, 0);
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void stop(struct disk *d)
{
    struct pool_of_threads *p = *disk_backend_state(d);
    pthread_mutex_lock(&p->lock);
    p->ends = true;
    pthread_cond_broadcast(&p->more);
    pthread_mutex_unlock(&p->lock);
    for (uint32_t i = 0; i < p->n_thread; i++) pthread_join(p->thread[i], NULL);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->more);
    mem_free(p);
}

static bool start(struct disk *d)
{
    struct pool_of_threads *p = mem_calloc(1, sizeof *p);
    if (!p) return false;
    p->disk = d;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->more, NULL);
    *disk_backend_state(d) = p;
    while (p->n_thread < N_THREAD && thread_start(&p->thread[p->n_thread], work, p)) p->n_thread++;
    if (p->n_thread > 0) return true;
    stop(d);
    return false;
}

static void submit(struct disk *d, struct disk_io *io)
{
    struct pool_of_threads *p = *disk_backend_state(d);
    pthread_mutex_lock(&p->lock);
    assert(!p->ends);
    for (struct disk_io *next; io; io = next) {
        next = io->next;
        push(&p->queue[io->writes], io);
        pthread_cond_signal(&p->more);
    }
    pthread_mutex_unlock(&p->lock);
}

static void wake(struct disk *d)
{
    struct pool_of_threads *p = *disk_backend_state(d);
    pthread_mutex_lock(&p->lock);
    assert(!p->ends);
    p->wakes = true;
    pthread_cond_signal(&p->more);
    pthread_mutex_unlock(&p->lock);
}

const struct disk_backend disk_threads = {"threads", start, submit, wake, stop};
