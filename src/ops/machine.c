/* machine.c: measures read bandwidth and multiply peaks with loops that do nothing else.
 *
 * Arithmetic: register-only loops in inline assembly, since a compiler would simplify any other; so
 * no file of the right ISA is needed and the features decide which loops run. Each loop keeps more
 * independent sums than latency times throughput (FMA: 4 cycles * 2; AMX: 52 cycles / 16).
 * Registers start at zero: on denormals or NaN left in them a CPU may be slower. Memory: every
 * worker reads its own part as four streams with prefetches 768 bytes ahead, and in the next pass
 * as one stream without: a Xeon reads 15 % more in the first way (its hardware follows one stream
 * less far), a Zen 4 a third more in the second. The best of several short rounds counts: noise
 * only ever takes away. */
#include "ops/machine.h"

#include "base/mem.h"
#include "ops/cpu/detect.h"
#include "ops/cpu/tile_config.h"

#include <stddef.h>
#include <unistd.h>

#define READ_BYTES   ((size_t)512 << 20)
#define READ_US      200000u /* time of all read passes */
#define PEAK_ROUND   5
#define PEAK_US      8000u /* of one round */
#define N_STREAM     4u
#define PREFETCH_FAR 768u

/* ---- Arithmetic ---- */

/* Runs `n` iterations of a loop of independent multiply-adds. */
typedef void (*peak_fn)(uint64_t n);

struct peak {
    peak_fn fn;
    uint32_t features;
    double ops_per_turn;
    size_t out; /* offset of the result in struct machine_limits */
};

#define SUMS_12(op) op(0) op(1) op(2) op(3) op(4) op(5) op(6) op(7) op(8) op(9) op(10) op(11)

#if defined(__x86_64__)

#define VECTOR_CLOBBERS                                                                            \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",       \
        "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc"

/* Zeroing a ymm register zeroes its upper half too. */
#define ZERO(i)   "vpxor %%ymm" #i ", %%ymm" #i ", %%ymm" #i "\n\t"
#define ZERO_ALL  SUMS_12(ZERO) ZERO(12) ZERO(13) ZERO(14) ZERO(15)
#define LOOP(ops) ZERO_ALL "1:\n\t" ops "dec %0\n\tjnz 1b\n\tvzeroupper"

static void avx2_f32(uint64_t n)
{
#define FMA(i) "vfmadd231ps %%ymm12, %%ymm13, %%ymm" #i "\n\t"
    __asm__ volatile(LOOP(SUMS_12(FMA)) : "+r"(n) : : VECTOR_CLOBBERS);
#undef FMA
}

static void avx2_int8(uint64_t n)
{
#define DOT(i)                                                                                     \
    "vpmaddubsw %%ymm12, %%ymm13, %%ymm14\n\tvpmaddwd %%ymm14, %%ymm15, %%ymm14\n\t"               \
    "vpaddd %%ymm14, %%ymm" #i ", %%ymm" #i "\n\t"
    __asm__ volatile(LOOP(SUMS_12(DOT)) : "+r"(n) : : VECTOR_CLOBBERS);
#undef DOT
}

static void avx_vnni_int8(uint64_t n)
{
#define DOT(i) "%{vex%} vpdpbusd %%ymm12, %%ymm13, %%ymm" #i "\n\t"
    __asm__ volatile(LOOP(SUMS_12(DOT)) : "+r"(n) : : VECTOR_CLOBBERS);
#undef DOT
}

static void avx512_f32(uint64_t n)
{
#define FMA(i) "vfmadd231ps %%zmm12, %%zmm13, %%zmm" #i "\n\t"
    __asm__ volatile(LOOP(SUMS_12(FMA)) : "+r"(n) : : VECTOR_CLOBBERS);
#undef FMA
}

static void avx512_int8(uint64_t n)
{
#define DOT(i) "vpdpbusd %%zmm12, %%zmm13, %%zmm" #i "\n\t"
    __asm__ volatile(LOOP(SUMS_12(DOT)) : "+r"(n) : : VECTOR_CLOBBERS);
#undef DOT
}

static void avx512_bf16(uint64_t n)
{
#define DOT(i) "vdpbf16ps %%zmm12, %%zmm13, %%zmm" #i "\n\t"
    __asm__ volatile(LOOP(SUMS_12(DOT)) : "+r"(n) : : VECTOR_CLOBBERS);
#undef DOT
}

#define TILES_4(op)                                                                                \
    op " %%tmm4, %%tmm6, %%tmm0\n\t" op " %%tmm5, %%tmm6, %%tmm1\n\t" op                           \
       " %%tmm4, %%tmm7, %%tmm2\n\t" op " %%tmm5, %%tmm7, %%tmm3\n\t"
#define TILE_LOOP(op)                                                                              \
    "ldtilecfg %1\n\ttilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\ttilezero %%tmm3\n\t" \
    "tilezero %%tmm4\n\ttilezero %%tmm5\n\ttilezero %%tmm6\n\ttilezero %%tmm7\n\t"                 \
    "1:\n\t" TILES_4(op) TILES_4(op) "dec %0\n\tjnz 1b\n\ttilerelease"

static struct tile_config full_tiles(void)
{
    struct tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.row_bytes[i] = 64;
        c.rows[i] = 16;
    }
    return c;
}

static void amx_bf16(uint64_t n)
{
    const struct tile_config c = full_tiles();
    __asm__ volatile(TILE_LOOP("tdpbf16ps") : "+r"(n) : "m"(c) : "cc");
}

static void amx_int8(uint64_t n)
{
    const struct tile_config c = full_tiles();
    __asm__ volatile(TILE_LOOP("tdpbssd") : "+r"(n) : "m"(c) : "cc");
}

#define OUT(field) offsetof(struct machine_limits, field)

static const struct peak peaks[] = {
    {avx2_f32, DETECT_AVX2, 12 * 8 * 2, OUT(avx2_f32)},
    {avx2_int8, DETECT_AVX2, 12 * 32 * 2, OUT(avx2_int8)},
    /* The AVX2 kernels use AVX-VNNI where the CPU has it; this later row then overwrites the one
     * above. */
    {avx_vnni_int8, DETECT_AVX2 | DETECT_AVX_VNNI, 12 * 32 * 2, OUT(avx2_int8)},
    {avx512_f32, DETECT_AVX512, 12 * 16 * 2, OUT(avx512_f32)},
    {avx512_int8, DETECT_AVX512, 12 * 64 * 2, OUT(avx512_int8)},
    {avx512_bf16, DETECT_AVX512, 12 * 32 * 2, OUT(avx512_bf16)},
    {amx_bf16, DETECT_AMX, 8 * 16 * 16 * 32 * 2, OUT(amx_bf16)},
    {amx_int8, DETECT_AMX, 8 * 16 * 16 * 64 * 2, OUT(amx_int8)},
};

#elif defined(__aarch64__)

#define VECTOR_CLOBBERS                                                                            \
    "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v30", "v31", "cc"
#define ZERO(i)   "movi v" #i ".4s, #0\n\t"
#define LOOP(ops) SUMS_12(ZERO) ZERO(30) ZERO(31) "1:\n\t" ops "subs %0, %0, #1\n\tb.ne 1b"

static void neon_f32(uint64_t n)
{
#define FMA(i)    "fmla v" #i ".4s, v30.4s, v31.4s\n\t"
    __asm__ volatile(LOOP(SUMS_12(FMA)) : "+r"(n) : : VECTOR_CLOBBERS);
#undef FMA
}

__attribute__((target("arch=armv8.2-a+dotprod"))) static void neon_int8(uint64_t n)
{
#define DOT(i) "sdot v" #i ".4s, v30.16b, v31.16b\n\t"
    __asm__ volatile(LOOP(SUMS_12(DOT)) : "+r"(n) : : VECTOR_CLOBBERS);
#undef DOT
}

#define OUT(field) offsetof(struct machine_limits, field)

static const struct peak peaks[] = {
    {neon_f32, DETECT_NEON, 12 * 4 * 2, OUT(neon_f32)},
    {neon_int8, DETECT_NEON_DOTPROD, 12 * 16 * 2, OUT(neon_int8)},
};

#else
#error "machine.c has no peak loops for this architecture"
#endif

#define PEAK_TURNS 2000u /* about 10 us between readings of the clock */

struct peak_job {
    const struct peak *peak;
    double *rate; /* [n_worker] operations per microsecond */
};

static void peak_worker(void *arg, uint32_t worker_i)
{
    const struct peak_job *job = arg;
    double turns = 0;
    const uint64_t start = clock_us();
    uint64_t now;
    do {
        job->peak->fn(PEAK_TURNS);
        turns += PEAK_TURNS;
        now = clock_us();
    } while (now - start < PEAK_US);
    job->rate[worker_i] = turns * job->peak->ops_per_turn / (double)(now - start);
}

/* Returns 1e9 operations per second. */
static double measure_peak(const struct peak *peak, struct workers *pool, double *rate)
{
    struct peak_job job = {.peak = peak, .rate = rate};
    double best = 0;
    for (int round = 0; round < PEAK_ROUND; round++) {
        workers_run(pool, peak_worker, &job);
        double sum = 0;
        for (uint32_t i = 0; i < workers_count(pool); i++) sum += rate[i];
        if (sum > best) best = sum;
    }
    return best / 1e3;
}

/* ---- Memory ---- */

typedef uint64_t vec __attribute__((vector_size(16)));

struct read_job {
    uint8_t *buffer;
    bool one_stream;
    size_t part_bytes; /* of one worker, a multiple of N_STREAM * 64 */
};

/* Writes all pages: a page that was never written is a shared page of zeros and would be read from
 * the cache. */
static void touch_worker(void *arg, uint32_t worker_i)
{
    const struct read_job *job = arg;
    uint8_t *part = job->buffer + worker_i * job->part_bytes;
    for (size_t at = 0; at < job->part_bytes; at += 4096) part[at] = 1;
}

static inline void add_line(vec sum[4], const uint8_t *p)
{
    for (size_t i = 0; i < 4; i++) sum[i] += ((const vec *)p)[i];
}

static void read_worker(void *arg, uint32_t worker_i)
{
    const struct read_job *job = arg;
    const uint8_t *part = job->buffer + worker_i * job->part_bytes;
    const size_t stream = job->part_bytes / N_STREAM;
    vec sum[4] = {{0}};
    if (job->one_stream)
        for (size_t at = 0; at < job->part_bytes; at += 64) add_line(sum, part + at);
    else
        for (size_t at = 0; at < stream; at += 64)
            for (size_t s = 0; s < N_STREAM; s++) {
                const uint8_t *p = part + s * stream + at;
                __builtin_prefetch(p + PREFETCH_FAR, 0,
                                   3); /* prefetching past the end does not fault */
                add_line(sum, p);
            }
    /* Keeps the compiler from removing the sums. */
    __asm__ volatile("" : : "m"(sum));
}

static double measure_read(struct workers *pool, uint8_t *buffer, size_t bytes)
{
    const uint32_t n = workers_count(pool);
    struct read_job job = {.buffer = buffer,
                           .part_bytes = bytes / n / (N_STREAM * 64) * (N_STREAM * 64)};
    workers_run(pool, touch_worker, &job);
    double best = 0;
    const uint64_t start = clock_us();
    uint64_t now = start;
    while (now - start < READ_US) {
        const uint64_t pass = now;
        workers_run(pool, read_worker, &job);
        now = clock_us();
        const double rate = (double)(job.part_bytes * n) / (double)(now - pass);
        if (rate > best) best = rate;
        job.one_stream = !job.one_stream;
    }
    return best / 1e3;
}

sac_status machine_measure(struct machine_limits *out, struct workers *pool, sac_error *err)
{
    /* At most a quarter of the free memory: a measurement is not worth swapping for. */
    const size_t avail = (size_t)sysconf(_SC_AVPHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    const size_t bytes = avail / 4 < READ_BYTES ? avail / 4 : READ_BYTES;
    double *rate = mem_calloc(workers_count(pool), sizeof *rate);
    uint8_t *buffer = mem_map(bytes);
    if (!rate || !buffer) {
        mem_free(rate);
        mem_unmap(buffer, bytes);
        return error_set(err, SAC_ERR_MEMORY, "no %zu bytes to measure memory with", bytes);
    }
    *out = (struct machine_limits){.read_gb = measure_read(pool, buffer, bytes)};
    const uint32_t features = detect_features();
    for (size_t i = 0; i < sizeof peaks / sizeof peaks[0]; i++)
        if ((features & peaks[i].features) == peaks[i].features)
            *(double *)((char *)out + peaks[i].out) = measure_peak(&peaks[i], pool, rate);
    mem_unmap(buffer, bytes);
    mem_free(rate);
    return SAC_OK;
}
