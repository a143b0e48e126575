/* eval_read.c: `saccade eval read FILE`: a recording of attention as CSV or JSON.
 *
 * One line per record or, with --pages, one per page of each record. Text is generated record by
 * record and written at once, so memory does not grow with the file. NaN (from a model whose keys
 * contain NaN) is empty in CSV and null in JSON. */
#include "app/app.h"
#include "app/eval.h"
#include "app/options.h"
#include "app/output.h"
#include "app/setup.h"
#include "eval/markup.h"
#include "eval/reading.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define COMMAND "eval read"

enum format { FORMAT_CSV, FORMAT_JSON };

struct read_options {
    int format;
    bool pages;
};

static const struct option_spec specs[] = {
    {"-o --output", OPTION_CHOICE, offsetof(struct read_options, format), NULL,
     "json: one object with the model, the methods and a list of records", .choices = "csv|json"},
    {"--pages", OPTION_FLAG, offsetof(struct read_options, pages), NULL,
     "for every page that a record's rows could see: whether it was read, and its dense softmax "
     "mass",
     .env = NULL},
    {0},
};

static void add_number(struct strbuf *out, double v, const char *none)
{
    if (isfinite(v))
        strbuf_addf(out, "%.9g", v);
    else
        strbuf_adds(out, none);
}

static const char *kind_name(const struct reading_record *r)
{
    return r->kind == SAC_ROW_DECODE ? "decode" : "prompt";
}

/* ---- CSV ---- */

static void csv_head(struct strbuf *out, bool pages)
{
    strbuf_adds(out, "method,sample,seq,kind,pos,n_row,layer,kv_head,");
    strbuf_adds(out, pages ? "page,read,mass\r\n"
                           : "n_page,n_page_read,n_tok_seen,n_tok_read,mass,out_err,k_bytes,"
                             "v_bytes,side_bytes,select_us,"
                             "attend_us\r\n");
}

/* The first columns of both formats. */
static void csv_place(struct strbuf *out, const struct reading *in, const struct reading_record *r)
{
    const char *method = in->method[r->method_i];
    markup_csv(out, method, strlen(method));
    strbuf_addf(out, ",%u,%u,%s,%u,%u,%u,%u,", r->sample_i, r->seq, kind_name(r), r->pos, r->n_row,
                r->layer, r->kv_head);
}

static void csv_record(struct strbuf *out, const struct reading *in, const struct reading_record *r)
{
    csv_place(out, in, r);
    strbuf_addf(out, "%u,%u,%u,%u,", r->n_page, r->n_page_read, r->n_tok_seen, r->n_tok_read);
    add_number(out, (double)r->mass, "");
    strbuf_adds(out, ",");
    add_number(out, (double)r->out_err, "");
    strbuf_addf(out, ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",", r->k_bytes, r->v_bytes,
                r->side_bytes);
    add_number(out, (double)r->select_us, "");
    strbuf_adds(out, ",");
    add_number(out, (double)r->attend_us, "");
    strbuf_adds(out, "\r\n");
}

static void csv_pages(struct strbuf *out, const struct reading *in, const struct reading_record *r)
{
    for (uint32_t i = 0; i < r->n_page; i++) {
        csv_place(out, in, r);
        strbuf_addf(out, "%u,%d,", i, reading_page_read(r, i));
        add_number(out, (double)reading_page_mass(r, i), "");
        strbuf_adds(out, "\r\n");
    }
}

/* ---- JSON ---- */

static void json_head(struct strbuf *out, const struct reading *in)
{
    strbuf_adds(out, "{\"model\":");
    markup_json(out, in->model, strlen(in->model));
    strbuf_addf(out,
                ",\"n_layer\":%u,\"n_head\":%u,\"n_kv_head\":%u,\"head_dim\":%u,\"page_tok\":%u,"
                "\"methods\":[",
                in->shape.n_layer, in->shape.n_head, in->shape.n_kv_head, in->shape.head_dim,
                in->shape.page_tok);
    for (uint32_t i = 0; i < in->n_method; i++) {
        if (i) strbuf_adds(out, ",");
        markup_json(out, in->method[i], strlen(in->method[i]));
    }
    strbuf_adds(out, "],\"records\":[");
}

static void json_number(struct strbuf *out, const char *key, float v)
{
    strbuf_addf(out, ",\"%s\":", key);
    add_number(out, (double)v, "null");
}

static void json_pages(struct strbuf *out, const struct reading_record *r)
{
    const char *between = "";
    strbuf_adds(out, ",\"page\":[");
    for (uint32_t i = 0; i < r->n_page; i++) {
        if (!reading_page_read(r, i)) continue;
        strbuf_addf(out, "%s%u", between, i);
        between = ",";
    }
    strbuf_adds(out, "],\"page_mass\":[");
    for (uint32_t i = 0; i < r->n_page; i++) {
        if (i) strbuf_adds(out, ",");
        add_number(out, (double)reading_page_mass(r, i), "null");
    }
    strbuf_adds(out, "]");
}

static void json_record(struct strbuf *out, const struct reading *in,
                        const struct reading_record *r, bool pages)
{
    const char *method = in->method[r->method_i];
    strbuf_adds(out, "{\"method\":");
    markup_json(out, method, strlen(method));
    strbuf_addf(out,
                ",\"sample\":%u,\"seq\":%u,\"kind\":\"%s\",\"pos\":%u,\"n_row\":%u,\"layer\":%u,"
                "\"kv_head\":%u,\"n_page\":%u,\"n_page_read\":%u,"
                "\"n_tok_seen\":%u,\"n_tok_read\":%u",
                r->sample_i, r->seq, kind_name(r), r->pos, r->n_row, r->layer, r->kv_head,
                r->n_page, r->n_page_read, r->n_tok_seen, r->n_tok_read);
    json_number(out, "mass", r->mass);
    json_number(out, "out_err", r->out_err);
    strbuf_addf(out, ",\"k_bytes\":%" PRIu64 ",\"v_bytes\":%" PRIu64 ",\"side_bytes\":%" PRIu64,
                r->k_bytes, r->v_bytes, r->side_bytes);
    json_number(out, "select_us", r->select_us);
    json_number(out, "attend_us", r->attend_us);
    if (pages) json_pages(out, r);
    strbuf_adds(out, "}");
}

/* ---- The file ---- */

/* Writes `text` and empties it. */
static sac_status emit(struct strbuf *text, sac_error *err)
{
    if (text->failed) return error_set(err, SAC_ERR_MEMORY, "no memory for a record's text");
    if (!output_write(text->data ? text->data : "", text->n))
        return error_set(err, SAC_ERR_IO, "the output is gone");
    strbuf_reset(text);
    return SAC_OK;
}

static sac_status convert(const struct read_options *opt, struct reading *in, struct strbuf *text,
                          sac_error *err)
{
    const bool json = opt->format == FORMAT_JSON;
    struct reading_record r;
    bool more;
    if (json)
        json_head(text, in);
    else
        csv_head(text, opt->pages);
    TRY(emit(text, err));
    for (uint64_t n = 0;; n++) {
        TRY(reading_next(in, &r, &more, err));
        if (!more) break;
        if (json && n) strbuf_adds(text, ",\n");
        if (json)
            json_record(text, in, &r, opt->pages);
        else if (opt->pages)
            csv_pages(text, in, &r);
        else
            csv_record(text, in, &r);
        TRY(emit(text, err));
    }
    if (json) strbuf_adds(text, "]}\n");
    return emit(text, err);
}

int eval_cmd_read(int argc, char **argv)
{
    struct read_options opt = {0};
    const char *path = NULL;
    const struct option_group groups[] = {{"Output", specs, &opt}};
    struct options o = {
        .command = COMMAND,
        .usage = "FILE [options]",
        .summary =
            "Converts a recording (reading.sacr) to CSV: the share of the softmax mass that was "
            "read, its cost and the error of the output, for every step, layer and KV head.",
        .group = groups,
        .n_group = sizeof groups / sizeof groups[0],
        .operand = &path,
        .operand_max = 1,
    };
    const int code = options_parse(&o, argc, argv);
    if (code != OPTIONS_GO_ON) return code;
    if (!path) return options_usage_error(COMMAND, "a recording is missing");
    struct reading in;
    struct strbuf text = {0};
    sac_error err = {0};
    sac_status status = reading_load(&in, path, &err);
    if (status == SAC_OK) status = convert(&opt, &in, &text, &err);
    strbuf_deinit(&text);
    reading_deinit(&in);
    /* A lost output is reported by output_finish. */
    if (status != SAC_OK && !output_is_lost()) return setup_failed(COMMAND, status, err.msg);
    return EXIT_OK;
}
