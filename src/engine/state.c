/* state.c: a sequence as bytes and back, in a file or in memory.
 *
 * Format: struct head; tokens; segments; pages in order of page index, layer, KV head; the tail's
 * tokens; the queries of the last rows; the methods' state; a checksum of all that. One walk
 * describes it for measuring, writing and reading, so the three cannot disagree. Side data of pages
 * is not stored: it follows from their keys and is made anew, so it always fits the keys and the
 * engine's methods.
 *
 * Invariants:
 *  1. The bytes depend on the sequence alone: what other sequences left behind its tokens in tails
 *     and rings is not written.
 *  2. Bytes that are read are hostile until the last check has passed: counts are bounded before
 *     use, the state of methods is looked at by the methods (`sound`), and a sequence that fails is
 *     removed with its pages. The checksum finds damage, it does not vouch for the sender.
 *
 * Not here: samplers and requests, which have no part in what attention reads. */
#include "engine/state.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "kv/mirror.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#define XXH_STATIC_LINKING_ONLY /* a hash that needs no allocation */
#include <xxhash.h>

#define MAGIC   "SACSTATE"
#define VERSION 2u

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the format is little-endian");

struct head {
    char magic[8];
    uint32_t version, page_tok;
    uint64_t model; /* its fingerprint */
    uint64_t bytes; /* of all */
    uint32_t n_layer, n_kv_head, head_dim, group;
    uint32_t type_k, type_v;
    uint32_t n_ctx, n_tok;
    uint32_t n_past;                     /* last rows whose queries follow */
    uint32_t has_gaps;                   /* a byte before each page tells whether it is there */
    uint64_t state_bytes[CHOOSER_KINDS]; /* of a lane */
    char method[CHOOSER_KINDS][SPEC_BYTES];
    uint64_t n_segment;
    uint64_t check; /* of the above */
};

_Static_assert(sizeof(struct segment) == 8, "none here either");
_Static_assert(sizeof(struct head) == 104 + CHOOSER_KINDS * SPEC_BYTES,
               "no padding, which would be written");

enum direction { MEASURE, WRITE, READ };

struct stream {
    enum direction direction;
    const char *name;    /* of the file, for messages */
    FILE *file;          /* NULL: memory */
    uint8_t *to;         /* [size] */
    const uint8_t *from; /* [size] */
    uint64_t size, n;    /* bytes there are; passed so far */
    XXH3_state_t hash;
    sac_error *err;
};

/* What is saved, or becomes of what is loaded. */
struct image {
    sac_engine *e;
    uint32_t seq_i;
    struct head head;
    bool keeps[CHOOSER_KINDS]; /* state of methods goes to, or comes from, the engine */
    bool only_pages;           /* nothing is appended, so methods have nothing to go on with */
    bool is_parked;            /* the sequence has kept its methods and how they are set */
};

static sac_status damaged(const struct stream *s, const char *what)
{
    return error_set(s->err, SAC_ERR_FORMAT, "%s is damaged: %s", s->name, what);
}

/* Moves n bytes between p and the stream; p NULL: they are read and let go. */
static sac_status transfer(struct stream *s, void *p, size_t n)
{
    uint8_t spare[4096];
    s->n += n;
    if (s->direction == MEASURE) return SAC_OK;
    if (s->n > s->size) return damaged(s, "its parts are longer than the whole");
    for (size_t part; n > 0; n -= part) {
        part = p || n < sizeof spare ? n : sizeof spare;
        void *at = p ? p : spare;
        const uint64_t from = s->n - n;
        if (!s->file && s->direction == WRITE) memcpy(s->to + from, at, part);
        if (!s->file && s->direction == READ) memcpy(at, s->from + from, part);
        if (s->file && s->direction == WRITE && fwrite(at, 1, part, s->file) != part)
            return error_set(s->err, SAC_ERR_IO, "cannot write %s: %s", s->name, strerror(errno));
        if (s->file && s->direction == READ && fread(at, 1, part, s->file) != part)
            return error_set(s->err, SAC_ERR_IO, "cannot read %s: %s", s->name,
                             ferror(s->file) ? strerror(errno) : "it has become shorter");
        XXH3_64bits_update(&s->hash, at, part);
    }
    return SAC_OK;
}

/* Bytes of the pool, which may be a device's. */
static sac_status transfer_page(struct stream *s, const struct pool *p, uint8_t *at, size_t n)
{
    uint8_t *bytes = mirror_room(p, at);
    if (s->direction == WRITE) TRY(mirror_fetch(p, &bytes, at, n, s->err));
    TRY(transfer(s, bytes, n));
    if (s->direction == READ) mirror_store(p, at, n);
    return SAC_OK;
}

/* ---- The walk ---- */

static size_t lane_count(const struct image *im)
{
    return (size_t)im->head.n_layer * im->head.n_kv_head;
}

static sac_status reserve(struct stream *s, const struct image *im, uint32_t first, uint32_t n)
{
    struct pool *p = &im->e->pool;
    if (s->direction == READ) reuse_make_room(im->e, n);
    if (s->direction != READ || n == 0 || pool_reserve(p, im->seq_i, first, n)) return SAC_OK;
    return error_set(s->err, SAC_ERR_CONTEXT,
                     "%s: no room for %u tokens: %u of the KV pool's %u pages are free", s->name,
                     im->head.n_tok, p->n_free, p->n_page);
}

/* The bytes of a page, wherever they are. */
static sac_status move_page(struct stream *s, struct pool *p, page_id id)
{
    if (s->direction == MEASURE) return transfer(s, NULL, p->geom.bytes);
    const bool reads = s->direction == READ;
    const sac_status held = reads ? tier_open(p->tier, &id, 1) : tier_acquire(p->tier, &id, 1);
    sac_status status =
        held == SAC_OK ? transfer_page(s, p, pool_page(p, id), p->geom.bytes) : held;
    if (held == SAC_OK && reads)
        tier_close(p->tier, &id, 1);
    else if (!reads && tier_holds(held))
        tier_release(p->tier, &id, 1);
    return held == SAC_OK ? status : tier_explain(p->tier, held, s->err);
}

static sac_status walk_page(struct stream *s, const struct image *im, size_t lane, uint32_t page_i)
{
    struct pool *p = &im->e->pool;
    const uint32_t layer = (uint32_t)(lane / im->head.n_kv_head),
                   h = (uint32_t)(lane % im->head.n_kv_head);
    const page_id id = pool_table(p, im->seq_i, layer)[(size_t)h * p->max_page + page_i];
    uint8_t is_there = id != PAGE_NONE;
    if (im->head.has_gaps) TRY(transfer(s, &is_there, 1));
    if (is_there > 1) return damaged(s, "a page is neither there nor not");
    if (is_there) return move_page(s, p, id);
    if (s->direction == READ) pool_drop(p, im->seq_i, layer, h, page_i);
    return SAC_OK;
}

static sac_status walk_pages(struct stream *s, const struct image *im)
{
    const uint32_t n_page = im->head.n_tok / PAGE_TOK;
    /* Together, so that pages of a lane lie behind each other; but one by one where some are given
     * back at once, so that no more are taken than are kept. */
    if (!im->head.has_gaps) TRY(reserve(s, im, 0, n_page));
    for (uint32_t i = 0; i < n_page; i++) {
        if (im->head.has_gaps) TRY(reserve(s, im, i, 1));
        for (size_t lane = 0; lane < lane_count(im); lane++) TRY(walk_page(s, im, lane, i));
    }
    return SAC_OK;
}

static sac_status walk_tail(struct stream *s, const struct image *im)
{
    const struct page_geom *g = &im->e->pool.geom;
    const size_t bytes = im->head.n_tok % PAGE_TOK * (size_t)g->head_dim * 2;
    uint8_t *tail = pool_tail(&im->e->pool, im->seq_i, 0);
    for (size_t lane = 0; lane < lane_count(im); lane++, tail += g->tail_bytes) {
        TRY(transfer_page(s, &im->e->pool, tail, bytes));
        TRY(transfer_page(s, &im->e->pool, tail + g->tail_v, bytes));
    }
    return SAC_OK;
}

static sac_status walk_segments(struct stream *s, const struct image *im)
{
    struct segment list[SEGMENT_MAX];
    const uint32_t n = (uint32_t)im->head.n_segment;
    memcpy(list, segment_list(im->e, im->seq_i), n * sizeof *list);
    TRY(transfer(s, list, n * sizeof *list));
    if (s->direction != READ) return SAC_OK;
    if (!segment_sound(list, n, im->head.n_tok / PAGE_TOK))
        return damaged(s, "its segments make no sense");
    segment_restore(im->e, im->seq_i, list, n);
    return SAC_OK;
}

/* By position: rings of different sizes hold the rows at different places. */
static sac_status walk_past(struct stream *s, const struct image *im)
{
    const struct past *p = &im->e->past;
    const struct config *c = &im->e->model->config;
    const size_t floats = (size_t)im->head.group * im->head.head_dim;
    for (size_t lane = 0; lane < lane_count(im); lane++) {
        float *ring = p->n_slot ? past_ring(im->e, im->seq_i, lane) : NULL;
        if (config_layer_is_local(c, (uint32_t)(lane / im->head.n_kv_head))) continue;
        for (uint32_t pos = im->head.n_tok - im->head.n_past; pos < im->head.n_tok; pos++)
            TRY(transfer(s, ring ? ring + pos % p->n_slot * floats : NULL, floats * sizeof *ring));
    }
    return SAC_OK;
}

static sac_status walk_state(struct stream *s, const struct image *im)
{
    for (int i = 0; i < CHOOSER_KINDS; i++) {
        const enum chooser_kind kind = (enum chooser_kind)i;
        const size_t bytes = im->head.state_bytes[kind];
        for (size_t lane = 0; lane < im->e->chooser[kind].n_lane && bytes; lane++)
            TRY(transfer(s, im->keeps[kind] ? chooser_state(im->e, kind, im->seq_i, lane) : NULL,
                         bytes));
    }
    return SAC_OK;
}

/* All but the head. */
static sac_status walk(struct stream *s, const struct image *im)
{
    TRY(transfer(s, im->e->seqs[im->seq_i].tok, im->head.n_tok * sizeof(int32_t)));
    TRY(walk_segments(s, im));
    TRY(walk_pages(s, im));
    TRY(walk_tail(s, im));
    TRY(walk_past(s, im));
    TRY(walk_state(s, im));
    const uint64_t sum = XXH3_64bits_digest(&s->hash);
    uint64_t stored = sum;
    TRY(transfer(s, &stored, sizeof stored));
    if (stored != sum) return damaged(s, "its checksum is another one");
    if (s->direction == READ && s->n != s->size)
        return damaged(s, "its parts are shorter than the whole");
    return SAC_OK;
}

static uint64_t head_check(const struct head *h)
{
    return XXH3_64bits(h, offsetof(struct head, check));
}

/* ---- Saving ---- */

static struct head make_head(const sac_engine *e, uint32_t seq_i)
{
    const struct seq *s = &e->seqs[seq_i];
    const struct page_geom *g = &e->pool.geom;
    struct head h = {
        .magic = {MAGIC[0], MAGIC[1], MAGIC[2], MAGIC[3], MAGIC[4], MAGIC[5], MAGIC[6], MAGIC[7]},
        .version = VERSION,
        .page_tok = PAGE_TOK,
        .model = e->model->fingerprint,
        .n_layer = g->n_layer,
        .n_kv_head = g->n_kv_head,
        .head_dim = g->head_dim,
        .group = e->model->config.n_head / g->n_kv_head,
        .type_k = g->type_k,
        .type_v = g->type_v,
        .n_ctx = e->params.n_ctx,
        .n_tok = s->n_done,
        .n_past = s->n_done - past_begin(e, seq_i, s->n_done),
        .has_gaps = s->has_gaps,
        .n_segment = e->segments.n[seq_i]};
    for (int kind = 0; kind < CHOOSER_KINDS; kind++) {
        const struct chooser_method *m = chooser_method(e, (enum chooser_kind)kind, seq_i);
        h.state_bytes[kind] = m->state_bytes;
        memcpy(h.method[kind], dial_spec(e, (enum chooser_kind)kind, seq_i)->text, SPEC_BYTES);
    }
    return h;
}

static sac_status check_saveable(const sac_engine *e, sac_seq id, sac_error *err)
{
    const struct seq *seq = engine_seq(e, id, err);
    if (!seq) return SAC_ERR_NOT_FOUND;
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
    im->head.check = head_check(&im->head);
    return SAC_OK;
}

static sac_status save(struct stream *s, struct image *im)
{
    s->direction = WRITE;
    s->size = im->head.bytes;
    XXH3_64bits_reset(&s->hash);
    TRY(transfer(s, &im->head, sizeof im->head));
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

/* Writes beside the file and puts the whole in its place. */
sac_status sac_seq_save(sac_engine *e, sac_seq id, const char *path, sac_error *err)
{
    char part[4096];
    if (snprintf(part, sizeof part, "%s.part", path) >= (int)sizeof part)
        return error_set(err, SAC_ERR_ARG, "a path of %zu bytes is too long", strlen(path));
    TRY(check_saveable(e, id, err));
    FILE *file = fopen(part, "wb");
    if (!file) return error_set(err, SAC_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    sac_status status = state_write(e, id, file, path, err);
    /* Only closing tells of a full disk for certain. */
    if ((fclose(file) != 0 || (status == SAC_OK && rename(part, path) != 0)) && status == SAC_OK)
        status = error_set(err, SAC_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    if (status != SAC_OK) remove(part);
    return status;
}

/* ---- Loading ---- */

static sac_status read_head(struct stream *s, struct head *h)
{
    s->direction = READ;
    XXH3_64bits_reset(&s->hash);
    if (s->size < sizeof *h)
        return error_set(s->err, SAC_ERR_FORMAT, "%s has %llu bytes: no saved sequence", s->name,
                         (unsigned long long)s->size);
    TRY(transfer(s, h, sizeof *h));
    if (memcmp(h->magic, MAGIC, sizeof h->magic) != 0)
        return error_set(s->err, SAC_ERR_FORMAT, "%s is no saved sequence", s->name);
    if (h->version != VERSION || h->page_tok != PAGE_TOK)
        return error_set(s->err, SAC_ERR_UNSUPPORTED,
                         "%s has format version %u with pages of %u tokens, this build reads %u "
                         "with %u",
                         s->name, h->version, h->page_tok, VERSION, PAGE_TOK);
    if (h->check != head_check(h)) return damaged(s, "its head's checksum is another one");
    if (h->bytes != s->size)
        return error_set(s->err, SAC_ERR_FORMAT, "%s is %s: it has %llu bytes of %llu", s->name,
                         s->size < h->bytes ? "cut short" : "too long", (unsigned long long)s->size,
                         (unsigned long long)h->bytes);
    const bool has_names =
        memchr(h->method[0], 0, SPEC_BYTES) && memchr(h->method[1], 0, SPEC_BYTES);
    if (!has_names || h->type_k > SAC_KV_Q8 || h->type_v > SAC_KV_Q8 || h->n_past > h->n_tok ||
        h->has_gaps > 1 || h->n_segment > SEGMENT_MAX)
        return damaged(s, "its head makes no sense");
    return SAC_OK;
}

const char *state_type_name(uint32_t type)
{
    static const char *const names[] = {"f16", "bf16", "q8"};
    assert(type < sizeof names / sizeof names[0]);
    return names[type];
}

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
                         state_type_name(h->type_k), state_type_name(h->type_v),
                         state_type_name(g->type_k), state_type_name(g->type_v));
    if (h->n_tok > im->e->params.n_ctx)
        return error_set(s->err, SAC_ERR_CONTEXT, "%s holds %u tokens, the context %u", s->name,
                         h->n_tok, im->e->params.n_ctx);
    return SAC_OK;
}

/* n: there is none. */
static uint32_t find_spec(const struct spec_list *specs, const char *wanted)
{
    uint32_t i = 0;
    while (i < specs->n && strcmp(specs->text[i], wanted) != 0) i++;
    return i;
}

/* State is laid out for a context, so it goes where that is the same. */
static sac_status check_state(const struct stream *s, const struct image *im, const char *method,
                              uint64_t saved, uint64_t wanted)
{
    if (saved == 0 && wanted == 0) return SAC_OK;
    if (im->head.n_ctx != im->e->params.n_ctx)
        return error_set(s->err, SAC_ERR_ARG,
                         "%s was saved with a context of %u tokens and %s, whose state depends on "
                         "it: the context is %u here",
                         s->name, im->head.n_ctx, method, im->e->params.n_ctx);
    if (saved != wanted)
        return error_set(s->err, SAC_ERR_ARG,
                         "%s was saved by another build, or with another -b: the state of %s has "
                         "%llu bytes, %llu here",
                         s->name, method, (unsigned long long)saved, (unsigned long long)wanted);
    return SAC_OK;
}

/* A method that is not the one of the state begins with what the sequence tells. */
static sac_status check_start(const struct stream *s, const struct image *im)
{
    const struct spec *first = &im->e->chooser[CHOOSER_DECODE].specs.spec[0];
    const struct method_decode *hooks = first->method->decode;
    if (im->head.has_gaps)
        return error_set(s->err, SAC_ERR_ARG,
                         "%s was saved with decode method %s, which has dropped tokens: no other "
                         "can go on with it",
                         s->name, im->head.method[CHOOSER_DECODE]);
    const uint32_t wanted =
        hooks && hooks->past_rows ? hooks->past_rows(&im->e->shape, first->param) : 0;
    if (im->head.n_past < im->head.n_tok && im->head.n_past < wanted)
        return error_set(s->err, SAC_ERR_ARG,
                         "%s was saved with decode method %s and holds the queries of %u rows: "
                         "%s learns from %u, save it with that method",
                         s->name, im->head.method[CHOOSER_DECODE], im->head.n_past, first->text,
                         wanted);
    return SAC_OK;
}

static sac_status choose_methods(const struct stream *s, struct image *im)
{
    const sac_engine *e = im->e;
    struct seq *seq = &e->seqs[im->seq_i];
    if (im->is_parked) {
        im->keeps[CHOOSER_DECODE] = im->keeps[CHOOSER_PREFILL] = true;
        return SAC_OK;
    }
    if (im->only_pages) return im->head.has_gaps ? damaged(s, "it lacks pages") : SAC_OK;
    for (int kind = 0; kind < CHOOSER_KINDS; kind++) {
        const uint32_t i = find_spec(&e->chooser[kind].specs, im->head.method[kind]);
        im->keeps[kind] = i < e->chooser[kind].specs.n;
        seq->method_i[kind] = im->keeps[kind] ? i : 0;
    }
    if (!im->keeps[CHOOSER_DECODE]) TRY(check_start(s, im));
    for (int kind = 0; kind < CHOOSER_KINDS; kind++)
        if (im->keeps[kind])
            TRY(check_state(s, im, im->head.method[kind], im->head.state_bytes[kind],
                            chooser_method(e, (enum chooser_kind)kind, im->seq_i)->state_bytes));
    const struct chooser_method *m = chooser_method(e, CHOOSER_DECODE, im->seq_i);
    if (im->head.n_segment > 0) TRY(chooser_meets_segments(m->spec->method, s->err));
    if (im->head.has_gaps && !m->spec->method->evicts && !e->params.compose)
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

/* Whether what the method of this kind has learnt may be so. */
static bool is_sound(const struct image *im, enum chooser_kind kind)
{
    const sac_engine *e = im->e;
    const struct head *h = &im->head;
    const struct chooser_method *m = chooser_method(e, kind, im->seq_i);
    for (size_t i = 0; i < e->chooser[kind].n_lane && im->keeps[kind] && m->state_bytes; i++) {
        const page_id *page = pool_table(&e->pool, im->seq_i, (uint32_t)(i / h->n_kv_head)) +
                              i % h->n_kv_head * e->pool.max_page;
        if (!m->hooks.sound(&(struct method_loaded){
                .shape = &e->shape,
                .param = dial_spec(e, kind, im->seq_i)->param,
                .state = chooser_state(e, kind, im->seq_i, i),

                .n_tok = kind == CHOOSER_DECODE
                             ? compact_tokens(e, im->seq_i, (uint32_t)(i / h->n_kv_head), h->n_tok)
                             : h->n_tok,
                .page = kind == CHOOSER_DECODE ? page : NULL}))
            return false;
    }
    return true;
}

/* Pages may lack in layers that see everything; where joining has dropped them, before all rows
 * whose queries are kept, and for all heads of a layer. */
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
    if (!gaps_are_possible(im)) return damaged(s, "pages are missing where none can be");
    if (engine_check_tokens(e, e->seqs[im->seq_i].tok, im->head.n_tok, NULL) != SAC_OK)
        return damaged(s, "it holds tokens that the model does not have");
    if (!is_sound(im, CHOOSER_DECODE))
        return damaged(s, "what its decode method had learnt makes no sense");
    if (!is_sound(im, CHOOSER_PREFILL))
        return damaged(s, "what its prefill method had learnt makes no sense");
    return SAC_OK;
}

/* Side data of all pages, as many at a time as a step would seal. */
static sac_status seal_loaded(sac_engine *e, const struct image *im, sac_error *err)
{
    page_id *page = e->attend.seal_id;
    const uint32_t n_max = e->attend.n_new_page_max * im->head.n_kv_head;
    uint32_t n = 0;
    for (size_t lane = 0; lane < lane_count(im); lane++) {
        const page_id *table = pool_table(&e->pool, im->seq_i, 0) + lane * e->pool.max_page;
        for (uint32_t i = 0; i < im->head.n_tok / PAGE_TOK; i++) {
            if (table[i] != PAGE_NONE) page[n++] = table[i];
            const bool is_last = lane + 1 == lane_count(im) && i + 1 == im->head.n_tok / PAGE_TOK;
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
    seq->n_done = seq->n_all = n_tok; /* at once: so that a removal finds the pages */
    seq->has_gaps = im->head.has_gaps;
    memset(seq->flags, 0, n_tok);
    TRY(walk(s, im));
    TRY(check_loaded(s, im));
    past_set_begin(im->e, im->seq_i, n_tok - im->head.n_past);
    return im->e->side.page_bytes ? seal_loaded(im->e, im, s->err) : SAC_OK;
}

static sac_status load(struct stream *s, sac_engine *e, bool only_pages, sac_seq *out)
{
    struct image im = {.e = e, .only_pages = only_pages};
    TRY(read_head(s, &im.head));
    TRY(check_engine(s, &im));
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
    TRY(read_head(&s, &im.head));
    const sac_status status = read_body(&s, &im);
    /* No page of what came before the failure is missing: it ends where a page could not be had. */
    if (status != SAC_OK) TRY(sac_seq_truncate(e, id, 0, NULL));
    return status;
}

static sac_status open_file(struct stream *s, const char *path, sac_error *err)
{
    struct stat st;
    *s = (struct stream){.name = path, .file = fopen(path, "rb"), .err = err};
    if (!s->file)
        return error_set(err, errno == ENOENT ? SAC_ERR_NOT_FOUND : SAC_ERR_IO,
                         "cannot read %s: %s", path, strerror(errno));
    if (fstat(fileno(s->file), &st) == 0 && S_ISREG(st.st_mode)) {
        s->size = (uint64_t)st.st_size;
        return SAC_OK;
    }
    fclose(s->file);
    return error_set(err, SAC_ERR_IO, "cannot read %s: no file", path);
}

sac_status sac_seq_load(sac_engine *e, const char *path, sac_seq *out, sac_error *err)
{
    struct stream s;
    TRY(open_file(&s, path, err));
    const sac_status status = load(&s, e, false, out);
    fclose(s.file);
    return status;
}

sac_status state_load_pages(sac_engine *e, const char *path, uint64_t bytes, sac_seq *out,
                            sac_error *err)
{
    struct stream s;
    TRY(open_file(&s, path, err));
    if (bytes < s.size) s.size = bytes;
    const sac_status status = load(&s, e, true, out);
    fclose(s.file);
    return status;
}

sac_status sac_seq_from_bytes(sac_engine *e, const uint8_t *bytes, size_t n, sac_seq *out,
                              sac_error *err)
{
    struct stream s = {.name = "the state", .from = bytes, .size = n, .err = err};
    return load(&s, e, false, out);
}

sac_status sac_state_get_info(sac_state_info *out, const char *path, sac_error *err)
{
    struct stream s;
    struct head h = {0};
    TRY(open_file(&s, path, err));
    const sac_status status = read_head(&s, &h);
    fclose(s.file);
    if (status != SAC_OK) return status;
    *out = (sac_state_info){.n_tok = h.n_tok,
                            .n_ctx = h.n_ctx,
                            .type_k = (sac_kv_type)h.type_k,
                            .type_v = (sac_kv_type)h.type_v,
                            .bytes = h.bytes};
    memcpy(out->decode, h.method[CHOOSER_DECODE], sizeof out->decode);
    memcpy(out->prefill, h.method[CHOOSER_PREFILL], sizeof out->prefill);
    return SAC_OK;
}

sac_status state_holds(const char *path, uint64_t bytes, const int32_t *tok, size_t n, bool *out,
                       sac_error *err)
{
    struct stream s;
    struct head h = {0};
    int32_t piece[1024];
    TRY(open_file(&s, path, err));
    if (bytes < s.size) s.size = bytes;
    sac_status status = read_head(&s, &h);
    bool same = status == SAC_OK && h.n_tok == n;
    for (size_t i = 0, part; same && i < n; i += part) {
        part = n - i < 1024 ? n - i : 1024;
        status = transfer(&s, piece, part * sizeof *piece);
        same = status == SAC_OK && memcmp(piece, tok + i, part * sizeof *piece) == 0;
    }
    fclose(s.file);
    *out = same;
    return status;
}

static sac_status check_sum(struct stream *s)
{
    struct head h;
    uint64_t stored = 0;
    TRY(read_head(s, &h));
    if (s->size < s->n + sizeof stored) return damaged(s, "its parts are longer than the whole");
    for (uint64_t left = s->size - s->n - sizeof stored; left;) {
        const size_t part = left < (1u << 20) ? (size_t)left : 1u << 20;
        TRY(transfer(s, NULL, part));
        left -= part;
    }
    const uint64_t sum = XXH3_64bits_digest(&s->hash);
    TRY(transfer(s, &stored, sizeof stored));
    return stored == sum ? SAC_OK : damaged(s, "its checksum is another one");
}

sac_status state_verify(const char *path, uint64_t bytes, sac_error *err)
{
    struct stream s;
    TRY(open_file(&s, path, err));
    if (bytes < s.size) s.size = bytes;
    const sac_status status = check_sum(&s);
    fclose(s.file);
    return status;
}
