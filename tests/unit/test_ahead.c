/* test_ahead.c: steps that are described while the kernels of the one before run (here on a CPU):
 * such a step begins as soon as its tokens are known, and whatever is asked for in its place,
 * nobody can tell that it was ever described: bits, counters and failures are those of engines that
 * describe none. */
#include "device_bench.h"

#include "engine/ahead.h"

enum { DIM = 64, N_SEQ = 4, N_STEP = 36, N_LIVE = 14, N_CHOOSE = 10 };

static sac_model *shallow, *local; /* a layer; two of them, with windows */

static int open_models(void **state)
{
    (void)state;
    setenv("SAC_CPU", "ref", 1);
    shallow = tiny_open(&(struct tiny){.seed = 3, .n_layer = 1, .dim = DIM});
    local = tiny_open(&(struct tiny){.seed = 5, .n_layer = 2, .dim = DIM, .window = 48});
    return open_pair(CUDA_HOST, DIM) == 0 && shallow && local ? 0 : -1;
}

static int free_models(void **state)
{
    sac_model_free(shallow);
    sac_model_free(local);
    return free_pair(state);
}

/* `decode`: NULL is dense. */
static sac_engine *method_engine(const sac_model *of, const char *decode, bool ahead)
{
    sac_engine *e = NULL;
    sac_error err;
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = 256;
    p.n_seq_max = N_SEQ;
    p.n_batch = 64;
    p.n_threads = 1;
    p.device = "cuda";
    p.decode = &decode;
    p.n_decode = decode ? 1 : 0;
    p.sparse_min_ctx = 1;
    must(sac_engine_create(&e, of, &p, &err), &err);
    /* Who keeps a target looks at how long steps take. */
    if (!ahead) must(sac_engine_set_tbt_target(e, 1e6f, &err), &err);
    return e;
}

static sac_engine *new_engine(const sac_model *of, bool ahead)
{
    return method_engine(of, NULL, ahead);
}

/* What came out of an engine, and what it did meanwhile. */
struct heard {
    sac_engine *e;
    uint32_t n_row, n_ahead, n_taken; /* rows heard; steps described when one was heard; begun so */
    uint64_t bits;                    /* of all rows' logits, in order */
    int32_t next[N_SEQ];
    sac_engine_stats stats;
    sac_reads reads[N_SEQ];
};

static void add_bits(uint64_t *to, const void *p, size_t n)
{
    for (size_t i = 0; i < n; i++) *to = (*to ^ ((const uint8_t *)p)[i]) * 1099511628211u;
}

static void hear(void *user, const sac_row *row)
{
    struct heard *h = user;
    int32_t best = 0;
    h->n_row++;
    h->n_ahead += h->e->ahead.batch->n_row > 0;
    add_bits(&h->bits, &row->seq, sizeof row->seq);
    add_bits(&h->bits, &row->pos, sizeof row->pos);
    add_bits(&h->bits, row->logits, TINY_VOCAB * sizeof *row->logits);
    for (int32_t i = 1; i < TINY_VOCAB; i++) best = row->logits[i] > row->logits[best] ? i : best;
    h->next[row->seq] = best;
}

static void step(struct heard *h)
{
    uint32_t n = 1;
    sac_error err;
    while (n) {
        must(sac_step(h->e, hear, h, &n, &err), &err);
        h->n_taken += n && h->e->ahead.is_taken;
    }
}

static void go_on(struct heard *h, sac_seq seq)
{
    append(h->e, seq, &h->next[seq], 1, SAC_ROW_DECODE);
}

static void finish(struct heard *h)
{
    for (uint32_t i = 0; i < N_SEQ; i++) h->reads[i] = sac_seq_take_reads(h->e, i);
    h->stats = sac_engine_get_stats(h->e);
    sac_engine_free(h->e);
}

static void assert_same(const struct heard *a, const struct heard *b)
{
    assert_int_equal(a->n_row, b->n_row);
    assert_true(a->bits == b->bits);
    assert_memory_equal(a->reads, b->reads, sizeof a->reads);
    assert_memory_equal(&a->stats.reads, &b->stats.reads, sizeof a->stats.reads);
    assert_true(a->stats.weight_bytes_read == b->stats.weight_bytes_read);
    assert_true(a->stats.n_logit == b->stats.n_logit);
    assert_true(a->stats.n_logit_computed == b->stats.n_logit_computed);
    assert_true(a->stats.n_step == b->stats.n_step);
    assert_int_equal(a->stats.n_page_free, b->stats.n_page_free);
}

/* A sequence that has read its prompt. */
static sac_seq begin(struct heard *h, uint32_t n_prompt, uint32_t n_top)
{
    sac_error err;
    sac_seq seq;
    must(sac_seq_create(h->e, &seq, &err), &err);
    must(sac_seq_use_top(h->e, seq, n_top, &err), &err);
    append(h->e, seq, prompt, n_prompt, SAC_ROW_PROMPT);
    step(h);
    return seq;
}

static void go_on_for(struct heard *h, sac_seq seq, int n_step)
{
    for (int i = 0; i < n_step; i++) {
        go_on(h, seq);
        step(h);
    }
}

/* ---- One after the other ---- */

static struct heard answer(const sac_model *of, bool ahead, uint32_t n_top)
{
    struct heard h = {.e = new_engine(of, ahead)};
    const sac_seq seq = begin(&h, 2 * PAGE_TOK + 3, n_top);
    go_on_for(&h, seq, N_STEP);
    finish(&h);
    return h;
}

/* All but the first one behind a prompt, those that complete a page, too. */
static void an_answers_steps_begin_at_once(void **state)
{
    (void)state;
    const uint32_t n_top[] = {1, 5, 0};
    for (int i = 0; i < 3; i++) {
        const sac_model *of = i == 1 ? local : shallow;
        const struct heard want = answer(of, false, n_top[i]), got = answer(of, true, n_top[i]);
        assert_same(&want, &got);
        assert_int_equal(want.n_ahead, 0);
        assert_int_equal(want.n_taken, 0);
        assert_int_equal(got.n_taken, N_STEP - 1);
        assert_int_equal(got.n_ahead, N_STEP);
    }
}

/* Behind two steps of either half of the ring all of them are graphs. */
static void steps_ahead_are_graphs(void **state)
{
    (void)state;
    struct heard h = {.e = new_engine(shallow, true)};
    const sac_seq seq = begin(&h, PAGE_TOK + 1, 1);
    go_on_for(&h, seq, 6);
    const uint32_t before = graphs_started(CUDA_HOST);
    go_on_for(&h, seq, 10);
    assert_int_equal(graphs_started(CUDA_HOST) - before, 10);
    finish(&h);
}

/* ---- Methods ---- */

/* Half of the way the sequence is set otherwise. */
static struct heard choose(const char *decode, uint32_t n_prompt, bool ahead)
{
    struct heard h = {.e = method_engine(model, decode, ahead)};
    const sac_sparse sparse = {.dense = true};
    sac_error err;
    const sac_seq seq = begin(&h, n_prompt, 1);
    go_on_for(&h, seq, N_CHOOSE / 2);
    must(sac_seq_use_sparse(h.e, seq, &sparse, &err), &err);
    go_on_for(&h, seq, N_CHOOSE / 2);
    finish(&h);
    return h;
}

/* What is chosen in a step that is over is counted, though the next one has been described. */
static void methods_choose_ahead(void **state)
{
    (void)state;
    static const char *const decode[] = {"auto:mass=0.5,most=1,recent=0",
                                         "quest:budget=32,dense=0,sink=0,recent=0",
                                         "streaming:budget=40", "psa:mass=0.5,recent=0"};
    for (int i = 0; i < 4; i++) {
        const uint32_t n = (i % 2 ? 3 : 1) * PAGE_TOK - 4; /* or the first page to choose from */
        const struct heard want = choose(decode[i], n, false), got = choose(decode[i], n, true);
        assert_same(&want, &got);
        assert_true(want.reads[0].n_select > 0);
        assert_int_equal(got.n_taken, N_CHOOSE - 2);
    }
}

/* What it keeps from step to step would be that of a step that is not taken. */
static void a_method_that_remembers_does_not(void **state)
{
    (void)state;
    const struct heard got = choose("loopserve:budget=20,every=4,first=1", PAGE_TOK, true);
    assert_int_equal(got.n_ahead, 0);
}

/* ---- In the place of the step ---- */

/* Sequences stop, rest, fork, are cut and removed, ask for other logits, and get prompts, at step
 * `at` and behind it. */
static void disturb(struct heard *h, int i, int at, bool *runs)
{
    sac_error err;
    sac_seq fork;
    if (i == at) runs[1] = false;
    if (i == at + 1) {
        must(sac_seq_fork(h->e, 0, &fork, &err), &err);
        assert_int_equal(fork, 3);
        h->next[3] = (h->next[0] + 1) % TINY_VOCAB;
        runs[3] = true;
    }
    if (i == at + 3) runs[1] = true;
    if (i == at + 4) {
        const uint32_t n = sac_seq_length(h->e, 2, NULL);
        must(sac_seq_truncate(h->e, 2, n - 1, &err), &err);
    }
    if (i == at + 5) must(sac_seq_use_top(h->e, 0, 2, &err), &err);
    if (i == at + 6) {
        sac_seq_remove(h->e, 3);
        runs[3] = false;
    }
    if (i == at + 7) append(h->e, 1, prompt, 5, SAC_ROW_PROMPT);
    if (i == at + 9) { /* another one in its place, of the same length */
        must(sac_seq_fork(h->e, 0, &fork, &err), &err);
        sac_seq_remove(h->e, 0);
        must(sac_seq_fork(h->e, fork, &fork, &err), &err);
        assert_int_equal(fork, 0);
        must(sac_seq_use_top(h->e, 0, 2, &err), &err);
        sac_seq_remove(h->e, 3);
    }
}

static struct heard live(const sac_model *of, bool ahead, int at)
{
    struct heard h = {.e = new_engine(of, ahead)};
    sac_error err;
    bool runs[N_SEQ] = {true, true, true};
    for (uint32_t i = 0; i < 3; i++) {
        sac_seq seq;
        must(sac_seq_create(h.e, &seq, &err), &err);
        must(sac_seq_use_top(h.e, seq, i, &err), &err);
        append(h.e, seq, prompt + i, 30 - 3 * i, SAC_ROW_PROMPT); /* pages end at steps apart */
    }
    step(&h);
    for (int i = 0; i < N_LIVE; i++) {
        disturb(&h, i, at, runs);
        for (uint32_t s = 0; s < N_SEQ; s++)
            if (runs[s]) go_on(&h, s);
        step(&h);
    }
    finish(&h);
    return h;
}

static void nobody_can_tell_a_step_that_was_not_taken(void **state)
{
    (void)state;
    for (int at = 0; at < 4; at++) {
        const sac_model *of = at == 2 ? local : shallow;
        const struct heard want = live(of, false, at), got = live(of, true, at);
        assert_same(&want, &got);
        assert_true(got.n_taken > 0 && got.n_taken < got.n_ahead);
    }
}

/* A sequence that rests is removed when a step that completes a page has been described: its pages
 * are the next ones to be taken. */
static struct heard outlive(bool ahead)
{
    struct heard h = {.e = new_engine(shallow, ahead)};
    const sac_seq rests = begin(&h, 2 * PAGE_TOK + 1, 1), seq = begin(&h, PAGE_TOK - 4, 1);
    go_on_for(&h, seq, 3);
    sac_seq_remove(h.e, rests);
    go_on_for(&h, seq, 3);
    finish(&h);
    return h;
}

static void a_page_may_be_another_meanwhile(void **state)
{
    (void)state;
    const struct heard want = outlive(false), got = outlive(true);
    assert_same(&want, &got);
    assert_int_equal(got.n_taken, 4); /* not the first one, and not that one */
}

/* A mask that lets more of the largest logits come down than were asked for. */
static void a_mask_asks_for_others(void **state)
{
    (void)state;
    uint64_t mask[TINY_VOCAB / 64];
    memset(mask, 0xff, sizeof mask);
    struct heard h[2];
    for (int k = 0; k < 2; k++) {
        h[k] = (struct heard){.e = new_engine(shallow, k)};
        const sac_seq seq = begin(&h[k], 40, 1);
        for (int i = 0; i < 12; i++) {
            mask[1] = i % 3 == 2 ? ~7ull : ~0ull;
            engine_use_mask(h[k].e, seq, i == 5 ? NULL : mask);
            go_on(&h[k], seq);
            step(&h[k]);
        }
        finish(&h[k]);
    }
    assert_same(&h[0], &h[1]);
    assert_true(h[1].n_taken > 0);
}

/* What is read or saved between steps is there, though a step is kept back. */
static void what_lies_on_the_gpu_can_be_saved(void **state)
{
    (void)state;
    uint8_t *bytes[2];
    size_t n[2];
    for (int k = 0; k < 2; k++) {
        struct heard h = {.e = new_engine(shallow, k)};
        sac_error err;
        const sac_seq seq = begin(&h, 40, 0);
        go_on_for(&h, seq, 6);
        assert_int_equal(h.e->ahead.batch->n_row, k);
        must(sac_seq_to_bytes(h.e, seq, &bytes[k], &n[k], &err), &err);
        go_on_for(&h, seq, 1);
        assert_false(h.e->ahead.is_taken);
        finish(&h);
    }
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(bytes[0], bytes[1], n[0]);
    sac_free(bytes[0]);
    sac_free(bytes[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answers_steps_begin_at_once),
        cmocka_unit_test(steps_ahead_are_graphs),
        cmocka_unit_test(methods_choose_ahead),
        cmocka_unit_test(a_method_that_remembers_does_not),
        cmocka_unit_test(nobody_can_tell_a_step_that_was_not_taken),
        cmocka_unit_test(a_page_may_be_another_meanwhile),
        cmocka_unit_test(a_mask_asks_for_others),
        cmocka_unit_test(what_lies_on_the_gpu_can_be_saved),
    };
    return cmocka_run_group_tests(tests, open_models, free_models);
}
