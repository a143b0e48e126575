/* test_needle.c: who finds a late needle. For a hundred steps nobody asks for one token; then a
 * query does, and goes on to. Each method says after how many steps it reads the token
 * (struct method_facts), which must be what its paper makes of it. Beside it: what holds for every
 * choice of every method in the list. */
#include "lane_bench.h"
#include "spec_make.h"

static struct lane_bench b;

/* A budget of a seventh of the context. */
enum { N_PROMPT = 1000, N_QUIET = 100, N_ASK = 64, NEEDLE = 300, BUDGET = 160, N_ANSWER = 40 };
enum { LATE = N_ASK + 1 };

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

#define EACH_METHOD(m)                                                                             \
    const struct method *m;                                                                        \
    for (size_t i_ = 0; (m = method_at(i_)); i_++)                                                 \
        if (m->decode && method_tested(m))

static void late_needles(void **state)
{
    (void)state;
    EACH_METHOD(m)
    {
        char spec[SPEC_MAKE_BYTES];
        spec_make_part(spec, m, BUDGET);
        const uint32_t n = steps_to_find(spec);
        if (m->facts.n_late == METHOD_NEVER ? n != LATE : n > m->facts.n_late + 1)
            fail_msg("%s reads a late needle at step %u of %u", spec, n, N_ASK);
    }
}

static void lfps_finds_one_if_told_to(void **state)
{
    (void)state;
    const uint32_t refresh = steps_to_find("lfps:budget=160,refresh=32");
    assert_true(refresh <= 32);
    assert_int_equal(steps_to_find("lfps:budget=160,guard=on"), 1);
}

static uint32_t count_read(uint32_t h)
{
    uint32_t n = 0;
    for (uint32_t p = 0; p < pick_page_count(&b.lane[h]); p++)
        n += (uint32_t)__builtin_popcount(b.mask[h][p]);
    return n;
}

/* What a budget counts is within it, and what is read beside it is no more than the method says.
 * Budgets of what lives do not count the answer, of n_answer tokens. */
static void keeps_budget(const struct method *m, uint32_t n_answer)
{
    const uint32_t most[] = {
        [METHOD_BUDGET_CHOSEN] = BUDGET,
        [METHOD_BUDGET_QUERY] = LB_GROUP * BUDGET,
        [METHOD_BUDGET_LIVES] = BUDGET + n_answer,
        [METHOD_BUDGET_LAYER] = LB_HEADS * (BUDGET + n_answer), /* a head may have all */
        [METHOD_BUDGET_MODEL] = 2 * BUDGET + n_answer,          /* the first layer's share */
    };
    uint32_t n_layer = 0;
    for (uint32_t h = 0; h < LB_HEADS; h++) {
        if (b.pick[h].dense) return;
        const uint32_t n_read = count_read(h), n_chosen = b.pick[h].n_chosen;
        const uint32_t n_forced = m->facts.n_forced;
        n_layer += n_read;
        if (method_has_budget(m) && n_read > most[m->facts.budget] + n_forced)
            fail_msg("%s: %u tokens read, at most %u and %u", m->name, n_read,
                     most[m->facts.budget], n_forced);
        if (m->facts.budget == METHOD_BUDGET_CHOSEN && n_read - n_chosen > n_forced)
            fail_msg("%s: %u tokens read in any case, at most %u", m->name, n_read - n_chosen,
                     n_forced);
    }
    if (m->facts.budget == METHOD_BUDGET_LAYER) assert_true(n_layer <= most[METHOD_BUDGET_LAYER]);
}

/* Budgets hold, the heads of a layer that share one keep their sum, marks lie before the own page,
 * the same life gives the same choices. */
static void every_choice_keeps_the_rules(void **state)
{
    (void)state;
    static uint32_t first[N_ANSWER][LB_HEADS][LB_PAGES];
    EACH_METHOD(m)
    {
        char spec[SPEC_MAKE_BYTES];
        bool has_chosen = false;
        spec_make_part(spec, m, BUDGET);
        for (int again = 0; again < 2; again++) {
            lb_open(&b, i_ % 2 ? SAC_KV_Q8 : SAC_KV_F16, spec, 31);
            lb_random_keys(&b, 1);
            lb_seal(&b);
            for (uint32_t pos = N_PROMPT - LB_PAST; pos < N_PROMPT + N_ANSWER; pos++) {
                lb_random_query(&b, 3);
                lb_row(&b, pos, pos < N_PROMPT);
                if (pos < N_PROMPT) continue;
                for (uint32_t h = 0; h < LB_HEADS; h++) {
                    assert_false(b.pick[h].not_finite);
                    has_chosen = has_chosen || b.pick[h].n_chosen > 0;
                    for (uint32_t p = pick_page_count(&b.lane[h]); p < LB_PAGES; p++)
                        assert_int_equal(b.mask[h][p], 0);
                }
                keeps_budget(m, pos - N_PROMPT);
                if (again) assert_memory_equal(first[pos - N_PROMPT], b.mask, sizeof b.mask);
                memcpy(first[pos - N_PROMPT], b.mask, sizeof b.mask);
            }
            lb_close(&b);
        }
        if (has_chosen == m->fixed)
            fail_msg("%s %s by score", spec, has_chosen ? "chooses" : "never chooses");
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
        uint8_t *lane_state = lb_state(&b, b.layer, h);
        if (m->decode->cut)
            m->decode->cut(lane_state, &b.shape, b.spec.param, n_tok);
        else
            memset(lane_state, 0, b.state_stride);
    }
}

/* A sequence that was cut, and went on otherwise, chooses as one that never had what was cut off,
 * but for what a cut leaves on purpose: dropped tokens stay dropped, what was found stays so. */
static void a_cut_leaves_nothing_behind(void **state)
{
    (void)state;
    enum { CUT = N_PROMPT - 40, ANSWER = CUT + 50, END = ANSWER + 30 };
    static uint32_t mask[END][LB_HEADS][LB_PAGES];
    static float logw[END][LB_HEADS][LB_TOK];
    EACH_METHOD(m)
    {
        char spec[SPEC_MAKE_BYTES];
        spec_make_part(spec, m, BUDGET);
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
                    if (fresh && !m->evicts && !m->facts.keeps_found &&
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
        cmocka_unit_test(lfps_finds_one_if_told_to),
        cmocka_unit_test(every_choice_keeps_the_rules),
        cmocka_unit_test(a_cut_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
