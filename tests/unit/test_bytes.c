/* test_bytes.c: what each decode method reads to choose, in bytes, on one small case: a sequence of
 * 700 tokens, 21 full pages and a row's own. What is wanted is worked out here from what a page and
 * a table hold, and from what the method has marked; docs/fairness.md has the rule. A method that
 * counts nothing, or a few channels of keys that it reads whole, fails. */
#include "lane_bench.h"
#include "methods/decode/lfps.c"

enum {
    N = 700,          /* position of the first decode row */
    PAGES = N / 32,   /* before its own: 21 */
    OWN = N % 32 + 1, /* tokens of its own page: 29 */
    OWN_KEYS = OWN * LB_DIM * 2,
    LINE = 64,
};

static struct lane_bench b;

static size_t lines(size_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

/* Keys and values of a sealed page: 16-bit numbers; or codes of a byte, f16 min and step of each
 * channel of the keys, an f16 scale of 32 channels of a value. */
static size_t page_keys(void)
{
    return b.geom.type_k == SAC_KV_Q8 ? 32 * LB_DIM + 4 * LB_DIM : 2 * 32 * LB_DIM;
}

static size_t page_values(void)
{
    return b.geom.type_k == SAC_KV_Q8 ? 32 * LB_DIM + 32 * (LB_DIM / 32) * 2 : 2 * 32 * LB_DIM;
}

/* Walks of an observation, four rows at a time over the keys that they see. Pages are read whole,
 * the row's own up to the row. */
static size_t observed(uint32_t begin, uint32_t end)
{
    size_t bytes = 0;
    for (uint32_t row = begin; row < end; row += 4) {
        const uint32_t last = row + 4 < end ? row + 3 : end - 1;
        bytes += last / 32 < PAGES ? (last / 32 + 1) * page_keys() : PAGES * page_keys() + OWN_KEYS;
    }
    return bytes;
}

static void open_at(sac_kv_type type, const char *spec)
{
    lb_open(&b, type, spec, 77);
    lb_random_keys(&b, 2);
    lb_seal(&b);
    for (uint32_t pos = N - LB_PAST; pos < N; pos++) {
        lb_random_query(&b, 3);
        lb_row(&b, pos, true);
        for (uint32_t h = 0; h < LB_HEADS; h++) /* prompt rows choose nothing */
            assert_int_equal(b.meter[h].bytes[METER_CHOOSE] + b.meter[h].bytes[METER_BUILD], 0);
    }
    lb_random_query(&b, 3);
    lb_row(&b, N, false);
}

/* Pages of a head of which anything is marked. */
static uint32_t marked_pages(uint32_t h)
{
    uint32_t n = 0;
    for (uint32_t p = 0; p < PAGES; p++) n += b.mask[h][p] != 0;
    return n;
}

/* Lines of a table of floats that the marked tokens from `begin` to `end` - 1 touch; those of the
 * own page count as marked. */
static uint32_t marked_lines(const uint32_t *mask, uint32_t begin, uint32_t end)
{
    uint32_t n = 0;
    for (uint32_t t = begin, last = UINT32_MAX; t < end; t++) {
        if (t < PAGES * 32 && !(mask[t / 32] >> t % 32 & 1)) continue;
        n += t / 16 != last;
        last = t / 16;
    }
    return n;
}

static void expect(size_t choose, size_t build)
{
    for (uint32_t h = 0; h < LB_HEADS; h++) {
        assert_int_equal(b.meter[h].bytes[METER_CHOOSE], choose);
        assert_int_equal(b.meter[h].bytes[METER_BUILD], build);
    }
}

static const sac_kv_type types[] = {SAC_KV_F16, SAC_KV_BF16, SAC_KV_Q8};
#define EACH_TYPE(i) for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)

static void scans_read_all_keys(void **state)
{
    (void)state;
    EACH_TYPE(i)
    {
        open_at(types[i], "streaming:budget=100");
        expect(0, 0);
        lb_close(&b);
        open_at(types[i], "topk:budget=100");
        expect(PAGES * page_keys(), 0);
        lb_close(&b);
        /* 16 channels score, and whole keys are read for them. */
        open_at(types[i], "sparq:budget=100,rank=16");
        expect(PAGES * page_keys(), 0);
        lb_close(&b);
        open_at(types[i], "tokenselect:budget=100,sink=4,recent=32");
        expect(PAGES * page_keys(), 0);
        lb_row(&b, N + 1, false); /* the same query: the choice holds */
        expect(0, 0);
        lb_close(&b);
        /* The only layer that was likened is an anchor; likenesses are read once more to settle it,
         * a line for each head and layer that it is held against. */
        open_at(types[i], "kascade:budget=100,dense=0");
        expect(PAGES * page_keys(), observed(N + 1 - 32, N + 1));
        lb_row(&b, N + 1, false);
        expect(PAGES * page_keys(), 0);
        lb_close(&b);
    }
}

static void summaries_are_read_whole(void **state)
{
    (void)state;
    EACH_TYPE(i)
    {
        const size_t vectors = 2 * LB_DIM * 2; /* of f16: a box, or the middle and the spread */
        open_at(types[i], "quest:budget=160,dense=0,page=32");
        expect(PAGES * vectors, 0);
        lb_close(&b);
        open_at(types[i], "quest:budget=160,dense=0,page=16"); /* a box for each half of a page */
        expect(2 * PAGES * vectors, 0);
        lb_close(&b);
        open_at(types[i], "arkvale:budget=160,dense=0");
        expect(PAGES * vectors, 0);
        lb_close(&b);
        open_at(types[i], "auto"); /* min, step and two bits a channel */
        expect(PAGES * (vectors + 32 * LB_DIM / 4), 0);
        lb_close(&b);
        open_at(types[i], "rabitq:mass=0.5"); /* the middle; a factor and a bit a channel a token */
        expect(PAGES * lines(2 * LB_DIM + 32 * (2 + LB_DIM / 8)), 0);
        lb_close(&b);
        open_at(types[i], "raas:budget=160,prompt=age");
        expect(PAGES * vectors, 0);
        const uint32_t n_live = marked_pages(0);
        assert_true(n_live < PAGES);
        lb_row(&b, N + 1, false); /* what was dropped is not looked at */
        assert_int_equal(b.meter[0].bytes[METER_CHOOSE], n_live * vectors);
        lb_close(&b);
    }
}

/* Pages that are visited are read once: for attention, whose part is counted for it. */
static void what_is_visited_is_read_once(void **state)
{
    (void)state;
    EACH_TYPE(i)
    {
        for (uint32_t by_plane = 0; by_plane < 2; by_plane++) {
            const size_t side = (by_plane ? 4 + 32 / 4 : 4) * LB_DIM;
            open_at(types[i], by_plane ? "psa:mass=0.6" : "psa:mass=0.6,order=box");
            for (uint32_t h = 0; h < LB_HEADS; h++) {
                const uint32_t n = marked_pages(h);
                assert_true(n > 3 && n < PAGES);
                assert_int_equal(b.meter[h].bytes[METER_CHOOSE], PAGES * side + OWN_KEYS);
                assert_true(b.pick[h].attended);
            }
            lb_close(&b);
        }
        open_at(types[i], "psa_cert:mass=0.6");
        for (uint32_t h = 0; h < LB_HEADS; h++) {
            const uint32_t n = marked_pages(h);
            assert_true(n > 3 && n < PAGES);
            /* All rounded keys, then the length of the longest value of each page that is left. */
            assert_int_equal(b.meter[h].bytes[METER_CHOOSE],
                             PAGES * lines(2 + 4 * LB_DIM + 32 * (2 + LB_DIM)) + OWN_KEYS +
                                 (PAGES - n) * LINE);
            assert_true(b.pick[h].attended);
        }
        lb_close(&b);
    }
}

/* Coordinates are made once of all keys, after the axes have been found; a token's lie in a row of
 * their own. */
static void coordinates_are_built_once(void **state)
{
    (void)state;
    const size_t axes = LB_DIM * LB_DIM * 4, scores = PAGES * 32 * lines(32 * 2);
    EACH_TYPE(i)
    {
        open_at(types[i], "loki:budget=100,rank=0.5,recent=16");
        expect(axes + scores, 2 * PAGES * page_keys());
        lb_row(&b, N + 1, false);
        expect(axes + scores, 0);
        lb_close(&b);
        open_at(types[i], "infinigen:budget=100,rank=0.5,dense=0"); /* axes are the queries' */
        expect(axes + scores, PAGES * page_keys());
        lb_row(&b, N + 1, false);
        expect(axes + scores, 0);
        lb_close(&b);
    }
}

static void every_head_looks_at_all_hashes(void **state)
{
    (void)state;
    enum { TABLES = 75, SINK_TOK = 4, HASHED = N + 1 - 64 };
    EACH_TYPE(i)
    {
        open_at(types[i], "magicpig:bits=8,tables=75,dense_every=0,sink=4,recent=64");
        for (uint32_t h = 0; h < LB_HEADS; h++) {
            const size_t codes = lines(HASHED * TABLES * 2) - SINK_TOK * TABLES * 2 / LINE * LINE;
            uint32_t n_page = 0;
            for (uint32_t p = 0; p * 32 < HASHED; p++) n_page += b.mask[h][p] != 0;
            assert_true(n_page > 1 && marked_lines(b.mask[h], SINK_TOK, HASHED) > 1);
            assert_int_equal(b.meter[h].bytes[METER_CHOOSE],
                             LB_GROUP * codes + n_page * page_keys() +
                                 LINE * marked_lines(b.mask[h], SINK_TOK, HASHED));
            /* For the mean of the keys, then for their hashes. */
            assert_int_equal(b.meter[h].bytes[METER_BUILD], 2 * ((HASHED + 31) / 32) * page_keys());
        }
        lb_close(&b);
    }
}

/* Rows are observed four at a time, each time over all keys. */
static void votes_are_built_by_walks_over_all_keys(void **state)
{
    (void)state;
    EACH_TYPE(i)
    {
        const size_t votes = lines((N - 32) * sizeof(float));
        open_at(types[i], "snapkv:budget=100");
        expect(0, observed(N - 32, N) + 2 * votes);
        lb_row(&b, N + 1, false);
        expect(0, 0);
        lb_close(&b);
        b.layer = 0;
        open_at(types[i], "pyramidkv:budget=100");
        expect(0, observed(N - 32, N) + 2 * votes);
        lb_close(&b);
        open_at(types[i], "adakv:budget=100"); /* the votes of both heads besides */
        expect(0, observed(N - 32, N) + (2 + LB_HEADS) * votes);
        lb_close(&b);
        /* Votes are made while the prompt is repeated, whose rows nobody counts; of all heads they
         * are gone over three times for the threshold, and the own ones twice more. */
        open_at(types[i], "kvzip:budget=100,sink=0,window=0");
        expect(0, (3 * LB_HEADS + 2) * lines(N * sizeof(float)));
        lb_row(&b, N + 1, false);
        expect(0, 0);
        lb_close(&b);
        open_at(types[i], "duo:sink=16,recent=64,gate=0.99");
        expect(0, observed(N - 32, N));
        lb_row(&b, N + 1, false);
        expect(0, 0);
        lb_close(&b);
        open_at(types[i], "loopserve:budget=100,first=1,every=16");
        expect(0, observed(N + 1 - 16, N + 1));
        lb_row(&b, N + 1, false);
        expect(0, 0);
        lb_close(&b);
        open_at(types[i], "infllm:budget=300,sink=32,recent=128,block=128,window=32");
        const uint32_t n_block = (N + 1 - 128) / 128;
        expect(n_block * LB_DIM * sizeof(float),
               observed(N + 1 - 32, N + 1) + n_block * 4 * page_keys());
        lb_row(&b, N + 1, false);
        expect(n_block * LB_DIM * sizeof(float), 0);
        lb_close(&b);
    }
}

/* h2o scores what lives, whose pages are read whole, and goes over its sums twice. */
static void what_lives_is_scored(void **state)
{
    (void)state;
    EACH_TYPE(i)
    {
        open_at(types[i], "h2o:budget=150,window=64");
        for (uint32_t h = 0; h < LB_HEADS; h++) {
            const size_t n_old = N + 1 - 75; /* half of the budget is newest tokens */
            assert_int_equal(b.meter[h].bytes[METER_BUILD], observed(N - 64, N));
            assert_int_equal(b.meter[h].bytes[METER_CHOOSE],
                             lines(n_old * sizeof(float)) + marked_pages(h) * page_keys() +
                                 OWN_KEYS + LINE * marked_lines(b.mask[h], 0, N + 1));
        }
        lb_close(&b);
    }
}

/* ---- lfps ---- */

/* Lines that rows of some of a page's tokens touch. */
static size_t row_lines(uint32_t tok, size_t row_bytes)
{
    uint8_t seen[PAGE_TOK * LB_DIM * 2 / LINE] = {0};
    size_t n = 0;
    for (uint32_t t = 0; t < PAGE_TOK; t++)
        for (size_t i = 0; (tok >> t & 1) && i < row_bytes; i++) {
            uint8_t *line = &seen[(t * row_bytes + i) / LINE];
            n += !*line;
            *line = 1;
        }
    return n * LINE;
}

/* Keys of marked tokens, the own page's of 16 bits: no line of the others but where they share it.
 */
static size_t token_keys(const uint32_t *mask)
{
    size_t bytes = row_lines(mask[PAGES], 2 * LB_DIM);
    for (uint32_t p = 0; p < PAGES; p++)
        if (mask[p] && b.geom.type_k == SAC_KV_Q8)
            bytes += row_lines(mask[p], LB_DIM / 4) + row_lines(mask[p], LB_DIM * 3 / 4) +
                     (size_t)4 * LB_DIM;
        else
            bytes += row_lines(mask[p], 2 * LB_DIM);
    return bytes;
}

/* What building has read: eight observations, both tables at each of 32 rows and once more to sum
 * up, the means of keys and values. */
static size_t lfps_built(const struct parts *p)
{
    size_t bytes = observed(N - 32, N) + PAGES * (page_keys() + page_values()) + 2 * OWN_KEYS;
    for (uint32_t i = 0; i < p->memory.n_table; i++)
        for (uint32_t pos = N - 32; pos <= N; pos++) {
            const uint32_t begin = pos == N ? 0 : 4; /* sinks are in no row */
            const size_t at = (p->memory.n_tok - 1 - pos + begin) * sizeof(float) % LINE;
            const size_t n = (pos + 1 - begin) * sizeof(float);
            bytes += lines(begin * sizeof(float) % LINE + n) + lines(at + n);
        }
    return bytes;
}

/* All candidates fit the budget, so that those which were scored are those which are read. */
static void lfps_reads_tables_and_single_keys(void **state)
{
    (void)state;
    static struct parts p;
    struct lfps_scratch w;
    EACH_TYPE(i)
    {
        open_at(types[i], "lfps:a=0.03,heads=group,bypass=1,budget=650");
        for (uint32_t h = 0; h < LB_HEADS; h++) assert_int_equal(b.pick[h].n_bypass, 0);
        /* The scratch is that of the last head. */
        const struct method_lane *l = &b.lane[LB_HEADS - 1];
        lfps_table_state(&p, &b.shape, 1, l->state);
        lfps_table_scratch(&w, &b.shape, 1, b.scratch);
        const size_t walk = (PAGES + 1) * 32 * sizeof(float);
        const size_t at = (p.memory.n_tok - 1 - N) * sizeof(float) % LINE;
        /* Sinks and newest tokens, for the sparsity. */
        size_t bytes = token_keys((const uint32_t[PAGES + 1]){0xf, [PAGES] = 0x7f << (OWN - 7)});
        bytes += 2 * (lines(walk) + lines(at + walk)); /* twice both tables */
        bytes += token_keys(w.cand);
        assert_true(token_keys(w.cand) < PAGES * page_keys() + OWN_KEYS);
        size_t ver = 0, sla = 0; /* entries of what was taken */
        for (uint32_t t = 0, line = UINT32_MAX; t <= N; t++)
            if (w.cand[t / 32] >> t % 32 & 1) {
                ver += t / 16 != line;
                line = t / 16;
            }
        for (size_t t = 0, line = SIZE_MAX; t <= N; t++)
            if (w.cand[t / 32] >> t % 32 & 1) {
                const size_t here = (p.memory.n_tok - 1 - N + t) / 16;
                sla += here != line;
                line = here;
            }
        assert_int_equal(l->meter->bytes[METER_CHOOSE], bytes + LINE * (ver + sla));
        assert_int_equal(l->meter->bytes[METER_BUILD], lfps_built(&p));
        lb_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scans_read_all_keys),
        cmocka_unit_test(summaries_are_read_whole),
        cmocka_unit_test(what_is_visited_is_read_once),
        cmocka_unit_test(coordinates_are_built_once),
        cmocka_unit_test(every_head_looks_at_all_hashes),
        cmocka_unit_test(votes_are_built_by_walks_over_all_keys),
        cmocka_unit_test(what_lives_is_scored),
        cmocka_unit_test(lfps_reads_tables_and_single_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
