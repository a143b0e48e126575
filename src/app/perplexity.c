/* perplexity.c: `saccade perplexity` scores a text by llama.cpp's definition. The text is cut into
 * chunks of n_ctx tokens; if the model wants BOS, it replaces the first token of each. In each
 * chunk the tokens after the first n_ctx / 2 + 1 are scored, so that every one has at least half a
 * chunk before it. PPL = exp(mean of -log p).
 *
 * With a base file the full distributions are stored or compared: KL divergence of each scored
 * token, agreement of the top-1 token, the change of the true token's probability.
 *
 * Several chunks run side by side as sequences of one engine. The result of a row depends on the
 * row alone, and sums are taken in the order of the text, so the results do not depend on how
 * many. */
#include "app/app.h"
#include "app/interrupt.h"
#include "app/klfile.h"
#include "app/options.h"
#include "app/output.h"
#include "app/progress.h"
#include "app/setup.h"
#include "app/source.h"

#include "base/mem.h"
#include "base/workers.h"
#include "eval/logprob.h"
#include "saccade.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define COMMAND      "perplexity"
#define N_CTX        512u
#define PARALLEL_MAX 64u
#define BATCH_ROWS   2048u /* as many as an engine takes by default */

enum format { FORMAT_TEXT, FORMAT_JSON };

struct perplexity_options {
    const char *file, *base;
    uint32_t n_chunk, n_parallel;
    bool raw, compare;
    int format, base_type;
};

#define OPT(names, type, field, arg, help, ...)                                                    \
    {                                                                                              \
        names, type, offsetof(struct perplexity_options, field), arg, help, __VA_ARGS__            \
    }

static const struct option_spec specs[] = {
    OPT("-f --file", OPTION_TEXT, file, "FILE", "the text; - is stdin", .env = NULL),
    OPT("--raw --as-is", OPTION_FLAG, raw, NULL, SOURCE_AS_IS_HELP, .env = NULL),
    OPT("--chunks", OPTION_U32, n_chunk, "N", "score the first N chunks; 0: all", .env = NULL),
    OPT("--kl-divergence-base", OPTION_TEXT, base, "FILE",
        "write the log-probabilities of all scored tokens to FILE; with --kl-divergence: read them",
        .env = NULL),
    OPT("--kl-divergence", OPTION_FLAG, compare, NULL,
        "compare with the base file, which also holds the text", .env = NULL),
    OPT("--kl-type", OPTION_CHOICE, base_type, NULL,
        "number type in the base file; f16 is half as large and exact to 1e-3",
        .choices = "f32|f16"),
    OPT("-np --parallel", OPTION_U32, n_parallel, "N",
        "chunks computed in parallel; 0: as many as fit in a batch, 8 with --decode", .env = NULL,
        .max = PARALLEL_MAX),
    OPT("-o --output", OPTION_CHOICE, format, NULL,
        "json: one object with ppl, ppl_err, n_tok and more at the end", .env = NULL,
        .choices = "text|json"),
    {0},
};

/* The result for one scored token. */
struct score {
    float nll;      /* -log p of the true token */
    float nll_base; /* the same according to the base file */
    float kl;       /* KL divergence from the base */
    bool same_top;  /* the most likely token is the same */
};

struct slot {
    sac_seq seq; /* SAC_SEQ_NONE: unused */
    uint32_t chunk;
};

struct perplexity {
    struct perplexity_options opt;
    struct setup setup;
    struct strbuf text; /* unused with a base file, which contains its tokens */
    sac_model *model;
    sac_engine *engine;
    struct klfile base;
    uint32_t n_ctx, first, n_score, n_chunk, n_vocab, n_slot;
    int32_t *tok;        /* owned (mem.h), [n_chunk, n_ctx] */
    struct score *score; /* [n_chunk, n_score] */
    float *base_row;     /* [n_vocab] */
    struct slot slot[PARALLEL_MAX];
    uint32_t n_started, n_done, n_told; /* chunks */
    bool *done;                         /* [n_chunk] */
    double nll_told;                    /* sum over the chunks reported so far */
    sac_status status;                  /* of the row callback */
    sac_error err;
    struct progress bar;
    double seconds;
};

/* ---- The text ---- */

static bool adds_bos(const sac_model *model)
{
    int32_t *tok = NULL;
    size_t n = 0;
    const int32_t bos = sac_token_bos(model);
    if (sac_tokenize(model, "", 0, SAC_TOK_ADD_SPECIAL, &tok, &n, NULL) != SAC_OK) return false;
    const bool adds = n > 0 && bos >= 0 && tok[0] == bos;
    sac_free(tok);
    return adds;
}

/* Divides the text's tokens into chunks. */
static sac_status cut(struct perplexity *p, const int32_t *tok, size_t n, sac_error *err)
{
    const size_t chunks = n / p->n_ctx;
    if (chunks == 0)
        return error_set(err, SAC_ERR_ARG, "%s has %zu tokens, a chunk has %u (-c)", p->opt.file, n,
                         p->n_ctx);
    p->n_chunk = p->opt.n_chunk && p->opt.n_chunk < chunks ? p->opt.n_chunk : (uint32_t)chunks;
    const size_t kept = (size_t)p->n_chunk * p->n_ctx;
    p->tok = mem_alloc(kept * sizeof *p->tok);
    if (!p->tok) return error_set(err, SAC_ERR_MEMORY, "no memory for %zu tokens", kept);
    for (size_t i = 0; i < kept; i++) p->tok[i] = tok[i];
    const bool bos = adds_bos(p->model);
    for (size_t i = 0; bos && i < p->n_chunk; i++) p->tok[i * p->n_ctx] = sac_token_bos(p->model);
    return SAC_OK;
}

static sac_status encode_text(struct perplexity *p, sac_error *err)
{
    int32_t *tok = NULL;
    size_t n = 0;
    TRY(sac_tokenize(p->model, p->text.data, p->text.n, SAC_TOK_ADD_SPECIAL, &tok, &n, err));
    const sac_status status = cut(p, tok, n, err);
    sac_free(tok);
    return status;
}

/* Reads the base file, which determines the tokens. */
static sac_status read_base(struct perplexity *p, sac_error *err)
{
    TRY(klfile_open(&p->base, p->opt.base, &p->tok, err));
    const struct klfile *f = &p->base;
    if (f->n_vocab != p->n_vocab)
        return error_set(err, SAC_ERR_ARG, "%s has a vocabulary of %u, the model one of %u",
                         f->path, f->n_vocab, p->n_vocab);
    for (size_t i = 0; i < (size_t)f->n_chunk * f->n_ctx; i++)
        if (p->tok[i] < 0 || (uint32_t)p->tok[i] >= p->n_vocab)
            return error_set(err, SAC_ERR_FORMAT, "%s: token %d", f->path, p->tok[i]);
    p->n_ctx = f->n_ctx;
    p->n_score = f->n_score;
    p->n_chunk = p->opt.n_chunk && p->opt.n_chunk < f->n_chunk ? p->opt.n_chunk : f->n_chunk;
    return SAC_OK;
}

static sac_status create_base(struct perplexity *p, sac_error *err)
{
    p->base.type = (enum klfile_type)p->opt.base_type;
    p->base.n_ctx = p->n_ctx;
    p->base.n_chunk = p->n_chunk;
    p->base.n_vocab = p->n_vocab;
    p->base.n_score = p->n_score;
    return klfile_create(&p->base, p->opt.base, p->tok, err);
}

/* ---- Rows ---- */

static sac_status score_row(struct perplexity *p, uint64_t i, int32_t next, float *logits)
{
    struct score *s = &p->score[i];
    const uint32_t top = logprob_from_logits(logits, p->n_vocab);
    *s = (struct score){.nll = -logits[next]};
    if (!p->opt.base) return SAC_OK;
    if (!p->opt.compare) return klfile_write(&p->base, i, logits, &p->err);
    TRY(klfile_read(&p->base, i, p->base_row, &p->err));
    uint32_t base_top = 0;
    for (uint32_t k = 1; k < p->n_vocab; k++)
        if (p->base_row[k] > p->base_row[base_top]) base_top = k;
    s->nll_base = -p->base_row[next];
    s->kl = (float)logprob_kl(p->base_row, logits, p->n_vocab);
    s->same_top = base_top == top;
    return SAC_OK;
}

static void on_row(void *user, const sac_row *row)
{
    struct perplexity *p = user;
    uint32_t slot = 0;
    while (slot < p->n_slot && p->slot[slot].seq != row->seq) slot++;
    assert(slot < p->n_slot && row->pos >= p->first && row->pos + 1 < p->n_ctx);
    if (p->status != SAC_OK) return;
    const uint64_t chunk = p->slot[slot].chunk;
    p->status = score_row(p, chunk * p->n_score + (row->pos - p->first),
                          p->tok[chunk * p->n_ctx + row->pos + 1], row->logits);
}

/* ---- Chunks ---- */

static sac_status start_chunk(struct perplexity *p, struct slot *s, sac_error *err)
{
    const int32_t *tok = p->tok + (size_t)p->n_started * p->n_ctx;
    const sac_row_kind kind = p->setup.decode ? SAC_ROW_DECODE : SAC_ROW_PROMPT;
    s->chunk = p->n_started++;
    TRY(sac_seq_create(p->engine, &s->seq, err));
    TRY(sac_seq_append(p->engine, s->seq, tok, p->first, SAC_ROW_PROMPT, SAC_WANT_NONE, err));
    return sac_seq_append(p->engine, s->seq, tok + p->first, p->n_score, kind, SAC_WANT_ALL, err);
}

/* Prints running values for chunks whose predecessors are complete. */
static void print_running(struct perplexity *p)
{
    for (; p->n_told < p->n_chunk && p->done[p->n_told]; p->n_told++) {
        for (uint32_t i = 0; i < p->n_score; i++)
            p->nll_told += (double)p->score[(size_t)p->n_told * p->n_score + i].nll;
        if (p->opt.format != FORMAT_TEXT) continue;
        printf("[%u]%.4f,", p->n_told + 1, exp(p->nll_told / ((p->n_told + 1.0) * p->n_score)));
        fflush(stdout);
    }
}

static sac_status fill_slots(struct perplexity *p, sac_error *err)
{
    for (uint32_t i = 0; i < p->n_slot; i++) {
        struct slot *s = &p->slot[i];
        uint32_t pending = 0;
        if (s->seq != SAC_SEQ_NONE) {
            (void)sac_seq_length(p->engine, s->seq, &pending);
            if (pending) continue;
            sac_seq_remove(p->engine, s->seq);
            s->seq = SAC_SEQ_NONE;
            p->done[s->chunk] = true;
            p->n_done++;
        }
        if (p->n_started < p->n_chunk) TRY(start_chunk(p, s, err));
    }
    print_running(p);
    return SAC_OK;
}

static sac_status run_chunks(struct perplexity *p, sac_error *err)
{
    const uint64_t start = clock_us();
    for (uint32_t i = 0; i < p->n_slot; i++) p->slot[i].seq = SAC_SEQ_NONE;
    for (;;) {
        TRY(fill_slots(p, err));
        if (p->n_done == p->n_chunk) break;
        TRY(sac_step(p->engine, on_row, p, NULL, err));
        if (p->status != SAC_OK) return error_set(err, p->status, "%s", p->err.msg);
        if (interrupt_pending()) return error_set(err, SAC_ERR_CANCELLED, "interrupted");
        const sac_engine_stats stats = sac_engine_get_stats(p->engine);
        progress_update(&p->bar, (double)(stats.reads.n_prompt_tok + stats.reads.n_decode_tok) /
                                     ((double)p->n_chunk * (p->n_ctx - 1)));
    }
    p->seconds = (double)(clock_us() - start) * 1e-6;
    return SAC_OK;
}

static sac_status prepare(struct perplexity *p, sac_error *err)
{
    p->n_vocab = sac_model_get_info(p->model).n_vocab;
    p->n_ctx = p->setup.n_ctx ? p->setup.n_ctx : sac_model_get_info(p->model).n_ctx_train;
    p->n_score = p->n_ctx - 1 - p->n_ctx / 2;
    TRY(p->opt.compare ? read_base(p, err) : encode_text(p, err));
    p->first = p->n_ctx - 1 - p->n_score;
    if (p->opt.base && !p->opt.compare) TRY(create_base(p, err));
    const size_t n = (size_t)p->n_chunk * p->n_score;
    p->score = mem_calloc(n, sizeof *p->score);
    p->done = mem_calloc(p->n_chunk, sizeof *p->done);
    p->base_row = mem_alloc(p->n_vocab * sizeof *p->base_row);
    if (!p->score || !p->done || !p->base_row)
        return error_set(err, SAC_ERR_MEMORY, "no memory for %zu scores", n);
    uint32_t slots = p->opt.n_parallel;
    const uint32_t n_row = p->setup.n_batch ? p->setup.n_batch : BATCH_ROWS;
    if (slots == 0) slots = p->setup.decode ? 8 : n_row / p->n_ctx;
    if (slots > p->n_chunk) slots = p->n_chunk;
    if (slots > PARALLEL_MAX) slots = PARALLEL_MAX;
    p->n_slot = slots ? slots : 1;
    const sac_engine_params params = setup_engine_params(&p->setup, p->n_ctx, p->n_slot);
    TRY(sac_engine_create(&p->engine, p->model, &params, err));
    setup_warn_of_context(COMMAND, p->model, p->n_ctx);
    return setup_check_memory(COMMAND, p->engine, err);
}

/* ---- Results ---- */

struct mean {
    double value, err; /* err: standard error */
};

/* The mean of field(score) over all scored tokens, summed in their order. */
static struct mean mean_of(const struct perplexity *p, double (*field)(const struct score *))
{
    const size_t n = (size_t)p->n_chunk * p->n_score;
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++) sum += field(&p->score[i]);
    const double mean = sum / (double)n;
    for (size_t i = 0; i < n; i++) {
        const double off = field(&p->score[i]) - mean;
        squares += off * off;
    }
    return (struct mean){mean, n > 1 ? sqrt(squares / (double)n / (double)(n - 1)) : 0};
}

static double nll_of(const struct score *s)
{
    return (double)s->nll;
}

static double nll_base_of(const struct score *s)
{
    return (double)s->nll_base;
}

static double nll_change_of(const struct score *s)
{
    return (double)s->nll - (double)s->nll_base;
}

static double kl_of(const struct score *s)
{
    return (double)s->kl;
}

static double same_top_of(const struct score *s)
{
    return s->same_top ? 1 : 0;
}

static double dp_of(const struct score *s)
{
    return exp(-(double)s->nll) - exp(-(double)s->nll_base);
}

static double dp_square_of(const struct score *s)
{
    return dp_of(s) * dp_of(s);
}

static int order_kl(const void *a, const void *b)
{
    const float x = ((const struct score *)a)->kl, y = ((const struct score *)b)->kl;
    return (x > y) - (x < y);
}

/* Interpolates between the two nearest of the sorted values. */
static double kl_quantile(const struct perplexity *p, double share)
{
    const size_t n = (size_t)p->n_chunk * p->n_score;
    const double at = share * (double)(n - 1);
    const size_t i = (size_t)at, next = i + 1 < n ? i + 1 : i;
    const double low = kl_of(&p->score[i]), high = kl_of(&p->score[next]);
    return low + (high - low) * (at - (double)i);
}

struct result {
    struct mean nll, nll_base, nll_change, kl, same_top, dp;
    double dp_rms;
    struct {
        const char *name;
        double share, value;
    } kl_at[7];
};

/* Sorts the scores for the quantiles, after the means are computed. */
static struct result summarise(struct perplexity *p)
{
    struct result r = {.nll = mean_of(p, nll_of),
                       .kl_at = {{"min", 0, 0},
                                 {"median", 0.5, 0},
                                 {"p90", 0.9, 0},
                                 {"p95", 0.95, 0},
                                 {"p99", 0.99, 0},
                                 {"p99_9", 0.999, 0},
                                 {"max", 1, 0}}};
    if (!p->opt.compare) return r;
    r.nll_base = mean_of(p, nll_base_of);
    r.nll_change = mean_of(p, nll_change_of);
    r.kl = mean_of(p, kl_of);
    r.same_top = mean_of(p, same_top_of);
    r.dp = mean_of(p, dp_of);
    r.dp_rms = sqrt(mean_of(p, dp_square_of).value);
    qsort(p->score, (size_t)p->n_chunk * p->n_score, sizeof *p->score, order_kl);
    for (size_t i = 0; i < sizeof r.kl_at / sizeof r.kl_at[0]; i++)
        r.kl_at[i].value = kl_quantile(p, r.kl_at[i].share);
    return r;
}

static void print_comparison(const struct result *r)
{
    printf("Base: PPL = %.4f; ratio = %.6f +/- %.6f\n", exp(r->nll_base.value),
           exp(r->nll_change.value), exp(r->nll_change.value) * r->nll_change.err);
    printf("KL divergence: mean = %.6g +/- %.2g", r->kl.value, r->kl.err);
    for (size_t i = 0; i < sizeof r->kl_at / sizeof r->kl_at[0]; i++)
        printf(", %s = %.6g", r->kl_at[i].name, r->kl_at[i].value);
    printf("\nSame top token: %.3f +/- %.3f %%\n", 100 * r->same_top.value, 100 * r->same_top.err);
    printf("Change of p: mean = %.4f +/- %.4f %%, RMS = %.4f %%\n", 100 * r->dp.value,
           100 * r->dp.err, 100 * r->dp_rms);
}

static void print_text(const struct perplexity *p, const struct result *r)
{
    const double ppl = exp(r->nll.value), n_tok = (double)p->n_chunk * p->n_ctx;
    printf("\nFinal estimate: PPL = %.4f +/- %.5f\n", ppl, ppl * r->nll.err);
    if (p->opt.compare) print_comparison(r);
    printf("%u chunks of %u tokens in %.2f s, %.1f tokens/s\n", p->n_chunk, p->n_ctx, p->seconds,
           n_tok / p->seconds);
}

static cJSON *kl_json(const struct result *r)
{
    cJSON *kl = cJSON_CreateObject();
    cJSON_AddNumberToObject(kl, "mean", r->kl.value);
    cJSON_AddNumberToObject(kl, "err", r->kl.err);
    for (size_t i = 0; i < sizeof r->kl_at / sizeof r->kl_at[0]; i++)
        cJSON_AddNumberToObject(kl, r->kl_at[i].name, r->kl_at[i].value);
    return kl;
}

static int print_json(const struct perplexity *p, const struct result *r)
{
    const double ppl = exp(r->nll.value), n_tok = (double)p->n_chunk * p->n_ctx;
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "ppl", ppl);
    cJSON_AddNumberToObject(o, "ppl_err", ppl * r->nll.err);
    cJSON_AddNumberToObject(o, "n_ctx", p->n_ctx);
    cJSON_AddNumberToObject(o, "n_chunk", p->n_chunk);
    cJSON_AddNumberToObject(o, "n_tok", n_tok);
    cJSON_AddNumberToObject(o, "n_scored", (double)p->n_chunk * p->n_score);
    cJSON_AddNumberToObject(o, "seconds", p->seconds);
    cJSON_AddNumberToObject(o, "tok_s", n_tok / p->seconds);
    cJSON_AddStringToObject(o, "isa", sac_engine_get_stats(p->engine).isa);
    if (p->opt.compare) {
        cJSON_AddNumberToObject(o, "ppl_base", exp(r->nll_base.value));
        cJSON_AddNumberToObject(o, "ppl_ratio", exp(r->nll_change.value));
        cJSON_AddItemToObject(o, "kl", kl_json(r));
        cJSON_AddNumberToObject(o, "same_top", r->same_top.value);
        cJSON_AddNumberToObject(o, "dp_mean", r->dp.value);
        cJSON_AddNumberToObject(o, "dp_rms", r->dp_rms);
    }
    return output_json(o);
}

static int run_all(struct perplexity *p)
{
    sac_error err = {0};
    if (p->opt.compare && !p->opt.base)
        return options_usage_error(COMMAND, "--kl-divergence needs --kl-divergence-base FILE");
    if (p->opt.compare == (p->opt.file != NULL))
        return options_usage_error(COMMAND, p->opt.compare ? "the base file holds the text: no -f"
                                                           : "a text is missing (-f FILE)");
    if (p->setup.n_ctx > 0 && p->setup.n_ctx < 4)
        return options_usage_error(COMMAND, "option '-c': at least 4");
    /* Before the model is loaded, to report a wrong name at once. */
    sac_status status = SAC_OK;
    if (p->opt.file) status = source_read(&p->text, p->opt.file, p->opt.raw, &err);
    if (status != SAC_OK) return setup_failed(COMMAND, status, err.msg);
    const int code = setup_load(&p->setup, &p->model);
    if (code != OPTIONS_GO_ON) return code;
    status = prepare(p, &err);
    progress_begin(&p->bar, "scoring");
    p->bar.on = p->bar.on && p->opt.format == FORMAT_JSON; /* running values show it */
    if (status == SAC_OK) status = run_chunks(p, &err);
    progress_end(&p->bar);
    const sac_status closed = klfile_close(&p->base, status == SAC_OK ? &err : NULL);
    if (status == SAC_OK) status = closed;
    if (status != SAC_OK) return setup_failed(COMMAND, status, err.msg);
    const struct result r = summarise(p);
    if (p->opt.format == FORMAT_JSON) return print_json(p, &r);
    print_text(p, &r);
    return EXIT_OK;
}

int app_perplexity(int argc, char **argv)
{
    struct perplexity p = {
        .setup = setup_default(COMMAND),
        .base = {.fd = -1},
    };
    p.setup.n_ctx = N_CTX;
    p.setup.no_screen = true; /* all logits are needed */
    const struct option_group groups[] = {
        {"Text and comparison", specs, &p.opt},
        {"Model", setup_specs, &p.setup},
    };
    struct options o = {
        .command = COMMAND,
        .usage = "-m MODEL -f FILE [options]",
        .summary =
            "Measures how well the model predicts a text: perplexity over the second half of each "
            "chunk of -c tokens. With a base file, compares two settings or models token by token.",
        .group = groups,
        .n_group = sizeof groups / sizeof groups[0],
    };
    int code = options_parse(&o, argc, argv);
    if (code != OPTIONS_GO_ON) return code;
    interrupt_install();
    code = run_all(&p);
    sac_engine_free(p.engine);
    sac_model_free(p.model);
    strbuf_deinit(&p.text);
    mem_free(p.tok);
    mem_free(p.score);
    mem_free(p.done);
    mem_free(p.base_row);
    return code;
}
