/* prop_prefill.c: what every prefill method promises, checked on models of several shapes for each
 * method in the list: the dense bits below sparse_min_ctx, with a budget for everything
 * (in one turn or on top of past ones) and in a prompt of one tile; the same answer alone, in a
 * crowd, with two threads and, where it says so, in chunks of another size; what it left out and
 * why it gave up is counted; nothing is allocated in a step. Plans alone are in
 * tests/unit/test_plan.c, the diagonal and no cell twice with them. */
#include "../unit/must.h"
#include "../unit/spec_make.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "methods/method.h"
#include "saccade.h"
#include "shapes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_PROMPT = 600, N_LONG = 2304, N_VOCAB_MAX = 65536 };

static uint32_t n_vocab;
static int32_t prompt[N_LONG];

static int load_model(void **state)
{
    (void)state;
    if (open_shape() != 0) return -1;
    n_vocab = sac_model_get_info(model).n_vocab;
    for (uint32_t i = 0; i < N_LONG; i++)
        prompt[i] = (int32_t)((i % 41 == 7 ? 300 + i : 500 + 37 * (i % 29)) % n_vocab);
    return n_vocab > N_VOCAB_MAX ? -1 : 0;
}

struct setting {
    const char *spec;
    uint32_t n_seq, n_batch, n_threads, min_ctx, n_ctx;
    sac_kv_type type;
};

static sac_engine *new_engine(const struct setting *s)
{
    sac_engine *e;
    sac_error err;
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = s->n_ctx ? s->n_ctx : N_PROMPT + 40;
    p.n_seq_max = s->n_seq ? s->n_seq : 1;
    p.n_batch = s->n_batch ? s->n_batch : 256;
    p.n_threads = s->n_threads ? s->n_threads : 1;
    p.type_k = p.type_v = s->type;
    p.prefill = &s->spec;
    p.n_prefill = 1;
    p.sparse_min_ctx = s->min_ctx;
    must(sac_engine_create(&e, model, &p, &err), &err);
    return e;
}

struct answer {
    sac_seq seq;
    float logits[N_VOCAB_MAX]; /* of the prompt's last token */
};

static void catch_row(void *user, const sac_row *row)
{
    struct answer *a = user;
    if (row->seq == a->seq) memcpy(a->logits, row->logits, n_vocab * sizeof *a->logits);
}

static void append(sac_engine *e, sac_seq s, size_t n, sac_row_kind kind)
{
    sac_error err;
    must(sac_seq_append(e, s, prompt, n, kind, SAC_WANT_LAST, &err), &err);
}

static void run_all(sac_engine *e, struct answer *a)
{
    uint32_t n = 1;
    sac_error err;
    while (n) must(sac_step(e, catch_row, a, &n, &err), &err);
}

static sac_engine_stats answer_alone(struct answer *out, const struct setting *s, size_t n)
{
    sac_error err;
    sac_engine *e = new_engine(s);
    must(sac_seq_create(e, &out->seq, &err), &err);
    append(e, out->seq, n, SAC_ROW_PROMPT);
    const uint64_t n_alloc = mem_count();
    run_all(e, out);
    assert_int_equal(mem_count(), n_alloc);
    const sac_engine_stats stats = sac_engine_get_stats(e);
    sac_engine_free(e);
    return stats;
}

static void same(const char *what, const char *spec, const struct answer *a, const struct answer *b)
{
    if (memcmp(a->logits, b->logits, n_vocab * sizeof *a->logits) != 0)
        fail_msg("%s: other logits %s", spec, what);
}

#define EACH_METHOD(m)                                                                             \
    const struct method *m;                                                                        \
    for (size_t i_ = 0; (m = method_at(i_)); i_++)                                                 \
        if (m->prefill && method_tested(m))

static void short_prompts_give_the_dense_bits(void **state)
{
    (void)state;
    static struct answer dense, sparse;
    static const size_t lengths[] = {1, 63, 64, 65, 300};
    for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
        answer_alone(&dense, &(struct setting){.spec = "dense"}, lengths[l]);
        EACH_METHOD(m)
        {
            const struct setting s = {.spec = m->name, .min_ctx = 300};
            const sac_engine_stats stats = answer_alone(&sparse, &s, lengths[l]);
            assert_int_equal(stats.reads.n_plan, 0);
            assert_int_equal(stats.reads.n_cell_read, stats.reads.n_cell);
            same("though the prompt is short", m->name, &sparse, &dense);
        }
    }
}

/* So little that something is left out of 600 tokens. */
enum { BUDGET = 64 };

static void full_plans_give_the_dense_bits(void **state)
{
    (void)state;
    static struct answer dense, sparse;
    answer_alone(&dense, &(struct setting){.spec = "dense"}, N_PROMPT);
    EACH_METHOD(m)
    {
        char spec[SPEC_MAKE_BYTES];
        spec_make_whole(spec, m);
        const sac_engine_stats stats =
            answer_alone(&sparse, &(struct setting){.spec = spec}, N_PROMPT);
        assert_true(stats.reads.n_plan > 0);
        assert_int_equal(stats.reads.n_cell_read, stats.reads.n_cell);
        same("though everything is read", spec, &sparse, &dense);
    }
}

/* ---- Counts by hand ---- */

/* Cells of a query head that reads, beside its tile of 64 rows, the first page and the two pages
 * before the tile; all of them in tiles with one of the last n_last rows. */
static uint64_t cells_of_ends(uint32_t n, uint32_t n_last)
{
    uint64_t sum = 0;
    for (uint32_t row = 0; row < n; row++) {
        const uint32_t tile = row / 64 * 64, end = tile + 64 < n ? tile + 64 : n;
        const bool whole = end + n_last > n || tile <= 96;
        sum += row - tile + 1 + (whole ? tile : 96);
    }
    return sum;
}

static void cells_are_those_counted_by_hand(void **state)
{
    (void)state;
    static struct answer a;
    static const struct {
        const char *spec;
        uint32_t n_last; /* in the layers that are not dense */
        bool mixed;
    } cases[] = {
        {"dense", N_PROMPT, false},
        {"a-shape:sink=32,window=65", 0, false},
        {"tri-shape:sink=32,window=65,last=70", 70, false},
        {"trianglemix:sink=32,window=65,last=70,layer=0.5", 70, true},
    };
    const sac_model_info info = sac_model_get_info(model);
    const uint64_t whole = cells_of_ends(N_PROMPT, N_PROMPT);
    assert_int_equal(whole, (uint64_t)N_PROMPT * (N_PROMPT + 1) / 2);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t n_layer = 0, read = 0;
        for (uint32_t layer = 0; layer < info.n_layer; layer++) {
            if (model_shape->tiny.window && layer % 6 != 5) continue;
            const bool is_dense = cases[i].mixed && 2 * layer < info.n_layer;
            n_layer++;
            read += is_dense ? whole : cells_of_ends(N_PROMPT, cases[i].n_last);
        }
        const sac_engine_stats s =
            answer_alone(&a, &(struct setting){.spec = cases[i].spec}, N_PROMPT);
        assert_int_equal(s.reads.n_cell, whole * n_layer * info.n_head);
        assert_int_equal(s.reads.n_cell_read, read * info.n_head);
    }
}

/* A prompt of one tile or less is all diagonal; one row more begins another tile. */
static void short_prompts_are_planned(void **state)
{
    (void)state;
    static struct answer dense, sparse;
    static const size_t lengths[] = {1, 63, 64, 65};
    for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
        answer_alone(&dense, &(struct setting){.spec = "dense"}, lengths[l]);
        EACH_METHOD(m)
        {
            char spec[SPEC_MAKE_BYTES];
            spec_make_part(spec, m, BUDGET);
            const sac_engine_stats stats =
                answer_alone(&sparse, &(struct setting){.spec = spec}, lengths[l]);
            assert_true(stats.reads.n_plan > 0 && stats.reads.n_cell_read <= stats.reads.n_cell);
            for (uint32_t i = 0; i < n_vocab; i++)
                if (!isfinite(sparse.logits[i]))
                    fail_msg("%s: %zu tokens give no numbers", spec, lengths[l]);
            if (stats.reads.n_cell_read == stats.reads.n_cell)
                same("though nothing is left out", spec, &sparse, &dense);
            assert_true(lengths[l] > 64 || stats.reads.n_cell_read == stats.reads.n_cell);
        }
    }
}

/* Chunks of 512, of 2,048 and the whole prompt, for methods that promise to be the same; a step of
 * 1,000 rows has a chunk of whole tiles. */
static void chunks_may_have_any_number_of_tiles(void **state)
{
    (void)state;
    static struct answer first, a;
    static const uint32_t n_batch[] = {512, 1000, 2048, N_LONG};
    EACH_METHOD(m)
    {
        char spec[SPEC_MAKE_BYTES];
        spec_make_part(spec, m, BUDGET);
        for (size_t i = 0; i < 4 && m->prefill->any_chunk; i++) {
            const struct setting s = {.spec = spec, .n_batch = n_batch[i], .n_ctx = N_LONG};
            answer_alone(i ? &a : &first, &s, N_LONG);
            if (i) same("in other chunks", spec, &a, &first);
        }
    }
}

/* ---- On top of a past ---- */

/* A turn, an answer of four tokens, and a second turn; stats are those of the second alone. */
static sac_engine_stats answer_second_turn(struct answer *out, const struct setting *s, size_t n)
{
    sac_error err;
    sac_engine *e = new_engine(s);
    must(sac_seq_create(e, &out->seq, &err), &err);
    append(e, out->seq, n, SAC_ROW_PROMPT);
    append(e, out->seq, 4, SAC_ROW_DECODE);
    run_all(e, out);
    const sac_engine_stats before = sac_engine_get_stats(e);
    append(e, out->seq, n / 2, SAC_ROW_PROMPT);
    run_all(e, out);
    sac_engine_stats stats = sac_engine_get_stats(e);
    sac_engine_free(e);
    stats.reads.n_plan -= before.reads.n_plan;
    stats.reads.n_plan_dense -= before.reads.n_plan_dense;
    stats.reads.n_plan_past -= before.reads.n_plan_past;
    stats.reads.n_cell -= before.reads.n_cell;
    stats.reads.n_cell_read -= before.reads.n_cell_read;
    return stats;
}

static void a_past_turn_is_keys_like_others(void **state)
{
    (void)state;
    static struct answer dense, a;
    enum { N_TURN = 420 };
    answer_second_turn(&dense, &(struct setting){.spec = "dense"}, N_TURN);
    EACH_METHOD(m)
    {
        char spec[SPEC_MAKE_BYTES];
        spec_make_whole(spec, m);
        answer_second_turn(&a, &(struct setting){.spec = spec}, N_TURN);
        same("in a second turn, though everything is read", spec, &a, &dense);
        spec_make_part(spec, m, BUDGET);
        const struct setting s = {.spec = spec};
        const sac_engine_stats stats = answer_second_turn(&a, &s, N_TURN);
        for (uint32_t i = 0; i < n_vocab; i++) assert_true(isfinite(a.logits[i]));
        assert_true(stats.reads.n_plan > 0);
        if (m->prefill->needs_past_zero) {
            assert_int_equal(stats.reads.n_plan_past, stats.reads.n_plan);
            same("in a second turn that it cannot plan", spec, &a, &dense);
        } else {
            assert_int_equal(stats.reads.n_plan_past, 0);
        }
    }
}

/* keep=on: what a first turn has chosen is read in the second too, and a sequence that was cut and
 * asked again gives the same answer as before. */
static void lines_are_kept_over_turns(void **state)
{
    (void)state;
    static struct answer first, again;
    enum { N_TURN = 420 };
    const struct setting alone = {.spec = "loopserve:mass=0.6,slashes=8,columns=4"};
    const struct setting kept = {.spec = "loopserve:mass=0.6,slashes=8,columns=4,keep=on"};
    const sac_engine_stats a = answer_second_turn(&first, &alone, N_TURN);
    const sac_engine_stats b = answer_second_turn(&first, &kept, N_TURN);
    assert_int_equal(a.reads.n_cell, b.reads.n_cell);
    assert_true(b.reads.n_cell_read > a.reads.n_cell_read && b.reads.n_cell_read < b.reads.n_cell);
    sac_error err;
    sac_engine *e = new_engine(&(struct setting){.spec = kept.spec, .n_seq = 2});
    must(sac_seq_create(e, &again.seq, &err), &err);
    append(e, again.seq, N_TURN, SAC_ROW_PROMPT);
    append(e, again.seq, 4, SAC_ROW_DECODE);
    run_all(e, &again);
    sac_seq fork;
    must(sac_seq_fork(e, again.seq, &fork, &err), &err);
    again.seq = fork; /* has the lines of its source */
    append(e, fork, N_TURN / 2, SAC_ROW_PROMPT);
    run_all(e, &again);
    sac_engine_free(e);
    same("in a fork", kept.spec, &again, &first);
}

/* ---- Giving up ---- */

/* The engine's method 0 becomes a copy that cannot go on from a past. */
static void what_needs_an_empty_past_says_so(void **state)
{
    (void)state;
    static struct answer a;
    sac_error err;
    sac_engine *e = new_engine(&(struct setting){.spec = "a-shape:sink=4,window=64"});
    struct method method = *e->method_set[METHOD_SET_PREFILL].specs.spec[0].method;
    struct method_prefill hooks = *method.prefill;
    hooks.needs_past_zero = true;
    method.prefill = &hooks;
    e->method_set[METHOD_SET_PREFILL].specs.spec[0].method = &method;
    must(sac_seq_create(e, &a.seq, &err), &err);
    append(e, a.seq, 256, SAC_ROW_PROMPT);
    run_all(e, &a);
    const sac_engine_stats first = sac_engine_get_stats(e);
    append(e, a.seq, 256, SAC_ROW_PROMPT);
    run_all(e, &a);
    const sac_engine_stats stats = sac_engine_get_stats(e);
    assert_true(first.reads.n_plan > 0 && first.reads.n_plan_past == 0 &&
                first.reads.n_cell_read < first.reads.n_cell);
    assert_int_equal(stats.reads.n_plan_past, stats.reads.n_plan - first.reads.n_plan);
    assert_int_equal(stats.reads.n_cell_read - first.reads.n_cell_read,
                     stats.reads.n_cell - first.reads.n_cell);
    sac_engine_free(e);
}

static void (*true_rope)(struct workers *, const struct op_rope *);

/* Queries and keys of the batch's last row become NaN. */
static void break_last_row(struct workers *pool, const struct op_rope *op)
{
    true_rope(pool, op);
    for (uint32_t h = 0; h < op->n_head; h++)
        op->x[(op->n_row - 1) * op->x_stride + (size_t)h * op->head_dim] = NAN;
}

static void a_nan_makes_its_chunk_dense_and_is_counted(void **state)
{
    (void)state;
    static struct answer a;
    EACH_METHOD(m)
    {
        char spec[SPEC_MAKE_BYTES];
        spec_make_part(spec, m, BUDGET);
        sac_error err;
        sac_engine *e = new_engine(&(struct setting){.spec = spec});
        must(sac_seq_create(e, &a.seq, &err), &err);
        append(e, a.seq, 256, SAC_ROW_PROMPT);
        run_all(e, &a);
        const sac_engine_stats before = sac_engine_get_stats(e);
        assert_int_equal(before.reads.n_plan_nan, 0);
        true_rope = e->ops.rope;
        e->ops.rope = break_last_row;
        append(e, a.seq, 256, SAC_ROW_PROMPT);
        run_all(e, &a);
        const sac_engine_stats after = sac_engine_get_stats(e);
        assert_int_equal(after.reads.n_plan_nan, after.reads.n_plan - before.reads.n_plan);
        assert_int_equal(after.reads.n_cell_read - before.reads.n_cell_read,
                         after.reads.n_cell - before.reads.n_cell);
        sac_engine_free(e);
    }
}

/* Room for a few tokens only: lists that need more read everything, no list reads less. */
static void lists_without_room_are_dense_and_counted(void **state)
{
    (void)state;
    static struct answer a;
    uint32_t n_overflow = 0;
    EACH_METHOD(m)
    {
        char spec[SPEC_MAKE_BYTES];
        spec_make_part(spec, m, BUDGET);
        sac_error err;
        const struct setting s = {.spec = spec};
        const sac_engine_stats roomy = answer_alone(&a, &s, N_PROMPT);
        sac_engine *e = new_engine(&s);
        e->prefill.tok_max = 4;
        e->prefill.range_max = 3;
        must(sac_seq_create(e, &a.seq, &err), &err);
        append(e, a.seq, N_PROMPT, SAC_ROW_PROMPT);
        run_all(e, &a);
        const sac_engine_stats tight = sac_engine_get_stats(e);
        assert_int_equal(roomy.reads.n_plan_overflow, 0);
        assert_true(tight.reads.n_cell_read >= roomy.reads.n_cell_read);
        assert_true(tight.reads.n_plan_dense >= tight.reads.n_plan_overflow);
        n_overflow += tight.reads.n_plan_overflow > 0;
        sac_engine_free(e);
    }
    assert_true(n_overflow > 0 || getenv("SAC_TEST_METHODS"));
}

/* Alone; among others that decode and others that come first; on one shape with two threads, which
 * cost much where tests run side by side. */
static void an_answer_does_not_depend_on_anything_else(void **state)
{
    (void)state;
    static struct answer alone, crowd;
    EACH_METHOD(m)
    {
        char spec[SPEC_MAKE_BYTES];
        spec_make_part(spec, m, BUDGET);
        const struct setting s = {.spec = spec, .type = SAC_KV_Q8};
        const struct setting crowded = {.spec = spec,
                                        .type = SAC_KV_Q8,
                                        .n_seq = 4,
                                        .n_threads = model_shape == shapes ? 2 : 1};
        const sac_engine_stats stats = answer_alone(&alone, &s, N_PROMPT);
        sac_engine *e = new_engine(&crowded);
        sac_seq other[3];
        sac_error err;
        for (size_t i = 0; i < 3; i++) {
            must(sac_seq_create(e, &other[i], &err), &err);
            append(e, other[i], 10 + 90 * i, SAC_ROW_PROMPT);
            append(e, other[i], 2, SAC_ROW_DECODE);
        }
        must(sac_seq_create(e, &crowd.seq, &err), &err);
        append(e, crowd.seq, N_PROMPT, SAC_ROW_PROMPT);
        run_all(e, &crowd);
        sac_engine_free(e);
        same("among others", spec, &crowd, &alone);
        print_message("%-48s computes %5.1f %% of the cells, dense in %llu of %llu lists\n", spec,
                      100.0 * (double)stats.reads.n_cell_read / (double)stats.reads.n_cell,
                      (unsigned long long)stats.reads.n_plan_dense,
                      (unsigned long long)stats.reads.n_plan);
        assert_true(stats.reads.n_plan > 0 && stats.reads.n_cell_read < stats.reads.n_cell);
        assert_int_equal(stats.reads.n_plan_nan, 0);
    }
}

static void a_method_is_chosen_by_sequence(void **state)
{
    (void)state;
    static struct answer dense, shape, a;
    static const char *const specs[] = {"dense", "a-shape:sink=4,window=64"};
    sac_engine_params p = sac_engine_params_default();
    sac_engine *e;
    sac_error err;
    answer_alone(&dense, &(struct setting){.spec = specs[0]}, N_PROMPT);
    answer_alone(&shape, &(struct setting){.spec = specs[1]}, N_PROMPT);
    assert_memory_not_equal(dense.logits, shape.logits, n_vocab * sizeof *dense.logits);
    p.n_ctx = N_PROMPT + 40;
    p.n_seq_max = 2;
    p.n_batch = 256;
    p.n_threads = 1;
    p.prefill = specs;
    p.n_prefill = 2;
    p.sparse_min_ctx = 0;
    must(sac_engine_create(&e, model, &p, &err), &err);
    for (uint32_t i = 0; i < 2; i++) {
        must(sac_seq_create(e, &a.seq, &err), &err);
        must(sac_seq_use_prefill(e, a.seq, i, &err), &err);
        append(e, a.seq, N_PROMPT, SAC_ROW_PROMPT);
        run_all(e, &a);
        same("as one of two methods", specs[i], &a, i ? &shape : &dense);
    }
    assert_int_equal(sac_seq_use_prefill(e, a.seq, 2, &err), SAC_ERR_ARG);
    assert_int_equal(sac_seq_use_prefill(e, 7, 0, &err), SAC_ERR_NOT_FOUND);
    sac_engine_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_prompts_give_the_dense_bits),
        cmocka_unit_test(full_plans_give_the_dense_bits),
        cmocka_unit_test(cells_are_those_counted_by_hand),
        cmocka_unit_test(short_prompts_are_planned),
        cmocka_unit_test(chunks_may_have_any_number_of_tiles),
        cmocka_unit_test(a_past_turn_is_keys_like_others),
        cmocka_unit_test(lines_are_kept_over_turns),
        cmocka_unit_test(what_needs_an_empty_past_says_so),
        cmocka_unit_test(a_nan_makes_its_chunk_dense_and_is_counted),
        cmocka_unit_test(lists_without_room_are_dense_and_counted),
        cmocka_unit_test(an_answer_does_not_depend_on_anything_else),
        cmocka_unit_test(a_method_is_chosen_by_sequence),
    };
    RUN_ON_SHAPES(tests, load_model);
}
