/* state.c: a sequence as bytes and back, in a file or in memory.
 *
 * Format: struct head; tokens; segments; a map of the pages that are present; their cards (tier.h);
 * the tail's tokens; the queries of the last rows; the methods' state; a checksum of each page's
 * body; a checksum of everything so far; the page bodies, grouped by layer and KV head. One walk
 * describes the format for measuring, writing and reading, so the three cannot disagree. Side data
 * of pages is not stored: it is computed from their keys again, so it always fits the keys and the
 * engine's methods.
 *
 * With a tier below the pool, a file is read only as far as its page bodies. These stay in the
 * file, and the tier fetches and checks those that are read.
 *
 * Invariants:
 *  1. The bytes depend on the sequence alone: what other sequences left in tails and rings behind
 *     its own tokens is not written.
 *  2. Input is hostile until the last check has passed: counts are bounded before use, methods
 *     check their own state (`sound`), and a sequence that fails is removed with its pages. The
 *     checksum detects damage; it does not authenticate the sender.
 *
 * Not here: samplers and requests, on which attention does not depend. */
#include "engine/state.h"
#include "base/mem.h"
#include "base/textfile.h"
#include "engine/engine.h"
#include "engine/state_walk.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static sac_status walk_tail(struct stream *s, const struct image *im)
{
    const struct page_geom *g = &im->e->pool.geom;
    const size_t bytes = im->head.n_tok % PAGE_TOK * (size_t)g->head_dim * 2;
    for (size_t lane = 0; lane < state_lane_count(im); lane++) {
        uint8_t *tail = pool_tail(&im->e->pool, im->seq_i, (uint32_t)lane / g->n_kv_head) +
                        lane % g->n_kv_head * g->tail_bytes;
        TRY(state_transfer_pool(s, &im->e->pool, tail, bytes));
        TRY(state_transfer_pool(s, &im->e->pool, tail + g->tail_v, bytes));
    }
    return SAC_OK;
}

static sac_status walk_segments(struct stream *s, const struct image *im)
{
    struct segment list[SEGMENT_MAX];
    const uint32_t n = (uint32_t)im->head.n_segment;
    memcpy(list, segment_list(im->e, im->seq_i), n * sizeof *list);
    TRY(state_transfer(s, list, n * sizeof *list));
    if (s->direction != READ) return SAC_OK;
    if (!segment_sound(list, n, im->head.n_tok / PAGE_TOK))
        return state_damaged(s, "its segments make no sense");
    segment_restore(im->e, im->seq_i, list, n);
    return SAC_OK;
}

/* By position, because rings of different sizes hold a row at different indices. */
static sac_status walk_past(struct stream *s, const struct image *im)
{
    const struct past_queries *p = &im->e->past;
    const struct config *c = &im->e->model->config;
    const size_t floats = (size_t)im->head.group * im->head.head_dim;
    for (size_t lane = 0; lane < state_lane_count(im); lane++) {
        float *ring = p->n_slot ? past_queries_ring(im->e, im->seq_i, lane) : NULL;
        if (config_layer_is_local(c, (uint32_t)(lane / im->head.n_kv_head))) continue;
        for (uint32_t pos = im->head.n_tok - im->head.n_past; pos < im->head.n_tok; pos++)
            TRY(state_transfer_device(s, im->e,
                                      ring ? (uint8_t *)(ring + pos % p->n_slot * floats) : NULL,
                                      floats * sizeof *ring));
    }
    return SAC_OK;
}

static sac_status walk_state(struct stream *s, const struct image *im)
{
    for (int i = 0; i < METHOD_SET_KINDS; i++) {
        const enum method_set_kind kind = (enum method_set_kind)i;
        const size_t bytes = im->head.state_bytes[kind];
        const struct method_set_entry *m = method_set_entry(im->e, kind, im->seq_i);
        const size_t n_head = im->keeps[kind] ? m->head_bytes : bytes, n_device = bytes - n_head;
        for (size_t lane = 0; lane < im->e->method_set[kind].n_lane && bytes; lane++) {
            TRY(state_transfer(
                s, im->keeps[kind] ? method_set_state(im->e, kind, im->seq_i, lane) : NULL,
                n_head));
            if (n_device > 0)
                TRY(state_transfer_device(
                    s, im->e, method_set_device_state(im->e, kind, im->seq_i, lane) + n_head,
                    n_device));
        }
    }
    return SAC_OK;
}

/* Everything except the head, with room for the checksums of the pages that it names. */
static sac_status walk_parts(struct stream *s, struct image *im)
{
    TRY(state_transfer(s, im->e->seqs[im->seq_i].tok, im->head.n_tok * sizeof(int32_t)));
    TRY(walk_segments(s, im));
    TRY(state_walk_table(s, im));
    TRY(state_walk_cards(s, im));
    TRY(walk_tail(s, im));
    TRY(walk_past(s, im));
    TRY(walk_state(s, im));
    TRY(state_walk_sums(s, im));
    TRY(state_walk_check(s));
    if (s->direction == MEASURE) im->head.page_at = s->n;
    if (s->n != im->head.page_at) return state_damaged(s, "its pages begin elsewhere");
    TRY(state_walk_bodies(s, im));
    if (s->direction == READ && s->n != s->size)
        return state_damaged(s, "its parts are shorter than the whole");
    return SAC_OK;
}

static sac_status walk(struct stream *s, struct image *im)
{
    im->n_page = 0;
    im->sum = NULL;
    if (s->direction == MEASURE) return walk_parts(s, im);
    im->sum = mem_alloc(im->head.n_page * sizeof *im->sum + 1);
    if (!im->sum)
        return error_set(s->err, SAC_ERR_MEMORY, "no memory for the checksums of %s", s->name);
    const sac_status status = walk_parts(s, im);
    mem_free(im->sum);
    return status;
}

/* ---- Saving ---- */

static struct head make_head(const sac_engine *e, uint32_t seq_i)
{
    const struct seq *s = &e->seqs[seq_i];
    const struct page_geom *g = &e->pool.geom;
    struct head h = {.model = e->model->fingerprint,
                     .n_layer = g->n_layer,
                     .n_kv_head = g->n_kv_head,
                     .head_dim = g->head_dim,
                     .group = e->model->config.n_head / g->n_kv_head,
                     .type_k = g->type_k,
                     .type_v = g->type_v,
                     .n_ctx = repeat_context(e),
                     .n_tok = s->n_done,
                     .n_past = s->n_done - past_queries_begin(e, seq_i, s->n_done),
                     .has_gaps = s->has_gaps,
                     .n_segment = e->segments.n[seq_i]};
    for (int kind = 0; kind < METHOD_SET_KINDS; kind++) {
        const struct method_set_entry *m = method_set_entry(e, (enum method_set_kind)kind, seq_i);
        h.state_bytes[kind] = m->state_bytes;
        memcpy(h.method[kind], seq_params_spec(e, (enum method_set_kind)kind, seq_i)->text,
               METHOD_SPEC_BYTES);
    }
    state_start_head(&h);
    return h;
}

static sac_status check_saveable(const sac_engine *e, sac_seq id, sac_error *err)
{
    const struct seq *seq = engine_seq(e, id, err);
    if (!seq) return SAC_ERR_NOT_FOUND;
    TRY(tensor_parallel_refuse(e, "saving of a sequence", err));
    TRY(engine_check_whole(seq, id, err));
    if (seq->n_done == seq->n_all) return SAC_OK;
    return error_set(err, SAC_ERR_ARG, "sequence %u has %u pending tokens: step before saving", id,
                     seq->n_all - seq->n_done);
}

static sac_status measure(struct image *im, sac_engine *e, sac_seq id, sac_error *err)
{
    TRY(check_saveable(e, id, err));
    *im = (struct image){.e = e, .seq_i = id, .head = make_head(e, id), .keeps = {true, true}};
    struct stream s = {.direction = MEASURE, .n = sizeof im->head, .err = err};
    XXH3_64bits_reset(&s.hash);
    TRY(walk(&s, im));
    im->head.bytes = s.n;
    im->head.n_page = im->n_page;
    im->head.check = state_head_check(&im->head);
    return SAC_OK;
}

static sac_status save(struct stream *s, struct image *im)
{
    s->direction = WRITE;
    s->size = im->head.bytes;
    XXH3_64bits_reset(&s->hash);
    TRY(state_transfer(s, &im->head, sizeof im->head));
    return walk(s, im);
}

sac_status sac_seq_to_bytes(sac_engine *e, sac_seq id, uint8_t **out, size_t *out_n, sac_error *err)
{
    struct image im;
    TRY(measure(&im, e, id, err));
    struct stream s = {.name = "the state", .to = mem_alloc(im.head.bytes), .err = err};
    if (!s.to)
        return error_set(err, SAC_ERR_MEMORY, "no memory for a state of %llu bytes",
                         (unsigned long long)im.head.bytes);
    const sac_status status = save(&s, &im);
    if (status != SAC_OK) {
        mem_free(s.to);
        return status;
    }
    *out = s.to;
    *out_n = im.head.bytes;
    return SAC_OK;
}

sac_status state_write(sac_engine *e, sac_seq id, FILE *file, const char *name, sac_error *err)
{
    struct image im;
    TRY(measure(&im, e, id, err));
    struct stream s = {.name = name, .file = file, .err = err};
    return save(&s, &im);
}

/* Writes to another file, which then replaces the file at `path`. */
sac_status sac_seq_save(sac_engine *e, sac_seq id, const char *path, sac_error *err)
{
    char part[4096];
    if (snprintf(part, sizeof part, "%s.part", path) >= (int)sizeof part)
        return error_set(err, SAC_ERR_ARG, "a path of %zu bytes is too long", strlen(path));
    TRY(check_saveable(e, id, err));
    TRY(textfile_replaceable(path, err));
    FILE *file = fopen(part, "wb");
    if (!file) return error_set(err, SAC_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    sac_status status = state_write(e, id, file, path, err);
    /* Only closing reports a full disk reliably. */
    if ((fclose(file) != 0 || (status == SAC_OK && rename(part, path) != 0)) && status == SAC_OK)
        status = error_set(err, SAC_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    if (status != SAC_OK) remove(part);
    return status;
}

/* ---- Loading ---- */

static sac_status check_engine(const struct stream *s, const struct image *im)
{
    const struct head *h = &im->head;
    const struct page_geom *g = &im->e->pool.geom;
    if (h->model != im->e->model->fingerprint || h->n_layer != g->n_layer ||
        h->n_kv_head != g->n_kv_head || h->head_dim != g->head_dim ||
        h->group != im->e->model->config.n_head / g->n_kv_head)
        return error_set(s->err, SAC_ERR_ARG,
                         "%s was saved with another model, or with positions scaled otherwise",
                         s->name);
    if (h->type_k != (uint32_t)g->type_k || h->type_v != (uint32_t)g->type_v)
        return error_set(s->err, SAC_ERR_ARG,
                         "%s holds keys in %s and values in %s, this engine %s and %s", s->name,
                         sac_kv_type_name((sac_kv_type)h->type_k),
                         sac_kv_type_name((sac_kv_type)h->type_v), sac_kv_type_name(g->type_k),
                         sac_kv_type_name(g->type_v));
    if (h->n_tok > repeat_context(im->e))
        return error_set(s->err, SAC_ERR_CONTEXT, "%s holds %u tokens, the context %u", s->name,
                         h->n_tok, repeat_context(im->e));
    return SAC_OK;
}

/* The index of a specification; n: there is none. */
static uint32_t find_spec(const struct method_spec_list *specs, const char *wanted)
{
    uint32_t i = 0;
    while (i < specs->n && strcmp(specs->text[i], wanted) != 0) i++;
    return i;
}

/* The layout of a method's state depends on the context's size, so it is loaded only if that is the
 * same. */
static sac_status check_state(const struct stream *s, const struct image *im, const char *method,
                              uint64_t saved, uint64_t wanted)
{
    if (saved == 0 && wanted == 0) return SAC_OK;
    if (im->head.n_ctx != repeat_context(im->e))
        return error_set(s->err, SAC_ERR_ARG,
                         "%s was saved with a context of %u tokens and %s, whose state depends on "
                         "it: the context is %u here",
                         s->name, im->head.n_ctx, method, repeat_context(im->e));
    if (saved != wanted)
        return error_set(
            s->err, SAC_ERR_ARG,
            "%s was saved by another build, with another -b, or by an engine whose other "
            "methods repeat longer or shorter pieces (kvzip): the state of %s has "
            "%llu bytes, %llu here",
            s->name, method, (unsigned long long)saved, (unsigned long long)wanted);
    return SAC_OK;
}

/* A method other than that of the state begins with what the sequence provides. */
static sac_status check_start(const struct stream *s, const struct image *im)
{
    const struct method_spec *first = &im->e->method_set[METHOD_SET_DECODE].specs.spec[0];
    const struct method_decode *hooks = first->method->decode;
    if (im->head.has_gaps)
        return error_set(s->err, SAC_ERR_ARG,
                         "%s lacks tokens that decode method %s has dropped: no other method can "
                         "go on with it",
                         s->name, im->head.method[METHOD_SET_DECODE]);
    const uint32_t wanted =
        hooks && hooks->past_rows ? hooks->past_rows(&im->e->shape, first->param) : 0;
    if (im->head.n_past < im->head.n_tok && im->head.n_past < wanted)
        return error_set(s->err, SAC_ERR_ARG,
                         "%s comes from decode method %s and holds the queries of %u rows: %s "
                         "learns from %u%s",
                         s->name, im->head.method[METHOD_SET_DECODE], im->head.n_past, first->text,
                         wanted, s->file ? ", save it with that method" : "");
    return SAC_OK;
}

static sac_status choose_methods(const struct stream *s, struct image *im)
{
    const sac_engine *e = im->e;
    struct seq *seq = &e->seqs[im->seq_i];
    if (im->is_parked) {
        im->keeps[METHOD_SET_DECODE] = im->keeps[METHOD_SET_PREFILL] = true;
        return SAC_OK;
    }
    if (im->only_pages) return im->head.has_gaps ? state_damaged(s, "it lacks pages") : SAC_OK;
    for (int kind = 0; kind < METHOD_SET_KINDS; kind++) {
        const uint32_t i = find_spec(&e->method_set[kind].specs, im->head.method[kind]);
        im->keeps[kind] = i < e->method_set[kind].specs.n;
        seq->method_i[kind] = im->keeps[kind] ? i : 0;
    }
    if (!im->keeps[METHOD_SET_DECODE]) TRY(check_start(s, im));
    for (int kind = 0; kind < METHOD_SET_KINDS; kind++)
        if (im->keeps[kind])
            TRY(check_state(
                s, im, im->head.method[kind], im->head.state_bytes[kind],
                method_set_entry(e, (enum method_set_kind)kind, im->seq_i)->state_bytes));
    const struct method_set_entry *m = method_set_entry(e, METHOD_SET_DECODE, im->seq_i);
    if (im->head.n_segment > 0) TRY(method_set_meets_segments(e, m->spec->method, s->err));
    const bool was_joined = im->head.has_gaps && !m->spec->method->evicts;
    if (was_joined) TRY(method_set_meets_documents(e, m->spec->method, s->err));
    if (was_joined && !e->params.compose)
        return error_set(s->err, SAC_ERR_ARG,
                         "%s lacks pages that were not kept when it was joined from documents: it "
                         "needs an engine with 'compose'",
                         s->name);
    if (im->head.has_gaps && e->params.record)
        return error_set(s->err, SAC_ERR_ARG,
                         "%s lacks dropped tokens, which an engine that records reads needs",
                         s->name);
    return SAC_OK;
}

/* Whether the loaded state of the method of this kind is valid. */
static bool is_sound(const struct image *im, enum method_set_kind kind)
{
    const sac_engine *e = im->e;
    const struct head *h = &im->head;
    const struct method_set_entry *m = method_set_entry(e, kind, im->seq_i);
    for (size_t i = 0; i < e->method_set[kind].n_lane && im->keeps[kind] && m->state_bytes; i++) {
        const page_id *page = pool_table(&e->pool, im->seq_i, (uint32_t)(i / h->n_kv_head)) +
                              i % h->n_kv_head * e->pool.max_page;
        if (!m->hooks.sound(&(struct method_loaded){
                .shape = &e->shape,
                .param = seq_params_spec(e, kind, im->seq_i)->param,
                .state = method_set_state(e, kind, im->seq_i, i),
                .n_tok = kind == METHOD_SET_DECODE
                             ? compact_tokens(e, im->seq_i, (uint32_t)(i / h->n_kv_head), h->n_tok)
                             : h->n_tok,
                .page = kind == METHOD_SET_DECODE ? page : NULL}))
            return false;
    }
    return true;
}

/* Whether a page may be missing: in layers with full attention. Pages that joining has dropped must
 * be before all rows whose queries are kept, and missing for all heads of a layer. */
static bool may_lack(const struct image *im, uint32_t layer, uint32_t page)
{
    const sac_engine *e = im->e;
    const page_id *table = pool_table(&e->pool, im->seq_i, layer);
    uint32_t n = 0;
    for (size_t h = 0; h < im->head.n_kv_head; h++)
        n += table[h * e->pool.max_page + page] == PAGE_NONE;
    if (n == 0) return true;
    if (config_layer_is_local(&e->model->config, layer)) return false;
    return !compact_has_gaps(e, im->seq_i) ||
           (n == im->head.n_kv_head && (page + 1) * PAGE_TOK <= im->head.n_tok - im->head.n_past);
}

static bool gaps_are_possible(const struct image *im)
{
    for (uint32_t layer = 0; layer < im->head.n_layer && im->head.has_gaps; layer++)
        for (uint32_t page = 0; page < im->head.n_tok / PAGE_TOK; page++)
            if (!may_lack(im, layer, page)) return false;
    return true;
}

static sac_status check_loaded(const struct stream *s, const struct image *im)
{
    const sac_engine *e = im->e;
    if (!gaps_are_possible(im)) return state_damaged(s, "pages are missing where none can be");
    if (engine_check_tokens(e, e->seqs[im->seq_i].tok, im->head.n_tok, NULL) != SAC_OK)
        return state_damaged(s, "it holds tokens that the model does not have");
    if (!is_sound(im, METHOD_SET_DECODE))
        return state_damaged(s, "what its decode method had learnt makes no sense");
    if (!is_sound(im, METHOD_SET_PREFILL))
        return state_damaged(s, "what its prefill method had learnt makes no sense");
    return SAC_OK;
}

/* Computes the side data of all pages, as many at a time as a step would seal. */
static sac_status seal_loaded(sac_engine *e, const struct image *im, sac_error *err)
{
    page_id *page = e->attend.seal_id;
    const uint32_t n_max = e->attend.n_new_page_max * im->head.n_kv_head;
    uint32_t n = 0;
    for (size_t lane = 0; lane < state_lane_count(im); lane++) {
        const page_id *table = pool_table(&e->pool, im->seq_i, 0) + lane * e->pool.max_page;
        for (uint32_t i = 0; i < im->head.n_tok / PAGE_TOK; i++) {
            if (table[i] != PAGE_NONE) page[n++] = table[i];
            const bool is_last =
                lane + 1 == state_lane_count(im) && i + 1 == im->head.n_tok / PAGE_TOK;
            if (n < n_max && !is_last) continue;
            const sac_status held = tier_acquire(e->pool.tier, page, n);
            if (held == SAC_OK) side_seal(e, page, n);
            if (tier_holds(held)) tier_release(e->pool.tier, page, n);
            if (held != SAC_OK) return tier_explain(e->pool.tier, held, err);
            n = 0;
        }
    }
    return SAC_OK;
}

static sac_status read_body(struct stream *s, struct image *im)
{
    struct seq *seq = &im->e->seqs[im->seq_i];
    const uint32_t n_tok = im->head.n_tok;
    TRY(choose_methods(s, im));
    /* Set at once, so that removing the sequence finds the pages */
    seq->n_done = seq->n_all = n_tok;
    seq->has_gaps = im->head.has_gaps;
    memset(seq->flags, 0, n_tok);
    TRY(walk(s, im));
    TRY(check_loaded(s, im));
    past_queries_set_begin(im->e, im->seq_i, n_tok - im->head.n_past);
    decode_votes_show(im->e, im->seq_i);
    return im->e->side.page_bytes ? seal_loaded(im->e, im, s->err) : SAC_OK;
}

static sac_status load(struct stream *s, sac_engine *e, bool only_pages, sac_seq *out)
{
    struct image im = {.e = e, .only_pages = only_pages};
    TRY(tensor_parallel_refuse(e, "a sequence that was saved", s->err));
    TRY(state_read_head(s, &im.head));
    TRY(check_engine(s, &im));
    if (e->pool.tier) state_read_ahead(s, im.head.page_at); /* the page bodies stay in the file */
    TRY(sac_seq_create(e, &im.seq_i, s->err));
    const sac_status status = read_body(s, &im);
    if (status != SAC_OK) {
        sac_seq_remove(e, im.seq_i);
        return status;
    }
    *out = im.seq_i;
    return SAC_OK;
}

sac_status state_park(sac_engine *e, sac_seq id, uint8_t **out, size_t *out_n, sac_error *err)
{
    TRY(sac_seq_truncate(e, id, sac_seq_length(e, id, NULL), err));
    TRY(sac_seq_to_bytes(e, id, out, out_n, err));
    return sac_seq_truncate(e, id, 0, err);
}

sac_status state_unpark(sac_engine *e, sac_seq id, const uint8_t *bytes, size_t n, sac_error *err)
{
    struct stream s = {.name = "the sequence", .from = bytes, .size = n, .err = err};
    struct image im = {.e = e, .seq_i = id, .is_parked = true};
    TRY(state_read_head(&s, &im.head));
    const sac_status status = read_body(&s, &im);
    /* Frees what was read before the failure; none of these pages is missing. */
    if (status != SAC_OK) TRY(sac_seq_truncate(e, id, 0, NULL));
    return status;
}

sac_status sac_seq_load(sac_engine *e, const char *path, sac_seq *out, sac_error *err)
{
    struct stream s;
    TRY(state_open_file(&s, path, err));
    sac_status status = state_read_much(&s);
    if (status == SAC_OK) status = load(&s, e, false, out);
    state_close_file(&s);
    return status;
}

sac_status state_load_pages(sac_engine *e, const char *path, uint64_t bytes, sac_seq *out,
                            sac_error *err)
{
    struct stream s;
    TRY(state_open_file(&s, path, err));
    if (bytes < s.size) s.size = bytes;
    sac_status status = state_read_much(&s);
    if (status == SAC_OK) status = load(&s, e, true, out);
    state_close_file(&s);
    return status;
}

sac_status sac_seq_from_bytes(sac_engine *e, const uint8_t *bytes, size_t n, sac_seq *out,
                              sac_error *err)
{
    struct stream s = {.name = "the state", .from = bytes, .size = n, .err = err};
    return load(&s, e, false, out);
}
