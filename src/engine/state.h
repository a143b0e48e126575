/* state.h: saved sequences, for those who keep the files themselves. The public calls, and what a
 * state is, are in saccade.h. `name` is what messages call the file, `bytes`
 * how much of it is the state: what stands behind that is the caller's. */
#ifndef SAC_ENGINE_STATE_H
#define SAC_ENGINE_STATE_H

#include "base/status.h"

#include <stdio.h>

/* Writes a state where `file` stands; neither flushes nor closes it. */
sac_status state_write(sac_engine *e, sac_seq id, FILE *file, const char *name, sac_error *err);

/* As sac_seq_load, but of a sequence that nothing will be appended to: its pages are for others,
 * and what methods had learnt of it is not needed. */
sac_status state_load_pages(sac_engine *e, const char *path, uint64_t bytes, sac_seq *out,
                            sac_error *err);

/* The sequence gives its pages back and keeps its place and its settings: `*out` [*out_n], owned by
 * the caller (mem_free), is what it was. Pending tokens are dropped. */
sac_status state_park(sac_engine *e, sac_seq id, uint8_t **out, size_t *out_n, sac_error *err);
/* It is that again, as if nothing had been; on failure it is empty. */
sac_status state_unpark(sac_engine *e, sac_seq id, const uint8_t *bytes, size_t n, sac_error *err);

/* Whether the state in a file is one of these tokens. Its keys and values are not looked at. */
sac_status state_holds(const char *path, uint64_t bytes, const int32_t *tok, size_t n, bool *out,
                       sac_error *err);

/* Whether the file is whole, by its checksums: SAC_OK, or what is wrong. */
sac_status state_verify(const char *path, uint64_t bytes, sac_error *err);

#endif
