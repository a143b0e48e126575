/* screen.c: packs the short form of the output matrix, and computes its bounds.
 *
 * Rounding. A kernel reads h as integers of at least 15 bits in blocks of 32, the same for W and s.
 * These differ from h by at most the largest |h_i| / 2^14 per input, which screen_find_norms adds.
 * The kernel sums in f32 in its own order: the sum of n products is off by at most n 2^-24 |row|
 * |h| and a little more, for W and for s, which is included in `left`. */
#include "model/screen.h"

#include "base/half.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define TYPE      QUANT_Q5_0
#define BLOCK     32u
#define VOCAB_MIN 4096u
#define GROW      1.001f /* covers what f32 rounding loses in norms */

static const uint32_t part_inputs[SCREEN_PARTS - 1] = {8, 24, 96};

/* ---- Layout ---- */

/* Not for matrices whose kernels read h in another form than the screen's, nor if the screen is not
 * smaller by an eighth or more. */
static bool is_worthwhile(const struct weight *w, const struct weight *screen)
{
    const bool quantised = w->type != QUANT_F32 && w->type != QUANT_F16 && w->type != QUANT_BF16;
    return quantised && w->n_out >= VOCAB_MIN && 8 * weight_bytes(screen) <= 7 * weight_bytes(w);
}

void screen_plan(struct screen *s, const struct weight *w, struct arena *a)
{
    struct weight short_form;
    *s = (struct screen){0};
    if (w->n_in % BLOCK != 0) return;
    weight_init(&short_form, TYPE, w->n_out, w->n_in);
    if (!is_worthwhile(w, &short_form)) return;
    s->w = short_form;
    uint32_t n_large = 0;
    for (uint32_t b = 0; b < SCREEN_PARTS - 1; b++) {
        n_large += part_inputs[b];
        s->end[b] = n_large < w->n_in ? n_large : w->n_in;
    }
    s->w.data = arena_take(a, 1, weight_bytes(&s->w));
    s->large = arena_take(a, SCREEN_LARGE, sizeof *s->large);
    s->left = arena_take(a, s->w.n_group, sizeof *s->left);
    s->left_max = arena_take(a, s->w.n_group, sizeof *s->left_max);
}

/* The inputs with the largest weights in the norm, the largest first. */
void screen_find_large(struct screen *s, const float *norm)
{
    const uint32_t n_large = s->end[SCREEN_PARTS - 2];
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->w.n_in; i++) {
        uint32_t at = n < n_large ? n++ : n_large;
        for (; at > 0 && fabsf(norm[s->large[at - 1]]) < fabsf(norm[i]); at--)
            if (at < n_large) s->large[at] = s->large[at - 1];
        if (at < n_large) s->large[at] = i;
    }
}

/* ---- Packing ---- */

struct pack_job {
    struct screen *s;
    uint32_t first; /* group */
    enum quant_type type;
    const uint8_t *src; /* W's rows from the first group on */
    uint8_t *rows;      /* the screen's rows; both in file order */
    float *work;        /* [n_worker, 2, n_in] */
};

/* The value of largest magnitude, searched in lanes, because the compiler may not reorder. */
static float find_most(const float *x)
{
    enum { LANES = 8 };
    float hi[LANES] = {0}, lo[LANES] = {0};
    for (uint32_t i = 0; i < BLOCK; i += LANES)
        for (uint32_t l = 0; l < LANES; l++) {
            hi[l] = x[i + l] > hi[l] ? x[i + l] : hi[l];
            lo[l] = x[i + l] < lo[l] ? x[i + l] : lo[l];
        }
    for (uint32_t l = 1; l < LANES; l++) {
        hi[0] = hi[l] > hi[0] ? hi[l] : hi[0];
        lo[0] = lo[l] < lo[0] ? lo[l] : lo[0];
    }
    return hi[0] >= -lo[0] ? hi[0] : lo[0];
}

/* Bit 4 of eight codes. */
static uint8_t high_bits(const uint8_t *code)
{
    uint64_t v;
    memcpy(&v, code, sizeof v);
    return (uint8_t)(((v >> 4 & 0x0101010101010101u) * 0x0102040810204080u) >> 56);
}

/* Quantises 32 values relative to the one of largest magnitude, which is the most exact; left [32]
 * are the errors. If no half represents the step, all of x is left. */
static void pack_block(uint8_t *dst, float *left, const float *x)
{
    uint8_t code[BLOCK];
    uint16_t half = f32_to_f16(find_most(x) / -16);
    float step = f16_to_f32(half);
    if (!isfinite(step)) half = 0, step = 0;
    const float inverse = step != 0 ? 1 / step : 0;
    for (uint32_t i = 0; i < BLOCK; i++) {
        int q = (int)(x[i] * inverse + 16.5f);
        q = q < 0 ? 0 : q;
        q = q > 31 ? 31 : q;
        code[i] = (uint8_t)q;
        left[i] = x[i] - step * (float)(q - 16);
    }
    memcpy(dst, &half, sizeof half);
    for (uint32_t i = 0; i < 4; i++) dst[2 + i] = high_bits(code + 8 * i);
    for (uint32_t i = 0; i < BLOCK / 2; i++)
        dst[6 + i] = (uint8_t)((code[i] & 15) | code[i + BLOCK / 2] << 4);
}

static float sum_squares(const float *x, uint32_t n)
{
    enum { LANES = 16 };
    float lane[LANES] = {0}, sum = 0;
    for (uint32_t i = 0; i < n; i += LANES)
        for (uint32_t l = 0; l < LANES; l++) lane[l] += x[i + l] * x[i + l];
    for (uint32_t l = 0; l < LANES; l++) sum += lane[l];
    return sum;
}

/* |x_b| of every part, rounded up. The last part's norm is computed from the difference to the
 * whole, enlarged by what the difference may lose. */
static float part_norms(float out[SCREEN_PARTS], const struct screen *s, const float *x)
{
    const float all = sum_squares(x, s->w.n_in);
    float rest = all;
    for (uint32_t b = 0, i = 0; b < SCREEN_PARTS - 1; b++) {
        float sum = 0;
        for (; i < s->end[b]; i++) sum += x[s->large[i]] * x[s->large[i]];
        out[b] = GROW * sqrtf(sum);
        rest -= sum;
    }
    const float lost = all * (float)s->w.n_in * 0x1p-24f;
    out[SCREEN_PARTS - 1] = GROW * sqrtf(rest > 0 ? rest + lost : lost);
    return GROW * sqrtf(all);
}

/* Row i of the piece. */
static void pack_row(const struct pack_job *job, uint32_t i, float *work)
{
    struct screen *s = job->s;
    const uint32_t n = s->w.n_in, g = job->first + i / WEIGHT_GROUP, lane = i % WEIGHT_GROUP;
    const uint32_t block_bytes = quant_block_bytes(TYPE);
    float *x = work, *left = work + n, norms[SCREEN_PARTS];
    uint8_t *dst = job->rows + i * quant_row_bytes(TYPE, n);
    quant_dequant_row(x, job->type, job->src + i * quant_row_bytes(job->type, n), n);
    for (uint32_t b = 0; b < n / BLOCK; b++)
        pack_block(dst + b * block_bytes, left + b * BLOCK, x + b * BLOCK);
    const float rounding = 2.1f * (float)n * 0x1p-24f * sqrtf(sum_squares(x, n));
    const float all = part_norms(norms, s, left) + rounding;
    for (uint32_t b = 0; b < SCREEN_PARTS; b++) s->left[g][b][lane] = norms[b] + rounding;
    if (!(all <= s->left_max[g])) s->left_max[g] = all;
}

static void pack_group(void *arg, uint32_t i, uint32_t worker_i)
{
    const struct pack_job *job = arg;
    struct screen *s = job->s;
    float *work = job->work + (size_t)worker_i * 2 * s->w.n_in;
    const uint32_t g = job->first + i, n_left = s->w.n_out - g * WEIGHT_GROUP;
    s->left_max[g] = 0;
    memset(s->left[g], 0, sizeof s->left[g]);
    for (uint32_t r = 0; r < WEIGHT_GROUP && r < n_left; r++)
        pack_row(job, i * WEIGHT_GROUP + r, work);
}

sac_status screen_pack(struct screen *s, struct workers *pool, uint32_t first, uint32_t n,
                       enum quant_type type, const void *src, sac_error *err)
{
    const struct weight piece = weight_piece(&s->w, first, n);
    struct pack_job job = {.s = s, .first = first, .type = type, .src = src};
    job.rows = mem_calloc(piece.n_out, quant_row_bytes(TYPE, s->w.n_in));
    job.work = mem_calloc(workers_count(pool), 2 * (size_t)s->w.n_in * sizeof *job.work);
    const bool ok = job.rows && job.work;
    if (ok) {
        workers_for(pool, piece.n_group, pack_group, &job);
        weight_pack(pool, &piece, job.rows);
    }
    mem_free(job.rows);
    mem_free(job.work);
    return ok ? SAC_OK : error_set(err, SAC_ERR_MEMORY, "out of memory for the output's screen");
}

/* ---- Bounds ---- */

bool screen_find_norms(struct screen_norms *out, const struct screen *s, const float *h)
{
    const uint32_t n = s->w.n_in;
    float largest = 0;
    out->all = part_norms(out->part, s, h);
    for (uint32_t i = 0; i < n; i++) largest = fmaxf(largest, fabsf(h[i]));
    const float rounding = largest * 0x1p-14f;
    for (uint32_t b = 0, begin = 0; b < SCREEN_PARTS; b++) {
        const uint32_t end = b < SCREEN_PARTS - 1 ? s->end[b] : n;
        out->part[b] += rounding * sqrtf((float)(end - begin));
        begin = end;
    }
    out->all += rounding * sqrtf((float)n);
    return isfinite(out->all);
}

bool screen_may_reach(const struct screen *s, uint32_t group_i, const struct screen_norms *norms,
                      const float *sketch, float bar)
{
    bool any = false;
    for (uint32_t r = 0; r < WEIGHT_GROUP; r++) {
        float bound = sketch[r];
        for (uint32_t b = 0; b < SCREEN_PARTS; b++)
            bound += norms->part[b] * s->left[group_i][b][r];
        any |= !(bound < bar);
    }
    return any;
}
