/* test_segment.c: pages of one sequence attached to another: what is computed behind them is what
 * it would be if their keys had been rotated where they stand now.
 *
 * The oracle is a twin: the same pages with their keys rotated by hand and attached without an
 * offset, so that no query is turned. It rounds its keys once more, so answers agree as far as
 * that allows. */
#include "base/half.h"
#include "engine/engine.h"
#include "methods/box.h"
#include "methods/select_scratch.h"
#include "must.h"
#include "spec_make.h"
#include "tiny_rows.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { N_TEXT = 8 * PAGE_TOK, N_OWN = 2 * PAGE_TOK, N_PROMPT = 45, N_ANSWER = 3 };

static sac_model *model, *windowed;
static int32_t text[N_TEXT];

static int open_models(void **state)
{
    (void)state;
    model = tiny_open(&(struct tiny){.seed = 5});
    windowed = tiny_open(&(struct tiny){.seed = 6, .n_layer = 7, .n_kv_head = 1, .window = 70});
    for (int i = 0; i < N_TEXT; i++) text[i] = (i * 37 + i / 9 * 5) % TINY_VOCAB;
    return model && windowed ? 0 : -1;
}

static int free_models(void **state)
{
    (void)state;
    sac_model_free(model);
    sac_model_free(windowed);
    return 0;
}

struct setting {
    const sac_model *model; /* NULL: the usual one */
    const char *decode, *prefill;
    sac_kv_type type;
    uint32_t n_batch, n_threads;
    bool record;
};

static sac_engine *new_engine(const struct setting *s)
{
    sac_engine *e;
    sac_error err;
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = 1024;
    p.n_seq_max = 5;
    p.n_threads = s->n_threads ? s->n_threads : 1;
    if (s->n_batch) p.n_batch = s->n_batch;
    p.type_k = p.type_v = s->type;
    p.decode = &s->decode;
    p.n_decode = s->decode != NULL;
    p.prefill = &s->prefill;
    p.n_prefill = s->prefill != NULL;
    p.sparse_min_ctx = 0;
    p.record = s->record;
    must(sac_engine_create(&e, s->model ? s->model : model, &p, &err), &err);
    /* Layers with windows turn by frequencies of their own. */
    const struct rope_config local = {
        .n_rot = e->rope[1].n_rot, .base = 300, .factor = 1, .attn_factor = 1};
    rope_table_init(&e->rope[1], &local, NULL);
    return e;
}

static sac_seq new_seq(sac_engine *e, uint32_t n_tok)
{
    static float logits[TINY_VOCAB];
    sac_error err;
    sac_seq s;
    must(sac_seq_create(e, &s, &err), &err);
    if (n_tok) compute_rows(e, s, text, n_tok, SAC_ROW_PROMPT, logits);
    return s;
}

/* A question and its answer; the logits of the last row of each. */
struct answer {
    float prompt[TINY_VOCAB], answer[TINY_VOCAB];
};

static struct answer ask(sac_engine *e, sac_seq s)
{
    struct answer a;
    compute_rows(e, s, text + 100, N_PROMPT, SAC_ROW_PROMPT, a.prompt);
    compute_rows(e, s, text + 7, N_ANSWER, SAC_ROW_DECODE, a.answer);
    return a;
}

static void attach(sac_engine *e, sac_seq to, sac_seq from, uint32_t first, uint32_t n_tok,
                   int32_t offset)
{
    sac_error err;
    const struct segment_source source = {from, first, n_tok, offset};
    must(segment_attach(e, to, &source, &err), &err);
}

/* ---- Turns ---- */

static void rotate(float *x, const struct rope_table *t, uint32_t pos, bool interleaved)
{
    float cosine[CONFIG_ROT_MAX / 2], sine[CONFIG_ROT_MAX / 2];
    const uint32_t half = t->n_rot / 2;
    rope_table_fill(t, cosine, sine, &pos, 1);
    for (uint32_t i = 0; i < half; i++) {
        float *a = interleaved ? &x[2 * i] : &x[i], *b = interleaved ? a + 1 : a + half;
        const float was = *a;
        *a = was * cosine[i] - *b * sine[i];
        *b = was * sine[i] + *b * cosine[i];
    }
}

/* A query of position p, turned, is that of position p - offset, whatever scales positions. */
static void turns_compose(void **state)
{
    (void)state;
    const struct rope_config kinds[] = {
        {.kind = ROPE_PLAIN, .base = 10000, .factor = 1, .attn_factor = 1},
        {.kind = ROPE_LINEAR, .base = 10000, .factor = 4, .attn_factor = 1},
        {.kind = ROPE_YARN,
         .base = 10000,
         .factor = 8,
         .orig_ctx = 256,
         .attn_factor = 1,
         .beta_fast = 32,
         .beta_slow = 1},
        {.kind = ROPE_LONG, .base = 500000, .factor = 1, .attn_factor = 1.2f},
        /* Llama 3: frequencies have factors of their own. */
        {.kind = ROPE_PLAIN, .base = 500000, .factor = 1, .attn_factor = 1},
        /* A part of the head is rotated. */
        {.kind = ROPE_PLAIN, .base = 10000, .factor = 1, .attn_factor = 1},
    };
    enum { LONG = 3, LLAMA3, PARTIAL };
    float factors[CONFIG_ROT_MAX / 2];
    for (uint32_t i = 0; i < CONFIG_ROT_MAX / 2; i++) factors[i] = i < 6 ? 1 : (float)i / 2;
    for (size_t k = 0; k < 2 * sizeof kinds / sizeof kinds[0]; k++) {
        struct rope_config rope = kinds[k / 2];
        const bool interleaved = k % 2;
        sac_engine *e = new_engine(&(struct setting){0});
        rope.n_rot = e->model->config.rope.n_rot / (k / 2 == PARTIAL ? 2 : 1);
        rope_table_init(&e->rope[0], &rope, k / 2 == LONG || k / 2 == LLAMA3 ? factors : NULL);
        const sac_seq from = new_seq(e, N_TEXT), to = new_seq(e, N_OWN);
        attach(e, to, from, PAGE_TOK, 2 * PAGE_TOK, 150);
        assert_int_equal(e->segments.n[to], 2);
        const struct segment_view *view = segment_view_of(e, to, false);
        assert_null(view[0].cos);
        assert_int_equal(view[0].end, N_OWN / PAGE_TOK);
        assert_int_equal(view[1].end, N_OWN / PAGE_TOK + 2);
        float q[TINY_DIM], want[TINY_DIM], got[TINY_DIM];
        for (uint32_t i = 0; i < TINY_DIM; i++) q[i] = sinf((float)i * 1.7f) + 0.2f;
        memcpy(want, q, sizeof want);
        rotate(q, &e->rope[0], 900, interleaved);
        rotate(want, &e->rope[0], 750, interleaved);
        segment_turn(got, q, TINY_DIM, &view[1], (struct segment_rope){rope.n_rot, interleaved}, 1);
        for (uint32_t i = 0; i < TINY_DIM; i++)
            if (!(fabsf(got[i] - want[i]) < 2e-6f))
                fail_msg("kind %zu, channel %u: %g, not %g", k, i, (double)got[i], (double)want[i]);
        segment_turn(got, got, TINY_DIM, &view[1], (struct segment_rope){rope.n_rot, interleaved},
                     -1);
        for (uint32_t i = 0; i < TINY_DIM; i++) assert_true(fabsf(got[i] - q[i]) < 2e-6f);
        sac_engine_free(e);
    }
}

/* ---- Whole sequences ---- */

/* Rotates the keys of tokens [first, first + n) of a sequence of its own further, by `offset`. */
static void rotate_pages(sac_engine *e, sac_seq s, uint32_t first, uint32_t n, uint32_t offset)
{
    const struct config *c = &e->model->config;
    const struct page_geom *g = &e->pool.geom;
    uint8_t *tail = malloc(g->tail_bytes);
    float k[PAGE_TOK * TINY_DIM], v[PAGE_TOK * TINY_DIM];
    for (uint32_t l = 0; l < g->n_layer; l++)
        for (uint32_t h = 0; h < g->n_kv_head; h++)
            for (uint32_t p = first / PAGE_TOK; p < (first + n) / PAGE_TOK; p++) {
                const page_id id = pool_table(&e->pool, s, l)[h * e->pool.max_page + p];
                uint8_t *page = pool_page(&e->pool, id);
                page_read(k, v, g, page, PAGE_SEALED, PAGE_TOK);
                for (uint32_t t = 0; t < PAGE_TOK; t++)
                    rotate(k + t * TINY_DIM, &e->rope[config_layer_is_local(c, l)], offset,
                           c->arch->rope_interleaved);
                for (uint32_t i = 0; i < PAGE_TOK * TINY_DIM; i++) {
                    ((uint16_t *)(void *)tail)[i] = f32_to_f16(k[i]);
                    ((uint16_t *)(void *)(tail + g->tail_v))[i] = f32_to_f16(v[i]);
                }
                const uint8_t *from = tail;
                e->ops.seal(e->workers,
                            &(struct op_seal){.geom = g, .n_page = 1, .tail = &from, &page});
                side_seal(e, &id, 1);
            }
    free(tail);
}

/* Own tokens, two parts of a text in another order, and a page of the first again; the text is gone
 * then. Offsets are beyond the sequence, as rotations by hand go forwards only. */
static sac_seq join(sac_engine *e, bool by_hand)
{
    const uint32_t part[2] = {4 * PAGE_TOK, 0}, n_tok = 3 * PAGE_TOK, offset[2] = {400, 450};
    const sac_seq s = new_seq(e, N_OWN), from[2] = {new_seq(e, N_TEXT), new_seq(e, N_TEXT)};
    for (int i = 0; i < 2; i++) {
        if (by_hand) rotate_pages(e, from[i], part[i], n_tok, offset[i]);
        attach(e, s, from[i], part[i], n_tok, by_hand ? 0 : (int32_t)offset[i]);
    }
    attach(e, s, from[0], part[0], PAGE_TOK, by_hand ? 0 : (int32_t)offset[0]);
    for (int i = 0; i < 2; i++) sac_seq_remove(e, from[i]);
    return s;
}

static double distance(const float *a, const float *b)
{
    double off = 0, norm = 0;
    for (int i = 0; i < TINY_VOCAB; i++) {
        off += (double)(a[i] - b[i]) * (double)(a[i] - b[i]);
        norm += (double)a[i] * (double)a[i];
    }
    return sqrt(off / norm);
}

/* What products of 16-bit numbers may add: a turned query is rounded at other values than turned
 * keys. */
static double rounding(sac_engine *e)
{
    const char *isa = sac_engine_get_stats(e).isa;
    return strcmp(isa, "amx") == 0 || strcmp(isa, "avx512") == 0 ? 3e-2 : 0;
}

static void answers_are_those_of_rotated_keys(const struct setting *s, double limit)
{
    sac_engine *e = new_engine(s), *twin = new_engine(s);
    /* A method may choose other tokens for a rounded query: that weighs more. */
    limit = fmax(limit, rounding(e) * (s->decode ? 10 : 1));
    const sac_seq joined = join(e, false), by_hand = join(twin, true);
    assert_true(e->segments.n[joined] > 0 && twin->segments.n[by_hand] == 0);
    const struct answer got = ask(e, joined), want = ask(twin, by_hand);
    const double prompt = distance(want.prompt, got.prompt);
    const double answer = distance(want.answer, got.answer);
    if (!(prompt < limit && answer < limit))
        fail_msg("%s, type %d: prompts %g and answers %g from those of rotated keys", s->decode,
                 (int)s->type, prompt, answer);
    sac_engine_free(e);
    sac_engine_free(twin);
}

static void dense_answers_are_those_of_rotated_keys(void **state)
{
    (void)state;
    answers_are_those_of_rotated_keys(&(struct setting){0}, 1e-3);
    answers_are_those_of_rotated_keys(&(struct setting){.type = SAC_KV_Q8, .n_threads = 2}, 2e-2);
    answers_are_those_of_rotated_keys(&(struct setting){.model = windowed}, 1e-2);
}

static void methods_choose_what_they_would_among_rotated_keys(void **state)
{
    (void)state;
    const struct method *m;
    for (size_t i = 0; (m = method_at(i)); i++) {
        char spec[SPEC_MAKE_BYTES];
        if (!m->decode || !m->meets_segments || m->decode->side_bytes) continue;
        spec_make_part(spec, m, 96);
        answers_are_those_of_rotated_keys(&(struct setting){.decode = spec}, 5e-3);
    }
}

/* What is noted of a page follows from its keys as they stand in it, so a twin's is another. */
static void boxes_are_scored_by_the_queries_that_meet_them(void **state)
{
    (void)state;
    const char *const spec = "quest:page=32";
    for (int type = SAC_KV_F16; type <= SAC_KV_Q8; type += SAC_KV_Q8 - SAC_KV_F16) {
        sac_engine *e = new_engine(&(struct setting){.decode = spec, .type = (sac_kv_type)type});
        const sac_seq s = join(e, false);
        const struct method_set_entry *m = method_set_entry(e, METHOD_SET_DECODE, s);
        const uint32_t n_page = e->seqs[s].n_done / PAGE_TOK, group = e->shape.group;
        const struct segment_view *view = segment_view_of(e, s, false);
        float q[TINY_HEADS * TINY_DIM], turned[TINY_HEADS * TINY_DIM];
        for (uint32_t i = 0; i < group * TINY_DIM; i++) q[i] = cosf((float)i);
        struct method_lane lane = {.shape = &e->shape,
                                   .ops = &e->ops,
                                   .pos = n_page * PAGE_TOK,
                                   .q = q,
                                   .scale = 0.5f,
                                   .frames = pool_frames(&e->pool, 1),
                                   .cards = pool_cards(&e->pool, 1),
                                   .page = pool_table(&e->pool, s, 1),
                                   .side = side_base(&e->side, m->side),
                                   .side_stride = m->side.bytes,
                                   .segment = view,
                                   .n_segment = e->segments.n[s]};
        struct select_scratch all, one;
        void *scratch[2];
        for (int i = 0; i < 2; i++)
            scratch[i] = malloc(select_scratch_make(&one, &e->shape, false, NULL));
        select_scratch_make(&all, &e->shape, false, scratch[0]);
        select_scratch_make(&one, &e->shape, false, scratch[1]);
        box_score(&all, &lane, BOX_BOUND);
        assert_int_equal(e->segments.n[s], 4);
        for (uint32_t p = 0; p < n_page; p++) {
            const uint32_t i = segment_of(view, e->segments.n[s], p, 0);
            for (uint32_t g = 0; g < group; g++)
                segment_turn(turned + g * TINY_DIM, q + g * TINY_DIM, TINY_DIM, &view[i],
                             e->shape.rope, 1);
            lane.q = turned;
            lane.n_segment = 0;
            box_score(&one, &lane, BOX_BOUND);
            for (uint32_t g = 0; g < group; g++)
                assert_memory_equal(&one.score[g * one.stride + p], &all.score[g * all.stride + p],
                                    sizeof(float));
        }
        for (int i = 0; i < 2; i++) free(scratch[i]);
        sac_engine_free(e);
    }
}

struct kept {
    double mass, n;
};

static void add_mass(void *user, const sac_read_record *r)
{
    struct kept *k = user;
    if (r->kind != SAC_ROW_DECODE) return;
    k->mass += (double)r->mass;
    k->n++;
}

/* Methods that choose tokens by what is noted of pages: the share of the attention that they keep.
 * With queries that are not turned it is half of that. */
static void little_is_lost_of_other_texts(void **state)
{
    (void)state;
    const struct {
        const char *spec;
        sac_kv_type type;
        double least;
    } cases[] = {
        {"auto:mass=0.9,most=1,recent=1", SAC_KV_F16, 0.9},
        {"auto:mass=0.9,most=1,recent=1", SAC_KV_Q8, 0.9},
        {"rabitq:mass=0.9,most=1,recent=1", SAC_KV_F16, 0.4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct kept kept = {0};
        sac_error err;
        sac_engine *e = new_engine(
            &(struct setting){.decode = cases[i].spec, .type = cases[i].type, .record = true});
        const sac_seq s = join(e, false);
        must(sac_engine_set_recorder(e, add_mass, &kept, &err), &err);
        ask(e, s);
        if (!(kept.mass / kept.n > cases[i].least))
            fail_msg("%s, type %d keeps %g", cases[i].spec, (int)cases[i].type, kept.mass / kept.n);
        sac_engine_free(e);
    }
}

static void attached_at_its_own_place_it_is_a_fork(void **state)
{
    (void)state;
    const char *const specs[] = {"full", "quest:budget=64,dense=0", "snapkv:budget=64"};
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        sac_engine *e = new_engine(&(struct setting){.decode = specs[i]});
        sac_error err;
        sac_seq fork;
        const sac_seq text_seq = new_seq(e, N_TEXT), s = new_seq(e, 0);
        must(sac_seq_fork(e, text_seq, &fork, &err), &err);
        attach(e, s, text_seq, 0, PAGE_TOK, 0);
        attach(e, s, text_seq, PAGE_TOK, N_TEXT - PAGE_TOK, 0);
        assert_int_equal(e->segments.n[s], 0);
        const uint64_t n_free = sac_engine_get_stats(e).n_page_free;
        assert_int_equal(n_free,
                         e->pool.n_page - N_TEXT / PAGE_TOK * pool_pages_per_index(&e->pool));
        assert_memory_equal(sac_seq_tokens(e, s), text, sizeof text);
        /* snapkv votes by the last rows of a prompt: 32 of the question, so the same ones. */
        const struct answer want = ask(e, fork), got = ask(e, s);
        assert_memory_equal(&want, &got, sizeof want);
        sac_engine_free(e);
    }
}

static void rows_do_not_depend_on_chunks_and_threads(void **state)
{
    (void)state;
    struct answer want, got;
    for (uint32_t i = 0; i < 3; i++) {
        sac_engine *e = new_engine(&(struct setting){
            .n_batch = i == 1 ? 7 : 512, .n_threads = i == 2 ? 2 : 1, .type = SAC_KV_Q8});
        got = ask(e, join(e, false));
        if (i == 0) want = got;
        assert_memory_equal(&want, &got, sizeof want);
        sac_engine_free(e);
    }
}

/* A sequence with segments lives as any other: the same answer from a fork, from what was saved,
 * and when it has been cut and got the same again. */
static void it_is_forked_saved_and_cut(void **state)
{
    (void)state;
    sac_engine *e = new_engine(&(struct setting){.decode = "quest:budget=64,dense=0"});
    const sac_seq s = join(e, false);
    const uint32_t n_tok = sac_seq_length(e, s, NULL);
    sac_error err;
    sac_seq fork, loaded;
    uint8_t *bytes, *again;
    size_t n, n_again;
    must(sac_seq_to_bytes(e, s, &bytes, &n, &err), &err);
    must(sac_seq_from_bytes(e, bytes, n, &loaded, &err), &err);
    must(sac_seq_to_bytes(e, loaded, &again, &n_again, &err), &err);
    assert_int_equal(n, n_again);
    assert_memory_equal(bytes, again, n);
    must(sac_seq_fork(e, s, &fork, &err), &err);
    const struct answer want = ask(e, s), of_fork = ask(e, fork), of_loaded = ask(e, loaded);
    assert_memory_equal(&want, &of_fork, sizeof want);
    assert_memory_equal(&want, &of_loaded, sizeof want);
    /* Of the page that came twice the second goes and comes back. */
    must(sac_seq_truncate(e, s, n_tok - PAGE_TOK, &err), &err);
    assert_int_equal(e->segments.n[s], 3);
    attach(e, s, fork, n_tok - PAGE_TOK, PAGE_TOK, 0);
    assert_int_equal(e->segments.n[s], 4);
    const struct answer of_cut = ask(e, s);
    assert_memory_equal(&want, &of_cut, sizeof want);
    must(sac_seq_truncate(e, s, N_OWN - 5, &err), &err);
    assert_int_equal(e->segments.n[s], 0);
    sac_free(bytes);
    sac_free(again);
    sac_engine_free(e);
}

static void on_record(void *user, const sac_read_record *r)
{
    double *worst = user;
    if ((double)r->out_err > *worst) *worst = (double)r->out_err;
    assert_true(r->mass > 0.9999f);
}

static void what_was_read_is_held_against_the_same_turns(void **state)
{
    (void)state;
    double worst = 0;
    sac_error err;
    sac_engine *e = new_engine(&(struct setting){.record = true});
    const sac_seq s = join(e, false);
    must(sac_engine_set_recorder(e, on_record, &worst, &err), &err);
    ask(e, s);
    assert_true(worst > 0 && worst < fmax(1e-4, rounding(e)));
    sac_engine_free(e);
}

static void expect_refusal(sac_engine *e, sac_seq to, struct segment_source from, sac_status status,
                           const char *words)
{
    sac_error err = {0};
    const sac_status got = segment_attach(e, to, &from, &err);
    if (got != status || !strstr(err.msg, words))
        fail_msg("%s: %s; expected: %s", sac_status_name(got), err.msg, words);
}

static void what_cannot_be_is_refused(void **state)
{
    (void)state;
    const uint32_t n = 2 * PAGE_TOK;
    const char *const specs[] = {"full", "h2o:budget=64"};
    sac_error err;
    for (int i = 0; i < 2; i++) {
        sac_engine *e = new_engine(&(struct setting){.decode = specs[i]});
        const sac_seq whole = new_seq(e, n), part = new_seq(e, n + 1), s = new_seq(e, 0);
        expect_refusal(e, 4, (struct segment_source){whole, 0, n, 0}, SAC_ERR_NOT_FOUND, "no seq");
        expect_refusal(e, s, (struct segment_source){4, 0, n, 0}, SAC_ERR_NOT_FOUND, "no seq");
        expect_refusal(e, s, (struct segment_source){s, 0, 0, 0}, SAC_ERR_ARG, "to itself");
        expect_refusal(e, part, (struct segment_source){whole, 0, n, 0}, SAC_ERR_ARG,
                       "behind a multiple of 32");
        expect_refusal(e, s, (struct segment_source){whole, 1, PAGE_TOK, 0}, SAC_ERR_ARG,
                       "whole pages");
        expect_refusal(e, s, (struct segment_source){part, 0, n + 1, 0}, SAC_ERR_ARG,
                       "whole pages");
        expect_refusal(e, s, (struct segment_source){whole, 0, n + PAGE_TOK, 0}, SAC_ERR_ARG,
                       "whole pages");
        expect_refusal(e, s, (struct segment_source){whole, n, UINT32_MAX / 32 * 32, 0},
                       SAC_ERR_ARG, "whole pages");
        expect_refusal(e, s, (struct segment_source){whole, 0, n, INT32_MIN}, SAC_ERR_ARG,
                       "an offset of");
        if (i) {
            expect_refusal(e, s, (struct segment_source){whole, 0, n, 64}, SAC_ERR_UNSUPPORTED,
                           "h2o cannot choose");
            sac_engine_free(e);
            continue;
        }
        attach(e, s, whole, 0, n, 64);
        const sac_status status = sac_seq_truncate(e, s, PAGE_TOK + 1, &err);
        assert_int_equal(status, SAC_ERR_ARG);
        assert_non_null(strstr(err.msg, "multiples of 32"));
        while (e->segments.n[s] + 1 < SEGMENT_MAX && sac_seq_length(e, s, NULL) < 1024)
            attach(e, s, whole, 0, PAGE_TOK, (int32_t)sac_seq_length(e, s, NULL));
        expect_refusal(e, s, (struct segment_source){whole, 0, PAGE_TOK, 5}, SAC_ERR_CONTEXT,
                       "do not fit");
        sac_engine_free(e);
    }
}

static void methods_that_cannot_are_named(void **state)
{
    (void)state;
    const char *const specs[] = {"full", "raas"};
    sac_engine *e, *narrow;
    sac_error err;
    sac_seq loaded;
    uint8_t *bytes;
    size_t n;
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = 1024;
    p.n_seq_max = 4;
    p.n_threads = 1;
    p.decode = specs;
    p.n_decode = 2;
    must(sac_engine_create(&e, model, &p, &err), &err);
    const sac_seq s = join(e, false);
    assert_int_equal(sac_seq_use_decode(e, s, 1, &err), SAC_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "raas cannot choose"));
    must(sac_seq_to_bytes(e, s, &bytes, &n, &err), &err);
    p.decode = specs + 1;
    p.n_decode = 1;
    must(sac_engine_create(&narrow, model, &p, &err), &err);
    assert_int_equal(sac_seq_from_bytes(narrow, bytes, n, &loaded, &err), SAC_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "raas cannot choose"));
    sac_free(bytes);
    sac_engine_free(e);
    sac_engine_free(narrow);
}

/* Prompt rows behind segments read all there is, whatever was asked for. */
static void prefill_methods_stand_back(void **state)
{
    (void)state;
    sac_engine *sparse = new_engine(&(struct setting){.prefill = "a-shape:sink=1,window=32"});
    const sac_seq s = join(sparse, false);
    const uint64_t n_plan = sac_engine_get_stats(sparse).reads.n_plan;
    ask(sparse, s);
    assert_int_equal(sac_engine_get_stats(sparse).reads.n_plan, n_plan);
    sac_engine_free(sparse);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns_compose),
        cmocka_unit_test(dense_answers_are_those_of_rotated_keys),
        cmocka_unit_test(methods_choose_what_they_would_among_rotated_keys),
        cmocka_unit_test(boxes_are_scored_by_the_queries_that_meet_them),
        cmocka_unit_test(little_is_lost_of_other_texts),
        cmocka_unit_test(attached_at_its_own_place_it_is_a_fork),
        cmocka_unit_test(rows_do_not_depend_on_chunks_and_threads),
        cmocka_unit_test(it_is_forked_saved_and_cut),
        cmocka_unit_test(what_was_read_is_held_against_the_same_turns),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(methods_that_cannot_are_named),
        cmocka_unit_test(prefill_methods_stand_back),
    };
    return cmocka_run_group_tests(tests, open_models, free_models);
}
