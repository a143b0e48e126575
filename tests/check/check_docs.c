/* check_docs.c: the slots for joined documents as the CUDA library has them: open pages bit for bit
 * as page_unseal says, what rows read but for rounding; rows that are scattered as they are beside
 * each other. */
#include "base/half.h"
#include "cuda_lib.h"
#include "plain_mass.h"
#include "random_rows.h"

#include <math.h>

enum { N_PAGE = 11, N_KV_HEAD = 2, N_HEAD = 6, N_ROW = 5, STRIDE = N_PAGE + 3 };

static struct page_geom geom_of(sac_kv_type type, uint32_t dim)
{
    struct page_geom g = {.n_layer = 1, .n_kv_head = N_KV_HEAD, .head_dim = dim};
    g.type_k = g.type_v = type;
    page_geom_init(&g);
    return g;
}

/* Sealed pages of random keys and values, each behind the other. */
static uint8_t *make_pages(const struct page_geom *g, uint32_t n)
{
    uint8_t *sealed = mem_calloc(n, g->bytes), *tail = mem_calloc(1, g->tail_bytes);
    uint64_t state = 7;
    for (uint32_t p = 0; p < n; p++) {
        uint16_t *half = (uint16_t *)(void *)tail;
        for (uint32_t i = 0; i < 2 * PAGE_TOK * g->head_dim; i++) {
            const float x = random_gauss(&state);
            half[i] = g->type_k == SAC_KV_BF16 ? f32_to_bf16(x) : f32_to_f16(x);
        }
        const uint8_t *from = tail;
        uint8_t *to = sealed + p * g->bytes;
        ref.seal(NULL, &(struct op_seal){.geom = g, .n_page = 1, .tail = &from, .sealed = &to});
    }
    mem_free(tail);
    return sealed;
}

static const sac_kv_type types[] = {SAC_KV_F16, SAC_KV_BF16, SAC_KV_Q8};

static void pages_are_opened_bit_for_bit(void **state)
{
    (void)state;
    for (int t = 0; t < 3; t++) {
        const struct page_geom g = geom_of(types[t], 64 << t);
        uint8_t *sealed = make_pages(&g, N_PAGE), *want = mem_calloc(N_PAGE, g.tail_bytes);
        uint8_t *got = mem_calloc(N_PAGE, g.tail_bytes);
        uint8_t *there = put(sealed, N_PAGE * g.bytes), *room = put(got, N_PAGE * g.tail_bytes);
        const uint8_t *from[N_PAGE];
        uint8_t *to[N_PAGE];
        for (uint32_t p = 0; p < N_PAGE; p++) { /* in another order, and one twice */
            const uint32_t page = p == 3 ? 5 : N_PAGE - 1 - p;
            page_unseal(&g, want + p * g.tail_bytes, sealed + page * g.bytes, PAGE_TOK);
            from[p] = there + page * g.bytes;
            to[p] = room + p * g.tail_bytes;
        }
        api->unseal(device,
                    &(struct op_unseal){.geom = &g, .n_page = N_PAGE, .sealed = from, .tail = to});
        get(got, room, N_PAGE * g.tail_bytes);
        assert_memory_equal(got, want, N_PAGE * g.tail_bytes);
        give_all();
        mem_free(sealed);
        mem_free(want);
        mem_free(got);
    }
}

/* Rows of a question, pages in any order, of which some wait for a turned query. */
struct question {
    uint32_t frame[N_KV_HEAD * STRIDE];
    float q[N_ROW * N_HEAD * 256], turn[4][128], mass[N_PAGE * PAGE_TOK];
    struct segment_view segment[2];
};

static struct op_mass make_question(struct question *w, const struct page_geom *g)
{
    uint64_t state = 3;
    for (uint32_t i = 0; i < N_KV_HEAD * STRIDE; i++) w->frame[i] = i * 7 % (N_KV_HEAD * N_PAGE);
    for (size_t i = 0; i < sizeof w->q / sizeof w->q[0]; i++) w->q[i] = random_gauss(&state);
    for (uint32_t i = 0; i < 128; i++)
        for (uint32_t s = 0; s < 2; s++) {
            w->turn[2 * s][i] = cosf((float)(i + 5 * s));
            w->turn[2 * s + 1][i] = sinf((float)(i + 5 * s));
        }
    w->segment[0] = (struct segment_view){4, w->turn[0], w->turn[1]};
    w->segment[1] = (struct segment_view){9, w->turn[2], w->turn[3]};
    return (struct op_mass){.geom = g,
                            .frame = w->frame,
                            .table_stride = STRIDE,
                            .n_page = N_PAGE,
                            .n_row = N_ROW,
                            .n_head = N_HEAD,
                            .q = w->q,
                            .segment = w->segment,
                            .n_segment = 2,
                            .rope = {.n_rot = g->head_dim},
                            .scale = 0.2f,
                            .mass = w->mass};
}

static void check_mass(struct op_mass op, const uint8_t *pages, const char *what)
{
    static float want[N_PAGE * PAGE_TOK], got[N_PAGE * PAGE_TOK];
    const size_t bytes = (size_t)N_PAGE * N_KV_HEAD * op.geom->bytes;
    const size_t n_spare = op_mass_spare(op.n_page, op.n_row, op.n_head);
    float *spare = mem_calloc(n_spare, sizeof *spare);
    op.frames.base = pages;
    op.mass = want;
    plain_mass(&op);
    op.frames.base = put(pages, bytes);
    op.frame = put(op.frame, N_KV_HEAD * STRIDE * sizeof *op.frame);
    op.spare = put(spare, n_spare * sizeof *spare);
    op.mass = put(got, sizeof got);
    for (uint32_t i = 0; i < 2; i++) { /* what an earlier call has left changes nothing */
        api->mass(device, &op);
        get(got, op.mass, sizeof got);
        double all = 0, wanted = 0;
        for (uint32_t t = 0; t < N_PAGE * PAGE_TOK; t++) {
            if (!(fabsf(got[t] - want[t]) <= 2e-4f * want[t] + 1e-7f))
                fail_msg("%s: token %u has %g, not %g", what, t, (double)got[t], (double)want[t]);
            all += (double)got[t];
        }
        for (uint32_t r = 1; r <= N_ROW; r++) wanted += (double)N_HEAD / r;
        assert_true(fabs(all - wanted) < 1e-3);
    }
    give_all();
    mem_free(spare);
}

static void what_rows_read_is_the_reference_s(void **state)
{
    (void)state;
    static struct question w;
    for (int t = 0; t < 3; t++) {
        const struct page_geom g = geom_of(types[t], 64 << t);
        uint8_t *pages = make_pages(&g, N_PAGE * N_KV_HEAD);
        struct op_mass op = make_question(&w, &g);
        check_mass(op, pages, "segments");
        op.rope = (struct segment_rope){.n_rot = g.head_dim / 2, .interleaved = true};
        op.softcap = 3;
        check_mass(op, pages, "pairs side by side, half a head, a softcap");
        op.n_segment = 0;
        check_mass(op, pages, "no segments");
        mem_free(pages);
    }
}

/* ---- Attention of scattered rows ---- */

enum { GROUP = 7, N_WIDE = GROUP * N_KV_HEAD, N_LAST = 20, FIRST_AT = 12 };

/* N_LAST rows of the last page behind joined ones, in runs of `each` rows. */
struct last_rows {
    struct attn_run run[N_LAST];
    uint32_t n_run;
};

static void cut_rows(struct last_rows *x, const struct attn_run *all, uint32_t each)
{
    x->n_run = 0;
    for (uint32_t row = 0; row < N_LAST; row += each) {
        struct attn_run run = *all;
        run.row0 = row;
        run.n_row = N_LAST - row < each ? N_LAST - row : each;
        run.pos0 = all->pos0 + row;
        run.joins = row > 0;
        x->run[x->n_run++] = run;
    }
}

/* A block has no more rows of a page than a run needs: what they are does not depend on it. */
static void scattered_rows_are_as_those_beside_each_other(void **state)
{
    (void)state;
    static struct question w;
    static float out[N_LAST * N_WIDE * 64], want[N_LAST * N_WIDE * 64];
    const struct page_geom g = geom_of(SAC_KV_F16, 64);
    const size_t width = (size_t)N_WIDE * g.head_dim;
    uint8_t *pages = make_pages(&g, N_PAGE * N_KV_HEAD);
    uint8_t *tail = mem_calloc(N_KV_HEAD, g.tail_bytes);
    float *q = mem_calloc(N_LAST, width * sizeof *q);
    uint64_t seed = 9;
    make_question(&w, &g);
    for (size_t i = 0; i < N_LAST * width; i++) q[i] = random_gauss(&seed);
    for (uint32_t h = 0; h < N_KV_HEAD; h++)
        page_unseal(&g, tail + h * g.tail_bytes, pages + h * g.bytes, PAGE_TOK);
    const struct attn_run all = {.n_row = N_LAST,
                                 .pos0 = (N_PAGE - 1) * PAGE_TOK + FIRST_AT,
                                 .kind = ROW_PROMPT,
                                 .table_stride = STRIDE,
                                 .frame = put(w.frame, sizeof w.frame),
                                 .own0 = put(tail, N_KV_HEAD * g.tail_bytes),
                                 .segment = w.segment,
                                 .n_segment = 2};
    const size_t scratch = api->attn_scratch(1, &g, N_WIDE, N_LAST, N_PAGE * PAGE_TOK);
    struct op_attn op = {.geom = &g,
                         .frames.base = put(pages, (size_t)N_PAGE * N_KV_HEAD * g.bytes),
                         .n_head = N_WIDE,
                         .q = put(q, N_LAST * width * sizeof *q),
                         .q_stride = width,
                         .out = put(out, N_LAST * width * sizeof *out),
                         .out_stride = width,
                         .rope = {.n_rot = g.head_dim},
                         .scale = 0.1f,
                         .scratch_bytes = scratch};
    float *room = mem_calloc(1, scratch + 1);
    op.scratch = put(room, scratch + 1);
    static const uint32_t each_of[] = {N_LAST, 7, 1};
    for (int i = 0; i < 3; i++) {
        const uint32_t each = each_of[i];
        struct last_rows x;
        memset(out, 0xff, sizeof out); /* no numbers, where nothing is written */
        api->up(device, op.out, out, N_LAST * width * sizeof *out);
        cut_rows(&x, &all, each);
        op.run = x.run;
        op.n_run = x.n_run;
        api->attn(device, &op);
        get(out, op.out, N_LAST * width * sizeof *out);
        if (each == N_LAST) memcpy(want, out, N_LAST * width * sizeof *out);
        for (size_t j = 0; j < N_LAST * width; j++)
            if (!(out[j] == want[j]))
                fail_msg("runs of %u rows: %g, not %g", each, (double)out[j], (double)want[j]);
    }
    give_all();
    mem_free(room);
    mem_free(pages);
    mem_free(tail);
    mem_free(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_are_opened_bit_for_bit),
        cmocka_unit_test(what_rows_read_is_the_reference_s),
        cmocka_unit_test(scattered_rows_are_as_those_beside_each_other),
    };
    return cmocka_run_group_tests(tests, open_library, close_library);
}
