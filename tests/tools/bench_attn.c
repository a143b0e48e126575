/* bench_attn.c: developer's micro bench of the attention kernels, not a test.
 *
 *     bench_attn [-t THREADS] [-i ISA] [-p] [-d] [-s SHAPE] [-k TYPE] [-n TOKENS] [-q SEQUENCES]
 *                [-r RUNS]
 * -p prefill only, -d decode only; SHAPE and TYPE are indices, all by default; RUNS of decode.
 *
 * Prefill: GFLOP/s counted as 4 d n^2 / 2 a head, in chunks of 512 rows. Decode: GB/s of sealed
 * pages read, one row, over a pool of several sequences that does not fit the caches, in turn with
 * plain reads of as many bytes of it by all threads: medians of both and their ratio. With one
 * thread the clock is that of the process, so that neighbours disturb less. */
#include "../check/check_attn.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

struct shape {
    const char *name;
    uint32_t n_head, n_kv_head, head_dim;
};

static const struct shape shapes[] = {
    {"qwen2.5-0.5b", 14, 2, 64},  {"smollm2-135m", 9, 3, 64},  {"qwen2.5-1.5b", 12, 2, 128},
    {"llama-3.1-8b", 32, 8, 128}, {"gemma-3-270m", 4, 1, 256}, {"phi3-mini", 32, 32, 96},
};

static const char *kv_name[] = {"f16", "bf16", "q8"};

struct bench {
    struct workers *pool;
    struct ops ops;
    void *scratch;
    size_t scratch_bytes;
    float *q, *out;
    size_t q_floats;
    uint32_t n_run;
    double *us, *read_us; /* [n_run] */
};

static double now_us(const struct bench *b)
{
    struct timespec t;
    clock_gettime(workers_count(b->pool) == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void bench_buffers(struct bench *b, const struct page_geom *g, uint32_t n_head,
                          uint32_t n_row, uint32_t n_tok)
{
    b->scratch_bytes = b->ops.attn_scratch(workers_count(b->pool), g, n_head, n_row, n_tok);
    b->scratch = mem_map(b->scratch_bytes);
    b->q_floats = (size_t)n_row * n_head * g->head_dim;
    b->q = mem_map(b->q_floats * sizeof(float));
    b->out = mem_map(b->q_floats * sizeof(float));
    uint64_t seed = 7;
    for (size_t i = 0; i < b->q_floats; i++) b->q[i] = rng_normal(&seed);
}

static void bench_free(struct bench *b)
{
    mem_unmap(b->scratch, b->scratch_bytes);
    mem_unmap(b->q, b->q_floats * sizeof(float));
    mem_unmap(b->out, b->q_floats * sizeof(float));
}

static struct op_attn bench_op(const struct bench *b, const struct sequence *s, uint32_t n_head)
{
    const size_t width = (size_t)n_head * s->geom.head_dim;
    return (struct op_attn){.geom = &s->geom,
                            .frames = {.base = s->pool},
                            .n_head = n_head,
                            .q = b->q,
                            .q_stride = width,
                            .out = b->out,
                            .out_stride = width,
                            .scale = 1.0f / sqrtf((float)s->geom.head_dim),
                            .n_run = 1,
                            .scratch = b->scratch,
                            .scratch_bytes = b->scratch_bytes};
}

/* Time of one chunk of rows that ends at n_tok, best of a few. */
static void bench_prefill(struct bench *b, const struct shape *sh, sac_kv_type type, uint32_t n_tok)
{
    const uint32_t n_row = 512;
    const struct page_geom g = {.n_layer = 1,
                                .n_kv_head = sh->n_kv_head,
                                .head_dim = sh->head_dim,
                                .type_k = type,
                                .type_v = type};
    struct sequence s;
    sequence_init(&s, g, n_tok);
    sequence_fill(&s, 1);
    sequence_store(&s, b->pool, &b->ops);
    bench_buffers(b, &s.geom, sh->n_head, n_row, n_tok);
    struct op_attn op = bench_op(b, &s, sh->n_head);
    const struct attn_run run = sequence_run(&s, 0, n_tok - n_row, n_row, ROW_PROMPT);
    op.run = &run;
    double best = 1e30, spent = 0;
    for (int i = 0; i < 200 && spent < 0.5e6; i++) {
        const double start = now_us(b);
        b->ops.attn(b->pool, &op);
        const double us = now_us(b) - start;
        best = us < best ? us : best;
        spent += us;
    }
    const double flop = 4.0 * sh->head_dim * sh->n_head * n_row * (n_tok - n_row / 2.0);
    printf("  %-13s %-4s prefill  n %6u  %8.1f GFLOP/s\n", sh->name, kv_name[type], n_tok,
           flop / best * 1e-3);
    fflush(stdout);
    bench_free(b);
    sequence_deinit(&s);
}

/* A part of the pool, which each worker reads its share of as four streams. */
struct read_job {
    const uint8_t *bytes;
    size_t part; /* of a worker, a multiple of 4 * 64 */
};

static void read_worker(void *arg, uint32_t worker_i)
{
    typedef uint64_t vec __attribute__((vector_size(64)));
    const struct read_job *job = arg;
    const uint8_t *part = job->bytes + worker_i * job->part;
    vec sum = {0};
    for (size_t at = 0; at < job->part / 4; at += 64)
        for (size_t s = 0; s < 4; s++) {
            const uint8_t *p = part + s * (job->part / 4) + at;
            __builtin_prefetch(p + 768, 0, 3);
            sum += *(const vec *)(const void *)p;
        }
    __asm__ volatile("" : : "m"(sum));
}

static int order_double(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, uint32_t n)
{
    qsort(x, n, sizeof *x, order_double);
    return x[n / 2];
}

#define CHUNK_PAGES 16u

/* Pages lie as a prompt leaves them: some of a head behind each other, chunks anywhere. */
static void scatter_chunks(struct sequence *s)
{
    const uint32_t n = s->geom.n_kv_head * s->n_page, n_chunk = n / CHUNK_PAGES;
    uint64_t seed = 3;
    for (uint32_t i = 0; i < n; i++) s->table[i] = i;
    for (uint32_t i = n_chunk; i-- > 1;) {
        const uint32_t j = (uint32_t)(rng_next(&seed) % (i + 1));
        for (uint32_t k = 0; k < CHUNK_PAGES; k++) {
            const page_id id = s->table[i * CHUNK_PAGES + k];
            s->table[i * CHUNK_PAGES + k] = s->table[j * CHUNK_PAGES + k];
            s->table[j * CHUNK_PAGES + k] = id;
        }
    }
}

static void bench_decode(struct bench *b, const struct shape *sh, sac_kv_type type, uint32_t n_tok,
                         uint32_t n_seq)
{
    const struct page_geom g = {.n_layer = 1,
                                .n_kv_head = sh->n_kv_head,
                                .head_dim = sh->head_dim,
                                .type_k = type,
                                .type_v = type};
    struct sequence s; /* the sequences lie behind each other in one */
    sequence_init(&s, g, n_tok * n_seq);
    sequence_fill(&s, 1);
    sequence_store(&s, b->pool, &b->ops);
    scatter_chunks(&s);
    bench_buffers(b, &s.geom, sh->n_head, 1, n_tok);
    struct op_attn op = bench_op(b, &s, sh->n_head);
    const size_t seq_bytes = s.pool_bytes / n_seq;
    struct read_job job = {.part = seq_bytes / workers_count(b->pool) / 256 * 256};
    for (uint32_t i = 0; i < b->n_run; i++) {
        struct attn_run run = sequence_run(&s, 0, n_tok - 1, 1, ROW_DECODE);
        run.table += i % n_seq * (n_tok / PAGE_TOK);
        op.run = &run;
        double start = now_us(b);
        b->ops.attn(b->pool, &op);
        b->us[i] = now_us(b) - start;
        job.bytes = s.pool + i % n_seq * seq_bytes;
        start = now_us(b);
        workers_run(b->pool, read_worker, &job);
        b->read_us[i] = now_us(b) - start;
    }
    const double bytes = (double)(n_tok / PAGE_TOK - 1) * sh->n_kv_head * (double)s.geom.bytes;
    const double rate = bytes / median(b->us, b->n_run) * 1e-3;
    const double read =
        (double)job.part * workers_count(b->pool) / median(b->read_us, b->n_run) * 1e-3;
    printf(
        "  %-13s %-4s decode   n %6u  %5.1f GB/s, %6.0f us (best %6.0f), %3.0f %% of %.1f GB/s\n",
        sh->name, kv_name[type], n_tok, rate, b->us[b->n_run / 2], b->us[0], rate / read * 100,
        read);
    fflush(stdout);
    bench_free(b);
    sequence_deinit(&s);
}

int main(int argc, char **argv)
{
    const char *isa = NULL;
    uint32_t n_thread = 0;
    bool prefill = true, decode = true;
    int only = -1, only_type = -1;
    uint32_t n_tok = 8192, n_seq = 16;
    struct bench b = {.n_run = 96};
    for (int opt; (opt = getopt(argc, argv, "t:i:pds:k:n:q:r:")) != -1;) {
        if (opt == 't') n_thread = (uint32_t)atoi(optarg);
        if (opt == 'i') isa = optarg;
        if (opt == 'p') decode = false;
        if (opt == 'd') prefill = false;
        if (opt == 's') only = atoi(optarg);
        if (opt == 'k') only_type = atoi(optarg);
        if (opt == 'n') n_tok = (uint32_t)atoi(optarg);
        if (opt == 'q') n_seq = (uint32_t)atoi(optarg);
        if (opt == 'r') b.n_run = (uint32_t)atoi(optarg);
    }
    sac_error err;
    if (workers_create(&b.pool, n_thread, &err) != SAC_OK ||
        ops_init_isa(&b.ops, isa, &err) != SAC_OK) {
        fprintf(stderr, "bench_attn: %s\n", err.msg);
        return 1;
    }
    b.us = mem_calloc(b.n_run, sizeof *b.us);
    b.read_us = mem_calloc(b.n_run, sizeof *b.read_us);
    printf("%s, %u threads\n", b.ops.isa, workers_count(b.pool));
    for (uint32_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        if (only >= 0 && i != (uint32_t)only) continue;
        for (int type = SAC_KV_F16; type <= SAC_KV_Q8; type++) {
            if (only_type >= 0 && type != only_type) continue;
            if (prefill) bench_prefill(&b, &shapes[i], (sac_kv_type)type, n_tok);
            if (decode) bench_decode(&b, &shapes[i], (sac_kv_type)type, n_tok, n_seq);
        }
    }
    mem_free(b.us);
    mem_free(b.read_us);
    workers_destroy(b.pool);
    return 0;
}
