/* schema_writer.h: what the files that turn schemas into GBNF share: the writer, its messages, and
 * names of rules. Everything made for the writer is freed with it. */
#ifndef SAC_GRAMMAR_SCHEMA_WRITER_H
#define SAC_GRAMMAR_SCHEMA_WRITER_H

#include "base/status.h"
#include "base/strbuf.h"
#include "grammar/charset.h"

#include <cjson/cJSON.h>

#define SCHEMA_WRITER_REFS_MAX  4096u
#define SCHEMA_WRITER_MADE_MAX  4096u
#define SCHEMA_WRITER_RULES_MAX 30000u
#define SCHEMA_WRITER_REPEAT    65536.0 /* maximum count of characters or items */
#define SCHEMA_WRITER_UNBOUNDED (-1.0)

/* Rules that many schemas use; written once, at the end, if needed. */
enum schema_shared {
    SCHEMA_WS = 0,
    SCHEMA_CHAR,
    SCHEMA_STRING,
    SCHEMA_INTEGER,
    SCHEMA_NUMBER,
    SCHEMA_BOOLEAN,
    SCHEMA_NULL,
    SCHEMA_OBJECT,
    SCHEMA_ARRAY,
    SCHEMA_VALUE,
    SCHEMA_SHARED_N,
};

struct schema_ref {
    const cJSON *target; /* inside the document */
    uint32_t rule;
};

struct schema_writer {
    struct strbuf *out;
    const char *root;
    cJSON *document; /* owned */
    cJSON *made;     /* owned: array of merged schemas */
    uint32_t n_made;
    struct schema_ref *ref; /* owned, [n_ref]: rules of $ref targets */
    uint32_t n_ref, n_ref_done;
    uint32_t n_rule, depth;
    bool shared[SCHEMA_SHARED_N];
    char path[256]; /* path of the current schema, for messages */
    size_t path_n;
    sac_error *err;
};

/* Sets a message that begins with the path, and returns `code`. */
__attribute__((format(printf, 3, 4))) sac_status
schema_writer_refuse(const struct schema_writer *w, sac_status code, const char *fmt, ...);
sac_status schema_writer_no_memory(const struct schema_writer *w);

/* Extends the path; returns the value for schema_writer_leave. */
size_t schema_writer_enter(struct schema_writer *w, const char *what, const char *key);
void schema_writer_leave(struct schema_writer *w, size_t was);

/* The number of a new rule. SAC_ERR_CONTEXT: too many. */
sac_status schema_writer_rule(struct schema_writer *w, uint32_t *out_rule);
/* Writes "NAME ::= " to the grammar. */
void schema_writer_begin(struct schema_writer *w, uint32_t rule);
void schema_writer_name(const struct schema_writer *w, struct strbuf *out, uint32_t rule);
/* Writes the name of a shared rule and a blank. */
void schema_writer_shared(struct schema_writer *w, struct strbuf *out, enum schema_shared which);

/* A literal of these bytes; a class of these characters. */
void schema_writer_literal(struct strbuf *out, const char *bytes, size_t n);
void schema_writer_class(struct strbuf *out, const struct charset *set);
/* A JSON value as a literal. */
sac_status schema_writer_value(struct schema_writer *w, struct strbuf *out, const cJSON *value);
/* "{m,n} ", or "{m,} " for SCHEMA_WRITER_UNBOUNDED. */
void schema_writer_repeat(struct strbuf *out, double min, double max);

const cJSON *schema_writer_get(const cJSON *schema, const char *keyword);
/* Reads a count from 0 to SCHEMA_WRITER_REPEAT; `otherwise` if the keyword is missing. */
sac_status schema_writer_count(struct schema_writer *w, const cJSON *schema, const char *keyword,
                               double otherwise, double *out);

/* Writes a schema as a new rule: schema.c. */
sac_status schema_writer_write(struct schema_writer *w, const cJSON *schema, uint32_t *out_rule);

#endif
