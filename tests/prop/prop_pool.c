/* prop_pool.c: random forks, appends, truncations, drops and removals on a page pool; after each
 * one the invariants of pool.c hold, and a model that holds plain token lists says what every page
 * should contain. */
#include "kv/pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { N_SEQ = 5, MAX_PAGE = 6, N_PAGE_INDEX = 14, N_LAYER = 2, N_KV_HEAD = 3, D = 32 };
#define MAX_TOK (MAX_PAGE * PAGE_TOK)

struct world {
    struct pool pool;
    uint8_t *block;
    size_t block_bytes;
    uint32_t n_tok[N_SEQ];
    uint16_t tok[N_SEQ][MAX_TOK]; /* what the sequence should hold */
    bool alive[N_SEQ];
    bool dropped[N_SEQ][N_LAYER * N_KV_HEAD][MAX_PAGE];
    uint64_t rng;
};

static uint32_t draw(struct world *w, uint32_t n)
{
    w->rng = w->rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(w->rng >> 33) % n;
}

static void world_init(struct world *w, uint64_t seed)
{
    memset(w, 0, sizeof *w);
    w->rng = seed;
    struct page_geom g = {.n_layer = N_LAYER, .n_kv_head = N_KV_HEAD, .head_dim = D};
    page_geom_init(&g);
    struct arena a = {0};
    const struct pool_span all = {.n_layer = N_LAYER};
    const struct pool_size size = {.n_page = N_PAGE_INDEX * N_LAYER * N_KV_HEAD,
                                   .n_seq = N_SEQ,
                                   .max_page = MAX_PAGE,
                                   .span = &all,
                                   .n_span = 1};
    pool_init(&w->pool, &g, &size, &a);
    w->block_bytes = a.used;
    w->block = mem_map(a.used);
    assert_non_null(w->block);
    a = (struct arena){.base = w->block, .capacity = w->block_bytes};
    pool_init(&w->pool, &g, &size, &a);
    assert_int_equal(a.used, w->block_bytes);
}

/* Token t of lane `lane`: both halves of the page carry a value that names token and lane. */
static void put(uint8_t *page, const struct page_geom *g, uint32_t slot, uint16_t tok,
                uint32_t lane)
{
    for (uint32_t c = 0; c < D; c++) {
        const uint16_t k = (uint16_t)(tok * 7 + lane), v = (uint16_t)(tok * 11 + lane + 1);
        memcpy(page + 2 * ((size_t)slot * D + c), &k, 2);
        memcpy(page + g->tail_v + 2 * ((size_t)slot * D + c), &v, 2);
    }
}

static bool has(const uint8_t *page, const struct page_geom *g, uint32_t slot, uint16_t tok,
                uint32_t lane)
{
    uint16_t k, v;
    memcpy(&k, page + 2 * ((size_t)slot * D), 2);
    memcpy(&v, page + g->tail_v + 2 * ((size_t)slot * D), 2);
    return k == (uint16_t)(tok * 7 + lane) && v == (uint16_t)(tok * 11 + lane + 1);
}

static uint8_t *tail_of(struct world *w, uint32_t s, uint32_t lane)
{
    return pool_tail(&w->pool, s, lane / N_KV_HEAD) + (lane % N_KV_HEAD) * w->pool.geom.tail_bytes;
}

static page_id entry(struct world *w, uint32_t s, uint32_t lane, uint32_t i)
{
    return pool_table(&w->pool, s, lane / N_KV_HEAD)[(lane % N_KV_HEAD) * MAX_PAGE + i];
}

static void append(struct world *w, uint32_t s, uint16_t tok)
{
    const struct page_geom *g = &w->pool.geom;
    const uint32_t pos = w->n_tok[s], slot = pos % PAGE_TOK;
    if (pos == MAX_TOK) return;
    if (slot == PAGE_TOK - 1 && !pool_reserve(&w->pool, s, pos / PAGE_TOK, 1)) {
        assert_true(w->pool.n_free < pool_pages_per_index(&w->pool));
        return;
    }
    for (uint32_t lane = 0; lane < N_LAYER * N_KV_HEAD; lane++) {
        uint8_t *tail = tail_of(w, s, lane);
        put(tail, g, slot, tok, lane);
        if (slot == PAGE_TOK - 1)
            memcpy(pool_page(&w->pool, entry(w, s, lane, pos / PAGE_TOK)), tail, g->tail_bytes);
    }
    w->tok[s][pos] = tok;
    w->n_tok[s]++;
}

static void check(struct world *w)
{
    assert_true(pool_check(&w->pool, w->n_tok));
    for (uint32_t s = 0; s < N_SEQ; s++)
        for (uint32_t lane = 0; lane < N_LAYER * N_KV_HEAD; lane++)
            for (uint32_t p = 0; p < w->n_tok[s]; p++) {
                const bool sealed = p / PAGE_TOK < w->n_tok[s] / PAGE_TOK;
                if (w->dropped[s][lane][p / PAGE_TOK]) {
                    assert_int_equal(entry(w, s, lane, p / PAGE_TOK), PAGE_NONE);
                    continue;
                }
                const uint8_t *page = sealed ? pool_page(&w->pool, entry(w, s, lane, p / PAGE_TOK))
                                             : tail_of(w, s, lane);
                assert_true(has(page, &w->pool.geom, p % PAGE_TOK, w->tok[s][p], lane));
            }
}

static void fork_to(struct world *w, uint32_t dst, uint32_t src)
{
    if (dst == src || w->alive[dst] || !w->alive[src]) return;
    pool_fork(&w->pool, dst, src, w->n_tok[src] / PAGE_TOK);
    memcpy(w->tok[dst], w->tok[src], sizeof w->tok[dst]);
    memcpy(w->dropped[dst], w->dropped[src], sizeof w->dropped[dst]);
    w->n_tok[dst] = w->n_tok[src];
    w->alive[dst] = true;
}

static void cut(struct world *w, uint32_t s, uint32_t keep)
{
    const uint32_t page = keep / PAGE_TOK;
    const bool in_page = keep % PAGE_TOK && page < w->n_tok[s] / PAGE_TOK;
    bool there = true;
    for (uint32_t lane = 0; lane < N_LAYER * N_KV_HEAD; lane++)
        there = there && !(in_page && w->dropped[s][lane][page]);
    if (in_page) assert_int_equal(pool_has(&w->pool, s, page), there);
    if (!there) return;
    assert_int_equal(pool_truncate(&w->pool, s, w->n_tok[s], keep, NULL), SAC_OK);
    w->n_tok[s] = keep;
    for (uint32_t lane = 0; lane < N_LAYER * N_KV_HEAD; lane++)
        for (uint32_t i = page; i < MAX_PAGE; i++) w->dropped[s][lane][i] = false;
}

static void drop(struct world *w, uint32_t s)
{
    const uint32_t lane = draw(w, N_LAYER * N_KV_HEAD), page = draw(w, MAX_PAGE);
    if (page >= w->n_tok[s] / PAGE_TOK) return;
    const page_id id = entry(w, s, lane, page);
    const uint32_t n_free = w->pool.n_free;
    const bool frees = id != PAGE_NONE && w->pool.refs[id] == 1;
    pool_drop(&w->pool, s, lane / N_KV_HEAD, lane % N_KV_HEAD, page);
    assert_int_equal(w->pool.n_free, n_free + frees);
    w->dropped[s][lane][page] = true;
}

static void one_operation(struct world *w)
{
    const uint32_t s = draw(w, N_SEQ), what = draw(w, 12);
    if (what < 6) {
        const uint32_t n = 1 + draw(w, 2 * PAGE_TOK);
        w->alive[s] = true;
        for (uint32_t i = 0; i < n; i++) append(w, s, (uint16_t)draw(w, 60000));
    } else if (what < 7) {
        fork_to(w, s, draw(w, N_SEQ));
    } else if (what < 9) {
        cut(w, s, w->n_tok[s] ? draw(w, w->n_tok[s] + 1) : 0);
    } else if (what < 11) {
        drop(w, s);
    } else {
        memset(w->dropped[s], 0, sizeof w->dropped[s]);
        pool_release(&w->pool, s, 0, w->n_tok[s] / PAGE_TOK);
        w->n_tok[s] = 0;
        w->alive[s] = false;
    }
}

static void random_operations_keep_the_invariants(void **state)
{
    (void)state;
    static struct world w;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        world_init(&w, seed);
        for (int i = 0; i < 150; i++) {
            one_operation(&w);
            check(&w);
        }
        mem_unmap(w.block, w.block_bytes);
    }
}

static void a_full_pool_gives_nothing_and_loses_nothing(void **state)
{
    (void)state;
    static struct world w;
    world_init(&w, 1);
    for (uint32_t s = 0; s < N_SEQ; s++)
        for (uint32_t i = 0; i < MAX_TOK; i++) append(&w, s, (uint16_t)(s * 1000 + i));
    check(&w);
    uint32_t n = 0;
    for (uint32_t s = 0; s < N_SEQ; s++) n += w.n_tok[s] / PAGE_TOK;
    assert_int_equal(n, N_PAGE_INDEX);
    assert_false(pool_reserve(&w.pool, N_SEQ - 1, 0, 1));
    check(&w);
    mem_unmap(w.block, w.block_bytes);
}

static void the_checker_sees_a_lost_reference(void **state)
{
    (void)state;
    static struct world w;
    world_init(&w, 1);
    for (uint32_t i = 0; i < 3 * PAGE_TOK; i++) append(&w, 0, (uint16_t)i);
    assert_true(pool_check(&w.pool, w.n_tok));
    w.pool.refs[entry(&w, 0, 1, 2)]++;
    assert_false(pool_check(&w.pool, w.n_tok));
    mem_unmap(w.block, w.block_bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_operations_keep_the_invariants),
        cmocka_unit_test(a_full_pool_gives_nothing_and_loses_nothing),
        cmocka_unit_test(the_checker_sees_a_lost_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
