/* thread_pool.c: see the header. One queue, first come first served; its length is bounded by the
 * number of connections, each of which has one job at most. */
#include "serve/thread_pool.h"

#include "base/mem.h"
#include "base/thread.h"

#include <pthread.h>

struct thread_pool {
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct thread_pool_job *first, **end; /* lock */
    bool closed;                          /* lock */
    pthread_t *thread;                    /* owned, [n_thread] */
    uint32_t n_thread;
};

static struct thread_pool_job *take(struct thread_pool *p)
{
    pthread_mutex_lock(&p->lock);
    while (!p->first && !p->closed) pthread_cond_wait(&p->more, &p->lock);
    struct thread_pool_job *job = p->first;
    if (job) p->first = job->next;
    if (!p->first) p->end = &p->first;
    pthread_mutex_unlock(&p->lock);
    return job;
}

static void *run_jobs(void *user)
{
    struct thread_pool *p = user;
    struct thread_pool_job *job;
    while ((job = take(p))) job->work(job->user);
    return NULL;
}

sac_status thread_pool_create(struct thread_pool **out, uint32_t n_thread, sac_error *err)
{
    struct thread_pool *p = mem_calloc(1, sizeof *p);
    pthread_t *thread = mem_calloc(n_thread, sizeof *thread);
    if (!p || !thread) {
        mem_free(p);
        mem_free(thread);
        return error_set(err, SAC_ERR_MEMORY, "out of memory for the server");
    }
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->more, NULL);
    p->end = &p->first;
    p->thread = thread;
    while (p->n_thread < n_thread) {
        if (!thread_start(&thread[p->n_thread], run_jobs, p)) {
            thread_pool_destroy(p);
            return error_set(err, SAC_ERR_MEMORY, "the system gives no thread");
        }
        p->n_thread++;
    }
    *out = p;
    return SAC_OK;
}

bool thread_pool_submit(struct thread_pool *p, struct thread_pool_job *job)
{
    pthread_mutex_lock(&p->lock);
    const bool takes = !p->closed;
    if (takes) {
        job->next = NULL;
        job->sleep(job->user);
        *p->end = job;
        p->end = &job->next;
        pthread_cond_signal(&p->more);
    }
    pthread_mutex_unlock(&p->lock);
    return takes;
}

void thread_pool_close(struct thread_pool *p)
{
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->closed = true;
    pthread_cond_broadcast(&p->more);
    pthread_mutex_unlock(&p->lock);
    for (uint32_t i = 0; i < p->n_thread; i++) pthread_join(p->thread[i], NULL);
    p->n_thread = 0;
}

void thread_pool_destroy(struct thread_pool *p)
{
    if (!p) return;
    thread_pool_close(p);
    pthread_cond_destroy(&p->more);
    pthread_mutex_destroy(&p->lock);
    mem_free(p->thread);
    mem_free(p);
}
