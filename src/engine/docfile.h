/* docfile.h: the file of a document: a saved sequence (state.h), followed by the document's
 * statistics (doc_stats.h) with a checksum of their own. Files are hostile input. */
#ifndef SAC_ENGINE_DOCFILE_H
#define SAC_ENGINE_DOCFILE_H

#include "engine/engine.h"

#include <stdio.h>

/* Writes a sequence that has statistics at the current position of `file`; `name` is the file's
 * name in messages. */
sac_status docfile_write(sac_engine *e, sac_seq seq, FILE *file, const char *name, sac_error *err);
/* Loads a document whose text has n_text tokens into a new sequence. */
sac_status docfile_load(sac_engine *e, const char *path, uint32_t n_text, sac_seq *out,
                        sac_error *err);
/* Whether the file holds exactly the document of these tokens. */
bool docfile_holds(const char *path, const int32_t *tok, size_t n);
/* SAC_OK, or what is wrong with the file. */
sac_status docfile_verify(const char *path, sac_error *err);

#endif
