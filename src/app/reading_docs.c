/* reading_docs.c: see the header. Positions are characters of the document as it was given, from 0
 * on; for a stored document, of the text that the model has read. */
#include "app/reading_docs.h"

#include "base/mem.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <string.h>

#define QUOTE_BYTES 160u

void reading_docs_add(struct reading_docs *d, const char *name, const char *text, size_t n)
{
    assert(d->n < READING_DOCS_MAX);
    d->item[d->n].name = name;
    d->item[d->n++].text = (struct passages_document){text, n};
}

static sac_status add_tokens(struct reading_docs *d, const char *name, const sac_model *model,
                             const int32_t *tok, size_t n_tok, sac_error *err)
{
    struct strbuf text = {0};
    passages_add_pieces(&text, model, tok, n_tok);
    const size_t n = text.n;
    strbuf_add(&text, "", 0);
    char *owned = strbuf_detach(&text, NULL);
    if (!owned) return error_set(err, SAC_ERR_MEMORY, "out of memory for a reading map");
    reading_docs_add(d, name, owned, n);
    d->item[d->n - 1].owned = owned;
    return SAC_OK;
}

sac_status reading_docs_add_joined(struct reading_docs *d, const struct joined *j,
                                   const sac_model *model, const int32_t *tok, sac_error *err)
{
    size_t at = j->doc[0].n_head;
    for (size_t i = 0; i < j->n; i++) {
        const size_t n = j->doc[i].n_tok - j->doc[i].n_head;
        TRY(add_tokens(d, j->doc[i].name, model, tok + at, n, err));
        at += n;
    }
    return SAC_OK;
}

void reading_docs_deinit(struct reading_docs *d)
{
    for (size_t i = 0; i < d->n; i++) mem_free(d->item[i].owned);
    *d = (struct reading_docs){0};
}

void reading_docs_list(const struct reading_docs *d, struct passages_document *out)
{
    for (size_t i = 0; i < d->n; i++) out[i] = d->item[i].text;
}

static double share_of(const struct passages *p, size_t document)
{
    double share = 0;
    for (size_t i = 0; i < p->n; i++)
        if (p->item[i].document == document) share += p->item[i].share;
    return share;
}

/* ---- Text output ---- */

/* Appends a passage on one line, truncated between characters. */
static void add_quote(struct strbuf *out, const char *text, size_t n)
{
    const bool is_cut = n > QUOTE_BYTES;
    if (is_cut) n = QUOTE_BYTES;
    while (is_cut && n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80) n--;
    strbuf_adds(out, "\"");
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        strbuf_addf(out, "%c", c < 0x20 || c == 0x7f ? ' ' : c);
    }
    strbuf_adds(out, is_cut ? "...\"" : "\"");
}

void reading_docs_print(const struct reading_docs *d, const struct passages *p, struct strbuf *out)
{
    for (size_t i = 0; i < d->n; i++) {
        strbuf_addf(out, "%3.0f %%  %s\n", 100 * share_of(p, i), d->item[i].name);
        for (size_t k = 0; k < p->n; k++) {
            const struct passage *m = &p->item[k];
            if (m->document != i || passages_level(m->share) == 0) continue;
            strbuf_addf(out, "       %3.0f %%  characters %zu to %zu: ", 100 * m->share,
                        m->char_begin, m->char_end);
            add_quote(out, p->document + m->begin, m->end - m->begin);
            strbuf_adds(out, "\n");
        }
    }
}

/* ---- Machine-readable output ---- */

static cJSON *passage_list(const struct passages *p, size_t document)
{
    cJSON *list = cJSON_CreateArray();
    for (size_t k = 0; k < p->n; k++) {
        const struct passage *m = &p->item[k];
        if (m->document != document || passages_level(m->share) == 0) continue;
        cJSON *o = cJSON_CreateObject();
        cJSON_AddNumberToObject(o, "begin", (double)m->char_begin);
        cJSON_AddNumberToObject(o, "end", (double)m->char_end);
        cJSON_AddNumberToObject(o, "share", m->share);
        cJSON_AddItemToArray(list, o);
    }
    return list;
}

cJSON *reading_docs_json(const struct reading_docs *d, const struct passages *p)
{
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; i < d->n; i++) {
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "name", d->item[i].name);
        cJSON_AddNumberToObject(o, "share", share_of(p, i));
        cJSON_AddItemToObject(o, "passages", passage_list(p, i));
        cJSON_AddItemToArray(list, o);
    }
    return list;
}
