/* eval_fidelity.c: `saccade eval fidelity`: how far methods, KV types or another model file are
 * from dense f16 attention, on a text of the user's. eval/fidelity.c measures; this file has the
 * options, the readable table and the machine-readable rows.
 *
 * With --out the rows go to DIR/fidelity.json, the table to DIR/fidelity.md, and every record of
 * what was read to DIR/reading.sacr, with the context as its sample number. */
#include "app/eval_fidelity.h"
#include "app/app.h"
#include "app/eval.h"
#include "app/eval_run.h"
#include "app/interrupt.h"
#include "app/output.h"
#include "app/progress.h"
#include "app/provenance.h"
#include "app/setup.h"
#include "app/source.h"
#include "base/folder.h"
#include "base/mem.h"
#include "base/textfile.h"
#include "eval/choices.h"
#include "eval/fidelity.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define RING_BYTES ((size_t)64 << 20)
#define SPECS_MAX  40u

enum format { FORMAT_TEXT, FORMAT_JSON };

struct fidelity_options {
    const char *file, *ctx, *methods, *other, *out;
    uint32_t n_score;
    bool raw, prompt_form, allow_idle;
    int format;
};

#define OPT(names, type, field, arg, help, ...)                                                    \
    {                                                                                              \
        names, type, offsetof(struct fidelity_options, field), arg, help, __VA_ARGS__              \
    }

static const struct option_spec specs[] = {
    OPT("-f --file", OPTION_TEXT, file, "FILE", "the text; - is stdin", .env = NULL),
    OPT("--raw --as-is", OPTION_FLAG, raw, NULL, SOURCE_AS_IS_HELP, .env = NULL),
    OPT("-c --ctx --ctx-size", OPTION_TEXT, ctx, "LIST",
        "context lengths in tokens, comma-separated (default: 4k, which is 4096). Each is the "
        "beginning of the text",
        .env = NULL),
    OPT("--methods", OPTION_TEXT, methods, "LIST",
        "decode methods, comma-separated, as NAME:key=value,key=value or PREFILL+DECODE",
        .env = NULL),
    OPT("-k --score", OPTION_U32, n_score, "N", "tokens at the end of each context that are scored",
        .min = 1, .max = 65536),
    OPT("--prefill-form", OPTION_FLAG, prompt_form, NULL,
        "compute the scored tokens as prompt rows instead of one per step", .env = NULL),
    OPT("--allow-idle", OPTION_FLAG, allow_idle, NULL,
        "keep methods that selected nothing by score in the table", .env = NULL),
    OPT("--model2", OPTION_TEXT, other, "FILE",
        "run the methods on this file and compare them with the model of -m", .env = NULL),
    OPT("--out", OPTION_TEXT, out, "DIR",
        "folder for fidelity.json, fidelity.md and the recording reading.sacr", .env = NULL),
    OPT("-o --output", OPTION_CHOICE, format, NULL,
        "json: a list with one object per method and context", .env = NULL, .choices = "text|json"),
    {0},
};

struct session {
    const struct eval_sweep *sweep; /* for `eval sweep`, or NULL */
    const char *command;
    struct fidelity_options opt;
    struct setup setup;
    struct subjects subjects;
    uint32_t ctx[EVAL_CTX_MAX], n_ctx;
    struct strbuf text;
    sac_model *model, *other;
    int32_t *tok;
    size_t n_tok;
    struct fidelity_row *row; /* [n_ctx, subjects.n] */
    struct reading_writer recording;
    struct progress bar;
    char label[48];
};

/* ---- Preparation ---- */

/* Encodes the text, which must have one token more than the longest context. */
static sac_status encode_text(struct session *s, sac_error *err)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < s->n_ctx; i++) most = s->ctx[i] > most ? s->ctx[i] : most;
    TRY(sac_tokenize(s->model, s->text.data, s->text.n, SAC_TOK_ADD_SPECIAL, &s->tok, &s->n_tok,
                     err));
    if (s->n_tok >= (size_t)most + 1) return SAC_OK;
    return error_set(err, SAC_ERR_ARG,
                     "%s has %zu tokens; a context of %u needs one more than that", s->opt.file,
                     s->n_tok, most);
}

static sac_status open_out(struct session *s, sac_error *err)
{
    const sac_model_info info = sac_model_get_info(s->other);
    const char *method[SAC_METHODS_MAX];
    struct strbuf path = {0};
    TRY(folder_make(s->opt.out, 0777, err));
    for (uint32_t i = 0; i < s->subjects.n; i++) method[i] = s->subjects.item[i].name;
    strbuf_addf(&path, "%s/reading.sacr", s->opt.out);
    const struct reading_shape shape = {info.n_layer, info.n_head, info.n_kv_head, info.head_dim,
                                        SAC_PAGE_TOK};
    const struct reading_names names = {info.name, method, s->subjects.n};
    const sac_status status =
        path.failed ? error_set(err, SAC_ERR_MEMORY, "out of memory for a path")
                    : reading_open(&s->recording, path.data, &shape, &names, RING_BYTES, err);
    strbuf_deinit(&path);
    return status;
}

/* ---- Tables ---- */

/* Prompt rows are not counted. */
static void add_traffic(struct strbuf *out, const struct traffic *t)
{
    if (isfinite(t->share))
        strbuf_addf(out, " %.1f | %.0f | ", 100 * t->share, t->per_token * 1e-3);
    else
        strbuf_adds(out, " - | - | ");
}

static void add_table(struct strbuf *out, const struct session *s, const sac_engine_params *p)
{
    char kv[16];
    const sac_model_info info = sac_model_get_info(s->model);
    strbuf_addf(out,
                "# Fidelity to dense f16 attention: %s, KV %s%s%s\n\n"
                "The last %u tokens of each context of %s, %s.\n\n",
                info.name, provenance_kv(p, kv), s->opt.other ? ", weights of " : "",
                s->opt.other ? s->opt.other : "", s->opt.n_score, s->opt.file,
                s->opt.prompt_form ? "as prompt rows" : "one per step");
    strbuf_adds(out, "| method | ctx | KL mean | median | p90 | p99 | max | top-1 % | top-5 % | "
                     "PPL | PPL dense | KV read % | bytes % | kB/token | chosen | mass % | "
                     "output error | overlap % | drift |\n"
                     "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
                     "---:|---:|---:|---:|\n");
    for (uint32_t c = 0; c < s->n_ctx; c++)
        for (uint32_t i = 0; i < s->subjects.n; i++) {
            const struct fidelity_row *r = &s->row[c * s->subjects.n + i];
            strbuf_addf(out,
                        "| %s | %u | %.3g | %.3g | %.3g | %.3g | %.3g | %.1f | %.1f | %.4f | %.4f "
                        "| %.1f |",
                        s->subjects.item[i].name, s->ctx[c], r->kl_mean, r->kl_median, r->kl_p90,
                        r->kl_p99, r->kl_max, 100 * r->top1, 100 * r->top5, r->ppl, r->ppl_dense,
                        100 * r->share_read);
            add_traffic(out, &r->traffic);
            choices_print(out, r->chosen);
            strbuf_addf(out, " | %.2f | %.3g | %.2f | %.3g |\n", 100 * r->all.mass, r->all.out_err,
                        100 * r->all.overlap, r->all.drift);
        }
}

static cJSON *layer_json(const struct fidelity_attention *a)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "mass", a->mass);
    cJSON_AddNumberToObject(o, "out_err", a->out_err);
    cJSON_AddNumberToObject(o, "out_left", a->out_left);
    cJSON_AddNumberToObject(o, "overlap", a->overlap);
    cJSON_AddNumberToObject(o, "drift", a->drift);
    cJSON_AddNumberToObject(o, "byte_ratio", a->byte_ratio);
    cJSON_AddNumberToObject(o, "page_share", a->page_share);
    cJSON_AddNumberToObject(o, "mass_proved", a->mass_proved);
    cJSON_AddNumberToObject(o, "out_bound", a->out_bound);
    return o;
}

static cJSON *row_json(const struct session *s, const sac_engine_params *p, uint32_t ctx_i,
                       uint32_t subject_i)
{
    const struct fidelity_row *r = &s->row[ctx_i * s->subjects.n + subject_i];
    char kv[16];
    cJSON *o = cJSON_CreateObject();
    const struct {
        const char *name;
        double value;
    } number[] = {
        {"ctx", s->ctx[ctx_i]},
        {"n_score", s->opt.n_score},
        {"kl_mean", r->kl_mean},
        {"kl_median", r->kl_median},
        {"kl_p90", r->kl_p90},
        {"kl_p99", r->kl_p99},
        {"kl_max", r->kl_max},
        {"top1", r->top1},
        {"top5", r->top5},
        {"ppl", r->ppl},
        {"ppl_dense", r->ppl_dense},
        {"share_read", r->share_read},
        {"chosen", r->chosen},
        {"bypass", r->bypass},
        {"mass_mean", r->all.mass},
        {"out_err_mean", r->all.out_err},
        {"out_left_mean", r->all.out_left},
        {"overlap_mean", r->all.overlap},
        {"drift_mean", r->all.drift},
        {"byte_ratio", r->all.byte_ratio},
        {"page_share", r->all.page_share},
        {"mass_proved", r->all.mass_proved},
        {"out_bound", r->all.out_bound},
        {"n_proof", (double)r->n_proof},
        {"n_broken", (double)r->n_broken},
        {"us_per_token", r->us_per_token},
    };
    cJSON_AddStringToObject(o, "method", s->subjects.item[subject_i].name);
    cJSON_AddStringToObject(o, "form", s->opt.prompt_form ? "prefill" : "decode");
    cJSON_AddStringToObject(o, "kv", provenance_kv(p, kv));
    if (s->opt.other) cJSON_AddStringToObject(o, "model2", s->opt.other);
    for (size_t i = 0; i < sizeof number / sizeof number[0]; i++)
        cJSON_AddNumberToObject(o, number[i].name, number[i].value);
    traffic_json(o, &r->traffic);
    cJSON *layers = cJSON_AddArrayToObject(o, "per_layer");
    for (uint32_t l = 0; l < r->n_layer; l++)
        cJSON_AddItemToArray(layers, layer_json(&r->layer[l]));
    return o;
}

static cJSON *rows_json(const struct session *s, const sac_engine_params *p)
{
    cJSON *rows = cJSON_CreateArray();
    for (uint32_t c = 0; c < s->n_ctx; c++)
        for (uint32_t i = 0; i < s->subjects.n; i++)
            cJSON_AddItemToArray(rows, row_json(s, p, c, i));
    return rows;
}

static sac_status report(struct session *s, const sac_engine_params *p, sac_error *err)
{
    struct strbuf table = {0};
    cJSON *rows = rows_json(s, p);
    char *json = cJSON_Print(rows);
    cJSON_Delete(rows);
    add_table(&table, s, p);
    sac_status status = json && !table.failed
                            ? SAC_OK
                            : error_set(err, SAC_ERR_MEMORY, "out of memory for the results");
    if (status == SAC_OK && s->opt.out)
        status = textfile_write_in(s->opt.out, "fidelity.json", json, strlen(json), err);
    if (status == SAC_OK && s->opt.out)
        status = textfile_write_in(s->opt.out, "fidelity.md", table.data, table.n, err);
    if (status == SAC_OK)
        printf("%s%s", s->opt.format == FORMAT_JSON ? json : table.data,
               s->opt.format == FORMAT_JSON ? "\n" : "");
    cJSON_free(json);
    strbuf_deinit(&table);
    return status;
}

/* After the table: fails if a method never selected, because its rows say nothing about it. */
static sac_status refuse_idle(const struct session *s, sac_error *err)
{
    struct strbuf idle = {0};
    for (uint32_t c = 0; c < s->n_ctx && !s->opt.allow_idle; c++)
        for (uint32_t i = 0; i < s->subjects.n; i++)
            choices_add_idle(&idle, s->row[c * s->subjects.n + i].chosen, s->subjects.item[i].name,
                             s->ctx[c]);
    const sac_status status = choices_refuse_idle(&idle, err);
    strbuf_deinit(&idle);
    return status;
}

static void note_whole(const struct session *s)
{
    struct strbuf whole = {0};
    for (uint32_t c = 0; c < s->n_ctx; c++)
        for (uint32_t i = 0; i < s->subjects.n && s->ctx[c] <= s->setup.sparse_min_ctx; i++)
            choices_add_whole(&whole, s->row[c * s->subjects.n + i].share_read,
                              s->subjects.item[i].name, s->ctx[c]);
    eval_run_note_whole(&whole, s->command, &s->setup);
    strbuf_deinit(&whole);
}

/* ---- The run ---- */

static bool on_progress(void *user, double share)
{
    progress_update(user, share);
    return interrupt_pending();
}

static sac_status measure(struct session *s, const sac_engine_params *engine, sac_error *err)
{
    s->row = mem_calloc((size_t)s->n_ctx * s->subjects.n, sizeof *s->row);
    if (!s->row) return error_set(err, SAC_ERR_MEMORY, "out of memory for the results");
    for (uint32_t c = 0; c < s->n_ctx; c++) {
        const struct fidelity_params p = {
            .model = s->model,
            .other = s->other,
            .engine = *engine,
            .subjects = &s->subjects,
            .tok = s->tok,
            .ctx = s->ctx[c],
            .n_score = s->opt.n_score,
            .prompt_form = s->opt.prompt_form,
            .timed = s->sweep != NULL,
            .recording = s->opt.out ? &s->recording : NULL,
            .stop = on_progress,
            .user = &s->bar,
        };
        s->recording.sample_i = s->ctx[c];
        setup_warn_of_context(s->command, s->model, s->ctx[c]);
        snprintf(s->label, sizeof s->label, "context %u (%u of %u)", s->ctx[c], c + 1, s->n_ctx);
        progress_begin(&s->bar, s->label);
        const sac_status status = fidelity_run(&s->row[(size_t)c * s->subjects.n], &p, err);
        progress_end(&s->bar);
        TRY(status);
    }
    return SAC_OK;
}

static int load_other(struct session *s)
{
    struct setup other = s->setup;
    s->other = s->model;
    if (!s->opt.other) return OPTIONS_GO_ON;
    s->other = NULL;
    other.model = s->opt.other;
    return setup_load(&other, &s->other);
}

/* Expands every method of the list to every value of its parameter. */
static sac_status read_methods(struct session *s, sac_error *err)
{
    if (!s->sweep) return subjects_parse(&s->subjects, s->opt.methods, err);
    struct strbuf list = {0};
    sac_status status = eval_sweep_list(&list, s->opt.methods, s->sweep, err);
    if (status == SAC_OK) status = subjects_parse(&s->subjects, list.data, err);
    strbuf_deinit(&list);
    return status;
}

static int run_all(struct session *s)
{
    sac_error err = {0};
    const struct eval_run lists = {.command = s->command, .ctx = s->opt.ctx};
    if (!s->opt.file) return options_usage_error(s->command, "a text is missing (-f FILE)");
    int code = eval_run_list_only(s->command, &s->setup);
    if (code != OPTIONS_GO_ON) return code;
    code = eval_run_contexts(&lists, "4k", s->ctx, &s->n_ctx);
    if (code != OPTIONS_GO_ON) return code;
    for (uint32_t i = 0; i < s->n_ctx; i++)
        if (s->opt.n_score >= s->ctx[i])
            return options_usage_error(s->command, "option '-k': %u tokens of a context of %u",
                                       s->opt.n_score, s->ctx[i]);
    sac_status status = read_methods(s, &err);
    /* Before the model is loaded, to report a wrong name at once. */
    if (status == SAC_OK) status = source_read(&s->text, s->opt.file, s->opt.raw, &err);
    if (status != SAC_OK) return setup_failed(s->command, status, err.msg);
    code = setup_load(&s->setup, &s->model);
    if (code == OPTIONS_GO_ON) code = load_other(s);
    if (code != OPTIONS_GO_ON) return code;
    const sac_engine_params engine = setup_engine_params(&s->setup, 0, 2);
    status = encode_text(s, &err);
    if (status == SAC_OK && s->opt.out) status = open_out(s, &err);
    if (status == SAC_OK) status = measure(s, &engine, &err);
    const sac_status closed = reading_close(&s->recording, status == SAC_OK ? &err : NULL);
    if (status == SAC_OK) status = closed;
    if (status == SAC_OK) status = report(s, &engine, &err);
    if (status == SAC_OK && s->opt.out)
        status = provenance_write(s->opt.out, &s->setup, s->model, &engine, &err);
    if (status == SAC_OK) note_whole(s);
    if (status == SAC_OK) status = refuse_idle(s, &err);
    return status == SAC_OK ? EXIT_OK : setup_failed(s->command, status, err.msg);
}

int eval_fidelity_main(struct eval_fidelity *f, int argc, char **argv)
{
    struct session s = {
        .sweep = f->sweep,
        .command = f->command,
        .opt = {.methods = f->methods, .n_score = 64, .allow_idle = f->sweep != NULL},
        .setup = setup_default(f->command),
    };
    struct option_spec model_specs[SPECS_MAX] = {0};
    size_t n = 0;
    s.setup.no_screen = true; /* all logits are needed */
    /* All model options except the context length, which is a list here. */
    for (const struct option_spec *spec = setup_specs; spec->names; spec++) {
        assert(n + 1 < SPECS_MAX);
        if (spec->offset != offsetof(struct setup, n_ctx)) model_specs[n++] = *spec;
    }
    const struct option_group groups[] = {
        {"Text and comparison", specs, &s.opt},
        {"Model", model_specs, &s.setup},
        {"Sweep", eval_sweep_specs, f->sweep},
    };
    struct options o = {
        .command = f->command,
        .usage = "-m MODEL -f FILE [options]",
        .summary = f->summary,
        .group = groups,
        .n_group = f->sweep ? 3 : 2,
        .need = eval_run_needs,
    };
    int code = options_parse(&o, argc, argv);
    if (code != OPTIONS_GO_ON) return code;
    interrupt_install();
    code = f->sweep && !s.opt.out
               ? options_usage_error(f->command, "a folder is missing (--out DIR)")
               : run_all(&s);
    f->out = s.opt.out;
    for (size_t i = 0; s.row && i < (size_t)s.n_ctx * s.subjects.n; i++) fidelity_deinit(&s.row[i]);
    mem_free(s.row);
    strbuf_deinit(&s.text);
    subjects_deinit(&s.subjects);
    sac_free(s.tok);
    if (s.other != s.model) sac_model_free(s.other);
    sac_model_free(s.model);
    return code;
}

int eval_cmd_fidelity(int argc, char **argv)
{
    struct eval_fidelity f = {
        .command = "eval fidelity",
        .summary =
            "Compares decode methods, KV types (-ctk, -ctv) or another model file (--model2) "
            "with dense f16 attention on the same text, token by token: the distributions "
            "of the next token and the attention of every layer.",
        .methods = "full",
    };
    return eval_fidelity_main(&f, argc, argv);
}
