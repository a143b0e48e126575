/* test_config.c: what the architectures' rows say, key by key, and the rows of fused matrices. The
 * numbers that follow from them are compared with an independent forward pass in tests/truth. */
#include "gguf_make.h"

#include "base/workers.h"
#include "model/weights.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

enum { EMBD = 64, FF = 32, HEADS = 2, KV_HEADS = 1, DIM = 32, VOCAB = 4, CTX = 8192 };
enum { U32 = 4, F32 = 6, STRING = 8 };

/* A file under construction. */
struct draft {
    const char *arch;
    struct make_file f;
    struct {
        char name[64], value[64];
    } key[MAKE_ITEMS_MAX];
    uint32_t n_key, n_tensor;
    uint64_t at; /* bytes of data */
};

static void put_key(struct draft *d, const char *name, uint32_t type, const void *value, size_t n)
{
    const uint32_t i = d->n_key++;
    assert_true(i < MAKE_ITEMS_MAX && n <= sizeof d->key[i].value);
    memcpy(d->key[i].name, name, strlen(name) + 1);
    memcpy(d->key[i].value, value, n);
    d->f.key[i] = (struct make_key){
        .name = d->key[i].name, .type = type, .value = d->key[i].value, .n_value = n};
}

/* "<arch>.<name>" */
static void put_own(struct draft *d, const char *name, uint32_t type, const void *value)
{
    char key[64];
    snprintf(key, sizeof key, "%s.%s", d->arch, name);
    put_key(d, key, type, value, 4);
}

static void put_u32(struct draft *d, const char *name, uint32_t v)
{
    put_own(d, name, U32, &v);
}

static void put_f32(struct draft *d, const char *name, float v)
{
    put_own(d, name, F32, &v);
}

/* f32 [n_out, n_in]; n_out 0: a vector. */
static void put_tensor(struct draft *d, const char *name, uint32_t n_out, uint32_t n_in)
{
    assert_true(d->n_tensor < MAKE_ITEMS_MAX);
    d->f.tensor[d->n_tensor++] = (struct make_tensor){
        .name = name, .n_dim = n_out ? 2 : 1, .ne = {n_in, n_out}, .offset = d->at};
    d->at += (uint64_t)(n_out ? n_out : 1) * n_in * sizeof(float);
    d->f.n_data = d->at;
}

static void begin(struct draft *d, const char *arch, uint32_t n_layer, uint32_t n_ctx)
{
    char text[8 + 32];
    const uint64_t n = strlen(arch);
    *d = (struct draft){.arch = arch};
    memcpy(text, &n, sizeof n);
    memcpy(text + sizeof n, arch, n);
    put_key(d, "general.architecture", STRING, text, sizeof n + n);
    put_u32(d, "context_length", n_ctx);
    put_u32(d, "embedding_length", EMBD);
    put_u32(d, "block_count", n_layer);
    put_u32(d, "feed_forward_length", FF);
    put_u32(d, "attention.head_count", HEADS);
    put_u32(d, "attention.head_count_kv", KV_HEADS);
    put_f32(d, "attention.layer_norm_rms_epsilon", 1e-5f);
    put_tensor(d, "token_embd.weight", VOCAB, EMBD);
}

static sac_status read_with(struct config *out, const struct draft *d,
                            const struct config_override *override, sac_error *err)
{
    struct make_out o = make_bytes(&d->f);
    struct gguf *g = NULL;
    sac_status status = gguf_open_memory(&g, o.bytes, o.n, err);
    if (status == SAC_OK) status = config_read(out, g, override, err);
    gguf_close(g);
    free(o.bytes);
    return status;
}

static struct config read_ok(const struct draft *d)
{
    struct config c;
    sac_error err = {0};
    if (read_with(&c, d, &(struct config_override){0}, &err) != SAC_OK) fail_msg("%s", err.msg);
    return c;
}

/* ---- Windows ---- */

static uint32_t count_local(const struct config *c)
{
    uint32_t n = 0;
    for (uint32_t l = 0; l < c->n_layer; l++) n += config_layer_is_local(c, l);
    return n;
}

static void gemma2_sees_windows_in_every_second_layer(void **state)
{
    (void)state;
    struct draft d;
    begin(&d, "gemma2", 5, CTX);
    struct config c = read_ok(&d);
    assert_int_equal(c.window, 4096);
    for (uint32_t l = 0; l < 5; l++) assert_int_equal(config_layer_is_local(&c, l), l % 2 == 0);
    assert_true(c.rope_base_local == 0); /* they turn as the others do */
    put_u32(&d, "attention.sliding_window", 70);
    c = read_ok(&d);
    assert_int_equal(c.window, 70);
}

static void phi3_sees_windows_in_every_layer(void **state)
{
    (void)state;
    struct draft d;
    begin(&d, "phi3", 3, CTX);
    put_u32(&d, "attention.sliding_window", 70);
    struct config c = read_ok(&d);
    assert_int_equal(c.window, 70);
    assert_int_equal(count_local(&c), 3);
}

/* Files of before there was a key are of models that have a window if they were trained for 4,096
 * tokens; Phi-4 says that it has none. */
static void phi3_without_a_key(void **state)
{
    (void)state;
    struct draft d;
    struct config c;
    begin(&d, "phi3", 3, 4096);
    c = read_ok(&d);
    assert_int_equal(c.window, 2047);
    put_u32(&d, "attention.sliding_window", 0);
    c = read_ok(&d);
    assert_int_equal(count_local(&c), 0);
    begin(&d, "phi3", 3, 131072);
    c = read_ok(&d);
    assert_int_equal(count_local(&c), 0);
}

/* Phi-3.5: methods must be asked in its layers. With a context made longer it hides again. */
static void a_window_of_the_whole_context_is_none(void **state)
{
    (void)state;
    struct draft d;
    struct config c;
    sac_error err = {0};
    begin(&d, "phi3", 3, CTX);
    put_u32(&d, "attention.sliding_window", CTX);
    c = read_ok(&d);
    assert_int_equal(count_local(&c), 0);
    const struct config_override more = {.rope = SAC_ROPE_LINEAR, .rope_scale = 2};
    if (read_with(&c, &d, &more, &err) != SAC_OK) fail_msg("%s", err.msg);
    assert_int_equal(c.n_ctx_train, 2 * CTX);
    assert_int_equal(count_local(&c), 3);
}

static void windows_elsewhere_are_refused(void **state)
{
    (void)state;
    static const char *const archs[] = {"llama", "internlm2", "glm4"};
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        struct draft d;
        struct config c;
        sac_error err = {0};
        begin(&d, archs[i], 3, CTX);
        put_u32(&d, "attention.sliding_window", 70);
        assert_int_equal(read_with(&c, &d, &(struct config_override){0}, &err),
                         SAC_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.msg, "attention.sliding_window is 70"));
        assert_non_null(strstr(err.msg, archs[i]));
    }
}

/* ---- Scores and logits ---- */

static void gemma2_caps_scores_and_logits(void **state)
{
    (void)state;
    struct draft d;
    begin(&d, "gemma2", 2, CTX);
    struct config c = read_ok(&d);
    assert_true(c.attn_softcap == 50 && c.final_softcap == 30);
    put_f32(&d, "attn_logit_softcapping", 3);
    put_f32(&d, "final_logit_softcapping", 0);
    c = read_ok(&d);
    assert_true(c.attn_softcap == 3 && c.final_softcap == 0);
    begin(&d, "phi3", 2, CTX);
    c = read_ok(&d);
    assert_true(c.attn_softcap == 0 && c.final_softcap == 0);
}

/* The 27B models, told by their layers: heads of 128 in a width of 144 (168) for each. */
static void the_largest_gemma_scales_by_its_width(void **state)
{
    (void)state;
    static const struct {
        const char *arch;
        uint32_t n_layer, divisor;
    } cases[] = {{"gemma2", 46, EMBD / HEADS}, {"gemma2", 42, 64}, {"gemma2", 62, 64},
                 {"gemma3", 62, EMBD / HEADS}, {"gemma3", 46, 64}, {"llama", 46, 64}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct draft d;
        begin(&d, cases[i].arch, cases[i].n_layer, CTX);
        put_u32(&d, "attention.key_length", 64);
        put_u32(&d, "attention.value_length", 64);
        const struct config c = read_ok(&d);
        assert_true(c.attn_scale == 1 / sqrtf((float)cases[i].divisor));
    }
}

/* ---- Rotation ---- */

static void factors_alone_make_longrope(void **state)
{
    (void)state;
    struct draft d;
    begin(&d, "phi3", 2, CTX);
    struct config c = read_ok(&d);
    assert_int_equal(c.rope.kind, ROPE_PLAIN);
    put_u32(&d, "rope.scaling.original_context_length", 256);
    put_f32(&d, "rope.scaling.attn_factor", 1.19f);
    put_tensor(&d, "rope_factors_long.weight", 0, DIM / 2);
    put_tensor(&d, "rope_factors_short.weight", 0, DIM / 2);
    c = read_ok(&d);
    assert_int_equal(c.rope.kind, ROPE_LONG);
    assert_int_equal(c.rope.orig_ctx, 256);
    assert_true(c.rope.attn_factor == 1.19f && c.rope.factor == 1);
}

/* ---- Fused matrices ---- */

/* The rows of `got` are rows [first, ...) of the file's tensor, bit for bit. */
static void assert_rows(const struct weight *got, const struct gguf *g, const char *name,
                        uint32_t first, uint32_t n)
{
    float row[EMBD];
    const struct gguf_tensor *t = gguf_tensor_find(g, name);
    assert_int_equal(got->n_out, n);
    for (uint32_t i = 0; i < n; i++) {
        weight_unpack_row(row, got, i);
        assert_memory_equal(row, t->data + (size_t)(first + i) * sizeof row, sizeof row);
    }
}

static void put_layer(struct draft *d, const char *qkv, uint32_t n_qkv, uint32_t n_up)
{
    put_tensor(d, "blk.0.attn_norm.weight", 0, EMBD);
    put_tensor(d, qkv, n_qkv, EMBD);
    put_tensor(d, "blk.0.attn_output.weight", EMBD, HEADS * DIM);
    put_tensor(d, "blk.0.ffn_norm.weight", 0, EMBD);
    put_tensor(d, "blk.0.ffn_up.weight", n_up, EMBD);
    put_tensor(d, "blk.0.ffn_down.weight", EMBD, FF);
    put_tensor(d, "output_norm.weight", 0, EMBD);
}

struct progress {
    double last;
    bool fell;
};

static bool watch(void *user, double share)
{
    struct progress *p = user;
    p->fell = p->fell || share < p->last;
    p->last = share;
    return false;
}

static sac_status load(struct weights *out, struct gguf *g, struct progress *p, sac_error *err)
{
    struct config c;
    struct workers *pool;
    sac_model_params params = sac_model_params_default();
    params.progress = watch;
    params.progress_user = p;
    assert_int_equal(workers_create(&pool, 1, err), SAC_OK);
    sac_status status = config_read(&c, g, &(struct config_override){0}, err);
    if (status == SAC_OK) status = weights_load(out, g, &c, pool, &params, err);
    workers_destroy(pool);
    return status;
}

static void fused_matrices_are_cut_in_order(void **state)
{
    (void)state;
    const uint32_t n_q = HEADS * DIM, n_kv = KV_HEADS * DIM;
    struct draft d;
    struct weights w;
    struct gguf *g = NULL;
    sac_error err = {0};
    struct progress p = {0};
    begin(&d, "phi3", 1, CTX);
    put_layer(&d, "blk.0.attn_qkv.weight", n_q + 2 * n_kv, 2 * FF);
    struct make_out o = make_bytes(&d.f);
    assert_int_equal(gguf_open_memory(&g, o.bytes, o.n, &err), SAC_OK);
    if (load(&w, g, &p, &err) != SAC_OK) fail_msg("%s", err.msg);
    assert_rows(&w.layer[0].wq, g, "blk.0.attn_qkv.weight", 0, n_q);
    assert_rows(&w.layer[0].wk, g, "blk.0.attn_qkv.weight", n_q, n_kv);
    assert_rows(&w.layer[0].wv, g, "blk.0.attn_qkv.weight", n_q + n_kv, n_kv);
    assert_rows(&w.layer[0].gate, g, "blk.0.ffn_up.weight", 0, FF);
    assert_rows(&w.layer[0].up, g, "blk.0.ffn_up.weight", FF, FF);
    assert_true(p.last == 1 && !p.fell); /* each byte of the file once */
    weights_deinit(&w);
    gguf_close(g);
    free(o.bytes);
}

static void wrong_fused_matrices_are_named(void **state)
{
    (void)state;
    const uint32_t n_qkv = (HEADS + 2 * KV_HEADS) * DIM;
    static const struct {
        const char *qkv, *says;
        uint32_t more_qkv, more_up;
    } cases[] = {
        {"blk.0.attn_q.weight", "tensor blk.0.attn_qkv.weight is missing", 0, 0},
        {"blk.0.attn_qkv.weight",
         "tensor blk.0.attn_qkv.weight is [160, 64], the model's keys ask for [128, 64]", DIM, 0},
        {"blk.0.attn_qkv.weight",
         "tensor blk.0.ffn_up.weight is [32, 64], the model's keys ask for [64, 64]", 0, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct draft d;
        struct weights w;
        struct gguf *g = NULL;
        sac_error err = {0};
        struct progress p = {0};
        begin(&d, "phi3", 1, CTX);
        put_layer(&d, cases[i].qkv, n_qkv + cases[i].more_qkv, cases[i].more_up ? FF : 2 * FF);
        struct make_out o = make_bytes(&d.f);
        assert_int_equal(gguf_open_memory(&g, o.bytes, o.n, &err), SAC_OK);
        assert_int_equal(load(&w, g, &p, &err), SAC_ERR_FORMAT);
        if (!strstr(err.msg, cases[i].says)) fail_msg("'%s'", err.msg);
        gguf_close(g);
        free(o.bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemma2_sees_windows_in_every_second_layer),
        cmocka_unit_test(phi3_sees_windows_in_every_layer),
        cmocka_unit_test(phi3_without_a_key),
        cmocka_unit_test(a_window_of_the_whole_context_is_none),
        cmocka_unit_test(windows_elsewhere_are_refused),
        cmocka_unit_test(gemma2_caps_scores_and_logits),
        cmocka_unit_test(the_largest_gemma_scales_by_its_width),
        cmocka_unit_test(factors_alone_make_longrope),
        cmocka_unit_test(fused_matrices_are_cut_in_order),
        cmocka_unit_test(wrong_fused_matrices_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
