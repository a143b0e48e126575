/* desk.c: see the header. One queue, first come first served; its length is bounded by the number
 * of connections, each of which has one job at most. */
#include "serve/desk.h"

#include "base/mem.h"
#include "base/thread.h"

#include <pthread.h>

struct desk {
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct desk_job *first, **end; /* lock */
    bool closed;                   /* lock */
    pthread_t *thread;             /* owned, [n_thread] */
    uint32_t n_thread;
};

static struct desk_job *take(struct desk *d)
{
    pthread_mutex_lock(&d->lock);
    while (!d->first && !d->closed) pthread_cond_wait(&d->more, &d->lock);
    struct desk_job *job = d->first;
    if (job) d->first = job->next;
    if (!d->first) d->end = &d->first;
    pthread_mutex_unlock(&d->lock);
    return job;
}

static void *desk_main(void *user)
{
    struct desk *d = user;
    struct desk_job *job;
    while ((job = take(d))) job->work(job->user);
    return NULL;
}

sac_status desk_create(struct desk **out, uint32_t n_thread, sac_error *err)
{
    struct desk *d = mem_calloc(1, sizeof *d);
    pthread_t *thread = mem_calloc(n_thread, sizeof *thread);
    if (!d || !thread) {
        mem_free(d);
        mem_free(thread);
        return error_set(err, SAC_ERR_MEMORY, "out of memory for the server");
    }
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->more, NULL);
    d->end = &d->first;
    d->thread = thread;
    while (d->n_thread < n_thread) {
        if (!thread_start(&thread[d->n_thread], desk_main, d)) {
            desk_destroy(d);
            return error_set(err, SAC_ERR_MEMORY, "the system gives no thread");
        }
        d->n_thread++;
    }
    *out = d;
    return SAC_OK;
}

bool desk_submit(struct desk *d, struct desk_job *job)
{
    pthread_mutex_lock(&d->lock);
    const bool takes = !d->closed;
    if (takes) {
        job->next = NULL;
        job->sleep(job->user);
        *d->end = job;
        d->end = &job->next;
        pthread_cond_signal(&d->more);
    }
    pthread_mutex_unlock(&d->lock);
    return takes;
}

void desk_close(struct desk *d)
{
    if (!d) return;
    pthread_mutex_lock(&d->lock);
    d->closed = true;
    pthread_cond_broadcast(&d->more);
    pthread_mutex_unlock(&d->lock);
    for (uint32_t i = 0; i < d->n_thread; i++) pthread_join(d->thread[i], NULL);
    d->n_thread = 0;
}

void desk_destroy(struct desk *d)
{
    if (!d) return;
    desk_close(d);
    pthread_cond_destroy(&d->more);
    pthread_mutex_destroy(&d->lock);
    mem_free(d->thread);
    mem_free(d);
}
