/* subprocess.h: runs another program on bytes: no shell, no files, limits on its time, memory and
 * output. */
#ifndef SAC_TEXT_SUBPROCESS_H
#define SAC_TEXT_SUBPROCESS_H

#include "base/status.h"
#include "base/strbuf.h"

struct subprocess_limits {
    unsigned seconds;
    size_t memory_bytes, output_bytes;
};

struct subprocess {
    struct strbuf out, told; /* stdout; the first 4 KiB of stderr */
    int code;                /* exit status */
};

/* Runs argv[0], found in $PATH, with `in` as stdin, and waits for its end. SAC_ERR_NOT_FOUND: no
 * such program. SAC_ERR_FORMAT: it exceeded a limit or was killed by a signal. SAC_OK whatever its
 * exit status. `c` must be zeroed; the caller deinits it even after errors. */
sac_status subprocess_run(struct subprocess *c, const char *const argv[], const char *in, size_t n,
                          const struct subprocess_limits *limits, sac_error *err);
void subprocess_deinit(struct subprocess *c);

#endif
