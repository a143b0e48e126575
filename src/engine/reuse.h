/* reuse.h: pages of a prompt that another sequence has computed are reused instead of recomputed.
 * When the prompt rows of a sequence reach the start of a page, the index of pages by content
 * (kv/prefix.h) is asked for the next pages, and after it the disk (reuse_disk.h).
 *
 * A hit is exact: the sequence continues with the same bits as without it. Therefore only pages are
 * shared whose bits depend on the tokens up to their end and the model alone: those of dense prompt
 * rows from the start of the text. Rows of an answer are rounded differently, rows of a sparse
 * prompt depend on the rows after them, and texts that were attached (segment.h) or loaded came
 * from elsewhere. The end of a prompt is always computed: as many rows as decode methods need
 * queries of, and at least one. */
#ifndef SAC_ENGINE_REUSE_H
#define SAC_ENGINE_REUSE_H

#include "kv/prefix.h"

#include "saccade_cache.h"

struct reuse_disk;

struct reuse {
    bool on;
    struct reuse_disk *disk; /* owned, or NULL (reuse_disk.h) */
    struct prefix index;
    struct sha256 sha;         /* owned, in use if `on` */
    sac_cache_page_fn on_page; /* or NULL (reuse_watch.h) */
    void *user;
};

/* Of each sequence. Its first n_pure tokens may be shared; the first n_page pages of these are in
 * the index, the last one as `node`. */
struct reuse_seq {
    uint8_t root[SHA256_BYTES]; /* key before the first page: of model and salt */
    uint8_t key[SHA256_BYTES];  /* key of page n_page - 1, or `root` */
    uint32_t n_pure, n_page, node;
    bool asks; /* tokens were appended since the index was last searched */
    sac_reuse_end end;
    void *owner; /* the `user` of the sequence's request; NULL: there is none */
};

/* Before plan_memory, in it, and at the end. */
sac_status reuse_init(sac_engine *e, sac_error *err);
void reuse_plan(sac_engine *e, struct arena *a);
void reuse_deinit(sac_engine *e);

/* A new sequence; a copy; a cut from n_old tokens to n_done. */
void reuse_reset(sac_engine *e, uint32_t seq_i);
void reuse_fork(sac_engine *e, uint32_t dst, uint32_t src);
void reuse_cut(sac_engine *e, uint32_t seq_i, uint32_t n_old);
/* The digest of a tenant's salt (NULL: no tenant), from which the keys of all its texts begin; and
 * a new sequence of that tenant. */
void reuse_salt_digest(const sac_engine *e, const char *salt, uint8_t out[SHA256_BYTES]);
void reuse_root(const sac_engine *e, const uint8_t digest[SHA256_BYTES], uint8_t out[SHA256_BYTES]);
void reuse_use_salt(sac_engine *e, uint32_t seq_i, const uint8_t digest[SHA256_BYTES]);
/* Names the request that the sequence is for, by its `user` (sac_cache_watch). */
void reuse_use_owner(sac_engine *e, uint32_t seq_i, void *owner);

/* Why the last search for a sequence ended. */
sac_reuse_end reuse_end_of(const sac_engine *e, sac_seq id);

/* Takes pages for the sequence's next prompt rows, which are then computed. False: more of them
 * come from disk, which must not delay this step's decode rows, so the prompt rows wait. */
bool reuse_take(sac_engine *e, uint32_t seq_i);
/* n pages of the text, which come after the sequence's pages in the index, enter the index and
 * count as computed. */
void reuse_keep_placed(sac_engine *e, uint32_t seq_i, uint32_t n);
/* After a step: full pages of its prompt rows enter the index. */
void reuse_keep(sac_engine *e);
/* A page of the sequence could not be read: its text is no longer taken from the index. */
void reuse_lose(sac_engine *e, uint32_t seq_i);
/* Releases pages of the index and of documents (resident.h) until the pool has those of n page
 * indices, as far as possible. */
void reuse_make_room(sac_engine *e, uint32_t n_index);

#endif
