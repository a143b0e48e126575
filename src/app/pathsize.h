/* pathsize.h: values of options that name a place on a disk and how much of it: "PATH:SIZE". */
#ifndef SAC_APP_PATHSIZE_H
#define SAC_APP_PATHSIZE_H

#include <stdint.h>

#define PATHSIZE_PATH_BYTES 4096u

struct pathsize {
    const char *command, *option, *form; /* for messages: "--kv-disk", "FILE:SIZE, such as ..." */
    const char *value;
    char *out_path; /* [PATHSIZE_PATH_BYTES] */
    uint64_t *out_bytes;
};

/* Returns OPTIONS_GO_ON or an exit code. */
int pathsize_parse(const struct pathsize *want);

#endif
