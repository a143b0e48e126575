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

/* Most tokens before the own page that a choice with small_spec's budget of 160 may hold: chosen by
 * score, and read in any case. test_forced.c has the exact numbers of one row. */
struct rule {
    const char *name;
    uint32_t chosen, forced;
};

static const struct rule rules[] = {
    {"streaming", 0, 159},
    {"topk", 160, 4 + 31}, /* the newest 32 hold the row's own */
    {"loki", 160, 31},
    {"sparq", 160, 63},
    {"infinigen", 160, 0},
    {"tokenselect", 160, 4 + 15},
    {"quest", 160, 2 * 32},
    {"arkvale", 160, 3 * 32},
    {"infllm", 160, 16 + 32}, /* what left the window fills no block yet */
    {"loopserve", 160, 4 + 16 + 15},
    {"lfps", LB_GROUP * 160 + 7, 4}, /* a choice for each query head, the newest with each */
    {"h2o", 80, 79},                 /* half of all that lives, the row's own in the other half */
    {"raas", 128, 0},                /* whole pages beside the own one */
    {"snapkv", 160 - 32, 32 + 39},   /* the window is part of the budget, the answer is not */
    {"adakv", 2 * (160 - 32), 32 + 39},
    {"pyramidkv", 2 * (160 - 32) - 6, 32 + 39}, /* of the first layer */
};

static const struct rule *rule_of(const struct method *m)
{
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        if (strcmp(rules[i].name, m->name) == 0) return &rules[i];
    if (has_param(m, "budget")) fail_msg("%s has a budget and no rule", m->name);
    return NULL;
}

static void keeps_rule(const struct rule *rule, uint32_t h)
{
    uint32_t n_read = 0;
    if (!rule || b.pick[h].dense) return;
    for (uint32_t p = 0; p < pick_page_count(&b.lane[h]); p++)
        n_read += (uint32_t)__builtin_popcount(b.mask[h][p]);
    const uint32_t n_chosen = b.pick[h].n_chosen;
    if (n_chosen > rule->chosen || n_read - n_chosen > rule->forced)
        fail_msg("%s: %u tokens chosen and %u read in any case, at most %u and %u", rule->name,
                 n_chosen, n_read - n_chosen, rule->chosen, rule->forced);
}

/* Budgets hold, the heads of a layer that share one keep their sum, marks lie before the own page,
 * the same life gives the same choices. */
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
                    keeps_rule(rule_of(m), h);
                }
                if (strcmp(m->name, "adakv") == 0)
                    assert_int_equal(b.pick[0].n_chosen + b.pick[1].n_chosen, LB_HEADS * 128);
                if (again) assert_memory_equal(first[pos - N_PROMPT], b.mask, sizeof b.mask);
                memcpy(first[pos - N_PROMPT], b.mask, sizeof b.mask);
            }
            lb_close(&b);
        }
    }
}

/* Rows [from, to), prompt rows before `answer`; queries are a row's own and another life's. */
static void live(uint32_t from, uint32_t to, uint32_t answer, uint64_t life)
{
    for (uint32_t pos = from; pos < to; pos++) {
        b.seed = 1000 * life + pos;
        lb_random_query(&b, 3);
        lb_row(&b, pos, pos < answer);
    }
}

static void cut_all(const struct method *m, uint32_t n_tok)
{
    for (uint32_t h = 0; h < LB_HEADS; h++) {
        uint8_t *lane_state = b.state + h * b.state_stride;
        if (m->decode->cut)
            m->decode->cut(lane_state, &b.shape, b.spec.param, n_tok);
        else
            memset(lane_state, 0, b.state_stride);
    }
}

/* What a cut leaves on purpose: dropped tokens stay dropped, and what was found once of the tokens
 * that stay (axes, the middle of the keys, representatives) is not found again. */
static bool keeps_more(const struct method *m)
{
    static const char *const names[] = {"infinigen", "magicpig", "infllm"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i], m->name) == 0) return true;
    return m->evicts;
}

/* A sequence that was cut, and went on otherwise, chooses as one that never had what was cut off.
 */
static void a_cut_leaves_nothing_behind(void **state)
{
    (void)state;
    enum { CUT = N_PROMPT - 40, ANSWER = CUT + 50, END = ANSWER + 30 };
    static uint32_t mask[END][LB_HEADS][LB_PAGES];
    static float logw[END][LB_HEADS][LB_TOK];
    const struct method *m;
    for (size_t i = 0; (m = method_at(i)); i++) {
        char spec[160];
        if (!m->decode) continue;
        small_spec(spec, m);
        for (int fresh = 0; fresh < 2; fresh++) {
            lb_open(&b, SAC_KV_F16, spec, 32);
            lb_random_keys(&b, 1);
            lb_seal(&b);
            live(N_PROMPT - LB_PAST, fresh ? CUT : N_PROMPT, N_PROMPT, 1);
            if (!fresh) live(N_PROMPT, N_PROMPT + 30, N_PROMPT, 1);
            if (!fresh) cut_all(m, CUT);
            b.past_begin = CUT;
            for (uint32_t pos = CUT; pos < END; pos++) {
                live(pos, pos + 1, ANSWER, 2);
                for (uint32_t h = 0; h < LB_HEADS && pos >= ANSWER; h++) {
                    const size_t n = sizeof mask[0][0];
                    assert_false(b.pick[h].not_finite);
                    if (fresh && !keeps_more(m) &&
                        (memcmp(mask[pos][h], b.mask[h], n) != 0 ||
                         memcmp(logw[pos][h], b.logw[h], sizeof b.logw[h]) != 0))
                        fail_msg("%s: row %u remembers what was cut off", spec, pos);
                    memcpy(mask[pos][h], b.mask[h], n);
                    memcpy(logw[pos][h], b.logw[h], sizeof b.logw[h]);
                }
            }
            lb_close(&b);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(late_needles),
        cmocka_unit_test(every_choice_keeps_the_rules),
        cmocka_unit_test(a_cut_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
