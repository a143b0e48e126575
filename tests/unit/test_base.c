/* test_base.c: the base layer. Messages, allocation that fails on demand, the arena, string
 * buffers, every 16-bit float, and the thread pool (run it under TSan too). */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/folder.h"
#include "base/half.h"
#include "base/input.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/strbuf.h"
#include "base/textfile.h"
#include "base/workers.h"
#include "ops/cpu/detect.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- status ---- */

static void test_error_set(void **state)
{
    (void)state;
    sac_error err;
    assert_int_equal(error_set(NULL, SAC_ERR_IO, "x"), SAC_ERR_IO);
    assert_int_equal(error_set(&err, SAC_ERR_ARG, "key '%s' is %d", "n_ctx", 7), SAC_ERR_ARG);
    assert_string_equal(err.msg, "key 'n_ctx' is 7");
    error_set(&err, SAC_ERR_FORMAT, "a%sb", "\n\x1b[2J\x7f");
    assert_string_equal(err.msg, "a??[2J?b");
    char text[2000];
    memset(text, 'q', sizeof text);
    text[sizeof text - 1] = 0;
    error_set(&err, SAC_ERR_FORMAT, "%s", text);
    assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
}

static void test_error_prefix(void **state)
{
    (void)state;
    sac_error err;
    assert_int_equal(error_prefix(NULL, SAC_ERR_IO, "x"), SAC_ERR_IO);
    error_set(&err, SAC_ERR_IO, "inner");
    assert_int_equal(error_prefix(&err, SAC_ERR_FORMAT, "file %d", 3), SAC_ERR_FORMAT);
    assert_string_equal(err.msg, "file 3: inner");
    /* Of two long texts the beginning of each place survives, whatever their lengths. */
    char text[600];
    for (size_t n = 490; n < 530; n++) {
        memset(text, 'p', n);
        text[n] = 0;
        error_set(&err, SAC_ERR_IO, "inner");
        error_prefix(&err, SAC_ERR_IO, "%s", text);
        const size_t kept = n < sizeof err.msg ? n : sizeof err.msg - 1;
        assert_memory_equal(err.msg, text, kept);
        assert_true(strlen(err.msg) < sizeof err.msg);
        if (n + 8 < sizeof err.msg) assert_string_equal(err.msg + n, ": inner");
    }
}

static void test_status_names(void **state)
{
    (void)state;
    for (int a = SAC_OK; a <= SAC_ERR_CANCELLED; a++) {
        assert_string_not_equal(sac_status_name((sac_status)a), "unknown status");
        for (int b = SAC_OK; b < a; b++)
            assert_string_not_equal(sac_status_name((sac_status)a), sac_status_name((sac_status)b));
    }
    assert_string_equal(sac_status_name((sac_status)99), "unknown status");
}

/* ---- mem ---- */

static void test_mem(void **state)
{
    (void)state;
    const uint64_t before = mem_count();
    void *a = mem_alloc(0), *b = mem_calloc(0, 8);
    uint8_t *c = mem_calloc(3, 5);
    assert_true(a && b && c);
    for (int i = 0; i < 15; i++) assert_int_equal(c[i], 0);
    c[0] = 77;
    c = mem_realloc(c, 100000);
    assert_int_equal(c[0], 77);
    assert_null(mem_calloc(SIZE_MAX / 2, 3));
    char *s = mem_strndup("abcdef", 3), *t = mem_strdup("xyz");
    assert_string_equal(s, "abc");
    assert_string_equal(t, "xyz");
    assert_int_equal(mem_count() - before, 7);
    mem_free(NULL);
    mem_free(a), mem_free(b), mem_free(c), mem_free(s);
    sac_free(t);
}

static void test_mem_map(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 4096, (2 << 20) - 1, 2 << 20, (2 << 20) + 1, 9 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint8_t *p = mem_map(sizes[i]);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % (2 << 20), 0);
        for (size_t at = 0; at < sizes[i]; at += 997) {
            assert_int_equal(p[at], 0);
            p[at] = 1;
        }
        mem_unmap(p, sizes[i]);
    }
    assert_null(mem_map(SIZE_MAX));
    mem_unmap(NULL, 100);
}

static void test_mem_fail(void **state)
{
    (void)state;
    mem_fail_after(3);
    void *a = mem_alloc(1), *b = mem_calloc(1, 1);
    assert_true(a && b);
    /* The third and all after it, of every kind. */
    assert_null(mem_alloc(1));
    assert_null(mem_calloc(1, 1));
    assert_null(mem_realloc(a, 10)); /* and `a` stays */
    assert_null(mem_map(1));
    assert_null(mem_strdup("x"));
    mem_fail_after(0);
    void *c = mem_alloc(1);
    assert_non_null(c);
    mem_free(a), mem_free(b), mem_free(c);
}

static size_t plan(struct arena *a, float **x, uint8_t **y, double **z)
{
    *x = arena_take(a, 5, sizeof **x);
    *y = arena_take(a, 0, 1);
    *z = arena_take(a, 9, sizeof **z);
    return a->used;
}

static void test_arena(void **state)
{
    (void)state;
    float *x;
    uint8_t *y;
    double *z;
    struct arena a = {0};
    const size_t bytes = plan(&a, &x, &y, &z);
    assert_int_equal(bytes, 64 + 0 + 128);
    assert_true(!x && !y && !z);
    uint8_t *block = mem_map(bytes);
    assert_non_null(block);
    struct arena b = {.base = block, .capacity = bytes};
    assert_int_equal(plan(&b, &x, &y, &z), bytes);
    assert_ptr_equal(x, block);
    assert_ptr_equal(y, block + 64);
    assert_ptr_equal(z, block + 64);
    mem_unmap(block, bytes);
}

/* ---- strbuf ---- */

static void test_strbuf(void **state)
{
    (void)state;
    struct strbuf b = {0};
    size_t n = 0;
    char *text = strbuf_detach(&b, &n);
    assert_string_equal(text, "");
    assert_int_equal(n, 0);
    mem_free(text);
    for (int i = 0; i < 1000; i++) strbuf_addf(&b, "%d,", i);
    strbuf_add(&b, "a\0b", 3);
    strbuf_adds(&b, "!");
    assert_int_equal(b.n, 10 * 2 + 90 * 3 + 900 * 4 + 4);
    assert_memory_equal(b.data, "0,1,2,", 6);
    assert_memory_equal(b.data + b.n - 8, "999,a\0b!", 9); /* with the NUL */
    strbuf_reset(&b);
    assert_int_equal(b.n, 0);
    assert_string_equal(b.data, "");
    strbuf_adds(&b, "again");
    text = strbuf_detach(&b, NULL);
    assert_string_equal(text, "again");
    assert_null(b.data);
    mem_free(text);
    strbuf_deinit(&b);
}

static void test_strbuf_fail(void **state)
{
    (void)state;
    struct strbuf b = {0};
    char line[64];
    memset(line, 'x', sizeof line);
    strbuf_add(&b, line, 60);
    mem_fail_after(1);
    strbuf_add(&b, line, 60);
    mem_fail_after(0);
    assert_true(b.failed);
    assert_int_equal(b.n, 60); /* what was there stays */
    strbuf_adds(&b, "y");      /* and later appends do nothing */
    strbuf_addf(&b, "%d", 1);
    assert_int_equal(b.n, 60);
    assert_null(strbuf_detach(&b, NULL));
    assert_null(b.data);
}

/* ---- half ---- */

/* The value of a 16-bit float with `n_man` bits behind the point, by the definition of IEEE 754. */
static double small_float_value(uint32_t bits, int n_man)
{
    const int n_exp = 15 - n_man, bias = (1 << (n_exp - 1)) - 1;
    const int exp = (int)(bits >> n_man) & ((1 << n_exp) - 1);
    const int man = (int)(bits & ((1u << n_man) - 1));
    const double sign = bits & 0x8000u ? -1 : 1;
    if (exp == (1 << n_exp) - 1) return man ? (double)NAN : sign * (double)INFINITY;
    if (exp == 0) return sign * ldexp(man, 1 - bias - n_man);
    return sign * ldexp(man + (1 << n_man), exp - bias - n_man);
}

static void test_half_widen(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        const double f16 = small_float_value(h, 10), bf16 = small_float_value(h, 7);
        const float a = f16_to_f32((uint16_t)h), b = bf16_to_f32((uint16_t)h);
        assert_int_equal(isnan(a) != 0, isnan(f16) != 0);
        assert_int_equal(isnan(b) != 0, isnan(bf16) != 0);
        if (!isnan(f16)) assert_int_equal(float_bits(a), float_bits((float)f16));
        if (!isnan(bf16)) assert_int_equal(float_bits(b), float_bits((float)bf16));
        /* And back: the same bits, but for signalling NaNs, which turn quiet. */
        const uint32_t quiet16 = isnan(f16) ? 0x200u : 0, quiet_b = isnan(bf16) ? 0x40u : 0;
        assert_int_equal(f32_to_f16(a), h | quiet16);
        assert_int_equal(f32_to_bf16(b), h | quiet_b);
    }
}

/* Rounding, told by the two neighbours: around every value and every midpoint of two values. */
static void check_round(uint32_t h, int n_man, uint16_t (*narrow)(float))
{
    const double low = small_float_value(h, n_man), high = small_float_value(h + 1, n_man);
    const uint32_t even = h & 1 ? h + 1 : h;
    /* Beyond the largest finite value rounding goes on as if the next one were finite. */
    const double next = isinf(high) ? low + (low - small_float_value(h - 1, n_man)) : high;
    const float middle = (float)((low + next) / 2);
    assert_true((double)middle == (low + next) / 2 || isinf(middle));
    if (isinf(middle)) return; /* bf16: the midpoint to infinity is no f32 */
    assert_int_equal(narrow(middle), even);
    assert_int_equal(narrow(-middle), even | 0x8000u);
    assert_int_equal(narrow(nextafterf(middle, 0)), h);
    assert_int_equal(narrow(nextafterf(middle, INFINITY)), h + 1);
    assert_int_equal(narrow(-nextafterf(middle, INFINITY)), (h + 1) | 0x8000u);
}

static uint16_t narrow_f16(float f)
{
    return f32_to_f16(f);
}

static uint16_t narrow_bf16(float f)
{
    return f32_to_bf16(f);
}

static void test_half_round(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7c00; h++) check_round(h, 10, narrow_f16);
    for (uint32_t h = 0; h < 0x7f80; h++) check_round(h, 7, narrow_bf16);
    assert_int_equal(f32_to_f16(INFINITY), 0x7c00);
    assert_int_equal(f32_to_f16(-3e38f), 0xfc00);
    assert_int_equal(f32_to_bf16(bits_float(0x7f7fffffu)), 0x7f80); /* FLT_MAX rounds up */
}

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("f16c"))) static uint16_t hardware_f16(float f)
{
    return (uint16_t)_cvtss_sh(f, 0);
}

__attribute__((target("f16c"))) static float hardware_f32(uint16_t h)
{
    return _cvtsh_ss(h);
}

/* Bit for bit what the CPU does, NaN payloads included. */
static void test_half_hardware(void **state)
{
    (void)state;
    if (!(detect_features() & DETECT_AVX2)) skip();
    for (uint32_t h = 0; h < 65536; h++)
        assert_int_equal(float_bits(f16_to_f32((uint16_t)h)),
                         float_bits(hardware_f32((uint16_t)h)));
    for (uint64_t u = 0; u <= UINT32_MAX; u += 1021) {
        const float f = bits_float((uint32_t)u);
        if (f32_to_f16(f) != hardware_f16(f)) fail_msg("f32 bits %08x", (uint32_t)u);
    }
}
#endif

/* ---- workers ---- */

#define ITEMS_MAX 5000u

struct tally {
    uint32_t n_worker;
    uint8_t hits[ITEMS_MAX]; /* by item, written without atomics: TSan sees any double hand-out */
    uint32_t seen[8];        /* runs by worker */
};

static void count_item(void *arg, uint32_t item_i, uint32_t worker_i)
{
    struct tally *t = arg;
    if (item_i >= ITEMS_MAX || worker_i >= t->n_worker)
        fail_msg("item %u, worker %u", item_i, worker_i);
    t->hits[item_i]++;
}

static void count_worker(void *arg, uint32_t worker_i)
{
    struct tally *t = arg;
    t->seen[worker_i]++;
}

static void test_workers_items(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {0, 1, 2, 3, 7, 8, 9, 64, 1000, ITEMS_MAX};
    static struct tally t;
    for (uint32_t n = 1; n <= 8; n++) {
        struct workers *w;
        assert_int_equal(workers_create(&w, n, NULL), SAC_OK);
        assert_int_equal(workers_count(w), n);
        for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
            for (uint32_t again = 1; again <= 5; again++) {
                if (again == 1) t = (struct tally){.n_worker = n};
                workers_for(w, sizes[k], count_item, &t);
                uint32_t n_wrong = 0;
                for (uint32_t i = 0; i < ITEMS_MAX; i++)
                    n_wrong += t.hits[i] != (i < sizes[k] ? again : 0);
                assert_int_equal(n_wrong, 0);
            }
        }
        workers_destroy(w);
    }
}

static void count_span(void *arg, uint32_t begin, uint32_t end, uint32_t worker_i)
{
    if (begin >= end || end - begin > 4) fail_msg("span %u..%u", begin, end);
    for (uint32_t i = begin; i < end; i++) count_item(arg, i, worker_i);
}

static void test_workers_spans(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {0, 1, 2, 3, 7, 8, 9, 64, 1000, ITEMS_MAX};
    static struct tally t;
    for (uint32_t n = 1; n <= 8; n++) {
        struct workers *w;
        assert_int_equal(workers_create(&w, n, NULL), SAC_OK);
        for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
            t = (struct tally){.n_worker = n};
            for (uint32_t again = 1; again <= 5; again++)
                workers_for_span(w, sizes[k], 4, count_span, &t);
            for (uint32_t i = 0; i < ITEMS_MAX; i++)
                if (t.hits[i] != (i < sizes[k] ? 5 : 0)) fail_msg("item %u of %u", i, sizes[k]);
        }
        workers_destroy(w);
    }
}

static void test_workers_run(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 8; n++) {
        struct workers *w;
        assert_int_equal(workers_create(&w, n, NULL), SAC_OK);
        struct tally t = {.n_worker = n};
        for (uint32_t round = 1; round <= 50; round++) {
            workers_run(w, count_worker, &t);
            for (uint32_t i = 0; i < 8; i++) assert_int_equal(t.seen[i], i < n ? round : 0);
            if (round % 10 == 0) usleep(3000); /* long enough that all fall asleep */
        }
        workers_destroy(w);
    }
}

/* Threads that have no CPU are not waited for, and what they come too late for is not done twice:
 * all on one CPU, of which each takes what it gets. */
static void test_workers_without_cpus(void **state)
{
    (void)state;
    static struct tally t;
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&one);
    for (size_t cpu = 0; CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    struct workers *w;
    assert_int_equal(workers_create(&w, 8, NULL), SAC_OK);
    t = (struct tally){.n_worker = 8};
    for (int again = 0; again < 100; again++) {
        workers_for(w, 200, count_item, &t);
        workers_for_span(w, 200, 4, count_span, &t);
        if (again % 20 == 0) workers_run(w, count_worker, &t);
    }
    for (uint32_t i = 0; i < 200; i++) assert_int_equal(t.hits[i], 200);
    for (uint32_t i = 0; i < 8; i++) assert_int_equal(t.seen[i], 5);
    workers_destroy(w);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

/* A program that waits for SIGTERM in one thread is not ended by it in one of ours. */
static void test_workers_leave_signals_alone(void **state)
{
    (void)state;
    const struct timespec second = {.tv_sec = 1};
    struct workers *w;
    sac_error err;
    sigset_t set, before;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    assert_int_equal(workers_create(&w, 4, &err), SAC_OK);
    pthread_sigmask(SIG_BLOCK, &set, &before);
    kill(getpid(), SIGTERM);
    assert_int_equal(sigtimedwait(&set, NULL, &second), SIGTERM);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    workers_destroy(w);
}

static void test_workers_limits(void **state)
{
    (void)state;
    struct workers *w = NULL;
    sac_error err = {0};
    assert_true(workers_default_count() >= 1);
    assert_int_equal(workers_create(&w, 0, &err), SAC_OK);
    assert_int_equal(workers_count(w), workers_default_count());
    workers_destroy(w);
    workers_destroy(NULL);
    assert_int_equal(workers_create(&w, 100000, &err), SAC_ERR_ARG);
    assert_non_null(strstr(err.msg, "100000"));
    /* Whichever allocation fails, nothing leaks and no thread stays (ASan and TSan look). */
    for (uint64_t at = 1; at <= 4; at++) {
        mem_fail_after(at);
        const sac_status status = workers_create(&w, 4, &err);
        mem_fail_after(0);
        assert_int_equal(status, SAC_ERR_MEMORY);
    }
}

/* Counts microseconds: never more than passed on the system's clock around it. */
static void test_clock(void **state)
{
    (void)state;
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    const uint64_t a = clock_us();
    usleep(1000);
    const uint64_t b = clock_us();
    clock_gettime(CLOCK_MONOTONIC, &end);
    const double us =
        1e6 * (double)(end.tv_sec - begin.tv_sec) + 1e-3 * (double)(end.tv_nsec - begin.tv_nsec);
    assert_true(b >= a + 1000 && (double)(b - a) <= us + 1);
}

static void test_folder(void **state)
{
    (void)state;
    char dir[] = P_tmpdir "/saccade-XXXXXX";
    struct strbuf deep = {0}, file = {0};
    sac_error err = {0};
    assert_non_null(mkdtemp(dir));
    strbuf_addf(&deep, "%s/a//b/c/", dir);
    strbuf_addf(&file, "%s/a/file", dir);
    for (int i = 0; i < 2; i++) assert_int_equal(folder_make(deep.data, 0777, &err), SAC_OK);
    assert_int_equal(textfile_write_in(deep.data, "x", "x", 1, &err), SAC_OK);
    assert_int_equal(textfile_write(file.data, "x", 1, &err), SAC_OK);
    assert_int_equal(folder_make(file.data, 0777, &err), SAC_ERR_IO);
    assert_non_null(strstr(err.msg, "/a/file: Not a directory"));
    strbuf_adds(&file, "/below");
    assert_int_equal(folder_make(file.data, 0777, &err), SAC_ERR_IO);
    assert_non_null(strstr(err.msg, "/a/file/below: Not a directory"));
    assert_int_equal(folder_make("", 0777, &err), SAC_ERR_IO);
    assert_string_equal(err.msg, "cannot make the folder : No such file or directory");
    strbuf_deinit(&deep);
    strbuf_deinit(&file);
    static const char *const left[] = {"a/b/c/x", "a/b/c", "a/b", "a/file", "a", ""};
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
        char path[64];
        snprintf(path, sizeof path, "%s/%s", dir, left[i]);
        assert_int_equal(remove(path), 0);
    }
}

static void test_textfile(void **state)
{
    (void)state;
    char dir[] = P_tmpdir "/saccade-XXXXXX";
    struct strbuf path = {0}, text = {0};
    sac_error err = {0};
    assert_non_null(mkdtemp(dir));
    strbuf_addf(&path, "%s/a", dir);
    assert_int_equal(textfile_write(path.data, "longer than what follows", 24, &err), SAC_OK);
    assert_int_equal(textfile_write_in(dir, "a", "x\0y", 3, &err), SAC_OK);
    assert_int_equal(input_read(&text, path.data, &err), SAC_OK);
    assert_int_equal(text.n, 3);
    assert_memory_equal(text.data, "x\0y", 3);
    assert_int_equal(textfile_write_in(path.data, "b", "x", 1, &err), SAC_ERR_IO);
    assert_non_null(strstr(err.msg, "/a/b: Not a directory"));
    assert_int_equal(textfile_write("/dev/full", "x", 1, &err), SAC_ERR_IO);
    assert_string_equal(err.msg, "cannot write /dev/full: No space left on device");
    assert_int_equal(textfile_replaceable(path.data, &err), SAC_OK);
    remove(path.data);
    assert_int_equal(textfile_replaceable(path.data, &err), SAC_OK);
    assert_int_equal(textfile_replaceable("/dev/full", &err), SAC_ERR_IO);
    assert_string_equal(err.msg, "cannot write /dev/full: not a regular file");
    assert_int_equal(textfile_replaceable(dir, &err), SAC_ERR_IO);
    assert_non_null(strstr(err.msg, ": Is a directory"));
    rmdir(dir);
    strbuf_deinit(&path);
    strbuf_deinit(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_error_set),
        cmocka_unit_test(test_error_prefix),
        cmocka_unit_test(test_status_names),
        cmocka_unit_test(test_mem),
        cmocka_unit_test(test_mem_map),
        cmocka_unit_test(test_mem_fail),
        cmocka_unit_test(test_arena),
        cmocka_unit_test(test_strbuf),
        cmocka_unit_test(test_strbuf_fail),
        cmocka_unit_test(test_textfile),
        cmocka_unit_test(test_half_widen),
        cmocka_unit_test(test_half_round),
#if defined(__x86_64__)
        cmocka_unit_test(test_half_hardware),
#endif
        cmocka_unit_test(test_workers_leave_signals_alone),
        cmocka_unit_test(test_workers_items),
        cmocka_unit_test(test_workers_spans),
        cmocka_unit_test(test_workers_run),
        cmocka_unit_test(test_workers_without_cpus),
        cmocka_unit_test(test_workers_limits),
        cmocka_unit_test(test_clock),
        cmocka_unit_test(test_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
