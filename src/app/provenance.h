/* provenance.h: run.json, which documents how the results beside it were produced: the command,
 * the model and the hash of its file, the type of the KV cache, the processor, the program's
 * version and commit, the date. A report shows it. */
#ifndef SAC_APP_PROVENANCE_H
#define SAC_APP_PROVENANCE_H

#include "app/setup.h"

/* Writes DIR/run.json. Reads the whole model file to compute its SHA-256. */
sac_status provenance_write(const char *dir, const struct setup *setup, const sac_model *model,
                            const sac_engine_params *engine, sac_error *err);

/* "q8", or "f16/q8" for keys and values; uses `buf` if they differ. */
const char *provenance_kv(const sac_engine_params *p, char buf[16]);

#endif
