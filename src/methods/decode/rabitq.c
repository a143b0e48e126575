/* rabitq.c: tokens ranked by one bit per channel of their rotated keys, until the wanted mass is
 * reached, RaBitQCache (Zhang et al., ICML 2026), with the estimator of RaBitQ (Gao and Long,
 * SIGMOD 2024).
 *
 * A key minus the mean of its page, o, is rotated by a fixed random rotation; its sketch is the
 * signs of the channels and f = |o|^2 / sum |o_c|. For a query rotated in the same way, f * sum
 * sign_c q_c is an unbiased estimate of o.q over the rotation, and the mean's own product is added.
 * Tokens are taken, the best first, until their estimated softmax shares, mean over the query
 * heads, reach `mass`. A head that needs more than `most` of the context reads all of it. Decided
 * here: the rotation is that of hadamard.h; the query is not rounded to four bits. */
#include "methods/hadamard.h"
#include "methods/pick.h"
#include "methods/rule.h"
#include "methods/select_scratch.h"

#include <string.h>

#define PARAMS(P)                                                                                  \
    P(SHARE, mass, "0.95", "estimated share of the attention to keep")                             \
    P(SHARE, most, "0.5", "above this share of the context, everything is read")                   \
    P(COUNT, dense, "0", 0, 1024, "first layers, which use dense attention")                       \
    P(TOKENS, recent, "64", 0, 4096,                                                               \
      "most recent tokens before the query's own page, always read; rounded up to whole pages")
METHOD_PARAMS(rabitq, PARAMS)

#define SEED 1u /* of the rotation */

/* Side data of a page: f16 [d] the rotated mean; f16 [PAGE_TOK] factors f; signs, bits [PAGE_TOK,
 * d]. */
static size_t rabitq_side_bytes(const struct method_shape *s, const void *param)
{
    const size_t d = s->geom->head_dim;
    (void)param;
    return 2 * d + PAGE_TOK * (2 + d / 8);
}

static void rabitq_seal(uint8_t *side, const struct method_shape *s, const void *param,
                        const float *k)
{
    const uint32_t d = s->geom->head_dim;
    uint16_t *page_mean = (uint16_t *)(void *)side, *factor = page_mean + d;
    uint8_t *sign = (uint8_t *)(factor + PAGE_TOK);
    float mean[HEAD_DIM_MAX], x[HEAD_DIM_MAX];
    assert(d <= HEAD_DIM_MAX && d % 8 == 0);
    (void)param;
    for (uint32_t c = 0; c < d; c++) {
        float sum = 0;
        for (uint32_t t = 0; t < PAGE_TOK; t++) sum += k[(size_t)t * d + c];
        x[c] = sum / PAGE_TOK;
    }
    hadamard_rotate(x, d, SEED);
    for (uint32_t c = 0; c < d; c++) {
        page_mean[c] = f32_to_f16(x[c]); /* NaN if a key is, which makes the page's scores NaN */
        mean[c] = f16_to_f32(page_mean[c]);
    }
    memset(sign, 0, PAGE_TOK * (size_t)d / 8);
    for (uint32_t t = 0; t < PAGE_TOK; t++) {
        float square = 0, sum = 0;
        memcpy(x, k + (size_t)t * d, d * sizeof *x);
        hadamard_rotate(x, d, SEED);
        for (uint32_t c = 0; c < d; c++) {
            const float off = x[c] - mean[c];
            square += off * off;
            sum += fabsf(off);
            sign[(size_t)t * (d / 8) + c / 8] |= (uint8_t)((off > 0) << c % 8);
        }
        factor[t] = f32_to_f16(sum > 0 ? square / sum : 0);
    }
}

/* ---- Selection ---- */

/* Scratch: that of select_scratch.h, and one page's sketch as f32. */
struct sketch {
    struct select_scratch r;
    float *row; /* [PAGE_TOK + 1, d] signs as -1 and 1; the last row is the mean */
    float *dot; /* [group, PAGE_TOK + 1] products of the queries with these */
};

static size_t make_sketch(struct sketch *w, const struct method_shape *s, void *scratch)
{
    const size_t used = select_scratch_make(&w->r, s, true, scratch);
    struct arena a = {.base = scratch ? (uint8_t *)scratch + used : NULL, .capacity = SIZE_MAX};
    w->row = arena_take(&a, (PAGE_TOK + 1) * (size_t)s->geom->head_dim, sizeof *w->row);
    w->dot = arena_take(&a, (size_t)s->group * (PAGE_TOK + 1), sizeof *w->dot);
    return used + a.used;
}

static size_t rabitq_scratch_bytes(const struct method_shape *s, const void *param)
{
    struct sketch w;
    (void)param;
    return make_sketch(&w, s, NULL);
}

/* Estimated logits of a page's tokens: q.mean + f * sum sign_c q_c. */
static void score_page(const struct sketch *w, const struct method_lane *l, uint32_t page)
{
    const uint32_t d = l->shape->geom->head_dim, group = l->shape->group;
    const uint8_t *side = pick_side(l, page, rabitq_side_bytes(l->shape, l->param));
    const uint16_t *page_mean = (const uint16_t *)(const void *)side, *factor = page_mean + d;
    const uint8_t *sign = (const uint8_t *)(factor + PAGE_TOK);
    for (uint32_t i = 0; i < PAGE_TOK * d; i++)
        w->row[i] = (float)(sign[i / 8] >> i % 8 & 1) * 2 - 1;
    for (uint32_t c = 0; c < d; c++) w->row[PAGE_TOK * d + c] = f16_to_f32(page_mean[c]);
    l->ops->dots(&(struct op_dots){.a = w->r.qa,
                                   .b = w->row,
                                   .a_stride = d,
                                   .b_stride = d,
                                   .n_a = group,
                                   .n_b = PAGE_TOK + 1,
                                   .width = d,
                                   .out = w->dot,
                                   .out_stride = PAGE_TOK + 1});
    for (uint32_t g = 0; g < group; g++) {
        const float *dot = w->dot + (size_t)g * (PAGE_TOK + 1);
        float *score = w->r.score + g * w->r.stride + (size_t)page * PAGE_TOK;
        for (uint32_t t = 0; t < PAGE_TOK; t++) {
            const float x = dot[PAGE_TOK] + f16_to_f32(factor[t]) * dot[t];
            score[t] = l->softcap > 0 ? l->softcap * tanhf(x / l->softcap) : x;
        }
    }
}

static void rabitq_select(const struct method_lane *l, struct method_pick *out)
{
    const struct rabitq_param *set = l->param;
    const uint32_t n = pick_page_count(l), d = l->shape->geom->head_dim, group = l->shape->group;
    struct sketch w;
    if (set->mass >= 1 || l->layer < set->dense) {
        pick_dense(out);
        return;
    }
    make_sketch(&w, l->shape, l->scratch);
    for (uint32_t i = 0, end; i < n;) {
        const float *q = pick_query(w.r.qa, l, i, &end);
        for (size_t x = 0; x < (size_t)group * d; x++) w.r.qa[x] = q[x] * l->scale;
        for (uint32_t g = 0; g < group; g++) hadamard_rotate(w.r.qa + (size_t)g * d, d, SEED);
        for (; i < end && i < n; i++) score_page(&w, l, i);
    }
    if (!rule_shares(out, l, &w.r, n * PAGE_TOK)) return;
    pick_end_pages(out, l, PAGE_TOK, set->recent);
    struct pick_cut cut = pick_share(w.r.vote, n * PAGE_TOK, set->mass);
    uint32_t n_read = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits = 0;
        for (uint32_t t = 0; t < PAGE_TOK; t++)
            bits |= (uint32_t)pick_takes(&cut, w.r.vote[i * PAGE_TOK + t]) << t;
        pick_bits(out, i, bits);
        n_read += (uint32_t)__builtin_popcount(out->mask[i]);
    }
    if (n_read > set->most * n * PAGE_TOK) pick_dense(out);
}

static const struct method_decode hooks = {
    .side_bytes = rabitq_side_bytes,
    .scratch_bytes = rabitq_scratch_bytes,
    .seal = rabitq_seal,
    .select = rabitq_select,
};

static const sac_method_deviation deviations[] = {
    {"the query is quantized to four bits", "the query is not quantized",
     "quantizing it saves nothing on this path", NULL},
    {"a random orthogonal matrix rotates keys",
     "rounds of random sign changes and Hadamard transforms do",
     "a matrix costs one multiplication per pair of channels", NULL},
};

const struct method rabitq_method = {
    METHOD_DECODE(
        rabitq,
        "tokens ranked by the sign bits of their rotated keys, until the wanted mass is reached"),
    .paper =
        "Zhang et al., RaBitQCache: Rotated Binary Quantization for KVCache in Long Context LLM "
        "Inference, arXiv 2606.31519",
    .about = "Keeps one bit per channel of each key after a random rotation, and two bytes per "
             "token. From these it computes an unbiased score of every token, and reads the best "
             "until the wanted share is reached. All tokens stay in the cache, so a question asked "
             "late can still be answered. One bit is noisy: the share is an estimate of an "
             "exponential, and more is read than two bits (auto) need for the same share.",
    METHOD_DEVIATIONS(deviations),
    .token_grain = true,
    .facts = {.part = "mass=0.5,most=1", .whole = "mass=1", .n_forced = 3 * PAGE_TOK},
    .meets_segments = true,
    .decode = &hooks,
};
