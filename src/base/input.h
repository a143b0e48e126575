/* input.h: texts that the user names: files, or stdin as "-". */
#ifndef SAC_BASE_INPUT_H
#define SAC_BASE_INPUT_H

#include "base/status.h"
#include "base/strbuf.h"

/* Appends all of a file to `out`. Any bytes are taken as they are. */
sac_status input_read(struct strbuf *out, const char *path, sac_error *err);
/* The same for a file of at most `most` bytes; one with more, or without an end, is refused. */
sac_status input_read_most(struct strbuf *out, const char *path, size_t most, sac_error *err);

#endif
