/* tool_parser_scan.h: finds one JSON object, or one call in Python syntax, at the beginning of a
 * text that may not be complete yet. */
#ifndef SAC_GRAMMAR_TOOL_PARSER_SCAN_H
#define SAC_GRAMMAR_TOOL_PARSER_SCAN_H

#include "base/status.h"
#include "base/strbuf.h"

enum tool_parser_scan_state {
    TOOL_PARSER_SCAN_MORE, /* not decided yet */
    TOOL_PARSER_SCAN_DONE,
    TOOL_PARSER_SCAN_BAD, /* not valid */
};

/* Scans an object from its '{' on, incrementally: pass the whole text each time. */
struct tool_parser_scan {
    enum tool_parser_scan_state state;
    size_t at;      /* bytes scanned; when done, the end of the object */
    uint32_t depth; /* nesting of brackets */
    bool quoted, escaped;
    bool in_value;         /* inside the value of a top-level member */
    size_t begin;          /* start of the member's name or value */
    char key[16];          /* name of the current member, truncated */
    size_t name, name_end; /* range of the value of "name" with its quotes; name_end 0: unknown */
    size_t args, args_end; /* range of "arguments" or "parameters"; args 0: unknown, args_end 0:
                              incomplete */
};

void tool_parser_scan_json(struct tool_parser_scan *s, const char *text, size_t n);

/* Decodes a name from a JSON string with quotes; false: invalid or too long. */
bool tool_parser_scan_name(char *out, size_t room, const char *json, size_t n);

/* NAME(key=value, ...) with Python values; DONE: the arguments as JSON are in `out_args`, the bytes
 * consumed in `*out_used`. */
enum tool_parser_scan_state tool_parser_scan_python(const char *text, size_t n, char *name,
                                                    size_t room, struct strbuf *out_args,
                                                    size_t *out_used);

#endif
