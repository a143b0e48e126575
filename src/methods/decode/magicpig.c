/* magicpig.c: tokens sampled by locality-sensitive hashing and weighted by their sampling
 * probability, MagicPIG (Chen et al., ICLR 2025).
 *
 * Keys of the prompt, minus their mean, are hashed to `bits` sign bits in each of `tables` tables.
 * A token is drawn when it collides with the query in two tables or more; for an angle a between
 * them that has the probability w = 1 - (1-c)^L - L c (1-c)^(L-1), c = (1 - a/pi)^K, and -ln w is
 * added to its score: sums over the tokens drawn are then estimates of sums over all. Sinks, recent
 * tokens and later ones are always read, until they leave the window and are hashed. As in the
 * paper layers 0, 16, 32 and so on are dense.
 *
 * Decided here: queries of a group draw separately and all read what any has drawn, with the
 * probability 1 - prod(1 - w) of heads that draw independently, which two heads with similar
 * queries do not: such tokens get somewhat too little weight. Sign bits come from random rotations
 * (hadamard.h) and not from Gaussian vectors. Tokens are found by comparing codes, not by
 * traversing buckets: the same set, with a fraction of the memory; this file is for fidelity and
 * not for speed. */
#include "methods/hadamard.h"
#include "methods/meter.h"
#include "methods/pick.h"
#include "methods/select_scratch.h"

#include <string.h>

#define PARAMS(P)                                                                                  \
    P(COUNT, bits, "10", 0, 16, "sign bits of a hash code; 0 reads everything")                    \
    P(COUNT, tables, "150", 2, 1024, "tables")                                                     \
    P(TOKENS, sink, "4", 0, 4096, "first tokens, always read")                                     \
    P(TOKENS, recent, "64", 0, 65536, "most recent tokens, always read")                           \
    P(COUNT, dense_every, "16", 0, 1024,                                                           \
      "the first of every so many layers uses dense attention; 0: none")
METHOD_PARAMS(magicpig, PARAMS)

struct pig_state {
    uint32_t n_tok; /* first tokens that are hashed, except the sinks; 0: none is */
};

struct parts {
    struct pig_state *state;
    float *mean;    /* [head_dim] of the keys that were hashed first, those of the prompt */
    float *norm;    /* [n_ctx] of the keys minus that mean */
    uint16_t *code; /* [n_ctx, tables] */
};

static size_t cut_state(struct parts *p, const struct method_shape *s, const void *param,
                        void *state)
{
    const struct magicpig_param *set = param;
    struct arena a = {.base = state, .capacity = SIZE_MAX};
    p->state = arena_take(&a, 1, sizeof *p->state);
    p->mean = arena_take(&a, s->geom->head_dim, sizeof *p->mean);
    p->norm = arena_take(&a, s->n_ctx, sizeof *p->norm);
    p->code = arena_take(&a, s->n_ctx * (size_t)set->tables, sizeof *p->code);
    return a.used;
}

static size_t magicpig_state_bytes(const struct method_shape *s, const void *param)
{
    struct parts p;
    return cut_state(&p, s, param, NULL);
}

/* The codes of x [d] in all tables; `turned` has room for d. The directions of one rotation are
 * orthogonal, so their signs are not as independent as those of Gaussian directions. Therefore the
 * bits of a code come from different rotations, and a rotation serves one bit of many tables. */
static void hash(uint16_t *code, const float *x, float *turned, uint32_t d, const void *param)
{
    const struct magicpig_param *set = param;
    const uint32_t n_bit = set->bits, n_table = set->tables;
    uint32_t round = 0;
    assert(n_bit <= 16); /* of a code */
    memset(code, 0, n_table * sizeof *code);
    for (uint32_t b = 0; b < n_bit; b++)
        for (uint32_t t0 = 0; t0 < n_table; t0 += d) {
            memcpy(turned, x, d * sizeof *x);
            hadamard_rotate(turned, d, ++round);
            for (uint32_t t = t0; t < n_table && t < t0 + d; t++)
                code[t] = (uint16_t)(code[t] | (turned[t - t0] > 0) << b);
        }
}

/* Hashes the tokens from n_tok to `end`, which are in sealed pages; the first call computes their
 * mean. False: not finite. */
static bool hash_keys(const struct parts *p, const struct method_lane *l,
                      const struct select_scratch *r, uint32_t end)
{
    const struct magicpig_param *set = l->param;
    const uint32_t d = l->shape->geom->head_dim, sink = set->sink;
    const uint32_t n_table = set->tables;
    const bool first = p->state->n_tok == 0;
    double sum[HEAD_DIM_MAX] = {0}, bad = 0;
    assert(d <= sizeof sum / sizeof sum[0] && end > sink && end <= l->n_sealed * PAGE_TOK);
    for (uint32_t page = 0; first && page * PAGE_TOK < end; page++) {
        pick_keys(r->k, l, page);
        for (uint32_t t = page * PAGE_TOK; t < min_u32(end, (page + 1) * PAGE_TOK); t++)
            for (uint32_t c = 0; c < d && t >= sink; c++)
                sum[c] += (double)r->k[(size_t)(t % PAGE_TOK) * d + c];
    }
    for (uint32_t c = 0; c < d && first; c++) {
        p->mean[c] = (float)(sum[c] / (end - sink));
        bad += (double)(p->mean[c] - p->mean[c]);
    }
    if (bad != 0) return false;
    for (uint32_t page = p->state->n_tok / PAGE_TOK; page * PAGE_TOK < end; page++) {
        pick_keys(r->k, l, page);
        for (uint32_t t = max_u32(p->state->n_tok, page * PAGE_TOK);
             t < min_u32(end, (page + 1) * PAGE_TOK); t++) {
            float *x = r->k + (size_t)(t % PAGE_TOK) * d;
            double square = 0;
            for (uint32_t c = 0; c < d; c++) {
                x[c] -= p->mean[c];
                square += (double)x[c] * (double)x[c];
            }
            p->norm[t] = (float)sqrt(square);
            hash(p->code + (size_t)t * n_table, x, r->qb, d, l->param);
        }
    }
    assert(end >= p->state->n_tok);
    p->state->n_tok = end;
    return true;
}

/* w for L tables of K bits: the probability of a collision in two tables or more, at the angle of
 * this cosine. */
static double draw_probability(double cosine, double bits, double tables)
{
    const double angle = acos(fmin(fmax(cosine, -1), 1)), c = pow(1 - angle / M_PI, bits);
    return 1 - pow(1 - c, tables) - tables * c * pow(1 - c, tables - 1);
}

/* Marks the tokens that query head g draws. */
static void draw(const struct parts *p, const struct method_lane *l, const struct select_scratch *r,
                 uint32_t g, uint32_t *mask)
{
    const struct magicpig_param *set = l->param;
    const uint32_t d = l->shape->geom->head_dim, n_table = set->tables;
    uint16_t code[1024];
    assert(n_table <= sizeof code / sizeof code[0]);
    hash(code, l->q + (size_t)g * d, r->qb, d, l->param);
    meter_read(l, p->code + (size_t)set->sink * n_table,
               (p->state->n_tok - (size_t)set->sink) * n_table * sizeof *p->code);
    for (uint32_t t = set->sink; t < p->state->n_tok; t++) {
        const uint16_t *own = p->code + (size_t)t * n_table;
        uint32_t n = 0;
        for (uint32_t i = 0; i < n_table; i++) n += own[i] == code[i];
        if (n >= 2) mask[t / PAGE_TOK] |= 1u << t % PAGE_TOK;
    }
}

/* Moves the marks to the list of tokens. A token that was drawn gets the log-weight -ln (w + 1e-4),
 * as in the authors' code, w being the probability that any head draws it; sinks and recent tokens
 * get none. */
static void weigh(const struct parts *p, const struct method_lane *l,
                  const struct select_scratch *r, struct method_pick *out)
{
    const struct magicpig_param *set = l->param;
    const uint32_t d = l->shape->geom->head_dim, group = l->shape->group;
    double q_norm[METHOD_GROUP_MAX], q_mean[METHOD_GROUP_MAX];
    uintptr_t line = 0;
    for (uint32_t g = 0; g < group; g++) {
        double square = 0, mean = 0;
        for (uint32_t c = 0; c < d; c++) {
            const double q = (double)l->q[(size_t)g * d + c];
            square += q * q;
            mean += q * (double)p->mean[c];
        }
        q_norm[g] = sqrt(square);
        q_mean[g] = mean;
    }
    for (uint32_t page = 0; page < pick_page_count(l); page++) {
        float dot[METHOD_GROUP_MAX * PAGE_TOK];
        const uint32_t word = out->mask[page];
        if (!word || page * PAGE_TOK >= p->state->n_tok) continue;
        out->mask[page] = 0;
        pick_keys(r->k, l, page);
        l->ops->dots(&(struct op_dots){.a = l->q,
                                       .b = r->k,
                                       .a_stride = d,
                                       .b_stride = d,
                                       .n_a = group,
                                       .n_b = PAGE_TOK,
                                       .width = d,
                                       .out = dot,
                                       .out_stride = PAGE_TOK});
        for (uint32_t left = word; left; left &= left - 1) {
            const uint32_t t = (uint32_t)__builtin_ctz(left), tok = page * PAGE_TOK + t;
            double undrawn = 1;
            if (tok < set->sink || tok >= p->state->n_tok) {
                pick_certain(out, tok);
                continue;
            }
            line = meter_entry(l, &p->norm[tok], line);
            for (uint32_t g = 0; g < group; g++) {
                const double length = q_norm[g] * (double)p->norm[tok];
                const double off = (double)dot[g * PAGE_TOK + t] - q_mean[g];
                undrawn *=
                    1 - draw_probability(length > 0 ? off / length : 0, set->bits, set->tables);
            }
            pick_weighed(out, tok, (float)-log(1 - undrawn + 1e-4));
        }
    }
}

static void magicpig_select(const struct method_lane *l, struct method_pick *out)
{
    const struct magicpig_param *set = l->param;
    const uint32_t sink = set->sink, local = set->recent;
    const uint32_t n = l->pos + 1, n_far = n > local ? n - local : 0;
    const uint32_t end = min_u32(n_far, pick_page_count(l) * PAGE_TOK);
    struct parts p;
    struct select_scratch r;
    const uint32_t every = set->dense_every;
    const bool is_dense = every > 0 && l->layer % every == 0;
    if (set->bits == 0 || is_dense || end <= sink + 1) {
        pick_dense(out);
        return;
    }
    cut_state(&p, l->shape, l->param, l->state);
    select_scratch_make(&r, l->shape, false, l->scratch);
    meter_build(l);
    const bool finite = end <= p.state->n_tok || hash_keys(&p, l, &r, end);
    meter_choose(l);
    if (!finite) {
        pick_not_finite(out);
        return;
    }
    for (uint32_t g = 0; g < l->shape->group; g++) draw(&p, l, &r, g, out->mask);
    pick_range(out, l, 0, sink);
    pick_range(out, l, p.state->n_tok, n);
    weigh(&p, l, &r, out);
}

static void magicpig_cut(void *state, const struct method_shape *s, const void *param,
                         uint32_t n_tok)
{
    struct pig_state *x = state;
    (void)s;
    (void)param;
    x->n_tok = min_u32(x->n_tok, n_tok);
}

static bool magicpig_sound(const struct method_loaded *l)
{
    const struct pig_state *x = l->state;
    return x->n_tok <= l->n_tok / PAGE_TOK * PAGE_TOK;
}

static const struct method_decode hooks = {
    .state_bytes = magicpig_state_bytes,
    .scratch_bytes = select_scratch_page_bytes,
    .select = magicpig_select,
    .cut = magicpig_cut,
    .sound = magicpig_sound,
};

static const sac_method_deviation deviations[] = {
    {"random directions are Gaussian",
     "they come from random rotations, each bit of a code from a different one",
     "they are generated at each use and need no memory", NULL},
    {"each query head draws for itself",
     "all query heads of a KV head read what any of them has drawn, weighted as if heads drew "
     "independently",
     "the same bytes serve all heads",
     "heads with similar queries give such tokens somewhat too little weight"},
    {"hash tables with buckets, traversed on CPU cores", "all codes are compared",
     "the same tokens with less memory; the method is here for its answers, not its speed",
     "none on answers"},
    {"tokens generated beyond a buffer of 256 are never hashed",
     "they are hashed when they leave the most recent 64", "long answers stay sparse", NULL},
};

const struct method magicpig_method = {
    METHOD_DECODE(magicpig,
                  "tokens sampled by locality-sensitive hashing, weighted by inverse probability"),
    .paper = "Chen et al., MagicPIG: LSH Sampling for Efficient LLM Generation, arXiv 2410.16179",
    .about = "Samples tokens where others take the best: the closer a key is to the query, the "
             "likelier it is drawn. Each token is weighted by the inverse of its probability, so "
             "that attention is estimated and not truncated. All tokens stay in the cache, so a "
             "question asked late can still be answered, with the probability of the draw. More "
             "tables or fewer bits draw more tokens.",
    METHOD_DEVIATIONS(deviations),
    .weighs = true,
    .token_grain = true,
    .facts = {.part = "bits=8,tables=30,dense_every=0",
              .whole = "bits=0",
              .n_forced = 4 + 63,
              .keeps_found = true},
    .meets_segments = true,
    .decode = &hooks,
};
