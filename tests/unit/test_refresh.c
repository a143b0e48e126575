/* test_refresh.c: tokens of joined documents that are computed again in some layers: what changes
 * and what it is computed from, for masks made by hand and for random ones. */
#include "compose_bench.h"
#include "engine/refresh.h"

enum { LOWER = 1, UPPER = 2, PAGE = 5 }; /* neighbouring layers, a page of the second document */
enum { N_ASK = 2 * PAGE_TOK, N_PAGE = (N_HEAD + 96 + 128 + 64 + N_ASK) / PAGE_TOK };
enum { N_VALUE = TINY_KV_HEADS * TINY_DIM };

/* Three documents and a question of whole pages. */
static const struct context_doc parts[N_DOC + 1] = {{1, 4}, {4, 8}, {8, 10}, {10, N_PAGE}};

/* Which tokens are computed again, as in struct context_plan. */
struct masks {
    uint32_t word[N_LAYER][N_PAGE];
};

/* The first n_part of `parts`, which are all that the sequence has. */
static struct refresh_done refresh(const struct bench *b, sac_seq seq, uint32_t n_part,
                                   const struct masks *masks)
{
    static const struct method_context hooks;
    const uint32_t n_page = parts[n_part - 1].end;
    uint32_t word[N_LAYER * N_PAGE];
    struct refresh_done done;
    sac_error err;
    for (uint32_t layer = 0; layer < N_LAYER; layer++)
        memcpy(word + layer * n_page, masks->word[layer], n_page * sizeof *word);
    const struct context_view view = {
        .n_layer = N_LAYER, .n_page = n_page, .n_doc = n_part, .doc = parts};
    struct context_plan plan = {.refresh = word};
    const struct refresh_job job = {.seq_i = seq, .view = &view, .plan = &plan, .hooks = &hooks};
    must(refresh_run(b->e, &job, &done, &err), &err);
    return done;
}

/* Keys, then values, of all heads of a page's tokens. */
struct content {
    float tok[PAGE_TOK][2][N_VALUE];
};

static struct content read_page(const struct bench *b, sac_seq seq, uint32_t layer, uint32_t page)
{
    const struct pool *p = &b->e->pool;
    struct content out;
    for (uint32_t h = 0; h < TINY_KV_HEADS; h++) {
        float k[PAGE_TOK][TINY_DIM], v[PAGE_TOK][TINY_DIM];
        const page_id id = pool_table(p, seq, layer)[h * p->max_page + page];
        page_read(k[0], v[0], &p->geom, pool_page(p, id), PAGE_SEALED, PAGE_TOK);
        for (uint32_t t = 0; t < PAGE_TOK; t++) {
            memcpy(out.tok[t][0] + h * TINY_DIM, k[t], sizeof k[t]);
            memcpy(out.tok[t][1] + h * TINY_DIM, v[t], sizeof v[t]);
        }
    }
    return out;
}

/* What a page holds in the upper layer after this was computed again of it. */
static struct content upper_after(const struct bench *b, uint32_t lower, uint32_t upper)
{
    struct masks masks = {0};
    masks.word[LOWER][PAGE] = lower;
    masks.word[UPPER][PAGE] = upper;
    const sac_seq seq = compose(b, "reuse", N_DOC, NULL);
    refresh(b, seq, N_DOC, &masks);
    const struct content out = read_page(b, seq, UPPER, PAGE);
    sac_seq_remove(b->e, seq);
    return out;
}

/* Tokens of one page, by turns of the four cases of SamKV's figure 5: named in the lower layer, in
 * none, in the upper one, in both. Keys and values are new where a token is named, and nowhere
 * else. */
static void what_is_named_changes_alone(void **state)
{
    (void)state;
    const struct bench b = open_bench(&(struct setting){.type = SAC_KV_F16}, false);
    struct masks masks = {0};
    masks.word[LOWER][PAGE] = 0x99999999;
    masks.word[UPPER][PAGE] = 0xcccccccc;
    const sac_seq was = compose(&b, "reuse", N_DOC, NULL), seq = compose(&b, "reuse", N_DOC, NULL);
    const struct refresh_done done = refresh(&b, seq, N_DOC, &masks);
    assert_int_equal(done.n_row, PAGE_TOK);
    assert_int_equal(done.n_page_own, 2 * TINY_KV_HEADS);
    for (uint32_t layer = 0; layer < N_LAYER; layer++)
        for (uint32_t page = 0; page < parts[N_DOC - 1].end; page++) {
            const struct content old = read_page(&b, was, layer, page),
                                 now = read_page(&b, seq, layer, page);
            for (uint32_t t = 0; t < PAGE_TOK; t++)
                for (int is_v = 0; is_v < 2; is_v++)
                    if ((memcmp(now.tok[t][is_v], old.tok[t][is_v], sizeof old.tok[t][is_v]) !=
                         0) != (masks.word[layer][page] >> t & 1))
                        fail_msg("layer %u, page %u, token %u: %s", layer, page, t,
                                 is_v ? "value" : "key");
        }
    sac_engine_free(b.e);
}

/* The third case: a row that the lower layer's mask does not name reads itself and its neighbours
 * there as they were, so that its neighbours' being rows changes nothing. */
static void what_is_not_named_is_read_as_it_was(void **state)
{
    (void)state;
    const uint32_t last = 1u << (PAGE_TOK - 1);
    const struct bench b = open_bench(&(struct setting){.type = SAC_KV_F16}, false);
    const struct content alone = upper_after(&b, 0, last), all = upper_after(&b, 0, UINT32_MAX),
                         itself = upper_after(&b, last, last), before = upper_after(&b, 1, last),
                         behind = upper_after(&b, last, 1), first = upper_after(&b, 0, 1);
    const size_t n = sizeof alone.tok[0];
    assert_memory_equal(all.tok[PAGE_TOK - 1], alone.tok[PAGE_TOK - 1], n);
    assert_memory_not_equal(itself.tok[PAGE_TOK - 1], alone.tok[PAGE_TOK - 1], n);
    assert_memory_not_equal(before.tok[PAGE_TOK - 1], alone.tok[PAGE_TOK - 1], n);
    assert_memory_equal(behind.tok[0], first.tok[0], n);
    sac_engine_free(b.e);
}

static uint32_t next_random(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* Random tokens of documents in random layers, and all of the question. A page stays in all layers
 * up to its last, so that none is there for rows of deeper layers alone. */
static void draw(struct masks *masks, uint32_t *n_kept, uint32_t seed)
{
    *masks = (struct masks){0};
    for (uint32_t page = 0; page < N_PAGE; page++) {
        const bool is_doc = page >= parts[0].begin && page < parts[N_DOC].begin;
        n_kept[page] = is_doc ? 1 + next_random(&seed) % N_LAYER : N_LAYER;
        for (uint32_t layer = 0; layer < n_kept[page]; layer++)
            for (uint32_t t = 0; t < PAGE_TOK && page >= parts[0].begin; t++)
                masks->word[layer][page] |= (uint32_t)(!is_doc || next_random(&seed) % 2) << t;
    }
}

static void ask_pages(const struct bench *b, sac_seq seq)
{
    int32_t question[N_ASK];
    for (uint32_t i = 0; i < N_ASK; i++) question[i] = token_of(7, i);
    compute(b->e, seq, question, N_ASK, NULL, NULL);
}

/* Documents of which pages are given back. */
static sac_seq join_some(const struct bench *b, const uint32_t *n_kept)
{
    const sac_seq seq = compose(b, "reuse", N_DOC, NULL);
    for (uint32_t page = 0; page < parts[N_DOC].begin; page++)
        for (uint32_t layer = n_kept[page]; layer < N_LAYER; layer++)
            for (uint32_t h = 0; h < TINY_KV_HEADS; h++)
                pool_drop(&b->e->pool, seq, layer, h, page);
    b->e->seqs[seq].has_gaps = true;
    return seq;
}

/* How far the question's keys and values in two sequences are apart, relative to their size. */
static double question_distance(const struct bench *b, sac_seq one, sac_seq other)
{
    double off = 0, all = 0;
    for (uint32_t layer = 0; layer < N_LAYER; layer++)
        for (uint32_t page = parts[N_DOC].begin; page < N_PAGE; page++) {
            const struct content x = read_page(b, one, layer, page),
                                 y = read_page(b, other, layer, page);
            for (uint32_t t = 0; t < PAGE_TOK; t++)
                for (uint32_t i = 0; i < 2 * N_VALUE; i++) {
                    const double a = (double)x.tok[t][i / N_VALUE][i % N_VALUE],
                                 c = (double)y.tok[t][i / N_VALUE][i % N_VALUE];
                    off += (a - c) * (a - c);
                    all += c * c;
                }
        }
    return sqrt(off / all);
}

/* A question whose rows are computed in the pass in which documents are computed again is the one
 * that is computed behind them when they are done. */
static void one_pass_is_two(void **state)
{
    (void)state;
    const struct setting settings[] = {{.type = SAC_KV_F16},
                                       {.type = SAC_KV_F16, .n_threads = 2, .n_batch = 64},
                                       {.type = SAC_KV_Q8}};
    for (uint32_t seed = 0; seed < 6; seed++) {
        const struct bench b = open_bench(&settings[seed % 3], false);
        struct masks masks;
        uint32_t n_kept[N_PAGE];
        draw(&masks, n_kept, seed);
        const sac_seq two = join_some(&b, n_kept);
        refresh(&b, two, N_DOC, &masks);
        ask_pages(&b, two);
        const sac_seq one = join_some(&b, n_kept);
        ask_pages(&b, one);
        const double before = question_distance(&b, one, two);
        refresh(&b, one, N_DOC + 1, &masks);
        const double after = question_distance(&b, one, two);
        if (!(before > 0.1 && after <= 1e-6))
            fail_msg("seed %u: %g apart, %g before", seed, after, before);
        sac_engine_free(b.e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_named_changes_alone),
        cmocka_unit_test(what_is_not_named_is_read_as_it_was),
        cmocka_unit_test(one_pass_is_two),
    };
    return cmocka_run_group_tests(tests, bench_open_model, bench_free_model);
}
