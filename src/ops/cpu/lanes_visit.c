/* lanes_visit.c: pages visited one after another until enough of the attention has been seen. A
 * team of lanes is one worker's.
 *
 * Invariants:
 *  1. What a team visits follows from its votes and its pages alone. A look is due when `look`
 *     pages have been visited, not when a call ends, so calls that may visit no more than memory
 *     has end where one call would.
 *  2. The order is found BATCH pages at a time, the best of those left: the same as by one sort.
 *  3. A lane that has met what is not finite takes no part any more; its team goes on. */
#include "ops/cpu/lanes_visit.h"

#include "base/half.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define BATCH 64u /* pages that are put in order at a time */

struct team {
    const struct ops *ops;
    const struct op_lane_visit *op; /* [n] */
    uint32_t n;
};

static bool takes_part(const struct op_lane_visit *op)
{
    return op->result->n_bad == 0;
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* ln(exp(a) + exp(b)); -infinity is an empty sum. */
static double log_add(double a, double b)
{
    const double hi = a > b ? a : b, lo = a > b ? b : a; /* a NaN comes through */
    return lo == -INFINITY ? hi : hi + log1p(exp(lo - hi));
}

/* ---- Order ---- */

/* Puts the best of the pages that are left behind those in order: by vote, then by number. */
static void extend(const struct ops *ops, const struct op_lane_visit *op)
{
    struct op_visited *s = op->state;
    const uint32_t first = s->n_order, n_more = smaller(BATCH, op->n_page - first);
    struct op_cut cut = ops->best(&(struct op_best){
        .value = op->vote, .n = op->n_page, .target = n_more, .spare = op->spare});
    for (uint32_t page = 0; page < op->n_page; page++) {
        const uint32_t key = op_best_key(op->vote[page]);
        if (key < cut.key || (key == cut.key && cut.n_tie == 0)) continue;
        cut.n_tie -= key == cut.key;
        uint32_t i = s->n_order++;
        for (; i > first && op->vote[op->order[i - 1]] < op->vote[page]; i--)
            op->order[i] = op->order[i - 1];
        op->order[i] = page;
    }
    assert(n_more > 0 && s->n_order == first + n_more);
    for (uint32_t i = first; i < s->n_order; i++) op->vote[op->order[i]] = -1;
}

/* The order is known for `ahead` pages behind the next look. */
static void look_ahead(const struct team *t)
{
    const struct op_lane_visit *op = t->op;
    const uint32_t n = op->n_page - op->state->look;
    const uint32_t end = op->state->look + smaller(op->ahead, n);
    while (op->state->n_order < end) extend(t->ops, op);
}

/* ---- Visits ---- */

/* Logits of n_tok tokens, [PAGE_TOK] of each query head, and the logs of the sums of exp over them.
 */
static void find_logits(const struct ops *ops, const struct op_lane_visit *op, uint32_t n_tok,
                        float *logit, double *lse)
{
    const uint32_t d = op->geom->head_dim;
    float share[PAGE_TOK], sum[OP_GROUP_MAX], *row = logit;
    ops->dots(&(struct op_dots){.a = op->q,
                                .b = op->k,
                                .a_stride = d,
                                .b_stride = d,
                                .n_a = op->group,
                                .n_b = n_tok,
                                .width = d,
                                .out = logit,
                                .out_stride = PAGE_TOK});
    for (uint32_t g = 0; g < op->group; g++, row += PAGE_TOK) {
        for (uint32_t i = 0; i < n_tok; i++) row[i] *= op->scale;
        for (uint32_t i = 0; i < n_tok && op->softcap > 0; i++)
            row[i] = op->softcap * tanhf(row[i] / op->softcap);
    }
    ops->vote(&(struct op_vote){.score = logit,
                                .score_stride = PAGE_TOK,
                                .n = n_tok,
                                .group = op->group,
                                .vote = share,
                                .lse = sum});
    for (uint32_t g = 0; g < op->group; g++) lse[g] = (double)sum[g];
}

/* The same in f64, since a proof must not hang on rounding. */
static void prove_logits(const struct op_lane_visit *op, uint32_t n_tok, float *logit, double *lse)
{
    const uint32_t d = op->geom->head_dim;
    const double cap = (double)op->softcap;
    for (uint32_t g = 0; g < op->group; g++) {
        lse[g] = -INFINITY;
        for (uint32_t t = 0; t < n_tok; t++) {
            double score = 0;
            for (uint32_t c = 0; c < d; c++)
                score += (double)op->q[(size_t)g * d + c] * (double)op->k[(size_t)t * d + c];
            score *= (double)op->scale;
            if (cap > 0) score = cap * tanh(score / cap);
            logit[g * PAGE_TOK + t] = (float)score;
            lse[g] = log_add(lse[g], score);
        }
    }
}

/* How a lane's sums change by n_tok tokens. */
static void see(const struct ops *ops, const struct op_lane_visit *op, uint32_t n_tok, float *logit,
                double *lse)
{
    struct op_visited *s = op->state;
    if (op->proof)
        prove_logits(op, n_tok, logit, lse);
    else
        find_logits(ops, op, n_tok, logit, lse);
    for (uint32_t g = 0; g < op->group; g++) {
        s->seen[g] = log_add(s->seen[g], lse[g]);
        op->result->n_bad += isfinite(s->seen[g]) == 0;
    }
}

/* Attention over one more page, with a maximum that follows: what was summed before is scaled when
 * a larger logit comes. */
static void attend(const struct op_lane_visit *op, const float *logit)
{
    struct op_visited *s = op->state;
    const uint32_t d = op->geom->head_dim;
    for (uint32_t g = 0; g < op->group; g++, logit += PAGE_TOK) {
        float *value = op->value + (size_t)g * d, most = s->most[g];
        for (uint32_t t = 0; t < PAGE_TOK; t++) most = fmaxf(most, logit[t]);
        if (most > s->most[g]) {
            const float by = expf(s->most[g] - most);
            s->most[g] = most;
            s->sum[g] *= by;
            for (uint32_t c = 0; c < d; c++) value[c] *= by;
        }
        for (uint32_t t = 0; t < PAGE_TOK; t++) {
            const float weight = expf(logit[t] - most), *row = op->v + (size_t)t * d;
            s->sum[g] += weight;
            for (uint32_t c = 0; c < d; c++) value[c] += weight * row[c];
        }
    }
}

static void read_page(const struct ops *ops, const struct op_lane_visit *op, uint32_t page)
{
    const struct page_geom *g = op->geom;
    const uint32_t s = segment_of(op->segment, op->n_segment, page, 0), d = g->head_dim;
    ops->keys(&(struct op_keys){
        .geom = g, .frames = op->frames, .page = op->page + page, .n_page = 1, .out = op->k});
    page_read(NULL, op->v, g, page_frame(g, op->frames, op->page[page]), PAGE_SEALED, PAGE_TOK);
    for (uint32_t t = 0; t < PAGE_TOK && s < op->n_segment; t++)
        segment_turn(op->k + t * d, op->k + t * d, d, &op->segment[s], op->rope, -1);
}

static void visit_page(const struct ops *ops, const struct op_lane_visit *op, uint32_t page,
                       bool is_step)
{
    struct op_visited *s = op->state;
    float logit[OP_GROUP_MAX * PAGE_TOK];
    double lse[OP_GROUP_MAX];
    read_page(ops, op, page);
    see(ops, op, PAGE_TOK, logit, lse);
    op->result->n_chosen += is_step ? PAGE_TOK : 0;
    op->result->n_visit++;
    op->mask[page] = UINT32_MAX;
    if (!takes_part(op)) return;
    attend(op, logit);
    for (uint32_t g = 0; g < op->group && is_step; g++) {
        s->step[g] = log_add(s->step[g], lse[g]);
        if (!op->by_last) s->guess[g] = fmin(s->guess[g], lse[g]);
    }
}

/* ---- Proofs ---- */

/* Everything is put in order, and bounds are summed up from the last page on. */
static void begin_proof(const struct team *t)
{
    const struct op_lane_visit *op = t->op;
    const struct op_visit_proof *proof = op->proof;
    const uint32_t n = op->n_page;
    assert(t->n == 1); /* left is by this lane's order */
    while (op->state->n_order < n) extend(t->ops, op);
    for (uint32_t g = 0; g < op->group; g++) {
        const float *bound = proof->bound + g * proof->bound_stride;
        double *left = proof->left + (size_t)g * (n + 1);
        left[n] = -INFINITY;
        for (uint32_t i = n; i-- > 0;) left[i] = log_add(left[i + 1], (double)bound[op->order[i]]);
    }
}

/* The share that is proved when no more pages are visited: the least of the query heads'. */
static double prove(const struct op_lane_visit *op)
{
    double least = 1;
    for (uint32_t g = 0; g < op->group; g++) {
        const double left = op->proof->left[(size_t)g * (op->n_page + 1) + op->state->at];
        /* The margin covers the sums of logarithms, bounds in f32 first of all. */
        if (left > -INFINITY) least = fmin(least, 1 / (1 + exp(left - op->state->seen[g] + 1e-4)));
    }
    return least;
}

/* What is proved, and the longest value of the pages that are not read. */
static void end_proof(const struct op_lane_visit *op)
{
    const struct op_visit_proof *proof = op->proof;
    const double share = prove(op);
    float proved = (float)share, longest = 0;
    if ((double)proved > share) proved = nextafterf(proved, 0);
    for (uint32_t i = op->state->at; i < op->n_page; i++) {
        const struct op_bound_side s =
            op_bound_side(proof->side + op->page[op->order[i]] * proof->side_stride, proof->by,
                          op->geom->head_dim);
        longest = fmaxf(longest, f16_to_f32(*s.value));
    }
    op->result->mass_proved = proved;
    op->result->rest_norm = longest;
    op->result->n_line += op->n_page - op->state->at;
}

/* ---- A team ---- */

static void begin_lane(const struct team *t, const struct op_lane_visit *op)
{
    struct op_visited *s = op->state;
    const uint32_t d = op->geom->head_dim;
    float logit[OP_GROUP_MAX * PAGE_TOK];
    double lse[OP_GROUP_MAX];
    assert(op->group <= OP_GROUP_MAX && op->begin <= op->end && op->end <= op->n_page);
    for (uint32_t g = 0; g < op->group; g++) {
        s->seen[g] = s->step[g] = -INFINITY;
        s->guess[g] = INFINITY;
        s->most[g] = -INFINITY;
    }
    memset(op->value, 0, (size_t)op->group * d * sizeof *op->value);
    if (!takes_part(op)) return;
    page_read(op->k, NULL, op->geom, op->own, PAGE_TAIL, op->n_own);
    see(t->ops, op, op->n_own, logit, lse);
}

/* The votes of all lanes in those of the first, and the pages that come first in order. */
static void begin_team(const struct team *t)
{
    const struct op_lane_visit *op = t->op;
    struct op_visited *s = op->state;
    for (uint32_t i = 0; i < t->n; i++) begin_lane(t, &op[i]);
    for (uint32_t page = 0; page < op->n_page && t->n > 1; page++) {
        float sum = 0;
        for (uint32_t i = 0; i < t->n; i++) sum += takes_part(&op[i]) ? op[i].vote[page] : 0;
        op->vote[page] = sum;
    }
    for (uint32_t page = 0; page < op->n_page; page++) {
        if (page >= op->begin && page < op->end) continue;
        op->order[s->n_order++] = page;
        op->vote[page] = -1;
    }
    s->look = s->n_order;
    s->begun = true;
    if (op->proof && takes_part(op)) begin_proof(t);
}

/* A lane's share of the attention that has been seen, by query heads: their sum and the least. */
static void share_seen(const struct op_lane_visit *op, uint32_t n_left, double *sum, double *least)
{
    for (uint32_t g = 0; g < op->group; g++) {
        const double p = 1 / (1 + n_left * exp(op->state->guess[g] - op->state->seen[g]));
        *sum += p;
        *least = fmin(*least, p);
    }
}

static bool has_enough(const struct team *t)
{
    const uint32_t n_left = t->op->n_page - t->op->state->at;
    double sum = 0, least = 1;
    uint32_t n = 0;
    if (t->op->proof && !t->op->proof->reports && takes_part(t->op))
        return n_left == 0 || prove(t->op) > t->op->mass;
    for (uint32_t i = 0; i < t->n; i++) {
        if (!takes_part(&t->op[i])) continue;
        share_seen(&t->op[i], n_left, &sum, &least);
        n += t->op[i].group;
    }
    return n_left == 0 || n == 0 || (t->op->by_mean ? sum / n : least) > t->op->mass;
}

static void end_lane(const struct op_lane_visit *op)
{
    const struct op_visited *s = op->state;
    const uint32_t d = op->geom->head_dim;
    for (uint32_t g = 0; g < op->group; g++) {
        if (s->sum[g] == 0) continue;
        op->value_log[g] = s->most[g] + logf(s->sum[g]);
        for (uint32_t c = 0; c < d; c++) op->value[(size_t)g * d + c] /= s->sum[g];
    }
    op->result->attended = true;
    if (op->proof) end_proof(op);
}

/* `look` pages have been visited: enough, or so many more. */
static void look(const struct team *t)
{
    struct op_visited *s = t->op->state;
    for (uint32_t i = 0; i < t->n; i++)
        for (uint32_t g = 0; g < t->op[i].group; g++) {
            struct op_visited *of = t->op[i].state;
            if (t->op->by_last && s->n_last) of->guess[g] = of->step[g] - log(s->n_last);
            of->step[g] = -INFINITY;
        }
    s->done = has_enough(t);
    s->n_last = smaller(t->op->step, t->op->n_page - s->at);
    s->look = s->at + s->n_last;
    if (!s->done) return;
    for (uint32_t i = 0; i < t->n; i++)
        if (takes_part(&t->op[i])) end_lane(&t->op[i]);
}

static void visit_team(void *arg, uint32_t i, uint32_t worker_i)
{
    struct team t = *(const struct team *)arg;
    (void)worker_i;
    t.op += i;
    t.n = t.op->n_member;
    struct op_visited *s = t.op->state;
    if (t.n == 0 || s->done) return;
    if (!s->begun) begin_team(&t);
    for (;;) {
        if (s->at == s->look) look(&t);
        if (s->done) return;
        look_ahead(&t);
        if (s->at >= t.op->until) return;
        const bool is_step = s->n_last > 0;
        const uint32_t page = t.op->order[s->at++];
        for (uint32_t k = 0; k < t.n; k++)
            if (takes_part(&t.op[k])) visit_page(t.ops, &t.op[k], page, is_step);
    }
}

void lanes_visit(struct workers *pool, const struct ops *ops, const struct op_lane_visit *op,
                 uint32_t n)
{
    struct team t = {.ops = ops, .op = op};
    workers_for(pool, n, visit_team, &t);
}
