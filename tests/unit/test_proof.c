/* test_proof.c: what psa_cert proves is true, on random keys and on keys made to hurt: the share of
 * every head's softmax mass that is read, computed here in double, is never below the proof. */
#include "engine/proof.h"
#include "lane_bench.h"
#include "methods/box.h"

static struct lane_bench b;
static uint64_t n_proved; /* choices that came with a proof */

enum keys { KEYS_RANDOM, KEYS_EQUAL, KEYS_OUTLIER, KEYS_HUGE, KEYS_CLUSTERED, N_KEYS };

static void make_keys(enum keys kind)
{
    lb_random_keys(&b, kind == KEYS_HUGE ? 300 : 2);
    for (uint32_t h = 0; h < LB_HEADS; h++)
        for (uint32_t t = 0; t < LB_TOK; t++)
            for (uint32_t c = 0; c < LB_DIM; c++) {
                float *k = &b.k[h][t][c];
                if (kind == KEYS_EQUAL) *k = b.k[h][0][c];
                if (kind == KEYS_OUTLIER && c == 7) *k *= 100;
                if (kind == KEYS_CLUSTERED) *k = b.k[h][t / 96 * 96][c] + 0.1f * *k;
            }
    lb_seal(&b);
}

/* What a choice is in truth. */
struct truth {
    double share;  /* the least of the heads' softmax masses that are read */
    double excess; /* |output - dense output| over what is proved of it, the worst head's */
};

static struct truth find_truth_of(uint32_t h, const float *q)
{
    const uint32_t n = b.lane[h].pos + 1;
    static double e[LB_TOK];
    double read = 0, all = 0, most = -INFINITY, off = 0, norm = 0;
    double out[LB_DIM] = {0}, dense[LB_DIM] = {0};
    for (uint32_t t = 0; t < n; t++) {
        e[t] = lb_logit(&b, q, h, t);
        most = fmax(most, e[t]);
    }
    for (uint32_t t = 0; t < n; t++) {
        const double x = exp(e[t] - most);
        all += x;
        read += lb_reads(&b, h, t) ? x : 0;
        for (uint32_t c = 0; c < LB_DIM; c++) {
            dense[c] += x * (double)b.v[h][t][c];
            if (lb_reads(&b, h, t)) out[c] += x * (double)b.v[h][t][c];
        }
    }
    for (uint32_t c = 0; c < LB_DIM; c++) {
        const double is = out[c] / read, want = dense[c] / all;
        off += (is - want) * (is - want);
        norm += is * is;
    }
    const struct method_pick *pick = &b.pick[h];
    const double bound = (1 - (double)pick->mass_proved) * ((double)pick->rest_norm + sqrt(norm));
    return (struct truth){read / all, sqrt(off) - bound};
}

/* Tokens of the own page are not rounded yet. */
static struct truth find_truth(uint32_t h)
{
    static float k[PAGE_TOK][LB_DIM], v[PAGE_TOK][LB_DIM];
    const uint32_t pos = b.lane[h].pos, own_at = pos / PAGE_TOK * PAGE_TOK;
    struct truth worst = {1, -INFINITY};
    memcpy(k, b.k[h][own_at], sizeof k);
    memcpy(v, b.v[h][own_at], sizeof v);
    page_read(b.k[h][own_at], b.v[h][own_at], &b.geom, b.lane[h].own, PAGE_TAIL,
              pos % PAGE_TOK + 1);
    for (uint32_t g = 0; g < LB_GROUP; g++) {
        const struct truth one = find_truth_of(h, b.q[h] + g * LB_DIM);
        worst.share = fmin(worst.share, one.share);
        worst.excess = fmax(worst.excess, one.excess);
    }
    memcpy(b.k[h][own_at], k, sizeof k);
    memcpy(b.v[h][own_at], v, sizeof v);
    return worst;
}

static const char *const bounds[] = {"box", "sphere", "shadow4", "shadow8"};
enum { N_BOUND = 4 };

/* Cases and the pages read of a setting; fails where a proof is wrong. */
static double prove_all(const char *spec, enum keys kind, uint32_t n_case, bool stops)
{
    uint64_t n_page = 0, n_read = 0;
    lb_open(&b, kind % 2 ? SAC_KV_Q8 : SAC_KV_F16, spec, 10 + kind);
    b.long_value = kind % 3 == 0 ? 100 : 0;
    make_keys(kind);
    for (uint32_t i = 0; i < n_case; i++) {
        lb_random_query(&b, i % 3 == 0 ? 0.2f : i % 3 == 1 ? 2 : 8);
        lb_row(&b, LB_TOK - 65 - i % 40, false);
        for (uint32_t h = 0; h < LB_HEADS; h++) {
            const struct truth is = find_truth(h);
            if (is.share < (double)b.pick[h].mass_proved - 1e-9)
                fail_msg("%s, keys %d: %.9f proved, %.9f read", spec, (int)kind,
                         (double)b.pick[h].mass_proved, is.share);
            if (is.excess > 1e-9)
                fail_msg("%s, keys %d: an output is %g farther off than proved", spec, (int)kind,
                         is.excess);
            if (stops) assert_true(b.pick[h].mass_proved > 0.8999f && is.share > 0.8999);
            n_proved += b.pick[h].mass_proved > 0;
            n_page += pick_page_count(&b.lane[h]);
            for (uint32_t p = 0; p < pick_page_count(&b.lane[h]); p++) n_read += b.mask[h][p] != 0;
        }
    }
    lb_close(&b);
    return (double)n_read / (double)n_page;
}

static void proofs_are_true(void **state)
{
    (void)state;
    const char *text = getenv("SAC_PROOF_CASES");
    const uint32_t n_case = text ? (uint32_t)strtoul(text, NULL, 10) : 40;
    for (int by = 0; by < N_BOUND; by++)
        for (enum keys kind = KEYS_RANDOM; kind < N_KEYS; kind++) {
            char stop[64], report[64];
            snprintf(stop, sizeof stop, "psa_cert:mass=0.9,by=%s", bounds[by]);
            snprintf(report, sizeof report, "psa_cert:mass=0.5,mode=report,by=%s", bounds[by]);
            const double read = prove_all(stop, kind, n_case, true);
            prove_all(report, kind, n_case, false);
            print_message("%-8s keys %d: %5.1f %% of the pages visited\n", bounds[by], (int)kind,
                          100 * read);
        }
    print_message("%llu choices proved\n", (unsigned long long)n_proved);
    assert_true(n_proved >= (uint64_t)n_case * N_BOUND * N_KEYS * LB_HEADS * 3 / 2);
}

/* Where a bound is met exactly there is nothing to spare: one step of f16 inwards, and the proof is
 * wrong. All tokens of all pages score 0; to 4 bits most are rounded against the query by half a
 * step in every channel, which is all that their length allows. */
static double make_tight(bool inwards)
{
    const float step = 0.125f;
    lb_open(&b, SAC_KV_F16, "psa_cert:mass=0.5,by=shadow4,recent=0", 30);
    for (uint32_t h = 0; h < LB_HEADS; h++)
        for (uint32_t t = 0; t < LB_TOK; t++)
            for (uint32_t c = 0; c < LB_DIM; c++) {
                const float end = (t + c) % 2 ? 7.5f * step : -7.5f * step;
                b.k[h][t][c] = t % PAGE_TOK < 2 ? end : 0;
            }
    lb_seal(&b);
    const size_t length_at = 2 + 4 * LB_DIM;
    for (uint32_t i = 0; i < LB_HEADS * LB_PAGES * PAGE_TOK && inwards; i++) {
        uint8_t *at = b.side + i / PAGE_TOK * b.side_stride + length_at + i % PAGE_TOK * 2;
        uint16_t length;
        memcpy(&length, at, 2);
        length = (uint16_t)(length - (length > 0));
        memcpy(at, &length, 2);
    }
    for (uint32_t h = 0; h < LB_HEADS; h++)
        for (uint32_t i = 0; i < LB_GROUP * LB_DIM; i++) b.q[h][i] = -40;
    lb_row(&b, LB_TOK - 70, false);
    const double spare = find_truth(0).share - (double)b.pick[0].mass_proved;
    assert_true(b.pick[0].mass_proved > 0.4f && !b.pick[0].dense);
    lb_close(&b);
    return spare;
}

static void outward_rounding_is_needed(void **state)
{
    (void)state;
    const double spare = make_tight(false);
    if (!(spare > 0 && spare < 1e-3)) fail_msg("%g to spare", spare);
    assert_true(make_tight(true) < -1e-3);
}

/* Reading all there is proves all, and nothing is left to be off by. */
static void a_proof_of_everything_leaves_nothing(void **state)
{
    (void)state;
    lb_open(&b, SAC_KV_F16, "psa_cert:mass=0.99999,by=box", 31);
    make_keys(KEYS_RANDOM);
    lb_random_query(&b, 2);
    lb_row(&b, 1000, false);
    assert_true(b.pick[0].mass_proved == 1 && b.pick[0].rest_norm == 0);
    lb_close(&b);
}

/* The tighter the bound the fewer pages; a box proves little. */
static void tighter_bounds_visit_less(void **state)
{
    (void)state;
    double read[N_BOUND];
    for (int by = 0; by < N_BOUND; by++) {
        char spec[64];
        snprintf(spec, sizeof spec, "psa_cert:mass=0.9,by=%s", bounds[by]);
        read[by] = prove_all(spec, KEYS_CLUSTERED, 30, true);
    }
    assert_true(read[3] <= read[2] && read[2] < read[0]);
}

static void rounding_is_outward(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x7f800000u; bits += 9973) {
        const float x = bits_float(bits);
        assert_true(f16_to_f32(box_half(x, true)) >= x && f16_to_f32(box_half(-x, false)) <= -x);
        assert_true(f16_to_f32(box_half(x, false)) <= x && f16_to_f32(box_half(-x, true)) >= -x);
    }
}

static void a_whole_wish_is_dense_and_a_bad_key_is_noticed(void **state)
{
    (void)state;
    lb_open(&b, SAC_KV_F16, "psa_cert:mass=1", 20);
    make_keys(KEYS_RANDOM);
    lb_random_query(&b, 2);
    lb_row(&b, 1000, false);
    assert_true(b.pick[0].dense && !b.pick[0].not_finite);
    lb_close(&b);
    for (int by = 0; by < N_BOUND; by++) {
        char spec[64];
        snprintf(spec, sizeof spec, "psa_cert:mass=0.5,by=%s", bounds[by]);
        lb_open(&b, SAC_KV_F16, spec, 21);
        lb_random_keys(&b, 2);
        b.k[0][333][5] = NAN;
        lb_seal(&b);
        lb_random_query(&b, 2);
        lb_row(&b, 1000, false);
        if (!b.pick[0].not_finite) fail_msg("%s reads a NaN's scores", spec);
        assert_false(b.pick[1].not_finite);
        lb_close(&b);
    }
}

static void an_output_of_zeros_is_wholly_off(void **state)
{
    (void)state;
    assert_true(proof_relative(4, 16) == 0.5);
    assert_true(proof_relative(4, 0) == 1);
    assert_true(proof_relative(0, 0) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(proofs_are_true),
        cmocka_unit_test(tighter_bounds_visit_less),
        cmocka_unit_test(outward_rounding_is_needed),
        cmocka_unit_test(a_proof_of_everything_leaves_nothing),
        cmocka_unit_test(rounding_is_outward),
        cmocka_unit_test(a_whole_wish_is_dense_and_a_bad_key_is_noticed),
        cmocka_unit_test(an_output_of_zeros_is_wholly_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
