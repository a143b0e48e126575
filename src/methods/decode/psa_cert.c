/* psa_cert.c: progressive sparse attention that proves what it has covered.
 *
 * psa estimates the mass of the unread pages; here it is bounded. A bound on every token's score
 * follows from what is known of its page without reading it, so the remaining mass is at most R,
 * and the share seen is at least A / (A + R), A being the exact mass of the pages visited. What is
 * known of a page, `by`:
 *  - box, sphere: bounds of its channels, or of the distance from its centre. One bound for 32
 *    tokens; it ignores correlations between channels, and on real keys it proves nothing until
 *    nearly all is read (92 % at 16K on qwen2.5-coder-0.5b). Included for measurements.
 *  - shadow8, shadow4: keys rounded to 8 or 4 bits per channel, and for each token the norm e of
 *    the rounding error: q.k <= q.k' + |q| e (Cauchy-Schwarz).
 *
 * Soundness: norms and boxes are rounded outwards, products in f32 get an allowance
 * (ops/cpu/lanes_bound.c), the row's own page is always read, and logits of what is read are summed
 * in f64. Pages are visited in order of their bound, one order per KV head; the heads stop
 * together. As in psa a page is read once (visit.h). mode=report stops by psa's estimate and only
 * reports what is proved.
 *
 * The output's certificate: no omitted value is longer than the longest of its page, which is
 * stored with each page; with the mass this bounds the distance of the output from dense
 * attention's (engine/proof.c).
 *
 * Not here: the two-stage form (4 bits first, 8 where they do not suffice). */
#include "methods/batch.h"
#include "methods/box.h"
#include "methods/meter.h"
#include "methods/pick.h"
#include "methods/visit.h"

#define PARAMS(P)                                                                                  \
    P(SHARE, mass, "0.95", "share of the attention to prove")                                      \
    P(CHOICE, by, "shadow8", "shadow8|shadow4|box|sphere", "what bounds a score")                  \
    P(CHOICE, mode, "stop", "stop|report", "stop when the share is proved, or as psa does")        \
    P(COUNT, step, "1", 1, 64, "pages between two checks of the proof")                            \
    P(COUNT, ahead, "2", 0, 64,                                                                    \
      "steps whose pages are fetched while others are read (with pages on disk)")                  \
    P(COUNT, dense, "0", 0, 1024, "first layers, which use dense attention")                       \
    P(TOKENS, recent, "64", 0, 4096,                                                               \
      "most recent tokens before the query's own page, always read; rounded up to whole pages")
METHOD_PARAMS(psa_cert, PARAMS)

/* ---- Side data ---- */

static enum op_bound bound_of(const void *param)
{
    const struct psa_cert_param *set = param;
    return (enum op_bound)set->by; /* the choices are in the order of the enum */
}

static size_t psa_cert_side_bytes(const struct method_shape *s, const void *param)
{
    return op_bound_bytes(bound_of(param), s->geom->head_dim);
}

/* Stores the 4-bit code of token t in channel c; channels c and c + d / 2 share a byte. */
static void put_code(const struct op_bound_side *s, uint32_t t, uint32_t c, uint32_t d,
                     uint32_t code)
{
    uint8_t *at = &s->code[(size_t)t * (d / 2) + c % (d / 2)];
    *at =
        (uint8_t)(c < d / 2 ? code : *at | code << 4); /* the first half of the channels is first */
}

/* Shadow keys k': each channel rounded to 8 or 4 bits between its minimum and maximum over the
 * page; and for each token the norm of the rounding error |k - k'|, rounded up. */
static void seal_shadow(const struct op_bound_side *s, uint32_t d, enum op_bound by, const float *k)
{
    const float levels = by == OP_BOUND_SHADOW8 ? 255 : 15;
    double off[PAGE_TOK] = {0};
    for (uint32_t c = 0; c < d; c++) {
        float lo = k[c], hi = k[c];
        for (uint32_t t = 0; t < PAGE_TOK; t++) {
            lo = fminf(lo, k[(size_t)t * d + c]);
            hi = fmaxf(hi, k[(size_t)t * d + c]);
        }
        s->a[c] = f32_to_f16(lo);
        s->b[c] = f32_to_f16((hi - lo) / levels);
        const float from = f16_to_f32(s->a[c]), step = f16_to_f32(s->b[c]);
        for (uint32_t t = 0; t < PAGE_TOK; t++) {
            const float x = k[(size_t)t * d + c], at = step > 0 ? (x - from) / step : 0;
            const uint32_t code = at >= levels ? (uint32_t)levels
                                  : at > 0     ? (uint32_t)(at + 0.5f)
                                               : 0;
            if (by == OP_BOUND_SHADOW8)
                s->code[(size_t)t * d + c] = (uint8_t)code;
            else
                put_code(s, t, c, d, code);
            const double err = (double)x - (double)(from + step * (float)code);
            off[t] += err * err; /* NaN or infinity in a key propagates to here */
        }
    }
    for (uint32_t t = 0; t < PAGE_TOK; t++) s->length[t] = box_half((float)sqrt(off[t]), true);
}

/* A sphere: the centre of the keys' box, and the largest distance of a key from it, rounded up. */
static void seal_sphere(const struct op_bound_side *s, uint32_t d, const float *k)
{
    double most = 0, bad = 0;
    for (uint32_t c = 0; c < d; c++) {
        float lo = k[c], hi = k[c];
        for (uint32_t t = 1; t < PAGE_TOK; t++) {
            lo = fminf(lo, k[(size_t)t * d + c]);
            hi = fmaxf(hi, k[(size_t)t * d + c]);
        }
        s->a[c] = f32_to_f16((lo + hi) / 2);
    }
    for (uint32_t t = 0; t < PAGE_TOK; t++) {
        double sum = 0;
        for (uint32_t c = 0; c < d; c++) {
            const double x = (double)k[(size_t)t * d + c] - (double)f16_to_f32(s->a[c]);
            sum += x * x;
        }
        most = fmax(most, sum);
        bad += sum - sum; /* NaN once a key is not finite */
    }
    s->length[0] = box_half((float)sqrt(most + bad), true);
}

static void psa_cert_seal(uint8_t *side, const struct method_shape *s, const void *param,
                          const float *k)
{
    const enum op_bound by = bound_of(param);
    const struct op_bound_side parts = op_bound_side(side, by, s->geom->head_dim);
    if (by == OP_BOUND_BOX)
        box_seal((uint8_t *)parts.a, s, BOX_BOUND, k);
    else if (by == OP_BOUND_SPHERE)
        seal_sphere(&parts, s->geom->head_dim, k);
    else
        seal_shadow(&parts, s->geom->head_dim, by, k);
}

/* Stores the largest norm of the page's values, rounded up. */
static void psa_cert_seal_value(uint8_t *side, const struct method_shape *s, const void *param,
                                const float *v)
{
    const uint32_t d = s->geom->head_dim;
    double most = 0, bad = 0;
    for (uint32_t t = 0; t < PAGE_TOK; t++) {
        double sum = 0;
        for (uint32_t c = 0; c < d; c++)
            sum += (double)v[(size_t)t * d + c] * (double)v[(size_t)t * d + c];
        most = fmax(most, sum);
        bad += sum - sum; /* NaN once a value is not finite */
    }
    /* The factor covers the rounding of the root and of the cast. */
    const double length = sqrt(most) * (1 + 1e-6);
    *op_bound_side(side, bound_of(param), d).value =
        box_half(isnan(bad) ? INFINITY : (float)length, true);
}

/* ---- Selection ---- */

/* The scratch of visits, followed by what the proof needs. */
struct cert_scratch {
    struct visit_scratch visit;
    struct op_visit_proof *proof;
    double *left;
    size_t bytes;
};

static struct cert_scratch make_scratch(const struct method_shape *s, const void *param,
                                        void *scratch)
{
    struct cert_scratch r;
    r.visit = visit_scratch_of(s, false, select_scratch_page_bytes(s, param), scratch);
    struct arena a = {.base = scratch, .capacity = SIZE_MAX, .used = r.visit.bytes};
    r.proof = arena_take(&a, 1, sizeof *r.proof);
    r.left = arena_take(&a, s->group * (r.visit.scratch.stride + 1), sizeof *r.left);
    r.bytes = a.used;
    return r;
}

static size_t psa_cert_scratch_bytes(const struct method_shape *s, const void *param)
{
    return make_scratch(s, param, NULL).bytes;
}

static struct visit_scratch scratch_of(const struct method_lane *l)
{
    return make_scratch(l->shape, l->param, l->scratch).visit;
}

/* What the visit needs to prove coverage, in the lane's scratch. */
static const struct op_visit_proof *proof_of(const struct method_lane *l)
{
    const struct psa_cert_param *set = l->param;
    const struct cert_scratch r = make_scratch(l->shape, l->param, l->scratch);
    *r.proof = (struct op_visit_proof){.bound = r.visit.scratch.score,
                                       .bound_stride = r.visit.scratch.stride,
                                       .left = r.left,
                                       .by = bound_of(l->param),
                                       .side = l->side,
                                       .side_stride = l->side_stride,
                                       .reports = set->mode > 0};
    return r.proof;
}

static struct visit_rule rule_of(const struct method_lane *l)
{
    const struct psa_cert_param *set = l->param;
    return (struct visit_rule){
        .mass = set->mass, .step = set->step, .ahead = set->ahead, .recent = set->recent};
}

/* Puts into the lanes' scores, for each page and query head, the log of an upper bound of the
 * page's softmax mass. */
static void bound_pages(const struct method_batch *b)
{
    struct op_lane_bounds *list = b->list;
    uint32_t n = 0;
    for (uint32_t i = batch_next(b, 0); i < b->n; i = batch_next(b, i + 1)) {
        const struct method_lane *l = &b->lane[i];
        const struct select_scratch r = scratch_of(l).scratch;
        const uint32_t n_page = pick_page_count(l);
        meter_bytes(l, n_page * meter_lines(0, psa_cert_side_bytes(l->shape, l->param)));
        list[n++] = (struct op_lane_bounds){.by = bound_of(l->param),
                                            .side = l->side,
                                            .stride = l->side_stride,
                                            .page = l->page,
                                            .n_page = n_page,
                                            .head_dim = l->shape->geom->head_dim,
                                            .group = l->shape->group,
                                            .q = l->q,
                                            .qa = r.qa,
                                            .scale = l->scale,
                                            .softcap = l->softcap,
                                            .out = r.score,
                                            .out_stride = r.stride};
    }
    if (n > 0) b->ops->lanes.bounds(b->workers, b->ops, list, n);
}

static void psa_cert_choose(const struct method_batch *b)
{
    for (uint32_t i = 0; i < b->n; i++) {
        const struct psa_cert_param *set = b->lane[i].param;
        if (set->mass >= 1 || b->lane[i].layer < set->dense) pick_dense(&b->pick[i]);
    }
    bound_pages(b);
    batch_vote(b, BATCH_PAGE);
    visit_choose(b,
                 &(struct visit_want){.rule = rule_of, .scratch = scratch_of, .proof = proof_of});
}

static const struct method_decode hooks = {
    .side_bytes = psa_cert_side_bytes,
    .scratch_bytes = psa_cert_scratch_bytes,
    .seal = psa_cert_seal,
    .seal_value = psa_cert_seal_value,
    .choose = psa_cert_choose,
};

static const sac_method_deviation deviations[] = {
    {"an estimate of the remainder ends the search",
     "a proof does, from keys rounded to eight bits and the norm of the rounding error; "
     "mode=report keeps the estimate",
     "an estimate can be wrong where the ranking is",
     "95 % are proved where 98.5 % are read, qwen2.5-coder-0.5b at 4K (notes/measured_before.md)"},
};

const struct method psa_cert_method = {
    METHOD_DECODE(psa_cert,
                  "pages until the wanted share of the attention is proved to be covered"),
    .paper =
        "after Zhou et al., Progressive Sparse Attention, arXiv 2503.00392; the bounds are ours",
    .about = "Like psa, with a bound in place of the estimate. A rounded key and the norm of its "
             "rounding error bound the score of every unread token, so the share of the attention "
             "that was read is at least what is reported. Proofs are expensive: every step reads "
             "the rounded keys of all tokens. With the norm of the longest value of each page the "
             "proof bounds the error of the output, too. mode=report keeps psa's selection and "
             "only reports how much it proves.",
    METHOD_DEVIATIONS(deviations),
    .has_rest = true,
    .facts = {.part = "mass=0.5", .whole = "mass=1", .n_forced = 3 * PAGE_TOK},
    .decode = &hooks,
};
