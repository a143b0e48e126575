/* test_kascade.c: which layers of kascade choose, and whose tokens the others read. All layers have
 * the same keys here: channel t of a key is topic t, of ten tokens, and what a layer's head looks
 * at is the topic that its queries point to. */
#include "logit_bench.h"
#include "methods/decode/kascade.c"

static struct lane_bench b;

enum { FIRST = 600, TOPIC = 10, N_TOPIC = 8, LAYERS = 4 };

static void open_topics(const char *spec)
{
    lb_open(&b, SAC_KV_F16, spec, 3);
    for (uint32_t h = 0; h < LB_HEADS; h++)
        for (uint32_t t = 0; t < N_TOPIC; t++)
            for (uint32_t i = 0; i < TOPIC; i++) b.k[h][40 + 60 * t + i][t] = 20;
    lb_seal(&b);
}

static void look_at(uint32_t topic0, uint32_t topic1)
{
    const uint32_t topic[LB_HEADS] = {topic0, topic1};
    memset(b.q, 0, sizeof b.q);
    for (uint32_t h = 0; h < LB_HEADS; h++)
        for (uint32_t g = 0; g < LB_GROUP; g++) b.q[h][g * LB_DIM + topic[h]] = 8;
}

static void row(uint32_t pos, uint32_t layer, uint32_t topic0, uint32_t topic1)
{
    b.layer = layer;
    look_at(topic0, topic1);
    lb_row(&b, pos, false);
}

static void expect_topic(uint32_t h, uint32_t topic)
{
    uint32_t want[TOPIC];
    for (uint32_t i = 0; i < TOPIC; i++) want[i] = 40 + 60 * topic + i;
    expect_tokens(&b, h, want, TOPIC);
}

static void expect_topics(uint32_t topic0, uint32_t topic1)
{
    expect_topic(0, topic0);
    expect_topic(1, topic1);
}

static size_t choosing(uint32_t h)
{
    return b.meter[h].bytes[METER_CHOOSE];
}

/* Layer 1 looks at what layer 0 does with its heads the other way round, and so do 3 and 2. */
static void learn_pairs(void)
{
    row(FIRST, 0, 0, 1);
    expect_topics(0, 1);
    row(FIRST, 1, 1, 0);
    expect_topics(1, 0); /* nobody knows yet whom to follow */
    row(FIRST, 2, 2, 3);
    row(FIRST, 3, 3, 2);
    expect_topics(3, 2);
    assert_true(choosing(0) >= FIRST / 32 * 32 * LB_DIM * 2);
}

static void layers_read_what_their_anchor_chose(void **state)
{
    (void)state;
    open_topics("kascade:budget=10,anchors=2,dense=0,window=1");
    learn_pairs();
    for (uint32_t pos = FIRST + 1; pos < FIRST + 4; pos++) {
        row(pos, 0, 4, 5);
        expect_topics(4, 5);
        assert_int_equal(b.pick[0].n_chosen, TOPIC);
        row(pos, 1, 6, 7); /* whatever it looks at itself */
        expect_topics(5, 4);
        for (uint32_t h = 0; h < LB_HEADS; h++) assert_int_equal(choosing(h), 0);
        assert_int_equal(b.pick[0].n_chosen, TOPIC);
        row(pos, 2, 6, 7);
        expect_topics(6, 7);
        row(pos, 3, 0, 1);
        expect_topics(7, 6);
    }
    lb_close(&b);
}

/* The first layer reads everything, and chooses for those above; a second one that reads everything
 * and serves nobody does not even choose. */
static void dense_layers_choose_for_others(void **state)
{
    (void)state;
    open_topics("kascade:budget=10,anchors=2,dense=2,window=1");
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        row(FIRST, layer, layer / 2, layer / 2);
        assert_int_equal(b.pick[0].dense, layer < 2);
    }
    row(FIRST + 1, 0, 4, 5);
    assert_true(b.pick[0].dense && choosing(0) > 1000);
    row(FIRST + 1, 1, 6, 7);
    assert_true(b.pick[0].dense);
    assert_int_equal(choosing(0), 0);
    lb_close(&b);
    open_topics("kascade:budget=10,anchors=1,dense=1,window=1");
    for (uint32_t layer = 0; layer < LAYERS; layer++) row(FIRST, layer, 0, 1);
    row(FIRST + 1, 0, 4, 5);
    row(FIRST + 1, 3, 6, 7);
    expect_topics(4, 5);
    lb_close(&b);
}

/* A layer whose anchor has not chosen for this row, or whose sequence is new, chooses itself. */
static void without_a_choice_below_a_layer_makes_its_own(void **state)
{
    (void)state;
    open_topics("kascade:budget=10,anchors=2,dense=0,window=1");
    learn_pairs();
    row(FIRST + 1, 0, 4, 5);
    row(FIRST + 2, 1, 6, 7);
    expect_topics(6, 7);
    lb_restart(&b);
    row(FIRST + 2, 0, 4, 5);
    row(FIRST + 2, 1, 6, 7);
    expect_topics(6, 7);
    lb_close(&b);
}

/* Layers are compared by all rows of the window: here the same ones before the first decode row, in
 * which they differ. */
static void the_window_tells_who_is_like_whom(void **state)
{
    (void)state;
    for (uint32_t window = 1; window <= 8; window += 7) {
        char spec[96];
        snprintf(spec, sizeof spec, "kascade:budget=10,anchors=2,dense=0,window=%u", window);
        open_topics(spec);
        for (uint32_t pos = FIRST - 8; pos < FIRST; pos++) {
            look_at(0, 1);
            lb_row(&b, pos, true);
        }
        row(FIRST, 0, 0, 1);
        row(FIRST, 1, 3, 4);
        row(FIRST + 1, 0, 4, 5);
        row(FIRST + 1, 1, 6, 7);
        if (window == 1)
            expect_topics(6, 7);
        else
            expect_topics(4, 5);
        lb_close(&b);
    }
}

/* A layer that was not measured with the others (it has a window, say) is no anchor. */
static void layers_that_were_not_asked_are_left_out(void **state)
{
    (void)state;
    open_topics("kascade:budget=10,anchors=2,dense=0,window=1");
    row(FIRST, 1, 0, 1);
    row(FIRST, 3, 2, 3);
    row(FIRST + 1, 1, 4, 5);
    expect_topics(4, 5);
    row(FIRST + 1, 3, 6, 7);
    expect_topics(6, 7); /* two layers, two anchors */
    lb_close(&b);
    open_topics("kascade:budget=10,anchors=1,dense=0,window=1");
    row(FIRST, 1, 0, 1);
    row(FIRST, 3, 1, 0);
    row(FIRST + 1, 1, 4, 5);
    row(FIRST + 1, 3, 6, 7);
    expect_topics(5, 4);
    lb_close(&b);
}

/* Layer 2 would be the anchor of layer 3. Its bad head is never measured, also when it could be:
 * other lanes are reading then what it would write. */
static void a_layer_with_a_bad_head_is_left_out(void **state)
{
    (void)state;
    open_topics("kascade:budget=10,anchors=2,dense=0,window=1");
    row(FIRST, 0, 0, 1);
    row(FIRST, 1, 1, 0);
    b.layer = 2;
    look_at(2, 3);
    b.q[1][0] = NAN;
    lb_row(&b, FIRST, false);
    assert_true(!b.pick[0].not_finite && b.pick[1].not_finite);
    row(FIRST, 3, 3, 2);
    struct kascade bad;
    cut_state(&bad, &b.shape, lb_state(&b, 2, 1));
    for (uint32_t pos = FIRST + 1; pos < FIRST + 4; pos++) {
        row(pos, 0, 4, 5);
        row(pos, 1, 4, 5);
        row(pos, 2, 6, 7);
        expect_topic(1, 7);
        assert_true(bad.own->n_measured == FIRST + 1 && !bad.own->measured && !bad.own->has_anchor);
        row(pos, 3, 6, 7);
        expect_topics(6, 7);
    }
    lb_close(&b);
}

/* ---- Anchors ---- */

enum { N = 7 };

/* The sum of a set of anchors: bit i is layer i. */
static double worth(const struct layers *a, uint32_t set)
{
    double sum = 0;
    for (uint32_t i = 0, at = 0; i < a->n; i++) {
        if (set >> i & 1) at = i;
        sum += at == i ? 1 : (double)a->similarity[at * a->n + i];
    }
    return sum;
}

static void anchors_are_the_best_of_all_sets(void **state)
{
    (void)state;
    static float room[4096];
    b.seed = 9;
    for (uint32_t round = 0; round < 200; round++) {
        const uint32_t n_anchor = 1 + round % N;
        double best = 0;
        struct layers a;
        assert_true(cut_layers(&a, N, n_anchor, room) <= sizeof room);
        a.n = N;
        for (uint32_t i = 0; i < N; i++) a.layer[i] = i;
        for (uint32_t i = 0; i < N * N; i++) a.similarity[i] = 0.5f + 0.5f * lb_unit(&b);
        for (uint32_t set = 1; set < 1u << N; set += 2)
            if ((uint32_t)__builtin_popcount(set) <= n_anchor) best = fmax(best, worth(&a, set));
        uint32_t chosen = 0;
        for (uint32_t i = 0; i < N; i++) {
            const uint32_t anchor = anchor_of(&a, i);
            assert_true(anchor <= i);
            chosen |= 1u << anchor;
        }
        assert_true((uint32_t)__builtin_popcount(chosen) <= n_anchor);
        assert_true(fabs(worth(&a, chosen) - best) < 1e-5);
    }
}

/* Whatever a file says, a layer follows one below it or itself. */
static void states_of_a_file_are_looked_at(void **state)
{
    (void)state;
    struct kascade_state x = {
        .n_measured = 900, .n_chosen = 7, .has_anchor = 1, .anchor = 3, .head = 1};
    open_topics("kascade");
    const struct method_loaded l = {
        .shape = &b.shape, .param = b.spec.param, .state = &x, .n_tok = 900};
    assert_true(kascade_sound(&l));
    x.has_anchor = 2;
    assert_false(kascade_sound(&l));
    x.has_anchor = 1;
    x.head = LB_HEADS;
    assert_false(kascade_sound(&l));
    x.head = 0;
    x.n_measured = 901;
    assert_false(kascade_sound(&l));
    x.n_measured = 900;
    x.measured = 2;
    assert_false(kascade_sound(&l));
    lb_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_read_what_their_anchor_chose),
        cmocka_unit_test(dense_layers_choose_for_others),
        cmocka_unit_test(without_a_choice_below_a_layer_makes_its_own),
        cmocka_unit_test(the_window_tells_who_is_like_whom),
        cmocka_unit_test(layers_that_were_not_asked_are_left_out),
        cmocka_unit_test(a_layer_with_a_bad_head_is_left_out),
        cmocka_unit_test(anchors_are_the_best_of_all_sets),
        cmocka_unit_test(states_of_a_file_are_looked_at),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
