/* embed.h: vectors of texts: the hidden states behind the model's last norm, pooled. Texts of one
 * request share steps, and between two steps the engine computes answers. The engine's thread only.
 */
#ifndef SAC_SERVE_EMBED_H
#define SAC_SERVE_EMBED_H

#include "serve/api_request.h"
#include "serve/doc_library.h"

#define EMBED_SEQS 8u /* texts computed at once; the engine has as many extra sequences */

/* Number of vectors: one per token if nothing is pooled, else one per text. */
size_t embed_count(const struct api_request *request);

/* Checks that the engine can return hidden states. */
sac_status embed_check(sac_engine *engine, sac_error *err);
/* Computes the vectors and appends them to `out` as floats [embed_count, n_embd]. */
sac_status embed_work(sac_engine *engine, const struct api_request *request,
                      struct doc_library_wait wait, struct strbuf *out, sac_error *err);

#endif
