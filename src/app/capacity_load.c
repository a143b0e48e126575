/* capacity_load.c: the prompts of `bench capacity`: a number is hidden in prose and asked for;
 * lengths are drawn from a distribution. The same seed gives the same prompts at any rate, so
 * methods and rates are compared on the same work. */
#include "app/capacity.h"

#include "base/mem.h"
#include "eval/needle.h"
#include "eval/rng.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define LENGTH_MIN 128u /* minimum for the chat's beginning and the question */
#define LENGTH_MAX (1u << 24)
#define ANSWER_TOK 32u /* tokens that a sample of needle.h reserves after the prompt */

/* ---- Lengths ---- */

static sac_status take_length(struct capacity_lengths *out, const char *text, char **end,
                              sac_error *err)
{
    errno = 0;
    const unsigned long n = strtoul(text, end, 10);
    if (text[0] < '0' || text[0] > '9')
        return error_set(err, SAC_ERR_ARG,
                         "'%.60s' is no length: MIN:MAX or N,N,... are, in tokens", text);
    if (errno || n < LENGTH_MIN || n > LENGTH_MAX)
        return error_set(err, SAC_ERR_ARG, "%.*s tokens: a prompt has %u to %u", (int)(*end - text),
                         text, LENGTH_MIN, LENGTH_MAX);
    if (out->n == CAPACITY_LENGTHS_MAX)
        return error_set(err, SAC_ERR_ARG, "more than %u lengths", CAPACITY_LENGTHS_MAX);
    out->item[out->n++] = (uint32_t)n;
    return SAC_OK;
}

sac_status capacity_lengths_parse(struct capacity_lengths *out, const char *text, sac_error *err)
{
    char *end;
    *out = (struct capacity_lengths){0};
    TRY(take_length(out, text, &end, err));
    out->is_range = *end == ':';
    if (out->is_range) {
        const char *most = end + 1;
        TRY(take_length(out, most, &end, err));
        if (out->item[0] > out->item[1])
            return error_set(err, SAC_ERR_ARG, "'%.60s': the first length is the smaller one",
                             text);
    }
    while (!out->is_range && *end == ',') TRY(take_length(out, end + 1, &end, err));
    if (*end)
        return error_set(err, SAC_ERR_ARG,
                         "'%.60s' is no length: MIN:MAX or N,N,... are, in tokens", end);
    return SAC_OK;
}

static uint32_t draw_prompt_length(const struct capacity_lengths *l, struct rng *r)
{
    if (!l->is_range) return l->item[rng_below(r, l->n)];
    const double share = (double)(rng_next(r) >> 11) * 0x1p-53, low = log(l->item[0]);
    return (uint32_t)lround(exp(low + share * (log(l->item[1]) - low)));
}

/* ---- Requests ---- */

static void name_salt(char salt[CAPACITY_SALT_BYTES], size_t context_i)
{
    snprintf(salt, CAPACITY_SALT_BYTES, "context %zu", context_i);
}

sac_request capacity_load_request(const struct capacity_load *load, size_t context_i,
                                  char salt[CAPACITY_SALT_BYTES])
{
    const struct capacity_prompt *p = &load->prompt[context_i % load->n_prompt];
    sac_request r = sac_request_default();
    r.prompt = p->tok;
    r.n_prompt = p->n_tok;
    if (!load->is_cold) r.n_decode_row = 1 + (uint32_t)((p->n_tok - 1) % SAC_PAGE_TOK);
    name_salt(salt, context_i);
    if (context_i >= load->n_prompt) r.cache_salt = salt;
    r.sampling.temp = 0;
    r.sampling.repeat_penalty = 1;
    r.max_tokens = load->n_output;
    r.ignore_eos = true; /* all answers have the same length */
    return r;
}

sac_status capacity_load_copy(const struct capacity_load *load, sac_engine *engine, sac_error *err)
{
    for (size_t i = load->n_prompt; i < load->n_context; i++) {
        const struct capacity_prompt *p = &load->prompt[i % load->n_prompt];
        char salt[CAPACITY_SALT_BYTES];
        size_t n;
        name_salt(salt, i);
        TRY(sac_cache_copy(engine, p->tok, p->n_tok, salt, &n, err));
        if (n < p->n_tok && p->n_tok - n <= SAC_PAGE_TOK) continue;
        return error_set(err, SAC_ERR_CONTEXT,
                         "context %zu has room for %zu of its %zu tokens: allow more for pages", i,
                         n, p->n_tok);
    }
    return SAC_OK;
}

/* ---- Prompts ---- */

static sac_status make_prompt(struct capacity_prompt *out, const struct task_text *text,
                              const struct needle_args *args, const struct task_cell *cell,
                              sac_error *err)
{
    struct task_sample sample = {0};
    sac_status status = needle_make(args, text, cell, &sample, err);
    if (status == SAC_OK) status = task_encode(text, &sample, 0, NULL, &out->tok, &out->n_tok, err);
    if (status == SAC_OK) {
        out->expected = mem_strdup(sample.turn[0].expected.item[0]);
        if (!out->expected) status = error_set(err, SAC_ERR_MEMORY, "no memory for a prompt");
    }
    task_sample_deinit(&sample);
    return status;
}

static sac_status make_prompts(struct capacity_load *out, const struct capacity_load_params *p,
                               const sac_model *model, const struct haystack *hay, sac_error *err)
{
    const struct task_text text = task_text_of(model);
    const struct needle_args args = {
        .haystack = hay, .seed = p->seed, .kind = NEEDLE_NUMBER, .n_needle = 1};
    for (uint32_t i = 0; i < p->n_prompt; i++) {
        struct rng r = rng_stream("capacity", 0, p->seed, i);
        const uint32_t length = draw_prompt_length(p->lengths, &r);
        const struct task_cell cell = {.task = "needle",
                                       .ctx = length + ANSWER_TOK,
                                       .depth = (double)rng_below(&r, 101),
                                       .index = i};
        struct capacity_prompt *prompt = &out->prompt[i];
        TRY(make_prompt(prompt, &text, &args, &cell, err));
        if (prompt->n_tok > out->n_most) out->n_most = (uint32_t)prompt->n_tok;
        out->n_tok += prompt->n_tok;
    }
    return SAC_OK;
}

sac_status capacity_load_make(struct capacity_load *out, const sac_model *model,
                              const struct capacity_load_params *p, sac_error *err)
{
    struct haystack hay = {0};
    assert(p->n_prompt && p->n_output && p->n_context >= p->n_prompt);
    *out = (struct capacity_load){.n_prompt = p->n_prompt,
                                  .n_context = p->n_context,
                                  .is_cold = p->is_cold,
                                  .n_output = p->n_output,
                                  .seed = p->seed,
                                  .burstiness = p->burstiness};
    out->prompt = mem_calloc(p->n_prompt, sizeof *out->prompt);
    if (!out->prompt)
        return error_set(err, SAC_ERR_MEMORY, "no memory for %u prompts", p->n_prompt);
    sac_status status = haystack_init_prose(&hay, p->seed, err);
    if (status == SAC_OK) status = make_prompts(out, p, model, &hay, err);
    haystack_deinit(&hay);
    for (size_t i = 0; status == SAC_OK && i < out->n_context; i++)
        out->n_all += out->prompt[i % out->n_prompt].n_tok;
    return status;
}

void capacity_load_deinit(struct capacity_load *load)
{
    for (size_t i = 0; load->prompt && i < load->n_prompt; i++) {
        sac_free(load->prompt[i].tok);
        mem_free(load->prompt[i].expected);
    }
    mem_free(load->prompt);
    *load = (struct capacity_load){0};
}
