/* model.c: load a model from a GGUF file, and the public calls that need no engine: information,
 * tokens and chat templates. */
#include "engine/model.h"

#include "base/mem.h"
#include "base/strbuf.h"
#include "model/template.h"

#include <string.h>
#include <time.h>
#define XXH_STATIC_LINKING_ONLY /* a hash that needs no allocation */
#include <xxhash.h>

const char *sac_version(void)
{
#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)
    return TEXT(SAC_VERSION_MAJOR) "." TEXT(SAC_VERSION_MINOR) "." TEXT(SAC_VERSION_PATCH);
}

sac_model_params sac_model_params_default(void)
{
    return (sac_model_params){.screen = true};
}

/* Copies the value of a string key, or `absent` without one; if that is NULL, *out is NULL. */
static sac_status copy_str(char **out, const struct gguf *g, const char *key, const char *absent,
                           sac_error *err)
{
    struct gguf_str s = {.s = absent, .n = absent ? strlen(absent) : 0};
    if (gguf_key_find(g, key)) TRY(gguf_get_str(g, key, &s, err));
    *out = NULL;
    if (!s.s) return SAC_OK;
    *out = mem_strndup(s.s, s.n);
    return *out ? SAC_OK : error_set(err, SAC_ERR_MEMORY, "out of memory for key %s", key);
}

/* The type that holds most of the file's bytes, by which it is described. */
static const char *main_type(const struct gguf *g)
{
    uint64_t best = 0;
    uint32_t best_type = QUANT_F32;
    for (uint32_t type = 0; type <= QUANT_BF16; type++) {
        uint64_t bytes = 0;
        for (size_t i = 0; i < gguf_n_tensor(g); i++)
            if (gguf_tensor_at(g, i)->type == type) bytes += gguf_tensor_at(g, i)->bytes;
        if (bytes > best) {
            best = bytes;
            best_type = type;
        }
    }
    return quant_name(best_type);
}

static uint64_t count_params(const struct gguf *g)
{
    uint64_t n = 0;
    for (size_t i = 0; i < gguf_n_tensor(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        n += t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    }
    return n;
}

/* A hash of the config (with the caller's overrides) and of names, shapes and samples of all
 * tensors: another training of the same model differs in every tensor. */
static uint64_t find_fingerprint(const sac_model *m)
{
    enum { SAMPLE = 512 };
    const struct config *c = &m->config;
    const struct rope_config *r = &c->rope;
    const double number[] = {
        c->n_layer,
        c->n_embd,
        c->n_ff,
        c->n_head,
        c->n_kv_head,
        c->head_dim,
        c->n_vocab,
        c->window,
        c->swa_pattern,
        (double)c->norm_eps,
        (double)c->attn_scale,
        (double)c->attn_softcap,
        (double)c->embed_scale,
        (double)c->rope_base_local,
        r->kind,
        r->n_rot,
        r->orig_ctx,
        (double)r->base,
        (double)r->factor,
        (double)r->attn_factor,
        (double)r->beta_fast,
        (double)r->beta_slow,
    };
    XXH3_state_t hash;
    XXH3_64bits_reset(&hash);
    XXH3_64bits_update(&hash, c->arch->name, strlen(c->arch->name));
    XXH3_64bits_update(&hash, number, sizeof number);
    const struct expert_config *x = &c->experts;
    const double expert[] = {x->n, x->n_used, x->n_ff, x->norm, (double)x->scale};
    if (x->n) XXH3_64bits_update(&hash, expert, sizeof expert);
    for (size_t i = 0; i < gguf_n_tensor(m->gguf); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(m->gguf, i);
        const size_t n = t->bytes < SAMPLE ? t->bytes : SAMPLE;
        XXH3_64bits_update(&hash, t->name, strlen(t->name) + 1);
        XXH3_64bits_update(&hash, &t->type, sizeof t->type);
        XXH3_64bits_update(&hash, t->ne, sizeof t->ne);
        XXH3_64bits_update(&hash, t->data, n);
        XXH3_64bits_update(&hash, t->data + (t->bytes - n) / 2, n);
    }
    return XXH3_64bits_digest(&hash);
}

static sac_status load_texts(sac_model *m, sac_error *err)
{
    TRY(copy_str(&m->name, m->gguf, "general.name", gguf_path(m->gguf), err));
    TRY(copy_str(&m->chat_template, m->gguf, "tokenizer.chat_template", NULL, err));
    m->file_type = mem_strdup(main_type(m->gguf));
    return m->file_type ? SAC_OK : error_set(err, SAC_ERR_MEMORY, "out of memory");
}

static sac_status load(sac_model *m, const char *path, const sac_model_params *params,
                       struct workers *pool, sac_error *err)
{
    TRY(gguf_open(&m->gguf, path, err));
    const struct config_override override = {.rope = params->rope,
                                             .rope_scale = params->rope_scale,
                                             .rope_freq_base = params->rope_freq_base,
                                             .yarn_orig_ctx = params->yarn_orig_ctx};
    TRY(config_read(&m->config, m->gguf, &override, err));
    const struct tokenizer_rules rules = {.pre = params->pre,
                                          .turns_strip = m->config.arch->turns_strip};
    TRY(tokenizer_create(&m->tokenizer, m->gguf, &rules, err));
    if (tokenizer_n_vocab(m->tokenizer) != m->config.n_vocab)
        return error_set(err, SAC_ERR_FORMAT,
                         "%s: %u tokens in the vocabulary, %u rows in token_embd.weight", path,
                         tokenizer_n_vocab(m->tokenizer), m->config.n_vocab);
    TRY(load_texts(m, err));
    m->n_params = count_params(m->gguf);
    m->fingerprint = find_fingerprint(m);
    return weights_load(&m->weights, m->gguf, &m->config, pool, params, err);
}

sac_status sac_model_load(sac_model **out, const char *path, const sac_model_params *params,
                          sac_error *err)
{
    struct workers *pool;
    TRY(workers_create(&pool, params->n_threads, err));
    sac_model *m = mem_calloc(1, sizeof *m);
    const sac_status status = m ? load(m, path, params, pool, err)
                                : error_set(err, SAC_ERR_MEMORY, "out of memory for a model");
    workers_destroy(pool);
    if (status != SAC_OK) {
        sac_model_free(m);
        return status;
    }
    *out = m;
    return SAC_OK;
}

void sac_model_free(sac_model *m)
{
    if (!m) return;
    weights_deinit(&m->weights);
    tokenizer_destroy(m->tokenizer);
    mem_free(m->name);
    mem_free(m->file_type);
    mem_free(m->chat_template);
    gguf_close(m->gguf);
    mem_free(m);
}

sac_model_info sac_model_get_info(const sac_model *m)
{
    const struct config *c = &m->config;
    uint32_t n_window_layer = 0;
    for (uint32_t l = 0; l < c->n_layer; l++) n_window_layer += config_layer_is_local(c, l);
    return (sac_model_info){.name = m->name,
                            .arch = c->arch->name,
                            .file_type = m->file_type,
                            .n_layer = c->n_layer,
                            .n_embd = c->n_embd,
                            .n_ff = c->n_ff + c->experts.n_used * c->experts.n_ff,
                            .n_head = c->n_head,
                            .n_kv_head = c->n_kv_head,
                            .head_dim = c->head_dim,
                            .n_vocab = c->n_vocab,
                            .n_ctx_train = c->n_ctx_train,
                            .n_window_layer = n_window_layer,
                            .window = n_window_layer ? c->window : 0,
                            .n_params = m->n_params,
                            .file_bytes = gguf_file_bytes(m->gguf),
                            .weight_bytes = m->weights.block_bytes};
}

sac_status sac_tokenize(const sac_model *m, const char *text, size_t n_bytes, unsigned flags,
                        int32_t **out_tok, size_t *out_n, sac_error *err)
{
    return tokenizer_encode(m->tokenizer, text, n_bytes, flags, out_tok, out_n, err);
}

const char *sac_token_piece(const sac_model *m, int32_t tok, bool special, size_t *out_bytes)
{
    return tokenizer_piece(m->tokenizer, tok, special, out_bytes);
}

sac_status sac_detokenize(const sac_model *m, const int32_t *tok, size_t n, bool special,
                          char **out_text, size_t *out_bytes, sac_error *err)
{
    struct strbuf b = {0};
    for (size_t i = 0; i < n; i++) {
        size_t bytes;
        const char *piece = tokenizer_piece(m->tokenizer, tok[i], special, &bytes);
        strbuf_add(&b, piece, bytes);
    }
    char *text = strbuf_detach(&b, out_bytes);
    if (!text) return error_set(err, SAC_ERR_MEMORY, "out of memory for the text of %zu tokens", n);
    *out_text = text;
    return SAC_OK;
}

bool sac_token_is_eog(const sac_model *m, int32_t tok)
{
    return tokenizer_is_eog(m->tokenizer, tok);
}

int32_t sac_token_bos(const sac_model *m)
{
    return tokenizer_bos(m->tokenizer);
}

/* The arguments of sac_chat_apply and sac_chat_tokens. */
struct chat {
    const sac_message *msgs; /* [n_msg] */
    size_t n_msg;
    const sac_chat_params *params;
};

/* The text of a special token, NUL terminated in `buf`; more than 255 bytes are cut off, because no
 * marker is that long. */
static const char *token_text(const sac_model *m, int32_t tok, char buf[256])
{
    size_t n = 0;
    const char *piece = tok < 0 ? "" : tokenizer_piece(m->tokenizer, tok, true, &n);
    if (n > 255) n = 0;
    memcpy(buf, piece, n);
    buf[n] = 0;
    return buf;
}

/* A template without a brace would print no message, so it is taken for a mistyped name. */
static sac_status find_template(const sac_model *m, const char *wanted, const char **out,
                                sac_error *err)
{
    const char *const source = wanted ? wanted : m->chat_template;
    *out = source ? template_builtin(source) : NULL;
    if (*out) return SAC_OK;
    *out = source;
    if (source && (!wanted || strchr(source, '{'))) return SAC_OK;
    struct strbuf names = {0};
    for (size_t i = 0; template_builtin_at(i); i++)
        strbuf_addf(&names, "%s%s", i ? ", " : "", template_builtin_at(i));
    const char *list = names.data ? names.data : "";
    const sac_status status =
        wanted
            ? error_set(err, SAC_ERR_ARG,
                        "'%.40s' is no chat template, and none is built in as that: %s", wanted,
                        list)
            : error_set(err, SAC_ERR_NOT_FOUND,
                        "model '%s' has no chat template: name a built-in one, %s", m->name, list);
    strbuf_deinit(&names);
    return status;
}

/* Appends the last message's text to the start of the answer's turn; takes ownership of `text`. */
static sac_status open_with(const struct tokenizer *guard, const struct chat *chat, char *text,
                            char **out, sac_error *err)
{
    const char *said = chat->msgs[chat->n_msg - 1].content;
    const size_t n = strlen(text), n_said = said ? strlen(said) : 0;
    const size_t n_max = guard ? tokenizer_guard(guard, said, n_said, NULL) : n_said;
    char *grown = mem_realloc(text, n + n_max + 1);
    if (!grown) {
        mem_free(text);
        return error_set(err, SAC_ERR_MEMORY, "out of memory for a chat of %zu bytes", n);
    }
    if (guard)
        tokenizer_guard(guard, said, n_said, grown + n);
    else if (n_said)
        memcpy(grown + n, said, n_said);
    grown[n + n_max] = 0;
    *out = grown;
    return SAC_OK;
}

static sac_status render_chat(const sac_model *m, const struct tokenizer *guard,
                              const struct chat *chat, char **out_text, sac_error *err)
{
    const sac_chat_params *params = chat->params;
    const bool goes_on = params->continue_last;
    const char *source;
    char *text = NULL;
    TRY(find_template(m, params->chat_template, &source, err));
    if (goes_on && chat->n_msg == 0)
        return error_set(err, SAC_ERR_ARG, "there is no last message to go on from");
    char bos[256], eos[256];
    const struct template_input in = {
        .msgs = chat->msgs,
        .n_msg = chat->n_msg - goes_on,
        .tools_json = params->tools_json,
        .vars_json = params->vars_json,
        .add_generation_prompt = params->add_generation_prompt || goes_on,
        .bos = token_text(m, tokenizer_bos(m->tokenizer), bos),
        .eos = token_text(m, tokenizer_eos(m->tokenizer), eos),
        .now = (int64_t)time(NULL),
        .guard = guard,
    };
    TRY(template_render(source, strlen(source), &in, &text, err));
    if (goes_on) return open_with(guard, chat, text, out_text, err);
    *out_text = text;
    return SAC_OK;
}

sac_status sac_chat_apply(const sac_model *m, const sac_message *msgs, size_t n_msg,
                          const sac_chat_params *params, char **out_text, sac_error *err)
{
    return render_chat(m, NULL, &(struct chat){msgs, n_msg, params}, out_text, err);
}

sac_status sac_chat_tokens(const sac_model *m, const sac_message *msgs, size_t n_msg,
                           const sac_chat_params *params, int32_t **out_tok, size_t *out_n,
                           sac_error *err)
{
    char *text = NULL;
    TRY(render_chat(m, m->tokenizer, &(struct chat){msgs, n_msg, params}, &text, err));
    const sac_status status =
        tokenizer_encode_guarded(m->tokenizer, text, strlen(text), out_tok, out_n, err);
    mem_free(text);
    return status;
}
