/* bench_plan.c: developer's bench of planned attention: time against density, which should be a
 * straight line through nothing.
 *
 *     bench_plan [-t THREADS] [-k f16|bf16|q8] [-n TOKENS] [-r ROUNDS]
 *
 * The last 512 rows of a prompt in the shape of qwen2.5-0.5b. A list for each tile of 64 rows and
 * KV head or query head names a share of the pages before the tile, drawn at random, or a share of
 * the tokens one by one. Best of the rounds, each of which goes through all densities. Prints the
 * line of least squares: its value at density 0 as a share of dense attention without a plan, and
 * the largest distance of a time from it. */
#include "../check/check_attn.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { N_ROW = 512, TILE = 64, N_HEAD = 14, N_KV_HEAD = 2, DIM = 64, N_SHARE = 8, N_KIND = 4 };

/* What a list holds, and whose it is. */
static const struct kind {
    const char *name;
    bool by_token, by_head;
    uint32_t n_share; /* densities: single tokens in numbers are pages in real plans */
} kinds[N_KIND] = {
    {"pages, a KV head", false, false, N_SHARE},
    {"pages, a query head", false, true, N_SHARE},
    {"tokens, a KV head", true, false, N_SHARE - 2},
    {"tokens, a query head", true, true, N_SHARE - 2},
};

static const double share[N_SHARE] = {0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1};

struct bench {
    struct workers *pool;
    struct ops ops;
    struct sequence seq;
    struct op_attn op;
    struct attn_run run;
    struct attn_range *range; /* of all lists */
    uint32_t *tok, range_ptr[N_ROW / TILE * N_HEAD + 1], tok_ptr[N_ROW / TILE * N_HEAD + 1];
};

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void open_bench(struct bench *b, sac_kv_type type, uint32_t n_tok)
{
    const struct page_geom g = {
        .n_layer = 1, .n_kv_head = N_KV_HEAD, .head_dim = DIM, .type_k = type, .type_v = type};
    const size_t n_q = (size_t)N_ROW * N_HEAD * DIM, n_list = N_ROW / TILE * N_HEAD;
    uint64_t seed = 7;
    sequence_init(&b->seq, g, n_tok);
    sequence_fill(&b->seq, 1);
    sequence_store(&b->seq, b->pool, &b->ops);
    float *q = mem_map(n_q * sizeof *q);
    for (size_t i = 0; i < n_q; i++) q[i] = rng_normal(&seed);
    b->op = (struct op_attn){.geom = &b->seq.geom,
                             .frames = {.base = b->seq.pool},
                             .n_head = N_HEAD,
                             .q = q,
                             .q_stride = N_HEAD * DIM,
                             .out = mem_map(n_q * sizeof(float)),
                             .out_stride = N_HEAD * DIM,
                             .scale = 0.125f,
                             .n_run = 1,
                             .run = &b->run};
    b->op.scratch_bytes =
        b->ops.attn_scratch(workers_count(b->pool), &b->seq.geom, N_HEAD, N_ROW, n_tok);
    b->op.scratch = mem_map(b->op.scratch_bytes);
    b->range = mem_alloc(n_list * (n_tok / PAGE_TOK) * sizeof *b->range);
    b->tok = mem_alloc(n_list * n_tok * sizeof *b->tok);
}

/* A list: that share of what lies before the tile, and the tile's own pages. */
static void draw_list(struct bench *b, uint32_t list, uint32_t tok0, double part, bool by_token)
{
    uint32_t n_range = b->range_ptr[list], n_tok = b->tok_ptr[list];
    uint64_t seed = list;
    for (uint32_t i = 0; i < tok0 / PAGE_TOK; i++) {
        const double draw = 0.5 + 0.5 * (double)rng_float(&seed);
        if (!by_token && draw < part) b->range[n_range++] = (struct attn_range){i, i + 1};
        if (!by_token && n_range > b->range_ptr[list] + 1 && b->range[n_range - 2].end == i &&
            b->range[n_range - 1].begin == i) {
            b->range[n_range - 2].end++; /* ranges that touch are one */
            n_range--;
        }
        for (uint32_t t = 0; t < PAGE_TOK && by_token; t++)
            if (0.5 + 0.5 * (double)rng_float(&seed) < part) b->tok[n_tok++] = i * PAGE_TOK + t;
    }
    b->range[n_range++] = (struct attn_range){tok0 / PAGE_TOK, (tok0 + TILE) / PAGE_TOK};
    b->range_ptr[list + 1] = n_range;
    b->tok_ptr[list + 1] = n_tok;
}

/* Microseconds of one call, with a plan of that kind and density; NULL: dense. */
static double time_call(struct bench *b, const struct kind *kind, double part)
{
    const uint32_t n_lane = kind && kind->by_head ? N_HEAD : N_KV_HEAD;
    const uint32_t pos0 = b->seq.n_tok - N_ROW;
    struct attn_plan plan = {.tile_tok = TILE,
                             .by_head = kind && kind->by_head,
                             .range = b->range,
                             .range_ptr = b->range_ptr,
                             .tok = kind && kind->by_token ? b->tok : NULL,
                             .tok_ptr = b->tok_ptr};
    for (uint32_t i = 0; i < N_ROW / TILE * n_lane && kind; i++)
        draw_list(b, i, pos0 + i / n_lane * TILE, part, kind->by_token);
    b->run = sequence_run(&b->seq, 0, pos0, N_ROW, ROW_PROMPT);
    b->run.plan = kind ? &plan : NULL;
    const double start = now_us();
    b->ops.attn(b->pool, &b->op);
    return now_us() - start;
}

static void print_line(const struct kind *kind, const double *us, double dense_us)
{
    const uint32_t n = kind->n_share;
    double x = 0, y = 0, xx = 0, xy = 0, off = 0;
    for (uint32_t i = 0; i < n; i++) {
        x += share[i];
        y += us[i];
        xx += share[i] * share[i];
        xy += share[i] * us[i];
    }
    const double slope = (n * xy - x * y) / (n * xx - x * x), at_0 = (y - slope * x) / n;
    printf("| %s |", kind->name);
    for (uint32_t i = 0; i < N_SHARE; i++)
        if (i < n)
            printf(" %.1f |", 100 * us[i] / dense_us);
        else
            printf(" |");
    for (uint32_t i = 0; i < n; i++) off = fmax(off, fabs(us[i] - at_0 - slope * share[i]));
    printf(" %.1f | %.1f |\n", 100 * at_0 / dense_us, 100 * off / dense_us);
}

int main(int argc, char **argv)
{
    static const char *const types[] = {"f16", "bf16", "q8"};
    static struct bench b;
    uint32_t n_thread = 0, n_tok = 8192, n_round = 7;
    sac_kv_type type = SAC_KV_F16;
    sac_error err = {"-n is at least 1024"};
    for (int opt; (opt = getopt(argc, argv, "t:k:n:r:")) != -1;) {
        if (opt == 't') n_thread = (uint32_t)atoi(optarg);
        if (opt == 'n') n_tok = (uint32_t)atoi(optarg) / N_ROW * N_ROW;
        if (opt == 'r') n_round = (uint32_t)atoi(optarg);
        for (int i = 0; i < 3 && opt == 'k'; i++)
            if (strcmp(optarg, types[i]) == 0) type = (sac_kv_type)i;
    }
    if (workers_create(&b.pool, n_thread, &err) != SAC_OK ||
        ops_init_isa(&b.ops, NULL, &err) != SAC_OK || n_tok < 2 * N_ROW) {
        fprintf(stderr, "bench_plan: %s\n", err.msg);
        return 1;
    }
    open_bench(&b, type, n_tok);
    double dense = 1e30, us[N_KIND][N_SHARE];
    for (int k = 0; k < N_KIND * N_SHARE; k++) us[k / N_SHARE][k % N_SHARE] = 1e30;
    for (uint32_t r = 0; r < n_round; r++) {
        dense = fmin(dense, time_call(&b, NULL, 0));
        for (int k = 0; k < N_KIND; k++)
            for (uint32_t i = 0; i < kinds[k].n_share; i++)
                us[k][i] = fmin(us[k][i], time_call(&b, &kinds[k], share[i]));
    }
    printf("%s, %u threads, %s, %u tokens; dense %.2f ms; times in %% of it\n\n| read |", b.ops.isa,
           workers_count(b.pool), types[type], n_tok, dense * 1e-3);
    for (int i = 0; i < N_SHARE; i++) printf(" %.0f %% |", 100 * share[i]);
    printf(" line at 0 | farthest |\n|---|");
    for (int i = 0; i < N_SHARE + 2; i++) printf("--:|");
    printf("\n");
    for (int k = 0; k < N_KIND; k++) print_line(&kinds[k], us[k], dense);
    return 0;
}
