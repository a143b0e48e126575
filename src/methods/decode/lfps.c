/* lfps.c: candidates from what earlier steps looked at, LFPS (Yao et al., 2025).
 *
 * Two tables remember attention: `ver` by position (the same tokens again) and `sla` by distance
 * from the query (a diagonal). Entries above a threshold are candidates, with neighbours that lie
 * above the mean; candidates alone are scored exactly, the best are read, and their weights go back
 * into the tables, which decay by `decay` a step. Heads whose mass lies on the sinks are bypassed.
 *
 * Decided where the paper is silent: kurtosis as printed, without the factor n; weights are a
 * softmax over the tokens read alone, in the prompt over all but the sinks, so a table's sum stays
 * 1 / (2 (1 - decay)); `sla` is kept by distance, so it points at the next query without being
 * moved; a bypassed head reads sinks and newest tokens exactly and, where no head of its KV head
 * reads more, the mean value with the guessed mass stands for the rest; its tables rest.
 * heads=query keeps the paper's pair for each query head and reads the union; heads=group keeps one
 * pair for a KV head, fed with the mean weights of its query heads: fewer tables and a worse choice
 * (KL 0.16 where the other has 0.09, both at 4 % read, qwen2.5-coder-0.5b at 4K).
 *
 * Tables are stored divided by the decay so far (`unit`), so a step changes only what it has read,
 * and thresholds come from power sums that follow those changes. */
#include "methods/meter.h"
#include "methods/observe.h"
#include "methods/pick.h"
#include "methods/spec.h"

#include "base/mem.h"

#include <string.h>

#define N_LOCAL 6u  /* newest tokens before the own, always scored */
#define RENEW   64u /* steps after which tables are made plain again */

#define PARAMS(P)                                                                                  \
    P(BUDGET, budget, "2%", 1, "tokens that are read, sinks not counted")                          \
    P(NUMBER, a, "0.2", 0, 10, "factor of the thresholds: larger, fewer candidates")               \
    P(NUMBER, decay, "0.95", 0.5, 0.999, "what a step leaves of a table")                          \
    P(SHARE, bypass, "0.85", "share of the sinks above which a head reads little else; 1: never")  \
    P(COUNT, past, "32", 1, 1024, "last rows of the prompt that fill the tables")                  \
    P(TOKENS, sink, "4", 1, 1024, "first tokens, always read and in no table")                     \
    P(CHOICE, heads, "query", "query|group",                                                       \
      "tables for each query head, or one pair for those that share keys")                         \
    P(CHOICE, rest, "mean", "mean|none",                                                           \
      "what stands for the tokens of a bypassed head: their mean value, or nothing")               \
    P(COUNT, refresh, "0", 0, 1 << 20, "every so many steps all tokens are candidates; 0: never")  \
    P(FLAG, guard, "off", "all tokens are candidates when those read hold too little")
METHOD_PARAMS(lfps, PARAMS)

struct moments { /* sums of the first four powers of a table's entries */
    double s[4];
};

struct lfps_state {
    uint32_t n_learnt; /* 0: nothing is known yet; else the position of the last step, plus 1 */
    uint32_t n_mean;   /* tokens in key_sum, the sinks counted */
    uint32_t n_step;   /* since the tables were plain */
    float unit;        /* of the stored entries */
};

struct parts {
    struct lfps_state *state;
    struct moments *moment; /* [n_table][2] of ver, of sla */
    double *key_sum;        /* [head_dim] */
    double *value_sum;      /* [head_dim] */
    float *spread;          /* [group] variance of the scores over |q|^2 */
    /* By position, and by distance: entry x of a row of `sla` is that of the distance n_tok - 1 -
     * x, so that from the right place on both hold the entries of tokens 0, 1, .. of a query
     * (row_of). What lies behind the query's own token is 0. */
    float *ver, *sla; /* [n_table, n_tok], [n_table, n_tok + PAGE_TOK] */
    size_t n_tok;     /* of a context, rounded up to pages */
    uint32_t n_table;
};

static size_t cut_state(struct parts *p, const struct method_shape *s, const void *param,
                        void *state)
{
    const struct lfps_param *set = param;
    struct arena a = {.base = state, .capacity = SIZE_MAX};
    p->n_table = set->heads > 0 ? 1 : s->group;
    p->n_tok = ((size_t)s->n_ctx + PAGE_TOK - 1) / PAGE_TOK * PAGE_TOK;
    p->state = arena_take(&a, 1, sizeof *p->state);
    p->moment = arena_take(&a, 2 * (size_t)p->n_table, sizeof *p->moment);
    p->key_sum = arena_take(&a, s->geom->head_dim, sizeof *p->key_sum);
    p->value_sum = arena_take(&a, s->geom->head_dim, sizeof *p->value_sum);
    p->spread = arena_take(&a, s->group, sizeof *p->spread);
    p->ver = arena_take(&a, p->n_table * p->n_tok, sizeof *p->ver);
    p->sla = arena_take(&a, p->n_table * (p->n_tok + PAGE_TOK), sizeof *p->sla);
    return a.used;
}

static size_t lfps_state_bytes(const struct method_shape *s, const void *param)
{
    struct parts p;
    return cut_state(&p, s, param, NULL);
}

/* Scratch of a step; scores and weights of candidates lie in the observation's buffers. */
struct step {
    struct observe o;
    uint32_t n_word;       /* of a mask that holds the own page too */
    uint32_t *cand;        /* [n_table, n_word] C1 of each table */
    uint32_t *hot, *above; /* [n_word] over the threshold of one of the two tables, over its mean */
    float *v;              /* [PAGE_TOK, head_dim] */
    uint32_t *tok;         /* [n_ctx] candidates of all tables, ascending */
    uint32_t n_tok;
};

static size_t make_step(struct step *w, const struct method_shape *s, uint32_t n_table,
                        void *scratch)
{
    const size_t used = observe_make(&w->o, s, scratch);
    struct arena a = {.base = w->o.rest, .capacity = SIZE_MAX};
    w->n_word = (s->n_ctx + PAGE_TOK - 1) / PAGE_TOK;
    w->cand = arena_take(&a, (size_t)n_table * w->n_word, sizeof *w->cand);
    w->v = arena_take(&a, PAGE_TOK * (size_t)s->geom->head_dim, sizeof *w->v);
    w->hot = arena_take(&a, w->n_word, sizeof *w->hot);
    w->above = arena_take(&a, w->n_word, sizeof *w->above);
    w->tok = arena_take(&a, w->o.stride, sizeof *w->tok);
    return used + a.used;
}

static size_t lfps_scratch_bytes(const struct method_shape *s, const void *param)
{
    const struct lfps_param *set = param;
    struct step w;
    return make_step(&w, s, set->heads > 0 ? 1 : s->group, NULL);
}

static uint32_t lfps_past_rows(const struct method_shape *s, const void *param)
{
    const struct lfps_param *set = param;
    (void)s;
    return set->past;
}

/* ---- Tables ---- */

/* Entries of tokens 0, 1, .. in a table, for the query at `pos`. */
static float *row_of(const struct parts *p, uint32_t table, bool sla, uint32_t pos)
{
    assert(table < p->n_table && pos < p->n_tok);
    if (!sla) return p->ver + table * p->n_tok;
    return p->sla + table * (p->n_tok + PAGE_TOK) + p->n_tok - 1 - pos;
}

static void change(float *entry, struct moments *m, double by)
{
    const double old = (double)*entry;
    *entry = (float)(old + by);
    const double new = (double)*entry;
    double x = 1, y = 1;
    for (int i = 0; i < 4; i++) m->s[i] += (y *= new) - (x *= old);
}

/* Entries of tokens 0 .. pos in units of 1 again, power sums anew. */
static void make_plain(const struct parts *p, const struct method_lane *l)
{
    const uint32_t pos = l->pos;
    for (uint32_t i = 0; i < 2 * p->n_table; i++) {
        float *x = row_of(p, i / 2, i % 2, pos);
        meter_read(l, x, (pos + 1) * sizeof *x);
        double s1 = 0, s2 = 0, s3 = 0, s4 = 0;
        for (uint32_t t = 0; t <= pos; t++) {
            x[t] *= p->state->unit;
            const double v = (double)x[t];
            s1 += v;
            s2 += v * v;
            s3 += v * v * v;
            s4 += v * v * v * v;
        }
        p->moment[i] = (struct moments){{s1, s2, s3, s4}};
    }
    p->state->unit = 1;
    p->state->n_step = 0;
}

struct threshold {
    float hot, mean;
    bool flat; /* all entries are equal: there is nothing to choose by */
};

/* a * mean / kappa, kappa = sum (x - mean)^4 / (sum (x - mean)^2)^2. */
static struct threshold find_threshold(const struct moments *m, uint32_t n, double a)
{
    const double mean = m->s[0] / n, m2 = m->s[1] - n * mean * mean;
    const double m4 = m->s[3] - 4 * mean * m->s[2] + 6 * mean * mean * m->s[1] -
                      3 * n * mean * mean * mean * mean;
    const bool flat = !(m2 > 1e-12 * m->s[1]) || !(m4 > 0);
    return (struct threshold){.hot = flat ? INFINITY : (float)(a * mean * m2 * m2 / m4),
                              .mean = (float)mean,
                              .flat = flat};
}

/* ---- Learning from the prompt ---- */

/* The means of keys and values over all tokens but the sinks. */
static void add_means(const struct parts *p, const struct method_lane *l, const struct step *w)
{
    const struct lfps_param *set = l->param;
    const uint32_t d = l->shape->geom->head_dim, sink = set->sink;
    struct lfps_state *s = p->state;
    while (s->n_mean <= l->pos) {
        const uint32_t page = s->n_mean / PAGE_TOK, first = page * PAGE_TOK;
        const uint32_t end = pick_min(first + PAGE_TOK, l->pos + 1);
        assert(end > s->n_mean);
        if (page == pick_page_count(l))
            pick_own(w->o.k, w->v, l);
        else
            pick_keys_values(w->o.k, w->v, l, page);
        for (uint32_t t = pick_max(s->n_mean, sink) - first; t < end - first; t++)
            for (uint32_t c = 0; c < d; c++) {
                p->key_sum[c] += (double)w->o.k[(size_t)t * d + c];
                p->value_sum[c] += (double)w->v[(size_t)t * d + c];
            }
        s->n_mean = end;
    }
}

static double norm2(const float *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sum;
}

/* The scores' variance over tokens sink .. row of each head, over that of the query. */
static void find_spread(const struct parts *p, const struct method_lane *l, const float *score,
                        size_t stride, uint32_t row)
{
    const struct lfps_param *set = l->param;
    const uint32_t d = l->shape->geom->head_dim, sink = set->sink;
    const float *q =
        row == l->pos ? l->q : method_past_query(&l->past, row, (size_t)l->shape->group * d);
    for (uint32_t g = 0; g < l->shape->group; g++) {
        double sum = 0, square = 0;
        for (uint32_t t = sink; t <= row; t++) {
            const double x = (double)score[g * stride + t];
            sum += x;
            square += x * x;
        }
        const double n = row + 1.0 - sink, length = norm2(q + (size_t)g * d, d);
        const double variance = fmax(square / n - sum / n * (sum / n), 0);
        p->spread[g] = length > 0 ? (float)(variance / length) : 0;
    }
}

/* The weights of one past row, without the sinks, into both tables. */
static bool add_row(const struct parts *p, const struct method_lane *l, const struct step *w,
                    float *score, uint32_t row, double c)
{
    const struct lfps_param *set = l->param;
    const uint32_t sink = set->sink, group = l->shape->group / p->n_table;
    for (uint32_t g = 0; g < l->shape->group; g++)
        for (uint32_t t = 0; t < sink; t++) score[g * w->o.stride + t] = OBSERVE_NEVER;
    for (uint32_t i = 0; i < p->n_table; i++) {
        if (!l->ops->vote(&(struct op_vote){.score = score + (size_t)i * group * w->o.stride,
                                            .score_stride = w->o.stride,
                                            .n = row + 1,
                                            .group = group,
                                            .vote = w->o.vote,
                                            .lse = w->o.lse}))
            return false;
        float *ver = row_of(p, i, false, row), *sla = row_of(p, i, true, row);
        meter_read(l, ver + sink, (row + 1 - sink) * sizeof *ver);
        meter_read(l, sla + sink, (row + 1 - sink) * sizeof *sla);
        for (uint32_t t = sink; t <= row; t++) {
            ver[t] += (float)c * w->o.vote[t];
            sla[t] += (float)c * w->o.vote[t];
        }
    }
    return true;
}

static bool learn(const struct parts *p, const struct method_lane *l, const struct step *w)
{
    const struct lfps_param *set = l->param;
    struct lfps_state *s = p->state;
    const uint32_t sink = set->sink, past = set->past;
    uint32_t begin = pick_max(l->past.begin, l->pos > past ? l->pos - past : 0), end = l->pos;
    begin = pick_max(begin, sink);
    if (begin >= end) { /* nothing is kept: the row itself is all there is */
        begin = l->pos;
        end = l->pos + 1;
    }
    *s = (struct lfps_state){.unit = 1};
    memset(p->key_sum, 0, l->shape->geom->head_dim * sizeof *p->key_sum);
    memset(p->value_sum, 0, l->shape->geom->head_dim * sizeof *p->value_sum);
    memset(p->ver, 0, p->n_table * p->n_tok * sizeof *p->ver);
    memset(p->sla, 0, p->n_table * (p->n_tok + PAGE_TOK) * sizeof *p->sla);
    const double c = 1 / (2 * (end - begin) * (1 - set->decay));
    assert(begin < end && end <= l->pos + 1);
    for (uint32_t row = begin, n_row; row < end; row += n_row) {
        n_row = pick_min(OBSERVE_ROWS, end - row);
        observe_scores(&w->o, l, row, n_row);
        for (uint32_t i = 0; i < n_row; i++) {
            float *score = w->o.score + (size_t)i * l->shape->group * w->o.stride;
            if (row + i + 1 == end) find_spread(p, l, score, w->o.stride, row + i);
            if (!add_row(p, l, w, score, row + i, c)) return false;
        }
    }
    make_plain(p, l);
    return true;
}

/* ---- A step ---- */

static float log_add(float a, float b)
{
    const float hi = a > b ? a : b, lo = a > b ? b : a; /* a NaN comes through */
    return lo == -INFINITY ? hi : hi + log1pf(expf(lo - hi));
}

/* Sets the bits of the entries above `least`; what lies behind the query's token is 0 and below. */
static void mark_above(uint32_t *out, const struct method_lane *l, const float *row, float least)
{
    meter_read(l, row, (l->pos / PAGE_TOK + 1) * PAGE_TOK * sizeof *row);
    l->ops->mark(&(struct op_mark){.value = row,
                                   .cut = {.key = pick_key(least)},
                                   .n_page = l->pos / PAGE_TOK + 1,
                                   .mask = out});
}

/* C1 of one table: hot entries and their neighbours -1, 1, 2, as far as they lie above the mean. */
static void find_candidates(uint32_t *cand, const struct parts *p, const struct step *w,
                            const struct method_lane *l, uint32_t table, bool *flat)
{
    const struct lfps_param *set = l->param;
    const uint32_t sink = set->sink, n = l->pos + 1, n_word = (n + 31) / 32;
    const struct threshold ver = find_threshold(&p->moment[2 * (size_t)table], n - sink, set->a);
    const struct threshold sla =
        find_threshold(&p->moment[2 * (size_t)table + 1], n - sink, set->a);
    const float *v = row_of(p, table, false, l->pos), *s = row_of(p, table, true, l->pos);
    memset(w->hot, 0, n_word * sizeof *w->hot);
    memset(w->above, 0, n_word * sizeof *w->above);
    mark_above(w->hot, l, v, fmaxf(ver.hot, 0));
    mark_above(w->hot, l, s, fmaxf(sla.hot, 0));
    mark_above(w->above, l, v, ver.mean);
    mark_above(w->above, l, s, sla.mean);
    for (uint32_t i = 0; i < n_word; i++) {
        const uint32_t x = w->hot[i], low = i > 0 ? w->hot[i - 1] : 0;
        const uint32_t high = i + 1 < n_word ? w->hot[i + 1] : 0;
        const uint32_t near = x | x >> 1 | high << 31 | x << 1 | low >> 31 | x << 2 | low >> 30;
        cand[i] = near & w->above[i];
    }
    *flat = *flat || (ver.flat && sla.flat);
}

static void mark_local(uint32_t *cand, const struct method_lane *l)
{
    const struct lfps_param *set = l->param;
    const uint32_t sink = set->sink;
    for (uint32_t t = pick_max(l->pos > N_LOCAL ? l->pos - N_LOCAL : 0, sink); t <= l->pos; t++)
        cand[t / 32] |= 1u << t % 32;
}

/* What heads keep for themselves: log masses of the sinks and of the rest as far as it is guessed.
 */
struct sparsity {
    float sink[METHOD_GROUP_MAX], rest[METHOD_GROUP_MAX];
    bool bypass[METHOD_GROUP_MAX];
    bool finite;
};

/* Eq. 5 and 6: the share of the sinks in (sinks + a log-normal guess of all others + the newest).
 */
static void find_sparsity(struct sparsity *out, const struct parts *p, struct step *w,
                          const struct method_lane *l)
{
    const struct lfps_param *set = l->param;
    const uint32_t d = l->shape->geom->head_dim, sink = set->sink;
    assert(l->pos > sink && p->state->n_learnt == l->pos + 1);
    const uint32_t n = l->pos + 1 - sink, group = l->shape->group;
    memset(w->hot, 0, w->n_word * sizeof *w->hot);
    for (uint32_t t = 0; t < sink; t++) w->hot[t / 32] |= 1u << t % 32;
    mark_local(w->hot, l);
    w->n_tok = observe_tokens(&w->o, l, w->hot, w->tok);
    out->finite = true;
    for (uint32_t g = 0; g < group; g++) {
        const float *q = l->q + (size_t)g * d;
        float local = -INFINITY;
        double middle = 0;
        out->sink[g] = -INFINITY;
        for (uint32_t c = 0; c < d; c++) middle += (double)q[c] * p->key_sum[c] / n;
        out->rest[g] =
            (float)(log(n) + middle * (double)l->scale + norm2(q, d) * (double)p->spread[g] / 2);
        for (uint32_t i = 0; i < w->n_tok; i++) {
            float *sum = w->tok[i] < sink ? &out->sink[g] : &local;
            if (w->tok[i] < l->pos) *sum = log_add(*sum, w->o.score[g * w->o.stride + i]);
        }
        const float all = log_add(log_add(out->sink[g], out->rest[g]), local);
        out->finite = out->finite && isfinite(all);
        out->bypass[g] = expf(out->sink[g] - all) > (float)set->bypass;
    }
}

/* Weights of the listed tokens of one table: the mean of its heads' softmax over those in `mask`,
 * in w->o.vote. Heads of the table that are bypassed have no say. */
static void weigh(const struct step *w, const struct sparsity *s, const uint32_t *mask,
                  uint32_t head0, uint32_t n_head)
{
    float *out = w->o.vote;
    uint32_t n_voter = 0;
    for (uint32_t g = head0; g < head0 + n_head; g++) n_voter += !s->bypass[g];
    memset(out, 0, w->n_tok * sizeof *out);
    for (uint32_t g = head0; g < head0 + n_head; g++) {
        const float *logit = w->o.score + g * w->o.stride;
        float most = -INFINITY, sum = 0;
        if (s->bypass[g]) continue;
        for (uint32_t i = 0; i < w->n_tok; i++)
            if (mask[w->tok[i] / 32] >> w->tok[i] % 32 & 1) most = fmaxf(most, logit[i]);
        for (uint32_t i = 0; i < w->n_tok; i++)
            if (mask[w->tok[i] / 32] >> w->tok[i] % 32 & 1)
                sum += w->o.sum[i] = expf(logit[i] - most);
            else
                w->o.sum[i] = 0;
        const float share = 1 / (sum * (float)n_voter);
        for (uint32_t i = 0; i < w->n_tok; i++) out[i] += w->o.sum[i] * share;
    }
}

/* Keeps the k best candidates of a table in `mask`; returns how many there are. */
static uint32_t keep_best(uint32_t *mask, const struct step *w, uint32_t k)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->n_tok; i++) { /* others cannot be taken before any candidate */
        const bool is = mask[w->tok[i] / 32] >> w->tok[i] % 32 & 1;
        if (!is) w->o.vote[i] = -1;
        n += is;
    }
    k = pick_min(k, n);
    struct pick_cut cut = pick_best(w->o.vote, w->n_tok, k);
    for (uint32_t i = 0; i < w->n_tok; i++)
        if (!pick_takes(&cut, w->o.vote[i])) mask[w->tok[i] / 32] &= ~(1u << w->tok[i] % 32);
    return k;
}

/* Eq. 10 for the tokens that a table's heads have read. */
static void remember(const struct parts *p, const struct step *w, const struct method_lane *l,
                     const uint32_t *mask, uint32_t table, uint32_t n_read)
{
    float *ver = row_of(p, table, false, l->pos), *sla = row_of(p, table, true, l->pos);
    assert(n_read > 0);
    const double unit = (double)p->state->unit, even = 1 / (2.0 * n_read);
    uintptr_t ver_line = 0, sla_line = 0;
    for (uint32_t i = 0; i < w->n_tok; i++) {
        const uint32_t t = w->tok[i];
        if (!(mask[t / 32] >> t % 32 & 1)) continue;
        const double by = ((double)w->o.vote[i] - even) / unit;
        ver_line = meter_entry(l, &ver[t], ver_line);
        sla_line = meter_entry(l, &sla[t], sla_line);
        change(&ver[t], &p->moment[2 * (size_t)table], by);
        change(&sla[t], &p->moment[2 * (size_t)table + 1], by);
    }
}

static bool holds_enough(const struct step *w, const struct method_lane *l,
                         const struct sparsity *s, const uint32_t *mask)
{
    for (uint32_t g = 0; g < l->shape->group; g++) {
        float sum = -INFINITY;
        for (uint32_t i = 0; i < w->n_tok; i++)
            if (mask[w->tok[i] / 32] >> w->tok[i] % 32 & 1)
                sum = log_add(sum, w->o.score[g * w->o.stride + i]);
        if (!s->bypass[g] && sum < s->rest[g]) return false;
    }
    return true;
}

/* C1 of all tables in w->cand, their union in w->hot. `all`: everything is a candidate. */
static bool gather(const struct parts *p, const struct step *w, const struct method_lane *l,
                   const struct sparsity *s, bool all)
{
    const struct lfps_param *set = l->param;
    const uint32_t n_word = l->pos / 32 + 1, n_head = l->shape->group / p->n_table;
    bool flat = false, any = false;
    for (uint32_t i = 0; i < p->n_table; i++) {
        uint32_t *cand = w->cand + (size_t)i * w->n_word;
        bool voter = false;
        for (uint32_t g = 0; g < n_head; g++) voter = voter || !s->bypass[i * n_head + g];
        memset(cand, 0, n_word * sizeof *cand);
        if (!voter) continue;
        any = true;
        if (!all) find_candidates(cand, p, w, l, i, &flat);
        for (uint32_t t = set->sink; (all || flat) && t <= l->pos; t++)
            cand[t / 32] |= 1u << t % 32;
        mark_local(cand, l);
    }
    memset(w->hot, 0, n_word * sizeof *w->hot);
    for (uint32_t i = 0; i < p->n_table; i++)
        for (uint32_t x = 0; x < n_word; x++) w->hot[x] |= w->cand[(size_t)i * w->n_word + x];
    return any;
}

/* Scores C1, keeps C2 and learns from it; w->hot is what is to be read. */
static void read_best(const struct parts *p, struct step *w, const struct method_lane *l,
                      const struct sparsity *s)
{
    const struct lfps_param *set = l->param;
    const uint32_t sink = set->sink, n_word = l->pos / 32 + 1;
    const uint32_t n_head = l->shape->group / p->n_table;
    const uint32_t k = spec_budget(set->budget, l->pos + 1 - sink);
    w->n_tok = observe_tokens(&w->o, l, w->hot, w->tok);
    if (set->guard && !holds_enough(w, l, s, w->hot)) {
        gather(p, w, l, s, true);
        w->n_tok = observe_tokens(&w->o, l, w->hot, w->tok);
    }
    p->state->unit *= (float)set->decay;
    memset(w->hot, 0, n_word * sizeof *w->hot);
    for (uint32_t i = 0; i < p->n_table; i++) {
        uint32_t *mask = w->cand + (size_t)i * w->n_word;
        bool some = false;
        for (uint32_t x = 0; x < n_word; x++) some = some || mask[x];
        if (!some) continue;
        weigh(w, s, mask, i * n_head, n_head);
        const uint32_t n_read = keep_best(mask, w, k);
        weigh(w, s, mask, i * n_head, n_head);
        remember(p, w, l, mask, i, n_read);
        for (uint32_t x = 0; x < n_word; x++) w->hot[x] |= mask[x];
    }
    meter_build(l);
    if (++p->state->n_step == RENEW) make_plain(p, l);
    assert(p->state->n_step < RENEW);
    meter_choose(l);
}

/* The mean value stands for what the heads do not read. */
static void add_rest(const struct parts *p, const struct method_lane *l, const struct sparsity *s,
                     struct method_pick *out)
{
    const struct lfps_param *set = l->param;
    const uint32_t n = l->pos + 1 - set->sink, d = l->shape->geom->head_dim;
    for (uint32_t c = 0; c < d; c++) out->rest_value[c] = (float)(p->value_sum[c] / n);
    for (uint32_t g = 1; g < l->shape->group; g++)
        memcpy(out->rest_value + (size_t)g * d, out->rest_value, d * sizeof *out->rest_value);
    for (uint32_t g = 0; g < l->shape->group; g++) out->rest_log[g] = s->rest[g];
}

static void lfps_see(const struct method_lane *l)
{
    struct parts p;
    cut_state(&p, l->shape, l->param, l->state);
    if (l->is_prompt) p.state->n_learnt = 0; /* the next decode row learns what it asks for */
}

static void lfps_select(const struct method_lane *l, struct method_pick *out)
{
    const struct lfps_param *set = l->param;
    const uint32_t sink = set->sink, every = set->refresh;
    struct parts p;
    struct step w;
    struct sparsity s = {0};
    cut_state(&p, l->shape, l->param, l->state);
    make_step(&w, l->shape, p.n_table, l->scratch);
    if (l->pos <= sink + N_LOCAL || spec_budget(set->budget, l->pos + 1 - sink) > l->pos - sink) {
        pick_dense(out);
        return;
    }
    meter_build(l);
    const bool finite = p.state->n_learnt > 0 || learn(&p, l, &w);
    if (finite) add_means(&p, l, &w);
    meter_choose(l);
    if (!finite) {
        pick_not_finite(out);
        return;
    }
    p.state->n_learnt = l->pos + 1;
    find_sparsity(&s, &p, &w, l);
    if (!s.finite) {
        pick_not_finite(out);
        return;
    }
    const bool all = every > 0 && (l->pos + l->layer + l->kv_head) % every == 0;
    if (gather(&p, &w, l, &s, all))
        read_best(&p, &w, l, &s);
    else if (set->rest == 0)
        add_rest(&p, l, &s, out);
    for (uint32_t g = 0; g < l->shape->group; g++) out->n_bypass += s.bypass[g];
    pick_kept(out, w.hot, pick_page_count(l), sink, l->pos + 1);
    pick_ends(out, l, sink, N_LOCAL + 1); /* bypassed heads read these alone */
}

static bool lfps_sound(const struct method_loaded *l)
{
    const struct lfps_state *x = l->state;
    return x->n_learnt <= l->n_tok && x->n_mean <= l->n_tok && x->n_step < RENEW;
}

static const struct method_decode hooks = {
    .state_bytes = lfps_state_bytes,
    .scratch_bytes = lfps_scratch_bytes,
    .past_rows = lfps_past_rows,
    .see = lfps_see,
    .select = lfps_select,
    .sound = lfps_sound,
};

static const sac_method_deviation deviations[] = {
    {"heads whose mass lies on the sinks get the mean value",
     "they read sinks and newest tokens exactly, and the mean value stands for the rest",
     "the paper has two readings, this one loses less", NULL},
    {"each query head has its own tables, candidates and tokens",
     "the same, and all heads that share keys read what one has chosen; heads=group has one pair "
     "of tables for them",
     "the bytes are read for all of them",
     "KL 0.16 with heads=group where query has 0.09, both at 4 % read, qwen2.5-coder-0.5b at 4K"},
    {"the table of distances is aligned with the last query", "with the next one",
     "as printed the next token of a diagonal is missed", NULL},
    {"keys and values lie in the host's memory, and one CPU core scores",
     "one memory, and all cores", "there is no accelerator", "speeds cannot be compared"},
};

const struct method lfps_method = {
    METHOD_DECODE(lfps, "tokens that earlier steps looked at, by position and by distance"),
    .paper = "Yao et al., Learn from the Past: Fast Sparse Indexing for Large Language Model "
             "Decoding",
    .about =
        "Remembers which positions and which distances earlier tokens looked at, scores only those "
        "and their neighbours exactly, and reads the best. Nothing scans all keys, so a step costs "
        "what its tables and the keys of its candidates' pages cost. What has never been looked at "
        "is not a candidate: a late needle stays unseen unless refresh=N scores everything every N "
        "steps.",
    METHOD_DEVIATIONS(deviations),
    .has_rest = true,
    .token_grain = true,
    .needs_question = true,
    .facts = {.budget = METHOD_BUDGET_QUERY, .n_forced = 4 + N_LOCAL + 1, .n_late = METHOD_NEVER},
    .meets_segments = true,
    .decode = &hooks,
};
