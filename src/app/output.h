/* output.h: stdout without silent losses. A full disk or a closed pipe is reported on stderr, once,
 * and makes the command fail with EXIT_RUNTIME. SIGPIPE is ignored (main.c), so writes return
 * EPIPE. */
#ifndef SAC_APP_OUTPUT_H
#define SAC_APP_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>

struct cJSON;

/* Writes to stdout and flushes, for text that streams. False: the output is gone; nothing is told
 * yet. */
bool output_write(const char *text, size_t n);

/* Prints `json` with a newline and frees it; NULL (no memory to build it) is an error as well.
 * Returns the exit code. */
int output_json(struct cJSON *json);

/* Whether something that was written did not arrive. */
bool output_is_lost(void);

/* Flushes stdout at the end of a command: `code`, or EXIT_RUNTIME and a line on stderr if anything
 * that was printed did not arrive. */
int output_finish(int code);

#endif
