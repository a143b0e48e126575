/* line.h: lines that a person types, with editing, history and completion on a terminal, or that
 * come from a pipe. A line that ends in a backslash continues in the next one; a paste of several
 * lines is one text. */
#ifndef SAC_APP_LINE_H
#define SAC_APP_LINE_H

#include "base/status.h"
#include "base/strbuf.h"
#include "eval/strlist.h"

struct line;

enum line_result {
    LINE_READ,        /* a text, without its last newline */
    LINE_END,         /* Ctrl-D, or the end of the file */
    LINE_DROPPED,     /* Ctrl-C while something was typed, which is forgotten */
    LINE_INTERRUPTED, /* Ctrl-C, and nothing was typed */
};

/* What may stand in the place of the last word of `before`, which is what was typed up to the
 * cursor: whole words go to `out`, `*out_n_word` gets the bytes of `before` that they replace. A
 * word that ends in '/', '=' or ':' is gone on with, behind others comes a blank. */
typedef void (*line_complete_fn)(void *user, const char *before, struct strlist *out,
                                 size_t *out_n_word);

/* Needs interrupt_install(). History is kept in $XDG_STATE_HOME/saccade/history. */
sac_status line_open(struct line **out, line_complete_fn complete, void *user, sac_error *err);
void line_close(struct line *l);
bool line_is_terminal(const struct line *l);
enum line_result line_read(struct line *l, struct strbuf *out);

#endif
