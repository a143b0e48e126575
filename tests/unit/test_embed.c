/* test_embed.c: vectors of texts against hidden states that are computed one text at a time and
 * pooled here; how requests for them are read, and how their vectors become text. */
#include "base/mem.h"
#include "engine/engine.h"
#include "must.h"
#include "serve/dialects.h"
#include "serve/embed.h"
#include "tiny_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { N_CTX = 256, N_BATCH = 48, N_TEXT = 14 };

/* More than are computed at a time, shorter than a page and longer than a step. */
static const size_t lengths[N_TEXT] = {1, 2, 31, 32, 33, 150, 5, 64, 7, 100, 3, 40, 90, 20};

static sac_engine *open_any(sac_model *model, uint64_t n_kv_tok, bool is_cached)
{
    static const char *const prefill[] = {"a-shape:sink=4,window=32", "dense"};
    sac_engine_params p = sac_engine_params_default();
    sac_engine *engine;
    sac_error err;
    p.n_ctx = N_CTX;
    p.n_batch = N_BATCH;
    p.n_seq_max = EMBED_SEQS;
    p.n_threads = 1;
    p.n_kv_tok = n_kv_tok;
    p.prefill = prefill;
    p.n_prefill = 2;
    p.sparse_min_ctx = 1;
    p.prefix_cache = is_cached;
    must(sac_engine_create(&engine, model, &p, &err), &err);
    return engine;
}

static sac_engine *open_engine(sac_model *model, uint64_t n_kv_tok)
{
    return open_any(model, n_kv_tok, false);
}

static sac_engine *open_cached(sac_model *model)
{
    return open_any(model, 0, true);
}

/* ---- What is asked for ---- */

static int32_t *make_text(uint32_t i, size_t n)
{
    int32_t *tok = mem_alloc(n * sizeof *tok);
    for (size_t t = 0; t < n; t++) tok[t] = (int32_t)((i * 41 + t * 37 + t * t) % TINY_VOCAB);
    return tok;
}

static void make_request(struct api_request *a, enum api_request_pooling pooling, bool normalised)
{
    *a = (struct api_request){
        .work = API_REQUEST_EMBED, .pooling = pooling, .normalised = normalised};
    a->n_embd = TINY_EMBD;
    a->input = mem_calloc(N_TEXT, sizeof *a->input);
    for (uint32_t i = 0; i < N_TEXT; i++)
        a->input[a->n_input++] = (struct api_request_input){make_text(i, lengths[i]), lengths[i]};
}

/* ---- Pooling, once more ---- */

struct states {
    float row[N_CTX][TINY_EMBD];
};

static void on_row(void *user, const sac_row *row)
{
    struct states *s = user;
    memcpy(s->row[row->pos], row->state, sizeof s->row[0]);
}

/* Alone in its engine, read densely. */
static void compute_states(sac_engine *engine, const struct api_request_input *input,
                           struct states *out)
{
    sac_error err;
    sac_seq seq;
    uint32_t n = 1;
    must(sac_seq_create(engine, &seq, &err), &err);
    must(sac_seq_use_prefill(engine, seq, 1, &err), &err);
    must(sac_seq_append(engine, seq, input->tok, input->n, SAC_ROW_PROMPT, SAC_WANT_STATES, &err),
         &err);
    while (n > 0) must(sac_step(engine, on_row, out, &n, &err), &err);
    assert_int_equal(sac_seq_length(engine, seq, NULL), input->n);
    sac_seq_remove(engine, seq);
}

static void pool(const struct states *s, size_t n, const struct api_request *a,
                 float out[TINY_EMBD])
{
    double x[TINY_EMBD] = {0}, length = 0;
    const size_t first = a->pooling == API_REQUEST_POOLING_LAST ? n - 1 : 0;
    const size_t end = a->pooling == API_REQUEST_POOLING_CLS ? 1 : n;
    for (uint32_t d = 0; d < TINY_EMBD; d++) {
        for (size_t t = first; t < end; t++) x[d] += (double)s->row[t][d];
        x[d] /= (double)(end - first);
        length += x[d] * x[d];
    }
    for (uint32_t d = 0; d < TINY_EMBD; d++)
        out[d] = (float)(a->normalised ? x[d] / sqrt(length) : x[d]);
}

static void check_near(const float *got, const float *wanted, uint32_t text)
{
    for (uint32_t d = 0; d < TINY_EMBD; d++)
        if (!(fabsf(got[d] - wanted[d]) < 1e-5f)) /* both in doubles: the last bits of a float */
            fail_msg("text %u, number %u: %g, not %g", text, d, (double)got[d], (double)wanted[d]);
}

/* Holds the vectors `got` against those of each text alone. */
static void check_vectors(sac_engine *engine, const struct api_request *a, const struct strbuf *got)
{
    struct states *s = malloc(sizeof *s);
    assert_int_equal(got->n, embed_count(a) * sizeof s->row[0]);
    const float *x = (const float *)(const void *)got->data;
    for (uint32_t i = 0; i < a->n_input; i++) {
        float wanted[TINY_EMBD];
        compute_states(engine, &a->input[i], s);
        pool(s, a->input[i].n, a, wanted);
        if (a->pooling != API_REQUEST_POOLING_NONE) check_near(x, wanted, i);
        for (size_t t = 0; a->pooling == API_REQUEST_POOLING_NONE && t < a->input[i].n; t++)
            check_near(x + t * TINY_EMBD, s->row[t], i);
        x += (a->pooling == API_REQUEST_POOLING_NONE ? a->input[i].n : 1) * TINY_EMBD;
    }
    free(s);
}

static bool go_on(void *user, double done)
{
    double *last = user;
    assert_true(done >= *last && done <= 1);
    *last = done;
    return false;
}

static void check_work(sac_engine *engine, enum api_request_pooling pooling, bool normalised)
{
    struct api_request a;
    struct strbuf out = {0};
    sac_error err;
    double done = 0;
    make_request(&a, pooling, normalised);
    must(embed_work(engine, &a, (struct doc_library_wait){go_on, &done}, &out, &err), &err);
    assert_true(done == 1);
    check_vectors(engine, &a, &out);
    strbuf_deinit(&out);
    api_request_deinit(&a);
}

/* No sequence was left behind. */
static void check_idle(sac_engine *engine)
{
    const sac_engine_stats stats = sac_engine_get_stats(engine);
    assert_int_equal(stats.n_page_free, stats.n_page);
    for (sac_seq seq = 0; seq < EMBED_SEQS; seq++) {
        sac_seq made;
        sac_error err;
        must(sac_seq_create(engine, &made, &err), &err);
    }
}

static void states_are_pooled_as_told(void **state)
{
    static const enum api_request_pooling pooling[] = {
        API_REQUEST_POOLING_MEAN, API_REQUEST_POOLING_LAST, API_REQUEST_POOLING_CLS};
    sac_engine *engine = open_engine(*state, 0);
    for (size_t i = 0; i < sizeof pooling / sizeof pooling[0]; i++)
        for (int normalised = 0; normalised < 2; normalised++)
            check_work(engine, pooling[i], normalised);
    check_work(engine, API_REQUEST_POOLING_NONE, false);
    check_idle(engine);
    sac_engine_free(engine);
}

/* Half of the pool is another's: the longest text has the rest, so the one behind it gives way. */
static void texts_without_pages_wait(void **state)
{
    sac_engine *engine = open_engine(*state, N_CTX);
    int32_t *tok = make_text(0, N_CTX / 2);
    sac_error err;
    sac_seq other;
    uint32_t n_row = 1;
    must(sac_seq_create(engine, &other, &err), &err);
    must(sac_seq_append(engine, other, tok, N_CTX / 2, SAC_ROW_PROMPT, SAC_WANT_NONE, &err), &err);
    while (n_row > 0) must(sac_step(engine, NULL, NULL, &n_row, &err), &err);
    check_work(engine, API_REQUEST_POOLING_MEAN, false);
    check_work(engine, API_REQUEST_POOLING_NONE, false);
    sac_seq_remove(engine, other);
    check_idle(engine);
    mem_free(tok);
    sac_engine_free(engine);
}

static bool give_up(void *user, double done)
{
    (void)user, (void)done;
    return true;
}

static void who_leaves_leaves_nothing(void **state)
{
    sac_engine *engine = open_engine(*state, 0);
    struct api_request a;
    struct strbuf out = {0};
    sac_error err;
    make_request(&a, API_REQUEST_POOLING_MEAN, true);
    assert_int_equal(embed_work(engine, &a, (struct doc_library_wait){give_up, NULL}, &out, &err),
                     SAC_ERR_CANCELLED);
    assert_int_equal(out.n, 0);
    check_idle(engine);
    api_request_deinit(&a);
    sac_engine_free(engine);
}

static void spoil(void *user, const char *name, float *x, uint32_t n_out, uint32_t n_in)
{
    (void)user, (void)n_out, (void)n_in;
    if (strcmp(name, "output_norm.weight") == 0) x[7] = NAN;
}

static void what_is_no_number_is_no_vector(void **state)
{
    (void)state;
    sac_model *model = tiny_open(&(struct tiny){.seed = 5, .edit = spoil});
    sac_engine *engine = open_engine(model, 0);
    struct api_request a;
    struct strbuf out = {0};
    sac_error err;
    double done = 0;
    make_request(&a, API_REQUEST_POOLING_LAST, true);
    assert_int_equal(embed_work(engine, &a, (struct doc_library_wait){go_on, &done}, &out, &err),
                     SAC_ERR_IO);
    assert_int_equal(out.n, 0);
    api_request_deinit(&a);
    sac_engine_free(engine);
    sac_model_free(model);
}

/* ---- The engine's rows ---- */

static float output[TINY_VOCAB][TINY_EMBD];

static void keep_output(void *user, const char *name, float *x, uint32_t n_out, uint32_t n_in)
{
    (void)user, (void)n_out, (void)n_in;
    if (strcmp(name, "output.weight") == 0) memcpy(output, x, sizeof output);
}

struct both {
    sac_seq seq[2]; /* its states are wanted; its logits are */
    float state[N_CTX][TINY_EMBD], logit[N_CTX][TINY_VOCAB];
    uint32_t n[2];
};

static void on_both(void *user, const sac_row *row)
{
    struct both *b = user;
    const bool is_state = row->seq == b->seq[0];
    assert_int_equal(is_state, row->state != NULL);
    assert_int_equal(is_state, row->logits == NULL);
    if (is_state)
        memcpy(b->state[row->pos], row->state, sizeof b->state[0]);
    else
        memcpy(b->logit[row->pos], row->logits, sizeof b->logit[0]);
    b->n[!is_state]++;
}

/* Two sequences of one text in the same steps: one wants states, the other logits. */
static void states_are_what_logits_are_made_of(void **state)
{
    enum { N = 40 };
    (void)state;
    sac_model *model = tiny_open(&(struct tiny){.seed = 5, .edit = keep_output});
    sac_engine *engine = open_engine(model, 0);
    struct both *b = calloc(1, sizeof *b);
    int32_t *tok = make_text(3, N);
    sac_error err;
    uint32_t n_row = 1;
    for (int i = 0; i < 2; i++) must(sac_seq_create(engine, &b->seq[i], &err), &err);
    for (size_t at = 0; at < N; at += 20) {
        for (int i = 0; i < 2; i++)
            must(sac_seq_append(engine, b->seq[i], tok + at, 20, SAC_ROW_PROMPT,
                                i ? SAC_WANT_ALL : SAC_WANT_STATES, &err),
                 &err);
        must(sac_step(engine, on_both, b, &n_row, &err), &err);
        assert_int_equal(n_row, 40);
    }
    assert_true(b->n[0] == N && b->n[1] == N);
    for (uint32_t t = 0; t < N; t++)
        for (uint32_t v = 0; v < TINY_VOCAB; v++) {
            double sum = 0;
            for (uint32_t d = 0; d < TINY_EMBD; d++)
                sum += (double)output[v][d] * (double)b->state[t][d];
            /* Weights and inputs of the product are rounded, sums are of about 4. */
            if (!(fabs(sum - (double)b->logit[t][v]) < 0.05))
                fail_msg("row %u, token %u: %g, not %g", t, v, sum, (double)b->logit[t][v]);
        }
    mem_free(tok);
    free(b);
    sac_engine_free(engine);
    sac_model_free(model);
}

/* A text whose pages are there is computed all the same: pages hold no states. */
static void what_is_cached_has_its_vectors(void **state)
{
    sac_engine *engine = open_cached(*state);
    struct api_request_input input = {make_text(5, lengths[5]), lengths[5]};
    struct states *s = malloc(sizeof *s);
    compute_states(engine, &input, s);
    assert_true(sac_engine_get_stats(engine).kv_bytes_kept > 0);
    check_work(engine, API_REQUEST_POOLING_MEAN, false);
    check_work(engine, API_REQUEST_POOLING_NONE, false);
    free(s);
    mem_free(input.tok);
    sac_engine_free(engine);
}

/* ---- Reading ---- */

static struct api_request_rules rules_of(const sac_model *model, enum api_request_pooling pooling)
{
    return (struct api_request_rules){
        .model = model, .engine = {.n_ctx = N_CTX}, .pooling = pooling};
}

/* API_ERROR_NONE: it was read. */
static enum api_error_kind read_of(const struct dialect *dialect, const sac_model *model,
                                   enum api_request_pooling pooling, const char *text,
                                   struct api_request *a)
{
    const struct api_request_rules rules = rules_of(model, pooling);
    struct api_error error = {0};
    cJSON *body = cJSON_Parse(text);
    assert_non_null(body);
    *a = (struct api_request){0};
    const sac_status status = dialect->read(a, body, &rules, &error);
    assert_int_equal(status == SAC_OK, error.kind == API_ERROR_NONE);
    cJSON_Delete(body);
    return error.kind;
}

static enum api_error_kind read_openai(const sac_model *model, const char *text,
                                       struct api_request *a)
{
    return read_of(&openai_embeddings_dialect, model, API_REQUEST_POOLING_MEAN, text, a);
}

/* Text `i` is these n tokens. */
static void check_input(const struct api_request *a, uint32_t i, const int32_t *tok, size_t n)
{
    assert_true(i < a->n_input);
    assert_int_equal(a->input[i].n, n);
    assert_memory_equal(a->input[i].tok, tok, n * sizeof *tok);
}

static void inputs_are_read_in_their_order(void **state)
{
    struct api_request a;
    assert_int_equal(read_openai(*state, "{\"input\":\"ab\"}", &a), API_ERROR_NONE);
    assert_int_equal(a.n_input, 1);
    check_input(&a, 0, (const int32_t[]){'a', 'b'}, 2);
    assert_true(a.work == API_REQUEST_EMBED && a.normalised && !a.base64);
    assert_int_equal(a.n_embd, TINY_EMBD);
    api_request_deinit(&a);
    assert_int_equal(read_openai(*state,
                                 "{\"input\":[\"ab\",[7,255],\"c\"],"
                                 "\"encoding_format\":\"base64\"}",
                                 &a),
                     API_ERROR_NONE);
    assert_int_equal(a.n_input, 3);
    check_input(&a, 0, (const int32_t[]){'a', 'b'}, 2);
    check_input(&a, 1, (const int32_t[]){7, 255}, 2);
    check_input(&a, 2, (const int32_t[]){'c'}, 1);
    assert_true(a.base64);
    api_request_deinit(&a);
    assert_int_equal(read_openai(*state, "{\"input\":[7,8,9]}", &a), API_ERROR_NONE);
    assert_int_equal(a.n_input, 1);
    check_input(&a, 0, (const int32_t[]){7, 8, 9}, 3);
    api_request_deinit(&a);
}

/* Whether a list of n tokens is read. */
static enum api_error_kind read_many(const sac_model *model, size_t n)
{
    struct api_request a;
    struct strbuf text = {0};
    strbuf_adds(&text, "{\"input\":[");
    for (size_t i = 0; i < n; i++) strbuf_adds(&text, i ? ",5" : "5");
    strbuf_adds(&text, "]}");
    const enum api_error_kind kind = read_openai(model, text.data, &a);
    strbuf_deinit(&text);
    api_request_deinit(&a);
    return kind;
}

static void limits_are_held(void **state)
{
    struct api_request a;
    assert_int_equal(read_openai(*state, "{\"input\":[255]}", &a), API_ERROR_NONE);
    api_request_deinit(&a);
    assert_int_equal(read_openai(*state, "{\"input\":[256]}", &a), API_ERROR_REQUEST);
    api_request_deinit(&a);
    assert_int_equal(read_openai(*state, "{\"input\":[\"a\",\"\"]}", &a), API_ERROR_REQUEST);
    api_request_deinit(&a);
    assert_int_equal(read_many(*state, N_CTX), API_ERROR_NONE);
    assert_int_equal(read_many(*state, N_CTX + 1), API_ERROR_CONTEXT);
    assert_int_equal(read_of(&openai_embeddings_dialect, *state, API_REQUEST_POOLING_NONE,
                             "{\"input\":\"a\"}", &a),
                     API_ERROR_UNSUPPORTED);
    api_request_deinit(&a);
    assert_int_equal(read_of(&openai_embeddings_dialect, *state, API_REQUEST_POOLING_OFF,
                             "{\"input\":\"a\"}", &a),
                     API_ERROR_UNSUPPORTED);
    api_request_deinit(&a);
}

static void lengths_are_kept_where_that_is_asked(void **state)
{
    static const struct {
        const char *text;
        enum api_request_pooling pooling;
        bool normalised;
    } cases[] = {
        {"{\"content\":\"a\"}", API_REQUEST_POOLING_LAST, true},
        {"{\"content\":\"a\",\"embd_normalize\":2}", API_REQUEST_POOLING_LAST, true},
        {"{\"content\":\"a\",\"embd_normalize\":-1}", API_REQUEST_POOLING_LAST, false},
        {"{\"content\":\"a\"}", API_REQUEST_POOLING_NONE, false},
    };
    struct api_request a;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(
            read_of(&llamacpp_embedding_dialect, *state, cases[i].pooling, cases[i].text, &a),
            API_ERROR_NONE);
        assert_int_equal(a.normalised, cases[i].normalised);
        assert_int_equal(a.pooling, cases[i].pooling);
        api_request_deinit(&a);
    }
}

/* ---- Writing ---- */

/* Vectors of n numbers, whose decimal forms are long. */
static void write_of(const struct dialect *dialect, struct api_request *a, float *x,
                     struct strbuf *out)
{
    const size_t n = embed_count(a) * a->n_embd;
    for (size_t i = 0; i < n; i++) x[i] = (float)(sin((double)i + 1) * exp((double)(i % 40) - 20));
    struct reply_choice choice = {.text = {.data = (char *)x, .n = n * sizeof *x}};
    struct reply r = {.request = a, .choice = &choice, .n_choice = 1, .model_name = "tiny"};
    dialect->whole(&r, out);
    assert_false(out->failed);
}

static void check_floats(const cJSON *list, const float *x, uint32_t n)
{
    assert_int_equal(cJSON_GetArraySize(list), n);
    for (uint32_t i = 0; i < n; i++)
        assert_true((float)cJSON_GetArrayItem(list, (int)i)->valuedouble == x[i]);
}

static uint32_t value_of(char sign)
{
    static const char signs[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    assert_non_null(strchr(signs, sign));
    return (uint32_t)(strchr(signs, sign) - signs);
}

/* RFC 4648: four signs for three bytes, "=" where there are no more. */
static void check_base64(const char *text, const void *bytes, size_t n)
{
    const uint8_t *b = bytes;
    assert_int_equal(strlen(text), (n + 2) / 3 * 4);
    for (size_t i = 0; i < n; i++) {
        const char *four = text + i / 3 * 4;
        uint32_t three = 0;
        for (int k = 0; k < 4; k++) three = three << 6 | (four[k] == '=' ? 0 : value_of(four[k]));
        assert_int_equal(three >> 8 * (2 - i % 3) & 255, b[i]);
    }
    for (size_t i = 0; i < (n + 2) / 3 * 3 - n; i++)
        assert_int_equal(text[strlen(text) - 1 - i], '=');
}

static double number(const cJSON *o, const char *name)
{
    const cJSON *value = cJSON_GetObjectItem(o, name);
    assert_true(cJSON_IsNumber(value));
    return value->valuedouble;
}

static void vectors_are_written_for_openai(void **state)
{
    (void)state;
    struct api_request_input input[] = {{.n = 3}, {.n = 1}, {.n = 7}};
    for (uint32_t n_embd = 4; n_embd < 8; n_embd++)
        for (int base64 = 0; base64 < 2; base64++) {
            struct api_request a = {
                .input = input, .n_input = 3, .n_embd = n_embd, .base64 = base64};
            struct strbuf out = {0};
            float x[3 * 8];
            a.pooling = API_REQUEST_POOLING_MEAN;
            write_of(&openai_embeddings_dialect, &a, x, &out);
            cJSON *o = cJSON_Parse(out.data);
            const cJSON *data = cJSON_GetObjectItem(o, "data"), *usage;
            assert_int_equal(cJSON_GetArraySize(data), 3);
            for (int i = 0; i < 3; i++) {
                const cJSON *one = cJSON_GetArrayItem(data, i);
                const cJSON *vector = cJSON_GetObjectItem(one, "embedding");
                const float *wanted = x + (size_t)i * n_embd;
                assert_true(number(one, "index") == i);
                if (base64)
                    check_base64(cJSON_GetStringValue(vector), wanted, n_embd * sizeof *wanted);
                else
                    check_floats(vector, wanted, n_embd);
            }
            usage = cJSON_GetObjectItem(o, "usage");
            assert_true(number(usage, "prompt_tokens") == 11);
            assert_true(number(usage, "total_tokens") == 11);
            cJSON_Delete(o);
            strbuf_deinit(&out);
        }
}

static void vectors_are_written_for_llamacpp(void **state)
{
    (void)state;
    struct api_request_input input[] = {{.n = 3}, {.n = 1}, {.n = 7}};
    for (int none = 0; none < 2; none++) {
        struct api_request a = {.input = input, .n_input = 3, .n_embd = 5};
        struct strbuf out = {0};
        float x[11 * 5], *wanted = x;
        a.pooling = none ? API_REQUEST_POOLING_NONE : API_REQUEST_POOLING_LAST;
        write_of(&llamacpp_embedding_dialect, &a, x, &out);
        cJSON *o = cJSON_Parse(out.data);
        assert_int_equal(cJSON_GetArraySize(o), 3);
        for (int i = 0; i < 3; i++) {
            const cJSON *one = cJSON_GetArrayItem(o, i);
            const cJSON *rows = cJSON_GetObjectItem(one, "embedding");
            assert_true(number(one, "index") == i);
            assert_int_equal(cJSON_GetArraySize(rows), none ? input[i].n : 1);
            for (int k = 0; k < cJSON_GetArraySize(rows); k++, wanted += 5)
                check_floats(cJSON_GetArrayItem(rows, k), wanted, 5);
        }
        cJSON_Delete(o);
        strbuf_deinit(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_are_pooled_as_told),
        cmocka_unit_test(texts_without_pages_wait),
        cmocka_unit_test(who_leaves_leaves_nothing),
        cmocka_unit_test(what_is_no_number_is_no_vector),
        cmocka_unit_test(states_are_what_logits_are_made_of),
        cmocka_unit_test(what_is_cached_has_its_vectors),
        cmocka_unit_test(inputs_are_read_in_their_order),
        cmocka_unit_test(limits_are_held),
        cmocka_unit_test(lengths_are_kept_where_that_is_asked),
        cmocka_unit_test(vectors_are_written_for_openai),
        cmocka_unit_test(vectors_are_written_for_llamacpp),
    };
    return cmocka_run_group_tests_name("test_embed", tests, tiny_setup, tiny_teardown);
}
