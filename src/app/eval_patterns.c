/* eval_patterns.c: `saccade eval patterns` lets a prefill method learn from a text which pattern
 * fits each head of a model, writes the patterns as a table, and reports how many heads have which.
 * The text is one chunk, so "the last rows" of a method are those of the prompt. */
#include "app/eval.h"

#include "app/app.h"
#include "app/interrupt.h"
#include "app/options.h"
#include "app/output.h"
#include "app/progress.h"
#include "app/setup.h"
#include "app/source.h"
#include "base/mem.h"
#include "base/strbuf.h"
#include "base/textfile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMMAND      "eval patterns"
#define KIND_MAX     16u
#define DEFAULT_CTX  8192u
#define CTX_MAX      65536u /* rows of a step, which covers the whole prompt */
#define DEFAULT_SPEC "minference"

struct patterns {
    const char *file, *out; /* options */
    struct setup setup;
    struct strbuf text;
    sac_model *model;
    sac_engine *engine;
    int32_t *tok;
    size_t n_tok;
};

static const struct option_spec specs[] = {
    {"-f --file", OPTION_TEXT, offsetof(struct patterns, file), "FILE",
     "text to learn from, longer than 2,500 tokens; - is stdin", .env = NULL},
    {"--out", OPTION_TEXT, offsetof(struct patterns, out), "FILE",
     "file for the table, used by --prefill minference:table=FILE; default: stdout", .env = NULL},
    {0},
};

/* Uses as many tokens as the context holds. */
static sac_status encode_text(struct patterns *p, sac_error *err)
{
    TRY(sac_tokenize(p->model, p->text.data, p->text.n, SAC_TOK_ADD_SPECIAL, &p->tok, &p->n_tok,
                     err));
    const uint32_t trained = sac_model_get_info(p->model).n_ctx_train;
    if (p->setup.n_ctx == 0) p->setup.n_ctx = trained < CTX_MAX ? trained : CTX_MAX;
    if (p->n_tok > p->setup.n_ctx) p->n_tok = p->setup.n_ctx;
    return SAC_OK;
}

static sac_status read_prompt(struct patterns *p, sac_error *err)
{
    sac_engine_params params = setup_engine_params(&p->setup, p->setup.n_ctx, 1);
    struct progress bar;
    sac_seq seq;
    uint32_t n_row = 1;
    params.n_batch = params.n_ctx;
    params.learn = true;
    TRY(sac_engine_create(&p->engine, p->model, &params, err));
    TRY(sac_seq_create(p->engine, &seq, err));
    TRY(sac_seq_append(p->engine, seq, p->tok, p->n_tok, SAC_ROW_PROMPT, SAC_WANT_NONE, err));
    progress_begin(&bar, "learning");
    sac_status status = SAC_OK;
    while (status == SAC_OK && n_row > 0) status = sac_step(p->engine, NULL, NULL, &n_row, err);
    progress_end(&bar);
    return status;
}

/* Counts heads by pattern, from "LAYER HEAD PATTERN # ..." lines. */
static void print_shares(const char *table)
{
    struct {
        char name[64];
        uint32_t n;
    } kind[KIND_MAX] = {{{0}, 0}};
    uint32_t n_kind = 0, n_all = 0;
    for (const char *line = table; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        char name[64];
        if (*line < '0' || *line > '9') continue;
        const char *at = line;
        for (int word = 0; word < 2; word++) at += strcspn(at, " ") + 1;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at, "#\n"), at);
        uint32_t i = 0;
        while (i < n_kind && strcmp(kind[i].name, name) != 0) i++;
        if (i == KIND_MAX) continue;
        if (i == n_kind) memcpy(kind[n_kind++].name, name, sizeof name);
        kind[i].n++;
        n_all++;
    }
    printf("| pattern | heads | share |\n|---|--:|--:|\n");
    for (uint32_t i = 0; i < n_kind; i++)
        printf("| %s| %u | %.1f %% |\n", kind[i].name, kind[i].n, 100.0 * kind[i].n / n_all);
}

static sac_status run(struct patterns *p, sac_error *err)
{
    char *table = NULL;
    TRY(encode_text(p, err));
    TRY(read_prompt(p, err));
    TRY(sac_engine_get_table(p->engine, 0, &table, err));
    sac_status status = SAC_OK;
    if (p->out) {
        status = textfile_write(p->out, table, strlen(table), err);
        if (status == SAC_OK) print_shares(table);
    } else {
        output_write(table, strlen(table));
    }
    sac_free(table);
    return status;
}

int eval_cmd_patterns(int argc, char **argv)
{
    struct patterns p = {.setup = setup_default(COMMAND)};
    p.setup.n_ctx = DEFAULT_CTX;
    p.setup.prefill = DEFAULT_SPEC;
    p.setup.no_screen = true;
    const struct option_group groups[] = {
        {"Text and table", specs, &p},
        {"Model", setup_specs, &p.setup},
    };
    struct options o = {
        .command = COMMAND,
        .usage = "-m MODEL -f FILE [options]",
        .summary = "Finds the pattern that fits each head of a model on a text, as MInference does "
                   "offline, and writes a table for that prefill method.",
        .group = groups,
        .n_group = sizeof groups / sizeof groups[0],
    };
    int code = options_parse(&o, argc, argv);
    if (code != OPTIONS_GO_ON) return code;
    if (!p.file) return options_usage_error(COMMAND, "a text is missing (-f FILE)");
    if (p.setup.n_ctx > CTX_MAX)
        return options_usage_error(COMMAND, "option '-c': %u tokens, at most %u are read at once",
                                   p.setup.n_ctx, CTX_MAX);
    sac_error err = {0};
    /* Before the model is loaded, to report a wrong name at once. */
    sac_status status = source_read(&p.text, p.file, false, &err);
    if (status == SAC_OK) code = setup_load(&p.setup, &p.model);
    if (status == SAC_OK && code == OPTIONS_GO_ON) {
        status = run(&p, &err);
        code = EXIT_OK;
    }
    sac_engine_free(p.engine);
    sac_free(p.tok);
    sac_model_free(p.model);
    strbuf_deinit(&p.text);
    return status == SAC_OK ? code : setup_failed(COMMAND, status, err.msg);
}
