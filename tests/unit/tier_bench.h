/* tier_bench.h: engines above a file, for tests of whole engines with tiers: small memory, and a
 * text whose rows they compute. */
#ifndef SAC_TESTS_UNIT_TIER_BENCH_H
#define SAC_TESTS_UNIT_TIER_BENCH_H

#include "engine/engine.h"
#include "must.h"
#include "spec_make.h"
#include "tiny_rows.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { N_PROMPT = 300, N_MORE = 50, N_FRAME = ATTN_TAKE_PAGES, N_WIDE = 1300 };

static sac_model *model;
static int32_t text[N_PROMPT];

static inline int open_model(void **state)
{
    (void)state;
    model = tiny_open(&(struct tiny){.seed = 8});
    for (int i = 0; i < N_PROMPT; i++) text[i] = (i * 37 + i / 9 * 5) % TINY_VOCAB;
    return model ? 0 : -1;
}

static inline int free_model(void **state)
{
    (void)state;
    sac_model_free(model);
    return 0;
}

/* A name for a file that is not there. */
static inline const char *scratch_path(void)
{
    static char path[80];
    const bool has_shm = access("/dev/shm", W_OK) == 0; /* prop_tier takes a disk */
    snprintf(path, sizeof path, "%s/saccade-tier-%d", has_shm ? "/dev/shm" : P_tmpdir,
             (int)getpid());
    return path;
}

static inline size_t page_bytes(sac_kv_type type)
{
    struct page_geom g = {
        .n_layer = 1, .n_kv_head = 1, .head_dim = TINY_DIM, .type_k = type, .type_v = type};
    page_geom_init(&g);
    return g.bytes;
}

struct way {
    const sac_model *model; /* NULL: the one of all tests */
    uint32_t n_ctx;         /* 0: 512 */
    uint32_t n_frame;       /* 0: N_FRAME */
    bool tiers, no_ahead, keeps_prefixes;
    sac_tier_policy policy;
    uint32_t n_thread;
    sac_kv_type type;
};

static inline sac_engine *open_engine(const struct method *m, const char *spec,
                                      const struct way *way)
{
    sac_engine_params p = sac_engine_params_default();
    sac_engine *e = NULL;
    sac_error err;
    p.n_ctx = way->n_ctx ? way->n_ctx : 512;
    p.n_seq_max = 2;
    p.n_threads = way->n_thread;
    p.n_batch = 64;
    p.prefix_cache = way->keeps_prefixes;
    p.type_k = p.type_v = way->type;
    p.decode = p.prefill = &spec;
    p.n_decode = m && strcmp(m->kind, "decode") == 0;
    p.n_prefill = m && !p.n_decode;
    p.sparse_min_ctx = 0;
    const uint32_t n_frame = way->n_frame ? way->n_frame : N_FRAME;
    const struct sac_tier_params tier = {.file = scratch_path(),
                                         .file_bytes = 16u << 20,
                                         .fast_bytes = n_frame * page_bytes(way->type),
                                         .policy = way->policy,
                                         .no_ahead = way->no_ahead};
    if (way->tiers) p.tier = &tier;
    must(sac_engine_create(&e, way->model ? way->model : model, &p, &err), &err);
    return e;
}

static inline void compute(sac_engine *e, sac_seq s, size_t n, sac_row_kind kind, float *logits)
{
    const uint64_t n_alloc = mem_count();
    compute_rows(e, s, text, n, kind, logits);
    assert_int_equal(mem_count(), n_alloc); /* a step allocates nothing */
}

/* Of several sequences: logits [n_seq][TINY_VOCAB]. */
static inline void catch_rows(void *user, const sac_row *row)
{
    float(*logits)[TINY_VOCAB] = user;
    memcpy(logits[row->seq], row->logits, sizeof logits[0]);
}

#endif
