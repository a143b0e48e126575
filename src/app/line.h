/* line.h: lines that a person types, with editing and history on a terminal, or that a pipe brings.
 * A line that ends in a backslash goes on in the next one. */
#ifndef SAC_APP_LINE_H
#define SAC_APP_LINE_H

#include "base/status.h"
#include "base/strbuf.h"

struct line;

enum line_result {
    LINE_READ,        /* a line, without its newline */
    LINE_END,         /* Ctrl-D, or the end of the file */
    LINE_INTERRUPTED, /* Ctrl-C; what was typed is dropped */
};

/* Needs interrupt_install(). History is kept in $XDG_STATE_HOME/saccade/history. */
sac_status line_open(struct line **out, sac_error *err);
void line_close(struct line *l);
bool line_is_terminal(const struct line *l);
enum line_result line_read(struct line *l, struct strbuf *out);

#endif
