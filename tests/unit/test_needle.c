/* test_needle.c: who finds a late needle. For a hundred steps nobody asks for one token; then a
 * query does, and goes on to. The table says after how many steps each method reads the token, with
 * a budget of a twelfth of the context, and must be what the methods' papers make of it. Beside it:
 * what holds for every choice of every method in the list. */
#include "lane_bench.h"

static struct lane_bench b;

enum { N_PROMPT = 1000, N_QUIET = 100, N_ASK = 64, NEEDLE = 300, LATE = N_ASK + 1 };

static bool has_param(const struct method *m, const char *key)
{
    for (uint32_t i = 0; i < m->n_param; i++)
        if (strcmp(m->param[i].key, key) == 0) return true;
    return false;
}

/* A setting that reads about a seventh of the context, if it can be told so. */
static void small_spec(char spec[160], const struct method *m)
{
    snprintf(spec, 160, "%s:", m->name);
    if (has_param(m, "mass")) strcat(spec, "mass=0.5,");
    if (has_param(m, "budget")) strcat(spec, "budget=160,");
    if (has_param(m, "dense")) strcat(spec, "dense=0,");
    if (has_param(m, "prompt")) strcat(spec, "prompt=age,");
    if (has_param(m, "gate")) strcat(spec, "gate=1,sink=4,recent=40,");
    if (has_param(m, "bits")) strcat(spec, "bits=8,tables=30,");
    if (strcmp(m->name, "infllm") == 0) strcat(spec, "block=32,local=16,init=16,");
    if (strcmp(m->name, "tokenselect") == 0) strcat(spec, "sink=4,recent=16,");
    spec[strlen(spec) - 1] = 0;
}

static void add_code(float *x, uint64_t code, float size)
{
    for (uint32_t c = 0; c < LB_DIM; c++) {
        code = code * 6364136223846793005u + 1442695040888963407u;
        x[c] += code >> 63 ? size : -size;
    }
}

static void ask_for(uint32_t tok, float size)
{
    for (uint32_t h = 0; h < LB_HEADS; h++)
        for (uint32_t g = 0; g < LB_GROUP; g++)
            for (uint32_t c = 0; c < LB_DIM; c++) b.q[h][g * LB_DIM + c] = size * b.k[h][tok][c];
}

/* Steps of asking until the token is read by both heads, LATE if it is not. */
static uint32_t steps_to_find(const char *spec)
{
    uint32_t found = LATE;
    lb_open(&b, SAC_KV_F16, spec, 30);
    b.layer = 2;
    for (uint32_t h = 0; h < LB_HEADS; h++)
        for (uint32_t t = 0; t < LB_TOK; t++) { /* neighbours are alike, as in a text */
            add_code(b.k[h][t], 1000 + t, 0.7f);
            add_code(b.k[h][t], 9000 + t / PAGE_TOK, 0.7f);
        }
    lb_seal(&b);
    for (uint32_t pos = N_PROMPT - LB_PAST; pos < N_PROMPT + N_QUIET + N_ASK; pos++) {
        const bool asks = pos >= N_PROMPT + N_QUIET;
        ask_for(asks ? NEEDLE : 500 + pos * 7 % 50, asks ? 2 : 1);
        lb_row(&b, pos, pos < N_PROMPT);
        if (asks && found == LATE && lb_reads(&b, 0, NEEDLE) && lb_reads(&b, 1, NEEDLE))
            found = pos - N_PROMPT - N_QUIET + 1;
    }
    lb_close(&b);
    return found;
}

/* What decode.md's table says, and what it does not. */
static uint32_t expected(const char *name)
{
    static const char *const never[] = {"streaming", "h2o",  "snapkv", "pyramidkv",
                                        "adakv",     "raas", "duo",    "lfps"};
    for (size_t i = 0; i < sizeof never / sizeof never[0]; i++)
        if (strcmp(name, never[i]) == 0) return LATE;
    return strcmp(name, "loopserve") == 0 ? 16 : 1;
}

static void late_needles(void **state)
{
    (void)state;
    const struct method *m;
    for (size_t i = 0; (m = method_at(i)); i++) {
        char spec[160];
        if (!m->decode) continue;
        small_spec(spec, m);
        const uint32_t n = steps_to_find(spec), most = expected(m->name);
        if (n == LATE)
            print_message("%-12s never finds a late needle\n", m->name);
        else
            print_message("%-12s finds a late needle at step %u\n", m->name, n);
        if (most == LATE)
            assert_int_equal(n, LATE);
        else
            assert_true(n <= most);
    }
    const uint32_t refresh = steps_to_find("lfps:budget=160,refresh=32");
    print_message("lfps, refresh=32: at step %u\n", refresh);
    assert_true(refresh <= 32);
    assert_int_equal(steps_to_find("lfps:budget=160,guard=on"), 1);
}

/* The budget holds, marks lie before the own page, the same life gives the same choices. */
static void every_choice_keeps_the_rules(void **state)
{
    (void)state;
    static uint32_t first[40][LB_HEADS][LB_PAGES];
    const struct method *m;
    for (size_t i = 0; (m = method_at(i)); i++) {
        char spec[160];
        if (!m->decode) continue;
        small_spec(spec, m);
        for (int again = 0; again < 2; again++) {
            lb_open(&b, i % 2 ? SAC_KV_Q8 : SAC_KV_F16, spec, 31);
            lb_random_keys(&b, 1);
            lb_seal(&b);
            for (uint32_t pos = N_PROMPT - LB_PAST; pos < N_PROMPT + 40; pos++) {
                lb_random_query(&b, 3);
                lb_row(&b, pos, pos < N_PROMPT);
                if (pos < N_PROMPT) continue;
                for (uint32_t h = 0; h < LB_HEADS; h++) {
                    assert_false(b.pick[h].not_finite);
                    for (uint32_t p = pick_page_count(&b.lane[h]); p < LB_PAGES; p++)
                        assert_int_equal(b.mask[h][p], 0);
                    /* Sinks and windows may come on top where a method says so, and the heads of
                     * a layer may share their budgets. */
                    if (has_param(m, "budget") && !b.pick[h].dense)
                        assert_true(lb_count(&b, h) <= 2 * 160 + 4 + 32 + 40 + 32);
                }
                if (again) assert_memory_equal(first[pos - N_PROMPT], b.mask, sizeof b.mask);
                memcpy(first[pos - N_PROMPT], b.mask, sizeof b.mask);
            }
            lb_close(&b);
        }
    }
}

/* A cut, and the same rows again: the state is one that a method can go on from. */
static void a_cut_is_survived(void **state)
{
    (void)state;
    const struct method *m;
    for (size_t i = 0; (m = method_at(i)); i++) {
        char spec[160];
        if (!m->decode) continue;
        small_spec(spec, m);
        lb_open(&b, SAC_KV_F16, spec, 32);
        lb_random_keys(&b, 1);
        lb_seal(&b);
        for (uint32_t pos = N_PROMPT - LB_PAST; pos < N_PROMPT + 30; pos++) {
            lb_random_query(&b, 3);
            lb_row(&b, pos, pos < N_PROMPT);
        }
        for (uint32_t h = 0; h < LB_HEADS; h++) {
            uint8_t *lane_state = b.state + h * b.state_stride;
            if (m->decode->cut)
                m->decode->cut(lane_state, &b.shape, b.spec.param, N_PROMPT - 40);
            else
                memset(lane_state, 0, b.state_stride);
        }
        b.past_begin = N_PROMPT - 40;
        for (uint32_t pos = N_PROMPT - 40; pos < N_PROMPT + 30; pos++) {
            lb_random_query(&b, 3);
            lb_row(&b, pos, pos < N_PROMPT - 30);
            for (uint32_t h = 0; h < LB_HEADS && pos >= N_PROMPT - 30; h++)
                assert_false(b.pick[h].not_finite);
        }
        lb_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(late_needles),
        cmocka_unit_test(every_choice_keeps_the_rules),
        cmocka_unit_test(a_cut_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
