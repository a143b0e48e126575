/* reuse_copy.c: copies the pages of a text under another salt. A load test with many texts needs
 * separate pages for each text, but their content may be the same. */
#include "engine/engine.h"
#include "engine/reuse_page.h"

#include "saccade_machine.h"

#include "base/mem.h"

struct copy {
    sac_engine *e;
    uint32_t seq_i;            /* the sequence of the copies */
    uint8_t key[SHA256_BYTES]; /* key of the last page that was copied, without a salt */
    uint32_t node;             /* the copy's node */
    uint8_t *bytes;            /* [n_lane][page] */
};

/* False: the index has no more pages of the text, or the pool is full. */
static bool copy_page(struct copy *c)
{
    sac_engine *e = c->e;
    const struct seq *s = &e->seqs[c->seq_i];
    const int32_t *tok = s->tok + s->n_done;
    uint8_t key[SHA256_BYTES];
    sha256_digest(&e->reuse.sha, key, c->key, tok, PAGE_TOK * sizeof *tok);
    const uint32_t node = prefix_find(&e->reuse.index, c->node, key, tok);
    if (node == PREFIX_NONE || reuse_page_fetch(e, node, c->bytes) != SAC_OK ||
        !reuse_page_place(e, c->seq_i, 1, c->bytes))
        return false;
    reuse_keep_placed(e, c->seq_i, 1);
    memcpy(c->key, key, sizeof key);
    c->node = node;
    return true;
}

sac_status sac_cache_copy(sac_engine *e, const int32_t *tok, size_t n, const char *salt,
                          size_t *out_n, sac_error *err)
{
    struct copy c = {.e = e, .node = PREFIX_NONE};
    uint8_t digest[SHA256_BYTES];
    if (!e->reuse.on)
        return error_set(err, SAC_ERR_ARG, "pages are copied in an engine with prefix_cache");
    TRY(tensor_parallel_refuse(e, "copying of kept pages", err));
    c.bytes = mem_alloc((size_t)e->reuse.index.n_lane * e->pool.geom.bytes);
    if (!c.bytes) return error_set(err, SAC_ERR_MEMORY, "no memory for a copy of pages");
    sac_status status = sac_seq_create(e, &c.seq_i, err);
    if (status == SAC_OK) {
        const struct seq *s = &e->seqs[c.seq_i];
        status = sac_seq_use_salt(e, c.seq_i, salt, err);
        if (status == SAC_OK)
            status = sac_seq_append(e, c.seq_i, tok, n, SAC_ROW_PROMPT, SAC_WANT_NONE, err);
        reuse_salt_digest(e, NULL, digest);
        reuse_root(e, digest, c.key);
        while (status == SAC_OK && s->n_done + PAGE_TOK < s->n_all && copy_page(&c)) continue;
        *out_n = s->n_done;
        sac_seq_remove(e, c.seq_i);
    }
    mem_free(c.bytes);
    return status;
}
