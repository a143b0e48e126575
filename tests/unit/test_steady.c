/* test_steady.c: steady draws (ops/steady.h) in an engine. What a row reads follows from its lane,
 * its position and its keys: it has the same bits alone, beside others, however the rows before it
 * have come, and wherever pages lie. And rows behind each other ask for few pages that the one
 * before has not asked for. check_draw.c has the draws themselves. */
#include "tier_bench.h"

enum { N_ROW = 40, N_BEFORE = 700, N_LONG = 1300 };

static const char steady[] = "auto:mass=0.5,most=1,recent=0,draw=steady";
static const char fresh[] = "auto:mass=0.5,most=1,recent=0";

static int32_t words[N_LONG];
static float want[N_ROW][TINY_VOCAB], got[N_ROW][TINY_VOCAB];

static sac_engine *open_wide(const char *spec, const struct way *how)
{
    struct way way = *how;
    for (int i = 0; i < N_LONG; i++) words[i] = (i * 37 + i / 9 * 5) % TINY_VOCAB;
    way.n_ctx = 1408;
    way.type = SAC_KV_Q8;
    return open_engine(method_find("decode", "auto"), spec, &way);
}

/* The logits of N_ROW decode rows behind a prompt that comes in pieces of n_piece tokens; `beside`:
 * another sequence has a row in each of their steps. */
static void live(sac_engine *e, uint32_t n_piece, bool beside, float logits[N_ROW][TINY_VOCAB])
{
    sac_error err;
    sac_seq s, other = 1;
    float rows[2][TINY_VOCAB];
    must(sac_seq_create(e, &s, &err), &err);
    for (uint32_t i = 0, n; i < N_BEFORE; i += n) {
        n = N_BEFORE - i < n_piece ? N_BEFORE - i : n_piece;
        compute_rows(e, s, words + i, n, SAC_ROW_PROMPT, rows[0]);
    }
    if (beside) {
        must(sac_seq_create(e, &other, &err), &err);
        compute_rows(e, other, words + 5, 333, SAC_ROW_PROMPT, rows[1]);
    }
    for (uint32_t i = 0; i < N_ROW; i++) {
        const int32_t *tok = words + N_BEFORE + i;
        for (sac_seq k = 0; k < 1 + (sac_seq)beside; k++)
            must(sac_seq_append(e, k ? other : s, tok, 1, SAC_ROW_DECODE, SAC_WANT_LAST, &err),
                 &err);
        must(sac_step(e, catch_rows, rows, NULL, &err), &err);
        memcpy(logits[i], rows[s], sizeof rows[s]);
    }
}

static void rows_keep_their_bits(void **state)
{
    (void)state;
    static const struct {
        uint32_t n_piece;
        bool beside;
        struct way way;
    } of[] = {{97, false, {.n_thread = 3}},
              {N_BEFORE, true, {.n_thread = 2}},
              {33, true, {.n_thread = 1, .tiers = true, .n_frame = 48}},
              {N_BEFORE, false, {.n_thread = 3, .tiers = true, .n_frame = 64, .no_ahead = true}}};
    sac_engine *e = open_wide(steady, &(struct way){.n_thread = 1});
    live(e, N_BEFORE, false, want);
    sac_engine_free(e);
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        e = open_wide(steady, &of[i].way);
        live(e, of[i].n_piece, of[i].beside, got);
        sac_engine_free(e);
        if (memcmp(want, got, sizeof want) != 0) fail_msg("way %zu has other answers", i);
    }
    e = open_wide(fresh, &(struct way){.n_thread = 1});
    live(e, N_BEFORE, false, got);
    sac_engine_free(e);
    assert_true(memcmp(want, got, sizeof want) != 0);
}

/* Pages that were not in memory when rows asked for them, in memory for a quarter of all. */
static void count_fetches(const char *spec, uint64_t *n_asked, uint64_t *n_fetched)
{
    sac_error err;
    sac_seq s;
    const uint32_t n_page = N_LONG / PAGE_TOK * TINY_LAYERS * TINY_KV_HEADS;
    sac_engine *e = open_wide(
        spec, &(struct way){.n_thread = 1, .tiers = true, .no_ahead = true, .n_frame = n_page / 4});
    must(sac_seq_create(e, &s, &err), &err);
    compute_rows(e, s, words, N_LONG, SAC_ROW_PROMPT, got[0]);
    for (uint32_t i = 0; i < N_ROW; i++) words[i] = 5; /* so that rows look for the same */
    compute_rows(e, s, words, 8, SAC_ROW_DECODE, got[0]);
    const sac_tier_stats before = sac_tier_get_stats(e);
    compute_rows(e, s, words, N_ROW, SAC_ROW_DECODE, got[0]);
    const sac_tier_stats after = sac_tier_get_stats(e);
    *n_fetched = after.n_fetch - before.n_fetch;
    *n_asked = *n_fetched + after.n_hit - before.n_hit;
    sac_engine_free(e);
}

static void rows_ask_for_what_is_there(void **state)
{
    (void)state;
    uint64_t n_asked[2], n_fetched[2];
    count_fetches("auto:mass=0.1,most=1,recent=0", &n_asked[0], &n_fetched[0]);
    count_fetches("auto:mass=0.1,most=1,recent=0,draw=steady", &n_asked[1], &n_fetched[1]);
    assert_true(n_asked[1] < n_asked[0]);
    assert_true(n_fetched[1] > 0 && 3 * n_fetched[1] < 2 * n_fetched[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_keep_their_bits),
                                       cmocka_unit_test(rows_ask_for_what_is_there)};
    return cmocka_run_group_tests(tests, open_model, free_model);
}
