/* thread.h: starts threads that leave the program's signals to the program's own threads. */
#ifndef SAC_BASE_THREAD_H
#define SAC_BASE_THREAD_H

#include <pthread.h>
#include <stdbool.h>

/* Like pthread_create with default attributes, but with signals to the process blocked: the main
 * thread handles them, and a default action here would end the program without cleanup. False: the
 * system has no thread left. */
bool thread_start(pthread_t *out, void *(*fn)(void *), void *arg);

#endif
