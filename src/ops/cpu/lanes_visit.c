/* lanes_visit.c: visits pages one after another until enough of the attention has been covered.
 *
 * All workers read the keys of a round of pages, and the result of each page is kept separately.
 * The worker that finishes the last piece of a team's round goes through the team's pages in order
 * and stops where enough is covered; pages read beyond that are discarded. The votes determine the
 * length of a round: at first half of the pages that would suffice if the votes were right, then a
 * few at a time. At the end of a call all workers read the values of all pages that were visited in
 * it.
 *
 * Invariants:
 *  1. What a team visits depends on its votes and its pages alone, not on rounds, workers, or where
 *     a call ends: the coverage is checked when `look` pages have been visited.
 *  2. The order is determined a few pages at a time, the best of the remaining ones: the result is
 *     the same as by one sort.
 *  3. A lane that has met a number that is not finite takes no further part; its team continues.
 *  4. The caller changes `from` and `end` between two calls of the workers: a worker that is late
 *     finds no pieces of the next round.
 *  5. Values are added in fixed blocks of places in the order, one page after another within a
 *     block, and the blocks in order when the visit ends. The sums therefore do not depend on
 *     calls. */
#include "ops/cpu/lanes_visit.h"

#include "base/half.h"
#include "base/minmax.h"
#include "ops/cpu/lanes_bound.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define BATCH 64u /* pages that are sorted at a time, unless more are needed */
#define RUN   8u  /* pages that are sorted by insertion, then merged */
#define PIECE 2u  /* pages of a piece of a round */
#define LEAST 4u  /* minimum pages of a round after the first, ... */
#define SHARE 8u  /* ... or 1 / SHARE of the pages visited so far */

struct call {
    const struct ops *ops;
    const struct op_lane_visit *op; /* the list */
    uint32_t n_piece;               /* of the longest round */
};

struct team {
    const struct ops *ops;
    const struct op_lane_visit *op; /* [n] */
    uint32_t n;
};

static bool takes_part(const struct op_lane_visit *op)
{
    return op->result->n_bad == 0;
}

/* ---- Order ---- */

/* Records the vote of the page that has been sorted to `place`, clears it, and returns it. */
static double take_vote(const struct op_lane_visit *op, uint32_t place)
{
    struct op_visited *s = op->state;
    float *page_vote = &op->vote[op->order[place]];
    const double vote = fmax((double)*page_vote, 0);
    s->promise += vote;
    op->told[place] = s->vote > 0 ? (float)(s->promise / s->vote) : 0;
    *page_vote = -1;
    return vote;
}

/* Records the votes of the pages sorted from `first` on, and computes how many pages in all would
 * suffice if votes were masses. */
static void find_enough(const struct op_lane_visit *op, uint32_t first)
{
    struct op_visited *s = op->state;
    for (uint32_t i = first; i < s->n_order; i++) {
        const double vote = take_vote(op, i);
        const double all =
            op->rest == OP_REST_VOTE ? s->vote : s->promise + (op->n_page - i - 1) * vote;
        if (s->n_enough == 0 && s->promise > op->mass * all) s->n_enough = i + 1;
    }
}

/* Merges two adjacent sorted runs of n_a and n_b pages. */
static void merge_runs(const float *vote, uint32_t *page, uint32_t n_a, uint32_t n_b,
                       uint32_t *spare)
{
    const uint32_t *b = page + n_a, *const end = b + n_b;
    memcpy(spare, page, n_a * sizeof *page);
    for (const uint32_t *a = spare; a < spare + n_a;)
        *page++ = b < end && vote[*a] < vote[*b] ? *b++ : *a++;
}

/* Sorts n pages by descending vote; the order of equal votes is kept. */
static void sort(const float *vote, uint32_t *page, uint32_t n, uint32_t *spare)
{
    for (uint32_t first = 0; first < n; first += RUN)
        for (uint32_t i = first + 1; i < n && i < first + RUN; i++) {
            const uint32_t one = page[i];
            uint32_t k = i;
            for (; k > first && vote[page[k - 1]] < vote[one]; k--) page[k] = page[k - 1];
            page[k] = one;
        }
    for (uint32_t run = RUN; run < n; run *= 2)
        for (uint32_t first = 0; first + run < n; first += 2 * run)
            merge_runs(vote, page + first, run, min_u32(run, n - first - run), spare);
}

/* Appends the best of the remaining pages to the sorted ones, so that n are sorted: by vote, then
 * by index. */
static void extend(const struct ops *ops, const struct op_lane_visit *op, uint32_t n)
{
    struct op_visited *s = op->state;
    const uint32_t first = s->n_order;
    if (first >= n) return;
    const uint32_t n_more = min_u32(max_u32(BATCH, n - first), op->n_page - first);
    struct op_cut cut = ops->best(&(struct op_best){
        .value = op->vote, .n = op->n_page, .target = n_more, .spare = op->spare});
    for (uint32_t page = 0; page < op->n_page; page++) {
        const uint32_t key = op_best_key(op->vote[page]);
        if (key < cut.key || (key == cut.key && cut.n_tie == 0)) continue;
        cut.n_tie -= key == cut.key;
        op->order[s->n_order++] = page;
    }
    assert(n_more > 0 && s->n_order == first + n_more);
    sort(op->vote, op->order + first, n_more, op->spare);
    find_enough(op, first);
}

/* The number of pages that the previous row has visited, or 0. */
static uint32_t visited_before(const struct op_lane_visit *op)
{
    return op->last ? min_u32(*op->last, op->n_page) : 0;
}

/* The end of the first round: most likely less than what will be visited. */
static uint32_t first_round(const struct op_lane_visit *op)
{
    const struct op_visited *s = op->state;
    const uint32_t last = visited_before(op);
    if (last > 0) return last - last / SHARE;
    return (s->n_enough ? s->n_enough : s->n_order) / 2;
}

/* The number of pages that suffice in any case: if votes determine the rest, the row's own page,
 * which has no vote, can only increase the coverage. */
static uint32_t most_pages(const struct op_lane_visit *op)
{
    const uint32_t n = op->state->n_enough;
    return op->rest == OP_REST_VOTE && n > 0 ? n : op->n_page;
}

/* Plans the next round. Pages are sorted for it and for `ahead` pages after the next check. The
 * plan does not depend on where pages are stored. */
static void plan_round(const struct team *t)
{
    const struct op_lane_visit *op = t->op;
    struct op_visited *s = op->state;
    const uint32_t known = s->look + min_u32(op->ahead, op->n_page - s->look);
    const uint32_t few = min_u32(s->at + max_u32(LEAST, s->at / SHARE), op->n_page);
    extend(t->ops, op, max_u32(max_u32(known, few), visited_before(op)));
    const uint32_t expected = first_round(op);
    s->plan = max_u32(min_u32(expected > s->at ? expected : few, most_pages(op)), s->look);
    s->plan = min_u32(s->plan, min_u32(s->at + OP_VISIT_ROUND, op->n_page));
    assert(s->plan <= s->n_order);
}

/* ---- Pages ---- */

/* The result of a page, per query head. */
struct part {
    float *weight;     /* [group, PAGE_TOK] */
    float *most, *sum; /* [group] */
    double *log;       /* [group] for a proof: ln of the sum of exp(logit) */
};

static struct part part_of(const struct op_lane_visit *op, uint32_t place)
{
    const size_t at = (size_t)place * op->group;
    return (struct part){.weight = op->weight + at * PAGE_TOK,
                         .most = op->page_most + at,
                         .sum = op->page_sum + at,
                         .log = op->page_log + (size_t)(place % OP_VISIT_ROUND) * op->group};
}

/* Prefetches bytes [from, end) of the next page. */
static inline __attribute__((always_inline)) void fetch(const struct op_lane_visit *op,
                                                        uint32_t page, size_t from, size_t end)
{
    const uint8_t *at = page_frame(op->geom, op->frames, op->page[page]);
    for (size_t i = from; i < end; i += 64) __builtin_prefetch(at + i, 0, 2);
}

/* Offset of the values; keys are before it. */
static size_t values_at(const struct page_geom *g)
{
    return g->type_k == SAC_KV_Q8 ? g->v_scale : g->v;
}

/* Computes the logits of n_tok tokens, [PAGE_TOK] per query head. */
static void find_logits(const struct ops *ops, const struct op_lane_visit *op, const float *k,
                        uint32_t n_tok, float *logit)
{
    const uint32_t d = op->geom->head_dim;
    float *row = logit;
    ops->dots_few(&(struct op_dots){.a = op->q,
                                    .b = k,
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
}

/* The same in f64, because a proof must not depend on rounding; lse: the logs of the sums of
 * exp(logit). */
static void prove_logits(const struct op_lane_visit *op, const float *k, uint32_t n_tok,
                         float *logit, double *lse)
{
    const uint32_t d = op->geom->head_dim;
    const double cap = (double)op->softcap;
    for (uint32_t g = 0; g < op->group; g++) {
        lse[g] = -INFINITY;
        for (uint32_t t = 0; t < n_tok; t++) {
            double score = 0;
            for (uint32_t c = 0; c < d; c++)
                score += (double)op->q[(size_t)g * d + c] * (double)k[(size_t)t * d + c];
            score *= (double)op->scale;
            if (cap > 0) score = cap * tanh(score / cap);
            logit[g * PAGE_TOK + t] = (float)score;
            lse[g] = lanes_log_add(lse[g], score);
        }
    }
}

/* Computes the result of a page whose first n_tok tokens have keys k. */
static void make_part(const struct ops *ops, const struct op_lane_visit *op, const float *k,
                      uint32_t n_tok, const struct part *to)
{
    float logit[OP_GROUP_MAX * PAGE_TOK];
    if (op->proof)
        prove_logits(op, k, n_tok, logit, to->log);
    else
        find_logits(ops, op, k, n_tok, logit);
    ops->raise(&(struct op_raise){.logit = logit,
                                  .group = op->group,
                                  .n_tok = n_tok,
                                  .weight = to->weight,
                                  .most = to->most,
                                  .sum = to->sum});
}

/* Computes the result of a page of the order. */
static void read_page(const struct ops *ops, const struct op_lane_visit *op, uint32_t page,
                      const struct part *to)
{
    const struct page_geom *g = op->geom;
    const uint32_t s = segment_of(op->segment, op->n_segment, page, 0), d = g->head_dim;
    _Alignas(64) float k[PAGE_TOK * HEAD_DIM_MAX];
    ops->keys(&(struct op_keys){
        .geom = g, .frames = op->frames, .page = op->page + page, .n_page = 1, .out = k});
    for (uint32_t t = 0; t < PAGE_TOK && s < op->n_segment; t++)
        segment_turn(k + t * d, k + t * d, d, &op->segment[s], op->rope, -1);
    make_part(ops, op, k, PAGE_TOK, to);
}

/* Computes the result of the row's own page, which has the layout of a 16-bit page. */
static void read_own(const struct ops *ops, const struct op_lane_visit *op, const struct part *to)
{
    struct page_geom tail = *op->geom;
    const page_id first = 0;
    _Alignas(64) float k[PAGE_TOK * HEAD_DIM_MAX];
    tail.k = 0;
    if (tail.type_k == SAC_KV_Q8) tail.type_k = SAC_KV_F16;
    ops->keys(&(struct op_keys){
        .geom = &tail, .frames = {.base = op->own}, .page = &first, .n_page = 1, .out = k});
    make_part(ops, op, k, op->n_own, to);
}

/* ---- Sums ---- */

/* Raises the largest logit of a query head, to which all of its sums are relative, and rescales
 * these. If the own page holds far more than that, the limit of 1e304 keeps its sum finite. */
static void raise_most(const struct op_lane_visit *op, uint32_t g, float most)
{
    struct op_visited *s = op->state;
    if (!(most > s->most[g])) return;
    const double by = exp((double)s->most[g] - (double)most);
    s->most[g] = most;
    s->seen[g] *= by;
    s->step[g] *= by;
    s->sum[g] *= by;
    if (isfinite(s->guess[g])) s->guess[g] *= by; /* infinity: not known yet */
    s->own[g] = exp(fmin(s->own_log[g] - (double)most, 700));
}

/* Adds a page's mass for query head g, and returns it. */
static double add_mass(const struct op_lane_visit *op, const struct part *part, uint32_t g)
{
    struct op_visited *s = op->state;
    raise_most(op, g, part->most[g]);
    const double by =
        part->most[g] == -INFINITY ? 0 : exp((double)part->most[g] - (double)s->most[g]);
    const double mass =
        op->proof && by > 0 ? exp(part->log[g] - (double)s->most[g]) : by * (double)part->sum[g];
    s->seen[g] += mass;
    s->sum[g] += by * (double)part->sum[g];
    op->result->n_bad += isfinite(s->seen[g]) == 0;
    return mass;
}

/* Visits the page at a place of the order. */
static void visit_page(const struct op_lane_visit *op, uint32_t page, uint32_t place, bool is_step)
{
    struct op_visited *s = op->state;
    const struct part part = part_of(op, place);
    op->result->n_chosen += is_step ? PAGE_TOK : 0;
    op->result->n_visit++;
    op->mask[page] = UINT32_MAX;
    for (uint32_t g = 0; g < op->group; g++) {
        const double mass = add_mass(op, &part, g);
        if (!is_step) continue;
        s->step[g] += mass;
        if (op->rest == OP_REST_LEAST) s->guess[g] = fmin(s->guess[g], mass);
    }
}

/* ---- Proofs ---- */

/* Sorts all pages, and sums the bounds from the last page on. */
static void begin_proof(const struct team *t)
{
    const struct op_lane_visit *op = t->op;
    const struct op_visit_proof *proof = op->proof;
    const uint32_t n = op->n_page;
    assert(t->n == 1); /* the sums follow this lane's order */
    extend(t->ops, op, n);
    for (uint32_t g = 0; g < op->group; g++) {
        const float *bound = proof->bound + g * proof->bound_stride;
        double *left = proof->left + (size_t)g * (n + 1);
        left[n] = -INFINITY;
        for (uint32_t i = n; i-- > 0;)
            left[i] = lanes_log_add(left[i + 1], (double)bound[op->order[i]]);
    }
}

/* The share that is proved if no more pages are visited: the least over the query heads. */
static double prove(const struct op_lane_visit *op)
{
    double least = 1;
    for (uint32_t g = 0; g < op->group; g++) {
        const double left = op->proof->left[(size_t)g * (op->n_page + 1) + op->state->at];
        /* The margin covers the rounding of the sums of logarithms, mainly of the bounds in f32. */
        const double pages = (double)op->state->most[g] + log(op->state->seen[g]);
        const double seen = lanes_log_add(op->state->own_log[g], pages);
        if (left > -INFINITY) least = fmin(least, 1 / (1 + exp(left - seen + 1e-4)));
    }
    return least;
}

/* The proved share, and the largest norm of a value in the unread pages. */
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
    float weight[OP_GROUP_MAX * PAGE_TOK], most[OP_GROUP_MAX], sum[OP_GROUP_MAX];
    double log_own[OP_GROUP_MAX];
    const struct part own = {.weight = weight, .most = most, .sum = sum, .log = log_own};
    assert(op->group <= OP_GROUP_MAX && op->begin <= op->end && op->end <= op->n_page);
    assert(op->geom->head_dim <= HEAD_DIM_MAX);
    for (uint32_t g = 0; g < op->group; g++) {
        s->seen[g] = s->step[g] = s->sum[g] = s->own[g] = 0;
        s->guess[g] = INFINITY;
        s->most[g] = -INFINITY;
    }
    if (!takes_part(op)) return;
    read_own(t->ops, op, &own);
    for (uint32_t g = 0; g < op->group; g++) {
        s->own_log[g] = op->proof ? own.log[g] : (double)own.most[g] + log((double)own.sum[g]);
        op->result->n_bad += isfinite(s->own_log[g]) == 0;
    }
}

/* Sums the votes of all lanes in the first lane, and puts the pages outside [begin, end) first in
 * the order. */
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
    for (uint32_t page = 0; page < op->n_page; page++) s->vote += fmax((double)op->vote[page], 0);
    for (uint32_t page = 0; page < op->n_page; page++) {
        if (page >= op->begin && page < op->end) continue;
        op->order[s->n_order] = page;
        take_vote(op, s->n_order++);
    }
    s->look = s->n_order;
    s->begun = true;
    if (op->proof && takes_part(op)) begin_proof(t);
}

/* Estimated mass of the pages after the first `at`, for query head g. OP_REST_VOTE: in proportion
 * to the mass seen; told[i] is the share of all votes that the pages up to place i hold. Otherwise
 * each remaining page has the same estimate. */
static double rest_of(const struct op_lane_visit *op, const float *told, uint32_t at, uint32_t g)
{
    if (op->rest != OP_REST_VOTE) return (op->n_page - at) * op->state->guess[g];
    if (at == 0 || !(told[at - 1] > 0)) return INFINITY;
    return op->state->seen[g] * (1 / (double)told[at - 1] - 1);
}

/* Adds the coverage of a lane's query heads to `sum`, and takes the minimum in `least`. */
static void share_seen(const struct team *t, const struct op_lane_visit *op, double *sum,
                       double *least)
{
    for (uint32_t g = 0; g < op->group; g++) {
        const double seen = op->state->own[g] + op->state->seen[g];
        const double p = seen / (seen + rest_of(op, t->op->told, t->op->state->at, g));
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
        share_seen(t, &t->op[i], &sum, &least);
        n += t->op[i].group;
    }
    return n_left == 0 || n == 0 || (t->op->by_mean ? sum / n : least) > t->op->mass;
}

/* Checks the coverage after `look` pages, and sets when to check next if it does not suffice. */
static void check_coverage(const struct team *t)
{
    struct op_visited *s = t->op->state;
    for (uint32_t i = 0; i < t->n; i++)
        for (uint32_t g = 0; g < t->op[i].group; g++) {
            struct op_visited *lane = t->op[i].state;
            if (t->op->rest == OP_REST_LAST && s->n_last)
                lane->guess[g] = lane->step[g] / s->n_last;
            lane->step[g] = 0;
        }
    s->done = has_enough(t);
    s->n_last = min_u32(t->op->step, t->op->n_page - s->at);
    s->look = s->at + s->n_last;
}

/* Checks the coverage and plans the next round when they are due. */
static void check_and_plan(const struct team *t)
{
    struct op_visited *s = t->op->state;
    if (s->at == s->look) check_coverage(t);
    if (!s->done && s->plan <= s->at) plan_round(t);
}

/* Visits the round's pages in order until enough is covered. */
static void end_round(const struct team *t)
{
    struct op_visited *s = t->op->state;
    while (s->at < s->end && !s->done) {
        const bool is_step = s->n_last > 0;
        const uint32_t place = s->at++;
        for (uint32_t k = 0; k < t->n; k++)
            if (takes_part(&t->op[k])) visit_page(&t->op[k], t->op->order[place], place, is_step);
        check_and_plan(t);
    }
    for (uint32_t k = 0; k < t->n; k++)
        if (takes_part(&t->op[k])) t->op[k].result->n_beside += s->end - s->at;
}

/* ---- Values ---- */

/* Weighted sum of a block's values per query head, relative to exp(most). */
struct block {
    float *value, *most; /* [group, head_dim], [group] */
};

static struct block block_of(const struct op_lane_visit *op, uint32_t i)
{
    const size_t d = op->geom->head_dim, at = (size_t)i * op->group * (d + 1);
    return (struct block){.value = op->block + at, .most = op->block + at + op->group * d};
}

/* Computes the factors `by` [group] of a page's weights. If the page has a larger logit than the
 * block so far, the block's sums are rescaled. */
static void rescale_block(const struct op_lane_visit *op, const struct block *to, const float *most,
                          float *by)
{
    const uint32_t d = op->geom->head_dim;
    for (uint32_t g = 0; g < op->group; g++) {
        float *value = to->value + (size_t)g * d;
        if (most[g] > to->most[g]) {
            const float less = expf(to->most[g] - most[g]);
            for (uint32_t c = 0; c < d; c++) value[c] *= less;
            to->most[g] = most[g];
        }
        by[g] = most[g] == -INFINITY ? 0 : expf(most[g] - to->most[g]);
    }
}

/* Adds the values of the pages at places [from, end) of the team's order to their block. */
static void add_values(const struct team *t, const struct op_lane_visit *op, uint32_t from,
                       uint32_t end)
{
    const struct page_geom *g = op->geom;
    const struct block to = block_of(op, from / OP_VISIT_BLOCK);
    float by[OP_GROUP_MAX];
    if (from % OP_VISIT_BLOCK == 0) {
        memset(to.value, 0, (size_t)op->group * g->head_dim * sizeof *to.value);
        for (uint32_t h = 0; h < op->group; h++) to.most[h] = -INFINITY;
    }
    for (uint32_t i = from; i < end; i++) {
        const struct part part = part_of(op, i);
        if (i + 1 < t->op->state->at) fetch(op, t->op->order[i + 1], values_at(g), g->bytes);
        rescale_block(op, &to, part.most, by);
        t->ops->blend(
            &(struct op_blend){.geom = g,
                               .page = page_frame(g, op->frames, op->page[t->op->order[i]]),
                               .weight = part.weight,
                               .by = by,
                               .group = op->group,
                               .value = to.value});
    }
}

/* Computes the attention output over all visited pages. */
static void end_lane(const struct op_lane_visit *op, uint32_t n_visit)
{
    const struct op_visited *s = op->state;
    const uint32_t d = op->geom->head_dim;
    memset(op->value, 0, (size_t)op->group * d * sizeof *op->value);
    for (uint32_t g = 0; g < op->group; g++) {
        float *value = op->value + (size_t)g * d;
        if (s->sum[g] == 0) continue;
        op->value_log[g] = s->most[g] + (float)log(s->sum[g]);
        for (uint32_t i = 0; i * OP_VISIT_BLOCK < n_visit; i++) {
            const struct block b = block_of(op, i);
            const float by = expf(b.most[g] - s->most[g]) / (float)s->sum[g];
            for (uint32_t c = 0; c < d; c++) value[c] += by * b.value[(size_t)g * d + c];
        }
    }
    op->result->attended = true;
    if (op->proof) end_proof(op);
}

/* ---- The slot ---- */

static struct team team_of(const struct call *c, uint32_t i)
{
    while (c->op[i].n_member == 0) i--; /* of the previous team */
    return (struct team){.ops = c->ops, .op = c->op + i, .n = c->op[i].n_member};
}

static void open_team(void *arg, uint32_t i, uint32_t worker_i)
{
    const struct call *c = arg;
    const struct team t = team_of(c, i);
    (void)worker_i;
    if (c->op[i].n_member == 0 || t.op->state->begun) return;
    begin_team(&t);
    check_and_plan(&t);
}

/* Starts the next round of all teams; returns the number of pieces of the longest. */
static uint32_t begin_rounds(const struct op_lane_visit *op, uint32_t n)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i += op[i].n_member) {
        struct op_visited *s = op[i].state;
        s->from = s->end = s->at;
        if (s->done) continue;
        s->end = max_u32(s->at, min_u32(s->plan, op[i].until));
        const uint32_t n_piece = (s->end - s->from + PIECE - 1) / PIECE;
        s->n_left = n_piece * op[i].n_member;
        most = max_u32(most, n_piece);
    }
    return most;
}

static void visit_piece(const struct call *c, uint32_t i, uint32_t piece)
{
    const struct team t = team_of(c, i);
    const struct op_lane_visit *op = &c->op[i];
    struct op_visited *s = t.op->state;
    const uint32_t first = s->from + piece * PIECE, end = min_u32(first + PIECE, s->end);
    if (first >= s->end) return;
    for (uint32_t p = first; p < end && takes_part(op); p++) {
        const struct part part = part_of(op, p);
        if (p + 1 < s->end) fetch(op, t.op->order[p + 1], 0, values_at(op->geom));
        read_page(c->ops, op, t.op->order[p], &part);
    }
    if (__atomic_sub_fetch(&s->n_left, 1, __ATOMIC_ACQ_REL) == 0) end_round(&t);
}

static void visit_pieces(void *arg, uint32_t begin, uint32_t end, uint32_t worker_i)
{
    const struct call *c = arg;
    (void)worker_i;
    for (; begin < end; begin++) visit_piece(c, begin / c->n_piece, begin % c->n_piece);
}

/* Number of blocks whose values are due: at least one, possibly empty, which ends the visit. */
static uint32_t due_blocks(const struct op_lane_visit *op, uint32_t at)
{
    const uint32_t first = op->state->n_value / OP_VISIT_BLOCK;
    return max_u32((at + OP_VISIT_BLOCK - 1) / OP_VISIT_BLOCK, first + 1) - first;
}

/* Prepares the blocks of values; returns their maximum number over all lanes. */
static uint32_t begin_values(const struct call *c, uint32_t n)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct op_lane_visit *op = &c->op[i];
        op->state->n_value_left = due_blocks(op, team_of(c, i).op->state->at);
        most = max_u32(most, op->state->n_value_left);
    }
    return most;
}

static void value_block(const struct call *c, uint32_t i, uint32_t block)
{
    const struct team t = team_of(c, i);
    const struct op_lane_visit *op = &c->op[i];
    struct op_visited *s = op->state;
    const uint32_t at = t.op->state->at, n_done = s->n_value;
    const uint32_t begin = (n_done / OP_VISIT_BLOCK + block) * OP_VISIT_BLOCK;
    if (block >= due_blocks(op, at) || !takes_part(op)) return;
    add_values(&t, op, max_u32(begin, n_done), min_u32(begin + OP_VISIT_BLOCK, at));
    if (__atomic_sub_fetch(&s->n_value_left, 1, __ATOMIC_ACQ_REL) > 0) return;
    if (t.op->state->done) end_lane(op, at);
}

static void value_blocks(void *arg, uint32_t begin, uint32_t end, uint32_t worker_i)
{
    const struct call *c = arg;
    (void)worker_i;
    for (; begin < end; begin++) value_block(c, begin / c->n_piece, begin % c->n_piece);
}

/* Records that all values of the call have been added. */
static void end_values(const struct call *c, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct op_lane_visit *op = &c->op[i];
        const uint32_t at = team_of(c, i).op->state->at;
        if (takes_part(op)) op->result->n_value += at - op->state->n_value;
        op->state->n_value = at;
        if (op->last && team_of(c, i).op->state->done) *op->last = at;
    }
}

void lanes_visit(struct workers *pool, const struct ops *ops, const struct op_lane_visit *op,
                 uint32_t n)
{
    struct call c = {.ops = ops, .op = op};
    workers_for(pool, n, open_team, &c);
    while ((c.n_piece = begin_rounds(op, n)) > 0)
        workers_for_span(pool, n * c.n_piece, 1, visit_pieces, &c);
    c.n_piece = begin_values(&c, n);
    workers_for_span(pool, n * c.n_piece, 1, value_blocks, &c);
    end_values(&c, n);
}
