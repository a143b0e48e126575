/* bench_prefix.c: `saccade bench prefix`: how many pages and how much time the index of prefixes
 * saves if prompts begin alike.
 *
 * Sequences are created one after another and all stay, so the pages in use are those of many
 * concurrent users. Each prompt is computed a second time in an engine without an index, which
 * gives the time and the pages that it would have cost, and the logits, which must have the same
 * bits. Finally a prompt with another salt is computed, which must find nothing. Tokens are random:
 * neither time nor pages depend on their meaning. */
#include "app/bench.h"

#include "app/app.h"
#include "app/bench_setup.h"
#include "app/interrupt.h"
#include "app/options.h"
#include "app/output.h"
#include "app/progress.h"

#include "base/mem.h"
#include "base/workers.h"

#include <stdio.h>
#include <string.h>

#define COMMAND    "bench prefix"
#define N_WARM     32u /* tokens of the warm-up */
#define PAGE_MAX   128u
#define TOKENS_MAX (1u << 22)

struct prefix_options {
    uint32_t n_shared, n_own, n_seq;
    int format;
};

#define OPT(names, field, arg, help, ...)                                                          \
    {                                                                                              \
        names, OPTION_U32, offsetof(struct prefix_options, field), arg, help, __VA_ARGS__          \
    }

static const struct option_spec setup_part[] = {
    BENCH_MODEL, BENCH_THREADS, BENCH_BATCH, BENCH_DEVICE, BENCH_TYPE_K, BENCH_TYPE_V, {0},
};

static const struct option_spec prompts_part[] = {
    OPT("-p --shared", n_shared, "N", "tokens of the common prefix", .env = NULL, .min = 1,
        .max = TOKENS_MAX),
    OPT("--own", n_own, "N", "further tokens of each prompt", .env = NULL, .min = 1,
        .max = TOKENS_MAX),
    OPT("--sequences", n_seq, "N", "sequences that share the prefix", .env = NULL, .min = 1,
        .max = 64),
    {"-o --output", OPTION_CHOICE, offsetof(struct prefix_options, format), NULL,
     "format of the table", .env = NULL, .choices = TABLE_PRINTER_FORMATS},
    {0},
};

struct prefix_bench {
    struct prefix_options opt;
    struct setup setup;
    sac_model *model;           /* owned */
    sac_engine *with, *without; /* owned: with and without the index of pages */
    int32_t *tok;               /* [n_shared + n_own] */
    float *logits[2];           /* [n_vocab] logits of the last row: with, without the index */
    struct table_printer printer;
    struct progress bar;
    uint32_t n_differ;
};

/* One prompt on one engine. */
struct prefix_run {
    double ms;
    uint64_t n_reused, n_page; /* of all sequences that are kept */
};

/* ---- Prompts ---- */

static void make_prompt(struct prefix_bench *b, uint32_t seq_i)
{
    const uint32_t n_vocab = sac_model_get_info(b->model).n_vocab, n_shared = b->opt.n_shared;
    for (uint32_t i = 0; i < n_shared + b->opt.n_own; i++)
        b->tok[i] =
            (int32_t)((i + (i < n_shared ? 0 : 7919 * (seq_i + 1))) * 2654435761u % n_vocab);
    const int32_t bos = sac_token_bos(b->model);
    if (bos >= 0) b->tok[0] = bos;
}

struct prefix_catch {
    float *logits;
    size_t bytes;
};

static void catch_row(void *user, const sac_row *row)
{
    const struct prefix_catch *c = user;
    memcpy(c->logits, row->logits, c->bytes);
}

/* Measures from the first token queued to the last token's logits. */
static sac_status run_prompt(const struct prefix_bench *b, sac_engine *e, sac_seq seq,
                             uint32_t n_tok, struct prefix_run *out, sac_error *err)
{
    struct prefix_catch c = {.logits = b->logits[e == b->without],
                             .bytes = sac_model_get_info(b->model).n_vocab * sizeof(float)};
    const uint64_t before = sac_engine_get_stats(e).reads.n_reused_tok, start_us = clock_us();
    TRY(sac_seq_append(e, seq, b->tok, n_tok, SAC_ROW_PROMPT, SAC_WANT_LAST, err));
    for (uint32_t n = 1; n > 0;) {
        if (interrupt_pending()) return SAC_ERR_CANCELLED;
        TRY(sac_step(e, catch_row, &c, &n, err));
    }
    const uint64_t end_us = clock_us();
    const sac_engine_stats s = sac_engine_get_stats(e);
    *out = (struct prefix_run){.ms = (double)(end_us - start_us) * 1e-3,
                               .n_reused = s.reads.n_reused_tok - before,
                               .n_page = s.n_page - s.n_page_free};
    return SAC_OK;
}

/* The first step of an engine is slower than the following ones. */
static sac_status warm(const struct prefix_bench *b, sac_engine *e, sac_error *err)
{
    const uint32_t n = b->opt.n_shared + b->opt.n_own;
    struct prefix_run ignored;
    sac_seq seq;
    TRY(sac_seq_create(e, &seq, err));
    TRY(sac_seq_use_salt(e, seq, "warm", err));
    const sac_status status = run_prompt(b, e, seq, n < N_WARM ? n : N_WARM, &ignored, err);
    sac_seq_remove(e, seq);
    return status;
}

/* The prompt without an index; nothing is shared, so its sequence is removed at once. */
static sac_status run_without(const struct prefix_bench *b, struct prefix_run *out, sac_error *err)
{
    sac_seq seq;
    TRY(sac_seq_create(b->without, &seq, err));
    const sac_status status =
        run_prompt(b, b->without, seq, b->opt.n_shared + b->opt.n_own, out, err);
    sac_seq_remove(b->without, seq);
    return status;
}

/* ---- The table ---- */

static void print_row(struct prefix_bench *b, uint32_t seq_i, const struct prefix_run *with,
                      const struct prefix_run *without)
{
    const uint32_t n_tok = b->opt.n_shared + b->opt.n_own;
    const size_t bytes = sac_model_get_info(b->model).n_vocab * sizeof(float);
    const bool same = memcmp(b->logits[0], b->logits[1], bytes) == 0;
    const double n_plain = (double)without->n_page * (seq_i + 1);
    b->n_differ += !same;
    const struct table_printer_cell cells[] = {
        {"sequence", "sequence", .number = seq_i + 1},
        {"salt", "salt", .text = seq_i < b->opt.n_seq ? "the same" : "another"},
        {"n_prompt", "tokens", .number = n_tok},
        {"n_reused", "from the index", .number = (double)with->n_reused},
        {"n_page", "pages in use", .number = (double)with->n_page},
        {"n_page_without", "without the index", .number = n_plain},
        {"page_bytes", .number = (double)sac_engine_get_stats(b->with).page_bytes},
        {"ttft_ms", "first token ms", 1, .number = with->ms},
        {"ttft_ms_without", "without ms", 1, .number = without->ms},
        {"bits", "logits", .text = same ? "same bits" : "differ"},
        {"n_threads", .number = sac_engine_get_params(b->with).n_threads},
        {"isa", .text = sac_engine_get_stats(b->with).isa},
    };
    table_printer_row(&b->printer, cells, sizeof cells / sizeof cells[0]);
}

static sac_status run_sequences(struct prefix_bench *b, sac_error *err)
{
    const uint32_t n_tok = b->opt.n_shared + b->opt.n_own;
    for (uint32_t i = 0; i <= b->opt.n_seq; i++) {
        struct prefix_run with, without;
        sac_seq seq;
        make_prompt(b, i);
        TRY(sac_seq_create(b->with, &seq, err));
        if (i == b->opt.n_seq) TRY(sac_seq_use_salt(b->with, seq, "another", err));
        TRY(run_prompt(b, b->with, seq, n_tok, &with, err));
        TRY(run_without(b, &without, err));
        progress_end(&b->bar);
        print_row(b, i, &with, &without);
        progress_begin(&b->bar, "prompts");
        progress_update(&b->bar, (i + 1.0) / (b->opt.n_seq + 1.0));
    }
    return SAC_OK;
}

/* ---- Engines ---- */

/* The engine with the index has memory for the shared text twice, once per salt. */
static sac_status open_engines(struct prefix_bench *b, sac_error *err)
{
    const uint32_t n_tok = b->opt.n_shared + b->opt.n_own,
                   n_vocab = sac_model_get_info(b->model).n_vocab;
    sac_engine_params p = setup_engine_params(&b->setup, n_tok, 1);
    p.n_kv_tok = n_tok + PAGE_MAX;
    TRY(sac_engine_create(&b->without, b->model, &p, err));
    p.prefix_cache = true;
    p.n_seq_max = b->opt.n_seq + 1;
    p.n_kv_tok = 2 * (uint64_t)n_tok + (uint64_t)b->opt.n_seq * (b->opt.n_own + 2 * PAGE_MAX);
    TRY(sac_engine_create(&b->with, b->model, &p, err));
    b->tok = mem_calloc(n_tok, sizeof *b->tok);
    for (int i = 0; i < 2; i++) b->logits[i] = mem_calloc(n_vocab, sizeof(float));
    if (!b->tok || !b->logits[0] || !b->logits[1])
        return error_set(err, SAC_ERR_MEMORY, "no memory for prompts of %u tokens", n_tok);
    return setup_check_memory(COMMAND, b->with, err);
}

static sac_status run_all(struct prefix_bench *b, sac_error *err)
{
    TRY(open_engines(b, err));
    make_prompt(b, UINT32_MAX - 1);
    TRY(warm(b, b->with, err));
    TRY(warm(b, b->without, err));
    b->printer = table_printer_begin((enum table_printer_format)b->opt.format, "bench_prefix");
    progress_begin(&b->bar, "prompts");
    const sac_status status = run_sequences(b, err);
    progress_end(&b->bar);
    table_printer_end(&b->printer);
    return status;
}

static int run(struct prefix_bench *b)
{
    sac_error err = {0};
    const int code = setup_load(&b->setup, &b->model);
    if (code != OPTIONS_GO_ON) return code;
    const sac_status status = run_all(b, &err);
    sac_engine_free(b->with);
    sac_engine_free(b->without);
    for (int i = 0; i < 2; i++) mem_free(b->logits[i]);
    mem_free(b->tok);
    sac_model_free(b->model);
    if (status != SAC_OK) return setup_failed(COMMAND, status, err.msg);
    if (b->n_differ)
        fprintf(stderr,
                "saccade " COMMAND ": %u prompts have other logits than without the index\n",
                b->n_differ);
    return output_finish(b->n_differ ? EXIT_RUNTIME : EXIT_OK);
}

int bench_prefix(int argc, char **argv)
{
    struct prefix_bench b = {.opt = {.n_shared = 8000, .n_own = 100, .n_seq = 8},
                             .setup = setup_default(COMMAND)};
    const struct option_group groups[] = {
        {"Model and memory", setup_part, &b.setup},
        {"Prompts", prompts_part, &b.opt},
    };
    struct options o = {
        .command = COMMAND,
        .usage = "-m MODEL [options]",
        .summary = "Measures prompts with a common prefix, with and without the prefix index: "
                   "pages in use, time to first token, and whether the logits are bit for bit the "
                   "same. The last sequence has another salt and shares nothing.",
        .group = groups,
        .n_group = sizeof groups / sizeof groups[0],
    };
    const int code = options_parse(&o, argc, argv);
    if (code != OPTIONS_GO_ON) return code;
    interrupt_install();
    return run(&b);
}
