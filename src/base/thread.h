/* thread.h: starts threads that leave the program's signals to the program's own threads. */
#ifndef SAC_BASE_THREAD_H
#define SAC_BASE_THREAD_H

#include <pthread.h>
#include <stdbool.h>

/* As pthread_create with usual attributes, but signals that are sent to the process never reach
 * the thread: the default action of one ends the program, past what it does at SIGTERM. False: the
 * system gives no thread. */
bool thread_start(pthread_t *out, void *(*fn)(void *), void *arg);

#endif
