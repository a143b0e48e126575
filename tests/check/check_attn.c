/* check_attn.c: attention over pages, writing and sealing, under every instruction set.
 *
 * Oracles: attention, see attn_problem.h; kv_write and seal, the bytes of ref. What a row is told
 * to read instead of everything is the matter of check_plan.c. */
#include "attn_problem.h"
#include "brief.h"

#include "base/half.h"

/* ---- Attention ---- */

static void test_lengths(void **state)
{
    const struct fixture *f = *state;
    const uint32_t lengths[] = {1, 31, 32, 33, 63, 64, 65, 300};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i += brief_by(5))
        for (size_t t = 0; t < N_TYPE; t++) {
            struct sequence s =
                sequence_make(f, geom_of(2, 64, types[t][0], types[t][1]), lengths[i], i);
            struct problem p = problem_make(&s, 3, 0, i + 10);
            check_all(f, &p, "lengths");
            mem_free(p.q);
            sequence_deinit(&s);
        }
}

static void test_shapes(void **state)
{
    const struct fixture *f = *state;
    const uint32_t dims[] = {32, 64, 96, 128, 160, 256, 512}, groups[] = {1, 2, 3, 4, 6, 7, 8, 20};
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++)
        for (size_t j = 0; j < sizeof groups / sizeof groups[0]; j += brief_by(5)) {
            const size_t t = (i + j) % N_TYPE;
            if (dims[i] > 128 && groups[j] > 4) continue;
            struct sequence s =
                sequence_make(f, geom_of(1, dims[i], types[t][0], types[t][1]), 171, i);
            struct problem p = problem_make(&s, groups[j], 70, j);
            check_all(f, &p, "shapes");
            mem_free(p.q);
            sequence_deinit(&s);
        }
}

/* Long enough for many panels and chunks; few rows at the end, their first inside a page. */
static void test_long(void **state)
{
    const struct fixture *f = *state;
    for (size_t t = 0; t < 3; t++)
        for (uint32_t d = 64; d <= 256; d *= 2) {
            struct sequence s = sequence_make(f, geom_of(2, d, types[t][0], types[t][1]), 2500, t);
            struct problem p = problem_make(&s, 4, 2500 - 45, t);
            check_all(f, &p, "long");
            mem_free(p.q);
            sequence_deinit(&s);
        }
}

static void test_window_and_softcap(void **state)
{
    const struct fixture *f = *state;
    const uint32_t windows[] = {0, 1, 31, 32, 33, 100, 512};
    for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i += brief_by(6))
        for (size_t t = 0; t < 3; t++) {
            struct sequence s = sequence_make(f, geom_of(1, 64, types[t][0], types[t][1]), 700, i);
            struct problem p = problem_make(&s, 2, 600 - 17 * (uint32_t)i, t);
            p.window = windows[i];
            p.softcap = i % 2 ? 3.0f : 0;
            check_all(f, &p, "window");
            mem_free(p.q);
            sequence_deinit(&s);
        }
}

/* Scores that rise and fall by hundreds: the running maximum must follow. */
static void test_steep(void **state)
{
    const struct fixture *f = *state;
    for (size_t t = 0; t < 3; t++) {
        struct sequence s = sequence_make(f, geom_of(1, 64, types[t][0], types[t][1]), 900, t);
        const size_t d = 64;
        for (uint32_t i = 0; i < s.n_tok; i++)
            for (size_t c = 0; c < d; c++)
                s.k[i * d + c] *= 0.02f * (float)i * (i % 97 == 3 ? 2.0f : 1.0f);
        sequence_store(&s, f->pool[0], &f->isa[0].ops);
        struct problem p = problem_make(&s, 3, 850, t);
        check_all(f, &p, "steep");
        mem_free(p.q);
        sequence_deinit(&s);
    }
}

/* ---- Independence of chunks, workers and neighbours (design D7) ---- */

static void test_invariance(void **state)
{
    const struct fixture *f = *state;
    const struct {
        uint32_t d, group, n_kv, n_tok, row0, window;
    } cases[] = {{64, 7, 2, 700, 0, 0}, {128, 1, 1, 600, 130, 0}, {64, 3, 1, 600, 40, 70}};
    const uint32_t chunks[] = {1, 7, 64, 512, 100000};
    if (is_brief()) return;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++)
        for (size_t t = 0; t < 3; t++) {
            struct sequence s = sequence_make(
                f, geom_of(cases[c].n_kv, cases[c].d, types[t][0], types[t][1]), cases[c].n_tok, c);
            struct problem p = problem_make(&s, cases[c].group, cases[c].row0, t);
            p.window = cases[c].window;
            for (size_t i = 1; i < N_ISA; i++) {
                const struct isa *isa = &f->isa[i];
                if (!isa->name) continue;
                struct result whole = result_make(&p), narrow = result_make(&p);
                attend_chunked(&isa->ops, f->pool[0], &p, p.n_row, &whole);
                attend_chunked(&isa->ops, f->pool[0], &p, 0, &narrow);
                for (size_t j = 0; j < sizeof chunks / sizeof chunks[0]; j++) {
                    if (chunks[j] == 1 && t > 0) continue; /* slow; the logic is the same */
                    struct result r = result_make(&p);
                    attend_chunked(&isa->ops, f->pool[1], &p, chunks[j], &r);
                    same_bits(&whole, &r, isa->name, "chunk");
                    result_free(&r);
                }
                for (int w = 1; w < 3; w++) {
                    struct result r = result_make(&p);
                    attend_chunked(&isa->ops, f->pool[w], &p, p.n_row, &r);
                    same_bits(&whole, &r, isa->name, "number of workers");
                    attend_chunked(&isa->ops, f->pool[w], &p, 0, &r);
                    same_bits(&narrow, &r, isa->name, "number of workers (decode)");
                    result_free(&r);
                }
                result_free(&whole);
                result_free(&narrow);
            }
            mem_free(p.q);
            sequence_deinit(&s);
        }
}

/* Contexts of several stretches, which are units of their own where rows are few: the same result
 * by any number of workers and in any chunks, beside rows that end before the border and behind it.
 */
static void test_stretches(void **state)
{
    const struct fixture *f = *state;
    const struct {
        uint32_t n_tok, row0, window;
    } cases[] = {{2180, 2000, 0}, {4400, 4360, 0}, {17000, 16990, 0}, {2180, 2000, 90}};
    const uint32_t chunks[] = {7, 33, 64};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c += brief_by(4))
        for (size_t t = 0; t < 3; t++) {
            const struct page_geom g = geom_of(2, c == 1 ? 128 : 64, types[t][0], types[t][1]);
            struct sequence s = sequence_make(f, g, cases[c].n_tok, c);
            struct problem p = problem_make(&s, 2, cases[c].row0, t);
            p.window = cases[c].window;
            check_all(f, &p, "stretches");
            for (size_t i = 1; i < N_ISA; i++) {
                const struct isa *isa = &f->isa[i];
                if (!isa->name) continue;
                struct result whole = result_make(&p), cut = result_make(&p);
                attend_chunked(&isa->ops, f->pool[0], &p, p.n_row, &whole);
                for (size_t j = 0; j < 2 * sizeof chunks / sizeof chunks[0]; j += brief_by(5)) {
                    attend_chunked(&isa->ops, f->pool[1 + j % 2], &p, chunks[j / 2], &cut);
                    same_bits(&whole, &cut, isa->name, "stretches of chunks");
                }
                result_free(&whole);
                result_free(&cut);
            }
            mem_free(p.q);
            sequence_deinit(&s);
        }
}

/* Prompt chunks and decode rows in one call give what each gives alone. The first chunk meets a
 * segment, which on some devices takes the whole call to another kernel. */
static void test_mixed_batch(void **state)
{
    const struct fixture *f = *state;
    const struct segment_view segment = {.end = 10};
    for (size_t t = 0; t < 4; t++) {
        const struct page_geom g = geom_of(2, t == 3 ? 128 : 64, types[t % 3][0], types[t % 3][1]);
        struct sequence s = sequence_make(f, g, 800, t);
        struct problem p = problem_make(&s, 4, 500, t);
        for (size_t i = 0; i < N_ISA; i++) {
            const struct isa *isa = &f->isa[i];
            if (!isa->name) continue;
            struct result alone = result_make(&p), mixed = result_make(&p);
            struct attn_run run[40];
            uint32_t n_run = 0, row = 0;
            while (row < p.n_row) {
                const bool decode = n_run % 3 == 1;
                uint32_t n = decode ? 1 : 5 + 11 * n_run % 60;
                n = n < p.n_row - row ? n : p.n_row - row;
                run[n_run] =
                    sequence_run(&s, row, p.row0 + row, n, decode ? ROW_DECODE : ROW_PROMPT);
                if (n_run == 0) run[0].segment = &segment, run[0].n_segment = 1;
                attend(&isa->ops, f->pool[0], &p, &run[n_run], 1, &alone);
                row += n;
                n_run++;
                assert_true(n_run < 40);
            }
            attend(&isa->ops, f->pool[2], &p, run, n_run, &mixed);
            same_bits(&alone, &mixed, isa->name, "other runs of the batch");
            result_free(&alone);
            result_free(&mixed);
        }
        mem_free(p.q);
        sequence_deinit(&s);
    }
}

/* ---- Invalid and extreme numbers ---- */

/* One token's key or value is not finite: rows before it must not notice, in any bit; rows from it
 * on give NaN or infinity somewhere. */
static void test_poison(void **state)
{
    const struct fixture *f = *state;
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t t = 0; t < 3; t++)
        for (size_t b = 0; b < 6; b += brief_by(6)) {
            const uint32_t at = 97 + 10 * (uint32_t)b, d = 64;
            struct sequence s = sequence_make(f, geom_of(1, d, types[t][0], types[t][1]), 400, t);
            struct problem p = problem_make(&s, 3, 0, t);
            p.window = b % 2 ? 90 : 0;
            for (size_t i = 0; i < N_ISA; i++) {
                const struct isa *isa = &f->isa[i];
                if (!isa->name) continue;
                struct result clean[2] = {result_make(&p), result_make(&p)};
                struct result dirty[2] = {result_make(&p), result_make(&p)};
                sequence_fill(&s, t);
                sequence_store(&s, f->pool[0], &f->isa[0].ops);
                attend_chunked(&isa->ops, f->pool[1], &p, p.n_row, &clean[0]);
                attend_chunked(&isa->ops, f->pool[1], &p, 0, &clean[1]);
                (b < 3 ? s.k : s.v)[at * d + 7 * b] = bad[b % 3];
                sequence_store(&s, f->pool[0], &f->isa[0].ops);
                attend_chunked(&isa->ops, f->pool[1], &p, p.n_row, &dirty[0]);
                attend_chunked(&isa->ops, f->pool[1], &p, 0, &dirty[1]);
                for (int m = 0; m < 2; m++) {
                    if (memcmp(clean[m].out, dirty[m].out, at * p.width * sizeof(float)) != 0)
                        fail_msg("%s: rows before an invalid %s change (type %d, mode %d)",
                                 isa->name, b < 3 ? "key" : "value", (int)t, m);
                    bool finite = true; /* the row of the token itself */
                    for (size_t c = 0; c < p.width; c++)
                        finite &= isfinite(dirty[m].out[at * p.width + c]) != 0;
                    /* A key of -inf (or +inf times a negative query) has weight 0: allowed. */
                    if (b != 1 && b != 2) assert_false(finite);
                    result_free(&clean[m]);
                    result_free(&dirty[m]);
                }
            }
            mem_free(p.q);
            sequence_deinit(&s);
        }
}

/* Queries that are zero, denormal, huge or invalid: no crash, valid ones correct. */
static void test_extreme_queries(void **state)
{
    const struct fixture *f = *state;
    const float scales[] = {0, 1e-42f, 1e-20f, 1e4f};
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i += brief_by(3)) {
        struct sequence s = sequence_make(f, geom_of(1, 64, SAC_KV_F16, SAC_KV_F16), 200, i);
        struct problem p = problem_make(&s, 4, 160, i);
        for (size_t j = 0; j < p.n_row * p.width; j++) p.q[j] *= scales[i];
        if (scales[i] > 1) p.scale /= scales[i];
        check_all(f, &p, "extreme queries");
        for (size_t j = 0; j < p.n_row * p.width; j += 64 * 3) p.q[j] = j % 2 ? NAN : INFINITY;
        for (size_t k = 0; k < N_ISA; k++) {
            if (!f->isa[k].name) continue;
            struct result r = result_make(&p);
            attend_chunked(&f->isa[k].ops, f->pool[1], &p, p.n_row, &r);
            attend_chunked(&f->isa[k].ops, f->pool[1], &p, 0, &r);
            assert_true(r.out[0] != r.out[0] || fabsf(r.out[0]) == INFINITY);
            result_free(&r);
        }
        mem_free(p.q);
        sequence_deinit(&s);
    }
}

/* ---- Writing and sealing ---- */

/* Bytes of a float picked from a set that visits every branch of the conversions. */
static float odd_float(uint64_t *seed)
{
    const uint64_t r = rng_next(seed);
    switch (r % 12) {
    case 0: return 0.0f;
    case 1: return -0.0f;
    case 2: return bits_float((uint32_t)(r >> 32) & 0x807fffffu); /* denormal */
    case 3: return rng_float(seed) * 6.1e-5f;                     /* denormal in f16 */
    case 4: return rng_float(seed) * 65504.0f;
    case 5: return rng_float(seed) * 1e-7f;
    default: return rng_normal(seed);
    }
}

static void test_write_and_seal_bits(void **state)
{
    const struct fixture *f = *state;
    const uint32_t dims[] = {32, 64, 96, 128, 160, 256, 512};
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i += brief_by(3))
        for (size_t t = 0; t < N_TYPE; t++) {
            struct sequence s;
            sequence_init(&s, geom_of(3, dims[i], types[t][0], types[t][1]), 100);
            uint64_t seed = i * 10 + t;
            const size_t n = (size_t)s.n_tok * 3 * dims[i];
            for (size_t j = 0; j < n; j++) {
                const bool invalid = rng_next(&seed) % 997 == 0 && j < n / 2;
                s.k[j] = invalid ? (j % 2 ? NAN : -INFINITY) : odd_float(&seed);
                s.v[j] = invalid ? (j % 3 ? NAN : 1e6f) : odd_float(&seed);
                if (j / dims[i] % 5 == 2) s.k[j] = 3.25f, s.v[j] = 0; /* constant channels */
            }
            sequence_store(&s, f->pool[1], &f->isa[0].ops);
            const size_t tail_bytes = s.n_page * (size_t)3 * s.geom.tail_bytes;
            uint8_t *tail = mem_alloc(tail_bytes), *sealed = mem_alloc(s.pool_bytes);
            memcpy(tail, s.tail, tail_bytes);
            memcpy(sealed, s.pool, s.pool_bytes);
            for (size_t k = 1; k < N_ISA; k++) {
                if (!f->isa[k].name) continue;
                memset(s.tail, 0, tail_bytes);
                memset(s.pool, 0, s.pool_bytes);
                sequence_store(&s, f->pool[1], &f->isa[k].ops);
                if (memcmp(tail, s.tail, tail_bytes) != 0)
                    fail_msg("%s: tails differ, d %u types %zu", f->isa[k].name, dims[i], t);
                if (memcmp(sealed, s.pool, s.pool_bytes) != 0)
                    fail_msg("%s: sealed pages differ, d %u types %zu", f->isa[k].name, dims[i], t);
            }
            mem_free(tail);
            mem_free(sealed);
            sequence_deinit(&s);
        }
}

/* A q8 value is within half a step (and f32's rounding of it) of the tail's value; 16-bit pages are
 * exact; unseal gives back what was read. */
static void test_seal_round_trip(void **state)
{
    const struct fixture *f = *state;
    const uint32_t d = 96;
    for (size_t t = 0; t < N_TYPE; t++) {
        struct sequence s = sequence_make(f, geom_of(1, d, types[t][0], types[t][1]), PAGE_TOK, t);
        float tail[2][PAGE_TOK * 96], sealed[2][PAGE_TOK * 96], again[2][PAGE_TOK * 96];
        uint8_t *copy = mem_calloc(1, s.geom.tail_bytes);
        page_read(tail[0], tail[1], &s.geom, s.tail, PAGE_TAIL, PAGE_TOK);
        page_read(sealed[0], sealed[1], &s.geom, s.pool, PAGE_SEALED, PAGE_TOK);
        page_unseal(&s.geom, copy, s.pool, 20);
        page_read(again[0], again[1], &s.geom, copy, PAGE_TAIL, 20);
        for (uint32_t c = 0; c < d; c++) {
            float min = INFINITY, max = -INFINITY;
            for (uint32_t i = 0; i < PAGE_TOK; i++) {
                min = fminf(min, tail[0][i * d + c]);
                max = fmaxf(max, tail[0][i * d + c]);
            }
            for (uint32_t i = 0; i < PAGE_TOK; i++) {
                const uint32_t at = i * d + c;
                float amax = 0;
                for (uint32_t b = c / 32 * 32; b < c / 32 * 32 + 32; b++)
                    amax = fmaxf(amax, fabsf(tail[1][i * d + b]));
                /* steps are rounded up by at most 2^-10 */
                const float k_step = (max - min) / 255 * (1 + 0x1p-10f);
                const float v_step = amax / 127 * (1 + 0x1p-10f);
                const bool q8 = types[t][0] == SAC_KV_Q8;
                const float dk = fabsf(sealed[0][at] - tail[0][at]);
                const float dv = fabsf(sealed[1][at] - tail[1][at]);
                assert_true(dk <= (q8 ? k_step * 0.5001f + fabsf(max) * 0x1p-23f : 0));
                assert_true(dv <= (q8 ? v_step * 0.5001f : 0));
                if (i >= 20) continue;
                assert_true(fabsf(again[0][at] - sealed[0][at]) <= fabsf(sealed[0][at]) * 0x1p-11f);
                assert_true(fabsf(again[1][at] - sealed[1][at]) <=
                            fabsf(sealed[1][at]) * 0x1p-11f + 0x1p-25f);
            }
        }
        mem_free(copy);
        sequence_deinit(&s);
    }
}

/* Sealing an invalid key spoils its channel of the page, an invalid value its block. */
static void test_seal_invalid(void **state)
{
    const struct fixture *f = *state;
    struct sequence s = sequence_make(f, geom_of(1, 64, SAC_KV_Q8, SAC_KV_Q8), PAGE_TOK, 1);
    s.k[5 * 64 + 10] = INFINITY;
    s.v[6 * 64 + 40] = NAN;
    sequence_store(&s, f->pool[0], &f->isa[0].ops);
    float k[PAGE_TOK * 64], v[PAGE_TOK * 64];
    page_read(k, v, &s.geom, s.pool, PAGE_SEALED, PAGE_TOK);
    for (uint32_t i = 0; i < PAGE_TOK * 64; i++) {
        assert_int_equal(isnan(k[i]) != 0, i % 64 == 10);
        assert_int_equal(isnan(v[i]) != 0, i / 64 == 6 && i % 64 >= 32);
    }
    sequence_deinit(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_seal_round_trip),
        cmocka_unit_test(test_seal_invalid),
        cmocka_unit_test(test_write_and_seal_bits),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_long),
        cmocka_unit_test(test_window_and_softcap),
        cmocka_unit_test(test_steep),
        cmocka_unit_test(test_invariance),
        cmocka_unit_test(test_stretches),
        cmocka_unit_test(test_mixed_batch),
        cmocka_unit_test(test_poison),
        cmocka_unit_test(test_extreme_queries),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
