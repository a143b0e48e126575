/* passages.c: see the header. The way from pages to bytes goes through the pieces of the tokens:
 * joined, they are the text that the model read, and the document stands somewhere in it. */
#include "app/passages.h"

#include "base/mem.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <string.h>

#define PAGE_TOK 32u /* of a recorded page */

/* ---- Recording ---- */

static void on_record(void *user, const sac_read_record *r)
{
    struct passages *p = user;
    if (r->layer < p->first_layer) return;
    const size_t n = r->n_page < p->n_page ? r->n_page : p->n_page;
    for (size_t i = 0; i < n; i++) {
        const double mass = (double)r->page_mass[i];
        p->weight[i] += mass * mass;
        p->mass[i] += mass;
    }
    p->n_record++;
}

sac_status passages_begin(struct passages *p, sac_engine *engine, uint32_t n_layer, size_t n_tok,
                          sac_error *err)
{
    p->first_layer = n_layer / 2;
    p->n_page = n_tok / PAGE_TOK + 1;
    p->weight = mem_calloc(p->n_page, sizeof *p->weight);
    p->mass = mem_calloc(p->n_page, sizeof *p->mass);
    if (!p->weight || !p->mass)
        return error_set(err, SAC_ERR_MEMORY, "out of memory for a map of %zu pages", p->n_page);
    return sac_engine_set_recorder(engine, on_record, p, err);
}

/* ---- From pages to passages ---- */

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* The end of the word that the place is inside of, so that neighbours meet between words. */
static size_t snap(const char *text, size_t n, size_t at)
{
    if (at == 0) return 0;
    while (at < n && !is_space(text[at - 1]) && !is_space(text[at])) at++;
    return at;
}

/* Where each page begins in the joined pieces, and these. */
struct pieces {
    struct strbuf text;
    size_t *page; /* [n_page + 1] owned */
};

static sac_status join_pieces(struct pieces *out, const struct passages *p,
                              const struct passages_prompt *prompt, sac_error *err)
{
    out->page = mem_calloc(p->n_page + 1, sizeof *out->page);
    if (!out->page) return error_set(err, SAC_ERR_MEMORY, "out of memory for a reading map");
    for (size_t i = 0; i < prompt->n_tok; i++) {
        size_t n;
        const char *piece = sac_token_piece(prompt->model, prompt->tok[i], true, &n);
        if (i % PAGE_TOK == 0) out->page[i / PAGE_TOK] = out->text.n;
        strbuf_add(&out->text, piece, n);
    }
    for (size_t i = (prompt->n_tok + PAGE_TOK - 1) / PAGE_TOK; i <= p->n_page; i++)
        out->page[i] = out->text.n;
    if (out->text.failed) return error_set(err, SAC_ERR_MEMORY, "out of memory for a reading map");
    return SAC_OK;
}

/* The passage of a page whose bytes are all of the document, with its weight in `share`. */
static bool take_page(struct passages *p, const struct pieces *pieces, size_t at, size_t page)
{
    const size_t from = pieces->page[page], to = pieces->page[page + 1];
    if (page == 0 || from < at || to > at + p->n_bytes || from == to) return false;
    struct passage *out = &p->item[p->n];
    out->begin = snap(p->document, p->n_bytes, from - at);
    out->end = snap(p->document, p->n_bytes, to - at);
    while (out->begin < out->end && is_space(p->document[out->begin])) out->begin++;
    if (out->begin == out->end) return false;
    out->share = p->weight[page];
    out->mass = p->n_record ? p->mass[page] / (double)p->n_record : 0;
    p->n++;
    return true;
}

sac_status passages_make(struct passages *p, const struct passages_prompt *prompt, sac_error *err)
{
    struct pieces pieces = {0};
    const char *document = prompt->document;
    size_t n = prompt->n_bytes;
    /* Templates may trim what they are given. */
    while (n > 0 && is_space(document[n - 1])) n--;
    while (n > 0 && is_space(document[0])) document++, n--;
    p->document = document;
    p->n_bytes = n;
    sac_status status = join_pieces(&pieces, p, prompt, err);
    const char *found = status == SAC_OK && pieces.text.n > 0
                            ? memmem(pieces.text.data, pieces.text.n, document, n)
                            : NULL;
    if (status == SAC_OK && !found)
        status =
            error_set(err, SAC_ERR_UNSUPPORTED,
                      "no reading map: the model's template or tokenizer changes the document");
    p->item = mem_calloc(p->n_page, sizeof *p->item);
    if (status == SAC_OK && !p->item)
        status = error_set(err, SAC_ERR_MEMORY, "out of memory for a reading map");
    double total = 0;
    for (size_t i = 0; status == SAC_OK && i < p->n_page; i++)
        if (take_page(p, &pieces, (size_t)(found - pieces.text.data), i))
            total += p->item[p->n - 1].share;
    for (size_t i = 0; p->item && i < p->n && total > 0; i++) p->item[i].share /= total;
    strbuf_deinit(&pieces.text);
    mem_free(pieces.page);
    return status;
}

void passages_deinit(struct passages *p)
{
    mem_free(p->weight);
    mem_free(p->mass);
    mem_free(p->item);
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
        cJSON_AddNumberToObject(o, "share", p->item[i].share);
        cJSON_AddNumberToObject(o, "mass", p->item[i].mass);
        cJSON_AddItemToArray(list, o);
    }
    return list;
}
