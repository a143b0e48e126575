/* check_turned.c: decode rows whose queries and keys turn, and whose keys and values are written,
 * by the launch that attends, as the CUDA library has it: the bits of three calls that are waited
 * for, for heads, pages and rotations of every kind, and which rows it must not be. */
#include "decode_rows.h"

#include "base/half.h"

enum { N_RUN = 5, N_KV = 2, N_TOK = 400, WIDTH_MAX = (2 * 12 + 2 * 2) * 256 };

/* Positions in pages of their own: the first of all, the last and first of a page, in either half,
 * and one whose list has several splits. */
static const uint32_t position[N_RUN] = {0, 63, 64, 96 + 17, 335};

struct kind {
    sac_kv_type type;
    uint32_t head_dim, group, n_rot, window;
    bool interleaved;
};

struct problem {
    struct kind kind;
    struct sequence seq;
    uint32_t n_head, width; /* of a row: queries, keys, values */
    float x[N_RUN * WIDTH_MAX], cos[N_RUN * 128], sin[N_RUN * 128];
    float *x_there, *cos_there, *sin_there, *out_there, *lse_there, *spare;
    uint8_t *tail_there, *scratch;
    size_t tail_bytes, scratch_bytes;
    struct page_frames frames;
    struct attn_run run[N_RUN];
};

struct result {
    float x[N_RUN * WIDTH_MAX], out[N_RUN * WIDTH_MAX], lse[N_RUN * 24];
    uint8_t *tail;
};

static struct problem p;
static struct result apart, at_once;

static void fill(uint64_t seed)
{
    const uint32_t half = p.kind.n_rot / 2;
    for (uint32_t i = 0; i < N_RUN * p.width; i++) p.x[i] = rng_normal(&seed);
    for (uint32_t i = 0; i < N_RUN * half; i++) {
        p.cos[i] = cosf((float)i * 0.37f);
        p.sin[i] = sinf((float)i * 0.37f);
    }
}

static void put_problem(void)
{
    struct sequence *s = &p.seq;
    const struct page_geom *g = &s->geom;
    const size_t out_bytes = (size_t)N_RUN * p.n_head * g->head_dim * sizeof(float);
    p.tail_bytes = (size_t)s->n_page * g->n_kv_head * g->tail_bytes;
    p.x_there = put(p.x, (size_t)N_RUN * p.width * sizeof *p.x);
    p.spare = put(p.x, sizeof(float) * 64);
    p.cos_there = put(p.cos, sizeof p.cos);
    p.sin_there = put(p.sin, sizeof p.sin);
    p.out_there = put(at_once.out, out_bytes);
    p.lse_there = put(at_once.lse, sizeof at_once.lse);
    p.tail_there = put_decode_rows(p.run, s, position, N_RUN);
    p.scratch_bytes = api->attn_scratch(1, g, p.n_head, N_RUN, s->n_tok);
    uint8_t *none = mem_map(p.scratch_bytes);
    memset(none, 0xff, p.scratch_bytes); /* NaN: nothing may be read before it is written */
    p.scratch = put(none, p.scratch_bytes);
    mem_unmap(none, p.scratch_bytes);
    p.frames = (struct page_frames){.base = put(s->pool, s->pool_bytes)};
}

static void open_problem(const struct kind *kind, uint64_t seed)
{
    p.kind = *kind;
    p.n_head = kind->group * N_KV;
    p.width = (p.n_head + 2 * N_KV) * kind->head_dim;
    assert_true(p.width <= WIDTH_MAX);
    sequence_open(&p.seq, kind->type, N_KV, kind->head_dim, N_TOK, seed);
    fill(seed + 1);
    put_problem();
    apart.tail = mem_map(p.tail_bytes);
    at_once.tail = mem_map(p.tail_bytes);
}

static void close_problem(void)
{
    mem_unmap(apart.tail, p.tail_bytes);
    mem_unmap(at_once.tail, p.tail_bytes);
    sequence_deinit(&p.seq);
    give_all();
}

/* ---- Calls ---- */

static void turn_and_write(void)
{
    const uint32_t d = p.kind.head_dim;
    const float *k = p.x_there + p.n_head * d;
    api->rope(device, &(struct op_rope){.x = p.x_there,
                                        .x_stride = p.width,
                                        .n_row = N_RUN,
                                        .n_head = p.n_head + N_KV,
                                        .head_dim = d,
                                        .n_rot = p.kind.n_rot,
                                        .interleaved = p.kind.interleaved,
                                        .cos = p.cos_there,
                                        .sin = p.sin_there});
    api->kv_write(device, &(struct op_kv_write){.geom = &p.seq.geom,
                                                .n_run = N_RUN,
                                                .run = p.run,
                                                .k = k,
                                                .v = k + N_KV * d,
                                                .kv_stride = p.width});
}

static void attend(uint32_t n_run, bool q_ends)
{
    const uint32_t d = p.kind.head_dim;
    api->attn(device, &(struct op_attn){.geom = &p.seq.geom,
                                        .frames = p.frames,
                                        .n_head = p.n_head,
                                        .q = p.x_there,
                                        .q_stride = p.width,
                                        .q_ends = q_ends,
                                        .out = p.out_there,
                                        .out_stride = (size_t)p.n_head * d,
                                        .lse = p.lse_there,
                                        .scale = 1.0f / sqrtf((float)d),
                                        .window = p.kind.window,
                                        .n_run = n_run,
                                        .run = p.run,
                                        .scratch = p.scratch,
                                        .scratch_bytes = p.scratch_bytes});
}

static void begin(void)
{
    sac_error err;
    api->up(device, p.x_there, p.x, (size_t)N_RUN * p.width * sizeof *p.x);
    api->up(device, p.tail_there, p.seq.tail, p.tail_bytes);
    must(api->wait(device, &err), &err);
}

static void end(struct result *to)
{
    api->down(device, to->x, p.x_there, (size_t)N_RUN * p.width * sizeof *to->x);
    api->down(device, to->out, p.out_there,
              (size_t)N_RUN * p.n_head * p.kind.head_dim * sizeof *to->out);
    api->down(device, to->lse, p.lse_there, (size_t)N_RUN * p.n_head * sizeof *to->lse);
    get(to->tail, p.tail_there, p.tail_bytes);
}

static void three_calls(void)
{
    sac_error err;
    begin();
    turn_and_write();
    must(api->wait(device, &err), &err);
    attend(N_RUN, true);
    end(&apart);
}

/* `is_behind`: a launch that has nothing to do with pages, as a layer's product is, so that pages
 * are on their way before it has ended. */
static void one_launch(bool is_behind)
{
    begin();
    if (is_behind)
        api->rmsnorm(device, &(struct op_rmsnorm){.x = p.spare,
                                                  .y = p.spare,
                                                  .x_stride = 64,
                                                  .y_stride = 64,
                                                  .n_row = 1,
                                                  .n_group = 1,
                                                  .width = 64,
                                                  .w = p.spare});
    turn_and_write();
    attend(N_RUN, true);
    end(&at_once);
}

/* ---- Checks ---- */

static bool has_turned(const struct result *r)
{
    return memcmp(r->x, p.x, (size_t)N_RUN * p.width * sizeof *p.x) != 0;
}

static void assert_same(void)
{
    const size_t n = (size_t)N_RUN * p.n_head;
    assert_memory_equal(apart.out, at_once.out, n * p.kind.head_dim * sizeof *apart.out);
    assert_memory_equal(apart.lse, at_once.lse, n * sizeof *apart.lse);
    assert_memory_equal(apart.tail, at_once.tail, p.tail_bytes);
    assert_memory_not_equal(apart.tail, p.seq.tail, p.tail_bytes);
}

static void one_launch_has_the_bits_of_three_calls(void **state)
{
    (void)state;
    static const struct kind kinds[] = {
        {SAC_KV_F16, 64, 7, 64, 0, false},     {SAC_KV_F16, 128, 4, 128, 0, true},
        {SAC_KV_BF16, 128, 12, 64, 40, false}, {SAC_KV_Q8, 64, 1, 32, 0, true},
        {SAC_KV_Q8, 128, 8, 128, 100, false},  {SAC_KV_F16, 256, 2, 64, 0, false}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        open_problem(&kinds[i], 11 + i);
        three_calls();
        assert_true(has_turned(&apart));
        for (int is_behind = 0; is_behind < 2; is_behind++) {
            one_launch(is_behind);
            assert_same();
            assert_false(has_turned(&at_once));
        }
        close_problem();
    }
}

/* Where queries are read behind attention, or keys are written that others attend to, all of them
 * turn and are written by themselves. */
static void rows_that_others_need_turn_by_themselves(void **state)
{
    (void)state;
    open_problem(&(struct kind){SAC_KV_F16, 64, 7, 64, 0, false}, 5);
    three_calls();
    begin();
    turn_and_write();
    attend(N_RUN, false);
    end(&at_once);
    assert_true(has_turned(&at_once));
    assert_same();
    begin();
    turn_and_write();
    attend(N_RUN - 1, true);
    end(&at_once);
    assert_true(has_turned(&at_once));
    assert_memory_equal(apart.tail, at_once.tail, p.tail_bytes);
    close_problem();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_launch_has_the_bits_of_three_calls),
        cmocka_unit_test(rows_that_others_need_turn_by_themselves),
    };
    return cmocka_run_group_tests(tests, open_library, close_library);
}
