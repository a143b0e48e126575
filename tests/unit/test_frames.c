/* test_frames.c: a page's id tells nothing of where its bytes lie. All pages of an engine are moved
 * to other frames between its steps, and every method, of both kinds, gives the bits that it gives
 * where they stay: whatever computed a place from an id would read another page. */
#include "engine/engine.h"
#include "must.h"
#include "spec_make.h"
#include "tiny_rows.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { N_PROMPT = 300, N_MORE = 50 };

static sac_model *model;
static int32_t text[N_PROMPT];

static int open_model(void **state)
{
    (void)state;
    model = tiny_open(&(struct tiny){.seed = 8});
    for (int i = 0; i < N_PROMPT; i++) text[i] = (i * 37 + i / 9 * 5) % TINY_VOCAB;
    return model ? 0 : -1;
}

static int free_model(void **state)
{
    (void)state;
    sac_model_free(model);
    return 0;
}

/* Every page goes to the frame of another, used or not. */
static void move_pages(struct pool *p)
{
    const uint32_t n = p->n_page;
    uint32_t *to = malloc(n * sizeof *to);
    uint8_t *bytes = malloc(n * p->geom.bytes);
    uint64_t random = 5;
    for (uint32_t i = 0; i < n; i++) to[i] = i;
    for (uint32_t i = n; i > 1; i--) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        const uint32_t j = (uint32_t)(random >> 33) % i, was = to[i - 1];
        to[i - 1] = to[j];
        to[j] = was;
    }
    for (uint32_t i = 0; i < n; i++)
        memcpy(bytes + to[i] * p->geom.bytes, p->part[0].frames + i * p->geom.bytes, p->geom.bytes);
    memcpy(p->part[0].frames, bytes, n * p->geom.bytes);
    for (page_id id = 0; id < n; id++)
        if (p->frame_of[id] != PAGE_NONE) p->frame_of[id] = to[p->frame_of[id]];
    for (uint32_t i = 0; i < p->n_free; i++) p->free_frames[i] = to[p->free_frames[i]];
    free(to);
    free(bytes);
}

static void compute(sac_engine *e, sac_seq s, size_t n, sac_row_kind kind, float *logits)
{
    compute_rows(e, s, text, n, kind, logits);
}

/* A prompt, decode rows, a second prompt and a fork that is cut, with moves between. */
static void live(const struct method *m, const char *spec, sac_kv_type type, bool moves,
                 float logits[4][TINY_VOCAB])
{
    sac_engine_params p = sac_engine_params_default();
    sac_engine *e;
    sac_error err;
    sac_seq s, fork;
    p.n_ctx = 1024;
    p.n_seq_max = 2;
    p.n_threads = 1;
    p.n_batch = 128;
    p.type_k = p.type_v = type;
    p.decode = p.prefill = &spec;
    p.n_decode = strcmp(m->kind, "decode") == 0;
    p.n_prefill = !p.n_decode;
    p.sparse_min_ctx = 0;
    must(sac_engine_create(&e, model, &p, &err), &err);
    must(sac_seq_create(e, &s, &err), &err);
    compute(e, s, N_PROMPT, SAC_ROW_PROMPT, logits[0]);
    if (moves) move_pages(&e->pool);
    compute(e, s, 3, SAC_ROW_DECODE, logits[0]);
    compute(e, s, N_MORE, SAC_ROW_PROMPT, logits[1]);
    if (moves) move_pages(&e->pool);
    must(sac_seq_fork(e, s, &fork, &err), &err);
    compute(e, s, 1, SAC_ROW_DECODE, logits[2]);
    must(sac_seq_truncate(e, fork, N_PROMPT / PAGE_TOK * PAGE_TOK, &err), &err);
    if (moves) move_pages(&e->pool);
    compute(e, fork, 2, SAC_ROW_DECODE, logits[3]);
    const uint32_t n_tok[2] = {e->seqs[0].n_done, e->seqs[1].n_done};
    assert_true(pool_check(&e->pool, n_tok));
    sac_engine_free(e);
}

static void pages_may_lie_anywhere(void **state)
{
    (void)state;
    static float stayed[4][TINY_VOCAB], moved[4][TINY_VOCAB];
    const struct method *m;
    for (size_t i = 0; (m = method_at(i)); i++)
        for (int q8 = 0; q8 < 2 && strcmp(m->kind, "context") != 0; q8++) {
            char spec[SPEC_MAKE_BYTES];
            const sac_kv_type type = q8 ? SAC_KV_Q8 : SAC_KV_F16;
            spec_make_part(spec, m, 64);
            live(m, spec, type, false, stayed);
            live(m, spec, type, true, moved);
            if (memcmp(stayed, moved, sizeof stayed) != 0)
                fail_msg("%s %s, type %d: another answer from other frames", m->kind, spec, type);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(pages_may_lie_anywhere)};
    return cmocka_run_group_tests(tests, open_model, free_model);
}
