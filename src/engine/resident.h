/* resident.h: documents that were loaded once and stay in the engine's pages: loading one again
 * gives a sequence that names the same pages, without reading or copying keys or values. They use
 * room that nobody else needs: the least recently used is evicted first, ordered by age together
 * with entries of the prompt index (reuse.h).
 *
 * Only the content of a loaded sequence is kept: full pages, tokens, statistics. Engines that keep
 * queries of the last rows (past_queries.h), or pages below the pool, therefore have no residents.
 */
#ifndef SAC_ENGINE_RESIDENT_H
#define SAC_ENGINE_RESIDENT_H

#include "base/digest.h"

#include "saccade.h"

#include <time.h>

/* The identity of a document, and of the state of its file: a changed file is read again, so damage
 * is found. */
struct resident_key {
    uint8_t id[DIGEST_BYTES];
    uint64_t device, inode, bytes;
    struct timespec changed;
};

struct resident;

/* A new sequence with the document; SAC_ERR_NOT_FOUND, without a message: it is not resident. */
sac_status resident_take(sac_engine *e, const struct resident_key *key, sac_seq *out,
                         sac_error *err);
/* Makes the document resident with which a sequence was loaded, if possible. */
void resident_keep(sac_engine *e, const struct resident_key *key, sac_seq id);

/* The last use of the document to evict first, by the clock of the index; UINT64_MAX: none would
 * free a page. */
uint64_t resident_oldest(const sac_engine *e);
void resident_drop_oldest(sac_engine *e);

#endif
