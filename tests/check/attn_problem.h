/* attn_problem.h: attention problems with random sequences, and the oracle of their results.
 *
 * Oracles: a brute force in double over what page_read says a page holds. Tolerance of attention.
 * Rounding a query and a key to u relative moves a score by at most 2 u sum |q k| scale (call it
 * delta), which moves weights by a factor within e^(+-2 delta), and the weights are rounded
 * themselves; so |out - exact| <= (2 delta + u_p) max |v|, where u_p is the weights' rounding and
 * the polynomial's error. AMX, AVX-512 and GPUs: u = 2^-11 (f16) or 2^-8 (bf16). The f32 sets: u =
 * sqrt(d) 2^-24, what a sum of d terms accumulates. That is a worst case; to notice a kernel that
 * is merely sloppy, the root mean square must be 12 times smaller. */
#ifndef SAC_TESTS_ATTN_PROBLEM_H
#define SAC_TESTS_ATTN_PROBLEM_H

#include "check_attn.h"
#include "cuda_ops.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* The last is a GPU, there or not. */
static const char *const isa_names[] = {"ref", "avx2", "avx512", "amx", "cuda"};
#define N_ISA (sizeof isa_names / sizeof isa_names[0])

struct isa {
    const char *name; /* NULL: not on this CPU */
    struct ops ops;
};

/* Whether a set has plans that skip by weight (struct attn_plan.skip): GPUs refuse them. */
static inline bool isa_skips(const struct isa *isa)
{
    return isa->name && strcmp(isa->name, "cuda") != 0;
}

struct fixture {
    struct workers *pool[3]; /* 1, 2 and 5 workers */
    struct isa isa[N_ISA];
};

static inline int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    const uint32_t n[3] = {1, 2, 5};
    sac_error err;
    for (int i = 0; i < 3; i++) assert_int_equal(workers_create(&f->pool[i], n[i], &err), SAC_OK);
    /* With a GPU the other sets but the reference rest: their checks are another call's. */
    const size_t n_cpu = getenv("SAC_CHECK_CUDA") ? 1 : N_ISA - 1;
    for (size_t i = 0; i < n_cpu; i++)
        if (ops_init_isa(&f->isa[i].ops, isa_names[i], &err) == SAC_OK)
            f->isa[i].name = isa_names[i];
    if (cuda_ops_open(&f->isa[N_ISA - 1].ops)) f->isa[N_ISA - 1].name = isa_names[N_ISA - 1];
    assert_non_null(f->isa[0].name);
    *state = f;
    return 0;
}

static inline int teardown(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < 3; i++) workers_destroy(f->pool[i]);
    cuda_ops_close();
    free(f);
    return 0;
}

/* ---- One attention problem ---- */

struct problem {
    struct sequence *seq;
    uint32_t n_head, window;
    float softcap, scale;
    uint32_t row0, n_row; /* rows of q are positions row0 .. row0 + n_row - 1 of the sequence */
    float *q;             /* [n_row, n_head, d] */
    size_t width;
};

struct result {
    float *out, *lse;
    size_t n_out, n_lse;
    uint64_t n_skip; /* of struct op_attn, all workers and calls */
};

static inline struct result result_make(const struct problem *p)
{
    struct result r = {.n_out = p->n_row * p->width, .n_lse = (size_t)p->n_row * p->n_head};
    r.out = mem_calloc(r.n_out, sizeof *r.out);
    r.lse = mem_calloc(r.n_lse, sizeof *r.lse);
    /* what a kernel forgets to write must show */
    memset(r.out, 0xff, r.n_out * sizeof *r.out);
    memset(r.lse, 0xff, r.n_lse * sizeof *r.lse);
    return r;
}

static inline void result_free(struct result *r)
{
    mem_free(r->out);
    mem_free(r->lse);
}

static inline struct problem problem_make(struct sequence *seq, uint32_t group, uint32_t row0,
                                          uint64_t seed)
{
    struct problem p = {.seq = seq, .n_head = group * seq->geom.n_kv_head, .row0 = row0};
    p.n_row = seq->n_tok - row0;
    p.width = (size_t)p.n_head * seq->geom.head_dim;
    p.scale = 1.0f / sqrtf((float)seq->geom.head_dim);
    p.q = mem_calloc(p.n_row * p.width, sizeof *p.q);
    for (size_t i = 0; i < p.n_row * p.width; i++) p.q[i] = 1.5f * rng_normal(&seed);
    return p;
}

/* Runs the given runs, whose batch rows are rows of p->q. */
static inline void attend(const struct ops *ops, struct workers *pool, const struct problem *p,
                          const struct attn_run *run, uint32_t n_run, struct result *r)
{
    const struct page_geom *g = &p->seq->geom;
    const size_t bytes =
        ops->attn_scratch(workers_count(pool), g, p->n_head, p->n_row, p->seq->n_tok);
    void *scratch = mem_map(bytes);
    uint64_t n_skip[8] = {0};
    assert_true(workers_count(pool) <= 8);
    memset(scratch, 0xff, bytes); /* NaN: nothing may be read before it is written */
    ops->attn(pool, &(struct op_attn){.geom = g,
                                      .frames = {.base = p->seq->pool},
                                      .n_head = p->n_head,
                                      .q = p->q,
                                      .q_stride = p->width,
                                      .out = r->out,
                                      .out_stride = p->width,
                                      .lse = r->lse,
                                      .rope = p->seq->rope,
                                      .scale = p->scale,
                                      .softcap = p->softcap,
                                      .window = p->window,
                                      .n_run = n_run,
                                      .run = run,
                                      .n_skip = n_skip,
                                      .scratch = scratch,
                                      .scratch_bytes = bytes});
    mem_unmap(scratch, bytes);
    for (uint32_t i = 0; i < 8; i++) r->n_skip += n_skip[i];
}

/* All rows in chunks of `chunk` rows, one call each; chunk 0: one call with each row a decode run.
 */
static inline void attend_chunked(const struct ops *ops, struct workers *pool,
                                  const struct problem *p, uint32_t chunk, struct result *r)
{
    if (chunk == 0) {
        struct attn_run *run = mem_calloc(p->n_row, sizeof *run);
        for (uint32_t i = 0; i < p->n_row; i++)
            run[i] = sequence_run(p->seq, i, p->row0 + i, 1, ROW_DECODE);
        attend(ops, pool, p, run, p->n_row, r);
        mem_free(run);
        return;
    }
    for (uint32_t i = 0; i < p->n_row; i += chunk) {
        const uint32_t n = p->n_row - i < chunk ? p->n_row - i : chunk;
        const struct attn_run run = sequence_run(p->seq, i, p->row0 + i, n, ROW_PROMPT);
        attend(ops, pool, p, &run, 1, r);
    }
}

/* Reads what row `pos` sees: sealed pages before its own, then its own in 16 bits. */
static inline void read_context(const struct sequence *s, uint32_t h, uint32_t pos, float *k,
                                float *v)
{
    const struct page_geom *g = &s->geom;
    const uint32_t own = pos / PAGE_TOK;
    const size_t page = (size_t)PAGE_TOK * g->head_dim;
    for (uint32_t i = 0; i < own; i++)
        page_read(k + i * page, v + i * page, g,
                  s->pool + (size_t)s->table[h * s->n_page + i] * g->bytes, PAGE_SEALED, PAGE_TOK);
    page_read(k + own * page, v + own * page, g,
              s->tail + ((size_t)own * g->n_kv_head + h) * g->tail_bytes, PAGE_TAIL,
              pos % PAGE_TOK + 1);
}

struct exact {
    double *out, *lse; /* as struct result */
    double abs, vmax;  /* largest sum |q k| scale, largest |v| */
};

/* A query as it meets a page. */
static inline void exact_query(double *out, const float *q, const struct sequence *s, uint32_t page)
{
    const uint32_t d = s->geom.head_dim, half = s->rope.n_rot / 2;
    const uint32_t step = s->rope.interleaved ? 2 : 1, other = s->rope.interleaved ? 1 : half;
    uint32_t i = 0;
    for (uint32_t c = 0; c < d; c++) out[c] = (double)q[c];
    while (i < s->n_segment && page >= s->segment[i].end) i++;
    if (i == s->n_segment || !s->segment[i].cos) return;
    for (uint32_t c = 0; c < half; c++) {
        const double cosine = (double)s->segment[i].cos[c], sine = (double)s->segment[i].sin[c];
        out[c * step] = (double)q[c * step] * cosine - (double)q[c * step + other] * sine;
        out[c * step + other] = (double)q[c * step] * sine + (double)q[c * step + other] * cosine;
    }
}

/* Brute force in double for row `pos` and KV head h, into row `at` of e; `add` [pos + 1], unless
 * NULL, is added to the scores: -inf hides a key. */
static inline void exact_row(const struct problem *p, uint32_t pos, uint32_t h, const double *add,
                             struct exact *e, uint32_t at)
{
    const struct sequence *s = p->seq;
    const uint32_t d = s->geom.head_dim, group = p->n_head / s->geom.n_kv_head;
    double *out = e->out + at * p->width + (size_t)h * group * d;
    double *out_lse = e->lse + (size_t)at * p->n_head + h * group;
    const size_t n_alloc = (size_t)(pos / PAGE_TOK + 1) * PAGE_TOK * d;
    float *k = mem_alloc(n_alloc * sizeof *k), *v = mem_alloc(n_alloc * sizeof *v);
    double *w = mem_alloc((pos + 1) * sizeof *w);
    read_context(s, h, pos, k, v);
    for (uint32_t g = 0; g < group; g++) {
        const float *q = p->q + (pos - p->row0) * p->width + (size_t)(h * group + g) * d;
        double max = -INFINITY, sum = 0, x[512];
        for (uint32_t t = 0; t <= pos; t++) {
            double dot = 0, abs = 0;
            if (t % PAGE_TOK == 0) exact_query(x, q, s, t / PAGE_TOK);
            for (uint32_t c = 0; c < d; c++) {
                dot += x[c] * (double)k[t * d + c];
                abs += fabs(x[c] * (double)k[t * d + c]);
                e->vmax = fmax(e->vmax, fabs((double)v[t * d + c]));
            }
            e->abs = fmax(e->abs, abs * p->scale);
            w[t] = dot * p->scale;
            if (p->softcap > 0) w[t] = p->softcap * tanh(w[t] / p->softcap);
            if (add) w[t] += add[t];
            if (p->window > 0 && pos - t >= p->window) w[t] = -INFINITY;
            max = fmax(max, w[t]);
        }
        memset(out + (size_t)g * d, 0, d * sizeof *out);
        for (uint32_t t = 0; t <= pos; t++) {
            const double weight = exp(w[t] - max);
            sum += weight;
            for (uint32_t c = 0; c < d && weight > 0; c++)
                out[(size_t)g * d + c] += weight * (double)v[t * d + c];
        }
        for (uint32_t c = 0; c < d; c++) out[(size_t)g * d + c] /= sum;
        out_lse[g] = max + log(sum);
    }
    mem_free(k);
    mem_free(v);
    mem_free(w);
}

static inline struct exact exact_make(const struct problem *p)
{
    const uint32_t n_kv = p->seq->geom.n_kv_head;
    struct exact e = {.out = mem_calloc(p->n_row * p->width, sizeof *e.out),
                      .lse = mem_calloc((size_t)p->n_row * p->n_head, sizeof *e.lse)};
    for (uint32_t i = 0; i < p->n_row; i++)
        for (uint32_t h = 0; h < n_kv; h++) exact_row(p, p->row0 + i, h, NULL, &e, i);
    return e;
}

static inline void exact_free(struct exact *e)
{
    mem_free(e->out);
    mem_free(e->lse);
}

/* Worst-case error as a share of max |v|, see the top of the file. */
static inline double tolerance(const struct problem *p, const char *isa, double abs)
{
    const bool halves =
        strcmp(isa, "amx") == 0 || strcmp(isa, "avx512") == 0 || strcmp(isa, "cuda") == 0;
    const bool bf16_k = p->seq->geom.type_k == SAC_KV_BF16;
    const bool bf16_v = p->seq->geom.type_v == SAC_KV_BF16;
    const double u = !halves ? sqrt(p->seq->geom.head_dim) * 0x1p-24 : bf16_k ? 0x1p-8 : 0x1p-11;
    const double u_p = !halves ? 4e-6 : bf16_v ? 0x1p-8 : 0x1p-11 + 1.5e-4;
    return 2 * (2 * u * abs) + u_p;
}

static inline void compare(const struct problem *p, const char *isa, const struct result *got,
                           const struct exact *want, const char *what)
{
    const double tol = tolerance(p, isa, want->abs);
    double worst = 0, square = 0, worst_lse = 0;
    for (size_t i = 0; i < got->n_out; i++) {
        const double e = fabs((double)got->out[i] - want->out[i]) / want->vmax;
        if (!(e <= worst)) worst = e; /* NaN too */
        square += e * e;
    }
    for (size_t i = 0; i < got->n_lse; i++) {
        const double e = fabs((double)got->lse[i] - want->lse[i]);
        if (!(e <= worst_lse)) worst_lse = e;
    }
    const double rms = sqrt(square / (double)got->n_out);
    const struct page_geom *g = &p->seq->geom;
    if (getenv("CHECK_ATTN_VERBOSE"))
        printf("%s %s d %u G %u type %d/%d n %u: worst %.1e rms %.1e lse %.1e of %.1e\n", isa, what,
               g->head_dim, p->n_head / g->n_kv_head, (int)g->type_k, (int)g->type_v, p->seq->n_tok,
               worst, rms, worst_lse, tol);
    if (!(worst <= tol && rms <= tol / 12 && worst_lse <= tol + 1e-5))
        fail_msg("%s %s: d %u G %u types %d/%d n %u row0 %u: worst %g rms %g lse %g, tolerance %g",
                 isa, what, g->head_dim, p->n_head / g->n_kv_head, (int)g->type_k, (int)g->type_v,
                 p->seq->n_tok, p->row0, worst, rms, worst_lse, tol);
}

/* Every instruction set, WIDE in one chunk and NARROW, against the brute force. */
static inline void check_all(const struct fixture *f, const struct problem *p, const char *what)
{
    struct exact want = exact_make(p);
    for (size_t i = 0; i < N_ISA; i++) {
        if (!f->isa[i].name) continue;
        struct result wide = result_make(p), narrow = result_make(p);
        attend_chunked(&f->isa[i].ops, f->pool[1], p, p->n_row, &wide);
        compare(p, f->isa[i].name, &wide, &want, what);
        attend_chunked(&f->isa[i].ops, f->pool[1], p, 0, &narrow);
        compare(p, f->isa[i].name, &narrow, &want, what);
        result_free(&wide);
        result_free(&narrow);
    }
    exact_free(&want);
}

static inline struct page_geom geom_of(uint32_t n_kv_head, uint32_t d, sac_kv_type k, sac_kv_type v)
{
    return (struct page_geom){
        .n_layer = 1, .n_kv_head = n_kv_head, .head_dim = d, .type_k = k, .type_v = v};
}

static inline struct sequence sequence_make(const struct fixture *f, struct page_geom geom,
                                            uint32_t n_tok, uint64_t seed)
{
    struct sequence s;
    sequence_init(&s, geom, n_tok);
    sequence_fill(&s, seed);
    sequence_store(&s, f->pool[0], &f->isa[0].ops);
    return s;
}

static const sac_kv_type types[][2] = {{SAC_KV_F16, SAC_KV_F16},
                                       {SAC_KV_BF16, SAC_KV_BF16},
                                       {SAC_KV_Q8, SAC_KV_Q8},
                                       {SAC_KV_F16, SAC_KV_BF16},
                                       {SAC_KV_BF16, SAC_KV_F16}};
#define N_TYPE (sizeof types / sizeof types[0])

static inline void same_bits(const struct result *a, const struct result *b, const char *isa,
                             const char *what)
{
    if (memcmp(a->out, b->out, a->n_out * sizeof *a->out) != 0 ||
        memcmp(a->lse, b->lse, a->n_lse * sizeof *a->lse) != 0)
        fail_msg("%s: results differ by %s", isa, what);
}

#endif
