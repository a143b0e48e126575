/* docfile.h: the file of a document: a saved sequence (state.h), and behind it the document's notes
 * (notes.h) with a checksum of their own. Files are hostile input. */
#ifndef SAC_ENGINE_DOCFILE_H
#define SAC_ENGINE_DOCFILE_H

#include "engine/engine.h"

#include <stdio.h>

/* Writes a sequence that has notes where `file` stands; `name` is what messages call it. */
sac_status docfile_write(sac_engine *e, sac_seq seq, FILE *file, const char *name, sac_error *err);
/* A new sequence of the document whose text has n_text tokens. */
sac_status docfile_load(sac_engine *e, const char *path, uint32_t n_text, sac_seq *out,
                        sac_error *err);
/* Whether it is the document of these tokens, whole. */
bool docfile_holds(const char *path, const int32_t *tok, size_t n);
/* SAC_OK, or what is wrong with the file. */
sac_status docfile_verify(const char *path, sac_error *err);

#endif
