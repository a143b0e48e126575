/* state.h: saved sequences, for callers that manage the files themselves. saccade.h has the public
 * calls, and what a state is. `name` is the file's name in messages, `bytes` the size of the state;
 * what follows it in the file is the caller's. */
#ifndef SAC_ENGINE_STATE_H
#define SAC_ENGINE_STATE_H

#include "base/status.h"

#include <stdio.h>

/* Writes a state at the current position of `file`; neither flushes nor closes it. */
sac_status state_write(sac_engine *e, sac_seq id, FILE *file, const char *name, sac_error *err);

/* Like sac_seq_load, but for a sequence to which nothing will be appended: its pages are for
 * others, and what methods had learned about it is not needed. */
sac_status state_load_pages(sac_engine *e, const char *path, uint64_t bytes, sac_seq *out,
                            sac_error *err);

/* Saves the content of a sequence and frees its pages; the sequence keeps its number and settings.
 * The caller owns `*out` [*out_n] (mem_free). Pending tokens are dropped. */
sac_status state_park(sac_engine *e, sac_seq id, uint8_t **out, size_t *out_n, sac_error *err);
/* Restores such content; on failure the sequence is empty. */
sac_status state_unpark(sac_engine *e, sac_seq id, const uint8_t *bytes, size_t n, sac_error *err);

/* Whether the state in a file is that of these tokens. Its keys and values are not checked. */
sac_status state_holds(const char *path, uint64_t bytes, const int32_t *tok, size_t n, bool *out,
                       sac_error *err);

/* Checks the checksums of the whole file: SAC_OK, or what is wrong. */
sac_status state_verify(const char *path, uint64_t bytes, sac_error *err);

#endif
