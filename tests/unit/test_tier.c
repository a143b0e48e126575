/* test_tier.c: pages in two tiers. Where a page is has no part in any result: with memory for a
 * fraction of the pages, so that every layer takes the other's frames, every method gives the bits
 * that it gives with all of them in memory, alone and beside another sequence. */
#include "tier_bench.h"

#include <stdatomic.h>

/* A prompt, decode rows, a second turn, a fork that is cut, both in one batch, and a copy by way of
 * its bytes. */
static void live(sac_engine *e, float logits[6][TINY_VOCAB])
{
    sac_error err;
    sac_seq s, fork, copy;
    uint8_t *bytes;
    size_t n;
    must(sac_seq_create(e, &s, &err), &err);
    compute(e, s, N_PROMPT, SAC_ROW_PROMPT, logits[0]);
    compute(e, s, 3, SAC_ROW_DECODE, logits[0]);
    compute(e, s, N_MORE, SAC_ROW_PROMPT, logits[1]);
    must(sac_seq_fork(e, s, &fork, &err), &err);
    must(sac_seq_truncate(e, fork, N_PROMPT / PAGE_TOK * PAGE_TOK, &err), &err);
    for (sac_seq i = 0; i < 2; i++)
        must(sac_seq_append(e, i, text + i, 1, SAC_ROW_DECODE, SAC_WANT_LAST, &err), &err);
    must(sac_step(e, catch_rows, logits + 2, NULL, &err), &err);
    sac_seq_remove(e, fork);
    must(sac_seq_to_bytes(e, s, &bytes, &n, &err), &err);
    must(sac_seq_from_bytes(e, bytes, n, &copy, &err), &err);
    sac_free(bytes);
    compute(e, copy, 40, SAC_ROW_DECODE, logits[4]);
    compute(e, s, 1, SAC_ROW_DECODE, logits[5]);
    const uint32_t n_tok[2] = {e->seqs[0].n_done, e->seqs[1].n_done};
    assert_true(pool_check(&e->pool, n_tok));
    if (!e->pool.tier) return;
    tier_settle(&e->tier);
    assert_true(tier_check(&e->tier));
    assert_int_equal(e->tier.n_pinned, 0);
    assert_int_equal(sac_tier_get_stats(e).n_failed, 0);
}

static void no_result_depends_on_tiers(void **state)
{
    (void)state;
    static float resident[6][TINY_VOCAB], tiered[6][TINY_VOCAB];
    const struct method *m;
    for (size_t i = 0; (m = method_at(i)); i++)
        for (int q8 = i % 4 != 0; q8 < 2 && strcmp(m->kind, "context") != 0; q8++) {
            char spec[SPEC_MAKE_BYTES];
            struct way way = {.n_thread = 1, .type = q8 ? SAC_KV_Q8 : SAC_KV_BF16};
            spec_make_part(spec, m, 64);
            sac_engine *e = open_engine(m, spec, &way);
            live(e, resident);
            sac_engine_free(e);
            way.tiers = true;
            way.n_thread = 1 + (uint32_t)(i % 2);
            way.policy = i % 3 ? SAC_TIER_STALE : SAC_TIER_LRU;
            way.no_ahead = i % 5 == 0;
            e = open_engine(m, spec, &way);
            live(e, tiered);
            assert_true(sac_tier_get_stats(e).n_fetch > 0);
            sac_engine_free(e);
            if (memcmp(resident, tiered, sizeof resident) != 0)
                fail_msg("%s %s, type %d: another answer with tiers", m->kind, spec, way.type);
        }
}

/* A prompt, decode rows and a second turn. */
static void live_wide(sac_engine *e, float logits[3][TINY_VOCAB])
{
    static int32_t wide[N_WIDE];
    sac_error err;
    sac_seq s;
    uint32_t n_row = 1;
    for (int i = 0; i < N_WIDE; i++) wide[i] = (i * 37 + i / 9 * 5) % TINY_VOCAB;
    must(sac_seq_create(e, &s, &err), &err);
    must(sac_seq_append(e, s, wide, N_WIDE, SAC_ROW_PROMPT, SAC_WANT_LAST, &err), &err);
    while (n_row) must(sac_step(e, catch_row, logits[0], &n_row, &err), &err);
    compute(e, s, 3, SAC_ROW_DECODE, logits[1]);
    compute(e, s, N_MORE, SAC_ROW_PROMPT, logits[2]);
    if (!e->pool.tier) return;
    tier_settle(&e->tier);
    assert_true(tier_check(&e->tier));
    assert_int_equal(e->tier.n_pinned, 0);
    assert_int_equal(sac_tier_get_stats(e).n_failed, 0);
}

/* Memory for fewer pages than a row reads of one layer: they come and go while attention computes,
 * of whole pages and of single tokens, with windows, and for rows that share what they read. */
static void rows_wider_than_memory_keep_their_bits(void **state)
{
    (void)state;
    static const struct {
        const char *kind, *name, *spec;
        uint32_t window, n_frame;
    } of[] = {{NULL, NULL, NULL, 0, 0},
              {NULL, NULL, NULL, 1100, 0},
              {"decode", "quest", "quest:budget=1280,dense=0", 0, 0},
              {"decode", "auto", "auto:mass=0.999,recent=0,most=1", 0, 44},
              {"prefill", "a-shape", "a-shape:sink=640,window=512", 0, 0},
              {NULL, NULL, NULL, 0, 0},
              {"prefill", "auto", "auto:mass=0.9,spread=0", 0, 44},
              {"decode", "auto", "auto:mass=0.98,recent=0,most=1,draw=steady", 0, 44}};
    static float resident[3][TINY_VOCAB], tiered[3][TINY_VOCAB];
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        const struct method *m = of[i].kind ? method_find(of[i].kind, of[i].name) : NULL;
        sac_model *windowed =
            of[i].window ? tiny_open(&(struct tiny){.seed = 8, .window = of[i].window}) : NULL;
        struct way way = {.model = windowed,
                          .n_ctx = 1408,
                          .n_thread = 1,
                          .type = i % 2 ? SAC_KV_Q8 : SAC_KV_BF16};
        sac_engine *e = open_engine(m, of[i].spec, &way);
        live_wide(e, resident);
        sac_engine_free(e);
        way.tiers = true;
        way.n_thread = 1 + i / 2 % 2;
        way.n_frame = of[i].n_frame;
        way.no_ahead = i % 3 == 0;
        way.policy = i % 4 ? SAC_TIER_STALE : SAC_TIER_LRU;
        e = open_engine(m, of[i].spec, &way);
        live_wide(e, tiered);
        sac_engine_free(e);
        sac_model_free(windowed);
        if (memcmp(resident, tiered, sizeof resident) != 0)
            fail_msg("%s, type %d: another answer with tiers", of[i].spec, way.type);
    }
}

/* q8: what chooses by a page's first plane or its box fetches no page that it does not read. */
static void cards_choose_without_a_fetch(void **state)
{
    (void)state;
    static const char *const specs[] = {"quest:budget=64,dense=0", "auto:mass=0.3,recent=0,most=1"};
    float logits[TINY_VOCAB];
    for (int i = 0; i < 2; i++) {
        sac_error err;
        sac_seq s;
        const struct method *m = method_find("decode", i ? "auto" : "quest");
        sac_engine *e = open_engine(
            m, specs[i],
            &(struct way){.tiers = true, .no_ahead = true, .n_thread = 1, .type = SAC_KV_Q8});
        must(sac_seq_create(e, &s, &err), &err);
        compute(e, s, N_PROMPT, SAC_ROW_PROMPT, logits);
        const sac_tier_stats before = sac_tier_get_stats(e);
        compute(e, s, 1, SAC_ROW_DECODE, logits);
        const sac_tier_stats after = sac_tier_get_stats(e);
        const uint64_t n_asked = after.n_hit + after.n_fetch - before.n_hit - before.n_fetch;
        const uint64_t n_all = (uint64_t)N_PROMPT / PAGE_TOK * TINY_LAYERS * TINY_KV_HEADS;
        if (n_asked == 0 || n_asked >= n_all)
            fail_msg("%s asks for %u of %u pages", specs[i], (unsigned)n_asked, (unsigned)n_all);
        sac_engine_free(e);
    }
}

/* What was chosen is read while attention has not asked yet, and is no page that was found. */
static void chosen_pages_are_on_their_way(void **state)
{
    (void)state;
    float logits[TINY_VOCAB];
    for (int no_ahead = 0; no_ahead < 2; no_ahead++) {
        sac_error err;
        sac_seq s;
        sac_engine *e = open_engine(
            method_find("decode", "quest"), "quest:budget=64,dense=0",
            &(struct way){.tiers = true, .no_ahead = no_ahead, .n_thread = 2, .type = SAC_KV_Q8});
        must(sac_seq_create(e, &s, &err), &err);
        compute(e, s, N_PROMPT, SAC_ROW_PROMPT, logits);
        tier_settle(&e->tier);
        tier_evict_frames(&e->tier, e->tier.n_ready);
        const sac_tier_stats before = sac_tier_get_stats(e);
        compute(e, s, 1, SAC_ROW_DECODE, logits);
        const sac_tier_stats after = sac_tier_get_stats(e);
        const uint64_t n_early = after.n_fetch_early - before.n_fetch_early;
        assert_true(no_ahead ? n_early == 0 : n_early > 0);
        assert_true(n_early <= after.n_fetch - before.n_fetch);
        sac_engine_free(e);
    }
}

static void (*real_boxes)(struct workers *pool, const struct ops *ops,
                          const struct op_lane_boxes *op, uint32_t n);
static struct tier *asked_tier;
static _Atomic uint32_t n_alone, n_in_turn, n_behind_reads;

/* Scores of a lane, by one worker or by all, and whether something that others have chosen is on
 * its way or there. */
static void count_boxes(struct workers *pool, const struct ops *ops, const struct op_lane_boxes *op,
                        uint32_t n)
{
    bool any = false;
    assert_int_equal(n, 1);
    pthread_mutex_lock(&asked_tier->lock);
    for (uint32_t f = 0; f < asked_tier->n_frame; f++)
        any = any || asked_tier->frame[f].why == TIER_CHOSEN;
    pthread_mutex_unlock(&asked_tier->lock);
    n_alone += !pool;
    n_in_turn += pool != NULL;
    n_behind_reads += any;
    real_boxes(pool, ops, op, n);
}

/* Where each worker would have one lane, a disk reads what the first of them has chosen while the
 * next is chosen for; short ones are one worker's each, as ever. With the same bits. */
static void long_lanes_take_turns(void **state)
{
    (void)state;
    static const char spec[] = "arkvale:budget=64,dense=0";
    float want[TINY_VOCAB], got[TINY_VOCAB];
    for (int is_long = 0; is_long < 2; is_long++) {
        sac_error err;
        sac_seq s;
        sac_engine *e = open_engine(method_find("decode", "arkvale"), spec,
                                    &(struct way){.tiers = true, .n_thread = TINY_KV_HEADS});
        must(sac_seq_create(e, &s, &err), &err);
        compute(e, s, N_PROMPT, SAC_ROW_PROMPT, got);
        tier_settle(&e->tier);
        tier_evict_frames(&e->tier, e->tier.n_ready);
        real_boxes = e->ops.lanes.boxes;
        e->ops.lanes.boxes = count_boxes;
        asked_tier = &e->tier;
        n_alone = n_in_turn = n_behind_reads = 0;
        if (is_long) e->decode.group_pages = N_PROMPT / PAGE_TOK;
        compute(e, s, 1, SAC_ROW_DECODE, is_long ? got : want);
        assert_int_equal(is_long ? n_in_turn : n_alone, TINY_LAYERS * TINY_KV_HEADS);
        if (is_long) assert_true(n_behind_reads > 0);
        sac_engine_free(e);
    }
    assert_memory_equal(got, want, sizeof want);
}

/* What is visited page after page does not depend on how much is fetched beforehand. */
static void looking_ahead_changes_nothing(void **state)
{
    (void)state;
    static float resident[6][TINY_VOCAB], tiered[6][TINY_VOCAB];
    static const char *const specs[] = {"psa:mass=0.6", "psa:mass=0.6,step=3,scope=layer",
                                        "psa:mass=0.6,order=box,stop=min", "psa_cert:mass=0.6"};
    const struct method *m = method_find("decode", "psa");
    for (uint32_t i = 0; i < 4; i++) {
        uint64_t n_ahead[2];
        struct way way = {.n_thread = 1, .type = i ? SAC_KV_Q8 : SAC_KV_F16};
        sac_engine *e = open_engine(m, specs[i], &way);
        live(e, resident);
        sac_engine_free(e);
        for (uint32_t k = 0; k < 4; k++) {
            char spec[SPEC_MAKE_BYTES];
            snprintf(spec, sizeof spec, "%s,ahead=%u", specs[i], k % 2 ? 4 : 0);
            way = (struct way){.tiers = true, .n_thread = 1 + k / 2, .type = way.type};
            e = open_engine(m, spec, &way);
            live(e, tiered);
            const sac_tier_stats stats = sac_tier_get_stats(e);
            assert_true(stats.n_fetch + stats.n_ahead_used > 0);
            n_ahead[k % 2] = stats.n_ahead;
            sac_engine_free(e);
            if (memcmp(resident, tiered, sizeof resident) != 0)
                fail_msg("%s: another answer with tiers", spec);
            if (k == 1) assert_true(n_ahead[1] > n_ahead[0]);
        }
    }
}

static void (*real_visit)(struct workers *pool, const struct ops *ops,
                          const struct op_lane_visit *op, uint32_t n);
static _Atomic bool was_held, has_waited;

/* A thread waits for room, and nothing is under way that could give it some. */
static bool somebody_waits(void)
{
    pthread_mutex_lock(&asked_tier->lock);
    const bool waits = asked_tier->n_waiting_else > 0 && asked_tier->n_busy == 0;
    pthread_mutex_unlock(&asked_tier->lock);
    return waits;
}

/* The first thread that holds most frames keeps them until another one has waited for some of them
 * for so long that it will go on waiting. */
static void visit_while_another_waits(struct workers *pool, const struct ops *ops,
                                      const struct op_lane_visit *op, uint32_t n)
{
    const uint32_t n_held = op->until > op->state->at ? op->until - op->state->at : 0;
    if (2 * n_held > asked_tier->n_frame && !atomic_exchange(&was_held, true))
        for (uint32_t i = 0, n_look = 0; i < 2000 && !has_waited; i++) {
            usleep(1000);
            n_look = somebody_waits() ? n_look + 1 : 0;
            has_waited = n_look == 50;
        }
    real_visit(pool, ops, op, n);
}

/* With a lane for each worker, and memory for a part of what one of them visits, they wait for each
 * other, and no row fails. */
static void workers_visit_beside_each_other(void **state)
{
    (void)state;
    static float resident[TINY_VOCAB], tiered[TINY_VOCAB];
    const struct method *m = method_find("decode", "psa");
    struct way way = {.n_ctx = 4 * N_WIDE, .n_thread = 2, .type = SAC_KV_Q8};
    for (uint32_t k = 0; k < 2; k++) {
        sac_error err;
        sac_seq s;
        way.tiers = k > 0;
        sac_engine *e = open_engine(m, "psa:mass=0.99", &way);
        must(sac_seq_create(e, &s, &err), &err);
        for (uint32_t i = 0; i < 8; i++)
            compute(e, s, N_PROMPT, SAC_ROW_PROMPT, k ? tiered : resident);
        real_visit = e->ops.lanes.visit;
        asked_tier = &e->tier;
        if (way.tiers) e->ops.lanes.visit = visit_while_another_waits;
        for (uint32_t i = 0; i < 60; i++) compute(e, s, 1, SAC_ROW_DECODE, k ? tiered : resident);
        sac_engine_free(e);
    }
    assert_true(has_waited);
    assert_memory_equal(resident, tiered, sizeof resident);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_result_depends_on_tiers),
        cmocka_unit_test(rows_wider_than_memory_keep_their_bits),
        cmocka_unit_test(cards_choose_without_a_fetch),
        cmocka_unit_test(chosen_pages_are_on_their_way),
        cmocka_unit_test(long_lanes_take_turns),
        cmocka_unit_test(looking_ahead_changes_nothing),
        cmocka_unit_test(workers_visit_beside_each_other),
    };
    return cmocka_run_group_tests(tests, open_model, free_model);
}
