/* reading_docs.h: the documents of a reading map with their names (files of the command line and
 * documents of a store), and what an answer read of each, by document and by characters. */
#ifndef SAC_APP_READING_DOCS_H
#define SAC_APP_READING_DOCS_H

#include "app/joined.h"
#include "app/options.h"
#include "eval/passages.h"

#define READING_DOCS_MAX (JOINED_MAX + OPTION_LIST_MAX)

/* Zeroed, there are none. */
struct reading_docs {
    struct {
        const char *name; /* borrowed */
        struct passages_document text;
        char *owned; /* `text`, or NULL: somebody else's */
    } item[READING_DOCS_MAX];
    size_t n;
};

/* A text of somebody else's; both are borrowed. */
void reading_docs_add(struct reading_docs *d, const char *name, const char *text, size_t n);
/* The documents of a store that a prompt's tokens begin with: their texts are those of the tokens,
 * without the line ends that they were filled up with. */
sac_status reading_docs_add_joined(struct reading_docs *d, const struct joined *j,
                                   const sac_model *model, const int32_t *tok, sac_error *err);
void reading_docs_deinit(struct reading_docs *d);

/* For a struct passages_prompt; `out` [READING_DOCS_MAX]. */
void reading_docs_list(const struct reading_docs *d, struct passages_document *out);

/* Each document's share of what was read, with its passages that had some: names, shares, places in
 * characters. */
void reading_docs_print(const struct reading_docs *d, const struct passages *p, struct strbuf *out);
/* A list of all documents: name, share, and the list of its passages. NULL without memory. */
struct cJSON *reading_docs_json(const struct reading_docs *d, const struct passages *p);

#endif
