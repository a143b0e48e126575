/* psa_cert.c: progressive sparse attention that proves what it has seen.
 *
 * psa estimates the mass of the pages not read; here it is bounded. Every token's score is at most
 * what is known of its page without reading it, so the mass left is at most R, and the share seen
 * is at least A / (A + R), A being the exact mass of the pages visited. What is known of a page,
 * `by`:
 *  - box, sphere: bounds of its channels, or of the distance from its middle. One bound for 32
 *    tokens; it ignores how channels go together, and on real keys it proves nothing until nearly
 *    all is read (92 % at 16K on qwen2.5-coder-0.5b). Here to be measured.
 *  - shadow8, shadow4: keys rounded to 8 or 4 bits a channel, and for each token the length of what
 *    rounding took, e: q.k <= q.k' + |q| e (Cauchy-Schwarz).
 * Soundness: lengths and boxes are rounded outwards, products in f32 get the allowance `slack`, the
 * row's own page is always read. Pages are visited in order of their bound, one order for a KV
 * head; the heads stop together. mode=report stops by psa's estimate and only tells what is proved.
 *
 * The output's certificate: no value that is left out is longer than the longest of its pages,
 * which is kept with each page; with the mass that bounds how far the output is from dense
 * attention's (engine/proof.c).
 *
 * Not here: the two-stage form (4 bits first, 8 where they do not suffice). */
#include "methods/box.h"
#include "methods/pick.h"

#include <float.h>

enum by { BY_SHADOW8, BY_SHADOW4, BY_BOX, BY_SPHERE };

#define PARAMS(P)                                                                                  \
    P(SHARE, mass, "0.95", "share of the attention that is to be proved")                          \
    P(CHOICE, by, "shadow8", "shadow8|shadow4|box|sphere", "what bounds a score")                  \
    P(CHOICE, mode, "stop", "stop|report", "stop when the share is proved, or as psa does")        \
    P(COUNT, step, "1", 1, 64, "pages between two looks at the proof")                             \
    P(COUNT, dense, "0", 0, 1024, "first layers that read everything")                             \
    P(TOKENS, recent, "64", 0, 4096,                                                               \
      "newest tokens before the row's own page that are always read, up to whole pages")
METHOD_PARAMS(psa_cert, PARAMS)

/* Side data of a page: f16 length of its longest value, two f16 vectors [d] (box: lowest value and
 * width; sphere: middle; shadow: lowest value and step), f16 [PAGE_TOK] lengths (sphere: one
 * radius), codes [PAGE_TOK, d]. */
struct side {
    uint16_t *value, *a, *b, *length;
    uint8_t *code; /* 4 bits: channel c in the low half of byte c, c + d / 2 in the high one */
};

static struct side cut_side(const uint8_t *base, uint32_t d, enum by by)
{
    struct side s;
    s.value = (uint16_t *)(uintptr_t)base;
    s.a = s.value + 1;
    s.b = s.a + d;
    s.length = by == BY_SPHERE ? s.b : s.b + d;
    s.code = (uint8_t *)(s.length + PAGE_TOK);
    return s;
}

static size_t psa_cert_side_bytes(const struct method_shape *s, const void *param)
{
    const struct psa_cert_param *set = param;
    const size_t d = s->geom->head_dim;
    switch (set->by) {
    case BY_BOX: return 2 + 4 * d;
    case BY_SPHERE: return 2 + 2 * d + 2;
    case BY_SHADOW4: return 2 + 4 * d + PAGE_TOK * (2 + d / 2);
    case BY_SHADOW8: break;
    }
    return 2 + 4 * d + PAGE_TOK * (2 + d);
}

static void put_code(const struct side *s, uint32_t t, uint32_t c, uint32_t d, uint32_t code)
{
    uint8_t *at = &s->code[(size_t)t * (d / 2) + c % (d / 2)];
    *at = (uint8_t)(c < d / 2 ? code : *at | code << 4); /* low halves come first */
}

static void seal_shadow(const struct side *s, uint32_t d, enum by by, const float *k)
{
    const float levels = by == BY_SHADOW8 ? 255 : 15;
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
            if (by == BY_SHADOW8)
                s->code[(size_t)t * d + c] = (uint8_t)code;
            else
                put_code(s, t, c, d, code);
            const double err = (double)x - (double)(from + step * (float)code);
            off[t] += err * err; /* NaN and infinity of a key end up here */
        }
    }
    for (uint32_t t = 0; t < PAGE_TOK; t++) s->length[t] = box_half((float)sqrt(off[t]), true);
}

static void seal_sphere(const struct side *s, uint32_t d, const float *k)
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
    const struct psa_cert_param *set = param;
    const enum by by = set->by;
    const struct side parts = cut_side(side, s->geom->head_dim, by);
    if (by == BY_BOX)
        box_seal((uint8_t *)parts.a, s, BOX_BOUND, k);
    else if (by == BY_SPHERE)
        seal_sphere(&parts, s->geom->head_dim, k);
    else
        seal_shadow(&parts, s->geom->head_dim, by, k);
}

static void psa_cert_seal_value(uint8_t *side, const struct method_shape *s, const void *param,
                                const float *v)
{
    const struct psa_cert_param *set = param;
    const uint32_t d = s->geom->head_dim;
    double most = 0, bad = 0;
    for (uint32_t t = 0; t < PAGE_TOK; t++) {
        double sum = 0;
        for (uint32_t c = 0; c < d; c++)
            sum += (double)v[(size_t)t * d + c] * (double)v[(size_t)t * d + c];
        most = fmax(most, sum);
        bad += sum - sum; /* NaN once a value is not finite */
    }
    const double length = sqrt(most) * (1 + 1e-6); /* the root and the cast have rounded it */
    *cut_side(side, d, set->by).value = box_half(isnan(bad) ? INFINITY : (float)length, true);
}

/* ---- Bounds ---- */

/* What a choice needs beside a room: double, since a proof must not hang on rounding. */
struct proof {
    struct room r;
    double *left;                   /* [group, pages + 1] ln of the bound of all pages from i on */
    double seen[METHOD_GROUP_MAX];  /* ln A */
    double least[METHOD_GROUP_MAX]; /* the smallest mass of a page visited, ln */
    double q_norm[METHOD_GROUP_MAX];
    size_t n_slot; /* pages + 1 */
};

static size_t make_proof(struct proof *p, const struct method_shape *s, void *scratch)
{
    const size_t used = room_make(&p->r, s, false, scratch);
    struct arena a = {.base = scratch ? (uint8_t *)scratch + used : NULL, .capacity = SIZE_MAX};
    p->n_slot = p->r.stride + 1;
    p->left = arena_take(&a, s->group * p->n_slot, sizeof *p->left);
    return used + a.used;
}

static size_t psa_cert_scratch_bytes(const struct method_shape *s, const void *param)
{
    struct proof p;
    (void)param;
    return make_proof(&p, s, NULL);
}

static double log_add(double a, double b)
{
    const double hi = a > b ? a : b, lo = a > b ? b : a; /* a NaN comes through */
    return lo == -INFINITY ? hi : hi + log1p(exp(lo - hi));
}

static double cap_score(const struct method_lane *l, double score)
{
    const double cap = (double)l->softcap;
    return cap > 0 ? cap * tanh(score / cap) : score;
}

/* Keys as rounded, into r.k. */
static void read_shadow(const struct proof *p, const struct side *s, uint32_t d, enum by by)
{
    const uint32_t half = d / 2;
    float from[512], step[512];
    assert(d <= sizeof from / sizeof from[0] && d % 2 == 0);
    for (uint32_t c = 0; c < d; c++) {
        from[c] = f16_to_f32(s->a[c]);
        step[c] = f16_to_f32(s->b[c]);
    }
    for (uint32_t t = 0; t < PAGE_TOK; t++) {
        float *k = p->r.k + (size_t)t * d;
        const uint8_t *code = s->code + (size_t)t * (by == BY_SHADOW8 ? d : half);
        if (by == BY_SHADOW8) {
            for (uint32_t c = 0; c < d; c++) k[c] = from[c] + step[c] * (float)code[c];
            continue;
        }
        for (uint32_t c = 0; c < half; c++) {
            k[c] = from[c] + step[c] * (float)(code[c] & 15u);
            k[c + half] = from[c + half] + step[c + half] * (float)(code[c] >> 4);
        }
    }
}

/* In f32, eight sums: what this can be off by is known, which is not said of the op table's. */
static float dot(const float *a, const float *b, uint32_t d)
{
    float part[8] = {0}, sum = 0;
    assert(d % 8 == 0);
    for (uint32_t c = 0; c < d; c += 8)
        for (uint32_t i = 0; i < 8; i++) part[i] += a[c + i] * b[c + i];
    for (uint32_t i = 0; i < 8; i++) sum += part[i];
    return sum;
}

/* ln of a bound of the page's mass for each head: the sum over its tokens. r.qa holds the scaled
 * queries. */
static void bound_shadow(const struct proof *p, const struct method_lane *l, const struct side *s,
                         uint32_t page)
{
    const struct psa_cert_param *set = l->param;
    const uint32_t d = l->shape->geom->head_dim, group = l->shape->group;
    double reach[PAGE_TOK], slack[PAGE_TOK];
    read_shadow(p, s, d, set->by);
    for (uint32_t t = 0; t < PAGE_TOK; t++) {
        double norm = 0;
        for (uint32_t c = 0; c < d; c++) {
            const double x = (double)p->r.k[(size_t)t * d + c];
            norm += x * x;
        }
        reach[t] = (double)f16_to_f32(s->length[t]);
        slack[t] = d * (double)FLT_EPSILON * sqrt(norm); /* of d products and sums in f32 */
    }
    for (uint32_t g = 0; g < group; g++) {
        double sum = -INFINITY;
        for (uint32_t t = 0; t < PAGE_TOK; t++) {
            const double most = (double)dot(p->r.qa + (size_t)g * d, p->r.k + (size_t)t * d, d) +
                                p->q_norm[g] * (reach[t] + slack[t]);
            sum = log_add(sum, cap_score(l, most));
        }
        p->r.score[g * p->r.stride + page] = (float)sum;
    }
}

static void bound_whole(const struct proof *p, const struct method_lane *l, const struct side *s,
                        uint32_t page)
{
    const struct psa_cert_param *set = l->param;
    const uint32_t d = l->shape->geom->head_dim;
    const bool box = set->by == BY_BOX;
    float a[512], b[512];
    assert(d <= sizeof a / sizeof a[0]);
    for (uint32_t c = 0; c < d; c++) {
        a[c] = f16_to_f32(s->a[c]);
        b[c] = box ? f16_to_f32(s->b[c]) : 0;
    }
    for (uint32_t g = 0; g < l->shape->group; g++) {
        const float *q = p->r.qa + (size_t)g * d;
        double most = box ? 0 : p->q_norm[g] * (double)f16_to_f32(s->length[0]);
        for (uint32_t c = 0; c < d; c++)
            most += (double)q[c] * (double)a[c] + (double)fmaxf(q[c], 0) * (double)b[c];
        p->r.score[g * p->r.stride + page] = (float)(log(PAGE_TOK) + cap_score(l, most));
    }
}

static void bound_pages(struct proof *p, const struct method_lane *l)
{
    const struct psa_cert_param *set = l->param;
    const uint32_t d = l->shape->geom->head_dim;
    const enum by by = set->by;
    for (uint32_t g = 0; g < l->shape->group; g++) {
        double norm = 0;
        for (uint32_t c = 0; c < d; c++) {
            const float q = l->q[(size_t)g * d + c] * l->scale;
            p->r.qa[(size_t)g * d + c] = q;
            norm += (double)q * (double)q;
        }
        p->q_norm[g] = sqrt(norm) * (1 + 1e-6); /* scaling q has rounded it */
    }
    for (uint32_t i = 0; i < pick_page_count(l); i++) {
        const struct side s =
            cut_side(pick_side(l, i, psa_cert_side_bytes(l->shape, l->param)), d, by);
        if (by == BY_SHADOW8 || by == BY_SHADOW4)
            bound_shadow(p, l, &s, i);
        else
            bound_whole(p, l, &s, i);
    }
}

/* ---- Visits ---- */

static void visit(struct proof *p, const struct method_lane *l, uint32_t n_tok, bool counts)
{
    const uint32_t d = l->shape->geom->head_dim;
    for (uint32_t g = 0; g < l->shape->group; g++) {
        double sum = -INFINITY;
        for (uint32_t t = 0; t < n_tok; t++) {
            double score = 0;
            for (uint32_t c = 0; c < d; c++)
                score += (double)l->q[(size_t)g * d + c] * (double)p->r.k[(size_t)t * d + c];
            sum = log_add(sum, cap_score(l, score * (double)l->scale));
        }
        p->seen[g] = log_add(p->seen[g], sum);
        if (counts) p->least[g] = fmin(p->least[g], sum);
    }
}

/* Sink page, newest pages, the own one: they count for A, and psa's estimate does not look at them.
 */
static void visit_mandatory(struct proof *p, const struct method_lane *l, struct method_pick *out)
{
    const struct psa_cert_param *set = l->param;
    for (uint32_t g = 0; g < l->shape->group; g++) {
        p->seen[g] = -INFINITY;
        p->least[g] = INFINITY;
    }
    const uint32_t n_own = pick_own(p->r.k, NULL, l);
    visit(p, l, n_own, false);
    pick_end_pages(out, l, PAGE_TOK, set->recent);
    for (uint32_t i = 0; i < pick_page_count(l); i++) {
        if (!out->mask[i]) continue;
        pick_keys(p->r.k, l, i);
        visit(p, l, PAGE_TOK, false);
    }
}

/* Moves list[i] down in a heap whose root has the smallest vote (of equal ones the last page). */
static void sift(uint32_t *list, uint32_t n, uint32_t i, const float *vote)
{
    for (uint32_t child; (child = 2 * i + 1) < n; i = child) {
        const uint32_t right = child + 1;
        if (right < n && (vote[list[right]] < vote[list[child]] ||
                          (vote[list[right]] == vote[list[child]] && list[right] > list[child])))
            child = right;
        const uint32_t a = list[i], b = list[child];
        if (vote[a] < vote[b] || (vote[a] == vote[b] && a > b)) return;
        list[i] = b;
        list[child] = a;
    }
}

/* The pages that are not marked, the highest vote first, in r.list; returns how many. */
static uint32_t order_pages(const struct proof *p, const struct method_lane *l,
                            const struct method_pick *out)
{
    uint32_t *list = p->r.list, n = 0;
    for (uint32_t i = 0; i < pick_page_count(l); i++)
        if (!out->mask[i]) list[n++] = i;
    assert(n <= p->r.stride);
    for (uint32_t i = n / 2; i-- > 0;) sift(list, n, i, p->r.vote);
    for (uint32_t end = n; end-- > 1;) {
        const uint32_t least = list[0];
        list[0] = list[end];
        list[end] = least;
        sift(list, end, 0, p->r.vote);
    }
    return n;
}

/* The share that is proved when pages from `at` of the order on are not read: the least of the
 * heads'.
 */
static double proved(const struct proof *p, const struct method_lane *l, uint32_t at)
{
    double least = 1;
    for (uint32_t g = 0; g < l->shape->group; g++) {
        const double left = p->left[g * p->n_slot + at];
        /* The margin covers the sums of logarithms, r.score in f32 first of all. */
        if (left > -INFINITY) least = fmin(least, 1 / (1 + exp(left - p->seen[g] + 1e-4)));
    }
    return least;
}

/* psa's estimate: every page left is taken for the least of those visited. */
static double estimated(const struct proof *p, const struct method_lane *l, uint32_t n_left)
{
    double least = 1;
    for (uint32_t g = 0; g < l->shape->group && n_left > 0; g++)
        least = fmin(least, 1 / (1 + n_left * exp(p->least[g] - p->seen[g])));
    return least;
}

static uint32_t visit_in_order(struct proof *p, const struct method_lane *l, uint32_t n,
                               struct method_pick *out)
{
    const struct psa_cert_param *set = l->param;
    const uint32_t step = set->step;
    const bool report = set->mode > 0;
    uint32_t at = 0;
    for (uint32_t g = 0; g < l->shape->group; g++) {
        double *left = p->left + g * p->n_slot;
        left[n] = -INFINITY;
        for (uint32_t i = n; i-- > 0;)
            left[i] = log_add(left[i + 1], (double)p->r.score[g * p->r.stride + p->r.list[i]]);
    }
    while (at < n && !((report ? estimated(p, l, n - at) : proved(p, l, at)) > set->mass))
        for (uint32_t i = 0; i < step && at < n; i++, at++) {
            pick_page(out, p->r.list[at]);
            pick_keys(p->r.k, l, p->r.list[at]);
            visit(p, l, PAGE_TOK, true);
        }
    return at;
}

/* The longest value of the pages that are not read. */
static float longest_left(const struct method_lane *l, const struct method_pick *out)
{
    const struct psa_cert_param *set = l->param;
    const uint32_t d = l->shape->geom->head_dim;
    float most = 0;
    for (uint32_t i = 0; i < pick_page_count(l); i++) {
        if (out->mask[i]) continue;
        const struct side s = cut_side(pick_side(l, i, sizeof *s.value), d, set->by);
        most = fmaxf(most, f16_to_f32(*s.value));
    }
    return most;
}

static void psa_cert_select(const struct method_lane *l, struct method_pick *out)
{
    const struct psa_cert_param *set = l->param;
    struct proof p;
    if (set->mass >= 1 || l->layer < set->dense) {
        pick_dense(out);
        return;
    }
    make_proof(&p, l->shape, l->scratch);
    bound_pages(&p, l);
    if (!box_vote(&p.r, l)) {
        pick_not_finite(out);
        return;
    }
    visit_mandatory(&p, l, out);
    const uint32_t n = order_pages(&p, l, out), at = visit_in_order(&p, l, n, out);
    for (uint32_t g = 0; g < l->shape->group; g++)
        if (!isfinite(p.seen[g])) pick_not_finite(out);
    const double share = proved(&p, l, at);
    out->mass_proved = (float)share;
    if ((double)out->mass_proved > share) out->mass_proved = nextafterf(out->mass_proved, 0);
    assert((double)out->mass_proved <= share || isnan(share)); /* never more than is proved */
    out->rest_norm = longest_left(l, out);
}

static const struct method_decode hooks = {
    .side_bytes = psa_cert_side_bytes,
    .scratch_bytes = psa_cert_scratch_bytes,
    .seal = psa_cert_seal,
    .seal_value = psa_cert_seal_value,
    .select = psa_cert_select,
};

static const sac_method_deviation deviations[] = {
    {"an estimate of what is left stops the visit",
     "a proof does, from keys rounded to eight bits and the length of the rounding; mode=report "
     "keeps the estimate",
     "an estimate can be wrong where the order is",
     "95 % are proved where 98.5 % are read, qwen2.5-coder-0.5b at 4K (measured_before.md)"},
    {"loading between tiers and one pool for all", "absent, as in psa",
     "there is no second tier of memory", "none on answers"},
};

const struct method psa_cert_method = {
    .kind = "decode",
    .name = "psa_cert",
    .summary = "pages until the seen share of the attention is proved to be enough",
    .paper =
        "after Zhou et al., Progressive Sparse Attention, arXiv 2503.00392; the bounds are ours",
    .about =
        "As psa, with a bound where psa has an estimate: no score of a page that is not read "
        "can be "
        "higher than rounded keys and the length of the rounding allow, so the share of the "
        "attention "
        "that was seen is at least what is reported. Proofs cost: the rounded keys of all "
        "tokens are "
        "read at every step. With the longest value of each page the proof bounds the error of "
        "the output, too. mode=report keeps psa's choice and only tells what it is worth.",
    .params = &psa_cert_params,
    .deviation = deviations,
    .n_deviation = sizeof deviations / sizeof deviations[0],
    .chooses = true,
    .facts = {.part = "mass=0.5", .whole = "mass=1", .n_forced = 3 * PAGE_TOK},
    .decode = &hooks,
};
