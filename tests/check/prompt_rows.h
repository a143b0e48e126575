/* prompt_rows.h: rows of a prompt, the pages before them and the lists that are made of them, for
 * checks of slots that plan what prompt rows read. Who includes it says before how many KV heads
 * and query heads there are, N_KV, GROUP and N_HEAD, which rows of the sequence are asked about,
 * POS .. END - 1, what a tile of them is, TILE_TOK, and the rooms of a list, N_RANGE_MAX and
 * N_TOK_MAX. */
#ifndef SAC_TESTS_PROMPT_ROWS_H
#define SAC_TESTS_PROMPT_ROWS_H

#include "base/half.h"
#include "cuda_lib.h"
#include "random_rows.h"

enum { N_PAGE = END / PAGE_TOK, N_OWN = END % PAGE_TOK, STRIDE = N_PAGE + 3 };
enum { TILE0 = POS / TILE_TOK, N_BLOCK = (END - 1) / TILE_TOK + 1, N_TILE = N_BLOCK - TILE0 };
enum { N_LIST = N_TILE * N_HEAD, TILE_PAGES = TILE_TOK / PAGE_TOK };
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

/* One channel of a key of KV head 1, before all tiles, of 16 bits: infinite, or not a number. */
static inline void break_key(uint16_t channel)
{
    ((uint16_t *)(void *)(p.frames + p.frame[1][3] * p.geom.bytes))[5] = channel;
}

/* ---- Calls ---- */

static inline struct op_prompt_rows make_rows(void)
{
    return (struct op_prompt_rows){.geom = &p.geom,
                                   .table_stride = STRIDE,
                                   .q_stride = (size_t)N_HEAD * p.geom.head_dim,
                                   .scale = SCALE,
                                   .n_head = N_HEAD,
                                   .pos = POS,
                                   .end = END,
                                   .tile_tok = TILE_TOK,
                                   .tile0 = TILE0,
                                   .n_tile = N_TILE};
}

static inline struct op_prompt_lists make_lists(void)
{
    return (struct op_prompt_lists){.call = 9, .range_max = N_RANGE_MAX, .tok_max = N_TOK_MAX};
}

/* What came of a call. */
static struct {
    struct attn_range range[N_LIST][N_RANGE_MAX];
    uint32_t tok[N_LIST * N_TOK_MAX];
    struct attn_list made[N_LIST];
} got;

/* The rows and rooms of a call as memory of the device. */
static inline void put_call(struct op_prompt_rows *rows, struct op_prompt_lists *lists)
{
    rows->frames.base = put(p.frames, N_KV * STRIDE * p.geom.bytes);
    rows->frame = put(p.frame, sizeof p.frame);
    rows->own = put(p.own, N_KV * p.geom.tail_bytes);
    rows->q = put(p.q, (END - POS) * N_HEAD * (size_t)p.geom.head_dim * sizeof *p.q);
    lists->failed = put_any(N_KV * sizeof *lists->failed);
    lists->range = put_any(sizeof got.range);
    lists->tok = put_any(sizeof got.tok);
    lists->made = put_any(sizeof got.made);
}

/* Ends what put_call has begun. */
static inline void get_lists(const struct op_prompt_lists *lists)
{
    get(got.range, lists->range, sizeof got.range);
    get(got.tok, lists->tok, sizeof got.tok);
    get(got.made, lists->made, sizeof got.made);
    give_all();
}

/* ---- Lists ---- */

/* A list that reads everything says why, PLAN_SPARSE: another one. */
static inline void assert_reason(uint32_t list, enum plan_reason why)
{
    const struct attn_list *made = &got.made[list];
    const uint32_t n_page = (TILE0 + list / N_HEAD) * TILE_PAGES;
    assert_int_equal(made->why, why);
    if (why == PLAN_SPARSE) return;
    assert_int_equal(made->n_range, 1);
    assert_int_equal(made->n_tok, 0);
    assert_int_equal(made->n_before, n_page * PAGE_TOK);
    assert_int_equal(got.range[list][0].begin, 0);
    assert_int_equal(got.range[list][0].end, n_page + TILE_PAGES);
}

/* Of a KV head with a broken key all lists read everything, of the other one none. */
static inline void assert_broken_is_told(void)
{
    for (uint32_t i = 0; i < N_LIST; i++)
        assert_reason(i, i % N_HEAD / GROUP == 1 ? PLAN_NAN : PLAN_SPARSE);
}

/* Which blocks of TILE_TOK a list names, of whole ones, with the first and its own. */
static inline void read_blocks(bool is_read[N_BLOCK], uint32_t list)
{
    const struct attn_list *made = &got.made[list];
    const uint32_t own = TILE0 + list / N_HEAD;
    uint32_t n_before = 0;
    memset(is_read, 0, N_BLOCK * sizeof *is_read);
    assert_int_equal(made->n_tok, 0);
    assert_true(made->n_range >= 1 && made->n_range <= N_RANGE_MAX);
    for (uint32_t i = 0; i < made->n_range; i++) {
        const struct attn_range r = got.range[list][i];
        assert_true(r.begin % TILE_PAGES == 0 && r.end % TILE_PAGES == 0 && r.begin < r.end);
        assert_true(i == 0 || got.range[list][i - 1].end < r.begin);
        for (uint32_t b = r.begin / TILE_PAGES; b < r.end / TILE_PAGES; b++) is_read[b] = true;
    }
    for (uint32_t b = 0; b < own; b++) n_before += is_read[b] ? TILE_TOK : 0;
    assert_int_equal(made->n_before, n_before);
    assert_int_equal(got.range[list][made->n_range - 1].end, (own + 1) * TILE_PAGES);
    assert_true(is_read[0] && is_read[own]);
}

/* For qsort: the largest first. */
static inline int descending(const void *x, const void *y)
{
    const double l = *(const double *)x, r = *(const double *)y;
    return l < r ? 1 : l > r ? -1 : 0;
}

#endif
