/* thread.c: see the header. */
#include "base/thread.h"

#include <signal.h>
#include <stddef.h>

bool thread_start(pthread_t *out, void *(*fn)(void *), void *arg)
{
    /* Signals of faults are delivered to the thread that caused them, and profilers signal each
     * thread. */
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGPROF};
    sigset_t set, before;
    sigfillset(&set);
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) sigdelset(&set, own[i]);
    pthread_sigmask(SIG_BLOCK, &set, &before);
    const bool started = pthread_create(out, NULL, fn, arg) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}
