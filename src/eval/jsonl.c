/* jsonl.c: see the header. When a file is opened, each line is parsed once into a sample without
 * lengths; `make` copies the sample and fits it.
 *
 * These rules of LongBench are kept: the number of tokens of each data set's answers, the metric
 * that judges them, which sets are asked without a chat template, whose answers are cut to the
 * first line, and that a prompt that is too long loses its middle. Its wording can be read from its
 * own file of templates; without this file our own wording is used, and results are comparable only
 * with each other.
 *
 * Not supported: the Chinese sets, whose metrics need a dictionary of words; they are refused by
 * name. */
#include "eval/jsonl.h"

#include "base/mem.h"
#include "base/strbuf.h"
#include "eval/needle.h"
#include "eval/ruler.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct entry {
    char task[TASK_NAME_MAX], place[TASK_PLACE_MAX];
    struct task_sample sample; /* JSONL_NEEDLE: user holds the question, prefix the needle */
};

struct jsonl {
    enum jsonl_format format;
    struct entry *entry; /* [n] */
    size_t n, room;
};

/* The line that is being read, which errors name. */
struct line {
    const struct jsonl_params *params;
    size_t number;
    const cJSON *object;
    const cJSON *templates;
    sac_error *err;
};

/* ---- Fields ---- */

static sac_status wrong(const struct line *l, const char *field, const char *why)
{
    return error_set(l->err, SAC_ERR_FORMAT, "%s:%zu: field '%s' %s", l->params->path, l->number,
                     field, why);
}

static sac_status no_memory(const struct line *l)
{
    return error_set(l->err, SAC_ERR_MEMORY, "out of memory for %s:%zu", l->params->path,
                     l->number);
}

static const cJSON *field(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

/* A string that must be present; it may be empty if `may_be_empty`. */
static sac_status get_text(const char **out, const struct line *l, const cJSON *object,
                           const char *name, bool may_be_empty)
{
    const cJSON *item = field(object, name);
    if (!item) return wrong(l, name, "is missing");
    if (!cJSON_IsString(item)) return wrong(l, name, "is no text");
    if (!may_be_empty && !*item->valuestring) return wrong(l, name, "is empty");
    *out = item->valuestring;
    return SAC_OK;
}

/* A string under one of two names, which suites use for the same field. */
static sac_status get_either(const char **out, const struct line *l, const char *name,
                             const char *other)
{
    return get_text(out, l, l->object, field(l->object, name) ? name : other, false);
}

/* An integer in a range. */
static sac_status get_count(uint32_t *out, const struct line *l, const cJSON *object,
                            const char *name, uint32_t max)
{
    const cJSON *item = field(object, name);
    if (!item) return wrong(l, name, "is missing");
    if (!cJSON_IsNumber(item)) return wrong(l, name, "is no number");
    const double v = item->valuedouble;
    if (!(v >= 0 && v <= max) || v != floor(v)) return wrong(l, name, "is out of range");
    *out = (uint32_t)v;
    return SAC_OK;
}

/* A list of strings, or of numbers, as some suites write their answers. */
static sac_status get_texts(struct strlist *out, const struct line *l, const cJSON *object,
                            const char *name)
{
    const cJSON *list = field(object, name), *item;
    if (!list) return wrong(l, name, "is missing");
    if (!cJSON_IsArray(list)) return wrong(l, name, "is no list");
    cJSON_ArrayForEach(item, list)
    {
        if (cJSON_IsString(item) && *item->valuestring)
            strlist_add(out, item->valuestring);
        else if (cJSON_IsNumber(item))
            strlist_addf(out, "%.17g", item->valuedouble);
        else
            return wrong(l, name, "holds something that is neither a text nor a number");
    }
    if (out->failed) return no_memory(l);
    if (out->n == 0) return wrong(l, name, "is an empty list");
    return SAC_OK;
}

static sac_status set_user(struct task_turn *turn, const struct line *l, struct strbuf *text)
{
    turn->user = strbuf_detach(text, NULL);
    return turn->user ? SAC_OK : no_memory(l);
}

/* ---- LongBench ---- */

struct longbench_set {
    const char *name;
    enum metric metric;
    uint32_t new_tok;
    bool raw, first_line;
};

/* From the suite's configuration: answer lengths, metrics, and how the sets are asked. */
static const struct longbench_set longbench_sets[] = {
    {"narrativeqa", METRIC_F1, 128, false, false},
    {"qasper", METRIC_F1, 128, false, false},
    {"multifieldqa_en", METRIC_F1, 64, false, false},
    {"hotpotqa", METRIC_F1, 32, false, false},
    {"2wikimqa", METRIC_F1, 32, false, false},
    {"musique", METRIC_F1, 32, false, false},
    {"gov_report", METRIC_ROUGE_L, 512, false, false},
    {"qmsum", METRIC_ROUGE_L, 512, false, false},
    {"multi_news", METRIC_ROUGE_L, 512, false, false},
    {"trec", METRIC_CLASSIFICATION, 64, true, true},
    {"triviaqa", METRIC_F1, 32, true, true},
    {"samsum", METRIC_ROUGE_L, 128, true, true},
    {"passage_count", METRIC_COUNT, 32, false, false},
    {"passage_retrieval_en", METRIC_RETRIEVAL, 32, false, false},
    {"lcc", METRIC_CODE, 64, true, false},
    {"repobench-p", METRIC_CODE, 64, true, false},
};

static const struct longbench_set *find_set(const char *name)
{
    size_t n = strlen(name);
    /* LongBench-E names its sets with a suffix. */
    if (n > 2 && strcmp(name + n - 2, "_e") == 0) n -= 2;
    for (size_t i = 0; i < sizeof longbench_sets / sizeof longbench_sets[0]; i++)
        if (strncmp(longbench_sets[i].name, name, n) == 0 && !longbench_sets[i].name[n])
            return &longbench_sets[i];
    return NULL;
}

/* Inserts context and input where a template names them; returns where the context ends. */
static size_t fill_template(struct strbuf *out, const char *template, const char *context,
                            const char *input)
{
    size_t end = 0;
    for (const char *at = template; *at;) {
        const bool is_context = strncmp(at, "{context}", 9) == 0;
        const bool is_input = strncmp(at, "{input}", 7) == 0;
        if (is_context || is_input) {
            strbuf_adds(out, is_context ? context : input);
            at += is_context ? 9 : 7;
            if (is_context) end = out->n;
        } else {
            strbuf_add(out, at++, 1);
        }
    }
    return end;
}

static sac_status read_longbench(struct entry *e, const struct line *l)
{
    const char *context, *input, *name;
    struct strbuf text = {0};
    struct task_turn *turn = task_add_turn(&e->sample);
    TRY(get_text(&name, l, l->object, "dataset", false));
    TRY(get_text(&context, l, l->object, "context", false));
    TRY(get_text(&input, l, l->object, "input", true));
    TRY(get_texts(&turn->expected, l, l->object, "answers"));
    const struct longbench_set *set = find_set(name);
    if (!set) return wrong(l, "dataset", "names a set that is not known here");
    if (set->metric == METRIC_CLASSIFICATION)
        TRY(get_texts(&e->sample.classes, l, l->object, "all_classes"));
    if (set->metric == METRIC_RETRIEVAL && !strstr(turn->expected.item[0], "Paragraph "))
        return wrong(l, "answers", "names no 'Paragraph N'");
    snprintf(e->task, sizeof e->task, "%s", name);
    e->sample.metric = set->metric;
    e->sample.raw = set->raw;
    turn->new_tok = set->new_tok;
    turn->first_line = set->first_line;
    const cJSON *template = field(l->templates, set->name);
    if (cJSON_IsString(template)) {
        turn->question_at = fill_template(&text, template->valuestring, context, input);
    } else if (l->templates) {
        return error_set(l->err, SAC_ERR_NOT_FOUND, "%s:%zu: no template for '%s'", l->params->path,
                         l->number, set->name);
    } else if (set->metric == METRIC_CODE) {
        strbuf_addf(&text, "%s%s", context, input); /* the code is to be continued as it is */
        turn->question_at = text.n;
    } else {
        strbuf_addf(&text, "%s\n\n", context);
        turn->question_at = text.n;
        strbuf_adds(&text, input);
        if (!*input) strbuf_adds(&text, "Write a summary of the text above.");
        strbuf_adds(&text, "\nAnswer:");
    }
    return set_user(turn, l, &text);
}

/* ---- RULER ---- */

/* The folder of the file, which RULER names after the task; without one, the file. */
static void task_of_path(char task[TASK_NAME_MAX], const char *path)
{
    const char *end = strrchr(path, '/'), *start = end;
    if (end)
        while (start > path && start[-1] != '/') start--;
    snprintf(task, TASK_NAME_MAX, "%.*s", end ? (int)(end - start) : 0, start ? start : "");
    if (ruler_has(task)) return;
    const char *file = end ? end + 1 : path;
    snprintf(task, TASK_NAME_MAX, "%.*s", (int)strcspn(file, "."), file);
}

/* The offset of the last line that is not blank. The suite's files do not mark the question, but
 * all of its tasks put it there. */
static size_t last_line(const char *text)
{
    size_t n = strlen(text);
    while (n > 0 && strchr(" \n", text[n - 1])) n--;
    while (n > 0 && text[n - 1] != '\n') n--;
    return n;
}

static sac_status read_ruler(struct entry *e, const struct line *l)
{
    const char *input, *prefix = NULL;
    uint32_t ignored;
    struct strbuf text = {0};
    struct task_turn *turn = task_add_turn(&e->sample);
    TRY(get_count(&ignored, l, l->object, "index", UINT32_MAX));
    TRY(get_text(&input, l, l->object, "input", false));
    TRY(get_texts(&turn->expected, l, l->object, "outputs"));
    if (field(l->object, "answer_prefix"))
        TRY(get_text(&prefix, l, l->object, "answer_prefix", true));
    if (l->params->task)
        snprintf(e->task, sizeof e->task, "%s", l->params->task);
    else
        task_of_path(e->task, l->params->path);
    e->sample.metric = METRIC_ALL_MATCH;
    turn->new_tok = 128; /* for tasks that are not RULER's */
    ruler_rules(e->task, &turn->new_tok, &e->sample.metric);
    if (prefix && *prefix) {
        turn->prefix = mem_strdup(prefix + strspn(prefix, " "));
        if (!turn->prefix) return no_memory(l);
    }
    strbuf_adds(&text, input);
    turn->question_at = last_line(input);
    return set_user(turn, l, &text);
}

/* ---- LoopServe ---- */

static sac_status loopserve_metric(enum metric *out, const struct line *l)
{
    const char *name;
    TRY(get_text(&name, l, l->object, "metric", false));
    *out = strcmp(name, "rougeL_recall") == 0 ? METRIC_ROUGE_L_RECALL : score_metric_find(name);
    if (*out != METRIC_F1 && *out != METRIC_ROUGE_L_RECALL && *out != METRIC_CLASSIFICATION &&
        *out != METRIC_ALL_MATCH)
        return wrong(l, "metric", "is none of f1, rougeL_recall, accuracy, all_match");
    return SAC_OK;
}

/* Records the segment ids of a turn, and checks that those which support its answer are known. */
static sac_status check_support(struct strlist *seen, const struct line *l, const cJSON *turn)
{
    const cJSON *segment, *support = field(turn, "support"), *id;
    cJSON_ArrayForEach(segment, field(turn, "segments"))
    {
        const char *sid;
        TRY(get_text(&sid, l, segment, "sid", false));
        if (strlist_has(seen, sid)) return wrong(l, "sid", "names two segments");
        strlist_add(seen, sid);
    }
    if (seen->failed) return no_memory(l);
    if (support && !cJSON_IsArray(support)) return wrong(l, "support", "is no list");
    cJSON_ArrayForEach(id, support)
    {
        if (!cJSON_IsString(id) || !strlist_has(seen, id->valuestring))
            return wrong(l, "support", "names a segment that has not been seen");
    }
    return SAC_OK;
}

/* begin: question, segments. end: segments, question. middle: `cut` segments, question, the rest.
 * *out_end is the offset at which the last segment ends. */
static sac_status render_turn(struct strbuf *out, size_t *out_end, const struct line *l,
                              const cJSON *turn, const char *qpos, const char *question)
{
    const cJSON *segment;
    const uint32_t n = (uint32_t)cJSON_GetArraySize(field(turn, "segments"));
    uint32_t cut = strcmp(qpos, "begin") == 0 ? 0 : n, i = 0;
    if (strcmp(qpos, "middle") == 0) TRY(get_count(&cut, l, turn, "cut", n));
    cJSON_ArrayForEach(segment, field(turn, "segments"))
    {
        const char *text;
        TRY(get_text(&text, l, segment, "text", false));
        if (i++ == cut) strbuf_addf(out, "Question: %s\n\n", question);
        strbuf_addf(out, "%s\n\n", text);
    }
    *out_end = out->n;
    if (cut == n) strbuf_addf(out, "Question: %s\n\n", question);
    strbuf_adds(out, "Answer the question.");
    return SAC_OK;
}

static sac_status read_turn(struct entry *e, const struct line *l, const cJSON *item,
                            struct strlist *seen)
{
    const char *question;
    struct strbuf text = {0};
    struct task_turn *turn = task_add_turn(&e->sample);
    if (!cJSON_IsObject(item)) return wrong(l, "turns", "holds something that is no object");
    if (!cJSON_IsArray(field(item, "segments")))
        return wrong(l, "segments", "is missing or no list");
    TRY(get_text(&question, l, item, "question", false));
    TRY(get_texts(&turn->expected, l, item, "answers"));
    TRY(get_count(&turn->new_tok, l, item, "max_new", 4096));
    if (turn->new_tok == 0) return wrong(l, "max_new", "is out of range");
    TRY(check_support(seen, l, item));
    const sac_status status = render_turn(&text, &turn->question_at, l, item, e->place, question);
    if (status == SAC_OK) return set_user(turn, l, &text);
    strbuf_deinit(&text);
    return status;
}

static sac_status read_loopserve(struct entry *e, const struct line *l)
{
    const char *id, *type, *qpos;
    struct strlist seen = {0};
    TRY(get_text(&id, l, l->object, "id", false));
    TRY(get_text(&type, l, l->object, "type", false));
    TRY(get_text(&qpos, l, l->object, "qpos", false));
    if (strcmp(qpos, "begin") != 0 && strcmp(qpos, "middle") != 0 && strcmp(qpos, "end") != 0)
        return wrong(l, "qpos", "is none of begin, middle, end");
    TRY(loopserve_metric(&e->sample.metric, l));
    if (e->sample.metric == METRIC_CLASSIFICATION)
        TRY(get_texts(&e->sample.classes, l, l->object, "classes"));
    snprintf(e->task, sizeof e->task, "%s", type);
    snprintf(e->place, sizeof e->place, "%s", qpos);
    const cJSON *turns = field(l->object, "turns"), *item;
    if (!cJSON_IsArray(turns)) return wrong(l, "turns", "is missing or no list");
    const int n = cJSON_GetArraySize(turns);
    if (n < 1 || n > (int)TASK_TURN_MAX) return wrong(l, "turns", "has none, or more than 8");
    sac_status status = SAC_OK;
    cJSON_ArrayForEach(item, turns)
    {
        if (status == SAC_OK) status = read_turn(e, l, item, &seen);
    }
    strlist_deinit(&seen);
    return status;
}

/* ---- Needle data ---- */

static sac_status read_needle(struct entry *e, const struct line *l)
{
    const char *needle, *question, *answer;
    struct task_turn *turn = task_add_turn(&e->sample);
    TRY(get_text(&needle, l, l->object, "needle", false));
    TRY(get_either(&question, l, "question", "retrieval_question"));
    if (field(l->object, "keywords")) {
        TRY(get_texts(&turn->expected, l, l->object, "keywords"));
    } else {
        TRY(get_either(&answer, l, "answer", "gold_standard_answer"));
        strlist_add(&turn->expected, answer);
    }
    snprintf(e->task, sizeof e->task, "needle_file");
    turn->user = mem_strdup(question);
    turn->prefix = mem_strdup(needle);
    return turn->user && turn->prefix && !turn->expected.failed ? SAC_OK : no_memory(l);
}

/* ---- Files ---- */

static sac_status read_entry(struct jsonl *j, const struct line *l)
{
    static sac_status (*const readers[])(struct entry *, const struct line *) = {
        [JSONL_LONGBENCH] = read_longbench,
        [JSONL_RULER] = read_ruler,
        [JSONL_LOOPSERVE] = read_loopserve,
        [JSONL_NEEDLE] = read_needle,
    };
    if (j->n == j->room) {
        const size_t room = j->room ? 2 * j->room : 64;
        struct entry *grown = mem_realloc(j->entry, room * sizeof *grown);
        if (!grown) return no_memory(l);
        j->entry = grown;
        j->room = room;
    }
    struct entry *e = &j->entry[j->n++]; /* counted first, so that closing frees it */
    *e = (struct entry){0};
    return readers[j->format](e, l);
}

static sac_status read_lines(struct jsonl *j, const struct jsonl_params *params,
                             const cJSON *templates, sac_error *err)
{
    struct line l = {.params = params, .templates = templates, .err = err};
    for (size_t at = 0; at < params->n_bytes;) {
        const char *line = params->text + at, *end = memchr(line, '\n', params->n_bytes - at);
        const size_t n = end ? (size_t)(end - line) : params->n_bytes - at;
        size_t blank = 0;
        l.number++;
        at += n + 1;
        while (blank < n && strchr(" \t\r", line[blank]) && line[blank]) blank++;
        if (blank == n) continue;
        cJSON *object = cJSON_ParseWithLength(line, n);
        l.object = object;
        const sac_status status = cJSON_IsObject(object)
                                      ? read_entry(j, &l)
                                      : error_set(err, SAC_ERR_FORMAT, "%s:%zu: not a JSON object",
                                                  params->path, l.number);
        cJSON_Delete(object);
        if (status != SAC_OK) return status;
    }
    if (j->n == 0) return error_set(err, SAC_ERR_FORMAT, "%s: no line", params->path);
    return SAC_OK;
}

sac_status jsonl_open(struct jsonl **out, const struct jsonl_params *params, sac_error *err)
{
    struct jsonl *j = mem_calloc(1, sizeof *j);
    cJSON *templates = params->templates ? cJSON_Parse(params->templates) : NULL;
    sac_status status;
    if (!j)
        status = error_set(err, SAC_ERR_MEMORY, "out of memory for %s", params->path);
    else if (params->templates && !cJSON_IsObject(templates))
        status = error_set(err, SAC_ERR_FORMAT, "the templates are no JSON object");
    else {
        j->format = params->format;
        status = read_lines(j, params, templates, err);
    }
    cJSON_Delete(templates);
    if (status == SAC_OK)
        *out = j;
    else
        jsonl_close(j);
    return status;
}

void jsonl_close(struct jsonl *j)
{
    if (!j) return;
    for (size_t i = 0; i < j->n; i++) task_sample_deinit(&j->entry[i].sample);
    mem_free(j->entry);
    mem_free(j);
}

size_t jsonl_count(const struct jsonl *j)
{
    return j->n;
}

void jsonl_cell(const struct jsonl *j, size_t i, struct task_cell *out)
{
    assert(i < j->n);
    *out = (struct task_cell){.depth = -1, .index = (uint32_t)i};
    snprintf(out->task, sizeof out->task, "%s", j->entry[i].task);
    snprintf(out->place, sizeof out->place, "%s", j->entry[i].place);
}

/* ---- Samples ---- */

static sac_status copy_sample(struct task_sample *out, const struct task_sample *in, sac_error *err)
{
    bool ok = true;
    out->metric = in->metric;
    out->raw = in->raw;
    for (size_t i = 0; i < in->classes.n; i++) strlist_add(&out->classes, in->classes.item[i]);
    for (uint32_t t = 0; t < in->n_turn; t++) {
        const struct task_turn *from = &in->turn[t];
        struct task_turn *to = task_add_turn(out);
        to->user = mem_strdup(from->user);
        to->prefix = from->prefix ? mem_strdup(from->prefix) : NULL;
        to->question_at = from->question_at;
        to->new_tok = from->new_tok;
        to->first_line = from->first_line;
        for (size_t i = 0; i < from->expected.n; i++)
            strlist_add(&to->expected, from->expected.item[i]);
        ok &= to->user && (!from->prefix || to->prefix) && !to->expected.failed;
    }
    return ok && !out->classes.failed
               ? SAC_OK
               : error_set(err, SAC_ERR_MEMORY, "out of memory for a sample");
}

/* Removes n_over tokens, and a few more, from the middle of the first turn's text. */
static sac_status cut_middle(const struct task_text *t, struct task_sample *s, uint32_t n_over,
                             sac_error *err)
{
    struct task_turn *turn = &s->turn[0];
    int32_t *tok = NULL;
    size_t n = 0, n_head = 0, n_tail = 0, n_bytes, n_behind;
    char *head = NULL, *tail = NULL;
    struct strbuf text = {0};
    sac_status status;
    TRY(sac_tokenize(t->model, turn->user, strlen(turn->user), 0, &tok, &n, err));
    const size_t n_cut = (size_t)n_over + 8; /* the parts that remain may form new tokens */
    if (n <= n_cut) {
        status = error_set(err, SAC_ERR_CONTEXT, "%u tokens too many", n_over);
        goto fail;
    }
    n_head = (n - n_cut) / 2;
    n_tail = n - n_cut - n_head;
    TRY_FAIL(sac_detokenize(t->model, tok, n_head, false, &head, &n_bytes, err));
    TRY_FAIL(sac_detokenize(t->model, tok + n - n_tail, n_tail, false, &tail, &n_bytes, err));
    strbuf_addf(&text, "%s%s", head, tail);
    n_behind = strlen(turn->user) - turn->question_at;
    turn->question_at = text.n - (n_behind < strlen(tail) ? n_behind : strlen(tail));
    mem_free(turn->user);
    turn->user = strbuf_detach(&text, NULL);
    if (!turn->user) status = error_set(err, SAC_ERR_MEMORY, "out of memory for a text");
fail:
    sac_free(tok);
    sac_free(head);
    sac_free(tail);
    return status;
}

static sac_status make_needle(const struct jsonl_args *a, const struct entry *e,
                              const struct task_text *t, const struct task_cell *cell,
                              struct task_sample *out, sac_error *err)
{
    const struct task_turn *turn = &e->sample.turn[0];
    const struct needle_args args = {
        .haystack = a->haystack,
        .seed = a->seed,
        .kind = NEEDLE_GIVEN,
        .n_needle = 1,
        .needle = turn->prefix,
        .question = turn->user,
        .expected = &turn->expected,
    };
    assert(a->haystack);
    return needle_make(&args, t, cell, out, err);
}

sac_status jsonl_make(const void *arg, const struct task_text *t, const struct task_cell *cell,
                      struct task_sample *out, sac_error *err)
{
    const struct jsonl_args *a = arg;
    assert(cell->index < a->jsonl->n);
    const struct entry *e = &a->jsonl->entry[cell->index];
    uint32_t n = 0;
    if (a->jsonl->format == JSONL_NEEDLE) return make_needle(a, e, t, cell, out, err);
    TRY(copy_sample(out, &e->sample, err));
    TRY(task_length(t, out, &n, err));
    if (n <= cell->ctx) return SAC_OK;
    if (a->jsonl->format != JSONL_LONGBENCH)
        return error_set(err, SAC_ERR_CONTEXT, "a sample of %u tokens in a context of %u", n,
                         cell->ctx);
    TRY(cut_middle(t, out, n - cell->ctx, err));
    TRY(task_length(t, out, &n, err));
    if (n <= cell->ctx) return SAC_OK;
    return error_set(err, SAC_ERR_CONTEXT, "a sample of %u tokens in a context of %u after a cut",
                     n, cell->ctx);
}
