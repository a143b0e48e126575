/* pace.c: see the header.
 *
 * The time between two tokens consists of what happens around a step (events, masks, new requests,
 * writes to the disk, page lookups) and of the step. The first part is over when prompt rows are
 * selected, so it is measured; the duration of the step is predicted:
 *
 *     decode_us + FIXED_ROWS us[0] + n (us[1] + depth / DEPTH us[2])
 *
 * Prompt rows read all weights once more, however few rows there are, and their attention takes
 * time in proportion to the depth of the context. The costs are learned from each step (learn), for
 * each prefill method.
 *
 * The durations of steps scatter around the prediction. A step that takes longer than the margin
 * times the prediction widens the margin; any other step narrows it by a LATE_OF-th of that. Of T
 * steps at most T / LATE_OF + (the rise of the width) / WIDTH_STEP are therefore longer, whatever
 * their distribution, until the width reaches a bound (Gibbs and Candes, Adaptive conformal
 * inference under distribution shift, 2021, proposition 4.1). The width is in units of the mean
 * deviation, which is learned sooner than rare deviations. As many prompt rows are selected as the
 * margin times the prediction allows within the target. Steps predicted to take less than half of
 * that do not count, because short steps scatter more.
 *
 * If even the fewest rows take too long, steps without prompt rows make up for it: then the mean
 * time between tokens meets the target where a single one cannot.
 *
 * Invariant: at most WAIT_MOST consecutive steps leave out prompt rows to save time. */
#include "engine/pace.h"

#include "engine/engine.h"

#include <assert.h>
#include <math.h>

#define DECODE_WEIGHT 0.25 /* weight of a step in the mean time of decode rows */
#define FACTOR_LEAST  1.02
#define FACTOR_MOST   3.0
#define SPREAD_FIRST  0.2
#define WEIGHT        0.0625 /* weight of a step in the mean ratio of measured to predicted time */
#define AWAY_MOST     0.5    /* largest deviation that counts in it; the width covers rare ones */
#define WIDTH_FIRST   4.0
#define WIDTH_LEAST   1.0
#define WIDTH_MOST    10.0
#define WIDTH_STEP    0.5
#define LATE_OF       150.0 /* one of so many may be late; other things delay tokens, too */
/* Assumptions before anything is known. The fixed cost of prompt rows equals that of FIXED_ROWS
 * rows, so that the first step does not suggest that more rows are free: with WORK_RISE and the
 * first margin, the next step is in time whatever the truth. Attention to DEPTH tokens costs as
 * much as the linear layers. */
#define FIXED_ROWS 12.0
#define DEPTH      4096.0
#define TIED       0.8 /* assumed correlation of the costs of a row and of its attention */
/* Random deviation of a step's time, and drift of the costs until the next step, as shares of the
 * time: together each step then determines two fifths of the estimate. */
#define NOISE 0.1
#define DRIFT 0.05
/* Largest increase of work from one step to the next, because the estimate holds for steps of
 * similar size. Even with twice as many rows, chunks end at page boundaries. */
#define WORK_RISE 2.5
#define WAIT_MOST 8u /* maximum steps without prompt rows after late ones */

static double within(double x, double least, double most)
{
    return x < least ? least : x > most ? most : x;
}

static double target_us(const sac_engine *e)
{
    return 1e3 * (double)e->params.tbt_target_ms;
}

static struct pace_margin margin_of(const struct pace *p)
{
    const struct pace_margin first = {1, SPREAD_FIRST, WIDTH_FIRST};
    return p->margin.width > 0 ? p->margin : first;
}

/* The factor by which all but one of a hundred steps stay within their prediction. */
static double factor_of(const struct pace *p)
{
    const struct pace_margin m = margin_of(p);
    return within(m.mean + m.width * m.spread, FACTOR_LEAST, FACTOR_MOST);
}

/* Tokens to which n rows attend, plus DEPTH per row for the linear layers. */
static double work_of(double n, double depth)
{
    return n * (DEPTH + depth);
}

/* Whether a decode row of the batch continues a sequence that had a decode row in the last step:
 * its client has been waiting since then. Other sequences are new, or were held back. */
static bool goes_on(const sac_engine *e)
{
    for (uint32_t i = 0; i < e->batch.n_decode; i++)
        if (e->pace.token_us && e->seqs[e->batch.run[i].seq_i].token_us == e->pace.token_us)
            return true;
    return false;
}

/* Engines that share layers all use the measurements of the first one (tensor_parallel.c). */
void pace_begin(sac_engine *e)
{
    if (e->tp.i > 0) return;
    e->pace.spent_us = goes_on(e) ? (double)(engine_now(e) - e->pace.token_us) : 0;
}

/* ---- The number of prompt rows ---- */

/* The largest number of rows at this depth whose work does not exceed the last step's by more than
 * WORK_RISE. At another position of a text the number of rows must not rise, either, because rows
 * at another depth may cost more than predicted. */
static double most_rows(const struct pace *p, uint32_t depth)
{
    const bool is_next = depth == p->end;
    const double rise = is_next ? WORK_RISE : 1, n = rise * p->work / work_of(1, depth);
    return is_next || n < p->n ? n : p->n;
}

bool pace_waits(const sac_engine *e)
{
    return e->pace.debt_us > 0 && e->pace.n_wait < WAIT_MOST;
}

uint32_t pace_rows(const sac_engine *e, uint32_t seq_i)
{
    assert(e->params.tbt_target_ms > 0 && e->batch.n_decode > 0);
    const struct pace *p = &e->pace;
    const struct pace_line *line = &p->line[e->seqs[seq_i].method_i[METHOD_SET_PREFILL]];
    const uint32_t depth = e->seqs[seq_i].n_done;
    const double factor = factor_of(p),
                 step_us = target_us(e) / factor - p->decode_us - FIXED_ROWS * line->us[0],
                 left_us = step_us - p->spent_us / factor,
                 each_us = line->us[1] + depth / DEPTH * line->us[2],
                 least_us = PACE_LEAST_ROWS * each_us;
    if (!line->is_known) return PACE_LEAST_ROWS;
    /* The fewest rows would be in time in the next step, but not in this one. */
    if (p->n_wait < WAIT_MOST && left_us < least_us && step_us >= least_us) return 0;
    /* Rows that seem to cost nothing are not added either if no time is left. */
    const double n_time = each_us > 0    ? left_us / each_us
                          : left_us >= 0 ? e->batch.n_row_max
                                         : 0,
                 n_most = most_rows(p, depth), n = n_time < n_most ? n_time : n_most;
    return (uint32_t)within(n, PACE_LEAST_ROWS, e->batch.n_row_max);
}

bool pace_shares(const sac_engine *e, uint64_t n_step)
{
    return e->params.tbt_target_ms > 0 && e->stats.n_step > n_step && e->batch.n_decode > 0;
}

/* ---- Learning from a step ---- */

/* The initial uncertainty of the costs: a covariance. */
static const double unknown[PACE_COSTS][PACE_COSTS] = {{1, 0, 0}, {0, 1, TIED}, {0, TIED, 1}};

/* A step's prompt rows, as the quantities by which their costs are learned. */
struct rows {
    double x[PACE_COSTS];
};

static struct rows rows_of(double n, double n_tok)
{
    return (struct rows){{n > 0 ? FIXED_ROWS : 0, n, n_tok / DEPTH}};
}

static double foretell(const struct pace_line *l, const struct rows *r)
{
    double us = 0;
    for (int i = 0; i < PACE_COSTS; i++) us += r->x[i] * l->us[i];
    return us;
}

/* out = m x; returns x^T m x, the variance of the prediction. */
static double spread_along(double out[PACE_COSTS], const double m[PACE_COSTS][PACE_COSTS],
                           const struct rows *r)
{
    double all = 0;
    for (int i = 0; i < PACE_COSTS; i++) {
        out[i] = 0;
        for (int j = 0; j < PACE_COSTS; j++) out[i] += m[i][j] * r->x[j];
        all += r->x[i] * out[i];
    }
    return all;
}

static void add_unknown(struct pace_line *l, double var)
{
    for (int i = 0; i < PACE_COSTS; i++)
        for (int j = 0; j < PACE_COSTS; j++) l->var[i][j] += var * unknown[i][j];
}

/* Learns from the time that the rows took: one step of a Kalman filter. */
static void learn(struct pace_line *l, const struct rows *r, double us)
{
    assert(us > 0 && r->x[1] > 0);
    double along[PACE_COSTS];
    const double error = us - foretell(l, r),
                 var = us * us /
                       spread_along(along, unknown,
                                    r); /* the variance of a cost if `us` is all that is known */
    if (!l->is_known) add_unknown(l, var);
    l->is_known = true;
    const double all = spread_along(along, l->var, r) + NOISE * NOISE * us * us;
    double rest = 0;
    for (int i = 0; i < PACE_COSTS; i++) {
        const double cost = l->us[i] + along[i] / all * error;
        l->us[i] = cost > 0 ? cost : 0; /* costs are not negative */
        for (int j = 0; j < PACE_COSTS; j++) l->var[i][j] -= along[i] * along[j] / all;
        rest += l->var[i][i];
    }
    /* The uncertainty never exceeds the initial one. */
    if (rest < PACE_COSTS * var) add_unknown(l, DRIFT * DRIFT * var);
}

static void note_margin(struct pace *p, double ratio)
{
    const bool is_longer = ratio > factor_of(p);
    const double by = is_longer ? WIDTH_STEP : -WIDTH_STEP / LATE_OF;
    struct pace_margin m = margin_of(p);
    const double away = fabs(ratio - m.mean);
    m.width = within(m.width + by, WIDTH_LEAST, WIDTH_MOST);
    m.spread += (within(away, 0, AWAY_MOST) - m.spread) * WEIGHT;
    m.mean += within(ratio - m.mean, -AWAY_MOST, AWAY_MOST) * WEIGHT;
    p->margin = m;
}

static void note_prompt(sac_engine *e, double us)
{
    struct pace *p = &e->pace;
    const struct batch *b = &e->batch;
    const struct batch_run *first = &b->run[b->n_decode];
    struct pace_line *line = &p->line[e->seqs[first->seq_i].method_i[METHOD_SET_PREFILL]];
    const double n = b->n_row - b->n_decode;
    double n_tok = 0;
    for (uint32_t i = b->n_decode; i < b->n_run; i++)
        n_tok += (double)b->run[i].n_row * b->run[i].pos0;
    if (us < p->decode_us) p->decode_us = us; /* decode rows took no longer than the whole step */
    const struct rows rows = rows_of(n, n_tok);
    const double foretold_us = p->decode_us + foretell(line, &rows);
    const bool is_small = 2 * foretold_us * factor_of(p) < target_us(e) && us < target_us(e);
    if (line->is_known && !is_small) note_margin(p, us / foretold_us);
    if (us > p->decode_us) learn(line, &rows, us - p->decode_us);
    p->n = first->n_row;
    p->end = first->pos0 + first->n_row;
    p->work = DEPTH * n + n_tok;
}

/* A token earlier than the target reduces the debt; a debt larger than prompt rows wait for at once
 * is forgotten. */
static void note_debt(struct pace *p, bool has_prompt, double gap_us, double target_us)
{
    const double most = WAIT_MOST * target_us, debt = p->debt_us + gap_us - target_us;
    p->n_wait = has_prompt ? 0 : p->n_wait + 1;
    p->debt_us = debt > most ? most : debt > 0 ? debt : 0;
}

void pace_note(sac_engine *e, uint64_t start_us, uint64_t end_us)
{
    struct pace *p = &e->pace;
    const struct batch *b = &e->batch;
    const bool has_prompt = b->n_row > b->n_decode;
    assert(end_us >= start_us && (end_us >= p->token_us || !goes_on(e)));
    const double us = (double)(end_us - start_us);
    if (b->n_decode == 0) return; /* no client waits for tokens, and steps have other sizes */
    note_debt(p, has_prompt, goes_on(e) ? (double)(end_us - p->token_us) : us, target_us(e));
    if (has_prompt)
        note_prompt(e, us);
    else
        p->decode_us += (us - p->decode_us) * (p->decode_us > 0 ? DECODE_WEIGHT : 1);
    p->token_us = end_us;
    for (uint32_t i = 0; i < b->n_decode; i++) e->seqs[b->run[i].seq_i].token_us = end_us;
}
