/* prop_prefix.c: random texts that begin alike come into the index of pages, are taken, end, lose
 * pages, are lost and leave; after each step the invariants of pool.c and prefix.c hold, who leaves
 * is who a look at all nodes says, and who was told of what comes and goes knows what a search
 * finds. */
#include "kv/prefix.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { N_SEQ = 4, MAX_PAGE = 5, N_PAGE_INDEX = 24, N_LAYER = 2, N_KV_HEAD = 2, D = 32, N_WORD = 3 };
enum { N_LANE = N_LAYER * N_KV_HEAD, N_STEP = 4000 };

struct text {
    uint32_t n_page, node; /* node: of its last page */
    uint64_t path;         /* what the key is made of: its pages' words */
    bool has_gaps;         /* a page was dropped: its nodes may leave before it does */
};

struct world {
    struct pool pool;
    struct prefix index;
    uint8_t *block;
    size_t block_bytes;
    struct text text[N_SEQ];
    uint64_t rng;
    bool told[N_PAGE_INDEX]; /* by node: of its coming, and not of its going */
};

static uint32_t draw(struct world *w, uint32_t n)
{
    w->rng = w->rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(w->rng >> 33) % n;
}

static void plan(struct world *w, struct arena *a)
{
    struct page_geom g = {.n_layer = N_LAYER, .n_kv_head = N_KV_HEAD, .head_dim = D};
    const struct pool_span all = {.n_layer = N_LAYER};
    page_geom_init(&g);
    pool_init(&w->pool, &g,
              &(struct pool_size){.n_page = N_PAGE_INDEX * N_LANE,
                                  .n_seq = N_SEQ,
                                  .max_page = MAX_PAGE,
                                  .span = &all,
                                  .n_span = 1},
              a);
    prefix_init(&w->index, &w->pool, true, a);
}

static void on_gone(void *user, uint32_t node)
{
    struct world *w = user;
    assert_true(w->told[node] && w->index.node[node].used);
    w->told[node] = false;
}

static void world_init(struct world *w, uint64_t seed)
{
    *w = (struct world){.rng = seed};
    struct arena a = {0};
    plan(w, &a);
    w->block_bytes = a.used;
    w->block = mem_map(a.used);
    assert_non_null(w->block);
    a = (struct arena){.base = w->block, .capacity = w->block_bytes};
    plan(w, &a);
    for (uint32_t s = 0; s < N_SEQ; s++) w->text[s] = (struct text){.node = PREFIX_NONE, .path = 1};
    w->index.gone = on_gone;
    w->index.user = w;
}

/* ---- What should be ---- */

static bool is_idle(const struct world *w, uint32_t i)
{
    for (uint32_t lane = 0; lane < N_LANE; lane++)
        if (pool_is_only_held(&w->pool, w->index.page[(size_t)i * N_LANE + lane])) return true;
    return false;
}

static uint32_t who_leaves(const struct world *w, uint64_t tick)
{
    uint32_t oldest = PREFIX_NONE;
    for (uint32_t i = 0; i < w->index.n_node; i++) {
        const struct prefix_node *n = &w->index.node[i];
        if (!n->used || n->used >= tick || n->n_child > 0 || !is_idle(w, i)) continue;
        if (oldest == PREFIX_NONE || n->used < w->index.node[oldest].used) oldest = i;
    }
    return oldest;
}

/* Whether a search from the start of the node's text finds it. */
static bool is_found(const struct world *w, uint32_t node)
{
    uint32_t chain[N_PAGE_INDEX], at = PREFIX_NONE;
    const uint32_t n = prefix_chain(&w->index, node, chain, N_PAGE_INDEX);
    for (uint32_t i = 0; i < n; i++) {
        at = prefix_find(&w->index, at, w->index.node[chain[i]].key,
                         w->index.tok + (size_t)chain[i] * PAGE_TOK);
        if (at != chain[i]) return false;
    }
    return true;
}

static void check(const struct world *w)
{
    uint32_t n_tok[N_SEQ], n_leaf = 0, n_listed = 0;
    uint64_t used = 0;
    for (uint32_t s = 0; s < N_SEQ; s++) n_tok[s] = w->text[s].n_page * PAGE_TOK;
    assert_true(pool_check(&w->pool, n_tok));
    for (uint32_t i = 0; i < w->index.n_node; i++)
        n_leaf += w->index.node[i].used && w->index.node[i].n_child == 0;
    for (uint32_t i = 0; i < w->index.n_node; i++)
        assert_int_equal(w->told[i], w->index.node[i].used && is_found(w, i));
    for (uint32_t i = w->index.oldest, older = PREFIX_NONE; i != PREFIX_NONE; n_listed++) {
        const struct prefix_node *n = &w->index.node[i];
        assert_true(n->used > used && n->n_child == 0 && n->older == older);
        used = n->used;
        older = i;
        i = n->newer;
        assert_true(i != PREFIX_NONE || w->index.newest == older);
    }
    assert_int_equal(n_listed, n_leaf);
}

/* ---- What is done ---- */

static bool shrink(struct world *w, uint64_t tick)
{
    const uint32_t leaves = who_leaves(w, tick), before = w->index.n_used;
    const bool left = prefix_shrink(&w->index, tick);
    assert_int_equal(left, leaves != PREFIX_NONE);
    assert_int_equal(w->index.n_used, before - left);
    if (left) assert_int_equal(w->index.node[leaves].used, 0);
    return left;
}

/* A text goes on by a page of one word. */
static void grow(struct world *w, uint32_t s)
{
    struct text *t = &w->text[s];
    const struct pool_place at = {s, t->n_page};
    int32_t tok[PAGE_TOK];
    uint8_t key[SHA256_BYTES] = {0};
    if (t->n_page == MAX_PAGE || t->has_gaps) return;
    const uint32_t word = draw(w, N_WORD);
    const uint64_t path = t->path * (N_WORD + 1) + word;
    for (uint32_t i = 0; i < PAGE_TOK; i++) tok[i] = (int32_t)word;
    memcpy(key, &path, sizeof path);
    uint32_t node = prefix_find(&w->index, t->node, key, tok);
    if (node != PREFIX_NONE) {
        prefix_take(&w->index, node, at);
    } else {
        while (pool_free_indices(&w->pool) == 0)
            if (!shrink(w, UINT64_MAX)) return;
        assert_true(pool_reserve(&w->pool, s, t->n_page, 1));
        node = prefix_add(&w->index, t->node, key, tok, at);
        assert_int_not_equal(node, PREFIX_NONE);
        assert_false(w->told[node]);
        w->told[node] = w->index.node[node].reachable;
    }
    *t = (struct text){.n_page = t->n_page + 1, .node = node, .path = path};
}

static void end(struct world *w, uint32_t s)
{
    pool_release(&w->pool, s, 0, w->text[s].n_page);
    w->text[s] = (struct text){.node = PREFIX_NONE, .path = 1};
}

static void drop(struct world *w, uint32_t s)
{
    struct text *t = &w->text[s];
    if (t->n_page == 0) return;
    pool_drop(&w->pool, s, draw(w, N_LAYER), draw(w, N_KV_HEAD), draw(w, t->n_page));
    t->has_gaps = true;
}

/* One in ten of the texts that could be lost, so that most are shared for a while. */
static void lose(struct world *w, uint32_t s)
{
    const struct text *t = &w->text[s];
    if (!t->has_gaps && draw(w, 10) == 0) prefix_lose(&w->index, t->node);
}

/* None, of late, or that at which the oldest leaf was used, which stays then. */
static uint64_t some_tick(struct world *w)
{
    const uint32_t what = draw(w, 4), oldest = w->index.oldest;
    if (what < 2) return UINT64_MAX;
    if (what < 3 || oldest == PREFIX_NONE) return w->index.tick - draw(w, 20);
    return w->index.node[oldest].used;
}

static void step(struct world *w)
{
    const uint32_t s = draw(w, N_SEQ), what = draw(w, 16);
    if (what < 11)
        grow(w, s);
    else if (what < 13)
        end(w, s);
    else if (what < 14)
        drop(w, s);
    else if (what < 15)
        lose(w, s);
    else
        shrink(w, some_tick(w));
}

static void leaves_go_in_the_order_of_their_use(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct world w;
        world_init(&w, seed);
        for (uint32_t i = 0; i < N_STEP; i++) {
            step(&w);
            check(&w);
        }
        assert_true(w.index.n_evicted > N_STEP / 20);
        for (uint32_t s = 0; s < N_SEQ; s++) end(&w, s);
        while (shrink(&w, UINT64_MAX)) check(&w);
        assert_int_equal(w.index.n_used, 0);
        assert_int_equal(w.pool.n_free, N_PAGE_INDEX * N_LANE);
        mem_unmap(w.block, w.block_bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leaves_go_in_the_order_of_their_use),
    };
    return cmocka_run_group_tests_name("prop_prefix", tests, NULL, NULL);
}
