/* output.h: stdout without silent losses. A full disk or a closed pipe is reported on stderr, once,
 * and makes the command fail with EXIT_RUNTIME. SIGPIPE is ignored (main.c), so writes return
 * EPIPE. */
#ifndef SAC_APP_OUTPUT_H
#define SAC_APP_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>

struct cJSON;

/* Writes to stdout and flushes, for streamed text. False: writing failed; not reported yet. */
bool output_write(const char *text, size_t n);

/* Prints `json` with a newline and frees it; NULL (out of memory) is an error. Returns the exit
 * code. */
int output_json(struct cJSON *json);

/* Whether any output could not be written. */
bool output_is_lost(void);

/* Flushes stdout at the end of a command; returns `code`, or reports lost output and returns
 * EXIT_RUNTIME. */
int output_finish(int code);

#endif
