/* toolstream_scan.h: finds one JSON object, or one call in Python syntax, at the beginning of a
 * text that may not be complete yet. */
#ifndef SAC_GRAMMAR_TOOLSTREAM_SCAN_H
#define SAC_GRAMMAR_TOOLSTREAM_SCAN_H

#include "base/status.h"
#include "base/strbuf.h"

enum toolstream_scan_state {
    TOOLSTREAM_SCAN_MORE, /* so far it may become one */
    TOOLSTREAM_SCAN_DONE,
    TOOLSTREAM_SCAN_BAD, /* it is none */
};

/* Walks an object from its '{' on, piece by piece: feed it the whole text each time. */
struct toolstream_scan {
    enum toolstream_scan_state state;
    size_t at;      /* bytes that were looked at; behind the object when done */
    uint32_t depth; /* of brackets */
    bool quoted, escaped;
    bool in_value;         /* of a member of the object itself */
    size_t begin;          /* of the member's name or value */
    char key[16];          /* of the member at hand, as far as it may be a known one */
    size_t name, name_end; /* the text of "name" with its quotes; name_end 0: not there yet */
    size_t args,
        args_end; /* of "arguments" or "parameters"; args 0: not there, args_end 0: goes on */
};

void toolstream_scan_json(struct toolstream_scan *s, const char *text, size_t n);

/* The name that a JSON text with quotes spells; false if it is none or too long. */
bool toolstream_scan_name(char *out, size_t room, const char *json, size_t n);

/* NAME(key=value, ...) with values as Python writes them; DONE with the arguments as JSON in
 * `out_args` and the bytes in `*out_used`. */
enum toolstream_scan_state toolstream_scan_python(const char *text, size_t n, char *name,
                                                  size_t room, struct strbuf *out_args,
                                                  size_t *out_used);

#endif
