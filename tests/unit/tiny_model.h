/* tiny_model.h: a model of a few thousand random weights, made in a moment and loaded through the
 * public API from a file that is gone at once. What it says is noise; that every number of it can
 * be set makes states possible that no trained model gets into. */
#ifndef SAC_TESTS_TINY_MODEL_H
#define SAC_TESTS_TINY_MODEL_H

#include "saccade.h"
#include "vocab_make.h"

#include <stdio.h>
#include <unistd.h>

enum {
    TINY_LAYERS = 2,
    TINY_EMBD = 64,
    TINY_HEADS = 4,
    TINY_KV_HEADS = 2,
    TINY_DIM = 32,
    TINY_FF = 64,
    TINY_CTX = 4096,
    TINY_VOCAB = 256, /* token b is byte b */
};

/* Changes the weights x [n_out, n_in] (n_in fastest) of a tensor before they are written. */
typedef void (*tiny_edit_fn)(void *user, const char *name, float *x, uint32_t n_out, uint32_t n_in);

struct tiny {
    uint64_t seed;
    tiny_edit_fn edit; /* or NULL */
    void *user;
};

struct tiny_tensor {
    char name[40];
    uint32_t n_out, n_in; /* n_out 0: a vector */
    float mean, size;
};

enum { TINY_TENSORS_MAX = 3 + 11 * TINY_LAYERS };

static inline void tiny_add(struct tiny_tensor *t, size_t *n, const struct tiny_tensor *one)
{
    assert(*n < TINY_TENSORS_MAX);
    t[(*n)++] = *one;
}

static inline size_t tiny_list(struct tiny_tensor *t)
{
    static const struct {
        const char *name;
        uint32_t n_out, n_in;
        float mean, size;
    } layer[] = {
        {"attn_norm.weight", 0, TINY_EMBD, 1, 0.1f},
        {"attn_q.weight", TINY_HEADS * TINY_DIM, TINY_EMBD, 0, 0.5f},
        {"attn_k.weight", TINY_KV_HEADS * TINY_DIM, TINY_EMBD, 0, 0.5f},
        {"attn_v.weight", TINY_KV_HEADS * TINY_DIM, TINY_EMBD, 0, 0.2f},
        {"attn_q.bias", 0, TINY_HEADS * TINY_DIM, 0, 0.1f},
        {"attn_k.bias", 0, TINY_KV_HEADS * TINY_DIM, 0, 0.1f},
        {"attn_output.weight", TINY_EMBD, TINY_HEADS * TINY_DIM, 0, 0.1f},
        {"ffn_norm.weight", 0, TINY_EMBD, 1, 0.1f},
        {"ffn_gate.weight", TINY_FF, TINY_EMBD, 0, 0.2f},
        {"ffn_up.weight", TINY_FF, TINY_EMBD, 0, 0.2f},
        {"ffn_down.weight", TINY_EMBD, TINY_FF, 0, 0.2f},
    };
    size_t n = 0;
    tiny_add(t, &n, &(struct tiny_tensor){"token_embd.weight", TINY_VOCAB, TINY_EMBD, 0, 1});
    for (uint32_t l = 0; l < TINY_LAYERS; l++)
        for (size_t i = 0; i < sizeof layer / sizeof layer[0]; i++) {
            struct tiny_tensor one = {.n_out = layer[i].n_out,
                                      .n_in = layer[i].n_in,
                                      .mean = layer[i].mean,
                                      .size = layer[i].size};
            snprintf(one.name, sizeof one.name, "blk.%u.%s", l, layer[i].name);
            tiny_add(t, &n, &one);
        }
    tiny_add(t, &n, &(struct tiny_tensor){"output_norm.weight", 0, TINY_EMBD, 1, 0.1f});
    tiny_add(t, &n, &(struct tiny_tensor){"output.weight", TINY_VOCAB, TINY_EMBD, 0, 0.4f});
    return n;
}

static inline void tiny_put_u32(struct make_out *o, const char *name, uint32_t value, uint64_t *n)
{
    vocab_put_id(o, name, value, n);
}

static inline void tiny_put_keys(struct make_out *o, uint64_t *n_key)
{
    const float eps = 1e-5f;
    tiny_put_u32(o, "llama.context_length", TINY_CTX, n_key);
    tiny_put_u32(o, "llama.embedding_length", TINY_EMBD, n_key);
    tiny_put_u32(o, "llama.block_count", TINY_LAYERS, n_key);
    tiny_put_u32(o, "llama.feed_forward_length", TINY_FF, n_key);
    tiny_put_u32(o, "llama.attention.head_count", TINY_HEADS, n_key);
    tiny_put_u32(o, "llama.attention.head_count_kv", TINY_KV_HEADS, n_key);
    tiny_put_u32(o, "llama.attention.key_length", TINY_DIM, n_key);
    tiny_put_u32(o, "llama.attention.value_length", TINY_DIM, n_key);
    vocab_put_str(o, "llama.attention.layer_norm_rms_epsilon");
    make_put_u32(o, 6);
    make_put(o, &eps, sizeof eps);
    ++*n_key;
}

static inline size_t tiny_floats(const struct tiny_tensor *t)
{
    return (size_t)(t->n_out ? t->n_out : 1) * t->n_in;
}

static inline void tiny_put_data(struct make_out *o, const struct tiny *make,
                                 const struct tiny_tensor *t)
{
    uint64_t random = make->seed;
    for (const char *c = t->name; *c; c++) random = random * 31 + (uint8_t)*c;
    const size_t n = tiny_floats(t);
    float *x = malloc(n * sizeof *x);
    assert(x);
    for (size_t i = 0; i < n; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        x[i] = t->mean + t->size * ((float)(uint32_t)(random >> 33) / 1073741824.0f - 1.0f);
    }
    if (make->edit) make->edit(make->user, t->name, x, t->n_out ? t->n_out : 1, t->n_in);
    make_put(o, x, n * sizeof *x); /* whole blocks of 32 bytes, as tensors must begin */
    free(x);
}

static inline struct make_out tiny_bytes(const struct tiny *make)
{
    struct make_out o = {0};
    struct tiny_tensor t[TINY_TENSORS_MAX];
    struct vocab_make v;
    const uint64_t n_tensor = tiny_list(t);
    uint64_t n_key = 0, at = 0;
    make_put(&o, "GGUF", 4);
    make_put_u32(&o, 3);
    make_put_u64(&o, n_tensor);
    const size_t n_key_at = o.n;
    make_put_u64(&o, 0);
    vocab_start_bpe(&v, NULL, 0);
    n_key = vocab_put_keys(&o, &v);
    tiny_put_keys(&o, &n_key);
    memcpy(o.bytes + n_key_at, &n_key, sizeof n_key);
    for (uint64_t i = 0; i < n_tensor; i++) {
        vocab_put_str(&o, t[i].name);
        make_put_u32(&o, t[i].n_out ? 2 : 1);
        make_put_u64(&o, t[i].n_in);
        if (t[i].n_out) make_put_u64(&o, t[i].n_out);
        make_put_u32(&o, 0); /* f32 */
        make_put_u64(&o, at);
        at += tiny_floats(&t[i]) * sizeof(float);
    }
    while (o.n % 32) make_put(&o, "", 1);
    for (uint64_t i = 0; i < n_tensor; i++) tiny_put_data(&o, make, &t[i]);
    return o;
}

/* NULL, and why on stderr, if there is no place for the file. */
static inline sac_model *tiny_open(const struct tiny *make)
{
    char path[] = P_tmpdir "/saccade-tiny-XXXXXX";
    struct make_out o = tiny_bytes(make);
    const int fd = mkstemp(path);
    const bool written = fd >= 0 && write(fd, o.bytes, o.n) == (ssize_t)o.n;
    sac_model *model = NULL;
    sac_error err = {.msg = "no place for a tiny model"};
    sac_model_params params = sac_model_params_default();
    params.n_threads = 1;
    if (!written || sac_model_load(&model, path, &params, &err) != SAC_OK)
        fprintf(stderr, "%s\n", err.msg);
    if (fd >= 0) {
        close(fd);
        unlink(path);
    }
    free(o.bytes);
    return model;
}

#endif
