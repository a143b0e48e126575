/* samples.c: see the header. Rows are kept in memory as well, for the summary and to look up what
 * is done.
 *
 * A prompt longer than PROMPT_MAX is represented by its hash; task, ctx, depth, place, index and
 * seed generate it again. */
#include "eval/samples.h"

#include "base/mem.h"
#include "base/strbuf.h"
#include "eval/rng.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROMPT_MAX 4096u
#define RUN_CHARS  17

struct samples {
    FILE *file; /* NULL, like `path`: rows stay in memory */
    char *path;
    char run[RUN_CHARS];
    struct sample_row *row; /* [n_row] */
    size_t n_row, room;
};

/* ---- Reading ---- */

static bool keep_row(struct samples *s, const struct sample_row *row)
{
    if (s->n_row == s->room) {
        const size_t room = s->room ? 2 * s->room : 64;
        struct sample_row *grown = mem_realloc(s->row, room * sizeof *grown);
        if (!grown) return false;
        s->row = grown;
        s->room = room;
    }
    s->row[s->n_row++] = *row;
    return true;
}

static const char *text_of(const cJSON *o, const char *key)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(o, key));
    return text ? text : "";
}

/* NAN for null and for anything that is not a number. */
static double number_of(const cJSON *o, const char *key)
{
    return cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(o, key));
}

static uint32_t count_of(const cJSON *o, const char *key)
{
    const double v = number_of(o, key);
    return v >= 0 && v <= UINT32_MAX ? (uint32_t)v : 0;
}

static void row_of(struct sample_row *row, const cJSON *o)
{
    const double depth = number_of(o, "depth");
    *row = (struct sample_row){
        .cell = {.ctx = count_of(o, "ctx"),
                 .depth = isnan(depth) ? -1 : depth,
                 .index = count_of(o, "index")},
        .turn = count_of(o, "turn"),
        .prompt_n = count_of(o, "prompt_n"),
        .predicted_n = count_of(o, "predicted_n"),
        .rows = {.all = strcmp(text_of(o, "decode_rows"), "question") == 0,
                 .n = count_of(o, "decode_rows_n")},
        .score = number_of(o, "score"),
        .ttft_ms = number_of(o, "ttft_ms"),
        .prompt_per_s = number_of(o, "prompt_per_second"),
        .predicted_per_s = number_of(o, "predicted_per_second"),
        .share_read = number_of(o, "share_read"),
        .chosen = number_of(o, "chosen"),
        .planned_share = number_of(o, "planned_share"),
        .mass_mean = number_of(o, "mass_mean"),
    };
    for (unsigned i = 0; i < TRAFFIC_FIELDS; i++)
        *traffic_field(&row->traffic, i) = number_of(o, traffic_name[i]);
    snprintf(row->cell.task, sizeof row->cell.task, "%s", text_of(o, "task"));
    snprintf(row->cell.place, sizeof row->cell.place, "%s", text_of(o, "place"));
    snprintf(row->method, sizeof row->method, "%s", text_of(o, "method"));
}

static sac_status read_line(struct samples *s, const char *line, size_t n, size_t number,
                            sac_error *err)
{
    struct sample_row row;
    cJSON *o = cJSON_ParseWithLength(line, n);
    sac_status status = SAC_OK;
    if (!cJSON_IsObject(o))
        status = error_set(err, SAC_ERR_FORMAT, "%s:%zu: not a JSON object", s->path, number);
    else if (strcmp(text_of(o, "run"), s->run) != 0)
        status = error_set(err, SAC_ERR_ARG,
                           "%s:%zu: made with another model or other settings (field 'run'); "
                           "choose another folder",
                           s->path, number);
    if (status == SAC_OK) {
        row_of(&row, o);
        if (!row.method[0] || !row.cell.task[0] || isnan(row.score))
            status = error_set(err, SAC_ERR_FORMAT, "%s:%zu: no field 'task', 'method' or 'score'",
                               s->path, number);
        else if (!keep_row(s, &row))
            status = error_set(err, SAC_ERR_MEMORY, "out of memory for %s", s->path);
    }
    cJSON_Delete(o);
    return status;
}

static sac_status read_rows(struct samples *s, sac_error *err)
{
    struct strbuf text = {0};
    char chunk[65536];
    size_t n, done = 0, number = 0;
    sac_status status = SAC_OK;
    while ((n = fread(chunk, 1, sizeof chunk, s->file)) > 0) strbuf_add(&text, chunk, n);
    if (ferror(s->file) || text.failed)
        status = error_set(err, SAC_ERR_IO, "cannot read %s: %s", s->path,
                           text.failed ? "out of memory" : strerror(errno));
    while (status == SAC_OK && done < text.n) {
        const char *line = text.data + done, *end = memchr(line, '\n', text.n - done);
        if (!end) break;
        status = read_line(s, line, (size_t)(end - line), ++number, err);
        done += (size_t)(end - line) + 1;
    }
    if (status == SAC_OK && done < text.n && ftruncate(fileno(s->file), (off_t)done) != 0)
        status = error_set(err, SAC_ERR_IO, "cannot cut the last line of %s: %s", s->path,
                           strerror(errno));
    strbuf_deinit(&text);
    return status;
}

sac_status samples_open(struct samples **out, const char *path, uint64_t run, sac_error *err)
{
    struct samples *s = mem_calloc(1, sizeof *s);
    sac_status status;
    if (!s) return error_set(err, SAC_ERR_MEMORY, "out of memory for samples");
    snprintf(s->run, sizeof s->run, "%016" PRIx64, run);
    *out = s;
    if (!path) return SAC_OK;
    s->path = mem_strdup(path);
    s->file = fopen(path, "a+"); /* "a+": writes go to the end, wherever the file was read */
    if (!s->file || !s->path)
        status = error_set(err, SAC_ERR_IO, "cannot open %s: %s", path, strerror(errno));
    else
        status = read_rows(s, err);
    if (status != SAC_OK) {
        samples_close(s);
        *out = NULL;
    }
    return status;
}

void samples_close(struct samples *s)
{
    if (!s) return;
    if (s->file) fclose(s->file); /* every row was flushed when it was added */
    mem_free(s->path);
    mem_free(s->row);
    mem_free(s);
}

size_t samples_count(const struct samples *s)
{
    return s->n_row;
}

const struct sample_row *samples_row(const struct samples *s, size_t i)
{
    assert(i < s->n_row);
    return &s->row[i];
}

/* Depths are compared as the file prints them. */
static bool same_cell(const struct task_cell *a, const struct task_cell *b)
{
    return a->ctx == b->ctx && a->index == b->index && fabs(a->depth - b->depth) < 1e-6 &&
           strcmp(a->task, b->task) == 0 && strcmp(a->place, b->place) == 0;
}

bool samples_has(const struct samples *s, const struct task_cell *cell, const char *method,
                 uint32_t turn)
{
    for (size_t i = 0; i < s->n_row; i++)
        if (s->row[i].turn == turn && strcmp(s->row[i].method, method) == 0 &&
            same_cell(&s->row[i].cell, cell))
            return true;
    return false;
}

/* ---- Writing ---- */

/* With enough digits to restore the same number: cJSON rounds, and a resumed run would compute
 * slightly different means. */
static void add_number(cJSON *o, const char *key, double v)
{
    char text[32];
    if (!isfinite(v)) {
        cJSON_AddNullToObject(o, key);
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
    }
    cJSON_AddRawToObject(o, key, text);
}

/* All digits: a seed may be larger than what a double holds exactly. */
static void add_whole(cJSON *o, const char *key, uint64_t v)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, v);
    cJSON_AddRawToObject(o, key, text);
}

static void add_prompt(cJSON *o, const struct task_turn *turn)
{
    char hash[RUN_CHARS];
    const size_t n = strlen(turn->user);
    if (n <= PROMPT_MAX) {
        cJSON_AddStringToObject(o, "prompt", turn->user);
    } else {
        snprintf(hash, sizeof hash, "%016" PRIx64, rng_hash(turn->user, n));
        cJSON_AddStringToObject(o, "prompt_hash", hash);
    }
    if (turn->prefix) cJSON_AddStringToObject(o, "prefix", turn->prefix);
}

static cJSON *json_of(const struct samples *s, const struct sample_row *row,
                      const struct sample_text *text)
{
    const struct task_turn *turn = &text->sample->turn[row->turn];
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "task", row->cell.task);
    if (row->cell.place[0]) cJSON_AddStringToObject(o, "place", row->cell.place);
    cJSON_AddNumberToObject(o, "ctx", row->cell.ctx);
    add_number(o, "depth", row->cell.depth >= 0 ? row->cell.depth : (double)NAN);
    cJSON_AddNumberToObject(o, "index", row->cell.index);
    cJSON_AddNumberToObject(o, "turn", row->turn);
    cJSON_AddStringToObject(o, "method", row->method);
    add_whole(o, "seed", text->seed);
    cJSON_AddStringToObject(o, "run", s->run);
    cJSON_AddNumberToObject(o, "prompt_n", row->prompt_n);
    cJSON_AddNumberToObject(o, "predicted_n", row->predicted_n);
    cJSON_AddStringToObject(o, "decode_rows", question_name(&row->rows));
    cJSON_AddNumberToObject(o, "decode_rows_n", row->rows.n);
    add_prompt(o, turn);
    cJSON_AddItemToObject(
        o, "expected",
        cJSON_CreateStringArray((const char *const *)turn->expected.item, (int)turn->expected.n));
    cJSON_AddStringToObject(o, "answer", text->answer);
    add_number(o, "score", row->score);
    cJSON_AddStringToObject(o, "metric", score_metric_name(text->sample->metric));
    add_number(o, "ttft_ms", row->ttft_ms);
    add_number(o, "prompt_per_second", row->prompt_per_s);
    add_number(o, "predicted_per_second", row->predicted_per_s);
    add_number(o, "share_read", row->share_read);
    traffic_json(o, &row->traffic);
    add_number(o, "chosen", row->chosen);
    add_number(o, "planned_share", row->planned_share);
    add_number(o, "mass_mean", row->mass_mean);
    return o;
}

static sac_status write_row(struct samples *s, const struct sample_row *row,
                            const struct sample_text *text, sac_error *err)
{
    cJSON *o = json_of(s, row, text);
    char *line = cJSON_PrintUnformatted(o);
    cJSON_Delete(o);
    if (!line) return error_set(err, SAC_ERR_MEMORY, "out of memory for a row of %s", s->path);
    const bool written = fprintf(s->file, "%s\n", line) > 0 && fflush(s->file) == 0;
    cJSON_free(line);
    return written ? SAC_OK
                   : error_set(err, SAC_ERR_IO, "cannot write %s: %s", s->path, strerror(errno));
}

sac_status samples_add(struct samples *s, const struct sample_row *row,
                       const struct sample_text *text, sac_error *err)
{
    const sac_status status = s->file ? write_row(s, row, text, err) : SAC_OK;
    if (status == SAC_OK && !keep_row(s, row))
        return error_set(err, SAC_ERR_MEMORY, "out of memory for samples");
    return status;
}
