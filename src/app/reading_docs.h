/* reading_docs.h: the documents of a reading map with their names (files of the command line and
 * documents of a store), and what an answer read of each, by document and by characters. */
#ifndef SAC_APP_READING_DOCS_H
#define SAC_APP_READING_DOCS_H

#include "app/joined.h"
#include "app/options.h"
#include "eval/passages.h"

#define READING_DOCS_MAX (JOINED_MAX + OPTION_LIST_MAX)

/* Empty if zeroed. */
struct reading_docs {
    struct {
        const char *name; /* borrowed */
        struct passages_document text;
        char *owned; /* owner of `text`, or NULL: it is borrowed */
    } item[READING_DOCS_MAX];
    size_t n;
};

/* Adds a borrowed name and text. */
void reading_docs_add(struct reading_docs *d, const char *name, const char *text, size_t n);
/* Adds the stored documents at the beginning of the prompt. Their texts come from their tokens,
 * without the newlines that padded them to whole pages. */
sac_status reading_docs_add_joined(struct reading_docs *d, const struct joined *j,
                                   const sac_model *model, const int32_t *tok, sac_error *err);
void reading_docs_deinit(struct reading_docs *d);

/* For struct passages_prompt; `out` has READING_DOCS_MAX entries. */
void reading_docs_list(const struct reading_docs *d, struct passages_document *out);

/* Prints each document's share of the attention, and its passages that have any: names, shares,
 * positions in characters. */
void reading_docs_print(const struct reading_docs *d, const struct passages *p, struct strbuf *out);
/* All documents as a list: name, share, passages. NULL: out of memory. */
struct cJSON *reading_docs_json(const struct reading_docs *d, const struct passages *p);

#endif
