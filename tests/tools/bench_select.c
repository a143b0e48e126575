/* bench_select.c: developer's bench of sparse decode, not a test: what it costs to choose and to
 * read what was chosen, beside dense attention over the same pages.
 *
 *     bench_select [-t THREADS] [-s SHAPE] [-k TYPE] [-n TOKENS] [-d DEVIATION] [-r STEPS]
 * METHOD... SHAPE and TYPE are indices; METHOD as for --decode, by default auto.
 *
 * Keys are random: their scores have the given standard deviation, nearly the same for all heads
 * of a group, so that 3.3 puts 95 % of the mass on 5 % of the tokens. Chosen tokens lie apart from
 * each other, which real ones do less: gathers are slower here. Sequences take turns, so that pages
 * come from memory and not from a cache. Every step is one row of one layer behind the others. */
#include "../check/check_attn.h"
#include "../unit/choose_one.h"
#include "methods/method_spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { STEPS_MAX = 256 };

static const struct shape {
    const char *name;
    uint32_t n_head, n_kv_head, head_dim;
} shapes[] = {
    {"qwen2.5-0.5b", 14, 2, 64},
    {"smollm2-135m", 9, 3, 64},
    {"qwen2.5-1.5b", 12, 2, 128},
    {"llama-3.1-8b", 32, 8, 128},
};

static const char *const kv_name[] = {"f16", "bf16", "q8"};

struct options {
    uint32_t n_thread, shape_i, type, n_tok, n_step;
    float deviation;
    uint32_t cold_mib;
};

/* One layer of a few sequences that take turns. */
struct bench {
    struct options opt;
    struct shape shape;
    struct workers *workers;
    struct ops ops;
    struct page_geom geom;
    struct method_shape method_shape;
    uint32_t n_seq, n_page, group; /* n_page: sealed pages of a lane */
    uint8_t *pool, *own, *scratch, *attn_scratch;
    size_t pool_bytes, attn_bytes;
    page_id *table; /* [n_seq, n_kv_head, n_page] */
    float *q, *out; /* [n_head, head_dim] */
    uint32_t *mask, *page, *tok, *page_ptr, *tok_ptr;
    float *tok_logw;
    uint32_t *lane_tok; /* [n_kv_head, n_page * PAGE_TOK] as methods that weigh list them */
    float *lane_logw;
    float *rest_log, *rest_value; /* [n_head], [n_head, head_dim] */
    bool attended[64];            /* [n_kv_head] */
};

struct method_bench {
    struct bench *b;
    struct method_spec spec;
    uint8_t *side, *state, *scratch;
    size_t side_stride, state_stride, scratch_stride;
    uint32_t seq_i, pos;
    struct method_pick pick[64];
};

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

enum { DISTINCT = 512 }; /* pages that are random, the others are copies */

static void fill_pages(struct bench *b)
{
    const struct page_geom *g = &b->geom;
    const size_t d = g->head_dim, n = b->pool_bytes / g->bytes;
    uint64_t seed = 1;
    float *k = mem_alloc(PAGE_TOK * d * sizeof *k), *v = mem_alloc(PAGE_TOK * d * sizeof *v);
    const struct attn_run run = {.n_row = PAGE_TOK, .own0 = b->own};
    struct page_geom one = *g;
    one.n_kv_head = 1;
    for (size_t i = 0; i < DISTINCT && i < n; i++) {
        for (size_t j = 0; j < PAGE_TOK * d; j++) {
            k[j] = rng_normal(&seed);
            v[j] = rng_normal(&seed);
        }
        b->ops.kv_write(b->workers,
                        &(struct op_kv_write){
                            .geom = &one, .n_run = 1, .run = &run, .k = k, .v = v, .kv_stride = d});
        const uint8_t *from = b->own;
        uint8_t *to = b->pool + i * g->bytes;
        b->ops.seal(b->workers,
                    &(struct op_seal){.geom = g, .n_page = 1, .tail = &from, .sealed = &to});
    }
    for (size_t i = DISTINCT; i < n; i++)
        memcpy(b->pool + i * g->bytes, b->pool + rng_next(&seed) % DISTINCT * g->bytes, g->bytes);
    mem_free(k);
    mem_free(v);
}

/* Queries whose scores have the wanted deviation; the heads of a group differ by a fifth of it. */
static void fill_queries(struct bench *b)
{
    const size_t d = b->geom.head_dim;
    uint64_t seed = 2;
    for (uint32_t h = 0; h < b->shape.n_kv_head; h++)
        for (size_t c = 0; c < d; c++) {
            const float common = rng_normal(&seed);
            for (uint32_t g = 0; g < b->group; g++)
                b->q[(h * b->group + g) * d + c] =
                    b->opt.deviation * (0.98f * common + 0.2f * rng_normal(&seed));
        }
}

/* Page ids as if the layers were filled in turn, 16 pages of a lane at a time. */
static void fill_table(struct bench *b)
{
    const uint32_t n_lane = b->n_seq * b->shape.n_kv_head;
    for (uint32_t lane = 0; lane < n_lane; lane++)
        for (uint32_t i = 0; i < b->n_page; i++)
            b->table[lane * b->n_page + i] = (i / 16 * n_lane + lane) * 16 + i % 16;
}

static void bench_open(struct bench *b, const struct options *opt)
{
    *b = (struct bench){.opt = *opt, .shape = shapes[opt->shape_i]};
    const struct shape *s = &b->shape;
    sac_error err;
    if (workers_create(&b->workers, opt->n_thread, &err) != SAC_OK ||
        ops_init(&b->ops, &err) != SAC_OK)
        exit(1);
    b->geom = (struct page_geom){.n_layer = 1,
                                 .n_kv_head = s->n_kv_head,
                                 .head_dim = s->head_dim,
                                 .type_k = (sac_kv_type)opt->type,
                                 .type_v = (sac_kv_type)opt->type};
    page_geom_init(&b->geom);
    b->group = s->n_head / s->n_kv_head;
    b->n_page = opt->n_tok / PAGE_TOK / 16 * 16;
    const size_t n_lane_page = (size_t)s->n_kv_head * b->n_page;
    const size_t seq_bytes = n_lane_page * b->geom.bytes;
    b->n_seq = (uint32_t)(((size_t)b->opt.cold_mib << 20) / seq_bytes + 1);
    b->pool_bytes = b->n_seq * seq_bytes;
    b->method_shape = (struct method_shape){
        .geom = &b->geom, .group = b->group, .n_ctx = b->n_page * PAGE_TOK + STEPS_MAX + PAGE_TOK};
    b->pool = mem_map(b->pool_bytes);
    b->own = mem_map(s->n_kv_head * b->geom.tail_bytes);
    b->attn_bytes = b->ops.attn_scratch(workers_count(b->workers), &b->geom, s->n_head, 1,
                                        b->method_shape.n_ctx);
    b->attn_scratch = mem_map(b->attn_bytes);
    b->q = mem_map((size_t)s->n_head * s->head_dim * sizeof *b->q);
    b->out = mem_map((size_t)s->n_head * s->head_dim * sizeof *b->out);
    b->table = mem_calloc(b->n_seq * n_lane_page, sizeof *b->table);
    b->mask = mem_calloc(n_lane_page, sizeof *b->mask);
    b->page = mem_calloc(n_lane_page, sizeof *b->page);
    b->tok = mem_calloc(n_lane_page * PAGE_TOK, sizeof *b->tok);
    b->lane_tok = mem_calloc(n_lane_page * PAGE_TOK, sizeof *b->lane_tok);
    b->lane_logw = mem_calloc(n_lane_page * PAGE_TOK, sizeof *b->lane_logw);
    b->rest_log = mem_calloc(s->n_head, sizeof *b->rest_log);
    b->rest_value = mem_calloc((size_t)s->n_head * s->head_dim, sizeof *b->rest_value);
    b->tok_logw = mem_calloc(n_lane_page * PAGE_TOK, sizeof *b->tok_logw);
    b->page_ptr = mem_calloc(s->n_kv_head + 1, sizeof *b->page_ptr);
    b->tok_ptr = mem_calloc(s->n_kv_head + 1, sizeof *b->tok_ptr);
    fill_pages(b);
    fill_queries(b);
    fill_table(b);
}

static size_t hook_bytes(size_t (*hook)(const struct method_shape *, const void *),
                         const struct method_bench *m)
{
    return hook ? (hook(&m->b->method_shape, m->spec.param) + 63) & ~(size_t)63 : 0;
}

static void seal_one(void *arg, uint32_t i, uint32_t worker_i)
{
    const struct method_bench *m = arg;
    const struct bench *b = m->b;
    float k[PAGE_TOK * 256];
    (void)worker_i;
    page_read(k, NULL, &b->geom, b->pool + i * b->geom.bytes, PAGE_SEALED, PAGE_TOK);
    m->spec.method->decode->seal(m->side + i * m->side_stride, &b->method_shape, m->spec.param, k);
}

static void select_one(void *arg, uint32_t h, uint32_t worker_i)
{
    struct method_bench *m = arg;
    const struct bench *b = m->b;
    const size_t d = b->geom.head_dim, lane = (size_t)m->seq_i * b->shape.n_kv_head + h;
    const struct method_lane l = {.shape = &b->method_shape,
                                  .param = m->spec.param,
                                  .family = m->spec.method->decode->family,
                                  .ops = &b->ops,
                                  .layer = 2,
                                  .kv_head = h,
                                  .pos = m->pos,
                                  .n_row = 1,
                                  .q = b->q + h * b->group * d,
                                  .q_stride = b->shape.n_head * d,
                                  .scale = 1.0f / sqrtf((float)d),
                                  .frames = {.base = b->pool},
                                  .page = b->table + lane * b->n_page,
                                  .n_sealed = b->n_page,
                                  .own = b->own + h * b->geom.tail_bytes,
                                  .side = m->side,
                                  .side_stride = m->side_stride,
                                  .state = m->state + lane * m->state_stride,
                                  .scratch = m->scratch + worker_i * m->scratch_stride};
    m->pick[h] = (struct method_pick){.mask = b->mask + (size_t)h * b->n_page,
                                      .tok = b->lane_tok + (size_t)h * b->n_page * PAGE_TOK,
                                      .logw = b->lane_logw + (size_t)h * b->n_page * PAGE_TOK,
                                      .rest_log = b->rest_log + h * b->group,
                                      .rest_value = b->rest_value + h * b->group * d};
    memset(m->pick[h].mask, 0, b->n_page * sizeof *b->mask);
    choose_one(m->spec.method->decode, &l, &m->pick[h]);
}

static void make_lists(const struct method_bench *m, struct attn_run *run)
{
    struct bench *b = m->b;
    uint32_t n_page = 0, n_tok = 0;
    for (uint32_t h = 0; h < b->shape.n_kv_head; h++) {
        b->page_ptr[h] = n_page;
        b->tok_ptr[h] = n_tok;
        for (uint32_t p = 0; p < b->n_page; p++) {
            const uint32_t word = m->pick[h].dense ? UINT32_MAX : m->pick[h].mask[p];
            if (word == UINT32_MAX) {
                b->page[n_page++] = p;
                continue;
            }
            for (uint32_t left = word; left; left &= left - 1)
                b->tok[n_tok++] = p * PAGE_TOK + (uint32_t)__builtin_ctz(left);
        }
        for (uint32_t i = 0; i < m->pick[h].n_tok && !m->pick[h].dense; i++, n_tok++) {
            b->tok[n_tok] = m->pick[h].tok[i];
            b->tok_logw[n_tok] = m->pick[h].logw[i];
        }
    }
    b->page_ptr[b->shape.n_kv_head] = n_page;
    b->tok_ptr[b->shape.n_kv_head] = n_tok;
    run->select = b->page;
    run->select_ptr = b->page_ptr;
    for (uint32_t h = 0; h < b->shape.n_kv_head; h++)
        b->attended[h] = m->pick[h].attended && !m->pick[h].dense;
    run->attended = b->attended;
    if (n_tok == 0) return;
    run->select_tok = b->tok;
    run->select_tok_ptr = b->tok_ptr;
    if (m->spec.method->weighs) run->select_logw = b->tok_logw;
}

static double attend(const struct bench *b, const struct attn_run *run)
{
    const double start = now_us();
    b->ops.attn(b->workers,
                &(struct op_attn){.geom = &b->geom,
                                  .frames = {.base = b->pool},
                                  .n_head = b->shape.n_head,
                                  .q = b->q,
                                  .q_stride = (size_t)b->shape.n_head * b->geom.head_dim,
                                  .out = b->out,
                                  .out_stride = (size_t)b->shape.n_head * b->geom.head_dim,
                                  .scale = 1.0f / sqrtf((float)b->geom.head_dim),
                                  .n_run = 1,
                                  .run = run,
                                  .scratch = b->attn_scratch,
                                  .scratch_bytes = b->attn_bytes});
    return now_us() - start;
}

static int rising(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *x, uint32_t n)
{
    qsort(x, n, sizeof *x, rising);
    return x[n / 2];
}

static struct attn_run run_at(const struct bench *b, uint32_t seq_i)
{
    return (struct attn_run){.n_row = 1,
                             .pos0 = b->n_page * PAGE_TOK,
                             .kind = ROW_DECODE,
                             .table = b->table + (size_t)seq_i * b->shape.n_kv_head * b->n_page,
                             .table_stride = b->n_page,
                             .own0 = b->own};
}

static double bench_dense(const struct bench *b)
{
    double us[STEPS_MAX];
    for (uint32_t i = 0; i < b->opt.n_step; i++) {
        const struct attn_run run = run_at(b, i % b->n_seq);
        us[i] = attend(b, &run);
    }
    return median(us, b->opt.n_step);
}

/* Sequences step one token at a time, in turn: what a method keeps from step to step counts. */
static void bench_method(struct bench *b, const char *text, double dense)
{
    struct method_bench m = {.b = b};
    sac_error err;
    if (method_spec_parse(&m.spec, "decode", text, &err) != SAC_OK) {
        fprintf(stderr, "bench_select: %s\n", err.msg);
        exit(2);
    }
    const struct method_decode *hooks = m.spec.method->decode;
    const size_t n_id = b->pool_bytes / b->geom.bytes, n_lane = b->n_seq * b->shape.n_kv_head;
    const uint32_t n_worker = workers_count(b->workers), n_step = b->opt.n_step;
    m.side_stride = hook_bytes(hooks->side_bytes, &m);
    m.state_stride = hook_bytes(hooks->state_bytes, &m);
    m.scratch_stride = hook_bytes(hooks->scratch_bytes, &m);
    m.side = mem_map(n_id * m.side_stride + 64);
    m.state = mem_map(n_lane * m.state_stride + 64);
    m.scratch = mem_map(n_worker * m.scratch_stride + 64);
    if (m.side_stride) workers_for(b->workers, (uint32_t)n_id, seal_one, &m);
    double choose[STEPS_MAX], read[STEPS_MAX], sum = 0, n_tok = 0, most = 0;
    for (uint32_t i = 0; i < n_step; i++) {
        struct attn_run run = run_at(b, i % b->n_seq);
        m.seq_i = i % b->n_seq;
        m.pos = b->n_page * PAGE_TOK + i / b->n_seq % PAGE_TOK;
        const double start = now_us();
        workers_for(b->workers, b->shape.n_kv_head, select_one, &m);
        choose[i] = now_us() - start;
        make_lists(&m, &run);
        read[i] = attend(b, &run);
        sum += choose[i];
        n_tok += b->page_ptr[b->shape.n_kv_head] * (double)PAGE_TOK;
        if (run.select_tok) n_tok += b->tok_ptr[b->shape.n_kv_head];
        most = choose[i] > most ? choose[i] : most;
    }
    const double all = (double)n_step * b->n_page * PAGE_TOK * b->shape.n_kv_head;
    const double mean = sum / n_step, mid = median(choose, n_step), att = median(read, n_step);
    printf("  %-34s read %5.2f %%  choose %7.0f us (median %6.0f, most %6.0f)  attend %7.0f us"
           "  %5.1f x dense\n",
           text, 100 * n_tok / all, mean, mid, most, att, dense / (mean + att));
    fflush(stdout);
    mem_unmap(m.side, n_id * m.side_stride + 64);
    mem_unmap(m.state, n_lane * m.state_stride + 64);
    mem_unmap(m.scratch, n_worker * m.scratch_stride + 64);
}

int main(int argc, char **argv)
{
    struct options opt = {
        .n_tok = 32768, .type = SAC_KV_Q8, .n_step = 64, .deviation = 3.3f, .cold_mib = 300};
    for (int c; (c = getopt(argc, argv, "t:s:k:n:d:r:m:")) != -1;) {
        if (c == 't') opt.n_thread = (uint32_t)atoi(optarg);
        if (c == 's') opt.shape_i = (uint32_t)atoi(optarg);
        if (c == 'k') opt.type = (uint32_t)atoi(optarg);
        if (c == 'n') opt.n_tok = (uint32_t)atoi(optarg);
        if (c == 'd') opt.deviation = (float)atof(optarg);
        if (c == 'r') opt.n_step = (uint32_t)atoi(optarg);
        if (c == 'm') opt.cold_mib = (uint32_t)atoi(optarg);
        if (c == '?') return 2;
    }
    if (opt.shape_i >= sizeof shapes / sizeof shapes[0] || opt.type > SAC_KV_Q8 ||
        opt.n_step == 0 || opt.n_step > STEPS_MAX) {
        fprintf(stderr, "bench_select: there is no such shape, type or number of steps\n");
        return 2;
    }
    static struct bench b;
    bench_open(&b, &opt);
    const double dense = bench_dense(&b);
    printf("%s %s, %u tokens, %u threads, %s: dense %.0f us\n", b.shape.name, kv_name[opt.type],
           b.n_page * PAGE_TOK, workers_count(b.workers), b.ops.isa, dense);
    if (optind == argc) bench_method(&b, "auto", dense);
    for (int i = optind; i < argc; i++) bench_method(&b, argv[i], dense);
    return 0;
}
