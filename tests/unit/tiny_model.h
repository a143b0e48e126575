/* tiny_model.h: a model of a few thousand random weights, made in a moment and loaded through the
 * public API from a file that is gone at once. What it says is noise; that every number of it can
 * be set makes states possible that no trained model gets into. With a window it has the shape of
 * Gemma 3: windows in five of six layers, norms of queries and keys and behind each block. With
 * experts it has that of Qwen 2's mixtures, a shared expert included. */
#ifndef SAC_TESTS_TINY_MODEL_H
#define SAC_TESTS_TINY_MODEL_H

#include "saccade.h"
#include "vocab_make.h"

#include <stdio.h>
#include <unistd.h>

enum {
    TINY_LAYERS = 2, /* unless a model says otherwise; so are the heads */
    TINY_EMBD = 64,
    TINY_HEADS = 4,
    TINY_KV_HEADS = 2,
    TINY_DIM = 32,
    TINY_FF = 64,
    TINY_EXPERT_FF = 32,
    TINY_EXPERTS_USED = 3,
    TINY_CTX = 4096,
    TINY_VOCAB = 256, /* token b is byte b */
    TINY_LAYERS_MAX = 8,
};

/* Changes the weights x [n_out, n_in] (n_in fastest; of experts, all under each other) of a tensor
 * before they are written. */
typedef void (*tiny_edit_fn)(void *user, const char *name, float *x, uint32_t n_out, uint32_t n_in);

struct tiny {
    uint64_t seed;
    tiny_edit_fn edit; /* or NULL */
    void *user;
    uint32_t n_layer, n_head, n_kv_head, dim, n_ff; /* 0: as above */
    uint32_t window;   /* 0: none, a model of the llama family; else Gemma 3 */
    uint32_t n_expert; /* 0: none; else Qwen 2's mixture, without a window */
};

struct tiny_tensor {
    char name[40];
    uint32_t n_out, n_in; /* n_out 0: a vector */
    float mean, size;
    uint32_t n; /* as many matrices; 0: one */
};

enum { TINY_TENSORS_MAX = 3 + 17 * TINY_LAYERS_MAX };

/* Which models have a tensor. */
enum tiny_family {
    TINY_LLAMA = 1,
    TINY_GEMMA = 2,
    TINY_MIXTURE = 4,
    TINY_BIASED = TINY_LLAMA | TINY_MIXTURE,
    TINY_DENSE = TINY_LLAMA | TINY_GEMMA,
    TINY_ALL = TINY_DENSE | TINY_MIXTURE,
};

static inline enum tiny_family tiny_family_of(const struct tiny *make)
{
    return make->n_expert ? TINY_MIXTURE : make->window ? TINY_GEMMA : TINY_LLAMA;
}

static inline struct tiny tiny_filled(const struct tiny *make)
{
    struct tiny t = *make;
    if (!t.n_layer) t.n_layer = TINY_LAYERS;
    if (!t.n_head) t.n_head = TINY_HEADS;
    if (!t.n_kv_head) t.n_kv_head = TINY_KV_HEADS;
    if (!t.dim) t.dim = TINY_DIM;
    if (!t.n_ff) t.n_ff = TINY_FF;
    assert(t.n_layer <= TINY_LAYERS_MAX);
    return t;
}

static inline void tiny_add(struct tiny_tensor *t, size_t *n, const struct tiny_tensor *one)
{
    assert(*n < TINY_TENSORS_MAX);
    t[(*n)++] = *one;
}

static inline size_t tiny_list(struct tiny_tensor *t, const struct tiny *make)
{
    const uint32_t n_q = make->n_head * make->dim, n_kv = make->n_kv_head * make->dim;
    const struct {
        const char *name;
        uint32_t n_out, n_in;
        float mean, size;
        enum tiny_family family;
    } layer[] = {
        {"attn_norm.weight", 0, TINY_EMBD, 1, 0.1f, TINY_ALL},
        {"attn_q.weight", n_q, TINY_EMBD, 0, 0.5f, TINY_ALL},
        {"attn_k.weight", n_kv, TINY_EMBD, 0, 0.5f, TINY_ALL},
        {"attn_v.weight", n_kv, TINY_EMBD, 0, 0.2f, TINY_ALL},
        {"attn_q.bias", 0, n_q, 0, 0.1f, TINY_BIASED},
        {"attn_k.bias", 0, n_kv, 0, 0.1f, TINY_BIASED},
        {"attn_v.bias", 0, n_kv, 0, 0.1f, TINY_MIXTURE},
        {"attn_q_norm.weight", 0, make->dim, 4.0f, 0.5f, TINY_GEMMA},
        {"attn_k_norm.weight", 0, make->dim, 4.0f, 0.5f, TINY_GEMMA},
        {"attn_output.weight", TINY_EMBD, n_q, 0, 0.1f, TINY_ALL},
        {"post_attention_norm.weight", 0, TINY_EMBD, 1, 0.1f, TINY_GEMMA},
        {"ffn_norm.weight", 0, TINY_EMBD, 1, 0.1f, TINY_ALL},
        {"ffn_gate.weight", make->n_ff, TINY_EMBD, 0, 0.2f, TINY_DENSE},
        {"ffn_up.weight", make->n_ff, TINY_EMBD, 0, 0.2f, TINY_DENSE},
        {"ffn_down.weight", TINY_EMBD, make->n_ff, 0, 0.2f, TINY_DENSE},
        {"ffn_gate_inp.weight", make->n_expert, TINY_EMBD, 0, 0.3f, TINY_MIXTURE},
        {"ffn_gate_exps.weight", TINY_EXPERT_FF, TINY_EMBD, 0, 0.2f, TINY_MIXTURE},
        {"ffn_up_exps.weight", TINY_EXPERT_FF, TINY_EMBD, 0, 0.2f, TINY_MIXTURE},
        {"ffn_down_exps.weight", TINY_EMBD, TINY_EXPERT_FF, 0, 0.2f, TINY_MIXTURE},
        {"ffn_gate_inp_shexp.weight", 0, TINY_EMBD, 0, 0.3f, TINY_MIXTURE},
        {"ffn_gate_shexp.weight", make->n_ff, TINY_EMBD, 0, 0.2f, TINY_MIXTURE},
        {"ffn_up_shexp.weight", make->n_ff, TINY_EMBD, 0, 0.2f, TINY_MIXTURE},
        {"ffn_down_shexp.weight", TINY_EMBD, make->n_ff, 0, 0.2f, TINY_MIXTURE},
        {"post_ffw_norm.weight", 0, TINY_EMBD, 1, 0.1f, TINY_GEMMA},
    };
    size_t n_tensor = 0;
    tiny_add(t, &n_tensor,
             &(struct tiny_tensor){"token_embd.weight", TINY_VOCAB, TINY_EMBD, 0, 1, 0});
    for (uint32_t l = 0; l < make->n_layer; l++)
        for (size_t i = 0; i < sizeof layer / sizeof layer[0]; i++) {
            struct tiny_tensor one = {.n_out = layer[i].n_out,
                                      .n_in = layer[i].n_in,
                                      .mean = layer[i].mean,
                                      .size = layer[i].size,
                                      .n = strstr(layer[i].name, "_exps.") ? make->n_expert : 0};
            if (!(layer[i].family & tiny_family_of(make))) continue;
            snprintf(one.name, sizeof one.name, "blk.%u.%s", l, layer[i].name);
            tiny_add(t, &n_tensor, &one);
        }
    tiny_add(t, &n_tensor, &(struct tiny_tensor){"output_norm.weight", 0, TINY_EMBD, 1, 0.1f, 0});
    tiny_add(t, &n_tensor,
             &(struct tiny_tensor){"output.weight", TINY_VOCAB, TINY_EMBD, 0, 0.4f, 0});
    return n_tensor;
}

static inline const char *tiny_arch(const struct tiny *make)
{
    return make->n_expert ? "qwen2moe" : make->window ? "gemma3" : "llama";
}

/* "<arch>.<name>" */
static inline const char *tiny_key(char key[80], const struct tiny *make, const char *name)
{
    snprintf(key, 80, "%s.%s", tiny_arch(make), name);
    return key;
}

static inline void tiny_put_keys(struct make_out *o, const struct tiny *make, uint64_t *n_key)
{
    const float eps = 1e-5f;
    const struct {
        const char *name;
        uint32_t value;
    } keys[] = {
        {"context_length", TINY_CTX},
        {"embedding_length", TINY_EMBD},
        {"block_count", make->n_layer},
        {"feed_forward_length", make->n_ff},
        {"attention.head_count", make->n_head},
        {"attention.head_count_kv", make->n_kv_head},
        {"attention.key_length", make->dim},
        {"attention.value_length", make->dim},
        {"attention.sliding_window", make->window ? make->window : VOCAB_ID_ABSENT},
        {"expert_count", make->n_expert ? make->n_expert : VOCAB_ID_ABSENT},
        {"expert_used_count", make->n_expert ? TINY_EXPERTS_USED : VOCAB_ID_ABSENT},
        {"expert_feed_forward_length", make->n_expert ? TINY_EXPERT_FF : VOCAB_ID_ABSENT},
    };
    char key[80];
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        vocab_put_id(o, tiny_key(key, make, keys[i].name), keys[i].value, n_key);
    vocab_put_str(o, tiny_key(key, make, "attention.layer_norm_rms_epsilon"));
    make_put_u32(o, 6);
    make_put(o, &eps, sizeof eps);
    ++*n_key;
}

static inline size_t tiny_floats(const struct tiny_tensor *t)
{
    return (size_t)(t->n ? t->n : 1) * (t->n_out ? t->n_out : 1) * t->n_in;
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
    if (make->edit) make->edit(make->user, t->name, x, (uint32_t)(n / t->n_in), t->n_in);
    make_put(o, x, n * sizeof *x); /* whole blocks of 32 bytes, as tensors must begin */
    free(x);
}

static inline struct make_out tiny_bytes(const struct tiny *wish)
{
    const struct tiny filled = tiny_filled(wish), *make = &filled;
    struct make_out o = {0};
    struct tiny_tensor t[TINY_TENSORS_MAX];
    struct vocab_make v;
    const uint64_t n_tensor = tiny_list(t, make);
    uint64_t n_key = 0, at = 0;
    make_put(&o, "GGUF", 4);
    make_put_u32(&o, 3);
    make_put_u64(&o, n_tensor);
    const size_t n_key_at = o.n;
    make_put_u64(&o, 0);
    vocab_start_bpe(&v, NULL, 0);
    v.arch = tiny_arch(make);
    n_key = vocab_put_keys(&o, &v);
    tiny_put_keys(&o, make, &n_key);
    memcpy(o.bytes + n_key_at, &n_key, sizeof n_key);
    for (uint64_t i = 0; i < n_tensor; i++) {
        vocab_put_str(&o, t[i].name);
        make_put_u32(&o, t[i].n ? 3 : t[i].n_out ? 2 : 1);
        make_put_u64(&o, t[i].n_in);
        if (t[i].n_out) make_put_u64(&o, t[i].n_out);
        if (t[i].n) make_put_u64(&o, t[i].n);
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

/* For the tests of a group that share a model: it is their state. */
static inline int tiny_setup(void **state)
{
    *state = tiny_open(&(struct tiny){.seed = 5});
    return *state ? 0 : -1;
}

static inline int tiny_teardown(void **state)
{
    sac_model_free(*state);
    return 0;
}

#endif
