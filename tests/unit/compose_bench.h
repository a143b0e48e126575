/* compose_bench.h: three documents of a tiny model, each computed alone in a sequence of its own,
 * that tests of composers join and ask. */
#ifndef SAC_TESTS_COMPOSE_BENCH_H
#define SAC_TESTS_COMPOSE_BENCH_H

#include "engine/doc_stats.h"
#include "must.h"
#include "tiny_rows.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { N_HEAD = 32, N_DOC = 3, N_QUESTION = 11, N_LAYER = 4, N_CTX = 512 };

static const uint32_t n_text[N_DOC] = {96, 128, 64};
static sac_model *model; /* of N_LAYER layers; the test opens and frees it */

struct setting {
    const sac_model *model; /* NULL: the model */
    sac_kv_type type;
    uint32_t n_threads, n_batch;
    const char *decode, *also_decode; /* the second only behind the first */
    bool is_long;                     /* documents of four times the length */
    bool no_head;                     /* else one of N_HEAD tokens */
    uint32_t n_seq_more, n_ctx_more;
    const char *device;
    bool kv_on_host;
};

/* An engine with documents in sequences of their own. */
struct bench {
    sac_engine *e;
    sac_seq doc[N_DOC];
    uint32_t n_head;
};

/* Engines sum products of f32, also where the CPU could multiply 16-bit numbers, unless SAC_CPU
 * says ref: what those add is larger than what a wrong token or two would. check/ is about them. */
static inline void sum_in_f32(void)
{
    struct ops o;
    sac_error err;
    const char *isa = getenv("SAC_CPU");
    if (isa && strcmp(isa, "ref") == 0) return;
    if (ops_init_isa(&o, "avx2", &err) == SAC_OK) setenv("SAC_CPU", "avx2", 1);
}

/* Set-up and tear-down of a test that needs `model` alone. */
static inline int bench_open_model(void **state)
{
    (void)state;
    sum_in_f32();
    model = tiny_open(&(struct tiny){.seed = 1, .n_layer = N_LAYER});
    return model ? 0 : -1;
}

static inline int bench_free_model(void **state)
{
    (void)state;
    sac_model_free(model);
    return 0;
}

static inline int32_t token_of(uint32_t doc, uint32_t i)
{
    return (int32_t)((i * 37 + doc * 101 + i / 9) % TINY_VOCAB);
}

static inline void compute(sac_engine *e, sac_seq s, const int32_t *tok, size_t n, sac_row_fn fn,
                           float *logits)
{
    sac_error err;
    uint32_t n_row = 1;
    must(sac_seq_append(e, s, tok, n, SAC_ROW_PROMPT, fn ? SAC_WANT_LAST : SAC_WANT_NONE, &err),
         &err);
    while (n_row) must(sac_step(e, fn, logits, &n_row, &err), &err);
}

/* `changed`: the last document has another last token. */
static inline struct bench open_bench(const struct setting *s, bool changed)
{
    struct bench b = {.n_head = s->no_head ? 0 : N_HEAD};
    sac_error err;
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = (s->is_long ? 4 * N_CTX : N_CTX) + s->n_ctx_more;
    p.n_seq_max = N_DOC + 2 + s->n_seq_more;
    p.n_threads = s->n_threads ? s->n_threads : 1;
    if (s->n_batch) p.n_batch = s->n_batch;
    p.type_k = p.type_v = s->type;
    p.compose = true;
    p.device = s->device;
    p.kv_on_host = s->kv_on_host;
    p.sparse_min_ctx = 0;
    const char *const decode[] = {s->decode, s->also_decode};
    p.decode = decode;
    p.n_decode = s->also_decode ? 2 : s->decode != NULL;
    must(sac_engine_create(&b.e, s->model ? s->model : model, &p, &err), &err);
    for (uint32_t d = 0; d < N_DOC; d++) {
        int32_t tok[N_HEAD + 4 * 128];
        struct doc_stats_watch watch;
        const uint32_t n = n_text[d] * (s->is_long ? 4 : 1);
        for (uint32_t i = 0; i < b.n_head; i++) tok[i] = token_of(9, i);
        for (uint32_t i = 0; i < n; i++) tok[b.n_head + i] = token_of(d, i);
        if (changed && d == N_DOC - 1) tok[b.n_head + n - 1] ^= 1;
        must(sac_seq_create(b.e, &b.doc[d], &err), &err);
        must(doc_stats_begin(&watch, b.e, b.doc[d], b.n_head, n, &err), &err);
        compute(b.e, b.doc[d], tok, b.n_head + n, NULL, NULL);
        must(doc_stats_make(&watch, b.e, &err), &err);
        doc_stats_end(&watch, b.e);
    }
    return b;
}

static inline sac_seq compose(const struct bench *b, const char *method, size_t n_doc,
                              sac_compose_report *report)
{
    sac_seq seq;
    sac_error err;
    int32_t question[N_QUESTION];
    for (uint32_t i = 0; i < N_QUESTION; i++) question[i] = token_of(7, i);
    const sac_compose_params p = {.method = method,
                                  .doc = b->doc,
                                  .n_doc = n_doc,
                                  .n_head = b->n_head,
                                  .question = question,
                                  .n_question = N_QUESTION};
    must(sac_compose(b->e, &p, &seq, report, &err), &err);
    return seq;
}

/* The logits behind a question, and one decode row behind that. */
static inline void ask(const struct bench *b, sac_seq seq, float logits[2][TINY_VOCAB])
{
    int32_t question[N_QUESTION];
    sac_error err;
    uint32_t n_row = 1;
    for (uint32_t i = 0; i < N_QUESTION; i++) question[i] = token_of(7, i);
    compute(b->e, seq, question, N_QUESTION, catch_row, logits[0]);
    must(sac_seq_append(b->e, seq, question, 1, SAC_ROW_DECODE, SAC_WANT_LAST, &err), &err);
    while (n_row) must(sac_step(b->e, catch_row, logits[1], &n_row, &err), &err);
}

static inline void answer(const struct bench *b, const char *method, size_t n_doc,
                          float logits[2][TINY_VOCAB])
{
    const sac_seq seq = compose(b, method, n_doc, NULL);
    ask(b, seq, logits);
    sac_seq_remove(b->e, seq);
}

/* Root of the mean square of differences, relative to the values. */
static inline double distance(float a[2][TINY_VOCAB], float b[2][TINY_VOCAB])
{
    double sum = 0, all = 0;
    for (int i = 0; i < 2; i++)
        for (int t = 0; t < TINY_VOCAB; t++) {
            sum += ((double)a[i][t] - b[i][t]) * ((double)a[i][t] - b[i][t]);
            all += (double)b[i][t] * b[i][t];
        }
    return sqrt(sum / all);
}

#endif
