/* test_forced.c: what a budget counts. On one made-up sequence each method must read exactly what
 * it reads in any case, and beside that choose by score what its budget allows; methods whose paper
 * counts otherwise are held to their paper's way. The row is at 1257: 39 pages lie before its own
 * one, which has 10 tokens. */
#include "lane_bench.h"

enum { POS = 1257, N_PAGE_BEFORE = POS / 32, OWN = POS % 32 + 1, ANY = -1 };

static struct lane_bench b;

struct worked {
    const char *spec;
    int n_forced, n_chosen;   /* tokens before the own page; ANY: more than 0 */
    uint32_t n_first, n_last; /* tokens that must be read at the two ends, the row's own counted */
};

static const struct worked cases[] = {
    /* Two pages of 32 for 64 tokens, beside the first page and the newest full one. */
    {"quest:budget=64,dense=0,sink=32,recent=32,page=32", 64, 64, 32, OWN + 32},
    /* Less than a page is still one. */
    {"quest:budget=2%,dense=0,page=32", 64, 32, 32, OWN + 32},
    /* Ends of whole pages, rounded up: 40 tokens are two. */
    {"quest:budget=64,dense=0,sink=1,recent=40,page=32", 96, 64, 32, OWN + 64},
    {"quest:budget=1,dense=0,sink=0,recent=0,page=32", 0, 32, 0, OWN},
    /* The same in pages of 16, as the paper has them: 2 % of the row's 1258 tokens are 26. */
    {"quest:budget=64,dense=0,sink=32,recent=32", 64, 64, 32, OWN + 32},
    {"quest:budget=2%,dense=0", 64, 16, 32, OWN + 32},
    {"quest:budget=1,dense=0,sink=0,recent=0", 0, 16, 0, OWN},
    /* Each head for itself, and all read what one has chosen. */
    {"quest:budget=64,dense=0,heads=query", 64, ANY, 32, OWN + 32},
    {"arkvale:budget=64,dense=0", 96, 64, 32, OWN + 64},
    {"arkvale:budget=2%,dense=0,reduce=raw", 96, 32, 32, OWN + 64},
    {"topk:budget=50", 4 + 22, 50, 4, 32},
    {"topk:unit=page,budget=100", 0, 96, 0, OWN},
    {"topk:unit=page,budget=1", 0, 32, 0, OWN},
    {"sparq:budget=50", 54, 50, 0, 64},
    {"loki:budget=50", 22, 50, 0, 32},
    {"tokenselect:budget=50", 128 + 502, 50, 128, 512},
    {"tokenselect:budget=2%", 128 + 502, 26, 128, 512},
    {"infinigen:budget=50,dense=0,alpha=100", 0, 50, 0, OWN},
    {"kascade:budget=50", 0, 50, 0, OWN},
    /* 746 tokens have left the local window: five blocks, of which the first is read anyway. */
    {"infllm:budget=256", 128 + 608, 256, 128, 512},
    {"infllm:budget=1", 128 + 608, 128, 128, 512},
    {"psa:mass=0.5", 96, ANY, 32, OWN + 64},
    {"psa_cert:mass=0.5,mode=report", 96, ANY, 32, OWN + 64},
    {"rabitq:mass=0.5,most=1", 96, ANY, 32, OWN + 64},
    {"auto:mass=0.5,most=1", 96, ANY, 32, OWN + 64},
    {"magicpig:bits=6,tables=30", 4 + 54, ANY, 4, 64},
    {"lfps:budget=50,heads=group,bypass=1,a=0", 4, ANY, 4, OWN},
    {"loopserve:budget=50,warm=snapkv,stagger=off", 4 + 6, 50, 4, 16},
    {"loopserve:budget=50,warm=lines,stagger=off", 4 + 6, ANY, 4, 16},
    /* Papers whose budget is all that lives: window and newest tokens are part of it. */
    {"streaming:budget=100", 4 + 86, 0, 4, 96},
    {"streaming:budget=3", 2, 0, 2, OWN},
    {"snapkv:budget=100", 23, 68, 0, 33},
    {"pyramidkv:budget=100,beta=1", 23, 68, 0, 33},
    {"chunkkv:budget=100", 23, 68, 0, 33},
    {"knorm:budget=100,window=32,dense=0", 23, 68, 0, 33},
    {"keydiff:budget=100,window=32", 23, 68, 0, 33},
    {"expected:budget=100,window=32,sink=0", 23, 68, 0, 33},
    {"kvzip:budget=100,sink=10", 23, ANY, 10, 33},
    {"tova:budget=100", 0, ANY, 0, OWN},
    {"h2o:budget=100", 40, 50, 0, 50},
    {"raas:budget=320,prompt=age", 0, 288, 0, OWN},
    /* No budget and no choice among tokens. */
    {"duo:gate=1", 128 + 246, 0, 128, 256},
    {"think", 39 * 32, 0, 39 * 32, OWN},
};

static void walk(const char *spec)
{
    lb_open(&b, SAC_KV_F16, spec, 7);
    lb_random_keys(&b, 1);
    lb_seal(&b);
    b.layer = 2;
    for (uint32_t pos = POS - LB_PAST; pos <= POS; pos++) {
        lb_random_query(&b, 2);
        lb_row(&b, pos, pos < POS);
    }
}

static uint32_t count_marked(uint32_t h)
{
    uint32_t n = 0;
    for (uint32_t p = 0; p < N_PAGE_BEFORE; p++) n += (uint32_t)__builtin_popcount(b.mask[h][p]);
    return n;
}

static void budgets_count_what_is_chosen(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct worked *c = &cases[i];
        walk(c->spec);
        for (uint32_t h = 0; h < LB_HEADS; h++) {
            const uint32_t n = count_marked(h), n_chosen = b.pick[h].n_chosen;
            const bool right =
                c->n_chosen == ANY ? n_chosen > 0 : n_chosen == (uint32_t)c->n_chosen;
            if (b.pick[h].dense || !right || n != n_chosen + (uint32_t)c->n_forced)
                fail_msg("%s: %u tokens chosen and %u read in any case, wanted %d and %d", c->spec,
                         n_chosen, n - n_chosen, c->n_chosen, c->n_forced);
            for (uint32_t t = 0; t <= POS; t++)
                if ((t < c->n_first || t + c->n_last > POS) && !lb_reads(&b, h, t))
                    fail_msg("%s: token %u is not read", c->spec, t);
        }
        assert_int_equal(b.spec.method->fixed, c->n_chosen == 0);
        lb_close(&b);
    }
}

/* The heads of a layer together keep what snapkv keeps. */
static void adakvs_heads_share(void **state)
{
    (void)state;
    uint32_t n_chosen = 0;
    walk("adakv:budget=100");
    for (uint32_t h = 0; h < LB_HEADS; h++) {
        assert_int_equal(count_marked(h) - b.pick[h].n_chosen, 23);
        n_chosen += b.pick[h].n_chosen;
    }
    assert_int_equal(n_chosen, LB_HEADS * 68);
    lb_close(&b);
}

/* While a choice serves again, it counts as often as it is read. */
static void a_kept_choice_counts_again(void **state)
{
    (void)state;
    static const char *const specs[] = {"tokenselect:budget=50,sink=4,recent=40,reuse=0",
                                        "loopserve:budget=50,warm=snapkv,stagger=off",
                                        "snapkv:budget=100"};
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        walk(specs[i]);
        const uint32_t n = b.pick[0].n_chosen;
        for (uint32_t pos = POS + 1; pos < POS + 8; pos++) {
            lb_row(&b, pos, false);
            if (b.pick[0].n_chosen != n) fail_msg("%s: %u of %u", specs[i], b.pick[0].n_chosen, n);
        }
        lb_close(&b);
    }
}

static void kept_tokens_are_told_apart(void **state)
{
    (void)state;
    uint32_t kept[3] = {0xf0f0f0f0u, 0x00ff00ffu, 0x8000000fu}, mask[3];
    for (uint32_t begin = 0; begin <= 96; begin++)
        for (uint32_t end = 0; end <= 97; end++) {
            struct method_pick out = {.mask = mask};
            uint32_t n = 0;
            memset(mask, 0, sizeof mask);
            for (uint32_t t = begin; t < end && t < 96; t++) n += kept[t / 32] >> t % 32 & 1;
            pick_kept(&out, kept, 3, begin, end);
            assert_memory_equal(mask, kept, sizeof mask);
            assert_int_equal(out.n_chosen, n);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(budgets_count_what_is_chosen),
        cmocka_unit_test(adakvs_heads_share),
        cmocka_unit_test(a_kept_choice_counts_again),
        cmocka_unit_test(kept_tokens_are_told_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
