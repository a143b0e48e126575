/* prompt_rows.h: rows of a prompt and the pages before them, for checks of slots that plan what
 * they read. Who includes it says before how many KV heads and query heads there are, N_KV, GROUP
 * and N_HEAD, and which rows of the sequence are asked about, POS .. END - 1. */
#ifndef SAC_TESTS_PROMPT_ROWS_H
#define SAC_TESTS_PROMPT_ROWS_H

#include "base/half.h"
#include "base/mem.h"
#include "random_rows.h"

enum { N_PAGE = END / PAGE_TOK, N_OWN = END % PAGE_TOK, STRIDE = N_PAGE + 3 };
#define SCALE 0.15f

static struct {
    struct page_geom geom;
    uint8_t *frames, *own;
    uint32_t frame[N_KV][STRIDE];
    float *k; /* [N_KV][END, head_dim] as attention reads them */
    float *q; /* [END - POS][N_HEAD, head_dim] */
} p;

static inline uint16_t half_of(float x, sac_kv_type type)
{
    return type == SAC_KV_BF16 ? f32_to_bf16(x) : f32_to_f16(x);
}

/* Keys with a common part, and a few that stand out. */
static inline void make_sequence(sac_kv_type type, uint32_t d, uint64_t *seed)
{
    p.geom = (struct page_geom){
        .n_layer = 1, .n_kv_head = N_KV, .head_dim = d, .type_k = type, .type_v = type};
    page_geom_init(&p.geom);
    p.frames = mem_calloc(N_KV * STRIDE, p.geom.bytes);
    p.own = mem_calloc(N_KV, p.geom.tail_bytes);
    p.k = mem_calloc((size_t)N_KV * END * d, sizeof *p.k);
    p.q = mem_calloc((size_t)(END - POS) * N_HEAD * d, sizeof *p.q);
    assert_true(p.frames && p.own && p.k && p.q);
    for (uint32_t i = 0; i < N_KV * (N_PAGE + 1); i++) {
        const uint32_t h = i / (N_PAGE + 1), page = i % (N_PAGE + 1);
        uint16_t *tail = (uint16_t *)(void *)(p.own + h * p.geom.tail_bytes);
        for (uint32_t x = 0; x < 2 * PAGE_TOK * d; x++) {
            const uint32_t t = x / d % PAGE_TOK;
            const float size = random_next(seed) % 9 == 0 ? 3 : 1;
            const bool unseen = page == N_PAGE && t >= N_OWN;
            tail[x] =
                unseen ? 0x7fff : half_of(size * random_unit(seed) + (float)(x % d) / 20, type);
        }
        float *k = p.k + ((size_t)h * END + page * PAGE_TOK) * d;
        if (page == N_PAGE) {
            page_read(k, NULL, &p.geom, (const uint8_t *)tail, PAGE_TAIL, N_OWN);
            continue;
        }
        const uint8_t *from = (const uint8_t *)tail;
        p.frame[h][page] = (i * 29 + 11) % (N_KV * STRIDE);
        uint8_t *to = p.frames + p.frame[h][page] * p.geom.bytes;
        ref.seal(NULL,
                 &(struct op_seal){.geom = &p.geom, .n_page = 1, .tail = &from, .sealed = &to});
        page_read(k, NULL, &p.geom, to, PAGE_SEALED, PAGE_TOK);
    }
    for (size_t i = 0; i < (size_t)(END - POS) * N_HEAD * d; i++) p.q[i] = 2 * random_unit(seed);
}

static inline void free_sequence(void)
{
    mem_free(p.frames);
    mem_free(p.own);
    mem_free(p.k);
    mem_free(p.q);
}

static inline double dot(const float *a, const float *b)
{
    double sum = 0;
    for (uint32_t c = 0; c < p.geom.head_dim; c++) sum += (double)a[c] * (double)b[c];
    return sum * (double)SCALE;
}

static inline const float *query(uint32_t row, uint32_t head)
{
    return p.q + ((size_t)row * N_HEAD + head) * p.geom.head_dim;
}

static inline const float *key(uint32_t kv_head, uint32_t tok)
{
    return p.k + ((size_t)kv_head * END + tok) * p.geom.head_dim;
}

#endif
