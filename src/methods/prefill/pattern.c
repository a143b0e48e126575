/* pattern.c: reads a table of head patterns, checking every line, and writes one from what was
 * learned. See the header for the format. The winning pattern is determined here, the scores of the
 * candidates in minference.c. */
#include "methods/prefill/pattern.h"

#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct pattern pattern_candidates[PATTERN_CANDIDATES] = {
    {PATTERN_LINES, 30, 800},   {PATTERN_LINES, 100, 750}, {PATTERN_LINES, 500, 700},
    {PATTERN_LINES, 3500, 100}, {PATTERN_ENDS, 100, 800},  {PATTERN_BLOCKS, 8, 0}};

/* The pattern that the authors write where blocks win. */
static const struct pattern for_blocks = {PATTERN_LINES, 1000, 6096};

static const char *const family_names[] = {"lines", "ends"};

static uint32_t n_head_of(const struct method_shape *s)
{
    return s->geom->n_kv_head * s->group;
}

size_t pattern_table_bytes(const struct method_shape *s)
{
    return (size_t)s->geom->n_layer * n_head_of(s) * sizeof(struct pattern_head);
}

/* ---- Reading ---- */

struct reader {
    const char *at;
    uint32_t line;
    char text[256]; /* the current line */
};

/* The next line that is neither empty nor a comment, or false at the end. */
static bool next_line(struct reader *r)
{
    while (*r->at) {
        const size_t n = strcspn(r->at, "\n");
        snprintf(r->text, sizeof r->text, "%.*s", (int)(n < 4096 ? n : 4096), r->at);
        r->at += n + (r->at[n] == '\n');
        r->line++;
        if (r->text[strspn(r->text, " \t\r")] && r->text[0] != '#') return true;
    }
    return false;
}

/* The next number of a line; false if there is none. */
static bool next_number(char **at, uint32_t *out)
{
    char *end;
    if (**at < '0' || **at > '9') return false;
    const unsigned long v = strtoul(*at, &end, 10);
    if (v > UINT32_MAX) return false;
    *out = (uint32_t)v;
    *at = end + strspn(end, " \t");
    return true;
}

static bool next_word(char **at, const char *word)
{
    const size_t n = strlen(word);
    if (strncmp(*at, word, n) != 0 || !strchr(" \t", (*at)[n])) return false;
    *at += n + strspn(*at + n, " \t");
    return true;
}

/* The rest of a line is empty or a comment. */
static bool at_end(const char *at)
{
    at += strspn(at, " \t\r");
    return *at == 0 || *at == '#';
}

static sac_status read_head_lines(struct reader *r, const struct method_shape *s, sac_error *err)
{
    uint32_t n_layer = 0, n_head = 0;
    char *at;
    if (!next_line(r) || strcmp(r->text, "saccade minference 1") != 0)
        return error_set(err, SAC_ERR_FORMAT,
                         "line %u: a table of heads begins with 'saccade minference 1'", r->line);
    if (!next_line(r) || strncmp(r->text, "model ", 6) != 0)
        return error_set(err, SAC_ERR_FORMAT, "line %u: 'model NAME' is missing", r->line);
    if (strcmp(r->text + 6, s->model) != 0)
        return error_set(err, SAC_ERR_ARG, "line %u: the table is for model '%s', this is '%s'",
                         r->line, r->text + 6, s->model);
    at = r->text;
    if (!next_line(r) || !next_word(&at, "layers") || !next_number(&at, &n_layer) ||
        !next_word(&at, "heads") || !next_number(&at, &n_head) || !at_end(at))
        return error_set(err, SAC_ERR_FORMAT, "line %u: 'layers N heads N' is missing", r->line);
    if (n_layer != s->geom->n_layer || n_head != n_head_of(s))
        return error_set(err, SAC_ERR_ARG,
                         "line %u: the table is for %u layers of %u heads, the model has %u of %u",
                         r->line, n_layer, n_head, s->geom->n_layer, n_head_of(s));
    return SAC_OK;
}

static sac_status read_head(struct pattern_head *table, struct reader *r,
                            const struct method_shape *s, sac_error *err)
{
    uint32_t layer, head;
    char *at = r->text;
    struct pattern p = {0};
    bool good = next_number(&at, &layer) && next_number(&at, &head);
    if (good && next_word(&at, family_names[PATTERN_ENDS]))
        p.family = PATTERN_ENDS;
    else
        good = good && next_word(&at, family_names[PATTERN_LINES]);
    if (!good || !next_number(&at, &p.a) || !next_number(&at, &p.b) || !at_end(at) || p.a == 0 ||
        p.b == 0)
        return error_set(err, SAC_ERR_FORMAT,
                         "line %u: '%.60s' is not LAYER HEAD lines COLUMNS SLASHES, nor LAYER HEAD "
                         "ends SINK WINDOW",
                         r->line, r->text);
    if (layer >= s->geom->n_layer || head >= n_head_of(s))
        return error_set(err, SAC_ERR_ARG, "line %u: there is no head %u in layer %u", r->line,
                         head, layer);
    struct pattern *out = &table[(size_t)layer * n_head_of(s) + head].pattern;
    if (out->b != 0)
        return error_set(err, SAC_ERR_FORMAT, "line %u: layer %u, head %u is there twice", r->line,
                         layer, head);
    *out = p;
    return SAC_OK;
}

sac_status pattern_table_read(void *table, const struct method_shape *s, const char *text,
                              sac_error *err)
{
    struct reader r = {.at = text};
    struct pattern_head *heads = table;
    TRY(read_head_lines(&r, s, err));
    while (next_line(&r)) TRY(read_head(heads, &r, s, err));
    for (uint32_t i = 0; i < s->geom->n_layer * n_head_of(s); i++)
        if (heads[i].pattern.b == 0)
            return error_set(err, SAC_ERR_FORMAT, "there is no line for layer %u, head %u",
                             i / n_head_of(s), i % n_head_of(s));
    return SAC_OK;
}

/* ---- Writing ---- */

sac_status pattern_table_write(const void *table, const struct method_shape *s, struct strbuf *out,
                               sac_error *err)
{
    const struct pattern_head *heads = table;
    strbuf_addf(out, "saccade minference 1\nmodel %s\nlayers %u heads %u\n", s->model,
                s->geom->n_layer, n_head_of(s));
    strbuf_adds(out, "# layer, head, pattern; behind it the attention that it kept\n");
    for (uint32_t i = 0; i < s->geom->n_layer * n_head_of(s); i++) {
        size_t best = 0;
        if (!(heads[i].n_row > 0))
            return error_set(err, SAC_ERR_CONTEXT,
                             "nothing was learnt of layer %u, head %u: prompts must be longer than "
                             "2,500 tokens, and scores finite",
                             i / n_head_of(s), i % n_head_of(s));
        for (size_t j = 1; j < PATTERN_CANDIDATES; j++)
            if (heads[i].mass[j] > heads[i].mass[best]) best = j;
        const bool is_block = pattern_candidates[best].family == PATTERN_BLOCKS;
        const struct pattern *p = is_block ? &for_blocks : &pattern_candidates[best];
        strbuf_addf(out, "%u %u %s %u %u # %.4f%s\n", i / n_head_of(s), i % n_head_of(s),
                    family_names[p->family], p->a, p->b, heads[i].mass[best] / heads[i].n_row,
                    is_block ? " by blocks" : "");
    }
    return SAC_OK;
}
