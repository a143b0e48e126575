/* api_request.c: see the header. Numbers that are passed to the sampler unchanged are in one table.
 */
#include "serve/api_request.h"

#include "base/mem.h"
#include "eval/prompt.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define SEED_MAX 9007199254740992.0 /* 2^53: larger integers are not exact in JSON numbers */

void api_request_deinit(struct api_request *a)
{
    for (uint32_t i = 0; i < a->n_prompt; i++) {
        sac_free(a->prompt[i].tok);
        mem_free(a->prompt[i].text);
        passages_deinit(&a->prompt[i].passages);
    }
    mem_free(a->role);
    for (uint32_t i = 0; i < a->n_said; i++) mem_free(a->said[i]);
    mem_free(a->said);
    mem_free(a->context);
    for (uint32_t i = 0; i < a->n_doc; i++) mem_free(a->doc_name[i]);
    for (uint32_t i = 0; i < a->n_input; i++) sac_free(a->input[i].tok);
    mem_free(a->input);
    mem_free(a->slot_file);
    mem_free(a->document.name);
    mem_free(a->document.tags);
    sac_free(a->document.head);
    sac_free(a->document.tok);
    for (uint32_t i = 0; i < a->n_stop; i++) mem_free(a->stop[i]);
    mem_free(a->stop_tok);
    for (uint32_t i = 0; i < a->n_breaker; i++) mem_free(a->breaker[i]);
    mem_free(a->cache_salt);
    mem_free((char *)(uintptr_t)a->sparse.budget);
    for (uint32_t i = 0; i < a->n_tool; i++) mem_free(a->tool[i]);
    mem_free(a->tool);
    if (a->automaton) automaton_free(a->automaton);
    allowed_tokens_free(a->allowed);
    mem_free(a->bias);
    *a = (struct api_request){0};
}

/* ---- Single fields ---- */

sac_status api_request_bool(const cJSON *o, const char *name, bool *out, struct api_error *error)
{
    const cJSON *item = json_get(o, name);
    if (!item) return SAC_OK;
    if (!cJSON_IsBool(item))
        return api_error_set(error, API_ERROR_REQUEST, name, "'%s' is not true or false", name);
    *out = cJSON_IsTrue(item);
    return SAC_OK;
}

static sac_status read_number(const cJSON *o, const char *name, double min, double max, double *out,
                              struct api_error *error)
{
    const cJSON *item = json_get(o, name);
    if (!item) return SAC_OK;
    if (!cJSON_IsNumber(item))
        return api_error_set(error, API_ERROR_REQUEST, name, "'%s' is not a number", name);
    const double v = item->valuedouble;
    if (!(v >= min && v <= max))
        return api_error_set(error, API_ERROR_REQUEST, name,
                             "'%s' is %.16g: allowed is %.16g to %.16g", name, v, min, max);
    *out = v;
    return SAC_OK;
}

static sac_status read_whole(const cJSON *o, const char *name, double min, double max, double *out,
                             struct api_error *error)
{
    double v = *out;
    TRY(read_number(o, name, min, max, &v, error));
    if (v != floor(v))
        return api_error_set(error, API_ERROR_REQUEST, name, "'%s' is %.16g: not a whole number",
                             name, v);
    *out = v;
    return SAC_OK;
}

sac_status api_request_u32(const cJSON *o, const char *name, uint32_t min, uint32_t max,
                           uint32_t *out, struct api_error *error)
{
    double v = *out;
    if (!json_get(o, name)) return SAC_OK;
    TRY(read_whole(o, name, min, max, &v, error));
    *out = (uint32_t)v;
    return SAC_OK;
}

sac_status api_request_text(const cJSON *o, const char *name, const char **out,
                            struct api_error *error)
{
    const cJSON *item = json_get(o, name);
    if (!item) return SAC_OK;
    if (!cJSON_IsString(item))
        return api_error_set(error, API_ERROR_REQUEST, name, "'%s' is not a text", name);
    *out = item->valuestring;
    return SAC_OK;
}

/* Appends a copy of the string to `text` [API_REQUEST_STOP_MAX], which has *n items. */
static sac_status add_text(char **text, uint32_t *n, const cJSON *item, const char *name,
                           struct api_error *error)
{
    if (!cJSON_IsString(item) || !*item->valuestring ||
        strlen(item->valuestring) > API_REQUEST_STOP_BYTES)
        return api_error_set(error, API_ERROR_REQUEST, name,
                             "'%s' holds something that is not a text of 1 to %u bytes", name,
                             API_REQUEST_STOP_BYTES);
    if (*n == API_REQUEST_STOP_MAX)
        return api_error_set(error, API_ERROR_REQUEST, name, "'%s' holds more than %u texts", name,
                             API_REQUEST_STOP_MAX);
    char *copy = mem_strdup(item->valuestring);
    if (!copy) return api_error_no_memory(error);
    text[(*n)++] = copy;
    return SAC_OK;
}

/* "dry_sequence_breakers": a list of strings; if it is empty, the server's default applies. */
static sac_status read_breakers(struct api_request *a, const cJSON *o, struct api_error *error)
{
    static const char name[] = "dry_sequence_breakers";
    const cJSON *list = json_get(o, name), *item;
    if (!list) return SAC_OK;
    if (!cJSON_IsArray(list))
        return api_error_set(error, API_ERROR_REQUEST, name, "'%s' is not a list of texts", name);
    cJSON_ArrayForEach(item, list) TRY(add_text(a->breaker, &a->n_breaker, item, name, error));
    return SAC_OK;
}

sac_status api_request_stop(struct api_request *a, const cJSON *o, const char *name,
                            struct api_error *error)
{
    const cJSON *item = json_get(o, name), *one;
    if (!item) return SAC_OK;
    if (cJSON_IsString(item))
        return *item->valuestring ? add_text(a->stop, &a->n_stop, item, name, error) : SAC_OK;
    if (!cJSON_IsArray(item))
        return api_error_set(error, API_ERROR_REQUEST, name, "'%s' is neither a text nor a list",
                             name);
    cJSON_ArrayForEach(one, item) TRY(add_text(a->stop, &a->n_stop, one, name, error));
    return SAC_OK;
}

/* "stop_token_ids" */
static sac_status read_stop_tokens(struct api_request *a, const cJSON *o,
                                   const struct api_request_rules *rules, struct api_error *error)
{
    static const char name[] = "stop_token_ids";
    const int32_t max = (int32_t)sac_model_get_info(rules->model).n_vocab - 1;
    const cJSON *list = json_get(o, name), *item;
    const int n = cJSON_GetArraySize(list);
    if (!list) return SAC_OK;
    if (!cJSON_IsArray(list) || n > (int)API_REQUEST_STOP_TOK)
        return api_error_set(error, API_ERROR_REQUEST, name,
                             "'%s' is not a list of at most %u token ids", name,
                             API_REQUEST_STOP_TOK);
    a->stop_tok = mem_calloc((size_t)n, sizeof *a->stop_tok);
    if (!a->stop_tok) return api_error_no_memory(error);
    cJSON_ArrayForEach(item, list)
    {
        if (!json_index(item, max, &a->stop_tok[a->n_stop_tok++]))
            return api_error_set(error, API_ERROR_REQUEST, name,
                                 "'%s' holds something that is no token id: allowed is 0 to %d",
                                 name, max);
    }
    return SAC_OK;
}

/* ---- Sampling ---- */

struct number {
    const char *name;
    size_t offset; /* in sac_sampling */
    double min, max;
    bool whole; /* int32_t; otherwise float */
};

static const struct number numbers[] = {
    {"temperature", offsetof(sac_sampling, temp), 0, 100, false},
    {"top_p", offsetof(sac_sampling, top_p), 0, 1, false},
    {"min_p", offsetof(sac_sampling, min_p), 0, 1, false},
    {"typical_p", offsetof(sac_sampling, typical_p), 0, 1, false},
    {"top_k", offsetof(sac_sampling, top_k), -1, INT32_MAX, true},
    {"repeat_penalty", offsetof(sac_sampling, repeat_penalty), 0.01, 100, false},
    {"repetition_penalty", offsetof(sac_sampling, repeat_penalty), 0.01, 100, false},
    {"frequency_penalty", offsetof(sac_sampling, frequency_penalty), -100, 100, false},
    {"presence_penalty", offsetof(sac_sampling, presence_penalty), -100, 100, false},
    {"repeat_last_n", offsetof(sac_sampling, repeat_last_n), -1, 4194304, true},
    {"dry_multiplier", offsetof(sac_sampling, dry_multiplier), 0, 100, false},
    {"dry_base", offsetof(sac_sampling, dry_base), 1, 100, false},
    {"dry_allowed_length", offsetof(sac_sampling, dry_allowed_length), 1, 4194304, true},
    {"dry_penalty_last_n", offsetof(sac_sampling, dry_last_n), 1, 4194304, true},
    {"xtc_probability", offsetof(sac_sampling, xtc_probability), 0, 1, false},
    {"xtc_threshold", offsetof(sac_sampling, xtc_threshold), 0, 1, false},
    {"mirostat", offsetof(sac_sampling, mirostat), 0, 2, true},
    {"mirostat_tau", offsetof(sac_sampling, mirostat_tau), 0, 100, false},
    {"mirostat_eta", offsetof(sac_sampling, mirostat_eta), 0, 1, false},
};

static sac_status read_numbers(sac_sampling *s, const cJSON *o, struct api_error *error)
{
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        const struct number *n = &numbers[i];
        void *at = (char *)s + n->offset;
        double v = n->whole ? (double)*(int32_t *)at : (double)*(float *)at;
        if (!json_get(o, n->name)) continue;
        if (n->whole) {
            TRY(read_whole(o, n->name, n->min, n->max, &v, error));
            *(int32_t *)at = (int32_t)v;
        } else {
            TRY(read_number(o, n->name, n->min, n->max, &v, error));
            *(float *)at = (float)v;
        }
    }
    return SAC_OK;
}

static sac_status read_seed(sac_sampling *s, const cJSON *o, struct api_error *error)
{
    double v = -1;
    TRY(read_whole(o, "seed", -SEED_MAX, SEED_MAX, &v, error));
    if (v >= 0) {
        s->seed = (uint64_t)v;
    } else if (getrandom(&s->seed, sizeof s->seed, 0) != (ssize_t)sizeof s->seed) {
        return api_error_set(error, API_ERROR_SERVER, NULL, "the system gives no random seed");
    }
    return SAC_OK;
}

/* `name` is the token as the request spells it. */
static sac_status add_bias(struct api_request *a, double id, const char *name, const cJSON *value,
                           uint32_t n_vocab, struct api_error *error)
{
    const bool ban = cJSON_IsFalse(value); /* llama.cpp's notation */
    if (!(id >= 0 && id < n_vocab && id == floor(id)))
        return api_error_set(error, API_ERROR_REQUEST, "logit_bias",
                             "'logit_bias' names token '%.40s': allowed is 0 to %u", name,
                             n_vocab - 1);
    if (!ban && !(cJSON_IsNumber(value) && fabs(value->valuedouble) <= 1e6))
        return api_error_set(error, API_ERROR_REQUEST, "logit_bias",
                             "'logit_bias' of token %.0f is not a number up to 1e6, nor false", id);
    a->bias[a->sampling.n_logit_bias++] =
        (sac_logit_bias){(int32_t)id, ban ? -INFINITY : (float)value->valuedouble};
    return SAC_OK;
}

/* {"1234": -100} as in OpenAI's API, or [[1234, -100]] as in llama.cpp's. */
static sac_status read_bias(struct api_request *a, const cJSON *o,
                            const struct api_request_rules *rules, struct api_error *error)
{
    const cJSON *item = json_get(o, "logit_bias"), *one;
    const uint32_t n_vocab = sac_model_get_info(rules->model).n_vocab;
    if (!item) return SAC_OK;
    const int n = cJSON_GetArraySize(item);
    if (!(cJSON_IsObject(item) || cJSON_IsArray(item)) || n > (int)API_REQUEST_BIAS_MAX)
        return api_error_set(error, API_ERROR_REQUEST, "logit_bias",
                             "'logit_bias' is not an object or list of at most %u entries",
                             API_REQUEST_BIAS_MAX);
    a->bias = mem_calloc((size_t)n, sizeof *a->bias);
    if (!a->bias) return api_error_no_memory(error);
    a->sampling.logit_bias = a->bias;
    a->sampling.n_logit_bias = 0;
    cJSON_ArrayForEach(one, item)
    {
        const cJSON *id = cJSON_GetArrayItem(one, 0), *value = cJSON_GetArrayItem(one, 1);
        const char *name = cJSON_IsString(id) ? id->valuestring : "";
        char number[32], *end = NULL;
        double tok = NAN;
        if (cJSON_IsObject(item)) {
            name = one->string;
            tok = strtod(name, &end);
            if (end == name || *end) tok = NAN;
            value = one;
        } else if (cJSON_IsArray(one) && cJSON_IsNumber(id)) {
            tok = id->valuedouble;
            snprintf(number, sizeof number, "%.16g", tok);
            name = number;
        }
        TRY(add_bias(a, tok, name, value, n_vocab, error));
    }
    return SAC_OK;
}

/* ---- Methods ---- */

/* Finds an attention method of the engine by its full specification or by its name. */
static sac_status find_method(const char *const *spec, uint32_t n, const char *want,
                              const char *param, uint32_t *out, struct api_error *error)
{
    struct strbuf names = {0};
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(spec[i], want) == 0 ||
            (strlen(want) == strcspn(spec[i], ":") && strncmp(spec[i], want, strlen(want)) == 0)) {
            *out = i;
            return SAC_OK;
        }
    for (uint32_t i = 0; i < n; i++) strbuf_addf(&names, "%s%s", i ? ", " : "", spec[i]);
    const sac_status status =
        api_error_set(error, API_ERROR_REQUEST, param, "'%s' is '%.80s': this server has %.300s",
                      param, want, names.data ? names.data : "");
    strbuf_deinit(&names);
    return status;
}

/* Parameters of the methods. The engine checks whether the chosen method supports them. */
static sac_status read_method_params(struct api_request *a, const cJSON *sparse,
                                     struct api_error *error)
{
    const cJSON *budget = json_get(sparse, "budget");
    double mass = 0;
    TRY(read_number(sparse, "mass", 0, 1, &mass, error));
    a->sparse.mass = (float)mass;
    TRY(api_request_u32(sparse, "min_ctx", 1, INT32_MAX, &a->sparse.min_ctx, error));
    if (!budget) return SAC_OK;
    char text[32] = "";
    if (cJSON_IsNumber(budget) && budget->valuedouble >= 1 && budget->valuedouble <= INT32_MAX)
        snprintf(text, sizeof text, "%.0f", budget->valuedouble);
    if (cJSON_IsString(budget) && strlen(budget->valuestring) < sizeof text)
        snprintf(text, sizeof text, "%s", budget->valuestring);
    if (!text[0])
        return api_error_set(error, API_ERROR_REQUEST, "sparse.budget",
                             "'sparse.budget' is neither a number of tokens nor a share, \"5%%\"");
    a->sparse.budget = mem_strdup(text);
    return a->sparse.budget ? SAC_OK : api_error_no_memory(error);
}

/* "context": the method that joins documents. */
static sac_status read_context(struct api_request *a, const cJSON *sparse, struct api_error *error)
{
    const char *spec = NULL;
    sac_error err = {0};
    TRY(api_request_text(sparse, "context", &spec, error));
    if (!spec) return SAC_OK;
    const sac_status status = sac_method_check("context", spec, &err);
    if (status != SAC_OK) return api_error_of(error, status, "sparse.context", err.msg);
    a->context = mem_strdup(spec);
    return a->context ? SAC_OK : api_error_no_memory(error);
}

/* "documents": names of stored documents. */
static sac_status read_documents(struct api_request *a, const cJSON *o,
                                 const struct api_request_rules *rules, struct api_error *error)
{
    const cJSON *list = json_get(o, "documents"), *item;
    if (!list) return SAC_OK;
    if (rules->n_doc_max == 0)
        return api_error_set(error, API_ERROR_UNSUPPORTED, "documents",
                             "this server has no store of documents (--store)");
    if (!cJSON_IsArray(list) || !list->child || cJSON_GetArraySize(list) > (int)rules->n_doc_max)
        return api_error_set(error, API_ERROR_REQUEST, "documents",
                             "'documents' is not a list of 1 to %u names", rules->n_doc_max);
    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsString(item))
            return api_error_set(error, API_ERROR_REQUEST, "documents",
                                 "'documents' holds something that is no name");
        char *name = mem_strdup(item->valuestring);
        if (!name) return api_error_no_memory(error);
        a->doc_name[a->n_doc++] = name;
    }
    return SAC_OK;
}

/* Only this server reads the object, so an unknown member is a typing error and is refused. */
static sac_status check_sparse(const cJSON *sparse, struct api_error *error)
{
    static const char *const names[] = {"decode", "prefill", "context", "mass",
                                        "budget", "min_ctx", "audit",   "dense"};
    const size_t n = sizeof names / sizeof names[0];
    const cJSON *item;
    if (!cJSON_IsObject(sparse))
        return api_error_set(error, API_ERROR_REQUEST, "sparse", "'sparse' is not an object");
    cJSON_ArrayForEach(item, sparse)
    {
        size_t i = 0;
        while (i < n && strcmp(names[i], item->string) != 0) i++;
        if (i == n)
            return api_error_set(error, API_ERROR_REQUEST, "sparse",
                                 "'sparse' has no member '%.40s': it has decode, prefill, context, "
                                 "mass, budget, min_ctx, audit and dense",
                                 item->string);
    }
    return SAC_OK;
}

static sac_status read_members(struct api_request *a, const cJSON *sparse,
                               const struct api_request_rules *rules, struct api_error *error)
{
    const sac_engine_params *e = &rules->engine;
    const char *decode = NULL, *prefill = NULL;
    TRY(check_sparse(sparse, error));
    TRY(api_request_text(sparse, "decode", &decode, error));
    TRY(api_request_text(sparse, "prefill", &prefill, error));
    a->names_decode = decode != NULL;
    if (decode)
        TRY(find_method(e->decode, e->n_decode, decode, "sparse.decode", &a->decode, error));
    if (prefill)
        TRY(find_method(e->prefill, e->n_prefill, prefill, "sparse.prefill", &a->prefill, error));
    TRY(read_context(a, sparse, error));
    TRY(api_request_bool(sparse, "audit", &a->audit, error));
    TRY(api_request_bool(sparse, "dense", &a->sparse.dense, error));
    return read_method_params(a, sparse, error);
}

/* Passes on the status of reading a member of `object`, and qualifies the member's name in a
 * refusal. */
static sac_status qualify_member(sac_status status, const char *object, struct api_error *error)
{
    char name[sizeof error->param], full[sizeof error->param];
    if (status == SAC_OK || strncmp(error->param, object, strlen(object)) == 0) return status;
    snprintf(name, sizeof name, "%s", error->param);
    snprintf(full, sizeof full, "%.20s.%.40s", object, error->param);
    api_error_rename(error, name, full);
    return status;
}

static sac_status read_sparse(struct api_request *a, const cJSON *o,
                              const struct api_request_rules *rules, struct api_error *error)
{
    const cJSON *sparse = json_get(o, "sparse");
    return sparse ? qualify_member(read_members(a, sparse, rules, error), "sparse", error) : SAC_OK;
}

/* ---- Entry points ---- */

/* Client libraries send unused fields with neutral values: an empty string or list, 0, -1,
 * false. */
static bool is_neutral(const cJSON *item)
{
    if (cJSON_IsString(item)) return !*item->valuestring;
    if (cJSON_IsNumber(item)) return item->valuedouble == 0 || item->valuedouble == -1;
    return cJSON_IsFalse(item) || ((cJSON_IsArray(item) || cJSON_IsObject(item)) && !item->child);
}

/* Refuses output modalities other than text. */
static sac_status read_modalities(const cJSON *o, struct api_error *error)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, json_get(o, "modalities"))
    {
        if (!cJSON_IsString(item) || strcmp(item->valuestring, "text") != 0)
            return api_error_set(error, API_ERROR_UNSUPPORTED, "modalities",
                                 "this server writes text");
    }
    return SAC_OK;
}

/* Refuses fields of OpenAI, llama.cpp and vLLM that would change the output and are not supported:
 * ignoring them would be misleading. best_of equal to n needs no selection and is accepted. */
static sac_status refuse_unsupported(const struct api_request *a, const cJSON *o,
                                     struct api_error *error)
{
    static const char *const names[] = {"suffix",
                                        "functions",
                                        "function_call",
                                        "best_of",
                                        "prompt_embeds",
                                        "audio",
                                        "lora",
                                        "n_probs",
                                        "dynatemp_range",
                                        "top_n_sigma",
                                        "t_max_predict_ms",
                                        "use_beam_search",
                                        "prompt_logprobs",
                                        "chat_template",
                                        "logits_processors",
                                        "structured_outputs",
                                        "guided_json",
                                        "guided_regex",
                                        "guided_choice",
                                        "guided_grammar"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const cJSON *item = json_get(o, names[i]);
        if (!item || is_neutral(item)) continue;
        if (strcmp(names[i], "best_of") == 0 && cJSON_IsNumber(item) &&
            item->valuedouble == (double)a->n)
            continue;
        return api_error_set(error, API_ERROR_UNSUPPORTED, names[i],
                             "'%s' is not supported by this server", names[i]);
    }
    return SAC_OK;
}

/* The maximum length of the answer. Later names take precedence. -1 means "no limit" in llama.cpp
 * and is treated like a missing field. */
static sac_status read_max_tokens(struct api_request *a, const cJSON *o,
                                  const struct api_request_rules *rules, struct api_error *error)
{
    static const char *const names[] = {"n_predict", "max_tokens", "max_completion_tokens"};
    const uint32_t n_max = rules->n_predict_max ? rules->n_predict_max : INT32_MAX;
    a->max_tokens = rules->n_predict_max;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const cJSON *item = json_get(o, names[i]);
        if (cJSON_IsNumber(item) && item->valuedouble == -1) continue;
        TRY(api_request_u32(o, names[i], 1, n_max, &a->max_tokens, error));
    }
    return SAC_OK;
}

/* Conditions that end an answer early. */
static sac_status read_ends(struct api_request *a, const cJSON *o,
                            const struct api_request_rules *rules, struct api_error *error)
{
    TRY(api_request_stop(a, o, "stop", error));
    TRY(read_stop_tokens(a, o, rules, error));
    TRY(api_request_bool(o, "include_stop_str_in_output", &a->keep_stop, error));
    TRY(api_request_bool(o, "ignore_eos", &a->ignore_eos, error));
    TRY(api_request_u32(o, "min_tokens", 0, INT32_MAX, &a->min_tokens, error));
    if (a->max_tokens && a->min_tokens > a->max_tokens)
        return api_error_set(error, API_ERROR_REQUEST, "min_tokens",
                             "'min_tokens' is %u, more than the answer may have: %u", a->min_tokens,
                             a->max_tokens);
    return SAC_OK;
}

/* The maximum length of a prompt, in tokens. */
static uint64_t prompt_max(const struct api_request_rules *rules)
{
    const sac_engine_params *e = &rules->engine;
    const uint64_t n = e->n_ctx < e->n_kv_tok ? e->n_ctx : e->n_kv_tok;
    return rules->n_prompt_max && rules->n_prompt_max < n ? rules->n_prompt_max : n;
}

/* "truncate_prompt_tokens": keeps only the last tokens of the prompt; -1: as many as leave room for
 * the answer. */
static sac_status read_truncate(struct api_request *a, const cJSON *o,
                                const struct api_request_rules *rules, struct api_error *error)
{
    static const char name[] = "truncate_prompt_tokens";
    const uint64_t n_max = prompt_max(rules), n_ctx = rules->engine.n_ctx;
    double n = 0;
    TRY(read_whole(o, name, -1, (double)n_max, &n, error));
    if (n != 0 && a->n_doc)
        return api_error_set(error, API_ERROR_REQUEST, name,
                             "'%s' would cut the prompt's beginning off, where 'documents' stand",
                             name);
    if (n < 0 && a->max_tokens >= n_ctx)
        return api_error_set(error, API_ERROR_REQUEST, name,
                             "an answer of %u tokens leaves no room for a prompt: the context has "
                             "%llu",
                             a->max_tokens, (unsigned long long)n_ctx);
    /* The answer's last token is never written to the cache. */
    if (n < 0) n = fmin((double)n_max, (double)(n_ctx - (a->max_tokens ? a->max_tokens - 1 : 0)));
    a->n_prompt_kept = (uint32_t)n;
    return SAC_OK;
}

static sac_status read_stream(struct api_request *a, const cJSON *o, struct api_error *error)
{
    const cJSON *options = json_get(o, "stream_options");
    TRY(api_request_bool(o, "stream", &a->stream, error));
    TRY(api_request_bool(o, "return_progress", &a->progress, error));
    TRY(api_request_bool(o, "return_token_ids", &a->token_ids, error));
    TRY(api_request_bool(o, "timings_per_token", &a->timings, error));
    if (options && !cJSON_IsObject(options))
        return api_error_set(error, API_ERROR_REQUEST, "stream_options",
                             "'stream_options' is not an object");
    return qualify_member(api_request_bool(options, "include_usage", &a->include_usage, error),
                          "stream_options", error);
}

/* "return_attention": true, false or "tokens". */
static sac_status read_attention(struct api_request *a, const cJSON *o, struct api_error *error)
{
    const cJSON *item = json_get(o, "return_attention");
    if (!item || cJSON_IsFalse(item)) return SAC_OK;
    const bool by_token = json_says(o, "return_attention", "tokens");
    if (!by_token && !cJSON_IsTrue(item))
        return api_error_set(error, API_ERROR_REQUEST, "return_attention",
                             "'return_attention' is neither true, false nor \"tokens\"");
    a->attention = by_token ? API_REQUEST_ATTENTION_TOKENS : API_REQUEST_ATTENTION_ANSWER;
    return SAC_OK;
}

sac_status api_request_salt(struct api_request *a, const cJSON *o, struct api_error *error)
{
    const char *salt = NULL;
    TRY(api_request_text(o, "cache_salt", &salt, error));
    if (!salt) return SAC_OK;
    if (strlen(salt) > API_REQUEST_SALT_BYTES)
        return api_error_set(error, API_ERROR_REQUEST, "cache_salt",
                             "'cache_salt' has more than %u bytes", API_REQUEST_SALT_BYTES);
    a->cache_salt = mem_strdup(salt);
    return a->cache_salt ? SAC_OK : api_error_no_memory(error);
}

/* "id_slot"; -1: any slot. */
static sac_status read_slot(struct api_request *a, const cJSON *o,
                            const struct api_request_rules *rules, struct api_error *error)
{
    double n = -1;
    if (!rules->n_slot) return SAC_OK;
    TRY(read_whole(o, "id_slot", -1, rules->n_slot - 1, &n, error));
    a->names_slot = n >= 0;
    a->slot = a->names_slot ? (uint32_t)n : 0;
    return SAC_OK;
}

sac_status api_request_read(struct api_request *a, const cJSON *o,
                            const struct api_request_rules *rules, struct api_error *error)
{
    a->n = 1;
    a->sampling = rules->sampling;
    TRY(read_numbers(&a->sampling, o, error));
    TRY(read_breakers(a, o, error));
    TRY(read_seed(&a->sampling, o, error));
    TRY(read_bias(a, o, rules, error));
    TRY(api_request_u32(o, "n", 1, API_REQUEST_N_MAX, &a->n, error));
    TRY(refuse_unsupported(a, o, error));
    TRY(read_modalities(o, error));
    TRY(read_max_tokens(a, o, rules, error));
    TRY(read_ends(a, o, rules, error));
    TRY(allowed_tokens_read(&a->allowed, o, rules->model, error));
    TRY(api_request_salt(a, o, error));
    TRY(read_slot(a, o, rules, error));
    TRY(read_sparse(a, o, rules, error));
    TRY(read_attention(a, o, error));
    TRY(read_documents(a, o, rules, error));
    TRY(read_truncate(a, o, rules, error));
    double priority = 0;
    TRY(read_whole(o, "priority", -1000, 1000, &priority, error));
    a->priority = (int32_t)priority;
    return read_stream(a, o, error);
}

static sac_status check_prompt(const int32_t *tok, size_t n, const struct api_request_rules *rules,
                               struct api_error *error)
{
    const uint32_t n_vocab = sac_model_get_info(rules->model).n_vocab;
    const uint64_t n_max = prompt_max(rules);
    if (n == 0)
        return api_error_set(error, API_ERROR_REQUEST, "prompt", "the prompt has no tokens");
    if (n > n_max) {
        /* Client libraries match the beginning of this message. */
        (void)api_error_set(
            error, API_ERROR_CONTEXT, NULL,
            "This model's maximum context length is %llu tokens, the prompt has %zu: "
            "send less, or ask for it to be cut with 'truncate_prompt_tokens'",
            (unsigned long long)n_max, n);
        error->n_prompt_tokens = n;
        error->n_ctx = n_max;
        return SAC_ERR_CONTEXT;
    }
    for (size_t i = 0; i < n; i++)
        if (tok[i] < 0 || (uint32_t)tok[i] >= n_vocab)
            return api_error_set(error, API_ERROR_REQUEST, "prompt",
                                 "token %zu of the prompt is %d: allowed is 0 to %u", i, tok[i],
                                 n_vocab - 1);
    return SAC_OK;
}

/* Keeps the last tokens of a prompt, and the BOS token if the prompt begins with one. */
static sac_status truncate(struct api_request *a, int32_t *tok, size_t *n,
                           const struct api_request_rules *rules, struct api_error *error)
{
    int32_t *begin = NULL;
    size_t n_begin = 0;
    sac_error err = {0};
    if (a->n_prompt_kept == 0 || *n <= a->n_prompt_kept) return SAC_OK;
    const sac_status status =
        sac_tokenize(rules->model, "", 0, SAC_TOK_ADD_SPECIAL, &begin, &n_begin, &err);
    if (status != SAC_OK) return api_error_of(error, status, "truncate_prompt_tokens", err.msg);
    const size_t n_head = n_begin > 0 && a->n_prompt_kept > 1 && tok[0] == begin[0];
    const size_t n_tail = a->n_prompt_kept - n_head;
    memmove(tok + n_head, tok + *n - n_tail, n_tail * sizeof *tok);
    *n = a->n_prompt_kept;
    a->is_cut = true;
    sac_free(begin);
    return SAC_OK;
}

sac_status api_request_add_prompt(struct api_request *a, int32_t *tok, size_t n,
                                  const struct api_request_rules *rules, struct api_error *error)
{
    sac_status status = truncate(a, tok, &n, rules, error);
    if (status == SAC_OK) status = check_prompt(tok, n, rules, error);
    if (status == SAC_OK && a->n_prompt == API_REQUEST_PROMPT_MAX)
        status = api_error_set(error, API_ERROR_REQUEST, "prompt", "more than %u prompts",
                               API_REQUEST_PROMPT_MAX);
    if (status != SAC_OK) {
        sac_free(tok);
        return status;
    }
    a->prompt[a->n_prompt++] = (struct api_request_prompt){.tok = tok, .n = n};
    return SAC_OK;
}

/* Keeps the texts around the documents until the documents are joined. */
static sac_status store_texts(struct api_request *a, const struct passages_document *text,
                              size_t n_text, struct api_error *error)
{
    a->said = mem_calloc(n_text, sizeof *a->said);
    if (!a->said) return api_error_no_memory(error);
    for (size_t i = 0; i < n_text; i++) {
        char *copy = mem_strndup(text[i].text, text[i].n);
        if (!copy) return api_error_no_memory(error);
        a->said[a->n_said++] = copy;
    }
    return SAC_OK;
}

sac_status api_request_find_passages(struct api_request *a, const struct passages_document *text,
                                     size_t n_text, const struct api_request_rules *rules,
                                     struct api_error *error)
{
    struct api_request_prompt *p = &a->prompt[a->n_prompt - 1];
    const struct passages_prompt prompt = {.model = rules->model,
                                           .tok = p->tok,
                                           .n_tok = p->n,
                                           .document = text,
                                           .n_document = n_text,
                                           .may_lack = true};
    sac_error err = {0};
    if (!a->attention) return SAC_OK;
    if (a->n_doc) return store_texts(a, text, n_text, error);
    const sac_status status = passages_find(&p->passages, &prompt, &err);
    return status == SAC_OK ? SAC_OK : api_error_of(error, status, "return_attention", err.msg);
}

sac_status api_request_find_head(struct api_request *a, const char *system, bool raw,
                                 const struct api_request_rules *rules, struct api_error *error)
{
    const struct api_request_prompt *p = &a->prompt[a->n_prompt - 1];
    const struct prompt_form form = {
        .system = system, .chat_template = rules->chat_template, .raw = raw};
    sac_error err = {0};
    int32_t *head = NULL;
    if (a->n_doc == 0) return SAC_OK;
    if (a->n_prompt > 1)
        return api_error_set(error, API_ERROR_REQUEST, "documents",
                             "'documents' go with one prompt");
    const sac_status status = prompt_head(rules->model, &form, &head, &a->n_head, &err);
    if (status != SAC_OK) return api_error_of(error, status, "documents", err.msg);
    const bool begins = a->n_head < p->n && memcmp(head, p->tok, a->n_head * sizeof *head) == 0;
    sac_free(head);
    if (begins) return SAC_OK;
    return api_error_set(error, API_ERROR_REQUEST, "documents",
                         "'documents' stand before the first message of the user: this prompt "
                         "begins otherwise (tools, or another first message)");
}
