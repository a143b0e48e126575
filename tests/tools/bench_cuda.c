/* bench_cuda.c: how fast a GPU attends over pages (`make bench-cuda`).
 *
 *     bench_cuda LIBRARY [-o md|json] [-n TOKENS_MAX]
 *
 * Shape of Llama-3.1-8B: 32 query heads, 8 KV heads of 128 channels; of decode rows that of a model
 * of 0.5B, too: 14, 2 and 64. Pages are of random numbers, written and sealed on the GPU, and lie
 * scattered in the pool. Prompt: one call with all rows of a prompt, TFLOP/s counted as 4 d n^2 / 2
 * a head. Decode: one row of each of 1 or 8 sequences that share no page, TB/s of sealed pages
 * read. Times are of calls queued behind each other, medians of several such queues. Each prompt's
 * last row is compared with the same row as a decode row: two kernels with nothing in common but
 * the pages; `apart` is the largest difference as a share of the largest output. */
#include "../check/check_attn.h"
#include "cuda_bench.h"

enum { WIDTH_MAX = 32 * 128 };

struct shape {
    uint32_t n_head, n_kv_head, head_dim;
};

struct memory { /* of the device, for one sequence set */
    struct shape shape;
    struct page_geom geom;
    uint32_t n_seq, n_page; /* of a sequence */
    uint8_t *tail, *pool;   /* [n_seq * n_page][n_kv_head] */
    uint32_t *frame;        /* [n_seq][n_kv_head, n_page] */
};

/* Fills device memory with f32 of a few megabytes of random numbers, again and again. */
static void fill(const struct bench *b, float *dst, size_t n)
{
    enum { PIECE = 1 << 20 };
    static float piece[PIECE];
    uint64_t seed = 11;
    for (size_t i = 0; i < PIECE; i++) piece[i] = rng_normal(&seed);
    for (size_t at = 0; at < n; at += PIECE)
        b->api->up(b->dev, dst + at, piece, (n - at < PIECE ? n - at : PIECE) * sizeof(float));
}

static uint8_t *tail_at(const struct memory *m, size_t page)
{
    return m->tail + page * m->shape.n_kv_head * m->geom.tail_bytes;
}

/* All rows of all sequences, as one long run, then pages sealed where the tables say. */
static void store(const struct bench *b, struct memory *m)
{
    const uint32_t n_kv = m->shape.n_kv_head;
    const size_t n_page = (size_t)m->n_seq * m->n_page, n = n_page * n_kv;
    const size_t width = (size_t)n_kv * m->shape.head_dim;
    float *kv = take(b, 4096 * width * sizeof(float) * 2);
    fill(b, kv, 4096 * width * 2);
    for (uint32_t pos = 0; pos < n_page * PAGE_TOK; pos += 4096) {
        const uint32_t left = (uint32_t)n_page * PAGE_TOK - pos;
        const struct attn_run run = {.n_row = left < 4096 ? left : 4096,
                                     .pos0 = pos,
                                     .own0 = tail_at(m, pos / PAGE_TOK),
                                     .own = tail_at(m, pos / PAGE_TOK + 1)};
        b->api->kv_write(b->dev, &(struct op_kv_write){.geom = &m->geom,
                                                       .n_run = 1,
                                                       .run = &run,
                                                       .k = kv,
                                                       .v = kv + 4096 * width,
                                                       .kv_stride = width});
    }
    uint32_t *frame = malloc(n * sizeof *frame);
    const uint8_t **from = malloc(n * sizeof *from);
    uint8_t **to = malloc(n * sizeof *to);
    uint64_t seed = 5;
    for (size_t i = 0; i < n; i++) frame[i] = (uint32_t)i;
    for (size_t i = n - 1; i > 0; i--) {
        const size_t j = rng_next(&seed) % (i + 1);
        const uint32_t keep = frame[i];
        frame[i] = frame[j];
        frame[j] = keep;
    }
    for (size_t i = 0; i < n; i++) { /* of sequence s, head h, page p */
        const size_t s = i / (n_kv * m->n_page), h = i / m->n_page % n_kv, p = i % m->n_page;
        from[i] = tail_at(m, s * m->n_page + p) + h * m->geom.tail_bytes;
        to[i] = m->pool + frame[i] * m->geom.bytes;
    }
    const uint32_t piece = 65536;
    for (size_t i = 0; i < n; i += piece)
        b->api->seal(b->dev, &(struct op_seal){.geom = &m->geom,
                                               .n_page = (uint32_t)(n - i < piece ? n - i : piece),
                                               .tail = from + i,
                                               .sealed = to + i});
    b->api->up(b->dev, m->frame, frame, n * sizeof *frame);
    wait_done(b);
    b->api->give(b->dev, kv);
    free(frame);
    free(from);
    free(to);
}

static struct memory memory_make(const struct bench *b, const struct shape *shape, sac_kv_type type,
                                 uint32_t n_seq, uint32_t n_tok)
{
    struct memory m = {.shape = *shape,
                       .geom = {.n_layer = 1,
                                .n_kv_head = shape->n_kv_head,
                                .head_dim = shape->head_dim,
                                .type_k = type,
                                .type_v = type},
                       .n_seq = n_seq,
                       .n_page = n_tok / PAGE_TOK};
    page_geom_init(&m.geom);
    const size_t n = (size_t)n_seq * m.n_page * shape->n_kv_head;
    m.tail = take(b, n * m.geom.tail_bytes);
    m.pool = take(b, n * m.geom.bytes);
    m.frame = take(b, n * sizeof *m.frame);
    store(b, &m);
    return m;
}

static void memory_free(const struct bench *b, struct memory *m)
{
    b->api->give(b->dev, m->tail);
    b->api->give(b->dev, m->pool);
    b->api->give(b->dev, m->frame);
}

/* Rows pos0 .. of sequence s. */
static struct attn_run run_of(const struct memory *m, uint32_t s, uint32_t pos0, uint32_t n_row)
{
    const size_t page = (size_t)s * m->n_page + pos0 / PAGE_TOK;
    return (struct attn_run){.row0 = s,
                             .n_row = n_row,
                             .pos0 = pos0,
                             .kind = n_row == 1 ? ROW_DECODE : ROW_PROMPT,
                             .table_stride = m->n_page,
                             .frame = m->frame + (size_t)s * m->shape.n_kv_head * m->n_page,
                             .own0 = tail_at(m, page),
                             .own = tail_at(m, page + 1)};
}

struct figure {
    const char *kind, *type;
    struct shape shape;
    uint32_t n_seq, n_tok;
    double us, rate, apart;
};

static void show(struct bench *b, const struct figure *f)
{
    const char *unit = f->kind[0] == 'p' ? "TFLOP/s" : "TB/s";
    if (b->json)
        printf("%s{\"op\": \"attention\", \"rows\": \"%s\", \"heads\": [%u, %u, %u], "
               "\"kv\": \"%s\", \"sequences\": %u, "
               "\"tokens\": %u, \"us\": %.1f, \"rate\": %.3f, \"unit\": \"%s\", \"apart\": %.2e}",
               b->n_result ? ",\n  " : "[\n  ", f->kind, f->shape.n_head, f->shape.n_kv_head,
               f->shape.head_dim, f->type, f->n_seq, f->n_tok, f->us, f->rate, unit, f->apart);
    else
        printf("| %s | %u, %u, %u | %s | %u | %u | %.4f | %.*f %s |", f->kind, f->shape.n_head,
               f->shape.n_kv_head, f->shape.head_dim, f->type, f->n_seq, f->n_tok, f->us * 1e-3,
               f->rate < 10 ? 2 : 0, f->rate, unit);
    if (!b->json && !(f->apart <= 0)) printf(" %.1e", f->apart);
    if (!b->json) printf(" |\n");
    fflush(stdout);
    b->n_result++;
}

static struct op_attn op_of(const struct memory *m, float *q, float *out)
{
    const size_t width = (size_t)m->shape.n_head * m->shape.head_dim;
    return (struct op_attn){.geom = &m->geom,
                            .frames = {.base = m->pool},
                            .n_head = m->shape.n_head,
                            .q = q,
                            .q_stride = width,
                            .out = out,
                            .out_stride = width,
                            .scale = 1.0f / sqrtf((float)m->shape.head_dim),
                            .n_run = 1};
}

static double largest_apart(const float *a, const float *b, size_t n)
{
    double top = 0, apart = 0;
    for (size_t i = 0; i < n; i++) {
        top = fmax(top, fabs((double)b[i]));
        const double e = fabs((double)a[i] - (double)b[i]);
        if (!(e <= apart)) apart = e;
    }
    return apart / top;
}

static void attend(const struct bench *b, const void *op, uint32_t i)
{
    (void)i;
    b->api->attn(b->dev, op);
}

static void bench_prompt(struct bench *b, const struct shape *shape, sac_kv_type type,
                         const char *name, uint32_t n_tok)
{
    struct memory m = memory_make(b, shape, type, 1, n_tok);
    const size_t width = (size_t)shape->n_head * shape->head_dim;
    const size_t bytes = n_tok * width * sizeof(float);
    float *q = take(b, bytes), *out = take(b, bytes), *one = take(b, width * sizeof(float));
    fill(b, q, n_tok * width);
    struct op_attn op = op_of(&m, q, out);
    op.scratch_bytes = b->api->attn_scratch(1, &m.geom, shape->n_head, 1, n_tok);
    op.scratch = take(b, op.scratch_bytes);
    const struct attn_run run = run_of(&m, 0, 0, n_tok), last = run_of(&m, 0, n_tok - 1, 1);
    op.run = &run;
    const double us = time_us(b, attend, &op, n_tok > 16384 ? 1 : 4);
    static float got[WIDTH_MAX], want[WIDTH_MAX];
    b->api->down(b->dev, got, out + (n_tok - 1) * width, width * sizeof *got);
    struct op_attn row = op;
    row.run = &last;
    row.q = q + (n_tok - 1) * width;
    row.out = one;
    b->api->attn(b->dev, &row);
    b->api->down(b->dev, want, one, width * sizeof *want);
    wait_done(b);
    show(b, &(struct figure){.kind = "prompt",
                             .shape = *shape,
                             .type = name,
                             .n_seq = 1,
                             .n_tok = n_tok,
                             .us = us,
                             .rate = 2.0 * (double)width * n_tok * n_tok / us * 1e-6,
                             .apart = largest_apart(got, want, width)});
    b->api->give(b->dev, op.scratch);
    b->api->give(b->dev, q);
    b->api->give(b->dev, out);
    b->api->give(b->dev, one);
    memory_free(b, &m);
}

static void bench_decode(struct bench *b, const struct shape *shape, sac_kv_type type,
                         const char *name, uint32_t n_seq, uint32_t n_tok)
{
    struct memory m = memory_make(b, shape, type, n_seq, n_tok);
    const size_t n = (size_t)n_seq * shape->n_head * shape->head_dim;
    float *q = take(b, n * sizeof(float)), *out = take(b, n * sizeof(float));
    fill(b, q, n);
    struct op_attn op = op_of(&m, q, out);
    struct attn_run run[8];
    for (uint32_t s = 0; s < n_seq; s++) run[s] = run_of(&m, s, n_tok - 1, 1);
    op.n_run = n_seq;
    op.run = run;
    op.scratch_bytes = b->api->attn_scratch(1, &m.geom, shape->n_head, n_seq, n_tok);
    op.scratch = take(b, op.scratch_bytes);
    const double us = time_us(b, attend, &op, 50);
    const double read = (double)n_seq * (m.n_page - 1) * shape->n_kv_head * (double)m.geom.bytes;
    show(b, &(struct figure){.kind = "decode",
                             .shape = *shape,
                             .type = name,
                             .n_seq = n_seq,
                             .n_tok = n_tok,
                             .us = us,
                             .rate = read / us * 1e-6});
    b->api->give(b->dev, op.scratch);
    b->api->give(b->dev, q);
    b->api->give(b->dev, out);
    memory_free(b, &m);
}

int main(int argc, char **argv)
{
    static const struct {
        sac_kv_type type;
        const char *name;
    } types[] = {{SAC_KV_F16, "f16"}, {SAC_KV_Q8, "q8"}};
    static const struct shape shapes[] = {{32, 8, 128}, {14, 2, 64}};
    uint32_t most = 131072;
    if (argc < 2) die("usage: bench_cuda LIBRARY [-o md|json] [-n TOKENS_MAX]");
    struct bench b = bench_open(argv[1]);
    for (int i = 2; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "-o") == 0) b.json = strcmp(argv[i + 1], "json") == 0;
        if (strcmp(argv[i], "-n") == 0) most = (uint32_t)atoi(argv[i + 1]);
    }
    if (!b.json)
        printf("%s, %u multiprocessors\n\n| rows | heads | KV | sequences | tokens | ms | rate | "
               "apart |\n"
               "|---|---|---|---|---|---|---|---|\n",
               b.info.name, b.info.n_sm);
    for (size_t t = 0; t < 4; t++)
        for (uint32_t n = 8192; n <= most; n *= 4)
            for (uint32_t s = 1; s <= 8; s *= 8)
                bench_decode(&b, &shapes[t / 2], types[t % 2].type, types[t % 2].name, s, n);
    for (size_t t = 0; t < 2; t++)
        for (uint32_t n = 8192; n <= most; n *= 2)
            bench_prompt(&b, &shapes[0], types[t].type, types[t].name, n);
    if (b.json) printf("\n]\n");
    b.api->close(b.dev);
    return 0;
}
