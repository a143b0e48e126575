/* reuse.h: pages of a prompt that another sequence has computed are taken instead of computed
 * again: when a sequence's prompt rows come to a page's begin, the index of pages by content
 * (kv/prefix.h) is asked for what comes next, and behind it the disk (reuse_disk.h).
 *
 * A hit is exact: the sequence goes on with the very bits with which it would have without. So only
 * pages are shared whose bits follow from the tokens up to their end and from the model: those of
 * dense prompt rows from the text's begin on. Rows of an answer are rounded otherwise, a sparse
 * prompt's depend on the rows behind them, and texts that were attached (segment.h) or loaded came
 * from elsewhere. And as much of a prompt's end is computed in any case as decode methods want
 * queries of, and one row at least. */
#ifndef SAC_ENGINE_REUSE_H
#define SAC_ENGINE_REUSE_H

#include "kv/prefix.h"

#include "saccade.h"

struct reuse_disk;

struct reuse {
    bool on;
    struct reuse_disk *disk; /* owned, or NULL (reuse_disk.h) */
    struct prefix index;
    struct sha256 sha; /* owned, open if on */
};

/* What is known of a sequence. Its first `n_pure` tokens are such as may be shared; the first
 * n_page pages of these are in the index, the last of them is `node`. */
struct reuse_seq {
    uint8_t root[SHA256_BYTES]; /* of model and salt */
    uint8_t key[SHA256_BYTES];  /* of the last page, or `root` */
    uint32_t n_pure, n_page, node;
    bool asks; /* tokens were appended, and the index was not asked since */
    sac_reuse_end end;
};

/* Before and in plan_memory, and at the end. */
sac_status reuse_init(sac_engine *e, sac_error *err);
void reuse_plan(sac_engine *e, struct arena *a);
void reuse_deinit(sac_engine *e);

/* A fresh sequence, a copy, one that is cut from n_old tokens to n_done. */
void reuse_reset(sac_engine *e, uint32_t seq_i);
void reuse_fork(sac_engine *e, uint32_t dst, uint32_t src);
void reuse_cut(sac_engine *e, uint32_t seq_i, uint32_t n_old);
/* The digest of a tenant's salt, NULL: of none; what all its texts begin with; and a fresh sequence
 * of that tenant. */
void reuse_salt_digest(const sac_engine *e, const char *salt, uint8_t out[SHA256_BYTES]);
void reuse_root(const sac_engine *e, const uint8_t digest[SHA256_BYTES], uint8_t out[SHA256_BYTES]);
void reuse_use_salt(sac_engine *e, uint32_t seq_i, const uint8_t digest[SHA256_BYTES]);

/* What ended the last search of a sequence. */
sac_reuse_end reuse_end_of(const sac_engine *e, sac_seq id);

/* Takes pages for the sequence's next prompt rows: they are done then. False: more of them come
 * from the disk, which must not hold up this step's decode rows, so that its prompt rows wait. */
bool reuse_take(sac_engine *e, uint32_t seq_i);
/* n pages of the text that were placed behind those that the sequence has of the index enter it,
 * and count as done. */
void reuse_keep_placed(sac_engine *e, uint32_t seq_i, uint32_t n);
/* Behind a step: what its prompt rows have filled comes into the index. */
void reuse_keep(sac_engine *e);
/* A page of the sequence could not be read: nobody takes its text from the index any more. */
void reuse_lose(sac_engine *e, uint32_t seq_i);
/* Lets pages of the index and of documents (resident.h) go until the pool has those of n page
 * indices, as far as it can. */
void reuse_make_room(sac_engine *e, uint32_t n_index);

#endif
