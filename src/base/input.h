/* input.h: texts that the user names: files, or stdin as "-". */
#ifndef SAC_BASE_INPUT_H
#define SAC_BASE_INPUT_H

#include "base/status.h"
#include "base/strbuf.h"

/* Appends the whole file to `out`, as bytes. */
sac_status input_read(struct strbuf *out, const char *path, sac_error *err);
/* The same, but a file of more than `most` bytes, or without an end, is refused. */
sac_status input_read_most(struct strbuf *out, const char *path, size_t most, sac_error *err);

#endif
