/* resident.h: documents that were loaded once and stay in the engine's pages: who loads one again
 * gets a sequence that names the same pages, and not a byte of keys or values is read or copied.
 * They take room that nobody else wants: the one that was used longest ago goes first, between
 * those of the index of prompts (reuse.h) by its age.
 *
 * Only what a loaded sequence consists of is kept: full pages, tokens, notes. So engines that keep
 * queries of the last rows (past.h), or pages below the pool, have no residents. */
#ifndef SAC_ENGINE_RESIDENT_H
#define SAC_ENGINE_RESIDENT_H

#include "base/digest.h"

#include "saccade.h"

#include <time.h>

/* Which document it is, and which state of its file was read: one that has changed since is read
 * anew, and its damage found. */
struct resident_key {
    uint8_t id[DIGEST_BYTES];
    uint64_t device, inode, bytes;
    struct timespec changed;
};

struct resident;

/* A new sequence that holds the document; SAC_ERR_NOT_FOUND, without a message: it is not here. */
sac_status resident_take(sac_engine *e, const struct resident_key *key, sac_seq *out,
                         sac_error *err);
/* The document that a sequence was loaded with stays behind it, if it can. */
void resident_keep(sac_engine *e, const struct resident_key *key, sac_seq id);

/* When the one was used that would go first, by the clock of the index; UINT64_MAX: none would give
 * a page back. */
uint64_t resident_oldest(const sac_engine *e);
void resident_drop_oldest(sac_engine *e);

#endif
