/* seq.c: the public life of a sequence: create, append, fork, truncate, remove. Ids are indices of
 * a fixed table; memory of a sequence was planned at engine create, so nothing here allocates. */
#include "engine/engine.h"

#include <assert.h>
#include <string.h>

struct seq *engine_seq(const sac_engine *e, sac_seq id, sac_error *err)
{
    if (id < e->params.n_seq_max && e->seqs[id].alive) return &e->seqs[id];
    (void)error_set(err, SAC_ERR_NOT_FOUND, "there is no sequence %u", id);
    return NULL;
}

static sac_status create_one(sac_engine *e, sac_seq *out, sac_error *err)
{
    for (uint32_t i = 0; i < e->params.n_seq_max; i++) {
        struct seq *s = &e->seqs[i];
        if (s->alive) continue;
        *s = (struct seq){.alive = true, .tok = s->tok, .flags = s->flags};
        segment_reset(e, i);
        reuse_reset(e, i);
        method_set_reset(e, i);
        *out = i;
        return SAC_OK;
    }
    return error_set(err, SAC_ERR_CONTEXT, "all %u sequences of the engine are in use",
                     e->params.n_seq_max);
}

sac_status sac_seq_create(sac_engine *e, sac_seq *out, sac_error *err)
{
    for (uint32_t i = 0; i < e->tp.n; i++) TRY(create_one(e->tp.of[i], out, err));
    return SAC_OK;
}

static sac_status fork_one(sac_engine *e, sac_seq src, sac_seq *out, sac_error *err)
{
    const struct seq *from = engine_seq(e, src, err);
    if (!from) return SAC_ERR_NOT_FOUND;
    TRY(engine_check_whole(from, src, err));
    if (from->n_done != from->n_all)
        return error_set(err, SAC_ERR_ARG, "sequence %u has %u pending tokens: step before a fork",
                         src, from->n_all - from->n_done);
    TRY(create_one(e, out, err));
    struct seq *to = &e->seqs[*out];
    to->n_done = to->n_all = from->n_done;
    to->n_top = from->n_top;
    to->has_gaps = from->has_gaps;
    memcpy(to->tok, from->tok, from->n_done * sizeof *to->tok);
    memcpy(to->flags, from->flags, from->n_done * sizeof *to->flags);
    pool_fork(&e->pool, *out, src, from->n_done / PAGE_TOK);
    segment_fork(e, *out, src);
    reuse_fork(e, *out, src);
    method_set_fork(e, *out, src);
    return SAC_OK;
}

sac_status sac_seq_fork(sac_engine *e, sac_seq src, sac_seq *out, sac_error *err)
{
    for (uint32_t i = 0; i < e->tp.n; i++) TRY(fork_one(e->tp.of[i], src, out, err));
    return SAC_OK;
}

static sac_status check_cut(const sac_engine *e, sac_seq id, uint32_t n_tok, sac_error *err)
{
    const struct seq *s = &e->seqs[id];
    if (n_tok > s->n_all)
        return error_set(err, SAC_ERR_ARG, "sequence %u has %u tokens, cannot keep %u", id,
                         s->n_all, n_tok);
    if (n_tok / PAGE_TOK < s->n_done / PAGE_TOK && n_tok % PAGE_TOK &&
        !pool_has(&e->pool, id, n_tok / PAGE_TOK))
        return error_set(err, SAC_ERR_ARG,
                         "sequence %u cannot be cut to %u tokens: its decode method has dropped "
                         "those before",
                         id, n_tok);
    if (n_tok < s->n_done && n_tok % PAGE_TOK && segment_offset(e, id, n_tok / PAGE_TOK) != 0)
        return error_set(err, SAC_ERR_ARG,
                         "sequence %u cannot be cut to %u tokens: they are part of another text, "
                         "which can be cut at multiples of %u",
                         id, n_tok, PAGE_TOK);
    return SAC_OK;
}

/* Removes tokens that have been computed. */
static sac_status cut(sac_engine *e, sac_seq id, uint32_t n_tok, sac_error *err)
{
    struct seq *s = &e->seqs[id];
    const uint32_t n_old = s->n_done;
    if (pool_truncate(&e->pool, id, n_old, n_tok, &s->why) != SAC_OK) {
        s->broken = true; /* its tail may have changed */
        return engine_check_whole(s, id, err);
    }
    segment_cut(e, id, n_tok / PAGE_TOK);
    method_set_cut(e, id, n_tok);
    s->n_done = n_tok;
    reuse_cut(e, id, n_old);
    return SAC_OK;
}

static sac_status truncate_one(sac_engine *e, sac_seq id, uint32_t n_tok, sac_error *err)
{
    struct seq *s = engine_seq(e, id, err);
    if (!s) return SAC_ERR_NOT_FOUND;
    if (n_tok > 0) TRY(engine_check_whole(s, id, err));
    TRY(check_cut(e, id, n_tok, err));
    if (n_tok < s->n_done) TRY(cut(e, id, n_tok, err));
    assert(s->n_done <= n_tok);
    s->n_all = n_tok;
    return SAC_OK;
}

/* An error if a request drives the sequence: it appends and cuts itself, and waits for what it has
 * appended. */
static sac_status check_free(const sac_engine *e, sac_seq id, sac_error *err)
{
    if (!admit_has_joined(e, id)) return SAC_OK;
    return error_set(err, SAC_ERR_ARG, "sequence %u is in use by a request", id);
}

sac_status engine_truncate(sac_engine *e, sac_seq id, uint32_t n_tok, sac_error *err)
{
    for (uint32_t i = 0; i < e->tp.n; i++) TRY(truncate_one(e->tp.of[i], id, n_tok, err));
    return SAC_OK;
}

sac_status sac_seq_truncate(sac_engine *e, sac_seq id, uint32_t n_tok, sac_error *err)
{
    TRY(check_free(e, id, err));
    return engine_truncate(e, id, n_tok, err);
}

static void remove_one(sac_engine *e, sac_seq id)
{
    struct seq *s = &e->seqs[id];
    pool_release(&e->pool, id, 0, s->n_done / PAGE_TOK);
    mem_free(s->stats);
    *s = (struct seq){.tok = s->tok, .flags = s->flags};
}

void sac_seq_remove(sac_engine *e, sac_seq id)
{
    if (!engine_seq(e, id, NULL)) return;
    logits_settle(e); /* pending counts must not be added to the next sequence */
    for (uint32_t i = 0; i < e->tp.n; i++) remove_one(e->tp.of[i], id);
}

sac_status sac_seq_use_top(sac_engine *e, sac_seq id, uint32_t n_top, sac_error *err)
{
    struct seq *s = engine_seq(e, id, err);
    if (!s) return SAC_ERR_NOT_FOUND;
    s->n_top = n_top;
    return SAC_OK;
}

uint32_t sac_seq_length(const sac_engine *e, sac_seq id, uint32_t *out_pending)
{
    const struct seq *s = engine_seq(e, id, NULL);
    if (out_pending) *out_pending = s ? s->n_all - s->n_done : 0;
    return s ? s->n_done : 0;
}

const int32_t *sac_seq_tokens(const sac_engine *e, sac_seq id)
{
    const struct seq *s = engine_seq(e, id, NULL);
    return s ? s->tok : NULL;
}

sac_status engine_check_tokens(const sac_engine *e, const int32_t *tok, size_t n, sac_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (tok[i] < 0 || (uint32_t)tok[i] >= e->model->config.n_vocab)
            return error_set(err, SAC_ERR_ARG, "token %zu is %d, the vocabulary has 0 to %u", i,
                             tok[i], e->model->config.n_vocab - 1);
    return SAC_OK;
}

static sac_status append_one(sac_engine *e, sac_seq id, const int32_t *tok, size_t n,
                             sac_row_kind kind, sac_want want, sac_error *err)
{
    struct seq *s = engine_seq(e, id, err);
    if (!s) return SAC_ERR_NOT_FOUND;
    TRY(engine_check_whole(s, id, err));
    if (s->n_all > repeat_context(e) || n > repeat_context(e) - s->n_all)
        return error_set(err, SAC_ERR_CONTEXT,
                         "%zu tokens do not fit: the sequence holds %u and the context is %u", n,
                         s->n_all, repeat_context(e));
    TRY(engine_check_tokens(e, tok, n, err));
    if (n == 0) return SAC_OK;
    if (s->n_done == s->n_all) s->ticket = e->next_ticket++;
    memcpy(s->tok + s->n_all, tok, n * sizeof *tok);
    const uint8_t flags =
        (uint8_t)((kind == SAC_ROW_DECODE ? TOK_DECODE : 0) | (want == SAC_WANT_ALL      ? TOK_WANT
                                                               : want == SAC_WANT_STATES ? TOK_STATE
                                                                                         : 0));
    memset(s->flags + s->n_all, flags, n);
    if (kind == SAC_ROW_PROMPT) s->reuse.asks = true;
    s->n_all += (uint32_t)n;
    assert(s->n_done < s->n_all && s->n_all <= repeat_context(e));
    if (want == SAC_WANT_LAST) s->flags[s->n_all - 1] |= TOK_WANT;
    return SAC_OK;
}

sac_status engine_append(sac_engine *e, sac_seq id, const int32_t *tok, size_t n, sac_row_kind kind,
                         sac_want want, sac_error *err)
{
    for (uint32_t i = 0; i < e->tp.n; i++)
        TRY(append_one(e->tp.of[i], id, tok, n, kind, want, err));
    return SAC_OK;
}

sac_status sac_seq_append(sac_engine *e, sac_seq id, const int32_t *tok, size_t n,
                          sac_row_kind kind, sac_want want, sac_error *err)
{
    TRY(check_free(e, id, err));
    if (want == SAC_WANT_STATES && !e->place[place_of_output(e)].backend.is_host)
        return error_set(err, SAC_ERR_UNSUPPORTED,
                         "hidden states are returned by a CPU only: %s computes the last layer",
                         e->params.device);
    return engine_append(e, id, tok, n, kind, want, err);
}
