/* check_splits.c: decode rows of long lists, as the CUDA library has them: the bits of a row are
 * the same alone, when each of its splits is a block's, and in company, when a block takes several.
 */
#include "decode_rows.h"

enum { N_ROW = 24, N_KV = 2, N_TOK = 1500, BY = 11, N_HEAD_MAX = 24, WIDTH_MAX = 12 * 2 * 128 };

struct kind {
    sac_kv_type type;
    uint32_t head_dim, group, window;
};

static struct {
    struct kind kind;
    struct sequence seq;
    uint32_t n_head, width;
    struct attn_run run[N_ROW];
    struct op_attn op; /* all rows */
} p;

static float q[N_ROW * WIDTH_MAX];

struct result {
    float out[N_ROW * WIDTH_MAX], lse[N_ROW * N_HEAD_MAX];
};

static struct result together, alone;

/* Rows end at positions of their own, so that lists differ and some have an odd number of pages. */
static void put_problem(void)
{
    struct sequence *s = &p.seq;
    const struct page_geom *g = &s->geom;
    uint32_t pos[N_ROW];
    for (uint32_t i = 0; i < N_ROW; i++) pos[i] = N_TOK - 1 - i * BY;
    put_decode_rows(p.run, s, pos, N_ROW);
    const size_t bytes = api->attn_scratch(1, g, p.n_head, N_ROW, s->n_tok);
    p.op = (struct op_attn){.geom = g,
                            .frames = {.base = put(s->pool, s->pool_bytes)},
                            .n_head = p.n_head,
                            .q = put(q, sizeof q),
                            .q_stride = p.width,
                            .out = put_any(sizeof together.out),
                            .out_stride = p.width,
                            .lse = put_any(sizeof together.lse),
                            .scale = 1.0f / sqrtf((float)g->head_dim),
                            .window = p.kind.window,
                            .n_run = N_ROW,
                            .run = p.run,
                            .scratch = put_any(bytes),
                            .scratch_bytes = bytes};
}

static void open_problem(const struct kind *kind, uint64_t seed)
{
    p.kind = *kind;
    p.n_head = kind->group * N_KV;
    p.width = p.n_head * kind->head_dim;
    assert_true(p.width <= WIDTH_MAX && p.n_head <= N_HEAD_MAX);
    sequence_open(&p.seq, kind->type, N_KV, kind->head_dim, N_TOK, seed);
    for (size_t i = 0; i < sizeof q / sizeof *q; i++) q[i] = rng_normal(&seed);
    put_problem();
}

static void close_problem(void)
{
    sequence_deinit(&p.seq);
    give_all();
}

static void attend(struct result *to, uint32_t first, uint32_t n)
{
    struct op_attn op = p.op;
    op.run = p.run + first;
    op.n_run = n;
    api->attn(device, &op);
    api->down(device, to->out, p.op.out, (size_t)N_ROW * p.width * sizeof *to->out);
    get(to->lse, p.op.lse, (size_t)N_ROW * p.n_head * sizeof *to->lse);
}

static void a_row_alone_has_the_bits_of_company(void **state)
{
    (void)state;
    static const struct kind kinds[] = {{SAC_KV_F16, 64, 7, 0},    {SAC_KV_BF16, 64, 12, 900},
                                        {SAC_KV_F16, 128, 4, 0},   {SAC_KV_Q8, 64, 8, 0},
                                        {SAC_KV_Q8, 128, 3, 1100}, {SAC_KV_F16, 256, 2, 0}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        open_problem(&kinds[i], 3 + i);
        attend(&together, 0, N_ROW);
        for (uint32_t row = 0; row < N_ROW; row += 7) {
            attend(&alone, row, 1);
            assert_memory_equal(together.out + (size_t)row * p.width,
                                alone.out + (size_t)row * p.width, p.width * sizeof *alone.out);
            assert_memory_equal(together.lse + (size_t)row * p.n_head,
                                alone.lse + (size_t)row * p.n_head, p.n_head * sizeof *alone.lse);
        }
        close_problem();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_alone_has_the_bits_of_company),
    };
    return cmocka_run_group_tests(tests, open_library, close_library);
}
