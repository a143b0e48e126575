/* passages.c: see the header. Tokens are mapped to bytes through the texts of the tokens:
 * concatenated, they are the text that the model read, and the documents are somewhere in it. */
#include "eval/passages.h"

#include "base/mem.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <string.h>

#define SINK_TOK 4u /* first tokens of the prompt, which are attention sinks */

/* ---- Locating documents ---- */

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '\f';
}

/* The end of the word that contains offset `at`, so that passages meet between words. */
static size_t snap(const char *text, size_t n, size_t at)
{
    if (at == 0) return 0;
    while (at < n && !is_space(text[at - 1]) && !is_space(text[at])) at++;
    return at;
}

/* The prompt's text, and the offset at which each token begins in it. */
struct pieces {
    struct strbuf text;
    size_t *tok; /* [n_tok + 1] owned */
};

static sac_status no_memory(sac_error *err)
{
    return error_set(err, SAC_ERR_MEMORY, "out of memory for a reading map");
}

static sac_status join_pieces(struct pieces *out, const struct passages_prompt *prompt,
                              sac_error *err)
{
    out->tok = mem_calloc(prompt->n_tok + 1, sizeof *out->tok);
    if (!out->tok) return no_memory(err);
    for (size_t i = 0; i < prompt->n_tok; i++) {
        size_t n;
        const char *piece = sac_token_piece(prompt->model, prompt->tok[i], true, &n);
        out->tok[i] = out->text.n;
        strbuf_add(&out->text, piece, n);
    }
    out->tok[prompt->n_tok] = out->text.n;
    return out->text.failed ? no_memory(err) : SAC_OK;
}

void passages_add_pieces(struct strbuf *out, const sac_model *model, const int32_t *tok,
                         size_t n_tok)
{
    const size_t from = out->n;
    for (size_t i = 0; i < n_tok; i++) {
        size_t n;
        const char *piece = sac_token_piece(model, tok[i], true, &n);
        strbuf_add(out, piece, n);
    }
    while (!out->failed && out->n > from && out->data[out->n - 1] == '\n') out->n--;
}

static struct passages_document trimmed(struct passages_document d)
{
    while (d.n > 0 && is_space(d.text[d.n - 1])) d.n--;
    while (d.n > 0 && is_space(d.text[0])) d.text++, d.n--;
    return d;
}

/* Cuts a document into passages. Its text begins at byte `at` of the pieces, and at `to` of
 * p->document. */
static void cut(struct passages *p, const struct pieces *pieces, size_t n_tok, size_t at, size_t to)
{
    const char *text = p->text.data + to;
    const size_t n = p->text.n - to;
    uint32_t tok = SINK_TOK;
    while (tok < n_tok && pieces->tok[tok + 1] <= at) tok++;
    while (tok < n_tok && pieces->tok[tok] < at + n) {
        struct passage *out = &p->item[p->n];
        uint32_t end = tok;
        do end++;
        while (end < n_tok && end % SAC_PAGE_TOK && pieces->tok[end] < at + n);
        const size_t from = pieces->tok[tok] > at ? pieces->tok[tok] - at : 0;
        const size_t until = pieces->tok[end] < at + n ? pieces->tok[end] - at : n;
        *out = (struct passage){.tok = tok, .tok_end = end};
        out->begin = snap(text, n, from);
        out->end = snap(text, n, until);
        while (out->begin < out->end && is_space(text[out->begin])) out->begin++;
        tok = end;
        if (out->begin == out->end) continue; /* part of a word, or white space only */
        out->begin += to;
        out->end += to;
        p->n++;
    }
}

static bool begins_char(char c)
{
    return ((unsigned char)c & 0xc0) != 0x80;
}

/* Sets the passages' positions in characters of their document. */
static void count_chars(struct passage *item, size_t n, size_t to, const char *whole,
                        const char *trimmed)
{
    const char *at = whole;
    size_t n_char = 0;
    for (size_t k = 0; k < n; k++) {
        for (const char *end = trimmed + (item[k].begin - to); at < end; at++)
            n_char += begins_char(*at);
        item[k].char_begin = n_char;
        for (const char *end = trimmed + (item[k].end - to); at < end; at++)
            n_char += begins_char(*at);
        item[k].char_end = n_char;
    }
}

/* Sets the page on which the passages from `first` on begin, which belong to document `i`. A form
 * feed separates pages; page breaks that were trimmed off count, too. */
static void name_pages(struct passages *p, size_t first, size_t to, size_t i,
                       const struct passages_document *whole)
{
    const struct passages_document d = trimmed(*whole);
    const bool has_pages = memchr(whole->text, '\f', whole->n);
    const char *at = whole->text;
    uint32_t page = has_pages;
    count_chars(p->item + first, p->n - first, to, whole->text, d.text);
    for (size_t k = first; k < p->n; k++) {
        const char *begin = d.text + (p->item[k].begin - to);
        for (; has_pages && at < begin; at++) page += *at == '\f';
        p->item[k].document = (uint32_t)i;
        p->item[k].page = page;
    }
}

static sac_status find(struct passages *p, const struct pieces *pieces,
                       const struct passages_prompt *prompt, sac_error *err)
{
    size_t from = 0; /* of the pieces: after the previous documents */
    for (size_t i = 0; i < prompt->n_document; i++) {
        const struct passages_document d = trimmed(prompt->document[i]);
        const char *found =
            pieces->text.n ? memmem(pieces->text.data + from, pieces->text.n - from, d.text, d.n)
                           : NULL;
        if (!found && prompt->may_lack) continue;
        if (!found)
            return error_set(
                err, SAC_ERR_UNSUPPORTED,
                "no reading map: the model's template or tokenizer changes the document");
        if (p->text.n) strbuf_adds(&p->text, "\n\n");
        const size_t to = p->text.n, at = (size_t)(found - pieces->text.data);
        strbuf_add(&p->text, d.text, d.n);
        if (p->text.failed) return no_memory(err);
        const size_t first = p->n;
        cut(p, pieces, prompt->n_tok, at, to);
        name_pages(p, first, to, i, &prompt->document[i]);
        from = at + d.n;
    }
    p->document = p->text.data;
    p->n_bytes = p->text.n;
    return SAC_OK;
}

/* ---- Recording ---- */

/* Until passages_share, `share` sums squares and `mass` sums masses. */
void passages_take(void *user, const sac_read_record *r)
{
    struct passages *p = user;
    if (r->layer < p->first_layer || !r->tok_mass) return;
    for (size_t i = 0; i < p->n; i++) {
        double mass = 0;
        for (uint32_t t = p->item[i].tok; t < p->item[i].tok_end && t <= r->pos; t++)
            mass += (double)r->tok_mass[t];
        p->item[i].share += mass * mass;
        p->item[i].mass += mass;
    }
    p->n_record++;
}

sac_status passages_find(struct passages *p, const struct passages_prompt *prompt, sac_error *err)
{
    struct pieces pieces = {0};
    p->first_layer = sac_model_get_info(prompt->model).n_layer / 2;
    /* A document's first and last passage may be shorter than a page. */
    p->item =
        mem_calloc(prompt->n_tok / SAC_PAGE_TOK + 2 * prompt->n_document + 1, sizeof *p->item);
    sac_status status = p->item ? join_pieces(&pieces, prompt, err) : no_memory(err);
    if (status == SAC_OK) status = find(p, &pieces, prompt, err);
    strbuf_deinit(&pieces.text);
    mem_free(pieces.tok);
    return status;
}

sac_status passages_begin(struct passages *p, sac_engine *engine,
                          const struct passages_prompt *prompt, sac_error *err)
{
    TRY(passages_find(p, prompt, err));
    return sac_engine_set_recorder(engine, passages_take, p, err);
}

void passages_share(struct passages *p)
{
    double total = 0;
    for (size_t i = 0; i < p->n; i++) total += p->item[i].share;
    for (size_t i = 0; i < p->n; i++) {
        p->item[i].share = total > 0 ? p->item[i].share / total : 0;
        p->item[i].mass = p->n_record ? p->item[i].mass / (double)p->n_record : 0;
    }
}

sac_status passages_finish(struct passages *p, sac_engine *engine, sac_error *err)
{
    passages_share(p);
    return sac_engine_set_recorder(engine, NULL, NULL, err);
}

void passages_deinit(struct passages *p)
{
    mem_free(p->item);
    strbuf_deinit(&p->text);
    *p = (struct passages){0};
}

unsigned passages_level(double share)
{
    static const double from[PASSAGES_N_LEVEL - 1] = {0.01, 0.04, 0.12, 0.3};
    unsigned level = 0;
    while (level < PASSAGES_N_LEVEL - 1 && share >= from[level]) level++;
    return level;
}

cJSON *passages_json(const struct passages *p)
{
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; i < p->n; i++) {
        cJSON *o = cJSON_CreateObject();
        cJSON_AddNumberToObject(o, "begin", (double)p->item[i].begin);
        cJSON_AddNumberToObject(o, "end", (double)p->item[i].end);
        cJSON_AddNumberToObject(o, "document", p->item[i].document + 1.0);
        if (p->item[i].page) cJSON_AddNumberToObject(o, "page", p->item[i].page);
        cJSON_AddNumberToObject(o, "share", p->item[i].share);
        cJSON_AddNumberToObject(o, "mass", p->item[i].mass);
        cJSON_AddItemToArray(list, o);
    }
    return list;
}
