/* measure_heads.c: what the papers of prefill methods say of attention, measured on a model and a
 * text: every row of every head, exactly.
 *
 * Neighbours (CritiPrefill, figure 3): how many of a query's TOP best keys are also among those of
 * a query at a distance.
 *
 * Lines (LoopServe, figures 1 and 2): how much attention the best share of all columns and
 * diagonals holds, and how many of them are the same in another piece of the text.
 *
 * Blocks (XAttention): how much of the attention outside the first and the own block the best
 * blocks hold, chosen by antidiagonals, by mean queries and mean keys, or by the attention itself,
 * for the rows of the second half.
 *
 * The text is read in two pieces, each a sequence of its own. An engine does the reading; the plan
 * of its prefill method is taken over, looks, and reads everything. */
#include "base/input.h"
#include "engine/engine.h"
#include "methods/lines.h"
#include "methods/pick.h"

#include <stdio.h>
#include <stdlib.h>

enum { TOP = 512, BLOCK = 128, STRIDE = 16, N_DISTANCE = 7, N_SHARE = 6, N_BLOCK_SHARE = 3 };
enum by { BY_ANTIDIAGONAL, BY_MEANS, BY_MASS, N_BY };

static const uint32_t distance[N_DISTANCE] = {1, 4, 16, 64, 256, 1024, 2048};
static const double line_share[N_SHARE] = {0.01, 0.02, 0.05, 0.1, 0.2, 0.3};
static const double block_share[N_BLOCK_SHARE] = {0.1, 0.2, 0.3};

/* Sums over heads and pieces. */
struct sums {
    double near[N_DISTANCE], covered[N_SHARE], same[N_SHARE], kept[N_BLOCK_SHARE][N_BY];
    uint32_t n, n_same;
};

/* Of one KV head: one worker has it at a time. */
struct work {
    float *p;       /* [n, n] attention of a query head */
    float *k, *row; /* [n, d], [n] */
    uint32_t *best; /* [n, n / 32] bits of each row's TOP keys */
    float *line;    /* [2 n] columns, then slashes from the last to the first */
    float *block;   /* [N_BY][n / BLOCK, n / BLOCK] */
    float *pooled_q, *pooled_k, *group_q; /* [n / BLOCK, d] twice, [n, d] by groups */
    struct sums sums;
};

static struct {
    uint32_t n, d, group, n_kv_head;
    bool is_second;
    struct work *work;  /* [n_kv_head] */
    uint32_t *line_bit; /* [n_layer, n_head, N_SHARE, 2 n / 32] of the first piece */
} all;

/* ---- One head ---- */

static void attend_head(struct work *w, const struct method_lane *l, uint32_t head)
{
    const uint32_t n = all.n, d = all.d;
    for (uint32_t r = 0; r < n; r += BLOCK) {
        l->ops->dots(&(struct op_dots){.a = l->q + r * l->q_stride + (size_t)head * d,
                                       .b = w->k,
                                       .a_stride = l->q_stride,
                                       .b_stride = d,
                                       .n_a = BLOCK,
                                       .n_b = n,
                                       .width = d,
                                       .out = w->p + (size_t)r * n,
                                       .out_stride = n});
    }
    for (uint32_t r = 0; r < n; r++) {
        float *p = w->p + (size_t)r * n, lse;
        for (uint32_t c = 0; c <= r; c++) p[c] *= l->scale;
        if (!l->ops->vote(
                &(struct op_vote){.score = p, .n = r + 1, .group = 1, .vote = w->row, .lse = &lse}))
            exit(1);
        memcpy(p, w->row, (r + 1) * sizeof *p);
        memset(p + r + 1, 0, (n - r - 1) * sizeof *p);
    }
}

static void find_neighbours(struct work *w)
{
    const uint32_t n = all.n, n_word = n / 32, first = n / 4;
    memset(w->best, 0, (size_t)n * n_word * sizeof *w->best);
    for (uint32_t r = first; r < n; r++) {
        const float *p = w->p + (size_t)r * n;
        struct pick_cut cut = pick_best(p, r + 1, TOP);
        for (uint32_t c = 0; c <= r; c++)
            if (pick_takes(&cut, p[c])) w->best[(size_t)r * n_word + c / 32] |= 1u << c % 32;
    }
    for (int i = 0; i < N_DISTANCE; i++) {
        double same = 0;
        uint32_t n_pair = 0;
        for (uint32_t r = first; r + distance[i] < n; r += 7, n_pair++) {
            const uint32_t *a = w->best + (size_t)r * n_word, *b = a + distance[i] * (size_t)n_word;
            for (uint32_t x = 0; x < n_word; x++) same += __builtin_popcount(a[x] & b[x]);
        }
        w->sums.near[i] += same / TOP / n_pair;
    }
}

static double covered_by_lines(const struct work *w, const uint32_t *bit)
{
    const uint32_t n = all.n;
    double sum = 0;
    for (uint32_t r = 7; r < n; r += 8) /* an eighth of the rows will do */
        for (uint32_t c = 0; c <= r; c++) {
            const uint32_t slash = n + n - 1 - (r - c);
            if ((bit[c / 32] >> c % 32 | bit[slash / 32] >> slash % 32) & 1)
                sum += (double)w->p[(size_t)r * n + c];
        }
    return sum / (n / 8);
}

/* Overlap as the paper has it: lines in common over lines in either. */
static double same_lines(const uint32_t *a, const uint32_t *b)
{
    double both = 0, either = 0;
    for (uint32_t x = 0; x < 2 * all.n / 32; x++) {
        both += __builtin_popcount(a[x] & b[x]);
        either += __builtin_popcount(a[x] | b[x]);
    }
    return both / either;
}

static void find_lines(struct work *w, uint32_t head_i)
{
    const uint32_t n = all.n, n_word = 2 * n / 32;
    static _Thread_local uint32_t bit[2 * 65536 / 32];
    memset(w->line, 0, 2 * (size_t)n * sizeof *w->line);
    for (uint32_t r = 0; r < n; r++) lines_add(w->line, w->line + n, n, w->p + (size_t)r * n, r);
    for (int i = 0; i < N_SHARE; i++) {
        struct pick_cut cut = pick_best(w->line, 2 * n, (uint32_t)(line_share[i] * 2 * n));
        uint32_t *first = all.line_bit + ((size_t)head_i * N_SHARE + (uint32_t)i) * n_word;
        memset(bit, 0, n_word * sizeof *bit);
        for (uint32_t x = 0; x < 2 * n; x++)
            if (pick_takes(&cut, w->line[x])) bit[x / 32] |= 1u << x % 32;
        w->sums.covered[i] += covered_by_lines(w, bit);
        if (all.is_second)
            w->sums.same[i] += same_lines(bit, first);
        else
            memcpy(first, bit, n_word * sizeof *bit);
    }
    w->sums.n_same += all.is_second;
}

/* Softmax of one row of scores over [0, end), each weight added to where[column / width]. */
static void add_softmax(float *score, uint32_t end, uint32_t width, float *where)
{
    float most = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < end; i++) most = fmaxf(most, score[i]);
    for (uint32_t i = 0; i < end; i++) sum += score[i] = expf(score[i] - most);
    for (uint32_t i = 0; i < end; i++) where[i / width] += score[i] / sum;
}

/* Scores of strided groups, rows from last to first against keys from first to last. */
static void score_antidiagonals(struct work *w, const struct method_lane *l, uint32_t head)
{
    const uint32_t n = all.n, d = all.d, n_group = n / STRIDE, n_block = n / BLOCK;
    for (uint32_t r = 0; r < n; r++) {
        const uint32_t g = r / STRIDE, i = STRIDE - 1 - r % STRIDE;
        memcpy(w->group_q + ((size_t)g * STRIDE + i) * d, l->q + r * l->q_stride + (size_t)head * d,
               d * sizeof(float));
    }
    memset(w->block, 0, (size_t)n_block * n_block * sizeof(float));
    for (uint32_t g = 0; g < n_group; g++) {
        l->ops->dots(&(struct op_dots){.a = w->group_q + (size_t)g * STRIDE * d,
                                       .b = w->k,
                                       .a_stride = STRIDE * d,
                                       .b_stride = STRIDE * d,
                                       .n_a = 1,
                                       .n_b = g + 1,
                                       .width = STRIDE * d,
                                       .out = w->row,
                                       .out_stride = n});
        for (uint32_t j = 0; j <= g; j++) w->row[j] *= l->scale / STRIDE;
        add_softmax(w->row, g + 1, BLOCK / STRIDE,
                    w->block + (size_t)(g / (BLOCK / STRIDE)) * n_block);
    }
}

static void score_means(struct work *w, const struct method_lane *l, uint32_t head)
{
    const uint32_t n = all.n, d = all.d, n_block = n / BLOCK;
    float *block = w->block + (size_t)BY_MEANS * n_block * n_block;
    memset(w->pooled_q, 0, (size_t)n_block * d * sizeof(float));
    memset(w->pooled_k, 0, (size_t)n_block * d * sizeof(float));
    memset(block, 0, (size_t)n_block * n_block * sizeof(float));
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t c = 0; c < d; c++) {
            w->pooled_q[r / BLOCK * d + c] += l->q[r * l->q_stride + (size_t)head * d + c] / BLOCK;
            w->pooled_k[r / BLOCK * d + c] += w->k[(size_t)r * d + c] / BLOCK;
        }
    for (uint32_t b = 0; b < n_block; b++) {
        for (uint32_t j = 0; j <= b; j++) {
            w->row[j] = 0;
            for (uint32_t c = 0; c < d; c++)
                w->row[j] += l->scale * w->pooled_q[b * d + c] * w->pooled_k[j * d + c];
        }
        add_softmax(w->row, b + 1, 1, block + (size_t)b * n_block);
    }
}

static void score_masses(struct work *w)
{
    const uint32_t n = all.n, n_block = n / BLOCK;
    float *block = w->block + (size_t)BY_MASS * n_block * n_block;
    memset(block, 0, (size_t)n_block * n_block * sizeof(float));
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t c = 0; c <= r; c++)
            block[(size_t)(r / BLOCK) * n_block + c / BLOCK] += w->p[(size_t)r * n + c];
}

/* The first and the own block are read in any case. Of the others as many are chosen by each: a
 * share of all that there are. What they hold is a share of what the others hold. */
static void find_blocks(struct work *w, const struct method_lane *l, uint32_t head)
{
    const uint32_t n_block = all.n / BLOCK, first = n_block / 2;
    score_antidiagonals(w, l, head);
    score_means(w, l, head);
    score_masses(w);
    const float *mass = w->block + (size_t)BY_MASS * n_block * n_block;
    for (int s = 0; s < N_BLOCK_SHARE; s++)
        for (int by = 0; by < N_BY; by++) {
            double kept = 0, sum = 0;
            for (uint32_t b = first; b < n_block; b++) {
                const float *value = w->block + ((size_t)by * n_block + b) * n_block;
                struct pick_cut cut =
                    pick_best(value + 1, b - 1, (uint32_t)ceil(block_share[s] * b));
                for (uint32_t j = 1; j < b; j++) {
                    sum += (double)mass[b * n_block + j];
                    if (pick_takes(&cut, value[j])) kept += (double)mass[b * n_block + j];
                }
            }
            w->sums.kept[s][by] += kept / sum;
        }
}

/* ---- All of them ---- */

static void measure(const struct method_lane *l, struct plan *p)
{
    struct work *w = &all.work[l->kv_head];
    l->ops->keys(&(struct op_keys){.geom = l->shape->geom,
                                   .frames = l->frames,
                                   .page = l->page,
                                   .n_page = all.n / PAGE_TOK,
                                   .out = w->k});
    for (uint32_t h = 0; h < all.group; h++) {
        attend_head(w, l, h);
        find_neighbours(w);
        find_lines(w, (l->layer * all.n_kv_head + l->kv_head) * all.group + h);
        find_blocks(w, l, h);
        w->sums.n++;
    }
    plan_dense(p, PLAN_LAYER);
}

static float *floats(size_t n)
{
    float *p = aligned_alloc(64, (n * sizeof(float) + 63) & ~(size_t)63);
    if (!p) exit(1);
    return p;
}

static void allocate(uint32_t n_layer)
{
    const size_t n = all.n, d = all.d, n_block = n / BLOCK;
    all.work = calloc(all.n_kv_head, sizeof *all.work);
    all.line_bit = calloc((size_t)n_layer * all.n_kv_head * all.group * N_SHARE, 2 * n / 8);
    if (!all.work || !all.line_bit) exit(1);
    for (uint32_t h = 0; h < all.n_kv_head; h++) {
        struct work *w = &all.work[h];
        float **const part[] = {&w->p,     &w->k,        &w->row,      &w->line,
                                &w->block, &w->pooled_q, &w->pooled_k, &w->group_q};
        const size_t size[] = {n * n,       n * d,       n,    2 * n, N_BY * n_block * n_block,
                               n_block * d, n_block * d, n * d};
        for (size_t i = 0; i < sizeof size / sizeof size[0]; i++) *part[i] = floats(size[i]);
        w->best = (uint32_t *)(void *)floats(n * n / 32);
    }
}

static void print(void)
{
    struct sums s = {0};
    for (uint32_t h = 0; h < all.n_kv_head; h++) {
        const double *from = (const double *)(const void *)&all.work[h].sums;
        double *to = (double *)(void *)&s;
        for (size_t i = 0; i < offsetof(struct sums, n) / sizeof(double); i++) to[i] += from[i];
        s.n += all.work[h].sums.n;
        s.n_same += all.work[h].sums.n_same;
    }
    printf("Shared among the %d best keys of two queries, by distance:\n\n|", TOP);
    for (int i = 0; i < N_DISTANCE; i++) printf(" %u |", distance[i]);
    printf("\n|");
    for (int i = 0; i < N_DISTANCE; i++) printf("--:|");
    printf("\n|");
    for (int i = 0; i < N_DISTANCE; i++) printf(" %.1f %% |", 100 * s.near[i] / s.n);
    printf("\n\n| best lines of all | attention that they hold | the same in another piece |\n"
           "|--:|--:|--:|\n");
    for (int i = 0; i < N_SHARE; i++)
        printf("| %.0f %% | %.1f %% | %.1f %% |\n", 100 * line_share[i], 100 * s.covered[i] / s.n,
               100 * s.same[i] / s.n_same);
    printf("\n| best blocks | by antidiagonals | by means | by their attention |\n"
           "|--:|--:|--:|--:|\n");
    for (int i = 0; i < N_BLOCK_SHARE; i++)
        printf("| %.0f %% | %.1f %% | %.1f %% | %.1f %% |\n", 100 * block_share[i],
               100 * s.kept[i][BY_ANTIDIAGONAL] / s.n, 100 * s.kept[i][BY_MEANS] / s.n,
               100 * s.kept[i][BY_MASS] / s.n);
}

static void check(sac_status status, const sac_error *err)
{
    if (status == SAC_OK) return;
    fprintf(stderr, "measure_heads: %s\n", err->msg);
    exit(1);
}

/* A piece of the text as a sequence of its own. */
static void read_piece(sac_engine *e, const int32_t *tok)
{
    sac_error err;
    sac_seq seq;
    uint32_t n_row = 1;
    check(sac_seq_create(e, &seq, &err), &err);
    check(sac_seq_append(e, seq, tok, all.n, SAC_ROW_PROMPT, SAC_WANT_NONE, &err), &err);
    while (n_row > 0) check(sac_step(e, NULL, NULL, &n_row, &err), &err);
    sac_seq_remove(e, seq);
}

static int32_t *read_text(const sac_model *model, const char *path, size_t *out_n)
{
    struct strbuf text = {0};
    sac_error err;
    int32_t *tok;
    check(input_read(&text, path, &err), &err);
    check(sac_tokenize(model, text.data, text.n, 0, &tok, out_n, &err), &err);
    strbuf_deinit(&text);
    return tok;
}

int main(int argc, char **argv)
{
    static const char *const spec = "a-shape";
    sac_model *model;
    sac_engine *e;
    sac_error err;
    size_t n_tok;
    const uint32_t n = argc == 4 ? (uint32_t)strtoul(argv[3], NULL, 10) / BLOCK * BLOCK : 0;
    if (argc != 4 || n < 4 * TOP || n > 65536) {
        fprintf(stderr, "usage: measure_heads MODEL TEXT TOKENS (of a piece, 2,048 to 65,536)\n");
        return 2;
    }
    const sac_model_params load = sac_model_params_default();
    check(sac_model_load(&model, argv[1], &load, &err), &err);
    int32_t *tok = read_text(model, argv[2], &n_tok);
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = p.n_batch = n;
    p.prefill = &spec;
    p.n_prefill = 1;
    p.sparse_min_ctx = 0;
    check(sac_engine_create(&e, model, &p, &err), &err);
    all.n = n;
    all.d = e->pool.geom.head_dim;
    all.n_kv_head = e->pool.geom.n_kv_head;
    all.group = e->shape.group;
    allocate(e->pool.geom.n_layer);
    struct method method = *e->method_set[METHOD_SET_PREFILL].specs.spec[0].method;
    const struct method_prefill hooks = {.plan = measure};
    method.prefill = &hooks;
    e->method_set[METHOD_SET_PREFILL].specs.spec[0].method = &method;
    if (n_tok < 2 * (size_t)n) {
        fprintf(stderr, "measure_heads: %s has %zu tokens, two pieces have %u\n", argv[2], n_tok,
                2 * n);
        return 1;
    }
    read_piece(e, tok);
    all.is_second = true;
    read_piece(e, tok + n);
    print();
    sac_engine_free(e);
    sac_free(tok);
    sac_model_free(model);
    return 0;
}
