/* lfps.c: candidates from what earlier steps attended to, LFPS (Yao et al., 2025).
 *
 * Two tables remember attention: `ver` by position (the same tokens again) and `sla` by distance
 * from the query (a diagonal). Entries above a threshold are candidates, with neighbours above the
 * mean; only candidates are scored exactly, the best are read, and their weights go back into the
 * tables, which decay by `decay` per step. Heads whose mass lies on the sinks are bypassed.
 *
 * Decided where the paper is silent: kurtosis as printed, without the factor n; weights are a
 * softmax over the tokens read alone, in the prompt over all but the sinks, so a table's sum stays
 * 1 / (2 (1 - decay)); `sla` is stored by distance, so it points at the next query without being
 * moved; a bypassed head reads sinks and recent tokens exactly and, where no head of its KV head
 * reads more, the mean value with the estimated mass stands for the rest; its tables are not
 * updated. heads=query keeps the paper's pair for each query head and reads the union; heads=group
 * keeps one pair per KV head, updated with the mean weights of its query heads: fewer tables and a
 * worse selection (KL 0.16 instead of 0.09, both reading 4 %, qwen2.5-coder-0.5b at 4K).
 *
 * Tables are stored divided by the decay so far (`unit`), so a step changes only what it has read,
 * and thresholds come from power sums that follow those changes. Tables are independent, so each is
 * a piece of work for any worker: it finds its candidates, scores them, selects and learns; the
 * worker that finishes the last one of a KV head joins the selections. On a device: lfps_device.c.
 */
#include "methods/decode/lfps.h"

#include "methods/batch.h"
#include "methods/meter.h"

#include <string.h>

#define N_AHEAD 12u /* pages whose keys are prefetched before they are scored */

PARAM_TABLE(lfps, struct lfps_param, LFPS_PARAMS)

static size_t lfps_state_bytes(const struct method_shape *s, const void *param)
{
    struct parts p;
    return lfps_table_state(&p, s, lfps_rule_of(s, param).n_table, NULL);
}

static size_t lfps_scratch_bytes(const struct method_shape *s, const void *param)
{
    struct lfps_scratch w;
    return lfps_table_scratch(&w, s, lfps_rule_of(s, param).n_table, NULL);
}

static uint32_t lfps_past_rows(const struct method_shape *s, const void *param)
{
    const struct lfps_param *set = param;
    (void)s;
    return set->past;
}

struct threshold {
    float tau, mean;
    bool flat; /* all entries are equal, and kappa is 0 / 0: no entry exceeds the threshold */
};

/* Eq. 8: tau = a * mean / kappa, kappa = sum (x - mean)^4 / (sum (x - mean)^2)^2, from the power
 * sums of a table's n entries. */
static struct threshold find_threshold(const struct op_moments *m, uint32_t n, double a)
{
    const double mean = m->s[0] / n, m2 = m->s[1] - n * mean * mean;
    const double m4 = m->s[3] - 4 * mean * m->s[2] + 6 * mean * mean * m->s[1] -
                      3 * n * mean * mean * mean * mean;
    const bool flat = !(m2 > 1e-12 * m->s[1]) || !(m4 > 0);
    return (struct threshold){.tau = flat ? INFINITY : (float)(a * mean * m2 * m2 / m4),
                              .mean = (float)mean,
                              .flat = flat};
}

/* ---- A step ---- */

static float log_add(float a, float b)
{
    const float hi = a > b ? a : b, lo = a > b ? b : a; /* a NaN comes through */
    return lo == -INFINITY ? hi : hi + log1pf(expf(lo - hi));
}

/* Sets the bits of the entries above `least`, which is not negative: entries after the query's
 * token, up to the end of its page, are 0 and stay out. */
static void mark_above(uint32_t *out, const struct method_lane *l, const float *row, float least)
{
    meter_read(l, row, (l->pos / PAGE_TOK + 1) * PAGE_TOK * sizeof *row);
    l->ops->mark(&(struct op_mark){.value = row,
                                   .cut = {.key = pick_key(least)},
                                   .n_page = l->pos / PAGE_TOK + 1,
                                   .mask = out});
}

/* Eq. 7 and 9: C0 are the tokens above the threshold of either table; C1 are these and their
 * neighbours at offsets -1, 1 and 2, where they are above the mean of either table. Returns whether
 * both tables are flat. */
static bool find_candidates(const struct lfps_table *t)
{
    const struct method_lane *l = &t->lane;
    const struct lfps_param *set = l->param;
    const uint32_t sink = set->sink, n = l->pos + 1, n_word = (n + 31) / 32;
    const struct op_pair *pair = &t->p.memory.pair[t->table];
    const struct threshold ver = find_threshold(&pair->ver, n - sink, set->a);
    const struct threshold sla = find_threshold(&pair->sla, n - sink, set->a);
    const float *v = lfps_table_row(&t->p, t->table, false, l->pos);
    const float *s = lfps_table_row(&t->p, t->table, true, l->pos);
    uint32_t *hot = t->hot, *above = t->above;
    memset(hot, 0, n_word * sizeof *hot);
    memset(above, 0, n_word * sizeof *above);
    mark_above(hot, l, v, fmaxf(ver.tau, 0));
    mark_above(hot, l, s, fmaxf(sla.tau, 0));
    mark_above(above, l, v, ver.mean);
    mark_above(above, l, s, sla.mean);
    for (uint32_t i = 0; i < n_word; i++) {
        const uint32_t x = hot[i], low = i > 0 ? hot[i - 1] : 0;
        const uint32_t high = i + 1 < n_word ? hot[i + 1] : 0;
        const uint32_t near = x | x >> 1 | high << 31 | x << 1 | low >> 31 | x << 2 | low >> 30;
        t->cand[i] = near & above[i];
    }
    return ver.flat && sla.flat;
}

/* Marks tokens begin .. end - 1. */
static void mark_range(uint32_t *mask, uint32_t begin, uint32_t end)
{
    for (uint32_t t = begin; t < end; t++) mask[t / 32] |= 1u << t % 32;
}

/* Puts C1 and the local window into `cand`; or, with `all` or tables that say nothing, every token
 * after the sinks. */
static void gather(const struct lfps_table *t, bool all)
{
    const struct method_lane *l = &t->lane;
    const struct lfps_param *set = l->param;
    const uint32_t sink = set->sink;
    memset(t->cand, 0, (l->pos / 32 + 1) * sizeof *t->cand);
    if (all || find_candidates(t)) mark_range(t->cand, sink, l->pos + 1);
    mark_range(t->cand, lfps_local_begin(l), l->pos + 1);
}

/* Scores n_key keys of `k` for n_q scaled queries, into the columns of `score` from `at` on. */
static void score_keys(const struct lfps_table *t, const float *q, uint32_t n_q, uint32_t n_key,
                       uint32_t at)
{
    const struct method_lane *l = &t->lane;
    const uint32_t d = l->shape->geom->head_dim;
    float *out = t->score + at;
    l->ops->dots_few(&(struct op_dots){.a = q,
                                       .b = t->k,
                                       .a_stride = d,
                                       .b_stride = d,
                                       .n_a = n_q,
                                       .n_b = n_key,
                                       .width = d,
                                       .out = out,
                                       .out_stride = t->w.o.stride});
    for (uint32_t g = 0; g < n_q && l->softcap > 0; g++)
        for (uint32_t i = 0; i < n_key; i++) {
            float *x = &out[g * t->w.o.stride + i];
            *x = l->softcap * tanhf(*x / l->softcap);
        }
}

/* Lists the tokens of `mask`, ascending, in `tok`, and scores them for n_q scaled queries. */
static void score_tokens(struct lfps_table *t, const uint32_t *mask, const float *q, uint32_t n_q)
{
    const struct method_lane *l = &t->lane;
    const uint32_t d = l->shape->geom->head_dim;
    uint32_t n_key = 0, ahead = 0; /* keys in `k`, of the last tokens listed */
    t->n_tok = 0;
    for (uint32_t p = 0; p <= pick_page_count(l); p++) {
        for (; ahead < min_u32(p + N_AHEAD, pick_page_count(l)); ahead++)
            if (mask[ahead]) pick_fetch_keys(l, ahead, mask[ahead]);
        if (!mask[p] || (p < pick_page_count(l) && l->page[p] == PAGE_NONE)) continue;
        n_key += pick_some_keys(t->k + (size_t)n_key * d, l, p, mask[p]);
        for (uint32_t left = mask[p]; left; left &= left - 1)
            t->tok[t->n_tok++] = p * PAGE_TOK + (uint32_t)__builtin_ctz(left);
        if (n_key <= LFPS_KEPT - PAGE_TOK) continue;
        score_keys(t, q, n_q, n_key, t->n_tok - n_key);
        n_key = 0;
    }
    if (n_key > 0) score_keys(t, q, n_q, n_key, t->n_tok - n_key);
}

/* Copies the scaled queries of the table's heads to w.q, without those of bypassed heads (`bypass`
 * NULL: of all); returns their number. */
static uint32_t take_queries(const struct lfps_table *t, const bool *bypass)
{
    const struct method_lane *l = &t->lane;
    const uint32_t d = l->shape->geom->head_dim;
    float *out = t->w.q + (size_t)t->head0 * d;
    uint32_t n = 0;
    for (uint32_t g = t->head0; g < t->head0 + t->n_head; g++) {
        if (bypass && bypass[g]) continue;
        for (uint32_t c = 0; c < d; c++)
            out[(size_t)n * d + c] = l->q[(size_t)g * d + c] * l->scale;
        n++;
    }
    return n;
}

/* Eq. 5 and 6, in logs: w_sink and w_local are exact; w_global is n times the mean of a log-normal
 * distribution (Eq. 14) whose log mean is the score of the mean key. A head is bypassed if rho =
 * w_sink / (w_sink + w_global + w_local) exceeds `bypass`. False: something is not finite. */
static bool find_sparsity(struct lfps_table *t)
{
    const struct method_lane *l = &t->lane;
    const struct lfps_param *set = l->param;
    struct sparsity *out = &t->w.step->sparsity;
    const uint32_t d = l->shape->geom->head_dim, sink = set->sink, n = l->pos + 1 - sink;
    assert(l->pos > sink && t->p.state->n_learnt == l->pos + 1);
    memset(t->hot, 0, t->w.n_word * sizeof *t->hot);
    mark_range(t->hot, 0, sink);
    mark_range(t->hot, lfps_local_begin(l), l->pos + 1);
    score_tokens(t, t->hot, t->w.q + (size_t)t->head0 * d, take_queries(t, NULL));
    for (uint32_t g = t->head0; g < t->head0 + t->n_head; g++) {
        const float *q = l->q + (size_t)g * d;
        const float *score = t->score + (g - t->head0) * t->w.o.stride;
        float local = -INFINITY;
        double middle = 0;
        out->sink[g] = -INFINITY;
        for (uint32_t c = 0; c < d; c++) middle += (double)q[c] * t->p.memory.key_sum[c] / n;
        out->rest[g] = (float)(log(n) + middle * (double)l->scale +
                               lfps_table_norm2(q, d) * (double)t->p.memory.spread[g] / 2);
        for (uint32_t i = 0; i < t->n_tok; i++) {
            float *sum = t->tok[i] < sink ? &out->sink[g] : &local;
            if (t->tok[i] < l->pos) *sum = log_add(*sum, score[i]);
        }
        const float all = log_add(log_add(out->sink[g], out->rest[g]), local);
        if (!isfinite(all)) return false;
        out->bypass[g] = expf(out->sink[g] - all) > (float)set->bypass;
    }
    return true;
}

/* The softmax weights of the listed tokens, averaged over the table's heads that are not bypassed,
 * and the heads' log masses. False: a score is not finite. */
static bool weigh(const struct lfps_table *t, float *lse)
{
    return t->lane.ops->vote(&(struct op_vote){.score = t->score,
                                               .score_stride = t->w.o.stride,
                                               .n = t->n_tok,
                                               .group = t->n_voter,
                                               .vote = t->weight,
                                               .lse = lse});
}

/* Scores the candidates. With guard=on, if those of a head hold less mass than its w_global, all
 * tokens become candidates. False: a score is not finite. */
static bool score_candidates(struct lfps_table *t)
{
    const struct lfps_param *set = t->lane.param;
    const struct sparsity *s = &t->w.step->sparsity;
    const float *q = t->w.q + (size_t)t->head0 * t->lane.shape->geom->head_dim;
    float lse[METHOD_GROUP_MAX];
    bool is_enough = true;
    score_tokens(t, t->cand, q, t->n_voter);
    if (!weigh(t, lse)) return false;
    for (uint32_t g = t->head0, i = 0; g < t->head0 + t->n_head; g++)
        if (!s->bypass[g] && lse[i++] < s->rest[g]) is_enough = false;
    if (!set->guard || is_enough) return true;
    gather(t, true);
    score_tokens(t, t->cand, q, t->n_voter);
    return weigh(t, lse);
}

/* C2: reduces the list, its scores and `cand` to the k candidates with the largest weights. */
static void keep_best(struct lfps_table *t, uint32_t k)
{
    const struct ops *ops = t->lane.ops;
    const uint32_t n_word = (t->n_tok + 31) / 32;
    uint32_t n = 0;
    const struct op_cut cut = ops->best(&(struct op_best){
        .value = t->weight, .n = t->n_tok, .target = min_u32(k, t->n_tok), .spare = t->spare});
    for (uint32_t i = t->n_tok; i < n_word * 32; i++) t->weight[i] = -1;
    memset(t->hot, 0, n_word * sizeof *t->hot);
    ops->mark(&(struct op_mark){.value = t->weight, .cut = cut, .n_page = n_word, .mask = t->hot});
    memset(t->cand, 0, (t->lane.pos / 32 + 1) * sizeof *t->cand);
    for (uint32_t p = 0; p < n_word; p++)
        for (uint32_t left = t->hot[p]; left; left &= left - 1, n++) {
            const uint32_t from = p * 32 + (uint32_t)__builtin_ctz(left);
            const uint32_t tok = t->tok[n] = t->tok[from];
            t->cand[tok / 32] |= 1u << tok % 32;
            for (uint32_t g = 0; g < t->n_voter; g++)
                t->score[g * t->w.o.stride + n] = t->score[g * t->w.o.stride + from];
        }
    t->n_tok = n;
}

/* Eq. 10: the entries of C2 gain w - 1 / (2 |C2|). The decay of all entries is in `unit`. */
static void update_tables(const struct lfps_table *t)
{
    const struct method_lane *l = &t->lane;
    struct op_pair *pair = &t->p.memory.pair[t->table];
    float *ver = lfps_table_row(&t->p, t->table, false, l->pos),
          *sla = lfps_table_row(&t->p, t->table, true, l->pos);
    assert(t->n_tok > 0);
    const double unit = (double)pair->unit, half_mean = 1 / (2.0 * t->n_tok);
    struct op_moments in_ver = pair->ver, in_sla = pair->sla;
    uintptr_t ver_line = 0, sla_line = 0;
    for (uint32_t i = 0; i < t->n_tok; i++) {
        const uint32_t tok = t->tok[i];
        const double by = ((double)t->weight[i] - half_mean) / unit;
        ver_line = meter_entry(l, &ver[tok], ver_line);
        sla_line = meter_entry(l, &sla[tok], sla_line);
        lfps_table_change(&ver[tok], &in_ver, by);
        lfps_table_change(&sla[tok], &in_sla, by);
    }
    pair->ver = in_ver;
    pair->sla = in_sla;
}

/* A table's step of Algorithm 1: leaves C2 in `cand` and updates the tables by it. Where all heads
 * are bypassed, `cand` is empty and the tables neither decay nor change. False: a score is not
 * finite. */
static bool select_tokens(struct lfps_table *t)
{
    const struct method_lane *l = &t->lane;
    const struct lfps_param *set = l->param;
    const uint32_t every = set->refresh;
    float lse[METHOD_GROUP_MAX];
    struct op_pair *pair = &t->p.memory.pair[t->table];
    if (!find_sparsity(t)) return false;
    t->n_voter = take_queries(t, t->w.step->sparsity.bypass);
    memset(t->cand, 0, (l->pos / 32 + 1) * sizeof *t->cand);
    if (t->n_voter == 0) return true;
    gather(t, every > 0 && (l->pos + l->layer + l->kv_head) % every == 0);
    if (!score_candidates(t)) return false;
    keep_best(t, method_spec_budget(set->budget, l->pos + 1 - set->sink));
    if (!weigh(t, lse)) return false;
    pair->unit *= (float)set->decay;
    update_tables(t);
    meter_build(l);
    if (!(pair->unit >= OP_RECALL_LEAST)) lfps_table_plain(t);
    return true;
}

/* ---- A lane ---- */

/* For bypassed heads: the mean value, weighted with w_global, stands for the unread tokens. */
static void add_rest(const struct parts *p, const struct method_lane *l, const struct sparsity *s,
                     struct method_pick *out)
{
    const struct lfps_param *set = l->param;
    const uint32_t n = l->pos + 1 - set->sink, d = l->shape->geom->head_dim;
    for (uint32_t c = 0; c < d; c++) out->rest_value[c] = (float)(p->memory.value_sum[c] / n);
    for (uint32_t g = 1; g < l->shape->group; g++)
        memcpy(out->rest_value + (size_t)g * d, out->rest_value, d * sizeof *out->rest_value);
    for (uint32_t g = 0; g < l->shape->group; g++) out->rest_log[g] = s->rest[g];
}

/* The lane reads the union of its tables' selections, and the sinks and the local window, which are
 * all that bypassed heads select. */
static void end_lane(const struct lfps_table *t, const struct method_lane *l,
                     struct method_pick *out)
{
    const struct lfps_param *set = l->param;
    const struct step *step = t->w.step;
    const uint32_t sink = set->sink, n_word = l->pos / 32 + 1;
    if (step->n_bad > 0) {
        pick_not_finite(out);
        return;
    }
    for (uint32_t i = 1; i < t->p.memory.n_table; i++)
        for (uint32_t x = 0; x < n_word; x++)
            t->w.cand[x] |= t->w.cand[(size_t)i * t->w.n_word + x];
    for (uint32_t g = 0; g < l->shape->group; g++) out->n_bypass += step->sparsity.bypass[g];
    if (out->n_bypass == l->shape->group && set->rest == 0)
        add_rest(&t->p, l, &step->sparsity, out);
    pick_kept(out, t->w.cand, pick_page_count(l), sink, l->pos + 1);
    pick_ends(out, l, sink, LFPS_LOCAL + 1);
}

struct call {
    const struct method_batch *b;
    struct lfps_rule rule;
};

/* A worker's item: one table of one lane. The last one of a lane unites them. */
static void choose_table(void *arg, uint32_t item_i, uint32_t worker_i)
{
    const struct call *c = arg;
    const uint32_t lane_i = item_i / c->rule.n_table;
    const struct method_lane *l = &c->b->lane[lane_i];
    struct lfps_table t;
    (void)worker_i;
    lfps_table_open(&t, l, &c->rule, item_i % c->rule.n_table);
    struct step *step = t.w.step;
    if (step->dense) return;
    if (!select_tokens(&t)) lfps_table_bad(&t);
    lfps_table_count(&t, l);
    if (__atomic_sub_fetch(&step->n_left, 1, __ATOMIC_ACQ_REL) > 0) return;
    end_lane(&t, l, &c->b->pick[lane_i]);
    c->b->result[lane_i].n_chosen = c->b->pick[lane_i].n_chosen;
}

/* Prepares a lane's step; false: the lane is dense. Tables that are empty, as before the first
 * decode row, or not finite, as a device may have left them, are to be filled from the prompt. */
static bool open_lane(const struct call *c, const struct method_lane *l)
{
    struct lfps_table t;
    lfps_table_open(&t, l, &c->rule, 0);
    struct step *step = t.w.step;
    memset(step, 0, sizeof *step);
    step->n_left = c->rule.n_table;
    step->dense = lfps_reads_all(l);
    if (!step->dense && (t.p.state->n_learnt == 0 || isnan(t.p.memory.pair->unit)))
        lfps_table_begin(&t);
    return !step->dense;
}

/* Adds the tokens since the last step to the mean key and value; false: what the tables were filled
 * from is not finite. */
static bool update_lane(const struct call *c, const struct method_lane *l)
{
    struct lfps_table t;
    lfps_table_open(&t, l, &c->rule, 0);
    struct step *step = t.w.step;
    step->dense = step->dense || step->n_bad > 0;
    if (step->dense) return step->n_bad == 0;
    t.meter.kind = METER_BUILD;
    lfps_table_means(&t);
    t.p.state->n_learnt = l->pos + 1;
    lfps_table_count(&t, l);
    return true;
}

static void lfps_see(const struct method_lane *l)
{
    struct parts p;
    lfps_table_state(&p, l->shape, lfps_rule_of(l->shape, l->param).n_table, l->state);
    if (l->is_prompt) p.state->n_learnt = 0; /* a new question: the tables are filled anew */
}

static void lfps_choose(const struct method_batch *b)
{
    struct call c = {.b = b, .rule = lfps_rule_of(b->lane->shape, b->lane->param)};
    for (uint32_t i = 0; i < b->n; i++)
        if (!open_lane(&c, &b->lane[i])) pick_dense(&b->pick[i]);
    lfps_table_learn(b, &c.rule);
    for (uint32_t i = 0; i < b->n; i++)
        if (!update_lane(&c, &b->lane[i])) pick_not_finite(&b->pick[i]);
    workers_for(b->workers, b->n * c.rule.n_table, choose_table, &c);
}

/* ---- The method ---- */

static bool lfps_sound(const struct method_loaded *l)
{
    const struct lfps_state *x = l->state;
    return x->n_learnt <= l->n_tok && x->n_mean <= l->n_tok;
}

static const struct method_decode hooks = {
    .state_bytes = lfps_state_bytes,
    .scratch_bytes = lfps_scratch_bytes,
    .past_rows = lfps_past_rows,
    .see = lfps_see,
    .select_lanes = lfps_choose,
    .device = &lfps_device,
    .sound = lfps_sound,
};

static const sac_method_deviation deviations[] = {
    {"heads whose mass lies on the sinks use the mean value",
     "they read sinks and recent tokens exactly, and the mean value stands for the rest",
     "the paper allows two readings; this one loses less", NULL},
    {"each query head has its own tables, candidates and tokens",
     "the same, and all query heads of a KV head read what any of them has selected; heads=group "
     "keeps one pair of tables per KV head",
     "the bytes are read for all of them anyway",
     "KL 0.16 with heads=group, 0.09 with heads=query, both reading 4 %, qwen2.5-coder-0.5b at 4K"},
    {"the table of distances is aligned with the last query", "with the next one",
     "as printed, the next token of a diagonal is missed", NULL},
    {"keys and values are in host memory, and one CPU core scores while the GPU computes",
     "the device that computes a layer also scores: all cores of a CPU, or the GPU",
     "--kv-device host is the paper's way", "speeds are not comparable"},
};

const struct method lfps_method = {
    METHOD_DECODE(lfps,
                  "tokens that earlier steps attended to, remembered by position and by distance"),
    .paper = "Yao et al., Learn from the Past: Fast Sparse Indexing for Large Language Model "
             "Decoding",
    .about = "Remembers the positions and distances to which earlier tokens attended, scores only "
             "those and their neighbours exactly, and reads the best. No step scans all keys: its "
             "cost is that of the tables and of the keys in its candidates' pages. A token that "
             "was never attended to is not a candidate, so an answer asked for late is missed "
             "unless refresh=N scores everything every N steps.",
    METHOD_DEVIATIONS(deviations),
    .has_rest = true,
    .token_grain = true,
    .needs_question = true,
    .facts = {.budget = METHOD_BUDGET_QUERY,
              .n_forced = 4 + LFPS_LOCAL + 1,
              .n_late = METHOD_NEVER},
    .meets_segments = true,
    .decode = &hooks,
};
